"""Fixed points of the variance map, and the one that a network is attracted to."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from bnmc.mean_field.correlation.functions import GaussianFunction, slopes_at_zero
from bnmc.mean_field.correlation.gaussian_moments import rough_moments
from bnmc.mean_field.correlation.layer import PairLayer
from bnmc.mean_field.correlation.results import VariancePoint
from bnmc.mean_field.float64 import EPSILON

__all__ = ["SMALLEST", "attractor", "gradient_at_zero", "roots", "variance_points"]

#: Variances between these are searched for fixed points; a smaller one counts as 0.
SMALLEST, _LARGEST = 1e-12, 1e12

# Points of the search per factor of 10.
_PER_DECADE = 8

# A factor per layer of a homogeneous activation that is this close to 1 is 1.
_ONE = 8.0 * EPSILON


def roots(function: Callable[[float], float], smallest: float = SMALLEST) -> list[float]:
    """Return the points from `smallest` to the largest variance where a function is 0.

    Two roots between neighbouring points of the search are not found.  The function may be infinite
    in places; where it jumps to infinity is no root.  Intervals with a NaN at an end are left out.
    """
    from scipy.optimize import brentq

    def at(logarithm: float) -> float:
        return function(math.exp(logarithm))

    ends = math.log(smallest), math.log(_LARGEST)
    count = round((ends[1] - ends[0]) / math.log(10.0) * _PER_DECADE)
    grid = np.linspace(*ends, count + 1).tolist()
    signs = [np.sign(at(point)) for point in grid]
    found = [point for point, sign in zip(grid, signs, strict=True) if sign == 0.0]
    for k in range(count):
        if signs[k] * signs[k + 1] < 0.0:
            low, high = _finite(at, grid[k], grid[k + 1])
            if math.isfinite(at(low)) and math.isfinite(at(high)):
                found.append(brentq(at, low, high, xtol=1e-15, rtol=1e-15))
    return [math.exp(point) for point in sorted(found)]


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
    found = [_point(layer, variance) for variance in roots(layer.growth)]
    least = layer.rough_level(SMALLEST)
    if layer.bias_variance == 0.0 and least.following < math.sqrt(SMALLEST):
        zero = VariancePoint(variance=0.0, slope=least.following / SMALLEST, error=0.0)
        found.insert(0, zero)
    return tuple(found)


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


def gradient_at_zero(function: GaussianFunction) -> tuple[float, float]:
    """Return the limit of E σ′(u)² for variances that tend to 0, and its relative error."""
    slopes = slopes_at_zero(function)
    if slopes is not None:
        return 0.5 * (slopes[0] ** 2 + slopes[1] ** 2), 4.0 * EPSILON
    found, other = (rough_moments(function, k * SMALLEST).gradient for k in (1.0, 4.0))
    # The gradient converges at least like √q, if it does.
    return found, 2.0 * abs(other / found - 1.0) + 64.0 * EPSILON if found > 0.0 else 0.0


def _point(layer: PairLayer, variance: float) -> VariancePoint:
    level = layer.level(variance)
    escape = abs(1.0 - level.variance_slope)
    error = (level.error + 4.0 * EPSILON) * max(level.following, variance)
    total = error / escape if escape > 0.0 else math.inf
    # Where the slope is 1 within the error, the root may be a double one.
    if escape < math.sqrt(EPSILON):
        total = math.inf
    return VariancePoint(
        variance=variance, slope=level.variance_slope, error=total / max(1.0, variance)
    )


def _finite(function: Callable[[float], float], low: float, high: float) -> tuple[float, float]:
    """Narrow an interval with different signs at its ends until both values are finite.

    An infinite value has a sign, but no chord.  At a jump one value stays infinite.
    """
    while math.isinf(function(low)) or math.isinf(function(high)):
        middle = 0.5 * (low + high)
        if not low < middle < high:
            break
        same = (function(middle) > 0.0) == (function(high) > 0.0)
        low, high = (low, middle) if same else (middle, high)
    return low, high
