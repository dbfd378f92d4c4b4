"""The kernels of layers: one block per chain for all layers, or several blocks for one layer."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import float64, int64

from bnmc._kernels.gpu.block import Block
from bnmc._kernels.gpu.device import cuda, kernel
from bnmc._kernels.gpu.drawing import Drawing
from bnmc._kernels.gpu.gram import Gram
from bnmc._kernels.gpu.registers import most_registers, registers_of_layers
from bnmc._kernels.gpu.rows import Rows
from bnmc._kernels.gpu.shape import DRAWN, MULTIPLIED, Shape, u32
from bnmc._kernels.gpu.state import Units
from bnmc._kernels.gpu.stops import NOT_STOPPED, STEP_BITS, STOPPED_NOT_FINITE, STOPPED_UNRESOLVED
from bnmc._kernels.gpu.sums import Sums
from bnmc._kernels.scalar.codes import RESOLVED_PIVOT, STREAM_ROWS, STREAM_WEIGHTS


def layers_kernel(
    shape: Shape, block: Block, gram: Gram, sums: Sums, record_layer: Any, factorise: Any,
    drawing: Drawing, units: Units,
) -> Any:  # fmt: skip
    """Return the kernel `layers`."""
    with_units, (choose_units, apply_units) = shape.spec.scaled, units
    single, skipped, tile_rows = shape.spec.single, shape.spec.skipped, shape.tile_rows
    begin, load_gram, store_gram = block.begin, gram.load, gram.store
    clear_sums, finish_sums, (prepare, add_drawn) = sums.clear, sums.finish, drawing
    at_flags = shape.at.flags

    @kernel(registers_of_layers(shape))
    def layers(
        grams, xs, record, values, kinds, stars, slots, status, width, skip, gain, eps,
        first_chain, first_layer, k0, k1,
    ):  # fmt: skip
        """Take one chain per block through layers.

        Parameters are those of `cpu.layers.conditional_layers` and of `record_layer`, and

        status : (chains,) int64
            Notes of `stops`.
        """
        whole = cuda.shared.array(0, int64)
        chain = cuda.blockIdx.x
        x = xs[chain if skipped else 0]
        stream = np.uint32(STREAM_ROWS | (first_chain + chain))
        begin()
        load_gram(grams[chain])
        # `range` would keep the number of steps left in two more registers.
        step = 0
        while step < slots.size:
            layer = np.uint32(first_layer + step)
            unresolved = factorise(gain, eps) < RESOLVED_PIVOT
            unresolved = unresolved and single and not skipped
            if unresolved:
                if cuda.threadIdx.x == 0:
                    status[chain] = (step << STEP_BITS) + STOPPED_UNRESOLVED
                break
            prepare(0, layer, stream, k0, k1)
            clear_sums()
            first_row = 0
            while first_row < width:
                add_drawn(first_row, width, 0, layer, stream, k0, k1, skip, eps, x, x)
                first_row += tile_rows
            finish_sums(width)
            if whole[u32(at_flags)] != NOT_STOPPED:
                if cuda.threadIdx.x == 0:
                    status[chain] = (step << STEP_BITS) + whole[u32(at_flags)]
                break
            if with_units:
                choose_units()
                apply_units()
            if slots[step] >= 0:
                record_layer(record, values, kinds, stars, chain, slots[step])
            step += 1
        store_gram(grams[chain])

    return layers


def rows_kernel(
    shape: Shape, block: Block, gram: Gram, sums: Sums, record_layer: Any, factorise: Any,
    tile: Rows, drawing: Drawing, multiply_tile: Any,
) -> Any:  # fmt: skip
    """Return the kernel `rows`."""
    source, single, skipped = shape.spec.source, shape.spec.single, shape.spec.skipped
    with_units = shape.spec.scaled
    kept_rows, threads, tile_rows = shape.spec.kept, shape.threads, shape.tile_rows
    entries, at_totals, at_flags = shape.entries, shape.at.totals, shape.at.flags
    begin, load_gram = block.begin, gram.load
    clear_sums, add_tile = sums.clear, sums.add_tile
    prepare, add_drawn = drawing
    copy_tile, finish_tile = tile.copy_tile, tile.finish_tile
    is_last, finish_layer = last_function(shape), close_function(shape, gram, sums, record_layer)
    stream_tag = STREAM_WEIGHTS if source == MULTIPLIED else STREAM_ROWS

    @kernel(most_registers(shape))
    def rows(
        grams, xs, kept, given, sums, arrived, record, values, kinds, stars, slot, status, width,
        skip, gain, eps, first_chain, layer, step, k0, k1,
    ):  # fmt: skip
        """Make one layer of a chain by one row of the grid; its last block merges the sums.

        Parameters are those of `layers` for one layer, and

        kept : (chains, 2, >= width, columns), or (1, 2, 1, 1)
            Activations of even and of odd layers.
        given : (chains or 1, width, columns)
            The rows of layer 0, if they are given.
        sums : (chains, ranges, entries) float64
            Work space.
        arrived : (chains,) int32
            Number of blocks that have finished; zeros before and after.
        """
        doubles = cuda.shared.array(0, float64)
        whole = cuda.shared.array(0, int64)
        t, part, chain, parts = cuda.threadIdx.x, cuda.blockIdx.x, cuda.blockIdx.y, cuda.gridDim.x
        ranges = sums.shape[1]
        # Other blocks may write this step's status now, so test earlier steps only: if some
        # threads of a block returned, the others would wait for them forever.
        if status[chain] >> STEP_BITS < step:
            return
        begin()
        x = xs[chain if skipped else 0]
        a, following = kept[chain if kept_rows else 0, (layer + 1) % 2], kept[0, 0]
        if kept_rows:
            following = kept[chain, layer % 2]
        stream = np.uint32(stream_tag | (first_chain + chain))
        counter = np.uint32(layer)
        unresolved = False
        if source == DRAWN or with_units:
            load_gram(grams[chain])
        if source == DRAWN:
            least = factorise(gain, eps)
            unresolved = least < RESOLVED_PIVOT and single and not skipped and not kept_rows
        if unresolved:
            if part == 0 and t == 0:
                status[chain] = (step << STEP_BITS) + STOPPED_UNRESOLVED
            return
        if source == DRAWN:
            prepare(0, counter, stream, k0, k1)
        for index in range(part, ranges, parts):
            clear_sums()
            # The rows of a quad are 16 apart, so rows come in whole groups of 64.
            for first_row in range(index * tile_rows, (width + 63) // 64 * 64, ranges * tile_rows):
                if source == DRAWN:
                    add_drawn(first_row, width, 0, counter, stream, k0, k1, skip, eps, x, following)
                elif source == MULTIPLIED:
                    multiply_tile(first_row, width, gain, counter, stream, k0, k1, a)
                    finish_tile(first_row, width, skip, eps, x, following)
                    add_tile()
                else:
                    copy_tile(first_row, width, given[chain if given.shape[0] > 1 else 0])
                    finish_tile(first_row, width, skip, eps, x, following)
                    add_tile()
            for entry in range(t, entries, threads):
                sums[chain, index, entry] = doubles[u32(at_totals + entry)]
            if t == 0 and whole[u32(at_flags)] != NOT_STOPPED:
                cuda.atomic.min(status, chain, (step << STEP_BITS) + whole[u32(at_flags)])
        if is_last(arrived, chain, parts):
            finish_layer(
                grams, sums, record, values, kinds, stars, slot, status, width, chain, step
            )  # fmt: skip

    return rows


def last_function(shape: Shape) -> Any:
    """Return the device function that finds the last of several blocks of a chain."""
    at_flags = shape.at.flags

    @cuda.jit(device=True)
    def is_last(arrived, chain, parts):
        """Whether all `parts` blocks have written their results, which this one may then read."""
        whole = cuda.shared.array(0, int64)
        t = cuda.threadIdx.x
        cuda.threadfence()
        cuda.syncthreads()
        if t == 0:
            whole[u32(at_flags)] = cuda.atomic.add(arrived, chain, 1)
        cuda.syncthreads()
        if whole[u32(at_flags)] != parts - 1:
            return False
        cuda.threadfence()
        cuda.syncthreads()
        if t == 0:
            arrived[chain] = 0
            whole[u32(at_flags)] = NOT_STOPPED
        return True

    return is_last


def close_function(shape: Shape, gram: Gram, sums: Sums, record_layer: Any) -> Any:
    """Return the device function by which the last block of a chain finishes a layer."""
    at_flags, store_gram = shape.at.flags, gram.store
    merge_ranges, finish_sums = sums.merge_ranges, sums.finish

    @cuda.jit(device=True)
    def finish_layer(grams, sums, record, values, kinds, stars, slot, status, width, chain, step):
        """Add the sums of all ranges; store the Gram matrix of the layer, and record it."""
        whole = cuda.shared.array(0, int64)
        merge_ranges(sums, chain, sums.shape[1])
        finish_sums(width)
        store_gram(grams[chain])
        if cuda.threadIdx.x == 0 and whole[u32(at_flags)] != NOT_STOPPED:
            cuda.atomic.min(status, chain, (step << STEP_BITS) + STOPPED_NOT_FINITE)
        if slot >= 0:
            record_layer(record, values, kinds, stars, chain, slot)

    return finish_layer
