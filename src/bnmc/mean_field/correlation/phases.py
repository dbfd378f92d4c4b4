"""The phase of a network, from the fixed point of its variance."""

from __future__ import annotations

import math

import numpy as np

from bnmc.mean_field.correlation.correlation_points import LevelMap, correlation_points
from bnmc.mean_field.correlation.layer import PairLayer
from bnmc.mean_field.correlation.results import Phase
from bnmc.mean_field.correlation.variance import SMALLEST, gradient_at_zero
from bnmc.mean_field.float64 import EPSILON

__all__ = ["phase_of"]

# The limit of infinite variance is evaluated here.
_LARGE = 1e12

# Slopes of σ left and right of 0 that differ by less than this part are equal.
_SAME = 1e-6


def phase_of(
    layer: PairLayer, variance: float, at: LevelMap | None, tolerance: float
) -> tuple[Phase, float]:
    """Return the phase, and the error of its least accurate number.

    Parameters
    ----------
    layer : PairLayer
    variance : float
        The attractor of the variance, possibly 0 or ``inf``.
    at : LevelMap or None
        Φ at that variance; None if it is 0 or ``inf``.
    tolerance : float
        Largest |χ − 1| of the critical phase.
    """
    if at is None:
        return _degenerate(layer, variance, tolerance)
    level = at.level
    gradient = level.gradient
    correlation: float | None = 1.0
    rate, error = gradient, 0.0
    if at.is_identity:
        correlation, rate = None, 1.0
    elif gradient > 1.0 + tolerance:
        points = correlation_points(at, gradient, tolerance)
        inner = next(point for point in points if point.stable)
        correlation, rate, error = inner.correlation, inner.slope, inner.error
    known = _gradient_error(layer, variance)
    found = Phase(
        name=_name(gradient, tolerance),
        variance=variance,
        variance_rate=level.variance_slope,
        correlation=correlation,
        correlation_rate=rate,
        gradient_factor=gradient,
        error=known,
    )
    return found, max(error, known)


def _name(gradient: float, tolerance: float) -> str:
    if abs(gradient - 1.0) <= tolerance:
        return "critical"
    return "ordered" if gradient < 1.0 else "chaotic"


def _gradient_error(layer: PairLayer, variance: float) -> float:
    """Return the error of χ: that of its moments, and that of the fixed point it is taken at."""
    level = layer.level(variance)
    if not math.isfinite(level.gradient):
        return 0.0
    known = level.gradient_error * level.gradient
    if not (layer.fixes_variance or layer.is_scale_free):
        # A change of q by its error changes χ by the difference quotient over 1 %, about.
        shift = (level.error + 4.0 * EPSILON) * variance
        escape = max(abs(1.0 - level.variance_slope), math.sqrt(shift / variance))
        change = layer.rough_level(1.01 * variance).gradient - level.gradient
        known += 2.0 * abs(change) / (0.01 * variance) * shift / escape
    return known / max(1.0, level.gradient)


def _degenerate(layer: PairLayer, variance: float, tolerance: float) -> tuple[Phase, float]:
    """Return the phase of a network whose variance tends to 0 or to infinity."""
    probe = SMALLEST if variance == 0.0 else _LARGE
    if layer.is_scale_free:
        gradient, rate, error = layer.scale_rate, layer.scale_rate, 4.0 * EPSILON
    else:
        gradient, rate, error = _limits(layer, probe)
    bias_wins = variance == math.inf and gradient <= 1.0 + tolerance and layer.bias_variance > 0.0
    bent = _is_bent(layer, math.sqrt(probe)) or bias_wins
    found = Phase(
        name=_name(gradient, tolerance),
        variance=variance,
        variance_rate=rate,
        correlation=1.0 if bent else None,
        correlation_rate=1.0,
        gradient_factor=gradient,
        error=error,
    )
    return found, error


def _limits(layer: PairLayer, probe: float) -> tuple[float, float, float]:
    """Return the limits of χ and of the factor of the variance, and the error of χ.

    χ converges at least like the root of the distance from the limit, if it does.
    """
    level = layer.rough_level(probe)
    rate = level.following / probe
    if probe < 1.0:
        limit, error = gradient_at_zero(layer.function)
        share = layer.weight_variance * level.factor * level.inner.variance / probe
        gradient = layer.skip**2 * level.stream / probe + share * limit
        return gradient, gradient, error
    other = layer.rough_level(probe / 4.0)
    if not level.gradient < 1.5 * other.gradient:
        return math.inf, math.inf, 0.0
    error = 2.0 * abs(level.gradient - other.gradient) + 64.0 * EPSILON * level.gradient
    return level.gradient, rate, error / max(1.0, level.gradient)


def _is_bent(layer: PairLayer, x: float) -> bool:
    """Whether σ at the scale x is homogeneous of degree 1 with two different slopes."""
    with np.errstate(all="ignore"):
        points = np.array([x, -x, 2.0 * x, -2.0 * x])
        right, left, *twice = np.asarray(layer.function.value(points), dtype=np.float64) / x
    if not np.isfinite([right, left, *twice]).all():
        return False
    scale = max(abs(right), abs(left))
    straight = np.abs(twice - 2.0 * np.array([right, left])).max() <= _SAME * scale
    return bool(scale > 0.0 and straight and abs(right + left) > _SAME * scale)
