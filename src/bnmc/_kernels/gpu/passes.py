"""Kernels of layers that are not row by row: in two passes over their rows, or in one.

A norm over the features needs the mean and the variance of each sample over all rows, or over a
group of rows.  So the kernel `moments` sums the moments of the rows h, and the kernel `finish`
normalizes, activates and adds the Gram matrix, like the two passes of `_kernels.cpu.passes`.  The
second pass draws the rows again from the same counters, or reads those that the first has kept,
since products with weights cost more.  Without a norm over the features `finish` alone makes a
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
    activates_first, at_flags, at_moments, at_tile, at_totals, batch, columns, draw_biases, entries,
    features_centred, has_bias, inputs, is_convolved, keeps_rows, kind, norm_first, number,
    over_features, quads, sigma, skipped, source, stride, threads, tile_rows, unit,
)  # fmt: skip
from bnmc._kernels.gpu.device import cuda, kernel
from bnmc._kernels.gpu.drawing import draw_tile
from bnmc._kernels.gpu.layers import finish_layer, has_factor, stream_of
from bnmc._kernels.gpu.multiplying import multiply_tile
from bnmc._kernels.gpu.rows import copy_tile, measure_row, row_of
from bnmc._kernels.gpu.shape import DRAWN, KEPT, MOST_REGISTERS, MULTIPLIED, Shape, u32
from bnmc._kernels.gpu.sums import add_tile, clear_sums
from bnmc._kernels.scalar.moments import is_flat, merged_mean, squares_between, variance_of

#: Rows that 16 quads share.
_ROWS_OF_BLOCK = 64


def segments_of(shape: Shape, width: int, groups: int) -> int:
    """Return the number of places for the moments of a layer's segments."""
    rows = max(shape.tile_rows, _ROWS_OF_BLOCK)
    return (-(-width // rows) + groups) * (rows // shape.tile_rows)


def make_tile(
    first_row, width, fan_in, skip, gain, bias, layer, stream, k0, k1, x, a, kept
):  # fmt: skip
    """Write rows h = skip x + gain W a + b to the tile.

    fan_in : int
        The number of weights of a row.
    a, kept : (>= fan_in, columns), (>= width, columns)
        What the weights multiply, if there are weights, and the rows of an earlier pass.
    """
    if source == KEPT:
        copy_tile(first_row, width, kept)
    else:
        if source == DRAWN:
            draw_tile(first_row, 0, layer, stream, k0, k1)
        else:
            multiply_tile(first_row, fan_in, gain, layer, stream, k0, k1, a)
        _add_rest(first_row, width, fan_in, skip, bias, layer, stream, k0, k1, x)


def _add_rest(first_row, width, element, skip, bias, layer, stream, k0, k1, x):
    """Add bias and skip connection; the bias is a weight after the last `element` ones."""
    for item in range(thread(), quads if has_bias or skipped else 0, threads):
        quad = np.uint32(first_row // 4 + item)
        z0, z1, z2, z3 = number(0.0), number(0.0), number(0.0), number(0.0)
        if has_bias:
            z0, z1, z2, z3 = draw_biases(np.uint32(element), quad, layer, stream, k0, k1)
        _add_to_row(first_row, item, width, number(bias) * number(z0), skip, x)
        _add_to_row(first_row, item + quads, width, number(bias) * number(z1), skip, x)
        _add_to_row(first_row, item + 2 * quads, width, number(bias) * number(z2), skip, x)
        _add_to_row(first_row, item + 3 * quads, width, number(bias) * number(z3), skip, x)
    if has_bias or skipped:
        cuda.syncthreads()


def _add_to_row(first_row, place, width, bias, skip, x):
    numbers = cuda.shared.array(0, kind)
    row = row_of(first_row, place)
    if row < width:
        for i in range(columns):
            at = at_tile + i * stride + place
            if has_bias:
                numbers[u32(at)] += bias
            if skipped:
                numbers[u32(at)] += number(skip) * x[i, row]


# --- moments of samples


def _count_before(first_row, row):
    """Return the number of rows of a tile that come before a row of the layer.

    A tile has `near` = 16 neighbouring quads, or 8 if weights are multiplied.  Their rows have the
    numbers 16 m + k with k < `near`, counted from the first row of the tile.
    """
    near = min(quads, 16)
    own = min(max(row - first_row // 64 * 64, 0), 64 * (quads // near))
    return own // 16 * near + min(max(own % 16 - first_row // 4 % 16, 0), near)


def _begin_tile(first_row, width, kept):
    """Store the rows of a tile, and activate them if the activation comes before the norm."""
    stored = source == MULTIPLIED
    needed = activates_first or stored
    numbers = cuda.shared.array(0, kind)
    for item in range(thread(), columns * tile_rows if needed else 0, threads):
        i, place = item // tile_rows, item % tile_rows
        row = row_of(first_row, place)
        if row < width:
            at = at_tile + i * stride + place
            if stored:
                kept[row, i] = numbers[u32(at)]
            if activates_first:
                numbers[u32(at)] = number(sigma(numbers[u32(at)]))
    if needed:
        cuda.syncthreads()


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
            own, share = group + item // shares // columns, item % shares
            i = item // shares % columns
            first = _count_before(first_row, own * size)
            last = _count_before(first_row, (own + 1) * size)
            mean, squares = moments_of(i, first + share, last, shares)
            if shares > 1:
                doubles[u32(at_moments + 2 * item)] = mean
                doubles[u32(at_moments + 2 * item + 1)] = squares
            elif last > first:
                place = (tile // tiles_of_block + own) * tiles_of_block + tile % tiles_of_block
                segments[place, 0, i] = mean
                segments[place, 1, i] = squares
        cuda.syncthreads()
        for item in range(t, some * columns if shares > 1 else 0, threads):
            own, i = group + item // columns, item % columns
            first = _count_before(first_row, own * size)
            length = _count_before(first_row, (own + 1) * size) - first
            count, mean, squares = 0, 0.0, 0.0
            for share in range(min(shares, length)):
                at = at_moments + 2 * (item * shares + share)
                part, other = (length - share + shares - 1) // shares, doubles[u32(at)]
                between = squares_between(mean, count, other, part)
                mean = merged_mean(mean, count, other, part)
                squares += doubles[u32(at + 1)] + between
                count += part
            if length > 0:
                place = (tile // tiles_of_block + own) * tiles_of_block + tile % tiles_of_block
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


def merge_moments(width, groups, eps, segments, shifts, scales):
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


def finish_tile(first_row, width, size, eps, x, shifts, scales, kept):
    """Turn the rows h of the tile into activations; set padding rows to zero.

    size : int
        Rows of a group.
    """
    numbers = cuda.shared.array(0, kind)
    for item in range(thread(), inputs * tile_rows, threads):
        h, place = item // tile_rows, item % tile_rows
        row = row_of(first_row, place)
        at = at_tile + h * batch * stride + place
        if row < width:
            finish_row(numbers, at, h, row, width, size, eps, x, shifts, scales, kept)
        else:
            for i in range(batch):
                numbers[u32(at + i * stride)] = number(0.0)
    cuda.syncthreads()


def finish_row(values, at, h, row, width, size, eps, x, shifts, scales, kept):
    for i in range(batch):
        value, column = values[u32(at + i * stride)], h * batch + i
        if skipped and not norm_first:
            x[column, row] = value
        if activates_first:
            value = number(sigma(value))
        if over_features:
            shift = number(shifts[row // size, column])
            value = (value - shift) * number(scales[row // size, column])
        values[u32(at + i * stride)] = value
    mean, scale = measure_row(values, at, stride, row, width, eps)
    for i in range(batch):
        value = number((values[u32(at + i * stride)] - mean) * scale)
        if skipped and norm_first:
            x[h * batch + i, row] = value
        if not activates_first:
            value = number(sigma(value))
        values[u32(at + i * stride)] = value
        if keeps_rows:
            kept[row, h * batch + i] = value


def moments(
    covariances, xs, kept, factors, segments, shifts, scales, arrived, status, width, fan_in,
    skip, gain, bias, eps, own_eps, first_chain, layer, step, k0, k1,
):  # fmt: skip
    """Make the first pass over the rows of a layer: one chain per row of the grid.

    Parameters are those of `rows`, and

    covariances : (chains, columns, columns) float64
        Of the rows of W a, but for the gain.
    factors : (chains, fan_in, columns)
        What weights of several taps multiply, if these are multiplied.
    segments : (chains, places, 2, columns) float64
        Work space; see `segments_of`.
    shifts, scales : (chains, groups, columns) float64
        Receive what the norm subtracts and by what it multiplies.
    eps, own_eps : float
        The eps of the law, and that of the norm.
    """
    whole = cuda.shared.array(0, int64)
    t, part, chain, blocks = cuda.threadIdx.x, cuda.blockIdx.x, cuda.blockIdx.y, cuda.gridDim.x
    # As in `rows`, other blocks may write this step's status now.
    if status[chain] >> STEP_BITS < step:
        return
    begin()
    x = xs[chain if skipped else 0]
    following = kept[chain if keeps_rows else 0, layer % 2]
    a = kept[chain if keeps_rows else 0, (layer + 1) % 2]
    if is_convolved:
        a = factors[chain]
    stream, counter = stream_of(first_chain + chain), np.uint32(layer)
    if source == DRAWN and not has_factor(covariances[chain], status, chain, step, gain, eps):
        return
    # The rows of a quad are 16 apart, so rows come in whole groups of 64.
    for first_row in range(part * tile_rows, (width + 63) // 64 * 64, blocks * tile_rows):
        make_tile(
            first_row, width, fan_in, skip, gain, bias, counter, stream, k0, k1, x, a, following
        )
        _begin_tile(first_row, width, following)
        add_moments(first_row, width, shifts.shape[1], segments[chain])
    if not is_last(arrived, chain, blocks):
        return
    merge_moments(width, shifts.shape[1], own_eps, segments[chain], shifts[chain], scales[chain])
    if t == 0 and whole[u32(at_flags)] != NOT_STOPPED:
        cuda.atomic.min(status, chain, (step << STEP_BITS) + whole[u32(at_flags)])


def finish(
    grams, covariances, xs, kept, factors, shifts, scales, sums, arrived, record, values,
    kinds, stars, slot, status, width, fan_in, skip, gain, bias, eps, own_eps, first_chain,
    layer, step, k0, k1,
):  # fmt: skip
    """Make the second pass over the rows of a layer, or the only one.

    Parameters are those of `rows` and of `moments`.
    """
    doubles = cuda.shared.array(0, float64)
    whole = cuda.shared.array(0, int64)
    t, part, chain, blocks = cuda.threadIdx.x, cuda.blockIdx.x, cuda.blockIdx.y, cuda.gridDim.x
    ranges = sums.shape[1]
    # As in `rows`, other blocks may write this step's status now.
    if status[chain] >> STEP_BITS < step:
        return
    begin()
    x = xs[chain if skipped else 0]
    following = kept[chain if keeps_rows else 0, layer % 2]
    a = kept[chain if keeps_rows else 0, (layer + 1) % 2]
    if is_convolved:
        a = factors[chain]
    stream, counter = stream_of(first_chain + chain), np.uint32(layer)
    if source == DRAWN and not has_factor(covariances[chain], status, chain, step, gain, eps):
        return
    for index in range(part, ranges, blocks):
        clear_sums()
        for first_row in range(index * tile_rows, (width + 63) // 64 * 64, ranges * tile_rows):
            make_tile(
                first_row, width, fan_in, skip, gain, bias, counter, stream, k0, k1, x, a,
                following,
            )  # fmt: skip
            finish_tile(
                first_row, width, width // shifts.shape[1], own_eps, x, shifts[chain],
                scales[chain], following,
            )  # fmt: skip
            add_tile()
        for entry in range(t, entries, threads):
            sums[chain, index, entry] = doubles[u32(at_totals + entry)]
        if t == 0 and whole[u32(at_flags)] != NOT_STOPPED:
            cuda.atomic.min(status, chain, (step << STEP_BITS) + whole[u32(at_flags)])
    if is_last(arrived, chain, blocks):
        finish_layer(
            grams, sums, record, values, kinds, stars, slot, status, width, chain, step
        )  # fmt: skip


@kernel(MOST_REGISTERS)
def cover(grams, neighbours, bias, out):
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
        total = 0.0
        for tap in range(taps):
            total += gram[neighbours[tap, i], neighbours[tap, j]]
        out[chain, i, j] = total * share + bias


@kernel(MOST_REGISTERS)
def unfold(kept, layer, width, neighbours, out):
    """Write the activations that all taps see: a chain per row of the grid.

    kept : (chains, 2, >= width, columns)
        Activations of even and of odd layers; those of the layer before `layer` are read.
    out : (chains, taps * width, columns)
    """
    chain, columns = cuda.blockIdx.y, neighbours.shape[1]
    first = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    step = cuda.gridDim.x * cuda.blockDim.x
    for item in range(first, neighbours.shape[0] * width * columns, step):
        element, i = item // columns, item % columns
        tap, row = element // width, element % width
        out[chain, element, i] = kept[chain, (layer + 1) % 2, row, neighbours[tap, i]]
