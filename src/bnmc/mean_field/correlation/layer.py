"""A pairwise layer as a map of the variance q and the correlation c of two inputs.

The two inputs have the same variance.  In the notation of `bnmc.mean_field.pairwise_layer`, one
layer maps

    q ← skip² p + σ_w² t (V(r, 1) − m²) + σ_b²,
    c ← (skip² p c + σ_w² t (V(r, c) − m²) + σ_b²) / q_new,

with V(r, c) = E σ(u)σ(v) for normal u, v of variance r and correlation c.

=================  =============  =============  =============================================
norm and order     p              r              m and t
=================  =============  =============  =============================================
none               q              q              m = 0, t = 1
"norm-activation"  q / (q + eps)  q / (q + eps)  m = 0, t = 1
"pre-activation"   q              q / (q + eps)  m = 0, t = 1
"activation-norm"  q              q              m = E σ(u) for a norm that subtracts means,
                                                 else 0; t = 1 / (V(r, 1) − m² + eps)
=================  =============  =============  =============================================

If V has a closed form, it is used.  If not, V is a power series in c whose coefficients are not
negative: the squares of the Hermite coefficients of σ.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from bnmc._support.arguments import choice, real
from bnmc.chain.activations import ActivationLike
from bnmc.chain.chain import ORDERS
from bnmc.chain.needs import PAIRWISE
from bnmc.chain.norms import Norm
from bnmc.errors import ArgumentError
from bnmc.mean_field.correlation.gaussian_moments import Moments, moments, rough_moments
from bnmc.mean_field.duals.duals import Dual, dual
from bnmc.mean_field.duals.series import expansion
from bnmc.mean_field.float64 import EPSILON, TINY, FloatArray
from bnmc.mean_field.pairwise_layer import NO_VARIANCE, PairwiseLayer, kind_of

#: Normalizations over the features, and none; a string that begins with "group" is one, too.
_NORMS = ("none", "layer", "rms", "group")

# Largest variance and factor: their squares and products are far from the end of float64.
_MOST = 1e100

# The least value of the numbers that may not be all from 0 to _MOST.
_LEAST = {"weight_variance": 1.0 / _MOST, "skip": -_MOST}
#: Least variance of inputs: smaller ones have fewer digits, or an inverse that overflows.
LEAST_VARIANCE = 1e-300
# Variances after σ may be so small.
_NORMAL = "a normal float64 number, from 2.3e-308 on"


class VarianceLevel(NamedTuple):
    """The quantities of a layer whose inputs have a given variance.

    Attributes
    ----------
    inner : Moments
        At r, the variance of the argument of σ.
    stream : float
        p, the variance that the skip connection carries.
    mean : float
        m.
    factor : float
        t.
    following : float
        The variance after the layer.
    variance_slope : float
        The derivative of `following` with respect to q.
    gradient : float
        Φ′(1) if q is a fixed point: the factor of the expected squared gradient norm per layer of
        backpropagation.  It is ``skip² p/q + σ_w² t r E σ′(u)² / q``.
    error, gradient_error : float
        Relative errors of `following` and of `gradient`.
    """

    inner: Moments
    stream: float
    mean: float
    factor: float
    following: float
    variance_slope: float
    gradient: float
    error: float
    gradient_error: float


@dataclass(frozen=True, eq=False, kw_only=True)
class PairLayer(PairwiseLayer):
    """A layer whose moments have rigorous errors and derivatives."""

    @property
    def fixes_variance(self) -> bool:
        """Whether the variance after the layer does not depend on that of its input."""
        normalized = self.norm != "none" and self.eps == 0.0
        return normalized and (self.skip == 0.0 or self.streams_normalized)

    @property
    def is_scale_free(self) -> bool:
        """Whether the layer commutes with scaling, but for its bias: homogeneous and no norm."""
        return self.norm == "none" and self.sigma.slopes is not None

    @property
    def scale_rate(self) -> float:
        """Factor of the variance per layer, without bias, of a layer that is scale-free."""
        assert self.sigma.slopes is not None
        left, right = self.sigma.slopes
        return self.skip * self.skip + self.weight_variance * 0.5 * (left * left + right * right)

    def level(
        self, variance: float, of: Callable[[Dual, float], Moments] = moments
    ) -> VarianceLevel:
        """Return the level at a variance q > 0, from some moments.

        Raises
        ------
        ArgumentError
            If σ has no finite mean square, or is constant and is to be normalized.
        """
        inner = of(self.sigma, self.argument(variance))
        w, skip, stream = self.weight_variance, self.skip * self.skip, self.stream(variance)
        if self.norm_is_first:
            mean, factor, part, error = 0.0, 1.0, inner.square, inner.error
            # The derivative of the variance of the argument of σ.
            shrink = 1.0
            if self.norm != "none":
                shrink = self.eps / (variance + self.eps) / (variance + self.eps)
            slope = skip * (shrink if self.streams_normalized else 1.0)
            slope += w * shrink * inner.square_slope
        else:
            mean = inner.mean if self.norm == "layer" else 0.0
            lengths = inner.square - mean**2
            if not lengths > NO_VARIANCE * inner.square:
                allowed = f'a function that is not constant, since norm="{self.norm}" follows it'
                raise ArgumentError("activation", self.sigma.name, allowed)
            if lengths + self.eps < TINY:
                allowed = f'a function whose variance, by which norm="{self.norm}" divides, is '
                raise ArgumentError("activation", self.sigma.name, allowed + _NORMAL)
            factor = 1.0 / (lengths + self.eps)
            part, error = lengths * factor, 3.0 * inner.error * inner.square / lengths
            change = inner.square_slope - (2.0 * mean * inner.mean_slope if mean else 0.0)
            slope = skip + w * self.eps * factor * factor * change
        gradient = skip * stream + w * factor * inner.variance * inner.gradient
        return VarianceLevel(
            inner=inner,
            stream=stream,
            mean=mean,
            factor=factor,
            following=self.weighed(stream, part),
            variance_slope=slope,
            gradient=gradient / variance,
            error=error,
            gradient_error=inner.gradient_error + (0.0 if self.norm_is_first else error),
        )

    def rough_level(self, variance: float) -> VarianceLevel:
        """Return the level at q > 0 without errors, ``inf`` where the mean square is not finite."""
        return self.level(variance, rough_moments)

    def growth(self, variance: float) -> float:
        """Return the variance after the layer minus that before, without errors."""
        following = self.rough_level(variance).following
        return following - variance if following < math.inf else math.inf


def pair_layer(
    activation: ActivationLike, norm: str | Norm, order: str, **numbers: float
) -> PairLayer:
    """Check the arguments and return the layer.

    `numbers` are those attributes of `PairwiseLayer` that differ from their defaults.

    Raises
    ------
    ArgumentError, ArgumentTypeError, UnknownNameError
        If an argument is not allowed.
    """
    sigma = dual(activation)
    checked = {
        name: real(name, number, low=_LEAST.get(name, 0.0), high=_MOST)
        for name, number in numbers.items()
    }
    kind, order = _kind(norm), choice("order", order, ORDERS)
    return PairLayer(sigma=sigma, norm=kind, order=order, **checked)


def _kind(norm: str | Norm) -> str:
    """Return "none", "layer" or "rms" for an argument `norm`."""
    if isinstance(norm, Norm) and norm.axis != "batch":
        return kind_of(norm)
    name = norm.name if isinstance(norm, Norm) else norm
    if isinstance(norm, Norm) or str(name).startswith("batch"):
        raise PAIRWISE.refusal(name)
    return "layer" if str(name).startswith("group") else choice("norm", name, _NORMS)


# --- V as a function of the correlation

# Relative rounding error of a closed form.
_ROUNDING = 32.0 * EPSILON


class _OfDual(NamedTuple):
    """A dual activation at one variance: a closed form, or series and quadratures."""

    sigma: Dual
    inner: Moments

    def value(self, correlation: FloatArray) -> tuple[FloatArray, float]:
        """Return V(ρ) and its error."""
        value, _, error = self._pair(correlation, False)
        return value, error + _ROUNDING

    def slope(self, correlation: FloatArray) -> tuple[FloatArray, float]:
        """Return V′(ρ) and its error; if σ jumps, V′(±1) is infinite."""
        _, slope, error = self._pair(correlation, True)
        if np.isinf(self.inner.gradient):  # the form of "step" lacks the derivative of the jump
            with np.errstate(divide="ignore"):
                slope = 1.0 / (2.0 * np.pi * np.sqrt((1.0 - correlation) * (1.0 + correlation)))
            return slope, error + _ROUNDING
        slope = self.inner.variance * slope
        # The error of a series is relative to V′(1), that of this function to V′(ρ) or to V(1).
        scale = max(self.inner.square, float(np.abs(slope).max(initial=0.0)), TINY)
        return slope, error * self.inner.variance * self.inner.gradient / scale + _ROUNDING

    def _pair(
        self, correlation: FloatArray, needs_slope: bool
    ) -> tuple[FloatArray, FloatArray, float]:
        q, shape = self.inner.variance, correlation.shape
        left, right = (
            self.sigma.side(np.full(count, q), needs_slope) for count in (1, correlation.size)
        )
        covariance = q * correlation.reshape(1, -1)
        value, slope, error = self.sigma.pair(left, right, covariance, needs_slope)
        return value.reshape(shape), slope.reshape(shape), error


class PowerSeries(NamedTuple):
    """V(ρ) = Σ_k a_k² ρ^k, truncated.

    Attributes
    ----------
    squares : ndarray of shape (terms,)
        a_k².
    rest : float
        Σ a_k² over the terms that are left out.
    noise : float
        Relative error of the coefficients and of their sum.
    inner : Moments
    """

    squares: FloatArray
    rest: float
    noise: float
    inner: Moments

    def value(self, correlation: FloatArray) -> tuple[FloatArray, float]:
        """Return V(ρ) and its error."""
        size = np.abs(correlation)
        total = np.polynomial.polynomial.polyval(correlation, self.squares)
        missing = self.rest * size ** len(self.squares)
        total = np.where(correlation == 1.0, self.inner.square, total)
        total = np.where(correlation == -1.0, self.inner.mirror, total)
        missing = np.where(size == 1.0, 0.0, missing)
        worst = float(np.max(missing, initial=0.0)) / max(self.inner.square, TINY)
        return np.asarray(total), worst + self.noise

    def slope(self, correlation: FloatArray) -> tuple[FloatArray, float]:
        """Return V′(ρ) and its error."""
        terms = len(self.squares)
        series = np.polynomial.polynomial.polyder(self.squares)
        total = np.polynomial.polynomial.polyval(correlation, series)
        whole = self.inner.variance * self.inner.gradient
        size = np.abs(correlation)
        with np.errstate(divide="ignore", invalid="ignore"):
            # k ρ^(k−1) is largest at k = −1/ln ρ.
            peak = np.maximum(terms, -1.0 / np.log(np.minimum(size, 1.0 - EPSILON)))
            missing = self.rest * peak * size ** (peak - 1.0)
        if np.isfinite(whole):
            rest = max(whole - float(series.sum()), 0.0)
            missing = np.minimum(missing, rest * size ** (terms - 1))
        total = np.where(correlation == 1.0, whole, total)
        missing = np.where(correlation == 1.0, self.inner.gradient_error * whole, missing)
        scale = max(self.inner.square, float(np.max(np.abs(total), initial=0.0)), TINY)
        worst = float(np.max(missing, initial=0.0)) / scale if np.isfinite(scale) else 0.0
        largest = float(np.max(size, initial=0.0, where=size < 1.0))
        return np.asarray(total), worst + self.noise * min(terms, 1.0 / (1.0 - largest))


#: V(ρ) = E σ(u)σ(v) and its derivative with respect to ρ, on [−1, 1]: values, and the largest error
#: relative to V(1), or to V′(ρ) if that is larger.
_PairFunction = _OfDual | PowerSeries


def pair_function(sigma: Dual, inner: Moments) -> _PairFunction:
    """Return V at the variance of some moments.

    Raises
    ------
    ArgumentError
        If a series is needed and σ has no finite mean square.
    """
    if sigma.closed_form:
        return _OfDual(sigma, inner)
    series = expansion(sigma.function, np.array([inner.variance]))
    squares = series.coefficients[0] ** 2
    rest = max(inner.square - float(squares.sum()), float(series.rest[0]) * inner.square)
    return PowerSeries(squares, rest, float(2.0 * series.noise[0]) + inner.error, inner)


# --- the correlation map


class LevelMap(NamedTuple):
    """Φ at one level: the correlation after a layer, from that before it.

    Attributes
    ----------
    layer : PairLayer
    level : VarianceLevel
    pairs : _PairFunction
    """

    layer: PairLayer
    level: VarianceLevel
    pairs: _PairFunction

    def value(self, correlation: FloatArray) -> tuple[FloatArray, float]:
        """Return the correlations after the layer, and the largest error."""
        layer, level = self.layer, self.level
        value, error = self.pairs.value(correlation)
        outputs = level.factor * (value - level.mean**2)
        product = layer.weighed(level.stream * correlation, outputs)
        following = np.clip(product / self._following, -1.0, 1.0)
        # At c = 1 both are computed from the same moments, but rounded apart.
        following = np.where(correlation == 1.0, 1.0, following)
        return np.asarray(following), self._error(error)

    def slope(self, correlation: FloatArray) -> tuple[FloatArray, float]:
        """Return Φ′, and the largest error."""
        layer, level = self.layer, self.level
        slope, error = self.pairs.slope(correlation)
        total = (layer.skip * layer.skip * level.stream + self._weight * slope) / self._following
        return np.asarray(total), self._error(error)

    def image(self, correlation: float) -> float:
        """Return Φ at one correlation."""
        return float(self.value(np.array([correlation]))[0][0])

    def slope_at(self, correlation: float) -> float:
        """Return Φ′ at one correlation."""
        return float(self.slope(np.array([correlation]))[0][0])

    @property
    def integrated(self) -> LevelMap:
        """Φ by quadratures near correlation 1 and −1, where the series converges slowly."""
        return self._replace(pairs=_OfDual(self.layer.sigma, self.level.inner))

    @property
    def is_identity(self) -> bool:
        """Whether Φ(c) = c for all c."""
        probes = np.array([-1.0, 0.0, 0.5])
        return bool(np.all(np.abs(self.value(probes)[0] - probes) <= _ROUNDING))

    @property
    def is_odd(self) -> bool:
        """Whether Φ(−1) = −1, so that all even β_k are 0."""
        return self.image(-1.0) <= _ROUNDING - 1.0

    @property
    def _following(self) -> float:
        """The variance after the layer, by which covariances are divided."""
        if self.level.following < TINY:
            allowed = f"a function after which the variance is {_NORMAL}"
            raise ArgumentError("activation", self.layer.sigma.name, allowed)
        return self.level.following

    @property
    def _weight(self) -> float:
        return self.layer.weight_variance * self.level.factor

    def _error(self, of_pairs: float) -> float:
        """Return the error of Φ or Φ′, given that of V or V′ relative to V(1)."""
        scale = self._weight * self.level.inner.square / self._following
        return scale * of_pairs + self.level.error

    def shares(self) -> tuple[FloatArray, float] | None:
        """Return β_k for all terms of the series, and their error; None for a closed form."""
        if not isinstance(self.pairs, PowerSeries):
            return None
        layer, level = self.layer, self.level
        shares = self._weight * self.pairs.squares
        shares[0] += layer.bias_variance - self._weight * level.mean**2
        if len(shares) > 1:
            shares[1] += layer.skip * layer.skip * level.stream
        return np.maximum(shares / self._following, 0.0), self.pairs.noise + level.error


# The levels of several maps are remembered.
@lru_cache(maxsize=64)
def level_map(layer: PairLayer, variance: float) -> LevelMap:
    """Return Φ at a variance q > 0."""
    level = layer.level(variance)
    return LevelMap(layer, level, pair_function(layer.sigma, level.inner))
