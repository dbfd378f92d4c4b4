"""An exponential fitted to correlated means: amplitude, limit and rate, with their errors."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from bnmc.estimate.estimate import Estimate
from bnmc.mixing._series import Float64Array

__all__ = ["LEAST_LAYERS", "SIGNAL", "Fit", "end_of_interval", "fitted"]
LEAST_LAYERS = 5

#: Standard errors that a deviation must have to stand out.
SIGNAL = 5.0
_ITERATIONS = 60
_NEARLY_1 = 1.0 - 1e-9

#: An artanh ρ beyond which a rate is 0 or 1 as far as data can tell.
_FAR = 7.0

#: Where the search for ρ begins.
_GRID = np.tanh(np.concatenate([np.linspace(-4.0, -0.05, 50), np.linspace(0.05, 4.0, 80)]))


@dataclass(frozen=True)
class Fit:
    """An exponential fitted to recorded layers `start` to `stop`.

    `parameters` are amplitude, limit less the known one, and ρ; `bend` is the coefficient of a
    term ``ρ^{2l}`` in its standard errors.
    """

    start: int
    stop: int
    parameters: Float64Array
    stderr: Float64Array
    bend: float
    data: _Data


def fitted(values: Float64Array, limit: Estimate | None, start: int, stop: int) -> Fit | None:
    """Fit an exponential; None where there is none that stands out."""
    if stop - start < LEAST_LAYERS - (limit is not None):
        return None
    y = values[:, start:stop] - (limit.value if limit else 0.0)
    noise = y - y.mean(axis=0)
    scale = math.sqrt(float(np.square(noise[:, 1:]).sum() * np.square(noise[:, :-1]).sum()))
    if scale == 0.0:
        return None
    r = min(max(float((noise[:, 1:] * noise[:, :-1]).sum()) / scale, -_NEARLY_1), _NEARLY_1)
    data = _Data(r, y, limit)
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
    return Fit(start, stop, np.append(coefficients, rho), stderr, bent, data)


def end_of_interval(data: _Data, z: float, half: float, allowed: float) -> float:
    """Return the nearest artanh ρ to one side of z that the score rejects, near ``z + half``."""
    from scipy.optimize import brentq

    def excess(z: float) -> float:
        return abs(data.score(math.tanh(z))) - allowed

    inner = 0.0
    while excess(z + half) <= 0:
        inner, half = half, 2 * half
        if abs(z + half) > _FAR:
            return math.copysign(math.inf, half)
    return float(brentq(excess, z + inner, z + half, xtol=1e-6 * abs(half)))


def _best_rho(data: _Data) -> float | None:
    """Minimise the squared residual over ρ, with the best amplitude for each.

    From the best ρ of a grid by Gauss and Newton's method for the projected residual (variable
    projection); None where that leads nowhere.
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
        if abs(rho) > _NEARLY_1:  # it does not decay
            break
        if abs(step) < 1e-11:
            return rho
    return None


def _without(f: Float64Array, units: list[Float64Array]) -> Float64Array:
    """Return what is orthogonal to orthonormal vectors."""
    for unit in units:
        f = f - (f @ unit)[..., None] * unit
    return f


class _Data:
    """The layers of a window, made independent of one another by their correlation r."""

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
        tail = (f[..., 1:] - self.r * f[..., :-1]) / math.sqrt(1.0 - self.r * self.r)
        return np.concatenate([f[..., :1], tail], axis=-1)

    def curve(self, rho: float | Float64Array) -> Float64Array:
        return self.white(np.power(rho, self.time, dtype=np.float64))

    def slope(self, rho: float) -> Float64Array:
        return self.white(self.time * rho ** np.maximum(self.time - 1, 0))

    def errors(self, rows: Float64Array) -> Float64Array:
        """Return the standard errors of linear functions of the target, from each chain."""
        variance = np.square(self.noise @ rows.T).sum(axis=0) / (self.chains * (self.chains - 1))
        errors: Float64Array = np.sqrt(
            variance + np.square(rows @ self.constant * self.limit_stderr)
        )
        return errors

    def solved(self, J: Float64Array, fitted: Float64Array) -> tuple[Float64Array, Float64Array]:
        """Return the change of the parameters to first order, and their standard errors."""
        inverse = np.linalg.pinv(J).astype(np.float64, copy=False)
        return inverse @ (self.target - fitted), self.errors(inverse)

    def directions(self, rho: float) -> tuple[Float64Array, Float64Array, float]:
        """Return the curve's unit vector and its slope free of all else, and the curve's norm."""
        curve = _without(self.curve(rho), self.units)
        norm = float(np.linalg.norm(curve))
        unit = curve / norm
        return unit, _without(self.slope(rho), [*self.units, unit]), norm

    def score(self, rho: float) -> float:
        """Return Student's statistic of the slope at a given rho: how far it is from the best."""
        _, slope, _ = self.directions(rho)
        return float(slope @ self.target) / float(self.errors(slope[None])[0])
