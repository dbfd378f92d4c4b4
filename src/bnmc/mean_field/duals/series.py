"""Dual activations of any function, by a Hermite series in the correlation.

Let u, v be centred normal variables with variances p, q and correlation ρ, h_k the normalized
Hermite polynomials and z a standard normal variable.  With a_k(q) = E f(√q z) h_k(z),

    E f(u) f(v) = Σ_k a_k(p) a_k(q) ρ^k

(Mehler).  After K terms the rest is at most |ρ|^K √(R(p) R(q)), with R(q) = E f(√q z)² − Σ a_k(q)²
the part of the mean square that the K terms lack (Cauchy and Schwarz).  The one-dimensional
integrals are computed twice, on panels of two widths, and their difference is added to the error.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from bnmc.chain.activations import Activation
from bnmc.errors import ArgumentError
from bnmc.mean_field.float64 import FloatArray
from bnmc.mean_field.quadrature.panels import gauss_legendre, panel_points, subdivided

__all__ = ["MOST_TERMS", "Expansion", "expansion", "pair_sum", "pair_terms"]

#: Terms of a series, at most.
MOST_TERMS = 1024

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
    terms = int(enough[0]) + 1 if enough.size else MOST_TERMS
    found = Expansion(distinct, fine[0][:, :terms], squares, rest[:, terms - 1], change)
    return Expansion(*(part[position] for part in found))


def pair_sum(
    left: Expansion, right: Expansion, correlation: FloatArray
) -> tuple[FloatArray, float]:
    """Return E f(u)f(v) for all pairs of variances, and the largest error, as `pair_terms`."""
    total, error = pair_terms(left, right, correlation)
    return total, float(error.max(initial=0.0))


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
    coefficients = np.empty((variances.size, MOST_TERMS))
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
    hermite = np.empty((MOST_TERMS, z.size))
    hermite[0], hermite[1] = root, z * root
    for k in range(2, MOST_TERMS):
        hermite[k] = (z * hermite[k - 1] - np.sqrt(k - 1.0) * hermite[k - 2]) / np.sqrt(k)
    return _Rule(z, (half * legendre.weights).reshape(-1), root, hermite)
