"""Expectations of one and two coordinates of a uniform point on a sphere, to double precision.

The mean field of a chain with batch normalization needs ``E f(x)`` and ``E f(x) g(y)`` where
``x`` and ``y`` are two correlated coordinates of a uniform point on a sphere of radius ``√m`` in
``m`` dimensions. Write ``x = √m sin a``; given ``a``,

    y = √m (ρ sin a + √(1−ρ²) cos a sin β),    a ~ cos(a)^(m−2),   β ~ cos(β)^(m−3)  on [−π/2, π/2].

In these angles every density is smooth, in all dimensions. What is not smooth is the function: a
user's activation has kinks. `resolve` cuts the line into panels on each of which the function is a
polynomial to rounding, kinks that nobody declared included; `sphere_rule` puts Gauss-Legendre nodes
on the panels of ``x``, and on the panels of ``y`` given ``x``. In infinite dimensions x and y are
standard normal and independent: `normal_rule`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.polynomial import legendre
from numpy.typing import NDArray

__all__ = [
    "FloatArray",
    "Function",
    "SphereRule",
    "UnresolvedError",
    "gauss_legendre",
    "jumps",
    "normal_rule",
    "reach",
    "resolve",
    "sphere_rule",
    "subdivided",
]


FloatArray = NDArray[np.float64]

Function = Callable[[FloatArray], FloatArray]

# Panels at most this wide resolve the Gaussian-like densities, whose scale is 1.
_WIDEST_PANEL = 1.5

# Weight that may be cut off, as a power of ten: out of sight for activations that grow like
# exp(|x|), and even like exp(x²/8).
_CUT_WEIGHT = -40.0

# A panel is resolved when the last Legendre coefficients have fallen to this share of the function.
_RESOLVED = 1e-13
_RESOLVE_ORDER = 20

# And it must foretell the function near the panel's ends, this far inside of them, this well.
_RIM, _RESOLVED_AT_RIM = 1e-9, 1e-12
_DEEPEST = 46
_MOST_PANELS = 400

# A panel halved this often is taken to sit on an undeclared kink.
_SUSPECT_DEPTH = 8

# In large dimensions, expectations given a coordinate are smooth functions of it: from the first
# of these dimensions on a few polynomials do, in the second it is one.
_SMOOTH_DIMENSION, _SMOOTH_SCALE = 64, 256

# Numbers that an array may have to stay in a cache of the second level with a few others.
_CACHED = 1 << 13

# Nodes a panel for derivatives, and what counts as a jump, as a share of the largest value.
_SLOPE_ORDER = 24
_JUMP = 1e-7

# Breakpoints closer than this share of the range are one.
_MERGE = 1e-14


class UnresolvedError(ArithmeticError):
    """A function that no reasonable number of panels resolves (noise, or ever faster waves)."""


@lru_cache(maxsize=8)
def gauss_legendre(order: int) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Nodes and weights on [−1, 1], nodal values → Legendre coefficients, and → derivatives."""
    nodes, weights = legendre.leggauss(order)
    values = legendre.legvander(nodes, order - 1)
    to_coefficients = (np.arange(order) + 0.5)[:, None] * values.T * weights
    slopes = np.stack(
        [legendre.legval(nodes, legendre.legder(row)) for row in np.eye(order)], axis=1
    )
    return nodes, weights, to_coefficients, slopes @ to_coefficients


def reach(dimension: float) -> float:
    """Where a coordinate of a uniform point on the sphere of radius ``√m`` has lost its weight.

    The largest ``x`` with ``(1 − x²/m)^((m−2)/2) ≥ 1e-40``; ``√m`` to rounding when ``m`` is small,
    about 13.6 when it is large or infinite.
    """
    if dimension <= 2:
        return float(np.sqrt(dimension))
    if dimension == np.inf:
        return float(np.sqrt(-2.0 * _CUT_WEIGHT * np.log(10.0)))
    exponent = 2.0 * _CUT_WEIGHT * np.log(10.0) / (dimension - 2)
    return float(np.sqrt(-dimension * np.expm1(exponent)))


def resolve(function: Function, limit: float, kinks: Iterable[float]) -> FloatArray:
    """Cut ``[−limit, limit]`` into panels on which a function is a polynomial to rounding.

    Parameters
    ----------
    function : callable
        Maps a float64 array elementwise.
    limit : float
        Half length of the interval.
    kinks : iterable of float
        Where the function or a derivative jumps; those outside of the interval are ignored, and
        those that are missing are found.

    Returns
    -------
    ndarray of float64
        Ends of the panels, increasing, from ``−limit`` to ``limit``.

    Raises
    ------
    UnresolvedError
        The function is not finite, or needs too many panels.
    """
    known = {float(kink) for kink in kinks if -limit < kink < limit}
    breaks, suspects = _bisect(function, _mesh(limit, known))
    if not suspects:
        return breaks
    # Panels that shrink onto a point betray a kink. With the point itself as a break, a kink
    # needs no small panels any more; a true singularity does, and then nothing is gained.
    retried, _ = _bisect(function, _mesh(limit, known | suspects))
    return retried if retried.size < breaks.size else breaks


def _mesh(limit: float, kinks: set[float]) -> FloatArray:
    # An odd number of panels, so that 0, where most kinks are, is not a break by accident:
    # a kink must be found (or declared), because the plane of x and y is split along it.
    count = 2 * int(np.ceil(limit / _WIDEST_PANEL - 0.5)) + 1
    return _merged(np.concatenate([np.linspace(-limit, limit, max(count, 1) + 1), sorted(kinks)]))


def _merged(points: FloatArray) -> FloatArray:
    """Sorted points, those within rounding of the one before them left out, the last one kept."""
    points = np.sort(points)
    keep = np.concatenate([[True], np.diff(points) > _MERGE * (points[-1] - points[0])])
    kept: FloatArray = points[keep]
    kept[-1] = points[-1]
    return kept


def _bisect(function: Function, mesh: FloatArray) -> tuple[FloatArray, set[float]]:
    """Halve panels until the function is resolved on each; the points onto which they shrink."""
    nodes, _, to_coefficients, _ = gauss_legendre(_RESOLVE_ORDER)
    # No node sees a kink between the last node and the end of a panel: look there as well.
    rim = np.array([-1.0, 1.0]) * (1.0 - _RIM)
    to_rim = legendre.legvander(rim, _RESOLVE_ORDER - 1) @ to_coefficients
    probes = np.concatenate([nodes, rim])
    low, high = mesh[:-1], mesh[1:]
    scale = float(
        np.abs(_evaluate(function, np.linspace(-1.0, 1.0, 33) * min(2.0, mesh[-1]))).max()
    )
    leaves: list[tuple[float, float, int]] = []
    for depth in range(_DEEPEST + 1):
        middle, half = 0.5 * (high + low), 0.5 * (high - low)
        probed = _evaluate(function, middle[:, None] + half[:, None] * probes)
        if not np.all(np.isfinite(probed)):
            raise UnresolvedError("the function is not finite everywhere")
        values, seen = probed[:, : nodes.size], probed[:, nodes.size :]
        tail = np.abs(values @ to_coefficients[-3:].T).max(axis=1)
        miss = np.abs(values @ to_rim.T - seen).max(axis=1)
        size = np.maximum(np.abs(values).max(axis=1), scale)
        done = (tail <= _RESOLVED * size) & (miss <= _RESOLVED_AT_RIM * size)
        if depth == _DEEPEST:
            done[:] = True
        leaves += [(float(a), float(b), depth) for a, b in zip(low[done], high[done], strict=True)]
        low, middle, high = low[~done], middle[~done], high[~done]
        if low.size == 0:
            break
        if len(leaves) + 2 * low.size > _MOST_PANELS:
            raise UnresolvedError(f"the function needs more than {_MOST_PANELS} panels")
        low, high = np.concatenate([low, middle]), np.concatenate([middle, high])
    leaves.sort()
    breaks = np.array([leaf[0] for leaf in leaves] + [leaves[-1][1]])
    return breaks, _suspects(leaves)


def _suspects(leaves: list[tuple[float, float, int]]) -> set[float]:
    """Middles of the runs of smallest panels, where those were halved suspiciously often."""
    depths = np.array([0] + [leaf[2] for leaf in leaves] + [0])
    suspects: set[float] = set()
    start: int | None = None
    for index in range(1, depths.size):
        if depths[index] > depths[index - 1]:
            start = index
        elif depths[index] < depths[index - 1]:
            if start is not None and depths[start] >= _SUSPECT_DEPTH:
                suspects.add(0.5 * (leaves[start - 1][0] + leaves[index - 2][1]))
            start = None
    return suspects


def subdivided(breaks: FloatArray, widest: float) -> FloatArray:
    """Breaks, and more of them, evenly, between those that are further apart than `widest`."""
    counts = np.maximum(np.ceil(np.diff(breaks) / widest), 1.0).astype(int)
    position = np.concatenate([np.arange(count) / count for count in counts])
    low = np.repeat(breaks[:-1], counts)
    return np.append(low + position * np.repeat(np.diff(breaks), counts), breaks[-1])


def jumps(function: Function, breaks: FloatArray, order: int) -> FloatArray:
    """Those of the breaks of a resolved function where its derivative of an order jumps."""
    nodes, _, to_coefficients, differentiate = gauss_legendre(_SLOPE_ORDER)
    middle, half = 0.5 * (breaks[1:] + breaks[:-1])[:, None], 0.5 * np.diff(breaks)[:, None]
    values = _evaluate(function, middle + half * nodes)
    scale = np.abs(values).max()
    for _ in range(order):
        values = values @ differentiate.T / half
    ends = legendre.legvander(np.array([-1.0, 1.0]), _SLOPE_ORDER - 1) @ to_coefficients
    left, right = (values @ ends.T).T
    # As a change of the function over the shorter of the two panels.
    change = np.abs(left[1:] - right[:-1]) * np.minimum(half[1:, 0], half[:-1, 0]) ** order
    found: FloatArray = breaks[1:-1][change > _JUMP * scale]
    return found


@dataclass(frozen=True)
class SphereRule:
    """Nodes for a coordinate ``x``, and what a function does there and at a second coordinate.

    Attributes
    ----------
    x, weight : ndarray of shape (nodes,)
        Nodes and weights of the law of ``x``; the weights sum to 1.
    value : ndarray of shape (nodes,)
        The function at ``x``.
    given : ndarray of shape (3, nodes)
        ``E[y^p f(y) | x]`` for p = 0, 1, 2.
    slope : ndarray of shape (nodes,)
        The derivative ``f′(x)``.
    slope_given : ndarray of shape (2, nodes)
        ``E[y^p f′(y) | x]`` for p = 0, 1. Both slopes are zero on the sphere of two points
        (``m = 1``), which tells nothing of them.
    """

    x: FloatArray
    weight: FloatArray
    value: FloatArray
    given: FloatArray
    slope: FloatArray
    slope_given: FloatArray

    def mean(self, values: FloatArray) -> float:
        """Expectation of values at the nodes."""
        return float(self.weight @ values)


def sphere_rule(
    function: Function, dimension: int, correlation: float, breaks: FloatArray, order: int
) -> SphereRule:
    """Quadrature for two coordinates of a uniform point on the sphere of radius ``√m``.

    Parameters
    ----------
    function : callable
        Maps a float64 array elementwise.
    dimension : int
        ``m ≥ 1``, the dimension of the space in which the sphere lies.
    correlation : float
        Cosine ``ρ`` of the angle between the two coordinate axes, ``E x y``; in ``(−1, 1)`` unless
        ``m = 1``, where it is −1.
    breaks : ndarray of float64
        As `resolve` returns them for this function and `reach` of this dimension.
    order : int
        Nodes a panel.
    """
    if dimension == 1:
        return _two_points(function, correlation)
    tilt = np.arcsin(correlation)
    edges = _outer_edges(dimension, tilt, breaks)
    nodes, weights, _, _ = gauss_legendre(order)

    # A kink of y that enters or leaves the sphere leaves a root singularity at the end of a panel
    # of x. Angles quadratic in the node's position at both ends turn it into something analytic.
    position = 0.25 * np.pi * (nodes + 1.0)
    length = np.diff(edges)[:, None]
    angle = edges[:-1, None] + length * np.sin(position) ** 2
    speed = length * (0.25 * np.pi) * np.sin(2.0 * position)
    weight = weights * speed * _power_of_cosine(angle, dimension - 2)
    weight /= weight.sum()

    x = np.sqrt(dimension) * np.sin(angle)
    value = _evaluate(function, x)
    given = _given_all(function, angle, dimension, tilt, breaks, order)
    return SphereRule(
        x=x.ravel(),
        weight=weight.ravel(),
        value=value.ravel(),
        given=given[:3],
        slope=_slope(function, x.ravel(), breaks),
        slope_given=given[3:],
    )


def normal_rule(function: Function, breaks: FloatArray, order: int) -> SphereRule:
    """The limit of `sphere_rule` in infinite dimensions, for coordinates of correlation zero.

    ``x`` and ``y`` are standard normal and independent.
    """
    nodes, weights, _, _ = gauss_legendre(order)
    edges = subdivided(breaks, _WIDEST_PANEL)
    half = 0.5 * np.diff(edges)[:, None]
    x = (0.5 * (edges[1:] + edges[:-1])[:, None] + half * nodes).ravel()
    weight = (half * weights).ravel() * np.exp(-0.5 * x * x)
    weight /= weight.sum()
    value, slope = _evaluate(function, x), _slope(function, x, breaks)
    means = [weight @ (value * x**p) for p in range(3)] + [weight @ (slope * x**p) for p in (0, 1)]
    given = np.repeat(np.array(means)[:, None], x.size, axis=1)
    return SphereRule(x, weight, value, given[:3], slope, given[3:])


def _two_points(function: Function, correlation: float) -> SphereRule:
    """Rule of the sphere of one dimension, which is the two points ±1."""
    x = np.array([-1.0, 1.0])
    y = correlation * x
    other = _evaluate(function, y)
    none = np.zeros((2, 2))
    given = np.stack([other, y * other, y * y * other])
    return SphereRule(x, np.array([0.5, 0.5]), _evaluate(function, x), given, none[0], none)


def _outer_edges(dimension: int, tilt: float, breaks: FloatArray) -> FloatArray:
    """Angles ``a`` where ``x`` crosses a break, or where a break of ``y`` meets the sphere's edge.

    Given ``a``, ``y`` runs from ``−√m cos(a + tilt)`` to ``√m cos(a − tilt)``.
    """
    sine = np.clip(breaks / np.sqrt(dimension), -1.0, 1.0)
    own = np.arcsin(sine)
    upper = np.arccos(sine[1:-1])
    lower = np.pi - upper
    other = np.concatenate([tilt + upper, tilt - upper, -tilt + lower, -tilt - lower])
    inside = (other > own[0]) & (other < own[-1])
    return _merged(np.concatenate([own, other[inside]]))


def _given_all(
    function: Function,
    angle: FloatArray,
    dimension: int,
    tilt: float,
    breaks: FloatArray,
    order: int,
) -> FloatArray:
    """What `_given` returns, for panels of angles: shape (5, panels × nodes)."""
    if dimension < _SMOOTH_DIMENSION:
        # So many at a time that their arrays stay in the cache.
        some = max(1, _CACHED // (order * breaks.size))
        parts = [angle.ravel()[i : i + some] for i in range(0, angle.size, some)]
        return np.concatenate(
            [_given(function, part, dimension, tilt, breaks, order) for part in parts], axis=1
        )
    # Nearly independent of x, and smooth in it however rough f is: a few polynomials of the angle.
    nodes, _, to_coefficients, _ = gauss_legendre(order)
    last, count = np.arcsin(breaks[-1] / np.sqrt(dimension)), -(-_SMOOTH_SCALE // dimension)
    ends = np.linspace(-last, last, count + 1)
    middle, half = 0.5 * (ends[1:] + ends[:-1]), last / count
    few = [_given(function, row + half * nodes, dimension, tilt, breaks, order) for row in middle]
    panel = np.clip(np.searchsorted(ends, angle.ravel(), "right") - 1, 0, count - 1)
    basis = legendre.legvander((angle.ravel() - middle[panel]) / half, order - 1)
    coefficients = np.stack(few) @ to_coefficients.T
    return np.asarray(np.einsum("ak,apk->pa", basis, coefficients[panel]))


def _given(
    function: Function,
    angle: FloatArray,
    dimension: int,
    tilt: float,
    breaks: FloatArray,
    order: int,
) -> FloatArray:
    """``E[y^p f(y) | a]``, p = 0, 1, 2, and ``E[y^p f′(y) | a]``, p = 0, 1: shape (5, angles)."""
    nodes, weights, _, derivative = gauss_legendre(order)
    radius = np.sqrt(dimension)
    centre = radius * np.sin(tilt) * np.sin(angle)[:, None]
    spread = radius * np.cos(tilt) * np.cos(angle)[:, None]
    if dimension == 2:
        y = centre + spread * np.array([-1.0, 1.0])
        weight = np.full_like(y, 0.5)
        value, slope = _evaluate(function, y), _slope(function, y, breaks)
    else:
        edges = np.arcsin(np.clip((breaks - centre) / spread, -1.0, 1.0))
        half = 0.5 * np.diff(edges)[..., None]
        beta = 0.5 * (edges[:, 1:] + edges[:, :-1])[..., None] + half * nodes
        y = centre[..., None] + spread[..., None] * np.sin(beta)
        value = _evaluate(function, y)
        # Panels beyond the sphere's edge have length and weight zero: any slope will do.
        speed = np.where(half > 0.0, half, 1.0) * spread[..., None] * np.cos(beta)
        slope = ((value @ derivative.T) / speed).reshape(angle.size, -1)
        weight = (half * weights * _power_of_cosine(beta, dimension - 3)).reshape(angle.size, -1)
        weight /= weight.sum(axis=1, keepdims=True)
        y, value = y.reshape(angle.size, -1), value.reshape(angle.size, -1)
    product = weight * value
    slope *= weight
    sums = (product, product * y, product * y * y, slope, slope * y)
    return np.stack([term.sum(axis=1) for term in sums])


def _slope(function: Function, points: FloatArray, breaks: FloatArray) -> FloatArray:
    """Derivative of a function at some points, from its polynomials on resolved panels."""
    nodes, _, to_coefficients, differentiate = gauss_legendre(_SLOPE_ORDER)
    middle, half = 0.5 * (breaks[1:] + breaks[:-1]), 0.5 * np.diff(breaks)
    values = _evaluate(function, middle[:, None] + half[:, None] * nodes)
    coefficients = (values @ differentiate.T @ to_coefficients.T) / half[:, None]
    panel = np.clip(np.searchsorted(breaks, points, "right") - 1, 0, half.size - 1)
    basis = legendre.legvander((points - middle[panel]) / half[panel], _SLOPE_ORDER - 1)
    return np.asarray(np.einsum("...k,...k->...", basis, coefficients[panel]))


def _power_of_cosine(angle: FloatArray, power: int) -> FloatArray:
    # cos(a)^p would lose p ulp near a = 0, where all the weight is when p is large.
    return np.asarray(np.exp(power * np.log1p(-2.0 * np.sin(0.5 * angle) ** 2)))


def _evaluate(function: Function, points: FloatArray) -> FloatArray:
    return np.asarray(function(points), dtype=np.float64)
