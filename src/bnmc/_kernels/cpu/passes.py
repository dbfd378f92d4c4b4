"""The CPU kernels of layers that are not row by row: in two passes over the rows, or in one.

A norm over the features needs the mean and the variance of each sample over all rows, or over a
group of rows, before any row can be activated.  So a layer takes two passes over its rows h.  The
first sums the moments (`draw_moments`, `multiply_moments`), and the second normalizes, activates
and adds the Gram matrix (`finish_panels`).  The rows of the second pass are those of the first:
they are kept, or drawn again from the same counters, which gives the same bits.

The same second pass, alone, makes layers of a norm over the batch whose activation is before the
norm, or whose norm is inside a residual branch; see `codes.LayerSpec`.

Moments are means and sums of squared deviations.  They are summed for each segment, the rows that
a panel and a group of features share, and merged in the order of panels (Chan, Golub and LeVeque,
1979), so that threads can share a layer and a large mean cancels nothing.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from bnmc._kernels.compiling import kernel
from bnmc._kernels.cpu import vectors
from bnmc._kernels.cpu.blocks import (
    add_columns,
    add_gram,
    clear_rows,
    copy_matrix,
    keep_columns,
    multiply_triangular,
    repeat_first_row,
)
from bnmc._kernels.cpu.layers import merge_panels
from bnmc._kernels.cpu.memory import aligned_zeros, stride
from bnmc._kernels.cpu.numbers import BLOCK, GROUP, STRIDE, fill_normals, fill_uniforms
from bnmc._kernels.cpu.rows import (
    activate_block,
    draw_regular,
    factorise,
    keep_normalised,
    measure_rows,
    multiply_block,
)
from bnmc._kernels.cpu.vectors import (
    fill_like,
    load_across,
    load_wide,
    multiply_add,
    store,
    sum_lanes,
    zero_wide,
)
from bnmc._kernels.scalar.codes import (
    ACTIVATION_FIRST,
    FLAT_SAMPLE,
    NORM_CENTRED,
    NORM_FIRST,
    NOT_FINITE,
    RESOLVED_PIVOT,
    RUNNING,
    STREAM_ROWS,
    STREAM_WEIGHTS,
    UNRESOLVED,
    ZERO_VARIANCE,
    Draw,
)
from bnmc._kernels.scalar.moments import is_flat, merged_mean, squares_between, variance_of

#: Most bytes of the rows of a layer that are kept from the first pass to the second.  Rows that do
#: not fit in a cache of the processor are drawn again.
KEPT_BYTES = 1 << 21


class Room(NamedTuple):
    """Buffers for the layers of one chain."""

    hidden: np.ndarray  # (columns, >= width): the rows h, or (0, 0) if they are not kept here
    moments: np.ndarray  # float64 (panels + groups, 2, columns)
    shift: np.ndarray  # float64 (groups, columns): what the norm subtracts
    scale: np.ndarray  # float64 (groups, columns): by what it multiplies


def rows_fit(width: int, columns: int, dtype: DTypeLike) -> bool:
    """Return whether the rows of a layer are few enough to be kept."""
    return columns * stride(width) * np.dtype(dtype).itemsize <= KEPT_BYTES


def room(
    width: int, columns: int, panels: int, groups: int, dtype: DTypeLike, *, keeps_rows: bool
) -> Room:
    """Return the buffers for rows of a dtype; `groups` is 0 for a norm over the batch.

    Rows are kept only if `keeps_rows` is true.
    """
    kept = keeps_rows and groups > 0 and rows_fit(width, columns, dtype)
    return Room(
        aligned_zeros((columns, stride(width)) if kept else (0, 0), dtype),
        aligned_zeros((panels + groups, 2, columns), np.float64),
        aligned_zeros((groups, columns), np.float64),
        aligned_zeros((groups, columns), np.float64),
    )


# --- moments of samples


@kernel
def moments_of(block, at, length, out):
    """Write mean and sum of squared deviations of neighbouring rows of four columns of a block.

    at : int
        The place of the first number of the first column.
    out : (>= 12,) float64
        Receives the means, then the sums.  The third four numbers are used.
    """
    strip = vectors.WIDE_BYTES // block.itemsize
    whole = length // strip * strip
    for k in range(4):
        lanes = zero_wide(block)
        for row in range(0, whole, strip):
            lanes = lanes + load_wide(block, at + k * STRIDE + row)
        out[k] = sum_lanes(lanes)
    # Rows beyond whole vectors are added one by one.  An addition takes several cycles, so four
    # columns are added at once.
    totals = load_across(out, 0, 1)
    for row in range(whole, length):
        totals = totals + load_across(block, at + row, STRIDE)
    store(out, 0, totals)
    # The centre is the mean up to rounding, so its error is summed as well.
    for k in range(4):
        centre = block.dtype.type(out[k] / length)
        middle = fill_like(zero_wide(block), centre)
        first, second = zero_wide(block), zero_wide(block)
        for row in range(0, whole, strip):
            deviation = load_wide(block, at + k * STRIDE + row) - middle
            first = first + deviation
            second = multiply_add(deviation, deviation, second)
        out[k] = centre
        out[4 + k] = sum_lanes(second)
        out[8 + k] = sum_lanes(first)
    centres = load_across(out, 0, 1)
    squares, shifts = load_across(out, 4, 1), load_across(out, 8, 1)
    for row in range(whole, length):
        deviations = load_across(block, at + row, STRIDE) - centres
        shifts = shifts + deviations
        squares = squares + deviations * deviations
    store(out, 4, squares)
    store(out, 8, shifts)
    for k in range(4):
        shift = out[8 + k]
        out[k] += shift / length
        out[4 + k] = max(out[4 + k] - shift * shift / length, 0.0)


@kernel
def add_moments(spec, panel, number, start, count, block, scratch, moments):
    """Add a block of rows, from `start` on, to the moments of the segments of a panel.

    scratch : (>= 12,) float64
    moments : (panels + groups, 2, columns) float64
        The segment of panel p and group g is at p + g: no two segments have the same sum.
    """
    size = spec.width // spec.groups
    row = 0
    while row < count:
        group = (start + row) // size
        end = min(count, (group + 1) * size - start)
        before = start + row - max(group * size, number * panel)
        length = end - row
        segment = moments[number + group]
        for i in range(spec.columns):
            if i % 4 == 0:
                moments_of(block, i * STRIDE + row, length, scratch)
            mean, squares = scratch[i % 4], scratch[4 + i % 4]
            if before > 0:
                between = squares_between(segment[0, i], before, mean, length)
                mean = merged_mean(segment[0, i], before, mean, length)
                squares += segment[1, i] + between
            segment[0, i] = mean
            segment[1, i] = squares
        row = end


@kernel
def merge_moments(spec, panel, block, room):
    """Turn the moments of segments into the shift and the scale of each group and sample.

    Returns the code of an event, and the column of the sample.
    """
    unit = 2.0**-23 if block.itemsize == 4 else 2.0**-52
    size = spec.width // spec.groups
    for group in range(spec.groups):
        begin, end = group * size, (group + 1) * size
        for i in range(spec.columns):
            count, mean, squares = 0, 0.0, 0.0
            for number in range(begin // panel, (end - 1) // panel + 1):
                length = min((number + 1) * panel, end) - max(number * panel, begin)
                segment = room.moments[number + group]
                between = squares_between(mean, count, segment[0, i], length)
                mean = merged_mean(mean, count, segment[0, i], length)
                squares += segment[1, i] + between
                count += length
            variance = variance_of(mean, squares, size, spec.centred)
            if not np.isfinite(variance):
                return NOT_FINITE, i
            if spec.eps == 0.0 and is_flat(variance, mean, unit):
                return FLAT_SAMPLE, i
            room.shift[group, i] = mean if spec.centred else 0.0
            room.scale[group, i] = 1.0 / np.sqrt(variance + spec.eps)
    return RUNNING, -1


@kernel
def normalise_samples(spec, start, rows, block, room):
    """Normalize the columns of a block over the features."""
    size = spec.width // spec.groups
    row = 0
    while row < rows:
        group = min((start + row) // size, spec.groups - 1)
        # Padding rows belong to the last group.
        end = rows if group == spec.groups - 1 else min(rows, (group + 1) * size - start)
        for i in range(spec.columns):
            shift = block.dtype.type(room.shift[group, i])
            scale = block.dtype.type(room.scale[group, i])
            for at in range(np.uintp(i * STRIDE + row), np.uintp(i * STRIDE + end)):
                block[at] = (block[at] - shift) * scale
        row = end


# --- rows


@kernel
def draw_block(spec, x, start, rows, draw, work):
    """Draw rows h = skip x + gain W a, given the factor of the covariance in `work`."""
    draw_regular(work.block, spec.columns, work.regular, start, rows, draw)
    multiply_triangular(work.factor, spec.columns, work.block, work.block, rows)
    if spec.skip != 0.0:
        add_columns(spec.skip, x, start, spec.columns, rows, work.block)


@kernel
def add_bias(spec, element, start, rows, draw, tile, block):
    """Add the bias to rows; its numbers are those of a weight after the last `element` ones."""
    if spec.uniform_bias:
        fill_uniforms(tile, 0, element, 1, start, rows, draw)
    else:
        fill_normals(tile, 0, element, 1, start, rows, draw)
    factor = block.dtype.type(spec.bias)
    for i in range(spec.columns):
        for row in range(np.uintp(rows)):
            block[np.uintp(i * STRIDE) + row] += factor * tile[row]


@kernel
def begin_block(sigma, spec, panel, number, start, count, hidden, work, room):
    """Keep a block of rows h, and add it to the moments: the first pass."""
    block = work.block
    rows = (count + GROUP - 1) // GROUP * GROUP
    if hidden.shape[0] > 0:
        keep_columns(block, spec.columns, rows, start, hidden)
    if spec.groups > 0:
        if spec.order == ACTIVATION_FIRST:
            activate_rows(sigma, spec, rows, work)
        # The sums of the Gram matrix are free until the second pass.
        add_moments(spec, panel, number, start, count, block, work.sums, room.moments)


@kernel
def activate_rows(sigma, spec, rows, work):
    """Apply the activation to rows as they are."""
    work.scales[:] = 1.0
    activate_block(sigma, work.block, spec.columns, spec.batch, rows, work.scales)


@kernel
def finish_hidden(sigma, spec, start, count, x, kept, work, room):
    """Turn rows h of a block into activations; return a row without variance, or -1.

    Arguments are those of `rows.finish_block`, but that the skip connection is in h already.
    """
    block, scales, columns = work.block, work.scales, spec.columns
    rows = (count + GROUP - 1) // GROUP * GROUP
    # Padding rows may lack variance, which would end the normalization of the others.
    repeat_first_row(block, columns, count, rows)
    if spec.skip != 0.0 and spec.order != NORM_FIRST:
        keep_columns(block, columns, rows, start, x)
    if spec.order == ACTIVATION_FIRST:
        activate_rows(sigma, spec, rows, work)
    if spec.groups > 0:
        normalise_samples(spec, start, rows, block, room)
    degenerate = measure_rows(block, rows, spec, spec.norm == NORM_CENTRED, scales)
    if degenerate >= 0:
        return start + degenerate
    if spec.skip != 0.0 and spec.order == NORM_FIRST:
        keep_normalised(block, spec, rows, scales, start, x)
    if spec.order == ACTIVATION_FIRST:
        scale_rows(block, spec, rows, scales)
    else:
        activate_block(sigma, block, columns, spec.batch, rows, scales)
    clear_rows(block, 0, columns, count, rows)
    if kept.shape[0] > 0:
        keep_columns(block, columns, rows, start, kept)
    return -1


@kernel
def scale_rows(block, spec, rows, scales):
    """Multiply the rows of a block by their scale factors."""
    for i in range(spec.columns):
        column = np.uintp(i * STRIDE)
        group = np.uintp(i // spec.batch * STRIDE)
        for row in range(np.uintp(rows)):
            block[column + row] *= scales[group + row]


@kernel
def load_columns(hidden, columns, rows, first_row, block):
    """Write kept rows, from `first_row` on, to the columns of a block."""
    for i in range(columns):
        values = block[i * STRIDE : i * STRIDE + rows]
        kept = hidden[i, first_row : first_row + rows]
        for row in range(rows):
            values[row] = kept[row]


# --- panels


@kernel
def draw_moments(sigma, spec, x, hidden, first_panel, last_panel, panel, draw, work, room):
    """Draw panels of a layer for the first pass, given the factor of its covariance in `work`."""
    for number in range(first_panel, last_panel):
        last_row = min((number + 1) * panel, spec.width)
        for start in range(number * panel, last_row, BLOCK):
            count = min(BLOCK, last_row - start)
            rows = (count + GROUP - 1) // GROUP * GROUP
            draw_block(spec, x, start, rows, draw, work)
            begin_block(sigma, spec, panel, number, start, count, hidden, work, room)


@kernel
def multiply_moments(
    sigma, spec, weights, given, a, x, following, first_panel, last_panel, panel, draw, work,
    room,
):  # fmt: skip
    """Multiply panels of a layer by weights, like `draw_moments`; `following` receives the rows."""
    for number in range(first_panel, last_panel):
        last_row = min((number + 1) * panel, spec.width)
        for start in range(number * panel, last_row, BLOCK):
            count = min(BLOCK, last_row - start)
            rows = (count + GROUP - 1) // GROUP * GROUP
            multiply_block(spec, weights, given, a, start, rows, draw, work.tile, work.block)
            if spec.bias > 0.0:
                add_bias(spec, spec.fan_in, start, rows, draw, work.tile, work.block)
            if spec.skip != 0.0:
                add_columns(spec.skip, x, start, spec.columns, rows, work.block)
            begin_block(sigma, spec, panel, number, start, count, following, work, room)


@kernel
def finish_panels(
    sigma, spec, x, kept, hidden, first_panel, last_panel, panel, draw, work, room,
    panel_sums,
):  # fmt: skip
    """Make panels of a layer, in the second pass; return a row without variance, or -1.

    hidden : (columns, >= width), or (0, 0)
        The rows of the first pass, or none: then they are drawn.
    panel_sums : (panels, sums) float64
        Receives the sums of each panel.
    """
    for number in range(first_panel, last_panel):
        work.sums[:] = 0.0
        last_row = min((number + 1) * panel, spec.width)
        for start in range(number * panel, last_row, BLOCK):
            count = min(BLOCK, last_row - start)
            rows = (count + GROUP - 1) // GROUP * GROUP
            if hidden.shape[0] > 0:
                load_columns(hidden, spec.columns, rows, start, work.block)
            else:
                draw_block(spec, x, start, rows, draw, work)
            degenerate = finish_hidden(sigma, spec, start, count, x, kept, work, room)
            if degenerate >= 0:
                return degenerate
            add_gram(work.block, spec.columns, rows, work.partial, work.sums)
        for k in range(work.sums.shape[0]):
            panel_sums[number, k] = work.sums[k]
    return -1


# --- layers


@kernel
def add_variance(gram, variance, out):
    """Write a Gram matrix plus a variance that all samples share."""
    for i in range(gram.shape[0]):
        for j in range(gram.shape[1]):
            out[i, j] = gram[i, j] + variance


@kernel
def drawn_layers(
    room, panel_sums, variance, sigma, spec, grams, xs, activations, first_chain,
    first_layer, slots, record, panel, key0, key1, total, work, status, exponents, units, lift,
):  # fmt: skip
    """Take chains through layers, each drawn given the Gram matrix of the one before.

    Parameters are `room`, ``panel_sums`` of shape (panels, sums), the variance of the bias
    over the square of the gain, and those of `layers.conditional_layers`.
    """
    guarded = work.block.itemsize == 4 and spec.skip == 0.0 and activations.shape[3] == 0
    panels = panel_sums.shape[0]
    for chain in range(grams.shape[0]):
        gram = grams[chain]
        x = xs[chain if spec.skip != 0.0 else 0]
        kept = activations[chain if activations.shape[0] > 1 else 0, 0]
        hidden = kept if kept.shape[0] > 0 and spec.groups > 0 else room.hidden
        stream = np.uint32(STREAM_ROWS | np.uint32(first_chain + chain))
        for step in range(slots.shape[0]):
            draw = Draw(first_layer + step, stream, key0, key1)
            source = gram
            if variance > 0.0:
                source = work.covariance  # `factorise` may overwrite its argument
                add_variance(gram, variance, source)
            least_pivot = factorise(source, spec, work)
            event, place = RUNNING, -1
            if guarded and least_pivot < RESOLVED_PIVOT:
                event = UNRESOLVED
            if event == RUNNING and spec.groups > 0:
                draw_moments(sigma, spec, x, hidden, 0, panels, panel, draw, work, room)
                event, place = merge_moments(spec, panel, work.block, room)
            if event == RUNNING:
                place = finish_panels(
                    sigma, spec, x, kept, hidden, 0, panels, panel, draw, work, room,
                    panel_sums,
                )  # fmt: skip
                finite = merge_panels(panel_sums, spec.width, total, gram)
                if not finite or place >= 0:
                    event = ZERO_VARIANCE if finite else NOT_FINITE
            if event != RUNNING:
                status[chain, 0] = event
                status[chain, 1] = first_layer + step
                status[chain, 2] = place
                break
            if slots[step] >= 0:
                copy_matrix(gram, record[chain, slots[step]])


@kernel
def multiplied_layers(
    room, panel_sums, sigma, spec, weights, given, grams, xs, activations, first_chain,
    first_layer, slots, record, panel, key0, key1, total, work, status, exponents, units, lift,
):  # fmt: skip
    """Take chains through layers whose weights are drawn.

    Parameters are those of `drawn_layers` and of `layers.weighted_layers`.
    """
    panels = panel_sums.shape[0]
    for chain in range(activations.shape[0]):
        gram = grams[chain]
        x = xs[chain if spec.skip != 0.0 else 0]
        stream = np.uint32(STREAM_WEIGHTS | np.uint32(first_chain + chain))
        for step in range(slots.shape[0]):
            layer = first_layer + step
            draw = Draw(layer, stream, key0, key1)
            a = activations[chain, (layer + 1) % 2]
            following = activations[chain, layer % 2]
            multiply_moments(
                sigma, spec, weights, given, a, x, following, 0, panels, panel, draw, work,
                room,
            )  # fmt: skip
            event, place = RUNNING, -1
            if spec.groups > 0:
                event, place = merge_moments(spec, panel, work.block, room)
            if event == RUNNING:
                place = finish_panels(
                    sigma, spec, x, following, following, 0, panels, panel, draw, work,
                    room, panel_sums,
                )  # fmt: skip
                finite = merge_panels(panel_sums, spec.width, total, gram)
                if not finite or place >= 0:
                    event = ZERO_VARIANCE if finite else NOT_FINITE
            if event != RUNNING:
                status[chain, 0] = event
                status[chain, 1] = layer
                status[chain, 2] = place
                break
            if slots[step] >= 0:
                copy_matrix(gram, record[chain, slots[step]])
