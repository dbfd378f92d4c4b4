"""Total variation distance of centred Gaussian laws, from above and below.

The bounds are Theorem 1.1 of Devroye, Mehrabian and Reddad, *The total variation distance between
high-dimensional Gaussians with the same mean* (arXiv 1810.08693): for positive definite Σ₁, Σ₂ of
equal size, and λ_i the eigenvalues of ``Σ₁⁻¹Σ₂ − I``,

    1/100  <=  TV(N(0, Σ₁), N(0, Σ₂)) / min{1, (Σ_i λ_i²)^½}  <=  3/2.

d independent rows of one law are Gaussian with covariance ``I_d ⊗ Σ``. Each λ_i occurs d times, so
Σλ_i² is multiplied by d. Hence a change of G of the size 1/√d hardly affects the law of one row of
a hidden layer, but changes the law of the whole layer.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from bnmc import gram
from bnmc._support.arguments import Float64Array, finite_array
from bnmc._support.arithmetic import make_public
from bnmc._support.linalg import broadcast_covariances, require_regular, rounding_unit

__all__ = ["spectral_deviation", "total_variation"]


def total_variation(
    S1: ArrayLike, S2: ArrayLike, *, rows: ArrayLike = 1
) -> tuple[Float64Array, Float64Array]:
    """Bounds of the total variation distance of ``N(0, S1)`` and ``N(0, S2)``, for several rows.

    With ``s = √rows · spectral_deviation(S1, S2)`` the bounds are ``min{1, s} / 100`` and
    ``min{1, 3s/2}``. They combine the theorem of `bnmc.bounds.gaussian` for `rows` independent rows
    with the fact that no distance exceeds 1.

    Parameters
    ----------
    S1 : (..., n, n) array_like
        Covariances, positive definite.
    S2 : (..., n, n) array_like
        Covariances, positive semidefinite. For a singular one the distance is 1, and both bounds
        hold.
    rows : array_like of real numbers, default 1
        Number of independent rows, >= 1. All leading axes and `rows` broadcast.

    Returns
    -------
    lower, upper : (...) ndarray of float64
        In [0, 1/100] and in [0, 1].

    Raises
    ------
    SingularGramError
        If an `S1` is singular to rounding, ``λ_min <= n ε λ_max``.
    ArgumentError, ArgumentTypeError
        If `S1` or `S2` is not a stack of symmetric, positive semidefinite matrices, `rows` is not
        an array of numbers >= 1, or the shapes do not match.

    Notes
    -----
    The distance is symmetric, but the bounds are not. For a regular `S2`, exchanging `S1` and `S2`
    gives a second pair of bounds. The larger lower bound and the smaller upper bound hold.

    Examples
    --------
    >>> from bnmc.bounds.gaussian import total_variation
    >>> lower, upper = total_variation([[1.0]], [[1.1]], rows=[1, 25, 100])
    >>> lower, upper
    (array([0.001, 0.005, 0.01 ]), array([0.15, 0.75, 1.  ]))
    """
    deviation, count = _deviation(S1, S2, rows)
    scaled = np.sqrt(count) * deviation
    return np.minimum(scaled, 1) / 100, np.minimum(1.5 * scaled, 1)


def spectral_deviation(S1: ArrayLike, S2: ArrayLike) -> Float64Array:
    """Root of the sum of the squared eigenvalues of ``S1⁻¹ S2 − I``.

    This is the Frobenius norm of the symmetric matrix ``S1^{-½} S2 S1^{-½} − I``. The norm of
    ``S1⁻¹ S2 − I`` itself, `bnmc.gram.relative_deviation`, is larger by a factor between 1 and
    ``√κ(S1)``.

    Parameters
    ----------
    S1 : (..., n, n) array_like
        Positive definite matrices.
    S2 : (..., n, n) array_like
        Positive semidefinite matrices. The leading axes broadcast.

    Returns
    -------
    (...) ndarray of float64
        Non-negative. If the square exceeds float64, infinite.

    Raises
    ------
    SingularGramError
        If an `S1` is singular to rounding, ``λ_min <= n ε λ_max``.
    ArgumentError, ArgumentTypeError
        If `S1` or `S2` is not a stack of symmetric, positive semidefinite matrices, or their shapes
        do not match.

    Examples
    --------
    >>> from bnmc.bounds.gaussian import spectral_deviation
    >>> print(spectral_deviation([[2.0, 0.0], [0.0, 4.0]], [[2.0, 0.0], [0.0, 6.0]]).round(12))
    0.5
    """
    return _deviation(S1, S2, 1)[0]


def _deviation(S1: ArrayLike, S2: ArrayLike, rows: ArrayLike) -> tuple[Float64Array, Float64Array]:
    """Return the deviation, and `rows` as an array that broadcasts with it."""
    given = finite_array("S1", S1, shape=(..., "n", "n"))
    first, second = gram.validate_gram(given, "S1"), gram.validate_gram(S2, "S2")
    _, _, count = broadcast_covariances(first, second, rows)
    scale = np.abs(first).max(axis=(-2, -1), keepdims=True)
    spectrum, vectors = np.linalg.eigh(first / np.where(scale > 0, scale, 1))
    require_regular("S1", spectrum, rounding_unit(given))
    factor = vectors / np.sqrt(spectrum)[..., None, :]
    with np.errstate(over="ignore", invalid="ignore"):  # infinite below
        # Subtract before whitening: the difference of nearly equal matrices keeps every digit.
        whitened = np.swapaxes(factor, -2, -1) @ (second / scale - first / scale) @ factor
        deviation: Float64Array = np.linalg.norm(whitened, axis=(-2, -1))
    return np.where(np.isfinite(deviation), deviation, np.inf)[()], count


make_public(__name__)
