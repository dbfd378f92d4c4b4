"""Moments of the activations of one block of samples, given the lengths of the row's parts.

Given the lengths (see `bnmc.mean_field.blocks.lengths`), the activation of a sample of the block is
f(x) = σ(offset + scale x), with x a coordinate of a uniform point on the sphere of radius √d in
d = s − 1 dimensions, s the size of the block.  The coordinates of two samples have the correlation
−1/d.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from bnmc.mean_field.blocks.pair_series import add_pair_series
from bnmc.mean_field.blocks.pieces import Pieces
from bnmc.mean_field.float64 import FloatArray
from bnmc.mean_field.quadrature.panels import power_of_cosine, row_panels
from bnmc.mean_field.quadrature.sphere import reach

__all__ = ["WIDEST_PANEL", "BlockMoments", "block_moments"]

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
    sigma: Pieces,
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
    sigma : Pieces
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
    centre = sigma.value(offset)
    pairs = [(0, 0)] if powers == 1 else [(0, 0), (0, 1), (0, 2), (1, 1)]
    found = BlockMoments(
        centre,
        np.zeros((powers, count)),
        np.zeros((powers, count)),
        np.zeros((powers, count)),
        {pair: np.zeros(count) for pair in pairs},
        np.zeros(count),
    )
    if dimension == 0:
        return found
    nodes = order * (sigma.breaks.size + 2 * math.ceil(reach(dimension) / WIDEST_PANEL))
    step = max(1, _PASS // nodes)
    for start in range(0, count, step):
        rows = slice(start, min(start + step, count))
        x, share = _coordinate(sigma, offset[rows], scale[rows], dimension, order)
        value = sigma.value(offset[rows, None] + scale[rows, None] * x) - centre[rows, None]
        weighted = [share * value]
        for _ in range(1, powers):
            weighted.append(weighted[-1] * x)
        for power, term in enumerate(weighted):
            found.first[power, rows] = term.sum(axis=1)
            found.second[power, rows] = (term * value).sum(axis=1)
            found.squares[power, rows] = (term * value * x**power).sum(axis=1)
        sums = {pair: total[rows] for pair, total in found.pair.items()}
        found.missing[rows] = add_pair_series(
            sums, found.squares[:, rows], weighted, x, weight[rows], dimension
        )
    return found


def _coordinate(
    sigma: Pieces, offset: FloatArray, scale: FloatArray, dimension: int, order: int
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
    angle, weight = row_panels(
        np.arcsin(np.clip(np.sort(edges, axis=1) / radius, -1.0, 1.0)), order
    )
    weight *= power_of_cosine(angle, dimension - 2)
    weight /= weight.sum(axis=1, keepdims=True)
    return radius * np.sin(angle), weight
