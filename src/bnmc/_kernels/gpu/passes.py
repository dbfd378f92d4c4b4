"""Kernels of layers that are not row by row: in two passes over their rows, or in one.

A norm over the features needs the mean and the variance of each sample over all rows, or over a
group of rows.  So the kernel `moments` sums the moments of the rows h, and the kernel `layers.rows`
normalizes, activates and adds the Gram matrix, like the two passes of `_kernels.cpu.passes`.  The
second pass draws the rows again from the same counters, or reads those that the first has kept,
since products with weights cost more.  Without a norm over the features, `rows` alone makes a
layer.

Moments are means and sums of squared deviations of *segments*, the rows that a tile and a group of
features share.  The last block of a chain merges them in the order of the rows, so the results do
not depend on the number of blocks.
"""

from __future__ import annotations

from math import sqrt

import numpy as np
from numba import float64, int64

from bnmc._kernels.gpu.block import (
    NOT_STOPPED, STEP_BITS, STOPPED_FLAT, STOPPED_NOT_FINITE, begin, is_last, thread,
)  # fmt: skip
from bnmc._kernels.gpu.constants import (
    activates_first, at_flags, at_moments, at_tile, columns, features_centred, kind, number, quads,
    sigma, source, stride, threads, tile_rows, unit,
)  # fmt: skip
from bnmc._kernels.gpu.device import cuda, device_function, inlined, kernel
from bnmc._kernels.gpu.drawing import make_tile
from bnmc._kernels.gpu.layers import has_factor, row_inputs
from bnmc._kernels.gpu.rows import each_entry
from bnmc._kernels.gpu.shape import MOST_REGISTERS, MULTIPLIED, Shape, u32
from bnmc._kernels.scalar.moments import is_flat, merged_mean, squares_between, variance_of

#: Rows that 16 quads share.
_ROWS_OF_BLOCK = 64


def segments_of(shape: Shape, width: int, groups: int) -> int:
    """Return the number of places for the moments of a layer's segments."""
    rows = max(shape.tile_rows, _ROWS_OF_BLOCK)
    return (-(-width // rows) + groups) * (rows // shape.tile_rows)


# --- moments of samples


def _count_before(first_row, row):
    """Return the number of rows of a tile that come before a row of the layer.

    A tile has `near` = 16 neighbouring quads, or 8 if weights are multiplied.  Their rows have the
    numbers 16 m + k with k < `near`, counted from the first row of the tile.
    """
    near = min(quads, 16)
    past = min(max(row - first_row // 64 * 64, 0), 64 * (quads // near))
    return past // 16 * near + min(max(past % 16 - first_row // 4 % 16, 0), near)


def _begin_tile(first_row, width, out):
    """Store the rows of a tile, and activate them if the activation comes before the norm."""
    if activates_first or source == MULTIPLIED:
        each_entry(_begin_entry, -1, first_row, width, out)


@inlined
def _begin_entry(numbers, place, i, row, out):
    at = at_tile + place
    if source == MULTIPLIED:
        out[row, i] = numbers[u32(at)]
    if activates_first:
        numbers[u32(at)] = number(sigma(numbers[u32(at)]))


def add_moments(first_row, width, groups, segments):
    """Write the moments of the segments of a tile.

    segments : (places, 2, columns) float64
        The place of a segment follows from the numbers of its block of rows and of its group:
        no two segments have the same sum of both.
    """
    doubles = cuda.shared.array(0, float64)
    t = thread()
    rows_of_block = max(tile_rows, _ROWS_OF_BLOCK)
    tiles_of_block = rows_of_block // tile_rows
    size, start = width // groups, first_row // 64 * 64
    last_group = (min(start + rows_of_block, width) - 1) // size
    tile, group = first_row // (4 * quads), start // size
    while group <= last_group:
        # Take as many groups at a time as there are threads for.  If samples are few, several
        # threads share one.
        some = min(last_group + 1 - group, max(1, threads // columns))
        shares = max(1, threads // (some * columns))
        rounds = some * columns * shares
        for item in range(t, rounds, threads):
            g, share = group + item // shares // columns, item % shares
            i = item // shares % columns
            first = _count_before(first_row, g * size)
            last = _count_before(first_row, (g + 1) * size)
            mean, squares = moments_of(i, first + share, last, shares)
            if shares > 1:
                doubles[u32(at_moments + 2 * item)] = mean
                doubles[u32(at_moments + 2 * item + 1)] = squares
            elif last > first:
                place = (tile // tiles_of_block + g) * tiles_of_block + tile % tiles_of_block
                segments[place, 0, i] = mean
                segments[place, 1, i] = squares
        cuda.syncthreads()
        for item in range(t, some * columns if shares > 1 else 0, threads):
            g, i = group + item // columns, item % columns
            first = _count_before(first_row, g * size)
            length = _count_before(first_row, (g + 1) * size) - first
            count, mean, squares = 0, 0.0, 0.0
            for share in range(min(shares, length)):
                at = at_moments + 2 * (item * shares + share)
                part, other = (length - share + shares - 1) // shares, doubles[u32(at)]
                between = squares_between(mean, count, other, part)
                mean = merged_mean(mean, count, other, part)
                squares += doubles[u32(at + 1)] + between
                count += part
            if length > 0:
                place = (tile // tiles_of_block + g) * tiles_of_block + tile % tiles_of_block
                segments[place, 0, i] = mean
                segments[place, 1, i] = squares
        cuda.syncthreads()
        group += some


def moments_of(i, first, last, step):
    """Return mean and sum of squared deviations of every `step`-th row of a sample."""
    numbers = cuda.shared.array(0, kind)
    total, count = 0.0, 0
    for place in range(first, last, step):
        total += np.float64(numbers[u32(at_tile + i * stride + _place_of(place))])
        count += 1
    mean, squares = total / max(count, 1), 0.0
    for place in range(first, last, step):
        value = np.float64(numbers[u32(at_tile + i * stride + _place_of(place))])
        squares += (value - mean) * (value - mean)
    return mean, squares


def _place_of(index):
    """Return the place of a row of the tile, given its number in the order of the rows."""
    near = min(quads, 16)
    within = index % (4 * near)
    return within // near * quads + index // (4 * near) * near + within % near


def _merge_moments(width, groups, eps, segments, shifts, scales):
    """Turn the moments of segments into the shift and the scale of each group and sample.

    shifts, scales : (groups, columns) float64
    """
    whole = cuda.shared.array(0, int64)
    size = width // groups
    cuda.syncthreads()
    for item in range(thread(), groups * columns, threads):
        group, i = item // columns, item % columns
        mean, squares = merged(group, i, size, segments)
        variance = variance_of(mean, squares, size, features_centred)
        shift, scale = mean if features_centred else 0.0, 0.0
        if not variance < np.inf:
            cuda.atomic.min(whole, at_flags, STOPPED_NOT_FINITE)
        elif eps == 0.0 and is_flat(variance, mean, unit):
            cuda.atomic.min(whole, at_flags, STOPPED_FLAT + i)
        else:
            scale = 1.0 / sqrt(variance + eps)
        shifts[group, i] = shift
        scales[group, i] = scale
    cuda.syncthreads()


def merge_means(width, groups, segments, means):
    """Write the mean of each group and sample, (groups, columns) float64."""
    for item in range(thread(), groups * columns, threads):
        group, i = item // columns, item % columns
        means[group, i], _ = merged(group, i, width // groups, segments)
    cuda.syncthreads()


def merged(group, i, size, segments):
    """Return mean and sum of squared deviations of a group of features of a sample."""
    rows_of_block = max(tile_rows, _ROWS_OF_BLOCK)
    tiles_of_block = rows_of_block // tile_rows
    start, end = group * size, (group + 1) * size
    count, mean, squares = 0, 0.0, 0.0
    first = start // rows_of_block * tiles_of_block
    for tile in range(first, ((end - 1) // rows_of_block + 1) * tiles_of_block):
        length = _count_before(tile * tile_rows, end)
        length -= _count_before(tile * tile_rows, start)
        if length > 0:
            place = (tile // tiles_of_block + group) * tiles_of_block
            place += tile % tiles_of_block
            other = segments[place, 0, i]
            between = squares_between(mean, count, other, length)
            mean = merged_mean(mean, count, other, length)
            squares += segments[place, 1, i] + between
            count += length
    return mean, squares


# --- kernels


def moments(state, of, law, work, address, slot, layer, step):
    """Make the first pass over the rows of a layer: one chain per row of the grid.

    Parameters are those of `layers.rows`, and

    of : Passes
    """
    whole = cuda.shared.array(0, int64)
    part, chain, blocks = cuda.blockIdx.x, cuda.blockIdx.y, cuda.gridDim.x
    # As in `rows`, other blocks may write this step's status now.
    if work.status[chain] >> STEP_BITS < step:
        return
    begin()
    if not has_factor(state, of, law, work.status, step):
        return
    rows = row_inputs(state, of, law, address, layer)
    width, segments = law.width, of.segments[chain]
    # The rows of a quad are 16 apart, so rows come in whole groups of 64.
    for first_row in range(part * tile_rows, (width + 63) // 64 * 64, blocks * tile_rows):
        make_tile(first_row, 0, rows)
        _begin_tile(first_row, width, rows.stored)
        add_moments(first_row, width, law.groups, segments)
    if not is_last(work.arrived, chain, blocks):
        return
    _merge_moments(width, law.groups, law.eps, segments, of.shifts[chain], of.scales[chain])
    if cuda.threadIdx.x == 0 and whole[u32(at_flags)] != NOT_STOPPED:
        cuda.atomic.min(work.status, chain, (step << STEP_BITS) + whole[u32(at_flags)])


def sum_of_taps(gram, neighbours, i, j):
    """Return the sum over taps of the entries that they see of a Gram matrix from (i, j)."""
    total = 0.0
    for tap in range(neighbours.shape[0]):
        total += gram[neighbours[tap, i], neighbours[tap, j]]
    return total


_sum_of_taps = device_function(sum_of_taps)


@kernel(MOST_REGISTERS)
def cover(grams, neighbours, bias, out, slot, layer, step):
    """Write the covariance of the rows of W a, given Gram matrices: a chain per block.

    neighbours : (taps, columns) int64
        The column that each tap sees from a column.
    bias : float
        What is added to all entries.
    """
    chain, (taps, columns) = cuda.blockIdx.x, neighbours.shape
    gram, share = grams[chain], 1.0 / taps
    for item in range(cuda.threadIdx.x, columns * columns, cuda.blockDim.x):
        i, j = item // columns, item % columns
        out[chain, i, j] = _sum_of_taps(gram, neighbours, i, j) * share + bias


@kernel(MOST_REGISTERS)
def unfold(activations, width, neighbours, out, slot, layer, step):
    """Write the activations that all taps see: a chain per row of the grid.

    activations : (chains, 2, >= width, columns)
        Activations of even and of odd layers; those of the layer before `layer` are read.
    out : (chains, taps * width, columns)
    """
    chain, columns = cuda.blockIdx.y, neighbours.shape[1]
    first = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    step = cuda.gridDim.x * cuda.blockDim.x
    for item in range(first, neighbours.shape[0] * width * columns, step):
        element, i = item // columns, item % columns
        tap, row = element // width, element % width
        out[chain, element, i] = activations[chain, (layer + 1) % 2, row, neighbours[tap, i]]
