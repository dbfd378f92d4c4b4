"""``bnmc rates``: all estimates of the rate of a chain."""

from __future__ import annotations

from typing import Any

from bnmc.cli.command import Report, command
from bnmc.cli.forecast import Progress, announced, forecast
from bnmc.cli.statuses import NO_ESTIMATE, OK


@command("width", "batch", "activation", "norm", "skip", "gain", "weights", "eps", plot=True)
def rates(
    chain: Any, seed: int, threads: int | None, hours: float, progress: Progress = True
) -> Report:
    """Estimate the rate of mixing by five methods.

    The first row of the table is the rate of the mean field.

    If no method finds a rate, the exit status is 3, and the table gives the reason of each method.

    Example: bnmc rates --activation tanh --batch 5 --plot rates.png
    """
    from bnmc.mixing import compare

    expected = forecast(chain)
    with announced("rates", expected, expected.rates(), hours, threads, progress) as workers:
        result = compare(chain, rng=seed, **workers)
    has_rate = any(row.estimate for row in result.rows[1:])  # the first is the mean field's
    status = OK if has_rate else NO_ESTIMATE
    return Report(result.to_dict(), [result], result.plot, status)
