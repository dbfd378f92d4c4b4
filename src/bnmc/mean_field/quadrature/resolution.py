"""Panels on which a function is a polynomial to rounding, whatever corners and jumps it has.

The activation of a user may have corners and jumps that nobody declared.  `resolve` cuts an
interval into panels such that the polynomial of degree 19 through 20 Gauss-Legendre nodes of each
panel reproduces the function there, to a relative error of about 1e-13.  `slope` evaluates the
derivative.

No quadrature sees a bump of width 1e-6 between its nodes, so `resolve` takes candidates for kinks,
jumps, singularities and narrow features.  `constants` reads the numbers of the function's code: a
kink or a bump is usually where an argument meets one of them.  `sudden_changes` samples the
function on a fine grid.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from itertools import groupby, product

import numpy as np
from numpy.polynomial import legendre

from bnmc.chain.activations import Activation
from bnmc.mean_field.float64 import EPSILON, TINY, FloatArray
from bnmc.mean_field.quadrature.panels import Table, gauss_legendre, panel_points

#: A function that maps a float64 array elementwise.
Function = Callable[[FloatArray], FloatArray]

#: Panels of at most this width resolve the normal density and those of the sphere.
WIDEST_PANEL = 1.5

# A panel is resolved if its last three Legendre coefficients are at most _RESOLVED times the
# largest value of the function, ...
_RESOLVED = 1e-13
_RESOLVE_ORDER = 20

# ... and if the polynomial has a relative error of at most _RESOLVED_AT_RIM at the distance _RIM,
# in half lengths of the panel, from its ends.
_RIM, _RESOLVED_AT_RIM = 1e-9, 1e-12

# Halvings of a panel, and panels of an interval, at most.
_DEEPEST = 46
_MOST_PANELS = 400

# If a panel was halved at least this often, it probably contains an undeclared kink.
_SUSPECT_DEPTH = 8

# Searches for features between the nodes, at most.
_MOST_ROUNDS = 6

# The polynomial of a panel misses a feature if the function differs by more than _MISSED times the
# largest value at a probe.  Panels of at most _SHORTEST times the interval are not probed.
_MISSED, _SHORTEST = 3e-12, 1e-12

# Panels that a singular point may cost if it becomes an end of panels.
_MORE_PANELS = 48

# Distances of the probes from a candidate, as powers of 4: down to 4e-16.
_RADII = 4.0 ** -np.arange(27.0)

# Nodes per panel for derivatives.
_SLOPE_ORDER = 24

# Points closer than this fraction of the interval are the same.
_MERGE = 1e-14


class UnresolvedError(ArithmeticError):
    """The function is not finite, or needs too many panels: noise, or ever faster oscillations."""

    allowed = "a function that quadrature resolves"


def resolve(
    function: Function,
    limit: float,
    kinks: Iterable[float],
    points: Iterable[float] = (),
    places: Iterable[tuple[float, float]] = (),
) -> FloatArray:
    """Cut [−limit, limit] into panels on which a function is a polynomial to rounding.

    Parameters
    ----------
    function : callable
        Maps a float64 array elementwise.
    limit : float
        Half length of the interval, > 0.
    kinks : iterable of float
        Points where the function or a derivative jumps.  Points outside of the interval are
        ignored.  Kinks that are not listed are found, at the cost of more evaluations.
    points : iterable of float
        Points where the function may have a kink or a narrow feature; it is sampled around them at
        all distances.
    places : iterable of (float, float)
        Places where samples of the function show a sudden change, and the distance of the samples.

    Returns
    -------
    ndarray of float64, shape (panels + 1,)
        Ends of the panels, increasing, from −limit to limit.

    Raises
    ------
    UnresolvedError
        If the function is not finite on the interval, or needs more than 400 panels.
    """
    inside = sorted({float(point) for point in points if -limit < point < limit})
    seen = [place for place in places if abs(place[0]) + 2.0 * place[1] < limit]
    mesh = _mesh(limit, {float(kink) for kink in kinks if -limit < kink < limit})
    for _ in range(_MOST_ROUNDS):
        breaks, runs = _bisect(function, mesh)
        if runs:
            # If panels shrink towards a point, that point is a kink or a singularity.  With a kink
            # as an end of panels no small panels are needed; a singularity needs them in any case.
            suspects = [_placed(function, low, high, inside) for low, high in runs]
            retried, _ = _bisect(function, merged(np.concatenate([mesh, suspects])))
            if retried.size <= breaks.size + _MORE_PANELS * len(suspects):
                breaks = retried
        missed = _missed(function, breaks, inside, seen)
        if not missed:
            break
        mesh = merged(np.concatenate([breaks, missed]))
    return breaks


def _placed(function: Function, low: float, high: float, points: Iterable[float] = ()) -> float:
    """Return the point of a short interval at which a function jumps or has a kink.

    A jump is found to the last bit, a kink to the rounding error of the function over the jump of
    its derivative.  If one of `points` is in the interval, it is returned.
    """
    slack = 4.0 * np.spacing(max(abs(low), abs(high)))
    for point in points:
        if low - slack <= point <= high + slack:
            return point
    low, high = _zoomed(function, low, high)
    reach = max(high - low, 1e-8)
    x = np.array([low - reach, low, high, high + reach])
    before, left, right, after = evaluate(function, x)
    slopes = (left - before) / (x[1] - x[0]), (after - right) / (x[3] - x[2])
    noise = 64.0 * EPSILON * max(abs(left), abs(right))
    if abs(right - left) > 8.0 * (abs(slopes[0]) + abs(slopes[1])) * (high - low) + noise:
        return _place_of_jump(function, low, high, left, right)
    bend = slopes[0] - slopes[1]
    if not abs(bend) * (high - low) > noise:
        return 0.5 * (low + high)
    # Where the straight lines from both sides meet.
    return float(np.clip(low + (right - left - slopes[1] * (high - low)) / bend, low, high))


def _zoomed(function: Function, low: float, high: float) -> tuple[float, float]:
    """Return a shorter interval around the largest second difference, down to rounding."""
    low, high = low - (high - low), high + (high - low)
    while (high - low) > 64.0 * np.spacing(max(abs(low), abs(high))):
        x = np.linspace(low, high, 33)
        values = evaluate(function, x)
        bend = np.abs(np.diff(values, 2))
        index = int(np.argmax(bend))
        # A smooth function has nearly equal second differences.
        if bend[index] <= 64.0 * EPSILON * np.abs(values).max() or bend[index] < 3.0 * bend.mean():
            break
        low, high = float(x[max(index - 1, 0)]), float(x[min(index + 3, 32)])
    return low, high


def _place_of_jump(function: Function, low: float, high: float, left: float, right: float) -> float:
    """Return the first number beyond the largest change between `low` and `high`."""
    while low < (middle := 0.5 * (low + high)) < high:
        value = float(evaluate(function, np.array([middle]))[0])
        if abs(value - left) > abs(right - value):
            high, right = middle, value
        else:
            low, left = middle, value
    return high


def slope(
    function: Function, points: FloatArray, breaks: FloatArray, order: int = _SLOPE_ORDER
) -> FloatArray:
    """Return the derivative at points of any shape, from the polynomials on resolved panels.

    The polynomials go through min(order, 24) nodes of each panel.
    """
    rule = gauss_legendre(min(order, _SLOPE_ORDER))
    nodes, half = panel_points(breaks, rule.nodes)
    slopes = evaluate(function, nodes) @ rule.differentiate.T / half
    return Table.through(breaks, slopes[..., None])(points.ravel())[0].reshape(points.shape)


def merged(points: FloatArray) -> FloatArray:
    """Sort points and drop each one within rounding of the point before it; keep the last one."""
    points = np.sort(points)
    keep = np.concatenate([[True], np.diff(points) > _MERGE * (points[-1] - points[0])])
    distinct: FloatArray = points[keep]
    distinct[-1] = points[-1]
    return distinct


def _missed(
    function: Function, breaks: FloatArray, points: list[float], places: list[tuple[float, float]]
) -> list[float]:
    """Return points that cut panels whose polynomials miss a feature of the function.

    The probes are close to both ends of each panel, around all `points`, and at all `places`.  In
    each panel, the largest miss gets cuts at distances from it that grow by the factor 4.
    """
    low, half = breaks[:-1], 0.5 * np.diff(breaks)
    near, ends = np.geomspace(1e-15, 0.5, 24), breaks[:, None]
    length, centre = 2.0 * half[:, None], np.array(points)[:, None]
    place, distance = np.reshape(places, (-1, 2)).T[:, :, None]
    # Anchors, shape (anchors, 1), and the probes that belong to each.
    groups = [(ends[:-1], ends[:-1] + length * near), (ends[1:], ends[:-1] + length * (1.0 - near))]
    groups += [(centre, centre + sign * _RADII) for sign in (-1.0, 1.0)]
    groups.append((place, place + distance * np.arange(-2.0, 3.0)))
    pairs = [np.stack(np.broadcast_arrays(*group)).reshape(2, -1) for group in groups]
    anchor, x = np.concatenate(pairs, axis=1)
    panel = np.clip(np.searchsorted(breaks, x, "right") - 1, 0, half.size - 1)
    # A probe at the very end of a panel may belong to the next one, across a jump.
    inside = (x > low[panel]) & (x < breaks[panel + 1])
    inside &= half[panel] > _SHORTEST * (breaks[-1] - breaks[0])
    x, anchor, panel = x[inside], anchor[inside], panel[inside]
    if x.size == 0:
        return []
    nodes, _, to_coefficients, _ = gauss_legendre(_RESOLVE_ORDER)
    values = evaluate(function, panel_points(breaks, nodes)[0])
    local = (x - low[panel]) / half[panel] - 1.0
    basis = legendre.legvander(local, _RESOLVE_ORDER - 1)
    expected = np.einsum("xk,xk->x", basis, (values @ to_coefficients.T)[panel])
    size = np.maximum(np.abs(values).max(axis=1), _scale(function, breaks[-1]))
    value = evaluate(function, x)
    if not np.all(np.isfinite(value)):
        raise UnresolvedError("the function is not finite everywhere")
    size += _noise(values, low, breaks[1:]) / _MISSED
    miss = np.abs(value - expected) / np.maximum(size, TINY)[panel]
    cuts: set[float] = set()
    for index in np.unique(panel[miss > _MISSED]):
        here = np.flatnonzero((panel == index) & (miss > _MISSED))
        worst = here[np.argmax(miss[here])]
        start = anchor[worst]
        # The closest miss to the same anchor gives the scale of the feature.
        same = here[anchor[here] == start]
        least = max(float(np.abs(x[same] - start).min()), 1e-15 * (1.0 + abs(start)))
        steps = least * 4.0 ** np.arange(-2.0, 28.0)
        around = np.concatenate([[start], start - steps, start + steps])
        cuts |= set(around[(around > low[index]) & (around < breaks[index + 1])].tolist())
    return sorted(cuts)


def _noise(values: FloatArray, low: FloatArray, high: FloatArray) -> FloatArray:
    """Return what the rounding of the nodes changes in the values on each panel."""
    nodes = gauss_legendre(_RESOLVE_ORDER).nodes
    # Multiplied by EPSILON first: differences of large values would overflow.
    steepest = np.abs(np.diff(EPSILON * values, axis=1) / np.diff(nodes)).max(axis=1)
    return np.asarray(8.0 * np.maximum(np.abs(low), np.abs(high)) * steepest / (high - low))


def _scale(function: Function, limit: float) -> float:
    """Return the typical size of the values of a function."""
    return float(np.abs(evaluate(function, np.linspace(-1.0, 1.0, 33) * min(2.0, limit))).max())


def _mesh(limit: float, kinks: set[float]) -> FloatArray:
    # The number of panels is odd, so that 0 is no end of a panel unless it is declared or found
    # to be a kink: `sphere_rule` splits the integration over two coordinates at kinks only.
    count = 2 * int(np.ceil(limit / WIDEST_PANEL - 0.5)) + 1
    grid = np.linspace(-limit, limit, max(count, 1) + 1)
    # Symmetric to the last bit, so that halving the middle panel cuts at 0.
    return merged(np.concatenate([0.5 * (grid - grid[::-1]), sorted(kinks)]))


def _bisect(function: Function, mesh: FloatArray) -> tuple[FloatArray, list[tuple[float, float]]]:
    """Halve panels until the function is resolved on each.

    Returns
    -------
    breaks : ndarray
        Ends of the panels.
    runs : list of (float, float)
        Short intervals towards which panels shrink.
    """
    nodes, _, to_coefficients, _ = gauss_legendre(_RESOLVE_ORDER)
    # A kink between the last node and the end of the panel changes no value at the nodes, so the
    # polynomial is compared with the function near the ends as well.
    rim = np.array([-1.0, 1.0]) * (1.0 - _RIM)
    to_rim = legendre.legvander(rim, _RESOLVE_ORDER - 1) @ to_coefficients
    probes = np.concatenate([nodes, rim])
    low, high = mesh[:-1], mesh[1:]
    scale = _scale(function, float(mesh[-1]))
    leaves: list[tuple[float, float, int]] = []
    for depth in range(_DEEPEST + 1):
        middle, half = 0.5 * (high + low), 0.5 * (high - low)
        probed = evaluate(function, middle[:, None] + half[:, None] * probes)
        if not np.all(np.isfinite(probed)):
            raise UnresolvedError("the function is not finite everywhere")
        values, at_rim = probed[:, : nodes.size], probed[:, nodes.size :]
        tail = np.abs(values @ to_coefficients[-3:].T).max(axis=1)
        miss = np.abs(values @ to_rim.T - at_rim).max(axis=1)
        size = np.maximum(np.abs(values).max(axis=1), scale)
        noise = _noise(values, low, high)
        done = (tail <= _RESOLVED * size + noise) & (miss <= _RESOLVED_AT_RIM * size + noise)
        if depth == _DEEPEST:
            done[:] = True
        leaves += [(float(a), float(b), depth) for a, b in zip(low[done], high[done], strict=True)]
        low, middle, high = low[~done], middle[~done], high[~done]
        if low.size == 0:
            break
        if len(leaves) + 2 * low.size > _MOST_PANELS:
            raise UnresolvedError(f"the function needs more than {_MOST_PANELS} panels")
        low, high = np.concatenate([low, middle]), np.concatenate([middle, high])
    leaves.sort()
    breaks = np.array([leaf[0] for leaf in leaves] + [leaves[-1][1]])
    return breaks, _runs(leaves)


def _runs(leaves: list[tuple[float, float, int]]) -> list[tuple[float, float]]:
    """Return the ends of each run of smallest panels that were halved at least 8 times.

    Parameters
    ----------
    leaves : list of tuple
        Start, end and number of halvings of each panel, in increasing order.
    """
    runs = [list(run) for _, run in groupby(leaves, key=lambda leaf: leaf[2])]
    depths = [0, *(run[0][2] for run in runs), 0]
    return [
        (run[0][0], run[-1][1])
        for run, before, depth, after in zip(runs, depths, depths[1:], depths[2:], strict=False)
        if depth >= _SUSPECT_DEPTH and depth > max(before, after)
    ]


def evaluate(function: Function, points: FloatArray) -> FloatArray:
    """Return the values of a function as float64."""
    return np.asarray(function(points), dtype=np.float64)


# --- candidates for kinks and narrow features

# Numbers of a function that are combined, and those of an array that are read, at most.
_MOST_NUMBERS, _MOST_ENTRIES = 12, 64

# The grid of `sudden_changes`: (start, end, distance).  A feature of height H and width w at x
# costs at most about H² w times the density at x, so far from 0 the grid may be coarser.
_GRID = ((-4.0, -2.0, 2e-5), (-2.0, 2.0, 8e-6), (2.0, 4.0, 2e-5))

# Points of the grid per evaluation, and per stretch with its own typical second difference.
_CHUNK, _STRETCH = 1 << 15, 1 << 10

# A second difference is an anomaly if it exceeds the mean of its stretch by this factor.
_OUTSTANDING = 40.0

# A function with more anomalies than this is rough everywhere: the panels decide.
_MOST_ANOMALIES = 64


def constants(activation: Activation) -> FloatArray:
    """Return 0, and the numbers of the code of an activation, their sums, ratios and negatives.

    Returns
    -------
    ndarray of float64
        Increasing.  Numbers of closures, defaults, globals and called functions are included.
    """
    if activation.builtin:
        return np.array(activation.kinks)
    sizes = {abs(number) for number in _numbers(activation.scalar("float64"), set())}
    numbers = sorted(sizes - {0.0})[:_MOST_NUMBERS]
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
    values: list[object] = list(function.__defaults__ or ())
    values += (function.__kwdefaults__ or {}).values()
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
def sudden_changes(activation: Activation) -> tuple[tuple[float, float], ...]:
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
    places: list[tuple[float, float]] = []
    for start, end, distance in _GRID:
        count = round((end - start) / distance)
        for first in range(0, count, _CHUNK):
            # Chunks overlap by two points.  The offset is not a round number, as kinks often are.
            index = np.arange(first, min(first + _CHUNK, count) + 2)
            x = start + distance * (index - 0.381966)
            places += [(float(x[i]), distance) for i in _outstanding(activation(x))]
            if len(places) > _MOST_ANOMALIES:
                return ()
    return tuple(places)


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
