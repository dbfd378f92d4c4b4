"""Expectations of products of functions of two coordinates of a sphere, by orthogonal series.

Let x and y be two coordinates of a uniform point on the sphere of radius √d in d dimensions, with
correlation ρ = −1/d, as those of two samples of a block of d + 1 samples.  Let p_k be the
polynomials of degree k that are orthonormal under the law of one coordinate of the unit sphere, and
f_k, g_k the coefficients of f and g.  By the Funk-Hecke formula,

    E f(x) g(y) = Σ_k f_k g_k p_k(ρ)/p_k(1).

By Parseval's identity, Σ_k f_k² = E f(x)², which bounds the terms that are left out.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from bnmc.mean_field.float64 import FloatArray

__all__ = ["add_pair_series", "funk_hecke_ratios"]

# The series ends when its tail is at most _TAIL times the whole, or after _MOST_TERMS terms.
_TAIL, _MOST_TERMS = 1e-14, 96


def add_pair_series(
    sums: dict[tuple[int, int], FloatArray],
    squares: FloatArray,
    weighted: list[FloatArray],
    x: FloatArray,
    weight: FloatArray,
    dimension: int,
) -> FloatArray:
    """Add E f(x)x^p f(y)y^q to sums[p, q], for several functions f at once.

    Parameters
    ----------
    sums : dict of ndarray of shape (functions,)
        The sums, by (p, q); they are changed.
    squares : ndarray of shape (powers, functions)
        E (f(x)x^p)².
    weighted : list of ndarray of shape (functions, nodes)
        f(x)x^p at the nodes, times the weights of the nodes, for p = 0, 1, ….
    x : ndarray of shape (functions, nodes)
        Nodes of the coordinate.
    weight : ndarray of shape (functions,)
        Weights of the functions, for the truncation of the series.
    dimension : int
        d ≥ 1.

    Returns
    -------
    ndarray of shape (functions,)
        A bound of the error of sums[0, 0].
    """
    terms = funk_hecke_ratios(dimension)
    # By Parseval's identity, the sum of squares of the coefficients of all later terms.
    remaining = squares.copy()
    enough = _TAIL * (remaining @ weight)
    cosine = x / math.sqrt(dimension)
    polynomial, before, link_before = np.ones_like(x), np.zeros_like(x), 0.0
    for k, (ratio, largest, link) in enumerate(terms):
        coefficients = [np.einsum("rt,rt->r", term, polynomial) for term in weighted]
        for (p, q), total in sums.items():
            total += ratio * coefficients[p] * coefficients[q]
        remaining -= np.square(coefficients)
        if k + 1 == len(terms) or np.all(largest * (remaining @ weight) <= enough):
            break
        before *= -link_before
        before += cosine * polynomial
        before /= link
        polynomial, before, link_before = before, polynomial, link
    return np.asarray(terms[k][1] * np.maximum(remaining[0], 0.0))


@lru_cache(maxsize=64)
def funk_hecke_ratios(dimension: int) -> list[tuple[float, float, float]]:
    """Return the coefficients of the series and of the recurrence of the polynomials.

    Returns
    -------
    list of tuple
        For k = 0, 1, …: p_k(ρ)/p_k(1); the largest modulus of these ratios for later k; and link_k
        of the recurrence t p_k(t) = link_k p_{k+1}(t) + link_{k−1} p_{k−1}(t).  For d = 1 there are
        only two polynomials, as the sphere has two points.
    """
    if dimension == 1:
        return [(1.0, 1.0, 1.0), (-1.0, 0.0, math.nan)]
    index, rho = 0.5 * dimension - 1.0, -1.0 / dimension
    ratios, links = [1.0, rho], [1.0 / math.sqrt(dimension)]
    for k in range(1, 2 * _MOST_TERMS):
        links.append(0.5 * math.sqrt((k + 1) * (k + 2 * index) / ((k + index) * (k + 1 + index))))
        ratios.append((2.0 * (k + index) * rho * ratios[k] - k * ratios[k - 1]) / (k + 2.0 * index))
    later = np.maximum.accumulate(np.abs(ratios[::-1]))[::-1]
    return [
        (ratio, float(largest), link)
        for ratio, largest, link in zip(ratios, later[1:], links, strict=False)
    ][:_MOST_TERMS]
