"""The kernels of layers: one block per chain for all layers, or several blocks for one layer."""

from __future__ import annotations

import numpy as np
from numba import float64, int64

from bnmc._kernels.gpu.block import (
    NOT_STOPPED, STEP_BITS, STOPPED_NOT_FINITE, STOPPED_UNRESOLVED, begin, is_last,
)  # fmt: skip
from bnmc._kernels.gpu.constants import (
    at_flags, at_totals, entries, keeps_rows, scaled, single, skipped, source, threads, tile_rows,
)  # fmt: skip
from bnmc._kernels.gpu.device import cuda
from bnmc._kernels.gpu.drawing import add_drawn, prepare
from bnmc._kernels.gpu.factor import factorise
from bnmc._kernels.gpu.gram import load_gram, record_layer, store_gram
from bnmc._kernels.gpu.multiplying import multiply_tile
from bnmc._kernels.gpu.rows import copy_tile, finish_tile
from bnmc._kernels.gpu.shape import DRAWN, MULTIPLIED, u32
from bnmc._kernels.gpu.state import apply_units, choose_units
from bnmc._kernels.gpu.sums import add_tile, clear_sums, finish_sums, merge_ranges
from bnmc._kernels.scalar.codes import RESOLVED_PIVOT, STREAM_ROWS, STREAM_WEIGHTS


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
        if scaled:
            choose_units()
            apply_units()
        if slots[step] >= 0:
            record_layer(record, values, kinds, stars, chain, slots[step])
        step += 1
    store_gram(grams[chain])


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
    t, part, chain, blocks = cuda.threadIdx.x, cuda.blockIdx.x, cuda.blockIdx.y, cuda.gridDim.x
    ranges = sums.shape[1]
    # Other blocks may write this step's status now, so test earlier steps only: if some
    # threads of a block returned, the others would wait for them forever.
    if status[chain] >> STEP_BITS < step:
        return
    begin()
    x = xs[chain if skipped else 0]
    a, following = kept[chain if keeps_rows else 0, (layer + 1) % 2], kept[0, 0]
    if keeps_rows:
        following = kept[chain, layer % 2]
    stream = stream_of(first_chain + chain)
    counter = np.uint32(layer)
    unresolved = False
    if source == DRAWN or scaled:
        load_gram(grams[chain])
    if source == DRAWN:
        least = factorise(gain, eps)
        unresolved = least < RESOLVED_PIVOT and single and not skipped and not keeps_rows
    if unresolved:
        if part == 0 and t == 0:
            status[chain] = (step << STEP_BITS) + STOPPED_UNRESOLVED
        return
    if source == DRAWN:
        prepare(0, counter, stream, k0, k1)
    for index in range(part, ranges, blocks):
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
    if is_last(arrived, chain, blocks):
        finish_layer(
            grams, sums, record, values, kinds, stars, slot, status, width, chain, step
        )  # fmt: skip


def stream_of(chain):
    """Return the stream of the normals or the weights of a chain."""
    return np.uint32((STREAM_WEIGHTS if source == MULTIPLIED else STREAM_ROWS) | chain)


def has_factor(covariance, status, chain, step, gain, eps):
    """Factor a covariance; return False if float32 does not resolve it, which stops a chain."""
    load_gram(covariance)
    may_stop = single and not skipped and not keeps_rows
    if factorise(gain, eps) >= RESOLVED_PIVOT or not may_stop:
        return True
    if cuda.blockIdx.x == 0 and cuda.threadIdx.x == 0:
        status[chain] = (step << STEP_BITS) + STOPPED_UNRESOLVED
    return False


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
