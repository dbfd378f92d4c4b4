"""The phase of a network, from the fixed point of its variance, and the edge between the phases.

The edge of chaos consists of the variances of weights and biases at which χ = Φ′(1) is 1.
Without normalization, χ = σ_w² S(q) with S(q) = E σ′(u)² and q the fixed point of the variance,
q = σ_w² V(q) + σ_b².  So the edge is a curve with the parameter q,

    σ_w² = 1/S(q),    σ_b² = q − V(q)/S(q).

With a norm after σ, χ = σ_w² S(q)/v(q), v the variance or the mean square of σ that the norm
divides by, and q = σ_w² + σ_b².  So σ_w² = v(q)/S(q), and σ_b² = q − v(q)/S(q).  With a norm before
σ, χ = σ_w² S(1)/(σ_w² V(1) + σ_b²), so that the edge is the line σ_b² = σ_w² (S(1) − V(1)).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bnmc._support.arguments import real, real_numbers
from bnmc._support.text import Result
from bnmc.chain.activations import ActivationLike
from bnmc.chain.norms import Norm
from bnmc.errors import ArgumentError
from bnmc.mean_field.correlation import fixed_points, gaussian_moments
from bnmc.mean_field.correlation.layer import LevelMap, PairLayer, level_map, pair_layer
from bnmc.mean_field.float64 import EPSILON, FloatArray, within
from bnmc.plot.drawn import Curves

# The limit of infinite variance is evaluated here.
_LARGE = 1e12

# Slopes of σ left and right of 0 that differ by less than this part are equal.
_SAME = 1e-6


@dataclass(frozen=True, kw_only=True)
class Phase(Result):
    """The phase of a network at initialization; see `CorrelationMap.phase`.

    Attributes
    ----------
    name : {"ordered", "critical", "chaotic"}
        Whether `backward_rate` is below 1, equal to 1 within the tolerance, or above 1.  Only if
        q* is positive and finite, the name also says whether nearly equal inputs approach.
    variance : float
        q*, the variance that the pre-activations converge to; 0 and ``inf`` are possible.
    variance_rate : float
        Factor per layer by which deviations from q* shrink; if q* is 0 or infinite, the factor of
        the variance itself per layer.
    correlation : float or None
        c*, the correlation that two inputs converge to.  None if it depends on the inputs: if Φ is
        the identity, or the network becomes linear because q* is 0.
    correlation_rate : float
        Φ′(c*), the factor per layer by which deviations from c* shrink; 1 if `correlation` is None.
        Φ′(1) is χ if q* is positive and finite, and else χ divided by `variance_rate`.
    backward_rate : float
        χ, the factor per layer of the expected squared gradient norm in backpropagation.
    error : float
        Bound of the error of χ, relative if χ exceeds 1.

    Examples
    --------
    >>> from bnmc.mean_field import CorrelationMap
    >>> phase = CorrelationMap("tanh", weight_variance=1.5, bias_variance=0.05).phase()
    >>> phase.name, round(phase.correlation_depth, 4), round(phase.gradient_depth, 4)
    ('ordered', 15.791, 15.791)
    """

    name: str
    variance: float
    variance_rate: float
    correlation: float | None
    correlation_rate: float
    backward_rate: float
    error: float

    @property
    def variance_depth(self) -> float:
        """Depth scale ξ_q = −1/ln|dq_new/dq| of the variance, in layers."""
        return fixed_points.depth_scale(self.variance_rate)

    @property
    def correlation_depth(self) -> float:
        """Depth scale ξ_c = −1/ln|Φ′(c*)| of correlations, in layers; ``inf`` on the edge."""
        return fixed_points.depth_scale(self.correlation_rate)

    @property
    def gradient_depth(self) -> float:
        """Depth scale ``ξ_∇ = 1/|ln χ|`` of the squared gradient norm, in layers.

        Gradients vanish over this depth in the ordered phase and explode in the chaotic one.
        """
        growth = self.backward_rate
        if growth in (0.0, math.inf):
            return 0.0
        return math.inf if self.name == "critical" else 1.0 / abs(math.log(growth))

    def __str__(self) -> str:
        """Return the phase, its fixed point and its depth scales in one line."""
        where = "depends on the inputs" if self.correlation is None else f"{self.correlation:.6g}"
        return (
            f"{self.name}: variance {self.variance:.6g}, correlation {where}, depth scale "
            f"{self.correlation_depth:.4g} layers; squared gradient norm ×{self.backward_rate:.6g} "
            f"per layer, depth scale {self.gradient_depth:.4g} layers"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the phase and its depth scales, in layers, for `json.dumps`."""
        return {
            "phase": self.name,
            "variance": self.variance,
            "variance_depth": self.variance_depth,
            "correlation": self.correlation,
            "correlation_depth": self.correlation_depth,
            "backward_rate": self.backward_rate,
            "gradient_depth": self.gradient_depth,
            "error": self.error,
        }


def phase_of(layer: PairLayer, variance: float, atol: float) -> tuple[Phase, float]:
    """Return the phase, and the error of its least accurate number.

    Parameters
    ----------
    layer : PairLayer
    variance : float
        The attractor of the variance, possibly 0 or ``inf``.
    atol : float
        Largest |χ − 1| of the critical phase.
    """
    finite = 0.0 < variance < math.inf
    rates = _rates if finite and not layer.is_scale_free else _limits
    gradient, variance_rate, error = rates(layer, variance)
    correlation: float | None = 1.0
    rate, worst = gradient if finite else 1.0, error
    if not finite:
        bias_wins = variance > 0.0 and gradient <= 1.0 + atol and layer.bias_variance > 0.0
        if not (bias_wins or _is_bent(layer, math.sqrt(_probe(variance)))):
            correlation = None
    elif (at := _map_at(layer, variance)).is_identity:
        correlation, rate = None, 1.0
    elif gradient > 1.0 + atol:
        points = fixed_points.correlation_points(at, atol)
        inner = next(point for point in points if point.stable)
        correlation, rate, worst = inner.correlation, inner.slope, max(inner.error, error)
    name = "ordered" if gradient < 1.0 else "chaotic"
    phase = Phase(
        name="critical" if abs(gradient - 1.0) <= atol else name,
        variance=variance,
        variance_rate=variance_rate,
        correlation=correlation,
        correlation_rate=rate,
        backward_rate=gradient,
        error=error,
    )
    return phase, worst


def _map_at(layer: PairLayer, variance: float) -> LevelMap:
    """Return Φ at a fixed point of the variance, however small it is."""
    if layer.is_scale_free:
        layer, variance = replace(layer, bias_variance=layer.bias_variance / variance), 1.0
    return level_map(layer, variance)


def _rates(layer: PairLayer, variance: float) -> tuple[float, float, float]:
    """Return χ at a fixed point of the variance, the slope of the variance map, the error of χ.

    The error is that of the moments, and that of the fixed point.
    """
    level = level_map(layer, variance).level
    gradient, slope = level.gradient, level.variance_slope
    if not math.isfinite(gradient):
        return gradient, slope, 0.0
    error = level.gradient_error * gradient
    if not layer.fixes_variance:
        # A change of q by its error changes χ by the difference quotient over 1 %, about.
        shift = (level.error + 4.0 * EPSILON) * variance
        escape = max(abs(1.0 - slope), math.sqrt(shift / variance))
        change = layer.rough_level(1.01 * variance).gradient - gradient
        error += 2.0 * abs(change) / (0.01 * variance) * shift / escape
    return gradient, slope, error / max(1.0, gradient)


def _probe(variance: float) -> float:
    """Return a variance at which the layer is near its limit for the variance 0 or ``inf``."""
    return fixed_points.SMALLEST if variance == 0.0 else _LARGE


def _limits(layer: PairLayer, variance: float) -> tuple[float, float, float]:
    """Return the limits of χ and of the factor of the variance, and the error of χ.

    χ converges at least like the root of the distance from the limit, if it does.  `variance` is 0
    or ``inf``, unless the layer is scale-free.
    """
    if layer.is_scale_free:
        return layer.scale_rate, layer.scale_rate, 4.0 * EPSILON
    probe = _probe(variance)
    level = layer.rough_level(probe)
    rate = level.following / probe
    if probe < 1.0:
        limit, error = fixed_points.gradient_at_zero(layer.sigma)
        share = layer.weight_variance * level.factor * level.inner.variance / probe
        gradient = layer.skip * layer.skip * level.stream / probe + share * limit
        return gradient, gradient, error
    other = layer.rough_level(probe / 4.0)
    if not level.gradient < 1.5 * other.gradient:
        return math.inf, math.inf, 0.0
    error = 2.0 * abs(level.gradient - other.gradient) + 64.0 * EPSILON * level.gradient
    return level.gradient, rate, error / max(1.0, level.gradient)


def _is_bent(layer: PairLayer, x: float) -> bool:
    """Whether σ at the scale x is homogeneous of degree 1 with two different slopes."""
    with np.errstate(all="ignore"):
        points = np.array([x, -x, 2.0 * x, -2.0 * x])
        right, left, *twice = np.asarray(layer.sigma.function(points), dtype=np.float64) / x
    if not np.isfinite([right, left, *twice]).all():
        return False
    scale = max(abs(right), abs(left))
    straight = np.abs(twice - 2.0 * np.array([right, left])).max() <= _SAME * scale
    return bool(scale > 0.0 and straight and abs(right + left) > _SAME * scale)


# --- the edge between the phases

# The smallest root without bias.
_SMALLEST_ROOT = 1e-5

# Relative step of difference quotients for the propagation of errors.
_STEP = 1e-3


@dataclass(frozen=True, kw_only=True)
class EdgeOfChaos(Curves, Result):
    """Points of the edge of chaos; `edge_of_chaos` returns them, and `plot` draws them.

    All arrays have the shape of the argument `bias_variance`.

    Attributes
    ----------
    bias_variance, weight_variance : ndarray of float64
        σ_b² and σ_w².
    variance : ndarray of float64
        q*, the variance of the pre-activations.
    variance_slope : ndarray of float64
        The derivative of the variance map at q*. At q* = 0 it is 1; it is the next larger number if
        q* = 0 repels.
    error : ndarray of float64
        Bound of the relative error of σ_w²: errors of the quadrature, propagated to first order.

    Examples
    --------
    >>> from bnmc.mean_field import edge_of_chaos
    >>> edge = edge_of_chaos("gelu", [0.05, 0.3])
    >>> edge.weight_variance.round(6), edge.stable
    (array([2.30252 , 1.956159]), array([False,  True]))
    """

    _axis = "bias_variance", "variance of the biases"
    _curves = MappingProxyType({"weight_variance": "variance of the weights, times the inputs"})

    bias_variance: FloatArray
    weight_variance: FloatArray
    variance: FloatArray
    variance_slope: FloatArray
    error: FloatArray

    @property
    def stable(self) -> NDArray[np.bool_]:
        """Whether q* attracts: ``|variance_slope| <= 1``. It is 1 at q* = 0."""
        return np.asarray(np.abs(self.variance_slope) <= 1.0)


class _Point(NamedTuple):
    """The edge at one bias variance; the names are those of `EdgeOfChaos`."""

    weight_variance: float
    variance: float
    variance_slope: float
    error: float


def edge_of_chaos(
    activation: ActivationLike,
    bias_variance: ArrayLike = 0.0,
    *,
    norm: str | Norm = "none",
    order: str = "norm-activation",
    rtol: float = 1e-8,
) -> EdgeOfChaos:
    """Weight variances at the edge of chaos, where gradients neither vanish nor explode.

    Parameters
    ----------
    activation : str, Activation or callable
        As in `CorrelationMap`.
    bias_variance : array_like of real numbers, default 0
        σ_b² >= 0.
    norm, order
        As in `CorrelationMap`; skip and eps are 0.
    rtol : float, default 1e-8
        Largest acceptable relative error of σ_w².

    Returns
    -------
    EdgeOfChaos
        With one σ_w² for each σ_b². If several variances q* qualify, the smallest one that is an
        attractor is taken, or the smallest one if none is.

    Raises
    ------
    ArgumentError, ArgumentTypeError, UnknownNameError
        If an argument is not allowed, or there is no edge at a bias variance. For example, the edge
        of relu without norm is the single point σ_w² = 2, σ_b² = 0.
    PartialEstimateError
        If `rtol` is not reached; ``partial`` is the `EdgeOfChaos`.

    Notes
    -----
    With ``V(q) = E σ(u)²`` and ``S(q) = E σ′(u)²`` for u normal of variance q, the edge without
    norm is ``σ_w² = 1/S(q*)``, ``σ_b² = q* − V(q*)/S(q*)`` (Schoenholz et al., arXiv 1611.01232).
    The module has the formulas with norms. For a positively homogeneous activation without norm,
    every variance is a fixed point on the edge, and `EdgeOfChaos.variance` is 1.

    Examples
    --------
    >>> from bnmc.mean_field import edge_of_chaos
    >>> edge = edge_of_chaos("tanh", [0.0, 0.05, 0.3])
    >>> edge.weight_variance.round(9)
    array([1.        , 1.76095464, 2.50512719])
    >>> float(edge_of_chaos("relu").weight_variance)
    2.0
    """
    layer = pair_layer(activation, norm, order)
    biases = real_numbers("bias_variance", bias_variance, low=0)
    rtol = real("rtol", rtol, above=0.0)
    if math.isinf(gaussian_moments.rough_moments(layer.sigma, 1.0).gradient):
        hint = "it jumps, so every network is chaotic"
        raise ArgumentError("activation", layer.sigma.name, "a continuous function", hint)
    points = [_point(layer, float(bias)) for bias in biases.reshape(-1)]
    columns = {
        name: np.reshape([getattr(point, name) for point in points], biases.shape)
        for name in _Point._fields
    }
    edge = EdgeOfChaos(bias_variance=biases, **columns)
    return within(edge, float(np.max(edge.error, initial=0.0)), rtol, "edge")


def _curve(layer: PairLayer, at: gaussian_moments.Moments) -> tuple[float, float]:
    """Return σ_w² and σ_b² at the point of the curve with the parameter q; NaN if there is none."""
    if not math.isfinite(at.square) or at.gradient == 0.0:
        return math.nan, math.nan
    centred = layer.norm == "layer" and not layer.norm_is_first
    ratio = (at.square - at.mean**2 if centred else at.square) / at.gradient
    weight = 1.0 / at.gradient if layer.norm_is_first else ratio
    return weight, at.variance - ratio


def _rough_bias(layer: PairLayer, variance: float) -> float:
    """Return σ_b² of the curve without errors."""
    return _curve(layer, gaussian_moments.rough_moments(layer.sigma, variance))[1]


def _point(layer: PairLayer, bias: float) -> _Point:
    """Return the edge at one bias variance."""
    if layer.fixes_variance and layer.norm_is_first:
        return _on_line(layer, bias)
    if layer.is_scale_free:
        if bias > 0.0:
            raise _no_edge(layer, bias, "of a homogeneous activation is a single point, at 0")
        return _Point(1.0 / layer.scale_rate, 1.0, 1.0, 8.0 * EPSILON)
    # Without bias, the curve comes near 0 for small q like q³, below the rounding of its parts.
    smallest = fixed_points.SMALLEST if bias > 0.0 else _SMALLEST_ROOT
    roots = fixed_points.variance_roots(lambda q: _rough_bias(layer, q) - bias, smallest)
    points = [_at(layer, q) for q in roots]
    if bias == 0.0 and layer.norm == "none":
        points = _with_zero(layer, points)
    if not points:
        raise _no_edge(layer, bias, "does not pass here")
    stable = [point for point in points if abs(point.variance_slope) <= 1.0]
    return (stable or points)[0]


def _on_line(layer: PairLayer, bias: float) -> _Point:
    """Return the edge with a norm before σ, where the variance in σ is 1."""
    at = gaussian_moments.moments(layer.sigma, 1.0)
    gap = at.gradient - at.square
    noise = at.gradient_error * at.gradient + at.error * at.square
    if bias == 0.0 or gap <= noise:
        always = "critical" if abs(gap) <= noise else "chaotic" if gap > 0.0 else "ordered"
        raise _no_edge(layer, bias, f"does not pass here: without bias every network is {always}")
    weight = bias / gap
    return _Point(weight, weight * at.square + bias, 0.0, noise / gap + EPSILON)


def _at(layer: PairLayer, variance: float) -> _Point:
    """Return the point of the curve with the parameter q."""
    at = gaussian_moments.moments(layer.sigma, variance)
    weight, bias = _curve(layer, at)
    step = _STEP * variance
    later, moved = _curve(layer, gaussian_moments.rough_moments(layer.sigma, variance + step))
    spread = 3.0 * at.error + at.gradient_error
    noise = (variance - bias) * spread + 4.0 * EPSILON * variance
    steepness = abs(moved - _rough_bias(layer, variance)) / step
    shift = noise / steepness if steepness > 0.0 else math.inf
    error = spread + 2.0 * abs(later / weight - 1.0) / step * shift
    slope = weight * at.square_slope if layer.norm == "none" else 0.0
    return _Point(weight, variance, slope, error)


def _with_zero(layer: PairLayer, points: list[_Point]) -> list[_Point]:
    """Add the limit q → 0 to the points without bias, if σ(0) = 0 and σ′(0) is not 0."""
    smallest = fixed_points.SMALLEST
    least = gaussian_moments.rough_moments(layer.sigma, smallest)
    limit, error = fixed_points.gradient_at_zero(layer.sigma)
    if not abs(least.square - smallest * limit) <= 1e-3 * smallest * limit:
        return points
    # The slope is 1 there.  The variance decreases if the curve leaves upwards.
    falls = _rough_bias(layer, _SMALLEST_ROOT) >= 0.0
    zero = _Point(1.0 / limit, 0.0, 1.0 if falls else 1.0 + EPSILON, error)
    return [zero, *points] if falls else [*points, zero]


def _no_edge(layer: PairLayer, bias: float, there: str) -> ArgumentError:
    hint = f"the edge of {layer.sigma.name} with norm {layer.norm!r} {there}"
    return ArgumentError("bias_variance", bias, "a bias variance with an edge of chaos", hint)
