"""Rows of a tile in a backward pass of layers in passes: every norm, in every order.

With u what the norm N is applied to, h or σ(h), the activations are σ(N(u)), or N(u) itself.  A
norm over the features has its shifts and inverse scales in global memory, from the kernel
`moments`, and the means of gradients from the kernel `average`.  A norm over the batch measures
each row.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from bnmc._kernels.compiling import Sigma
from bnmc._kernels.gpu.backward_tiles import Room
from bnmc._kernels.gpu.block import Block
from bnmc._kernels.gpu.device import cuda, device_function
from bnmc._kernels.gpu.passes import row_at
from bnmc._kernels.gpu.rows import measure_function
from bnmc._kernels.gpu.shape import Shape, u32
from bnmc._kernels.scalar.codes import (
    ACTIVATION_FIRST,
    NORM_CENTRED,
    NORM_FIRST,
    NORM_IN_BRANCH,
    NORM_NONE,
)


class Orders(NamedTuple):
    """Device functions of the rows of a tile, in the order in which a layer calls them."""

    #: Turns the rows h of the tile `second` into activations.
    activate: Any
    #: Turns Wᵀδ in the tile `delta` into the gradient with respect to N(u).
    differentiate: Any
    #: Turns the rows h of the tile `second` into the argument u of the norm.
    apply: Any
    #: Multiplies the tile `delta` by N(u).
    weigh: Any
    #: Turns the tile `delta` into the gradient with respect to u.
    lead_through: Any
    #: Turns the tile `delta` into the gradient with respect to h.
    finish: Any


def order_functions(shape: Shape, block: Block, room: Room) -> Orders:
    """Return the device functions of the rows of a tile."""
    load_standard = _standard_function(shape)
    return Orders(
        _activate_function(shape, block, room, load_standard),
        _differentiate_function(shape, block, room, load_standard),
        _apply_function(shape, block, room),
        _weigh_function(shape, block, room, load_standard),
        _lead_through_function(shape, block, room, load_standard),
        _finish_function(shape, block, room),
    )


def _standard_function(shape: Shape) -> Any:
    """Return the device function of what the norm subtracts, and of its inverse scale."""
    spec, number = shape.spec, shape.spec.number
    assert spec.passing is not None
    over_features = spec.passing.over_features

    @cuda.jit(device=True)
    def load_standard(mean, scale, column, row, size, shifts, inverses):
        """Return those of a row, or those of a sample and of the row's group of features."""
        if over_features:
            mean = number(shifts[row // size, column])
            scale = number(inverses[row // size, column])
        return mean, scale

    return load_standard


def _measure_of(shape: Shape) -> Any:
    assert shape.spec.passing is not None
    norm = shape.spec.passing.norm
    return measure_function(shape, norm, norm == NORM_CENTRED)


def _activate_function(shape: Shape, block: Block, room: Room, load_standard: Any) -> Any:
    spec, kind, number = shape.spec, shape.spec.kind, shape.spec.number
    batch, inputs, quads, tile_rows = spec.batch, spec.inputs, shape.quads, shape.tile_rows
    threads, thread, stride, at_h = shape.threads, block.thread, shape.stride, room.second
    assert spec.passing is not None
    activated, measure_row = spec.passing.order == ACTIVATION_FIRST, _measure_of(shape)
    sigma = device_function(Sigma.known[spec.digest].functions[spec.dtype])

    @cuda.jit(device=True)
    def activate(first_row, width, size, eps, shifts, inverses):
        """Turn the rows h into activations, and padding rows into zeros.

        size : int
            Rows of a group of features.
        """
        numbers = cuda.shared.array(0, kind)
        for item in range(thread(), inputs * tile_rows, threads):
            h, place = item // tile_rows, item % tile_rows
            row = row_at(first_row, place, quads)
            at = at_h + h * batch * stride + place
            if row < width:
                activate_row(numbers, at, h, row, width, size, eps, shifts, inverses)
            else:
                for i in range(batch):
                    numbers[u32(at + i * stride)] = number(0.0)
        cuda.syncthreads()

    @cuda.jit(device=True)
    def activate_row(values, at, h, row, width, size, eps, shifts, inverses):
        for i in range(batch if activated else 0):
            values[u32(at + i * stride)] = number(sigma(values[u32(at + i * stride)]))
        mean, scale = measure_row(values, at, stride, row, width, eps)
        for i in range(batch):
            mean, scale = load_standard(mean, scale, h * batch + i, row, size, shifts, inverses)
            value = number((values[u32(at + i * stride)] - mean) * scale)
            if not activated:
                value = number(sigma(value))
            values[u32(at + i * stride)] = value

    return activate


def _differentiate_function(shape: Shape, block: Block, room: Room, load_standard: Any) -> Any:
    spec, kind, number = shape.spec, shape.spec.kind, shape.spec.number
    batch, inputs, quads, tile_rows = spec.batch, spec.inputs, shape.quads, shape.tile_rows
    threads, thread, stride = shape.threads, block.thread, shape.stride
    at_h, at_delta = room.second, room.delta
    assert spec.passing is not None
    order, measure_row = spec.passing.order, _measure_of(shape)
    skipped = spec.skipped and order == NORM_FIRST
    slope = device_function(Sigma.known[spec.slope].functions[spec.dtype])

    @cuda.jit(device=True)
    def differentiate(first_row, width, size, gain, skip, eps, shifts, inverses, above):
        """Turn Wᵀδ into the gradient with respect to N(u), given h, and padding rows into zeros.

        above : (columns, >= width)
            The gradient of the layer above, if there is a skip connection.
        """
        numbers = cuda.shared.array(0, kind)
        for item in range(thread(), inputs * tile_rows, threads):
            h, place = item // tile_rows, item % tile_rows
            row = row_at(first_row, place, quads)
            at = h * batch * stride + place
            if row < width:
                differentiate_row(
                    numbers, at, h, row, width, size, gain, skip, eps, shifts, inverses, above
                )
            else:
                for i in range(batch):
                    numbers[u32(at_delta + at + i * stride)] = number(0.0)
        cuda.syncthreads()

    @cuda.jit(device=True)
    def differentiate_row(
        values, at, h, row, width, size, gain, skip, eps, shifts, inverses, above
    ):  # fmt: skip
        mean, scale = number(0.0), number(1.0)
        if order != ACTIVATION_FIRST:
            mean, scale = measure_row(values, at_h + at, stride, row, width, eps)
        for i in range(batch):
            factor = number(gain)
            if order != ACTIVATION_FIRST:
                mean, scale = load_standard(mean, scale, h * batch + i, row, size, shifts, inverses)
                x = number((values[u32(at_h + at + i * stride)] - mean) * scale)
                factor *= number(slope(x))
            g = values[u32(at_delta + at + i * stride)] * factor
            if skipped:
                g += number(skip) * above[h * batch + i, row]
            values[u32(at_delta + at + i * stride)] = g

    return differentiate


def _apply_function(shape: Shape, block: Block, room: Room) -> Any:
    spec, columns, kind, number = shape.spec, shape.spec.columns, shape.spec.kind, shape.spec.number
    quads, tile_rows = shape.quads, shape.tile_rows
    threads, thread, stride, at_h = shape.threads, block.thread, shape.stride, room.second
    assert spec.passing is not None
    activated = spec.passing.order == ACTIVATION_FIRST
    sigma = device_function(Sigma.known[spec.digest].functions[spec.dtype])

    @cuda.jit(device=True)
    def apply(first_row, width):
        """Turn the rows h into u."""
        numbers = cuda.shared.array(0, kind)
        for item in range(thread(), columns * tile_rows if activated else 0, threads):
            i, place = item // tile_rows, item % tile_rows
            if row_at(first_row, place, quads) < width:
                at = at_h + i * stride + place
                numbers[u32(at)] = number(sigma(numbers[u32(at)]))
        if activated:
            cuda.syncthreads()

    return apply


def _weigh_function(shape: Shape, block: Block, room: Room, load_standard: Any) -> Any:
    columns, kind, number = shape.spec.columns, shape.spec.kind, shape.spec.number
    quads, tile_rows = shape.quads, shape.tile_rows
    threads, thread, stride = shape.threads, block.thread, shape.stride
    at_u, at_delta = room.second, room.delta

    @cuda.jit(device=True)
    def weigh(first_row, width, size, shifts, inverses):
        """Multiply gradients by N(u), given u, for a norm over the features."""
        numbers = cuda.shared.array(0, kind)
        for item in range(thread(), columns * tile_rows, threads):
            i, place = item // tile_rows, item % tile_rows
            row = row_at(first_row, place, quads)
            if row < width:
                at = i * stride + place
                mean, scale = load_standard(
                    number(0.0), number(1.0), i, row, size, shifts, inverses
                )
                numbers[u32(at_delta + at)] *= number((numbers[u32(at_u + at)] - mean) * scale)
        cuda.syncthreads()

    return weigh


def _lead_through_function(shape: Shape, block: Block, room: Room, load_standard: Any) -> Any:
    spec, kind, number = shape.spec, shape.spec.kind, shape.spec.number
    batch, inputs, quads, tile_rows = spec.batch, spec.inputs, shape.quads, shape.tile_rows
    threads, thread, stride = shape.threads, block.thread, shape.stride
    at_u, at_delta = room.second, room.delta
    assert spec.passing is not None
    over_features, measure_row = spec.passing.over_features, _measure_of(shape)
    centred = spec.passing.centred if over_features else spec.passing.norm == NORM_CENTRED
    normed = over_features or spec.passing.norm != NORM_NONE
    skipped = spec.skipped and spec.passing.order == NORM_IN_BRANCH
    share = number(1.0 / batch)

    @cuda.jit(device=True)
    def lead_through(first_row, width, size, skip, unit, eps, shifts, inverses, means, above):
        """Turn the gradient with respect to N(u) into that with respect to u, given u.

        If the norm is inside the branch, then u is h, and the skip connection adds its part.

        unit : float
            The rows h are in units of which the inverse scales need this factor.
        means : (2, groups, columns) float64
            The means of g and of g N(u) over a group of features.
        """
        numbers = cuda.shared.array(0, kind)
        for item in range(thread(), inputs * tile_rows if normed else 0, threads):
            h, place = item // tile_rows, item % tile_rows
            row = row_at(first_row, place, quads)
            if row < width:
                lead_row(
                    numbers, h * batch * stride + place, h, row, width, size, skip, unit, eps,
                    shifts, inverses, means, above,
                )  # fmt: skip
        cuda.syncthreads()

    @cuda.jit(device=True)
    def lead_row(
        values, at, h, row, width, size, skip, unit, eps, shifts, inverses, means, above
    ):  # fmt: skip
        mean, scale = measure_row(values, at_u + at, stride, row, width, eps)
        total, along = number(0.0), number(0.0)
        for i in range(batch if not over_features else 0):
            g = values[u32(at_delta + at + i * stride)]
            total += g
            along += g * number((values[u32(at_u + at + i * stride)] - mean) * scale)
        total *= share
        along *= share
        # N(u) is 1 or -1 in each entry, whatever u.
        is_constant = eps == 0.0 and (size if over_features else batch) == (2 if centred else 1)
        for i in range(batch):
            column = h * batch + i
            mean, scale = load_standard(mean, scale, column, row, size, shifts, inverses)
            if over_features:
                total = number(means[0, row // size, column])
                along = number(means[1, row // size, column])
            x = number((values[u32(at_u + at + i * stride)] - mean) * scale)
            g = values[u32(at_delta + at + i * stride)] - along * x
            if centred:
                g -= total
            g *= number(0.0) if is_constant else number(unit) * scale
            if skipped:
                g += number(skip) * above[column, row]
            values[u32(at_delta + at + i * stride)] = g

    return lead_through


def _finish_function(shape: Shape, block: Block, room: Room) -> Any:
    spec, columns, kind, number = shape.spec, shape.spec.columns, shape.spec.kind, shape.spec.number
    quads, tile_rows, skipped = shape.quads, shape.tile_rows, spec.skipped
    threads, thread, stride = shape.threads, block.thread, shape.stride
    at_h, at_delta = room.second, room.delta
    slope = device_function(Sigma.known[spec.slope].functions[spec.dtype])

    @cuda.jit(device=True)
    def finish(first_row, width, skip, above):
        """Turn the gradient with respect to u = σ(h) into that with respect to h, given h."""
        numbers = cuda.shared.array(0, kind)
        for item in range(thread(), columns * tile_rows, threads):
            i, place = item // tile_rows, item % tile_rows
            row = row_at(first_row, place, quads)
            if row < width:
                at = i * stride + place
                g = numbers[u32(at_delta + at)] * number(slope(numbers[u32(at_h + at)]))
                if skipped:
                    g += number(skip) * above[i, row]
                numbers[u32(at_delta + at)] = g
        cuda.syncthreads()

    return finish
