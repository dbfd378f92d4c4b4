"""Expectations over a row of a Gram matrix with two blocks, given the lengths of its parts."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from bnmc.mean_field.blocks.block_moments import BlockMoments, block_moments
from bnmc.mean_field.blocks.lengths import length_nodes
from bnmc.mean_field.blocks.pieces import Pieces
from bnmc.mean_field.blocks.sizes import BlockSizes
from bnmc.mean_field.float64 import FloatArray

__all__ = ["GivenLengths", "given_lengths"]


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
    sizes: BlockSizes, sigma: Pieces, levels: FloatArray, powers: int, order: int
) -> GivenLengths:
    """Return the expectations for one Gram matrix.

    Parameters
    ----------
    sizes : BlockSizes
        The blocks.
    sigma : Pieces
        The activation.
    levels : ndarray of shape (3,)
        α_0, α_1, β.
    powers : int
        1 for the moments of order 0 only, 3 for all; see `block_moments`.
    order : int
        Nodes per panel.
    """
    active = (levels[0] > 0.0, levels[1] > 0.0)
    lengths, weight = length_nodes(sizes, sigma, levels, active, order)
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
