"""Growth laws of residual networks over depth, and rates of isometry, at infinite width.

The rate of isometry says how fast inputs become orthogonal if a norm follows the activation.

Growth laws are those of pre-activation residual networks, h ← h + W σ(N(h)) + b.  Let q_l and c_l
be variance and correlation at layer l, a the growth of q per layer, and Φ the correlation map of a
layer without skip connection.  Then

    q_{l+1} = q_l + a,    c_{l+1} − c_l = a (Φ(c_l) − c_l) / q_{l+1}.

**With a norm**, the argument of σ has variance 1, so a and Φ are constant and q_l = q_0 + a l.  As
a function of ln l, correlations obey dc/d ln l = Φ(c) − c.  So they converge like powers of l;
without a skip connection they converge exponentially.  Per layer, squared gradients grow by the
factor 1 + σ_w² E σ′²/q_l, so they grow like l^χ with χ = Φ′(1).

**With a norm over the batch**, h ← s h + W σ(N(h)) + b, rows stay Gaussian and independent, and
their covariance obeys Σ_{l+1} = s² Σ_l + σ_w² F(Σ_l) + σ_b² 11ᵀ, F the map of `MeanField`.  From a
symmetric start F is G* = b*((1−c*) I + c* 11ᵀ) at all layers, so Σ is s^{2l} Σ_0 plus a geometric
sum.  Centred, its eigenvalue is μ_l, with the increment A = σ_w² b*(1−c*).  F does not see the
scale, so deviations δ of Σ obey δ_{l+1} = (s² + λ A/μ_l) δ_l with the eigenvalues λ of the Jacobian
of F, and squared gradients grow by s² + λ_b A/μ_l per layer, λ_b the backward rate.  If s = 1, then
A/μ_l is 1/l for large l; if |s| < 1, it tends to 1 − s²; if |s| > 1, it falls like s^(−2l).

**Without a norm** σ sees q_l, and its behaviour at infinity decides.  If σ is homogeneous there,
q grows by the factor 1 + κ per layer, κ = σ_w² (slope₊² + slope₋²)/2.  If σ has the limits σ(±∞),
it acts like a step: a = σ_w² (σ(∞)² + σ(−∞)²)/2 + σ_b², and

    Φ(c) = (σ_w² (m² + (2/π) s² arcsin c) + σ_b²)/a,    m, s = (σ(∞) ± σ(−∞))/2,

with corrections of relative order q^(−1/2).  Then E σ′(u)² is D/√q with D = ∫σ′²/√(2π), up to
q^(−3/2).  Let σ∞ be the step with the limits of σ, and T = ∫(σ∞² − σ²)/√(2π).  The normal density
of u near 0 is 1/√(2πq), so E σ(u)² = E σ∞² − T/√q + O(q^(−3/2)).  Therefore

    q_{l+1} = q_l + a − σ_w² T/√q_l,    q_l = a l − 2 σ_w² T √(l/a) + O(ln l),
    1/√q_l = (a l)^(−1/2) + σ_w² T/(a² l) + O(l^(−3/2) ln l).

Squared gradients grow by the factor 1 + σ_w² D/√q_l per layer.  Its logarithm is
σ_w² D/√q_l − σ_w⁴ D²/(2 q_l), up to terms whose sum over the layers converges.  So the gradient is

    C l^p exp(s √l),    s = 2 σ_w² D/√a,    p = σ_w⁴ (D T/a² − D²/(2a)).

For tanh with σ_w² = 1 and σ_b² = 0, a = 1, D = 4/(3√(2π)) and T = 2/√(2π): s = 1.064, p = .2829.
C depends on q_0, since it contains all layers.  If σ² approaches its limits like 1/|u|, T is
infinite, q_l has a term √l ln l, and the factor of the exponential is exp(const · (ln l)²) and no
power.

Near c = 1, 1 − Φ = δ − K δ^(3/2) with δ = 1 − c for homogeneous σ with slopes of different size,
K = (4√2/(3π)) β²/(α² + β²), α and β half the sum and half the difference of the slopes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from bnmc._support.arguments import real
from bnmc._support.text import Result
from bnmc.chain.activations import Activation, ActivationLike, as_activation
from bnmc.chain.chain import Chain
from bnmc.chain.norms import Norm, as_norm
from bnmc.errors import ArgumentError
from bnmc.mean_field.correlation.fixed_points import correlation_points
from bnmc.mean_field.correlation.gaussian_moments import Moments, moments
from bnmc.mean_field.correlation.layer import LEAST_VARIANCE, PairLayer, level_map, pair_layer
from bnmc.mean_field.fixed_point.symmetric import fixed_point
from bnmc.mean_field.float64 import FloatArray, roots, within


@dataclass(frozen=True, kw_only=True)
class IsometryRate(Result):
    """Rates of a network with layer normalization after σ; `isometry_rate` returns them.

    Attributes
    ----------
    beta : float
        β = 2 − Φ′(0), in [1, 2]: 1 for a linear activation.
    correlation_rate : float
        Φ′(0): small correlations shrink by this factor per layer.
    gap_rate : float
        Φ′(0)²: near the identity, the isometry gap shrinks by this factor per layer.
    escape_rate : float
        Φ′(1): the distance of nearly equal inputs, 1 − c, grows by this factor per layer.
    error : float
        Bound of the error of `beta`.

    Examples
    --------
    >>> from bnmc.mean_field import isometry_rate
    >>> tanh = isometry_rate("tanh")
    >>> round(tanh.beta, 6), round(tanh.gap_rate, 6)
    (1.06953, 0.865774)
    """

    beta: float
    correlation_rate: float
    gap_rate: float
    escape_rate: float
    error: float


def isometry_rate(
    activation: ActivationLike, *, variance: float = 1.0, rtol: float = 1e-8
) -> IsometryRate:
    """Rate at which the Gram matrix tends to a multiple of the identity, norm after activation.

    Parameters
    ----------
    activation : str, Activation or callable
        As in `CorrelationMap`.
    variance : float, default 1
        Variance of the pre-activations, σ_w² >= 1e-300.
    rtol : float, default 1e-8
        Largest acceptable error of β.

    Returns
    -------
    IsometryRate

    Raises
    ------
    ArgumentError, ArgumentTypeError, UnknownNameError
        If an argument is not allowed, or the activation is constant or has no finite mean square.
    PartialEstimateError
        If `rtol` is not reached; ``partial`` is the `IsometryRate`.

    Notes
    -----
    With the normalized Hermite coefficients c_k of z ↦ σ(√q z), the correlation map of
    ``h ← W N(σ(h))``, N layer normalization, is ``Φ(c) = Σ_{k≥1} c_k² c^k / Σ_{k≥1} c_k²``, so

        β = 2 − c_1² / Σ_{k≥1} c_k² = 2 − Φ′(0)

    (Joudaki, Daneshmand and Bach, arXiv 2305.18399, as in their code). The isometry gap of a Gram
    matrix G of n samples is ``ln(tr G/n) − ln(det G)/n``. For small correlations it is the sum of
    their squares over pairs, divided by n, to leading order.

    Examples
    --------
    >>> from bnmc.mean_field import isometry_rate
    >>> relu = isometry_rate("relu")
    >>> round(relu.beta, 6), round(relu.correlation_rate, 6), round(relu.escape_rate, 6)
    (1.266529, 0.733471, 1.466942)
    """
    layer = pair_layer(activation, "layer", "activation-norm")
    q = real("variance", variance, low=LEAST_VARIANCE)
    rtol = real("rtol", rtol, above=0.0)
    level = layer.level(q)
    slope = min(level.inner.first**2 * level.factor, 1.0)
    error = level.error * (1.0 + slope)
    result = IsometryRate(
        beta=2.0 - slope,
        correlation_rate=slope,
        gap_rate=slope**2,
        escape_rate=q * level.gradient,
        error=error,
    )
    return within(result, error, rtol, "β")


# --- growth laws

# σ at these points shows its behaviour at infinity, up to the relative difference _SAME.
_FAR, _FARTHER, _SAME = 1e6, 1e12, 1e-5

# |Φ′(1) − 1| up to this counts as 0.
_CRITICAL = 1e-9

# Variances q at which √q (E σ∞² − E σ²) is T, up to a power of q; and the largest error of p.
_LARGE, _ACCURATE = (1e8, 1e10, 1e12, 1e14), 1e-5


@dataclass(frozen=True, kw_only=True)
class GrowthLaw(Result):
    """The leading law of a quantity for large depth l.

    Attributes
    ----------
    kind : {"constant", "linear", "power", "logarithmic", "exponential", "stretched"}
        =============  ======================================
        kind           law
        =============  ======================================
        "constant"     a constant
        "linear"       coefficient · l
        "power"        coefficient · l^rate
        "logarithmic"  coefficient · (ln l)^rate
        "exponential"  coefficient · rate^l
        "stretched"    coefficient · l^power · exp(rate · √l)
        =============  ======================================
    rate : float
        0 for a constant, 1 for a linear law.
    coefficient : float or None
        None if it depends on the inputs.
    power : float or None
        Of "stretched" laws; 0 for others.  None if the logarithm of the quantity is known to
        ``rate · √l + o(√l)`` only: there may be no power.

    Examples
    --------
    >>> from bnmc.mean_field import residual_growth
    >>> law = residual_growth("relu", norm="layer").correlation
    >>> law.kind, law.rate, round(law.coefficient, 4)
    ('logarithmic', -2.0, 44.4132)
    """

    kind: str
    rate: float
    coefficient: float | None = None
    power: float | None = 0.0

    def __str__(self) -> str:
        """Return the law as a formula."""
        stretched = (
            f"exp({self.rate:.4g} √l + o(√l))"
            if self.power is None
            else f"l^{self.power:.4g} exp({self.rate:.4g} √l)"
        )
        law = {
            "constant": "constant",
            "linear": "l",
            "power": f"l^{self.rate:.4g}",
            "logarithmic": f"(ln l)^{self.rate:.4g}",
            "exponential": f"{self.rate:.6g}^l",
            "stretched": stretched,
        }[self.kind]
        return law if self.coefficient is None else f"{self.coefficient:.4g} {law}"


_CONSTANT = GrowthLaw(kind="constant", rate=0.0)


@dataclass(frozen=True, kw_only=True)
class ResidualGrowth(Result):
    """Growth laws of a residual network; `residual_growth` returns them.

    Attributes
    ----------
    variance : GrowthLaw
        q_l.
    limit : float or None
        The correlation that two inputs converge to; None if it depends on the inputs.
    correlation : GrowthLaw
        ``|c_l − limit|``; "constant" if `limit` is None.
    gradient : GrowthLaw
        The expected squared gradient norm at layer 0, divided by that at layer l.
    centred_variance : GrowthLaw or None
        Under the norm over the batch: the variance of a row within the batch, which the norm sees.

    Examples
    --------
    >>> from bnmc.mean_field import residual_growth
    >>> found = residual_growth("tanh")
    >>> str(found.variance), found.limit, str(found.correlation), str(found.gradient)
    ('1 l', 0.0, 'l^-0.3634', 'l^0.2829 exp(1.064 √l)')
    """

    variance: GrowthLaw
    limit: float | None
    correlation: GrowthLaw
    gradient: GrowthLaw
    centred_variance: GrowthLaw | None = None


def residual_growth(
    activation: ActivationLike,
    *,
    weight_variance: float = 1.0,
    bias_variance: float = 0.0,
    norm: str | Norm = "none",
    batch: int | None = None,
    skip: float = 1.0,
) -> ResidualGrowth:
    """Growth of variance, correlations and gradients in h ← s h + W σ(N(h)) + b, for large depth.

    Parameters
    ----------
    activation : str, Activation or callable
        As in `CorrelationMap`.
    weight_variance, bias_variance : float, default 1 and 0
        σ_w² in [1e-100, 1e100] and σ_b² >= 0.
    norm : {"none", "layer", "rms", "group", "batch"} or Norm
        Normalization in the branch.
    batch : int, optional
        Under the norm "batch": the batch size, at least 2.
    skip : float, default 1
        s, in [−1e100, 1e100]. Other values than 1 need the norm "batch": other chains then have
        fixed points, which `CorrelationMap` finds.

    Returns
    -------
    ResidualGrowth

    Raises
    ------
    ArgumentError, ArgumentTypeError, UnknownNameError
        If an argument is not allowed. Without norm, also if the activation neither has limits at
        ±∞ nor is asymptotically linear on both sides, like sin. With a norm over features, also if
        Φ′(1) is 1 and the activation is not homogeneous. With the norm over the batch, also if the
        symmetric fixed point of the branch is unstable.

    Notes
    -----
    The module derives the laws. Those without norm are those of Yang and Schoenholz (arXiv
    1712.08969): for relu, variance and gradients grow exponentially, and 1 − c decreases like
    l^(−2). If σ has limits at ±∞, q grows like a l, and gradients like ``C l^p exp(s √l)``. With
    D and T the integrals of σ′² and of ``σ(±∞)² − σ²`` over all numbers, over √(2π),

        a = σ_w² (σ(∞)² + σ(−∞)²)/2 + σ_b²,  s = 2 σ_w² D/√a,  p = σ_w⁴ (D T/a² − D²/(2a)).

    The paper has exp(s √l), without the power. `GrowthLaw.power` is p, with an error of at most
    1e-5, relative if it exceeds 1. It is None if σ² approaches its limits so slowly that p is less
    accurate, or, like ``1/|u|``, that T is infinite. If c* is not 0, corrections of order l^(−1/2)
    to the variance bound the exponent of correlations by 1/2; if T is infinite, they are larger by
    a power of l or ln l. The behaviour at infinity is read from σ(±10⁶) and σ(±10¹²).
    `CorrelationMap` with ``order="pre-activation"`` and ``skip=1`` has finite depths.

    Under the norm over the batch, G* = b*((1−c*) I + c* 11ᵀ), the rate λ and the backward rate λ_b
    are those of ``MeanField(Chain(width, batch, activation)).fixed_point()``. With skip 1 the
    variance grows like (σ_w² b* + σ_b²) l, and within the batch like σ_w² b*(1−c*)(1 − 1/n) l;
    gradients grow like l^λ_b, and correlations tend to those of σ_w² G* + σ_b² 11ᵀ like
    l^(max(λ, 0) − 1). De and Smith (arXiv 2002.10444) have the linear case.

    Examples
    --------
    >>> from bnmc.mean_field import residual_growth
    >>> relu = residual_growth("relu", weight_variance=2.0)
    >>> print(relu.variance, "|", relu.correlation, "|", relu.gradient)
    2^l | 177.7 l^-2 | 2^l
    >>> tanh = residual_growth("tanh", norm="layer")
    >>> print(tanh.variance, "|", tanh.limit, "|", tanh.correlation, "|", tanh.gradient)
    0.3943 l | 0.0 | l^-0.06953 | l^1.178
    >>> relu = residual_growth("relu", norm="batch", batch=64, weight_variance=2.0)
    >>> print(relu.variance, "|", relu.centred_variance, "|", relu.gradient)
    1 l | 0.6788 l | l^1.493
    """
    variances = {"weight_variance": weight_variance, "bias_variance": bias_variance}
    skip = real("skip", skip, low=-1e100, high=1e100)
    if as_norm(norm) == as_norm("batch"):
        return _of_batch(as_activation(activation), batch, skip, **variances)
    if batch is not None:
        raise ArgumentError("batch", batch, "None unless norm is 'batch'")
    if skip != 1.0:
        allowed = "1 unless norm is 'batch'; CorrelationMap has the fixed points of other chains"
        raise ArgumentError("skip", skip, allowed)
    layer = pair_layer(activation, norm, "pre-activation", **variances)
    return _normalized(layer) if layer.norm != "none" else _without_norm(layer)


def _normalized(layer: PairLayer) -> ResidualGrowth:
    """Return the laws with a norm in the branch, before σ."""
    at = level_map(layer, 1.0)
    level = at.level
    growth, gradient = level.following, level.gradient / level.following
    # Φ is that of a network without skip connection, whose variance is fixed after one layer.
    limit: float | None = None
    law = _CONSTANT
    if not at.is_identity and abs(gradient - 1.0) <= _CRITICAL:
        bend = _bend(*layer.sigma.slopes) if layer.sigma.slopes is not None else 0.0
        if bend == 0.0:
            allowed = "a variance off the edge of chaos for such an activation"
            raise ArgumentError("bias_variance", layer.bias_variance, allowed)
        limit, law = 1.0, GrowthLaw(kind="logarithmic", rate=-2.0, coefficient=4.0 / bend**2)
    elif not at.is_identity:
        point = next(point for point in correlation_points(at, _CRITICAL) if point.stable)
        limit, law = point.correlation, GrowthLaw(kind="power", rate=point.slope - 1.0)
    return ResidualGrowth(
        variance=GrowthLaw(kind="linear", rate=1.0, coefficient=growth),
        limit=limit,
        correlation=law,
        gradient=GrowthLaw(kind="power", rate=gradient),
    )


def _of_batch(
    activation: Activation, batch: int | None, skip: float, weight_variance: float,
    bias_variance: float,
) -> ResidualGrowth:  # fmt: skip
    """Return the laws with the norm over the batch in the branch."""
    if batch is None:
        raise ArgumentError("batch", None, "the batch size, an integer >= 2")
    w = real("weight_variance", weight_variance, low=LEAST_VARIANCE, high=1.0 / LEAST_VARIANCE)
    bias = real("bias_variance", bias_variance, low=0.0)
    point = fixed_point(Chain(1, batch, activation), 1e-8)
    if not point.stable:
        allowed = "an activation whose symmetric fixed point is stable at this batch size"
        raise ArgumentError("activation", activation.name, allowed, f"its rate is {point.rate:.4g}")
    growth, square = w * point.b + bias, skip * skip
    centred = w * point.b * (1.0 - point.c) * (1.0 - 1.0 / batch)
    fastest = max(0.0, *(np.real(value) for value in point.eigenvalues), 0.0)

    def law(coefficient: float) -> GrowthLaw:
        if square == 1.0:
            return GrowthLaw(kind="linear", rate=1.0, coefficient=coefficient)
        if square < 1.0:
            return GrowthLaw(kind="constant", rate=0.0, coefficient=coefficient / (1.0 - square))
        return GrowthLaw(kind="exponential", rate=square)

    def deviation(eigenvalue: float, power: float) -> GrowthLaw:
        if square == 1.0:
            return GrowthLaw(kind="power", rate=eigenvalue + power)
        if square < 1.0:
            factor = square + (1.0 - square) * eigenvalue
            return GrowthLaw(kind="exponential", rate=factor)
        return _CONSTANT if power else GrowthLaw(kind="exponential", rate=square)

    return ResidualGrowth(
        variance=law(growth),
        limit=(w * point.b * point.c + bias) / growth if square <= 1.0 else None,
        correlation=deviation(fastest, -1.0),
        gradient=deviation(point.backward_rate, 0.0),
        centred_variance=law(centred),
    )


def _homogeneous(layer: PairLayer, left: float, right: float) -> ResidualGrowth:
    """Return the laws without norm, for the slopes of σ at −∞ and ∞."""
    kappa = layer.weight_variance * 0.5 * (left * left + right * right)
    grows = GrowthLaw(kind="exponential", rate=1.0 + kappa)
    bend = _bend(left, right)
    if bend == 0.0:
        return ResidualGrowth(variance=grows, limit=None, correlation=_CONSTANT, gradient=grows)
    root = 2.0 * (1.0 + kappa) / (kappa * bend)
    law = GrowthLaw(kind="power", rate=-2.0, coefficient=root * root)
    return ResidualGrowth(variance=grows, limit=1.0, correlation=law, gradient=grows)


def _saturating(layer: PairLayer, left: float, right: float) -> ResidualGrowth:
    """Return the laws without norm, for the limits of σ at −∞ and ∞."""
    w, b = layer.weight_variance, layer.bias_variance
    growth = w * 0.5 * (left**2 + right**2) + b
    shift, size = 0.5 * (right + left), 0.5 * (right - left)
    steepness = w * (2.0 / math.pi) * size**2 / growth

    def excess(c: float) -> float:
        return (w * shift**2 + b) / growth + steepness * math.asin(c) - c

    limit = roots(excess, (0.0, 1.0 - 1e-12))[0]
    exponent = 1.0 - steepness / math.sqrt(1.0 - limit**2)
    if limit > 0.0:
        exponent = min(exponent, 0.5)
    at = [moments(layer.sigma, variance) for variance in _LARGE]
    density = w * math.sqrt(_LARGE[-1]) * at[-1].gradient
    lacking = 0.5 * (left**2 + right**2) - np.array([level.square for level in at])
    power = _power(w / growth * np.sqrt(_LARGE) * lacking, density, growth, at[-1])
    return ResidualGrowth(
        variance=GrowthLaw(kind="linear", rate=1.0, coefficient=growth),
        limit=limit,
        correlation=GrowthLaw(kind="power", rate=-exponent),
        gradient=GrowthLaw(kind="stretched", rate=2.0 * density / math.sqrt(growth), power=power),
    )


def _power(lacking: FloatArray, density: float, growth: float, at: Moments) -> float | None:
    """Return p from σ_w² T/a at the variances _LARGE, σ_w² D and a; None if it is inaccurate."""
    if math.isinf(density):
        return None
    powers = density * (lacking - 0.5 * density) / growth
    noise = math.sqrt(at.variance) * at.error + (abs(lacking[-1]) + density) * at.gradient_error
    noise *= density / growth
    coarse, power = _extrapolated(powers[:-1], noise), _extrapolated(powers[1:], noise)
    error = abs(power - coarse) + noise
    return power if error <= _ACCURATE * max(1.0, abs(power)) else None


def _extrapolated(values: FloatArray, noise: float) -> float:
    """Return the limit of a geometric sequence from three values; NaN if it has none.

    Changes up to `noise` are rounding.
    """
    first, second = np.diff(values).tolist()
    if abs(second) <= noise:
        return float(values[-1])
    if not abs(second) < abs(first):
        return math.nan
    return float(values[-1]) + second * second / (first - second)


def _bend(left: float, right: float) -> float:
    """Return K in 1 − Φ = δ − K δ^(3/2) of a homogeneous activation with these slopes."""
    size = max(abs(left), abs(right))
    a, b = left / size, right / size
    return 4.0 * math.sqrt(2.0) / (3.0 * math.pi) * 0.5 * (b - a) ** 2 / (a**2 + b**2)


def _without_norm(layer: PairLayer) -> ResidualGrowth:
    """Return the laws without norm, from the slopes or else the limits of σ at ±∞."""
    near, far = (np.array([-x, x]) for x in (_FAR, _FARTHER))
    with np.errstate(all="ignore"):
        values, farther = map(layer.sigma.function, (near, far))
    if np.isfinite(farther).all():
        slopes, same = farther / far, np.abs(farther / far - values / near)
        largest = np.abs(slopes).max()
        if largest * _FARTHER > 1.0 / _SAME and (same <= _SAME * largest).all():
            # A side with a limit has the slope 0.
            left, right = np.where(np.abs(slopes) > _SAME * largest, slopes, 0.0).tolist()
            return _homogeneous(layer, left, right)
        left, right = farther.tolist()
        size = max(abs(left), abs(right))
        constant = np.abs(farther - values).max() <= _SAME * size
        if size > 0.0 and constant and abs(right - left) > _SAME * size:
            return _saturating(layer, left, right)
    allowed = "an activation with two limits or two slopes at infinity, or a norm in the branch"
    raise ArgumentError("activation", layer.sigma.name, allowed)
