"""Points at which an activation may have a kink, a jump, a singularity or a narrow feature.

No quadrature sees a bump of width 1e-6 between its nodes.  Two searches find most of them.
`constants` reads the numbers of the function's code: a kink or a bump is usually where an argument
meets one of them.  `anomalies` samples the function on a fine grid.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from functools import lru_cache
from itertools import product

import numpy as np

from bnmc.chain.activations import Activation
from bnmc.mean_field.float64 import EPSILON, FloatArray
from bnmc.mean_field.quadrature.resolution import resolve

__all__ = ["anomalies", "constants", "panels_of"]

# Numbers of a function that are combined, and those of an array that are read, at most.
_MOST_NUMBERS, _MOST_ENTRIES = 12, 64

# The grid of `anomalies`: (start, end, distance).  A feature of height H and width w at x costs at
# most about H² w times the density at x, so far from 0 the grid may be coarser.
_GRID = ((-4.0, -2.0, 2e-5), (-2.0, 2.0, 8e-6), (2.0, 4.0, 2e-5))

# Points of the grid per evaluation, and per stretch with its own typical second difference.
_CHUNK, _STRETCH = 1 << 15, 1 << 10

# A second difference is an anomaly if it exceeds the mean of its stretch by this factor.
_OUTSTANDING = 40.0

# A function with more anomalies than this is rough everywhere: the panels decide.
_MOST_ANOMALIES = 64


def panels_of(activation: Activation, limit: float) -> FloatArray:
    """Return panels of [−limit, limit] on which an activation is a polynomial to rounding.

    `resolve` makes them, with the candidates of this module.

    Raises
    ------
    UnresolvedError
        If the activation is not finite, or needs too many panels.
    """
    return resolve(
        activation, limit, activation.kinks, constants(activation), anomalies(activation)
    )


def constants(activation: Activation) -> FloatArray:
    """Return 0, and the numbers of the code of an activation, their sums, ratios and negatives.

    Returns
    -------
    ndarray of float64
        Increasing.  Numbers of closures, defaults, globals and called functions are included.
    """
    if activation.builtin:
        return np.array(activation.kinks)
    found = {abs(number) for number in _numbers(activation.scalar("float64"), set())}
    numbers = sorted(found - {0.0})[:_MOST_NUMBERS]
    points = {0.0, *numbers}
    for a, b in product(numbers, numbers):
        points |= {a + b, abs(a - b), a / b, a * b}
    values = np.array(sorted(points))
    values = values[np.isfinite(values)]
    return np.unique(np.concatenate([-values, values]))


def _numbers(function: object, seen: set[int]) -> Iterator[float]:
    """Yield the finite numbers that a function refers to."""
    function = getattr(function, "py_func", function)
    if not isinstance(function, types.FunctionType) or id(function) in seen:
        return
    seen.add(id(function))
    codes = [function.__code__]
    values: list[object] = [
        *(function.__defaults__ or ()),
        *(function.__kwdefaults__ or {}).values(),
    ]
    while codes:
        code = codes.pop()
        codes += [inner for inner in code.co_consts if isinstance(inner, types.CodeType)]
        values += code.co_consts
        values += [function.__globals__[n] for n in code.co_names if n in function.__globals__]
    for cell in function.__closure__ or ():
        try:
            values.append(cell.cell_contents)
        except ValueError:  # a variable that has no value yet
            continue
    for value in values:
        yield from _numbers_of(value, seen)


def _numbers_of(value: object, seen: set[int]) -> Iterator[float]:
    """Yield the finite numbers of one value that a function refers to."""
    if isinstance(value, bool | np.bool_):
        return
    if isinstance(value, int | float | np.integer | np.floating):
        if abs(number := float(value)) < 1e100:
            yield number
    elif isinstance(value, np.ndarray) and value.dtype.kind in "iuf":
        yield from (x for x in value.ravel()[:_MOST_ENTRIES].tolist() if np.isfinite(x))
    elif isinstance(value, tuple | list):
        for item in value[:_MOST_ENTRIES]:
            yield from _numbers_of(item, seen)
    elif hasattr(value, "py_func") or isinstance(value, types.FunctionType):
        module = str(getattr(value, "__module__", ""))
        if module.partition(".")[0] not in {"numpy", "scipy", "numba", "math"}:
            yield from _numbers(value, seen)


@lru_cache(maxsize=64)
def anomalies(activation: Activation) -> tuple[tuple[float, float], ...]:
    """Return places on [−4, 4] where a fine grid shows a sudden change, with their widths.

    The grid has 700,000 points: 8e-6 apart on [−2, 2], 2e-5 apart elsewhere.  It does not show a
    feature that is zero at all of them.  For a named activation the result is empty.

    Returns
    -------
    tuple of (float, float)
        Place and distance of the points of the grid, by increasing place.
    """
    if activation.builtin:
        return ()
    found: list[tuple[float, float]] = []
    for start, end, distance in _GRID:
        count = round((end - start) / distance)
        for first in range(0, count, _CHUNK):
            # Chunks overlap by two points.  The offset is not a round number, as kinks often are.
            index = np.arange(first, min(first + _CHUNK, count) + 2)
            x = start + distance * (index - 0.381966)
            found += [(float(x[i]), distance) for i in _outstanding(activation(x))]
            if len(found) > _MOST_ANOMALIES:
                return ()
    return tuple(found)


def _outstanding(values: FloatArray) -> list[int]:
    """Return the indices of one point in each stretch whose second difference stands out."""
    bend = np.abs(np.diff(values, 2))
    noise = 16.0 * EPSILON * np.abs(values).max()
    if not bend.max() > noise:
        return []
    size = min(_STRETCH, bend.size)
    count = bend.size // size
    # The last stretch overlaps the one before it.
    rows = np.concatenate([bend[: count * size].reshape(count, size), bend[None, -size:]])
    at, most, total = rows.argmax(axis=1), rows.max(axis=1), rows.sum(axis=1)
    starts = np.append(np.arange(count) * size, bend.size - size)
    stands = (most > noise) & (most * size > min(_OUTSTANDING, 0.25 * size) * (total - most))
    return sorted({int(i) for i in (starts + at + 1)[stands]})
