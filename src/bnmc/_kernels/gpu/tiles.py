"""Tiles of rows in shared memory: quads of rows, products with matrices and with one another.

Matrices that multiply rows are in shared memory, too, as `factor` writes its own: entry (k, c) is
at ``k * padded + c``.  In a backward pass a block has three tiles of the same rows: `first` and
`second`, and the gradient `delta`, which is the tile whose Gram matrix `sums` adds.
"""

from __future__ import annotations

import numpy as np

from bnmc._kernels.gpu.block import thread
from bnmc._kernels.gpu.constants import (
    accumulators, chunk, columns, cross_classes, cross_edge, cross_square, kind, number, padded,
    quads, stride, threads, tile_rows,
)  # fmt: skip
from bnmc._kernels.gpu.device import cuda, inlined
from bnmc._kernels.gpu.shape import u32


@inlined
def quad_at(at):
    """Return the four numbers of a quad in a column of a tile."""
    numbers = cuda.shared.array(0, kind)
    z0, z1 = numbers[u32(at)], numbers[u32(at + quads)]
    z2, z3 = numbers[u32(at + 2 * quads)], numbers[u32(at + 3 * quads)]
    return z0, z1, z2, z3


@inlined
def write_quad(at, quad):
    """Write the four numbers of a quad to a column of a tile."""
    numbers = cuda.shared.array(0, kind)
    numbers[u32(at)] = quad[0]
    numbers[u32(at + quads)] = quad[1]
    numbers[u32(at + 2 * quads)] = quad[2]
    numbers[u32(at + 3 * quads)] = quad[3]


@inlined
def add_quad(acc, c, entry, quad):
    """Add a quad times `entry` to column c of the thread."""
    acc[4 * c] += entry * quad[0]
    acc[4 * c + 1] += entry * quad[1]
    acc[4 * c + 2] += entry * quad[2]
    acc[4 * c + 3] += entry * quad[3]


@inlined
def drawn_quad(function, element, quad, draw):
    """Return the four numbers of a quad, given their law."""
    return function(np.uint32(element), quad, draw.layer, draw.stream, draw.key0, draw.key1)


def multiply(at_from, at_matrix, at_to):
    """Write a tile times a triangular matrix to a tile, which may be the same."""
    acc = cuda.local.array(accumulators, kind)
    t = thread()
    q, g = t % quads, t // quads
    for c in range(accumulators):
        acc[c] = number(0.0)
    _add_products(acc, at_from + q, at_matrix + g * chunk, min(columns, (g + 1) * chunk))
    if at_from == at_to:
        cuda.syncthreads()
    _write(acc, at_to + q, g)


def multiply_onto(at_from, at_matrix, at_to):
    """Add a tile times a matrix to another tile."""
    numbers = cuda.shared.array(0, kind)
    acc = cuda.local.array(accumulators, kind)
    t = thread()
    q, g = t % quads, t // quads
    for c in range(chunk):
        for j in range(4):
            value = number(0.0)
            if g * chunk + c < columns:
                value = numbers[u32(at_to + (g * chunk + c) * stride + j * quads + q)]
            acc[4 * c + j] = value
    _add_products(acc, at_from + q, at_matrix + g * chunk, columns)
    _write(acc, at_to + q, g)


def _add_products(acc, at_from, at_matrix, last):
    """Add to the columns of a thread the first `last` columns times entries of a matrix."""
    numbers = cuda.shared.array(0, kind)
    for k in range(last):
        quad = quad_at(at_from + k * stride)
        for c in range(chunk):
            add_quad(acc, c, numbers[u32(at_matrix + k * padded + c)], quad)


def _write(acc, at_to, g):
    """Write the columns of a thread to a tile."""
    numbers = cuda.shared.array(0, kind)
    for c in range(chunk):
        if g * chunk + c < columns:
            for j in range(4):
                at = at_to + (g * chunk + c) * stride + j * quads
                numbers[u32(at)] = acc[4 * c + j]
    cuda.syncthreads()


def add_cross(at_left, at_right, at_shares, sums, first):
    """Add the products of the columns of two tiles to sums[first:]; the shares take a tile."""
    numbers = cuda.shared.array(0, kind)
    acc = cuda.local.array(cross_square, kind)
    left = cuda.local.array(cross_edge, kind)
    t, squares = thread(), cross_classes * cross_classes
    splits = min(max(1, threads // squares), tile_rows)
    line = squares * splits
    for item in range(t, line, threads):
        split, square = item // squares, item % squares
        at_i, at_j = (
            at_left + square // cross_classes * stride,
            at_right + square % cross_classes * stride,
        )
        for e in range(cross_square):
            acc[e] = number(0.0)
        for place in range(split, tile_rows, splits):
            for a in range(cross_edge):
                left[a] = numbers[u32(at_i + a * cross_classes * stride + place)]
            for b in range(cross_edge):
                right = numbers[u32(at_j + b * cross_classes * stride + place)]
                for a in range(cross_edge):
                    acc[a * cross_edge + b] += left[a] * right
        for a in range(cross_edge):
            for b in range(cross_edge):
                if splits > 1:
                    numbers[u32(at_shares + (a * cross_edge + b) * line + item)] = acc[
                        a * cross_edge + b
                    ]
                else:
                    i, j = (
                        square // cross_classes + a * cross_classes,
                        square % cross_classes + b * cross_classes,
                    )
                    if i < columns and j < columns:
                        sums[first + i * columns + j] += np.float64(acc[a * cross_edge + b])
    cuda.syncthreads()
    for entry in range(t, columns * columns if splits > 1 else 0, threads):
        i, j = entry // columns, entry % columns
        at = at_shares + (i // cross_classes * cross_edge + j // cross_classes) * line
        at += i % cross_classes * cross_classes + j % cross_classes
        # As for Gram matrices, the sum of a tile has the same bits whichever tiles came before.
        total = 0.0
        for split in range(splits):
            total += np.float64(numbers[u32(at + split * squares)])
        sums[first + entry] += total
    cuda.syncthreads()
