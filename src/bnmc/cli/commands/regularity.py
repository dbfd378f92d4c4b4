"""``bnmc regularity``: the regularity constant of the rank-collapse paper."""

from __future__ import annotations

import math
from typing import Annotated

import typer

from bnmc.cli import options
from bnmc.cli.report import chosen_seed, print_json, progress_report

__all__ = ["regularity"]


def regularity(
    width: options.Width = 32,
    batch: Annotated[
        int | None, typer.Option(help="Number of samples in the batch. Default: the width.")
    ] = None,
    activation: options.Activation = "linear",
    gamma: Annotated[
        float, typer.Option(help="Weight scale γ in x + γWx; inf removes the skip connection.")
    ] = math.inf,
    rtol: Annotated[float, typer.Option(help="Target relative standard error.")] = 0.01,
    seed: options.Seed = None,
    threads: options.Threads = None,
    as_json: options.Json = False,
    progress: options.ProgressFlag = None,
) -> None:
    """Estimate the regularity constant of rank collapse.

    The constant is α = E Tr(diag(M²)²) / E Tr(M³) of the stationary law of M = x xᵀ / n, in
    Definition 3 of Daneshmand et al., arXiv 2003.01652.

    Example: bnmc regularity --width 64 --gamma 0.1
    """
    from bnmc.chain.chain import Chain
    from bnmc.regularity import constant

    chain = Chain.bn_residual(width, width if batch is None else batch, activation, gamma=gamma)
    seed = chosen_seed(seed)
    found = constant(
        chain, rtol=rtol, rng=seed, threads=threads, progress=progress_report(progress)
    )
    if as_json:
        low, high = found.ci
        facts = {"value": found.value, "stderr": found.stderr, "ci": [low, high], "n": found.n}
        print_json({"chain": repr(chain), "seed": seed, **facts})
        return
    print(f"{chain}\nregularity constant {found}\nseed {seed}")
