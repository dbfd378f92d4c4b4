"""TODO-DOC bnmc._support.linalg."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["semidefinite_root"]


def semidefinite_root(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return R with RᵀR = matrix, for a positive semidefinite matrix."""
    values, vectors = np.linalg.eigh(matrix)
    root: NDArray[np.float64] = np.sqrt(np.maximum(values, 0.0))[:, None] * vectors.T
    return root
