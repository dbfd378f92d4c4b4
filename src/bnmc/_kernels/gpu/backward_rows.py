"""Rows of a tile in a backward pass: activated, differentiated, led through the norm."""

from __future__ import annotations

from typing import Any, NamedTuple

from bnmc._kernels.compiling import Sigma
from bnmc._kernels.gpu.backward_tiles import Room
from bnmc._kernels.gpu.block import Block
from bnmc._kernels.gpu.device import cuda, device_function
from bnmc._kernels.gpu.passes import row_at
from bnmc._kernels.gpu.rows import measure_function
from bnmc._kernels.gpu.shape import Shape, u32
from bnmc._kernels.scalar.codes import NORM_NONE


class Steps(NamedTuple):
    """Device functions of the rows of a tile."""

    #: Adds the skip connection to the rows h.
    add_skip: Any
    activate: Any
    differentiate: Any
    #: Copies rows of an array to a tile, and back.
    load: Any
    store: Any
    clear_padding: Any


def step_functions(shape: Shape, block: Block, room: Room) -> Steps:
    """Return the device functions of the rows of a tile."""
    return Steps(
        _skip_function(shape, block, room),
        _activate_function(shape, block, room),
        _differentiate_function(shape, block, room),
        *copy_functions(shape, block),
    )


def measure_of(shape: Shape) -> Any:
    """Return `measure_row` as the forward pass has it; see `rows.row_functions`."""
    return measure_function(shape, shape.spec.norm, shape.spec.centred and shape.spec.skipped)


def _skip_function(shape: Shape, block: Block, room: Room) -> Any:
    columns, kind, number = shape.spec.columns, shape.spec.kind, shape.spec.number
    quads, threads, thread = shape.quads, shape.threads, block.thread
    tile_rows, stride, skipped = shape.tile_rows, shape.stride, shape.spec.skipped
    at_h = room.second

    @cuda.jit(device=True)
    def add_skip(first_row, width, skip, x):
        """Add skip x to the rows of the tile `second`."""
        numbers = cuda.shared.array(0, kind)
        for item in range(thread(), columns * tile_rows if skipped else 0, threads):
            i, place = item // tile_rows, item % tile_rows
            row = row_at(first_row, place, quads)
            if row < width:
                numbers[u32(at_h + i * stride + place)] += number(skip) * number(x[i, row])
        if skipped:
            cuda.syncthreads()

    return add_skip


def _activate_function(shape: Shape, block: Block, room: Room) -> Any:
    spec, kind, number = shape.spec, shape.spec.kind, shape.spec.number
    batch, inputs, quads, tile_rows = spec.batch, spec.inputs, shape.quads, shape.tile_rows
    threads, thread, stride, at_h = shape.threads, block.thread, shape.stride, room.second
    measure_row = measure_of(shape)
    sigma = device_function(Sigma.known[spec.digest].functions[spec.dtype])

    @cuda.jit(device=True)
    def activate(first_row, width, eps):
        """Turn the rows h of the tile `second` into activations, and padding rows into zeros."""
        numbers = cuda.shared.array(0, kind)
        for item in range(thread(), inputs * tile_rows, threads):
            place = item % tile_rows
            row = row_at(first_row, place, quads)
            at = at_h + item // tile_rows * batch * stride + place
            mean, scale = measure_row(numbers, at, stride, row, width, eps)
            for i in range(batch):
                value = number(0.0)
                if row < width:
                    value = number((numbers[u32(at + i * stride)] - mean) * scale)
                    value = number(sigma(value))
                numbers[u32(at + i * stride)] = value
        cuda.syncthreads()

    return activate


def _differentiate_function(shape: Shape, block: Block, room: Room) -> Any:
    spec, kind, number = shape.spec, shape.spec.kind, shape.spec.number
    batch, inputs, quads, tile_rows = spec.batch, spec.inputs, shape.quads, shape.tile_rows
    threads, thread, stride, skipped = shape.threads, block.thread, shape.stride, spec.skipped
    at_h, at_delta, centred, normed = room.second, room.delta, spec.centred, spec.norm != NORM_NONE
    # N(h) is 1 or -1 in each entry, whatever h.
    is_constant, share = batch == (2 if centred else 1), number(1.0 / batch)
    measure_row = measure_of(shape)
    slope = device_function(Sigma.known[spec.slope].functions[spec.dtype])

    @cuda.jit(device=True)
    def differentiate(first_row, width, gain, skip, unit, eps, above):
        """Turn Wᵀδ in the tile `delta` into the gradient with respect to the rows h in `second`.

        gain, skip, unit : float
            See `cpu.backward.second_pass`.
        above : (columns, >= width)
            The gradient of the layer above, if there is a skip connection.
        """
        numbers = cuda.shared.array(0, kind)
        for item in range(thread(), inputs * tile_rows, threads):
            h, place = item // tile_rows, item % tile_rows
            row = row_at(first_row, place, quads)
            at, at_g = (
                at_h + h * batch * stride + place,
                at_delta + h * batch * stride + place,
            )
            if row < width:
                differentiate_row(
                    numbers, at, at_g, h, row, width, number(gain), number(skip), unit, eps, above
                )
            else:
                for i in range(batch):
                    numbers[u32(at_g + i * stride)] = number(0.0)
        cuda.syncthreads()

    @cuda.jit(device=True)
    def differentiate_row(values, at, at_g, h, row, width, gain, skip, unit, eps, above):
        mean, scale = measure_row(values, at, stride, row, width, eps)
        total, along = number(0.0), number(0.0)
        for i in range(batch):
            x = number((values[u32(at + i * stride)] - mean) * scale)
            g = values[u32(at_g + i * stride)] * (gain * number(slope(x)))
            if skipped:
                g += skip * above[h * batch + i, row]
            values[u32(at_g + i * stride)] = g
            if centred:
                total += g
            along += g * x
        if normed:
            total *= share
            along *= share
            factor = number(unit) * scale
            if is_constant and eps == 0.0:
                factor = number(0.0)
            for i in range(batch):
                x = number((values[u32(at + i * stride)] - mean) * scale)
                g = values[u32(at_g + i * stride)] - total
                values[u32(at_g + i * stride)] = (g - along * x) * factor

    return differentiate


def copy_functions(shape: Shape, block: Block) -> tuple[Any, Any, Any]:
    """Return `load`, `store` and `clear_padding` of `Steps`."""
    columns, kind, number = shape.spec.columns, shape.spec.kind, shape.spec.number
    quads, threads, thread = shape.quads, shape.threads, block.thread
    tile_rows, stride = shape.tile_rows, shape.stride

    @cuda.jit(device=True)
    def load(at_tile, first_row, width, source):
        """Copy rows of (columns, >= width) to a tile; padding rows are zeros."""
        numbers = cuda.shared.array(0, kind)
        for item in range(thread(), columns * tile_rows, threads):
            i, place = item // tile_rows, item % tile_rows
            row = row_at(first_row, place, quads)
            value = number(0.0)
            if row < width:
                value = number(source[i, row])
            numbers[u32(at_tile + i * stride + place)] = value
        cuda.syncthreads()

    @cuda.jit(device=True)
    def store(at_tile, first_row, width, out):
        """Copy the rows of a tile to (columns, >= width)."""
        numbers = cuda.shared.array(0, kind)
        for item in range(thread(), columns * tile_rows, threads):
            i, place = item // tile_rows, item % tile_rows
            row = row_at(first_row, place, quads)
            if row < width:
                out[i, row] = numbers[u32(at_tile + i * stride + place)]
        cuda.syncthreads()

    @cuda.jit(device=True)
    def clear_padding(at_tile, first_row, width):
        """Set the padding rows of a tile to zero."""
        numbers = cuda.shared.array(0, kind)
        for item in range(thread(), columns * tile_rows, threads):
            i, place = item // tile_rows, item % tile_rows
            if row_at(first_row, place, quads) >= width:
                numbers[u32(at_tile + i * stride + place)] = number(0.0)
        cuda.syncthreads()

    return load, store, clear_padding
