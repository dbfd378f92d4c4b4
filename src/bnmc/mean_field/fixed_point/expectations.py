"""The activation of a normalized row: its panels, bounds of errors, and averages over an angle.

The quadratures are exact for the polynomials on the panels of σ.  The distance of σ from these, the
tails beyond the range of integration, and singular derivatives make errors that a comparison of two
quadratures on the same panels does not show.  `value_errors` bounds these.

Under a norm that does not centre, a normalized row of the symmetric fixed point is (see
`bnmc.mean_field.fixed_point.uncentred`)

    φ_i = sin ψ + cos ψ x_i,

with x uniform on the centred sphere (|x| = √n, x orthogonal to (1, …, 1)) and independent of the
angle ψ.  Only the law of ψ depends on the correlation c of the samples.  So expectations over x
given ψ are tabulated once, as functions of ψ, for all c.  With the eigenvalues g₀ = 1 + (n−1)c on
(1, …, 1) and g₁ = 1 − c orthogonal to it, tan ψ = √(g₀/g₁) tan ψ′, with ψ′ the angle of a row of
independent standard normal entries.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from bnmc.chain.activations import Activation
from bnmc.errors import ArgumentError
from bnmc.mean_field.fixed_point.results import SymmetricFixedPoint
from bnmc.mean_field.float64 import EPSILON, FloatArray
from bnmc.mean_field.quadrature import deviation as deviations
from bnmc.mean_field.quadrature import panels
from bnmc.mean_field.quadrature.profile import Profile, Singularity, profile
from bnmc.mean_field.quadrature.resolution import UnresolvedError
from bnmc.mean_field.quadrature.sphere import SphereRule, moments, reach, sphere_rule

# Relative rounding error of the sums and of the densities of the quadratures.
_ROUNDING = 16.0 * EPSILON


@dataclass(frozen=True, eq=False)
class Resolved:
    """An activation σ at a coordinate of a sphere, with the errors of its expectations.

    Attributes
    ----------
    profile : Profile
        The panels, kinks and singular points of σ.
    dimension : float
        Dimension m of the space that contains the sphere of radius √m.
    edge : float
        The coordinate is in [−edge, edge].
    tail : float
        Bound of the part of E σ(x)² (1+x²)² beyond.
    """

    profile: Profile
    dimension: float
    edge: float
    tail: float

    @property
    def explodes(self) -> bool:
        """Whether E|∇σ|² is infinite."""
        return self.dimension <= 2 or self.profile.steep.size > 0

    def turned(self, angle: float) -> Turned:
        """Return σ(sin ψ + cos ψ x) as a function of x, for an angle ψ."""
        return Turned(self.profile, angle, self.edge)

    @cached_property
    def deviation(self) -> deviations.Deviation | None:
        """The deviation of σ from its panels; None on a sphere of two points, where σ is exact."""
        if self.dimension < 2:
            return None
        ignored = [(spot.low, spot.high) for spot in self._singular]
        function, breaks = self.profile.function, self.profile.breaks
        return deviations.deviation(function, breaks, self.dimension, self.tail, ignored)

    def energy(self, rule: SphereRule, factor: FloatArray) -> float:
        """Return E σ′² f from the values of f at the nodes of a rule."""
        counted = rule.slope**2 * factor
        inner = 0.0
        for spot in self._singular:
            counted[(rule.x > spot.low) & (rule.x < spot.high)] = 0.0
            near = float(np.interp(spot.point, rule.x, factor))
            inner += spot.energy * self._density(spot) * near
        return rule.mean(counted) + inner

    def energy_error(self, slopes: float, pairs: float) -> float:
        """Return the error of E σ′² plus `pairs` times that of E σ′σ′, near singular points.

        `slopes` is E σ′².
        """
        return sum(
            self._density(spot)
            * (spot.error + 8.0 * pairs * spot.change * (1.0 + spot.point**2) * math.sqrt(slopes))
            for spot in self._singular
        )

    def unresolved_energy(self) -> float:
        """Return the part of E σ′² in the panels next to singular points."""
        return sum(self._density(spot) * (spot.energy + spot.error) for spot in self._singular)

    @property
    def _singular(self) -> list[Singularity]:
        """Points at which σ′ is infinite but square integrable."""
        return [] if self.explodes else self.profile.singular

    def _density(self, spot: Singularity) -> float:
        return float(deviations.density(np.array([spot.point]), self.dimension)[0])


@contextmanager
def quadrature_errors_as_arguments(activation: Activation) -> Iterator[None]:
    """Turn the errors of quadratures into those of the argument `activation`."""
    try:
        yield
    except (deviations.InfiniteMomentError, UnresolvedError) as error:
        raise ArgumentError("activation", activation.name, error.allowed, str(error)) from None


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
    edge, tail = deviations.range_of(activation, dimension)
    if wider:
        edge = min(max(reach(dimension - 1), edge), math.sqrt(dimension - 1))
    sigma = profile(activation, math.hypot(1.0, edge) if wider else edge)
    return Resolved(sigma, dimension, edge, tail)


def value_errors(
    point: SymmetricFixedPoint, sigma: Resolved, batch: float, *, centred: bool, isotropic: bool
) -> dict[str, float]:
    """Return bounds of the errors of the numbers of a fixed point, by name.

    They are absolute for numbers below 1, relative for larger ones.

    Parameters
    ----------
    point : SymmetricFixedPoint
        The fixed point.
    sigma : Resolved
        The activation.
    batch : float
        n ≥ 2, an integer or ``inf``.
    centred, isotropic : bool
        Whether the norm centres, and whether normalized rows are uniform on a sphere.
    """
    deviation = sigma.deviation
    if deviation is None:
        return {}
    e = 1.0 / batch
    # If c is 1 to rounding, 1 − c is not known; μ is of the size of the variance.
    mu = point.b * (1.0 - point.c) if point.c < 1.0 - 1e-6 else 0.5 * deviation.variance
    wider = 1.0 if isotropic else _density_ratio(point, batch)
    product = wider * deviation.product / mu + _ROUNDING
    # The formulas divide by 1 − 2/n and 1 − 3/n.
    share = max(1.0 - 2.0 * e, 0.25) * (max(1.0 - 3.0 * e, 0.25) if centred else 1.0)
    spectrum = 4.0 * product / share
    checked = abs(deviation.mean_square - point.b) / point.b if isotropic else 0.0
    square = wider * deviation.square / point.b + checked + _ROUNDING
    size = math.sqrt(abs(point.cross_batch)) if isotropic else math.sqrt(point.b)
    between = wider * deviation.mean * (2.0 * size + wider * deviation.mean)
    errors = {
        "b": min(point.b, 1.0) * square,
        "c": 2.0 * (square + product * mu / point.b),
        "rate": spectrum,
        "cross_batch": between / max(1.0, point.cross_batch),
        "cross_batch_rate": spectrum,
    }
    if math.isfinite(point.backward_rate):
        slopes = point.backward_rate * mu
        error = deviation.slope + e * deviation.mixed_slope
        error += sigma.energy_error(slopes, e) if isotropic else 4.0 * sigma.unresolved_energy()
        gradient = share if centred else max(1.0 - 2.0 * e, 0.25)
        error = wider * error / (mu * gradient) + point.backward_rate * product
        errors["backward_rate"] = error / max(1.0, point.backward_rate)
    return errors


def rounding_error(mu: float, b: float) -> float:
    """Return the rounding error of the Jacobian, relative to its eigenvalues.

    Values of σ have the size √b and are rounded to that; the Jacobian depends on their fluctuations
    only, of size √μ, μ = b(1−c).
    """
    return 8.0 * EPSILON * math.sqrt(b / mu)


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


# --- averages over the angle

# Nodes per panel of ψ′, and widest panel of √n ψ′.
_ANGLE_ORDER, _WIDEST_ANGLE = 20, 1.5


class AngleNodes(NamedTuple):
    """A rule for the law of ψ with one stretch √(g₀/(n g₁)).

    Attributes
    ----------
    batch : float
        n ≥ 2, an integer or ``inf``.
    stretch : float
        √(g₀/(n g₁)) ≥ 0, which is finite for infinite n as well.
    angle, zeta, cosine, weight : ndarray of shape (nodes,)
        ψ, √n sin ψ′, cos ψ′, and weights that sum to 1.
    """

    batch: float
    stretch: float
    angle: FloatArray
    zeta: FloatArray
    cosine: FloatArray
    weight: FloatArray

    @property
    def g1(self) -> float:
        """The value of 1 − c that belongs to the stretch."""
        return 1.0 / (self.stretch**2 + 1.0 - 1.0 / self.batch)

    def mean(self, values: FloatArray) -> float:
        """Return the expectation over ψ from values at the nodes."""
        return float(self.weight @ values)


def table_nodes(table: panels.Table, batch: float, stretch: float) -> AngleNodes:
    """Return the rule for a batch size, a stretch, and functions of ψ in a table."""
    return angle_nodes(
        table.edges[1:-1], batch, stretch, reach(batch), order=_ANGLE_ORDER, widest=_WIDEST_ANGLE
    )


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
    edges = panels.subdivided(edges, widest)
    # Functions of ψ may have square roots at the ends of panels.
    if batch == math.inf:
        t, weight = panels.coordinate_rule(edges, batch, order, roots=True)
        zeta, cosine = t, np.ones_like(t)
    else:
        angle, weight = panels.coordinate_rule(edges / root, batch, order, roots=True)
        t, zeta, cosine = root * np.tan(angle), root * np.sin(angle), np.cos(angle)
    return AngleNodes(batch, stretch, np.arctan(stretch * t), zeta, cosine, weight)


# --- expectations given the angle

# Nodes per panel of x and of ψ, for the fine and the coarse table.
_ORDER, _COARSE_ORDER = 24, 20

# With that many nodes, panels of x of this width resolve the normal density.
_WIDEST_PANEL = 3.0

# Relative to the largest value of its column, the table is resolved to this.  The last four columns
# depend on slopes, which are less accurate.  If the backward rate is infinite, the last four do not
# count.
_TOLERANCE = np.array([1e-12] * 9 + [1e-10] * 4)
_NO_GRADIENT = np.array([1e-12] * 9 + [1.0] * 4)

# Below this batch size, the table has square roots at the angles where kinks leave the sphere.  At
# larger ones the singularities are of so high an order that polynomials resolve them.
_MOST_SINGULAR = 32

# Angles closer than this are the same.
_SAME_ANGLE = 1e-9


_Column = TypeVar("_Column", float, FloatArray)


class AngleColumns(NamedTuple, Generic[_Column]):
    """Expectations over x given ψ, or their averages over ψ.

    Write σ_i for σ(sin ψ + cos ψ x_i), σ̄ for the mean of the σ_i over the batch, P for the
    projector orthogonal to 1 = (1, …, 1), σ′ for the derivatives of σ at φ, and I for the identity.

    Attributes
    ----------
    mean, first
        E σ₁ and E σ₁x₁.
    square, spread
        E σ₁² and E|Pσ|²/(n−1).
    along, along2
        n/(n−1) E σ̄σ₁x₁ and the same of x₁² − 1.
    diagonal, diagonal2
        n/(n−1) E (Pσ)₁²x₁ and the same of x₁² − 1.
    mixed
        E σ₁σ₂(x₁−x₃)(x₂−x₄).
    ones, trace
        1ᵀA1/n and tr A/(n−1) for A = cos²ψ E K diag(σ′)² K, K = I − φφᵀ/n.
    one_pair, trace_pair
        The same for A = cos²ψ E Kσ′σ′ᵀK/n.
    """

    mean: _Column
    first: _Column
    square: _Column
    spread: _Column
    along: _Column
    along2: _Column
    diagonal: _Column
    diagonal2: _Column
    mixed: _Column
    ones: _Column
    trace: _Column
    one_pair: _Column
    trace_pair: _Column


@dataclass(frozen=True)
class Turned:
    """σ(sin ψ + cos ψ x) as a function of x in [−edge, edge], for one angle ψ."""

    sigma: Profile
    angle: float
    edge: float

    def __call__(self, x: FloatArray) -> FloatArray:
        """Return the values at x."""
        return self.sigma(math.sin(self.angle) + math.cos(self.angle) * x)

    @property
    def panels(self) -> FloatArray:
        """Panels on which the function is smooth."""
        inner = np.array([-self.edge, *self.inside(self.sigma.breaks), self.edge])
        return panels.subdivided(inner, _WIDEST_PANEL)

    def inside(self, points: FloatArray) -> FloatArray:
        """Return those x in the interval at which sin ψ + cos ψ x is one of the points."""
        x = (points - math.sin(self.angle)) / math.cos(self.angle)
        return x[np.abs(x) < self.edge]


def angle_tables(
    activation: Activation, batch: float
) -> tuple[panels.Table, panels.Table, Resolved]:
    """Return the table of expectations given ψ from a fine and a coarse quadrature, and σ.

    The tables are functions of ψ in [−π/2, π/2] with the columns `AngleColumns`.

    Parameters
    ----------
    activation : Activation
        The activation σ.
    batch : float
        n ≥ 2, an integer or ``inf``.

    Raises
    ------
    UnresolvedError
        If the activation cannot be resolved.
    """
    sigma = resolved(activation, batch, wider=True)
    edges = np.linspace(-0.5 * math.pi, 0.5 * math.pi, 4)
    singular = singular_angles(sigma.profile.kinks, batch)

    def columns(order: int) -> Callable[[float], FloatArray]:
        return lambda angle: np.array(_columns_given(sigma.turned(angle), batch, order))

    tolerance = _NO_GRADIENT if sigma.explodes else _TOLERANCE
    fine = panels.tabulate(columns(_ORDER), edges, singular, _ORDER, tolerance)
    coarse = fine.on_same_panels(columns(_COARSE_ORDER), _COARSE_ORDER)
    return fine, coarse, sigma


def _columns_given(function: Turned, batch: float, order: int) -> AngleColumns[float]:
    """Return the columns of the table at one angle."""
    rule = sphere_rule(function, batch - 1, -1.0 / (batch - 1), function.panels, order)
    e, m = 1.0 / batch, moments(rule, batch)
    along = (
        (m.mean * by_mean + e * alone) / (1.0 - e) + cross
        for by_mean, alone, cross in zip((m.first, m.second), m.squares, m.cross, strict=True)
    )
    # tau is cos ψ σ′, the slope of `function`; y = 1 − φ sin ψ are the entries of K1.
    sine, cosine = math.sin(function.angle), math.cos(function.angle)
    phi, tau, tau_given = sine + cosine * rule.x, rule.slope, rule.slope_given
    y = 1.0 - sine * phi
    y_tau_given = cosine**2 * tau_given[0] - sine * cosine * tau_given[1]
    phi_tau_given = sine * tau_given[0] + cosine * tau_given[1]
    ones = rule.mean((tau * y) ** 2)
    trace = rule.mean(tau**2 * (1.0 - e * phi * phi))
    pair = rule.mean(tau * y * y_tau_given)
    trace_pair = trace - (1.0 - e) * rule.mean(tau * phi * phi_tau_given)
    columns = [m.mean, m.first, m.variance + m.mean**2, m.spread, *along, *m.diagonal, m.mixed]
    columns += [ones, trace / (1.0 - e), e * ones + (1.0 - e) * pair, trace_pair * e / (1.0 - e)]
    return AngleColumns(*columns)


def singular_angles(kinks: FloatArray, batch: float) -> FloatArray:
    """Return the angles ψ where a kink of one or two coordinates of φ leaves the sphere.

    If j coordinates are at kinks k_1, …, k_j, the others are equal there, and

        n sin ψ = Σ k_i ± √((n−j)(n − Σ k_i²)).
    """
    if batch >= _MOST_SINGULAR or kinks.size == 0:
        return np.empty(0)
    pairs = np.stack(np.meshgrid(kinks, kinks), axis=-1).reshape(-1, 2)
    sines = []
    for met in (kinks[:, None], pairs)[: int(batch) - 1]:
        inside = batch - np.sum(met**2, axis=1)
        middle = np.sum(met[inside >= 0.0], axis=1)
        root = np.sqrt((batch - met.shape[1]) * inside[inside >= 0.0])
        sines += [(middle - root) / batch, (middle + root) / batch]
    angles = np.sort(np.arcsin(np.clip(np.concatenate(sines), -1.0, 1.0)))
    angles = angles[np.abs(angles) < 0.5 * math.pi - _SAME_ANGLE]
    return angles[np.diff(angles, prepend=-math.inf) > _SAME_ANGLE]
