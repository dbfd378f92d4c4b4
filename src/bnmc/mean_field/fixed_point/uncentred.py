"""The fixed point under the norm that does not centre, for an activation that is not odd.

``G = (1−c) I + c 11ᵀ`` has the eigenvalue ``g₀ = 1 + (n−1)c`` on 1 and ``g₁ = 1 − c`` orthogonal to
it. The row ``φ = √n w/‖w‖`` of ``w ~ N(0, G)`` is

    φ_i = sin ψ + cos ψ x_i,    tan ψ = √(g₀/g₁) tan ψ′,    ψ′ ~ cos(ψ′)^(n−2)  on [−π/2, π/2],

with x uniform on the sphere of radius √n orthogonal to 1 and independent of ψ′. Only ψ knows of c,
so all expectations over x at given ψ are tabulated once, and what depends on c are integrals over
one angle. Everything is written in 1/n, so that an infinite batch, where x and ``ζ = √n sin ψ′``
are standard normal, is no case of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from bnmc.chain.activations import Activation
from bnmc.errors import ArgumentError
from bnmc.mean_field.fixed_point.cross_batch import cross_batch
from bnmc.mean_field.fixed_point.results import Star
from bnmc.mean_field.quadrature.moments import moments
from bnmc.mean_field.quadrature.sphere import (
    FloatArray,
    gauss_legendre,
    jumps,
    normal_rule,
    reach,
    resolve,
    sphere_rule,
    subdivided,
)
from bnmc.mean_field.quadrature.table import Table, tabulate

__all__ = ["uncentred"]

# Nodes a panel of x and of ψ, and those of the coarser result that it is compared with.
_ORDER, _COARSE_ORDER = 24, 20
_ANGLE_ORDER, _CROSS_ORDER, _COARSE_CROSS_ORDER = 20, 16, 12

# With so many nodes, panels of this width resolve the normal density.
_WIDEST_PANEL, _WIDEST_ANGLE = 3.0, 1.5

# The table is resolved to this share of each of its columns. The last four have slopes in them,
# which are known less well; where the gradient explodes at once, they do not count.
_TOLERANCE = np.array([1e-12] * 9 + [1e-10] * 4)
_NO_GRADIENT = np.array([1e-12] * 9 + [1.0] * 4)

# Up to this batch size the table has root singularities where kinks leave the sphere; beyond, they
# are of so high an order that nothing is seen of them.
_MOST_SINGULAR = 32
_SAME_ANGLE = 1e-9

# √(g₀/(n g₁)) is sought up to this, and g₀/g₁ down to that: G* is singular to rounding beyond.
_MOST_STRETCH, _LEAST_RATIO = 1e8, 1e-12
_GRID = 64

# A mean of σ this small beside its root mean square is zero.
_ZERO_MEAN = 1e-13


def uncentred(activation: Activation, batch: float) -> tuple[Star, Star]:
    """The fixed point and, from a coarser quadrature, again; their `error` is that of rounding.

    Where there are several fixed points (no activation is known for which there are), it is the
    one of the least rate.

    Parameters
    ----------
    activation : Activation
    batch : float
        n ≥ 2, an integer or ``inf``.

    Raises
    ------
    UnresolvedError
        The activation cannot be resolved.
    ArgumentError
        ``G*`` is singular.
    """
    breaks = resolve(activation, math.hypot(1.0, reach(batch - 1)), activation.kinks)
    kinks = np.unique(np.concatenate([jumps(activation, breaks, order) for order in range(3)]))
    edges = np.linspace(-0.5 * math.pi, 0.5 * math.pi, 4)
    singular = _singular_angles(kinks, batch)

    def slices(order: int) -> Callable[[float], FloatArray]:
        return lambda angle: _slice(activation, batch, angle, breaks, order)

    explodes = batch <= 2 or jumps(activation, breaks, 0).size > 0
    tolerance = _NO_GRADIENT if explodes else _TOLERANCE
    fine = tabulate(slices(_ORDER), edges, singular, _ORDER, tolerance)
    coarse = fine.of(slices(_COARSE_ORDER), _COARSE_ORDER)
    stars = [
        [_star(table, batch, stretch, explodes, order) for stretch in _stretches(table, batch)]
        for table, order in ((fine, _CROSS_ORDER), (coarse, _COARSE_CROSS_ORDER))
    ]
    if not all(stars):
        raise ArgumentError(
            "activation",
            activation.name,
            f"a function that is not constant on the sphere of a batch of {batch}, and whose sum "
            "over the batch is not zero throughout",
            "G* is singular and the Jacobian does not exist",
        )
    best = min(stars[0], key=lambda star: star.rate)
    return best, min(stars[1], key=lambda star: abs(star.c - best.c))


# --- expectations over x, at given ψ -----------------------------------------------------------


def _slice(
    activation: Activation, batch: float, angle: float, breaks: FloatArray, order: int
) -> FloatArray:
    """Columns of the table, for σ(sin ψ + cos ψ x) as a function of x.

    With σ̄ the mean of σ over the batch, P the projector orthogonal to 1, τ = σ′ cos ψ and
    y = 1 − φ sin ψ, the columns are

     0, 1     E σ₁ and E σ₁x₁;
     2, 3     E σ₁² and E|Pσ|²/(n−1);
     4, 5     n/(n−1) E σ̄σ₁x₁ and the same of x₁² − 1;
     6, 7     n/(n−1) E (Pσ)₁²x₁ and the same of x₁² − 1;
     8        E σ₁σ₂(x₁−x₃)(x₂−x₄);
     9, 10    1ᵀA1/n and tr A/(n−1) for A = cos²ψ E K diag(σ′)² K, K = I − φφᵀ/n;
    11, 12    the same for A = cos²ψ E Kσ′σ′ᵀK/n.
    """
    sine, cosine = math.sin(angle), math.cos(angle)

    def function(x: FloatArray) -> FloatArray:
        return np.asarray(activation(sine + cosine * x))

    edge = reach(batch - 1)
    inner = (breaks - sine) / cosine
    inner = subdivided(np.array([-edge, *inner[np.abs(inner) < edge], edge]), _WIDEST_PANEL)
    if batch == math.inf:
        rule = normal_rule(function, inner, order)
    else:
        n = int(batch)
        rule = sphere_rule(function, n - 1, -1.0 / (n - 1), inner, order)
    e, m = 1.0 / batch, moments(rule, batch)
    along = [
        (m.mean * by_mean + e * own) / (1.0 - e) + cross
        for by_mean, own, cross in zip((m.first, m.second), m.own, m.cross, strict=True)
    ]

    phi, tau, tau_given = sine + cosine * rule.x, rule.slope, rule.slope_given
    y = 1.0 - sine * phi
    y_tau_given = cosine**2 * tau_given[0] - sine * cosine * tau_given[1]
    phi_tau_given = sine * tau_given[0] + cosine * tau_given[1]
    one = rule.mean((tau * y) ** 2)
    trace = rule.mean(tau**2 * (1.0 - e * phi * phi))
    pair = rule.mean(tau * y * y_tau_given)
    trace_pair = trace - (1.0 - e) * rule.mean(tau * phi * phi_tau_given)
    columns = [m.mean, m.first, m.variance + m.mean**2, m.spread, *along, *m.diagonal, m.mixed]
    columns += [one, trace / (1.0 - e), e * one + (1.0 - e) * pair, trace_pair * e / (1.0 - e)]
    return np.array(columns)


def _singular_angles(kinks: FloatArray, batch: float) -> FloatArray:
    """Angles ψ where one of φ, or two, meet kinks at the edge of what the others leave them.

    There the others are equal: ``n sin ψ = Σk ± √((n−j)(n−Σk²))`` for j coordinates at kinks k.
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
    distinct: FloatArray = angles[np.diff(angles, prepend=-math.inf) > _SAME_ANGLE]
    return distinct


# --- expectations over ψ -----------------------------------------------------------------------


@dataclass(frozen=True)
class _Average:
    """The law of ψ for one ``stretch = √(g₀/(n g₁))``, and the table at its nodes.

    Attributes
    ----------
    batch, stretch : float
    zeta, cosine, weight : ndarray of shape (nodes,)
        ``√n sin ψ′``, ``cos ψ′`` and weights that sum to 1.
    columns : ndarray of shape (columns, nodes)
    """

    batch: float
    stretch: float
    zeta: FloatArray
    cosine: FloatArray
    weight: FloatArray
    columns: FloatArray

    @property
    def spread(self) -> float:
        """``1 − c`` of the G with this stretch."""
        return 1.0 / (self.stretch**2 + 1.0 - 1.0 / self.batch)

    def mean(self, values: FloatArray) -> float:
        """Expectation of values at the nodes."""
        return float(self.weight @ values)


def _average(table: Table, batch: float, stretch: float) -> _Average:
    # t = √n tan ψ′ is the tangent of ψ divided by the stretch; v = √n ψ′, or t where n is infinite.
    root = math.sqrt(batch)

    def v(t: FloatArray) -> FloatArray:
        return t if batch == math.inf else np.asarray(root * np.arctan(t / root))

    last = reach(batch) if batch == math.inf else root * math.asin(min(1.0, reach(batch) / root))
    # Where ψ crosses from panel to panel; and from the scale of ψ to that of ψ′ in equal ratios.
    crossings = v(np.tan(table.edges[1:-1]) / stretch) if stretch else np.empty(0)
    ratio = max(stretch, 1.0 / stretch) if stretch else 1.0
    steps = 4.0 ** np.arange(3.0 + math.ceil(math.log(ratio, 4.0)))
    between = v(0.25 * steps * (1.0 / stretch if stretch > 1.0 else 1.0))
    inner = np.concatenate([crossings, between, -between])
    edges = np.sort(np.array([-last, *inner[np.abs(inner) < last], last]))
    edges = subdivided(edges, _WIDEST_ANGLE)

    nodes, weights, _, _ = gauss_legendre(_ANGLE_ORDER)
    position, length = 0.25 * np.pi * (nodes + 1.0), np.diff(edges)[:, None]
    # Quadratic at both ends of a panel, where the table may have roots.
    point = (edges[:-1, None] + length * np.sin(position) ** 2).ravel()
    weight = (length * weights * np.sin(2.0 * position)).ravel()
    if batch == math.inf:
        t, zeta, cosine = point, point, np.ones_like(point)
        weight *= np.exp(-0.5 * point**2)
    else:
        angle = point / root
        t, zeta, cosine = root * np.tan(angle), root * np.sin(angle), np.cos(angle)
        weight *= np.exp((batch - 2.0) * np.log1p(-2.0 * np.sin(0.5 * angle) ** 2))
    weight /= weight.sum()
    return _Average(batch, stretch, zeta, cosine, weight, table(np.arctan(stretch * t)))


def _stretches(table: Table, batch: float) -> list[float]:
    """The stretches of the fixed points: where 1 − c is ``E|Pσ|²/(n−1)`` over ``E σ₁²``."""
    from scipy.optimize import brentq

    mean, _, square = table(np.zeros(1))[:3, 0]
    if batch == math.inf and abs(mean) <= _ZERO_MEAN * math.sqrt(square):
        return [0.0]
    sides = table.columns(slice(2, 4))

    def excess(log_stretch: float) -> float:
        average = _average(sides, batch, math.exp(log_stretch))
        square, spread = (average.mean(column) for column in average.columns)
        return spread / square - average.spread

    least = _ZERO_MEAN if batch == math.inf else math.sqrt(_LEAST_RATIO / batch)
    grid = np.linspace(math.log(least), math.log(_MOST_STRETCH), _GRID)
    positive = np.array([excess(point) > 0.0 for point in grid])
    return [
        math.exp(brentq(excess, grid[i], grid[i + 1], xtol=1e-15, rtol=1e-15))
        for i in np.flatnonzero(~positive[:-1] & positive[1:])
    ]


def _star(table: Table, batch: float, stretch: float, explodes: bool, cross_order: int) -> Star:
    average = _average(table, batch, stretch)
    first, square, spread = (average.mean(column) for column in average.columns[1:4])
    eigenvalues = _eigenvalues(average)
    if stretch == 0.0:
        cross, cross_rate = 0.0, first**2 / spread
    else:
        cross, cross_rate = cross_batch(
            table.columns(slice(0, 2)), batch, stretch, spread, cross_order
        )
    return Star(
        b=square,
        c=1.0 - spread / square,
        eigenvalues=eigenvalues,
        rate=max(map(abs, eigenvalues)),
        backward_rate=math.inf if explodes else _backward_rate(average),
        cross_batch=cross,
        cross_batch_rate=cross_rate,
        error=8.0 * float(np.finfo(np.float64).eps) * math.sqrt(square / spread),
    )


def _eigenvalues(average: _Average) -> tuple[complex, ...]:
    """The eigenvalue on 11ᵀ, two (for n = 2 one) on the diag(d) and d1ᵀ + 1dᵀ, d ⊥ 1, and the rest.

    ``DF(G)[Δ] = ½ E[σσᵀ(wᵀG⁻¹ΔG⁻¹w − tr G⁻¹Δ)]`` for the w ~ N(0, G) of which ψ and x are the
    direction; its length is independent of both, ``E|G^(−½)w|² = n``.
    """
    e, stretch, zeta, cosine = 1.0 / average.batch, average.stretch, average.zeta, average.cosine
    square, spread, along, along2, diagonal, diagonal2, mixed = average.columns[2:9]
    mu = average.mean(spread)
    if stretch == 0.0:
        # The mean of σ is zero, and only n = ∞ comes here: what depends on it is a limit 0/0.
        slope = average.mean(mixed) / mu
        return slope, slope, average.mean(diagonal2) / (2.0 * mu), slope
    score = zeta**2 - 1.0
    change = average.mean((spread - average.spread * square) * score)
    eigenvalues: list[complex] = [-change / (2.0 * mu * average.spread * stretch**2)]
    block = np.array([[average.mean(zeta * cosine * along) / (stretch * mu)]])
    if average.batch > 2:
        norm = math.sqrt(2.0 * (1.0 - 2.0 * e))  # of P diag(d) P √2, for |d| = 1
        right = average.mean(cosine**2 * along2) / (stretch * mu * norm)
        below = average.mean(zeta * cosine * diagonal) / (mu * norm)
        last = average.mean(cosine**2 * diagonal2) / (mu * norm**2)
        block = np.array([[block[0, 0], right], [below, last]])
    pair = np.linalg.eigvals(block).tolist()
    eigenvalues += sorted(pair, key=lambda value: (abs(value), value.imag), reverse=True)
    if average.batch > 3:
        eigenvalues.append(average.mean(cosine**2 * mixed) / mu)
    return tuple(eigenvalues)


def _backward_rate(average: _Average) -> float:
    """Growth of the covariance of the gradient within a batch, ``p₀ 11ᵀ/n + p₁ P``, in a layer.

    Where positive numbers go to positive numbers the larger eigenvalue is the growth.
    """
    e = 1.0 / average.batch
    weight = average.weight / average.cosine**2
    weight /= (1.0 - 2.0 * e) * average.mean(average.columns[3])
    one, trace, one_pair, trace_pair = average.columns[9:] @ weight
    to_one = np.array([one_pair, one - one_pair])
    to_rest = np.array([trace_pair, trace - trace_pair]) - to_one * e / (1.0 - e)
    return float(np.linalg.eigvals(np.stack([to_one, to_rest])).real.max())
