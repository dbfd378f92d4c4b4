"""Dual activations of any function: a Hermite series in the correlation, or quadrature of pairs.

Let u, v be centred normal variables with variances p, q and correlation ρ, h_k the normalized
Hermite polynomials and z a standard normal variable.  With a_k(q) = E f(√q z) h_k(z),

    E f(u) f(v) = Σ_k a_k(p) a_k(q) ρ^k

(Mehler).  After K terms the rest is at most |ρ|^K √(R(p) R(q)), with R(q) = E f(√q z)² − Σ a_k(q)²
the part of the mean square that the K terms lack (Cauchy and Schwarz).  The one-dimensional
integrals are computed twice, on panels of two widths, and their difference is added to the error.

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

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.polynomial import hermite_e

from bnmc.chain.activations import Activation
from bnmc.errors import ArgumentError
from bnmc.mean_field.float64 import FloatArray
from bnmc.mean_field.quadrature.panels import (
    coordinate_rule,
    gauss_legendre,
    panel_points,
    subdivided,
)

# Terms of a series, at most.
_MOST_TERMS = 1024

# The series ends where the rest is below this part of the mean square: rounding makes it so.
_ROUNDING = 1e-14

# Integrals go over [−_END, _END] with Gauss-Legendre panels of _ORDER nodes.  h_k √φ is bounded
# (φ the normal density), so beyond _END there is less than exp(−_END²/4) = 5e-19 of a coefficient.
_END, _ORDER, _WIDEST = 13.0, 16, 0.25

# Variances whose functions are evaluated at once.
_BLOCK = 256


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


def expansion(f: Activation, variances: FloatArray) -> Expansion:
    """Return the Hermite coefficients of a function for several variances.

    Parameters
    ----------
    f : Activation
        The function, finite almost everywhere.  Its kinks split the integrals.
    variances : ndarray of shape (variances,)
        q ≥ 0.

    Raises
    ------
    ArgumentError
        If the function is not finite at a node, so that its mean square is unknown.
    """
    distinct, position = np.unique(variances, return_inverse=True)
    fine = _coefficients(f, distinct, _WIDEST)
    coarse = _coefficients(f, distinct, 2.0 * _WIDEST)
    squares = fine[1]
    positive = np.where(squares > 0.0, squares, 1.0)
    change = np.linalg.norm(fine[0] - coarse[0], axis=1) / np.sqrt(positive)
    change += np.abs(squares - coarse[1]) / positive
    partial = np.cumsum(fine[0] ** 2, axis=1)
    rest = np.maximum(squares[:, None] - partial, 0.0) / positive[:, None]
    enough = np.nonzero((rest <= _ROUNDING).all(axis=0))[0]
    terms = int(enough[0]) + 1 if enough.size else _MOST_TERMS
    series = Expansion(distinct, fine[0][:, :terms], squares, rest[:, terms - 1], change)
    return Expansion(*(part[position] for part in series))


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


def _coefficients(
    f: Activation, variances: FloatArray, widest: float
) -> tuple[FloatArray, FloatArray]:
    """Return a_k(q), shape (variances, terms), and E f(√q z)², from panels of a given width."""
    coefficients = np.empty((variances.size, _MOST_TERMS))
    squares = np.empty(variances.size)
    scales = np.sqrt(variances)
    # A kink at 0 is one for all variances; another one is at another z for each variance.
    size = 1 if any(kink != 0.0 for kink in f.kinks) else _BLOCK
    for first in range(0, variances.size, size):
        block = slice(first, first + size)
        kinks = {0.0}
        if size == 1 and scales[first] > 0.0:
            kinks |= {kink / float(scales[first]) for kink in f.kinks}
        rule = _rule(tuple(sorted(kinks)), widest)
        values = np.asarray(f(scales[block, None] * rule.nodes), dtype=np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            density = (values * rule.root) ** 2
            mean = density @ rule.weights
        ends = np.maximum(density[:, 0], density[:, -1])
        if not np.isfinite(mean).all() or (ends > _ROUNDING * mean).any():
            allowed = "a function that is finite and has a finite mean square"
            hint = f"of a normal variable of variance {variances[block].max():.6g}"
            raise ArgumentError("activation", f.name, allowed, hint)
        coefficients[block] = (values * (rule.weights * rule.root)) @ rule.hermite.T
        squares[block] = mean
    return coefficients, squares


class _Rule(NamedTuple):
    """Nodes z and weights of ∫ … dz, √φ(z), and h_k(z) √φ(z) of shape (terms, nodes)."""

    nodes: FloatArray
    weights: FloatArray
    root: FloatArray
    hermite: FloatArray


@lru_cache(maxsize=4)
def _rule(kinks: tuple[float, ...], widest: float) -> _Rule:
    """Return the rule whose panels are at most `widest` and have no kink inside."""
    inner = [kink for kink in kinks if -_END < kink < _END]
    edges = subdivided(np.array([-_END, *inner, _END]), widest)
    legendre = gauss_legendre(_ORDER)
    points, half = panel_points(edges, legendre.nodes)
    z = points.reshape(-1)
    root = np.exp(-0.25 * z**2) / (2.0 * np.pi) ** 0.25
    # The recurrence of h_k √φ neither overflows nor underflows.
    hermite = np.empty((_MOST_TERMS, z.size))
    hermite[0], hermite[1] = root, z * root
    for k in range(2, _MOST_TERMS):
        hermite[k] = (z * hermite[k - 1] - np.sqrt(k - 1.0) * hermite[k - 2]) / np.sqrt(k)
    return _Rule(z, (half * legendre.weights).reshape(-1), root, hermite)


# --- quadrature near correlation 1 or −1

# Edges of panels of standard normal variables, and of graded ones, in units of √(1−ρ²).
_EDGES = np.array([-9.0, -6.5, -4.5, -3.0, -1.5, 0.0, 1.5, 3.0, 4.5, 6.5, 9.0])
_INNER_EDGES = np.array([-9.0, -5.0, -2.5, 0.0, 2.5, 5.0, 9.0])
_RATIO, _LEAST = 3.0, 0.5

# Nodes per panel, outer and inner, of the accurate rule and of the other one.
_ORDERS, _COARSE_ORDERS = (12, 14), (9, 11)

# Pairs whose integrals are computed at once.
_PAIRS = 32

# Degree of the polynomials, number of further correlations, and pairs for which they pay.
_DEGREE, _CHECKS, _MANY = 20, 4, 40


def nearly_equal(
    f: Activation, p: FloatArray, q: FloatArray, correlation: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return E f(u) f(v) for pairs of normal variables, and the errors.

    Parameters
    ----------
    f : Activation
        The function; panels end at its kinks.
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
        members = np.nonzero(position == number)[0]
        values[members], errors[members] = _interpolated(
            f, p[members], q[members], correlation[members]
        )
    alone = np.nonzero(counts[position] <= _MANY)[0]
    # Pairs of similar correlations have panels of similar lengths.
    alone = alone[np.argsort(np.abs(correlation[alone]))]
    values[alone], errors[alone] = _quadrature(f, p[alone], q[alone], correlation[alone])
    return values, errors


def _interpolated(
    f: Activation, p: FloatArray, q: FloatArray, correlation: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return the integrals of pairs that differ in the modulus of the correlation only."""
    sign, t = np.sign(correlation[0]), np.sqrt(1.0 - np.abs(correlation))
    low, high = float(t.min()), float(t.max())
    nodes = np.cos(np.pi * (np.arange(_DEGREE + 1) + 0.5) / (_DEGREE + 1))
    checks = np.cos(np.pi * (np.arange(_CHECKS) + 0.3) / _CHECKS)
    points = low + 0.5 * (high - low) * (np.concatenate([nodes, checks]) + 1.0)
    moduli = np.maximum(1.0 - points**2, 0.0)
    exact, off_exact = _quadrature(
        f, np.full(points.size, p[0]), np.full(points.size, q[0]), sign * moduli
    )
    fit = np.polynomial.chebyshev.chebfit(nodes, exact[: nodes.size], _DEGREE)
    off = np.abs(np.polynomial.chebyshev.chebval(checks, fit) - exact[nodes.size :])
    scaled = 2.0 * (t - low) / (high - low) - 1.0 if high > low else np.zeros_like(t)
    error = float(off.max() + off_exact.max())
    values = np.asarray(np.polynomial.chebyshev.chebval(scaled, fit), dtype=np.float64)
    return values, np.full(t.size, error)


def _quadrature(
    f: Activation, p: FloatArray, q: FloatArray, correlation: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return the integrals of pairs, each by its own quadrature."""
    fine, coarse = np.empty(p.size), np.empty(p.size)
    for first in range(0, p.size, _PAIRS):
        at = slice(first, first + _PAIRS)
        roots = np.sqrt(p[at])[:, None], np.sqrt(q[at])[:, None]
        sides = (*roots, correlation[at][:, None])
        fine[at] = _integral(f, *sides, _ORDERS)
        coarse[at] = _integral(f, *sides, _COARSE_ORDERS)
    return fine, np.abs(fine - coarse)


def _integral(
    f: Activation, left: FloatArray, right: FloatArray, rho: FloatArray, orders: tuple[int, int]
) -> FloatArray:
    """Return the integrals of some pairs; arguments have the shape (pairs, 1)."""
    rest = np.sqrt((1.0 - rho) * (1.0 + rho))
    kinks = np.array(f.kinks or (0.0,))
    with np.errstate(divide="ignore", invalid="ignore"):
        met = np.nan_to_num(kinks / (right * rho), posinf=9.0, neginf=-9.0)
        bent = np.nan_to_num(kinks / left, posinf=9.0, neginf=-9.0)
    least = max(float(rest.min()), 1e-12)
    count = max(1, int(np.ceil(np.log(18.0 / (_LEAST * least)) / np.log(_RATIO))))
    steps = _LEAST * rest[:, :, None] * _RATIO ** np.arange(count)
    graded = (met[:, :, None, None] + np.array([-1.0, 1.0])[:, None] * steps[:, :, None]).reshape(
        len(rho), -1
    )
    mesh = np.broadcast_to(_EDGES, (len(rho), _EDGES.size))
    edges = np.sort(np.clip(np.concatenate([mesh, met, bent, graded], axis=1), -9.0, 9.0), axis=1)
    x, weight = coordinate_rule(edges, np.inf, orders[0])
    means = _means(f, right, rho, rest, kinks, x, orders[1])
    return np.sum(weight * f(left * x) * means, axis=1)


def _means(
    f: Activation,
    right: FloatArray,
    rho: FloatArray,
    rest: FloatArray,
    kinks: FloatArray,
    x: FloatArray,
    order: int,
) -> FloatArray:
    """Return E f(v) given x, of shape (pairs, points)."""
    centres, scales = (right * rho * x).reshape(-1), np.repeat(right * rest, x.shape[1])
    # A kink of f(v) is at another z for each x.
    with np.errstate(divide="ignore", invalid="ignore"):
        ends = np.nan_to_num((kinks - centres[:, None]) / scales[:, None], posinf=9.0, neginf=-9.0)
    means = np.empty(centres.size)
    near = (np.abs(ends) < 9.0).any(axis=1)
    nodes, weights = hermite_e.hermegauss(order)
    y = centres[~near, None] + scales[~near, None] * nodes
    means[~near] = f(y) @ weights / np.sqrt(2.0 * np.pi)
    if near.any():
        mesh = np.broadcast_to(_INNER_EDGES, (int(near.sum()), _INNER_EDGES.size))
        edges = np.sort(np.clip(np.concatenate([mesh, ends[near]], axis=1), -9.0, 9.0), axis=1)
        z, density = coordinate_rule(edges, np.inf, order)
        means[near] = np.sum(density * f(centres[near, None] + scales[near, None] * z), axis=1)
    return means.reshape(x.shape)
