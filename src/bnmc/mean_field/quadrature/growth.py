"""How far to integrate: the range of a coordinate, given how fast the activation grows.

The law of a coordinate x of a sphere is cut off where its density is 1e-40 (`sphere.reach`).  For
an activation σ that grows fast, most of E σ(x)² may lie beyond: for exp(4x) it is at x = 8.
`range_of` samples the integrand σ² (1+x²)² times the density far beyond the cut, moves the cut to
where the rest is negligible, and bounds the rest.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from bnmc.mean_field.float64 import FloatArray
from bnmc.mean_field.quadrature.resolution import Function, evaluate
from bnmc.mean_field.quadrature.sphere import reach

_INFINITE = "it grows so fast that its mean square is infinite for a standard normal variable"

__all__ = ["InfiniteMomentError", "Range", "range_of"]

# The rest beyond the range, relative to the integrand at its maximum, is at most exp(_NEGLIGIBLE).
_NEGLIGIBLE = -70.0

# The integrand is sampled at this distance up to _NEAR, then at points that grow by 2 % up to _FAR.
# At _NEAR the normal density is 1e-781, so no float64 number counts there any more; how σ grows
# beyond decides whether the expectation is finite.
_STEP, _NEAR, _FAR = 0.125, 60.0, 1e18

# If the third derivative of log|σ|, relative to log|σ| and in units of x, exceeds _CUBIC, σ grows
# faster than exp(x²).  If the exponent of σ² times the normal density is a x² with |a| ≤ _FLAT,
# powers of x decide.
_CUBIC, _FLAT = 1e-2, 1e-2

# The logarithm of the largest |σ| whose square, times powers of x, is a float64 number.
_OVERFLOW = math.log(1e150)


class InfiniteMomentError(ArithmeticError):
    """E σ(x)² is infinite."""


class Range(NamedTuple):
    """The range of integration and what it leaves out.

    Attributes
    ----------
    limit : float
        The range is [−limit, limit].
    tail : float
        Upper bound of the part of E σ(x)² (1+x²)² beyond the range; ``inf`` if σ exceeds 1e150, so
        that its square overflows, before the integrand decays.
    """

    limit: float
    tail: float


def range_of(function: Function, dimension: float) -> Range:
    """Return the range of integration for an activation and a coordinate of a sphere.

    Parameters
    ----------
    function : callable
        Maps a float64 array elementwise.
    dimension : float
        m ≥ 1, the dimension of the space that contains the sphere of radius √m, an integer or
        ``inf``.

    Raises
    ------
    InfiniteMomentError
        If m is infinite and σ grows so fast that E σ(x)² is infinite.

    Notes
    -----
    Values of σ between and beyond the sampled points are assumed to continue the growth that the
    samples show.  If σ is not finite at a point where the density is below 1e-40, without having
    grown towards it, σ counts as 0 beyond that point.
    """
    least, edge = reach(dimension), math.sqrt(dimension)
    if not least < edge * (1.0 - 1e-9):
        return Range(least, 0.0)
    far = np.geomspace(_NEAR, _FAR, 1 + math.ceil(math.log(_FAR / _NEAR) / 0.02))
    x = np.concatenate([np.arange(0.0, _NEAR, _STEP), far])
    x = x[x < edge * (1.0 - 1e-9)]
    density = _log_density(x, dimension)
    limit, most, tail = least, edge, 0.0
    for sign in (1.0, -1.0):
        with np.errstate(all="ignore"):
            size = np.log(np.abs(evaluate(function, sign * x)))
        finite = (size < _OVERFLOW) & ~np.isnan(size)
        count = x.size if finite.all() else int(np.argmin(finite))
        if count < x.size:
            most = min(most, float(x[max(count - 1, 0)]))
        integrand = np.full(x.size, -np.inf)
        integrand[:count] = 2.0 * size[:count] + density[:count]
        if not integrand.max() > -np.inf:
            continue  # zero, or not finite near 0, which `resolve` reports
        if count < x.size and size[count - 1] > 0.25 * _OVERFLOW:
            integrand[count:] = _continued(x, size, density, count, dimension)
        integrand += 4.0 * np.log1p(x)
        heavy = np.flatnonzero(integrand > integrand[:count].max() + _NEGLIGIBLE)
        cut = min(int(heavy[-1]) + 1, count - 1)
        limit = max(limit, float(x[cut]))
        if heavy[-1] >= count and not integrand[count - 1] < integrand[count - 2]:
            tail = math.inf
        else:
            tail += _mass(x[cut:], integrand[cut:])
    if limit > most and not least > most:
        limit, tail = most, math.inf
    return Range(limit, tail)


def _log_density(x: FloatArray, dimension: float) -> FloatArray:
    """Return the logarithm of the density of a coordinate."""
    if dimension == math.inf:
        return np.asarray(-0.5 * x * x - 0.5 * math.log(2.0 * math.pi))
    m = dimension
    constant = (
        math.lgamma(0.5 * m) - math.lgamma(0.5 * (m - 1.0)) - 0.5 * math.log(math.pi * m)
        if m < 1e6
        else -0.5 * math.log(2.0 * math.pi)
    )
    return np.asarray(0.5 * (m - 3.0) * np.log1p(-x * x / m) + constant)


def _continued(
    x: FloatArray, size: FloatArray, density: FloatArray, count: int, dimension: float
) -> FloatArray:
    """Return log(σ² density) beyond the first `count` points, where σ overflows.

    Parameters
    ----------
    x, size, density : ndarray
        The points, and there log|σ| and the logarithm of the density.
    count : int
        Number of points at which σ is finite.
    dimension : float
        m.

    Raises
    ------
    InfiniteMomentError
        If m is infinite and the integrand does not decay.
    """
    # Derivatives of log|σ| by r = x/end − 1, from its last octave.
    end, last = x[count - 1], size[count - 1]
    near = np.unique(np.searchsorted(x[:count], end * np.linspace(0.55, 1.0, 12)))
    near = near[near < count]
    cubic, square, slope, _ = np.polyfit(x[near] / end - 1.0, size[near] - last, 3)
    rest = x[count:] / end - 1.0
    if cubic > _CUBIC * last and square > 0.0:  # like exp(x^q) with q > 2
        if dimension == math.inf:
            raise InfiniteMomentError(_INFINITE)
        return np.asarray(2.0 * last * (1.0 + rest) ** max(slope / last, 2.0) + density[count:])
    square = max(square, 0.0)
    if dimension < math.inf:
        return np.asarray(2.0 * (last + slope * rest + square * rest**2) + density[count:])
    # σ² times the normal density is about exp(curvature r² + tilt r).
    here = 2.0 * last + density[count - 1]
    curvature, tilt = 2.0 * square - 0.5 * end**2, 2.0 * slope - end**2
    if abs(curvature) <= _FLAT * end**2:
        # The quadratic terms cancel, but for a power of x: only powers below −1 are integrable.
        if tilt >= -1.0:
            raise InfiniteMomentError(_INFINITE)
        return np.asarray(here + tilt * np.log1p(rest))
    if curvature > 0.0:
        if cubic > -_CUBIC * last:
            raise InfiniteMomentError(_INFINITE)
        return np.full(rest.size, np.inf)  # finite, but where σ overflows
    return np.asarray(here + curvature * rest**2 + tilt * rest)


def _mass(x: FloatArray, integrand: FloatArray) -> float:
    """Return a bound of the integral over the points, from the logarithm of the integrand."""
    with np.errstate(over="ignore"):
        return 4.0 * float(np.sum(np.exp(integrand[:-1]) * np.diff(x)))
