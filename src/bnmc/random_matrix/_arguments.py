"""What the files of this folder share: checks of arguments, and a rule of quadrature."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bnmc._support.arguments import finite_array, host_array
from bnmc._support.machine import available_memory
from bnmc.errors import ArgumentError, ArgumentTypeError, ResultTooLargeError

__all__ = ["integers", "points", "require_room", "unit_rule"]

Float64Array = NDArray[np.float64]


def points(name: str, value: ArrayLike) -> Float64Array:
    """Finite real numbers of any shape, as float64."""
    return finite_array(name, value, shape=(...,)).astype(np.float64, copy=False)


def integers(name: str, value: ArrayLike, *, low: int, high: int) -> Float64Array:
    """Integers in [low, high], as float64."""
    allowed = f"integers in {low} … {high}"
    array = host_array(name, value, allowed)
    if array.dtype.kind not in "iu":
        raise ArgumentTypeError(name, value, allowed)
    outside = (array < low) | (array > high)
    if outside.any():
        raise ArgumentError(name, int(array[outside].flat[0]), allowed)
    return array.astype(np.float64)


def require_room(name: str, size: int) -> None:
    """Refuse an argument that asks for arrays of more bytes than there are."""
    available = available_memory()
    if size > available:
        raise ResultTooLargeError(name, size, available)


@cache
def unit_rule() -> tuple[tuple[float, float], ...]:
    """Nodes and weights of the Gauss–Legendre rule of order 20 on [0, 1]."""
    nodes, weights = np.polynomial.legendre.leggauss(20)
    return tuple(zip((0.5 * (nodes + 1.0)).tolist(), (0.5 * weights).tolist(), strict=True))
