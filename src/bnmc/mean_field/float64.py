"""The array type of this package, the rounding unit, and the last check of a result's error."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from bnmc.errors import PartialEstimateError

FloatArray = NDArray[np.float64]

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
