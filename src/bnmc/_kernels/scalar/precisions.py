"""Functions that are written once for float32 and float64.

A `Both` is a thing of each precision: a type, a constant, a function.  In a function that `both`
decorates, its name stands for the one or the other: `both` makes two copies of the function, with
other global variables.  The types are f (floats), i (integers) and u (unsigned integers).
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

import numpy as np


class Both(NamedTuple):
    """A thing of float32 numbers, and that of float64 numbers."""

    single: Any
    double: Any


f: Any = Both(np.float32, np.float64)
i: Any = Both(np.int32, np.int64)
u: Any = Both(np.uint32, np.uint64)


def floats(single: float, double: float) -> Any:
    """Return a constant of each precision."""
    return Both(np.float32(single), np.float64(double))


def coefficients(number: Any, *values: float) -> tuple[Any, ...]:
    """Return the coefficients of a polynomial, that of the highest power first."""
    return tuple(number(value) for value in values)


def words(single: int, double: int) -> Any:
    """Return an unsigned integer of 32 bits, and one of 64 bits."""
    return Both(np.uint32(single), np.uint64(double))


def both(function: Callable[..., Any]) -> Any:
    """Return the two copies of a function."""
    return Both(*(_copy(function, precision) for precision in (0, 1)))


def double(function: Callable[..., Any]) -> Any:
    """Return the copy of a function for float64."""
    return _copy(function, 1)


def _copy(function: Any, precision: int) -> Any:
    variables = {
        name: value[precision] if isinstance(value, Both) else value
        for name, value in function.__globals__.items()
        if name in function.__code__.co_names or name in ("__builtins__", "__name__")
    }
    copy = FunctionType(function.__code__, variables)
    # Compiled copies differ in their names; pickled ones are found by them.
    copy.__name__ = f"{function.__name__}_{32 << precision}"
    copy.__qualname__ = f"{function.__name__}.{Both._fields[precision]}"
    return copy


def functions_of(module: ModuleType) -> set[Any]:
    """Return the functions that a module defines, of both precisions."""
    values = [item for x in vars(module).values() for item in (x if isinstance(x, Both) else (x,))]
    return {
        item
        for item in values
        if isinstance(item, FunctionType) and item.__module__ == module.__name__
    }
