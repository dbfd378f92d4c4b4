"""Largest mean of σ(x_i)² over the sphere ``Σ x_i² = n``: a certified bound, and a good point.

The problem has one variable after dualization. With s = x² and φ(s) = max(σ(√s)², σ(−√s)²), the
mean of φ(s_i) is maximized under the constraint that the mean of s_i is 1.
`bnmc.bounds.bridging.distortion` describes the method.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from bnmc._support.arguments import Float64Array
from bnmc._support.linalg import EPS
from bnmc.chain.activations import Activation
from bnmc.errors import ArgumentError

__all__ = [
    "best_point",
    "contradicted_curvature",
    "finite_values",
    "largest_excess",
    "touching_points",
]

#: Gap of the certified bound, relative to γ².
_RTOL = 1e-9
#: Largest number of cells of branch and bound.
_MOST_CELLS = 1 << 20
#: Largest modulus of σ, so that squares do not overflow.
_LARGEST_VALUE = 1e150
#: Number of intervals of a grid.
_GRID = 2048


def touching_points(sigma: Activation, reach: float) -> tuple[tuple[float, float], float]:
    """Return where the concave envelope of (x², σ(x)²) touches it around 1, and its slope at 1.

    Parameters
    ----------
    sigma : Activation
        σ.
    reach : float
        Largest |x|, √n.

    Returns
    -------
    points : tuple of (float, float)
        The x of the two touching points: x² <= 1 for the first, x² >= 1 for the second.
    slope : float
        Slope of the envelope at x² = 1.
    """
    kinks = np.array([k for k in sigma.kinks if abs(k) < reach])
    x = np.linspace(-reach, reach, 2 * _GRID + 1)
    fixed = np.concatenate(
        [[-1.0, 1.0], kinks, np.nextafter(kinks, -np.inf), np.nextafter(kinks, np.inf)]
    )
    spacing = reach / _GRID
    for _ in range(2):
        left, right, _ = _edge(sigma, np.concatenate([x, fixed]))
        offsets = np.linspace(-spacing, spacing, _GRID + 1)
        near = [end + offsets for point in (left, right) for end in (point, -point)]
        x = np.concatenate([np.linspace(-reach, reach, 257), [left, right], *near])
        x = x[np.abs(x) <= reach]
        spacing *= 2 / _GRID
    left, right, slope = _edge(sigma, np.concatenate([x, fixed]))
    return (left, right), slope


def largest_excess(sigma: Activation, reach: float, slope: float, curvature: float) -> float:
    """Return an upper bound of ``σ(x)² − slope x²`` over ``|x| <= reach``, by branch and bound.

    Raises
    ------
    ArgumentError
        If values of σ contradict the bound `curvature` of |σ″|.
    """
    kinks = [k for k in sigma.kinks if abs(k) < reach]
    # σ may jump at a kink, so a piece ends at the float64 number before the kink.
    starts = [-reach, *np.nextafter(kinks, np.inf)]
    stops = [*np.nextafter(kinks, -np.inf), reach]
    pieces = [np.linspace(*piece, 65) for piece in zip(starts, stops, strict=True)]
    a = np.concatenate([piece[:-1] for piece in pieces])
    b = np.concatenate([piece[1:] for piece in pieces])
    a, b = a[a < b], b[a < b]  # adjacent kinks leave empty pieces
    fa, fb = finite_values(sigma, a), finite_values(sigma, b)
    points = np.array([*kinks, 1.0, -1.0])
    at_points = np.square(finite_values(sigma, points)) - slope * points**2
    best = closed_bound = float(at_points.max())
    tested = False  # whether σ has been compared with a chord in every initial cell
    while True:
        size = max(float(np.abs(fa).max()), float(np.abs(fb).max()))
        rounding = 16 * EPS * (size**2 + abs(slope) * reach**2)
        excess_a, excess_b = fa**2 - slope * a * a, fb**2 - slope * b * b
        best = max(best, float(excess_a.max()), float(excess_b.max()))
        width = b - a
        # The squared chord minus slope x² is quadratic. If it is concave, `bulge` bounds how far it
        # exceeds its values at the ends. `off` bounds the distance of σ from its chord.
        bulge = np.maximum(slope - ((fb - fa) / width) ** 2, 0) * width**2 / 4
        off = curvature * width**2 / 8 + 16 * EPS * size
        off_square = off * (2 * np.maximum(np.abs(fa), np.abs(fb)) + off)
        bound = np.maximum(excess_a, excess_b) + bulge + off_square + rounding
        tolerance = max(_RTOL * (slope + best), 0.0) + 8 * rounding
        open_ = (bound > best + tolerance) | (not tested)
        tested = True
        closed_bound = max(closed_bound, float(bound[~open_].max(initial=-np.inf)))
        if not open_.any() or 2 * int(open_.sum()) > _MOST_CELLS:
            return max(closed_bound, float(bound[open_].max(initial=-np.inf)))
        a, b, fa, fb, off = (array[open_] for array in (a, b, fa, fb, off))
        m = (a + b) / 2
        fm = finite_values(sigma, m)
        excess = np.abs(fm - (fa + fb) / 2) - off
        if (excess > 1e-10 * size).any():
            worst = int(excess.argmax())
            raise contradicted_curvature(sigma, curvature, f"it is larger near {m[worst]:.6g}")
        a, b = np.concatenate([a, m]), np.concatenate([m, b])
        fa, fb = np.concatenate([fa, fm]), np.concatenate([fm, fb])


def best_point(sigma: Activation, n: int, touching: tuple[float, float]) -> Float64Array:
    """Return a point of the sphere with large ‖σ‖ among points with two or three distinct squares.

    Parameters
    ----------
    sigma : Activation
        σ.
    n : int
        Dimension of the sphere's space, and its squared radius.
    touching : tuple of (float, float)
        The points of `touching_points`.

    Returns
    -------
    (n,) ndarray of float64
    """

    def phi(s: Float64Array) -> Float64Array:
        root = np.sqrt(s)
        return np.maximum(
            np.square(finite_values(sigma, root)), np.square(finite_values(sigma, -root))
        )

    # Pairs of squared entries and their multiplicities.
    candidates = [(np.ones(1), np.array([n]))]
    low, high = (x * x for x in touching)
    if low < high:
        count = min(math.floor(n * (1 - low) / (high - low) + 1e-9), n - 1)
        rest = min(max(n - count * high - (n - 1 - count) * low, 0.0), float(n))
        counts = np.array([n - 1 - count, 1, count])
        candidates.append((np.array([low, rest, high]), counts))
        candidates += [_two_valued(phi, n, k) for k in (count, count + 1) if 1 <= k <= n - 1]
    squares, counts = max(candidates, key=lambda pair: float(phi(pair[0]) @ pair[1]))
    roots = np.sqrt(squares)
    positive = np.abs(finite_values(sigma, roots)) >= np.abs(finite_values(sigma, -roots))
    return np.repeat(np.where(positive, roots, -roots), counts)


def finite_values(sigma: Activation, x: Float64Array) -> Float64Array:
    """Return σ(x), or raise `ArgumentError` if its modulus exceeds 1e150 or is not a number."""
    values: Float64Array = sigma(x)
    wrong = ~(np.abs(values) <= _LARGEST_VALUE)
    if wrong.any():
        allowed = f"a function of modulus at most {_LARGEST_VALUE:.0e} on the sphere"
        hint = f"it is {values[wrong][0]} at {x[wrong][0]:.6g}"
        raise ArgumentError("activation", sigma.name, allowed, hint)
    return values


def contradicted_curvature(sigma: Activation, curvature: float, hint: str = "") -> ArgumentError:
    """Return the error of a `curvature` that values of σ contradict."""
    allowed = f"a bound of |σ″| between the kinks of {sigma.name!r}"
    return ArgumentError("curvature", curvature, allowed, hint)


def _edge(sigma: Activation, x: Float64Array) -> tuple[float, float, float]:
    """Return the edge above 1 of the upper hull of (x², σ(x)²): x of its ends, and its slope."""
    s, phi = x * x, np.square(finite_values(sigma, x))
    below, above = np.flatnonzero(s < 1), np.flatnonzero(s > 1)
    middle = int(np.argmax(np.where(s == 1, phi, -np.inf)))
    from_left = (phi[middle] - phi[below]) / (1 - s[below])
    to_right = (phi[above] - phi[middle]) / (s[above] - 1)
    if to_right.max() <= from_left.min():
        slope = (to_right.max() + from_left.min()) / 2
        return float(x[middle]), float(x[middle]), float(slope)
    left, right = int(below[from_left.argmin()]), int(above[to_right.argmax()])
    while True:
        slope = (phi[right] - phi[left]) / (s[right] - s[left])
        height = phi - slope * s
        highest = int(np.argmax(height))
        # An increase within rounding is no progress.
        if height[highest] <= max(height[left], height[right]) + 4 * EPS * np.abs(phi).max():
            return float(x[left]), float(x[right]), float(slope)
        left, right = (highest, right) if s[highest] < 1 else (left, highest)


def _two_valued(
    phi: Callable[[Float64Array], Float64Array], n: int, k: int
) -> tuple[Float64Array, NDArray[np.intp]]:
    """Return the best point with k equal larger squares and n − k equal smaller ones."""
    start, stop = 1.0, n / k
    for _ in range(4):
        high = np.linspace(start, stop, _GRID + 1)
        low = np.maximum((n - k * high) / (n - k), 0)
        best = int(np.argmax(k * phi(high) + (n - k) * phi(low)))
        start, stop = high[max(best - 1, 0)], high[min(best + 1, _GRID)]
    return np.array([low[best], high[best]]), np.array([n - k, k])
