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

from functools import cache
from math import sqrt
from typing import Any, NamedTuple

import numpy as np
from numba import float64, int64

from bnmc._kernels.compiling import Sigma
from bnmc._kernels.gpu.block import Block
from bnmc._kernels.gpu.device import cuda, device_function, kernel
from bnmc._kernels.gpu.drawing import tile_function
from bnmc._kernels.gpu.gram import Gram
from bnmc._kernels.gpu.layers import close_function, last_function
from bnmc._kernels.gpu.multiplying import multiply_function
from bnmc._kernels.gpu.numbers import normals32, normals64, uniforms32, uniforms64
from bnmc._kernels.gpu.registers import MOST_REGISTERS, most_registers
from bnmc._kernels.gpu.rows import measure_function
from bnmc._kernels.gpu.scalars import is_flat, merged_mean, squares_between, variance_of
from bnmc._kernels.gpu.shape import (
    DRAWN,
    KEPT,
    MULTIPLIED,
    NO_BIAS,
    UNIFORM_BIAS,
    Shape,
    u32,
)
from bnmc._kernels.gpu.stops import (
    NOT_STOPPED,
    STEP_BITS,
    STOPPED_FLAT,
    STOPPED_NOT_FINITE,
    STOPPED_UNRESOLVED,
)
from bnmc._kernels.gpu.sums import Sums
from bnmc._kernels.scalar.codes import (
    ACTIVATION_FIRST,
    NORM_CENTRED,
    NORM_FIRST,
    RESOLVED_PIVOT,
    STREAM_ROWS,
    STREAM_WEIGHTS,
)

#: Rows that 16 quads share.
ROWS_OF_BLOCK = 64


def segments_of(shape: Shape, width: int, groups: int) -> int:
    """Return the number of places for the moments of a layer's segments."""
    rows = max(shape.tile_rows, ROWS_OF_BLOCK)
    return (-(-width // rows) + groups) * (rows // shape.tile_rows)


# --- rows h


def make_function(shape: Shape, block: Block) -> Any:
    """Return the device function `make_tile`."""
    source = shape.spec.source
    if source == KEPT:
        return _load_function(shape, block)
    draw_tile = tile_function(shape, block) if source == DRAWN else None
    multiply_tile = multiply_function(shape, block) if source == MULTIPLIED else None
    add_rest = _rest_function(shape, block)

    @cuda.jit(device=True)
    def make_tile(
        first_row, width, fan_in, skip, gain, bias, layer, stream, k0, k1, x, a, kept
    ):  # fmt: skip
        """Write rows h = skip x + gain W a + b to the tile.

        fan_in : int
            The number of weights of a row.
        a, kept : (>= fan_in, columns), (>= width, columns)
            What the weights multiply, if there are weights, and the rows of an earlier pass.
        """
        if source == DRAWN:
            draw_tile(first_row, 0, layer, stream, k0, k1)
        else:
            multiply_tile(first_row, fan_in, gain, layer, stream, k0, k1, a)
        add_rest(first_row, width, fan_in, skip, bias, layer, stream, k0, k1, x)

    return make_tile


def _load_function(shape: Shape, block: Block) -> Any:
    columns, kind, tile_rows = shape.spec.columns, shape.spec.kind, shape.tile_rows
    threads, thread, quads = shape.threads, block.thread, shape.quads
    at_tile, stride = shape.at.tile, shape.stride

    @cuda.jit(device=True)
    def make_tile(
        first_row, width, fan_in, skip, gain, bias, layer, stream, k0, k1, x, a, kept
    ):  # fmt: skip
        """Write the rows h that the first pass has kept to the tile."""
        numbers = cuda.shared.array(0, kind)
        for item in range(thread(), columns * tile_rows, threads):
            i, place = item // tile_rows, item % tile_rows
            row = row_at(first_row, place, quads)
            if row < width:
                numbers[u32(at_tile + i * stride + place)] = kept[row, i]
        cuda.syncthreads()

    return make_tile


@cuda.jit(device=True)
def row_at(first_row, place, quads):
    """Return the row of the layer at a place of the columns of a tile."""
    j, quad = place // quads, first_row // 4 + place % quads
    return quad // 16 * 64 + quad % 16 + 16 * j


def _rest_function(shape: Shape, block: Block) -> Any:
    spec, columns, kind, number = shape.spec, shape.spec.columns, shape.spec.kind, shape.spec.number
    quads, threads, thread = shape.quads, shape.threads, block.thread
    at_tile, stride, skipped = shape.at.tile, shape.stride, spec.skipped
    assert spec.passing is not None
    biased = spec.source == MULTIPLIED and spec.passing.bias != NO_BIAS
    needed = biased or skipped
    draw_biases = normals32 if spec.single else normals64
    if spec.passing.bias == UNIFORM_BIAS:
        draw_biases = uniforms32 if spec.single else uniforms64

    @cuda.jit(device=True)
    def add_rest(first_row, width, element, skip, bias, layer, stream, k0, k1, x):
        """Add bias and skip connection; the bias is a weight after the last `element` ones."""
        for item in range(thread(), quads if needed else 0, threads):
            quad = np.uint32(first_row // 4 + item)
            z0, z1, z2, z3 = number(0.0), number(0.0), number(0.0), number(0.0)
            if biased:
                z0, z1, z2, z3 = draw_biases(np.uint32(element), quad, layer, stream, k0, k1)
            add_to_row(first_row, item, width, number(bias) * number(z0), skip, x)
            add_to_row(first_row, item + quads, width, number(bias) * number(z1), skip, x)
            add_to_row(first_row, item + 2 * quads, width, number(bias) * number(z2), skip, x)
            add_to_row(first_row, item + 3 * quads, width, number(bias) * number(z3), skip, x)
        if needed:
            cuda.syncthreads()

    @cuda.jit(device=True)
    def add_to_row(first_row, place, width, bias, skip, x):
        numbers = cuda.shared.array(0, kind)
        row = row_at(first_row, place, quads)
        if row < width:
            for i in range(columns):
                at = at_tile + i * stride + place
                if biased:
                    numbers[u32(at)] += bias
                if skipped:
                    numbers[u32(at)] += number(skip) * x[i, row]

    return add_rest


# --- moments of samples


class Moments(NamedTuple):
    """Device functions of the moments, in the order in which a layer calls them."""

    #: Stores the rows of a tile, and activates them if the activation comes before the norm.
    begin_tile: Any
    add_moments: Any
    merge_moments: Any
    #: Merges the means alone.
    merge_means: Any


def moment_functions(shape: Shape, block: Block) -> Moments:
    """Return the device functions of the first pass."""
    count_before = _count_function(shape)
    return Moments(
        _begin_function(shape, block),
        _add_moments_function(shape, block, count_before),
        *_merge_functions(shape, block, count_before),
    )


def _count_function(shape: Shape) -> Any:
    """Return the device function that numbers the rows of a tile in their order.

    A tile has `near` = 16 neighbouring quads, or 8 if weights are multiplied.  Their rows have the
    numbers 16 m + k with k < `near`, counted from the first row of the tile.
    """
    quads = shape.quads
    near = min(quads, 16)
    blocks = quads // near

    @cuda.jit(device=True)
    def count_before(first_row, row):
        """Return the number of rows of a tile that come before a row of the layer."""
        own = min(max(row - first_row // 64 * 64, 0), 64 * blocks)
        return own // 16 * near + min(max(own % 16 - first_row // 4 % 16, 0), near)

    return count_before


def _begin_function(shape: Shape, block: Block) -> Any:
    spec, columns, kind, number = shape.spec, shape.spec.columns, shape.spec.kind, shape.spec.number
    threads, thread, tile_rows, quads = shape.threads, block.thread, shape.tile_rows, shape.quads
    at_tile, stride, stored = shape.at.tile, shape.stride, spec.source == MULTIPLIED
    assert spec.passing is not None
    activated = spec.passing.order == ACTIVATION_FIRST
    needed = activated or stored
    sigma = device_function(Sigma.known[spec.digest].functions[spec.dtype])

    @cuda.jit(device=True)
    def begin_tile(first_row, width, kept):
        numbers = cuda.shared.array(0, kind)
        for item in range(thread(), columns * tile_rows if needed else 0, threads):
            i, place = item // tile_rows, item % tile_rows
            row = row_at(first_row, place, quads)
            if row < width:
                at = at_tile + i * stride + place
                if stored:
                    kept[row, i] = numbers[u32(at)]
                if activated:
                    numbers[u32(at)] = number(sigma(numbers[u32(at)]))
        if needed:
            cuda.syncthreads()

    return begin_tile


def _add_moments_function(shape: Shape, block: Block, count_before: Any) -> Any:
    columns, kind, threads, thread = (
        shape.spec.columns, shape.spec.kind, shape.threads, block.thread,
    )  # fmt: skip
    at_tile, stride, quads = shape.at.tile, shape.stride, shape.quads
    at_moments, near = shape.at.moments, min(shape.quads, 16)
    rows_of_block = max(shape.tile_rows, ROWS_OF_BLOCK)
    tiles_of_block = rows_of_block // shape.tile_rows

    @cuda.jit(device=True)
    def add_moments(first_row, width, groups, segments):
        """Write the moments of the segments of a tile.

        segments : (places, 2, columns) float64
            The place of a segment follows from the numbers of its block of rows and of its group:
            no two segments have the same sum of both.
        """
        doubles = cuda.shared.array(0, float64)
        t = thread()
        size, begin = width // groups, first_row // 64 * 64
        last_group = (min(begin + rows_of_block, width) - 1) // size
        tile, group = first_row // (4 * quads), begin // size
        while group <= last_group:
            # Take as many groups at a time as there are threads for.  If samples are few, several
            # threads share one.
            some = min(last_group + 1 - group, max(1, threads // columns))
            shares = max(1, threads // (some * columns))
            rounds = some * columns * shares
            for item in range(t, rounds, threads):
                own, share = group + item // shares // columns, item % shares
                i = item // shares % columns
                first = count_before(first_row, own * size)
                last = count_before(first_row, (own + 1) * size)
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
                first = count_before(first_row, own * size)
                length = count_before(first_row, (own + 1) * size) - first
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

    @cuda.jit(device=True)
    def moments_of(i, first, last, step):
        """Return mean and sum of squared deviations of every `step`-th row of a sample."""
        numbers = cuda.shared.array(0, kind)
        total, count = 0.0, 0
        for number in range(first, last, step):
            total += np.float64(numbers[u32(at_tile + i * stride + place_of(number))])
            count += 1
        mean, squares = total / max(count, 1), 0.0
        for number in range(first, last, step):
            value = np.float64(numbers[u32(at_tile + i * stride + place_of(number))])
            squares += (value - mean) * (value - mean)
        return mean, squares

    @cuda.jit(device=True)
    def place_of(number):
        """Return the place of a row of the tile, given its number in the order of the rows."""
        within = number % (4 * near)
        return within // near * quads + number // (4 * near) * near + within % near

    return add_moments


def _merge_functions(shape: Shape, block: Block, count_before: Any) -> tuple[Any, Any]:
    columns, single, threads, thread = (
        shape.spec.columns, shape.spec.single, shape.threads, block.thread,
    )  # fmt: skip
    tile_rows, at_flags = shape.tile_rows, shape.at.flags
    rows_of_block = max(tile_rows, ROWS_OF_BLOCK)
    tiles_of_block, unit = rows_of_block // tile_rows, 2.0**-23 if single else 2.0**-52
    assert shape.spec.passing is not None
    centred = shape.spec.passing.centred

    @cuda.jit(device=True)
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
            variance = variance_of(mean, squares, size, centred)
            shift, scale = mean if centred else 0.0, 0.0
            if not variance < np.inf:
                cuda.atomic.min(whole, at_flags, STOPPED_NOT_FINITE)
            elif eps == 0.0 and is_flat(variance, mean, unit):
                cuda.atomic.min(whole, at_flags, STOPPED_FLAT + i)
            else:
                scale = 1.0 / sqrt(variance + eps)
            shifts[group, i] = shift
            scales[group, i] = scale
        cuda.syncthreads()

    @cuda.jit(device=True)
    def merge_means(width, groups, segments, means):
        """Write the mean of each group and sample, (groups, columns) float64."""
        for item in range(thread(), groups * columns, threads):
            group, i = item // columns, item % columns
            means[group, i], _ = merged(group, i, width // groups, segments)
        cuda.syncthreads()

    @cuda.jit(device=True)
    def merged(group, i, size, segments):
        """Return mean and sum of squared deviations of a group of features of a sample."""
        begin, end = group * size, (group + 1) * size
        count, mean, squares = 0, 0.0, 0.0
        first = begin // rows_of_block * tiles_of_block
        for tile in range(first, ((end - 1) // rows_of_block + 1) * tiles_of_block):
            length = count_before(tile * tile_rows, end)
            length -= count_before(tile * tile_rows, begin)
            if length > 0:
                place = (tile // tiles_of_block + group) * tiles_of_block
                place += tile % tiles_of_block
                other = segments[place, 0, i]
                between = squares_between(mean, count, other, length)
                mean = merged_mean(mean, count, other, length)
                squares += segments[place, 1, i] + between
                count += length
        return mean, squares

    return merge_moments, merge_means


# --- the second pass


def finish_function(shape: Shape, block: Block) -> Any:
    """Return the device function `finish_tile`."""
    spec, batch, inputs = shape.spec, shape.spec.batch, shape.spec.inputs
    kind, number, kept_rows, skipped = spec.kind, spec.number, spec.kept, spec.skipped
    threads, thread, tile_rows, quads = shape.threads, block.thread, shape.tile_rows, shape.quads
    at_tile, stride = shape.at.tile, shape.stride
    assert spec.passing is not None
    order, over_features = spec.passing.order, spec.passing.over_features
    activated = order == ACTIVATION_FIRST
    measure_row = measure_function(shape, spec.passing.norm, spec.passing.norm == NORM_CENTRED)
    sigma = device_function(Sigma.known[spec.digest].functions[spec.dtype])

    @cuda.jit(device=True)
    def finish_tile(first_row, width, size, eps, x, shifts, scales, kept):
        """Turn the rows h of the tile into activations; set padding rows to zero.

        size : int
            Rows of a group.
        """
        numbers = cuda.shared.array(0, kind)
        for item in range(thread(), inputs * tile_rows, threads):
            h, place = item // tile_rows, item % tile_rows
            row = row_at(first_row, place, quads)
            at = at_tile + h * batch * stride + place
            if row < width:
                finish_row(numbers, at, h, row, width, size, eps, x, shifts, scales, kept)
            else:
                for i in range(batch):
                    numbers[u32(at + i * stride)] = number(0.0)
        cuda.syncthreads()

    @cuda.jit(device=True)
    def finish_row(values, at, h, row, width, size, eps, x, shifts, scales, kept):
        for i in range(batch):
            value, column = values[u32(at + i * stride)], h * batch + i
            if skipped and order != NORM_FIRST:
                x[column, row] = value
            if activated:
                value = number(sigma(value))
            if over_features:
                shift = number(shifts[row // size, column])
                value = (value - shift) * number(scales[row // size, column])
            values[u32(at + i * stride)] = value
        mean, scale = measure_row(values, at, stride, row, width, eps)
        for i in range(batch):
            value = number((values[u32(at + i * stride)] - mean) * scale)
            if skipped and order == NORM_FIRST:
                x[h * batch + i, row] = value
            if not activated:
                value = number(sigma(value))
            values[u32(at + i * stride)] = value
            if kept_rows:
                kept[row, h * batch + i] = value

    return finish_tile


def resolving_function(shape: Shape, gram: Gram, factorise: Any) -> Any:
    """Return the device function that factors the covariance of the rows."""
    load_gram = gram.load
    may_stop = shape.spec.single and not shape.spec.skipped and not shape.spec.kept

    @cuda.jit(device=True)
    def has_factor(covariance, status, chain, step, gain, eps):
        """Factor a covariance; return False if float32 does not resolve it, which stops a chain."""
        load_gram(covariance)
        if factorise(gain, eps) >= RESOLVED_PIVOT or not may_stop:
            return True
        if cuda.blockIdx.x == 0 and cuda.threadIdx.x == 0:
            status[chain] = (step << STEP_BITS) + STOPPED_UNRESOLVED
        return False

    return has_factor


# --- kernels


def moments_kernel(shape: Shape, block: Block, gram: Gram, factorise: Any) -> Any:
    """Return the kernel `moments`."""
    spec, source, tile_rows = shape.spec, shape.spec.source, shape.tile_rows
    skipped, kept_rows = spec.skipped, spec.kept
    at_flags, begin = shape.at.flags, block.begin
    has_factor = resolving_function(shape, gram, factorise)
    begin_tile, add_moments, merge_moments, _ = moment_functions(shape, block)
    make_tile, is_last = make_function(shape, block), last_function(shape)
    assert spec.passing is not None
    is_convolved = spec.passing.is_convolved
    stream_tag = STREAM_WEIGHTS if source == MULTIPLIED else STREAM_ROWS

    @kernel(most_registers(shape))
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
        t, part, chain, parts = cuda.threadIdx.x, cuda.blockIdx.x, cuda.blockIdx.y, cuda.gridDim.x
        # As in `rows`, other blocks may write this step's status now.
        if status[chain] >> STEP_BITS < step:
            return
        begin()
        x = xs[chain if skipped else 0]
        following = kept[chain if kept_rows else 0, layer % 2]
        a = kept[chain if kept_rows else 0, (layer + 1) % 2]
        if is_convolved:
            a = factors[chain]
        stream, counter = np.uint32(stream_tag | (first_chain + chain)), np.uint32(layer)
        if source == DRAWN and not has_factor(covariances[chain], status, chain, step, gain, eps):
            return
        # The rows of a quad are 16 apart, so rows come in whole groups of 64.
        for first_row in range(part * tile_rows, (width + 63) // 64 * 64, parts * tile_rows):
            make_tile(
                first_row, width, fan_in, skip, gain, bias, counter, stream, k0, k1, x, a, following
            )
            begin_tile(first_row, width, following)
            add_moments(first_row, width, shifts.shape[1], segments[chain])
        if not is_last(arrived, chain, parts):
            return
        merge_moments(
            width, shifts.shape[1], own_eps, segments[chain], shifts[chain], scales[chain]
        )
        if t == 0 and whole[u32(at_flags)] != NOT_STOPPED:
            cuda.atomic.min(status, chain, (step << STEP_BITS) + whole[u32(at_flags)])

    return moments


def finish_kernel(
    shape: Shape, block: Block, gram: Gram, sums: Sums, record_layer: Any, factorise: Any
) -> Any:
    """Return the kernel `finish`."""
    spec, source, tile_rows = shape.spec, shape.spec.source, shape.tile_rows
    skipped, kept_rows = spec.skipped, spec.kept
    threads, entries = shape.threads, shape.entries
    at_totals, at_flags = shape.at.totals, shape.at.flags
    begin, has_factor = block.begin, resolving_function(shape, gram, factorise)
    clear_sums, add_tile = sums.clear, sums.add_tile
    make_tile, finish_tile = make_function(shape, block), finish_function(shape, block)
    is_last, finish_layer = last_function(shape), close_function(shape, gram, sums, record_layer)
    assert spec.passing is not None
    is_convolved = spec.passing.is_convolved
    stream_tag = STREAM_WEIGHTS if source == MULTIPLIED else STREAM_ROWS

    @kernel(most_registers(shape))
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
        t, part, chain, parts = cuda.threadIdx.x, cuda.blockIdx.x, cuda.blockIdx.y, cuda.gridDim.x
        ranges = sums.shape[1]
        # As in `rows`, other blocks may write this step's status now.
        if status[chain] >> STEP_BITS < step:
            return
        begin()
        x = xs[chain if skipped else 0]
        following = kept[chain if kept_rows else 0, layer % 2]
        a = kept[chain if kept_rows else 0, (layer + 1) % 2]
        if is_convolved:
            a = factors[chain]
        stream, counter = np.uint32(stream_tag | (first_chain + chain)), np.uint32(layer)
        if source == DRAWN and not has_factor(covariances[chain], status, chain, step, gain, eps):
            return
        for index in range(part, ranges, parts):
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
        if is_last(arrived, chain, parts):
            finish_layer(
                grams, sums, record, values, kinds, stars, slot, status, width, chain, step
            )  # fmt: skip

    return finish


@cache
def cover_kernel() -> Any:
    """Return the kernel `cover`."""

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

    return cover


@cache
def unfold_kernel() -> Any:
    """Return the kernel `unfold`."""

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

    return unfold
