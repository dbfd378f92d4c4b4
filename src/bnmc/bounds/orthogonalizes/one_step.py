"""Exact quantities of a given representation, and of one layer from it; the paper bounds them."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from bnmc._support.arguments import Float64Array, broadcast, finite_array, integers
from bnmc._support.linalg import SLACK, rounding_unit
from bnmc.errors import ArgumentError

__all__ = [
    "expected_shares",
    "expected_squared_gap",
    "one_step_variance",
    "shortfall",
    "wasserstein_squared",
]

#: Smaller shares count as zero, so that 1/share times exp(80) does not overflow.
_SMALLEST_SHARE = 1e-250


def shortfall(eigenvalues: ArrayLike) -> Float64Array:
    """Lyapunov function ``V̂(H) = 1/n − σ_n(H)²`` (eq. 11): 1/n less the smallest share.

    By Lemma 4, V̂ bounds the orthogonality gap, ``V <= 2n V̂``. A sharper bound is
    ``V <= √(n(n−1)) V̂``.

    Parameters
    ----------
    eigenvalues : (..., n) array_like
        Eigenvalues of a multiple of ``HᵀH``.

    Returns
    -------
    (...) ndarray of float64
        In [0, 1/n].

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If `eigenvalues` are not finite and, to rounding, non-negative numbers of positive sum.

    Examples
    --------
    >>> from bnmc.bounds.orthogonalizes import shortfall
    >>> print(shortfall([1.0, 1.0, 2.0]).round(6))
    0.083333
    """
    shares = _shares(eigenvalues)
    # For equal shares, rounding may make the difference negative.
    v_hat: Float64Array = np.maximum(1 / shares.shape[-1] - shares.min(axis=-1), 0)
    return v_hat


def expected_shares(eigenvalues: ArrayLike) -> Float64Array:
    """Eigenvalues of the mean of ``H₊ᵀH₊`` after one layer (eqs. 13 and 15), at any width.

    Given H of squared singular values ``s_i`` that sum to 1, the mean has the eigenvectors of
    ``HᵀH`` and the eigenvalues

        ``p_i = E[s_i w_i² / Σ_j s_j w_j²] = ∫₀^∞ s_i (1 + 2t s_i)⁻¹ Π_j (1 + 2t s_j)^(−1/2) dt``

    with w standard normal. For n = 2 they are the normalized singular values, ``σ_i / Σ_j σ_j``.

    Parameters
    ----------
    eigenvalues : (..., n) array_like
        Eigenvalues of a multiple of ``HᵀH``.

    Returns
    -------
    (..., n) ndarray of float64
        In the order of `eigenvalues`. They sum to 1. The relative error is below 1e-13, also for
        the smallest. Shares below 1e-250 count as 0 and give 0.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If `eigenvalues` are not finite and, to rounding, non-negative numbers of positive sum.

    Examples
    --------
    >>> from bnmc.bounds.orthogonalizes import expected_shares
    >>> expected_shares([1.0, 9.0]).round(12)
    array([0.25, 0.75])
    """
    shares = _shares(eigenvalues)
    if shares.size == 0:
        return shares
    doubled = 2 * np.where(shares < _SMALLEST_SHARE, 0, shares)
    is_positive = doubled > 0
    rank = int(is_positive.sum(axis=-1).min())
    # The integrand over u = log t is analytic for |Im u| < π. On |Im u| = π/2, its integral is at
    # most about √n p. So the trapezoidal rule with step 1/4 has a relative error of exp(−4π²), or
    # 7e-18. The integrand decays like exp(u) to the left, and right of its last pole at least like
    # exp(−rank u/2).
    step = 0.25
    low = -40 - math.log(shares.shape[-1])
    high = 80 / rank - math.log(float(doubled[is_positive].min()))
    total = np.zeros_like(shares)
    for t in np.exp(np.arange(low, high + step, step)):
        x = t * doubled
        root = np.exp(-np.log1p(x).sum(axis=-1, keepdims=True) / 2)
        total += x / (1 + x) * root
    p: Float64Array = step / 2 * total
    return p


def expected_squared_gap(eigenvalues: ArrayLike, width: ArrayLike) -> Float64Array:
    """Mean ``E[V(H₊)² | H]`` of the squared orthogonality gap after one layer.

    It is ``Σ p_i² − 1/n + (1 − Σ p_i²)/d`` with the p of `expected_shares`: the squared gap of the
    mean, plus the variance of Lemma 6.

    Parameters
    ----------
    eigenvalues : (..., n) array_like
        Eigenvalues of a multiple of ``HᵀH``.
    width : array_like of int
        d >= 1. It broadcasts with the leading axes of `eigenvalues`.

    Returns
    -------
    (...) ndarray of float64
        In [0, 1 − 1/n].

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If an argument lies outside its range, or the arguments do not broadcast.

    Examples
    --------
    >>> from bnmc.bounds.orthogonalizes import expected_squared_gap
    >>> print(expected_squared_gap([1.0, 9.0], width=100).round(6))
    0.12875
    """
    variance = one_step_variance(eigenvalues, width)
    p = expected_shares(eigenvalues)
    squared: Float64Array = np.square(p - 1 / p.shape[-1]).sum(axis=-1) + variance
    return squared


def one_step_variance(eigenvalues: ArrayLike, width: ArrayLike) -> Float64Array:
    """Variance ``E‖C₊ − E C₊‖_F² = (1 − Σ p_i²)/d`` of ``C₊ = H₊ᵀH₊`` given H.

    C₊ is the mean of d independent projectors of rank one with mean diag(p) (`expected_shares`).
    `lemma_6` bounds this variance.

    Parameters
    ----------
    eigenvalues : (..., n) array_like
        Eigenvalues of a multiple of ``HᵀH``.
    width : array_like of int
        d >= 1. It broadcasts with the leading axes of `eigenvalues`.

    Returns
    -------
    (...) ndarray of float64
        In [0, (1 − 1/n)/d].

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If an argument lies outside its range, or the arguments do not broadcast.

    Examples
    --------
    >>> from bnmc.bounds.orthogonalizes import one_step_variance
    >>> print(one_step_variance([1.0, 9.0], width=100).round(6))
    0.00375
    """
    width = integers("width", width, accept_floats=True)
    leading = _shares(eigenvalues)[..., 0]
    broadcast(eigenvalues=leading, width=width)
    p = expected_shares(eigenvalues)
    # Since Σp = 1, this is 1 − Σp² without cancellation.
    variance: Float64Array = (p * (1 - p)).sum(axis=-1) / width
    return variance


def wasserstein_squared(eigenvalues: ArrayLike) -> Float64Array:
    """Squared Wasserstein-2 distance of W H, for given H, from i.i.d. N(0, 1/(nd)) entries.

    The rows of W H are N(0, HᵀH/d), and those of the Gaussian matrix are N(0, I/(nd)). The two
    covariances commute, so the distance in the proof of Lemma 2 is exact: ``Σ (σ_i − 1/√n)²``. Its
    mean over H bounds the squared distance of the law of W H.

    Parameters
    ----------
    eigenvalues : (..., n) array_like
        Eigenvalues of a multiple of ``HᵀH``.

    Returns
    -------
    (...) ndarray of float64
        In [0, 2(1 − 1/√n)].

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If `eigenvalues` are not finite and, to rounding, non-negative numbers of positive sum.

    Examples
    --------
    >>> from bnmc.bounds.orthogonalizes import wasserstein_squared
    >>> print(wasserstein_squared([1.0, 9.0]).round(6))
    0.211146
    """
    shares = _shares(eigenvalues)
    n = shares.shape[-1]
    squared: Float64Array = np.square(np.sqrt(shares) - 1 / math.sqrt(n)).sum(axis=-1)
    return squared


def _shares(eigenvalues: ArrayLike) -> Float64Array:
    """Return the eigenvalues over their sum, or raise an error if one is negative."""
    array = finite_array("eigenvalues", eigenvalues, shape=(..., "n"))
    values = array.astype(np.float64, copy=False)
    largest = values.max(axis=-1, keepdims=True)
    if (largest <= 0).any():
        raise ArgumentError("eigenvalues", float(largest.min()), "eigenvalues of positive sum")
    with np.errstate(over="ignore"):  # a large negative eigenvalue, which raises below
        scaled = values / largest  # so that their sum can neither overflow nor vanish
    negative = scaled < -SLACK * rounding_unit(array)
    if negative.any():
        raise ArgumentError("eigenvalues", float(values[negative][0]), "no negative eigenvalue")
    scaled = np.maximum(scaled, 0)
    shares: Float64Array = scaled / scaled.sum(axis=-1, keepdims=True)
    return shares
