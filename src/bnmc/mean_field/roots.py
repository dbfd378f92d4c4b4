"""The roots of a function of one number on a grid."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from itertools import pairwise

Function = Callable[[float], float]


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
