"""Pairs of covariances: their checks, and the eigenvalues of ``S2⁻¹ S1`` to all digits."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bnmc._support.arguments import Float64Array, real_numbers
from bnmc.errors import ArgumentError
from bnmc.gram import validate_gram

__all__ = ["SemidefiniteSpectrum", "checked_covariances", "checked_rows", "log_ratios"]

#: Covariances that differ by more than a factor 1e200 would overflow in each other's units.
_LARGEST_LOG_FACTOR = 200.0 * math.log(10.0)


def checked_rows(rows: ArrayLike, shape: tuple[int, ...]) -> Float64Array:
    """Return numbers of rows as float64, or raise an error if they do not broadcast with a shape.

    Parameters
    ----------
    rows : array_like
        Real numbers >= 1.
    shape : tuple of int
        Shape of the stack of covariances.
    """
    count = real_numbers("rows", rows)
    if (count < 1).any():
        raise ArgumentError("rows", float(count.min()), "real numbers >= 1")
    try:
        np.broadcast_shapes(count.shape, shape)
    except ValueError:
        raise ArgumentError(
            "rows", count.shape, f"a shape that broadcasts with {shape}, that of the stacks"
        ) from None
    return count


def checked_covariances(S1: ArrayLike, S2: ArrayLike) -> tuple[Float64Array, Float64Array, float]:
    """Return both stacks of covariances, broadcast, and the larger rounding unit of the two."""
    first, second = validate_gram(S1, "S1"), validate_gram(S2, "S2")
    allowed = f"matrices of shape {first.shape[-2:]} with leading axes that broadcast"
    if first.shape[-2:] != second.shape[-2:]:
        raise ArgumentError("S2", second.shape, allowed)
    try:
        shape = np.broadcast_shapes(first.shape, second.shape)
    except ValueError:
        raise ArgumentError("S2", second.shape, f"{allowed} with {first.shape[:-2]}") from None
    is_single = any(np.asarray(S).dtype == np.float32 for S in (S1, S2))
    rounding = float(np.finfo(np.float32 if is_single else np.float64).eps)
    return np.broadcast_to(first, shape), np.broadcast_to(second, shape), rounding


@dataclass(frozen=True)
class SemidefiniteSpectrum:
    """Eigenvalues and eigenvectors of positive semidefinite matrices S.

    Attributes
    ----------
    values : (..., n) ndarray of float64
        Eigenvalues, ascending. Those that are zero to rounding are set to 0.
    basis : (..., n, n) ndarray of float64
        Eigenvectors, in columns.
    """

    values: Float64Array
    basis: Float64Array

    @classmethod
    def of(cls, matrices: Float64Array, rounding: float) -> SemidefiniteSpectrum:
        """Return the spectrum of matrices with the given rounding unit."""
        values, basis = np.linalg.eigh(matrices)
        zero = values.shape[-1] * rounding * np.maximum(values[..., -1:], 0.0)
        return cls(np.where(values <= zero, 0.0, values), basis)

    @property
    def is_null(self) -> NDArray[np.bool_]:
        """Which eigenvalues are zero to rounding, (..., n)."""
        is_null: NDArray[np.bool_] = self.values == 0
        return is_null

    def symmetric_root(self) -> Float64Array:
        """Return the symmetric square root of S.

        `bnmc._support.linalg.semidefinite_root` keeps positive eigenvalues that are zero to
        rounding.
        """
        root: Float64Array = (
            self.basis * np.sqrt(self.values)[..., None, :]
        ) @ np.matrix_transpose(self.basis)
        return root

    def whiten(self, matrices: Float64Array) -> Float64Array:
        """Return ``Wᵀ matrices W``. ``Wᵀ S W`` is I on the range of S, and W is 0 off the range."""
        inverse_roots = 1.0 / np.sqrt(np.where(self.is_null, np.inf, self.values))
        W = self.basis * inverse_roots[..., None, :]
        return np.matrix_transpose(W) @ matrices @ W

    def largest_off_range(self, matrices: Float64Array) -> Float64Array:
        """Return the largest diagonal entry of `matrices` in the null directions of S, or 0."""
        diagonal = (self.basis * (matrices @ self.basis)).sum(axis=-2)
        largest: Float64Array = np.where(self.is_null, diagonal, 0.0).max(axis=-1)
        return largest


def log_ratios(S1: ArrayLike, S2: ArrayLike) -> tuple[Float64Array, NDArray[np.bool_]]:
    """Return the logarithms of the eigenvalues of S2⁻¹ S1, and whether the ranges are equal.

    Returns
    -------
    logs : (..., n) ndarray of float64
        0 off a common range. If the ranges differ, the logarithms have no meaning.
    is_same_range : (...) ndarray of bool

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If `S1` or `S2` is not an array of covariances, or their shapes or magnitudes (beyond a
        factor 1e200) do not match.
    """
    first, second, rounding = checked_covariances(S1, S2)
    n = first.shape[-1]
    spectrum1 = SemidefiniteSpectrum.of(first, rounding)
    spectrum2 = SemidefiniteSpectrum.of(second, rounding)
    largest1, largest2 = spectrum1.values[..., -1], spectrum2.values[..., -1]
    is_regular = (largest1 > 0) & (largest2 > 0)
    magnitudes = [np.log(np.where(is_regular, largest, 1.0)) for largest in (largest1, largest2)]
    is_apart = np.abs(magnitudes[0] - magnitudes[1]) > _LARGEST_LOG_FACTOR
    if is_apart.any():
        allowed = "matrices within a factor 1e200 of those of S1"
        raise ArgumentError("S2", float(np.extract(is_apart, largest2)[0]), allowed)

    is_same_range = spectrum1.is_null.sum(axis=-1) == spectrum2.is_null.sum(axis=-1)
    is_same_range &= spectrum2.largest_off_range(first) <= n * rounding * largest1

    # Three ways to find an eigenvalue, accurate near 1, above 1 and below 1.
    excess = np.linalg.eigvalsh(spectrum2.whiten(first - second))
    above = np.maximum(np.linalg.eigvalsh(spectrum2.whiten(first)), 1.0)
    below = np.maximum(np.linalg.eigvalsh(spectrum1.whiten(second))[..., ::-1], 1.0)
    is_close = np.abs(excess) < 0.5
    logs = np.where(
        is_close, np.log1p(np.where(is_close, excess, 0.0)), np.log(above) - np.log(below)
    )
    return logs, is_same_range
