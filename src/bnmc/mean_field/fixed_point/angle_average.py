"""Averages over the angle ψ of a normalized row, whose law depends on the correlation.

Under a norm that does not centre, a normalized row of the symmetric fixed point is
φ_i = sin ψ + cos ψ x_i (see `bnmc.mean_field.fixed_point.uncentred`).  With the eigenvalues
g₀ = 1 + (n−1)c on (1, …, 1) and g₁ = 1 − c orthogonal to it, tan ψ = √(g₀/g₁) tan ψ′, with ψ′ the
angle of a row of independent standard normal entries.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from bnmc.mean_field.float64 import FloatArray
from bnmc.mean_field.quadrature.panels import Table, power_of_cosine, root_panels, subdivided
from bnmc.mean_field.quadrature.sphere import reach

__all__ = ["AngleAverage", "AngleNodes", "angle_average", "angle_nodes"]

# Nodes per panel of ψ′, and widest panel of √n ψ′.
_ORDER, _WIDEST_PANEL = 20, 1.5


@dataclass(frozen=True)
class AngleAverage:
    """The law of ψ for one stretch √(g₀/(n g₁)), and columns of a table at its nodes.

    Attributes
    ----------
    batch : float
        n ≥ 2, an integer or ``inf``.
    stretch : float
        √(g₀/(n g₁)) ≥ 0, which is finite for infinite n as well.
    zeta, cosine, weight : ndarray of shape (nodes,)
        √n sin ψ′, cos ψ′, and weights that sum to 1.
    columns : ndarray of shape (columns, nodes)
        Expectations over x given ψ.
    """

    batch: float
    stretch: float
    zeta: FloatArray
    cosine: FloatArray
    weight: FloatArray
    columns: FloatArray

    @property
    def spread(self) -> float:
        """The value of 1 − c that belongs to the stretch."""
        return 1.0 / (self.stretch**2 + 1.0 - 1.0 / self.batch)

    def mean(self, values: FloatArray) -> float:
        """Return the expectation over ψ from values at the nodes."""
        return float(self.weight @ values)


class AngleNodes(NamedTuple):
    """A rule for the law of ψ with one stretch.

    Attributes
    ----------
    angle, zeta, cosine, weight : ndarray of shape (nodes,)
        ψ, √n sin ψ′, cos ψ′, and weights that sum to 1.
    """

    angle: FloatArray
    zeta: FloatArray
    cosine: FloatArray
    weight: FloatArray


def angle_average(table: Table, batch: float, stretch: float) -> AngleAverage:
    """Return the law of ψ for a batch size and a stretch, with the columns of a table."""
    nodes = angle_nodes(
        table.edges[1:-1], batch, stretch, reach(batch), order=_ORDER, widest=_WIDEST_PANEL
    )
    _, zeta, cosine, weight = nodes
    return AngleAverage(batch, stretch, zeta, cosine, weight, table(nodes.angle))


def angle_nodes(
    ends: FloatArray, batch: float, stretch: float, limit: float, *, order: int, widest: float
) -> AngleNodes:
    """Return a rule for the law of ψ.

    Parameters
    ----------
    ends : ndarray
        Angles ψ at which panels end, in (−π/2, π/2), increasing.
    batch : float
        n ≥ 2, an integer or ``inf``.
    stretch : float
        √(g₀/(n g₁)) ≥ 0.
    limit : float
        The law of √n sin ψ′, or of √n tan ψ′ if n is infinite, is cut off at ± this.
    order : int
        Nodes per panel.
    widest : float
        Widest panel of √n ψ′.
    """
    # t = √n tan ψ′ is tan ψ divided by the stretch.  The variable of integration is v = √n ψ′, or
    # v = t if n is infinite; both have the scale 1.
    root = math.sqrt(batch)

    def v(t: FloatArray) -> FloatArray:
        return t if batch == math.inf else np.asarray(root * np.arctan(t / root))

    last = limit if batch == math.inf else root * math.asin(min(1.0, limit / root))
    # Between the scales of ψ and ψ′, the panels grow by equal ratios.
    crossings = v(np.tan(ends) / stretch) if stretch else np.empty(0)
    ratio = max(stretch, 1.0 / stretch) if stretch else 1.0
    steps = 4.0 ** np.arange(3.0 + math.ceil(math.log(ratio, 4.0)))
    between = v(0.25 * steps * (1.0 / stretch if stretch > 1.0 else 1.0))
    inner = np.concatenate([crossings, between, -between])
    edges = np.sort(np.array([-last, *inner[np.abs(inner) < last], last]))
    edges = subdivided(edges, widest)
    # Functions of ψ may have square roots at the ends of panels.
    point, weight = root_panels(edges, order)
    if batch == math.inf:
        t, zeta, cosine = point, point, np.ones_like(point)
        weight *= np.exp(-0.5 * point**2)
    else:
        angle = point / root
        t, zeta, cosine = root * np.tan(angle), root * np.sin(angle), np.cos(angle)
        weight *= power_of_cosine(angle, batch - 2.0)
    weight /= weight.sum()
    return AngleNodes(np.arctan(stretch * t), zeta, cosine, weight)
