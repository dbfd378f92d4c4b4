"""The kernels of one kind of chain, put together from their parts."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from bnmc._kernels.gpu.backward import begin_kernel, descend_kernel, top_kernel
from bnmc._kernels.gpu.backward_frame import Parts
from bnmc._kernels.gpu.backward_matrices import matrix_functions
from bnmc._kernels.gpu.backward_orders import order_functions
from bnmc._kernels.gpu.backward_orthogonal import (
    begin_orthogonal_kernel,
    descend_orthogonal_kernel,
    orthogonalise_kernel,
    top_orthogonal_kernel,
)
from bnmc._kernels.gpu.backward_passes import average_kernel, lower_kernel, mix_kernel
from bnmc._kernels.gpu.backward_rows import step_functions
from bnmc._kernels.gpu.backward_tiles import Room, room_of, tiles_functions
from bnmc._kernels.gpu.block import block_functions
from bnmc._kernels.gpu.drawing import drawing_functions
from bnmc._kernels.gpu.factor import factor_function
from bnmc._kernels.gpu.gram import gram_functions, record_function
from bnmc._kernels.gpu.layers import layers_kernel, rows_kernel
from bnmc._kernels.gpu.multiplying import multiply_function
from bnmc._kernels.gpu.orthogonal import frame_functions
from bnmc._kernels.gpu.orthogonal_layers import Layers, frame_kernel, framed_kernel
from bnmc._kernels.gpu.pairs import couple_kernel, draw_functions, renew_kernel
from bnmc._kernels.gpu.passes import finish_kernel, moments_kernel
from bnmc._kernels.gpu.relative import kept_factor_functions, relative_functions
from bnmc._kernels.gpu.rows import row_functions
from bnmc._kernels.gpu.shape import DRAWN, KEPT, Shape, Spec, shape_of
from bnmc._kernels.gpu.state import observe_kernel, rescale_kernel, unit_functions
from bnmc._kernels.gpu.sums import sum_functions
from bnmc._kernels.scalar.codes import NORM_NONE


class Kernels(NamedTuple):
    """The kernels of one `Spec`."""

    shape: Shape
    #: None unless rows are drawn and not kept, and no representation needs new units.
    layers: Any
    rows: Any
    #: None unless `layers` exists, rows are float64 and normalised, and a chain has one input and
    #: no skip connection.
    couple: Any
    observe: Any
    #: None unless the scale is split off.
    rescale: Any
    renew: Any
    #: Kernels of layers in passes over their rows.  If they exist, only `observe` exists besides.
    moments: Any = None
    finish: Any = None


@cache
def kernels_of(spec: Spec) -> Kernels:
    """Build the kernels of one `Spec`; Numba compiles each when it is first launched."""
    shape = shape_of(spec)
    block = block_functions(shape)
    gram = gram_functions(shape, block)
    record_layer = record_function(shape, block, gram)
    sums = sum_functions(shape, block, gram)
    factorise = factor_function(shape, block, gram)
    if spec.passing is not None:
        moments = None
        if spec.needs_moments and spec.source != KEPT:
            moments = moments_kernel(shape, block, gram, factorise)
        return Kernels(
            shape, None, None, None, observe_kernel(shape, block, gram, record_layer), None, None,
            moments, finish_kernel(shape, block, gram, sums, record_layer, factorise),
        )  # fmt: skip
    rows = row_functions(shape, block)
    drawing = drawing_functions(shape, block, rows, sums)
    multiply_tile = multiply_function(shape, block)

    layers = couple = None
    units = unit_functions(shape, block, gram)
    if spec.source == DRAWN and not spec.kept and not (spec.scaled and spec.skipped):
        layers = layers_kernel(shape, block, gram, sums, record_layer, factorise, drawing, units)
        if not spec.single and not spec.skipped and spec.norm != NORM_NONE and spec.inputs == 1:
            couple = couple_kernel(
                shape, block, gram, factorise, kept_factor_functions(shape, block),
                relative_functions(shape, block),
                draw_functions(shape, block, gram, sums, rows, drawing),
            )  # fmt: skip
    return Kernels(
        shape=shape,
        layers=layers,
        rows=rows_kernel(
            shape, block, gram, sums, record_layer, factorise, rows, drawing, multiply_tile
        ),
        couple=couple,
        observe=observe_kernel(shape, block, gram, record_layer),
        rescale=rescale_kernel(shape, block, gram, units) if spec.scaled else None,
        renew=renew_kernel(shape),
    )


class OrthogonalKernels(NamedTuple):
    """The kernels of layers with orthogonal weights, of one `Spec`."""

    shape: Shape
    frame: Any
    framed: Any
    #: None unless the scale is split off.
    rescale: Any


@cache
def orthogonal_kernels_of(spec: Spec) -> OrthogonalKernels:
    """Build the kernels of layers with orthogonal weights, for a `Spec` of drawn rows."""
    shape = shape_of(spec)
    block = block_functions(shape)
    gram = gram_functions(shape, block)
    layers = Layers(
        shape, block, gram, sum_functions(shape, block, gram),
        frame_functions(shape, block, shape.at.factor, shape.at.diagonal),
        factor_function(shape, block, gram),
    )  # fmt: skip
    return OrthogonalKernels(
        shape, frame_kernel(layers), framed_kernel(layers, record_function(shape, block, gram)),
        kernels_of(spec).rescale,
    )  # fmt: skip


class BackwardKernels(NamedTuple):
    """The kernels of the backward pass of one `Spec`."""

    shape: Shape
    room: Room
    top: Any
    begin: Any
    descend: Any


@cache
def backward_kernels_of(spec: Spec) -> BackwardKernels:
    """Build the kernels of the backward pass, for a `Spec` with a slope."""
    parts = _parts_of(spec)
    return BackwardKernels(
        parts.shape, parts.room, top_kernel(parts), begin_kernel(parts), descend_kernel(parts)
    )


class BackwardPasses(NamedTuple):
    """The kernels of the backward pass of one `Spec` with a `Passing`."""

    shape: Shape
    room: Room
    top: Any
    mix: Any
    #: None unless a norm is over the features.
    average: Any
    lower: Any


@cache
def backward_passes_of(spec: Spec) -> BackwardPasses:
    """Build the kernels of the backward pass, for a `Spec` with a slope and a `Passing`."""
    parts = _parts_of(spec)
    orders = order_functions(parts.shape, parts.block, parts.room)
    average = average_kernel(parts, orders) if spec.needs_moments else None
    return BackwardPasses(
        parts.shape, parts.room, top_kernel(parts), mix_kernel(parts, orders), average,
        lower_kernel(parts, orders),
    )  # fmt: skip


class BackwardOrthogonal(NamedTuple):
    """The kernels of the backward pass of one `Spec` with orthogonal weights."""

    shape: Shape
    room: Room
    orthogonalise: Any
    top: Any
    begin: Any
    descend: Any


@cache
def backward_orthogonal_of(spec: Spec) -> BackwardOrthogonal:
    """Build the kernels of the backward pass of orthogonal weights, for a `Spec` with a slope."""
    parts = _parts_of(spec)
    frames = frame_functions(parts.shape, parts.block, parts.room.factor, parts.room.seen)
    return BackwardOrthogonal(
        parts.shape, parts.room, orthogonalise_kernel(parts, frames),
        top_orthogonal_kernel(parts, frames), begin_orthogonal_kernel(parts, frames),
        descend_orthogonal_kernel(parts, frames),
    )  # fmt: skip


def _parts_of(spec: Spec) -> Parts:
    shape = shape_of(spec)
    room, block = room_of(shape), block_functions(shape)
    gram = gram_functions(shape, block)
    return Parts(
        shape, room, block, gram, sum_functions(shape, block, gram), tiles_functions(shape, block),
        step_functions(shape, block, room), matrix_functions(shape, block, gram, room),
    )  # fmt: skip
