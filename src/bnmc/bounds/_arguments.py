"""Checks of the numbers that bounds are functions of: arrays that broadcast."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bnmc._support.arguments import finite_array
from bnmc.errors import ArgumentError

__all__ = ["broadcast", "integers", "numbers"]

Float64Array = NDArray[np.float64]

# Integers beyond it cannot be told from their neighbours in float64.
_LARGEST_INTEGER = 2.0**53


def integers(name: str, value: ArrayLike, *, low: int = 1) -> Float64Array:
    """Integers within [low, 2⁵³], as float64."""
    return numbers(
        name, value, f"integers in {low} … 2⁵³",
        lambda v: (v >= low) & (v <= _LARGEST_INTEGER) & (v == np.floor(v)),
    )  # fmt: skip


def numbers(
    name: str,
    value: ArrayLike,
    allowed: str,
    is_allowed: Callable[[Float64Array], NDArray[np.bool_]],
) -> Float64Array:
    """Real numbers of any shape, as float64, or an error that names the first that is refused."""
    array = finite_array(name, value, shape=(...,)).astype(np.float64, copy=False)
    refused = array[~is_allowed(array)]
    if refused.size:
        raise ArgumentError(name, float(refused[0]), allowed)
    return array


def broadcast(**arrays: Float64Array) -> tuple[Float64Array, ...]:
    """The arrays, brought to one shape."""
    try:
        return tuple(np.broadcast_arrays(*arrays.values()))
    except ValueError:
        names = list(arrays)
        shapes = ", ".join(str(array.shape) for array in arrays.values())
        raise ArgumentError(
            names[-1], shapes, f"shapes of {', '.join(names)} that broadcast"
        ) from None
