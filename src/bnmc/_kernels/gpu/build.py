"""The kernels of one kind of chain, linked with the constants of its shape."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numba import float32, float64

from bnmc._kernels.compiling import Sigma
from bnmc._kernels.gpu import constants
from bnmc._kernels.gpu.device import Linker, Placeholder, inverse_root32, inverse_root64
from bnmc._kernels.gpu.drawing import add_made
from bnmc._kernels.gpu.factor import factorise, steps_of
from bnmc._kernels.gpu.layers import frame, layers
from bnmc._kernels.gpu.shape import NO_BIAS, UNIFORM_BIAS, Room, Shape, Spec, room_of, shape_of
from bnmc._kernels.gpu.sums import passes_of
from bnmc._kernels.scalar.codes import NORM_NONE
from bnmc._kernels.scalar.normal import centred_uniforms, normals, signs


def constants_of(shape: Shape, room: Room | None = None) -> dict[str, Any]:
    """Return the values of the names of `constants`; those of a `Room` only if there is one."""
    at, spec = shape.at, shape.spec
    places: dict[str, int] = {**at._asdict(), "seen": at.diagonal, "seen_factor": at.factor}
    if room is not None:
        places |= {**room._asdict(), "seen_factor": room.factor, "factor": at.factor}
    names: dict[str, Any] = {f"at_{name}": place for name, place in places.items()}
    for name, value in vars(constants).items():
        if isinstance(value, Placeholder):
            for owner in (shape, spec):
                if hasattr(owner, name):
                    names[name] = getattr(owner, name)
    single, laws, functions = spec.single, (normals, centred_uniforms, signs), Sigma.by_digest
    biases = centred_uniforms if spec.bias == UNIFORM_BIAS else normals
    names |= {
        "kind": float32 if single else float64,
        "number": np.float32 if single else np.float64,
        "unit": 2.0**-23 if single else 2.0**-52,
        "has_bias": spec.bias != NO_BIAS,
        "sigma": functions[spec.digest].functions[spec.dtype],
        "derivative": functions[spec.slope].functions[spec.dtype] if spec.slope else None,
        "inverse_root": inverse_root32 if single else inverse_root64,
        "draw_normals": _of(normals, single or spec.narrow),
        "draw_weights": _of(laws[spec.weights], single),
        "draw_biases": _of(biases, single),
        "bare": False,
        "eliminate_first": steps_of(spec.columns) if shape.in_registers else None,
        "add_first_pass": passes_of(shape) if shape.whole_rows else None,
    }
    without_norm = Linker({**names, "norm": NORM_NONE, "centred": False})
    return {
        **names,
        "factorise_plain": without_norm.function(factorise),
        "add_bare": Linker({**names, "bare": True}).function(add_made),
    }


def _of(function: Any, single: bool) -> Any:
    return function.single if single else function.double


class Kernels:
    """The kernels of one `Spec`; Numba compiles each when it is first launched.

    Attributes
    ----------
    shape : Shape
    room : Room or None
        Of the backward pass, if the `Spec` has a slope.
    bytes : int
        Of shared memory of a block.
    """

    def __init__(self, spec: Spec) -> None:
        self.shape = shape_of(spec)
        self.room = room_of(self.shape) if spec.slope else None
        self.bytes = self.shape.bytes if self.room is None else self.room.bytes
        self._names = constants_of(self.shape, self.room)
        self._linked: dict[Callable[..., None], Any] = {}

    def of(self, kernel: Callable[..., None]) -> Any:
        """Return a kernel, linked with the constants of the shape."""
        if kernel not in self._linked:
            names, registers = self._names, (self.room or self.shape).most_registers
            if kernel is layers:
                registers = self.shape.registers_of_layers
            if kernel is frame:
                names = {**names, "bare": True}
            self._linked[kernel] = Linker(names).kernel(kernel, registers)
        return self._linked[kernel]


@cache
def kernels_of(spec: Spec) -> Kernels:
    """Return the kernels of one `Spec`."""
    return Kernels(spec)
