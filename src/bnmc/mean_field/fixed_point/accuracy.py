"""Bounds of the errors of the fixed point that come from the activation, not from the quadrature.

The quadratures are exact for the polynomials on the panels of σ.  The distance of σ from these, the
tails beyond the range of integration, and singular derivatives make errors that a comparison of two
quadratures on the same panels does not show.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from bnmc.chain.activations import Activation
from bnmc.mean_field.fixed_point.results import SymmetricFixedPoint
from bnmc.mean_field.float64 import EPSILON, FloatArray
from bnmc.mean_field.quadrature.deviation import (
    Deviation,
    Singularity,
    density,
    deviation,
    explosive,
    range_of,
    singularities,
)
from bnmc.mean_field.quadrature.resolution import panels_of
from bnmc.mean_field.quadrature.sphere import SphereRule, reach

__all__ = ["Gradient", "Resolved", "resolved", "value_errors"]

# Relative rounding error of the sums and of the densities of the quadratures.
_ROUNDING = 16.0 * EPSILON


@dataclass(frozen=True)
class Gradient:
    """What is known about E σ′² of a coordinate of a sphere.

    Attributes
    ----------
    explodes : bool
        Whether E|∇σ|² is infinite.
    singular : list of Singularity
        Points at which σ′ is infinite but square integrable.
    dimension : float
        Dimension m of the space that contains the sphere of radius √m.
    """

    explodes: bool
    singular: list[Singularity]
    dimension: float

    def energy(self, rule: SphereRule, factor: FloatArray) -> float:
        """Return E σ′² f from the values of f at the nodes of a rule."""
        counted = rule.slope**2 * factor
        inner = 0.0
        for spot in self.singular:
            counted[(rule.x > spot.low) & (rule.x < spot.high)] = 0.0
            near = float(np.interp(spot.point, rule.x, factor))
            inner += spot.energy * self._density(spot) * near
        return rule.mean(counted) + inner

    def error(self, slopes: float, pairs: float) -> float:
        """Return the error of E σ′² plus `pairs` times that of E σ′σ′, near singular points.

        `slopes` is E σ′².
        """
        return sum(
            self._density(spot)
            * (spot.error + 8.0 * pairs * spot.change * (1.0 + spot.point**2) * math.sqrt(slopes))
            for spot in self.singular
        )

    def unresolved(self) -> float:
        """Return the part of E σ′² in the panels next to singular points."""
        return sum(self._density(spot) * (spot.energy + spot.error) for spot in self.singular)

    def _density(self, spot: Singularity) -> float:
        return float(density(np.array([spot.point]), self.dimension)[0])


@dataclass(frozen=True)
class Resolved:
    """The panels of an activation, with their deviation and gradient.

    Attributes
    ----------
    edge : float
        The coordinate is in [−edge, edge].
    breaks : ndarray of float64
        Ends of the panels.
    gradient : Gradient
    deviation : Deviation or None
        None if the sphere has two points, at which σ is evaluated itself.
    """

    edge: float
    breaks: FloatArray
    gradient: Gradient
    deviation: Deviation | None


@lru_cache(maxsize=64)
def resolved(activation: Activation, dimension: float, wider: bool = False) -> Resolved:
    """Return the panels of an activation on the range of a coordinate of a sphere.

    Parameters
    ----------
    activation : Activation
        The activation σ.
    dimension : float
        m ≥ 1, the dimension of the space that contains the sphere of radius √m, an integer or
        ``inf``.
    wider : bool, default False
        Whether the range includes all sin ψ + cos ψ x, with x in the range of a coordinate of the
        sphere in m − 1 dimensions.

    Raises
    ------
    UnresolvedError
        If the activation is not finite, or needs too many panels.
    InfiniteMomentError
        If m is infinite and E σ² is.
    """
    edge, tail = range_of(activation, dimension)
    if wider:
        edge = min(max(reach(dimension - 1), edge), math.sqrt(dimension - 1))
    breaks = panels_of(activation, math.hypot(1.0, edge) if wider else edge)
    infinite = dimension <= 2 or explosive(activation, breaks).size > 0
    singular = [] if infinite else singularities(activation, breaks)
    found = None
    if dimension >= 2:
        ignored = [(spot.low, spot.high) for spot in singular]
        found = deviation(activation, breaks, dimension, tail, ignored)
    return Resolved(edge, breaks, Gradient(infinite, singular, dimension), found)


def value_errors(
    point: SymmetricFixedPoint, known: Resolved, batch: float, *, centred: bool, isotropic: bool
) -> dict[str, float]:
    """Return bounds of the errors of the numbers of a fixed point, by name.

    They are absolute for numbers below 1, relative for larger ones.

    Parameters
    ----------
    point : SymmetricFixedPoint
        The fixed point.
    known : Resolved
        The activation.
    batch : float
        n ≥ 2, an integer or ``inf``.
    centred, isotropic : bool
        Whether the norm centres, and whether normalized rows are uniform on a sphere.
    """
    found = known.deviation
    if found is None:
        return {}
    e = 1.0 / batch
    # If c is 1 to rounding, 1 − c is not known; μ is of the size of the variance.
    mu = point.b * (1.0 - point.c) if point.c < 1.0 - 1e-6 else 0.5 * found.variance
    wider = 1.0 if isotropic else _density_ratio(point, batch)
    product = wider * found.product / mu + _ROUNDING
    # The formulas divide by 1 − 2/n and 1 − 3/n.
    share = max(1.0 - 2.0 * e, 0.25) * (max(1.0 - 3.0 * e, 0.25) if centred else 1.0)
    spectrum = 4.0 * product / share
    checked = abs(found.mean_square - point.b) / point.b if isotropic else 0.0
    square = wider * found.square / point.b + checked + _ROUNDING
    size = math.sqrt(abs(point.cross_batch)) if isotropic else math.sqrt(point.b)
    between = wider * found.mean * (2.0 * size + wider * found.mean)
    errors = {
        "b": min(point.b, 1.0) * square,
        "c": 2.0 * (square + product * mu / point.b),
        "rate": spectrum,
        "cross_batch": between / max(1.0, point.cross_batch),
        "cross_batch_rate": spectrum,
    }
    if math.isfinite(point.backward_rate):
        slopes = point.backward_rate * mu
        error = found.slope + e * found.mixed_slope
        error += known.gradient.error(slopes, e) if isotropic else 4.0 * known.gradient.unresolved()
        gradient = share if centred else max(1.0 - 2.0 * e, 0.25)
        error = wider * error / (mu * gradient) + point.backward_rate * product
        errors["backward_rate"] = error / max(1.0, point.backward_rate)
    return errors


def _density_ratio(point: SymmetricFixedPoint, batch: float) -> float:
    """Return a bound of the density of φ₁ relative to that of a uniform point on the sphere.

    Also how much the equation for c and the divisions by the stretch amplify errors.
    """
    # Given ψ, the density of φ₁ is at most √e / cos ψ times that of a uniform point.
    stretch = math.sqrt(max(1.0 / max(1.0 - point.c, EPSILON) - 1.0 + 1.0 / batch, 0.0))
    if batch == math.inf:
        tangent = math.sqrt(2.0 / math.pi)
    elif batch == 2:
        tangent = 8.0  # the mean of |tan ψ′| diverges logarithmically
    else:
        log_beta = 0.5 * math.log(math.pi) + math.lgamma(0.5 * (batch - 1.0))
        log_beta -= math.lgamma(0.5 * batch)
        tangent = math.sqrt(batch) * 2.0 / ((batch - 2.0) * math.exp(log_beta))
    ratio = math.sqrt(math.e) * (1.0 + stretch * tangent)
    slack = abs(1.0 - point.eigenvalues[0]) * (min(1.0, stretch) if stretch > 1e-8 else 1.0)
    return ratio * (1.0 + 1.0 / max(slack, EPSILON))
