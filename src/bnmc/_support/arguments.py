"""Checks of arguments: each returns the value in its canonical type, or raises a typed error."""

from __future__ import annotations

import math
import re
import secrets
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from numbers import Integral, Real
from types import EllipsisType
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bnmc._support.device_arrays import is_device_array, to_host
from bnmc.errors import ArgumentError, ArgumentTypeError, UnknownNameError

T = TypeVar("T")

#: The names of the floating-point precisions.
_PRECISIONS = ("float64", "float32")


class _Bounds(NamedTuple):
    """An interval with ends that belong to it or not; None is no end, and NaN is in none."""

    low: float | None
    high: float | None
    above: float | None = None
    below: float | None = None
    finite: bool = False

    def hold(self, number: float) -> bool:
        """Return whether a number is in the interval, and finite if it must be."""
        return (
            number == number
            and not (self.finite and math.isinf(number))
            and (self.low is None or number >= self.low)
            and (self.high is None or number <= self.high)
            and (self.above is None or number > self.above)
            and (self.below is None or number < self.below)
        )

    def __str__(self) -> str:
        ends = ((">=", self.low), (">", self.above), ("<=", self.high), ("<", self.below))
        bounds = [f"{sign} {end}" for sign, end in ends if end is not None]
        return f" {' and '.join(bounds)}" if bounds else ""


@contextmanager
def _foreign(name: str, value: object, allowed: str) -> Iterator[None]:
    """Raise `ArgumentTypeError` for whatever error an object of the caller raises."""
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:
        raise ArgumentTypeError(name, value, allowed) from error


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
    >>> from bnmc._support.arguments import instance
    >>> instance("executor", 3, list, "a list")
    Traceback (most recent call last):
        ...
    bnmc.errors.ArgumentTypeError: executor: got 3, allowed: a list
    """
    if not isinstance(value, kind):
        raise ArgumentTypeError(name, value, allowed)
    return value


def integer(
    name: str, value: object, *, low: int | None = None, high: int | None = None, hint: str = ""
) -> int:
    """Return `value` as a Python integer in [low, high].

    Parameters
    ----------
    name : str
        Name of the argument, for the message.
    value : object
        A Python or NumPy integer. A bool raises, and so does 3.0.
    low, high : int, optional
        Inclusive bounds.
    hint : str, default ""
        The reason of the bounds, for the message.

    Returns
    -------
    int

    Raises
    ------
    ArgumentTypeError
        If `value` is not an integer.
    ArgumentError
        If `value` is outside the bounds.

    Examples
    --------
    >>> import numpy as np
    >>> from bnmc._support.arguments import integer
    >>> integer("width", np.int64(3), low=1)
    3
    """
    if type(value) is int and (low is None or value >= low) and (high is None or value <= high):
        return value  # in a tenth of the time
    bounds = _Bounds(low, high)
    allowed = f"an integer{bounds}"
    number = int(_scalar(name, value, Integral, allowed))
    if not bounds.hold(number):
        raise ArgumentError(name, number, allowed, hint)
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
        A real number of Python or NumPy. A bool, a string or a NaN raises.
    low, high : float, optional
        Inclusive bounds.
    above, below : float, optional
        Exclusive bounds.
    finite : bool, default True
        Whether an infinity raises.

    Returns
    -------
    float

    Raises
    ------
    ArgumentTypeError
        If `value` is not a real number.
    ArgumentError
        If `value` is NaN, outside the bounds, or infinite although `finite` is set.

    Examples
    --------
    >>> from bnmc._support.arguments import real
    >>> real("tau", 1, above=0)
    1.0
    >>> real("level", 1.5, above=0, below=1)
    Traceback (most recent call last):
        ...
    bnmc.errors.ArgumentError: level: got 1.5, allowed: a finite real number > 0 and < 1
    """
    bounds = _Bounds(low, high, above, below, finite)
    if type(value) is float and bounds.hold(value):
        return value
    allowed = f"{'a finite real number' if finite else 'a real number or infinity'}{bounds}"
    scalar = _scalar(name, value, Real, allowed)
    try:
        number = float(scalar)
    except OverflowError:  # an integer beyond the range of float64
        raise ArgumentError(name, value, allowed) from None
    if not bounds.hold(number):
        raise ArgumentError(name, number, allowed)
    return number


def choice(name: str, value: object, allowed: Iterable[str]) -> str:
    """Return `value` if it is one of some names.

    Parameters
    ----------
    name : str
        Name of the argument, for the message.
    value : object
        The name to look up.
    allowed : iterable of str
        The names.

    Returns
    -------
    str

    Raises
    ------
    ArgumentTypeError
        If `value` is not a string.
    UnknownNameError
        If `value` is not one of the names. The message suggests the nearest one.

    Examples
    --------
    >>> from bnmc._support.arguments import choice
    >>> choice("norm", "batch", ("batch", "batch-uncentred", "none"))
    'batch'
    """
    names = tuple(allowed)
    if not isinstance(value, str):
        raise ArgumentTypeError(name, value, ", ".join(names))
    text = str.__str__(value)  # a subclass may define an equality of its own
    if text not in names:
        raise UnknownNameError(name, text, names)
    return text


def precision(dtype: object) -> str:
    """Return the name of a floating-point precision, "float64" or "float32".

    Parameters
    ----------
    dtype : dtype_like
        Value of the argument `dtype`.

    Returns
    -------
    {"float64", "float32"}

    Raises
    ------
    ArgumentTypeError
        If NumPy makes no dtype of it.
    UnknownNameError
        If it is another dtype.

    Examples
    --------
    >>> import numpy as np
    >>> from bnmc._support.arguments import precision
    >>> precision(np.float32)
    'float32'
    """
    if type(dtype) is str and dtype in _PRECISIONS:
        return dtype
    with _foreign("dtype", dtype, "'float64' or 'float32'"):
        name = np.dtype(dtype).name  # type: ignore[call-overload]
    if name not in _PRECISIONS:  # float16 is no misspelling of float64
        raise UnknownNameError("dtype", name, _PRECISIONS, "bnmc computes in these precisions only")
    return name


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
        Expected length of each axis. An integer is that length. A name is any length >= 1, and
        equal names are equal lengths. A leading Ellipsis is any number of axes of any length, so
        ``(..., "n", "n")`` is a stack of square matrices.

    Returns
    -------
    ndarray of float32 or float64
        `value` itself if it is such an array, possibly read-only or strided. Otherwise a copy, in
        float64 unless `value` is float32.

    Raises
    ------
    ArgumentTypeError
        If `value` is not an array of real numbers.
    ArgumentError
        If `value` has another shape, or an element that is not finite.

    Examples
    --------
    >>> from bnmc._support.arguments import finite_array
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
        hint = "no axis may be empty" if array.size == 0 else ""
        allowed = f"an array of shape ({lengths}{trailing_comma})"
        raise ArgumentError(name, array.shape, allowed, hint)
    is_finite = np.isfinite(array)
    if not is_finite.all():
        first = tuple(int(i) for i in np.argwhere(~is_finite)[0])
        raise ArgumentError(
            name, float(array[first]), "finite real numbers", f"first at index {first}"
        )
    return array


def returned(name: str, value: object, shape: tuple[int, ...], what: str) -> NDArray[np.float64]:
    """Return what a function of the caller returned as an array of real numbers of a shape.

    Parameters
    ----------
    name : str
        Name of the argument with the function, for the message.
    value : array_like
        The returned value.
    shape : tuple of int
        Shape that it should have.
    what : str
        The function and its verb in words, for the message.

    Returns
    -------
    ndarray of float64
        A copy, whose numbers need not be finite.

    Raises
    ------
    ArgumentTypeError
        If `value` is not an array of real numbers.
    ArgumentError
        If `value` has another shape.
    """
    array, allowed = np.asarray(value), f"{what} real numbers of shape {shape}"
    if array.dtype.kind not in "biuf":
        raise ArgumentTypeError(name, value, allowed)
    if array.shape != shape:
        raise ArgumentError(name, array.shape, allowed)
    return array.astype(np.float64)


def result_array(
    name: str, value: object, shape: tuple[int, ...], what: str = "the result"
) -> NDArray[np.float64]:
    """Return an array of the caller that receives a result.

    Parameters
    ----------
    name : str
        Name of the argument, for the message.
    value : object
        A writable float64 array.
    shape : tuple of int
        Shape of the result.
    what : str, default "the result"
        The result in words, for the message.

    Returns
    -------
    ndarray of float64
        `value` itself.

    Raises
    ------
    ArgumentTypeError
        If `value` is not a float64 array, or has a mask.
    ArgumentError
        If `value` has another shape or is read-only, or two of its elements may share memory.
    """
    if not isinstance(value, np.ndarray) or value.dtype != np.float64 or _is_masked(value):
        raise ArgumentTypeError(name, value, f"a float64 array for {what}")
    if value.shape != shape or not value.flags.writeable:
        raise ArgumentError(name, value.shape, f"a writable array {shape} for {what}")
    if value.size and not _is_injective(value):
        allowed = f"an array for {what} with one place in memory for each element"
        raise ArgumentError(name, f"strides {value.strides}", allowed)
    return value


class Key(int):
    """The 64-bit key of a run: as the argument `rng`, it repeats the run, where a seed is hashed.

    Its text, ``"key:"`` and 16 hexadecimal digits, is a value of `rng` and ``--seed`` too.

    Examples
    --------
    >>> from bnmc._support.arguments import Key
    >>> Key(3), Key.of("key:0000000000000003") == 3
    (key:0000000000000003, True)
    """

    @classmethod
    def of(cls, text: str) -> Key:
        """Return the key of a text; raise `ValueError` if it is none."""
        if not re.fullmatch("key:[0-9a-f]{16}", text):
            raise ValueError(f'{text!r}: expected "key:" and 16 hexadecimal digits')
        return cls(text[4:], 16)

    def __repr__(self) -> str:
        return f"key:{int(self):016x}"

    #: The text, which documents contain.
    as_json = __repr__


def generator(rng: object) -> np.random.Generator:
    """Return the generator that `numpy.random.default_rng` makes of `rng` (SPEC 7).

    Parameters
    ----------
    rng : None, int, sequence of int, Key, str, SeedSequence, BitGenerator or Generator
        Value of the argument `rng`. A string is the text of a key.

    Raises
    ------
    ArgumentTypeError
        If NumPy makes no generator of `rng`.
    """
    allowed = "None, a seed >= 0, a key, a SeedSequence, a BitGenerator or a Generator"
    with _foreign("rng", rng, allowed):
        if isinstance(rng, str):
            rng = Key.of(rng)
        # NumPy descends into nested sequences; one that contains itself would crash the process.
        if isinstance(rng, (list, tuple)) and not all(isinstance(n, Integral) for n in rng):
            raise TypeError
        return np.random.default_rng(rng)  # type: ignore[arg-type]


def items(name: str, value: object, allowed: str) -> list[Any]:
    """Return the items of an iterable.

    Raises
    ------
    ArgumentTypeError
        If `value` is a string, is no iterable, or raises an error in iteration.
    """
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        raise ArgumentTypeError(name, value, allowed)
    with _foreign(name, value, allowed):
        return list(value)


def host_array(name: str, value: Any, allowed: str = "an array of real numbers") -> NDArray[Any]:
    """Return an array of any library as a NumPy array, without a copy if it is in host memory.

    Parameters
    ----------
    name : str
        Name of the argument, for the message.
    value : array_like
        Any argument of `numpy.asarray`, or an object with ``__dlpack__``. An array in the memory of
        a GPU is copied to the host.
    allowed : str, default "an array of real numbers"
        The allowed values in words, for the message.

    Returns
    -------
    ndarray
        Of any dtype. An object that is no array becomes an array of objects.

    Raises
    ------
    ArgumentTypeError
        If `value` is a ragged sequence, or the conversion raises an error.  If elements are masked:
        only the mask says that their numbers have no meaning.

    Examples
    --------
    >>> import numpy as np
    >>> from bnmc._support.arguments import host_array
    >>> values = np.eye(2)
    >>> np.shares_memory(host_array("a", memoryview(values)), values)
    True
    """
    if _is_masked(value):
        raise ArgumentTypeError(name, value, allowed, "elements are masked: fill or drop them")
    if is_device_array(value):
        return to_host(name, value)
    try:
        if hasattr(value, "__dlpack__") and not hasattr(value, "__array__"):
            return np.from_dlpack(value)
        return np.asarray(value)
    except (MemoryError, ArgumentTypeError):
        raise
    except (TypeError, ValueError):  # a ragged sequence
        raise ArgumentTypeError(name, value, allowed) from None
    except Exception as error:  # a tensor that needs a gradient; a foreign object raises anything
        raise ArgumentTypeError(name, value, allowed, str(error)) from error


def _is_masked(value: object, depth: int = 64) -> bool:
    """Whether an array, or one in nested sequences, has masked elements.

    Arrays have at most 64 axes.
    """
    if isinstance(value, (list, tuple)):
        # Numbers decide at once: they are all that long sequences contain.
        others = (item for item in value if not isinstance(item, (int, float)))
        return depth > 0 and any(_is_masked(item, depth - 1) for item in others)
    # No masked array exists until this module is imported.
    module = sys.modules.get("numpy.ma")
    return module is not None and isinstance(value, module.MaskedArray) and bool(value.mask.any())


def _is_injective(array: NDArray[Any]) -> bool:
    """Whether elements have different places in memory, as in every view by slices or transposes.

    Arrays whose axes are interleaved without an overlap count as overlapping.
    """
    extent = array.itemsize
    axes = zip(array.strides, array.shape, strict=True)
    for stride, length in sorted((abs(stride), length) for stride, length in axes if length > 1):
        if stride < extent:
            return False
        extent += stride * (length - 1)
    return True


def _scalar(name: str, value: object, kind: type[Any], allowed: str) -> Any:
    """Return a number of a kind, which may be that of an array without axes, or raise."""
    scalar = value[()] if isinstance(value, np.ndarray) and value.ndim == 0 else value
    if isinstance(scalar, (bool, np.timedelta64)) or not isinstance(scalar, kind):
        raise ArgumentTypeError(name, value, allowed)
    return scalar


def _real_array(name: str, value: object) -> NDArray[np.floating[Any]]:
    allowed = "an array of real numbers"
    array = host_array(name, value)
    if array.dtype.kind not in "fiu":
        raise ArgumentTypeError(name, value, allowed, f"its dtype is {array.dtype}")
    if array.dtype in (np.float32, np.float64):
        return array
    # Numbers beyond the range of float64 become infinite, and are reported as not finite.
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


def draw_key(rng: Any) -> Key:
    """Draw a 64-bit key.

    Parameters
    ----------
    rng : None, int, sequence of int, Key, str, SeedSequence, BitGenerator or Generator
        A key, or its text, is returned. Otherwise any argument of `numpy.random.default_rng`
        (SPEC 7). A generator advances by one draw. For None the key comes from the operating
        system, as the seed of NumPy's generator would.

    Returns
    -------
    Key
        Uniform on 0, …, 2**64 − 1.

    Raises
    ------
    ArgumentTypeError
        If `rng` is of another type.

    Examples
    --------
    >>> import numpy as np
    >>> from bnmc._support.arguments import draw_key
    >>> draw_key(0) == draw_key(np.random.default_rng(0)) == draw_key(draw_key(0))
    True
    """
    if rng is None:
        return Key(secrets.randbits(64))
    words = generator(rng)
    if isinstance(rng, (Key, str)):
        return Key.of(str(rng))
    return Key(words.integers(0, 2**64, dtype=np.uint64))


# --- arrays of real numbers and integers, and shapes that broadcast

Float64Array = NDArray[np.float64]

#: An argument of real numbers: one, or an array of any shape.
Reals = ArrayLike

#: Above this limit float64 no longer represents every integer.
LARGEST_INTEGER = 2**53


def real_numbers(
    name: str,
    value: ArrayLike,
    *,
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    below: float | None = None,
) -> Float64Array:
    """Return an array of finite real numbers as float64.

    Parameters
    ----------
    name : str
        Name of the argument, for the message.
    value : array_like
        Real numbers, of any shape.
    low, high : float, optional
        Smallest and largest allowed number.
    above, below : float, optional
        Numbers have to be above and below these.

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
    >>> from bnmc._support.arguments import real_numbers
    >>> real_numbers("tau", [0.0, 1.0], low=0)
    array([0., 1.])
    """
    array = finite_array(name, value, shape=(...,)).astype(np.float64, copy=False)
    bounds = _Bounds(low, high, above, below)
    if array.size and not (bounds.hold(array.min()) and bounds.hold(array.max())):
        wrong = next(number for number in array.flat if not bounds.hold(number))
        raise ArgumentError(name, float(wrong), f"real numbers{bounds}")
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
    >>> from bnmc._support.arguments import integers
    >>> integers("width", [1, 1000])
    array([   1., 1000.])
    """
    limit = LARGEST_INTEGER if high is None else high
    allowed = f"integers in {low} … {'2⁵³' if high is None else high}"
    array = real_numbers(name, value) if accept_floats else host_array(name, value, allowed)
    if not accept_floats and array.dtype.kind not in "iu":
        raise ArgumentTypeError(name, value, allowed)
    wrong = array[(array < low) | (array > limit) | (array != np.floor(array))]
    if wrong.size:
        raise ArgumentError(name, wrong[0].item(), allowed)
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
        shapes = {name: str(array.shape) for name, array in arrays.items() if array.ndim}
        allowed = f"shapes of {', '.join(shapes)} that broadcast"
        raise ArgumentError([*shapes][-1], ", ".join(shapes.values()), allowed) from None


def checked(
    checks: Mapping[str, Callable[[str, ArrayLike], Float64Array]], **given: ArrayLike
) -> tuple[Float64Array, ...]:
    """Return the arguments, given by name, as arrays of one shape.

    Parameters
    ----------
    checks : mapping of str to callable
        The check of an argument by its name, such as `real_numbers`.  Other arguments are arrays.
    **given : array_like

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If a check raises it, or the shapes do not broadcast.

    Examples
    --------
    >>> from bnmc._support.arguments import checked, integers
    >>> checked({"width": integers}, width=[1, 2], tau=0.5)
    (array([1., 2.]), array([0.5, 0.5]))
    """
    arrays = {
        name: checks[name](name, value) if name in checks else np.asarray(value)
        for name, value in given.items()
    }
    return broadcast(**arrays)
