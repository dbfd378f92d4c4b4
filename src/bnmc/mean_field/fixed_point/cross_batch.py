"""Two batches through one network, under the norm that does not centre.

Permutations of either batch leave the block κ11ᵀ between them alone. Given it, the rows w and w′ of
the two depend on each other through their components ``z₀``, ``z₀′`` along 1 only, of correlation
``ρ = κ/most``, with ``most = b g₀/n`` the largest κ that there can be. So κ goes to

    X(ρ) = E[M(z₀)M(z₀′)],    M(z₀) = E[σ₁ | z₀],

which is convex for ρ ≥ 0 and, unless the batch is infinite, less than κ at ρ = 1: it has one fixed
point. Deviations κ11ᵀ from it shrink at the rate ``X′(ρ)/most``, those orthogonal to 1 on both
sides at ``E[A(z₀)A(z₀′)]/μ``, with ``A(z₀) = E[σ₁ z₁ | z₀] n/(n−1)`` and z₁ the first coordinate of
the standard normal vector of which the part of w orthogonal to 1 is a multiple; those orthogonal to
1 on one side at a rate whose modulus is no larger than the geometric mean of the two, by Cauchy and
Schwarz.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from bnmc.mean_field.quadrature.sphere import FloatArray, gauss_legendre
from bnmc.mean_field.quadrature.table import Table

__all__ = ["cross_batch"]
_COARSE_ORDER = 8

# Standard normal variables are cut off here, a weight of 1e-18; M and A are bounded.
_CUT = 9.0
_WIDEST_PANEL = 1.5
_LEAST_LENGTH = 1e-14
_MOST_STEPS = 100


def cross_batch(
    table: Table, batch: float, stretch: float, mu: float, order: int
) -> tuple[float, float]:
    """The entry κ of the block between two batches, and the rate at which it is reached.

    Parameters
    ----------
    table : Table
        ``E σ₁`` and ``E σ₁x₁`` at given ψ.
    batch, stretch, mu : float
        n, ``√(g₀/(n g₁))`` > 0 and ``μ = b(1−c)`` of the fixed point.
    order : int
        Nodes a panel.
    """
    most = mu * stretch**2
    rho = 0.0
    # The way to the zero is long and coarse, its last steps are short and fine.
    for nodes, tolerance in ((_COARSE_ORDER, 1e-6), (order, 1e-14)):
        profile = _profile(table, batch, stretch, nodes)
        if batch == math.inf and _products(profile, stretch, 1.0, nodes)[1] <= most:
            rho = 1.0
            continue
        # Newton's steps on a convex function, from the left of its first zero, never overshoot;
        # from the right, the first does.
        for _ in range(_MOST_STEPS):
            value, slope, _ = _products(profile, stretch, rho, nodes)
            step = (value - most * rho) / (most - slope)
            rho += step
            if abs(step) <= tolerance:
                break
    _, slope, across = _products(profile, stretch, rho, order)
    return float(rho * most), float(max(slope / most, across / mu))


def _profile(table: Table, batch: float, stretch: float, order: int) -> Table:
    """Piecewise polynomials of z₀: the columns M, M′ and A."""
    nodes, _, to_coefficients, differentiate = gauss_legendre(order)
    # The smaller the batch, the more often the part of w orthogonal to 1 is small.
    edges = _graded(1.0 / stretch, -2 - int(40.0 / batch))
    half = 0.5 * np.diff(edges)[:, None]
    z = 0.5 * (edges[1:] + edges[:-1])[:, None] + half * nodes
    mean, first = _given(table, batch, stretch, z.ravel(), order).reshape(2, *z.shape)
    values = np.stack([mean, mean @ differentiate.T / half, first], axis=-1)
    coefficients = np.einsum("kj,pjc->pkc", to_coefficients, values)
    return Table(edges[:-1], edges[1:], np.ones(edges.size - 1), coefficients)


def _graded(scale: float, lowest: int) -> FloatArray:
    """Ends of panels of [−_CUT, _CUT] that shrink in proportion towards the scale of 0."""
    highest = max(lowest, math.ceil(math.log2(_CUT / scale)))
    steps = scale * 2.0 ** np.arange(lowest, highest + 1.0)
    mesh = np.linspace(-_CUT, _CUT, 2 * math.ceil(_CUT / _WIDEST_PANEL) + 1)
    edges = np.concatenate([mesh, steps, -steps])
    return np.unique(edges[np.abs(edges) <= _CUT])


def _given(table: Table, batch: float, stretch: float, z: FloatArray, order: int) -> FloatArray:
    """M and A at some z₀: shape (2, z₀)."""
    if batch == math.inf:
        return table(np.arctan(stretch * z))
    # The length of the part orthogonal to 1 is χ-distributed, with n − 1 degrees of freedom.
    n, scale = batch, stretch * math.sqrt(batch) * np.abs(z)[:, None]
    low, high = max(_LEAST_LENGTH, math.sqrt(n - 2.0) - _CUT), math.sqrt(n - 2.0) + _CUT
    tangents = np.tan(table.edges[1:-1])
    with np.errstate(divide="ignore"):
        met = np.where(tangents * z[:, None] > 0.0, scale / np.abs(tangents), low)
    steps = 2.0 ** np.arange(-2.0, 8.0 + 40.0 / n)
    mesh = np.linspace(low, high, math.ceil((high - low) / _WIDEST_PANEL) + 1)
    edges = np.concatenate([met, scale * steps, np.tile(mesh, (z.size, 1))], axis=1)
    points, weights = _spread(np.sort(np.clip(edges, low, high), axis=1), order)
    weights *= np.exp((n - 2.0) * np.log(points / math.sqrt(n - 1.0)) - 0.5 * (points**2 - n + 1.0))
    weights /= weights.sum(axis=1, keepdims=True)
    angles = np.arctan(stretch * math.sqrt(n) * z[:, None] / points)
    mean, first = table(angles.ravel()).reshape(2, *angles.shape)
    first *= points * math.sqrt(n) / (n - 1.0)
    return np.stack([np.sum(weights * mean, axis=1), np.sum(weights * first, axis=1)])


def _spread(edges: FloatArray, order: int) -> tuple[FloatArray, FloatArray]:
    """Nodes and weights in the panels between edges; leading axes stay."""
    nodes, weights, _, _ = gauss_legendre(order)
    # Quadratic at both ends of a panel, where there may be roots or logarithms.
    position, length = 0.25 * np.pi * (nodes + 1.0), np.diff(edges)[..., None]
    points = edges[..., :-1, None] + length * np.sin(position) ** 2
    density = length * weights * np.sin(2.0 * position)
    shape = (*edges.shape[:-1], -1)
    return points.reshape(shape), density.reshape(shape)


def _products(profile: Table, stretch: float, rho: float, order: int) -> NDArray[np.float64]:
    """``E f(z₀)f(z₀′)`` for f = M, M′ and A, where z₀ and z₀′ have correlation ρ."""
    u, weight = _spread(profile.edges, order)
    weight *= np.exp(-0.5 * u * u)
    weight /= weight.sum()
    # z₀ and z₀′ are αu ± βv for independent u and v. Where β is small the product is smooth in v,
    # and where it is not, the two are steep near v = ∓αu/β.
    alpha, beta = math.sqrt(0.5 * (1.0 + rho)), math.sqrt(0.5 * max(0.0, 1.0 - rho))
    mesh = np.linspace(0.0, _CUT, math.ceil(_CUT / _WIDEST_PANEL) + 1)
    breaks = [np.tile(mesh, (u.size, 1))]
    if beta * stretch * _CUT > 0.25:
        steep = (alpha / beta) * np.abs(u)[:, None]
        steps = 2.0 ** np.arange(-2.0, 1.0 + math.log2(4.0 * _CUT * beta * stretch))
        breaks += [steep, steep + steps / (beta * stretch), steep - steps / (beta * stretch)]
    edges = np.sort(np.clip(np.concatenate(breaks, axis=1), 0.0, _CUT), axis=1)
    v, density = _spread(edges, order)
    density *= np.exp(-0.5 * v * v)
    density *= (weight / density.sum(axis=1))[:, None]
    sides = [profile((alpha * u[:, None] + sign * beta * v).ravel()) for sign in (1.0, -1.0)]
    return np.asarray(np.einsum("cp,cp,p->c", *sides, density.ravel()))
