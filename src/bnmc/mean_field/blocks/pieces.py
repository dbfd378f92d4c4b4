"""An activation as polynomials on panels, with its corners and jumps."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.polynomial import legendre

from bnmc.chain.activations import Activation
from bnmc.mean_field.float64 import FloatArray
from bnmc.mean_field.quadrature.deviation import explosive, largest_deviation, singularities
from bnmc.mean_field.quadrature.panels import gauss_legendre
from bnmc.mean_field.quadrature.resolution import panels_of

__all__ = ["Pieces", "pieces"]

# Nodes per panel.
_ORDER = 20

# A change of σ or σ′ counts as a jump if it is larger than this, relative to the largest |σ|.
_JUMP = 1e-6

# If σ varies by at most this, relative to the largest |σ|, it is constant.
_CONSTANT = 1e-12


@dataclass(frozen=True)
class Pieces:
    """An activation σ on an interval, as polynomials on panels.

    Attributes
    ----------
    function : Activation
        σ.
    shift : float
        σ(0), which `value` subtracts: a large constant would cancel in variances.
    breaks : ndarray of shape (panels + 1,)
        Ends of the panels, increasing.
    corners : ndarray
        Points at which σ or its derivative jumps, and the declared kinks.
    jumps : ndarray
        Points at which σ jumps, or else ∫ σ′² is infinite.
    singular : bool
        Whether σ′ is infinite but square integrable at a point.
    slopes : ndarray of shape (panels, degree)
        Legendre coefficients of the derivative of σ.
    is_constant : bool
        Whether σ is constant to rounding.
    largest : float
        Largest |σ − σ(0)|.
    deviation : float
        Largest deviation of σ from polynomials on panels; deviations on panels shorter than 1e-6
        count times their length.
    """

    function: Activation
    shift: float
    breaks: FloatArray
    corners: FloatArray
    jumps: FloatArray
    singular: bool
    slopes: FloatArray
    is_constant: bool
    largest: float
    deviation: float

    def value(self, x: FloatArray) -> FloatArray:
        """Return σ(x) − σ(0)."""
        return np.asarray(self.function(x), dtype=np.float64) - self.shift

    def slope(self, x: FloatArray) -> FloatArray:
        """Return the derivative of σ at x."""
        panel = np.clip(np.searchsorted(self.breaks, x) - 1, 0, self.breaks.size - 2)
        low, high = self.breaks[panel], self.breaks[panel + 1]
        local = (2.0 * x - low - high) / (high - low)
        return np.asarray(legendre.legval(local, self.slopes[panel].T, tensor=False))

    def jumps_within(self, x: FloatArray) -> bool:
        """Return whether σ jumps between the smallest and the largest entry of x."""
        return bool(np.any((self.jumps > x.min()) & (self.jumps < x.max())))


@lru_cache(maxsize=32)
def pieces(activation: Activation, limit: float) -> Pieces:
    """Return the pieces of an activation on [−limit, limit].

    Raises
    ------
    UnresolvedError
        If the activation is not finite, or needs too many panels.
    """
    breaks = panels_of(activation, limit)
    shift = float(activation(np.zeros(1))[0])
    nodes, weights, _, _ = gauss_legendre(_ORDER)
    half = 0.5 * np.diff(breaks)[:, None]
    values = activation(0.5 * (breaks[1:] + breaks[:-1])[:, None] + half * nodes) - shift
    degree = np.arange(_ORDER)
    vandermonde = legendre.legvander(nodes, _ORDER - 1)
    coefficients = (values * weights) @ vandermonde * (degree + 0.5)
    slopes = np.asarray(legendre.legder(coefficients, axis=1) / half, dtype=np.float64)
    scale = float(np.abs(values).max())
    # Derivatives on narrow panels have the rounding error of the values, divided by the width.
    narrow = np.minimum(half[1:, 0], half[:-1, 0])
    jumps = _gaps(coefficients) > _JUMP * scale
    corners = jumps | (_gaps(slopes) > _JUMP * scale * (1.0 + 1e-4 / narrow))
    rough = explosive(activation, breaks)
    declared = [kink for kink in activation.kinks if -limit < kink < limit]
    return Pieces(
        function=activation,
        shift=shift,
        breaks=breaks,
        corners=np.unique(np.concatenate([breaks[1:-1][corners], declared])),
        jumps=np.union1d(breaks[1:-1][jumps], rough),
        singular=rough.size == 0 and bool(singularities(activation, breaks)),
        slopes=slopes,
        is_constant=float(np.ptp(values)) <= _CONSTANT * max(scale, abs(shift)),
        largest=scale,
        deviation=largest_deviation(activation, breaks),
    )


def _gaps(series: FloatArray) -> FloatArray:
    """Return the jumps of Legendre series (panels, degree) between neighbouring panels."""
    right = series.sum(axis=1)
    left = (series * (-1.0) ** np.arange(series.shape[1])).sum(axis=1)
    return np.asarray(np.abs(left[1:] - right[:-1]))
