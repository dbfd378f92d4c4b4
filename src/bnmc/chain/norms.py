"""TODO-DOC bnmc.chain.chain.norms."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bnmc.chain.chain import Chain
from bnmc.errors import ZeroVarianceError

__all__ = ["normalise"]


def normalise(chain: Chain, x: NDArray[np.float64], own: bool) -> NDArray[np.float64]:
    """Return N(x) for x of shape (chains, inputs, width, batch); `own`: one x a chain."""
    if chain.norm == "none":
        return x
    if chain.eps == 0.0:
        reference = x[..., :1] if chain.norm == "batch" else 0.0
        constant = (x == reference).all(axis=-1)
        if constant.any():
            index, _, row = (int(i) for i in np.argwhere(constant)[0])
            raise ZeroVarianceError(index if own else None, 0 if own else None, row)
    # Squares of very small or large entries would under- or overflow: measure each row in units
    # of its largest entry.
    largest = np.abs(x).max(axis=-1, keepdims=True)
    unit = np.where(largest > 0.0, largest, 1.0)
    x = x / unit
    if chain.norm == "batch":
        x = x - x.mean(axis=-1, keepdims=True)
    deviation = np.hypot(np.sqrt(np.mean(x * x, axis=-1, keepdims=True)), np.sqrt(chain.eps) / unit)
    normalised: NDArray[np.float64] = x / deviation
    return normalised
