"""Quadrature over the lengths of the parts of a row of a Gram matrix with two blocks.

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

import numpy as np

from bnmc.mean_field.blocks.block_moments import WIDEST_PANEL
from bnmc.mean_field.blocks.pieces import Pieces
from bnmc.mean_field.blocks.sizes import BlockSizes
from bnmc.mean_field.float64 import FloatArray
from bnmc.mean_field.quadrature.panels import power_of_cosine, row_panels
from bnmc.mean_field.quadrature.sphere import reach

__all__ = ["length_nodes"]

# Nodes whose weight, relative to the largest, is at most this are left out.  The error is below
# rounding for activations that grow like exp(|φ|).
_NEGLIGIBLE = 1e-30


def length_nodes(
    blocks: BlockSizes,
    sigma: Pieces,
    levels: FloatArray,
    active: tuple[bool, bool],
    order: int,
) -> tuple[FloatArray, FloatArray]:
    """Return nodes (z_0, z_1, z_e), shape (3, nodes), and their weights, which sum to 1.

    Parameters
    ----------
    blocks : BlockSizes
        The blocks.
    sigma : Pieces
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
    angle, weight = row_panels(joined[None], order)
    angle, weight = angle[0], weight[0] * power_of_cosine(angle[0], rank - 2)
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
    kept = weight > _NEGLIGIBLE * weight.max()
    weight = weight[kept]
    return lengths[:, kept], weight / weight.sum()


def _tangents(blocks: BlockSizes, sigma: Pieces, levels: FloatArray, block: int) -> FloatArray:
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
    blocks: BlockSizes, sigma: Pieces, levels: FloatArray, sine: FloatArray, cosine: FloatArray
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
