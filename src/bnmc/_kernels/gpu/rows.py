"""Rows of a tile in shared memory: given, normalised and activated."""

from __future__ import annotations

from typing import Any, NamedTuple

from numba import int64

from bnmc._kernels.compiling import Sigma
from bnmc._kernels.gpu.block import Block
from bnmc._kernels.gpu.device import cuda, device_function, inverse_root32, inverse_root64
from bnmc._kernels.gpu.shape import DRAWN, Shape, u32
from bnmc._kernels.scalar.codes import NORM_NONE


class Rows(NamedTuple):
    """Device functions of the rows of a tile."""

    row_of: Any
    copy_tile: Any
    finish_row: Any
    finish_tile: Any


def row_functions(shape: Shape, block: Block) -> Rows:
    """Return the device functions of the rows of a tile."""
    columns, batch, inputs = shape.spec.columns, shape.spec.batch, shape.spec.inputs
    kind, number = shape.spec.kind, shape.spec.number
    threads, thread, quads, tile_rows = shape.threads, block.thread, shape.quads, shape.tile_rows
    at_tile, stride = shape.at.tile, shape.stride
    finish_row = _finish_row_function(shape)

    @cuda.jit(device=True)
    def row_of(first_row, place):
        """Return the row of the layer at a place of the tile's columns."""
        j, quad = place // quads, first_row // 4 + place % quads
        return quad // 16 * 64 + quad % 16 + 16 * j

    @cuda.jit(device=True)
    def copy_tile(first_row, width, given):
        """Write given rows to the tile."""
        numbers = cuda.shared.array(0, kind)
        for item in range(thread(), columns * tile_rows, threads):
            i, place = item // tile_rows, item % tile_rows
            row = row_of(first_row, place)
            if row < width:
                numbers[u32(at_tile + i * stride + place)] = number(given[row, i])
        cuda.syncthreads()

    @cuda.jit(device=True)
    def finish_tile(first_row, width, skip, eps, x, kept):
        """Turn the rows W a of the tile into activations; set padding rows to zero."""
        numbers = cuda.shared.array(0, kind)
        for item in range(thread(), inputs * tile_rows, threads):
            h, place = item // tile_rows, item % tile_rows
            row = row_of(first_row, place)
            at = at_tile + h * batch * stride + place
            if row < width:
                finish_row(numbers, at, stride, h, row, width, skip, eps, x, kept)
            else:
                for i in range(batch):
                    numbers[u32(at + i * stride)] = number(0.0)
        cuda.syncthreads()

    return Rows(row_of, copy_tile, finish_row, finish_tile)


def _finish_row_function(shape: Shape) -> Any:
    spec, batch, skipped = shape.spec, shape.spec.batch, shape.spec.skipped
    number, kept_rows = spec.number, spec.kept
    # Rows drawn with the covariance P G P are centred already.  With a skip connection the mean is
    # subtracted nevertheless, since rounding errors would add up over layers.
    subtracted = spec.centred and (skipped or spec.source != DRAWN)
    measure_row = measure_function(shape, spec.norm, subtracted)
    sigma = device_function(Sigma.known[spec.digest].functions[spec.dtype])

    @cuda.jit(device=True)
    def finish_row(values, at, step, h, row, width, skip, eps, x, kept):
        """Turn a row W a of input h into activations; its entries are `step` apart.

        A row from `width` on is padding, which may have no variance.
        """
        if skipped:
            for i in range(batch):
                values[u32(at + i * step)] += number(skip) * x[h * batch + i, row]
        mean, scale = measure_row(values, at, step, row, width, eps)
        for i in range(batch):
            value = number((values[u32(at + i * step)] - mean) * scale)
            if skipped:
                x[h * batch + i, row] = value
            value = number(sigma(value))
            values[u32(at + i * step)] = value
            if kept_rows:
                kept[row, h * batch + i] = value

    return finish_row


def measure_function(shape: Shape, norm: int, subtracted: bool) -> Any:
    """Return the device function `measure_row` of a norm over the batch, or of none.

    subtracted : bool
        Whether the mean of a row is subtracted; not so if it is zero.
    """
    spec, batch, at_flags = shape.spec, shape.spec.batch, shape.at.flags
    number, unit = spec.number, 2.0**-23 if spec.single else 2.0**-52
    rounding = number((batch * unit) ** 2)
    inverse_root = inverse_root32 if spec.single else inverse_root64

    @cuda.jit(device=True)
    def measure_row(values, at, step, row, width, eps):
        """Return what the norm subtracts from a row, and its scale; note a row without variance."""
        whole = cuda.shared.array(0, int64)
        mean, scale = number(0.0), number(1.0)
        if subtracted:
            for i in range(batch):
                mean += values[u32(at + i * step)]
            mean *= number(1.0 / batch)
        if norm != NORM_NONE:
            variance = number(0.0)
            for i in range(batch):
                deviation = values[u32(at + i * step)] - mean
                variance += deviation * deviation
            variance *= number(1.0 / batch)
            # What is seldom true comes first, because the rest is then seldom evaluated.
            if not variance > rounding * (mean * mean) and eps == 0.0 and row < width:
                cuda.atomic.min(whole, at_flags, row)
            scale = inverse_root(number(variance + number(eps)))
        return mean, scale

    return measure_row
