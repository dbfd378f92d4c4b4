"""Cuts of chains into stretches, the nearly independent units of a jackknife."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

#: The fewest stretches that give a standard error.
LEAST_STRETCHES = 5

#: Chains are cut into about as many stretches in total; more would not improve the error.
_ENOUGH_STRETCHES = 50

#: The shortest stretch of a chain that is cut, in correlation times.
STRETCH_TIMES = 10


def cuts(chains: int, layers: int, shortest: float) -> NDArray[np.intp]:
    """Return the first layer of each stretch of a chain.

    Parameters
    ----------
    chains, layers : int
        Number of chains, and of recorded layers of each.
    shortest : float
        Least length of a stretch, in recorded layers.

    Returns
    -------
    (stretches,) ndarray of int
        ``[0]`` if there are enough chains: these are independent, so they stay whole.
    """
    pieces = max(1, min(int(layers / shortest), -(-_ENOUGH_STRETCHES // chains)))
    return np.linspace(0, layers, pieces + 1).astype(np.intp)[:-1]
