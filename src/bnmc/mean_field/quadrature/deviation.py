"""The deviation of an activation from the polynomials on its panels, as errors of expectations.

Gauss-Legendre rules integrate the polynomials through their nodes.  `deviation` compares the
activation with these at the nodes of another rule, the double-exponential one, whose nodes cluster
at the ends of panels, down to distances of 1e-16.  So the error includes the effect of ends of
panels that are not exactly at a kink, of features between the nodes, and of the rounding error of
the activation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.polynomial import legendre

from bnmc.mean_field.float64 import EPSILON, FloatArray
from bnmc.mean_field.quadrature.panels import gauss_legendre, panel_points, power_of_cosine
from bnmc.mean_field.quadrature.resolution import Function, evaluate

__all__ = ["Deviation", "density", "deviation", "largest_deviation"]

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
    edges = breaks if dimension == math.inf else np.arcsin(_sine(breaks, dimension))
    length = np.diff(edges)[:, None]
    point = _points(edges, fraction)
    if dimension == math.inf:
        x, weight = point, length * share * np.exp(-0.5 * point**2)
    else:
        x = math.sqrt(dimension) * np.sin(point)
        weight = length * share * power_of_cosine(point, dimension - 2.0)
    weight = weight / weight.sum()
    x = np.clip(x, *_inside(breaks))
    at = panel_points(breaks, gauss_legendre(_ORDER).nodes)[0]
    known = evaluate(function, at)
    value, eta = _compared(function, breaks, x, known)

    mean = float(np.sum(weight * value))
    factor = 1.0 + x * x
    centred = np.abs(value - mean)
    own = float(np.sum(weight * centred * eta * factor))
    second = float(np.sum(weight * (eta * factor) ** 2)) + tail
    size = math.sqrt(float(np.sum(weight * (centred * factor) ** 2)))
    cross = math.sqrt(float(np.sum(weight * (eta * factor) ** 2))) * size
    largest = float(np.sum(weight * eta * factor)) * float((centred * factor).max())
    product = (
        2.0 * own + 2.0 * min(cross, largest) + 2.0 * _TAIL_SHARE * math.sqrt(tail) * size + second
    )
    first = float(np.sum(weight * eta))
    slope, mixed = _slope_errors(breaks, at, known, eta.max(axis=1), dimension, ignored)
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
    known = evaluate(function, panel_points(breaks, gauss_legendre(_ORDER).nodes)[0])
    length = np.diff(breaks)
    share = np.where(length < 1e-6, length, 1.0)
    return float((_compared(function, breaks, x, known)[1].max(axis=1) * share).max())


def density(x: FloatArray, dimension: float) -> FloatArray:
    """Return the density of a coordinate of the sphere of radius √m in m ≥ 3 dimensions."""
    if dimension == math.inf or dimension > 1e6:
        return np.asarray(np.exp(-0.5 * x * x) / math.sqrt(2.0 * math.pi))
    m = dimension
    constant = math.lgamma(0.5 * m) - math.lgamma(0.5 * (m - 1.0)) - 0.5 * math.log(math.pi * m)
    inside = np.maximum(1.0 - x * x / m, 0.0)
    return np.asarray(math.exp(constant) * inside ** (0.5 * (m - 3.0)))


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
    nearest = np.where(
        breaks[:-1] * breaks[1:] < 0.0, 0.0, np.minimum(np.abs(breaks[:-1]), np.abs(breaks[1:]))
    )
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
    function: Function, breaks: FloatArray, x: FloatArray, known: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return values at points of each panel, and their distances from the polynomials.

    `known` has the values at the Gauss-Legendre nodes of the panels.
    """
    half = 0.5 * np.diff(breaks)[:, None]
    value = evaluate(function, x)
    basis = legendre.legvander((x - breaks[:-1, None]) / half - 1.0, _ORDER - 1)
    to_coefficients = gauss_legendre(_ORDER).to_coefficients
    expected = np.einsum("pxk,pk->px", basis, known @ to_coefficients.T)
    return value, np.abs(value - expected)


def _sine(breaks: FloatArray, dimension: float) -> FloatArray:
    return np.clip(breaks / math.sqrt(dimension), -1.0, 1.0)


def _double_exponential() -> tuple[FloatArray, FloatArray]:
    """Return nodes in (0, 1) and weights of the double-exponential rule."""
    step = _END / _HALF_NODES
    t = step * np.arange(-_HALF_NODES, _HALF_NODES + 1)
    fraction = 1.0 / (1.0 + np.exp(-math.pi * np.sinh(t)))
    return fraction, step * math.pi * np.cosh(t) * fraction * fraction[::-1]
