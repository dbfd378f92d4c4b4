"""Kernels that record and rescale the state of chains, one chain per block."""

from __future__ import annotations

from math import frexp
from typing import Any

import numpy as np

from bnmc._kernels.gpu.block import Block
from bnmc._kernels.gpu.device import cuda, kernel
from bnmc._kernels.gpu.gram import Gram
from bnmc._kernels.gpu.numbers import scaled
from bnmc._kernels.gpu.registers import most_registers
from bnmc._kernels.gpu.shape import Shape
from bnmc._kernels.gpu.stops import STOPPED_NOT_FINITE


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


def rescale_kernel(shape: Shape) -> Any:
    """Return the kernel `rescale`."""
    columns, number, threads = shape.spec.columns, shape.spec.number, shape.threads
    skipped, kept_rows = shape.spec.skipped, shape.spec.kept

    @kernel(most_registers(shape))
    def rescale(grams, xs, kept, exponents, record, first, last, most, status):
        """Divide the state of each chain by a power of 2; see `simulation.engine.precision`.

        grams, xs, kept : (chains, columns, columns), (chains, ...), (chains, ...)
            The state.  Arrays that are not part of it are neither read nor written.
        exponents : (chains,) int64
            Exponents (base 2) of the unit of each state.
        record : (chains, slots, columns, columns)
            Slots first:last are multiplied by the unit.
        most : int
            A Gram matrix whose exponent (base 2) is at most this stays unscaled.
        """
        t, chain = cuda.threadIdx.x, cuda.blockIdx.x
        exponent = exponents[chain]
        for slot in range(first, last):
            for item in range(t, columns * columns, threads):
                i, j = item // columns, item % columns
                value = scaled(record[chain, slot, i, j], exponent)
                record[chain, slot, i, j] = value
                if not abs(value) < np.inf:
                    cuda.atomic.min(status, chain, STOPPED_NOT_FINITE)
        largest = 0.0
        for i in range(columns):
            largest = max(largest, grams[chain, i, i])
        own = np.int64(frexp(largest)[1])
        half = own // 2 if abs(own) > most else 0
        # All threads read the matrix before any of them writes it.
        cuda.syncthreads()
        if half == 0:
            return
        for item in range(t, columns * columns, threads):
            i, j = item // columns, item % columns
            grams[chain, i, j] = scaled(grams[chain, i, j], -2 * half)
        if skipped:
            rows_of_x = xs.shape[2]
            for item in range(t, columns * rows_of_x, threads):
                i, row = item // rows_of_x, item % rows_of_x
                xs[chain, i, row] = number(scaled(np.float64(xs[chain, i, row]), -half))
        if kept_rows:
            for item in range(t, 2 * kept.shape[2] * columns, threads):
                row, i = item // columns, item % columns
                side, row = row // kept.shape[2], row % kept.shape[2]
                value = number(scaled(np.float64(kept[chain, side, row, i]), -half))
                kept[chain, side, row, i] = value
        if t == 0:
            exponents[chain] += 2 * half

    return rescale
