"""``bnmc regularity``: the regularity constant of the rank-collapse paper."""

from __future__ import annotations

import math

from bnmc.cli.command import Report, command


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
    progress: bool,
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
    from bnmc.chain.chain import Chain
    from bnmc.regularity import constant

    chain = Chain.bn_residual(width, width if batch is None else batch, activation, gamma=gamma)
    estimate = constant(chain, rtol=rtol, rng=seed, threads=threads, progress=progress)
    document = {"chain": repr(chain), **estimate.as_json()}
    return Report(document, [chain, f"regularity constant {estimate}"])
