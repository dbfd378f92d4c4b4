"""Panels on which a function is a polynomial to rounding, whatever corners and jumps it has.

The activation of a user may have corners and jumps that nobody declared.  `resolve` cuts an
interval into panels such that the polynomial of degree 19 through 20 Gauss-Legendre nodes of each
panel reproduces the function there, to a relative error of about 1e-13.  `jumps` then tells at
which ends of panels the function or a derivative jumps, and `slope` evaluates the derivative.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
from numpy.polynomial import legendre

from bnmc.mean_field.float64 import FloatArray
from bnmc.mean_field.quadrature.panels import gauss_legendre, panel_points

__all__ = [
    "WIDEST_PANEL",
    "Function",
    "UnresolvedError",
    "evaluate",
    "jumps",
    "merged",
    "resolve",
    "slope",
]

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

# Nodes per panel for derivatives.
_SLOPE_ORDER = 24

# A change of at least this fraction of the largest value of the function is a jump.
_JUMP = 1e-7

# Points closer than this fraction of the interval are the same.
_MERGE = 1e-14


class UnresolvedError(ArithmeticError):
    """The function is not finite, or needs too many panels: noise, or ever faster oscillations."""


def resolve(function: Function, limit: float, kinks: Iterable[float]) -> FloatArray:
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

    Returns
    -------
    ndarray of float64, shape (panels + 1,)
        Ends of the panels, increasing, from −limit to limit.

    Raises
    ------
    UnresolvedError
        If the function is not finite on the interval, or needs more than 400 panels.
    """
    known = {float(kink) for kink in kinks if -limit < kink < limit}
    breaks, suspects = _bisect(function, _mesh(limit, known))
    if not suspects:
        return breaks
    # If panels shrink towards a point, that point is a kink or a singularity.  With a kink as an
    # end of panels no small panels are needed; with a singularity the retry saves nothing.
    retried, _ = _bisect(function, _mesh(limit, known | suspects))
    return retried if retried.size < breaks.size else breaks


def jumps(function: Function, breaks: FloatArray, order: int) -> FloatArray:
    """Return those inner ends of panels where the derivative of this order jumps.

    Parameters
    ----------
    function : callable
        Maps a float64 array elementwise.
    breaks : ndarray of float64
        Panels of the function, from `resolve`.
    order : int
        Order of the derivative, >= 0; 0 for the function itself.
    """
    nodes, _, to_coefficients, differentiate = gauss_legendre(_SLOPE_ORDER)
    points, half = panel_points(breaks, nodes)
    values = evaluate(function, points)
    scale = np.abs(values).max()
    for _ in range(order):
        values = values @ differentiate.T / half
    ends = legendre.legvander(np.array([-1.0, 1.0]), _SLOPE_ORDER - 1) @ to_coefficients
    left, right = (values @ ends.T).T
    # The jump of the derivative, as the change of the function that it makes over the shorter one
    # of the two panels.
    change = np.abs(left[1:] - right[:-1]) * np.minimum(half[1:, 0], half[:-1, 0]) ** order
    found: FloatArray = breaks[1:-1][change > _JUMP * scale]
    return found


def slope(function: Function, points: FloatArray, breaks: FloatArray) -> FloatArray:
    """Return the derivative at points of any shape, from the polynomials on resolved panels."""
    nodes, _, to_coefficients, differentiate = gauss_legendre(_SLOPE_ORDER)
    middle, half = 0.5 * (breaks[1:] + breaks[:-1]), 0.5 * np.diff(breaks)
    values = evaluate(function, middle[:, None] + half[:, None] * nodes)
    coefficients = (values @ differentiate.T @ to_coefficients.T) / half[:, None]
    panel = np.clip(np.searchsorted(breaks, points, "right") - 1, 0, half.size - 1)
    basis = legendre.legvander((points - middle[panel]) / half[panel], _SLOPE_ORDER - 1)
    return np.asarray(np.einsum("...k,...k->...", basis, coefficients[panel]))


def merged(points: FloatArray) -> FloatArray:
    """Sort points and drop each one within rounding of the point before it; keep the last one."""
    points = np.sort(points)
    keep = np.concatenate([[True], np.diff(points) > _MERGE * (points[-1] - points[0])])
    kept: FloatArray = points[keep]
    kept[-1] = points[-1]
    return kept


def _mesh(limit: float, kinks: set[float]) -> FloatArray:
    # The number of panels is odd, so that 0 is no end of a panel unless it is declared or found
    # to be a kink: `sphere_rule` splits the integration over two coordinates at kinks only.
    count = 2 * int(np.ceil(limit / WIDEST_PANEL - 0.5)) + 1
    return merged(np.concatenate([np.linspace(-limit, limit, max(count, 1) + 1), sorted(kinks)]))


def _bisect(function: Function, mesh: FloatArray) -> tuple[FloatArray, set[float]]:
    """Halve panels until the function is resolved on each.

    Returns
    -------
    breaks : ndarray
        Ends of the panels.
    suspects : set of float
        Points towards which panels shrink.
    """
    nodes, _, to_coefficients, _ = gauss_legendre(_RESOLVE_ORDER)
    # A kink between the last node and the end of the panel changes no value at the nodes, so the
    # polynomial is compared with the function near the ends as well.
    rim = np.array([-1.0, 1.0]) * (1.0 - _RIM)
    to_rim = legendre.legvander(rim, _RESOLVE_ORDER - 1) @ to_coefficients
    probes = np.concatenate([nodes, rim])
    low, high = mesh[:-1], mesh[1:]
    scale = float(np.abs(evaluate(function, np.linspace(-1.0, 1.0, 33) * min(2.0, mesh[-1]))).max())
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
        done = (tail <= _RESOLVED * size) & (miss <= _RESOLVED_AT_RIM * size)
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
    return breaks, _suspects(leaves)


def _suspects(leaves: list[tuple[float, float, int]]) -> set[float]:
    """Return the middle of each run of smallest panels that were halved at least 8 times.

    Parameters
    ----------
    leaves : list of tuple
        Start, end and number of halvings of each panel, in increasing order.
    """
    depths = np.array([0] + [leaf[2] for leaf in leaves] + [0])
    suspects: set[float] = set()
    start: int | None = None
    for index in range(1, depths.size):
        if depths[index] > depths[index - 1]:
            start = index
        elif depths[index] < depths[index - 1]:
            if start is not None and depths[start] >= _SUSPECT_DEPTH:
                suspects.add(0.5 * (leaves[start - 1][0] + leaves[index - 2][1]))
            start = None
    return suspects


def evaluate(function: Function, points: FloatArray) -> FloatArray:
    """Return the values of a function as float64."""
    return np.asarray(function(points), dtype=np.float64)
