"""Errors of expectations that a comparison of two quadratures on the same panels does not show.

They come from the range of integration, and from polynomials in place of the activation.  `profile`
has a third source, singular derivatives.

**Range.**  The law of a coordinate x of a sphere is cut off where its density is 1e-40
(`sphere.reach`).  For an activation σ that grows fast, most of E σ(x)² may lie beyond: for exp(4x)
it is at x = 8.  `range_of` samples the integrand σ² (1+x²)² times the density far beyond the cut,
moves the cut to where the rest is negligible, and bounds the rest.

**Polynomials.**  Gauss-Legendre rules integrate the polynomials through their nodes.  `deviation`
compares the activation with these at the nodes of another rule, the double-exponential one, whose
nodes cluster at the ends of panels, down to distances of 1e-16.  So the error includes the effect
of ends of panels that are not exactly at a kink, of features between the nodes, and of the rounding
error of the activation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.polynomial import legendre
from scipy.special import xlog1py

from bnmc.mean_field.float64 import EPSILON, FloatArray
from bnmc.mean_field.quadrature.panels import gauss_legendre, panel_points, power_of_cosine
from bnmc.mean_field.quadrature.resolution import Function, evaluate
from bnmc.mean_field.quadrature.sphere import reach

# --- range of integration

_INFINITE = "it grows so fast that its mean square is infinite for a standard normal variable"

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

    allowed = "a function with a fixed point"


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
            # A bound of the integral over the points.
            with np.errstate(over="ignore"):
                tail += 4.0 * float(np.sum(np.exp(integrand[cut:-1]) * np.diff(x[cut:])))
    if limit > most and not least > most:
        limit, tail = most, math.inf
    return Range(limit, tail)


def density(x: FloatArray, dimension: float) -> FloatArray:
    """Return the density of a coordinate of the sphere of radius √m in m ≥ 3 dimensions."""
    with np.errstate(divide="ignore"):
        return np.exp(_log_density(x, dimension))


def _log_density(x: FloatArray, dimension: float) -> FloatArray:
    """Return the logarithm of the density of a coordinate."""
    m, constant = dimension, -0.5 * math.log(2.0 * math.pi)
    if m == math.inf:
        return constant - 0.5 * x * x
    if m < 1e6:
        constant = math.lgamma(0.5 * m) - math.lgamma(0.5 * (m - 1.0)) - 0.5 * math.log(math.pi * m)
    power = xlog1py(0.5 * (m - 3.0), -np.minimum(x * x / m, 1.0))
    return np.asarray(constant + power, dtype=np.float64)


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


# --- deviation from polynomials

# Nodes per panel of the polynomials.
_ORDER = 32

# Nodes of the double-exponential rule on either side of the middle, and the end of its variable.
_HALF_NODES, _END = 36, 3.2

# The root of the probability of the tail, at most 1e-38, times what another coordinate may add.
_TAIL_SHARE = 1e-15

# Relative rounding error of the sums and of the densities of the quadratures.
_ROUNDING = 16.0 * EPSILON

# The derivative of a polynomial of degree k < 24 on a panel of length h is at most 2k²/h times its
# largest value (Markov's inequality).  By integration by parts, the integral of its product with a
# smooth function is at most _BY_PARTS times the largest values.
_MARKOV, _BY_PARTS = 2.0 * 23.0**2, 6.0


@dataclass(frozen=True)
class Deviation:
    """Expectations of the deviation η = σ(x) − p(x), p the polynomials on panels.

    x is a coordinate of a sphere, y another one, and σ̃ = σ − E σ.

    Attributes
    ----------
    mean_square : float
        E σ², from the double-exponential rule.
    variance : float
        E σ̃², from that rule.
    square : float
        Bound of |E σ² − E p²|.
    mean : float
        Bound of |E σ − E p|, rounding included.
    product : float
        Bound of the error of E σ̃(x)² f and E σ̃(x)σ̃(y) f, for factors |f| ≤ 1 + x² (and y).
    slope : float
        Bound of |E σ′² − E p′²|.
    mixed_slope : float
        Bound of the error of E σ′(x)σ′(y).
    """

    mean_square: float
    variance: float
    square: float
    mean: float
    product: float
    slope: float
    mixed_slope: float


def deviation(
    function: Function,
    breaks: FloatArray,
    dimension: float,
    tail: float,
    ignored: list[tuple[float, float]],
) -> Deviation:
    """Return the deviation of a function from the polynomials on its panels.

    Parameters
    ----------
    function : callable
        Maps a float64 array elementwise.
    breaks : ndarray of float64
        Its panels, from `resolve`.
    dimension : float
        m ≥ 2, the dimension of the space that contains the sphere of radius √m, or ``inf``.
    tail : float
        Bound of E σ² (1+x²)² beyond the panels.
    ignored : list of (float, float)
        Intervals that do not count in `slope`.
    """
    fraction, share = _double_exponential()
    edges = breaks
    if dimension < math.inf:
        edges = np.arcsin(np.clip(breaks / math.sqrt(dimension), -1.0, 1.0))
    length = np.diff(edges)[:, None]
    point = _points(edges, fraction)
    if dimension == math.inf:
        x, weight = point, length * share * np.exp(-0.5 * point**2)
    else:
        x = math.sqrt(dimension) * np.sin(point)
        weight = length * share * power_of_cosine(point, dimension - 2.0)
    weight = weight / weight.sum()
    x = np.clip(x, *_inside(breaks))
    value, eta, at, at_nodes = _compared(function, breaks, x)

    mean = float(np.sum(weight * value))
    factor = 1.0 + x * x
    centred = np.abs(value - mean)
    pure = float(np.sum(weight * centred * eta * factor))
    second = float(np.sum(weight * (eta * factor) ** 2)) + tail
    size = math.sqrt(float(np.sum(weight * (centred * factor) ** 2)))
    cross = math.sqrt(float(np.sum(weight * (eta * factor) ** 2))) * size
    largest = float(np.sum(weight * eta * factor)) * float((centred * factor).max())
    product = (
        2.0 * pure + 2.0 * min(cross, largest) + 2.0 * _TAIL_SHARE * math.sqrt(tail) * size + second
    )
    first = float(np.sum(weight * eta))
    slope, mixed = _slope_errors(breaks, at, at_nodes, eta.max(axis=1), dimension, ignored)
    mean_square = float(np.sum(weight * value**2))
    return Deviation(
        mean_square=mean_square,
        variance=float(np.sum(weight * centred**2)),
        square=2.0 * float(np.sum(weight * np.abs(value) * eta)) + second,
        # The density is below 1e-38 beyond the panels.
        mean=first + 1e-19 * math.sqrt(tail) + _ROUNDING * float(np.sum(weight * np.abs(value))),
        product=product,
        slope=slope,
        mixed_slope=mixed,
    )


def largest_deviation(function: Function, breaks: FloatArray) -> float:
    """Return the largest deviation of a function from the polynomials on its panels.

    Deviations on panels shorter than 1e-6 count times the length of the panel.
    """
    x = np.clip(_points(breaks, _double_exponential()[0]), *_inside(breaks))
    length = np.diff(breaks)
    share = np.where(length < 1e-6, length, 1.0)
    return float((_compared(function, breaks, x)[1].max(axis=1) * share).max())


def _slope_errors(
    breaks: FloatArray,
    nodes: FloatArray,
    values: FloatArray,
    eta: FloatArray,
    dimension: float,
    ignored: list[tuple[float, float]],
) -> tuple[float, float]:
    """Return the errors of E σ′² and E σ′σ′ that belong to the deviations on the panels."""
    if dimension <= 2:
        return 0.0, 0.0
    length = np.diff(breaks)
    steepest = np.abs(np.diff(values, axis=1) / np.diff(nodes, axis=1)).max(axis=1)
    counted = np.ones(length.size, dtype=bool)
    for low, high in ignored:
        counted &= (breaks[1:] <= low) | (breaks[:-1] >= high)
    far = np.abs(breaks)
    nearest = np.where(breaks[:-1] * breaks[1:] < 0.0, 0.0, np.minimum(far[:-1], far[1:]))
    weight = np.where(counted, density(nearest, dimension), 0.0)
    error = weight * _BY_PARTS * eta
    second = weight * (_MARKOV * eta) ** 2 / length
    most = float(np.max(steepest, initial=0.0, where=counted))
    mixed = 2.0 * most * float(np.sum(error * (1.0 + nearest**2)))
    return float(np.sum(2.0 * steepest * error + second)), mixed


def _points(edges: FloatArray, fraction: FloatArray) -> FloatArray:
    """Return the points at fractions of each panel, shape (panels, fractions).

    They are computed from the nearer end, so that points near the ends have no rounding error.
    """
    length = np.diff(edges)[:, None]
    near = np.where(fraction < 0.5, edges[:-1, None], edges[1:, None])
    return np.asarray(near + length * np.where(fraction < 0.5, fraction, -fraction[::-1]))


def _inside(breaks: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the first and the last number inside each panel."""
    low, high = breaks[:-1, None], breaks[1:, None]
    return np.nextafter(low, high), np.nextafter(high, low)


def _compared(
    function: Function, breaks: FloatArray, x: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Return values at points of each panel, and their distances from the polynomials.

    Also the Gauss-Legendre nodes of the panels, and the values there.
    """
    rule = gauss_legendre(_ORDER)
    nodes, half = panel_points(breaks, rule.nodes)
    at_nodes, value = evaluate(function, nodes), evaluate(function, x)
    basis = legendre.legvander((x - breaks[:-1, None]) / half - 1.0, _ORDER - 1)
    expected = np.einsum("pxk,pk->px", basis, at_nodes @ rule.to_coefficients.T)
    return value, np.abs(value - expected), nodes, at_nodes


def _double_exponential() -> tuple[FloatArray, FloatArray]:
    """Return nodes in (0, 1) and weights of the double-exponential rule."""
    step = _END / _HALF_NODES
    t = step * np.arange(-_HALF_NODES, _HALF_NODES + 1)
    fraction = 1.0 / (1.0 + np.exp(-math.pi * np.sinh(t)))
    return fraction, step * math.pi * np.cosh(t) * fraction * fraction[::-1]
