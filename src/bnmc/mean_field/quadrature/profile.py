"""What quadratures need to know of an activation: panels, kinks, jumps, singular points, slopes.

`profile` returns it, once for each activation and interval.  All rooms of the mean field ask it, so
a kink or a narrow bump is resolved everywhere or nowhere.

**Jumps.**  σ jumps at a point if the change across the point, over distances that shrink by the
factor 64, keeps 80 % of its size.

**Singular derivatives.**  At a point s, let σ change by d(h) between the distances h and 2h.  By
the Cauchy-Schwarz inequality ∫ σ′² from h to 2h is at least d(h)²/h.  So E σ′² is infinite if
d(h)²/h does not decrease as h → 0: at a jump, or where σ − σ(s) is like |x−s|^p with p ≤ 1/2.  For
1/2 < p < 1, σ′ is singular but square integrable: panels that shrink towards s by the factor 2
resolve it, and a geometric series bounds the rest.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import cast

import numpy as np
from numpy.polynomial import legendre
from numpy.typing import NDArray

from bnmc._kernels.scalar.slopes import SLOPES
from bnmc.chain.activations import Activation
from bnmc.mean_field.float64 import EPSILON, FloatArray
from bnmc.mean_field.quadrature import resolution
from bnmc.mean_field.quadrature.deviation import largest_deviation
from bnmc.mean_field.quadrature.panels import gauss_legendre, panel_points

# Nodes per panel.
_ORDER = 24

# A change of at least this fraction of the largest value of the function is a kink.
_KINK = 1e-7

# Panels of Gaussian integrals have at most _MOST_KINKS kinks that were not declared; those closer
# than _SAME are one.
_MOST_KINKS, _SAME_KINK = 32, 1e-7

# A rule sees a feature if so many of its nodes are in each panel that resolves it.  Panels do not
# count if the change of σ, relative to its values, times the length is less than _TINY_CHANGE.
_SEEN, _TINY_CHANGE = 1.5, 1e-8

# Panels within so many of their lengths belong to one feature.
_FEATURE = 16.0


@dataclass(frozen=True, eq=False)
class Profile:
    """An activation σ, or a derivative, on [−limit, limit].

    Attributes
    ----------
    function : callable
        σ; maps a float64 array elementwise.
    declared : tuple of float
        The kinks that are known, increasing, also those beyond the interval.
    limit : float
    complete : bool
        Whether σ has no other kinks and no narrow features, as a named activation.
    given_derivative : callable or None
        σ′ if `function` is no `Activation`.
    """

    function: resolution.Function
    declared: tuple[float, ...]
    limit: float
    complete: bool
    given_derivative: resolution.Function | None = None

    @property
    def name(self) -> str:
        """Name of the function in messages."""
        return str(getattr(self.function, "name", ""))

    def __call__(self, x: FloatArray) -> FloatArray:
        """Return σ(x)."""
        return resolution.evaluate(self.function, x)

    @cached_property
    def shift(self) -> float:
        """σ(0)."""
        return float(self(np.zeros(1))[0])

    def centred(self, x: FloatArray) -> FloatArray:
        """Return σ(x) − σ(0): a large constant would cancel in variances."""
        return self(x) - self.shift

    @cached_property
    def breaks(self) -> FloatArray:
        """Ends of panels on which σ is a polynomial to rounding, from −limit to limit.

        Raises
        ------
        UnresolvedError
            If σ is not finite, or needs too many panels.
        """
        if self.complete:
            return resolution.resolve(self, self.limit, self.declared, self.declared)
        searched = cast("Activation", self.function)
        features = resolution.constants(searched), resolution.sudden_changes(searched)
        return resolution.resolve(self, self.limit, self.declared, *features)

    @cached_property
    def kinks(self) -> FloatArray:
        """Those inner ends of panels at which σ or one of its first two derivatives jumps."""
        _, _, to_coefficients, differentiate = gauss_legendre(_ORDER)
        values, half = self.nodes
        scale = np.abs(values).max()
        ends = legendre.legvander(np.array([-1.0, 1.0]), _ORDER - 1) @ to_coefficients
        jumped = np.zeros(len(values) - 1, dtype=bool)
        for order in range(3):
            left, right = (values @ ends.T).T
            # The jump of the derivative, as the change of the function that it makes over the
            # shorter one of the two panels.
            change = np.abs(left[1:] - right[:-1]) * np.minimum(half[1:, 0], half[:-1, 0]) ** order
            jumped |= change > _KINK * scale
            values = values @ differentiate.T / half
        return self.breaks[1:-1][jumped]

    @cached_property
    def corners(self) -> FloatArray:
        """The kinks inside the interval, found or declared."""
        return np.union1d(self.kinks, [kink for kink in self.declared if abs(kink) < self.limit])

    @cached_property
    def nodes(self) -> tuple[FloatArray, FloatArray]:
        """The values of σ at 24 nodes of each panel, and half the lengths of the panels."""
        points, half = panel_points(self.breaks, gauss_legendre(_ORDER).nodes)
        return self(points), half

    @cached_property
    def steep(self) -> FloatArray:
        """The points at which ∫ σ′² is infinite: jumps, and slopes that are not integrable."""
        points = np.union1d(self._panels[1:-1], self.declared)
        rough = [point for point, trends in self._trends if _least(trends) <= _DIVERGENT]
        return np.union1d(points[_jumps(self, points)], rough)

    @cached_property
    def singular(self) -> list[Singularity]:
        """The points at which σ′ is infinite, where E σ′² is finite."""
        spots = []
        for point, trends in self._trends:
            if not _least(trends) < _REGULAR:
                continue
            index = int(np.searchsorted(self.breaks, point))
            low, high = float(self.breaks[index - 1]), float(self.breaks[index + 1])
            energy, change = self.energy(point, low, high)
            error = 0.0
            for last, exponent in trends:
                shrink = 2.0 ** -max(exponent, _DIVERGENT)
                error += 4.0 * last * shrink / (1.0 - shrink)
            spots.append(Singularity(point, low, high, energy, error, change))
        # Ends of panels very near a singular point look singular as well.
        distinct: list[Singularity] = []
        for spot in sorted(spots, key=lambda spot: -spot.error):
            if all(abs(spot.point - other.point) > _SAME for other in distinct):
                distinct.append(spot)
        return distinct

    @cached_property
    def largest_deviation(self) -> float:
        """Largest deviation of σ from polynomials on panels."""
        return largest_deviation(self, self.breaks)

    @cached_property
    def derivative(self) -> Profile | None:
        """The profile of σ′; None if σ′ is not known."""
        sigma = self.function
        if self.given_derivative is not None:
            return Profile(self.given_derivative, self.declared, self.limit, True)
        if not isinstance(sigma, Activation):
            return None
        if sigma.builtin:
            given = Activation(SLOPES[sigma.name][1], name=f"derivative of {sigma.name}")
            return Profile(given, self.declared, self.limit, True)
        return profile(sigma.derivative, self.limit) if sigma.derivative else None

    def energy(self, point: float, low: float, high: float) -> tuple[float, float]:
        """Return ∫ σ′² from `low` to `high` around a singular point, and how much σ changes there.

        `Singularity.error` bounds the error of the integral.
        """
        left, right = (_energy(self, _graded(point, end)) for end in (low, high))
        return left[0] + right[0], left[1] + right[1]

    def slope(self, x: FloatArray) -> FloatArray:
        """Return σ′(x) from the polynomials on the panels."""
        return resolution.slope(self, x, self.breaks)

    def ends(self, width: float) -> FloatArray:
        """Return the points at which panels of a Gaussian integral over σ have to end.

        They are the kinks, jumps and singular points, and the ends of all panels shorter than
        `width`, which resolve a narrow feature.
        """
        if self.complete or self._points is None:
            return np.array(self.declared)
        narrow = np.diff(self._panels) < width
        return np.union1d(self._points, self._panels[1:-1][narrow[1:] | narrow[:-1]])

    def wider(self, order: int, width: float = math.inf) -> FloatArray:
        """Return ends of panels, beside the kinks, for rules of `order` nodes per panel.

        Every panel of σ, on which it is a polynomial of degree 19, then contains a node: a rule of
        more nodes changes the result if the first rule misses a part of a feature.  Only the ends
        of panels shorter than `width` are returned; none if σ has no narrow features.
        """
        if self.complete:
            return np.empty(0)
        values, half = self.nodes
        length = 2.0 * half[:, 0]
        counts = np.ptp(values, axis=1) * length > _TINY_CHANGE * np.abs(values).max()
        allowed = np.where(counts, order / _SEEN * length, math.inf) * (1.0 + 1e-9)
        ends, most = [-self.limit], math.inf
        kinks = set(self.kinks.tolist())
        for low, high, mine in zip(self.breaks[:-1], self.breaks[1:], allowed, strict=True):
            if low in kinks or (high - ends[-1] > min(most, mine) and low > ends[-1]):
                ends.append(low)
                most = math.inf
            most = min(most, mine)
        merged = np.array([*ends, self.limit])
        short = np.diff(merged) < width
        inner = merged[1:-1][short[1:] | short[:-1]]
        return np.setdiff1d(inner, self.kinks)

    def centres(self, width: float) -> FloatArray:
        """Return the points `ends(0)`, and the middle of each feature narrower than `width`."""
        if self.complete or self._points is None:
            return np.array(self.declared)
        length = np.diff(self._panels)
        least = (length[1:-1] <= length[:-2]) & (length[1:-1] < length[2:])
        least &= length[1:-1] < width
        middles, sizes = 0.5 * (self._panels[2:-1] + self._panels[1:-2])[least], length[1:-1][least]
        centres = self._points.tolist()
        for index in np.argsort(sizes):
            far = _FEATURE * sizes[index]
            if all(abs(middles[index] - centre) > far for centre in centres):
                centres.append(float(middles[index]))
        return np.array(sorted(centres))

    @cached_property
    def _panels(self) -> FloatArray:
        """The panels; if σ is not resolved or need not be, those that end at declared kinks."""
        if not self.complete:
            try:
                return self.breaks
            except resolution.UnresolvedError:
                pass
        inside = [kink for kink in self.declared if abs(kink) < self.limit]
        return np.array([-self.limit, *inside, self.limit])

    @cached_property
    def _points(self) -> FloatArray | None:
        """Kinks, jumps and singular points; None if they are too many, or σ is not resolved."""
        try:
            places = [*self.kinks, *self.steep, *(spot.point for spot in self.singular)]
        except resolution.UnresolvedError:
            return None
        points = list(self.declared)
        for place in places:
            if all(abs(place - point) > _SAME_KINK for point in points):
                points.append(place)
        return np.array(points) if len(points) <= _MOST_KINKS else None

    @cached_property
    def _trends(self) -> list[tuple[float, _Trends]]:
        """The trends at the ends of panels that are much shorter than others."""
        if self.complete:
            return []
        length = np.diff(self._panels)
        short = length < 1e-6 * length.max()
        points = self._panels[1:-1][short[1:] | short[:-1]]
        return [(point, _trends(self, point)) for point in points.tolist()]


@lru_cache(maxsize=128)
def profile(activation: Activation, limit: float) -> Profile:
    """Return the profile of an activation on [−limit, limit]."""
    return Profile(activation, activation.kinks, limit, activation.builtin)


# --- singular derivatives

# Distances from a point: from _LARGEST downwards by factors of 2, to _LEAST_ULPS units in the last
# place of the point; at 0, to _LEAST.
_LARGEST, _LEAST_ULPS, _LEAST = 2.0**-4, 64.0, 1e-280

# Changes count if they exceed the rounding error of the values by this factor.
_SIGNIFICANT = 1e4

# The trend of d(h)²/h is taken over this many distances.
_WINDOW = 12

# d(h)²/h is like h^exponent, with the exponent 1 at a corner.  Below _REGULAR the derivative is
# singular; at most _DIVERGENT (0 to rounding) its square is not integrable.
_REGULAR, _DIVERGENT = 0.95, 1e-9

# A jump: over the factor 64 of distances, the change across the point keeps this share.
_JUMP_SHARE = 0.8

# Singular points closer than this are one.
_SAME = 1e-8


@dataclass(frozen=True)
class Singularity:
    """A point at which σ′ is infinite but square integrable.

    Attributes
    ----------
    point : float
    low, high : float
        The two panels next to the point, together.
    energy : float
        ∫ σ′² from `low` to `high`.
    error : float
        Bound of the error of `energy`.
    change : float
        Sum of the changes of σ over both panels.
    """

    point: float
    low: float
    high: float
    energy: float
    error: float
    change: float


def _jumps(function: resolution.Function, points: FloatArray) -> NDArray[np.bool_]:
    """Return at which points a function jumps."""
    distance = _LEAST_ULPS * np.maximum(np.spacing(np.abs(points)), EPSILON**2)
    steps = distance[:, None] * 2.0 ** np.arange(7.0)
    right, left = (function(points[:, None] + sign * steps) for sign in (1.0, -1.0))
    change = np.abs(right - left)
    noise = _SIGNIFICANT * EPSILON * np.maximum(np.abs(right), np.abs(left)).max(axis=1)
    return (change[:, 0] > noise) & (change.min(axis=1) > _JUMP_SHARE * change.max(axis=1))


# d(h)²/h at the smallest distance at which it is known, and its exponent in h.
_Trends = list[tuple[float, float]]


def _trends(function: resolution.Function, point: float) -> _Trends:
    """Return the trends left and right of a point, where σ changes."""
    least = _LEAST if point == 0.0 else _LEAST_ULPS * float(np.spacing(abs(point)))
    count = int(math.log2(_LARGEST / least))
    distance = _LARGEST * 2.0 ** -np.arange(count + 1.0)
    trends: _Trends = []
    for sign in (-1.0, 1.0):
        values = function(point + sign * distance)
        change, size = np.abs(np.diff(values)), np.abs(values[1:])
        with np.errstate(over="ignore", divide="ignore"):
            energy = change**2 / distance[1:]
            # Squares must not underflow.
            valid = (change > _SIGNIFICANT * EPSILON * size) & (change > 1e-150)
        last = int(np.flatnonzero(valid)[-1]) if valid.any() else -1
        if last >= _WINDOW and valid[last - _WINDOW : last + 1].all():
            exponent = -math.log2(energy[last] / energy[last - _WINDOW]) / _WINDOW
            trends.append((float(energy[last]), exponent))
    return trends


def _least(trends: _Trends) -> float:
    """Return the least exponent."""
    return min((exponent for _, exponent in trends), default=math.inf)


def _graded(point: float, end: float) -> FloatArray:
    """Return panels that shrink from `end` towards a point."""
    least = _LEAST if point == 0.0 else _LEAST_ULPS * float(np.spacing(abs(point)))
    count = max(0, int(math.log2(abs(end - point) / least)))
    steps = (end - point) * 2.0 ** -np.arange(count + 1.0)
    return np.sort(np.append(point + steps, point))


def _energy(function: resolution.Function, edges: FloatArray) -> tuple[float, float]:
    """Return ∫ σ′² over panels, and the change of σ over all of them."""
    nodes, weights, _, differentiate = gauss_legendre(_ORDER)
    points, half = panel_points(edges, nodes)
    values = function(points)
    slopes = values @ differentiate.T / half
    change = float(np.ptp(values))
    return float(np.sum(half * weights * slopes**2)), change
