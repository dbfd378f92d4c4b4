"""Eigenvalues of the Jacobian of the mean-field map at a fixed point with two blocks of samples.

The Jacobian commutes with the permutations within the blocks, so it decomposes by the irreducible
representations of these permutations.  Notation: φ is a normalized row, σ_i the activation at
sample i, n the batch size, s the size of a block, v the unit vector of the part of φ in the block,
w the Gaussian row before its normalization, e the contrast between the blocks, and α_0, α_1 and β
the levels (see `bnmc.mean_field.blocks.block_map`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from bnmc.mean_field.blocks.given_lengths import GivenLengths
from bnmc.mean_field.blocks.pieces import Pieces
from bnmc.mean_field.blocks.sizes import BlockSizes
from bnmc.mean_field.float64 import FloatArray

__all__ = ["Mode", "across_mode", "collapsed_modes", "ratio_modes", "within_modes"]


@dataclass(frozen=True)
class Mode:
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


def ratio_modes(jacobian: FloatArray, active: tuple[bool, bool]) -> list[Mode]:
    """Return the eigenvalues on the levels, without the eigenvalue 0 of their common scale.

    Parameters
    ----------
    jacobian : ndarray of shape (3, 3)
        Derivatives of the levels of the image by the levels.
    active : tuple of bool
        Whether the level of each block is positive.
    """
    kept = [index for index in range(3) if index == 2 or active[index]]
    ratios = sorted(np.linalg.eigvals(jacobian[np.ix_(kept, kept)]), key=abs)[1:]
    return [Mode("ratios", complex(value), 1) for value in ratios]


def within_modes(
    sizes: BlockSizes, given: GivenLengths, levels: FloatArray, block: int
) -> Iterator[Mode]:
    """Yield the eigenvalues on deviations that differ between the samples of one block.

    `given` has all moments, and the level of the block is positive.
    """
    size, label = sizes.sizes[block], f"block {block}"
    alpha, beta, rank = levels[block], levels[2], given.rank
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
    norm = sizes.contrast[block] * size
    lever = inside.centre - other.centre - other.first[0]
    contrast_by_v = norm * (lever * by_v + mean_by_v)
    contrast_by_square = norm * (lever * by_square + mean_by_square)

    mixed = rank / math.sqrt(alpha * beta) / (size - 1) * given.weight * z_e * length
    pure = 0.5 * rank / alpha / (size - 1) * given.weight * length**2
    to_contrast = float(mixed @ contrast_by_v)
    if size == 2:
        yield Mode(f"one of {label}", complex(to_contrast), 1)
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
        yield Mode(f"one of {label}", complex(value), size - 1)
    if size > 3:
        whole = inside.second[2] + (size - 1) * inside.pair[1, 1]
        trace = inside.second[0] - inside.pair[0, 0]
        rest = whole - trace - spread_by_square / share
        dimension = size * (size - 3) // 2
        value = float(pure @ rest) * (size - 1) / dimension
        yield Mode(f"pairs of {label}", complex(value), dimension)


def collapsed_modes(
    sizes: BlockSizes, sigma: Pieces, given: GivenLengths, levels: FloatArray, block: int
) -> Iterator[Mode]:
    """Yield the eigenvalues on deviations that separate the samples of a collapsed block.

    To first order, σ(φ_i) = σ(φ) + σ′(φ) √n u_i/|w|, with u the part of w in the block.
    """
    n, size, label = sizes.batch, sizes.sizes[block], f"block {block}"
    inside, other = given.blocks[block], given.blocks[1 - block]
    slope = sigma.slope(given.offset[block])
    norm = sizes.contrast[block] * size
    contrast = norm * (inside.centre - other.centre - other.first[0])
    beta, z_e = levels[2], given.lengths[2]
    apart = given.weight @ (slope / given.radius) ** 2
    if sigma.jumps_within(given.offset[block]):
        split = math.inf
    elif apart == 0.0:
        split = 0.0
    else:  # E 1/|z|² = 1/(rank − 2) for a standard normal z in `rank` dimensions
        split = n * float(apart) / (given.rank - 2) if given.rank > 2 else math.inf
    yield Mode(f"split of {label}", complex(split), size * (size - 1) // 2)
    value = math.sqrt(n / beta) * float(given.weight @ (contrast * slope * z_e / given.radius))
    yield Mode(f"one of {label}", complex(value), size - 1)
    if given.active[1 - block]:
        alpha, partners = levels[1 - block], sizes.sizes[1 - block]
        products = slope * given.lengths[1 - block] / given.radius * other.first[1]
        value = math.sqrt(n * partners / alpha) * float(given.weight @ products) / (partners - 1)
        yield Mode("across", complex(value), (size - 1) * (partners - 1))


def across_mode(sizes: BlockSizes, given: GivenLengths, levels: FloatArray) -> Mode:
    """Return the eigenvalue on the block between two blocks of distinct samples."""
    degrees = (sizes.sizes[0] - 1) * (sizes.sizes[1] - 1)
    products = (
        given.lengths[0] * given.lengths[1] * given.blocks[0].first[1] * given.blocks[1].first[1]
    )
    scale = given.rank * math.sqrt(sizes.sizes[0] * sizes.sizes[1] / (levels[0] * levels[1]))
    return Mode("across", complex(scale * float(given.weight @ products) / degrees), degrees)
