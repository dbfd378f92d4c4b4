"""``bnmc check``: tests of the claims about the stationary law."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bnmc.cli.command import Report, command
from bnmc.cli.statuses import FAILED, OK


@command(
    *("width", "batch", "activation", "norm", "skip", "gain", "weights", "eps"), width=100, batch=5
)
def check(
    chain: Any,
    seed: int,
    progress: bool,
    samples: Path | None = None,
    size: int = 1000,
    alpha: float = 1e-3,
) -> Report:
    """Test the claims about the stationary law, one by one.

    If a claim fails, the exit status is 4.

    Example: bnmc check --width 200 --batch 4 --activation tanh --samples states.npy

    Parameters
    ----------
    samples : FILE
        Pre-normalization states of another program: a .npy file of shape (samples, width,
        batch). Default: samples that bnmc draws.
    size
        Number of samples that bnmc draws.
    alpha
        Probability that a true claim fails, over all claims together.
    """
    from bnmc.cli.inputs import read_states
    from bnmc.invariant import check as check_claims

    states = None if samples is None else read_states(samples)
    result = check_claims(
        chain, samples=states, size=size, alpha=alpha, rng=seed, progress=progress
    )
    return Report(result.to_dict(), [result], status=OK if result.ok else FAILED)
