"""Rows of a tile in a backward pass: activated, differentiated, led through the norm."""

from __future__ import annotations

from bnmc._kernels.gpu.block import thread
from bnmc._kernels.gpu.constants import (
    at_delta, at_second, batch, centred, columns, derivative, inputs, kind, norm, number, skipped,
    stride, threads, tile_rows,
)  # fmt: skip
from bnmc._kernels.gpu.device import cuda
from bnmc._kernels.gpu.rows import measure_row, row_of
from bnmc._kernels.gpu.shape import u32
from bnmc._kernels.scalar.codes import NORM_NONE


def add_skip(first_row, width, skip, x):
    """Add skip x to the rows of the tile `second`."""
    if skipped:
        numbers = cuda.shared.array(0, kind)
        for item in range(thread(), columns * tile_rows, threads):
            i, place = item // tile_rows, item % tile_rows
            row = row_of(first_row, place)
            if row < width:
                numbers[u32(at_second + i * stride + place)] += number(skip) * number(x[i, row])
        cuda.syncthreads()


def differentiate_at_once(first_row, width, gain, skip, unit, eps, above):
    """Turn Wᵀδ in the tile `delta` into the gradient with respect to the rows h in `second`.

    gain, skip, unit : float
        See `cpu.backward.second_pass`.
    above : (columns, >= width)
        The gradient of the layer above, if there is a skip connection.
    """
    numbers = cuda.shared.array(0, kind)
    for item in range(thread(), inputs * tile_rows, threads):
        h, place = item // tile_rows, item % tile_rows
        row = row_of(first_row, place)
        at, at_g = (
            at_second + h * batch * stride + place,
            at_delta + h * batch * stride + place,
        )
        if row < width:
            _differentiate_row(
                numbers, at, at_g, h, row, width, number(gain), number(skip), unit, eps, above
            )
        else:
            for i in range(batch):
                numbers[u32(at_g + i * stride)] = number(0.0)
    cuda.syncthreads()


def _differentiate_row(values, at, at_g, h, row, width, gain, skip, unit, eps, above):
    share = number(1.0 / batch)
    mean, scale = measure_row(values, at, stride, row, width, eps)
    total, along = number(0.0), number(0.0)
    for i in range(batch):
        x = number((values[u32(at + i * stride)] - mean) * scale)
        g = values[u32(at_g + i * stride)] * (gain * number(derivative(x)))
        if skipped:
            g += skip * above[h * batch + i, row]
        values[u32(at_g + i * stride)] = g
        if centred:
            total += g
        along += g * x
    if norm != NORM_NONE:
        total *= share
        along *= share
        factor = number(unit) * scale
        # N(h) is 1 or -1 in each entry, whatever h.
        if batch == (2 if centred else 1) and eps == 0.0:
            factor = number(0.0)
        for i in range(batch):
            x = number((values[u32(at + i * stride)] - mean) * scale)
            g = values[u32(at_g + i * stride)] - total
            values[u32(at_g + i * stride)] = (g - along * x) * factor
