"""The activations of one block of samples: moments given the lengths of a row.

Given the lengths (see `bnmc.mean_field.blocks.lengths`), the activation of a sample of the block is
f(x) = σ(offset + scale x), with x a coordinate of a uniform point on the sphere of radius √d in
d = s − 1 dimensions, s the size of the block.  The coordinates x and y of two samples have the
correlation ρ = −1/d.

Moments of two samples are orthogonal series.  Let p_k be the polynomials of degree k that are
orthonormal under the law of one coordinate of the unit sphere, and f_k, g_k the coefficients of f
and g.  By the Funk-Hecke formula,

    E f(x) g(y) = Σ_k f_k g_k p_k(ρ)/p_k(1).

By Parseval's identity, Σ_k f_k² = E f(x)², which bounds the terms that are left out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from bnmc.mean_field.float64 import FloatArray
from bnmc.mean_field.quadrature.panels import coordinate_rule
from bnmc.mean_field.quadrature.profile import Profile
from bnmc.mean_field.quadrature.sphere import reach

# --- pairs of samples

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


# --- moments of a block

#: Widest panel in a coordinate of variance 1.
WIDEST_PANEL = 3.0

# Entries of an array in one pass over lengths and coordinates: a few such arrays fit in a cache.
_PASS = 1 << 16


@dataclass(frozen=True)
class BlockMoments:
    """Moments of f̂(x) = f(x) − f(0), for each node of the lengths.

    x₁ and x₂ are the coordinates of two samples of the block, f̂₁ = f̂(x₁) and f̂₂ = f̂(x₂).  For a
    collapsed block, and for a block of one sample, all moments are 0.

    Attributes
    ----------
    centre : ndarray of shape (nodes,)
        f(0) − σ(0).
    first, second : ndarray of shape (powers, nodes)
        E f̂₁ x₁^p and E f̂₁² x₁^p, for p = 0 or for p = 0, 1, 2.
    squares : ndarray of shape (powers, nodes)
        E (f̂₁ x₁^p)².
    pair : dict of ndarray of shape (nodes,)
        E f̂₁ f̂₂ x₁^p x₂^q by (p, q).
    missing : ndarray of shape (nodes,)
        Bound of the error of ``pair[0, 0]``.
    """

    centre: FloatArray
    first: FloatArray
    second: FloatArray
    squares: FloatArray
    pair: dict[tuple[int, int], FloatArray]
    missing: FloatArray


def block_moments(
    sigma: Profile,
    offset: FloatArray,
    scale: FloatArray,
    weight: FloatArray,
    dimension: int,
    powers: int,
    order: int,
) -> BlockMoments:
    """Return the moments of one block.

    Parameters
    ----------
    sigma : Profile
        The activation.
    offset, scale, weight : ndarray of shape (nodes,)
        Offset, scale and weight for each node of the lengths.
    dimension : int
        d = s − 1, or 0 for a collapsed block.
    powers : int
        1 for the moments with p = 0 only, 3 for all.
    order : int
        Nodes per panel of the coordinate.
    """
    count = offset.size
    centre = sigma.centred(offset)
    pairs = [(0, 0)] if powers == 1 else [(0, 0), (0, 1), (0, 2), (1, 1)]
    moments = BlockMoments(
        centre,
        np.zeros((powers, count)),
        np.zeros((powers, count)),
        np.zeros((powers, count)),
        {pair: np.zeros(count) for pair in pairs},
        np.zeros(count),
    )
    if dimension == 0:
        return moments
    nodes = order * (sigma.breaks.size + 2 * math.ceil(reach(dimension) / WIDEST_PANEL))
    step = max(1, _PASS // nodes)
    for start in range(0, count, step):
        rows = slice(start, min(start + step, count))
        x, share = _coordinate(sigma, offset[rows], scale[rows], dimension, order)
        value = sigma.centred(offset[rows, None] + scale[rows, None] * x) - centre[rows, None]
        weighted = [share * value]
        for _ in range(1, powers):
            weighted.append(weighted[-1] * x)
        for power, term in enumerate(weighted):
            moments.first[power, rows] = term.sum(axis=1)
            moments.second[power, rows] = (term * value).sum(axis=1)
            moments.squares[power, rows] = (term * value * x**power).sum(axis=1)
        sums = {pair: total[rows] for pair, total in moments.pair.items()}
        moments.missing[rows] = add_pair_series(
            sums, moments.squares[:, rows], weighted, x, weight[rows], dimension
        )
    return moments


def _coordinate(
    sigma: Profile, offset: FloatArray, scale: FloatArray, dimension: int, order: int
) -> tuple[FloatArray, FloatArray]:
    """Return nodes and weights of the coordinate x, one row for each offset and scale."""
    if dimension == 1:
        points = np.broadcast_to(np.array([-1.0, 1.0]), (offset.size, 2))
        return points, np.full_like(points, 0.5)
    radius, limit = math.sqrt(dimension), reach(dimension)
    mesh = np.linspace(-limit, limit, math.ceil(2.0 * limit / WIDEST_PANEL) + 1)
    # If the scale is 0, f is constant and any panels will do.
    spread = np.where(scale > 0.0, scale, 1.0)[:, None]
    breaks = np.clip((sigma.breaks - offset[:, None]) / spread, -limit, limit)
    edges = np.concatenate([breaks, np.broadcast_to(mesh, (offset.size, mesh.size))], axis=1)
    angles = np.arcsin(np.clip(np.sort(edges, axis=1) / radius, -1.0, 1.0))
    angle, weight = coordinate_rule(angles, dimension, order)
    return radius * np.sin(angle), weight
