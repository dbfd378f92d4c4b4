"""Two batches in one network under a norm that does not centre: their joint fixed point.

Notation: n is the batch size, b and c the diagonal and the correlation of the symmetric fixed point
of each batch, 1 = (1, …, 1), g₀ = 1 + (n−1)c, g₁ = 1 − c, μ = b g₁, and σ_i = σ(φ_i) the activation
of the normalized rows.  Permutations within either batch preserve a block κ 11ᵀ between the two
Gram matrices.  Given that block, the rows w and w′ of the two batches depend on each other only
through their components along 1.  Divided by their standard deviation, these are standard normal
variables z₀ and z₀′ of correlation ρ = κ/κ_max, with κ_max = b g₀/n.  A layer maps κ to

    X(ρ) = E[M(z₀) M(z₀′)],    M(z₀) = E[σ₁ | z₀],

which is convex for ρ ≥ 0 and, for finite n, less than κ_max at ρ = 1.  So there is one fixed point.
Deviations κ 11ᵀ from it shrink at the rate X′(ρ)/κ_max.  Deviations orthogonal to 1 on both sides
shrink at the rate E[A(z₀) A(z₀′)]/μ, with A(z₀) = E[σ₁ z₁ | z₀] n/(n−1), where z₁ is the first
entry of the standard normal vector to which the part of w orthogonal to 1 is proportional.  By the
Cauchy-Schwarz inequality, the rate of deviations that are orthogonal to 1 on one side only is at
most the geometric mean of the two.
"""

from __future__ import annotations

import math

import numpy as np

from bnmc.mean_field.float64 import FloatArray
from bnmc.mean_field.quadrature.panels import Table, gauss_legendre, panel_points, root_panels

__all__ = ["cross_batch"]

# Nodes per panel while Newton's method is far from the fixed point.
_COARSE_ORDER = 8

# Standard normal variables are cut off at this; the weight beyond is 1e-18.  M and A are bounded.
_CUT = 9.0

# Widest panel in a standard normal variable, and shortest length of the part orthogonal to 1.
_WIDEST_PANEL = 1.5
_LEAST_LENGTH = 1e-14

# Newton steps at most.
_MOST_STEPS = 100


def cross_batch(
    table: Table, batch: float, stretch: float, mu: float, order: int
) -> tuple[float, float]:
    """Return the stationary entry κ of the block between two batches, and its rate per layer.

    Parameters
    ----------
    table : Table
        The columns E σ₁ and E σ₁x₁ given the angle ψ; see
        `bnmc.mean_field.fixed_point.angle_table`.
    batch : float
        n ≥ 2, an integer or ``inf``.
    stretch : float
        √(g₀/(n g₁)) > 0.
    mu : float
        μ = b g₁.
    order : int
        Nodes per panel.
    """
    most = mu * stretch**2
    rho = 0.0
    # The first steps are long and need few nodes; the last ones are short and need all nodes.
    for nodes, tolerance in ((_COARSE_ORDER, 1e-6), (order, 1e-14)):
        profile = _profile(table, batch, stretch, nodes)
        if batch == math.inf and _products(profile, stretch, 1.0, nodes)[1] <= most:
            rho = 1.0
            continue
        # X(ρ) − κ_max ρ is convex, so Newton steps from the left of its first zero never overshoot.
        # From the right of it, the first step leads to the left.
        for _ in range(_MOST_STEPS):
            value, slope, _ = _products(profile, stretch, rho, nodes)
            step = (value - most * rho) / (most - slope)
            rho += step
            if abs(step) <= tolerance:
                break
    _, slope, across = _products(profile, stretch, rho, order)
    return float(rho * most), float(max(slope / most, across / mu))


def _profile(table: Table, batch: float, stretch: float, order: int) -> Table:
    """Return the table of M, its derivative and A as functions of z₀."""
    nodes, _, to_coefficients, differentiate = gauss_legendre(order)
    # In small batches the part of w orthogonal to 1 is often small, so panels near 0 are short.
    edges = _graded(1.0 / stretch, -2 - int(40.0 / batch))
    z, half = panel_points(edges, nodes)
    mean, first = _given(table, batch, stretch, z.ravel(), order).reshape(2, *z.shape)
    values = np.stack([mean, mean @ differentiate.T / half, first], axis=-1)
    coefficients = np.einsum("kj,pjc->pkc", to_coefficients, values)
    return Table(edges[:-1], edges[1:], np.ones(edges.size - 1), coefficients)


def _graded(scale: float, lowest: int) -> FloatArray:
    """Return ends of panels of [−9, 9] whose lengths are powers of 2 times `scale` near 0."""
    highest = max(lowest, math.ceil(math.log2(_CUT / scale)))
    steps = scale * 2.0 ** np.arange(lowest, highest + 1.0)
    mesh = np.linspace(-_CUT, _CUT, 2 * math.ceil(_CUT / _WIDEST_PANEL) + 1)
    edges = np.concatenate([mesh, steps, -steps])
    return np.unique(edges[np.abs(edges) <= _CUT])


def _given(table: Table, batch: float, stretch: float, z: FloatArray, order: int) -> FloatArray:
    """Return M and A at several z₀, shape (2, len(z))."""
    if batch == math.inf:
        return table(np.arctan(stretch * z))
    # The length of the part of the row orthogonal to 1 has a χ law with n − 1 degrees of freedom.
    n, scale = batch, stretch * math.sqrt(batch) * np.abs(z)[:, None]
    low, high = max(_LEAST_LENGTH, math.sqrt(n - 2.0) - _CUT), math.sqrt(n - 2.0) + _CUT
    tangents = np.tan(table.edges[1:-1])
    with np.errstate(divide="ignore"):
        met = np.where(tangents * z[:, None] > 0.0, scale / np.abs(tangents), low)
    steps = 2.0 ** np.arange(-2.0, 8.0 + 40.0 / n)
    mesh = np.linspace(low, high, math.ceil((high - low) / _WIDEST_PANEL) + 1)
    edges = np.concatenate([met, scale * steps, np.tile(mesh, (z.size, 1))], axis=1)
    points, weights = root_panels(np.sort(np.clip(edges, low, high), axis=1), order)
    weights *= np.exp((n - 2.0) * np.log(points / math.sqrt(n - 1.0)) - 0.5 * (points**2 - n + 1.0))
    weights /= weights.sum(axis=1, keepdims=True)
    angles = np.arctan(stretch * math.sqrt(n) * z[:, None] / points)
    mean, first = table(angles.ravel()).reshape(2, *angles.shape)
    first *= points * math.sqrt(n) / (n - 1.0)
    return np.stack([np.sum(weights * mean, axis=1), np.sum(weights * first, axis=1)])


def _products(profile: Table, stretch: float, rho: float, order: int) -> FloatArray:
    """Return E f(z₀) f(z₀′) for f = M, M′ and A, if z₀ and z₀′ have the correlation `rho`."""
    u, weight = root_panels(profile.edges, order)
    weight *= np.exp(-0.5 * u * u)
    weight /= weight.sum()
    # z₀ and z₀′ are αu ± βv for independent standard normal u and v.  If β is small, the product is
    # smooth in v; otherwise f(z₀) and f(z₀′) are steep near v = ∓αu/β.
    alpha, beta = math.sqrt(0.5 * (1.0 + rho)), math.sqrt(0.5 * max(0.0, 1.0 - rho))
    mesh = np.linspace(0.0, _CUT, math.ceil(_CUT / _WIDEST_PANEL) + 1)
    breaks = [np.tile(mesh, (u.size, 1))]
    if beta * stretch * _CUT > 0.25:
        steep = (alpha / beta) * np.abs(u)[:, None]
        steps = 2.0 ** np.arange(-2.0, 1.0 + math.log2(4.0 * _CUT * beta * stretch))
        breaks += [steep, steep + steps / (beta * stretch), steep - steps / (beta * stretch)]
    edges = np.sort(np.clip(np.concatenate(breaks, axis=1), 0.0, _CUT), axis=1)
    v, density = root_panels(edges, order)
    density *= np.exp(-0.5 * v * v)
    density *= (weight / density.sum(axis=1))[:, None]
    sides = [profile((alpha * u[:, None] + sign * beta * v).ravel()) for sign in (1.0, -1.0)]
    return np.asarray(np.einsum("cp,cp,p->c", *sides, density.ravel()))
