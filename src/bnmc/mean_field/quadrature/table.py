"""A vector-valued function of an angle, evaluated where it must be and interpolated elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Self

import numpy as np
from numpy.polynomial import legendre

from bnmc.mean_field.quadrature.sphere import FloatArray, gauss_legendre

__all__ = ["Table", "tabulate"]
_DEEPEST, _MOST_PANELS = 10, 40

Columns = Callable[[float], FloatArray]


@dataclass(frozen=True)
class Table:
    """Piecewise polynomials: in the panel from `start` to `end`, of the root of order `power`.

    That is, of ``((angle − start)/(end − start))^(1/power)``; `end` may lie on the left of `start`.

    Attributes
    ----------
    start, end, power : ndarray of shape (panels,)
        In the order of the angles.
    coefficients : ndarray of shape (panels, order, columns)
        Of Legendre polynomials.
    """

    start: FloatArray
    end: FloatArray
    power: FloatArray
    coefficients: FloatArray

    @property
    def edges(self) -> FloatArray:
        """Ends of the panels, increasing."""
        return np.append(np.minimum(self.start, self.end), max(self.start[-1], self.end[-1]))

    def __call__(self, angle: FloatArray) -> FloatArray:
        """Columns at some angles: shape (columns, angles)."""
        panel = np.searchsorted(self.edges[1:-1], angle, "right")
        start, end = self.start[panel], self.end[panel]
        share = np.clip((angle - start) / (end - start), 0.0, 1.0) ** (1.0 / self.power[panel])
        basis = legendre.legvander(2.0 * share - 1.0, self.coefficients.shape[1] - 1)
        return np.asarray(np.einsum("ak,akc->ca", basis, self.coefficients[panel]))

    def columns(self, which: slice) -> Self:
        """The table of some of the columns."""
        return type(self)(self.start, self.end, self.power, self.coefficients[:, :, which])

    def of(self, function: Columns, order: int) -> Self:
        """Another function on the same panels."""
        panels = zip(self.start, self.end, self.power, strict=True)
        stacked = np.stack([_coefficients(function, panel, order) for panel in panels])
        return type(self)(self.start, self.end, self.power, stacked)


def tabulate(
    function: Columns,
    edges: FloatArray,
    singular: FloatArray,
    order: int,
    tolerance: FloatArray,
) -> Table:
    """Tabulate a function, halving panels until every column is resolved in each.

    Parameters
    ----------
    function : callable
        Maps an angle to an array of shape (columns,).
    edges : ndarray
        Ends of panels, increasing, where the function is smooth.
    singular : ndarray
        Ends of panels between them, increasing, where the function may be one of the root of the
        distance.
    order : int
        Nodes a panel.
    tolerance : ndarray of shape (columns,)
        A panel is resolved where its last coefficients are this small beside the largest of the
        column.
    """
    waiting = _panels(edges, singular)
    done: list[tuple[float, float, float, FloatArray]] = []
    scale: FloatArray = np.zeros(tolerance.size)
    for depth in range(_DEEPEST + 1):
        found = [_coefficients(function, panel, order) for panel in waiting]
        scale = np.maximum(scale, np.abs(found).max(axis=(0, 1)))
        last = depth == _DEEPEST or len(done) + 2 * len(waiting) > _MOST_PANELS
        halves = []
        for panel, coefficients in zip(waiting, found, strict=True):
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


def _panels(edges: FloatArray, singular: FloatArray) -> list[tuple[float, float, float]]:
    """Start, end and power of panels of which each has at most one singular end, its start."""
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


def _coefficients(function: Columns, panel: tuple[float, float, float], order: int) -> FloatArray:
    start, end, power = panel
    nodes, _, to_coefficients, _ = gauss_legendre(order)
    angles = start + (end - start) * (0.5 * (nodes + 1.0)) ** power
    return np.asarray(to_coefficients @ np.stack([function(float(angle)) for angle in angles]))
