"""The statements of Joudaki, Daneshmand and Bach on mean field and finite width, as functions.

The paper is *On bridging the gap between mean field and finite width in deep random neural networks
with batch normalization* (arXiv 2205.13076), with its poster. Its chain is `bnmc.Chain` with norm
"batch". G_l is the Gram matrix of layer l, and G* is the stable fixed point of the
mean-field map. Each function carries the number of its statement and returns the printed bound. Its
notes list the errors of the paper. `gram_concentration` and `one_step_total_variation` are provable
versions of Lemmas 9 and 11. `distortion` computes γ.

Arguments are keywords, real numbers or arrays, and broadcast:

============== ====================================================================================
depth          layer l >= 0
width, batch   d >= 1, n >= 1
alpha          α of Assumption 1, in (0, 1]
t              size of the deviation in units of the bound, >= 0
inverse_norm   ``‖G*⁻¹‖ > 0``, the inverse of the smallest eigenvalue of G*
star           in place of `inverse_norm`, one G*: an (n, n) matrix, or a mean-field `FixedPoint`
distortion     γ > 0 of (10), or a `Distortion`, whose upper bound is used
constant       absolute constant behind ≲, ≳ or O(·), > 0; the paper does not give its value
============== ====================================================================================

Results are float64, a scalar for scalars. Probabilities and total variation distances are capped
at 1. If the ε of ``ε ln 1/ε`` is at least 1, the statement is vacuous and the radius infinite.

All functions raise `ArgumentError` or `ArgumentTypeError` for an argument that lies outside its
range or does not broadcast, and `SingularGramError` for a singular `star`.

Assumption 1 (geometric ergodicity) is that the chain has a unique stationary law μ* and ``‖μ_l −
μ*‖_tv <= (1−α)^l ‖μ_0 − μ*‖_tv`` "holds almost surely for all h_0". Here μ_l is the law of the
pre-activation h_l. Every statement with an `alpha` rests on this assumption, and

- No α holds for all starts. Equal samples stay equal. Hence for n >= 3 and continuous σ, a start
  with nearly equal samples stays far from μ* for arbitrarily many layers. Read α as a constant of
  the start.
- α depends on n. In the limit of large width, 1 − rate of the fixed point takes its place. For relu
  it is

  ====== === === === ===
  n        5  10  20 100
  1−rate .39 .21 .11 .02
  ====== === === === ===

  The stationary parts of (8), (9), (11), (17) and (18) lack the power of α that they should have
  (see `theorem_3`).
- The proof uses Lemmas 10 to 12. Lemmas 11 and 12 are false, and Lemma 10 is not proved (see their
  notes). With an absolute constant, Theorem 3 is false too. With a constant that depends on σ, n
  and the start, the theorems are supported by simulation only.

``ε ln 1/ε`` increases with ε up to ε = 1/e and decreases to 0 at ε = 1. A bound with ε > 1/e is
therefore smaller than the bound of a wider network, and should not be used.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from bnmc import gram
from bnmc._support.arguments import Float64Array, Reals, broadcast, finite_array, real_numbers
from bnmc._support.arithmetic import make_public
from bnmc._support.linalg import EPS, binary_scale, require_finite, rounding_unit
from bnmc._support.text import Result
from bnmc.bounds.activation_distortion import Distortion, distortion
from bnmc.bounds.gaussian import spectral_deviation
from bnmc.errors import ArgumentError, ArgumentTypeError, SingularGramError

__all__ = [
    "corollary_2",
    "corollary_4",
    "corollary_6",
    "corollary_7",
    "corollary_8",
    "distortion",
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

_Result = np.float64 | Float64Array

#: Inclusive limits of positive arguments. Within them, no formula overflows float64.
_SMALLEST, _LARGEST = 1e-30, 1e30

#: Inclusive ranges of the arguments that are not simply in [_SMALLEST, _LARGEST].
_RANGES = {
    **dict.fromkeys(("depth", "t"), (0, _LARGEST)),
    **dict.fromkeys(("width", "batch", "rows", "condition"), (1, _LARGEST)),
    "alpha": (_SMALLEST, 1),
    "total_variation": (0, 1),
}


@runtime_checkable
class _FixedPointLike(Protocol):
    """The attributes of a `bnmc.mean_field.FixedPoint` that define ``G* = b ((1−c) I + c 11ᵀ)``."""

    batch: int
    b: float
    c: float
    error: float


#: G*: a mean-field fixed point or a matrix.
_Star = _FixedPointLike | Reals


# --- theorems 1 and 3, their corollaries, eq. (6), and the poster's theorem


@dataclass(frozen=True, eq=False)
class Concentration(Result):
    """``P{deviation >= radius} <= probability``.

    Attributes
    ----------
    radius : float or ndarray of float64
        Non-negative. If the statement is vacuous, infinite.
    probability : float or ndarray of float64
        Of the same shape, in [0, 1].
    """

    radius: _Result
    probability: _Result


@dataclass(frozen=True, eq=False)
class Bulk(Result):
    """An interval that contains all eigenvalues of G_l but one, for all layers from `depth` on.

    Attributes
    ----------
    lower, upper : float or ndarray of float64
        Ends of the interval.
    depth : float or ndarray of float64
        First layer of the statement.
    """

    lower: _Result
    upper: _Result
    depth: _Result


def equation_6(*, depth: Reals, width: Reals, batch: Reals) -> _Result:
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
    layers, d, n = _checked(**locals())
    with np.errstate(over="ignore"):
        return np.exp(1.5 * n * layers / d)[()]


def theorem_1(
    *,
    depth: Reals,
    width: Reals,
    batch: Reals,
    alpha: Reals,
    t: Reals,
    inverse_norm: Reals | None = None,
    star: _Star | None = None,
    constant: Reals = 1.0,
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
    scale, d, _, layers, rate, t_, factor = _scaled(distortion=1.0, **locals())
    radius = factor * _radius(layers, rate, t_, np.sqrt(scale / d))
    return Concentration(radius[()], _inverse_square(t_))


def corollary_2(
    *,
    depth: Reals,
    width: Reals,
    batch: Reals,
    alpha: Reals,
    t: Reals,
    inverse_norm: Reals | None = None,
    star: _Star | None = None,
    constant: Reals = 1.0,
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
    return theorem_1(**locals())


def theorem_3(
    *,
    depth: Reals,
    width: Reals,
    batch: Reals,
    alpha: Reals,
    t: Reals,
    inverse_norm: Reals | None = None,
    star: _Star | None = None,
    distortion: Reals | Distortion,
    constant: Reals = 1.0,
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
    scale, d, _, layers, rate, t_, factor = _scaled(**locals())
    radius = _radius(layers, rate, t_, np.sqrt(scale / d))
    return Concentration(radius[()], _inverse_square(t_, factor))


def corollary_4(
    *,
    width: Reals,
    batch: Reals,
    t: Reals,
    inverse_norm: Reals | None = None,
    star: _Star | None = None,
    distortion: Reals | Distortion,
    constant: Reals = 1.0,
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
    scale, d, _, t_, factor = _scaled(**locals())
    return Concentration((t_ * np.sqrt(scale / d))[()], _inverse_square(t_, factor))


def corollary_6(
    *, depth: Reals, width: Reals, batch: Reals, alpha: Reals, t: Reals, constant: Reals = 1.0
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
    return theorem_1(inverse_norm=1.0, **locals())


def corollary_7(
    *, depth: Reals, width: Reals, batch: Reals, alpha: Reals, t: Reals, constant: Reals = 1.0
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
    return corollary_6(**locals())


def corollary_8(
    *, width: Reals, alpha: Reals, star: _Star, constant: Reals = 1.0, depth_constant: Reals = 1.0
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
    n, _, _, level = _spectrum(star)
    if n < 2:
        raise ArgumentError("star", (n, n), "a matrix of at least 2 rows")
    d, rate, factor, depth_factor = _checked(
        width=width, alpha=alpha, constant=constant, depth_constant=depth_constant
    )
    half_width = factor * np.sqrt(n / d)
    with np.errstate(over="ignore"):  # raises below, by name
        lower, upper = level * (1 - half_width), level * (1 + half_width)
    require_finite("star", np.asarray(level), lower, upper)
    return Bulk(lower[()], upper[()], (depth_factor * np.log(d / rate))[()])


def poster_theorem(
    *,
    depth: Reals,
    width: Reals,
    batch: Reals,
    alpha: Reals,
    condition: Reals | None = None,
    star: _Star | None = None,
    constant: Reals = 1.0,
) -> _Result:
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
    kappa = _from_star("condition", condition, star, batch)
    layers, d, n, rate, kappa, factor = _checked(
        depth=depth, width=width, batch=batch, alpha=alpha, condition=kappa, constant=constant
    )
    logarithm = np.log(np.maximum(d / n, 1))
    radius = factor * (kappa * (1 - rate) ** (layers / 2) + n * np.sqrt(logarithm / (rate * d)))
    return np.where(d > n, radius, np.inf)[()]


# --- the lemmas, eq. (19) and (47), and provable versions of Lemmas 9 and 11


def lemma_5(
    *,
    width: Reals,
    batch: Reals,
    inverse_norm: Reals | None = None,
    star: _Star | None = None,
    distortion: Reals | Distortion,
    constant: Reals = 1.0,
) -> _Result:
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
    scale, d, _, factor = _scaled(**locals())
    return np.minimum(factor * scale / d, 1)[()]


def lemma_9(
    *,
    width: Reals,
    batch: Reals,
    t: Reals,
    inverse_norm: Reals | None = None,
    star: _Star | None = None,
    distortion: Reals | Distortion,
) -> _Result:
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
    scale, d, n, t_ = _scaled(**locals())
    return np.minimum(n * np.exp(-(t_ * d / 2) / (scale * (1 + np.sqrt(t_ / n)))), 1)[()]


def gram_concentration(
    *,
    width: Reals,
    batch: Reals,
    t: Reals,
    inverse_norm: Reals | None = None,
    star: _Star | None = None,
    distortion: Reals | Distortion,
) -> _Result:
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
    scale, d, n, t_ = _scaled(**locals())
    scale = np.maximum(scale, n**2)  # R >= n, but for rounding
    positive = np.maximum(t_, _SMALLEST**2)
    markov = (scale - n) / (d * positive)
    spread = scale - n + np.sqrt(positive / n) * scale / 3
    bernstein = 2 * n * np.exp(-(positive * d / 2) / spread)
    bound = np.minimum(np.minimum(markov, bernstein), 1)
    return np.where(t_ > 0, bound, 1.0)[()]


def lemma_10(*, t: Reals, total_variation: Reals) -> _Result:
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
    t_, distance = _checked(**locals())
    with np.errstate(over="ignore"):
        quotient = 100 * distance / np.where(t_ > 0, t_, 1)
    return np.where(t_ > 0, np.minimum(quotient, 1), 1.0)[()]


def lemma_11(
    *,
    width: Reals,
    batch: Reals,
    inverse_norm: Reals | None = None,
    star: _Star | None = None,
    distortion: Reals | Distortion,
) -> _Result:
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
    scale, d, _ = _scaled(**locals())
    tripled = 3 * scale / d
    return np.where(tripled < 1, tripled * -np.log(np.minimum(tripled, 1)), 1.0)[()]


def equation_47(
    *,
    width: Reals,
    batch: Reals,
    inverse_norm: Reals | None = None,
    star: _Star | None = None,
    distortion: Reals | Distortion,
) -> _Result:
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
    scale, d, n = _scaled(**locals())
    tripled = 3 * scale / d
    bound = np.minimum(tripled * (1 - np.log(np.minimum(tripled / n, 1))), 1)
    return np.where(tripled < n, bound, 1.0)[()]


def one_step_total_variation(
    *,
    width: Reals,
    batch: Reals,
    rows: Reals = 1,
    inverse_norm: Reals | None = None,
    star: _Star | None = None,
    distortion: Reals | Distortion,
) -> _Result:
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
    scale, d, n, count = _scaled(**locals())
    variance = np.maximum(scale, n**2) - n  # R >= n, but for rounding
    return np.minimum(1.5 * np.sqrt(count * variance / d), 1)[()]


def lemma_12(
    *,
    depth: Reals,
    width: Reals,
    batch: Reals,
    alpha: Reals,
    inverse_norm: Reals | None = None,
    star: _Star | None = None,
    distortion: Reals | Distortion,
    constant: Reals = 1.0,
) -> _Result:
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
    scale, d, _, layers, rate, factor = _scaled(**locals())
    return np.minimum(np.exp(-layers * rate) + factor * scale / d, 1)[()]


def equation_19(C1: Reals, C2: Reals) -> tuple[_Result, _Result]:
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
        ``Σλ_i²/100`` and ``3Σλ_i²/2``, not capped. If Σλ_i² exceeds float64, infinite.

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


# --- arguments that the statements share, and the formulas of ε and R


def _checked(**given: Reals) -> list[Float64Array]:
    """Return the arguments as float64 arrays of one shape.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If an argument is not an array of real numbers in its range, or they do not broadcast.
    """
    arrays = {}
    for name, value in given.items():
        low, high = _RANGES.get(name, (_SMALLEST, _LARGEST))
        arrays[name] = real_numbers(name, value, low=low, high=high)
    return list(broadcast(**arrays))


def _scaled(
    width: Reals, batch: Reals, inverse_norm: Any, star: Any, distortion: Any, **others: Reals
) -> list[Float64Array]:
    """Return ``n² γ² ‖G*⁻¹‖``, d, n, and then the others, all checked and of one shape.

    The first number is ``d ε²``, and n R for the ``R = n γ² ‖C⁻¹‖`` of `gram_concentration`.
    """
    inverse = _from_star("inverse_norm", inverse_norm, star, batch)
    gamma = distortion.upper if isinstance(distortion, Distortion) else distortion
    d, n, inverse, gamma, *rest = _checked(
        width=width, batch=batch, inverse_norm=inverse, distortion=gamma, **others
    )
    return [n**2 * gamma**2 * inverse, d, n, *rest]


def _from_star(name: str, given: Reals | None, star: _Star | None, batch: Reals) -> Reals:
    """Return the argument `name` if it is given, else its value by the eigenvalues of `star`.

    The size of G* must be `batch`.  Exactly one of `given` and `star` must be there.
    """
    if given is not None and star is None:
        return given
    if given is not None or star is None:
        raise ArgumentTypeError(name, given, "a real number or an array, or star in its place")
    n, low, high, _ = _spectrum(star)
    if (finite_array("batch", batch, shape=(...,)) != n).any():
        raise ArgumentError("batch", batch, f"{n}, that of star")
    return {"inverse_norm": 1 / low, "condition": high / low}[name]


def _spectrum(star: _Star) -> tuple[int, float, float, float]:
    """Return the size of a regular G*, its extreme eigenvalues, and ``b (1 − c)``.

    For a matrix, ``b (1 − c)`` is the mean diagonal entry less the mean of the other entries.
    """
    if isinstance(star, _FixedPointLike):
        n, level, rounding = star.batch, star.b * (1 - star.c), max(star.error, EPS)
        low, high = sorted((level, star.b * (1 + (n - 1) * star.c)))
    else:
        array = finite_array("star", star, shape=("n", "n"))
        matrix, rounding = gram.validate_gram(array, "star"), rounding_unit(array)
        scale = float(binary_scale(matrix))
        scaled = matrix / scale
        n, diagonal = len(matrix), float(np.trace(scaled))
        level = scale * (n * diagonal - float(scaled.sum())) / (n * max(n - 1, 1))
        low, high = gram.eigenvalues(matrix)[[0, -1]].tolist()
    if low <= n * rounding * high:
        raise SingularGramError("star", (), low / high if high else 0.0)
    return n, low, high, level


def _radius(
    layers: Float64Array, rate: Float64Array, t: Float64Array, epsilon: Float64Array
) -> Float64Array:
    """Return ``t (e^{−αl/2} + ε ln 1/ε)``, infinite if ε >= 1."""
    stationary = epsilon * -np.log(np.minimum(epsilon, 1))
    radius = t * (np.exp(-rate * layers / 2) + stationary)
    return np.where(epsilon < 1, radius, np.inf)


def _inverse_square(t: Float64Array, factor: float | Float64Array = 1.0) -> _Result:
    """Return ``min(1, factor / t²)``."""
    above_one = t > np.sqrt(factor)
    return np.where(above_one, factor / np.where(above_one, t, 1) ** 2, 1.0)[()]


make_public(__name__)
