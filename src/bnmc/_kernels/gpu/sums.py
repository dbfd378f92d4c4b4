"""The Gram matrix of a layer: sums over the rows of a tile, over tiles, over ranges of tiles."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numba import float64, int64

from bnmc._kernels.gpu.block import (
    NOT_STOPPED, STEP_BITS, STOPPED_NOT_FINITE, STOPPED_TOO_SMALL, thread,
)  # fmt: skip
from bnmc._kernels.gpu.constants import (
    add_first_pass, at_flags, at_partial, at_shares, at_tile, at_tile64, at_totals, classes,
    columns, edge, entries, kind, line, norm, number, over_features, parts, per_entry, per_square,
    scaled, scratch, single, splits, squares, stride, threads, tile_rows, vector, vector_stride,
    vectors,
)  # fmt: skip
from bnmc._kernels.gpu.device import cuda, inlined
from bnmc._kernels.gpu.gram import entry_of
from bnmc._kernels.gpu.shape import Shape, u32
from bnmc._kernels.scalar.codes import LEAST_SQUARES, NORM_NONE


# --- the loop over the rows of a layer


@inlined
def sum_rows(begin_range, add, end_range, activates, work, step, width, layer):
    """Sum over those rows of a layer that are this block's.

    begin_range, end_range : device functions
        Of the sums over a range of tiles.
    add : device function
        Of the first row of a tile, the width, the sums over its range, and `layer`.
    activates : bool
        Whether tiles are activated, so that a row without variance is noted.
    work : Work
    """
    whole = cuda.shared.array(0, int64)
    chain, sums = cuda.blockIdx.y, work.sums
    for index in range(cuda.blockIdx.x, sums.shape[1], cuda.gridDim.x):
        clear_sums()
        begin_range(sums[chain, index])
        # The rows of a quad are 16 apart, so rows come in whole groups of 64.
        for row in range(index * tile_rows, (width + 63) // 64 * 64, sums.shape[1] * tile_rows):
            add(row, width, sums[chain, index], layer)
        end_range(sums[chain, index])
        if activates and cuda.threadIdx.x == 0 and whole[u32(at_flags)] != NOT_STOPPED:
            cuda.atomic.min(work.status, chain, (step << STEP_BITS) + whole[u32(at_flags)])


@inlined
def leave(sums):
    """Neither begin nor end a range of tiles."""


@inlined
def store_sums(sums):
    """Store the sums over a range of tiles."""
    doubles = cuda.shared.array(0, float64)
    for entry in range(thread(), entries, threads):
        sums[entry] = doubles[u32(at_totals + entry)]


# --- sums of a tile


def clear_sums():
    doubles = cuda.shared.array(0, float64)
    whole = cuda.shared.array(0, int64)
    entry = thread()
    while entry < entries:
        doubles[u32(at_totals + entry)] = 0.0
        entry = np.uint32(entry + threads)
    if thread() == 0:
        whole[u32(at_flags)] = NOT_STOPPED
    cuda.syncthreads()


def add_tile():
    """Add the Gram matrix of the tile to the sums."""
    doubles = cuda.shared.array(0, float64)
    numbers = cuda.shared.array(0, kind)
    acc = cuda.local.array(per_square, kind)
    left = cuda.local.array(edge, kind)
    t = thread()
    split, square = t // squares, t % squares
    ti, tj = 0, square
    while tj > ti:
        ti += 1
        tj -= ti
    for e in range(per_square):
        acc[e] = number(0.0)
    if split < splits:
        at_i, at_j = at_tile + ti * stride + split, at_tile + tj * stride + split
        place = 0
        while place < (tile_rows + splits - 1) // splits * splits:
            if tile_rows % splits == 0 or place + split < tile_rows:
                for a in range(edge):
                    left[a] = numbers[u32(at_i + a * classes * stride + place)]
                for b in range(edge):
                    right = numbers[u32(at_j + b * classes * stride + place)]
                    for a in range(edge):
                        acc[a * edge + b] += left[a] * right
            place += splits
    cuda.syncthreads()
    for e in range(per_square):
        numbers[u32(at_tile + e * line + t)] = acc[e]
    cuda.syncthreads()
    for item in range(t, entries * per_entry, threads):
        entry, part = item % entries, item // entries
        at = at_tile + entry // squares * line + entry % squares
        total = 0.0
        for share in range(splits // per_entry):
            place = at + (share * per_entry + part) * squares
            total += np.float64(numbers[u32(place)])
        # Sum the tile before adding it to the total, so that the sum of a tile has the same
        # bits whichever tiles came before.
        if per_entry == 1:
            doubles[u32(at_totals + entry)] += total
        else:
            doubles[u32(at_partial + item)] = total
    cuda.syncthreads()
    if per_entry > 1:
        for entry in range(t, entries, threads):
            total = 0.0
            for part in range(per_entry):
                total += doubles[u32(at_partial + part * entries + entry)]
            doubles[u32(at_totals + entry)] += total
        cuda.syncthreads()


def add_quads(rows):
    """Add the Gram matrix of rows in registers: number k of column c is at 4 c + k."""
    add_first_pass(rows)
    # Other threads read the totals.
    cuda.syncthreads()


@cache
def passes_of(shape: Shape) -> Callable[..., None]:
    """Return the function `add_first_pass`: each pass calls the next one."""
    per_pass = shape.vectors * shape.vector
    places = [(i, j) for i in range(shape.spec.columns) for j in range(i + 1)]
    add_pass = _leave
    for first in reversed(range(0, shape.passes * per_pass, per_pass)):
        add_pass = _add_pass(first, places[first : first + per_pass], shape.vector, add_pass)
    return add_pass


def _leave(rows):
    """Do nothing after the last pass."""


def _add_pass(
    first: int, places: list[tuple[int, int]], length: int, add_others: Callable[..., None]
) -> Callable[..., None]:
    """Return the function that adds some entries of the Gram matrix, from `first` on."""
    count, write_products = len(places), _write_all(places, length)

    def add_pass(rows):
        doubles = cuda.shared.array(0, float64)
        numbers = cuda.shared.array(0, kind)
        sums = cuda.local.array(vector, kind)
        t = thread()
        write_products(rows, at_tile + t * vector_stride * vector)
        cuda.syncthreads()
        if t < parts * vectors:
            at = at_tile + t % vectors * vector + t // vectors * (vector_stride * vector)
            for e in range(vector):
                sums[e] = number(0.0)
            for other in range(threads // parts):
                place = at + other * (parts * vector_stride * vector)
                for e in range(vector):
                    sums[e] += numbers[u32(place + e)]
            for e in range(vector):
                numbers[u32(at_shares + t * vector + e)] = sums[e]
        cuda.syncthreads()
        entry = t
        while entry < count:
            # Sum the tile before adding it to the total, so that the sum of a tile has the same
            # bits whichever tiles came before.
            total = 0.0
            for part in range(parts):
                total += np.float64(numbers[u32(at_shares + part * vectors * vector + entry)])
            doubles[u32(at_totals + first + entry)] += total
            entry = np.uint32(entry + threads)
        add_others(rows)

    return add_pass


def _write_all(places: list[tuple[int, int]], length: int) -> Callable[..., None]:
    """Return the function that writes the sums of the products of a quad's rows.

    It calls a function for each vector, because only indices that are constants when it is compiled
    keep rows in registers, and the compiler unrolls no loop of this length.
    """

    def write_products(rows, at):
        """Do nothing after the last vector."""

    for first in reversed(range(0, len(places), length)):
        # The last vector is filled with any number.
        vector_places = (places[first:] + length * places[-1:])[:length]
        write_products = _write_vector(vector_places, write_products)
    return write_products


def _write_vector(places: list[tuple[int, int]], write_others: Any) -> Callable[..., None]:
    (i0, j0), (i1, j1), (i2, j2), (i3, j3) = *places[:2], *places[-2:]

    def write_products(rows, at):
        numbers = cuda.shared.array(0, kind)
        numbers[u32(at)] = _product_of(rows, 4 * i0, 4 * j0)
        numbers[u32(at + 1)] = _product_of(rows, 4 * i1, 4 * j1)
        if vector == 4:
            numbers[u32(at + 2)] = _product_of(rows, 4 * i2, 4 * j2)
            numbers[u32(at + 3)] = _product_of(rows, 4 * i3, 4 * j3)
        write_others(rows, at + vector)

    return write_products


def _product_of(rows, i, j):
    """Return the product of two columns of a quad."""
    total = rows[i] * rows[j] + rows[i + 1] * rows[j + 1]
    return total + rows[i + 2] * rows[j + 2] + rows[i + 3] * rows[j + 3]


def merge_ranges(sums):
    """Add the sums of all ranges of a layer, in their order."""
    doubles = cuda.shared.array(0, float64)
    t, ranges = thread(), sums.shape[0]
    for first in range(0, ranges, scratch):
        # Copy the sums to shared memory first: independent loads hide the latency of memory.
        count = min(scratch, ranges - first)
        for item in range(t, count * entries, threads):
            index = first + item // entries
            doubles[u32(at_tile64 + item)] = sums[index, item % entries]
        cuda.syncthreads()
        for entry in range(t, entries, threads):
            total = 0.0 if first == 0 else doubles[u32(at_totals + entry)]
            for index in range(count):
                total += doubles[u32(at_tile64 + index * entries + entry)]
            doubles[u32(at_totals + entry)] = total
        cuda.syncthreads()


def finish_sums(width):
    """Divide the sums by the width, and note if any is infinite or NaN."""
    doubles = cuda.shared.array(0, float64)
    whole = cuda.shared.array(0, int64)
    t = thread()
    if classes * edge == columns:
        entry = t
        while entry < entries:
            _finish_sum(doubles, whole, at_totals + entry, width)
            entry = np.uint32(entry + threads)
    else:
        for item in range(t, columns * columns, threads):
            i, j = item // columns, item % columns
            # Skip the entry (j, i) if it has the same place.  Within a square of one class it
            # has a place of its own, and the same bits.
            if i >= j or i % classes == j % classes:
                _finish_sum(doubles, whole, at_totals + entry_of(i, j), width)
    cuda.syncthreads()


def note_small():
    """Note if sums over rows rounded a sample, and no norm or unit restores its size."""
    doubles = cuda.shared.array(0, float64)
    whole = cuda.shared.array(0, int64)
    if norm == NORM_NONE and not over_features and not scaled:
        least = LEAST_SQUARES[0] if single else LEAST_SQUARES[1]
        for i in range(thread(), columns, threads):
            if 0.0 < doubles[u32(at_totals + entry_of(i, i))] < least:
                cuda.atomic.min(whole, at_flags, STOPPED_TOO_SMALL)
        cuda.syncthreads()


def _finish_sum(doubles, whole, at, width):
    value = doubles[u32(at)] / width
    doubles[u32(at)] = value
    if not abs(value) < np.inf:
        cuda.atomic.min(whole, at_flags, STOPPED_NOT_FINITE)
