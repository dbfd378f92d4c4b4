"""The symmetric fixed point under a norm that does not centre, if the activation is not odd.

Up to its scale, the fixed point is G = (1−c) I + c 11ᵀ, with n the batch size, c the correlation of
two samples and 1 = (1, …, 1).  Its eigenvalues are g₀ = 1 + (n−1)c on 1, and g₁ = 1 − c orthogonal
to it.  The normalized row φ = √n w/‖w‖ of w ~ N(0, G) is

    φ_i = sin ψ + cos ψ x_i,    tan ψ = √(g₀/g₁) tan ψ′,

with x uniform on the sphere of radius √n orthogonal to 1, and ψ′ in [−π/2, π/2] independent of x,
with a density proportional to cos(ψ′)^(n−2).  Only the law of ψ depends on c.  Expectations over x
given ψ are tabulated once (`bnmc.mean_field.fixed_point.angle_table`); the remaining integrals are
over one angle (`bnmc.mean_field.fixed_point.angle_average`).  All formulas are in terms of 1/n, so
an infinite batch needs no formulas of its own: there x and ζ = √n sin ψ′ are standard normal.
"""

from __future__ import annotations

import math

import numpy as np

from bnmc.chain.activations import Activation
from bnmc.errors import ArgumentError
from bnmc.mean_field.fixed_point.accuracy import Resolved
from bnmc.mean_field.fixed_point.angle_average import AngleAverage, angle_average
from bnmc.mean_field.fixed_point.angle_table import angle_tables
from bnmc.mean_field.fixed_point.cross_batch import cross_batch
from bnmc.mean_field.fixed_point.isotropic import rounding_error
from bnmc.mean_field.fixed_point.results import SymmetricFixedPoint
from bnmc.mean_field.quadrature.panels import Table

__all__ = ["uncentred"]

# Nodes per panel of the integrals between two batches, for the fine and the coarse result.
_CROSS_ORDER, _COARSE_CROSS_ORDER = 16, 12

# The stretch √(g₀/(n g₁)) is sought up to _MOST_STRETCH, and g₀/g₁ down to _LEAST_RATIO.  Beyond,
# G* is singular to rounding.
_MOST_STRETCH, _LEAST_RATIO = 1e8, 1e-12

# Points of the grid of stretches, on which sign changes are sought.
_GRID = 64

# If |E σ|, relative to the root mean square of σ, is at most this, E σ is 0.
_ZERO_MEAN = 1e-13


def uncentred(
    activation: Activation, batch: float
) -> tuple[SymmetricFixedPoint, SymmetricFixedPoint, Resolved]:
    """Return the fixed point from a fine and a coarse quadrature, and what is known about σ.

    `error` is only that of rounding.

    If there are several fixed points, the one of least rate is returned.  No activation is known
    that has several.

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
    ArgumentError
        If G* is singular.
    """
    fine, coarse, known = angle_tables(activation, batch)
    points = [
        [
            _fixed_point(table, batch, stretch, known.gradient.explodes, order)
            for stretch in _stretches(table, batch)
        ]
        for table, order in ((fine, _CROSS_ORDER), (coarse, _COARSE_CROSS_ORDER))
    ]
    if not all(points):
        raise ArgumentError(
            "activation",
            activation.name,
            f"a function that is not constant on the sphere of a batch of {batch}, and whose sum "
            "over the batch is not zero throughout",
            "G* is singular and the Jacobian does not exist",
        )
    best = min(points[0], key=lambda point: point.rate)
    return best, min(points[1], key=lambda point: abs(point.c - best.c)), known


def _stretches(table: Table, batch: float) -> list[float]:
    """Return the stretches of all fixed points.

    At a fixed point 1 − c = E|Pσ|² / ((n−1) E σ₁²), with P the projector orthogonal to 1.
    """
    from scipy.optimize import brentq

    mean, _, square = table(np.zeros(1))[:3, 0]
    if batch == math.inf and abs(mean) <= _ZERO_MEAN * math.sqrt(square):
        return [0.0]
    sides = table.columns(slice(2, 4))

    def excess(log_stretch: float) -> float:
        average = angle_average(sides, batch, math.exp(log_stretch))
        square, spread = (average.mean(column) for column in average.columns)
        # σ may be 0 at all nodes of an extreme stretch.
        return spread / square - average.spread if square > 0.0 else -1.0

    least = _ZERO_MEAN if batch == math.inf else math.sqrt(_LEAST_RATIO / batch)
    grid = np.linspace(math.log(least), math.log(_MOST_STRETCH), _GRID)
    positive = np.array([excess(point) > 0.0 for point in grid])
    return [
        math.exp(brentq(excess, grid[i], grid[i + 1], xtol=1e-15, rtol=1e-15))
        for i in np.flatnonzero(~positive[:-1] & positive[1:])
    ]


def _fixed_point(
    table: Table, batch: float, stretch: float, explodes: bool, cross_order: int
) -> SymmetricFixedPoint:
    """Return the fixed point with a given stretch; `cross_order` is for `cross_batch`."""
    average = angle_average(table, batch, stretch)
    first, square, spread = (average.mean(column) for column in average.columns[1:4])
    eigenvalues = _eigenvalues(average)
    if stretch == 0.0:
        cross, cross_rate = 0.0, first**2 / spread
    else:
        cross, cross_rate = cross_batch(
            table.columns(slice(0, 2)), batch, stretch, spread, cross_order
        )
    return SymmetricFixedPoint(
        b=square,
        c=1.0 - spread / square,
        eigenvalues=eigenvalues,
        rate=max(map(abs, eigenvalues)),
        backward_rate=math.inf if explodes else _backward_rate(average),
        cross_batch=cross,
        cross_batch_rate=cross_rate,
        error=rounding_error(spread, square),
    )


def _eigenvalues(average: AngleAverage) -> tuple[complex, ...]:
    """Return the distinct eigenvalues of the Jacobian, without that of the direction G*.

    The Jacobian is DF(G)[Δ] = ½ E[σσᵀ(wᵀG⁻¹ΔG⁻¹w − tr G⁻¹Δ)].  The direction of w ~ N(0, G) is
    given by ψ and x; its length is independent of both, with E|G^(−½)w|² = n.  The first eigenvalue
    is that on 11ᵀ.  With d orthogonal to 1, the next two (for n = 2 only one) are those on the span
    of diag(d) and d1ᵀ + 1dᵀ.  The last one (for n > 3) is that on all other symmetric matrices.
    """
    e, stretch, zeta, cosine = 1.0 / average.batch, average.stretch, average.zeta, average.cosine
    square, spread, along, along2, diagonal, diagonal2, mixed = average.columns[2:9]
    mu = average.mean(spread)
    if stretch == 0.0:
        # E σ = 0, which `_stretches` returns for n = ∞ only.  The general formulas are 0/0 here.
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


def _backward_rate(average: AngleAverage) -> float:
    """Return the growth per layer of the covariance of the gradient within a batch.

    That covariance has the form p₀ 11ᵀ/n + p₁ P, with P the projector orthogonal to 1.  A layer
    maps (p₀, p₁) linearly and preserves positivity, so the growth is the larger eigenvalue.
    """
    e = 1.0 / average.batch
    weight = average.weight / average.cosine**2
    weight /= (1.0 - 2.0 * e) * average.mean(average.columns[3])
    one, trace, one_pair, trace_pair = average.columns[9:] @ weight
    to_one = np.array([one_pair, one - one_pair])
    to_rest = np.array([trace_pair, trace - trace_pair]) - to_one * e / (1.0 - e)
    return float(np.linalg.eigvals(np.stack([to_one, to_rest])).real.max())
