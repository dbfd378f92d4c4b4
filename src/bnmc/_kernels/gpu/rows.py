"""Rows of a tile in shared memory: given, normalised and activated."""

from __future__ import annotations

from numba import int64

from bnmc._kernels.gpu.arguments import NOTHING
from bnmc._kernels.gpu.block import NOT_STOPPED, STOPPED_NOT_FINITE, thread
from bnmc._kernels.gpu.constants import (
    activates_first, at_flags, at_tile, bare, batch, columns, in_passes, inputs, inverse_root,
    keeps_rows, kind, norm, norm_first, number, over_features, quads, sigma, single, skipped,
    stride, subtracts_mean, threads, tile_rows, unit,
)  # fmt: skip
from bnmc._kernels.gpu.device import cuda, inlined
from bnmc._kernels.gpu.shape import u32
from bnmc._kernels.scalar.codes import LEAST_VARIANCE, MOST_VARIANCE, NORM_NONE


def row_of(first_row, place):
    """Return the row of the layer at a place of the tile's columns."""
    j, quad = place // quads, first_row // 4 + place % quads
    return quad // 16 * 64 + quad % 16 + 16 * j


@inlined
def each_entry(act, at_cleared, first_row, width, layer):
    """Call a function for each entry of the rows of a tile, but for padding rows.

    act : device function
        Of the numbers of all tiles, the place in a tile, the column, the row, and `layer`.
    at_cleared : int
        The tile whose padding rows become zeros, or -1.
    """
    numbers = cuda.shared.array(0, kind)
    for item in range(thread(), columns * tile_rows, threads):
        i, place = item // tile_rows, item % tile_rows
        row, at = row_of(first_row, place), i * stride + place
        if row < width:
            act(numbers, at, i, row, layer)
        elif at_cleared >= 0:
            numbers[u32(at_cleared + at)] = number(0.0)
    cuda.syncthreads()


@inlined
def each_row(act, at_cleared, first_row, width, layer):
    """Do so for each row of a batch.

    act : device function
        Of the numbers of all tiles, the place of the first entry in a tile, the number of the
        batch, the row, the width, and `layer`.
    """
    numbers = cuda.shared.array(0, kind)
    for item in range(thread(), inputs * tile_rows, threads):
        h, place = item // tile_rows, item % tile_rows
        row, at = row_of(first_row, place), h * batch * stride + place
        if row < width:
            act(numbers, at, h, row, width, layer)
        elif at_cleared >= 0:
            for i in range(batch):
                numbers[u32(at_cleared + at + i * stride)] = number(0.0)
    cuda.syncthreads()


def copy_tile(first_row, width, given):
    """Write given rows to the tile."""
    each_entry(_copy_entry, -1, first_row, width, given)


@inlined
def _copy_entry(numbers, at, i, row, given):
    numbers[u32(at_tile + at)] = number(given[row, i])


def finish_tile(first_row, rows):
    """Turn the rows of the tile into activations; set padding rows to zero.

    The rows are h, or W a in layers that are not in passes.
    """
    each_row(_finish_row, at_tile, first_row, rows.law.width, rows)


@inlined
def _finish_row(numbers, at, h, row, width, rows):
    finish_row(numbers, at_tile + at, stride, h, row, rows)


def finish_row(values, at, step, h, row, rows):
    """Turn a row of input h into activations; its entries are `step` apart.

    A row from the width on is padding, which may have no variance.
    """
    if bare:
        return
    if skipped and not in_passes:
        for i in range(batch):
            values[u32(at + i * step)] += number(rows.law.skip) * rows.x[h * batch + i, row]
    if in_passes:
        _begin_row(values, at, step, h, row, rows)
    mean, scale = measure_row(values, at, step, row, rows.law.width, number(rows.law.eps))
    for i in range(batch):
        value = number((values[u32(at + i * step)] - mean) * scale)
        if skipped and norm_first:
            rows.x[h * batch + i, row] = value
        if not activates_first:
            value = number(sigma(value))
        values[u32(at + i * step)] = value
        if keeps_rows:
            rows.stored[row, h * batch + i] = value


def _begin_row(values, at, step, h, row, rows):
    """Do what comes before a norm over the batch, in layers in passes."""
    for i in range(batch):
        value, column = values[u32(at + i * step)], h * batch + i
        if skipped and not norm_first:
            rows.x[column, row] = value
        if activates_first:
            value = number(sigma(value))
        if over_features:
            group = row // (rows.law.width // rows.shifts.shape[0])
            value = (value - number(rows.shifts[group, column])) * number(
                rows.scales[group, column]
            )
        values[u32(at + i * step)] = value


def measure_row(values, at, step, row, width, eps):
    """Return what the norm subtracts from a row, and its scale; note a row without variance."""
    rounding = number((batch * unit) ** 2)
    least = number(LEAST_VARIANCE[0] if single else LEAST_VARIANCE[1])
    most = number(MOST_VARIANCE[0] if single else MOST_VARIANCE[1])
    whole = cuda.shared.array(0, int64)
    mean, scale = number(0.0), number(1.0)
    if subtracts_mean:
        for i in range(batch):
            mean += values[u32(at + i * step)]
        mean *= number(1.0 / batch)
    if norm != NORM_NONE:
        variance = number(0.0)
        for i in range(batch):
            deviation = values[u32(at + i * step)] - mean
            variance += deviation * deviation
        variance *= number(1.0 / batch)
        rounded = rounding * (mean * mean)
        if not (rounded if rounded > least else least) < variance < most:
            # Each of these rare rows writes a note, and the note NOT_STOPPED changes nothing.  If
            # only some wrote one, the compiled code would test both conditions below for all rows.
            note = NOT_STOPPED
            if row < width:
                if eps == 0.0 and not variance > rounded:
                    note = row
                elif not variance < most or (eps == 0.0 and variance < least):
                    note = STOPPED_NOT_FINITE
            cuda.atomic.min(whole, at_flags, note)
        scale = inverse_root(number(variance + number(eps)))
    return mean, scale


def load(at, first_row, width, source):
    """Copy rows of (columns, >= width) to the tile at `at`; padding rows are zeros."""
    each_entry(_load_entry, at, first_row, width, (at, source))


@inlined
def _load_entry(numbers, place, i, row, layer):
    at, source = layer
    numbers[u32(at + place)] = number(source[i, row])


def store(at, first_row, width, out):
    """Copy the rows of the tile at `at` to (columns, >= width)."""
    each_entry(_store_entry, -1, first_row, width, (at, out))


@inlined
def _store_entry(numbers, place, i, row, layer):
    at, out = layer
    out[i, row] = numbers[u32(at + place)]


def clear_padding(at, first_row, width):
    """Set the padding rows of the tile at `at` to zero."""
    each_entry(_leave_entry, at, first_row, width, NOTHING)


@inlined
def _leave_entry(numbers, place, i, row, layer):
    """Leave a row that is no padding."""
