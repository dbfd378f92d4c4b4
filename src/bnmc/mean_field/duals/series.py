"""Dual activations of any function: a Hermite series in the correlation, or quadrature of pairs.

Let u, v be centred normal variables with variances p, q and correlation ρ, h_k the normalized
Hermite polynomials and z a standard normal variable.  With a_k(q) = E f(√q z) h_k(z),

    E f(u) f(v) = Σ_k a_k(p) a_k(q) ρ^k

(Mehler).  After K terms the rest is at most |ρ|^K √(R(p) R(q)), with R(q) = E f(√q z)² − Σ a_k(q)²
the part of the mean square that the K terms lack (Cauchy and Schwarz).  The one-dimensional
integrals are computed with two orders, and their difference is added to the error.  They are sums
over the panels of a mesh, on which h_k √φ is a polynomial (φ the normal density): the Legendre
moments of f √φ on each panel determine all a_k.  A panel is cut at kinks and narrow features of f.

Near correlation 1 or −1 series converge slowly, and `nearly_equal` integrates.  Let u = √p x and
v = √q (ρx + √(1−ρ²) z) with independent standard normal x and z.  Then

    E f(u) f(v) = ∫ φ(x) f(√p x) ∫ φ(z) f(√q (ρx + √(1−ρ²) z)) dz dx

with φ the standard normal density.  Panels end at the kinks of f in both integrals.  The inner
integral varies over the distance √(1−ρ²) near a kink, so the outer panels are graded there.  Both
integrals are computed with two orders, and the error is the difference of the results.

For many pairs of the same two variances, the quadrature is for some correlations only.  Between
them E f(u) f(v) is a polynomial in √(1−|ρ|), in which it is analytic; the error is then the largest
difference from the quadrature at further correlations, plus the error of that.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.polynomial import hermite_e
from numpy.typing import NDArray

from bnmc.errors import ArgumentError
from bnmc.mean_field.float64 import FloatArray
from bnmc.mean_field.quadrature.panels import coordinate_rule, gauss_legendre, panel_points
from bnmc.mean_field.quadrature.profile import Profile

# Terms of a series, at most; so many are computed at once.
_MOST_TERMS, _CHUNK = 1024, 128

# The series ends where the rest is below this part of the mean square: rounding makes it so.
_ROUNDING = 1e-14

# Integrals go over the panels of _MESH, with two rules.  h_k √φ is bounded (φ the normal density),
# so beyond the mesh there is less than exp(−13²/4) = 5e-19 of a coefficient.  On each panel it is a
# polynomial of degree _DEGREES − 1 to rounding.
_WIDEST, _DEGREES = 0.5, 32
_MESH = np.linspace(-13.0, 13.0, 53)
_ORDER, _COARSE_ORDER = 32, 16

# Ends of panels closer than this are one.
_SAME_END = 1e-12

# Variances whose functions are evaluated at once.
_BLOCK = 256

# Nodes of a table per octave of the variance.
_NODES = 17


class Expansion(NamedTuple):
    """The Hermite coefficients of a function for several variances.

    Attributes
    ----------
    variance : ndarray of shape (variances,)
        q.
    coefficients : ndarray of shape (variances, terms)
        a_k(q).
    mean_square : ndarray of shape (variances,)
        E f(√q z)².
    rest : ndarray of shape (variances,)
        R(q) / E f(√q z)², the part of the mean square that the series lacks.
    noise : ndarray of shape (variances,)
        Error of the integrals: the Euclidean norm of that of all a_k(q), divided by the root of the
        mean square.
    """

    variance: FloatArray
    coefficients: FloatArray
    mean_square: FloatArray
    rest: FloatArray
    noise: FloatArray

    def at(self, index: slice) -> Expansion:
        """Return the expansion of some of the variances."""
        return Expansion(*(part[index] for part in self))


#: `expansion`, or a `Tabulated`.
Expand = Callable[[Profile, FloatArray], Expansion]


def expansion(f: Profile, variances: FloatArray) -> Expansion:
    """Return the Hermite coefficients of a function for several variances.

    Parameters
    ----------
    f : Profile
        The function, finite almost everywhere.
    variances : ndarray of shape (variances,)
        q ≥ 0.

    Raises
    ------
    ArgumentError
        If the function is not finite at a node, so that its mean square is unknown.
    """
    distinct, position = np.unique(variances, return_inverse=True)
    starts = range(0, max(distinct.size, 1), _BLOCK)
    blocks = [_expanded(f, distinct[start : start + _BLOCK]) for start in starts]
    terms = max(block.coefficients.shape[1] for block in blocks)
    coefficients = np.zeros((distinct.size, terms))
    for start, block in zip(starts, blocks, strict=True):
        coefficients[start : start + _BLOCK, : block.coefficients.shape[1]] = block.coefficients
    rest = (np.concatenate(part) for part in zip(*(block[2:] for block in blocks), strict=True))
    return Expansion(*(part[position] for part in (distinct, coefficients, *rest)))


class Tabulated:
    """`expansion` for many calls, as of the layers of a deep network: by interpolation in log q.

    a_k(q) and E f(√q z)² are analytic in log q where the imaginary part is below π/2, so on an
    octave their Chebyshev polynomials converge like 9⁻ᵐ.  The noise of an expansion has the largest
    difference at further variances of the octave.  If that is no rounding, as for kinks far from 0,
    the octave has no table, and its variances are expanded one by one.
    """

    def __init__(self) -> None:
        self._octaves: dict[tuple[Profile, int], tuple[FloatArray, float, float] | None] = {}

    def __call__(self, f: Profile, variances: FloatArray) -> Expansion:
        """Return what `expansion` returns, up to the noise."""
        if not (np.isfinite(variances) & (variances > 0.0)).all():
            return expansion(f, variances)
        mantissa, exponent = np.frexp(variances)
        octaves = {int(number): self._octave(f, int(number)) for number in np.unique(exponent)}
        tables = [table for table in octaves.values() if table is not None]
        if not tables or len(tables) < len(octaves):
            return expansion(f, variances)
        values = np.zeros((variances.size, max(table[0].shape[1] for table in tables)))
        rest, noise = np.empty((2, variances.size))
        angles = np.arccos(2.0 * np.log2(mantissa) + 1.0)
        powers = np.cos(angles[:, None] * np.arange(_NODES))
        for (number, _), (table, *bounds) in zip(octaves.items(), tables, strict=True):
            at = exponent == number
            values[at, : table.shape[1]] = powers[at] @ table
            rest[at], noise[at] = bounds
        return Expansion(variances, values[:, 1:], values[:, 0], rest, noise)

    def _octave(self, f: Profile, exponent: int) -> tuple[FloatArray, float, float] | None:
        """Return the polynomials of the variances in [2^(e − 1), 2^e), their rest and noise."""
        if (f, exponent) not in self._octaves:
            self._octaves[f, exponent] = self._made(f, exponent)
        return self._octaves[f, exponent]

    def _made(self, f: Profile, exponent: int) -> tuple[FloatArray, float, float] | None:
        nodes = np.cos(np.pi * (np.arange(_NODES) + 0.5) / _NODES)
        checks = np.cos(np.pi * (np.arange(_CHECKS) + 0.3) / _CHECKS)
        variances = np.exp2(0.5 * (np.concatenate([nodes, checks]) - 1.0) + exponent)
        if variances.min() < np.finfo(np.float64).tiny or not np.isfinite(variances).all():
            return None
        try:
            exact = _expanded(f, variances)
        except ArgumentError:  # no finite mean square for all variances of the octave
            return None
        values = np.column_stack([exact.mean_square, exact.coefficients])
        table = np.polynomial.chebyshev.chebfit(nodes, values[:_NODES], _NODES - 1)
        off = np.polynomial.chebyshev.chebval(checks, table).T - values[_NODES:]
        scale = np.sqrt(np.where(exact.mean_square > 0.0, exact.mean_square, 1.0))[_NODES:]
        error = float((np.linalg.norm(off[:, 1:], axis=1) / scale).max())
        error += float((np.abs(off[:, 0]) / scale**2).max())
        if error > max(_ROUNDING, float(exact.noise.max())):
            return None
        return table.astype(np.float64), float(exact.rest.max()), float(exact.noise.max()) + error


def _expanded(f: Profile, variances: FloatArray) -> Expansion:
    """Return the Hermite coefficients for some different variances."""
    count, scales = variances.size, np.sqrt(variances)
    with np.errstate(over="ignore", invalid="ignore"):
        fine, squares, rim = _moments(f, scales, _ORDER)
        coarse, others, _ = _moments(f, scales, _COARSE_ORDER)
    if not np.isfinite(squares).all() or (rim > _ROUNDING * squares).any():
        allowed = "a function that is finite and has a finite mean square"
        hint = f"of a normal variable of variance {variances.max():.6g}"
        raise ArgumentError("activation", f.name, allowed, hint)
    positive = np.where(squares > 0.0, squares, 1.0)
    both, rest, change = np.concatenate([fine, coarse]), squares.copy(), np.zeros(count)
    coefficients: list[FloatArray] = []
    for start in range(0, _MOST_TERMS, _CHUNK):
        part = both @ _hermite()[start : start + _CHUNK].T
        left = rest[:, None] - np.cumsum(part[:count] ** 2, axis=1)
        enough = np.flatnonzero((left <= _ROUNDING * positive[:, None]).all(axis=0))
        terms = int(enough[0]) + 1 if enough.size else _CHUNK
        coefficients.append(part[:count, :terms])
        rest = left[:, terms - 1]
        change += np.sum((part[:count, :terms] - part[count:, :terms]) ** 2, axis=1)
        if enough.size:
            break
    noise = np.sqrt(change / positive) + np.abs(squares - others) / positive
    rest = np.maximum(rest, 0.0) / positive
    return Expansion(variances, np.concatenate(coefficients, axis=1), squares, rest, noise)


def pair_terms(
    left: Expansion, right: Expansion, correlation: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return E f(u)f(v) for all pairs of variances, and the errors.

    Parameters
    ----------
    left, right : Expansion
        The expansions of m and of n variances.
    correlation : ndarray of shape (m, n)
        In [−1, 1].

    Returns
    -------
    two ndarrays of shape (m, n)
        The errors are divided by the root of the product of the mean squares.
    """
    terms = min(left.coefficients.shape[1], right.coefficients.shape[1])
    total = np.zeros_like(correlation)
    for k in reversed(range(terms)):
        total *= correlation
        total += left.coefficients[:, k, None] * right.coefficients[:, k]
    missing = [_rest_after(side, terms) for side in (left, right)]
    error = np.abs(correlation) ** terms * np.sqrt(missing[0][:, None] * missing[1])
    error += left.noise[:, None] + right.noise
    # For u = v the sum is the mean square, which is known without the series.
    same = (correlation == 1.0) & (left.variance[:, None] == right.variance)
    total = np.where(same, left.mean_square[:, None], total)
    return total, np.where(same, left.noise[:, None], error)


def _rest_after(side: Expansion, terms: int) -> FloatArray:
    """Return the part of the mean square that the first `terms` terms lack."""
    dropped = np.sum(side.coefficients[:, terms:] ** 2, axis=1)
    scale = np.where(side.mean_square > 0.0, side.mean_square, 1.0)
    return np.asarray(side.rest + dropped / scale)


def _moments(
    f: Profile, scales: FloatArray, order: int
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return integrals over f(scale z) for several scales.

    Returns
    -------
    moments : ndarray of shape (scales, panels · _DEGREES)
        ∫ f √φ P_j dz over each panel of the mesh, P_j the Legendre polynomials of the panel.
    squares, rim : ndarray of shape (scales,)
        E f², and the largest f² φ at the ends of the mesh.
    """
    rule = gauss_legendre(order)
    z, half = panel_points(_MESH, rule.nodes)
    values = f(scales[:, None, None] * z) * _root_density(z)
    moments = (values * (half * rule.weights)) @ _legendre(order)
    squares = (values**2 @ rule.weights) * half[:, 0]
    rim = np.maximum(values[:, 0, 0] ** 2, values[:, -1, -1] ** 2)
    for number, scale in enumerate(scales):
        parts, panel = _parts(f, scale)
        if not panel.size:
            continue
        z, half = 0.5 * (parts[1] + parts[0])[:, None], 0.5 * (parts[1] - parts[0])[:, None]
        z = z + half * rule.nodes
        values = f(scale * z) * _root_density(z)
        local = (z - _MESH[panel, None]) / (0.5 * _WIDEST) - 1.0
        legendre = np.polynomial.legendre.legvander(local, _DEGREES - 1)
        starts = np.flatnonzero(np.diff(panel, prepend=-1))
        of_parts = np.einsum("sz,szj->sj", values * (half * rule.weights), legendre)
        moments[number, panel[starts]] = np.add.reduceat(of_parts, starts)
        of_parts = (values**2 @ rule.weights) * half[:, 0]
        squares[number, panel[starts]] = np.add.reduceat(of_parts, starts)
    return moments.reshape(scales.size, (_MESH.size - 1) * _DEGREES), squares.sum(axis=1), rim


def _parts(f: Profile, scale: float) -> tuple[FloatArray, NDArray[np.int64]]:
    """Return the parts of those panels of the mesh that have a kink of f(scale z) inside.

    Returns
    -------
    parts : ndarray of shape (2, parts)
        Lower and upper ends.
    panel : ndarray of shape (parts,)
        The number of the panel that contains each of them.
    """
    ends = f.ends(_WIDEST * scale) / (scale or 1.0)
    panel = np.clip(np.searchsorted(_MESH, ends, "right") - 1, 0, _MESH.size - 2)
    ends = ends[np.minimum(ends - _MESH[panel], _MESH[panel + 1] - ends) > _SAME_END]
    points = np.sort(np.concatenate([_MESH, ends]))
    panel = np.searchsorted(_MESH, points[:-1], "right") - 1
    cut = np.bincount(panel)[panel] > 1
    return np.stack([points[:-1], points[1:]])[:, cut], panel[cut]


@lru_cache(maxsize=2)
def _legendre(order: int) -> FloatArray:
    """Return the Legendre polynomials at the nodes of a rule, shape (nodes, degrees)."""
    return np.asarray(np.polynomial.legendre.legvander(gauss_legendre(order).nodes, _DEGREES - 1))


def _root_density(z: FloatArray) -> FloatArray:
    """Return √φ(z)."""
    return np.asarray(np.exp(-0.25 * z**2) / (2.0 * np.pi) ** 0.25)


@lru_cache(maxsize=1)
def _hermite() -> FloatArray:
    """Return the Legendre coefficients of h_k √φ on each panel, shape (terms, panels · degrees)."""
    rule = gauss_legendre(_DEGREES)
    z = panel_points(_MESH, rule.nodes)[0]
    # The recurrence of h_k √φ neither overflows nor underflows.
    hermite = np.empty((_MOST_TERMS, *z.shape))
    hermite[0] = _root_density(z)
    hermite[1] = z * hermite[0]
    for k in range(2, _MOST_TERMS):
        hermite[k] = (z * hermite[k - 1] - np.sqrt(k - 1.0) * hermite[k - 2]) / np.sqrt(k)
    return (hermite @ rule.to_coefficients.T).reshape(_MOST_TERMS, -1)


# --- quadrature near correlation 1 or −1

# Edges of panels of standard normal variables, and of graded ones, in units of √(1−ρ²).
_EDGES = np.array([-9.0, -6.5, -4.5, -3.0, -1.5, 0.0, 1.5, 3.0, 4.5, 6.5, 9.0])
_INNER_EDGES = np.array([-9.0, -5.0, -2.5, 0.0, 2.5, 5.0, 9.0])
_RATIO, _LEAST = 3.0, 0.5

# Nodes per panel, outer and inner, of the accurate rule and of the other one.
_ORDERS, _COARSE_ORDERS = (12, 14), (9, 11)

# Panels of f(√q z) that are shorter than this, in z, are those of a narrow feature.
_NARROW_PAIR = 0.5

# Pairs whose integrals are computed at once.
_PAIRS = 32

# Degree of the polynomials, number of further correlations, and pairs for which they pay.
_DEGREE, _CHECKS, _MANY = 20, 4, 40


def nearly_equal(
    f: Profile, p: FloatArray, q: FloatArray, correlation: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return E f(u) f(v) for pairs of normal variables, and the errors.

    Parameters
    ----------
    f : Profile
        The function.
    p, q, correlation : ndarray of shape (pairs,)
        Variances, and correlations in [−1, 1] that are not 0.

    Returns
    -------
    two ndarrays of shape (pairs,)
        The errors are absolute.
    """
    values, errors = np.empty(p.size), np.empty(p.size)
    groups = np.stack([p, q, np.sign(correlation)])
    _, position, counts = np.unique(groups, axis=1, return_inverse=True, return_counts=True)
    position = position.reshape(-1)
    for number in np.nonzero(counts > _MANY)[0]:
        some = np.nonzero(position == number)[0]
        values[some], errors[some] = _interpolated(f, p[some], q[some], correlation[some])
    alone = np.nonzero(counts[position] <= _MANY)[0]
    # Pairs of similar correlations have panels of similar lengths.
    alone = alone[np.argsort(np.abs(correlation[alone]))]
    values[alone], errors[alone] = _quadrature(f, p[alone], q[alone], correlation[alone])
    return values, errors


def _interpolated(
    f: Profile, p: FloatArray, q: FloatArray, correlation: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return the integrals of pairs that differ in the modulus of the correlation only."""
    sign, t = np.sign(correlation[0]), np.sqrt(1.0 - np.abs(correlation))
    low, high = float(t.min()), float(t.max())
    nodes = np.cos(np.pi * (np.arange(_DEGREE + 1) + 0.5) / (_DEGREE + 1))
    checks = np.cos(np.pi * (np.arange(_CHECKS) + 0.3) / _CHECKS)
    points = low + 0.5 * (high - low) * (np.concatenate([nodes, checks]) + 1.0)
    moduli = np.maximum(1.0 - points**2, 0.0)
    variances = np.full(points.size, p[0]), np.full(points.size, q[0])
    exact, off_exact = _quadrature(f, *variances, sign * moduli)
    fit = np.polynomial.chebyshev.chebfit(nodes, exact[: nodes.size], _DEGREE)
    off = np.abs(np.polynomial.chebyshev.chebval(checks, fit) - exact[nodes.size :])
    scaled = 2.0 * (t - low) / (high - low) - 1.0 if high > low else np.zeros_like(t)
    error = float(off.max() + off_exact.max())
    values = np.asarray(np.polynomial.chebyshev.chebval(scaled, fit), dtype=np.float64)
    return values, np.full(t.size, error)


def _quadrature(
    f: Profile, p: FloatArray, q: FloatArray, correlation: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return the integrals of pairs, each by its own quadrature."""
    fine, coarse = np.empty(p.size), np.empty(p.size)
    for first in range(0, p.size, _PAIRS):
        at = slice(first, first + _PAIRS)
        sides = np.sqrt(p[at])[:, None], np.sqrt(q[at])[:, None], correlation[at][:, None]
        fine[at] = _integral(f, *sides, _ORDERS)
        coarse[at] = _integral(f, *sides, _COARSE_ORDERS)
    return fine, np.abs(fine - coarse)


def _integral(
    f: Profile, left: FloatArray, right: FloatArray, rho: FloatArray, orders: tuple[int, int]
) -> FloatArray:
    """Return the integrals of some pairs; arguments have the shape (pairs, 1)."""
    rest = np.sqrt((1.0 - rho) * (1.0 + rho))
    width = _NARROW_PAIR * float(min(left.max(), right.max()))
    ends, centres = (
        points if points.size else np.zeros(1) for points in (f.ends(width), f.centres(width))
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        met, bent, centre = (
            np.nan_to_num(points / scale, posinf=9.0, neginf=-9.0)
            for points, scale in ((ends, right * rho), (ends, left), (centres, right * rho))
        )
    least = max(float(rest.min()), 1e-12)
    count = max(1, int(np.ceil(np.log(18.0 / (_LEAST * least)) / np.log(_RATIO))))
    steps = _LEAST * rest[:, :, None] * _RATIO ** np.arange(count)
    graded = (
        centre[:, :, None, None] + np.array([-1.0, 1.0])[:, None] * steps[:, :, None]
    ).reshape(len(rho), -1)
    mesh = np.broadcast_to(_EDGES, (len(rho), _EDGES.size))
    edges = np.sort(np.clip(np.concatenate([mesh, met, bent, graded], axis=1), -9.0, 9.0), axis=1)
    x, weight = coordinate_rule(edges, np.inf, orders[0])
    means = _means(f, right * rho * x, right * rest, ends, orders[1])
    return np.sum(weight * f(left * x) * means, axis=1)


def _means(
    f: Profile, centre: FloatArray, scale: FloatArray, ends: FloatArray, order: int
) -> FloatArray:
    """Return E f(centre + scale z), of the shape of `centre`; `scale` has one column."""
    centres, scales = centre.reshape(-1), np.repeat(scale, centre.shape[1])
    # A kink of f(v) is at another z for each x.
    with np.errstate(divide="ignore", invalid="ignore"):
        edges = np.nan_to_num((ends - centres[:, None]) / scales[:, None], posinf=9.0, neginf=-9.0)
    means = np.empty(centres.size)
    near = (np.abs(edges) < 9.0).any(axis=1)
    nodes, weights = hermite_e.hermegauss(order)
    y = centres[~near, None] + scales[~near, None] * nodes
    means[~near] = f(y) @ weights / np.sqrt(2.0 * np.pi)
    if near.any():
        mesh = np.broadcast_to(_INNER_EDGES, (int(near.sum()), _INNER_EDGES.size))
        edges = np.sort(np.clip(np.concatenate([mesh, edges[near]], axis=1), -9.0, 9.0), axis=1)
        z, density = coordinate_rule(edges, np.inf, order)
        means[near] = np.sum(density * f(centres[near, None] + scales[near, None] * z), axis=1)
    return means.reshape(centre.shape)
