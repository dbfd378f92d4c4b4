"""Jumps and singular derivatives of an activation, and E σ′(x)² near them.

At a point s, let σ change by d(h) between the distances h and 2h.  By the Cauchy-Schwarz inequality
∫ σ′² from h to 2h is at least d(h)²/h.  So E σ′² is infinite if d(h)²/h does not decrease as
h → 0: at a jump, or where σ − σ(s) is like |x−s|^p with p ≤ 1/2.  For 1/2 < p < 1, σ′ is singular
but square integrable: panels that shrink towards s by the factor 2 resolve it, and a geometric
series bounds the rest.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from bnmc.mean_field.float64 import EPSILON, FloatArray
from bnmc.mean_field.quadrature.panels import gauss_legendre, panel_points
from bnmc.mean_field.quadrature.resolution import Function, evaluate

__all__ = ["Singularity", "explosive", "singularities"]

# Distances from a point: from _LARGEST downwards by factors of 2, to _LEAST_ULPS units in the last
# place of the point; at 0, to _LEAST.
_LARGEST, _LEAST_ULPS, _LEAST = 2.0**-4, 64.0, 1e-280

# Changes count if they exceed the rounding error of the values by this factor.
_SIGNIFICANT = 1e4

# The trend of d(h)²/h is taken over this many distances.
_WINDOW = 12

# d(h)²/h is like h^exponent, with the exponent 1 at a corner.  Below _REGULAR the derivative is
# singular; at most _DIVERGENT (0 to rounding) its square is not integrable.
_REGULAR, _DIVERGENT = 0.95, 1e-9

# A jump: over the factor 64 of distances, the change across the point keeps this share.
_JUMP_SHARE = 0.8

# Singular points closer than this are one.
_SAME = 1e-8

# Nodes per panel.
_ORDER = 24


@dataclass(frozen=True)
class Singularity:
    """A point at which σ′ is infinite but square integrable.

    Attributes
    ----------
    point : float
    low, high : float
        The two panels next to the point, together.
    energy : float
        ∫ σ′² from `low` to `high`.
    error : float
        Bound of the error of `energy`.
    change : float
        Sum of the changes of σ over both panels.
    """

    point: float
    low: float
    high: float
    energy: float
    error: float
    change: float


def explosive(function: Function, breaks: FloatArray) -> FloatArray:
    """Return the points at which ∫ σ′² is infinite; `breaks` are the panels of σ from `resolve`."""
    points = breaks[1:-1]
    if points.size == 0:
        return points
    # Jumps, at all points at once.
    distance = _LEAST_ULPS * np.maximum(np.spacing(np.abs(points)), EPSILON**2)
    steps = distance[:, None] * 2.0 ** np.arange(7.0)
    right = evaluate(function, points[:, None] + steps)
    left = evaluate(function, points[:, None] - steps)
    change = np.abs(right - left)
    noise = _SIGNIFICANT * EPSILON * np.maximum(np.abs(right), np.abs(left)).max(axis=1)
    jumps = (change[:, 0] > noise) & (change.min(axis=1) > _JUMP_SHARE * change.max(axis=1))
    rough = [
        point
        for point in _shrinking(breaks)
        if any(
            trend is not None and trend.exponent <= _DIVERGENT for trend in _trends(function, point)
        )
    ]
    return np.union1d(points[jumps], rough)


def singularities(function: Function, breaks: FloatArray) -> list[Singularity]:
    """Return the points at which σ′ is infinite; E σ′² must be finite (see `explosive`)."""
    found = []
    for point in _shrinking(breaks):
        trends = _trends(function, point)
        if not any(trend is not None and trend.exponent < _REGULAR for trend in trends):
            continue
        index = int(np.searchsorted(breaks, point))
        low, high = float(breaks[index - 1]), float(breaks[index + 1])
        energy = error = change = 0.0
        for trend, end in zip(trends, (low, high), strict=True):
            some, moved = _energy(function, _graded(point, end))
            energy, change = energy + some, change + moved
            if trend is not None:
                shrink = 2.0 ** -max(trend.exponent, _DIVERGENT)
                error += 4.0 * trend.last * shrink / (1.0 - shrink)
        found.append(Singularity(point, low, high, energy, error, change))
    # Ends of panels very near a singular point look singular as well.
    kept: list[Singularity] = []
    for spot in sorted(found, key=lambda one: -one.error):
        if all(abs(spot.point - other.point) > _SAME for other in kept):
            kept.append(spot)
    return kept


def _shrinking(breaks: FloatArray) -> list[float]:
    """Return the ends of panels that are much shorter than others, or declared singular."""
    length = np.diff(breaks)
    short = length < 1e-6 * length.max()
    return [float(x) for x in breaks[1:-1][short[1:] | short[:-1]]]


@dataclass(frozen=True)
class _Trend:
    """d(h)²/h at the smallest distance at which it is known, and its exponent in h."""

    last: float
    exponent: float


def _trends(function: Function, point: float) -> tuple[_Trend | None, _Trend | None]:
    """Return the trends left and right of a point; None if σ does not change there."""
    least = _LEAST if point == 0.0 else _LEAST_ULPS * float(np.spacing(abs(point)))
    count = int(math.log2(_LARGEST / least))
    distance = _LARGEST * 2.0 ** -np.arange(count + 1.0)
    trends: list[_Trend | None] = []
    for sign in (-1.0, 1.0):
        values = evaluate(function, point + sign * distance)
        change, size = np.abs(np.diff(values)), np.abs(values[1:])
        with np.errstate(over="ignore", divide="ignore"):
            energy = change**2 / distance[1:]
            # Squares must not underflow.
            valid = (change > _SIGNIFICANT * EPSILON * size) & (change > 1e-150)
        last = int(np.flatnonzero(valid)[-1]) if valid.any() else -1
        if last < _WINDOW or not valid[last - _WINDOW : last + 1].all():
            trends.append(None)
            continue
        exponent = -math.log2(energy[last] / energy[last - _WINDOW]) / _WINDOW
        trends.append(_Trend(float(energy[last]), exponent))
    return trends[0], trends[1]


def _graded(point: float, end: float) -> FloatArray:
    """Return panels that shrink from `end` towards a point."""
    least = _LEAST if point == 0.0 else _LEAST_ULPS * float(np.spacing(abs(point)))
    count = max(0, int(math.log2(abs(end - point) / least)))
    steps = (end - point) * 2.0 ** -np.arange(count + 1.0)
    return np.sort(np.append(point + steps, point))


def _energy(function: Function, edges: FloatArray) -> tuple[float, float]:
    """Return ∫ σ′² over panels, and the change of σ over all of them."""
    nodes, weights, _, differentiate = gauss_legendre(_ORDER)
    points, half = panel_points(edges, nodes)
    values = evaluate(function, points)
    slopes = values @ differentiate.T / half
    change = float(np.ptp(values))
    return float(np.sum(half * weights * slopes**2)), change
