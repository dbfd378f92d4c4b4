"""The shape of an activation: intervals on which it is constant, and symmetries.

The symmetries make linear relations between samples permanent.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnmc.chain.activations import Activation

#: Number of points of each sign where the symmetries are tested, and relative tolerance.
_POINTS, _TOLERANCE = 2000, 1e-12

#: Intervals of the grid that is searched.  A flat piece shorter than three of them is found only
#: if both of its ends are declared as kinks.
_INTERVALS = 6000

#: Points inside a run of equal values that must have the same value, and bisections of its ends.
_INNER_POINTS, _BISECTIONS = 33, 64


@dataclass(frozen=True)
class ActivationShape:
    """Symmetries of an activation σ on [−reach, reach].

    Attributes
    ----------
    is_zero_at_zero : bool
        Whether σ(0) = 0.
    is_odd, is_even : bool
        Whether σ(−x) = −σ(x), and σ(−x) = σ(x), for x > 0.
    is_odd_about_centre : bool
        Whether σ(x) + σ(−x) is the same for all x > 0.
    is_centred_at_zero : bool
        Whether that sum is 2 σ(0).
    degree : float or None
        p >= 0 if σ(x) = A x^p and σ(−x) = B x^p for x > 0 with constants A, B not both 0.
    above, below : float
        A and B; 0.0 if `degree` is None.
    is_one_sided : bool
        Whether σ is 0 on one side of 0, and not of both signs on the other side.
    """

    is_zero_at_zero: bool
    is_odd: bool
    is_even: bool
    is_odd_about_centre: bool
    is_centred_at_zero: bool
    degree: float | None
    above: float
    below: float
    is_one_sided: bool

    @property
    def has_parity(self) -> bool:
        """Whether σ is odd or even."""
        return self.is_odd or self.is_even

    @property
    def preserves_lines(self) -> bool:
        """Whether uncentred Gram matrices of rank 1 stay of rank 1.

        If G = v vᵀ, all rows are multiples of v, and N takes them to u or −u with u = N(v).  So
        σ(u) and σ(−u) must be proportional.
        """
        return self.has_parity or self.is_one_sided


def activation_shape(activation: Activation, reach: float) -> ActivationShape:
    """Return the symmetries of an activation, tested at points of [−reach, reach].

    Examples
    --------
    >>> from bnmc import Activation
    >>> from bnmc.mixing.activation_shape import activation_shape
    >>> shape = activation_shape(Activation.named("relu"), 3.0)
    >>> shape.degree, shape.above, shape.below, shape.is_one_sided
    (1.0, 1.0, 0.0, True)
    """
    # The golden ratio keeps the points off 0 and off round numbers, where σ may jump: values at
    # jumps have probability 0, and may break the symmetry.
    x = reach * (np.arange(_POINTS) + 0.5 * (math.sqrt(5.0) - 1.0)) / _POINTS
    above = np.asarray(activation(x), np.float64)
    below = np.asarray(activation(-x), np.float64)
    zero = float(activation(np.zeros(1))[0])
    size = _TOLERANCE * float(max(np.abs(above).max(), np.abs(below).max()))

    def agree(a: NDArray[np.float64], b: NDArray[np.float64] | float) -> bool:
        return bool((np.abs(a - b) <= size).all())

    total = above + below
    degree, factor_above, factor_below = _power(x, above, below, size)
    one_sided = not above.any() or not below.any()
    signed = bool((total >= 0.0).all() or (total <= 0.0).all())
    return ActivationShape(
        is_zero_at_zero=zero == 0.0,
        is_odd=agree(above, -below),
        is_even=agree(above, below),
        is_odd_about_centre=agree(total, float(total[0])),
        is_centred_at_zero=bool(abs(total[0] - 2.0 * zero) <= size),
        degree=degree,
        above=factor_above,
        below=factor_below,
        is_one_sided=one_sided and signed,
    )


def _power(
    x: NDArray[np.float64], above: NDArray[np.float64], below: NDArray[np.float64], size: float
) -> tuple[float | None, float, float]:
    """Return the common degree of both sides and their factors, if both are powers."""
    larger = above if abs(above[-1]) >= abs(below[-1]) else below
    middle = larger[len(x) // 2]
    if larger[-1] * middle > 0.0:
        degree = math.log(larger[-1] / middle) / math.log(x[-1] / x[len(x) // 2])
        degree = round(degree, 9) + 0.0
        powers = x**degree
        sides = np.stack([above, below])
        factors = sides[:, -1] / powers[-1]
        if degree >= 0.0 and (np.abs(sides - factors[:, None] * powers) <= 1e3 * size).all():
            return degree, float(factors[0]), float(factors[1])
    return None, 0.0, 0.0


@dataclass(frozen=True)
class FlatPieces:
    """The flat pieces of an activation on [−reach, reach], in increasing order.

    Attributes
    ----------
    low, high : (pieces,) ndarray of float64
        Ends of the pieces.  A piece that ends at ±reach has the end ±inf here.
    value : (pieces,) ndarray of float64
        Value of the activation on each piece.
    """

    low: NDArray[np.float64]
    high: NDArray[np.float64]
    value: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.value)

    @property
    def depends_on_signs(self) -> bool:
        """Whether each piece is a half-line that begins at 0, so that signs decide the piece."""
        above = (self.low == 0.0) & np.isposinf(self.high)
        below = np.isneginf(self.low) & (self.high == 0.0)
        return bool((above | below).all())

    @property
    def values(self) -> NDArray[np.float64]:
        """The distinct values, in increasing order."""
        return np.unique(self.value)

    def labels(self, x: NDArray[np.float64]) -> NDArray[np.int16]:
        """Return for each entry of x the index of its value in `values`; −1 outside the pieces."""
        piece = np.searchsorted(self.low, x, side="right") - 1
        inside = (piece >= 0) & (x <= self.high[piece])
        index = np.searchsorted(self.values, self.value)
        return np.where(inside, index[piece], -1).astype(np.int16)


def flat_pieces(activation: Activation, reach: float) -> FlatPieces:
    """Find the flat pieces of an activation on [−reach, reach].

    Parameters
    ----------
    activation : Activation
    reach : float
        Positive.

    Returns
    -------
    FlatPieces
        Pieces shorter than reach/1000 are missing, unless both ends are declared as kinks.  Ends
        are exact to one unit in the last place, and to 1e-12 reach near 0.

    Examples
    --------
    >>> from bnmc import Activation
    >>> from bnmc.mixing.activation_shape import flat_pieces
    >>> flat_pieces(Activation.named("relu"), 3.0)
    FlatPieces(low=array([-inf]), high=array([0.]), value=array([0.]))
    """
    if activation.builtin and activation.name != "relu":
        # The others are strictly monotone on intervals: they are constant by rounding only.
        return FlatPieces(*np.empty((3, 0)))
    x = _grid(activation, reach)
    y = np.asarray(activation(x), np.float64)
    bounds = np.flatnonzero(np.concatenate([[True], y[1:] != y[:-1], [True]]))
    first, last = bounds[:-1], bounds[1:] - 1
    long = last - first >= 2
    first, last = first[long], last[long]
    inner = np.linspace(0.0, 1.0, _INNER_POINTS + 2)[1:-1, None]
    probes = x[first] + (x[last] - x[first]) * (inner + 0.1 * np.sin(inner * 40.0) / _INNER_POINTS)
    flat = (np.asarray(activation(probes), np.float64) == y[first]).all(axis=0)
    first, last = first[flat], last[flat]
    value = y[first] + 0.0  # -0.0 and 0.0 are one value
    low = _end(activation, value, x[first], x[np.maximum(first - 1, 0)])
    high = _end(activation, value, x[last], x[np.minimum(last + 1, len(x) - 1)])
    low[first == 0] = -np.inf
    high[last == len(x) - 1] = np.inf
    for end in (low, high):
        end[np.abs(end) <= 1e-12 * reach] = 0.0
    return FlatPieces(low, high, value)


def _grid(activation: Activation, reach: float) -> NDArray[np.float64]:
    """Return the points where the activation is evaluated, in increasing order, without 0."""
    # The value at a point of discontinuity may be that of neither side: evaluate beside it, and
    # within each interval between kinks at points enough to see a run.
    kinks = np.array([kink for kink in activation.kinks if abs(kink) < reach])
    ends = np.concatenate([[-reach], kinks, [reach]])
    shares = np.array([0.01, 0.2, 0.5, 0.8, 0.99])[:, None]
    between = ends[:-1] + shares * np.diff(ends)
    even = np.linspace(-reach, reach, _INTERVALS)  # an even number of points: 0 is none of them
    return np.unique(np.concatenate([even, between.ravel()]))


def _end(
    activation: Activation, value: NDArray[np.float64], inside: Any, outside: Any
) -> NDArray[np.float64]:
    """Bisect between points where the activation has a value and points where it has another."""
    inside, outside = inside.copy(), outside.copy()
    for _ in range(_BISECTIONS):
        middle = 0.5 * (inside + outside)
        equal = np.asarray(activation(middle), np.float64) == value
        inside = np.where(equal, middle, inside)
        outside = np.where(equal, outside, middle)
    return inside
