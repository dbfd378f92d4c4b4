"""Stub."""

from __future__ import annotations
from dataclasses import dataclass
import numpy as np
from numpy.typing import NDArray
from bnmc.chain.chain import Chain

__all__ = ["AbsorbingEvent", "absorbing_events"]


@dataclass(frozen=True)
class AbsorbingEvent:
    """An event."""

    name: str
    description: str
    probability: float
    stderr: float
    is_bound: bool


def absorbing_events(chain: Chain, grams: NDArray[np.float64]) -> tuple[AbsorbingEvent, ...]:
    """Stub."""
    if chain.activation.name == "relu" and not chain.normalization.centred:
        p = chain.batch * 2.0**-chain.width
        if p > 1e-30:
            return (
                AbsorbingEvent(
                    "dead sample",
                    "All activations of a sample are 0; they stay 0 in all later layers.",
                    p,
                    0.0,
                    True,
                ),
            )
    return ()
