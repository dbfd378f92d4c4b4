"""``bnmc rates``: all estimates of the rate of a chain."""

from __future__ import annotations

import typer

from bnmc.cli import options
from bnmc.cli.outputs import require_destination, save
from bnmc.cli.report import chosen_seed, print_json
from bnmc.cli.statuses import NO_ESTIMATE
from bnmc.cli.threads import thread_pool
from bnmc.cli.waiting import forecast, waiting

__all__ = ["rates"]


def rates(
    width: options.Width = 1000,
    batch: options.Batch = 10,
    activation: options.Activation = "relu",
    norm: options.Norm = "batch",
    skip: options.Skip = 0.0,
    gain: options.GainOfLaw = None,
    weights: options.Weights = "gaussian",
    eps: options.Eps = 0.0,
    seed: options.Seed = None,
    threads: options.Threads = None,
    hours: options.Hours = 1.0,
    plot: options.Plot = None,
    force: options.Force = False,
    as_json: options.Json = False,
    progress: options.ProgressFlag = None,
) -> None:
    """Estimate the rate of mixing by five methods.

    The first row of the table is the rate of the mean field.

    If no method finds a rate, the exit status is 3, and the table gives the reason of each method.

    Example: bnmc rates --activation tanh --batch 5 --plot rates.png
    """
    from bnmc.chain.chain import Chain
    from bnmc.mixing import compare

    if plot is not None:
        require_destination("plot", plot, force)
    chain = Chain(
        width, batch, activation, norm=norm, skip=skip, gain=gain, weights=weights, eps=eps
    )
    seed = chosen_seed(seed)
    expected = forecast(chain)
    seconds = 0.0 if expected is None else expected.rates()
    with (
        thread_pool(threads) as pool,
        waiting("rates", expected, seconds, hours, threads, progress) as report,
    ):
        found = compare(chain, rng=seed, executor=pool, progress=report)
    if as_json:
        print_json({"seed": seed, **found.to_dict()})
    else:
        print(f"{found}\nseed {seed}", flush=True)
    if plot is not None:
        save(found.plot().figure, plot)
    if all(row.estimate is None for row in found.rows[1:]):  # the first is the mean field's
        raise typer.Exit(NO_ESTIMATE)
