"""Results of the correlation maps: fixed points, phases, trajectories of pairs."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from bnmc.mean_field.float64 import FloatArray

__all__ = ["CorrelationPoint", "PairTrajectory", "Phase", "VariancePoint"]


@dataclass(frozen=True, kw_only=True)
class VariancePoint:
    """A fixed point of the variance map; see `CorrelationMap.variance_fixed_points`.

    Attributes
    ----------
    variance : float
        q* ≥ 0, the variance of the pre-activations.
    slope : float
        The derivative of the variance map at q*: small deviations shrink by this factor per layer.
    error : float
        Bound of the error of q*, absolute below 1, relative above.  ``inf`` if the slope is 1
        within its error.

    Examples
    --------
    >>> from bnmc.mean_field import CorrelationMap
    >>> (point,) = CorrelationMap("tanh", bias_variance=0.1).variance_fixed_points()
    >>> round(point.variance, 6), round(point.slope, 6), point.stable
    (0.294985, 0.456487, True)
    """

    variance: float
    slope: float
    error: float

    @property
    def stable(self) -> bool:
        """Whether ``|slope| < 1``."""
        return abs(self.slope) < 1.0


@dataclass(frozen=True, kw_only=True)
class CorrelationPoint:
    """A fixed point of the correlation map; see `CorrelationMap.fixed_points`.

    Attributes
    ----------
    correlation : float
        c*, in [−1, 1].
    slope : float
        Φ′(c*): small deviations shrink by this factor per layer.
    stable : bool
        Whether correlations near c* converge to c*: ``slope < 1``, or ``slope = 1`` at c* = 1,
        where they converge like a power of the depth.
    error : float
        Bound of the error of c*.

    Examples
    --------
    >>> from bnmc.mean_field import CorrelationMap
    >>> low, high = CorrelationMap("gelu", norm="layer").fixed_points()
    >>> round(low.correlation, 6), round(low.depth, 3), high.stable
    (0.760402, 14.359, False)
    """

    correlation: float
    slope: float
    stable: bool
    error: float

    @property
    def depth(self) -> float:
        """Depth scale ξ = −1/ln|Φ′(c*)|, in layers; ``inf`` if it is no attractor."""
        return _depth(self.slope)


@dataclass(frozen=True, kw_only=True)
class Phase:
    """The phase of a network at initialization; see `CorrelationMap.phase`.

    Attributes
    ----------
    name : {"ordered", "critical", "chaotic"}
        Whether `gradient_factor` is below 1, equal to 1 within the tolerance, or above 1.
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
    gradient_factor : float
        χ = Φ′(1), the factor per layer of the expected squared gradient norm in backpropagation.
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
    gradient_factor: float
    error: float

    @property
    def variance_depth(self) -> float:
        """Depth scale ξ_q = −1/ln|dq_new/dq| of the variance, in layers."""
        return _depth(self.variance_rate)

    @property
    def correlation_depth(self) -> float:
        """Depth scale ξ_c = −1/ln|Φ′(c*)| of correlations, in layers; ``inf`` on the edge."""
        return _depth(self.correlation_rate)

    @property
    def gradient_depth(self) -> float:
        """Depth scale ``ξ_∇ = 1/|ln χ|`` of the squared gradient norm, in layers.

        Gradients vanish over this depth in the ordered phase and explode in the chaotic one.
        """
        growth = self.gradient_factor
        if growth in (0.0, math.inf):
            return 0.0
        return math.inf if self.name == "critical" else 1.0 / abs(math.log(growth))

    def __str__(self) -> str:
        """Return the phase, its fixed point and its depth scales in one line."""
        where = "depends on the inputs" if self.correlation is None else f"{self.correlation:.6g}"
        return (
            f"{self.name}: variance {self.variance:.6g}, correlation {where}, depth scale "
            f"{self.correlation_depth:.4g} layers; squared gradients ×{self.gradient_factor:.6g} "
            f"per layer, depth scale {self.gradient_depth:.4g} layers"
        )


@dataclass(frozen=True, kw_only=True)
class PairTrajectory:
    """Variances and correlations over depth; see `CorrelationMap.trajectory`.

    Attributes
    ----------
    variance : ndarray of shape (depth + 1,)
        q_l, the variance of the pre-activations of layer l.
    correlation : ndarray of shape (depth + 1, ...)
        c_l, with the shape of the argument `correlation` behind the axis of layers.
    gradient_factor : ndarray of shape (depth,)
        Factor of the expected squared gradient norm from layer l + 1 back to layer l.
    error : float
        Bound of the error of one application of the map, relative to the variance.  Errors of
        earlier layers propagate to later ones.

    Examples
    --------
    >>> from bnmc.mean_field import CorrelationMap
    >>> run = CorrelationMap("tanh").trajectory(2, correlation=0.5)
    >>> run.variance.round(6), run.correlation.round(6)
    (array([1.      , 0.394294, 0.23645 ]), array([0.5     , 0.472551, 0.462135]))
    """

    variance: FloatArray
    correlation: FloatArray
    gradient_factor: FloatArray
    error: float

    @property
    def layers(self) -> FloatArray:
        """The layers l, shape (depth + 1,)."""
        return np.arange(len(self.variance), dtype=np.float64)


def _depth(slope: float) -> float:
    size = abs(slope)
    if size == 0.0:
        return 0.0
    return -1.0 / math.log(size) if size < 1.0 else math.inf
