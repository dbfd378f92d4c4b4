"""The frame of the kernels of a backward pass: the loop over the rows of a layer, and its sums.

A kernel that sums over the rows of a layer prepares matrices in shared memory.  Then `sum_rows`
takes each block through its ranges of tiles, and the last block of a chain merges the sums of all.
Kernels differ in what they do with a tile: they give `sum_rows` the function that does it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import int64

from bnmc._kernels.gpu.arguments import NOTHING
from bnmc._kernels.gpu.backward_matrices import merge
from bnmc._kernels.gpu.tiles import add_cross, multiply
from bnmc._kernels.gpu.block import NOT_STOPPED, STEP_BITS, STOPPED_NOT_FINITE, thread
from bnmc._kernels.gpu.constants import (
    at_delta, at_diagonal, at_first, at_flags, at_root, at_second, at_seen, at_seen_factor,
    columns, entries, kind, number, padded, skipped, threads,
)  # fmt: skip
from bnmc._kernels.gpu.device import cuda, inlined
from bnmc._kernels.gpu.drawing import draw_normals_of_tile
from bnmc._kernels.gpu.gram import store_gram
from bnmc._kernels.gpu.rows import each_entry, load, store
from bnmc._kernels.gpu.shape import Shape, u32
from bnmc._kernels.gpu.sums import add_tile, finish_sums, merge_ranges
from bnmc._kernels.scalar.codes import STREAM_BACKWARD, STREAM_ROWS, Draw


def sums_of(shape: Shape, taps: int) -> int:
    """Return how many sums over rows a range of tiles has: δᵀδ, then zᵀδ and xᵀδ, or all aᵀZ."""
    return shape.entries + max(2, taps) * shape.spec.columns**2


# --- what device functions take, in the kernels


class Rows(NamedTuple):
    """What makes the rows h of a layer, besides the factor in shared memory."""

    #: With a skip connection, the representation of the layer before, and its factor.
    x: Any
    skip: Any
    #: Of the normals of the rows h, and of the rows Z.
    draw: Any
    noise: Any


@inlined
def rows_of(layers, law, address, layer, at):
    """Return the `Rows` of a layer of the chain of this block."""
    chain = cuda.blockIdx.y
    name = np.uint32(address.first_chain + chain)
    draw = Draw(np.uint32(layer), np.uint32(STREAM_ROWS | name), address.key0, address.key1)
    noise = Draw(np.uint32(layer), np.uint32(STREAM_BACKWARD | name), address.key0, address.key1)
    return Rows(layers.xs[chain, at] if skipped else NOTHING, law.skip, draw, noise)


# --- tiles


@inlined
def draw_rows(at, row, rows):
    """Write the normals of the rows h to a tile."""
    draw_normals_of_tile(thread(), at, at_seen, row, 0, rows.draw)


@inlined
def draw_noise(at, row, rows):
    """Write the normals of the rows Z to a tile."""
    draw_normals_of_tile(thread(), at, at_diagonal, row, 0, rows.noise)


@inlined
def make_noise(row, rows):
    """Write Z to the tile `delta`."""
    draw_noise(at_first, row, rows)
    multiply(at_first, at_root, at_delta)


@inlined
def make_rows(row, width, rows):
    """Write the normals of the rows h to the tile `first`, and h to the tile `second`."""
    draw_rows(at_first, row, rows)
    make_rows_again(row, width, rows)


@inlined
def make_rows_again(row, width, rows):
    """Write h to the tile `second`, given its normals."""
    multiply(at_first, at_seen_factor, at_second)
    if skipped:
        each_entry(_add_skip, -1, row, width, rows)


@inlined
def _add_skip(numbers, at, i, row, rows):
    numbers[u32(at_second + at)] += number(rows.skip) * number(rows.x[i, row])


# --- the state of a layer


def clear_range(sums):
    """Set the sums over a range of tiles to zero."""
    for entry in range(thread(), sums.size, threads):
        sums[entry] = 0.0
    cuda.syncthreads()


@inlined
def add_delta(row, width, sums, rows, gradient):
    """Store δ, and add the products of the tiles `first` and `delta`, which are used up."""
    if skipped:
        store(at_delta, row, width, gradient.above)
    _add_products(row, width, gradient.hidden, rows.x, sums)


def _add_products(row, width, hidden, x, sums):
    """Add zᵀδ, xᵀδ and δᵀδ."""
    add_cross(at_first, at_delta, at_second, sums, entries)
    if skipped and hidden:
        load(at_first, row, width, x)
        add_cross(at_first, at_delta, at_second, sums, entries + columns * columns)
    add_tile()


def finish_state(sums, width, unit, skip, hidden, state, record):
    """Merge the sums of all ranges to the state, and record it."""
    merge_ranges(sums)
    finish_sums(width)
    store_gram(state[0])
    merge(sums, entries, width, state[1])
    if hidden:
        merge(sums, entries + columns * columns, width, record[2])
        _add_drawn(unit, skip, state[1], record[2])
    for item in range(thread(), 2 * columns * columns, threads):
        matrix, i, j = item // (columns * columns), item // columns % columns, item % columns
        record[matrix, i, j] = state[matrix, i, j]


def _add_drawn(unit, skip, cross, out):
    """Turn xᵀδ into hᵀδ: h is skip x and, of the normals z, gain W a."""
    numbers = cuda.shared.array(0, kind)
    for item in range(thread(), columns * columns, threads):
        i, j = item // columns, item % columns
        total = skip * out[i, j] if skipped else 0.0
        for k in range(i + 1):
            total += float(numbers[u32(at_seen_factor + k * padded + i)]) / unit * cross[k, j]
        out[i, j] = total
    cuda.syncthreads()


@inlined
def close(factors, status, at, step, scale):
    """Note the factor of δ of the layer above, and a state that is not finite."""
    whole = cuda.shared.array(0, int64)
    if cuda.threadIdx.x == 0:
        chain = cuda.blockIdx.y
        factors[chain, at] = scale
        if whole[u32(at_flags)] != NOT_STOPPED:
            cuda.atomic.min(status, chain, (step << STEP_BITS) + STOPPED_NOT_FINITE)
