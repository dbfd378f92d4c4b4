"""Gauss-Legendre rules on panels, the subintervals between consecutive edges, and tables on panels.

A `Table` interpolates a vector-valued function of an angle by polynomials on panels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple, Self

import numpy as np
from numpy.polynomial import legendre

from bnmc.mean_field.float64 import FloatArray


class _GaussLegendre(NamedTuple):
    """The Gauss-Legendre rule on [−1, 1] and the polynomials through values at its nodes.

    Attributes
    ----------
    nodes, weights : ndarray of shape (order,)
        The rule; it is exact for polynomials of degree below 2 · order.
    to_coefficients : ndarray of shape (order, order)
        Maps values at the nodes to Legendre coefficients.
    differentiate : ndarray of shape (order, order)
        Maps values at the nodes to values of the derivative there.
    """

    nodes: FloatArray
    weights: FloatArray
    to_coefficients: FloatArray
    differentiate: FloatArray


@lru_cache(maxsize=16)
def gauss_legendre(order: int) -> _GaussLegendre:
    """Return the rule with `order` nodes."""
    nodes, weights = legendre.leggauss(order)
    values = legendre.legvander(nodes, order - 1)
    to_coefficients = (np.arange(order) + 0.5)[:, None] * values.T * weights
    slopes = [legendre.legval(nodes, legendre.legder(row)) for row in np.eye(order)]
    differentiate = np.stack(slopes, axis=1) @ to_coefficients
    return _GaussLegendre(nodes, weights, to_coefficients, differentiate)


def subdivided(edges: FloatArray, widest: float) -> FloatArray:
    """Return the edges, with panels wider than `widest` divided evenly into narrower ones."""
    counts = np.maximum(np.ceil(np.diff(edges) / widest), 1.0).astype(int)
    position = np.concatenate([np.arange(count) / count for count in counts])
    low = np.repeat(edges[:-1], counts)
    return np.append(low + position * np.repeat(np.diff(edges), counts), edges[-1])


def panel_points(edges: FloatArray, nodes: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the nodes moved to each panel, shape (panels, order), and half lengths, (panels, 1).

    Parameters
    ----------
    edges : ndarray of shape (panels + 1,)
        Ends of the panels, increasing.
    nodes : ndarray of shape (order,)
        Points of [−1, 1].
    """
    half = 0.5 * np.diff(edges)[:, None]
    return 0.5 * (edges[1:] + edges[:-1])[:, None] + half * nodes, half


def root_panels(edges: FloatArray, order: int) -> tuple[FloatArray, FloatArray]:
    """Return a rule for integrands that may have square roots at the ends of panels.

    The point at position t of a panel from a to b is a + (b−a) sin²(πt/2), t in [0, 1].  It is
    quadratic in t at both ends, so that the root of the distance to an end is smooth in t.

    Parameters
    ----------
    edges : ndarray of shape (..., panels + 1)
        Ends of the panels, nondecreasing along the last axis.
    order : int
        Nodes per panel.

    Returns
    -------
    points, weights : ndarray of shape (..., panels · order)
        The weights sum to 4/π times the length of the interval.
    """
    nodes, weights, _, _ = gauss_legendre(order)
    position, length = 0.25 * np.pi * (nodes + 1.0), np.diff(edges)[..., None]
    points = edges[..., :-1, None] + length * np.sin(position) ** 2
    density = length * weights * np.sin(2.0 * position)
    shape = (*edges.shape[:-1], -1)
    return points.reshape(shape), density.reshape(shape)


def row_panels(edges: FloatArray, order: int) -> tuple[FloatArray, FloatArray]:
    """Return Gauss-Legendre nodes and weights on the panels of each row of edges.

    Parameters
    ----------
    edges : ndarray of shape (..., panels + 1)
        Ends of the panels, nondecreasing along the last axis.  Panels that are empty in every row
        are left out.
    order : int
        Nodes per panel.

    Returns
    -------
    nodes, weights : ndarray of shape (..., kept panels · order)
    """
    length = np.diff(edges)
    used = (length > 0.0).reshape(-1, length.shape[-1]).any(axis=0)
    half, low = 0.5 * length[..., used, None], edges[..., :-1][..., used, None]
    nodes, weights, _, _ = gauss_legendre(order)
    shape = (*edges.shape[:-1], -1)
    return (low + half * (nodes + 1.0)).reshape(shape), (half * weights).reshape(shape)


def coordinate_rule(
    edges: FloatArray, dimension: float, order: int, roots: bool = False
) -> tuple[FloatArray, FloatArray]:
    """Return a rule for a coordinate x of a uniform point on a sphere, or of a normal vector.

    Parameters
    ----------
    edges : ndarray of shape (..., panels + 1)
        Ends of the panels, nondecreasing along the last axis: of angles a with x = √m sin a, or of
        x itself if m is infinite.
    dimension : float
        m ≥ 2, the dimension of the space that contains the sphere of radius √m, or ``inf``.
    order : int
        Nodes per panel.
    roots : bool
        Whether integrands may have square roots at the ends of panels (see `root_panels`).

    Returns
    -------
    points, weights : ndarray of shape (..., nodes)
        The points are angles or values of x, as the edges.  The weights sum to 1 in each row.
    """
    points, weights = root_panels(edges, order) if roots else row_panels(edges, order)
    if dimension == np.inf:
        weights = weights * np.exp(-0.5 * points * points)
    else:
        weights = weights * power_of_cosine(points, dimension - 2.0)
    return points, weights / weights.sum(axis=-1, keepdims=True)


def power_of_cosine(angle: FloatArray, power: float) -> FloatArray:
    """Return cos(angle)^power, accurate near 0 for large powers, where all its weight is."""
    if power == 0.0:
        return np.ones_like(angle)
    # np.cos(angle)**power would lose `power` units in the last place.
    return np.asarray(np.exp(power * np.log1p(-2.0 * np.sin(0.5 * angle) ** 2)))


# --- tables of functions of an angle

# Halvings of a panel, and panels of a table, at most.
_DEEPEST, _MOST_PANELS = 10, 40

#: A function that maps an angle to an array of shape (columns,).
Columns = Callable[[float], FloatArray]

#: Start, end and power of a panel; see `Table`.
_Panel = tuple[float, float, float]


@dataclass(frozen=True)
class Table:
    """Polynomials on panels, some of them in the square root of the distance to an end.

    The polynomial of a panel is one in ((angle − start)/(end − start))^(1/power), with power 1 or
    2.  `end` may be less than `start`.

    Attributes
    ----------
    start, end, power : ndarray of shape (panels,)
        The panels, in the order of the angles.
    coefficients : ndarray of shape (panels, order, columns)
        Coefficients of Legendre polynomials.
    """

    start: FloatArray
    end: FloatArray
    power: FloatArray
    coefficients: FloatArray

    @classmethod
    def through(cls, edges: FloatArray, values: FloatArray) -> Self:
        """Return the table of values at Gauss-Legendre nodes, shape (panels, order, columns)."""
        to_coefficients = gauss_legendre(values.shape[1]).to_coefficients
        coefficients = np.einsum("kj,pjc->pkc", to_coefficients, values)
        return cls(edges[:-1], edges[1:], np.ones(edges.size - 1), coefficients)

    @property
    def edges(self) -> FloatArray:
        """Ends of the panels, increasing, shape (panels + 1,)."""
        return np.append(np.minimum(self.start, self.end), max(self.start[-1], self.end[-1]))

    def __call__(self, angle: FloatArray) -> FloatArray:
        """Return the columns at angles, shape (columns, angles)."""
        panel = np.searchsorted(self.edges[1:-1], angle, "right")
        start, end = self.start[panel], self.end[panel]
        share = np.clip((angle - start) / (end - start), 0.0, 1.0) ** (1.0 / self.power[panel])
        basis = legendre.legvander(2.0 * share - 1.0, self.coefficients.shape[1] - 1)
        return np.asarray(np.einsum("ak,akc->ca", basis, self.coefficients[panel]))

    def columns(self, which: list[int]) -> Self:
        """Return the table of some of the columns."""
        return type(self)(self.start, self.end, self.power, self.coefficients[:, :, which])

    def on_same_panels(self, function: Columns, order: int) -> Self:
        """Return the table of another function on the same panels, with `order` nodes per panel."""
        panels = zip(self.start, self.end, self.power, strict=True)
        stacked = np.stack([_coefficients(function, panel, order) for panel in panels])
        return type(self)(self.start, self.end, self.power, stacked)


def tabulate(
    function: Columns, edges: FloatArray, singular: FloatArray, order: int, tolerance: FloatArray
) -> Table:
    """Tabulate a function, halving panels until every column is resolved on each.

    Parameters
    ----------
    function : callable
        Maps an angle to an array of shape (columns,).
    edges : ndarray
        Ends of panels at which the function is smooth, increasing; the first and the last one
        enclose all angles of the table.
    singular : ndarray
        Further ends of panels, increasing.  Near these the function may be a smooth function of the
        square root of the distance.
    order : int
        Nodes per panel.
    tolerance : ndarray of shape (columns,)
        A panel is resolved if its last two coefficients are at most `tolerance` times the largest
        coefficient of the column.  At 10 halvings or 40 panels the refinement ends in any case.
    """
    waiting = _panels(edges, singular)
    done: list[tuple[float, float, float, FloatArray]] = []
    scale: FloatArray = np.zeros(tolerance.size)
    for depth in range(_DEEPEST + 1):
        series = [_coefficients(function, panel, order) for panel in waiting]
        scale = np.maximum(scale, np.abs(series).max(axis=(0, 1)))
        last = depth == _DEEPEST or len(done) + 2 * len(waiting) > _MOST_PANELS
        halves = []
        for panel, coefficients in zip(waiting, series, strict=True):
            if last or np.all(np.abs(coefficients[-2:]) <= tolerance * scale):
                done.append((*panel, coefficients))
            else:
                start, end, power = panel
                middle = 0.5 * (start + end)
                halves += [(start, middle, power), (middle, end, 1.0)]
        waiting = halves
        if not waiting:
            break
    done.sort(key=lambda leaf: leaf[0] + leaf[1])
    return Table(*(np.array(part) for part in zip(*done, strict=True)))


def _panels(edges: FloatArray, singular: FloatArray) -> list[_Panel]:
    """Return panels with at most one singular end each, which is the start."""
    points = sorted([*((x, 1.0) for x in edges.tolist()), *((x, 2.0) for x in singular.tolist())])
    panels = []
    for (low, at_low), (high, at_high) in pairwise(points):
        if at_low == 1.0:
            panels.append((high, low, at_high))
        elif at_high == 1.0:
            panels.append((low, high, at_low))
        else:
            middle = 0.5 * (low + high)
            panels += [(low, middle, 2.0), (high, middle, 2.0)]
    return panels


def _coefficients(function: Columns, panel: _Panel, order: int) -> FloatArray:
    """Return the Legendre coefficients of the columns on a panel, shape (order, columns)."""
    start, end, power = panel
    nodes, _, to_coefficients, _ = gauss_legendre(order)
    angles = start + (end - start) * (0.5 * (nodes + 1.0)) ** power
    return np.asarray(to_coefficients @ np.stack([function(float(angle)) for angle in angles]))
