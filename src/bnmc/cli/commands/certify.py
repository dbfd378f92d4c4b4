"""``bnmc certify``: bounds on the distance in total variation from the stationary law."""

from __future__ import annotations

from typing import Any

from bnmc.cli.command import Report, command
from bnmc.cli.forecast import Progress, announced, forecast


@command(
    *("width", "batch", "activation", "norm", "order", "gain", "eps", "bias_variance"), plot=True
)
def certify(
    chain: Any,
    seed: int,
    threads: int | None,
    hours: float,
    depth: int = 60,
    replicates: int = 1000,
    lag: int | None = None,
    horizon: int | None = None,
    tail_probability: float | None = None,
    progress: Progress = True,
) -> Report:
    """Bound the distance of each layer from the stationary law.

    The distance is total variation, and coupled pairs of chains bound it. The first table needs no
    assumption. The output states the assumptions of the second table.

    Layer 0 has independent Gaussian samples. bnmc.mixing.tv_bound takes any other start.

    If pairs do not meet, the command prints the measured meetings and exits with status 3.

    Example: bnmc certify --width 1000 --batch 10 --depth 60 --plot certificate.png

    Example: bnmc certify --norm layer --order activation-norm --batch 5

    Parameters
    ----------
    depth
        Last layer of the bound.
    replicates
        Number of pairs of coupled chains.
    lag
        Lag in layers between the chains of a pair. Default: chosen by a pilot run.
    horizon
        Number of layers over which intervals hold without assumption. Default: 2 lags.
    tail_probability
        Your upper bound of the probability that a pair meets after the horizon. 0 extends
        the bound to the stationary law. Default: none.
    """
    from bnmc.mixing import tv_bound

    expected = forecast(chain)
    seconds = expected.certificate(replicates, lag)
    with announced("certify", expected, seconds, hours, threads, progress) as workers:
        bound = tv_bound(
            chain, depth, lag=lag, replicates=replicates, horizon=horizon,
            tail_probability=tail_probability, rng=seed, **workers,
        )  # fmt: skip

    def draw() -> Any:
        axes = bound.plot()
        axes.figure.suptitle(f"{chain}, from independent samples", fontsize="medium")
        return axes

    text = f"{chain}, from independent Gaussian samples\n{bound}"
    return Report({"chain": repr(chain), **bound.to_dict()}, [text], draw)
