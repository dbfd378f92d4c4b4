"""The Gram matrix in shared memory: loaded, stored, and recorded whole or as numbers."""

from __future__ import annotations

from typing import Any, NamedTuple

from numba import float64

from bnmc._kernels.gpu.block import Block
from bnmc._kernels.gpu.device import cuda
from bnmc._kernels.gpu.scalars import measured_entry, measured_number, measured_square
from bnmc._kernels.gpu.shape import Shape, u32
from bnmc._kernels.scalar import measures


class Gram(NamedTuple):
    """Device functions of the Gram matrix in shared memory."""

    entry_of: Any
    load: Any
    store: Any


def gram_functions(shape: Shape, block: Block) -> Gram:
    """Return the device functions that move a Gram matrix."""
    columns, threads, thread = shape.spec.columns, shape.threads, block.thread
    classes, edge, squares = shape.classes, shape.edge, shape.squares
    at_totals, at_units, with_units = shape.at.totals, shape.at.units, shape.spec.scaled

    @cuda.jit(device=True)
    def entry_of(i, j):
        """Return the place of entry (i, j) of the Gram matrix among the sums of a tile."""
        if edge == 1:
            return max(i, j) * (max(i, j) + 1) // 2 + min(i, j)
        ti, tj, a, b = i % classes, j % classes, i // classes, j // classes
        if ti < tj:
            ti, tj, a, b = tj, ti, b, a
        return (a * edge + b) * squares + ti * (ti + 1) // 2 + tj

    @cuda.jit(device=True)
    def load_gram(gram):
        """Copy a Gram matrix to shared memory, in the order of the sums, and its units."""
        doubles = cuda.shared.array(0, float64)
        for item in range(thread(), columns * columns, threads):
            i, j = item // columns, item % columns
            doubles[u32(at_totals + entry_of(i, j))] = gram[i, j]
        if with_units:
            for i in range(thread(), columns, threads):
                doubles[u32(at_units + i)] = gram[columns, i]
        cuda.syncthreads()

    @cuda.jit(device=True)
    def store_gram(gram):
        """Copy the Gram matrix and its units from shared memory to an array."""
        doubles = cuda.shared.array(0, float64)
        for item in range(thread(), columns * columns, threads):
            i, j = item // columns, item % columns
            gram[i, j] = doubles[u32(at_totals + entry_of(i, j))]
        if with_units:
            for i in range(thread(), columns, threads):
                gram[columns, i] = doubles[u32(at_units + i)]

    return Gram(entry_of, load_gram, store_gram)


def record_function(shape: Shape, block: Block, gram: Gram) -> Any:
    """Return the device function that records a layer."""
    batch, inputs, threads = shape.spec.batch, shape.spec.inputs, shape.threads
    thread, entry_of, store_gram = block.thread, gram.entry_of, gram.store
    at_totals, at_column, at_tile64 = shape.at.totals, shape.at.column, shape.at.tile64

    @cuda.jit(device=True)
    def record_layer(record, values, kinds, stars, chain, slot):
        """Record the Gram matrix in shared memory, or numbers of it.

        record, values : (chains, layers, columns, columns), (chains, layers, measures, inputs)
            Only one of the two is written.  The other may have any lengths.
        kinds : (measures,) int64
            Codes of `scalar.measures`.  If the first is NOTHING, the matrix itself is recorded.
        stars : (measures, batch, batch) float64
            The matrices to which distances are measured.
        """
        if kinds[0] == measures.NOTHING:
            store_gram(record[chain, slot])
        else:
            for m in range(kinds.size):
                measure(kinds[m], stars[m], values[chain, slot, m])

    @cuda.jit(device=True)
    def measure(kind, star, values):
        """Write one number of the Gram matrix of each input batch; see `scalar.measures`."""
        doubles = cuda.shared.array(0, float64)
        t = thread()
        for h in range(inputs):
            for item in range(t, batch * batch, threads):
                i, j = item // batch, item % batch
                entry = doubles[u32(at_totals + entry_of(h * batch + i, h * batch + j))]
                doubles[u32(at_tile64 + item)] = measured_entry(kind, entry, star[i, j])
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
                    total += measured_square(kind, entry, trace, i == j, batch)
                doubles[u32(at_column + i)] = total
            cuda.syncthreads()
            if t == 0:
                total = 0.0
                for i in range(batch):
                    total += doubles[u32(at_column + i)]
                values[h] = measured_number(kind, largest, trace, total)
            cuda.syncthreads()

    return record_layer
