"""Moments of Wishart matrices, and the vanilla linear chain: its mean deviation, its covariance."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from bnmc._support.arguments import LARGEST_INTEGER, Float64Array, integer, integers
from bnmc._support.linalg import EPS, require_regular
from bnmc.errors import ArgumentError
from bnmc.gram import validate_gram

__all__ = ["WishartMoments", "linear_covariance", "vanilla_deviation"]

# The squares of entries up to this, and sums of four of them, are float64 numbers.
_LARGEST = 1e153


class WishartMoments:
    """Moments of a Wishart matrix ``G = ZᵀZ/d``, where Z has d i.i.d. rows ``N(0, S)``.

    G is the Gram matrix of the linear chain without normalization, one layer after S.

    Parameters
    ----------
    S : (..., n, n) array_like
        Covariances, symmetric and positive semidefinite. ``E G = S``.
    width : int
        d, in 1 … 2⁵³.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If `S` is not an array of such matrices, or `width` is not such an integer. The properties
        raise them if the result overflows.

    Examples
    --------
    >>> from bnmc.random_matrix import WishartMoments
    >>> moments = WishartMoments([[1.0, 0.0], [0.0, 1.0]], width=10)
    >>> moments.square
    array([[1.3, 0. ],
           [0. , 1.3]])
    >>> print(moments.deviation, moments.squared_trace.round(12), moments.trace_of_cube.round(12))
    0.6 4.4 4.08
    """

    def __init__(self, S: ArrayLike, width: int) -> None:
        self._S = validate_gram(S, "S")
        self._d = integer("width", width, low=1, high=LARGEST_INTEGER)

    @property
    def square(self) -> Float64Array:
        """``E G² = (1 + 1/d) S² + S Tr S / d``, (..., n, n)."""
        d = self._d
        return self._finite(
            lambda S: (1.0 + 1.0 / d) * (S @ S) + S * _trace(S)[..., None, None] / d
        )

    @property
    def trace_of_square(self) -> Float64Array:
        """``E Tr G² = (1 + 1/d) Tr S² + (Tr S)² / d``, (...)."""
        d = self._d
        return self._finite(lambda S: (1.0 + 1.0 / d) * _trace(S @ S) + _trace(S) ** 2 / d)

    @property
    def squared_trace(self) -> Float64Array:
        """``E (Tr G)² = (Tr S)² + 2 Tr S² / d``, (...)."""
        return self._finite(lambda S: _trace(S) ** 2 + 2.0 * _trace(S @ S) / self._d)

    @property
    def deviation(self) -> Float64Array:
        """``E ‖G − S‖_F² = (Tr S² + (Tr S)²) / d``, (...)."""
        return self._finite(lambda S: (_trace(S @ S) + _trace(S) ** 2) / self._d)

    @property
    def trace_of_cube(self) -> Float64Array:
        """``E Tr G³ = (1 + 3/d + 4/d²) Tr S³ + 3 (1/d + 1/d²) Tr S Tr S² + (Tr S)³/d²``, (...)."""
        d = float(self._d)
        return self._finite(
            lambda S: (
                (1.0 + 3.0 / d + 4.0 / d**2) * _trace(S @ S @ S)
                + 3.0 * (1.0 / d + 1.0 / d**2) * _trace(S) * _trace(S @ S)
                + _trace(S) ** 3 / d**2
            )
        )

    @property
    def inverse(self) -> Float64Array:
        """``E G⁻¹ = S⁻¹ d / (d − n − 1)``, (..., n, n), for d > n + 1 and regular S.

        Raises
        ------
        ArgumentError
            If d <= n + 1: then the expectation does not exist.
        SingularGramError
            If an `S` is singular to rounding, ``λ_min <= n ε λ_max``.
        """
        d, n = self._d, self._S.shape[-1]
        if d <= n + 1:
            raise ArgumentError("width", d, f"an integer > {n + 1}", "E G⁻¹ exists for d > n + 1")
        spectrum, basis = np.linalg.eigh(self._S)
        require_regular("S", spectrum, EPS)
        return self._finite(
            lambda _: (
                (basis / spectrum[..., None, :]) @ np.matrix_transpose(basis) * (d / (d - n - 1))
            )
        )

    def _finite(self, expectation: Callable[[Float64Array], Float64Array]) -> Float64Array:
        with np.errstate(over="ignore", invalid="ignore"):  # raises below, by name
            value = expectation(self._S)
        if not np.isfinite(value).all():
            largest = float(np.abs(self._S).max())
            raise ArgumentError("S", largest, "matrices whose moments do not overflow float64")
        return value


def linear_covariance(G0: ArrayLike, width: int, depth: int) -> Float64Array:
    """Exact covariance of the entries of G_l of the linear chain without normalization.

    With ``X = G_ij G_km`` and ``Y = G_ik G_jm + G_im G_jk``, the expectations after a layer of
    width d are

        E X₊ = X + Y/d,    E Y₊ = 2X/d + (1 + 1/d) Y,

    so ``E X_l = ((1 + 2/d)^l (X₀ + Y₀) + (1 − 1/d)^l (2X₀ − Y₀))/3``. The mean of G_l is G_0. To
    leading order in l/d the covariance is ``Y₀ l/d``.

    Parameters
    ----------
    G0 : (n, n) array_like
        Gram matrix of layer 0, symmetric and positive semidefinite.
    width : int
        d, in 1 … 2⁵³.
    depth : int
        l, in 0 … 2⁵³.

    Returns
    -------
    (n, n, n, n) ndarray of float64
        ``Cov(G_ij, G_km)`` at layer l. Infinite beyond the range of float64.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If `G0` is not such a matrix, or another argument not an integer in its range.

    Examples
    --------
    >>> import numpy as np
    >>> from bnmc.random_matrix import linear_covariance, vanilla_deviation
    >>> covariance = linear_covariance(np.eye(3), width=100, depth=20)
    >>> print(np.einsum("ijij", covariance).round(9), vanilla_deviation(100, 3, 20).round(9))
    2.793923105 2.793923105
    """
    S = validate_gram(G0, "G0")
    if S.ndim != 2:
        raise ArgumentError("G0", S.shape, "one matrix")
    d = integer("width", width, low=1, high=LARGEST_INTEGER)
    layers = integer("depth", depth, low=0, high=LARGEST_INTEGER)
    decay = math.log1p(-1.0 / d) if d > 1 else -1e3  # exp(−1000) is 0 to rounding
    largest = float(np.abs(S).max(initial=0.0))
    if largest > _LARGEST:
        raise ArgumentError("G0", largest, "a matrix whose squares do not overflow float64")
    X = np.einsum("ij,km->ijkm", S, S)
    Y = np.einsum("ik,jm->ijkm", S, S) + np.einsum("im,jk->ijkm", S, S)
    both = X + Y
    with np.errstate(over="ignore", invalid="ignore"):  # 0 times infinity is replaced by 0
        grown = np.where(both == 0.0, 0.0, both * np.expm1(layers * math.log1p(2.0 / d)))
        found: Float64Array = (grown + (2.0 * X - Y) * np.expm1(layers * decay)) / 3.0
    return found


def vanilla_deviation(width: int, batch: int, depth: ArrayLike) -> Float64Array:
    """Exact ``E ‖G_l − I‖_F²`` of the linear chain without normalization, from ``G_0 = I``.

    It is ``n(n+2)/3 (1 + 2/d)^l − n(n−1)/3 (1 − 1/d)^l − n``. Given G, the expectations
    ``E Tr G₊²`` and ``E (Tr G₊)²`` (`WishartMoments`) are linear in Tr G² and (Tr G)². The
    eigenvalues of this linear map are 1 + 2/d and 1 − 1/d.

    This is the expectation of the vanilla curve of Joudaki, Daneshmand and Bach (arXiv 2205.13076).
    At depths beyond d, rare and large G dominate the expectation, so the mean of a simulation is
    usually smaller.

    Parameters
    ----------
    width : int
        d, in 1 … 2⁵³.
    batch : int
        n, in 1 … 2⁵³. It may exceed d.
    depth : (...) array_like of int
        Layers l, in 0 … 2⁵³.

    Returns
    -------
    (...) ndarray of float64
        The relative error is about 1e-15, times the exponent 2l/d if that exceeds 1. Infinite
        beyond the range of float64, near l = 355 d.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If an argument is not an integer in its range.

    Examples
    --------
    >>> from bnmc.random_matrix import vanilla_deviation
    >>> vanilla_deviation(1000, 10, [0, 1, 100]).round(9)
    array([ 0.        ,  0.11      , 11.70...])
    """
    d = integer("width", width, low=1, high=LARGEST_INTEGER)
    n = float(integer("batch", batch, low=1, high=LARGEST_INTEGER))
    layers = integers("depth", depth, low=0, high=LARGEST_INTEGER)
    growth = math.log1p(2.0 / d)
    decay = math.log1p(-1.0 / d) if d > 1 else -1e3  # exp(−1000) is 0 to rounding
    # The constants n(n+2)/3, n(n−1)/3 and n cancel. Without them, both terms of the difference are
    # non-negative.
    with np.errstate(over="ignore"):
        grown: Float64Array = n * (n + 2.0) / 3.0 * np.expm1(layers * growth)
        shrunk: Float64Array = n * (n - 1.0) / 3.0 * np.expm1(layers * decay)
    return grown - shrunk


def _trace(matrices: Float64Array) -> Float64Array:
    traces: Float64Array = np.trace(matrices, axis1=-2, axis2=-1)
    return traces
