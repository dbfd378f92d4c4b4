"""Kullback–Leibler divergence and Wasserstein distance of centred Gaussians."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from bnmc._support.arguments import Float64Array
from bnmc.random_matrix.covariance_pairs import (
    SemidefiniteSpectrum,
    checked_covariances,
    checked_rows,
    log_ratios,
)
from bnmc.random_matrix.quadrature import log_excess

__all__ = ["kl", "wasserstein"]


def kl(S1: ArrayLike, S2: ArrayLike, *, rows: ArrayLike = 1) -> Float64Array:
    """Kullback–Leibler divergence of ``N(0, S1)`` from ``N(0, S2)``.

    ``rows/2 · Σ_i (λ_i − 1 − ln λ_i)``, with λ_i the eigenvalues of ``S2⁻¹ S1``.

    Parameters
    ----------
    S1, S2 : (..., n, n) array_like
        Covariances, symmetric and positive semidefinite. The leading axes broadcast.
    rows : (...) array_like, default 1
        Number of independent rows, >= 1. It broadcasts with the leading axes.

    Returns
    -------
    (...) ndarray of float64
        Non-negative. If the ranges differ, infinite. For singular matrices of a common range, the
        divergence is that of the restrictions to the range.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If `S1` or `S2` is not an array of such matrices, `rows` is not an array of such numbers, or
        their shapes or magnitudes (beyond a factor 1e200) do not match.

    Notes
    -----
    An eigenvalue of at most n ε times the largest counts as zero, as in `bnmc.gram.condition`. Here
    ε is the rounding unit of the input. The relative error of the result is of the order of ε times
    the larger condition number. That holds for close matrices too, where the formula cancels.

    Examples
    --------
    >>> from bnmc.random_matrix import kl
    >>> print(kl([[1.0]], [[2.0]]).round(12), kl([[1.0]], [[2.0]], rows=10).round(12))
    0.096573590... 0.965735902...
    """
    logs, is_same_range = log_ratios(S1, S2)
    count = checked_rows(rows, is_same_range.shape)
    is_close = np.abs(logs) < 0.4
    excess = np.where(
        is_close,
        log_excess(np.expm1(np.where(is_close, logs, 0.0))),
        np.expm1(logs) - logs,
    ).sum(axis=-1)
    with np.errstate(over="ignore"):  # the divergence may exceed float64
        return count / 2.0 * np.where(is_same_range, excess, np.inf)


def wasserstein(S1: ArrayLike, S2: ArrayLike, *, rows: ArrayLike = 1) -> Float64Array:
    """Wasserstein distance W₂ of ``N(0, S1)`` and ``N(0, S2)`` (not its square).

    ``W₂² = rows · [Tr S1 + Tr S2 − 2 Tr (S1^½ S2 S1^½)^½]`` (Dowson and Landau 1982; Bures).

    Parameters
    ----------
    S1, S2 : (..., n, n) array_like
        Covariances, symmetric and positive semidefinite, singular or not. The leading axes
        broadcast.
    rows : (...) array_like, default 1
        Number of independent rows, >= 1. It broadcasts with the leading axes.

    Returns
    -------
    (...) ndarray of float64
        Non-negative.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If `S1` or `S2` is not an array of such matrices, `rows` is not an array of such numbers, or
        their shapes do not match.

    Notes
    -----
    The function computes ``min_U ‖S1^½ − S2^½ U‖_F`` over orthogonal U, without cancellation. The
    error is of the order of ``ε √(Tr S1 + Tr S2)``. An eigenvalue of at most n ε times the largest
    counts as zero, which changes W₂ by at most the root of the eigenvalue.

    Examples
    --------
    >>> from bnmc.random_matrix import wasserstein
    >>> print(wasserstein([[1.0, 0.0], [0.0, 0.0]], [[0.0, 0.0], [0.0, 4.0]]).round(12))
    2.2360679775
    """
    first, second, rounding = checked_covariances(S1, S2)
    count = checked_rows(rows, first.shape[:-2])
    largest = np.maximum(np.abs(first).max(axis=(-2, -1)), np.abs(second).max(axis=(-2, -1)))
    scale = np.where(largest > 0, largest, 1.0)
    A, B = (
        SemidefiniteSpectrum.of(S / scale[..., None, None], rounding).symmetric_root()
        for S in (first, second)
    )
    left, _, right = np.linalg.svd(B @ A)
    distance: Float64Array = np.linalg.norm(A - B @ (left @ right), axis=(-2, -1))
    return np.sqrt(count) * np.sqrt(scale) * distance
