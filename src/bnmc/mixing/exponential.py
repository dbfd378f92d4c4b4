"""Least squares for an exponential through correlated means: amplitude, limit and rate.

The model of the mean over chains at recorded layer l of a window is ``A ρ^l + c``.  The layers of
a chain are correlated; their covariance is modelled as ``r^|l−l'|`` times a variance.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from bnmc.estimate.estimate import Estimate
from bnmc.mixing.observed import Float64Array

#: Fewest recorded layers of a window if the limit is fitted; one fewer suffices if it is known.
LEAST_LAYERS = 5

#: Least fitted amplitude, in standard errors.
SIGNAL = 5.0
#: Iterations of the Gauss–Newton method.
_ITERATIONS = 60

#: Largest modulus of a correlation and of ρ.
_NEARLY_1 = 1.0 - 1e-9

#: Largest artanh ρ of an interval; beyond it the data do not exclude a rate of 1.
_FAR = 7.0

#: Starting values of ρ.
_GRID = np.tanh(np.concatenate([np.linspace(-4.0, -0.05, 50), np.linspace(0.05, 4.0, 80)]))


@dataclass(frozen=True)
class ExponentialFit:
    """An exponential fitted to a window of recorded layers.

    Attributes
    ----------
    start, stop : int
        The window is ``start:stop`` in recorded layers.
    parameters, stderr : ndarray of float64
        Amplitude, limit (only if it is fitted) and ρ, with standard errors.
    bend : float
        Modulus of the coefficient of an added term ``ρ^{2l}``, in its standard errors.
    data : WhitenedWindow
    """

    start: int
    stop: int
    parameters: Float64Array
    stderr: Float64Array
    bend: float
    data: _WhitenedWindow


def fit_exponential(
    values: Float64Array, limit: Estimate | None, start: int, stop: int
) -> ExponentialFit | None:
    """Fit an exponential to the means of a window.

    Parameters
    ----------
    values : (chains, layers) ndarray of float64
    limit : Estimate or None
        The limit if it is known; None fits it.
    start, stop : int
        The window is ``start:stop``.

    Returns
    -------
    ExponentialFit or None
        None if the window is too short, nothing varies, or no exponential is significant.
    """
    if stop - start < LEAST_LAYERS - (limit is not None):
        return None
    y = values[:, start:stop] - (limit.value if limit else 0.0)
    noise = y - y.mean(axis=0)
    scale = math.sqrt(float(np.square(noise[:, 1:]).sum() * np.square(noise[:, :-1]).sum()))
    if scale == 0.0:
        return None
    r = min(max(float((noise[:, 1:] * noise[:, :-1]).sum()) / scale, -_NEARLY_1), _NEARLY_1)
    data = _WhitenedWindow(r, y, limit)
    rho = _best_rho(data)
    if rho is None:
        return None
    X = np.stack([data.curve(rho), *data.linear], axis=1)
    coefficients = np.linalg.lstsq(X, data.target)[0]
    J = np.column_stack([X, coefficients[0] * data.slope(rho)])
    _, stderr = data.solved(J, X @ coefficients)
    if abs(coefficients[0]) < SIGNAL * stderr[0]:
        return None
    bend, bend_stderr = data.solved(np.column_stack([J, data.curve(rho * rho)]), X @ coefficients)
    bent = float(abs(bend[-1]) / bend_stderr[-1])
    return ExponentialFit(start, stop, np.append(coefficients, rho), stderr, bent, data)


def end_of_interval(data: _WhitenedWindow, z: float, half: float, allowed: float) -> float:
    """Return one end of the confidence interval of artanh ρ.

    Parameters
    ----------
    data : WhitenedWindow
    z : float
        The estimate of artanh ρ.
    half : float
        First guess of the end less z; its sign selects the end.
    allowed : float
        Student's quantile.

    Returns
    -------
    float
        The nearest value at which the modulus of the score is `allowed`; infinite if there is
        none up to a modulus of 7.
    """
    from scipy.optimize import brentq

    def excess(z: float) -> float:
        return abs(data.score(math.tanh(z))) - allowed

    inner = 0.0
    while excess(z + half) <= 0:
        if abs(z + half) >= _FAR:
            return math.copysign(math.inf, half)
        inner, half = half, 2 * half
        if abs(z + half) > _FAR:
            half = math.copysign(_FAR, half) - z
    return float(brentq(excess, z + inner, z + half, xtol=1e-6 * abs(half)))


def _best_rho(data: _WhitenedWindow) -> float | None:
    """Return the ρ with the least squared residual at its best amplitude; None on failure.

    The Gauss–Newton method for the projected residual (variable projection) starts from the best
    ρ of a grid.
    """
    target = _without(data.target, data.units)
    curves = _without(data.curve(_GRID[:, None]), data.units)
    explained = np.square(curves @ target) / np.square(curves).sum(axis=1)
    rho = float(_GRID[int(np.argmax(explained))])
    for _ in range(_ITERATIONS):
        unit, slope, norm = data.directions(rho)
        overlap = float(target @ unit)
        if overlap == 0.0:
            break
        step = float(slope @ target) / (float(slope @ slope) * overlap / norm)
        step = math.copysign(min(abs(step), (1.0 - abs(rho)) / 2), step)
        rho += step
        if abs(rho) > _NEARLY_1:  # no decay
            break
        if abs(step) < 1e-11:
            return rho
    return None


def _without(f: Float64Array, units: list[Float64Array]) -> Float64Array:
    """Return the components of f orthogonal to orthonormal vectors."""
    for unit in units:
        f = f - (f @ unit)[..., None] * unit
    return f


class _WhitenedWindow:
    """The layers of a window, whitened for correlations ``r^|l−l'|``.

    Parameters
    ----------
    r : float
        Correlation of successive layers.
    y : (chains, layers) ndarray of float64
        Deviations from the limit, or values if the limit is None.
    limit : Estimate or None
    """

    def __init__(self, r: float, y: Float64Array, limit: Estimate | None) -> None:
        self.r = r
        self.chains, layers = y.shape
        self.time = np.arange(layers)
        self.target = self.white(y.mean(axis=0))
        self.noise = self.white(y - y.mean(axis=0))
        self.constant = self.white(np.ones(layers))
        self.limit_stderr = limit.stderr if limit else 0.0
        self.linear = [] if limit else [self.constant]
        self.units = [self.constant / np.linalg.norm(self.constant)] if self.linear else []

    def white(self, f: Float64Array) -> Float64Array:
        """Whiten functions of the layer, (..., layers)."""
        tail = (f[..., 1:] - self.r * f[..., :-1]) / math.sqrt(1.0 - self.r * self.r)
        return np.concatenate([f[..., :1], tail], axis=-1)

    def curve(self, rho: float | Float64Array) -> Float64Array:
        """Return the whitened exponential ``ρ^l``."""
        return self.white(np.power(rho, self.time, dtype=np.float64))

    def slope(self, rho: float) -> Float64Array:
        """Return the derivative of the curve by ρ."""
        return self.white(self.time * rho ** np.maximum(self.time - 1, 0))

    def errors(self, rows: Float64Array) -> Float64Array:
        """Return standard errors of linear functions of the target (sandwich formula)."""
        variance = np.square(self.noise @ rows.T).sum(axis=0) / (self.chains * (self.chains - 1))
        return np.sqrt(variance + np.square(rows @ self.constant * self.limit_stderr))

    def solved(self, J: Float64Array, fitted: Float64Array) -> tuple[Float64Array, Float64Array]:
        """Return the first-order change of the parameters, and their standard errors."""
        inverse = np.linalg.pinv(J).astype(np.float64, copy=False)
        return inverse @ (self.target - fitted), self.errors(inverse)

    def directions(self, rho: float) -> tuple[Float64Array, Float64Array, float]:
        """Return the unit vector of the curve, the slope orthogonal to it, and the curve's norm."""
        curve = _without(self.curve(rho), self.units)
        norm = float(np.linalg.norm(curve))
        unit = curve / norm
        return unit, _without(self.slope(rho), [*self.units, unit]), norm

    def score(self, rho: float) -> float:
        """Return Student's statistic of the derivative of the fit by ρ; 0 at the best ρ."""
        _, slope, _ = self.directions(rho)
        return float(slope @ self.target) / float(self.errors(slope[None])[0])
