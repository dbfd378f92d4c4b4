"""Expectations over a row of a Gram matrix with two blocks, given the lengths of its parts.

Let z be uniform on the unit sphere of the space on which the Gram matrix is not 0.  It has a part
z_e along the contrast e, with a sign, and parts of lengths z_0 and z_1 in the blocks.  Let α_0, α_1
and β be the levels of the Gram matrix (see `bnmc.mean_field.blocks.block_map`).  The normalized row
depends on these lengths through √β z_e / ρ and √α_X z_X / ρ for X = 0, 1, where

    ρ² = β z_e² + α_0 z_0² + α_1 z_1².

With z_e = sin a, z_0 = cos a sin b and z_1 = cos a cos b, the lengths are two angles with smooth
densities.  The panels of the angles end where a sample of one block can first meet a corner of σ.

**One block.**  Given the lengths, the activation of a sample of the block is f(x) = σ(offset +
scale x), with x a coordinate of a uniform point on the sphere of radius √d in d = s − 1 dimensions,
s the size of the block.  The coordinates x and y of two samples have the correlation ρ = −1/d.

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
from bnmc.mean_field.quadrature.panels import coordinate_rule, row_panels
from bnmc.mean_field.quadrature.profile import Profile
from bnmc.mean_field.quadrature.sphere import reach

# --- pairs of samples of a block

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
    terms = zip(ratios, later[1:].tolist(), links, strict=False)
    return list(terms)[:_MOST_TERMS]


# --- moments of a block

#: Widest panel in a coordinate of variance 1.
WIDEST_PANEL = 3.0

# Entries of an array in one pass over lengths and coordinates: a few such arrays fit in a cache.
_PASS = 1 << 16

# The powers (p, q) of the moments of two samples, that of order 0 first.
_PAIRS = ((0, 0), (0, 1), (0, 2), (1, 1))


@dataclass(frozen=True)
class _BlockMoments:
    """Moments of f̂(x) = f(x) − f(0), for each node of the lengths.

    x₁ and x₂ are the coordinates of two samples of the block, f̂₁ = f̂(x₁) and f̂₂ = f̂(x₂).  For a
    collapsed block, and for a block of one sample, all moments are 0.

    Attributes
    ----------
    centre : ndarray of shape (nodes,)
        f(0) − σ(0).
    first, second : ndarray of shape (powers, nodes)
        E f̂₁ x₁^p and E f̂₁² x₁^p, for p = 0 or for p = 0, 1, 2.
    pair : dict of ndarray of shape (nodes,)
        E f̂₁ f̂₂ x₁^p x₂^q by (p, q).
    missing : ndarray of shape (nodes,)
        Bound of the error of ``pair[0, 0]``.
    """

    centre: FloatArray
    first: FloatArray
    second: FloatArray
    pair: dict[tuple[int, int], FloatArray]
    missing: FloatArray


@dataclass(frozen=True)
class GivenLengths:
    """Nodes of the lengths z_0, z_1 and z_e, with the moments of the activations given them.

    `bnmc.mean_field.blocks.block_map` defines the levels α_0, α_1 and β, and ρ.

    Attributes
    ----------
    levels : ndarray of shape (3,)
        α_0, α_1, β.
    lengths : ndarray of shape (3, nodes)
        z_0, z_1 and z_e.
    weight : ndarray of shape (nodes,)
        Weights of the nodes, which sum to 1.
    radius : ndarray of shape (nodes,)
        ρ.
    rank : int
        Rank of the Gram matrix orthogonal to (1, …, 1).
    offset : list of ndarray of shape (nodes,)
        For each block, the value of φ for a sample whose coordinate is 0.
    blocks : list of _BlockMoments
        For each block, the moments of its activations.
    scores : list of ndarray of shape (nodes,)
        For each level, the derivative of the log density of z by that level; 0 for a level 0.
    """

    levels: FloatArray
    lengths: FloatArray
    weight: FloatArray
    radius: FloatArray
    rank: int
    offset: list[FloatArray]
    blocks: list[_BlockMoments]
    scores: list[FloatArray]


# Nodes whose weight, relative to the largest, is at most this are left out.  The error is below
# rounding for activations that grow like exp(|φ|).
_NEGLIGIBLE = 1e-30


@dataclass(frozen=True)
class Blocks:
    """Two blocks of samples, with the quadratures over their rows.

    Attributes
    ----------
    sizes : tuple of int
        Samples s_0 and s_1 of the blocks, each at least 1.
    sigma : Profile
        The activation.
    order : int
        Nodes per panel of all quadratures.
    """

    sizes: tuple[int, int]
    sigma: Profile
    order: int

    @property
    def batch(self) -> int:
        """Batch size n = s_0 + s_1."""
        return sum(self.sizes)

    @property
    def contrast(self) -> tuple[float, float]:
        """The entries of the unit vector e: constant on either block, orthogonal to (1, …, 1)."""
        first, second = self.sizes
        share = math.sqrt(first * second / self.batch)
        return share / first, -share / second

    def given(self, levels: FloatArray, powers: int) -> GivenLengths:
        """Return the expectations for one Gram matrix.

        Parameters
        ----------
        levels : ndarray of shape (3,)
            α_0, α_1, β.
        powers : int
            1 for the moments of order 0 only, 3 for all; see `_moments`.
        """
        # On the vectors of a block that sum to 0, the rank is 0 if the block has collapsed.
        ranks = [(s - 1) * bool(level) for s, level in zip(self.sizes, levels[:2], strict=True)]
        lengths, weight = self._lengths(levels, ranks)
        dimensions, n = (*ranks, 1), self.batch
        rank = sum(dimensions)
        radius = np.sqrt(levels @ lengths**2)
        offset, blocks = [], []
        for block, size in enumerate(self.sizes):
            offset.append(math.sqrt(n * levels[2]) * self.contrast[block] * lengths[2] / radius)
            scale = math.sqrt(n / size * levels[block]) * lengths[block] / radius
            blocks.append(self._moments(offset[-1], scale, weight, dimensions[block], powers))
        scores = [
            0.5 * (rank * length**2 - dimension) / level if level > 0.0 else np.zeros_like(weight)
            for length, dimension, level in zip(lengths, dimensions, levels, strict=True)
        ]
        return GivenLengths(levels, lengths, weight, radius, rank, offset, blocks, scores)

    def _moments(
        self, offset: FloatArray, scale: FloatArray, weight: FloatArray, dimension: int, powers: int
    ) -> _BlockMoments:
        """Return the moments of one block.

        Parameters
        ----------
        offset, scale, weight : ndarray of shape (nodes,)
            Offset, scale and weight for each node of the lengths.
        dimension : int
            d = s − 1, or 0 for a collapsed block.
        powers : int
            1 for the moments with p = 0 only, 3 for all.
        """
        sigma, count = self.sigma, offset.size
        centre = sigma.centred(offset)
        first, second = np.zeros((2, powers, count))
        pair = {both: np.zeros(count) for both in _PAIRS[: 1 if powers == 1 else None]}
        moments = _BlockMoments(centre, first, second, pair, np.zeros(count))
        if dimension == 0:
            return moments
        nodes = self.order * (sigma.breaks.size + 2 * math.ceil(reach(dimension) / WIDEST_PANEL))
        step = max(1, _PASS // nodes)
        for start in range(0, count, step):
            rows = slice(start, min(start + step, count))
            x, share = self._coordinate(offset[rows], scale[rows], dimension)
            value = sigma.centred(offset[rows, None] + scale[rows, None] * x) - centre[rows, None]
            weighted = [share * value]
            for _ in range(1, powers):
                weighted.append(weighted[-1] * x)
            squares = np.empty((powers, len(x)))
            for power, term in enumerate(weighted):
                first[power, rows] = term.sum(axis=1)
                second[power, rows] = (term * value).sum(axis=1)
                squares[power] = (term * value * x**power).sum(axis=1)
            sums = {both: total[rows] for both, total in pair.items()}
            missing = add_pair_series(sums, squares, weighted, x, weight[rows], dimension)
            moments.missing[rows] = missing
        return moments

    def _coordinate(
        self, offset: FloatArray, scale: FloatArray, dimension: int
    ) -> tuple[FloatArray, FloatArray]:
        """Return nodes and weights of the coordinate x, one row for each offset and scale."""
        if dimension == 1:
            points = np.broadcast_to(np.array([-1.0, 1.0]), (offset.size, 2))
            return points, np.full_like(points, 0.5)
        radius, limit = math.sqrt(dimension), reach(dimension)
        mesh = np.linspace(-limit, limit, math.ceil(2.0 * limit / WIDEST_PANEL) + 1)
        # If the scale is 0, f is constant and any panels will do.
        spread = np.where(scale > 0.0, scale, 1.0)[:, None]
        breaks = np.clip((self.sigma.breaks - offset[:, None]) / spread, -limit, limit)
        edges = np.concatenate([breaks, np.broadcast_to(mesh, (offset.size, mesh.size))], axis=1)
        angles = np.arcsin(np.clip(np.sort(edges, axis=1) / radius, -1.0, 1.0))
        angle, weight = coordinate_rule(angles, dimension, self.order)
        return radius * np.sin(angle), weight

    def _lengths(self, levels: FloatArray, ranks: list[int]) -> tuple[FloatArray, FloatArray]:
        """Return nodes (z_0, z_1, z_e), shape (3, nodes), and their weights, which sum to 1."""
        rank = 1 + sum(ranks)
        if rank == 1:
            return np.array([[0.0, 0.0], [0.0, 0.0], [-1.0, 1.0]]), np.array([0.5, 0.5])
        limit = math.asin(min(1.0, reach(rank) / math.sqrt(rank)))
        count = math.ceil(2.0 * limit * math.sqrt(self.batch) / WIDEST_PANEL)
        edges = [np.linspace(-limit, limit, count + 1)]
        edges += [np.arctan(self._tangents(levels, block)) for block in (0, 1) if ranks[block]]
        joined = np.unique(np.clip(np.concatenate(edges), -limit, limit))
        angle, weight = coordinate_rule(joined, rank, self.order)
        sine, cosine = np.sin(angle), np.cos(angle)
        if not all(ranks):
            lengths = np.zeros((3, angle.size))
            lengths[2], lengths[0 if ranks[0] else 1] = sine, cosine
        else:
            sine, cosine = sine[:, None], cosine[:, None]
            turn, share = row_panels(self._inner_edges(levels, sine, cosine), self.order)
            share *= np.sin(turn) ** (ranks[0] - 1) * np.cos(turn) ** (ranks[1] - 1)
            weight = (weight[:, None] * share).ravel()
            parts = cosine * np.sin(turn), cosine * np.cos(turn), sine
            lengths = np.stack(np.broadcast_arrays(*parts)).reshape(3, -1)
        counted = weight > _NEGLIGIBLE * weight.max()
        weight = weight[counted]
        return lengths[:, counted], weight / weight.sum()

    def _tangents(self, levels: FloatArray, block: int) -> FloatArray:
        """Return the ratios z_e/z_X at which a sample can first meet a corner of σ, for block X.

        The part of z in the other block is taken as 0.  A sample of the other block then has one
        value, a sample of X any value between two extremes.  An average over such values smooths
        everything but corners, so X gets panels for the corners of σ only, the other block for all
        breaks of σ.
        """
        n, alpha, beta = self.batch, levels[block], levels[2]
        roots = []
        for member, kinks in ((block, self.sigma.corners), (1 - block, self.sigma.breaks[1:-1])):
            along = n * self.contrast[member] ** 2
            across = n - n / self.sizes[block] if member == block else 0.0
            mixed = 2.0 * math.sqrt(alpha * beta * along * across)
            roots.append(_roots(beta * (along - kinks**2), mixed, alpha * (across - kinks**2)))
        return np.concatenate(roots)

    def _inner_edges(self, levels: FloatArray, sine: FloatArray, cosine: FloatArray) -> FloatArray:
        """Return the panels of the angle b, one row for each sin a and cos a, which are columns."""
        n, beta, kinks = self.batch, levels[2], self.sigma.corners
        count = math.ceil(math.sqrt(n) * 0.5 * math.pi / WIDEST_PANEL)
        mesh = np.linspace(0.0, 0.5 * math.pi, count + 1)
        edges = [np.broadcast_to(mesh, (sine.size, mesh.size))]
        for block, inverse in ((0, np.arcsin), (1, np.arccos)):
            along = n * self.contrast[block] ** 2
            across = n - n / self.sizes[block]
            alpha, other = levels[block], levels[1 - block]
            share = _roots(
                cosine**2 * (alpha * across - kinks**2 * (alpha - other)),
                2.0 * math.sqrt(alpha * beta * along * across) * sine * cosine,
                beta * sine**2 * (along - kinks**2) - other * (kinks * cosine) ** 2,
            )
            edges.append(inverse(np.clip(share, 0.0, 1.0)))
        return np.sort(np.concatenate(edges, axis=1), axis=1)


def _roots(a: FloatArray, b: FloatArray | float, c: FloatArray) -> FloatArray:
    """Return the real roots of a x² ± b x + c along the last axis, with 0 for roots not real."""
    root = np.sqrt(np.maximum(b * b - 4.0 * a * c, 0.0))
    exists = b * b - 4.0 * a * c >= -1e-12 * (b * b + np.abs(4.0 * a * c))
    far = 0.5 * (np.abs(b) + root)
    with np.errstate(divide="ignore", invalid="ignore"):
        roots = np.concatenate(np.broadcast_arrays(far / a, c / far), axis=-1)
    roots = np.where(np.isfinite(roots) & np.concatenate([exists, exists], axis=-1), roots, 0.0)
    return np.concatenate([roots, -roots], axis=-1)
