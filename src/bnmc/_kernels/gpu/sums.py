"""The Gram matrix of a layer: sums over the rows of a tile, over tiles, over ranges of tiles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numba import float64, int64

from bnmc._kernels.gpu.block import Block
from bnmc._kernels.gpu.device import cuda
from bnmc._kernels.gpu.gram import Gram
from bnmc._kernels.gpu.shape import Shape, u32
from bnmc._kernels.gpu.stops import NOT_STOPPED, STOPPED_NOT_FINITE


class Sums(NamedTuple):
    """Device functions of the sums, in the order in which a layer calls them."""

    clear: Any
    #: Adds a tile in shared memory.
    add_tile: Any
    #: Adds a tile whose rows are in the registers of the threads; None unless they have whole rows.
    add_quads: Any
    merge_ranges: Any
    finish: Any


def sum_functions(shape: Shape, block: Block, gram: Gram) -> Sums:
    """Return the device functions that sum the Gram matrix of a layer."""
    return Sums(
        _clear_function(shape, block),
        _add_tile_function(shape, block),
        _add_quads_function(shape, block) if shape.whole_rows else None,
        _merge_ranges_function(shape, block),
        _finish_function(shape, block, gram),
    )


def _clear_function(shape: Shape, block: Block) -> Any:
    threads, thread, entries = shape.threads, block.thread, shape.entries
    at_totals, at_flags = shape.at.totals, shape.at.flags

    @cuda.jit(device=True)
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

    return clear_sums


def _add_tile_function(shape: Shape, block: Block) -> Any:
    kind, number = shape.spec.kind, shape.spec.number
    threads, thread, tile_rows = shape.threads, block.thread, shape.tile_rows
    stride, classes, edge, squares = shape.stride, shape.classes, shape.edge, shape.squares
    splits, lines, per_entry = shape.splits, shape.line, shape.per_entry
    sums, entries = edge * edge, shape.entries
    rows_of_split, whole_splits = -(-tile_rows // splits), tile_rows % splits == 0
    at_totals, at_partial, at_tile = shape.at.totals, shape.at.partial, shape.at.tile

    @cuda.jit(device=True)
    def add_tile():
        """Add the Gram matrix of the tile to the sums."""
        doubles = cuda.shared.array(0, float64)
        numbers = cuda.shared.array(0, kind)
        acc = cuda.local.array(sums, kind)
        left = cuda.local.array(edge, kind)
        t = thread()
        split, square = t // squares, t % squares
        ti, tj = 0, square
        while tj > ti:
            ti += 1
            tj -= ti
        for e in range(sums):
            acc[e] = number(0.0)
        if split < splits:
            at_i, at_j = at_tile + ti * stride + split, at_tile + tj * stride + split
            place = 0
            while place < rows_of_split * splits:
                if whole_splits or place + split < tile_rows:
                    for a in range(edge):
                        left[a] = numbers[u32(at_i + a * classes * stride + place)]
                    for b in range(edge):
                        right = numbers[u32(at_j + b * classes * stride + place)]
                        for a in range(edge):
                            acc[a * edge + b] += left[a] * right
                place += splits
        cuda.syncthreads()
        for e in range(sums):
            numbers[u32(at_tile + e * lines + t)] = acc[e]
        cuda.syncthreads()
        for item in range(t, entries * per_entry, threads):
            entry, part = item % entries, item // entries
            at = at_tile + entry // squares * lines + entry % squares
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

    return add_tile


def _add_quads_function(shape: Shape, block: Block) -> Any:
    """Return the function of all passes: each calls the next one."""

    @cuda.jit(device=True)
    def add_quads(rows):
        """Let other threads read the totals."""
        cuda.syncthreads()

    for number_of_pass in reversed(range(shape.passes)):
        add_quads = _add_pass_function(shape, block, number_of_pass, add_quads)
    return add_quads


def _add_pass_function(shape: Shape, block: Block, number_of_pass: int, add_others: Any) -> Any:
    columns, kind, number = shape.spec.columns, shape.spec.kind, shape.spec.number
    thread, threads, vector, vectors = block.thread, shape.threads, shape.vector, shape.vectors
    parts, line, per_pass = shape.parts, shape.vector_stride * shape.vector, vectors * shape.vector
    at_totals, at_tile, at_shares = shape.at.totals, shape.at.tile, shape.at.shares
    entries = [(i, j) for i in range(columns) for j in range(i + 1)]
    first, adding = number_of_pass * per_pass, parts * vectors
    entries = entries[first : first + per_pass]
    count, write_products = len(entries), _write_products_function(shape, entries)

    @cuda.jit(device=True)
    def add_quads(rows):
        """Add the Gram matrix of rows in registers: number k of column c is at 4 c + k."""
        doubles = cuda.shared.array(0, float64)
        numbers = cuda.shared.array(0, kind)
        sums = cuda.local.array(vector, kind)
        t = thread()
        write_products(rows, at_tile + t * line)
        cuda.syncthreads()
        if t < adding:
            at = at_tile + t % vectors * vector + t // vectors * line
            for e in range(vector):
                sums[e] = number(0.0)
            for other in range(threads // parts):
                place = at + other * (parts * line)
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
                total += np.float64(numbers[u32(at_shares + part * per_pass + entry)])
            doubles[u32(at_totals + first + entry)] += total
            entry = np.uint32(entry + threads)
        add_others(rows)

    return add_quads


def _write_products_function(shape: Shape, entries: Sequence[tuple[int, int]]) -> Any:
    """Return the function that writes the sums of the products of a quad's rows.

    It calls a function for each vector, because only indices that are constants when it is compiled
    keep rows in registers, and the compiler unrolls no loop of this length.
    """
    kind, vector = shape.spec.kind, shape.vector

    @cuda.jit(device=True)
    def write_products(rows, at):
        """Do nothing after the last vector."""

    for first in reversed(range(0, len(entries), vector)):
        # The last vector is filled with any number.
        places = [min(first + e, len(entries) - 1) for e in range(vector)]
        write_products = _write_vector_function(
            kind, [entries[place] for place in places], write_products
        )
    return write_products


def _write_vector_function(kind: Any, entries: Sequence[tuple[int, int]], write_others: Any) -> Any:
    vector, (i0, j0), (i1, j1) = len(entries), entries[0], entries[1]
    (i2, j2), (i3, j3) = entries[-2], entries[-1]

    @cuda.jit(device=True)
    def write_products(rows, at):
        numbers = cuda.shared.array(0, kind)
        numbers[u32(at)] = product_of(rows, 4 * i0, 4 * j0)
        numbers[u32(at + 1)] = product_of(rows, 4 * i1, 4 * j1)
        if vector == 4:
            numbers[u32(at + 2)] = product_of(rows, 4 * i2, 4 * j2)
            numbers[u32(at + 3)] = product_of(rows, 4 * i3, 4 * j3)
        write_others(rows, at + vector)

    return write_products


@cuda.jit(device=True)
def product_of(rows, i, j):
    """Return the product of two columns of a quad."""
    total = rows[i] * rows[j] + rows[i + 1] * rows[j + 1]
    return total + rows[i + 2] * rows[j + 2] + rows[i + 3] * rows[j + 3]


def _merge_ranges_function(shape: Shape, block: Block) -> Any:
    threads, thread, entries, scratch = shape.threads, block.thread, shape.entries, shape.scratch
    at_totals, at_tile64 = shape.at.totals, shape.at.tile64

    @cuda.jit(device=True)
    def merge_ranges(sums, chain, ranges):
        """Add the sums of all ranges of a layer, in their order."""
        doubles = cuda.shared.array(0, float64)
        t = thread()
        for first in range(0, ranges, scratch):
            # Copy the sums to shared memory first: independent loads hide the latency of memory.
            count = min(scratch, ranges - first)
            for item in range(t, count * entries, threads):
                index = first + item // entries
                doubles[u32(at_tile64 + item)] = sums[chain, index, item % entries]
            cuda.syncthreads()
            for entry in range(t, entries, threads):
                total = 0.0 if first == 0 else doubles[u32(at_totals + entry)]
                for index in range(count):
                    total += doubles[u32(at_tile64 + index * entries + entry)]
                doubles[u32(at_totals + entry)] = total
            cuda.syncthreads()

    return merge_ranges


def _finish_function(shape: Shape, block: Block, gram: Gram) -> Any:
    columns, classes, edge = shape.spec.columns, shape.classes, shape.edge
    threads, thread, entries = shape.threads, block.thread, shape.entries
    entry_of = gram.entry_of
    at_totals, at_flags = shape.at.totals, shape.at.flags

    @cuda.jit(device=True)
    def finish_sums(width):
        """Divide the sums by the width, and note if any is infinite or NaN."""
        doubles = cuda.shared.array(0, float64)
        whole = cuda.shared.array(0, int64)
        t = thread()
        if classes * edge == columns:
            entry = t
            while entry < entries:
                finish_sum(doubles, whole, at_totals + entry, width)
                entry = np.uint32(entry + threads)
        else:
            for item in range(t, columns * columns, threads):
                i, j = item // columns, item % columns
                # Skip the entry (j, i) if it has the same place.  Within a square of one class it
                # has a place of its own, and the same bits.
                if i >= j or i % classes == j % classes:
                    finish_sum(doubles, whole, at_totals + entry_of(i, j), width)
        cuda.syncthreads()

    @cuda.jit(device=True)
    def finish_sum(doubles, whole, at, width):
        value = doubles[u32(at)] / width
        doubles[u32(at)] = value
        if not abs(value) < np.inf:
            cuda.atomic.min(whole, at_flags, STOPPED_NOT_FINITE)

    return finish_sums
