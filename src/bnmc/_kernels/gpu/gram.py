"""The Gram matrix in shared memory: loaded, stored, recorded whole or as numbers, in new units.

The kernels `observe` and `rescale` have one chain per block.
"""

from __future__ import annotations

from math import ldexp

import numpy as np
from numba import float64, int64

from bnmc._kernels.gpu.block import STEP_BITS, STOPPED_NOT_FINITE, begin, thread
from bnmc._kernels.gpu.constants import (
    at_column, at_tile64, at_totals, at_twin, at_units, batch, classes, columns, edge, inputs,
    keeps_rows, number, scaled, skipped, squares, threads,
)  # fmt: skip
from bnmc._kernels.gpu.device import cuda
from bnmc._kernels.gpu.shape import u32
from bnmc._kernels.scalar.measures import NOTHING, number_of, square_of
from bnmc._kernels.scalar.measures import entry_of as measured_entry
from bnmc._kernels.scalar.scaling import shift_of, shift_of_square


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


def observe(grams, target):
    """Record the current layer of each chain in slot 0."""
    begin()
    load_gram(grams[cuda.blockIdx.x])
    record_layer(target, cuda.blockIdx.x, 0)


# The exponents by which units change take the place of copies of samples, which are looked for anew
# in every layer.


def choose_units():
    """Write the exponents by which the units of the samples change to shared memory."""
    doubles = cuda.shared.array(0, float64)
    whole = cuda.shared.array(0, int64)
    for i in range(thread(), columns, threads):
        size = doubles[u32(at_totals + entry_of(i, i))]
        whole[u32(at_twin + i)] = shift_of_square(size)
    cuda.syncthreads()


def apply_units():
    """Change the units of the Gram matrix."""
    doubles = cuda.shared.array(0, float64)
    whole = cuda.shared.array(0, int64)
    for item in range(thread(), columns * columns, threads):
        i, j = item // columns, item % columns
        # Entries (i, j) and (j, i) of different classes have the same place.
        if i >= j or i % classes == j % classes:
            place = at_totals + entry_of(i, j)
            shift = whole[u32(at_twin + i)] + whole[u32(at_twin + j)]
            if shift != 0:
                doubles[u32(place)] = _times_power(doubles[u32(place)], -shift)
    for i in range(thread(), columns, threads):
        doubles[u32(at_units + i)] += whole[u32(at_twin + i)]
    cuda.syncthreads()


def rescale(state, width, status, slot, layer, step):
    """Give new units to samples whose size is far from 1; see `cpu.scaling.rescale`.

    state : State
    width : int
        Of the layer; further rows are those of a wider layer before.
    status : (chains,) int64
        Receives a note if x is not finite.
    """
    doubles = cuda.shared.array(0, float64)
    whole = cuda.shared.array(0, int64)
    t, chain = cuda.threadIdx.x, cuda.blockIdx.x
    begin()
    grams, xs, activations = state
    load_gram(grams[chain])
    choose_units()
    if skipped:
        for i in range(t, columns, threads):
            if doubles[u32(at_totals + entry_of(i, i))] == 0.0:
                largest = 0.0
                for row in range(width):
                    largest = max(largest, abs(np.float64(xs[chain, i, row])))
                whole[u32(at_twin + i)] = shift_of(largest)
        cuda.syncthreads()
        for item in range(t, columns * width, threads):
            i, row = item // width, item % width
            shift = whole[u32(at_twin + i)]
            if not abs(xs[chain, i, row]) < np.inf:
                cuda.atomic.min(status, chain, (step << STEP_BITS) + STOPPED_NOT_FINITE)
            if shift != 0:
                xs[chain, i, row] = number(_times_power(np.float64(xs[chain, i, row]), -shift))
    if keeps_rows:
        side = layer % 2
        for item in range(t, width * columns, threads):
            row, i = item // columns, item % columns
            shift = whole[u32(at_twin + i)]
            if shift != 0:
                value = number(_times_power(np.float64(activations[chain, side, row, i]), -shift))
                activations[chain, side, row, i] = value
    apply_units()
    store_gram(grams[chain])


def _times_power(value, exponent):
    """Return value * 2**exponent: infinity on overflow, zero on underflow."""
    while exponent > 1000:
        value *= 2.0**1000
        exponent -= 1000
    while exponent < -1000:
        value *= 2.0**-1000
        exponent += 1000
    return value * ldexp(1.0, int(exponent))
