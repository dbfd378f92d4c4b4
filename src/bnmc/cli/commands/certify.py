"""``bnmc certify``: bounds on the distance in total variation from the stationary law."""

from __future__ import annotations

from typing import Annotated

import typer

from bnmc.cli import options
from bnmc.cli.outputs import require_destination, save
from bnmc.cli.report import chosen_seed, print_json
from bnmc.cli.threads import thread_pool
from bnmc.cli.waiting import forecast, waiting

__all__ = ["certify"]


def certify(
    width: options.Width = 1000,
    batch: options.Batch = 10,
    activation: options.Activation = "relu",
    norm: options.Norm = "batch",
    order: options.Order = "norm-activation",
    gain: options.Gain = 1.0,
    eps: options.Eps = 0.0,
    bias_variance: options.BiasVariance = 0.0,
    depth: Annotated[int, typer.Option(help="Last layer of the bound.")] = 60,
    replicates: Annotated[int, typer.Option(help="Number of pairs of coupled chains.")] = 1000,
    lag: Annotated[
        int | None,
        typer.Option(
            help="Lag in layers between the chains of a pair. Default: chosen by a pilot run."
        ),
    ] = None,
    horizon: Annotated[
        int | None,
        typer.Option(
            help="Number of layers over which intervals hold without assumption. Default: 2 lags."
        ),
    ] = None,
    tail_probability: Annotated[
        float | None,
        typer.Option(
            help="Your upper bound of the probability that a pair meets after the horizon. 0 "
            "extends the bound to the stationary law. Default: none."
        ),
    ] = None,
    seed: options.Seed = None,
    threads: options.Threads = None,
    hours: options.Hours = 1.0,
    plot: options.Plot = None,
    force: options.Force = False,
    as_json: options.Json = False,
    progress: options.ProgressFlag = None,
) -> None:
    """Bound the distance of each layer from the stationary law.

    The distance is total variation, and coupled pairs of chains bound it. The first table needs no
    assumption. The output states the assumptions of the second table.

    Layer 0 has independent Gaussian samples. bnmc.mixing.tv_bound takes any other start.

    If pairs do not meet, the command prints the measured meetings and exits with status 3.

    Example: bnmc certify --width 1000 --batch 10 --depth 60 --plot certificate.png

    Example: bnmc certify --norm layer --order activation-norm --batch 5
    """
    from bnmc.chain.chain import Chain
    from bnmc.mixing import tv_bound

    if plot is not None:
        require_destination("plot", plot, force)
    chain = Chain(
        width, batch, activation, norm=norm, order=order, gain=gain, eps=eps,
        bias_variance=bias_variance,
    )  # fmt: skip
    seed = chosen_seed(seed)
    expected = forecast(chain)
    seconds = 0.0 if expected is None else expected.certificate(replicates, lag)
    with (
        thread_pool(threads) as pool,
        waiting("certify", expected, seconds, hours, threads, progress) as report,
    ):
        found = tv_bound(
            chain, depth, lag=lag, replicates=replicates, horizon=horizon,
            tail_probability=tail_probability, rng=seed, executor=pool, progress=report,
        )  # fmt: skip
    if as_json:
        print_json({"chain": repr(chain), "seed": seed, **found.to_dict()})
    else:
        print(f"{chain}, from independent Gaussian samples\n{found}\nseed {seed}", flush=True)
    if plot is not None:
        ax = found.plot()
        ax.figure.suptitle(f"{chain}, from independent samples", fontsize="medium")
        save(ax.figure, plot)
