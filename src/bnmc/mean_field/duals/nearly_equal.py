"""Dual activations near correlation 1 or −1, by quadrature: series converge slowly there.

Let u = √p x and v = √q (ρx + √(1−ρ²) z) with independent standard normal x and z.  Then

    E f(u) f(v) = ∫ φ(x) f(√p x) ∫ φ(z) f(√q (ρx + √(1−ρ²) z)) dz dx

with φ the standard normal density.  Panels end at the kinks of f in both integrals.  The inner
integral varies over the distance √(1−ρ²) near a kink, so the outer panels are graded there.  Both
integrals are computed with two orders, and the error is the difference of the results.

For many pairs of the same two variances, the quadrature is for some correlations only.  Between
them E f(u) f(v) is a polynomial in √(1−|ρ|), in which it is analytic; the error is then the largest
difference from the quadrature at further correlations, plus the error of that.
"""

from __future__ import annotations

import numpy as np
from numpy.polynomial import hermite_e

from bnmc.chain.activations import Activation
from bnmc.mean_field.float64 import FloatArray
from bnmc.mean_field.quadrature.panels import row_panels

__all__ = ["nearly_equal"]

# Edges of panels of standard normal variables, and of graded ones, in units of √(1−ρ²).
_EDGES = np.array([-9.0, -6.5, -4.5, -3.0, -1.5, 0.0, 1.5, 3.0, 4.5, 6.5, 9.0])
_INNER_EDGES = np.array([-9.0, -5.0, -2.5, 0.0, 2.5, 5.0, 9.0])
_RATIO, _LEAST = 3.0, 0.5

# Nodes per panel, outer and inner, of the accurate rule and of the other one.
_ORDERS, _COARSE_ORDERS = (12, 14), (9, 11)

# Pairs whose integrals are computed at once.
_BLOCK = 32

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
        found = _interpolated(f, p[members], q[members], correlation[members])
        values[members], errors[members] = found
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
    exact, own = _quadrature(
        f, np.full(points.size, p[0]), np.full(points.size, q[0]), sign * moduli
    )
    fit = np.polynomial.chebyshev.chebfit(nodes, exact[: nodes.size], _DEGREE)
    off = np.abs(np.polynomial.chebyshev.chebval(checks, fit) - exact[nodes.size :])
    scaled = 2.0 * (t - low) / (high - low) - 1.0 if high > low else np.zeros_like(t)
    error = float(off.max() + own.max())
    values = np.asarray(np.polynomial.chebyshev.chebval(scaled, fit), dtype=np.float64)
    return values, np.full(t.size, error)


def _quadrature(
    f: Activation, p: FloatArray, q: FloatArray, correlation: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return the integrals of pairs, each by its own quadrature."""
    fine, coarse = np.empty(p.size), np.empty(p.size)
    for first in range(0, p.size, _BLOCK):
        at = slice(first, first + _BLOCK)
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
    x, weight = row_panels(edges, orders[0])
    weight = weight * np.exp(-0.5 * x**2) * f(left * x)
    means = _means(f, right, rho, rest, kinks, x, orders[1])
    return np.asarray(np.sum(weight * means, axis=1) / np.sqrt(2.0 * np.pi))


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
        z, density = row_panels(edges, order)
        density = density * np.exp(-0.5 * z**2)
        y = centres[near, None] + scales[near, None] * z
        means[near] = np.sum(density * f(y), axis=1) / np.sqrt(2.0 * np.pi)
    return means.reshape(x.shape)
