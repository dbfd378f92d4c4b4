"""The frame of the kernels of a backward pass: the loop over the rows of a layer, and its sums.

A kernel that sums over the rows of a layer prepares matrices in shared memory.  Then `sum_rows`
takes each block through its ranges of tiles, and the last block of a chain merges the sums of all.
Kernels differ in what they do with a tile: they give a device function to `sum_function`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import float64, int64

from bnmc._kernels.gpu.backward_matrices import Matrices
from bnmc._kernels.gpu.backward_rows import Steps
from bnmc._kernels.gpu.backward_tiles import Room, Tiles
from bnmc._kernels.gpu.block import Block
from bnmc._kernels.gpu.device import cuda, inlined
from bnmc._kernels.gpu.gram import Gram
from bnmc._kernels.gpu.registers import MOST_REGISTERS, SHARED_OF_PROCESSOR
from bnmc._kernels.gpu.shape import Shape, u32
from bnmc._kernels.gpu.stops import NOT_STOPPED, STEP_BITS, STOPPED_NOT_FINITE
from bnmc._kernels.gpu.sums import Sums
from bnmc._kernels.scalar.codes import STREAM_BACKWARD, STREAM_ROWS


class Parts(NamedTuple):
    """What the kernels are made of."""

    shape: Shape
    room: Room
    block: Block
    gram: Gram
    sums: Sums
    tiles: Tiles
    steps: Steps
    matrices: Matrices


def sums_of(shape: Shape) -> int:
    """Return how many sums over rows a range of tiles has: zᵀδ, xᵀδ, and δᵀδ."""
    return 2 * shape.spec.columns**2 + shape.entries


def registers_of(room: Room) -> int:
    """Return the largest number of registers of a thread."""
    # Blocks have at most 128 threads, so that fewer registers would not let more of them run.
    blocks = max(1, SHARED_OF_PROCESSOR // room.bytes)
    return MOST_REGISTERS if blocks > 2 else 255


# --- what device functions take, in the kernels


class Draws(NamedTuple):
    """The counter, the streams and the key of the normals of a layer of a chain."""

    counter: Any
    #: Of the rows h, and of the rows Z.
    rows: Any
    noise: Any
    k0: Any
    k1: Any


class Rows(NamedTuple):
    """What makes the rows h of a layer, besides the factor in shared memory."""

    #: With a skip connection, the representation of the layer before, and its factor.
    x: Any
    skip: Any
    #: Of the norm.
    eps: Any
    draws: Any


class Gradient(NamedTuple):
    """What makes the gradient of a layer, besides the matrices in shared memory."""

    #: With a skip connection, δ of the layer above, and its factor.
    above: Any
    skip: Any
    #: The factor of Wᵀδ.
    gain: Any
    #: The rows h are in units of which inverse scales need this factor.
    unit: Any
    #: Whether hᵀδ is wanted.
    hidden: Any


@inlined
def draws_of(first_chain, layer, k0, k1):
    """Return the `Draws` of a layer of the chain of this block."""
    own = np.uint32(first_chain + cuda.blockIdx.y)
    rows, noise = np.uint32(STREAM_ROWS | own), np.uint32(STREAM_BACKWARD | own)
    return Draws(np.uint32(layer), rows, noise, k0, k1)


def rows_function(parts: Parts) -> Any:
    """Return the device function `rows_of`."""
    skipped = parts.shape.spec.skipped

    @inlined
    def rows_of(xs, skip, eps, first_chain, layer, at, k0, k1):
        """Return the `Rows` of a layer of the chain of this block."""
        x = xs[cuda.blockIdx.y if skipped else 0, at if skipped else 0]
        return Rows(x, skip, eps, draws_of(first_chain, layer, k0, k1))

    return rows_of


# --- the loop


def sum_function(
    shape: Shape, of_sums: Sums, begin_range: Any, add_tile: Any, end_range: Any, *, activates: bool
) -> Any:
    """Return the device function `sum_rows`.

    Parameters
    ----------
    begin_range, end_range : device functions
        Of the sums over a range of tiles.
    add_tile : device function
        Of the first row of a tile, the width, the sums over its range, and `layer` of `sum_rows`.
    activates : bool
        Whether tiles are activated, so that a row without variance is noted.
    """
    clear_sums, tile_rows, at_flags = of_sums.clear, shape.tile_rows, shape.at.flags

    @inlined
    def sum_rows(sums, status, step, width, layer):
        """Sum over those rows of a layer that are this block's.

        layer : tuple
            What `add_tile` takes besides.
        """
        whole = cuda.shared.array(0, int64)
        t, part, chain, blocks = cuda.threadIdx.x, cuda.blockIdx.x, cuda.blockIdx.y, cuda.gridDim.x
        for index in range(part, sums.shape[1], blocks):
            clear_sums()
            begin_range(sums[chain, index])
            # The rows of a quad are 16 apart, so rows come in whole groups of 64.
            for row in range(index * tile_rows, (width + 63) // 64 * 64, sums.shape[1] * tile_rows):
                add_tile(row, width, sums[chain, index], layer)
            end_range(sums[chain, index])
            if activates and t == 0 and whole[u32(at_flags)] != NOT_STOPPED:
                cuda.atomic.min(status, chain, (step << STEP_BITS) + whole[u32(at_flags)])

    return sum_rows


@inlined
def leave(sums):
    """Neither begin nor end a range of tiles."""


def clear_function(parts: Parts) -> Any:
    """Return the device function that begins the sums of aᵀZ over a range of tiles."""
    threads, squares = parts.shape.threads, parts.shape.spec.columns**2

    @inlined
    def clear_cross(sums):
        for entry in range(cuda.threadIdx.x, squares, threads):
            sums[entry] = 0.0
        cuda.syncthreads()

    return clear_cross


# --- tiles


class Making(NamedTuple):
    """Device functions that make the tiles of a layer again."""

    #: Write the normals of the rows h, and those of the rows Z, to a tile.
    draw_rows: Any
    draw_noise: Any
    #: Writes Z to the tile `delta`.
    make_noise: Any
    #: Writes the normals of the rows h to the tile `first`, and h to the tile `second`.
    make_rows: Any
    #: Writes h to the tile `second`, given its normals.
    make_rows_again: Any


def making_functions(parts: Parts) -> Making:
    """Return the device functions that make the tiles of a layer again."""
    shape, room, tiles = parts.shape, parts.room, parts.tiles
    draw, multiply, add_skip = tiles.draw, tiles.multiply, parts.steps.add_skip
    thread = parts.block.thread
    at_seen, at_root, at_factor = room.seen, room.root, room.factor
    at_first, at_second, at_delta, at_pivots = (
        room.first, room.second, room.delta, shape.at.diagonal,
    )  # fmt: skip

    @inlined
    def draw_rows(at_tile, row, draws):
        t = thread()
        draw(t, at_tile, at_seen, row, 0, draws.counter, draws.rows, draws.k0, draws.k1)

    @inlined
    def draw_noise(at_tile, row, draws):
        t = thread()
        draw(t, at_tile, at_pivots, row, 0, draws.counter, draws.noise, draws.k0, draws.k1)

    @inlined
    def make_noise(row, draws):
        draw_noise(at_first, row, draws)
        multiply(at_first, at_root, at_delta)

    @inlined
    def make_rows(row, width, rows):
        draw_rows(at_first, row, rows.draws)
        make_rows_again(row, width, rows)

    @inlined
    def make_rows_again(row, width, rows):
        multiply(at_first, at_factor, at_second)
        add_skip(row, width, rows.skip, rows.x)

    return Making(draw_rows, draw_noise, make_noise, make_rows, make_rows_again)


# --- the state of a layer


class States(NamedTuple):
    """Device functions of the sums that make the state of a layer."""

    clear_range: Any
    #: Copies δ of a tile for the layer below, and adds its products.
    add_tile: Any
    end_range: Any
    finish_state: Any
    merge_gram: Any
    #: Notes the factor of δ of the layer above, and a state that is not finite.
    close: Any


def state_functions(parts: Parts) -> States:
    """Return the device functions of the sums that make the state of a layer."""
    shape, room = parts.shape, parts.room
    columns, kind, padded, skipped = (
        shape.spec.columns, shape.spec.kind, shape.padded, shape.spec.skipped,
    )  # fmt: skip
    threads, thread, entries, squares = shape.threads, parts.block.thread, shape.entries, columns**2
    at_totals, at_flags, at_factor = shape.at.totals, shape.at.flags, room.factor
    at_first, at_second, at_delta = room.first, room.second, room.delta
    add_gram, finish_sums, store_gram = parts.sums.add_tile, parts.sums.finish, parts.gram.store
    add_cross, merge = parts.tiles.add_cross, parts.matrices.merge
    load, store = parts.steps.load, parts.steps.store

    @cuda.jit(device=True)
    def clear_range(sums):
        """Set the sums over a range of tiles to zero, but for those of δᵀδ."""
        for entry in range(thread(), 2 * squares, threads):
            sums[entry] = 0.0
        cuda.syncthreads()

    @inlined
    def add_tile(row, width, sums, rows, gradient):
        """Store δ, and add the products of the tiles `first` and `delta`, which are used up."""
        if skipped:
            store(at_delta, row, width, gradient.above)
        add_products(row, width, gradient.hidden, rows.x, sums)

    @cuda.jit(device=True)
    def add_products(row, width, hidden, x, sums):
        """Add zᵀδ, xᵀδ and δᵀδ."""
        add_cross(at_first, at_delta, at_second, sums, 0)
        if skipped and hidden:
            load(at_first, row, width, x)
            add_cross(at_first, at_delta, at_second, sums, squares)
        add_gram()

    @cuda.jit(device=True)
    def end_range(sums):
        """Store the sums of δᵀδ, which are in shared memory."""
        doubles = cuda.shared.array(0, float64)
        for entry in range(thread(), entries, threads):
            sums[2 * squares + entry] = doubles[u32(at_totals + entry)]
        cuda.syncthreads()

    @cuda.jit(device=True)
    def finish_state(sums, width, unit, skip, hidden, state, record):
        """Merge the sums of all ranges to the state, and record it."""
        merge_gram(sums, width)
        store_gram(state[0])
        merge(sums, 0, width, state[1])
        if hidden:
            merge(sums, squares, width, record[2])
            add_drawn(unit, skip, state[1], record[2])
        for item in range(thread(), 2 * squares, threads):
            matrix, i, j = item // squares, item % squares // columns, item % columns
            record[matrix, i, j] = state[matrix, i, j]

    @inlined
    def merge_gram(sums, width):
        """Write the mean over rows of the matrix of `end_range` to shared memory."""
        doubles = cuda.shared.array(0, float64)
        for entry in range(thread(), entries, threads):
            total = 0.0
            for index in range(sums.shape[0]):
                total += sums[index, 2 * squares + entry]
            doubles[u32(at_totals + entry)] = total
        cuda.syncthreads()
        finish_sums(width)

    @cuda.jit(device=True)
    def add_drawn(unit, skip, cross, out):
        """Turn xᵀδ into hᵀδ: h is skip x and, of the normals z, gain W a."""
        numbers = cuda.shared.array(0, kind)
        for item in range(thread(), squares, threads):
            i, j = item // columns, item % columns
            total = skip * out[i, j] if skipped else 0.0
            for k in range(i + 1):
                total += float(numbers[u32(at_factor + k * padded + i)]) / unit * cross[k, j]
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

    return States(clear_range, add_tile, end_range, finish_state, merge_gram, close)
