"""Checks of array arguments: real numbers, integers, shapes that broadcast, size of a result."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bnmc._support.arguments import finite_array, host_array
from bnmc._support.machine import available_memory
from bnmc.errors import ArgumentError, ArgumentTypeError, ResultTooLargeError

Float64Array = NDArray[np.float64]

#: Above this limit float64 no longer represents every integer.
LARGEST_INTEGER = 2**53


def real_numbers(
    name: str,
    value: ArrayLike,
    allowed: str = "",
    is_allowed: Callable[[Float64Array], NDArray[np.bool_]] | None = None,
) -> Float64Array:
    """Return an array of finite real numbers as float64.

    Parameters
    ----------
    name : str
        Name of the argument, for the message.
    value : array_like
        Real numbers, of any shape.
    allowed : str, optional
        The allowed numbers, for the message.
    is_allowed : callable, optional
        Maps the array to booleans of the same shape, False for numbers that are not allowed.

    Returns
    -------
    ndarray of float64
        `value` itself if it is such an array, else a copy.

    Raises
    ------
    ArgumentTypeError
        If `value` is not an array of real numbers.
    ArgumentError
        If a number is not finite or not allowed. The message names the first such number.

    Examples
    --------
    >>> from bnmc._support.array_arguments import real_numbers
    >>> real_numbers("tau", [0.0, 1.0], "numbers >= 0", lambda tau: tau >= 0)
    array([0., 1.])
    """
    array = finite_array(name, value, shape=(...,)).astype(np.float64, copy=False)
    if is_allowed is not None:
        wrong = array[~is_allowed(array)]
        if wrong.size:
            raise ArgumentError(name, float(wrong[0]), allowed)
    return array


def integers(
    name: str,
    value: ArrayLike,
    *,
    low: int = 1,
    high: int | None = None,
    accept_floats: bool = False,
) -> Float64Array:
    """Return an array of integers as float64.

    Parameters
    ----------
    name : str
        Name of the argument, for the message.
    value : array_like
        Integers, of any shape.
    low : int, default 1
        Smallest allowed integer.
    high : int, optional
        Largest allowed integer, at most 2⁵³, which is the default.
    accept_floats : bool, default False
        Whether floating-point numbers with integer values, such as 1e6, are allowed.

    Returns
    -------
    ndarray of float64

    Raises
    ------
    ArgumentTypeError
        If `value` is not an array of integers, or of real numbers if `accept_floats` is true.
    ArgumentError
        If a number is not an integer or outside the bounds. The message names the first such
        number.

    Examples
    --------
    >>> from bnmc._support.array_arguments import integers
    >>> integers("width", [1, 1000])
    array([   1., 1000.])
    """
    limit = LARGEST_INTEGER if high is None else high
    allowed = f"integers in {low} … {'2⁵³' if high is None else high}"
    if accept_floats:
        return real_numbers(
            name,
            value,
            allowed,
            lambda array: (array >= low) & (array <= limit) & (array == np.floor(array)),
        )
    array = host_array(name, value, allowed)
    if array.dtype.kind not in "iu":
        raise ArgumentTypeError(name, value, allowed)
    outside = (array < low) | (array > limit)
    if outside.any():
        raise ArgumentError(name, int(array[outside].flat[0]), allowed)
    return array.astype(np.float64)


def broadcast(**arrays: Float64Array) -> tuple[Float64Array, ...]:
    """Return the arguments, given by name, broadcast to one shape.

    Raises
    ------
    ArgumentError
        If the shapes do not broadcast.
    """
    try:
        return tuple(np.broadcast_arrays(*arrays.values()))
    except ValueError:
        names = list(arrays)
        shapes = ", ".join(str(array.shape) for array in arrays.values())
        raise ArgumentError(
            names[-1], shapes, f"shapes of {', '.join(names)} that broadcast"
        ) from None


def require_memory(name: str, size: int, hint: str = "") -> None:
    """Raise `ResultTooLargeError` if an argument needs arrays of more bytes than are free."""
    available = available_memory()
    if size > available:
        raise ResultTooLargeError(name, size, available, hint)
