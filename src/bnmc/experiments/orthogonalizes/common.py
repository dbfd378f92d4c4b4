"""Nearly collinear inputs and the law of the stationary gap: shared by several figures."""

from __future__ import annotations

import math

import numpy as np

from bnmc.bounds.orthogonalizes import stationary_squared_gap
from bnmc.experiments.kit import Float64Array

#: All singular values of the nearly collinear inputs except the largest, which is 1.
SMALL_SINGULAR_VALUE = 1e-6


def collinear_samples(batch: int) -> Float64Array:
    """Return nearly collinear inputs, shape (batch, batch), by their singular values."""
    return np.diag([1.0] + [SMALL_SINGULAR_VALUE] * (batch - 1))


def gap_of_spectrum(eigenvalues: Float64Array) -> Float64Array:
    """Return the orthogonality gap V of Gram matrices with these eigenvalues, the last axis."""
    shares = eigenvalues / eigenvalues.sum(axis=-1, keepdims=True)
    gap: Float64Array = np.linalg.norm(shares - 1 / shares.shape[-1], axis=-1)
    return gap


def traceless_dimensions(batch: int) -> int:
    """Return the dimension of the traceless symmetric matrices, (n − 1)(n + 2)/2."""
    return (batch - 1) * (batch + 2) // 2


def stationary_mean_gap(width: int, batch: int) -> float:
    """Return the stationary mean of V, to leading order in 1/d.

    In the stationary law ``HᵀH − I/n`` is normal, and its law is invariant under rotations of the
    samples.  So V is a multiple of a χ variable with m degrees of freedom, m the dimension of the
    traceless symmetric matrices.
    """
    m = traceless_dimensions(batch)
    ratio = math.exp(math.lgamma((m + 1) / 2) - math.lgamma(m / 2)) * math.sqrt(2 / m)
    return math.sqrt(float(stationary_squared_gap(width, batch))) * ratio
