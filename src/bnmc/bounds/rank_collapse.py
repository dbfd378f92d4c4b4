"""Bounds of *Batch normalization provably avoids rank collapse*.

Daneshmand, Kohler, Bach, Hofmann and Lucchi, arXiv 2003.01652 (first version: *Theoretical
understanding of batch-normalization: a Markov chain perspective*). The chain is
``H₊ = BN(H + γ W H)``: linear and uncentred, W d × d with i.i.d. entries of a symmetric law of
variance 1, H d × N with rows of mean square 1. It is the chain of `bnmc.Chain.bn_residual`. The
statements concern ``M = H Hᵀ / N``, d × d with unit diagonal, so that ``Tr M = d``.

The available text of the paper had lost its formulas. So the docstrings state the results in words
of their own. Formulas and constants are derived anew, following the proofs. `lemma_1`,
`lemma_5_gamma`, `lemma_7`, `proposition_8`, `lemma_13`, `theorem_14` and `corollary_15` are
functions. The other statements have no formula. Simulations in the tests confirm them:

- Lemma 3: vanilla linear networks collapse to rank one, with and without the residual branch, for
  Gaussian and for uniform weights. The direction of the rows of ``H/‖H‖`` converges exponentially
  fast. The direction of its columns keeps changing with every layer.
- Lemma 4: let S be a diagonal matrix with entries ±1. If the stationary law is unique, and H has
  this law, then SH has this law, too.
- Lemma 5: for weights in [−B, B] and γ <= 1/(8Bd), the rank stays at least 2.
- Lemma 6: if the rank is one at some layer, it is one at all later layers. All ``|M_ij|`` are 1,
  and their signs do not change.
- Lemma 10: for small γ, the regularity constant ``α = E Tr(diag(M²)²) / E Tr(M³)`` (Definition 3)
  of the stationary law is less than one.

Errors of the text
------------------
- The chain never leaves states of rank one, and they carry a stationary law of their own. If
  ``γBd < 1``, each such state is a fixed point, so there are infinitely many stationary laws. Hence
  no statement that assumes a unique stationary law applies literally. They hold for the law to
  which chains of full rank converge. The factor 8 in Lemma 5 is not needed.
- If ``γBd < 1``, ``I + γW`` is invertible, so the rank never changes. That is why Lemma 5 and the
  first part of Corollary 15 hold for every input of that rank. The small eigenvalues of M still
  decrease to zero exponentially, so at great depth the numerical rank depends on its threshold. The
  chain does preserve r(H) and with it the soft rank, see `theorem_14`.
- Lemma 10 requires neither invariance nor small γ. Since ``M^½ e_i`` are unit vectors,
  ``(M²)_ii² <= (M³)_ii`` by Cauchy–Schwarz, and α <= 1 for every law. α is 1 only if M is, up to
  order, block diagonal and the non-zero eigenvalues within each block are equal. Examples are I and
  the states of rank one.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from bnmc import gram
from bnmc._support import arguments
from bnmc._support.arguments import Float64Array, Reals
from bnmc._support.arithmetic import make_public
from bnmc._support.linalg import SLACK, rounding_unit
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

_unit_interval = partial(arguments.real_numbers, low=0, high=1)

#: The arguments of all statements, of one shape and each in its range.
_checked = partial(
    arguments.checked,
    {
        "width": partial(arguments.integers, accept_floats=True),
        "alpha": partial(arguments.real_numbers, low=0, below=1),
        "bound": partial(arguments.real_numbers, low=1),
        "gamma": _unit_interval,
        "tau": _unit_interval,
    },
)


def lemma_1(M: Reals, tau: Reals = 0.0) -> Float64Array:
    """Lemma 1: lower bound ``(1 − τ)² r(H)``, ``r = (Tr M)²/‖M‖_F²``, of the soft rank of H.

    For every matrix, rank(H) >= r(H). For the sequence of eq. (2), whose rows are normalized,
    ``rank_τ(H) >= (1 − τ)² r(H)``. The soft rank rank_τ is the number of eigenvalues of M that are
    at least τ (`bnmc.gram.soft_rank`). τ = 0 stands for the rank itself. The bound r, without τ, is
    `bnmc.gram.rank_bound`.

    Parameters
    ----------
    M : (..., d, d) array_like
        ``H Hᵀ / N``, or the Gram matrix ``HᵀH / d``. Both have the same r. If rows are normalized,
        the trace of each is its size.
    tau : array_like, default 0
        τ in [0, 1]. It broadcasts with the leading axes of `M`.

    Returns
    -------
    (...) ndarray of float64
        In [0, d].

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If `M` is not a stack of positive semidefinite matrices of positive trace, `tau` is outside
        [0, 1], or they do not broadcast. Also if a `tau` is above 0 and the trace of its matrix
        differs from its size.

    Examples
    --------
    >>> from bnmc.bounds.rank_collapse import lemma_1
    >>> lemma_1([[1.0, 0.5], [0.5, 1.0]], tau=[0.0, 0.5]).round(6)
    array([1.6, 0.4])
    """
    rounding = rounding_unit(arguments.finite_array("M", M, shape=(..., "d", "d")))
    matrices = gram.validate_gram(M, "M")
    with np.errstate(over="ignore"):  # a sum beyond float64 is positive, and differs from d
        trace = np.trace(matrices, axis1=-2, axis2=-1)
    if (trace <= 0).any():
        raise ArgumentError("M", float(trace.min()), "matrices of positive trace")
    trace, tau = _checked(M=np.minimum(trace, np.finfo(np.float64).max), tau=tau)
    d = matrices.shape[-1]
    is_off = (tau > 0) & (np.abs(trace - d) > SLACK * rounding * d)
    if is_off.any():
        raise ArgumentError(
            "M", float(trace[is_off][0]), f"trace {d}, its size", "or tau = 0, for any scale"
        )
    return np.square(1 - tau) * gram.rank_bound(matrices)


def lemma_5_gamma(bound: Reals, width: Reals) -> Float64Array:
    """Largest γ of Lemmas 5 and 6, ``1/(8Bd)``, for weights in [−B, B].

    Lemma 5: let the entries of the weight matrices be independent, of mean 0 and variance 1, with
    values in [−B, B]. For these γ, almost surely rank(H_k) >= 2 for all k. Every γ < 1/(Bd)
    suffices.

    Parameters
    ----------
    bound : array_like
        B >= 1, since the variance is 1. For uniform weights B is √3.
    width : array_like of int
        d >= 1.

    Returns
    -------
    ndarray of float64
        Of the shape to which the arguments broadcast.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If an argument lies outside its range, or the arguments do not broadcast.

    Examples
    --------
    >>> from bnmc.bounds.rank_collapse import lemma_5_gamma
    >>> print(lemma_5_gamma(3**0.5, width=32).round(6))
    0.002255
    """
    bound, width = _checked(bound=bound, width=width)
    return 1 / 8 / bound / width


def lemma_7(M: Reals, gamma: Reals) -> Float64Array:
    """Lemma 7: mean change of ``‖M‖_F²`` in one layer, for small γ.

    If the law of the weights has bounded support, ``E‖M₊‖_F² − ‖M‖_F² = δ_F(M) + O(γ³)`` with

        ``δ_F(M) = γ² [2(d² − ‖M‖_F²) − 8(Tr M³ − Tr diag(M²)²)]``.

    For symmetric laws of the weights, odd powers of γ vanish, and the remainder is O(γ⁴).

    Parameters
    ----------
    M : (..., d, d) array_like
        ``H Hᵀ / N`` of normalized rows: positive semidefinite with unit diagonal.
    gamma : array_like
        γ in [0, 1]. It broadcasts with the leading axes of `M`.

    Returns
    -------
    (...) ndarray of float64
        δ_F, positive or negative.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If an argument lies outside its range, or the arguments do not broadcast.

    Examples
    --------
    >>> from bnmc.bounds.rank_collapse import lemma_7
    >>> print(lemma_7([[1.0, 0.9], [0.9, 1.0]], gamma=0.1).round(6))
    -0.017024
    """
    rounding = rounding_unit(arguments.finite_array("M", M, shape=(..., "d", "d")))
    matrices = gram.validate_gram(M, "M")
    diagonal = np.diagonal(matrices, axis1=-2, axis2=-1)
    is_off = np.abs(diagonal - 1) > SLACK * rounding
    if is_off.any():
        raise ArgumentError("M", float(diagonal[is_off][0]), "a diagonal of ones")
    squared = matrices @ matrices
    row_norms = np.square(matrices).sum(axis=-1)  # (M²)_ii
    cubic = (squared * matrices).sum(axis=(-2, -1))
    gamma, cubic = _checked(gamma=gamma, M=cubic)
    diagonal_squared = np.square(row_norms).sum(axis=-1)
    return _change(matrices.shape[-1], gamma, row_norms.sum(axis=-1), cubic, diagonal_squared)


def proposition_8(eigenvalues: Reals, gamma: Reals) -> Float64Array:
    """Proposition 8: the δ_F of `lemma_7` if all rows of M have the same norm.

    Then each ``(M²)_ii`` is ``m = Σλ_i²/d``, and δ_F follows from the eigenvalues λ of M:

        ``δ_F = γ² [2(d² − Σλ_i²) − 8 Σλ_i (λ_i − m)²]``.

    So the mean of the norm decreases only if the non-zero eigenvalues are not all equal. For other
    M with these eigenvalues the formula is a lower bound, as ``Tr diag(M²)² >= (Σλ_i²)²/d``.

    Parameters
    ----------
    eigenvalues : (..., d) array_like
        Eigenvalues of M, non-negative to rounding, with sum d.
    gamma : array_like
        γ in [0, 1]. It broadcasts with the leading axes of `eigenvalues`.

    Returns
    -------
    (...) ndarray of float64
        δ_F, positive or negative.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If an argument lies outside its range, or the arguments do not broadcast.

    Examples
    --------
    >>> from bnmc.bounds.rank_collapse import proposition_8
    >>> print(proposition_8([1.9, 0.1], gamma=0.1).round(6))
    -0.017024
    """
    array = arguments.finite_array("eigenvalues", eigenvalues, shape=(..., "d"))
    slack = SLACK * rounding_unit(array) * array.shape[-1]
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
    gamma, cubic = _checked(gamma=gamma, eigenvalues=cubic)
    return _change(d, gamma, norm, cubic, np.square(norm) / d)


def lemma_13(width: Reals, alpha: Reals) -> Float64Array:
    """Lemma 13: bound ``d^{3/2}/(2√(1−α))`` of ``E‖M‖_F²`` under the stationary law.

    The bound holds for sufficiently small γ, if the regularity constant α is less than one. By
    invariance the change of `lemma_7` has mean zero, so ``4(1−α) E Tr M³ = d² − E‖M‖_F²`` up to
    O(γ²). As ``E‖M‖_F² >= d``, the right-hand side is at most d² for small γ. With
    ``(E‖M‖_F²)² <= d E Tr M³``, by Cauchy–Schwarz and Jensen, the factor 1/2 follows.

    Parameters
    ----------
    width : array_like of int
        d >= 1.
    alpha : array_like
        Regularity constant, in [0, 1).

    Returns
    -------
    ndarray of float64
        Of the shape to which the arguments broadcast.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If an argument lies outside its range, or the arguments do not broadcast.

    Examples
    --------
    >>> from bnmc.bounds.rank_collapse import lemma_13
    >>> print(lemma_13(width=16, alpha=0.88).round(4))
    92.376
    """
    width, alpha = _checked(width=width, alpha=alpha)
    return width**1.5 / (2 * np.sqrt(1 - alpha))


def theorem_14(width: Reals, alpha: Reals, tau: Reals) -> Float64Array:
    """Theorem 14, formally 2: bound ``2(1−τ)² √(1−α) √d`` of the mean soft rank over depth.

    Let the input X have rank d, and γ be sufficiently small. Let the weights be i.i.d. of mean 0
    and variance 1, with values in [−B, B] and a symmetric law. Let the chain have a unique
    stationary law. Then α < 1, and almost surely for all τ in [0, 1] the limits of
    ``(1/L) Σ rank_τ(H_ℓ)`` and of ``((1−τ)²/L) Σ r(H_ℓ)`` exist. The first limit is at least the
    second one, and the second one is at least the bound.

    By Jensen's inequality ``E r = d² E[1/‖M‖_F²] >= d²/E‖M‖_F²``, so the bound is (1−τ)² d² over
    `lemma_13`. If α is bounded away from 1, the bound grows like √d. For example, without skip
    connection and for τ = 0:

    ===== ===== ========= =====
    d = N α     mean of r bound
    ===== ===== ========= =====
    8     .911  2.24      1.69
    16    .884  3.31      2.72
    32    .862  4.85      4.20
    ===== ===== ========= =====

    `bnmc.bounds.rank_collapse` discusses the stationary law.

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
        Of the shape to which the arguments broadcast.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If an argument lies outside its range, or the arguments do not broadcast.

    Examples
    --------
    >>> from bnmc.bounds.rank_collapse import theorem_14
    >>> theorem_14([16, 64, 256], alpha=0.88, tau=0.5).round(4)
    array([0.6928, 1.3856, 2.7713])
    """
    width, alpha, tau = _checked(width=width, alpha=alpha, tau=tau)
    return 2 * np.square(1 - tau) * np.sqrt(1 - alpha) * np.sqrt(width)


def corollary_15(width: Reals, alpha: Reals, tau: Reals = 0.0) -> Float64Array:
    """Corollary 15: the bound of `theorem_14` for the rank or the soft rank of every layer.

    Under the assumptions of `theorem_14`, almost surely rank(H_ℓ) is at least the bound with τ = 0,
    for all ℓ. If rank_τ(H_ℓ) does not increase with ℓ, it is at least the bound, too.

    The first statement is weak: the rank is d, see `bnmc.bounds.rank_collapse`. The assumption of
    the second one does not hold. From nearly collinear samples the soft rank increases, as the
    paper's Fig. 3b shows. At every depth it fluctuates, also below the bound. For d = N = 4,
    γ = .1, τ = .01 and uniform weights, it is below the bound in one layer of 25,000.

    Parameters
    ----------
    width : array_like of int
        d >= 1.
    alpha : array_like
        Regularity constant, in [0, 1).
    tau : array_like, default 0
        Threshold of the soft rank, in [0, 1]. 0 stands for the rank.

    Returns
    -------
    ndarray of float64
        Of the shape to which the arguments broadcast.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If an argument lies outside its range, or the arguments do not broadcast.

    Examples
    --------
    >>> from bnmc.bounds.rank_collapse import corollary_15
    >>> print(corollary_15(width=64, alpha=0.88).round(4))
    5.5426
    """
    return theorem_14(width, alpha, tau)


def _change(
    d: int, gamma: Float64Array, norm: Float64Array, cubic: Float64Array, diagonal: Float64Array
) -> Float64Array:
    """Return δ_F from ``‖M‖_F²``, ``Tr M³`` and ``Tr diag(M²)²``."""
    return np.square(gamma) * (2 * (d * d - norm) - 8 * (cubic - diagonal))


make_public(__name__)
