"""Theorems 1 and 3 of the bridging paper, their corollaries, eq. (6), and the poster's theorem.

See the package `bnmc.bounds.bridging` for the arguments, Assumption 1 and its status.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from bnmc._support.arguments import Float64Array
from bnmc.bounds.bridging.activation_distortion import Distortion
from bnmc.bounds.bridging.arguments import (
    FixedPointLike,
    Result,
    bulk_level,
    checked,
    epsilon_arguments,
    from_star,
    squared_epsilon,
)

__all__ = [
    "Bulk",
    "Concentration",
    "corollary_2",
    "corollary_4",
    "corollary_6",
    "corollary_7",
    "corollary_8",
    "equation_6",
    "poster_theorem",
    "theorem_1",
    "theorem_3",
]


@dataclass(frozen=True, eq=False)
class Concentration:
    """``P{deviation >= radius} <= probability``.

    Attributes
    ----------
    radius : float or ndarray of float64
        Non-negative. If the statement is vacuous, infinite.
    probability : float or ndarray of float64
        Of the same shape, in [0, 1].
    """

    radius: Result
    probability: Result


@dataclass(frozen=True, eq=False)
class Bulk:
    """An interval that contains all eigenvalues of G_l but one, for all layers from `depth` on.

    Attributes
    ----------
    lower, upper : float or ndarray of float64
        Ends of the interval.
    depth : float or ndarray of float64
        First layer of the statement.
    """

    lower: Result
    upper: Result
    depth: Result


def equation_6(*, depth: ArrayLike, width: ArrayLike, batch: ArrayLike) -> Result:
    r"""Bound ``exp(3 n l / (2 d))`` of the deviation of the vanilla linear chain.

    Section 4.2: "an overall bound for deviation from G* …
    :math:`E‖G_\ell − I_n‖ \le \exp(3n\ell/2d)`". Eq. (6), "error propagation ≈ exp(depth/width)",
    is derived from this bound. The chain has σ ∘ φ = id and starts at G_0 = I.

    Parameters
    ----------
    depth, width, batch : array_like
        See `bnmc.bounds.bridging`.

    Returns
    -------
    float or ndarray of float64
        At least 1. If the bound exceeds float64, infinite.

    Notes
    -----
    - By the paper's conventions, the norm is the operator norm. The figure beside the bound shows
      the Frobenius norm. For that norm and n >= 8, the bound fails at about ``l = d/(3n)``: the
      root mean square is about ``√((n+1)/3)`` there, and the bound is ``√e``.
    - The deviation vanishes with l/d, but the bound does not.
    - At great depth the exponent is too large. The exact ``E‖G_l − I‖_F² = n(n+2)/3 (1+2/d)^l −
      n(n−1)/3 (1−1/d)^l − n`` (`bnmc.random_matrix.vanilla_deviation`) grows as ``exp(2l/d)`` for
      every n.
    - An upper bound cannot show that errors are as large as the bound.

    Examples
    --------
    >>> from bnmc.bounds.bridging import equation_6
    >>> print(equation_6(depth=20, width=1000, batch=5).round(6))
    1.161834
    """
    layers, d, n = checked(depth=depth, width=width, batch=batch)
    with np.errstate(over="ignore"):
        bound: Float64Array = np.exp(1.5 * n * layers / d)
    return bound[()]


def theorem_1(
    *,
    depth: ArrayLike,
    width: ArrayLike,
    batch: ArrayLike,
    alpha: ArrayLike,
    t: ArrayLike,
    inverse_norm: ArrayLike | None = None,
    star: FixedPointLike | ArrayLike | None = None,
    constant: ArrayLike = 1.0,
) -> Concentration:
    r"""Theorem 1, eq. (8): relative deviation of the eigenvalues of G_l, for common activations.

    "Assuming that {h_l} obeys Assumption 1 with α ∈ (0, 1], and G* is non-degenerate, for
    sufficiently large :math:`d \gtrsim n^2 ‖G_*^{-1}‖` … If input G-matrix G_0 is non-degenerate,
    we have

    .. math:: P\Bigl\{\bigwedge_{i=1}^n |λ_i/λ_i^* − 1| \gtrsim
              t (e^{−αl/2} + ε \ln\tfrac1ε)\Bigr\} \ge 1 − t^2,
              \quad ε := \frac{n ‖G_*^{−1/2}‖}{\sqrt d}."

    Eigenvalues are descending. σ is relu, tanh, sigmoid, sin, selu or celu.

    Parameters
    ----------
    depth, width, batch, alpha, t, inverse_norm, star, constant : array_like
        See `bnmc.bounds.bridging`. `constant` multiplies the radius.

    Returns
    -------
    Concentration
        Of the largest ``|λ_i/λ_i* − 1|``, with radius ``constant · t (e^{−αl/2} + ε ln 1/ε)`` and
        probability ``min(1, t⁻²)``.

    Notes
    -----
    The event and the probability are misprinted. The text after the theorem and (11) show the
    intended statement: all deviations are at most the radius with probability at least ``1 − t⁻²``.
    It follows from Theorem 3, with γ in the constant, because ``λ_i/λ_i*`` lies between the extreme
    eigenvalues of ``G*^{−½} G_l G*^{−½}``. The notes of `theorem_3` apply. G* is degenerate for odd
    σ at n = 2, and for linear σ.

    Examples
    --------
    >>> from bnmc.bounds.bridging import theorem_1
    >>> bound = theorem_1(depth=60, width=10_000, batch=5, alpha=0.39, t=10, inverse_norm=2.51)
    >>> print(bound.radius.round(4), bound.probability)
    2.0086 0.01
    """
    d, n, inverse, _, layers, rate, t_, factor = epsilon_arguments(
        width, batch, inverse_norm, star, 1.0, depth=depth, alpha=alpha, t=t, constant=constant
    )
    radius = factor * _radius(layers, rate, t_, n * np.sqrt(inverse / d))
    return Concentration(radius[()], _inverse_square(t_))


def corollary_2(
    *,
    depth: ArrayLike,
    width: ArrayLike,
    batch: ArrayLike,
    alpha: ArrayLike,
    t: ArrayLike,
    inverse_norm: ArrayLike | None = None,
    star: FixedPointLike | ArrayLike | None = None,
    constant: ArrayLike = 1.0,
) -> Concentration:
    r"""Corollary 2, eq. (9): the spectra of two inputs of the same network approach one another.

    "In the same setting as Theorem 1, … for two different inputs … where both G_0 and G′_0 are
    non-degenerate, then

    .. math:: P\Bigl\{\bigwedge_{i=1}^n |λ_i/λ′_i − 1| \gtrsim
              t (e^{−αl/2} + ε \ln\tfrac1ε)\Bigr\} \ge 1 − t^2,
              \quad ε := \frac{n ‖G_*^{−1/2}‖}{\sqrt d}."

    Parameters
    ----------
    depth, width, batch, alpha, t, inverse_norm, star, constant : array_like
        See `bnmc.bounds.bridging`. `constant` multiplies the radius.

    Returns
    -------
    Concentration
        Of the largest ``|λ_i/λ′_i − 1|``. Its numbers are those of `theorem_1`.

    Notes
    -----
    The print should have ``1 − t⁻²`` and the opposite event, as in Theorem 1. If the bound is below
    a constant less than 1, the corollary follows, with a larger constant, from Theorem 1 for each
    input and a union bound. The two inputs may even pass through different networks. Remark 1
    claims that ``x = (λ/λ′ − 1)²`` and ``y = (λ′/λ − 1)²`` are within a factor 2. Since y/x is
    ``(λ′/λ)²``, that holds only if λ/λ′ is in [1/√2, √2].

    Examples
    --------
    >>> from bnmc.bounds.bridging import corollary_2
    >>> bound = corollary_2(depth=60, width=10_000, batch=5, alpha=0.39, t=2, inverse_norm=2.51)
    >>> print(bound.radius.round(4), bound.probability)
    0.4017 0.25
    """
    return theorem_1(
        depth=depth,
        width=width,
        batch=batch,
        alpha=alpha,
        t=t,
        inverse_norm=inverse_norm,
        star=star,
        constant=constant,
    )


def theorem_3(
    *,
    depth: ArrayLike,
    width: ArrayLike,
    batch: ArrayLike,
    alpha: ArrayLike,
    t: ArrayLike,
    inverse_norm: ArrayLike | None = None,
    star: FixedPointLike | ArrayLike | None = None,
    distortion: ArrayLike | Distortion,
    constant: ArrayLike = 1.0,
) -> Concentration:
    r"""Theorem 3, eq. (11): relative deviation of the Gram matrix, for general activations.

    "If chain {h_l} obey Assumption 1 with α ∈ (0, 1], if input G-matrix G_0 and stable G-matrix G*
    are non-degenerate, we have

    .. math:: P\Bigl\{‖G_*^{−1} G_l − I_n‖_F \ge t (e^{−αl/2} + ε \ln 1/ε)\Bigr\} \lesssim t^{−2},
              \quad ε := \frac{nγ ‖G_*^{−1/2}‖}{\sqrt d}."

    Parameters
    ----------
    depth, width, batch, alpha, t, inverse_norm, star, distortion, constant : array_like
        See `bnmc.bounds.bridging`. `constant` multiplies the probability.

    Returns
    -------
    Concentration
        Of ``‖G*⁻¹ G_l − I‖_F``, `bnmc.gram.relative_deviation`, with radius ``t (e^{−αl/2} + ε ln
        1/ε)`` and probability ``min(1, constant · t⁻²)``.

    Notes
    -----
    - A power of α is missing. By (15), the candidate law is at a distance ``ε²/α`` from μ*. That
      gives a factor ``α^{−½}`` of the stationary part, as in the informal decomposition after
      Theorem 1 and in the poster. An absolute constant cannot replace this factor. For example,
      σ(x) = 1 + x has a regular G* (with eigenvalues n/(n−1) and n), γ = 2 and ``1 − rate =
      2/(n+1)``. At ε = .6 its stationary deviation, in units of ``ε ln 1/ε``, is about √n/2:

      ========= === === ===
      n           8  16  32
      deviation 1.6 2.2 2.9
      ========= === === ===

    - The transient part cannot scale with t. If the deviation of a start is D, the layer l = 0
      needs a constant of at least D². Assumption 1 gives an additive bound instead: every event has
      at most its stationary probability plus ``(1−α)^l``.
    - The proof would give ``ε (1 + ln …)^{½}`` in place of ``ε ln 1/ε``.
    - Remark 3 claims, "for all σ ∈ F, there is absolute constant C, such that ``|σ(x)| <= C|x|``".
      That is false for the sigmoid, although its γ is below 1.

    Examples
    --------
    >>> from bnmc.bounds.bridging import theorem_3
    >>> bound = theorem_3(
    ...     depth=60, width=[1e4, 1e6], batch=5, alpha=0.39, t=10, inverse_norm=2.51, distortion=1
    ... )
    >>> bound.radius.round(4), bound.probability
    (array([2.0086, 0.3833]), array([0.01, 0.01]))
    """
    others = {"depth": depth, "alpha": alpha, "t": t, "constant": constant}
    d, n, inverse, gamma, layers, rate, t_, factor = epsilon_arguments(
        width, batch, inverse_norm, star, distortion, **others
    )
    radius = _radius(layers, rate, t_, np.sqrt(squared_epsilon(d, n, inverse, gamma)))
    return Concentration(radius[()], _inverse_square(t_, factor))


def corollary_4(
    *,
    width: ArrayLike,
    batch: ArrayLike,
    t: ArrayLike,
    inverse_norm: ArrayLike | None = None,
    star: FixedPointLike | ArrayLike | None = None,
    distortion: ArrayLike | Distortion,
    constant: ArrayLike = 1.0,
) -> Concentration:
    r"""Corollary 4, eq. (12): the Gram matrices of two inputs approach one another.

    "In same setting as Theorem 3, two gram matrices {G′_l} and {G_l} of hidden representations for
    two different inputs (at the same neural network), if G_0 and G′_0 are non-degenerate, it holds

    .. math:: P\{‖G_l^{−1} G′_l − I_n‖_F \ge tε\} \lesssim t^{−2},
              \quad ε := \frac{nγ ‖G_*^{−1/2}‖}{\sqrt d}."

    Parameters
    ----------
    width, batch, t, inverse_norm, star, distortion, constant : array_like
        See `bnmc.bounds.bridging`. `constant` multiplies the probability.

    Returns
    -------
    Concentration
        Of ``‖G_l⁻¹ G′_l − I‖_F``, with radius ``tε`` and probability ``min(1, constant · t⁻²)``.

    Notes
    -----
    (12) does not depend on the layer. It is false at l = 0, because the inputs are arbitrary.
    Theorem 3 would give, with other constants, ``t (e^{−αl/2} + ε ln 1/ε)`` in place of ``tε``.

    Examples
    --------
    >>> from bnmc.bounds.bridging import corollary_4
    >>> print(corollary_4(width=10_000, batch=5, t=10, inverse_norm=4, distortion=1).radius)
    1.0
    """
    d, n, inverse, gamma, t_, factor = epsilon_arguments(
        width, batch, inverse_norm, star, distortion, t=t, constant=constant
    )
    radius = t_ * np.sqrt(squared_epsilon(d, n, inverse, gamma))
    return Concentration(radius[()], _inverse_square(t_, factor))


def corollary_6(
    *,
    depth: ArrayLike,
    width: ArrayLike,
    batch: ArrayLike,
    alpha: ArrayLike,
    t: ArrayLike,
    constant: ArrayLike = 1.0,
) -> Concentration:
    r"""Corollary 6, eq. (17): deviation of the eigenvalues of G_l, for well-conditioned G*.

    "In same setting as Theorem 1, for ε := n/√d, and all t >= 0, if stable G-matrix is
    well-conditioned ‖G*⁻¹‖ = O(1), and ε < 1, we have

    .. math:: P\Bigl\{\sqrt{\textstyle\sum_i^n (λ_i − λ_i^*)^2} \gtrsim
              t (e^{−αl/2} + ε \ln\tfrac1ε)\Bigr\} \le t^2."

    Parameters
    ----------
    depth, width, batch, alpha, t, constant : array_like
        See `bnmc.bounds.bridging`. `constant` multiplies the radius.

    Returns
    -------
    Concentration
        Of ``(Σ(λ_i − λ_i*)²)^½``, with radius ``constant · t (e^{−αl/2} + ε ln 1/ε)`` and
        probability ``min(1, t⁻²)``.

    Notes
    -----
    - ``t²`` is misprinted for ``t⁻²``.
    - The constant includes ``‖G*⁻¹‖``, γ, and ``‖G*‖``, the factor between absolute and relative
      deviations.
    - ``‖G*‖`` is not O(1). For activations of positive c*, it is ``b*(1 + (n−1)c*)`` and grows with
      n. At n = 10 it is 1.7 for relu, and 2.5 for sigmoid.
    - ``‖G*⁻¹‖`` is bounded in n. The bound is 2.9 for relu, and 74 for selu. For odd σ at n = 2,
      ``‖G*⁻¹‖`` is infinite.

    Examples
    --------
    >>> from bnmc.bounds.bridging import corollary_6
    >>> bound = corollary_6(depth=100, width=10_000, batch=10, alpha=0.2, t=10)
    >>> print(bound.radius.round(4), bound.probability)
    2.303 0.01
    """
    layers, d, n, rate, t_, factor = checked(
        depth=depth, width=width, batch=batch, alpha=alpha, t=t, constant=constant
    )
    radius = factor * _radius(layers, rate, t_, n / np.sqrt(d))
    return Concentration(radius[()], _inverse_square(t_))


def corollary_7(
    *,
    depth: ArrayLike,
    width: ArrayLike,
    batch: ArrayLike,
    alpha: ArrayLike,
    t: ArrayLike,
    constant: ArrayLike = 1.0,
) -> Concentration:
    r"""Corollary 7, eq. (18): deviation of the Gram matrix, for well-conditioned G*.

    "In the same setting as Theorem 3, for ε := n/√d, and t >= 0, if stable G-matrix obeys ‖G*⁻¹‖ =
    O(1), and ε < 1, we have

    .. math:: P\Bigl\{‖G_l − G_*‖_F \gtrsim t (e^{−αl/2} + ε \ln\tfrac1ε)\Bigr\} \lesssim t^2."

    Parameters
    ----------
    depth, width, batch, alpha, t, constant : array_like
        See `bnmc.bounds.bridging`. `constant` multiplies the radius. It includes the root of the
        constant before ``t⁻²``.

    Returns
    -------
    Concentration
        Of ``‖G_l − G*‖_F``, `bnmc.gram.distance`. Its numbers are those of `corollary_6`.

    Notes
    -----
    The notes of `corollary_6` apply, including ``t⁻²`` for ``t²``. The eigenvalues of symmetric
    matrices differ by at most their Frobenius distance (Hoffman and Wielandt), so Corollary 7
    implies Corollary 6.

    Examples
    --------
    >>> from bnmc.bounds.bridging import corollary_7
    >>> corollary_7(depth=[0, 100], width=10_000, batch=10, alpha=0.2, t=2).radius.round(4)
    array([2.4605, 0.4606])
    """
    return corollary_6(depth=depth, width=width, batch=batch, alpha=alpha, t=t, constant=constant)


def corollary_8(
    *,
    width: ArrayLike,
    alpha: ArrayLike,
    star: FixedPointLike | ArrayLike,
    constant: ArrayLike = 1.0,
    depth_constant: ArrayLike = 1.0,
) -> Bulk:
    r"""Corollary 8: an interval of all eigenvalues of G_l but one, in sufficiently deep layers.

    "Suppose that G* in Theorem 1 is the stable fixed-point of the mean-field regime and is
    well-conditioned ‖G*⁻¹‖ = O(1); then for sufficiently deep layers :math:`l \gtrsim \log(d/α)`,
    (n−1) eigenvalues of G_l lie between :math:`c(1 − O(\sqrt{n/d}))` and :math:`c(1 +
    O(\sqrt{n/d}))`, with high probability for a constant c that only depends on σ ∈ F."

    Parameters
    ----------
    width, alpha, constant : array_like
        See `bnmc.bounds.bridging`. `constant` is the constant of both O(·).
    star : FixedPoint or (n, n) array_like
        G*, which determines n and c.
    depth_constant : array_like, default 1
        The constant behind ≳, > 0.

    Returns
    -------
    Bulk
        ``c (1 ∓ constant √(n/d))`` with ``c = b*(1 − c*)``, and ``depth_constant · ln(d/α)``.

    Notes
    -----
    - c depends on n as well. For relu it is .398 at n = 5, and .343 at n = 100.
    - (16) and the lines after it print λ_1* = c*n. It is ``b*(1 + (n−1)c*)``. For activations of
      negative c* (tanh, sin, selu), it is the smallest eigenvalue.
    - Theorem 1 gives ``ε ln 1/ε`` with ε of the order of n/√d, not √(n/d).
    - The support of Marchenko–Pastur's law is ``(1 ∓ √(n/d))²``, not ``1 ∓ √(n/d)``. The law
      describes the fluctuation of one layer, so constants below 2 fail.
    - The stationary bulk is wider. At n = 20 and d = 500, its variance over n/d is 2.3 for relu,
      and 4.4 for tanh.
    - ``e^{−αl/2}`` becomes small at a depth of the order of ``ln(d)/α``, not ``ln(d/α)``.

    Examples
    --------
    >>> from bnmc.bounds.bridging import corollary_8
    >>> bulk = corollary_8(width=400, alpha=0.5, star=[[0.6, 0.1], [0.1, 0.6]], constant=2)
    >>> print(bulk.lower.round(4), bulk.upper.round(4), bulk.depth.round(4))
    0.4293 0.5707 6.6846
    """
    n, level = bulk_level(star)
    d, rate, factor, depth_factor = checked(
        width=width, alpha=alpha, constant=constant, depth_constant=depth_constant
    )
    half_width = factor * np.sqrt(n / d)
    lower, upper = level * (1 - half_width), level * (1 + half_width)
    return Bulk(lower[()], upper[()], (depth_factor * np.log(d / rate))[()])


def poster_theorem(
    *,
    depth: ArrayLike,
    width: ArrayLike,
    batch: ArrayLike,
    alpha: ArrayLike,
    condition: ArrayLike | None = None,
    star: FixedPointLike | ArrayLike | None = None,
    constant: ArrayLike = 1.0,
) -> Result:
    r"""Return the radius of the poster's main result, its Theorem 2.

    "Assume the Markov chain of representations {h_l} is geometric ergodic with α > 0, and has
    nondegenerate fixed-point G*. If the activation σ is uniformly bounded ``|σ(x)| = O(|x|)``,
    then

    .. math:: ‖G_* − G_l‖_F = O\Bigl(κ(G_*)(1 − α)^{l/2} +
              \frac{n}{\sqrt d} α^{−1/2} \ln^{1/2}(\tfrac dn)\Bigr)

    holds with high probability."

    Parameters
    ----------
    depth, width, batch, alpha, constant : array_like
        See `bnmc.bounds.bridging`.
    condition : array_like
        κ(G*) >= 1.
    star : FixedPoint or (n, n) array_like
        G*, in place of `condition`.

    Returns
    -------
    float or ndarray of float64
        ``constant · (κ (1−α)^{l/2} + n (d α)^{−½} (ln d/n)^½)``. If d <= n, infinite.

    Notes
    -----
    - The radius has the factor ``α^{−½}`` that the paper's theorems lack, and ``ln^½(d/n)`` in
      place of ``ln 1/ε``.
    - The poster does not give the probability.
    - The constant includes ``‖G*⁻¹‖``, γ and ``‖G*‖``.
    - ``|σ(x)| = O(|x|)`` excludes the sigmoid.
    - The poster's Gram matrix is printed d × d, with the transpose on the wrong factor.

    Examples
    --------
    >>> from bnmc.bounds.bridging import poster_theorem
    >>> print(poster_theorem(depth=60, width=1000, batch=10, alpha=0.2, condition=4.6).round(4))
    1.5231
    """
    kappa = from_star("condition", condition, star, batch, lambda low, high: high / low)
    layers, d, n, rate, kappa, factor = checked(
        depth=depth, width=width, batch=batch, alpha=alpha, condition=kappa, constant=constant
    )
    logarithm = np.log(np.maximum(d / n, 1))
    radius = factor * (kappa * (1 - rate) ** (layers / 2) + n * np.sqrt(logarithm / (rate * d)))
    return np.where(d > n, radius, np.inf)[()]


def _radius(
    layers: Float64Array, rate: Float64Array, t: Float64Array, epsilon: Float64Array
) -> Float64Array:
    """Return ``t (e^{−αl/2} + ε ln 1/ε)``, infinite if ε >= 1."""
    stationary = epsilon * -np.log(np.minimum(epsilon, 1))
    radius = t * (np.exp(-rate * layers / 2) + stationary)
    return np.where(epsilon < 1, radius, np.inf)


def _inverse_square(t: Float64Array, factor: float | Float64Array = 1.0) -> Result:
    """Return ``min(1, factor / t²)``."""
    above_one = t > np.sqrt(factor)
    probability: Float64Array = np.where(above_one, factor / np.where(above_one, t, 1) ** 2, 1.0)
    return probability[()]
