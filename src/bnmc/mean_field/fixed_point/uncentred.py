"""The symmetric fixed point under a norm that does not centre, if the activation is not odd.

Up to its scale, the fixed point is G = (1−c) I + c 11ᵀ, with n the batch size, c the correlation of
two samples and 1 = (1, …, 1).  Its eigenvalues are g₀ = 1 + (n−1)c on 1, and g₁ = 1 − c orthogonal
to it.  The normalized row φ = √n w/‖w‖ of w ~ N(0, G) is

    φ_i = sin ψ + cos ψ x_i,    tan ψ = √(g₀/g₁) tan ψ′,

with x uniform on the sphere of radius √n orthogonal to 1, and ψ′ in [−π/2, π/2] independent of x,
with a density proportional to cos(ψ′)^(n−2).  Only the law of ψ depends on c.  Expectations over x
given ψ are tabulated once; the remaining integrals are over one angle (see
`bnmc.mean_field.fixed_point.expectations`).  All formulas are in terms of 1/n, so
an infinite batch needs no formulas of its own: there x and ζ = √n sin ψ′ are standard normal.

**Two batches in one network.**  Let b be the diagonal of the fixed point of each batch, μ = b g₁,
and σ_i = σ(φ_i).  Permutations within either batch preserve a block κ 11ᵀ between the two Gram
matrices.  Given that block, the rows w and w′ of the two batches depend on each other only
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
from collections.abc import Iterator

import numpy as np

from bnmc.chain.activations import Activation
from bnmc.errors import ArgumentError
from bnmc.mean_field.fixed_point import expectations
from bnmc.mean_field.fixed_point.results import SymmetricFixedPoint
from bnmc.mean_field.float64 import FloatArray, roots
from bnmc.mean_field.quadrature import panels

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
) -> tuple[SymmetricFixedPoint, SymmetricFixedPoint, expectations.Resolved]:
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
    fine, coarse, sigma = expectations.angle_tables(activation, batch)
    rules = (fine, _CROSS_ORDER), (coarse, _COARSE_CROSS_ORDER)
    points = [list(_fixed_points(table, batch, sigma.explodes, order)) for table, order in rules]
    if not all(points):
        allowed = f"a function that is not constant on the sphere of a batch of {batch}, and whose "
        allowed += "sum over the batch is not zero throughout"
        hint = "G* is singular and the Jacobian does not exist"
        raise ArgumentError("activation", activation.name, allowed, hint)
    best = min(points[0], key=lambda point: point.rate)
    return best, min(points[1], key=lambda point: abs(point.c - best.c)), sigma


def _stretches(table: panels.Table, batch: float) -> list[float]:
    """Return the stretches of all fixed points.

    At a fixed point 1 − c = E|Pσ|² / ((n−1) E σ₁²), with P the projector orthogonal to 1.
    """
    middle = expectations.AngleColumns(*table(np.zeros(1))[:, 0])
    if batch == math.inf and abs(middle.mean) <= _ZERO_MEAN * math.sqrt(middle.square):
        return [0.0]
    sides = _columns(table, "square", "spread")

    def excess(log_stretch: float) -> float:
        nodes = expectations.table_nodes(sides, batch, math.exp(log_stretch))
        square, spread = map(nodes.mean, sides(nodes.angle))
        # σ may be 0 at all nodes of an extreme stretch.
        return spread / square - nodes.g1 if square > 0.0 else -1.0

    least = _ZERO_MEAN if batch == math.inf else math.sqrt(_LEAST_RATIO / batch)
    grid = np.linspace(math.log(least), math.log(_MOST_STRETCH), _GRID)
    return [math.exp(point) for point in roots(excess, grid, rising=True)]


def _fixed_points(
    table: panels.Table, batch: float, explodes: bool, cross_order: int
) -> Iterator[SymmetricFixedPoint]:
    """Yield all fixed points; `cross_order` is for `cross_batch`."""
    for stretch in _stretches(table, batch):
        nodes = expectations.table_nodes(table, batch, stretch)
        columns = expectations.AngleColumns(*table(nodes.angle))
        square, spread = nodes.mean(columns.square), nodes.mean(columns.spread)
        jacobians, eigenvalues = _jacobians(nodes, columns)
        if stretch == 0.0:
            cross, cross_rate = 0.0, nodes.mean(columns.first) ** 2 / spread
        else:
            means = _columns(table, "mean", "first")
            cross, cross_rate = cross_batch(means, batch, stretch, spread, cross_order)
        yield SymmetricFixedPoint(
            b=square,
            c=1.0 - spread / square,
            eigenvalues=eigenvalues,
            rate=max(map(abs, eigenvalues)),
            backward_rate=math.inf if explodes else _backward_rate(nodes, columns),
            cross_batch=cross,
            cross_batch_rate=cross_rate,
            error=expectations.rounding_error(spread, square),
            jacobians=jacobians,
        )


def _columns(table: panels.Table, *names: str) -> panels.Table:
    """Return the table of some of the columns."""
    return table.columns([expectations.AngleColumns._fields.index(name) for name in names])


def _jacobians(
    nodes: expectations.AngleNodes, columns: expectations.AngleColumns[FloatArray]
) -> tuple[tuple[FloatArray, ...], tuple[complex, ...]]:
    """Return the Jacobian in each sector, for finite n, and its distinct eigenvalues.

    The eigenvalues are without that of the direction G*.

    The Jacobian is DF(G)[Δ] = ½ E[σσᵀ(wᵀG⁻¹ΔG⁻¹w − tr G⁻¹Δ)].  The direction of w ~ N(0, G) is
    given by ψ and x; its length is independent of both, with E|G^(−½)w|² = n.  The first eigenvalue
    is that on 11ᵀ.  With d orthogonal to 1, the next two (for n = 2 only one) are those on the span
    of diag(d) and d1ᵀ + 1dᵀ.  The last one (for n > 3) is that on all other symmetric matrices.
    """
    e, stretch, zeta, cosine = 1.0 / nodes.batch, nodes.stretch, nodes.zeta, nodes.cosine
    mu = nodes.mean(columns.spread)
    if stretch == 0.0:
        # E σ = 0, which `_stretches` returns for n = ∞ only.  The general formulas are 0/0 here.
        slope = nodes.mean(columns.mixed) / mu
        return (), (slope, slope, nodes.mean(columns.diagonal2) / (2.0 * mu), slope)
    score = zeta**2 - 1.0
    change = nodes.mean((columns.spread - nodes.g1 * columns.square) * score)
    eigenvalues: list[complex] = [-change / (2.0 * mu * nodes.g1 * stretch**2)]
    block = np.array([[nodes.mean(zeta * cosine * columns.along) / (stretch * mu)]])
    if nodes.batch > 2:
        norm = math.sqrt(2.0 * (1.0 - 2.0 * e))  # of P diag(d) P √2, for |d| = 1
        right = nodes.mean(cosine**2 * columns.along2) / (stretch * mu * norm)
        below = nodes.mean(zeta * cosine * columns.diagonal) / (mu * norm)
        last = nodes.mean(cosine**2 * columns.diagonal2) / (mu * norm**2)
        block = np.array([[block[0, 0], right], [below, last]])
    pair = np.linalg.eigvals(block).tolist()
    eigenvalues += sorted(pair, key=lambda value: (abs(value), value.imag), reverse=True)
    if nodes.batch > 3:
        eigenvalues.append(nodes.mean(cosine**2 * columns.mixed) / mu)
    if nodes.batch == math.inf:
        return (), tuple(eigenvalues)
    # The trivial sector sees 11ᵀ modulo G*.
    n, b, g1 = nodes.batch, nodes.mean(columns.square), nodes.g1
    sizes = np.array([math.sqrt(n), math.sqrt(n * (n - 1.0))])
    images = [nodes.mean(x * score) for x in (columns.square, columns.square - columns.spread)]
    image = sizes * images * 0.5 / (b * g1 * stretch**2)
    along_ones = np.array([(g1 - 1.0) * math.sqrt(n - 1.0), 1.0]) / (sizes[1] * g1)
    jacobians = [np.outer(image, along_ones), block]
    if n > 2:
        # From the orthonormal basis (d1ᵀ + 1dᵀ)/√(2n), P diag(d) P √2/norm to that of `Sector`.
        scale = np.array([math.sqrt(n) * stretch, 1.0])
        along, across = math.sqrt(2.0 * e), math.sqrt(1.0 - 2.0 * e)
        turn = np.array([[along, across], [across, -along]])
        jacobians[1] = turn @ (block * scale[:, None] / scale) @ turn
    if n > 3:
        jacobians.append(np.array([[eigenvalues[-1].real]]))
    return tuple(jacobians), tuple(eigenvalues)


def _backward_rate(
    nodes: expectations.AngleNodes, columns: expectations.AngleColumns[FloatArray]
) -> float:
    """Return the growth per layer of the covariance of the gradient within a batch.

    That covariance has the form p₀ 11ᵀ/n + p₁ P, with P the projector orthogonal to 1.  A layer
    maps (p₀, p₁) linearly and preserves positivity, so the growth is the larger eigenvalue.
    """
    e = 1.0 / nodes.batch
    weight = nodes.weight / nodes.cosine**2
    weight /= (1.0 - 2.0 * e) * nodes.mean(columns.spread)
    mean = expectations.AngleColumns(*(float(column @ weight) for column in columns))
    to_one = np.array([mean.one_pair, mean.ones - mean.one_pair])
    to_rest = np.array([mean.trace_pair, mean.trace - mean.trace_pair]) - to_one * e / (1.0 - e)
    return float(np.linalg.eigvals(np.stack([to_one, to_rest])).real.max())


# --- two batches in one network

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
    table: panels.Table, batch: float, stretch: float, mu: float, order: int
) -> tuple[float, float]:
    """Return the stationary entry κ of the block between two batches, and its rate per layer.

    Parameters
    ----------
    table : Table
        The columns E σ₁ and E σ₁x₁ given the angle ψ; see
        `bnmc.mean_field.fixed_point.expectations`.
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


def _profile(table: panels.Table, batch: float, stretch: float, order: int) -> panels.Table:
    """Return the table of M, its derivative and A as functions of z₀."""
    rule = panels.gauss_legendre(order)
    # In small batches the part of w orthogonal to 1 is often small, so panels near 0 are short.
    edges = _graded(1.0 / stretch, -2 - int(40.0 / batch))
    z, half = panels.panel_points(edges, rule.nodes)
    mean, first = _given(table, batch, stretch, z.ravel(), order).reshape(2, *z.shape)
    slopes = mean @ rule.differentiate.T / half
    return panels.Table.through(edges, np.stack([mean, slopes, first], axis=-1))


def _graded(scale: float, lowest: int) -> FloatArray:
    """Return ends of panels of [−9, 9] whose lengths are powers of 2 times `scale` near 0."""
    highest = max(lowest, math.ceil(math.log2(_CUT / scale)))
    steps = scale * 2.0 ** np.arange(lowest, highest + 1.0)
    mesh = np.linspace(-_CUT, _CUT, 2 * math.ceil(_CUT / _WIDEST_PANEL) + 1)
    edges = np.concatenate([mesh, steps, -steps])
    return np.unique(edges[np.abs(edges) <= _CUT])


def _given(
    table: panels.Table, batch: float, stretch: float, z: FloatArray, order: int
) -> FloatArray:
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
    points, weights = panels.root_panels(np.sort(np.clip(edges, low, high), axis=1), order)
    weights *= np.exp((n - 2.0) * np.log(points / math.sqrt(n - 1.0)) - 0.5 * (points**2 - n + 1.0))
    weights /= weights.sum(axis=1, keepdims=True)
    angles = np.arctan(stretch * math.sqrt(n) * z[:, None] / points)
    mean, first = table(angles.ravel()).reshape(2, *angles.shape)
    first *= points * math.sqrt(n) / (n - 1.0)
    return np.stack([np.sum(weights * mean, axis=1), np.sum(weights * first, axis=1)])


def _products(profile: panels.Table, stretch: float, rho: float, order: int) -> FloatArray:
    """Return E f(z₀) f(z₀′) for f = M, M′ and A, if z₀ and z₀′ have the correlation `rho`."""
    u, weight = panels.coordinate_rule(profile.edges, math.inf, order, roots=True)
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
    v, density = panels.coordinate_rule(edges, math.inf, order, roots=True)
    density *= weight[:, None]
    sides = [profile((alpha * u[:, None] + sign * beta * v).ravel()) for sign in (1.0, -1.0)]
    return np.asarray(np.einsum("cp,cp,p->c", *sides, density.ravel()))
