"""The numbers of this package: their arrays, rounding, errors, and the roots of functions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from bnmc._support.linalg import binary_scale
from bnmc.errors import PartialEstimateError

FloatArray = NDArray[np.float64]

#: A function of one number.
Function = Callable[[float], float]

#: The distance from 1 to the next float64 number, 2.2e-16.
EPSILON = float(np.finfo(np.float64).eps)

#: The smallest positive normal float64 number.
TINY = float(np.finfo(np.float64).tiny)

_Result = TypeVar("_Result")


def within(
    result: _Result, error: float, rtol: float, what: str, note: str = "", option: str = "rtol"
) -> _Result:
    """Return a result if its error is at most the tolerance; else raise.

    Parameters
    ----------
    result : object
    error, rtol : float
        A NaN counts as an error that is too large.
    what : str
        The least accurate part of the result.
    note : str
        Continues the message: the reason, or the advice.
    option : str
        The argument that is the tolerance.

    Raises
    ------
    PartialEstimateError
        If the error is too large; ``partial`` is the result.
    """
    if error <= rtol:
        return result
    message = f"{what} known to {error:.1e} only, {option} is {rtol:.1e}{note}"
    raise PartialEstimateError(message, result)


def difference(fine: complex, coarse: complex) -> float:
    """Return |fine − coarse|, relative to `fine` if that exceeds 1."""
    return 0.0 if fine == coarse else abs(fine - coarse) / max(1.0, abs(fine))


def standard_error(replicates: FloatArray) -> FloatArray:
    """Return the standard error of the mean over the first axis."""
    unit = binary_scale(replicates, axis=0)
    spread = np.std(replicates / unit, axis=0, ddof=1) / math.sqrt(len(replicates))
    return np.asarray(unit * spread)


def roots(
    function: Function, grid: Iterable[float], xtol: float = 1e-15, *, rising: bool = False
) -> list[float]:
    """Return the points of a grid, and between its points, where a function is 0.

    Two roots between neighbouring points of the grid are not found.  The function may be infinite
    in places; a jump to infinity is no root.  Intervals with a NaN at an end are left out.

    Parameters
    ----------
    function : callable
    grid : iterable of float
        Increasing points.
    xtol : float
        Accuracy of a root, beside the rounding of float64 numbers.
    rising : bool
        Whether to leave out roots behind which the function is not positive.

    Returns
    -------
    list of float
        By increasing value.
    """
    from scipy.optimize import brentq

    values = [(float(point), function(float(point))) for point in grid]
    places = []
    for (low, before), (high, after) in pairwise([*values, (math.inf, math.nan)]):
        if rising and not after > 0.0:
            continue
        if before == 0.0:
            places.append(low)
        elif (before < 0.0 < after) or (after < 0.0 < before):
            ends = _finite(function, low, high, before, after)
            if ends is not None:
                places.append(float(brentq(function, *ends, xtol=xtol)))
    return places


def _finite(
    function: Function, low: float, high: float, before: float, after: float
) -> tuple[float, float] | None:
    """Narrow an interval with different signs at its ends until both values are finite.

    An infinite value has a sign, but no chord.  At a jump one value stays infinite: return None.
    """
    while math.isinf(before) or math.isinf(after):
        middle = 0.5 * (low + high)
        if not low < middle < high:
            return None
        value = function(middle)
        if (value > 0.0) == (after > 0.0):
            high, after = middle, value
        else:
            low, before = middle, value
    return low, high
