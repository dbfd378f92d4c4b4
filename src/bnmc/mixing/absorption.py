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


def absorption_probability(events: tuple[AbsorbingEvent, ...], layers: int) -> float:
    """Return an upper bound of the probability of an absorbing event within some layers.

    Parameters
    ----------
    events : tuple of AbsorbingEvent
    layers : int
        Number of layers, >= 0.

    Returns
    -------
    float
        The number of layers times the sum of the probabilities, each with three standard errors; at
        most 1.
    """
    per_layer = sum(event.probability + 3.0 * event.stderr for event in events)
    return min(1.0, layers * per_layer)
