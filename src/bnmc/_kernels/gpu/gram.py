"""The Gram matrix in shared memory: loaded, stored, and recorded whole or as numbers."""

from __future__ import annotations

from numba import float64

from bnmc._kernels.gpu.block import thread
from bnmc._kernels.gpu.constants import (
    at_column, at_tile64, at_totals, at_units, batch, classes, columns, edge, inputs, scaled,
    squares, threads,
)  # fmt: skip
from bnmc._kernels.gpu.device import cuda
from bnmc._kernels.gpu.shape import u32
from bnmc._kernels.scalar.measures import NOTHING, number_of, square_of
from bnmc._kernels.scalar.measures import entry_of as measured_entry


def entry_of(i, j):
    """Return the place of entry (i, j) of the Gram matrix among the sums of a tile."""
    if edge == 1:
        return max(i, j) * (max(i, j) + 1) // 2 + min(i, j)
    ti, tj, a, b = i % classes, j % classes, i // classes, j // classes
    if ti < tj:
        ti, tj, a, b = tj, ti, b, a
    return (a * edge + b) * squares + ti * (ti + 1) // 2 + tj


def load_gram(gram):
    """Copy a Gram matrix to shared memory, in the order of the sums, and its units."""
    doubles = cuda.shared.array(0, float64)
    for item in range(thread(), columns * columns, threads):
        i, j = item // columns, item % columns
        doubles[u32(at_totals + entry_of(i, j))] = gram[i, j]
    if scaled:
        for i in range(thread(), columns, threads):
            doubles[u32(at_units + i)] = gram[columns, i]
    cuda.syncthreads()


def store_gram(gram):
    """Copy the Gram matrix and its units from shared memory to an array."""
    doubles = cuda.shared.array(0, float64)
    for item in range(thread(), columns * columns, threads):
        i, j = item // columns, item % columns
        gram[i, j] = doubles[u32(at_totals + entry_of(i, j))]
    if scaled:
        for i in range(thread(), columns, threads):
            gram[columns, i] = doubles[u32(at_units + i)]


def record_layer(target, chain, slot):
    """Record the Gram matrix in shared memory, or numbers of it.

    target : Target
        `record` is (chains, layers, columns, columns), `values` is (chains, layers, measures,
        inputs); only one of the two is written, and the other may have any lengths.  `kinds` are
        codes of `scalar.measures`, one a measure; if the first is NOTHING, the matrix itself is
        recorded.  `stars` are the (measures, batch, batch) matrices to which distances are
        measured.
    """
    if target.kinds[0] == NOTHING:
        store_gram(target.record[chain, slot])
    else:
        for m in range(target.kinds.size):
            measure(target.kinds[m], target.stars[m], target.values[chain, slot, m])


def measure(code, star, values):
    """Write one number of the Gram matrix of each input batch; see `scalar.measures`."""
    doubles = cuda.shared.array(0, float64)
    t = thread()
    for h in range(inputs):
        for item in range(t, batch * batch, threads):
            i, j = item // batch, item % batch
            entry = doubles[u32(at_totals + entry_of(h * batch + i, h * batch + j))]
            doubles[u32(at_tile64 + item)] = measured_entry(code, entry, star[i, j])
        cuda.syncthreads()
        for i in range(t, batch, threads):
            largest = 0.0
            for j in range(batch):
                largest = max(largest, abs(doubles[u32(at_tile64 + i * batch + j)]))
            doubles[u32(at_column + i)] = largest
        cuda.syncthreads()
        largest = 0.0
        for i in range(batch):
            largest = max(largest, doubles[u32(at_column + i)])
        scale = largest if largest > 0.0 else 1.0
        trace = 0.0
        for i in range(batch):
            trace += doubles[u32(at_tile64 + i * (batch + 1))] / scale
        cuda.syncthreads()
        for i in range(t, batch, threads):
            total = 0.0
            for j in range(batch):
                entry = doubles[u32(at_tile64 + i * batch + j)] / scale
                total += square_of(code, entry, trace, i == j, batch)
            doubles[u32(at_column + i)] = total
        cuda.syncthreads()
        if t == 0:
            total = 0.0
            for i in range(batch):
                total += doubles[u32(at_column + i)]
            values[h] = number_of(code, largest, trace, total)
        cuda.syncthreads()
