"""The mean-field map on Gram matrices with two blocks of samples, under a centring norm.

Blocks X = 0, 1 have s_X samples, and n = s_0 + s_1 is the batch size.  Let G be a Gram matrix that
permutations within the blocks preserve.  Orthogonal to (1, …, 1), G has three eigenvalues, its
*levels*: α_X on the vectors of block X that sum to 0 (dimension s_X − 1), and β on the *contrast*
e, the unit vector that is constant on either block.  Let z be uniform on the unit sphere, z_e its
part along e, z_X the length and v_X the direction of its part in block X.  The normalized row of
w ~ N(0, G) is

    φ_i = √n (√β z_e e_i + √α_X z_X v_i) / ρ,    ρ² = β z_e² + α_0 z_0² + α_1 z_1²,

for a sample i of block X, with v_i the entry of v_X.  Given the *lengths* z_0, z_1 and z_e, a
sample of block X is a function of one coordinate of a uniform point on the sphere in s_X − 1
dimensions, two samples are functions of two coordinates, of correlation −1/(s_X − 1).  So all
expectations are integrals over the lengths of one-dimensional integrals, and of series for pairs of
samples (`lengths`).

If the level of a block is 0, the block has *collapsed*: its samples coincide.

**Eigenvalues of the Jacobian.**  The Jacobian commutes with the permutations within the blocks, so
it decomposes by the irreducible representations of these permutations.  In these formulas, σ_i is
the activation at sample i, s the size of a block, and v the unit vector of the part of φ in the
block.

**Fixed points.**  The map does not depend on the scale of the levels, so the unknowns are the
logarithms log(α_X/β) of the blocks X whose level is positive: the *active* blocks.  At a fixed
point the map does not change them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from bnmc.chain.activations import Activation
from bnmc.mean_field.blocks.lengths import Blocks, GivenLengths
from bnmc.mean_field.float64 import TINY, FloatArray, roots
from bnmc.mean_field.quadrature.profile import profile

# The weight of nodes that are left out, per sample.
_LEFT_OUT = 1e-30

# If σ − σ(0) is at most this, relative to σ(0), σ is constant.
_CONSTANT = 1e-12


@dataclass(frozen=True)
class Image:
    """The image F(G) of a Gram matrix G with given levels.

    Attributes
    ----------
    diagonal, inside : tuple of float
        For either block, the diagonal entries of F(G) and the entries for two of its samples.  For
        a block of one sample, `inside` has the diagonal entry.
    between : float
        The entries for a sample of one block and a sample of the other.
    levels : ndarray of shape (3,)
        The levels α_0, α_1 and β of F(G), with small relative errors however small they are.
    jacobian : ndarray of shape (3, 3)
        Derivatives of the levels of F(G) by those of G; 0 for a level of G that is 0.
    error : float
        Bound of the error of the series for pairs, of the deviation of σ from polynomials and of
        the nodes that are left out, relative to the smallest level.
    """

    diagonal: tuple[float, float]
    inside: tuple[float, float]
    between: float
    levels: FloatArray
    jacobian: FloatArray
    error: float


class BlockMap:
    """The map for one activation and one pair of block sizes.

    Parameters
    ----------
    activation : Activation
        The activation σ.
    sizes : tuple of int
        s_0 and s_1, each at least 1, with a sum of at least 3.
    order : int
        Nodes per panel of all quadratures.

    Raises
    ------
    UnresolvedError
        If the activation is not finite, or needs too many panels.
    """

    def __init__(self, activation: Activation, sizes: tuple[int, int], order: int) -> None:
        self.activation, self.sizes = activation, sizes
        self._sigma = profile(activation, math.sqrt(sum(sizes) - 1))
        self._blocks = Blocks(sizes, self._sigma, order)
        self._largest = float(np.abs(self._sigma.nodes[0] - self._sigma.shift).max())

    @property
    def is_constant(self) -> bool:
        """Whether the activation is constant, to rounding, on the sphere of this batch."""
        return self._largest <= _CONSTANT * abs(self._sigma.shift)

    @property
    def is_singular(self) -> bool:
        """Whether the derivative of the activation is infinite at a point, without a jump."""
        return not self._sigma.steep.size and bool(self._sigma.singular)

    def image(self, levels: FloatArray) -> Image:
        """Return the image of the Gram matrix with these levels, shape (3,), at any scale."""
        given = self._blocks.given(levels, powers=1)
        n, (first, second) = self._blocks.batch, self.sizes
        weight, shift = given.weight, self._sigma.shift
        # Given the lengths: for each block, E σ_i, E σ_i² and E σ_i σ_j for σ − σ(0).
        means = [block.centre + block.first[0] for block in given.blocks]
        shared = [block.centre**2 + 2.0 * block.centre * block.first[0] for block in given.blocks]
        squares = [a + block.second[0] for a, block in zip(shared, given.blocks, strict=True)]
        pairs = [a + block.pair[0, 0] for a, block in zip(shared, given.blocks, strict=True)]
        sums = zip(squares, pairs, self.sizes, strict=True)
        mean_squares = sum((square + (size - 1) * pair) / size for square, pair, size in sums)
        outputs = [block.second[0] - block.pair[0, 0] for block in given.blocks]
        outputs.append(first * second / n * (mean_squares - 2.0 * means[0] * means[1]))
        lifts = [2.0 * shift * float(weight @ mean) + shift**2 for mean in means]
        diagonal, inside = (
            [float(weight @ x) + y for x, y in zip(values, lifts, strict=True)]
            for values in (squares, pairs)
        )
        image = np.array([weight @ output for output in outputs])
        missing = max(float(weight @ block.missing) for block in given.blocks)
        missing += 8.0 * self._largest * self._sigma.largest_deviation
        missing += _LEFT_OUT * n**2 * self._largest**2
        return Image(
            diagonal=(diagonal[0], diagonal[1]),
            inside=(inside[0], inside[1]),
            between=float(weight @ (means[0] * means[1])) + 0.5 * sum(lifts),
            levels=image,
            jacobian=np.array([[weight @ (x * s) for s in given.scores] for x in outputs]),
            error=missing / max(float(image[levels > 0.0].min()), TINY),
        )

    def modes(self, levels: FloatArray) -> list[_Mode]:
        """Return the eigenvalues of the Jacobian, without the eigenvalue 0 of the scale.

        The levels must be those of a fixed point at its own scale.
        """
        given = self._blocks.given(levels, powers=3)
        modes = _ratio_modes(self.image(levels).jacobian, levels)
        for block in (0, 1):
            if self.sizes[block] > 1:
                of_block = _within_modes if levels[block] > 0.0 else _collapsed_modes
                modes += of_block(self._blocks, given, block)
        if (levels > 0.0).all():
            modes.append(_across_mode(self._blocks, given))
        return modes


# --- eigenvalues of the Jacobian


@dataclass(frozen=True)
class _Mode:
    """An eigenvalue of the Jacobian.

    Attributes
    ----------
    name : str
        The kind of its eigenvectors; see `BlockFixedPoint.modes`.
    value : complex
        The eigenvalue.
    multiplicity : int
        Its multiplicity.
    """

    name: str
    value: complex
    multiplicity: int


def _ratio_modes(jacobian: FloatArray, levels: FloatArray) -> list[_Mode]:
    """Return the eigenvalues on the levels, without the eigenvalue 0 of their common scale.

    `jacobian` has the derivatives of the levels of the image by the levels.
    """
    positive = np.flatnonzero(levels)
    ratios = sorted(np.linalg.eigvals(jacobian[np.ix_(positive, positive)]), key=abs)[1:]
    return [_Mode("ratios", complex(value), 1) for value in ratios]


def _within_modes(blocks: Blocks, given: GivenLengths, block: int) -> Iterator[_Mode]:
    """Yield the eigenvalues on deviations that differ between the samples of one block.

    `given` has all moments, and the level of the block is positive.
    """
    size, label = blocks.sizes[block], f"block {block}"
    alpha, beta, rank = given.levels[block], given.levels[2], given.rank
    inside, other = given.blocks[block], given.blocks[1 - block]
    length, z_e = given.lengths[block], given.lengths[2]
    root = math.sqrt(size)
    # Given the lengths: the expectations of Σσ_i v_i and of Σσ_i(v_i²−1/s), and those of their
    # products with σ̄, the mean of σ over the block.
    by_v = root * inside.first[1]
    by_square = inside.first[2] - inside.first[0]
    mean_by_v = (inside.second[1] + (size - 1) * inside.pair[0, 1]) / root
    alone = inside.second[2] - inside.second[0]
    mean_by_square = (alone + (size - 1) * (inside.pair[0, 2] - inside.pair[0, 0])) / size
    # eᵀσ is the difference of the means of the two blocks, times a constant.
    norm = blocks.contrast[block] * size
    lever = inside.centre - other.centre - other.first[0]
    contrast_by_v = norm * (lever * by_v + mean_by_v)
    contrast_by_square = norm * (lever * by_square + mean_by_square)

    mixed = rank / math.sqrt(alpha * beta) / (size - 1) * given.weight * z_e * length
    pure = 0.5 * rank / alpha / (size - 1) * given.weight * length**2
    to_contrast = float(mixed @ contrast_by_v)
    if size == 2:
        yield _Mode(f"one of {label}", complex(to_contrast), 1)
        return
    # Given the lengths: the expectations of Σ(σ_i−σ̄)² v_i and of Σ(σ_i−σ̄)²(v_i²−1/s).
    spread_by_v = root * inside.second[1] - 2.0 * mean_by_v
    spread_by_square = alone - 2.0 * mean_by_square
    share = 1.0 - 2.0 / size
    matrix = [
        [to_contrast, float(pure @ contrast_by_square)],
        [float(mixed @ spread_by_v) / share, float(pure @ spread_by_square) / share],
    ]
    for value in np.linalg.eigvals(np.array(matrix)):
        yield _Mode(f"one of {label}", complex(value), size - 1)
    if size > 3:
        whole = inside.second[2] + (size - 1) * inside.pair[1, 1]
        trace = inside.second[0] - inside.pair[0, 0]
        rest = whole - trace - spread_by_square / share
        dimension = size * (size - 3) // 2
        value = float(pure @ rest) * (size - 1) / dimension
        yield _Mode(f"pairs of {label}", complex(value), dimension)


def _collapsed_modes(blocks: Blocks, given: GivenLengths, block: int) -> Iterator[_Mode]:
    """Yield the eigenvalues on deviations that separate the samples of a collapsed block.

    To first order, σ(φ_i) = σ(φ) + σ′(φ) √n u_i/|w|, with u the part of w in the block.
    """
    n, size, label = blocks.batch, blocks.sizes[block], f"block {block}"
    inside, other = given.blocks[block], given.blocks[1 - block]
    steep, slope = blocks.sigma.steep, blocks.sigma.slope(given.offset[block])
    norm = blocks.contrast[block] * size
    contrast = norm * (inside.centre - other.centre - other.first[0])
    beta, z_e = given.levels[2], given.lengths[2]
    apart = given.weight @ (slope / given.radius) ** 2
    offset = given.offset[block]
    if ((offset.min() < steep) & (steep < offset.max())).any():
        split = math.inf
    elif apart == 0.0:
        split = 0.0
    else:  # E 1/|z|² = 1/(rank − 2) for a standard normal z in `rank` dimensions
        split = n * float(apart) / (given.rank - 2) if given.rank > 2 else math.inf
    yield _Mode(f"split of {label}", complex(split), size * (size - 1) // 2)
    value = math.sqrt(n / beta) * float(given.weight @ (contrast * slope * z_e / given.radius))
    yield _Mode(f"one of {label}", complex(value), size - 1)
    alpha, partners = given.levels[1 - block], blocks.sizes[1 - block]
    if alpha > 0.0:
        products = slope * given.lengths[1 - block] / given.radius * other.first[1]
        value = math.sqrt(n * partners / alpha) * float(given.weight @ products) / (partners - 1)
        yield _Mode("across", complex(value), (size - 1) * (partners - 1))


def _across_mode(blocks: Blocks, given: GivenLengths) -> _Mode:
    """Return the eigenvalue on the block between two blocks of distinct samples."""
    (first, second), levels = blocks.sizes, given.levels
    degrees = (first - 1) * (second - 1)
    moments = given.blocks[0].first[1], given.blocks[1].first[1]
    products = given.lengths[0] * given.lengths[1] * moments[0] * moments[1]
    scale = given.rank * math.sqrt(first * second / (levels[0] * levels[1]))
    return _Mode("across", complex(scale * float(given.weight @ products) / degrees), degrees)


# --- fixed points

# One unknown is sought on a grid.  The grid does not contain 0, the symmetric fixed point.
_GRID = np.arange(-20.25, 6.0, 0.5)

# Two unknowns are sought by Newton's method from these starts.
_STARTS = (
    (-3.0, -5.0), (-0.4, -2.0), (-0.4, -4.0), (-1.5, -0.8), (-1.5, 0.4), (0.5, 0.5), (0.5, -0.8),
    (1.5, -2.0),
)  # fmt: skip


# A root solves the equations to _SOLVED.  Two roots closer than _SAME are the same.
_SOLVED, _SAME = 1e-12, 1e-6

# Newton's method ends after _MOST_STEPS steps.  A step changes each unknown by at most
# _LONGEST_STEP.
_MOST_STEPS, _LONGEST_STEP = 20, 2.0

# A root closer than _SYMMETRIC to 0 is the symmetric fixed point, up to errors of the quadrature.
# Beyond _FAR, Newton's method converges to a collapse.
_SYMMETRIC, _FAR = 1e-4, 20.0


def find_roots(
    coarse: BlockMap, fine: BlockMap, active: tuple[int, ...], *, symmetric: bool
) -> list[FloatArray]:
    """Return the roots, each of shape (len(active),), sought by `coarse` and refined by `fine`.

    Parameters
    ----------
    coarse, fine : BlockMap
        The map by a coarse and by a fine quadrature.
    active : tuple of int
        The active blocks.
    symmetric : bool
        Whether the symmetric fixed point is among the roots; it is left out of the result.
    """
    if len(active) == 2:
        reached = (newton(coarse, active, np.array(start)) for start in _STARTS)
        starts = [root for root in reached if root is not None]
    else:
        starts = _scan(coarse, active, symmetric=symmetric) if active else [np.empty(0)]
    roots: list[FloatArray] = []
    for start in _distinct(starts):
        root = newton(fine, active, start)
        if root is None or (symmetric and np.abs(root).max() < _SYMMETRIC):
            continue
        if len(active) == 2 and fine.sizes[0] == fine.sizes[1]:
            root = -np.sort(-root)  # blocks of equal size are interchangeable
        roots.append(root)
    return _distinct(roots)


def newton(block_map: BlockMap, active: tuple[int, ...], start: FloatArray) -> FloatArray | None:
    """Return a root near a start, by Newton's method with steps of bounded length.

    None if the iterates leave the range or do not converge.
    """
    if not active:  # only the scale is free
        return start
    at = start
    for _ in range(_MOST_STEPS):
        change, jacobian = _residual(block_map, active, at)
        if np.abs(change).max() < _SOLVED:
            return at
        step = -np.linalg.lstsq(jacobian, change)[0]
        at = at + step * min(1.0, _LONGEST_STEP / float(np.abs(step).max()))
        if np.abs(at).max() > _FAR:
            return None
    return None


def levels_of(active: tuple[int, ...], logarithms: FloatArray) -> FloatArray:
    """Return the levels (α_0, α_1, β) with β = 1."""
    levels = np.array([0.0, 0.0, 1.0])
    levels[list(active)] = np.exp(np.clip(logarithms, -100.0, 100.0))
    return levels


def _residual(
    block_map: BlockMap, active: tuple[int, ...], logarithms: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return the change of the unknowns in one layer, and its Jacobian."""
    levels = levels_of(active, logarithms)
    image = block_map.image(levels)
    rows = list(active)
    after = np.maximum(image.levels, TINY)
    change = np.log(after[rows] / after[2]) - logarithms
    relative = image.jacobian[:, rows] * levels[rows] / after[:, None]
    return change, relative[rows] - relative[2] - np.eye(len(rows))


def _scan(block_map: BlockMap, active: tuple[int, ...], *, symmetric: bool) -> list[FloatArray]:
    """Return roots in one unknown; the root 0 of the symmetric fixed point is divided out."""

    def remainder(logarithm: float) -> float:
        change = float(_residual(block_map, active, np.array([logarithm]))[0][0])
        return change / logarithm if symmetric else change

    return [np.array([root]) for root in roots(remainder, _GRID, xtol=1e-10)]


def _distinct(roots: list[FloatArray]) -> list[FloatArray]:
    """Return the roots, each once."""
    distinct: list[FloatArray] = []
    for root in roots:
        if all(np.abs(root - other).max() > _SAME for other in distinct):
            distinct.append(root)
    return distinct
