"""Fixed points of the correlation map.

Φ(c) = Σ_k β_k c^k with β_k ≥ 0 and Σ_k β_k = 1 (Hermite series).  So Φ is increasing and convex on
[0, 1], and

    ψ(c) = (1 − Φ(c))/(1 − c) = Σ_j B_j c^j,    B_j = 1 − Σ_{k ≤ j} β_k,

increases from 1 − β_0 at c = 0 to Φ′(1) at c = 1.  Fixed points in [0, 1) solve ψ(c) = 1, so there
is none if Φ′(1) ≤ 1, and one if Φ′(1) > 1.  If all even β_k are 0, −c is a fixed point with c.  If
not, there is none in [−1, 0): let O and E be the odd and the even part of Φ; then
O(x) − E(x) − x < O(1) x − x ≤ 0 for x in (0, 1], so Φ(−x) > −x.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from bnmc.mean_field.correlation.layer import Level, PairLayer
from bnmc.mean_field.correlation.pair_function import PairFunction, PowerSeries
from bnmc.mean_field.correlation.results import CorrelationPoint
from bnmc.mean_field.float64 import EPSILON, FloatArray

__all__ = ["LevelMap", "correlation_points"]

# A part of Φ below this is rounding.
_ROUNDING = 1e-13


class LevelMap(NamedTuple):
    """Φ at one level: the correlation after a layer, from that before it.

    Attributes
    ----------
    layer : PairLayer
    level : Level
    pairs : PairFunction
    """

    layer: PairLayer
    level: Level
    pairs: PairFunction

    def value(self, correlation: FloatArray) -> tuple[FloatArray, float]:
        """Return the correlations after the layer, and the largest error."""
        layer, level = self.layer, self.level
        value, error = self.pairs.value(correlation)
        product = layer.skip**2 * level.stream * correlation
        product = product + self._weight * (value - level.mean**2) + layer.bias_variance
        following = np.clip(product / level.following, -1.0, 1.0)
        # At c = 1 both are computed from the same moments, but rounded apart.
        following = np.where(correlation == 1.0, 1.0, following)
        return np.asarray(following), self._error(error)

    def slope(self, correlation: FloatArray) -> tuple[FloatArray, float]:
        """Return Φ′, and the largest error."""
        layer, level = self.layer, self.level
        slope, error = self.pairs.slope(correlation)
        total = (layer.skip**2 * level.stream + self._weight * slope) / level.following
        return np.asarray(total), self._error(error)

    @property
    def constant(self) -> float:
        """β_0 = Φ(0)."""
        return float(self.value(np.zeros(1))[0][0])

    @property
    def is_identity(self) -> bool:
        """Whether Φ(c) = c for all c."""
        probes = np.array([-1.0, 0.0, 0.5])
        return bool(np.all(np.abs(self.value(probes)[0] - probes) <= _ROUNDING))

    @property
    def is_odd(self) -> bool:
        """Whether Φ(−1) = −1, so that all even β_k are 0."""
        return float(self.value(np.array([-1.0]))[0][0]) <= _ROUNDING - 1.0

    @property
    def _weight(self) -> float:
        return self.layer.weight_variance * self.level.factor

    def _error(self, of_pairs: float) -> float:
        """Return the error of Φ or Φ′, given that of V or V′ relative to V(1)."""
        level = self.level
        scale = self._weight * level.inner.square / level.following
        return scale * of_pairs + level.error

    def shares(self) -> tuple[FloatArray, float] | None:
        """Return β_k for all terms of the series, and their error; None for a closed form."""
        if not isinstance(self.pairs, PowerSeries):
            return None
        layer, level = self.layer, self.level
        shares = self._weight * self.pairs.squares
        shares[0] += layer.bias_variance - self._weight * level.mean**2
        if len(shares) > 1:
            shares[1] += layer.skip**2 * level.stream
        return np.maximum(shares / level.following, 0.0), self.pairs.noise + level.error


def correlation_points(
    at: LevelMap, gradient: float, tolerance: float
) -> tuple[CorrelationPoint, ...]:
    """Return the fixed points of Φ, by increasing correlation.

    Parameters
    ----------
    at : LevelMap
        Φ, not the identity.
    gradient : float
        Φ′(1).
    tolerance : float
        Φ′(1) up to 1 + tolerance counts as at most 1.
    """
    chaotic = gradient > 1.0 + tolerance
    top = CorrelationPoint(correlation=1.0, slope=gradient, stable=not chaotic, error=0.0)
    if not chaotic:
        return (top,)
    if at.constant <= _ROUNDING:
        inner, error = 0.0, 0.0
    else:
        inner, error = _inner(at, gradient)
    slope = float(at.slope(np.array([inner]))[0][0])
    middle = CorrelationPoint(correlation=inner, slope=slope, stable=slope < 1.0, error=error)
    if inner == 0.0 and at.is_odd:
        low = CorrelationPoint(correlation=-1.0, slope=gradient, stable=False, error=0.0)
        return low, middle, top
    return middle, top


def _inner(at: LevelMap, gradient: float) -> tuple[float, float]:
    """Return the solution of ψ(c) = 1 in (0, 1), and a bound of its error."""
    found = at.shares()
    if found is None:
        return _of_closed_form(at)
    shares, noise = found
    tails = 1.0 - np.cumsum(shares)
    tails[tails < 0.0] = 0.0
    missing = gradient - float(tails.sum()) if math.isfinite(gradient) else math.inf
    terms = len(tails)

    def lower(c: float) -> float:
        return float(np.polynomial.polynomial.polyval(c, tails)) - 1.0

    def upper(c: float) -> float:
        # The tails decrease, so the terms that are left out are at most a geometric series.
        rest = min(max(missing, 0.0), float(tails[-1]) / (1.0 - c)) * c**terms
        return lower(c) + rest

    high, low = _root(lower), _root(upper)
    centre = 0.5 * (low + high)
    steepness = _steepness(lower, centre)
    return centre, 0.5 * (high - low) + (4.0 * noise / (1.0 - centre) + EPSILON) / steepness


def _of_closed_form(at: LevelMap) -> tuple[float, float]:
    def function(c: float) -> float:
        return (1.0 - float(at.value(np.array([c]))[0][0])) / (1.0 - c) - 1.0

    root = _root(function)
    noise = at.value(np.array([root]))[1]
    return root, (noise / (1.0 - root) + EPSILON) / _steepness(function, root)


def _root(function: Callable[[float], float]) -> float:
    """Return the root of an increasing function on [0, 1)."""
    from scipy.optimize import brentq

    edge = 1.0 - 1e-9
    if function(edge) <= 0.0:
        return edge
    return float(brentq(function, 0.0, edge, xtol=1e-16, rtol=4.0 * EPSILON))


def _steepness(function: Callable[[float], float], c: float) -> float:
    """Return ψ′ near its root; ψ is convex, so a difference to the left is a lower bound."""
    step = 1e-3 * min(c, 1.0 - c)
    return max((function(c) - function(c - step)) / step, EPSILON)
