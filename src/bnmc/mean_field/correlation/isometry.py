"""Rates of isometry: how fast inputs become orthogonal if a norm follows the activation."""

from __future__ import annotations

from dataclasses import dataclass

from bnmc._support.arguments import real
from bnmc.errors import ArgumentError, PartialEstimateError
from bnmc.mean_field.correlation.functions import ActivationLike, gaussian_function
from bnmc.mean_field.correlation.gaussian_moments import moments

__all__ = ["IsometryRate", "isometry_rate"]

# A variance of σ below this part of its mean square is rounding.
_NO_VARIANCE = 1e-13


@dataclass(frozen=True, kw_only=True)
class IsometryRate:
    """Rates of a network with layer normalization after σ; `isometry_rate` returns them.

    Attributes
    ----------
    beta : float
        β = 2 − Φ′(0), in [1, 2]: 1 for a linear activation.
    correlation_rate : float
        Φ′(0): small correlations shrink by this factor per layer.
    gap_rate : float
        Φ′(0)²: near the identity, the isometry gap shrinks by this factor per layer.
    escape_rate : float
        Φ′(1): the distance of nearly equal inputs, 1 − c, grows by this factor per layer.
    error : float
        Bound of the error of `beta`.

    Examples
    --------
    >>> from bnmc.mean_field import isometry_rate
    >>> tanh = isometry_rate("tanh")
    >>> round(tanh.beta, 6), round(tanh.gap_rate, 6)
    (1.06953, 0.865774)
    """

    beta: float
    correlation_rate: float
    gap_rate: float
    escape_rate: float
    error: float


def isometry_rate(
    activation: ActivationLike, *, variance: float = 1.0, rtol: float = 1e-8
) -> IsometryRate:
    """Rate at which the Gram matrix tends to a multiple of the identity, norm after activation.

    Parameters
    ----------
    activation : str, Activation or callable
        As in `CorrelationMap`.
    variance : float, default 1
        Variance of the pre-activations, σ_w² > 0.
    rtol : float, default 1e-8
        Largest acceptable error of β.

    Returns
    -------
    IsometryRate

    Raises
    ------
    ArgumentError, ArgumentTypeError, UnknownNameError
        If an argument is not allowed, or the activation is constant or has no finite mean square.
    PartialEstimateError
        If `rtol` is not reached; ``partial`` is the `IsometryRate`.

    Notes
    -----
    With the normalized Hermite coefficients c_k of z ↦ σ(√q z), the correlation map of
    ``h ← W N(σ(h))``, N layer normalization, is ``Φ(c) = Σ_{k≥1} c_k² c^k / Σ_{k≥1} c_k²``, so

        β = 2 − c_1² / Σ_{k≥1} c_k² = 2 − Φ′(0)

    (Joudaki, Daneshmand and Bach, arXiv 2305.18399, as in their code). The isometry gap of a Gram
    matrix G of n samples is ``ln(tr G/n) − ln(det G)/n``. For small correlations it is the sum of
    their squares over pairs, divided by n, to leading order.

    Examples
    --------
    >>> from bnmc.mean_field import isometry_rate
    >>> relu = isometry_rate("relu")
    >>> round(relu.beta, 6), round(relu.correlation_rate, 6), round(relu.escape_rate, 6)
    (1.266529, 0.733471, 1.466942)
    """
    function = gaussian_function(activation)
    found = moments(function, real("variance", variance, above=0.0))
    rtol = real("rtol", rtol, above=0.0)
    spread = found.square - found.mean**2
    if not spread > _NO_VARIANCE * found.square:
        raise ArgumentError("activation", function.name, "a function that is not constant")
    slope = min(found.first**2 / spread, 1.0)
    error = 3.0 * found.error * (found.square / spread) * (1.0 + slope)
    result = IsometryRate(
        beta=2.0 - slope,
        correlation_rate=slope,
        gap_rate=slope**2,
        escape_rate=found.variance * found.gradient / spread,
        error=error,
    )
    if not error <= rtol:
        raise PartialEstimateError(f"β known to {error:.1e} only, rtol is {rtol:g}", result)
    return result
