"""Kernels that record and rescale the state of chains, one chain per block."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import float64, int64

from bnmc._kernels.gpu.block import Block
from bnmc._kernels.gpu.device import cuda, kernel
from bnmc._kernels.gpu.gram import Gram
from bnmc._kernels.gpu.numbers import scaled
from bnmc._kernels.gpu.registers import most_registers
from bnmc._kernels.gpu.scalars import shift_of, shift_of_square
from bnmc._kernels.gpu.shape import Shape, u32
from bnmc._kernels.gpu.stops import STEP_BITS, STOPPED_NOT_FINITE


def observe_kernel(shape: Shape, block: Block, gram: Gram, record_layer: Any) -> Any:
    """Return the kernel `observe`."""
    begin, load_gram = block.begin, gram.load

    @kernel(most_registers(shape))
    def observe(grams, record, values, kinds, stars):
        """Record the current layer of each chain in slot 0."""
        begin()
        load_gram(grams[cuda.blockIdx.x])
        record_layer(record, values, kinds, stars, cuda.blockIdx.x, 0)

    return observe


class Units(NamedTuple):
    """Device functions of the units of the samples; see `scalar.scaling`."""

    choose: Any
    apply: Any


def unit_functions(shape: Shape, block: Block, gram: Gram) -> Units:
    """Return the device functions that give new units to the Gram matrix in shared memory."""
    columns, classes, threads, thread = (
        shape.spec.columns,
        shape.classes,
        shape.threads,
        block.thread,
    )
    entry_of, at_totals, at_units = gram.entry_of, shape.at.totals, shape.at.units
    # Copies of samples are looked for anew in every layer.
    at_shift = shape.at.twin

    @cuda.jit(device=True)
    def choose_units():
        """Write the exponents by which the units of the samples change to shared memory."""
        doubles = cuda.shared.array(0, float64)
        whole = cuda.shared.array(0, int64)
        for i in range(thread(), columns, threads):
            size = doubles[u32(at_totals + entry_of(i, i))]
            whole[u32(at_shift + i)] = shift_of_square(size)
        cuda.syncthreads()

    @cuda.jit(device=True)
    def apply_units():
        """Change the units of the Gram matrix."""
        doubles = cuda.shared.array(0, float64)
        whole = cuda.shared.array(0, int64)
        for item in range(thread(), columns * columns, threads):
            i, j = item // columns, item % columns
            # Entries (i, j) and (j, i) of different classes have the same place.
            if i >= j or i % classes == j % classes:
                place = at_totals + entry_of(i, j)
                shift = whole[u32(at_shift + i)] + whole[u32(at_shift + j)]
                if shift != 0:
                    doubles[u32(place)] = scaled(doubles[u32(place)], -shift)
        for i in range(thread(), columns, threads):
            doubles[u32(at_units + i)] += whole[u32(at_shift + i)]
        cuda.syncthreads()

    return Units(choose_units, apply_units)


def rescale_kernel(shape: Shape, block: Block, gram: Gram, units: Units) -> Any:
    """Return the kernel `rescale`."""
    columns, number, threads = shape.spec.columns, shape.spec.number, shape.threads
    skipped, kept_rows = shape.spec.skipped, shape.spec.kept
    begin, load_gram, store_gram, entry_of = block.begin, gram.load, gram.store, gram.entry_of
    choose_units, apply_units = units
    at_totals, at_shift = shape.at.totals, shape.at.twin

    @kernel(most_registers(shape))
    def rescale(grams, xs, kept, status, layer, step):
        """Give new units to samples whose size is far from 1; see `cpu.scaling.rescale`.

        grams, xs, kept : (chains, columns + 1, columns), (chains, ...), (chains, ...)
            The state.  Arrays that are not part of it are neither read nor written.
        status : (chains,) int64
            Receives a note if x is not finite.
        """
        doubles = cuda.shared.array(0, float64)
        whole = cuda.shared.array(0, int64)
        t, chain = cuda.threadIdx.x, cuda.blockIdx.x
        begin()
        load_gram(grams[chain])
        choose_units()
        if skipped:
            for i in range(t, columns, threads):
                if doubles[u32(at_totals + entry_of(i, i))] == 0.0:
                    largest = 0.0
                    for row in range(xs.shape[2]):
                        largest = max(largest, abs(np.float64(xs[chain, i, row])))
                    whole[u32(at_shift + i)] = shift_of(largest)
            cuda.syncthreads()
            for item in range(t, columns * xs.shape[2], threads):
                i, row = item // xs.shape[2], item % xs.shape[2]
                shift = whole[u32(at_shift + i)]
                if not abs(xs[chain, i, row]) < np.inf:
                    cuda.atomic.min(status, chain, (step << STEP_BITS) + STOPPED_NOT_FINITE)
                if shift != 0:
                    xs[chain, i, row] = number(scaled(np.float64(xs[chain, i, row]), -shift))
        if kept_rows:
            side = layer % 2
            for item in range(t, kept.shape[2] * columns, threads):
                row, i = item // columns, item % columns
                shift = whole[u32(at_shift + i)]
                if shift != 0:
                    value = number(scaled(np.float64(kept[chain, side, row, i]), -shift))
                    kept[chain, side, row, i] = value
        apply_units()
        store_gram(grams[chain])

    return rescale
