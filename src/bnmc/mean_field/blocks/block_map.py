"""The mean-field map on Gram matrices with two blocks of samples, and its Jacobian there.

Centred normalization. Blocks X = 0, 1 of ``s_X`` samples, ``n = s_0 + s_1``. On vectors orthogonal
to 1, a Gram matrix that permutations within the blocks leave alone has three eigenvalues, its
*levels*: ``α_X`` on the vectors of block X that sum to zero (dimension ``s_X − 1``), and ``β`` on
the contrast ``e``, constant on either block. With z uniform on the unit sphere, ``z_X`` the length
of its part in block X and ``v_X`` the direction of that part,

    φ_i = √n (√β z_e e_i + √α_X z_X v_i) / ρ,    ρ² = β z_e² + α_0 z_0² + α_1 z_1².

Given the lengths, a sample of block X is a function of one coordinate of a uniform point on the
sphere in ``s_X − 1`` dimensions, and two samples are functions of two, of correlation
``ρ = −1/(s_X − 1)``. So all expectations below are integrals over one or two angles (the lengths)
of one-dimensional integrals: those of a pair by expansion in the orthonormal polynomials p_k of a
coordinate, ``E f(x) g(y) = Σ f_k g_k p_k(ρ)/p_k(1)`` (the Funk-Hecke formula), whose tail
Parseval's identity bounds.

A block whose level is 0 has *collapsed*: its samples coincide.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.polynomial import legendre

from bnmc.chain.activations import Activation
from bnmc.mean_field.quadrature.sphere import FloatArray, reach, resolve

__all__ = ["BlockMap", "Image", "Mode"]

# Widest panel in a coordinate of variance 1.
_WIDEST_PANEL = 3.0

# Panels shorter than this are empty but for rounding.
_EMPTY = 1e-13

# Lengths of less weight than this, beside the weightiest, are left out: out of sight for
# activations that grow like exp(|φ|).
_NEGLIGIBLE = 1e-30

# The series of a pair ends where its tail is this share of the whole, or after so many terms.
_TAIL, _MOST_TERMS = 1e-14, 96

# Numbers in one pass over lengths and coordinates: some arrays of so many fit in a cache.
_PASS = 1 << 16
_RESOLVE_ORDER = 20

# A jump of σ or σ′ beside the largest σ that counts as one.
_JUMP = 1e-6
_CONSTANT = 1e-12
_TINY = float(np.finfo(np.float64).tiny)


@dataclass(frozen=True)
class Image:
    """What the map makes of a Gram matrix with given levels.

    Attributes
    ----------
    diagonal, inside : tuple of float
        For either block, the diagonal entries and those of two of its samples (the diagonal again
        where there are no two different ones).
    between : float
        Entries of a sample of one block and a sample of the other.
    levels : ndarray of shape (3,)
        The levels ``α_0, α_1, β`` of the image; without cancellation, however small.
    jacobian : ndarray of shape (3, 3)
        Derivatives of these by the levels; 0 by a level that is 0 or does not exist.
    error : float
        Bound of what the series left out, beside the levels.
    """

    diagonal: tuple[float, float]
    inside: tuple[float, float]
    between: float
    levels: FloatArray
    jacobian: FloatArray
    error: float


@dataclass(frozen=True)
class Mode:
    """An eigenvalue of the Jacobian of the map."""

    name: str
    value: complex
    multiplicity: int


class BlockMap:
    """The map, for one activation and one pair of block sizes.

    Parameters
    ----------
    activation : Activation
    sizes : tuple of int
        ``s_0, s_1 ≥ 1``, at least 3 together.
    order : int
        Nodes a panel of all quadratures.

    Raises
    ------
    UnresolvedError
        The activation is not finite, or needs too many panels.
    """

    def __init__(self, activation: Activation, sizes: tuple[int, int], order: int) -> None:
        n = sum(sizes)
        self.sizes = sizes
        self.batch = n
        self.activation = activation
        self.order = order
        self._sigma = _pieces(activation, math.sqrt(n - 1))
        share = math.sqrt(sizes[0] * sizes[1] / n)
        self._contrast = (share / sizes[0], -share / sizes[1])

    @property
    def is_constant(self) -> bool:
        """Whether the activation is constant, to rounding, on the sphere of this batch."""
        return self._sigma.is_constant

    def image(self, levels: FloatArray) -> Image:
        """The image of a Gram matrix with these levels (any scale)."""
        at = self._at(levels, moments=1)
        n, (first, second) = self.batch, self.sizes
        weight, shift = at.weight, self._sigma.shift
        means = [block.centre + block.first[0] for block in at.blocks]
        own = [block.centre**2 + 2.0 * block.centre * block.first[0] for block in at.blocks]
        squares = [a + block.second[0] for a, block in zip(own, at.blocks, strict=True)]
        pairs = [a + block.pair[0, 0] for a, block in zip(own, at.blocks, strict=True)]
        block_squares = sum(
            (square + (size - 1) * pair) / size
            for square, pair, size in zip(squares, pairs, self.sizes, strict=True)
        )
        outputs = [block.second[0] - block.pair[0, 0] for block in at.blocks]
        outputs.append(first * second / n * (block_squares - 2.0 * means[0] * means[1]))
        lifts = [2.0 * shift * float(weight @ mean) + shift**2 for mean in means]
        image = np.array([weight @ output for output in outputs])
        missing = max(float(weight @ block.missing) for block in at.blocks)
        return Image(
            diagonal=_both(float(weight @ x) + y for x, y in zip(squares, lifts, strict=True)),
            inside=_both(float(weight @ x) + y for x, y in zip(pairs, lifts, strict=True)),
            between=float(weight @ (means[0] * means[1])) + 0.5 * sum(lifts),
            levels=image,
            jacobian=np.array([[weight @ (x * s) for s in at.scores] for x in outputs]),
            error=missing / max(float(min(image[[*at.active, True]])), _TINY),
        )

    def modes(self, levels: FloatArray) -> list[Mode]:
        """The spectrum of the Jacobian, less the eigenvalue 0 of the scale.

        At a fixed point, and with its levels: the scale counts here.
        """
        at = self._at(levels, moments=3)
        kept = [index for index in range(3) if index == 2 or at.active[index]]
        jacobian = self.image(levels).jacobian[np.ix_(kept, kept)]
        ratios = sorted(np.linalg.eigvals(jacobian), key=abs)[1:]
        modes = [Mode("ratios", complex(value), 1) for value in ratios]
        for block in (0, 1):
            if self.sizes[block] > 1:
                inner = self._within if at.active[block] else self._collapsed
                modes += inner(at, levels, block)
        if all(at.active):
            modes.append(self._across(at, levels))
        return modes

    def _within(self, at: _At, levels: FloatArray, block: int) -> Iterator[Mode]:
        """Deviations in which the samples of one block differ."""
        size, label = self.sizes[block], f"block {block}"
        alpha, beta, rank = levels[block], levels[2], at.rank
        inside, other = at.blocks[block], at.blocks[1 - block]
        length, z_e = at.lengths[block], at.lengths[2]
        root = math.sqrt(size)
        # With σ̄ the mean of the block: moments of Σσ_i v_i, Σσ_i(v_i²−1/s) given the lengths,
        # against 1 and against σ̄.
        by_v = root * inside.first[1]
        by_square = inside.first[2] - inside.first[0]
        mean_by_v = (inside.second[1] + (size - 1) * inside.pair[0, 1]) / root
        alone = inside.second[2] - inside.second[0]
        mean_by_square = (alone + (size - 1) * (inside.pair[0, 2] - inside.pair[0, 0])) / size
        # eᵀσ is, up to its norm, the mean of one block less that of the other.
        norm = self._contrast[block] * size
        lever = inside.centre - other.centre - other.first[0]
        contrast_by_v = norm * (lever * by_v + mean_by_v)
        contrast_by_square = norm * (lever * by_square + mean_by_square)

        mixed = rank / math.sqrt(alpha * beta) / (size - 1) * at.weight * z_e * length
        pure = 0.5 * rank / alpha / (size - 1) * at.weight * length**2
        to_contrast = float(mixed @ contrast_by_v)
        if size == 2:
            yield Mode(f"one of {label}", complex(to_contrast), 1)
            return
        # Σ(σ_i−σ̄)² v_i and Σ(σ_i−σ̄)²(v_i²−1/s).
        spread_by_v = root * inside.second[1] - 2.0 * mean_by_v
        spread_by_square = alone - 2.0 * mean_by_square
        share = 1.0 - 2.0 / size
        matrix = [
            [to_contrast, float(pure @ contrast_by_square)],
            [float(mixed @ spread_by_v) / share, float(pure @ spread_by_square) / share],
        ]
        for value in np.linalg.eigvals(np.array(matrix)):
            yield Mode(f"one of {label}", complex(value), size - 1)
        if size > 3:
            whole = inside.second[2] + (size - 1) * inside.pair[1, 1]
            trace = inside.second[0] - inside.pair[0, 0]
            rest = whole - trace - spread_by_square / share
            dimension = size * (size - 3) // 2
            value = float(pure @ rest) * (size - 1) / dimension
            yield Mode(f"pairs of {label}", complex(value), dimension)

    def _collapsed(self, at: _At, levels: FloatArray, block: int) -> Iterator[Mode]:
        """Deviations in which the samples of a collapsed block come apart.

        To first order in them, ``σ(φ_i) = σ(φ) + σ′(φ) √n w_i/|w|``, w their part of the Gaussian.
        """
        n, size, label = self.batch, self.sizes[block], f"block {block}"
        inside, other = at.blocks[block], at.blocks[1 - block]
        slope = self._sigma.slope(at.offset[block])
        norm = self._contrast[block] * size
        contrast = norm * (inside.centre - other.centre - other.first[0])
        beta, z_e = levels[2], at.lengths[2]
        apart = at.weight @ (slope / at.radius) ** 2
        if self._sigma.jumps_within(at.offset[block]):
            split = math.inf
        elif apart == 0.0:
            split = 0.0
        else:  # E 1/|z|² of a Gaussian z of so many dimensions
            split = n * float(apart) / (at.rank - 2) if at.rank > 2 else math.inf
        yield Mode(f"split of {label}", complex(split), size * (size - 1) // 2)
        value = math.sqrt(n / beta) * float(at.weight @ (contrast * slope * z_e / at.radius))
        yield Mode(f"one of {label}", complex(value), size - 1)
        if at.active[1 - block]:
            alpha, partners = levels[1 - block], self.sizes[1 - block]
            products = slope * at.lengths[1 - block] / at.radius * other.first[1]
            value = math.sqrt(n * partners / alpha) * float(at.weight @ products) / (partners - 1)
            yield Mode("across", complex(value), (size - 1) * (partners - 1))

    def _across(self, at: _At, levels: FloatArray) -> Mode:
        """Deviations between the blocks, in which the samples of both differ."""
        degrees = (self.sizes[0] - 1) * (self.sizes[1] - 1)
        products = at.lengths[0] * at.lengths[1] * at.blocks[0].first[1] * at.blocks[1].first[1]
        scale = at.rank * math.sqrt(self.sizes[0] * self.sizes[1] / (levels[0] * levels[1]))
        return Mode("across", complex(scale * float(at.weight @ products) / degrees), degrees)

    def _at(self, levels: FloatArray, moments: int) -> _At:
        """Moments given the lengths, at the nodes of the lengths."""
        active = (levels[0] > 0.0, levels[1] > 0.0)
        lengths, weight = self._lengths(levels, active)
        rank = 1 + sum(size - 1 for size, on in zip(self.sizes, active, strict=True) if on)
        radius = np.sqrt(levels @ lengths**2)
        n = self.batch
        offset, blocks, scores = [], [], []
        for block, size in enumerate(self.sizes):
            offset.append(math.sqrt(n * levels[2]) * self._contrast[block] * lengths[2] / radius)
            scale = math.sqrt(n / size * levels[block]) * lengths[block] / radius
            dimension = size - 1 if active[block] else 0
            blocks.append(
                _inside(self._sigma, offset[-1], scale, weight, dimension, moments, self.order)
            )
            scores.append(
                0.5 * (rank * lengths[block] ** 2 - dimension) / levels[block]
                if active[block]
                else np.zeros_like(weight)
            )
        scores.append(0.5 * (rank * lengths[2] ** 2 - 1.0) / levels[2])
        return _At(lengths, weight, radius, rank, active, offset, blocks, scores)

    def _lengths(
        self, levels: FloatArray, active: tuple[bool, bool]
    ) -> tuple[FloatArray, FloatArray]:
        """Nodes and weights for the lengths ``z_0, z_1, z_e`` (the last with its sign)."""
        dimensions = [size - 1 if on else 0 for size, on in zip(self.sizes, active, strict=True)]
        rank = 1 + sum(dimensions)
        if rank == 1:
            return np.array([[0.0, 0.0], [0.0, 0.0], [-1.0, 1.0]]), np.array([0.5, 0.5])
        limit = math.asin(min(1.0, reach(rank) / math.sqrt(rank)))
        count = math.ceil(2.0 * limit * math.sqrt(self.batch) / _WIDEST_PANEL)
        edges = [np.linspace(-limit, limit, count + 1)]
        for block in (0, 1):
            if dimensions[block]:
                edges += [np.arctan(self._tangents(levels, block)).ravel()]
        joined = np.unique(np.clip(np.concatenate(edges), -limit, limit))
        angle, weight = _panels(joined[None], self.order)
        angle, weight = angle[0], weight[0] * _power_of_cosine(angle[0], rank - 2)
        sine, cosine = np.sin(angle), np.cos(angle)
        if not all(dimensions):
            lengths = np.zeros((3, angle.size))
            lengths[2], lengths[0 if dimensions[0] else 1] = sine, cosine
        else:
            inner = self._inner_edges(levels, sine, cosine)
            turn, share = _panels(inner, self.order)
            share *= np.sin(turn) ** (dimensions[0] - 1) * np.cos(turn) ** (dimensions[1] - 1)
            weight = (weight[:, None] * share).ravel()
            lengths = np.stack(
                [
                    (cosine[:, None] * np.sin(turn)).ravel(),
                    (cosine[:, None] * np.cos(turn)).ravel(),
                    np.broadcast_to(sine[:, None], turn.shape).ravel(),
                ]
            )
        kept = weight > _NEGLIGIBLE * weight.max()
        weight = weight[kept]
        return lengths[:, kept], weight / weight.sum()

    def _tangents(self, levels: FloatArray, block: int) -> FloatArray:
        """``z_e/z_X`` where a sample can meet a corner of σ, if z has no part in the other block.

        A sample of the other block has one value there, one of X all between two extremes. What
        an average over x makes smooth needs no panels of its own, so a function that is hard to
        resolve, but without corners, has its breaks for the other block alone.
        """
        n, alpha, beta = self.batch, levels[block], levels[2]
        roots = []
        for member, kinks in ((block, self._sigma.corners), (1 - block, self._sigma.breaks[1:-1])):
            along = n * self._contrast[member] ** 2
            across = n - n / self.sizes[block] if member == block else 0.0
            roots.append(
                _roots(
                    beta * (along - kinks**2),
                    2.0 * math.sqrt(alpha * beta * along * across),
                    alpha * (across - kinks**2),
                )
            )
        return np.concatenate(roots)

    def _inner_edges(self, levels: FloatArray, sine: FloatArray, cosine: FloatArray) -> FloatArray:
        """Panels of the angle between the parts in both blocks, a row for each ``z_e``."""
        n, beta = self.batch, levels[2]
        count = math.ceil(math.sqrt(n) * 0.5 * math.pi / _WIDEST_PANEL)
        mesh = np.linspace(0.0, 0.5 * math.pi, count + 1)
        edges = [np.broadcast_to(mesh, (sine.size, mesh.size))]
        sine, cosine, kinks = sine[:, None], cosine[:, None], self._sigma.corners
        for block, inverse in ((0, np.arcsin), (1, np.arccos)):
            along = n * self._contrast[block] ** 2
            across = n - n / self.sizes[block]
            alpha, other = levels[block], levels[1 - block]
            share = _roots(
                cosine**2 * (alpha * across - kinks**2 * (alpha - other)),
                2.0 * math.sqrt(alpha * beta * along * across) * sine * cosine,
                beta * sine**2 * (along - kinks**2) - other * (kinks * cosine) ** 2,
            )
            edges.append(inverse(np.clip(share, 0.0, 1.0)))
        return np.sort(np.concatenate(edges, axis=1), axis=1)


@dataclass(frozen=True)
class _Pieces:
    """An activation as polynomials on panels.

    Attributes
    ----------
    function : Activation
    shift : float
        ``σ(0)``, which `value` leaves out: large constants would cancel elsewhere.
    breaks : ndarray
        Ends of the panels.
    corners, jumps : ndarray
        Where σ or σ′ jumps, and where σ does; of the former also what was declared.
    slopes : ndarray of shape (panels, degree)
        Legendre coefficients of σ′.
    """

    function: Activation
    shift: float
    breaks: FloatArray
    corners: FloatArray
    jumps: FloatArray
    slopes: FloatArray
    is_constant: bool

    def value(self, x: FloatArray) -> FloatArray:
        return np.asarray(self.function(x), dtype=np.float64) - self.shift

    def slope(self, x: FloatArray) -> FloatArray:
        panel = np.clip(np.searchsorted(self.breaks, x) - 1, 0, self.breaks.size - 2)
        low, high = self.breaks[panel], self.breaks[panel + 1]
        local = (2.0 * x - low - high) / (high - low)
        return np.asarray(legendre.legval(local, self.slopes[panel].T, tensor=False))

    def jumps_within(self, x: FloatArray) -> bool:
        return bool(np.any((self.jumps > x.min()) & (self.jumps < x.max())))


@lru_cache(maxsize=32)
def _pieces(activation: Activation, limit: float) -> _Pieces:
    breaks = resolve(activation, limit, activation.kinks)
    shift = float(activation(np.zeros(1))[0])
    nodes, weights = _gauss_legendre(_RESOLVE_ORDER)
    half = 0.5 * np.diff(breaks)[:, None]
    values = activation(0.5 * (breaks[1:] + breaks[:-1])[:, None] + half * nodes) - shift
    degree = np.arange(_RESOLVE_ORDER)
    vandermonde = legendre.legvander(nodes, _RESOLVE_ORDER - 1)
    coefficients = (values * weights) @ vandermonde * (degree + 0.5)
    slopes = np.asarray(legendre.legder(coefficients, axis=1) / half, dtype=np.float64)

    def gaps(series: FloatArray) -> FloatArray:
        right = series.sum(axis=1)
        left = (series * (-1.0) ** np.arange(series.shape[1])).sum(axis=1)
        return np.asarray(np.abs(left[1:] - right[:-1]))

    scale = float(np.abs(values).max())
    # Slopes on small panels carry rounding, divided by their length.
    narrow = np.minimum(half[1:, 0], half[:-1, 0])
    jumps = gaps(coefficients) > _JUMP * scale
    corners = jumps | (gaps(slopes) > _JUMP * scale * (1.0 + 1e-4 / narrow))
    declared = [kink for kink in activation.kinks if -limit < kink < limit]
    return _Pieces(
        function=activation,
        shift=shift,
        breaks=breaks,
        corners=np.unique(np.concatenate([breaks[1:-1][corners], declared])),
        jumps=breaks[1:-1][jumps],
        slopes=slopes,
        is_constant=float(np.ptp(values)) <= _CONSTANT * max(scale, abs(shift)),
    )


@dataclass(frozen=True)
class _Inside:
    """Moments of the samples of a block given the lengths, ``σ̂ = σ − centre``.

    Attributes
    ----------
    centre : ndarray of shape (nodes,)
        σ where the sample's own part is 0.
    first, second : ndarray of shape (moments, nodes)
        ``E σ̂₁ x₁^p`` and ``E σ̂₁² x₁^p``, x a coordinate of variance 1.
    squares : ndarray of shape (moments, nodes)
        ``E (σ̂₁ x₁^p)²``.
    pair : dict of ndarray
        ``E σ̂₁ σ̂₂ x₁^p x₂^q`` by (p, q).
    missing : ndarray of shape (nodes,)
        Bound of what is missing of the first of these.
    """

    centre: FloatArray
    first: FloatArray
    second: FloatArray
    squares: FloatArray
    pair: dict[tuple[int, int], FloatArray]
    missing: FloatArray


@dataclass(frozen=True)
class _At:
    """Everything that is averaged over the lengths; see `BlockMap`."""

    lengths: FloatArray
    weight: FloatArray
    radius: FloatArray
    rank: int
    active: tuple[bool, bool]
    offset: list[FloatArray]
    blocks: list[_Inside]
    scores: list[FloatArray]


def _inside(
    sigma: _Pieces,
    offset: FloatArray,
    scale: FloatArray,
    weight: FloatArray,
    dimension: int,
    moments: int,
    order: int,
) -> _Inside:
    """Moments of ``σ(offset + scale x)`` for rows of offsets and scales."""
    count = offset.size
    centre = sigma.value(offset)
    powers = [(0, 0)] if moments == 1 else [(0, 0), (0, 1), (0, 2), (1, 1)]
    found = _Inside(
        centre,
        np.zeros((moments, count)),
        np.zeros((moments, count)),
        np.zeros((moments, count)),
        {power: np.zeros(count) for power in powers},
        np.zeros(count),
    )
    if dimension == 0:
        return found
    nodes = order * (sigma.breaks.size + 2 * math.ceil(reach(dimension) / _WIDEST_PANEL))
    step = max(1, _PASS // nodes)
    for start in range(0, count, step):
        rows = slice(start, min(start + step, count))
        x, share = _coordinate(sigma, offset[rows], scale[rows], dimension, order)
        value = sigma.value(offset[rows, None] + scale[rows, None] * x) - centre[rows, None]
        weighted = [share * value]
        for _ in range(1, moments):
            weighted.append(weighted[-1] * x)
        for power, term in enumerate(weighted):
            found.first[power, rows] = term.sum(axis=1)
            found.second[power, rows] = (term * value).sum(axis=1)
            found.squares[power, rows] = (term * value * x**power).sum(axis=1)
        _add_pairs(found, rows, weighted, x, weight[rows], dimension)
    return found


def _coordinate(
    sigma: _Pieces, offset: FloatArray, scale: FloatArray, dimension: int, order: int
) -> tuple[FloatArray, FloatArray]:
    """Nodes and weights of a coordinate, a row for each offset and scale."""
    if dimension == 1:
        points = np.broadcast_to(np.array([-1.0, 1.0]), (offset.size, 2))
        return points, np.full_like(points, 0.5)
    radius, limit = math.sqrt(dimension), reach(dimension)
    mesh = np.linspace(-limit, limit, math.ceil(2.0 * limit / _WIDEST_PANEL) + 1)
    # A scale of 0 sees one value only: no panel is needed.
    spread = np.where(scale > 0.0, scale, 1.0)[:, None]
    breaks = np.clip((sigma.breaks - offset[:, None]) / spread, -limit, limit)
    edges = np.concatenate([breaks, np.broadcast_to(mesh, (offset.size, mesh.size))], axis=1)
    angle, weight = _panels(np.arcsin(np.clip(np.sort(edges, axis=1) / radius, -1.0, 1.0)), order)
    weight *= _power_of_cosine(angle, dimension - 2)
    weight /= weight.sum(axis=1, keepdims=True)
    return radius * np.sin(angle), weight


def _add_pairs(
    found: _Inside,
    rows: slice,
    weighted: list[FloatArray],
    x: FloatArray,
    weight: FloatArray,
    dimension: int,
) -> None:
    """Series for two samples of the block, whose coordinates have correlation ``−1/dimension``."""
    terms = _ratios(dimension)
    # Of σ̂ x^p: what Parseval's identity leaves for later terms.
    remaining = found.squares[:, rows].copy()
    enough = _TAIL * (remaining @ weight)
    cosine = x / math.sqrt(dimension)
    polynomial, before, link_before = np.ones_like(x), np.zeros_like(x), 0.0
    for k, (ratio, largest, link) in enumerate(terms):
        coefficients = [np.einsum("rt,rt->r", term, polynomial) for term in weighted]
        for (p, q), sums in found.pair.items():
            sums[rows] += ratio * coefficients[p] * coefficients[q]
        remaining -= np.square(coefficients)
        if k + 1 == len(terms) or np.all(largest * (remaining @ weight) <= enough):
            break
        before *= -link_before
        before += cosine * polynomial
        before /= link
        polynomial, before, link_before = before, polynomial, link
    found.missing[rows] = terms[k][1] * np.maximum(remaining[0], 0.0)


@lru_cache(maxsize=64)
def _ratios(dimension: int) -> list[tuple[float, float, float]]:
    """For each polynomial p_k: ``p_k(ρ)/p_k(1)``, the largest modulus of later ones, its link.

    They are orthonormal under the law of a coordinate of the unit sphere, and obey
    ``t p_k = link_k p_{k+1} + link_{k−1} p_{k−1}``; on the sphere of two points there are two.
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


def _panels(edges: FloatArray, order: int) -> tuple[FloatArray, FloatArray]:
    """Nodes and weights on the panels of each row of edges, panels empty in every row left out."""
    length = np.diff(edges, axis=1)
    kept = (length > _EMPTY).any(axis=0)
    half, low = 0.5 * length[:, kept, None], edges[:, :-1][:, kept, None]
    nodes, weights = _gauss_legendre(order)
    points, spread = low + half * (nodes + 1.0), half * weights
    return points.reshape(len(edges), -1), spread.reshape(len(edges), -1)


@lru_cache(maxsize=8)
def _gauss_legendre(order: int) -> tuple[FloatArray, FloatArray]:
    nodes, weights = legendre.leggauss(order)
    return nodes, weights


def _roots(a: FloatArray, b: FloatArray | float, c: FloatArray) -> FloatArray:
    """Real roots of ``a x² ± b x + c`` along the last axis; 0 in place of those that are not."""
    root = np.sqrt(np.maximum(b * b - 4.0 * a * c, 0.0))
    exists = b * b - 4.0 * a * c >= -1e-12 * (b * b + np.abs(4.0 * a * c))
    far = 0.5 * (np.abs(b) + root)
    with np.errstate(divide="ignore", invalid="ignore"):
        roots = np.concatenate(np.broadcast_arrays(far / a, c / far), axis=-1)
    roots = np.where(np.isfinite(roots) & np.concatenate([exists, exists], axis=-1), roots, 0.0)
    return np.concatenate([roots, -roots], axis=-1)


def _power_of_cosine(angle: FloatArray, power: int) -> FloatArray:
    # cos(a)^p would lose p ulp near a = 0, where all the weight is when p is large.
    return np.asarray(np.exp(power * np.log1p(-2.0 * np.sin(0.5 * angle) ** 2)))


def _both(values: Iterator[float]) -> tuple[float, float]:
    first, second = values
    return first, second
