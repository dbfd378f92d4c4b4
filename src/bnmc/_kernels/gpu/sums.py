"""The Gram matrix of a layer: sums over the rows of a tile, over tiles, over ranges of tiles."""

from __future__ import annotations

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
    add_tile: Any
    merge_ranges: Any
    finish: Any


def sum_functions(shape: Shape, block: Block, gram: Gram) -> Sums:
    """Return the device functions that sum the Gram matrix of a layer."""
    return Sums(
        _clear_function(shape, block),
        _add_tile_function(shape, block),
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
        for entry in range(thread(), entries, threads):
            doubles[u32(at_totals + entry)] = 0.0
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
            for entry in range(t, entries, threads):
                finish_sum(doubles, whole, at_totals + entry, width)
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
