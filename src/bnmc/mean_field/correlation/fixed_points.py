"""Fixed points of the variance map, the one that a network is attracted to, and those of Φ.

Let Φ be the correlation map.  Φ(c) = Σ_k β_k c^k with β_k ≥ 0 and Σ_k β_k = 1 (Hermite series).  So
Φ is increasing and convex on [0, 1], and

    ψ(c) = (1 − Φ(c))/(1 − c) = Σ_j B_j c^j,    B_j = 1 − Σ_{k ≤ j} β_k,

increases from 1 − β_0 at c = 0 to Φ′(1) at c = 1.  Fixed points in [0, 1) solve ψ(c) = 1, so there
is none if Φ′(1) ≤ 1, and one if Φ′(1) > 1.  If all even β_k are 0, −c is a fixed point with c.  If
not, there is none in [−1, 0): let O and E be the odd and the even part of Φ; then
O(x) − E(x) − x < O(1) x − x ≤ 0 for x in (0, 1], so Φ(−x) > −x.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from bnmc._support.text import Result
from bnmc.mean_field.correlation.gaussian_moments import rough_moments
from bnmc.mean_field.correlation.layer import LevelMap, PairLayer
from bnmc.mean_field.duals.duals import Dual
from bnmc.mean_field.float64 import EPSILON, Function, roots

#: Variances between these are searched for fixed points; a smaller one counts as 0.
SMALLEST, _LARGEST = 1e-12, 1e12

# Points of the search per factor of 10.
_PER_DECADE = 8

# A number whose square is 0 beside the derivative of any usual function.
_NEAR_ZERO = 1e-30

# A factor per layer of a homogeneous activation that is this close to 1 is 1.
_ONE = 8.0 * EPSILON

# A slope of the variance map that is this close to 1 is 1: the growth is at an extremum.
_FLAT = math.sqrt(EPSILON)


@dataclass(frozen=True, kw_only=True)
class VariancePoint(Result):
    """A fixed point of the variance map; see `CorrelationMap.variance_fixed_points`.

    Attributes
    ----------
    variance : float
        q* ≥ 0, the variance of the pre-activations.
    slope : float
        The derivative of the variance map at q*: small deviations shrink by this factor per layer.
    error : float
        Bound of the error of q*, absolute below 1, relative above.  ``inf`` if the slope is 1
        within its error.

    Examples
    --------
    >>> from bnmc.mean_field import CorrelationMap
    >>> (point,) = CorrelationMap("tanh", bias_variance=0.1).variance_fixed_points()
    >>> round(point.variance, 6), round(point.slope, 6), point.stable
    (0.294985, 0.456487, True)
    """

    variance: float
    slope: float
    error: float

    @property
    def stable(self) -> bool:
        """Whether ``|slope| < 1``."""
        return abs(self.slope) < 1.0


@dataclass(frozen=True, kw_only=True)
class CorrelationPoint(Result):
    """A fixed point of the correlation map; see `CorrelationMap.fixed_points`.

    Attributes
    ----------
    correlation : float
        c*, in [−1, 1].
    slope : float
        Φ′(c*): small deviations shrink by this factor per layer.
    stable : bool
        Whether correlations near c* converge to c*: ``slope < 1``, or ``slope = 1`` at c* = 1,
        where they converge like a power of the depth.
    error : float
        Bound of the error of c*.

    Examples
    --------
    >>> from bnmc.mean_field import CorrelationMap
    >>> low, high = CorrelationMap("gelu", norm="layer").fixed_points()
    >>> round(low.correlation, 6), round(low.depth, 3), high.stable
    (0.760402, 14.359, False)
    """

    correlation: float
    slope: float
    stable: bool
    error: float

    @property
    def depth(self) -> float:
        """Depth scale ξ = −1/ln|Φ′(c*)|, in layers; ``inf`` if it is no attractor."""
        return depth_scale(self.slope)


def depth_scale(slope: float) -> float:
    """Return −1/ln|slope|, the layers in which deviations shrink by the factor e."""
    size = abs(slope)
    if size == 0.0:
        return 0.0
    return -1.0 / math.log(size) if size < 1.0 else math.inf


# --- the variance


def variance_roots(
    function: Function, smallest: float = SMALLEST, slope: Function | None = None
) -> list[float]:
    """Return the points from `smallest` to the largest variance where a function is 0.

    If its derivative `slope` is given, two roots between neighbouring points of the grid are found:
    the extremum between them becomes a point of the grid.
    """
    ends = math.log(smallest), math.log(_LARGEST)
    count = round((ends[1] - ends[0]) / math.log(10.0) * _PER_DECADE)
    grid = np.linspace(*ends, count + 1).tolist()
    if slope is not None:
        grid = sorted({*grid, *roots(lambda point: slope(math.exp(point)), grid)})
    return [math.exp(point) for point in roots(lambda point: function(math.exp(point)), grid)]


def variance_points(layer: PairLayer) -> tuple[VariancePoint, ...]:
    """Return the fixed points of the variance map, by increasing variance.

    If every variance is a fixed point (a homogeneous activation on its edge), return none.
    """
    if layer.is_scale_free:
        rate = layer.scale_rate
        if abs(rate - 1.0) <= _ONE:
            return ()
        if layer.bias_variance == 0.0:
            return (VariancePoint(variance=0.0, slope=rate, error=0.0),)
        if rate > 1.0:
            return ()
        variance = layer.bias_variance / (1.0 - rate)
        error = 4.0 * EPSILON / (1.0 - rate)
        return (VariancePoint(variance=variance, slope=rate, error=error * max(1.0, variance)),)
    if layer.fixes_variance:
        level = layer.level(1.0)
        error = level.error * max(1.0, level.following)
        return (VariancePoint(variance=level.following, slope=0.0, error=error),)

    def slope(variance: float) -> float:
        """Return the derivative of the growth; 0 where it is rounding."""
        excess = layer.rough_level(variance).variance_slope - 1.0
        return 0.0 if abs(excess) <= _FLAT else excess

    places = variance_roots(layer.growth, slope=slope)
    points = [_point(layer, variance) for variance in places]
    least = layer.rough_level(SMALLEST)
    if layer.bias_variance == 0.0 and least.following < math.sqrt(SMALLEST):
        zero = VariancePoint(variance=0.0, slope=least.following / SMALLEST, error=0.0)
        points.insert(0, zero)
    return _apart(layer, points)


def _apart(layer: PairLayer, points: list[VariancePoint]) -> tuple[VariancePoint, ...]:
    """Return one point where several cannot be told apart, and none at the largest variance.

    Where the map is the identity to rounding, as that of a function that is linear near 0 or beyond
    its scale, its rounding has any number of roots.
    """

    def is_rounding(variance: float) -> bool:
        return abs(layer.growth(variance)) <= _ONE * variance

    groups: list[list[VariancePoint]] = []
    for point in points:
        before = max(groups[-1][-1].variance, SMALLEST) if groups else math.nan
        if groups and is_rounding(math.sqrt(before * point.variance)):
            groups[-1].append(point)
        else:
            groups.append([point])
    if groups and groups[-1][0].variance > 0.0 and is_rounding(_LARGEST):
        groups.pop()
    return tuple(group[0] for group in groups)


def attractor(layer: PairLayer, start: float) -> float:
    """Return the fixed point that the variance goes to from `start`; ``inf`` if it diverges.

    The variance goes up or down to the next fixed point.  It does not oscillate:
    V(q) = ∫ σ(x)² exp(−x²/(2q)) dx/√(2πq), so d ln V/d ln q ≥ −1/2, and the slope of the map at a
    fixed point is at least −1/2.
    """
    if layer.is_scale_free and layer.scale_rate >= 1.0 - _ONE:
        constant = layer.scale_rate <= 1.0 + _ONE and layer.bias_variance == 0.0
        return start if constant else math.inf
    points = [point.variance for point in variance_points(layer)]
    if layer.fixes_variance or layer.is_scale_free:
        return points[0]
    if start in points:
        return start
    rises = layer.growth(start) > 0.0
    beyond = [point for point in points if (point > start) == rises]
    if not beyond:
        return math.inf if rises else 0.0
    return beyond[0] if rises else beyond[-1]


def gradient_at_zero(sigma: Dual) -> tuple[float, float]:
    """Return the limit of E σ′(u)² for variances that tend to 0, and its relative error."""
    derivative = sigma.function.derivative
    if derivative is not None:
        left, right = derivative(np.array([-_NEAR_ZERO, _NEAR_ZERO])).tolist()
        return 0.5 * (left**2 + right**2), 4.0 * EPSILON
    limit, other = (rough_moments(sigma, k * SMALLEST).gradient for k in (1.0, 4.0))
    # The gradient converges at least like √q, if it does.
    return limit, 2.0 * abs(other / limit - 1.0) + 64.0 * EPSILON if limit > 0.0 else 0.0


def _point(layer: PairLayer, variance: float) -> VariancePoint:
    level = layer.level(variance)
    escape = abs(1.0 - level.variance_slope)
    error = (level.error + 4.0 * EPSILON) * max(level.following, variance)
    total = error / escape if escape > 0.0 else math.inf
    # Where the slope is 1 within the error, the root may be a double one.
    if escape < _FLAT:
        total = math.inf
    return VariancePoint(
        variance=variance, slope=level.variance_slope, error=total / max(1.0, variance)
    )


# --- the correlation

# A part of Φ below this is rounding.
_ROUNDING = 1e-13


def correlation_points(at: LevelMap, atol: float) -> tuple[CorrelationPoint, ...]:
    """Return the fixed points of Φ, by increasing correlation.

    Parameters
    ----------
    at : LevelMap
        Φ, not the identity.
    atol : float
        Φ′(1) up to 1 + atol counts as at most 1.
    """
    gradient = at.slope_at(1.0)
    chaotic = gradient > 1.0 + atol
    top = CorrelationPoint(correlation=1.0, slope=gradient, stable=not chaotic, error=0.0)
    if not chaotic:
        return (top,)
    if at.image(0.0) <= _ROUNDING:  # β_0
        inner, error = 0.0, 0.0
    else:
        inner, error = _inner(at, gradient)
    slope = at.slope_at(inner)
    middle = CorrelationPoint(correlation=inner, slope=slope, stable=slope < 1.0, error=error)
    if inner == 0.0 and at.is_odd:
        low = CorrelationPoint(correlation=-1.0, slope=gradient, stable=False, error=0.0)
        return low, middle, top
    return middle, top


def _inner(at: LevelMap, gradient: float) -> tuple[float, float]:
    """Return the solution of ψ(c) = 1 in (0, 1), and a bound of its error."""
    series = at.shares()
    if series is None:
        return _of_closed_form(at)
    shares, noise = series
    tails = 1.0 - np.cumsum(shares)
    tails[tails < 0.0] = 0.0
    missing = gradient - float(tails.sum()) if math.isfinite(gradient) else math.inf
    terms = len(tails)

    def lower(c: float) -> float:
        return float(np.polynomial.polynomial.polyval(c, tails)) - 1.0

    def upper(c: float) -> float:
        # The tails decrease, so the terms that are left out are at most a geometric series.
        rest = min(max(missing, 0.0), float(tails[-1]) / (1.0 - c)) * c**terms
        return lower(c) + rest

    high, low = _root(lower), _root(upper)
    centre = 0.5 * (low + high)
    steepness = _steepness(lower, centre)
    return centre, 0.5 * (high - low) + (4.0 * noise / (1.0 - centre) + EPSILON) / steepness


def _of_closed_form(at: LevelMap) -> tuple[float, float]:
    def function(c: float) -> float:
        return (1.0 - at.image(c)) / (1.0 - c) - 1.0

    root = _root(function)
    noise = at.value(np.array([root]))[1]
    return root, (noise / (1.0 - root) + EPSILON) / _steepness(function, root)


def _root(function: Function) -> float:
    """Return the root of an increasing function on [0, 1)."""
    edge = 1.0 - 1e-9
    return (*roots(function, (0.0, edge), xtol=1e-16), edge)[0]


def _steepness(function: Function, c: float) -> float:
    """Return ψ′ near its root; ψ is convex, so a difference to the left is a lower bound."""
    step = 1e-3 * min(c, 1.0 - c)
    return max((function(c) - function(c - step)) / step, EPSILON)
