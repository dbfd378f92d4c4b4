"""The kernels of the backward pass: gradients of one chain per row of the grid, layer by layer.

`cpu.backward` has the formulas.  As there, two matrices of order `columns` take the pass from a
layer to the layer below.  The kernel `top` makes them for the last layer.  Each layer below takes
two passes over its rows.  The kernel `begin` sums aᵀZ, and its last block solves for M in
Wᵀδ = a M + Z.  The kernel `descend` makes δ of the layer and its sums.  Each pass makes the rows h,
their normals z and the rows Z again from their counters.  So a layer keeps no rows, but for the
gradient that a skip connection needs.

As in `layers`, the rows of a chain are divided into ranges of tiles, whose sums the last block of a
chain adds in their order: results do not depend on the number of blocks.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import float64, int64

from bnmc._kernels.gpu.backward_matrices import Matrices
from bnmc._kernels.gpu.backward_rows import Steps
from bnmc._kernels.gpu.backward_tiles import Room, Tiles
from bnmc._kernels.gpu.block import Block
from bnmc._kernels.gpu.device import cuda, kernel
from bnmc._kernels.gpu.gram import Gram
from bnmc._kernels.gpu.layers import last_function
from bnmc._kernels.gpu.registers import MOST_REGISTERS, SHARED_OF_PROCESSOR
from bnmc._kernels.gpu.shape import Shape, u32
from bnmc._kernels.gpu.stops import NOT_STOPPED, STEP_BITS, STOPPED_NOT_FINITE, STOPPED_UNRESOLVED
from bnmc._kernels.gpu.sums import Sums
from bnmc._kernels.scalar.codes import RESOLVED_PIVOT, STREAM_BACKWARD, STREAM_ROWS


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


def begin_kernel(parts: Parts) -> Any:
    """Return the kernel `begin`."""
    shape, room, tiles, steps, matrices = (
        parts.shape, parts.room, parts.tiles, parts.steps, parts.matrices,
    )  # fmt: skip
    single, skipped, squares = shape.spec.single, shape.spec.skipped, shape.spec.columns**2
    tile_rows, threads, at_flags = shape.tile_rows, shape.threads, shape.at.flags
    prepare, clear_sums, is_last = parts.block.begin, parts.sums.clear, last_function(shape)
    factorise_seen, factorise_delta = matrices.factorise_seen, matrices.factorise_delta
    merge, solve, take_basis = matrices.merge, matrices.solve, matrices.take_basis
    draw, multiply, add_cross = tiles.draw, tiles.multiply, tiles.add_cross
    add_skip, activate = steps.add_skip, steps.activate
    at_seen, at_root, at_factor = room.seen, room.root, room.factor
    at_first, at_second, at_delta, at_pivots = (
        room.first, room.second, room.delta, shape.at.diagonal,
    )  # fmt: skip

    @kernel(registers_of(room))
    def begin(
        grams, scales, ratios, xs, state, basis, mixing, sums, arrived, status, width, skip, eps,
        stage, first_chain, layer, at, step, k0, k1,
    ):  # fmt: skip
        """Sum aᵀZ of a layer, and solve for M.

        grams : (chains, layers, columns, columns) float64
            Gram matrices; that of the layer before is at place `at`.
        scales, ratios : (chains, layers) float64, (chains, layers, columns) float64
            The scale of the rows h of the layer, and the units of its activations in those of the
            basis.
        xs : (chains, layers, columns, >= width), or (1, 1, 1, 1)
            With a skip connection, the representations of the layers before.
        state : (chains, 2, columns, columns) float64
            δᵀδ / width and zᵀδ / width of the layer above.
        basis : (chains, columns, columns) float64
            The factor of what the layer above saw; replaced by that of what the layer saw.
        mixing : (chains, columns, columns) float64
            Receives M.
        sums : (chains, ranges, >= columns**2) float64
            Work space.
        arrived : (chains,) int32
            Number of blocks that have finished; zeros before and after.
        status : (chains,) int64
            Notes of `stops`.
        stage : int
            READOUT, TOP or INNER.
        step : int
            Number of the launch, from 0 on.
        """
        whole = cuda.shared.array(0, int64)
        t, part, chain, blocks = cuda.threadIdx.x, cuda.blockIdx.x, cuda.blockIdx.y, cuda.gridDim.x
        # As in `rows`, other blocks may write this step's status now.
        if status[chain] >> STEP_BITS < step:
            return
        prepare()
        x = xs[chain if skipped else 0, at if skipped else 0]
        own = np.uint32(first_chain + chain)
        stream, noise = np.uint32(STREAM_ROWS | own), np.uint32(STREAM_BACKWARD | own)
        counter, scale_of_rows = np.uint32(layer), scales[chain, at]
        factorise_seen(grams[chain, at], scale_of_rows)
        scale, least = factorise_delta(state[chain, 0], stage)
        if single and least < RESOLVED_PIVOT:
            if part == 0 and t == 0:
                status[chain] = (step << STEP_BITS) + STOPPED_UNRESOLVED
            return
        for index in range(part, sums.shape[1], blocks):
            clear_sums()
            for entry in range(t, squares, threads):
                sums[chain, index, entry] = 0.0
            cuda.syncthreads()
            # The rows of a quad are 16 apart, so rows come in whole groups of 64.
            for row in range(index * tile_rows, (width + 63) // 64 * 64, sums.shape[1] * tile_rows):
                draw(at_first, at_seen, row, counter, stream, k0, k1)
                multiply(at_first, at_factor, at_second)
                add_skip(row, width, skip, x)
                activate(row, width, eps)
                draw(at_first, at_pivots, row, counter, noise, k0, k1)
                multiply(at_first, at_root, at_delta)
                add_cross(at_second, at_delta, at_first, sums[chain, index], 0)
            if t == 0 and whole[u32(at_flags)] != NOT_STOPPED:
                cuda.atomic.min(status, chain, (step << STEP_BITS) + whole[u32(at_flags)])
        if not is_last(arrived, chain, blocks):
            return
        merge(sums[chain], 0, width, mixing[chain])
        solve(mixing[chain], basis[chain], state[chain, 1], scale, ratios[chain, at], stage)
        take_basis(basis[chain], scale_of_rows)

    return begin


def descend_kernel(parts: Parts) -> Any:
    """Return the kernel `descend`."""
    shape, room, tiles, steps, matrices = (
        parts.shape, parts.room, parts.tiles, parts.steps, parts.matrices,
    )  # fmt: skip
    skipped, tile_rows, at_flags = shape.spec.skipped, shape.tile_rows, shape.at.flags
    prepare, clear_sums, is_last = parts.block.begin, parts.sums.clear, last_function(shape)
    factorise_seen, factorise_delta = matrices.factorise_seen, matrices.factorise_delta
    take_mixing = matrices.take_mixing
    draw, multiply, multiply_onto = tiles.draw, tiles.multiply, tiles.multiply_onto
    add_skip, activate, differentiate = steps.add_skip, steps.activate, steps.differentiate
    store = steps.store
    clear_range, add_tile, end_range, finish_state, _ = state_functions(parts)
    at_seen, at_root, at_factor, at_mixing = room.seen, room.root, room.factor, room.mixing
    at_first, at_second, at_delta, at_pivots = (
        room.first, room.second, room.delta, shape.at.diagonal,
    )  # fmt: skip

    @kernel(registers_of(room))
    def descend(
        grams, scales, xs, above, state, mixing, sums, arrived, record, factors, status, width,
        gain, skip, own_gain, own_skip, eps, stage, hidden, first_chain, layer, at, step, k0, k1,
    ):  # fmt: skip
        """Make δ of a layer, and the sums over its rows.

        Parameters are those of `begin`, and

        above : (chains, columns, >= width), or (1, 1, 1)
            With a skip connection, δ of the layer above; replaced by that of the layer.
        record : (chains, layers, 2 or 3, columns, columns) float64
            Receives the state, and hᵀδ / width if `hidden`, at place `at`.
        factors : (chains, layers) float64
            Receives the power of two by which δ of the layer above was multiplied.
        gain, skip : float
            Factors of Wᵀδ and of δ of the layer above, which are 1 and 0 for a readout.
        own_gain, own_skip : float
            The gain of the layer, and its factor of x.
        """
        whole = cuda.shared.array(0, int64)
        t, part, chain, blocks = cuda.threadIdx.x, cuda.blockIdx.x, cuda.blockIdx.y, cuda.gridDim.x
        if status[chain] >> STEP_BITS < step:
            return
        prepare()
        x = xs[chain if skipped else 0, at if skipped else 0]
        of_above = above[chain if skipped else 0]
        own = np.uint32(first_chain + chain)
        stream, noise = np.uint32(STREAM_ROWS | own), np.uint32(STREAM_BACKWARD | own)
        counter, scale_of_rows = np.uint32(layer), scales[chain, at]
        factorise_seen(grams[chain, at], scale_of_rows)
        scale, _ = factorise_delta(state[chain, 0], stage)
        take_mixing(mixing[chain])
        for index in range(part, sums.shape[1], blocks):
            clear_sums()
            clear_range(sums[chain, index])
            for row in range(index * tile_rows, (width + 63) // 64 * 64, sums.shape[1] * tile_rows):
                draw(at_first, at_pivots, row, counter, noise, k0, k1)
                multiply(at_first, at_root, at_delta)
                draw(at_first, at_seen, row, counter, stream, k0, k1)
                multiply(at_first, at_factor, at_second)
                add_skip(row, width, own_skip, x)
                activate(row, width, eps)
                multiply_onto(at_second, at_mixing, at_delta)
                # The rows h again, which is faster than a further tile.
                multiply(at_first, at_factor, at_second)
                add_skip(row, width, own_skip, x)
                differentiate(
                    row, width, gain, skip * scale, scale_of_rows / own_gain, eps, of_above
                )
                if skipped:
                    store(at_delta, row, width, of_above)
                add_tile(row, width, hidden, x, sums[chain, index])
            end_range(sums[chain, index])
            if t == 0 and whole[u32(at_flags)] != NOT_STOPPED:
                cuda.atomic.min(status, chain, (step << STEP_BITS) + whole[u32(at_flags)])
        if not is_last(arrived, chain, blocks):
            return
        finish_state(
            sums[chain], width, scale_of_rows / own_gain, own_skip, hidden, state[chain],
            record[chain, at],
        )  # fmt: skip
        if t == 0:
            factors[chain, at] = scale
            if whole[u32(at_flags)] != NOT_STOPPED:
                cuda.atomic.min(status, chain, (step << STEP_BITS) + STOPPED_NOT_FINITE)

    return descend


def top_kernel(parts: Parts) -> Any:
    """Return the kernel `top`."""
    shape, room, steps = parts.shape, parts.room, parts.steps
    columns, skipped = shape.spec.columns, shape.spec.skipped
    tile_rows, threads, at_flags = shape.tile_rows, shape.threads, shape.at.flags
    prepare, clear_sums, is_last = parts.block.begin, parts.sums.clear, last_function(shape)
    factorise_seen, draw = parts.matrices.factorise_seen, parts.tiles.draw
    load, store, clear_padding = steps.load, steps.store, steps.clear_padding
    clear_range, add_tile, end_range, finish_state, _ = state_functions(parts)
    at_seen, at_all = room.seen, shape.at.diagonal
    at_first, at_delta = room.first, room.delta

    @kernel(registers_of(room))
    def top(
        grams, scales, xs, given, above, state, sums, arrived, record, factors, status, width,
        own_gain, own_skip, hidden, first_chain, layer, at, step, k0, k1,
    ):  # fmt: skip
        """Make δ of the last layer, and the sums over its rows.

        Parameters are those of `descend`, and

        given : (chains or 1, columns, width) float64, or (1, 0, 1)
            δ, or nothing if its entries are independent standard normals.
        """
        doubles = cuda.shared.array(0, float64)
        whole = cuda.shared.array(0, int64)
        t, part, chain, blocks = cuda.threadIdx.x, cuda.blockIdx.x, cuda.blockIdx.y, cuda.gridDim.x
        if status[chain] >> STEP_BITS < step:
            return
        prepare()
        x = xs[chain if skipped else 0, at if skipped else 0]
        of_above = above[chain if skipped else 0]
        own = np.uint32(first_chain + chain)
        stream, noise = np.uint32(STREAM_ROWS | own), np.uint32(STREAM_BACKWARD | own)
        counter, scale_of_rows = np.uint32(layer), scales[chain, at]
        factorise_seen(grams[chain, at], scale_of_rows)
        for k in range(t, columns, threads):
            doubles[u32(at_all + k)] = 1.0
        for index in range(part, sums.shape[1], blocks):
            clear_sums()
            clear_range(sums[chain, index])
            for row in range(index * tile_rows, (width + 63) // 64 * 64, sums.shape[1] * tile_rows):
                if given.shape[1] > 0:
                    load(at_delta, row, width, given[chain if given.shape[0] > 1 else 0])
                else:
                    draw(at_delta, at_all, row, counter, noise, k0, k1)
                    clear_padding(at_delta, row, width)
                draw(at_first, at_seen, row, counter, stream, k0, k1)
                if skipped:
                    store(at_delta, row, width, of_above)
                add_tile(row, width, hidden, x, sums[chain, index])
            end_range(sums[chain, index])
        if not is_last(arrived, chain, blocks):
            return
        finish_state(
            sums[chain], width, scale_of_rows / own_gain, own_skip, hidden, state[chain],
            record[chain, at],
        )  # fmt: skip
        if t == 0:
            factors[chain, at] = 1.0
            if whole[u32(at_flags)] != NOT_STOPPED:
                cuda.atomic.min(status, chain, (step << STEP_BITS) + STOPPED_NOT_FINITE)

    return top


class States(NamedTuple):
    """Device functions of the sums that make the state of a layer."""

    clear_range: Any
    add_tile: Any
    end_range: Any
    finish_state: Any
    merge_gram: Any


def state_functions(parts: Parts) -> States:
    """Return the device functions of the sums that make the state of a layer."""
    shape, room = parts.shape, parts.room
    columns, kind, padded, skipped = (
        shape.spec.columns, shape.spec.kind, shape.padded, shape.spec.skipped,
    )  # fmt: skip
    threads, thread, entries, squares = shape.threads, parts.block.thread, shape.entries, columns**2
    at_totals, at_factor = shape.at.totals, room.factor
    at_first, at_second, at_delta = room.first, room.second, room.delta
    add_gram, finish_sums, store_gram = parts.sums.add_tile, parts.sums.finish, parts.gram.store
    add_cross, load, merge = parts.tiles.add_cross, parts.steps.load, parts.matrices.merge

    @cuda.jit(device=True)
    def clear_range(sums):
        """Set the sums over a range of tiles to zero, but for those of δᵀδ."""
        for entry in range(thread(), 2 * squares, threads):
            sums[entry] = 0.0
        cuda.syncthreads()

    @cuda.jit(device=True)
    def add_tile(row, width, hidden, x, sums):
        """Add zᵀδ, xᵀδ and δᵀδ of the tiles `first` and `delta`, which are used up."""
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
        doubles = cuda.shared.array(0, float64)
        t = thread()
        # Not a call of `merge_gram`, which would change the machine code of `descend`.
        for entry in range(t, entries, threads):
            total = 0.0
            for index in range(sums.shape[0]):
                total += sums[index, 2 * squares + entry]
            doubles[u32(at_totals + entry)] = total
        cuda.syncthreads()
        finish_sums(width)
        store_gram(state[0])
        merge(sums, 0, width, state[1])
        if hidden:
            merge(sums, squares, width, record[2])
            add_drawn(unit, skip, state[1], record[2])
        for item in range(t, 2 * squares, threads):
            matrix, i, j = item // squares, item % squares // columns, item % columns
            record[matrix, i, j] = state[matrix, i, j]

    @cuda.jit(device=True)
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

    return States(clear_range, add_tile, end_range, finish_state, merge_gram)
