"""The statements of Joudaki, Daneshmand and Bach on mean field and finite width, as functions.

The paper is *On bridging the gap between mean field and finite width in deep random neural networks
with batch normalization* (arXiv 2205.13076), with its poster. Its chain is that of
`bnmc.Chain.bn_mlp`; G_l is the Gram matrix of layer l, G* the stable fixed point of the mean-field
map. A function carries the number of the statement, returns what is printed there, and says in its
notes where the print misleads. `gram_concentration` and `one_step_total_variation` are what of
Lemmas 9 and 11 can be proved; `distortion` computes γ.

Arguments are keywords, real numbers or arrays, and broadcast:

============== ====================================================================================
depth          layer l >= 0
width, batch   d >= 1, n >= 1
alpha          α of Assumption 1, in (0, 1]
t              size of the deviation in units of the bound, >= 0
inverse_norm   ``‖G*⁻¹‖ > 0``, the inverse of the smallest eigenvalue of G*
star           in place of `inverse_norm`, one G*: an (n, n) matrix, or a mean-field `FixedPoint`
distortion     γ > 0 of (10), or a `Distortion`, whose upper bound is taken
constant       the absolute constant behind ≲, ≳ or O(·), which the paper does not name, > 0
============== ====================================================================================

Results are float64, a scalar for scalars. Probabilities and total variation distances are capped
at 1. A radius is infinite where a statement says nothing: where the ε of ``ε ln 1/ε`` is >= 1.

All of them raise `ArgumentError` or `ArgumentTypeError` for an argument that lies outside its range
or does not broadcast, and `SingularGramError` for a singular `star`.

Assumption 1 (geometric ergodicity) is that the chain has a unique invariant law μ* and ``‖μ_l −
μ*‖_tv <= (1−α)^l ‖μ_0 − μ*‖_tv`` "holds almost surely for all h_0", μ_l the law of the
pre-activation h_l. Everything with an `alpha` rests on it, and

- no α serves all starts: equal samples stay equal, so for n >= 3 and continuous σ a start whose
  samples nearly are equal stays far from μ* for as many layers as one likes. Read α as a constant
  of the start;
- α depends on n: 1 − rate of the fixed point, which takes its place in the limit of large width, is
  .39, .21, .11 and .02 for relu at n = 5, 10, 20, 100. The stationary parts of (8), (9), (11), (17)
  and (18) have lost their power of it (see `theorem_3`);
- the proof goes through Lemmas 10 to 12, of which 11 and 12 are false and 10 is not proved (see
  there). With an absolute constant Theorem 3 is false too; what supports the theorems with one
  that depends on σ, n and the start is simulation.

``ε ln 1/ε`` grows with ε up to 1/e only, and falls back to 0 at ε = 1; a bound with ε > 1/e is
smaller than that of a wider network and should not be used.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike

from bnmc import gram
from bnmc._support.arguments import finite_array
from bnmc.bounds._arguments import broadcast
from bnmc.bounds.distortion import EPS, Distortion, Float64Array, distortion
from bnmc.bounds.gaussian import spectral_deviation
from bnmc.errors import ArgumentError, ArgumentTypeError, SingularGramError

__all__ = [
    "Bulk",
    "Concentration",
    "Distortion",
    "corollary_2",
    "corollary_4",
    "corollary_6",
    "corollary_7",
    "corollary_8",
    "distortion",
    "equation_6",
    "equation_19",
    "equation_47",
    "gram_concentration",
    "lemma_5",
    "lemma_9",
    "lemma_10",
    "lemma_11",
    "lemma_12",
    "one_step_total_variation",
    "poster_theorem",
    "theorem_1",
    "theorem_3",
]


Result = np.float64 | Float64Array


@runtime_checkable
class Star(Protocol):
    """What is needed of a `bnmc.mean_field.FixedPoint`: ``G* = b ((1−c) I + c 11ᵀ)``."""

    batch: int
    b: float
    c: float
    error: float


@dataclass(frozen=True, eq=False)
class Concentration:
    """``P{deviation >= radius} <= probability``.

    Attributes
    ----------
    radius : float or ndarray of float64
        Non-negative; infinite where the statement says nothing.
    probability : float or ndarray of float64
        Of the same shape, in [0, 1].
    """

    radius: Result
    probability: Result


@dataclass(frozen=True, eq=False)
class Bulk:
    """The interval of all eigenvalues of G_l but one, from a layer on.

    Attributes
    ----------
    lower, upper : float or ndarray of float64
        Ends of the interval.
    depth : float or ndarray of float64
        The layer from which on the statement is made.
    """

    lower: Result
    upper: Result
    depth: Result


# --- the theorems and their corollaries


def equation_6(*, depth: ArrayLike, width: ArrayLike, batch: ArrayLike) -> Result:
    r"""Bound ``exp(3 n l / (2 d))`` of the deviation of the vanilla linear chain.

    Section 4.2: "an overall bound for deviation from G* …
    :math:`E‖G_\ell − I_n‖ \le \exp(3n\ell/2d)`", from which eq. (6), "error propagation ≈
    exp(depth/width)", is read off. The chain has σ ∘ φ = id and starts at G_0 = I.

    Parameters
    ----------
    depth, width, batch : array_like
        See the module.

    Returns
    -------
    float or ndarray of float64
        At least 1; infinite where it exceeds float64.

    Notes
    -----
    The norm is the operator norm, by the paper's conventions. For the Frobenius norm, which the
    figure beside it shows, the bound fails from n = 8 on at about ``l = d/(3n)``, where the root
    mean square is about ``√((n+1)/3)`` and the bound ``√e``. Nor does it vanish with l/d, as the
    deviation does, and in great depth its exponent is too large: ``E‖G_l − I‖_F² = n(n+2)/3
    (1+2/d)^l − n(n−1)/3 (1−1/d)^l − n`` (`bnmc.random_matrix.vanilla_deviation`) grows as
    ``exp(2l/d)``, whatever n. An upper bound cannot show that errors are as large.

    Examples
    --------
    >>> print(equation_6(depth=20, width=1000, batch=5).round(6))
    1.161834
    """
    layers, d, n = _checked(depth=depth, width=width, batch=batch)
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
    star: Star | ArrayLike | None = None,
    constant: ArrayLike = 1.0,
) -> Concentration:
    r"""Theorem 1, eq. (8): relative deviation of the eigenvalues of G_l, for common activations.

    "Assuming that {h_l} obeys Assumption 1 with α ∈ (0, 1], and G* is non-degenerate, for
    sufficiently large :math:`d \gtrsim n^2 ‖G_*^{-1}‖` … If input G-matrix G_0 is non-degenerate,
    we have

    .. math:: P\Bigl\{\bigwedge_{i=1}^n |λ_i/λ_i^* − 1| \gtrsim
              t (e^{−αl/2} + ε \ln\tfrac1ε)\Bigr\} \ge 1 − t^2,
              \quad ε := \frac{n ‖G_*^{−1/2}‖}{\sqrt d}."

    Eigenvalues are descending; σ is relu, tanh, sigmoid, sin, selu or celu.

    Parameters
    ----------
    depth, width, batch, alpha, t, inverse_norm, star, constant : array_like
        See the module; `constant` multiplies the radius.

    Returns
    -------
    Concentration
        Of the largest ``|λ_i/λ_i* − 1|``: radius ``constant · t (e^{−αl/2} + ε ln 1/ε)``,
        probability ``min(1, t⁻²)``.

    Notes
    -----
    The event and the probability are misprinted: meant, as the text after it and (11) show, is that
    all deviations are at most the radius with probability at least ``1 − t⁻²``. It follows from
    Theorem 3, with γ in the constant, because ``λ_i/λ_i*`` lies between the extreme eigenvalues of
    ``G*^{−½} G_l G*^{−½}``; `theorem_3` says what is missing there. G* is degenerate for odd σ at
    n = 2, and for linear σ.

    Examples
    --------
    >>> bound = theorem_1(depth=60, width=10_000, batch=5, alpha=0.39, t=10, inverse_norm=2.51)
    >>> print(bound.radius.round(4), bound.probability)
    2.0086 0.01
    """
    d, n, inverse, _, layers, rate, t_, factor = _gathered(
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
    star: Star | ArrayLike | None = None,
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
        See the module; `constant` multiplies the radius.

    Returns
    -------
    Concentration
        Of the largest ``|λ_i/λ′_i − 1|``: that of `theorem_1`.

    Notes
    -----
    As for Theorem 1, ``1 − t⁻²`` and the opposite event are meant. By a union bound it follows from
    Theorem 1 for each input, with a larger constant, where the bound is below a constant less than
    1; the network need not be the same. Remark 1, that ``x = (λ/λ′ − 1)²`` and ``y = (λ′/λ − 1)²``
    are within a factor 2, holds where λ/λ′ is in [1/√2, √2]: y/x is ``(λ′/λ)²``.

    Examples
    --------
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
    star: Star | ArrayLike | None = None,
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
        See the module; `constant` multiplies the probability.

    Returns
    -------
    Concentration
        Of ``‖G*⁻¹ G_l − I‖_F``, `bnmc.gram.relative_deviation`: radius ``t (e^{−αl/2} + ε ln
        1/ε)``, probability ``min(1, constant · t⁻²)``.

    Notes
    -----
    - α is missing: by (15) the candidate law is at a distance ``ε²/α`` from μ*, which would give
      ``α^{−½}`` before the stationary part, as the informal decomposition after Theorem 1 and the
      poster have it. An absolute constant cannot make up for it: σ(x) = 1 + x has a regular G* (of
      eigenvalues n/(n−1) and n), γ = 2 and ``1 − rate = 2/(n+1)``, and its stationary deviation
      at ε = .6 is about √n/2 times ``ε ln 1/ε`` (1.6, 2.2, 2.9 for n = 8, 16, 32).
    - The transient part cannot scale with t: if a start is off by D, the layer l = 0 needs a
      constant of at least D². What Assumption 1 gives is additive: no event has a probability
      above its stationary one plus ``(1−α)^l``.
    - The logarithm is not that of the proof either, which would give ``ε (1 + ln …)^{½}``.
    - Remark 3, "for all σ ∈ F, there is absolute constant C, such that ``|σ(x)| <= C|x|``", is not
      true of the sigmoid, whose γ is below 1 nevertheless.

    Examples
    --------
    >>> bound = theorem_3(
    ...     depth=60, width=[1e4, 1e6], batch=5, alpha=0.39, t=10, inverse_norm=2.51, distortion=1
    ... )
    >>> bound.radius.round(4), bound.probability
    (array([2.0086, 0.3833]), array([0.01, 0.01]))
    """
    others = {"depth": depth, "alpha": alpha, "t": t, "constant": constant}
    d, n, inverse, gamma, layers, rate, t_, factor = _gathered(
        width, batch, inverse_norm, star, distortion, **others
    )
    radius = _radius(layers, rate, t_, np.sqrt(_squared_epsilon(d, n, inverse, gamma)))
    return Concentration(radius[()], _inverse_square(t_, factor))


def corollary_4(
    *,
    width: ArrayLike,
    batch: ArrayLike,
    t: ArrayLike,
    inverse_norm: ArrayLike | None = None,
    star: Star | ArrayLike | None = None,
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
        See the module; `constant` multiplies the probability.

    Returns
    -------
    Concentration
        Of ``‖G_l⁻¹ G′_l − I‖_F``: radius ``tε``, probability ``min(1, constant · t⁻²)``.

    Notes
    -----
    Nothing in (12) depends on the layer: at l = 0, where the inputs are whatever they are, it is
    false. What would follow from Theorem 3, with other constants, has ``t (e^{−αl/2} + ε ln 1/ε)``
    in place of ``tε``.

    Examples
    --------
    >>> print(corollary_4(width=10_000, batch=5, t=10, inverse_norm=4, distortion=1).radius)
    1.0
    """
    d, n, inverse, gamma, t_, factor = _gathered(
        width, batch, inverse_norm, star, distortion, t=t, constant=constant
    )
    radius = t_ * np.sqrt(_squared_epsilon(d, n, inverse, gamma))
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
        See the module; `constant` multiplies the radius.

    Returns
    -------
    Concentration
        Of ``(Σ(λ_i − λ_i*)²)^½``: radius ``constant · t (e^{−αl/2} + ε ln 1/ε)``, probability
        ``min(1, t⁻²)``.

    Notes
    -----
    ``t²`` is misprinted for ``t⁻²``. ``‖G*⁻¹‖`` and γ have gone into the constant, and with them
    ``‖G*‖``, by which absolute and relative deviations differ; it is no O(1): ``b*(1 + (n−1)c*)``
    grows with n for activations of positive c* (1.7 for relu, 2.5 for sigmoid at n = 10). ‖G*⁻¹‖
    stays bounded in n, but at 2.9 for relu and 74 for selu, and is infinite for odd σ at n = 2.

    Examples
    --------
    >>> bound = corollary_6(depth=100, width=10_000, batch=10, alpha=0.2, t=10)
    >>> print(bound.radius.round(4), bound.probability)
    2.303 0.01
    """
    layers, d, n, rate, t_, factor = _checked(
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
        See the module; `constant` multiplies the radius, and so does the root of the second one,
        before ``t⁻²``.

    Returns
    -------
    Concentration
        Of ``‖G_l − G*‖_F``, `bnmc.gram.distance`: that of `corollary_6`.

    Notes
    -----
    Those of `corollary_6`, ``t⁻²`` for ``t²`` included. Since eigenvalues of symmetric matrices
    differ by at most the Frobenius distance (Hoffman and Wielandt), Corollary 6 follows from this.

    Examples
    --------
    >>> corollary_7(depth=[0, 100], width=10_000, batch=10, alpha=0.2, t=2).radius.round(4)
    array([2.4605, 0.4606])
    """
    return corollary_6(depth=depth, width=width, batch=batch, alpha=alpha, t=t, constant=constant)


def corollary_8(
    *,
    width: ArrayLike,
    alpha: ArrayLike,
    star: Star | ArrayLike,
    constant: ArrayLike = 1.0,
    depth_constant: ArrayLike = 1.0,
) -> Bulk:
    r"""Corollary 8: where all eigenvalues of G_l but one lie, in sufficiently deep layers.

    "Suppose that G* in Theorem 1 is the stable fixed-point of the mean-field regime and is
    well-conditioned ‖G*⁻¹‖ = O(1); then for sufficiently deep layers :math:`l \gtrsim \log(d/α)`,
    (n−1) eigenvalues of G_l lie between :math:`c(1 − O(\sqrt{n/d}))` and :math:`c(1 +
    O(\sqrt{n/d}))`, with high probability for a constant c that only depends on σ ∈ F."

    Parameters
    ----------
    width, alpha, constant : array_like
        See the module; `constant` is that of both O(·).
    star : FixedPoint or (n, n) array_like
        G*, which sets n and c.
    depth_constant : array_like, default 1
        The constant behind ≳, > 0.

    Returns
    -------
    Bulk
        ``c (1 ∓ constant √(n/d))`` with ``c = b*(1 − c*)``, and ``depth_constant · ln(d/α)``.

    Notes
    -----
    c depends on n as well (.398, .368 and .343 for relu at n = 5, 10 and 100). Eq. (16)
    ff. print λ_1* = c*n; it is ``b*(1 + (n−1)c*)``, and for activations of negative c* (tanh, sin,
    selu) it is the smallest. Theorem 1 gives ``ε ln 1/ε`` with ε of the order of n/√d, not √(n/d).
    Marchenko–Pastur's law has its support on ``(1 ∓ √(n/d))²``, not ``1 ∓ √(n/d)``, and describes
    the fluctuation of one layer, so constants below 2 fail; the stationary bulk is wider, its
    variance over n/d at n = 20, d = 500 being 2.2 for relu and 4.3 for tanh. The depth that makes
    ``e^{−αl/2}`` small is of the order of ``ln(d)/α``, not ``ln(d/α)``.

    Examples
    --------
    >>> bulk = corollary_8(width=400, alpha=0.5, star=[[0.6, 0.1], [0.1, 0.6]], constant=2)
    >>> print(bulk.lower.round(4), bulk.upper.round(4), bulk.depth.round(4))
    0.4293 0.5707 6.6846
    """
    n, level = _bulk(star)
    d, rate, factor, depth_factor = _checked(
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
    star: Star | ArrayLike | None = None,
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
        See the module.
    condition : array_like
        κ(G*) >= 1.
    star : FixedPoint or (n, n) array_like
        G*, in place of `condition`.

    Returns
    -------
    float or ndarray of float64
        ``constant · (κ (1−α)^{l/2} + n (d α)^{−½} (ln d/n)^½)``; infinite where d <= n.

    Notes
    -----
    It has the ``α^{−½}`` that the paper's theorems lack, and ``ln^½(d/n)`` for ``ln 1/ε``; the
    probability is not named. ``‖G*⁻¹‖``, γ and ``‖G*‖`` have gone into the constant. ``|σ(x)| =
    O(|x|)`` excludes the sigmoid. The poster's Gram matrix is printed d × d, with the transpose in
    the wrong place.

    Examples
    --------
    >>> print(poster_theorem(depth=60, width=1000, batch=10, alpha=0.2, condition=4.6).round(4))
    1.5231
    """
    kappa = _from_star("condition", condition, star, batch, lambda low, high: high / low)
    layers, d, n, rate, kappa, factor = _checked(
        depth=depth, width=width, batch=batch, alpha=alpha, condition=kappa, constant=constant
    )
    logarithm = np.log(np.maximum(d / n, 1))
    radius = factor * (kappa * (1 - rate) ** (layers / 2) + n * np.sqrt(logarithm / (rate * d)))
    return np.where(d > n, radius, np.inf)[()]


# --- the lemmas


def lemma_5(
    *,
    width: ArrayLike,
    batch: ArrayLike,
    inverse_norm: ArrayLike | None = None,
    star: Star | ArrayLike | None = None,
    distortion: ArrayLike | Distortion,
    constant: ArrayLike = 1.0,
) -> Result:
    r"""Lemma 5, eq. (13): how far one layer moves the law of Gaussian rows with covariance G*.

    With μ_0 the law of a d × n matrix of independent rows N(0, G*) and T the step of the chain,

    .. math:: "‖T(μ_0) − μ_0‖_{tv} \lesssim \frac{n^2γ^2‖G_*^{−1}‖}{d} =: ε^2."

    Parameters
    ----------
    width, batch, inverse_norm, star, distortion, constant : array_like
        See the module.

    Returns
    -------
    float or ndarray of float64
        ``min(1, constant · ε²)``.

    Notes
    -----
    It is false for n >= 2, as is Lemma 11, which is said to restate it and has a logarithm more:
    the distance does not vanish as d grows. Under μ_0, ``√d (hᵀh/d − G*)`` has a Gaussian limit;
    under T(μ_0) the independent fluctuation ``√d (G − G*)`` of the same order is added to it, and
    the distance of the two limits is positive. For relu, n = 4 and d = 10 000 it is above .3, where
    Lemma 11 says .05 and this, with the constant 1, .004. See `one_step_total_variation`.

    Examples
    --------
    >>> print(lemma_5(width=10_000, batch=5, inverse_norm=4, distortion=1))
    0.01
    """
    d, n, inverse, gamma, factor = _gathered(
        width, batch, inverse_norm, star, distortion, constant=constant
    )
    return np.minimum(factor * _squared_epsilon(d, n, inverse, gamma), 1)[()]


def lemma_9(
    *,
    width: ArrayLike,
    batch: ArrayLike,
    t: ArrayLike,
    inverse_norm: ArrayLike | None = None,
    star: Star | ArrayLike | None = None,
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
        See the module; C takes the place of G*, and t is a squared deviation.

    Returns
    -------
    float or ndarray of float64
        The probability, capped at 1.

    Notes
    -----
    - G is meant to be ``(1/d) Σ σ(z_k)σ(z_k)ᵀ``, and y_k in the proof ``C^{−½}σ(z_k)``.
    - "By fact 1", which the paper does not have, C⁻¹G has the spectrum of ``C^{−½}GC^{−½}``; that
      does not make the Frobenius norms equal. What is bounded is ``‖C^{−½}GC^{−½} − I‖_F``
      (`bnmc.bounds.gaussian.spectral_deviation`), and ``‖C⁻¹G − I‖_F`` is up to ``√κ(C)`` larger.
    - The matrix Bernstein inequality is printed with t/2 for t²/2, and with the largest eigenvalue
      of one summand where the norm of a sum is bounded, which takes 2n for n. (27) has t²/2, and n.
    - γ bounds σ on the sphere ‖z‖ = √n, not inside; φ(h) does lie on the sphere.
    - "σ² = d(R−1) <= d" is not used, and wrong; (30) has 2/3 for 1/3, and (20) 1, which only
      weakens it.

    `gram_concentration` is what the proof gives.

    Examples
    --------
    >>> print(lemma_9(width=10_000, batch=5, t=0.1, inverse_norm=2.5, distortion=1).round(6))
    0.004519
    """
    d, n, inverse, gamma, t_ = _gathered(width, batch, inverse_norm, star, distortion, t=t)
    scale = gamma**2 * inverse * n**2 * (1 + np.sqrt(t_ / n))
    probability: Float64Array = n * np.exp(-(t_ * d / 2) / scale)
    return np.minimum(probability, 1)[()]


def gram_concentration(
    *,
    width: ArrayLike,
    batch: ArrayLike,
    t: ArrayLike,
    inverse_norm: ArrayLike | None = None,
    star: Star | ArrayLike | None = None,
    distortion: ArrayLike | Distortion,
) -> Result:
    r"""Bound ``P{‖C^{−½} G C^{−½} − I‖_F² >= t}`` for independent rows: what Lemma 9 can say.

    For ``G = (1/d) Σ_k σ(z_k)σ(z_k)ᵀ``, z_1, …, z_d independent and of one law on the sphere ``‖z‖
    = √n``, ``C = E σ(z)σ(z)ᵀ`` and ``R = n γ² ‖C⁻¹‖ >= n``, the smaller of

    .. math:: \frac{n(R − 1)}{d t}, \qquad
              2n \exp\Bigl(−\frac{td/2}{n(R − 1) + \sqrt{t/n}\,nR/3}\Bigr).

    Layer 0 of a simulation from the initial law "gaussian" is of this kind, with C = G*.

    Parameters
    ----------
    width, batch, t, inverse_norm, star, distortion : array_like
        See the module; C takes the place of G*, and t is a squared deviation.

    Returns
    -------
    float or ndarray of float64
        The bound, capped at 1.

    Notes
    -----
    *Proof.* ``y = C^{−½}σ(z)`` has ``E yyᵀ = I`` and ``‖y‖² <= R``, so n = E‖y‖² <= R. With ``X =
    yyᵀ − I``, ``E‖X‖_F² = E‖y‖⁴ − n <= (R − 1)n``; the mean of d copies has 1/d of it, and Markov's
    inequality gives the first bound. Further ``0 ⪯ E X² = E‖y‖²yyᵀ − I ⪯ (R − 1)I`` and ``‖X‖ <=
    max(‖y‖² − 1, 1) <= R``: the matrix Bernstein inequality (Tropp 2012, Theorem 1.4), for X and
    −X, and ``‖·‖_F² <= n‖·‖²`` give the second.

    The first bound holds for ``‖C⁻¹G − I‖_F²`` as well, since ``E‖C⁻¹σσᵀ − I‖_F² = E‖C⁻¹σ‖²‖σ‖² − n
    <= nγ² tr C⁻¹ − n``. With ε of (11) it says ``P{‖C⁻¹G − I‖_F >= sε} <= s⁻²``: one layer keeps
    what Theorem 3 states, without logarithm or unnamed constant.

    Examples
    --------
    >>> gram_concentration(
    ...     width=10_000, batch=5, t=[0.01, 0.1, 0.5], inverse_norm=2.5, distortion=1
    ... ).round(6)
    array([0.575   , 0.002556, 0.      ])
    """
    d, n, inverse, gamma, t_ = _gathered(width, batch, inverse_norm, star, distortion, t=t)
    largest = _largest_square(n, inverse, gamma)
    variance = n * (largest - 1)
    positive = np.maximum(t_, _SMALLEST**2)
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
        See the module.
    total_variation : array_like
        ``tv(h′, h)``, in [0, 1].

    Returns
    -------
    float or ndarray of float64
        The probability, capped at 1.

    Notes
    -----
    The norm is printed as the operator norm; (33) has ‖·‖_F². The proof ends with ``‖·‖ >= nt`` and
    ``100/(nt)``, (35), from a set N_t defined with nt, and takes infima over M ∈ N_t where M ∉ N_t
    is meant. (32), ``tv(h′, h) >= P{M ∉ N_t} inf tv(WM, WX)``, has the wrong direction: the law of
    h′ is a mixture over M, and total variation is convex, so mixing can only lower it. (33) takes
    the lower bound of (19), which lacks the root, the minimum with 1 and the d rows.

    Examples
    --------
    >>> print(lemma_10(t=0.5, total_variation=0.001).round(12))
    0.2
    """
    t_, distance = _checked(t=t, total_variation=total_variation)
    with np.errstate(over="ignore"):
        quotient = 100 * distance / np.where(t_ > 0, t_, 1)
    return np.where(t_ > 0, np.minimum(quotient, 1), 1.0)[()]


def lemma_11(
    *,
    width: ArrayLike,
    batch: ArrayLike,
    inverse_norm: ArrayLike | None = None,
    star: Star | ArrayLike | None = None,
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
        See the module.

    Returns
    -------
    float or ndarray of float64
        ε²; 1 where the logarithm is not positive.

    Notes
    -----
    The proof ends with (47), `equation_47`, which has n for n² in the logarithm and 1 added to it,
    and so is larger. It drops the factor ``1 + 1/√n`` of c, and bounds the total variation of d
    rows by (19) for one, without its root: ``(3/2)t`` in (41) should be ``(3/2)√(dt)``, which is
    below 1 for t < 4/(9d) only, where the other term of (41) is above 1. Nothing is left, nor can
    it be: `lemma_5` says why the statement is false. What holds is in `one_step_total_variation`.

    Examples
    --------
    >>> print(lemma_11(width=1e6, batch=5, inverse_norm=2.5, distortion=1).round(6))
    0.001609
    """
    d, n, inverse, gamma = _gathered(width, batch, inverse_norm, star, distortion)
    scale = 3 * _squared_epsilon(d, n, inverse, gamma)
    return np.where(scale < 1, scale * -np.log(np.minimum(scale, 1)), 1.0)[()]


def equation_47(
    *,
    width: ArrayLike,
    batch: ArrayLike,
    inverse_norm: ArrayLike | None = None,
    star: Star | ArrayLike | None = None,
    distortion: ArrayLike | Distortion,
) -> Result:
    r"""Eq. (47): the last line of the proof of Lemma 11, which is not what the lemma states.

    .. math:: tv(h′, h) \le \frac{3n^2γ^2‖G_*^{−1}‖}{d}
              \Bigl(1 + \ln\Bigl(\frac{d}{3nγ^2‖G_*^{−1}‖}\Bigr)\Bigr)

    Parameters
    ----------
    width, batch, inverse_norm, star, distortion : array_like
        See the module.

    Returns
    -------
    float or ndarray of float64
        Capped at 1; and 1 where the logarithm is negative, where the minimum of (41) is at t = 0.

    Notes
    -----
    Those of `lemma_11`.

    Examples
    --------
    >>> print(equation_47(width=1e6, batch=5, inverse_norm=2.5, distortion=1).round(6))
    0.002098
    """
    d, n, inverse, gamma = _gathered(width, batch, inverse_norm, star, distortion)
    scale = 3 * _squared_epsilon(d, n, inverse, gamma)
    bound = np.minimum(scale * (1 - np.log(np.minimum(scale / n, 1))), 1)
    return np.where(scale < n, bound, 1.0)[()]


def one_step_total_variation(
    *,
    width: ArrayLike,
    batch: ArrayLike,
    rows: ArrayLike = 1,
    inverse_norm: ArrayLike | None = None,
    star: Star | ArrayLike | None = None,
    distortion: ArrayLike | Distortion,
) -> Result:
    r"""Bound the total variation of `rows` rows of h and of h′: what Lemma 11 can say.

    For h and h′ of `lemma_11`, and ``R = nγ²‖G*⁻¹‖``, it is

    .. math:: \min\Bigl\{1, \tfrac32 \sqrt{\mathrm{rows} \cdot n (R − 1) / d}\Bigr\}.

    Parameters
    ----------
    width, batch, inverse_norm, star, distortion : array_like
        See the module.
    rows : array_like, default 1
        How many of the d rows are looked at, >= 1.

    Returns
    -------
    float or ndarray of float64

    Notes
    -----
    *Proof.* Given h, rows of h′ are independent N(0, G). By convexity the distance is at most ``E
    TV(N(0, G*)^rows, N(0, G)^rows)``, so at most ``(3/2) √rows E‖G*^{−½}GG*^{−½} − I‖_F``
    (`bnmc.bounds.gaussian.total_variation`); the expectation is at most ``√(n(R−1)/d)`` by Jensen's
    inequality and the proof of `gram_concentration`.

    A few rows forget that G is not G*, at the rate d^{−½}. All of them do not: as R >= n, the bound
    is 1 for rows = d and n >= 2, at every width, and Lemma 11 has no such version.

    Examples
    --------
    >>> one_step_total_variation(
    ...     width=10_000, batch=5, rows=[1, 10, 10_000], inverse_norm=2.5, distortion=1
    ... ).round(4)
    array([0.1137, 0.3597, 1.    ])
    """
    d, n, inverse, gamma, count = _gathered(width, batch, inverse_norm, star, distortion, rows=rows)
    variance = n * (_largest_square(n, inverse, gamma) - 1)
    return np.minimum(1.5 * np.sqrt(count * variance / d), 1)[()]


def lemma_12(
    *,
    depth: ArrayLike,
    width: ArrayLike,
    batch: ArrayLike,
    alpha: ArrayLike,
    inverse_norm: ArrayLike | None = None,
    star: Star | ArrayLike | None = None,
    distortion: ArrayLike | Distortion,
    constant: ArrayLike = 1.0,
) -> Result:
    r"""Lemma 12, eq. (48): how far the law of h_l is from Gaussian rows with covariance G*.

    "Define candidate distribution μ_C for h_C by drawing its rows from N(0, G*). We have

    .. math:: ‖μ_l − μ_C‖_{tv} \le e^{−lα} + ε^2

    where μ_l denotes law of h_l, and with ε was defined in Lemma 5."

    Parameters
    ----------
    depth, width, batch, alpha, inverse_norm, star, distortion, constant : array_like
        See the module; `constant` is that of Lemma 5.

    Returns
    -------
    float or ndarray of float64
        Capped at 1.

    Notes
    -----
    (49) ends with ``e^{−α}``; ``e^{−lα}`` is meant. Its proof takes ``‖μ_C − μ*‖ <= ε²`` from Lemma
    5, which bounds ``‖T(μ_C) − μ_C‖``; by (15) it would be ``ε²/α``. As Lemma 5 is false, so is
    this: ``‖μ_C − μ*‖`` is at least half of ``‖T(μ_C) − μ_C‖``, which does not vanish with d.

    Examples
    --------
    >>> bound = lemma_12(
    ...     depth=40, width=10_000, batch=5, alpha=0.39, inverse_norm=2.5, distortion=1
    ... )
    >>> print(bound.round(6))
    0.00625
    """
    d, n, inverse, gamma, layers, rate, factor = _gathered(
        width, batch, inverse_norm, star, distortion, depth=depth, alpha=alpha, constant=constant
    )
    squared = factor * _squared_epsilon(d, n, inverse, gamma)
    return np.minimum(np.exp(-layers * rate) + squared, 1)[()]


def equation_19(C1: ArrayLike, C2: ArrayLike) -> tuple[Result, Result]:
    r"""Eq. (19): bounds of the total variation of N(0, C1) and N(0, C2), as printed.

    .. math:: "\frac{1}{100} \le \frac{‖μ_X − μ_Y‖_{tv}}{\sum_i λ_i^2} \le \frac32, \quad
              X ∼ N(C_1), Y ∼ N(C_2), where λ_i s are eigenvalues of C_1^{−1}C_2 − I_n."

    Parameters
    ----------
    C1, C2 : (..., n, n) array_like
        Covariances, C1 regular; the leading axes broadcast.

    Returns
    -------
    lower, upper : float or (...) ndarray of float64
        ``Σλ_i²/100`` and ``3Σλ_i²/2``, not capped.

    Notes
    -----
    The theorem of Devroye, Mehrabian and Reddad has ``min{1, (Σλ_i²)^½}`` in the denominator
    (`bnmc.bounds.gaussian.total_variation`). As printed, the upper bound is false where the λ_i are
    small, since the distance is of first order in them, and the lower one where Σλ_i² > 100.

    Examples
    --------
    >>> lower, upper = equation_19([[1.0]], [[1.1]])
    >>> print(lower.round(9), upper.round(9))
    0.0001 0.015
    """
    with np.errstate(over="ignore"):
        squared = np.square(spectral_deviation(C1, C2))
        return squared / 100, 1.5 * squared


# --- arguments and formulas in common

# Inclusive.  The formulas stay within float64 for all arguments in these ranges.
_SMALLEST, _LARGEST = 1e-30, 1e30

_RANGES: dict[str, tuple[float, float]] = {
    "depth": (0, _LARGEST),
    "width": (1, _LARGEST),
    "batch": (1, _LARGEST),
    "rows": (1, _LARGEST),
    "t": (0, _LARGEST),
    "alpha": (_SMALLEST, 1),
    "condition": (1, _LARGEST),
    "total_variation": (0, 1),
}


def _checked(**given: ArrayLike) -> list[Float64Array]:
    """The arguments as float64 arrays of one shape, within `_RANGES` or positive."""
    arrays = {
        name: finite_array(name, value, shape=(...,)).astype(np.float64)
        for name, value in given.items()
    }
    for name, array in arrays.items():
        low, high = _RANGES.get(name, (_SMALLEST, _LARGEST))
        wrong = (array < low) | (array > high)
        if wrong.any():
            raise ArgumentError(
                name, float(array[wrong][0]), f"real numbers >= {low:g} and <= {high:g}"
            )
    return list(broadcast(**arrays))


def _gathered(
    width: ArrayLike,
    batch: ArrayLike,
    inverse_norm: ArrayLike | None,
    star: Star | ArrayLike | None,
    distortion: ArrayLike | Distortion,
    **others: ArrayLike,
) -> list[Float64Array]:
    """Width, batch, ‖G*⁻¹‖ and γ, checked, and the others after them."""
    inverse = _from_star("inverse_norm", inverse_norm, star, batch, lambda low, _: 1 / low)
    gamma = distortion.upper if isinstance(distortion, Distortion) else distortion
    return _checked(width=width, batch=batch, inverse_norm=inverse, distortion=gamma, **others)


def _from_star(
    name: str,
    given: ArrayLike | None,
    star: Star | ArrayLike | None,
    batch: ArrayLike,
    function: Callable[[float, float], float],
) -> ArrayLike:
    """What is given, or else the function of the extreme eigenvalues of G*."""
    if given is not None and star is None:
        return given
    if given is not None or star is None:
        raise ArgumentTypeError(name, given, "a real number or an array, or star in its place")
    n, low, high = _extremes(star)
    if (finite_array("batch", batch, shape=(...,)) != n).any():
        raise ArgumentError("batch", batch, f"{n}, that of star")
    return function(low, high)


def _extremes(star: Star | ArrayLike) -> tuple[int, float, float]:
    """Batch, smallest and largest eigenvalue of a regular G*."""
    if isinstance(star, Star):
        n = star.batch
        low, high = sorted((star.b * (1 - star.c), star.b * (1 + (n - 1) * star.c)))
        rounding = max(star.error, EPS)
    else:
        array = finite_array("star", star, shape=("n", "n"))
        n, rounding = len(array), float(np.finfo(array.dtype).eps)
        low, high = gram.eigenvalues(gram.validate_gram(array, "star"))[[0, -1]].tolist()
    if low <= n * rounding * high:
        raise SingularGramError("star", (), low / high if high else 0.0)
    return n, low, high


def _bulk(star: Star | ArrayLike) -> tuple[int, float]:
    """Batch and ``b (1 − c)``, the mean of the diagonal less that of the rest."""
    n, _, _ = _extremes(star)
    if isinstance(star, Star):
        return n, star.b * (1 - star.c)
    matrix = np.asarray(star, np.float64)
    if n < 2:
        raise ArgumentError("star", matrix.shape, "a matrix of at least 2 rows")
    diagonal = float(np.trace(matrix))
    return n, diagonal / n - (float(matrix.sum()) - diagonal) / (n * (n - 1))


def _squared_epsilon(
    d: Float64Array, n: Float64Array, inverse: Float64Array, gamma: Float64Array
) -> Float64Array:
    return n**2 * gamma**2 * inverse / d


def _largest_square(n: Float64Array, inverse: Float64Array, gamma: Float64Array) -> Float64Array:
    """R, the bound of ‖C^{−½}σ‖², which cannot be below its mean n but by rounding."""
    return np.maximum(n * gamma**2 * inverse, n)


def _radius(
    layers: Float64Array, rate: Float64Array, t: Float64Array, epsilon: Float64Array
) -> Float64Array:
    """``t (e^{−αl/2} + ε ln 1/ε)``, infinite where ε >= 1."""
    stationary = epsilon * -np.log(np.minimum(epsilon, 1))
    radius = t * (np.exp(-rate * layers / 2) + stationary)
    return np.where(epsilon < 1, radius, np.inf)


def _inverse_square(t: Float64Array, factor: float | Float64Array = 1.0) -> Result:
    """``min(1, factor / t²)``."""
    above_one = t > np.sqrt(factor)
    probability: Float64Array = np.where(above_one, factor / np.where(above_one, t, 1) ** 2, 1.0)
    return probability[()]
