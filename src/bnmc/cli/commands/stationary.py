"""``bnmc certify``, ``rates``, ``regularity`` and ``check``: mixing, and the stationary law."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from bnmc.cli.command import Report, command
from bnmc.cli.forecast import Progress, announced, forecast
from bnmc.cli.statuses import FAILED, NO_ESTIMATE, OK


@command(
    *("width", "batch", "activation", "norm", "order", "gain", "eps", "bias_variance"), plot=True
)
def certify(
    chain: Any,
    seed: int,
    threads: int | None,
    hours: float,
    depth: int = 60,
    chains: int = 1000,
    lag: int | None = None,
    horizon: int | None = None,
    tail_probability: float | None = None,
    distance: float = 0.05,
    progress: Progress = True,
) -> Report:
    """Bound the distance of each layer from later layers.

    The distance is total variation, and coupled pairs of chains bound it. The first line has the
    layer from which it is small. The first table needs no assumption. The output states the
    assumptions of the second table.

    Layer 0 has independent Gaussian samples. bnmc.mixing.tv_bound takes any other start.

    If pairs do not meet, the command prints why and exits with status 3.

    Example: bnmc certify --width 1000 --batch 10 --depth 60 --plot certificate.png

    Example: bnmc certify --norm layer --order activation-norm --batch 5

    Parameters
    ----------
    depth
        Last layer of the bound.
    chains
        Number of pairs of coupled chains.
    lag
        Lag in layers between the chains of a pair. Default: chosen by a pilot run.
    horizon
        Number of layers over which intervals hold without assumption. Default: 2 lags.
    tail_probability
        Your upper bound of the probability that a pair meets after the horizon. 0 extends
        the bound to the stationary law. Default: none.
    distance
        Total-variation distance; the first line has the layer from which it is not exceeded.
    """
    from bnmc._support.arguments import real
    from bnmc.mixing import tv_bound
    from bnmc.plot.axes import about_chain

    distance = real("distance", distance, above=0.0, below=1.0)
    expected = forecast(chain)
    seconds = expected.certificate(chains, lag)
    with announced("certify", expected, seconds, hours, threads, progress) as workers:
        bound = tv_bound(
            chain, depth, lag=lag, chains=chains, horizon=horizon,
            tail_probability=tail_probability, rng=seed, **workers,
        )  # fmt: skip

    def draw() -> Any:
        axes = bound.plot()
        title = f"{about_chain(chain)}, from independent samples"
        axes.figure.suptitle(title, fontsize="medium")
        return axes

    text = f"{chain}, from independent Gaussian samples\n{bound.text(distance)}"
    layer = None if bound.unmet else bound.layers_to(distance)
    document = {"chain": chain, "distance": {"at_most": distance, "layer": layer}}
    return Report({**document, **bound.to_dict()}, [text], draw)


@command("width", "batch", "activation", "norm", "skip", "gain", "weights", "eps", plot=True)
def rates(
    chain: Any, seed: int, threads: int | None, hours: float, progress: Progress = True
) -> Report:
    """Estimate the rate of mixing by five methods.

    The first row of the table is the rate of the mean field. The methods are contraction, the
    coupling of tv_bound, autocorrelation, spectral and relaxation.

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


@command()
def regularity(
    activation: str = "linear",
    width: int = 32,
    batch: int | None = None,
    gamma: float = math.inf,
    rtol: float = 0.01,
    *,
    seed: int,
    threads: int | None,
    progress: Progress = True,
) -> Report:
    """Estimate the regularity constant of rank collapse.

    The constant is α = E Tr(diag(M²)²) / E Tr(M³) of the stationary law of M = x xᵀ / n, in
    Definition 3 of Daneshmand et al., arXiv 2003.01652.

    Example: bnmc regularity --width 64 --gamma 0.1

    Parameters
    ----------
    batch
        Number of samples in the batch. Default: the width.
    gamma
        Weight scale γ in x + γWx; inf removes the skip connection.
    rtol
        Target relative standard error.
    """
    from bnmc._support.arguments import real
    from bnmc._support.progress import announce
    from bnmc._support.workers import thread_count
    from bnmc.chain.chain import Chain
    from bnmc.regularity import constant
    from bnmc.regularity.ergodic import burn_in_of, seconds_of

    chain = Chain.bn_residual(width, width if batch is None else batch, activation, gamma=gamma)
    if progress:
        layers, chains = 2 * burn_in_of(chain, real("rtol", rtol, above=0.0)), 64
        seconds = seconds_of(chain, layers, chains) / thread_count(threads)
        announce("regularity", seconds, f"{layers} layers of {chains} chains, or more")
    estimate = constant(chain, rtol=rtol, rng=seed, threads=threads, progress=progress)
    document = {"chain": chain, **estimate.as_json()}
    return Report(document, [chain, f"regularity constant {estimate}"])


@command(
    *("width", "batch", "activation", "norm", "skip", "gain", "weights", "eps"), width=100, batch=5
)
def check(
    chain: Any,
    seed: int,
    samples: Path | None = None,
    chains: int = 1000,
    alpha: float = 1e-3,
    progress: Progress = True,
) -> Report:
    """Test the claims about the stationary law, one by one.

    If a claim fails, the exit status is 4.

    Example: bnmc check --width 200 --batch 4 --activation tanh --samples states.npy

    Parameters
    ----------
    samples : FILE
        Pre-normalization states of another program: a .npy file of shape (samples, width,
        batch). Default: samples that bnmc draws.
    chains
        Number of samples that bnmc draws, one of each chain.
    alpha
        Probability that a true claim fails, over all claims together.
    """
    from bnmc._support.progress import announce
    from bnmc._support.workers import thread_count
    from bnmc.cli.inputs import read_states
    from bnmc.invariant import check as check_claims

    states = None if samples is None else read_states(samples)
    if states is None and progress:
        expected = forecast(chain)
        announce("check", expected.check(chains) / thread_count(None), expected.reason)
    result = check_claims(
        chain, samples=states, chains=chains, alpha=alpha, rng=seed, progress=progress
    )
    return Report(result.to_dict(), [result.table()], status=OK if result.ok else FAILED)
