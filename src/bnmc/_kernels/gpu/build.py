"""The kernels of one kind of chain, linked with the constants of its shape."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from bnmc._kernels.gpu import (
    backward, backward_orthogonal, backward_passes, constants, layers, orthogonal_layers, pairs,
    passes, state,
)  # fmt: skip
from bnmc._kernels.gpu.device import Linker, Placeholder
from bnmc._kernels.gpu.factor import factorise, steps_of
from bnmc._kernels.gpu.shape import DRAWN, KEPT, Room, Shape, Spec, room_of, shape_of
from bnmc._kernels.gpu.sums import passes_of
from bnmc._kernels.scalar.codes import NORM_NONE


def constants_of(shape: Shape, room: Room | None = None) -> dict[str, Any]:
    """Return the values of the names of `constants`; those of a `Room` only if there is one."""
    at = shape.at
    places: dict[str, int] = {**at._asdict(), "seen": at.diagonal, "seen_factor": at.factor}
    if room is not None:
        places |= {**room._asdict(), "seen_factor": room.factor, "factor": at.factor}
    names: dict[str, Any] = {f"at_{name}": place for name, place in places.items()}
    for name, value in vars(constants).items():
        if isinstance(value, Placeholder):
            for owner in (shape, shape.spec):
                if hasattr(owner, name):
                    names[name] = getattr(owner, name)
    names["bare"] = False
    names["eliminate_first"] = steps_of(shape.spec.columns) if shape.in_registers else None
    names["add_first_pass"] = passes_of(shape) if shape.whole_rows else None
    without_norm = Linker({**names, "norm": NORM_NONE, "centred": False})
    return {**names, "factorise_plain": without_norm.function(factorise)}


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
    linker, registers = Linker(constants_of(shape)), shape.most_registers

    def linked(kernel: Any, *, needed: bool = True) -> Any:
        return linker.kernel(kernel, registers) if needed else None

    observe = linked(state.observe)
    if spec.passing is not None:
        moments = linked(passes.moments, needed=spec.over_features and spec.source != KEPT)
        finish = linked(passes.finish)
        return Kernels(shape, None, None, None, observe, None, None, moments, finish)
    is_alone = spec.source == DRAWN and not spec.keeps_rows and not (spec.scaled and spec.skipped)
    is_coupled = is_alone and not (spec.single or spec.skipped or spec.inputs > 1)
    return Kernels(
        shape=shape,
        layers=linker.kernel(layers.layers, shape.registers_of_layers) if is_alone else None,
        rows=linked(layers.rows),
        couple=linked(pairs.couple, needed=is_coupled and spec.norm != NORM_NONE),
        observe=observe,
        rescale=linked(state.rescale, needed=spec.scaled),
        renew=linked(pairs.renew),
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
    names, registers = constants_of(shape), shape.most_registers
    return OrthogonalKernels(
        shape,
        Linker({**names, "bare": True}).kernel(orthogonal_layers.frame, registers),
        Linker(names).kernel(orthogonal_layers.framed, registers),
        kernels_of(spec).rescale,
    )


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
    kernels = (backward.top, backward.begin, backward.descend)
    return BackwardKernels(*_backward(spec, *kernels))


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
    average = backward_passes.average if spec.over_features else None
    kernels = (backward.top, backward_passes.mix, average, backward_passes.lower)
    return BackwardPasses(*_backward(spec, *kernels))


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
    own = backward_orthogonal
    kernels = (own.orthogonalise, own.top_orthogonal, own.begin_orthogonal, own.descend_orthogonal)
    return BackwardOrthogonal(*_backward(spec, *kernels))


def _backward(spec: Spec, *kernels: Any) -> list[Any]:
    """Return the shape, the room and the kernels of a backward pass."""
    shape = shape_of(spec)
    room = room_of(shape)
    linker = Linker(constants_of(shape, room))
    linked = [kernel and linker.kernel(kernel, room.most_registers) for kernel in kernels]
    return [shape, room, *linked]
