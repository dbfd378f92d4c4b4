"""Bounds of *Batch normalization provably avoids rank collapse*.

Daneshmand, Kohler, Bach, Hofmann and Lucchi, arXiv 2003.01652 (first version: *Theoretical
understanding of batch-normalization: a Markov chain perspective*).  The chain is
``H₊ = BN(H + γ W H)``: linear, uncentred, W d × d with i.i.d. entries of a symmetric law of
variance 1, H d × N with rows of mean square 1.  It is that of `bnmc.Chain.bn_residual`.  The
statements are about ``M = H Hᵀ / N``, d × d with unit diagonal, so that ``Tr M = d``.

The print was at hand as text that had lost its formulas: quotations have their symbols restored,
and formulas and constants are those that the proofs lead to, derived anew.  `lemma_1`,
`lemma_5_gamma`, `lemma_7`, `proposition_8`, `lemma_13`, `theorem_14` and `corollary_15` are
functions.  The other statements have no formula; simulations in the tests show that they hold:

- Lemma 3: vanilla linear networks, with or without the residual branch, collapse to rank one, with
  Gaussian and with uniform weights.  What converges is the direction of the rows of
  ``H/‖H‖``, exponentially fast; the direction of its columns goes on changing with every layer.
- Lemma 4: under a unique invariant law, H and SH have one law for any diagonal S of signs.
- Lemma 5: for weights in [−B, B] and γ <= 1/(8Bd), the rank stays at least 2.
- Lemma 6: if the rank is one at some layer, it is so from there on, all ``|M_ij|`` are 1, and their
  signs stay as they are.
- Lemma 10: the regularity constant ``α = E Tr(diag(M²)²) / E Tr(M³)`` (Definition 3) of the
  invariant law is less than one for small γ.

Where the text misleads
-----------------------
- States of rank one are never left, and carry an invariant law of their own; while ``γBd < 1`` each
  is a fixed point, so there are infinitely many.  So none of the statements that assume a unique
  invariant law applies as it stands.  They hold for the law that chains of full rank settle to.
  The factor 8 in Lemma 5 is not needed.
- In that regime ``I + γW`` is invertible, so the rank never changes: Lemma 5 and the first part of
  Corollary 15 are true of any input of that rank, for that simple reason.  The small eigenvalues of
  M fall to zero exponentially nevertheless, and a rank without its threshold means nothing at
  depth.  What the chain does keep is r(H) and with it the soft rank, `theorem_14`.
- Lemma 10 needs neither invariance nor small γ: since ``M^½ e_i`` are unit vectors,
  ``(M²)_ii² <= (M³)_ii`` by Cauchy–Schwarz, and α <= 1 for every law.  It is 1 just for laws on
  matrices M that are, up to order, of diagonal blocks whose non-zero eigenvalues are equal, such as
  I and the rank-one states.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bnmc import gram
from bnmc._support.arguments import finite_array
from bnmc.bounds._arguments import broadcast, integers, numbers
from bnmc.errors import ArgumentError

__all__ = [
    "corollary_15",
    "lemma_1",
    "lemma_5_gamma",
    "lemma_7",
    "lemma_13",
    "proposition_8",
    "theorem_14",
]


Float64Array = NDArray[np.float64]

# How many units of rounding a normalized quantity may be off (as in `bnmc.gram`).
_SLACK = 1024


def lemma_1(M: ArrayLike, tau: ArrayLike = 0.0) -> Float64Array:
    """Lemma 1: lower bound ``(1 − τ)² r(H)``, ``r = (Tr M)²/‖M‖_F²``, of the soft rank of H.

    "For an arbitrary matrix", rank(H) >= r(H); "for the sequence defined in Eq. (2)", whose rows
    are normalized, ``rank_τ(H) >= (1 − τ)² r(H)``.  The soft rank counts the eigenvalues of M of at
    least τ (`bnmc.gram.soft_rank`), and τ = 0 stands for the rank itself.  r, without τ, is
    `bnmc.gram.rank_bound`.

    Parameters
    ----------
    M : (..., d, d) array_like
        ``H Hᵀ / N``, or the Gram matrix ``HᵀH / d``: both have the same r, and their trace is their
        size where rows are normalized.
    tau : array_like, default 0
        τ in [0, 1]; broadcasts with the leading axes of `M`.

    Returns
    -------
    (...) ndarray of float64
        In [0, d].

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If `M` is not a stack of positive semidefinite matrices of positive trace, its trace is not
        its size though a `tau` is above 0, `tau` is outside of [0, 1], or they do not broadcast.

    Examples
    --------
    >>> lemma_1([[1.0, 0.5], [0.5, 1.0]], tau=[0.0, 0.5]).round(6)
    array([1.6, 0.4])
    """
    rounding = float(np.finfo(finite_array("M", M, shape=(..., "d", "d")).dtype).eps)
    matrices = gram.validate_gram(M, "M")
    tau = numbers("tau", tau, "numbers in [0, 1]", lambda value: (value >= 0) & (value <= 1))
    trace = np.trace(matrices, axis1=-2, axis2=-1)
    if (trace <= 0).any():
        raise ArgumentError("M", float(trace.min()), "matrices of positive trace")
    trace, tau = broadcast(M=trace, tau=tau)
    d = matrices.shape[-1]
    is_off = (tau > 0) & (np.abs(trace - d) > _SLACK * rounding * d)
    if is_off.any():
        raise ArgumentError(
            "M", float(trace[is_off][0]), f"trace {d}, its size", "or tau = 0, for any scale"
        )
    bound: Float64Array = np.square(1 - tau) * gram.rank_bound(matrices)
    return bound


def lemma_5_gamma(bound: ArrayLike, width: ArrayLike) -> Float64Array:
    """Largest γ of Lemmas 5 and 6, ``1/(8Bd)``, for weights in [−B, B].

    Lemma 5: "each element of the weight matrices is independently drawn from distribution P that is
    zero-mean, unit-variance, and its support lies in interval" [−B, B]; then rank(H_k) >= 2 "holds
    almost surely for all integers" k, for these γ.  All γ < 1/(Bd) would do.

    Parameters
    ----------
    bound : array_like
        B >= 1, as unit variance requires; √3 for uniform weights.
    width : array_like of int
        d >= 1.

    Returns
    -------
    ndarray of float64
        Of the shape that the arguments broadcast to.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If an argument is not of that kind, or they do not broadcast.

    Examples
    --------
    >>> print(lemma_5_gamma(3**0.5, width=32).round(6))
    0.002255
    """
    bound = numbers("bound", bound, "numbers >= 1", lambda value: value >= 1)
    bound, width = broadcast(bound=bound, width=integers("width", width))
    gamma: Float64Array = 1 / 8 / bound / width
    return gamma


def lemma_7(M: ArrayLike, gamma: ArrayLike) -> Float64Array:
    """Lemma 7: mean change of ``‖M‖_F²`` over one layer, for small γ.

    ``E‖M₊‖_F² − ‖M‖_F² = δ_F(M) + O(γ³)``, "as long as the support of distribution P lies in a
    finite interval", with

        ``δ_F(M) = γ² [2(d² − ‖M‖_F²) − 8(Tr M³ − Tr diag(M²)²)]``.

    For symmetric laws the odd powers of γ vanish, and the remainder is O(γ⁴).

    Parameters
    ----------
    M : (..., d, d) array_like
        ``H Hᵀ / N`` of normalized rows: positive semidefinite with unit diagonal.
    gamma : array_like
        γ in [0, 1]; broadcasts with the leading axes of `M`.

    Returns
    -------
    (...) ndarray of float64
        δ_F, of either sign.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If an argument is not of that kind, or they do not broadcast.

    Examples
    --------
    >>> print(lemma_7([[1.0, 0.9], [0.9, 1.0]], gamma=0.1).round(6))
    -0.017024
    """
    array = finite_array("M", M, shape=(..., "d", "d"))
    rounding = float(np.finfo(array.dtype).eps)
    matrices = gram.validate_gram(M, "M")
    diagonal = np.diagonal(matrices, axis1=-2, axis2=-1)
    is_off = np.abs(diagonal - 1) > _SLACK * rounding
    if is_off.any():
        raise ArgumentError("M", float(diagonal[is_off][0]), "a diagonal of ones")
    squared = matrices @ matrices
    row_norms = np.square(matrices).sum(axis=-1)  # (M²)_ii
    cubic = (squared * matrices).sum(axis=(-2, -1))
    gamma, cubic = broadcast(gamma=_gamma(gamma), M=cubic)
    diagonal_squared = np.square(row_norms).sum(axis=-1)
    return _change(matrices.shape[-1], gamma, row_norms.sum(axis=-1), cubic, diagonal_squared)


def proposition_8(eigenvalues: ArrayLike, gamma: ArrayLike) -> Float64Array:
    """Proposition 8: the δ_F of `lemma_7` where "all the rows of matrix M have the same norm".

    Then each ``(M²)_ii`` is ``m = Σλ_i²/d``, and δ_F follows from the eigenvalues λ of M:

        ``δ_F = γ² [2(d² − Σλ_i²) − 8 Σλ_i (λ_i − m)²]``.

    So the norm falls in the mean only where the non-zero eigenvalues differ from one another.  Of
    other M with these eigenvalues it is a lower bound: ``Tr diag(M²)² >= (Σλ_i²)²/d``.

    Parameters
    ----------
    eigenvalues : (..., d) array_like
        Eigenvalues of M, non-negative to rounding; they sum to d.
    gamma : array_like
        γ in [0, 1]; broadcasts with the leading axes of `eigenvalues`.

    Returns
    -------
    (...) ndarray of float64
        δ_F, of either sign.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If an argument is not of that kind, or they do not broadcast.

    Examples
    --------
    >>> print(proposition_8([1.9, 0.1], gamma=0.1).round(6))
    -0.017024
    """
    array = finite_array("eigenvalues", eigenvalues, shape=(..., "d"))
    slack = _SLACK * float(np.finfo(array.dtype).eps) * array.shape[-1]
    values = array.astype(np.float64, copy=False)
    d = values.shape[-1]
    if (values < -slack).any():
        raise ArgumentError("eigenvalues", float(values.min()), "no negative eigenvalue")
    with np.errstate(over="ignore"):
        total = values.sum(axis=-1)
    is_off = np.abs(total - d) > slack
    if is_off.any():
        raise ArgumentError("eigenvalues", float(total[is_off][0]), f"the sum {d}, their number")
    norm = np.square(values).sum(axis=-1)
    cubic = (values**3).sum(axis=-1)
    gamma, cubic = broadcast(gamma=_gamma(gamma), eigenvalues=cubic)
    return _change(d, gamma, norm, cubic, np.square(norm) / d)


def lemma_13(width: ArrayLike, alpha: ArrayLike) -> Float64Array:
    """Lemma 13: bound ``d^{3/2}/(2√(1−α))`` of ``E‖M‖_F²`` under the invariant law.

    It "holds for a sufficiently small" γ, where the regularity constant α is less than one.  By
    invariance the change of `lemma_7` has mean zero, so that ``4(1−α) E Tr M³ = d² − E‖M‖_F²``, up
    to O(γ²): as ``E‖M‖_F² >= d``, this is at most d² for small γ.  And
    ``(E‖M‖_F²)² <= d E Tr M³`` by Cauchy–Schwarz and Jensen, which gives the factor 1/2.

    Parameters
    ----------
    width : array_like of int
        d >= 1.
    alpha : array_like
        Regularity constant, in [0, 1).

    Returns
    -------
    ndarray of float64
        Of the shape that the arguments broadcast to.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If an argument is not of that kind, or they do not broadcast.

    Examples
    --------
    >>> print(lemma_13(width=16, alpha=0.88).round(4))
    92.376
    """
    width, alpha = broadcast(width=integers("width", width), alpha=_regularity(alpha))
    bound: Float64Array = width**1.5 / (2 * np.sqrt(1 - alpha))
    return bound


def theorem_14(width: ArrayLike, alpha: ArrayLike, tau: ArrayLike) -> Float64Array:
    """Theorem 14, formally 2: bound ``2(1−τ)² √(1−α) √d`` of the soft rank in the mean over depth.

    "Suppose that rank(X) = d, γ is sufficiently small, and all elements of the weight matrices are
    drawn i.i.d. from a zero-mean, unit variance distribution whose support lies in [−B, B] and its
    law is symmetric around zero.  Furthermore, assume that the Markov chain admits a unique
    invariant distribution.  Then, the regularity constant α is less than one and the following
    limits exist such that" ``lim (1/L) Σ rank_τ(H_ℓ) >= lim ((1−τ)²/L) Σ r(H_ℓ)``, at least this
    bound, "holds almost surely for all" τ in [0, 1].

    By Jensen's inequality ``E r = d² E[1/‖M‖_F²] >= d²/E‖M‖_F²``, so it is (1−τ)² d² over
    `lemma_13`.  It grows like √d as long as α stays away from 1: on d = N = 8, 16, 32 without skip
    connection α is .911, .884, .862 and the mean of r 2.24, 3.31, 4.85, the bound for τ = 0 1.69,
    2.72, 4.20.  See the module on the invariant law.

    Parameters
    ----------
    width : array_like of int
        d >= 1.
    alpha : array_like
        Regularity constant, in [0, 1).
    tau : array_like
        Threshold of the soft rank, in [0, 1].

    Returns
    -------
    ndarray of float64
        Of the shape that the arguments broadcast to.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If an argument is not of that kind, or they do not broadcast.

    Examples
    --------
    >>> theorem_14([16, 64, 256], alpha=0.88, tau=0.5).round(4)
    array([0.6928, 1.3856, 2.7713])
    """
    tau = numbers("tau", tau, "numbers in [0, 1]", lambda value: (value >= 0) & (value <= 1))
    width, alpha, tau = broadcast(width=integers("width", width), alpha=_regularity(alpha), tau=tau)
    bound: Float64Array = 2 * np.square(1 - tau) * np.sqrt(1 - alpha) * np.sqrt(width)
    return bound


def corollary_15(width: ArrayLike, alpha: ArrayLike, tau: ArrayLike = 0.0) -> Float64Array:
    """Corollary 15: the bound of `theorem_14` for every layer, of the rank or the soft rank.

    "Under the setting of Thm. 14, rank(H_ℓ) >=" the bound with τ = 0 "holds almost surely for all
    finite integer" ℓ.  "Assuming that rank_τ(H_ℓ) is a monotonically non-increasing sequence",
    rank_τ(H_ℓ) >= the bound likewise.

    The first part is weak (the rank is d, see the module).  The assumption of the second is not
    met: from nearly collinear samples the soft rank rises, as the paper's Fig. 3b shows, and at any
    depth it fluctuates, also to below the bound (for d = N = 4, γ = .1, τ = .01, uniform weights,
    in one layer of 25,000).

    Parameters
    ----------
    width : array_like of int
        d >= 1.
    alpha : array_like
        Regularity constant, in [0, 1).
    tau : array_like, default 0
        Threshold of the soft rank, in [0, 1]; 0 stands for the rank.

    Returns
    -------
    ndarray of float64
        Of the shape that the arguments broadcast to.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If an argument is not of that kind, or they do not broadcast.

    Examples
    --------
    >>> print(corollary_15(width=64, alpha=0.88).round(4))
    5.5426
    """
    return theorem_14(width, alpha, tau)


def _gamma(gamma: ArrayLike) -> Float64Array:
    return numbers("gamma", gamma, "numbers in [0, 1]", lambda value: (value >= 0) & (value <= 1))


def _regularity(alpha: ArrayLike) -> Float64Array:
    return numbers("alpha", alpha, "numbers >= 0 and < 1", lambda value: (value >= 0) & (value < 1))


def _change(
    d: int, gamma: Float64Array, norm: Float64Array, cubic: Float64Array, diagonal: Float64Array
) -> Float64Array:
    """δ_F of ``‖M‖_F²``, ``Tr M³`` and ``Tr diag(M²)²``."""
    change: Float64Array = np.square(gamma) * (2 * (d * d - norm) - 8 * (cubic - diagonal))
    return change
