"""The matrices of a network in training: entries, or a random matrix that is never drawn.

Both kinds of weights have a small or large array, `value`, on which optimizers act, and three
methods.  `locate` returns the coordinates of vectors, `times` multiplies them by the matrix of a
value, and `gradient` is the derivative of a loss with respect to the value.  Vectors are rows.

The value of an implicit matrix κ W₀ + Cᵀ M A is [[κ, 0], [0, M]].  A and C have orthonormal rows,
which are added at the end, so values of an earlier step grow by zeros, and norms and inner products
of M are those of Cᵀ M A.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from bnmc._support.arguments import Float64Array
from bnmc.implicit.matrix import HaarMatrix, ImplicitMatrix

#: Singular values below this part of the largest one count as zero.
_LEAST = 1e-10


class Weights(Protocol):
    """The weights that lead to a layer."""

    value: Float64Array

    def locate(self, x: Float64Array, side: int) -> Float64Array:
        """Return the coordinates of rows, which W multiplies, or Wᵀ for side 1."""

    def times(self, located: Float64Array, side: int, value: Float64Array) -> Float64Array:
        """Return the products of located rows with the matrix of a value, float64."""

    def gradient(self, delta: Float64Array, located: Float64Array) -> Float64Array:
        """Return the sum over rows of δ xᵀ as a value, given the coordinates of δ and of x."""


class DrawnWeights:
    """A matrix with its entries, (rows, columns)."""

    def __init__(self, entries: Float64Array) -> None:
        self.value = entries

    def locate(self, x: Float64Array, side: int) -> Float64Array:
        """Return the rows in the precision of the entries."""
        return np.ascontiguousarray(x, self.value.dtype)

    def times(self, located: Float64Array, side: int, value: Float64Array) -> Float64Array:
        """Return the products with rows."""
        return np.asarray(located @ (value.T if side == 0 else value), np.float64)

    def gradient(self, delta: Float64Array, located: Float64Array) -> Float64Array:
        """Return the sum of outer products."""
        return delta.T @ located


class ImplicitWeights:
    """A random matrix that is drawn by direction, and what training adds to it."""

    def __init__(self, matrix: ImplicitMatrix) -> None:
        self.matrix = matrix
        self.value = np.array([[matrix.scale]])

    def locate(self, x: Float64Array, side: int) -> Float64Array:
        """Return coordinates; the images of new directions are drawn."""
        coordinates: Float64Array = self.matrix.locate(np.ascontiguousarray(x), side)
        return coordinates

    def times(self, located: Float64Array, side: int, value: Float64Array) -> Float64Array:
        """Return the products with rows of coordinates."""
        added = value[1:, 1:] if value.size > 1 else None
        image: Float64Array = self.matrix.image_of(
            located, side, float(value[0, 0]), added, "float64"
        )
        return image

    def gradient(self, delta: Float64Array, located: Float64Array) -> Float64Array:
        """Return the sum of outer products; the random part of the matrix has no derivative."""
        whole = np.zeros((1 + delta.shape[1], 1 + located.shape[1]))
        np.matmul(delta.T, located, out=whole[1:, 1:])
        return whole

    def entries(self) -> Float64Array:
        """Decide all of the matrix and return its entries."""
        identity = np.eye(self.matrix.shape[1])
        return self.times(self.locate(identity, 0), 0, self.value).T


class MaximizedWeights(ImplicitWeights):
    """Orthogonal weights that make the outputs of the first batch orthogonal.

    Let H = U S Vᵀ be that batch, (samples, width).  The weights are κ O (V S⁻¹ Vᵀ s + 1 − V Vᵀ)
    with O uniform, s the reciprocal of the mean of S⁻¹, and κ such that outputs have the root mean
    square 1; see `bnmc.torch.orthogonalize_`.  All of it but O has coordinates.
    """

    matrix: HaarMatrix

    def locate(self, x: Float64Array, side: int) -> Float64Array:
        """Return coordinates; the first call decides on the weights."""
        coordinates = super().locate(x, side)
        if self.value.size == 1 and side == 0:
            _, singular, right = np.linalg.svd(coordinates, full_matrices=False)
            count = int((singular > _LEAST * singular[0]).sum())
            singular, right = singular[:count], right[:count]
            powers = 1.0 / singular
            size = np.sqrt(count / (len(x) * self.matrix.shape[0]))
            mean = float(powers.mean()) / size
            # The matrix returns images, whose coordinates on the other side are the same.
            asked = coordinates.shape[1]
            self.value = np.zeros((1 + asked, 1 + asked))
            self.value[0, 0] = mean
            self.value[1:, 1:] = right.T @ ((powers / size - mean)[:, None] * right)
        return coordinates


def padded(value: Float64Array, shape: tuple[int, ...]) -> Float64Array:
    """Return a value in the coordinates of a later time."""
    if value.shape == shape:
        return value
    larger = np.zeros(shape, value.dtype)
    larger[: value.shape[0], : value.shape[1]] = value
    return larger
