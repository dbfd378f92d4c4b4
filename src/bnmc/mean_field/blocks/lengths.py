"""Expectations over a row of a Gram matrix with two blocks, given the lengths of its parts.

Let z be uniform on the unit sphere of the space on which the Gram matrix is not 0.  It has a part
z_e along the contrast e, with a sign, and parts of lengths z_0 and z_1 in the blocks.  Let α_0, α_1
and β be the levels of the Gram matrix (see `bnmc.mean_field.blocks.block_map`).  The normalized row
depends on these lengths through √β z_e / ρ and √α_X z_X / ρ for X = 0, 1, where

    ρ² = β z_e² + α_0 z_0² + α_1 z_1².

With z_e = sin a, z_0 = cos a sin b and z_1 = cos a cos b, the lengths are two angles with smooth
densities.  The panels of the angles end where a sample of one block can first meet a corner of σ.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from bnmc.mean_field.blocks.pieces import WIDEST_PANEL, BlockMoments, block_moments
from bnmc.mean_field.float64 import FloatArray
from bnmc.mean_field.quadrature.panels import coordinate_rule, row_panels
from bnmc.mean_field.quadrature.profile import Profile
from bnmc.mean_field.quadrature.sphere import reach


@dataclass(frozen=True)
class BlockSizes:
    """Two blocks of samples.

    Attributes
    ----------
    sizes : tuple of int
        Samples s_0 and s_1 of the blocks, each at least 1.
    """

    sizes: tuple[int, int]

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

    def ranks(self, active: tuple[bool, bool]) -> tuple[int, int]:
        """Return the rank of the Gram matrix on the vectors of either block that sum to 0.

        It is s_X − 1 for a block X of distinct samples (`active`), 0 for a collapsed one.
        """
        first, second = (size - 1 if on else 0 for size, on in zip(self.sizes, active, strict=True))
        return first, second


# --- quadrature over the lengths

# Nodes whose weight, relative to the largest, is at most this are left out.  The error is below
# rounding for activations that grow like exp(|φ|).
_NEGLIGIBLE = 1e-30


def _length_nodes(
    blocks: BlockSizes,
    sigma: Profile,
    levels: FloatArray,
    active: tuple[bool, bool],
    order: int,
) -> tuple[FloatArray, FloatArray]:
    """Return nodes (z_0, z_1, z_e), shape (3, nodes), and their weights, which sum to 1.

    Parameters
    ----------
    blocks : BlockSizes
        The blocks.
    sigma : Profile
        The activation.
    levels : ndarray of shape (3,)
        α_0, α_1, β.
    active : tuple of bool
        Whether the level of each block is positive.
    order : int
        Nodes per panel.
    """
    dimensions = blocks.ranks(active)
    rank = 1 + sum(dimensions)
    if rank == 1:
        return np.array([[0.0, 0.0], [0.0, 0.0], [-1.0, 1.0]]), np.array([0.5, 0.5])
    limit = math.asin(min(1.0, reach(rank) / math.sqrt(rank)))
    count = math.ceil(2.0 * limit * math.sqrt(blocks.batch) / WIDEST_PANEL)
    edges = [np.linspace(-limit, limit, count + 1)]
    for block in (0, 1):
        if dimensions[block]:
            edges += [np.arctan(_tangents(blocks, sigma, levels, block)).ravel()]
    joined = np.unique(np.clip(np.concatenate(edges), -limit, limit))
    angle, weight = coordinate_rule(joined, rank, order)
    sine, cosine = np.sin(angle), np.cos(angle)
    if not all(dimensions):
        lengths = np.zeros((3, angle.size))
        lengths[2], lengths[0 if dimensions[0] else 1] = sine, cosine
    else:
        inner = _inner_edges(blocks, sigma, levels, sine, cosine)
        turn, share = row_panels(inner, order)
        share *= np.sin(turn) ** (dimensions[0] - 1) * np.cos(turn) ** (dimensions[1] - 1)
        weight = (weight[:, None] * share).ravel()
        lengths = np.stack(
            [
                (cosine[:, None] * np.sin(turn)).ravel(),
                (cosine[:, None] * np.cos(turn)).ravel(),
                np.broadcast_to(sine[:, None], turn.shape).ravel(),
            ]
        )
    counted = weight > _NEGLIGIBLE * weight.max()
    weight = weight[counted]
    return lengths[:, counted], weight / weight.sum()


def _tangents(blocks: BlockSizes, sigma: Profile, levels: FloatArray, block: int) -> FloatArray:
    """Return the ratios z_e/z_X at which a sample can first meet a corner of σ, for block X.

    The part of z in the other block is taken as 0.  A sample of the other block then has one value,
    a sample of X any value between two extremes.  An average over such values smooths everything
    but corners, so X gets panels for the corners of σ only, the other block for all breaks of σ.
    """
    n, alpha, beta = blocks.batch, levels[block], levels[2]
    roots = []
    for member, kinks in ((block, sigma.corners), (1 - block, sigma.breaks[1:-1])):
        along = n * blocks.contrast[member] ** 2
        across = n - n / blocks.sizes[block] if member == block else 0.0
        roots.append(
            _roots(
                beta * (along - kinks**2),
                2.0 * math.sqrt(alpha * beta * along * across),
                alpha * (across - kinks**2),
            )
        )
    return np.concatenate(roots)


def _inner_edges(
    blocks: BlockSizes, sigma: Profile, levels: FloatArray, sine: FloatArray, cosine: FloatArray
) -> FloatArray:
    """Return the panels of the angle b, one row for each sin a and cos a."""
    n, beta = blocks.batch, levels[2]
    count = math.ceil(math.sqrt(n) * 0.5 * math.pi / WIDEST_PANEL)
    mesh = np.linspace(0.0, 0.5 * math.pi, count + 1)
    edges = [np.broadcast_to(mesh, (sine.size, mesh.size))]
    sine, cosine, kinks = sine[:, None], cosine[:, None], sigma.corners
    for block, inverse in ((0, np.arcsin), (1, np.arccos)):
        along = n * blocks.contrast[block] ** 2
        across = n - n / blocks.sizes[block]
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


# --- expectations given the lengths


@dataclass(frozen=True)
class GivenLengths:
    """Nodes of the lengths z_0, z_1 and z_e, with the moments of the activations given them.

    `bnmc.mean_field.blocks.block_map` defines the levels α_0, α_1 and β, and ρ.

    Attributes
    ----------
    lengths : ndarray of shape (3, nodes)
        z_0, z_1 and z_e.
    weight : ndarray of shape (nodes,)
        Weights of the nodes, which sum to 1.
    radius : ndarray of shape (nodes,)
        ρ.
    rank : int
        Rank of the Gram matrix orthogonal to (1, …, 1).
    active : tuple of bool
        Whether the level of each block is positive.
    offset : list of ndarray of shape (nodes,)
        For each block, the value of φ for a sample whose coordinate is 0.
    blocks : list of BlockMoments
        For each block, the moments of its activations.
    scores : list of ndarray of shape (nodes,)
        For each level, the derivative of the log density of z by that level; 0 for a level 0.
    """

    lengths: FloatArray
    weight: FloatArray
    radius: FloatArray
    rank: int
    active: tuple[bool, bool]
    offset: list[FloatArray]
    blocks: list[BlockMoments]
    scores: list[FloatArray]


def given_lengths(
    sizes: BlockSizes, sigma: Profile, levels: FloatArray, powers: int, order: int
) -> GivenLengths:
    """Return the expectations for one Gram matrix.

    Parameters
    ----------
    sizes : BlockSizes
        The blocks.
    sigma : Profile
        The activation.
    levels : ndarray of shape (3,)
        α_0, α_1, β.
    powers : int
        1 for the moments of order 0 only, 3 for all; see `block_moments`.
    order : int
        Nodes per panel.
    """
    active = (levels[0] > 0.0, levels[1] > 0.0)
    lengths, weight = _length_nodes(sizes, sigma, levels, active, order)
    dimensions = sizes.ranks(active)
    rank = 1 + sum(dimensions)
    radius = np.sqrt(levels @ lengths**2)
    n = sizes.batch
    offset, blocks, scores = [], [], []
    for block, (size, dimension) in enumerate(zip(sizes.sizes, dimensions, strict=True)):
        offset.append(math.sqrt(n * levels[2]) * sizes.contrast[block] * lengths[2] / radius)
        scale = math.sqrt(n / size * levels[block]) * lengths[block] / radius
        blocks.append(block_moments(sigma, offset[-1], scale, weight, dimension, powers, order))
        scores.append(
            0.5 * (rank * lengths[block] ** 2 - dimension) / levels[block]
            if active[block]
            else np.zeros_like(weight)
        )
    scores.append(0.5 * (rank * lengths[2] ** 2 - 1.0) / levels[2])
    return GivenLengths(lengths, weight, radius, rank, active, offset, blocks, scores)
