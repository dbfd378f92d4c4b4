"""Three tiles of a block in a backward pass: drawn, multiplied by matrices, multiplied together.

A block works on the same rows of three tiles, in the order of `shape`: `first` and `second`, and
the gradient `delta`, which is the tile whose Gram matrix `sums` adds.  Matrices that multiply rows
are in shared memory, too, as `factor` writes its own: entry (k, c) is at ``k * padded + c``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from bnmc._kernels.gpu.block import Block
from bnmc._kernels.gpu.device import cuda
from bnmc._kernels.gpu.drawing import draw_function
from bnmc._kernels.gpu.shape import VECTOR, Shape, u32

#: Largest edge of the square of products that a thread sums.  The shares of all threads then fit
#: in a tile.
MOST_EDGE_OF_CROSS = 4


class Room(NamedTuple):
    """Offsets of a backward pass in shared memory, in numbers of each array's own type."""

    # float64: the pivots of what the layer saw
    seen: int
    # The type of rows: the factor of what the layer saw, that of δᵀδ, and `mixing`.
    factor: int
    root: int
    mixing: int
    first: int
    second: int
    delta: int
    bytes: int


def room_of(shape: Shape) -> Room:
    """Return where the arrays are; the gradient is the tile of `shape`, δᵀδ has its factor."""
    n, size = shape.spec.columns, np.dtype(shape.spec.dtype).itemsize
    seen = shape.bytes // 8
    factor = -(-(seen + n) * 8 // VECTOR) * VECTOR // size
    mixing = factor + n * shape.padded
    first = mixing + n * shape.padded
    classes, edge = classes_of_cross(n)
    tile = classes * edge * shape.stride
    second = first + tile
    end = -(-(second + tile) * size // 8) * 8
    return Room(seen, factor, shape.at.factor, mixing, first, second, shape.at.tile, end)


def classes_of_cross(columns: int) -> tuple[int, int]:
    """Return the number of classes of columns, and of columns of a class."""
    classes = -(-columns // MOST_EDGE_OF_CROSS)
    return classes, -(-columns // classes)


class Tiles(NamedTuple):
    """Device functions of tiles."""

    draw: Any
    multiply: Any
    multiply_onto: Any
    add_cross: Any


def tiles_functions(shape: Shape, block: Block) -> Tiles:
    """Return the device functions of tiles."""
    return Tiles(
        draw_function(shape),
        *_multiply_functions(shape, block),
        _add_cross_function(shape, block),
    )


def _multiply_functions(shape: Shape, block: Block) -> tuple[Any, Any]:
    columns, kind, number = shape.spec.columns, shape.spec.kind, shape.spec.number
    quads, chunk, accumulators = shape.quads, shape.chunk, shape.accumulators
    padded, stride, thread = shape.padded, shape.stride, block.thread

    @cuda.jit(device=True)
    def multiply(at_from, at_matrix, at_to):
        """Write a tile times a triangular matrix to another tile."""
        acc = cuda.local.array(accumulators, kind)
        t = thread()
        q, g = t % quads, t // quads
        for c in range(accumulators):
            acc[c] = number(0.0)
        add_products(acc, at_from + q, at_matrix + g * chunk, min(columns, (g + 1) * chunk))
        write(acc, at_to + q, g)
        cuda.syncthreads()

    @cuda.jit(device=True)
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
        add_products(acc, at_from + q, at_matrix + g * chunk, columns)
        write(acc, at_to + q, g)
        cuda.syncthreads()

    @cuda.jit(device=True)
    def add_products(acc, at_from, at_matrix, last):
        """Add to the columns of a thread the first `last` columns times entries of a matrix."""
        numbers = cuda.shared.array(0, kind)
        for k in range(last):
            at = at_from + k * stride
            z0, z1 = numbers[u32(at)], numbers[u32(at + quads)]
            z2, z3 = numbers[u32(at + 2 * quads)], numbers[u32(at + 3 * quads)]
            for c in range(chunk):
                entry = numbers[u32(at_matrix + k * padded + c)]
                acc[4 * c] += entry * z0
                acc[4 * c + 1] += entry * z1
                acc[4 * c + 2] += entry * z2
                acc[4 * c + 3] += entry * z3

    @cuda.jit(device=True)
    def write(acc, at_to, g):
        """Write the columns of a thread to a tile."""
        numbers = cuda.shared.array(0, kind)
        for c in range(chunk):
            if g * chunk + c < columns:
                for j in range(4):
                    at = at_to + (g * chunk + c) * stride + j * quads
                    numbers[u32(at)] = acc[4 * c + j]

    return multiply, multiply_onto


def _add_cross_function(shape: Shape, block: Block) -> Any:
    columns, kind, number = shape.spec.columns, shape.spec.kind, shape.spec.number
    threads, thread = shape.threads, block.thread
    stride, tile_rows = shape.stride, shape.tile_rows
    classes, edge = classes_of_cross(columns)
    squares, sums_of_thread = classes * classes, edge * edge
    splits = min(max(1, threads // squares), tile_rows)
    line = squares * splits

    @cuda.jit(device=True)
    def add_cross(at_left, at_right, at_shares, sums, first):
        """Add the products of the columns of two tiles to sums[first:]; the shares take a tile."""
        numbers = cuda.shared.array(0, kind)
        acc = cuda.local.array(sums_of_thread, kind)
        left = cuda.local.array(edge, kind)
        t = thread()
        for item in range(t, line, threads):
            split, square = item // squares, item % squares
            at_i, at_j = at_left + square // classes * stride, at_right + square % classes * stride
            for e in range(sums_of_thread):
                acc[e] = number(0.0)
            for place in range(split, tile_rows, splits):
                for a in range(edge):
                    left[a] = numbers[u32(at_i + a * classes * stride + place)]
                for b in range(edge):
                    right = numbers[u32(at_j + b * classes * stride + place)]
                    for a in range(edge):
                        acc[a * edge + b] += left[a] * right
            for a in range(edge):
                for b in range(edge):
                    if splits > 1:
                        numbers[u32(at_shares + (a * edge + b) * line + item)] = acc[a * edge + b]
                    else:
                        i, j = square // classes + a * classes, square % classes + b * classes
                        if i < columns and j < columns:
                            sums[first + i * columns + j] += np.float64(acc[a * edge + b])
        cuda.syncthreads()
        for entry in range(t, columns * columns if splits > 1 else 0, threads):
            i, j = entry // columns, entry % columns
            at = at_shares + (i // classes * edge + j // classes) * line
            at += i % classes * classes + j % classes
            # As for Gram matrices, the sum of a tile has the same bits whichever tiles came before.
            total = 0.0
            for split in range(splits):
                total += np.float64(numbers[u32(at + split * squares)])
            sums[first + entry] += total
        cuda.syncthreads()

    return add_cross
