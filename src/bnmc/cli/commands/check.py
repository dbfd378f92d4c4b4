"""``bnmc check``: tests of the claims about the stationary law."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bnmc.cli import options
from bnmc.cli.report import chosen_seed, print_json, progress_report
from bnmc.cli.statuses import FAILED

__all__ = ["check"]


def check(
    width: options.Width = 100,
    batch: options.Batch = 5,
    activation: options.Activation = "relu",
    norm: options.Norm = "batch",
    skip: options.Skip = 0.0,
    gain: options.GainOfLaw = None,
    weights: options.Weights = "gaussian",
    eps: options.Eps = 0.0,
    samples: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Pre-normalization states of another program: a .npy file of shape (samples, "
            "width, batch). Default: samples that bnmc draws.",
        ),
    ] = None,
    size: Annotated[int, typer.Option(help="Number of samples that bnmc draws.")] = 1000,
    alpha: Annotated[
        float, typer.Option(help="Probability that a true claim fails, over all claims together.")
    ] = 1e-3,
    seed: options.Seed = None,
    as_json: options.Json = False,
    progress: options.ProgressFlag = None,
) -> None:
    """Test the claims about the stationary law, one by one.

    If a claim fails, the exit status is 4.

    Example: bnmc check --width 200 --batch 4 --activation tanh --samples states.npy
    """
    from bnmc.chain.chain import Chain
    from bnmc.cli.inputs import read_states
    from bnmc.invariant import check as check_claims

    chain = Chain(
        width, batch, activation, norm=norm, skip=skip, gain=gain, weights=weights, eps=eps
    )
    given = None if samples is None else read_states(samples)
    seed = chosen_seed(seed)
    report = check_claims(
        chain, samples=given, size=size, alpha=alpha, rng=seed, progress=progress_report(progress)
    )
    if as_json:
        print_json({"seed": seed, **report.to_dict()})
    else:
        print(f"{report}\nseed {seed}")
    if not report.ok:
        raise typer.Exit(FAILED)
