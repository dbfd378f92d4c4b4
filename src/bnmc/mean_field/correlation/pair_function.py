"""E σ(u)σ(v) as a function of the correlation of two normal variables of one variance.

If the dual activation has a closed form, it is used.  If not, the function is a power series in the
correlation whose coefficients are not negative: the squares of the Hermite coefficients of σ.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

from bnmc.mean_field.correlation.functions import GaussianFunction
from bnmc.mean_field.correlation.gaussian_moments import Moments
from bnmc.mean_field.duals.closed_forms import CLOSED_FORMS, ClosedForm, homogeneous
from bnmc.mean_field.duals.series import expansion
from bnmc.mean_field.float64 import EPSILON, FloatArray

__all__ = ["PairFunction", "PowerSeries", "pair_function"]

# Relative rounding error of a closed form.
_ROUNDING = 32.0 * EPSILON


class PairFunction(Protocol):
    """V(ρ) = E σ(u)σ(v) and its derivative with respect to ρ, on [−1, 1]."""

    def value(self, correlation: FloatArray) -> tuple[FloatArray, float]:
        """Return V(ρ) and the largest error, relative to V(1)."""
        ...

    def slope(self, correlation: FloatArray) -> tuple[FloatArray, float]:
        """Return V′(ρ) and the largest error, relative to V′(ρ) or to V(1)."""
        ...


class Closed(NamedTuple):
    """A dual activation with a closed form, at one variance."""

    form: ClosedForm
    inner: Moments

    def value(self, correlation: FloatArray) -> tuple[FloatArray, float]:
        """Return V(ρ) and its error."""
        return self._pair(correlation)[0], _ROUNDING

    def slope(self, correlation: FloatArray) -> tuple[FloatArray, float]:
        """Return V′(ρ) and its error; if σ jumps, V′(±1) is infinite."""
        q = self.inner.variance
        slope = q * self._pair(correlation)[1]
        if np.isinf(self.inner.gradient):  # the form of "step" lacks the derivative of the jump
            with np.errstate(divide="ignore"):
                slope = 1.0 / (2.0 * np.pi * np.sqrt((1.0 - correlation) * (1.0 + correlation)))
        return np.asarray(slope), _ROUNDING

    def _pair(self, correlation: FloatArray) -> tuple[FloatArray, FloatArray]:
        q = np.asarray(self.inner.variance)
        with np.errstate(over="ignore", invalid="ignore"):
            return self.form.pair(q, q, np.asarray(q * correlation))


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
        worst = float(np.max(missing, initial=0.0)) / self.inner.square
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
        scale = max(self.inner.square, float(np.max(np.abs(total), initial=0.0)))
        worst = float(np.max(missing, initial=0.0)) / scale if np.isfinite(scale) else 0.0
        return np.asarray(total), worst + self.noise * min(terms, 1.0 / (1.0 - _largest(size)))


def pair_function(function: GaussianFunction, inner: Moments) -> PairFunction:
    """Return V at the variance of some moments.

    Raises
    ------
    ArgumentError
        If a series is needed and σ has no finite mean square.
    """
    if function.expanded is None:
        form = (
            homogeneous(*function.slopes)
            if function.slopes is not None
            else CLOSED_FORMS[function.name]
        )
        return Closed(form, inner)
    found = expansion(function.expanded, np.array([inner.variance]))
    squares = found.coefficients[0] ** 2
    rest = max(inner.square - float(squares.sum()), float(found.rest[0]) * inner.square)
    return PowerSeries(squares, rest, float(2.0 * found.noise[0]) + inner.error, inner)


def _largest(size: FloatArray) -> float:
    """Return the largest entry below 1."""
    return float(np.max(np.where(size < 1.0, size, 0.0), initial=0.0))
