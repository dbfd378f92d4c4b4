"""Coordinates of symmetric matrices in an orthonormal basis.

A symmetric n × n matrix has p = n(n+1)/2 coordinates: the entries of its upper triangle, row by
row, those off the diagonal times √2.  So the inner product of coordinates is that of the matrices.
"""

from __future__ import annotations

import math

import numpy as np

from bnmc.mean_field.float64 import FloatArray

__all__ = ["packed", "products"]


def packed(matrices: FloatArray) -> FloatArray:
    """Return coordinates of symmetric matrices, shape (..., p)."""
    n = matrices.shape[-1]
    i, j = np.triu_indices(n)
    return np.asarray(matrices[..., i, j] * np.where(i == j, 1.0, math.sqrt(2.0)))


def products(rows: FloatArray) -> FloatArray:
    """Return the coordinates of vvᵀ for each row v, shape (rows, p)."""
    i, j = np.triu_indices(rows.shape[1])
    scaled = rows * math.sqrt(2.0)
    found = np.where(i == j, rows[:, i], scaled[:, i])
    found *= rows[:, j]
    return np.asarray(found)
