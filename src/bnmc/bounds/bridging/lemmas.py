"""The lemmas of the bridging paper, eq. (19) and (47), and provable versions of Lemmas 9 and 11.

See the package `bnmc.bounds.bridging` for the arguments, Assumption 1 and its status.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from bnmc._support.arguments import Float64Array
from bnmc.bounds.bridging.activation_distortion import Distortion
from bnmc.bounds.bridging.arguments import (
    SMALLEST,
    FixedPointLike,
    Result,
    checked,
    epsilon_arguments,
    largest_square,
    squared_epsilon,
)
from bnmc.bounds.gaussian import spectral_deviation

__all__ = [
    "equation_19",
    "equation_47",
    "gram_concentration",
    "lemma_5",
    "lemma_9",
    "lemma_10",
    "lemma_11",
    "lemma_12",
    "one_step_total_variation",
]


def lemma_5(
    *,
    width: ArrayLike,
    batch: ArrayLike,
    inverse_norm: ArrayLike | None = None,
    star: FixedPointLike | ArrayLike | None = None,
    distortion: ArrayLike | Distortion,
    constant: ArrayLike = 1.0,
) -> Result:
    r"""Lemma 5, eq. (13): change of the law of Gaussian rows with covariance G* in one layer.

    μ_0 is the law of a d × n matrix of independent rows N(0, G*), and T is the step of the chain.

    .. math:: "‖T(μ_0) − μ_0‖_{tv} \lesssim \frac{n^2γ^2‖G_*^{−1}‖}{d} =: ε^2."

    Parameters
    ----------
    width, batch, inverse_norm, star, distortion, constant : array_like
        See `bnmc.bounds.bridging`.

    Returns
    -------
    float or ndarray of float64
        ``min(1, constant · ε²)``.

    Notes
    -----
    For n >= 2 the lemma is false: the distance does not vanish as d grows. Lemma 11, which claims
    to restate it with an additional logarithm, is false as well. Under μ_0, ``√d (hᵀh/d − G*)`` has
    a Gaussian limit. T(μ_0) adds the independent fluctuation ``√d (G − G*)`` of the same order, so
    the distance of the two limits is positive. For relu, n = 4 and d = 10 000:

    ============================= ===========
    the distance                  above .3
    Lemma 11                      .05
    Lemma 5, with the constant 1  .004
    ============================= ===========

    `one_step_total_variation` is a bound that holds.

    Examples
    --------
    >>> from bnmc.bounds.bridging import lemma_5
    >>> print(lemma_5(width=10_000, batch=5, inverse_norm=4, distortion=1))
    0.01
    """
    d, n, inverse, gamma, factor = epsilon_arguments(
        width, batch, inverse_norm, star, distortion, constant=constant
    )
    return np.minimum(factor * squared_epsilon(d, n, inverse, gamma), 1)[()]


def lemma_9(
    *,
    width: ArrayLike,
    batch: ArrayLike,
    t: ArrayLike,
    inverse_norm: ArrayLike | None = None,
    star: FixedPointLike | ArrayLike | None = None,
    distortion: ArrayLike | Distortion,
) -> Result:
    r"""Lemma 9, eq. (20): the Gram matrix of independent rows is near its expectation.

    "Let μ be a probability mass in R^n within the √n-sphere: P{‖z‖ <= √n} = 1, and for activation
    σ: R → R, :math:`C := E_μ σ(z)σ(z)^T`, is positive definite … with bounded distortion γ. Given
    iid samples z_1, …, z_d ∼ μ, define Gram matrix :math:`G := \frac1d \sum_{k=1}^d z_k z_k^T`.
    For any constant t >= 0 it holds:

    .. math:: P\{‖C^{−1}G − I_n‖_F^2 \ge t\} \le
              n e^{−\frac{td/2}{γ^2‖C^{−1}‖n^2(1 + \sqrt{t/n})}}."

    Parameters
    ----------
    width, batch, t, inverse_norm, star, distortion : array_like
        See `bnmc.bounds.bridging`. C takes the place of G*, and t is a squared deviation.

    Returns
    -------
    float or ndarray of float64
        The probability, capped at 1.

    Notes
    -----
    `gram_concentration` is the bound that the proof gives. The print has these errors:

    - The definition of G should be ``(1/d) Σ σ(z_k)σ(z_k)ᵀ``, and that of y_k in the proof
      ``C^{−½}σ(z_k)``.
    - "By fact 1", which is missing in the paper, C⁻¹G has the spectrum of ``C^{−½}GC^{−½}``. Equal
      spectra do not imply equal Frobenius norms. The proof bounds ``‖C^{−½}GC^{−½} − I‖_F``
      (`bnmc.bounds.gaussian.spectral_deviation`), and ``‖C⁻¹G − I‖_F`` is up to ``√κ(C)`` larger.
    - The matrix Bernstein inequality is printed with t/2 in place of t²/2. It bounds the largest
      eigenvalue of one summand, but the proof needs the norm of a sum, so n should be 2n. (27) has
      t²/2, and n.
    - γ bounds σ on the sphere ‖z‖ = √n, not inside. φ(h) does lie on the sphere.
    - "σ² = d(R−1) <= d" is wrong, but not used.
    - (30) has 2/3 in place of 1/3, and (20) has 1. Both only weaken the bound.

    Examples
    --------
    >>> from bnmc.bounds.bridging import lemma_9
    >>> print(lemma_9(width=10_000, batch=5, t=0.1, inverse_norm=2.5, distortion=1).round(6))
    0.004519
    """
    d, n, inverse, gamma, t_ = epsilon_arguments(width, batch, inverse_norm, star, distortion, t=t)
    scale = gamma**2 * inverse * n**2 * (1 + np.sqrt(t_ / n))
    probability: Float64Array = n * np.exp(-(t_ * d / 2) / scale)
    return np.minimum(probability, 1)[()]


def gram_concentration(
    *,
    width: ArrayLike,
    batch: ArrayLike,
    t: ArrayLike,
    inverse_norm: ArrayLike | None = None,
    star: FixedPointLike | ArrayLike | None = None,
    distortion: ArrayLike | Distortion,
) -> Result:
    r"""Bound ``P{‖C^{−½} G C^{−½} − I‖_F² >= t}`` for independent rows: a provable Lemma 9.

    Let z_1, …, z_d be independent and of one law on the sphere ``‖z‖ = √n``, ``G = (1/d) Σ_k
    σ(z_k)σ(z_k)ᵀ``, ``C = E σ(z)σ(z)ᵀ`` and ``R = n γ² ‖C⁻¹‖ >= n``. The bound is the smaller of

    .. math:: \frac{n(R − 1)}{d t}, \qquad
              2n \exp\Bigl(−\frac{td/2}{n(R − 1) + \sqrt{t/n}\,nR/3}\Bigr).

    It applies, with C = G*, to layer 0 of a simulation from the initial law "gaussian".

    Parameters
    ----------
    width, batch, t, inverse_norm, star, distortion : array_like
        See `bnmc.bounds.bridging`. C takes the place of G*, and t is a squared deviation.

    Returns
    -------
    float or ndarray of float64
        The bound, capped at 1.

    Notes
    -----
    *Proof.* ``y = C^{−½}σ(z)`` has ``E yyᵀ = I`` and ``‖y‖² <= R``, so n = E‖y‖² <= R. With ``X =
    yyᵀ − I``, ``E‖X‖_F² = E‖y‖⁴ − n <= (R − 1)n``. For the mean of d copies this expectation is d
    times smaller, and Markov's inequality gives the first bound. Further ``0 ⪯ E X² = E‖y‖²yyᵀ − I
    ⪯ (R − 1)I`` and ``‖X‖ <= max(‖y‖² − 1, 1) <= R``. The matrix Bernstein inequality (Tropp 2012,
    Theorem 1.4), for X and −X, and ``‖·‖_F² <= n‖·‖²`` give the second bound.

    The first bound holds for ``‖C⁻¹G − I‖_F²`` as well, since ``E‖C⁻¹σσᵀ − I‖_F² = E‖C⁻¹σ‖²‖σ‖² − n
    <= nγ² tr C⁻¹ − n``. With ε of (11) it reads ``P{‖C⁻¹G − I‖_F >= sε} <= s⁻²``. Hence one layer
    satisfies Theorem 3 without a logarithm and with the constant 1.

    Examples
    --------
    >>> from bnmc.bounds.bridging import gram_concentration
    >>> gram_concentration(
    ...     width=10_000, batch=5, t=[0.01, 0.1, 0.5], inverse_norm=2.5, distortion=1
    ... ).round(6)
    array([0.575   , 0.002556, 0.      ])
    """
    d, n, inverse, gamma, t_ = epsilon_arguments(width, batch, inverse_norm, star, distortion, t=t)
    largest = largest_square(n, inverse, gamma)
    variance = n * (largest - 1)
    positive = np.maximum(t_, SMALLEST**2)
    markov = variance / (d * positive)
    scale = variance + np.sqrt(positive / n) * n * largest / 3
    bernstein = 2 * n * np.exp(-(positive * d / 2) / scale)
    bound = np.minimum(np.minimum(markov, bernstein), 1)
    return np.where(t_ > 0, bound, 1.0)[()]


def lemma_10(*, t: ArrayLike, total_variation: ArrayLike) -> Result:
    r"""Lemma 10, eq. (31): the deviation of G, from the total variation of one layer.

    "In the same setting as Lemma 5, we have

    .. math:: P\{‖G_*^{−1}G − I_n‖ \ge t\} \le \frac{100}{t} tv(h′, h)."

    Parameters
    ----------
    t : array_like
        See `bnmc.bounds.bridging`.
    total_variation : array_like
        ``tv(h′, h)``, in [0, 1].

    Returns
    -------
    float or ndarray of float64
        The probability, capped at 1.

    Notes
    -----
    - The norm is printed as the operator norm; (33) has ‖·‖_F².
    - The proof ends with ``‖·‖ >= nt`` and ``100/(nt)``, (35), because it defines the set N_t with
      nt. It takes infima over M ∈ N_t in place of M ∉ N_t.
    - (32), ``tv(h′, h) >= P{M ∉ N_t} inf tv(WM, WX)``, has the wrong direction. The law of h′ is a
      mixture over M, and total variation is convex, so mixing can only decrease it.
    - (33) uses the lower bound of (19), which lacks the root, the minimum with 1 and the d rows.

    Examples
    --------
    >>> from bnmc.bounds.bridging import lemma_10
    >>> print(lemma_10(t=0.5, total_variation=0.001).round(12))
    0.2
    """
    t_, distance = checked(t=t, total_variation=total_variation)
    with np.errstate(over="ignore"):
        quotient = 100 * distance / np.where(t_ > 0, t_, 1)
    return np.where(t_ > 0, np.minimum(quotient, 1), 1.0)[()]


def lemma_11(
    *,
    width: ArrayLike,
    batch: ArrayLike,
    inverse_norm: ArrayLike | None = None,
    star: FixedPointLike | ArrayLike | None = None,
    distortion: ArrayLike | Distortion,
) -> Result:
    r"""Lemma 11, eq. (36): Lemma 5, "restated" with its constants.

    "Construct h ∈ R^{d×n} by drawing its rows from N(0, G*). Given W ∼ N(0, 1/d)^{d×d}, define h′
    := Wσ∘φ(h). It holds

    .. math:: ε^2 = \frac{3n^2‖G_*^{−1}‖γ^2}{d} \ln\Bigl(\frac{d}{3n^2γ^2‖G_*^{−1}‖}\Bigr),
              \quad tv(h′, h) \le ε^2."

    Parameters
    ----------
    width, batch, inverse_norm, star, distortion : array_like
        See `bnmc.bounds.bridging`.

    Returns
    -------
    float or ndarray of float64
        ε². If the logarithm is not positive, 1.

    Notes
    -----
    - The proof ends with (47), `equation_47`, which is larger: it has n in place of n² in the
      logarithm, and 1 added to the logarithm.
    - The proof drops the factor ``1 + 1/√n`` of c.
    - The proof bounds the total variation of d rows by (19) for one row, without the root. ``(3/2)
      t`` in (41) should be ``(3/2)√(dt)``. That is below 1 only for t < 4/(9d), where the other
      term of (41) is above 1, so the corrected bound is vacuous.
    - The notes of `lemma_5` show that the statement is false. `one_step_total_variation` is a bound
      that holds.

    Examples
    --------
    >>> from bnmc.bounds.bridging import lemma_11
    >>> print(lemma_11(width=1e6, batch=5, inverse_norm=2.5, distortion=1).round(6))
    0.001609
    """
    d, n, inverse, gamma = epsilon_arguments(width, batch, inverse_norm, star, distortion)
    scale = 3 * squared_epsilon(d, n, inverse, gamma)
    return np.where(scale < 1, scale * -np.log(np.minimum(scale, 1)), 1.0)[()]


def equation_47(
    *,
    width: ArrayLike,
    batch: ArrayLike,
    inverse_norm: ArrayLike | None = None,
    star: FixedPointLike | ArrayLike | None = None,
    distortion: ArrayLike | Distortion,
) -> Result:
    r"""Eq. (47): the last line of the proof of Lemma 11, which differs from the lemma.

    .. math:: tv(h′, h) \le \frac{3n^2γ^2‖G_*^{−1}‖}{d}
              \Bigl(1 + \ln\Bigl(\frac{d}{3nγ^2‖G_*^{−1}‖}\Bigr)\Bigr)

    Parameters
    ----------
    width, batch, inverse_norm, star, distortion : array_like
        See `bnmc.bounds.bridging`.

    Returns
    -------
    float or ndarray of float64
        Capped at 1. If the logarithm is negative, the minimum of (41) is at t = 0, and the result
        is 1.

    Notes
    -----
    The notes of `lemma_11` apply.

    Examples
    --------
    >>> from bnmc.bounds.bridging import equation_47
    >>> print(equation_47(width=1e6, batch=5, inverse_norm=2.5, distortion=1).round(6))
    0.002098
    """
    d, n, inverse, gamma = epsilon_arguments(width, batch, inverse_norm, star, distortion)
    scale = 3 * squared_epsilon(d, n, inverse, gamma)
    bound = np.minimum(scale * (1 - np.log(np.minimum(scale / n, 1))), 1)
    return np.where(scale < n, bound, 1.0)[()]


def one_step_total_variation(
    *,
    width: ArrayLike,
    batch: ArrayLike,
    rows: ArrayLike = 1,
    inverse_norm: ArrayLike | None = None,
    star: FixedPointLike | ArrayLike | None = None,
    distortion: ArrayLike | Distortion,
) -> Result:
    r"""Bound the total variation of `rows` rows of h and of h′: a provable Lemma 11.

    For h and h′ of `lemma_11`, and ``R = nγ²‖G*⁻¹‖``, the bound is

    .. math:: \min\Bigl\{1, \tfrac32 \sqrt{\mathrm{rows} \cdot n (R − 1) / d}\Bigr\}.

    Parameters
    ----------
    width, batch, inverse_norm, star, distortion : array_like
        See `bnmc.bounds.bridging`.
    rows : array_like, default 1
        Number of the d rows whose joint law is compared, >= 1.

    Returns
    -------
    float or ndarray of float64

    Notes
    -----
    *Proof.* Given h, rows of h′ are independent N(0, G). By convexity, the distance is at most ``E
    TV(N(0, G*)^rows, N(0, G)^rows)``, and thus at most ``(3/2) √rows E‖G*^{−½}GG*^{−½} − I‖_F``
    (`bnmc.bounds.gaussian.total_variation`). By Jensen's inequality and the proof of
    `gram_concentration`, the expectation is at most ``√(n(R−1)/d)``.

    For a fixed number of rows, the bound decreases as d^{−½}. For rows = d and n >= 2 it is 1 at
    every width, because R >= n. So there is no such version of Lemma 11 for all rows.

    Examples
    --------
    >>> from bnmc.bounds.bridging import one_step_total_variation
    >>> one_step_total_variation(
    ...     width=10_000, batch=5, rows=[1, 10, 10_000], inverse_norm=2.5, distortion=1
    ... ).round(4)
    array([0.1137, 0.3597, 1.    ])
    """
    d, n, inverse, gamma, count = epsilon_arguments(
        width, batch, inverse_norm, star, distortion, rows=rows
    )
    variance = n * (largest_square(n, inverse, gamma) - 1)
    return np.minimum(1.5 * np.sqrt(count * variance / d), 1)[()]


def lemma_12(
    *,
    depth: ArrayLike,
    width: ArrayLike,
    batch: ArrayLike,
    alpha: ArrayLike,
    inverse_norm: ArrayLike | None = None,
    star: FixedPointLike | ArrayLike | None = None,
    distortion: ArrayLike | Distortion,
    constant: ArrayLike = 1.0,
) -> Result:
    r"""Lemma 12, eq. (48): distance of the law of h_l from Gaussian rows with covariance G*.

    "Define candidate distribution μ_C for h_C by drawing its rows from N(0, G*). We have

    .. math:: ‖μ_l − μ_C‖_{tv} \le e^{−lα} + ε^2

    where μ_l denotes law of h_l, and with ε was defined in Lemma 5."

    Parameters
    ----------
    depth, width, batch, alpha, inverse_norm, star, distortion, constant : array_like
        See `bnmc.bounds.bridging`. `constant` is the constant of Lemma 5.

    Returns
    -------
    float or ndarray of float64
        Capped at 1.

    Notes
    -----
    - (49) ends with ``e^{−α}``, misprinted for ``e^{−lα}``.
    - The proof takes ``‖μ_C − μ*‖ <= ε²`` from Lemma 5, which bounds ``‖T(μ_C) − μ_C‖``. By (15)
      the bound would be ``ε²/α``.
    - Lemma 12 is false because Lemma 5 is: ``‖μ_C − μ*‖`` is at least half of ``‖T(μ_C) − μ_C‖``,
      which does not vanish as d grows.

    Examples
    --------
    >>> from bnmc.bounds.bridging import lemma_12
    >>> bound = lemma_12(
    ...     depth=40, width=10_000, batch=5, alpha=0.39, inverse_norm=2.5, distortion=1
    ... )
    >>> print(bound.round(6))
    0.00625
    """
    d, n, inverse, gamma, layers, rate, factor = epsilon_arguments(
        width, batch, inverse_norm, star, distortion, depth=depth, alpha=alpha, constant=constant
    )
    squared = factor * squared_epsilon(d, n, inverse, gamma)
    return np.minimum(np.exp(-layers * rate) + squared, 1)[()]


def equation_19(C1: ArrayLike, C2: ArrayLike) -> tuple[Result, Result]:
    r"""Eq. (19): bounds of the total variation of N(0, C1) and N(0, C2), as printed.

    .. math:: "\frac{1}{100} \le \frac{‖μ_X − μ_Y‖_{tv}}{\sum_i λ_i^2} \le \frac32, \quad
              X ∼ N(C_1), Y ∼ N(C_2), where λ_i s are eigenvalues of C_1^{−1}C_2 − I_n."

    Parameters
    ----------
    C1, C2 : (..., n, n) array_like
        Covariances. C1 is regular, and the leading axes broadcast.

    Returns
    -------
    lower, upper : float or (...) ndarray of float64
        ``Σλ_i²/100`` and ``3Σλ_i²/2``, not capped.

    Raises
    ------
    SingularGramError
        If a `C1` is singular to rounding.
    ArgumentError, ArgumentTypeError
        If `C1` or `C2` is not a stack of symmetric, positive semidefinite matrices, or their shapes
        do not match. The message names the arguments S1 and S2.

    Notes
    -----
    The theorem of Devroye, Mehrabian and Reddad has ``min{1, (Σλ_i²)^½}`` in the denominator
    (`bnmc.bounds.gaussian.total_variation`). For small λ_i the printed upper bound is false, since
    the distance is of first order in λ_i. For Σλ_i² > 100 the printed lower bound is false.

    Examples
    --------
    >>> from bnmc.bounds.bridging import equation_19
    >>> lower, upper = equation_19([[1.0]], [[1.1]])
    >>> print(lower.round(9), upper.round(9))
    0.0001 0.015
    """
    with np.errstate(over="ignore"):
        squared = np.square(spectral_deviation(C1, C2))
        return squared / 100, 1.5 * squared
