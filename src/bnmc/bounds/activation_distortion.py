"""The distortion γ of an activation on the √n-sphere, eq. (10) of the bridging paper.

γ² is the largest mean of σ(x_i)² over the sphere ``Σ x_i² = n``. With s = x² and
φ(s) = max(σ(√s)², σ(−√s)²), the mean of φ(s_i) is maximized under the constraint that the mean of
s_i is 1. After dualization the problem has one variable. `distortion` describes the method.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bnmc._support.arguments import Float64Array, integer, real
from bnmc._support.linalg import EPS
from bnmc._support.text import Result
from bnmc.chain.activations import Activation, as_activation
from bnmc.chain.code_digest import ScalarFunction
from bnmc.errors import ArgumentError, ArgumentTypeError

#: Bounds of |σ″| between the kinks, for the named activations. Bounds other than 0, ½ and 1 are
#: rounded up. Curved σ have these σ″. tanh: −2 tanh/cosh²; erf: −4x e^{−x²}/√π; selu: s α eˣ with
#: its constants s and α; gelu: (2 − x²) exp(−x²/2)/√2π.
CURVATURES = {
    "linear": 0.0,
    "relu": 0.0,
    "leaky_relu": 0.0,
    "abs": 0.0,
    "tanh": 0.76981,
    "sigmoid": 0.09623,
    "sin": 1.0,
    "erf": 0.96789,
    "elu": 1.0,
    "celu": 1.0,
    "selu": 1.75810,
    "gelu": 0.79789,
    "silu": 0.5,
}
#: Gap of the certified bound, relative to γ².
_RTOL = 1e-9
#: Largest number of cells of branch and bound.
_MOST_CELLS = 1 << 20
#: Largest modulus of σ, so that squares do not overflow.
_LARGEST_VALUE = 1e150
#: Number of intervals of a grid.
_GRID = 2048


@dataclass(frozen=True, eq=False)
class Distortion(Result):
    """Lower and upper bound of the distortion γ of an activation.

    Attributes
    ----------
    lower, upper : float
        ``lower <= γ <= upper``.
    maximiser : (n,) ndarray of float64
        A point x of the sphere ``‖x‖ = √n`` with ``‖σ(x)‖ = lower ‖x‖``, to rounding.
    """

    lower: float
    upper: float
    maximiser: Float64Array


def distortion(
    activation: str | ScalarFunction | Activation, batch: int, *, curvature: float | None = None
) -> Distortion:
    r"""Bound the distortion of an activation on the √n-sphere, eq. (10), from below and above.

    .. math:: γ := \sup_{x ∈ S} \frac{‖σ(x)‖}{‖x‖}, \quad S := \{x ∈ R^n : ‖x‖ = \sqrt n\}

    Parameters
    ----------
    activation : str, callable or Activation
        σ.
    batch : int
        n in 1 … 10⁸.
    curvature : float, optional
        K >= 0 with ``|σ′(x) − σ′(y)| <= K|x − y|`` for all x, y in [−√n, √n] without a kink of the
        activation between them. The upper bound is certified under this assumption. For a named
        activation K is known. For your own function it is required.

    Returns
    -------
    Distortion

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If an argument is not allowed, σ is not finite on [−√n, √n], a required `curvature` is
        missing, or values of σ contradict it.

    Notes
    -----
    γ² is the largest mean of ``σ(x_i)²`` under the constraint that the mean of ``x_i²`` is 1. For
    every λ it is at most ``λ + max (σ(x)² − λx²)`` over ``|x| <= √n``, because the constraint is
    the only relation between the x_i. Here λ is the slope at 1 of the least concave function above
    the pairs ``(x², σ(x)²)``.

    *Upper bound.* Branch and bound limits the maximum in one variable. On a cell of length w, σ is
    within Kw²/8 of its chord. Cells are refined to a gap of 1e-9 of γ², or up to about a million
    cells. The bound includes rounding errors of σ of a few units of its largest value.

    *Lower bound.* Duality has no gap except for one coordinate. The bound is the largest value at
    two kinds of points x. The entries of the first kind are the two points where the line of slope
    λ touches, and one that gives x the norm √n. Those of the second kind have two values nearby.

    BN maps rows to the part of the sphere that is orthogonal to 1. The upper bound holds there too.

    Examples
    --------
    >>> from bnmc.bounds.bridging import distortion
    >>> gamma = distortion("tanh", 10)
    >>> print(round(gamma.lower, 8), round(gamma.upper, 8))
    0.76159416 0.76159416
    >>> cubic = distortion(lambda x: x**3 / 10, 4, curvature=1.2)
    >>> cubic.maximiser, round(cubic.upper, 8)
    (array([0., 0., 0., 2.]), 0.4)
    """
    sigma = as_activation(activation)
    n = integer("batch", batch, low=1, high=10**8)
    bound = _curvature(sigma, curvature)
    if n == 1:
        both = np.array([1.0, -1.0])
        values = np.abs(_finite_values(sigma, both))
        return Distortion(float(values.max()), float(values.max()), both[[values.argmax()]])
    touching, slope = _touching_points(sigma, math.sqrt(n))
    largest = largest_excess(sigma, math.nextafter(math.sqrt(n), math.inf), slope, bound)
    upper = math.sqrt(max(slope + largest, 0.0)) * (1 + 8 * EPS)
    x = _best_point(sigma, n, touching)
    lower = float(np.linalg.norm(_finite_values(sigma, x)) / np.linalg.norm(x)) * (1 - 8 * EPS)
    if lower > upper:
        raise _contradicted_curvature(sigma, bound)
    return Distortion(lower, upper, x)


def _curvature(sigma: Activation, given: float | None) -> float:
    if given is not None:
        return real("curvature", given, low=0, high=1e100)
    if not sigma.builtin:
        allowed = f"a bound of |σ″| for the function {sigma.name!r}, which the upper bound rests on"
        raise ArgumentTypeError("curvature", given, allowed)
    return CURVATURES[sigma.name]


def _touching_points(sigma: Activation, reach: float) -> tuple[tuple[float, float], float]:
    """Return where the concave envelope of (x², σ(x)²) touches it around 1, and its slope at 1.

    The points are two x up to `reach`, √n: x² <= 1 for the first, and x² >= 1 for the second.
    """
    kinks = np.array([k for k in sigma.kinks if abs(k) < reach])
    x = np.linspace(-reach, reach, 2 * _GRID + 1)
    beside = (np.nextafter(kinks, side) for side in (-np.inf, np.inf))
    fixed = np.concatenate([[-1.0, 1.0], kinks, *beside])
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
    fa, fb = _finite_values(sigma, a), _finite_values(sigma, b)
    points = np.array([*kinks, 1.0, -1.0])
    at_points = np.square(_finite_values(sigma, points)) - slope * points**2
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
        fm = _finite_values(sigma, m)
        excess = np.abs(fm - (fa + fb) / 2) - off
        if (excess > 1e-10 * size).any():
            worst = int(excess.argmax())
            raise _contradicted_curvature(sigma, curvature, f"it is larger near {m[worst]:.6g}")
        a, b = np.concatenate([a, m]), np.concatenate([m, b])
        fa, fb = np.concatenate([fa, fm]), np.concatenate([fm, fb])


def _best_point(sigma: Activation, n: int, touching: tuple[float, float]) -> Float64Array:
    """Return a point of the sphere with large ‖σ‖ among points with two or three distinct squares.

    n is the dimension and the squared radius, and `touching` are the points of `_touching_points`.
    """

    def phi(s: Float64Array) -> Float64Array:
        root = np.sqrt(s)
        moduli = (np.abs(_finite_values(sigma, x)) for x in (root, -root))
        return np.square(np.maximum(*moduli))

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
    positive = np.abs(_finite_values(sigma, roots)) >= np.abs(_finite_values(sigma, -roots))
    return np.repeat(np.where(positive, roots, -roots), counts)


def _finite_values(sigma: Activation, x: Float64Array) -> Float64Array:
    """Return σ(x), or raise `ArgumentError` if its modulus exceeds 1e150 or is not a number."""
    values: Float64Array = sigma(x)
    wrong = ~(np.abs(values) <= _LARGEST_VALUE)
    if wrong.any():
        allowed = f"a function of modulus at most {_LARGEST_VALUE:.0e} on the sphere"
        hint = f"it is {values[wrong][0]} at {x[wrong][0]:.6g}"
        raise ArgumentError("activation", sigma.name, allowed, hint)
    return values


def _contradicted_curvature(sigma: Activation, curvature: float, hint: str = "") -> ArgumentError:
    """Return the error of a `curvature` that values of σ contradict."""
    allowed = f"a bound of |σ″| between the kinks of {sigma.name!r}"
    return ArgumentError("curvature", curvature, allowed, hint)


def _edge(sigma: Activation, x: Float64Array) -> tuple[float, float, float]:
    """Return the edge above 1 of the upper hull of (x², σ(x)²): x of its ends, and its slope."""
    s, phi = x * x, np.square(_finite_values(sigma, x))
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
