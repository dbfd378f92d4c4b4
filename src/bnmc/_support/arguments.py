"""Checks of arguments: each returns the value in its canonical type or raises a typed error."""

from __future__ import annotations

import math
from collections.abc import Iterable
from numbers import Integral, Real
from types import EllipsisType
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from bnmc._support.device_arrays import is_device_array, to_host
from bnmc.errors import ArgumentError, ArgumentTypeError, UnknownNameError

__all__ = [
    "choice",
    "finite_array",
    "generator",
    "host_array",
    "instance",
    "integer",
    "items",
    "real",
    "result_array",
]

T = TypeVar("T")


def instance(name: str, value: object, kind: type[T], allowed: str) -> T:
    """Return `value` if it is an instance of a class.

    Parameters
    ----------
    name : str
        Name of the argument, for the message.
    value : object
    kind : type
        The class.
    allowed : str
        The class in words, for the message.

    Returns
    -------
    object
        `value` itself.

    Raises
    ------
    ArgumentTypeError
        If `value` is not an instance of `kind`.

    Examples
    --------
    >>> instance("executor", 3, list, "a list")
    Traceback (most recent call last):
        ...
    bnmc.errors.ArgumentTypeError: executor: got 3, allowed: a list
    """
    if not isinstance(value, kind):
        raise ArgumentTypeError(name, value, allowed)
    return value


def integer(name: str, value: object, *, low: int | None = None, high: int | None = None) -> int:
    """Return `value` as a Python integer in [low, high].

    Parameters
    ----------
    name : str
        Name of the argument, for the message.
    value : object
        A Python or NumPy integer; a bool is not an integer, nor is 3.0.
    low, high : int, optional
        Inclusive bounds.

    Returns
    -------
    int

    Raises
    ------
    ArgumentTypeError
        If `value` is not an integer.
    ArgumentError
        If it lies outside the bounds.

    Examples
    --------
    >>> integer("width", np.int64(3), low=1)
    3
    """
    allowed = f"an integer{_interval(low, high)}"
    scalar = _unwrapped(value)
    if isinstance(scalar, (bool, np.timedelta64)) or not isinstance(scalar, Integral):
        raise ArgumentTypeError(name, value, allowed)
    number = int(scalar)
    if (low is not None and number < low) or (high is not None and number > high):
        raise ArgumentError(name, number, allowed)
    return number


def real(
    name: str,
    value: object,
    *,
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    below: float | None = None,
    finite: bool = True,
) -> float:
    """Return `value` as a Python float within bounds.

    Parameters
    ----------
    name : str
        Name of the argument, for the message.
    value : object
        A real number of Python or NumPy; a bool or a string is none, and a NaN never is allowed.
    low, high : float, optional
        Inclusive bounds.
    above, below : float, optional
        Exclusive bounds.
    finite : bool, default True
        Whether infinities are refused.

    Returns
    -------
    float

    Raises
    ------
    ArgumentTypeError
        If `value` is not a real number.
    ArgumentError
        If it is a NaN, infinite though it must not be, or outside the bounds.

    Examples
    --------
    >>> real("tau", 1, above=0)
    1.0
    >>> real("level", 1.5, above=0, below=1)
    Traceback (most recent call last):
        ...
    bnmc.errors.ArgumentError: level: got 1.5, allowed: a finite real number > 0 and < 1
    """
    kind = "a finite real number" if finite else "a real number or infinity"
    allowed = f"{kind}{_interval(low, high, above, below)}"
    scalar = _unwrapped(value)
    if isinstance(scalar, (bool, np.timedelta64)) or not isinstance(scalar, Real):
        raise ArgumentTypeError(name, value, allowed)
    try:
        number = float(scalar)
    except OverflowError:  # an integer beyond the range of float64
        raise ArgumentError(name, value, allowed) from None
    if (
        math.isnan(number)
        or (finite and math.isinf(number))
        or (low is not None and number < low)
        or (high is not None and number > high)
        or (above is not None and number <= above)
        or (below is not None and number >= below)
    ):
        raise ArgumentError(name, number, allowed)
    return number


def choice(name: str, value: object, known: Iterable[str]) -> str:
    """Return `value` if it is one of the known names.

    Parameters
    ----------
    name : str
        Name of the argument, for the message.
    value : object
        The name to look up.
    known : iterable of str
        The known names.

    Returns
    -------
    str

    Raises
    ------
    ArgumentTypeError
        If `value` is not a string.
    UnknownNameError
        If it is not among the known names; the message proposes the nearest of them.

    Examples
    --------
    >>> choice("norm", "batch", ("batch", "batch-uncentred", "none"))
    'batch'
    """
    names = tuple(known)
    if not isinstance(value, str):
        raise ArgumentTypeError(name, value, ", ".join(names))
    text = str.__str__(value)  # what a class of the user's may say to be equal is not asked
    if text not in names:
        raise UnknownNameError(name, text, names)
    return text


def finite_array(
    name: str, value: object, *, shape: tuple[int | str | EllipsisType, ...]
) -> NDArray[np.floating[Any]]:
    """Return `value` as an array of finite real numbers of a given shape.

    Parameters
    ----------
    name : str
        Name of the argument, for the message.
    value : array_like
        Real numbers of any integer or floating-point type, in any array that `host_array` takes.
    shape : tuple of (int, str or Ellipsis)
        What is expected along each axis: an integer stands for just this length, a name for any
        length >= 1, the same for equal names, and a leading Ellipsis for any number of axes of
        any length.  ``(..., "n", "n")`` is a stack of square matrices.

    Returns
    -------
    ndarray of float32 or float64
        `value` itself where it is such an array (it is then not copied, and may be read-only or
        strided), else a copy: float32 and float64 are kept, all other types become float64.

    Raises
    ------
    ArgumentTypeError
        If `value` is not an array of real numbers.
    ArgumentError
        If it has another shape, or an element that is not finite.

    Examples
    --------
    >>> finite_array("G", [[1, 0], [0, 1]], shape=(..., "n", "n")).dtype
    dtype('float64')
    >>> finite_array("G", [1, 2], shape=(..., "n", "n"))
    Traceback (most recent call last):
        ...
    bnmc.errors.ArgumentError: G: got (2,), allowed: an array of shape (..., n, n)
    """
    array = _real_array(name, value)
    if not _fits(array.shape, shape):
        lengths = ", ".join("..." if axis is ... else str(axis) for axis in shape)
        trailing_comma = "," if len(shape) == 1 else ""
        raise ArgumentError(
            name, array.shape, f"an array of shape ({lengths}{trailing_comma})", _non_empty(array)
        )
    is_finite = np.isfinite(array)
    if not is_finite.all():
        first = tuple(int(i) for i in np.argwhere(~is_finite)[0])
        raise ArgumentError(
            name, float(array[first]), "finite real numbers", f"first at index {first}"
        )
    return array


def result_array(
    name: str, value: object, shape: tuple[int, ...], what: str = "the result"
) -> NDArray[np.float64]:
    """Return the caller's array for a result, which is written to, or raise a typed error."""
    if not isinstance(value, np.ndarray) or value.dtype != np.float64:
        raise ArgumentTypeError(name, value, f"a float64 array for {what}")
    if value.shape != shape or not value.flags.writeable:
        raise ArgumentError(name, value.shape, f"a writable array {shape} for {what}")
    return value


def generator(rng: object) -> np.random.Generator:
    """Return the generator that `rng` stands for (SPEC 7).

    Raises
    ------
    ArgumentTypeError
        If NumPy makes none of it.  A sequence has to be flat: NumPy descends into one that holds
        itself until the process dies.
    """
    try:
        if isinstance(rng, (list, tuple)) and not all(isinstance(n, Integral) for n in rng):
            raise TypeError
        return np.random.default_rng(rng)  # type: ignore[arg-type]
    except MemoryError:
        raise
    except Exception as error:  # whatever a foreign object raises
        allowed = "None, a seed >= 0, a SeedSequence, a BitGenerator or a Generator"
        raise ArgumentTypeError("rng", rng, allowed) from error


def items(name: str, value: object, allowed: str) -> list[Any]:
    """Return what an iterable yields.

    Raises
    ------
    ArgumentTypeError
        If `value` is text, no iterable, or one that fails.
    """
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        raise ArgumentTypeError(name, value, allowed)
    try:
        return list(value)
    except MemoryError:
        raise
    except Exception as error:  # whatever iterating over a foreign object raises
        raise ArgumentTypeError(name, value, allowed) from error


def _unwrapped(value: object) -> object:
    """Take a number out of an array without axes."""
    return value[()] if isinstance(value, np.ndarray) and value.ndim == 0 else value


def host_array(name: str, value: Any, allowed: str = "an array of real numbers") -> NDArray[Any]:
    """Return what may be an array as one of NumPy, without a copy where the memory is the host's.

    Parameters
    ----------
    name : str
        Name of the argument, for the message.
    value : array_like
        What `numpy.asarray` takes, or has ``__dlpack__``; an array of a GPU is copied to the host.
    allowed : str, optional
        For the message.

    Returns
    -------
    ndarray
        Of any dtype; of objects for what is no array.

    Raises
    ------
    ArgumentTypeError
        If it is a ragged sequence, its library refuses to show it, or it fails to become an array.

    Examples
    --------
    >>> values = np.eye(2)
    >>> np.shares_memory(host_array("a", memoryview(values)), values)
    True
    """
    if is_device_array(value):
        copy: NDArray[Any] = to_host(name, value)
        return copy
    try:
        if hasattr(value, "__dlpack__") and not hasattr(value, "__array__"):
            return np.from_dlpack(value)
        return np.asarray(value)
    except (MemoryError, ArgumentTypeError):
        raise
    except (TypeError, ValueError):  # a ragged sequence
        raise ArgumentTypeError(name, value, allowed) from None
    except Exception as error:  # a tensor that needs a gradient, or whatever an object raises
        raise ArgumentTypeError(name, value, allowed, str(error)) from error


def _real_array(name: str, value: object) -> NDArray[np.floating[Any]]:
    allowed = "an array of real numbers"
    array = host_array(name, value)
    if array.dtype.kind not in "fiu":
        raise ArgumentTypeError(name, value, allowed, f"its dtype is {array.dtype}")
    if array.dtype in (np.float32, np.float64):
        return array
    # What exceeds float64 is infinite, and reported as such; so are signalling NaNs.
    with np.errstate(over="ignore", invalid="ignore"):
        return array.astype(np.float64)


def _fits(actual: tuple[int, ...], expected: tuple[int | str | EllipsisType, ...]) -> bool:
    if expected and expected[0] is ...:
        expected = expected[1:]
        actual = actual[max(len(actual) - len(expected), 0) :]
    if len(actual) != len(expected):
        return False
    lengths: dict[str, int] = {}
    for length, axis in zip(actual, expected, strict=True):
        if isinstance(axis, str):
            if length < 1 or lengths.setdefault(axis, length) != length:
                return False
        elif length != axis:
            return False
    return True


def _non_empty(array: NDArray[Any]) -> str:
    return "no axis may be empty" if array.size == 0 else ""


def _interval(
    low: float | None,
    high: float | None,
    above: float | None = None,
    below: float | None = None,
) -> str:
    bounds = [
        f"{sign} {bound}"
        for sign, bound in ((">=", low), (">", above), ("<=", high), ("<", below))
        if bound is not None
    ]
    return f" {' and '.join(bounds)}" if bounds else ""
