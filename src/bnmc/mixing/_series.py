"""What the estimators that read a run share: reading it, errors from stretches, symmetry."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bnmc._support.arguments import finite_array, integer
from bnmc.errors import ArgumentError, ArgumentTypeError, UnknownNameError
from bnmc.simulation.trajectory import Trajectory

__all__ = [
    "LEAST_STRETCHES",
    "STRETCH_TIMES",
    "Float64Array",
    "Function",
    "Series",
    "centred",
    "contrast",
    "cuts",
    "gram_of",
    "rate_from_artanh",
    "read",
    "read_scalar",
    "sector",
]


Float64Array = NDArray[np.float64]

Function = Callable[[Float64Array], ArrayLike]

#: An error rests on at least so many stretches of the run, and on no more than it needs.
LEAST_STRETCHES, STRETCHES = 5, 50

#: A chain that is cut gives stretches of at least so many correlation times.
STRETCH_TIMES = 10

#: An observable varies by more than so much of its size, or it is constant to rounding.
_CONSTANT = 1e-12
_MOST = 1e140


@dataclass(frozen=True)
class Series:
    """Observables of a run in order of depth.

    Attributes
    ----------
    values : (chains, layers, features) ndarray of float64
    layers : (layers,) ndarray of int
        Equally spaced.
    stride : int
        Layers from one to the next.
    """

    values: Float64Array
    layers: NDArray[np.int64]
    stride: int


def read(run: object, argument: str, observables: object, burn_in: int = 0) -> Series:
    """Return observables of a run, or the array that was passed in its place, side by side.

    `argument` is what the caller calls the observables.  Each is a name in the run or a function
    of its Gram matrices.
    """
    if isinstance(run, Trajectory):
        layers = run.layers
        wanted = observables if isinstance(observables, (list, tuple)) else [observables]
        if not wanted:
            raise ArgumentError(argument, wanted, "at least one name or function of G")
        columns = [_values(run, argument, one) for one in wanted]
        values = np.concatenate([c.reshape(*c.shape[:2], -1) for c in columns], axis=2)
        values = finite_array(argument, values, shape=("chains", "layers", "features"))
    else:
        if observables is not None:
            allowed = "None for an array, which has the values already"
            raise ArgumentError(argument, observables, allowed)
        argument = "run"
        values = finite_array("run", run, shape=(...,))
        if values.ndim == 2:
            values = values[:, :, None]
        values = finite_array("run", values, shape=("chains", "layers", "features"))
        layers = np.arange(values.shape[1])
    largest = float(np.abs(values).max())
    if largest > _MOST:
        raise ArgumentError(argument, largest, f"values up to {_MOST:g}, whose squares have sums")
    kept = layers >= integer("burn_in", burn_in, low=0)
    layers, values = layers[kept], values[:, kept].astype(np.float64)
    if len(layers) < 4:
        hint = f"{len(layers)} from layer {burn_in} on"
        raise ArgumentError("run", run, "a run of at least 4 recorded layers", hint)
    strides = np.diff(layers)
    if (strides != strides[0]).any():
        hint = "let depth − burn_in be a multiple of every"
        raise ArgumentError("run", run, "equally spaced layers", hint)
    return Series(values, layers, int(strides[0]))


def read_scalar(run: object, observable: object, burn_in: int = 0) -> Series:
    """Return one observable of a run, which has one value for each chain and layer."""
    series = read(run, "observable", observable, burn_in)
    if series.values.shape[2] != 1:
        allowed = "a scalar: one value for each chain and layer"
        raise ArgumentError("observable", series.values.shape, allowed)
    return series


def gram_of(run: Trajectory) -> Float64Array:
    """Return the recorded Gram matrices, (chains, layers, ..., n, n)."""
    if "gram" not in run.observables:
        raise ArgumentError("run", run, "a run that has recorded 'gram', with its chains apart")
    return run.observables["gram"]


def sector(S: Float64Array, which: int) -> Float64Array:
    """Return a part of symmetric matrices: what permutations of the batch mix only with itself.

    Of the centred, traceless matrices these are the ``P diag(d) P``, number 0, and what is
    orthogonal to them, number 1, which needs a batch of 4.  Each has one eigenvalue of the
    Jacobian of the mean-field map, in this order (`bnmc.mean_field.FixedPoint.eigenvalues`).
    """
    n = S.shape[-1]
    P = np.eye(n) - 1.0 / n
    traceless = P @ S @ P
    traceless -= np.trace(traceless, axis1=-2, axis2=-1)[..., None, None] / (n - 1) * P
    # ⟨P diag(d) P, P diag(e) P⟩ = (1 − 2/n) ⟨d, e⟩ where d and e sum to zero.
    d = np.diagonal(traceless, axis1=-2, axis2=-1) / (1.0 - 2.0 / n)
    diagonal: Float64Array = P @ (d[..., None] * P)
    return traceless - diagonal if which else diagonal


def contrast(n: int, which: int) -> Float64Array:
    """Return a matrix D of unit norm in a sector: ``⟨D, G⟩`` follows one eigenvalue alone."""
    seed = np.zeros((n, n))
    seed[0, which] = seed[which, 0] = 1.0
    D = sector(seed, which)
    return D / np.linalg.norm(D)


def centred(series: Series, argument: str) -> Float64Array:
    """Return the deviations from the mean over chains and layers, in units of their spread.

    What does not vary becomes zero; something must.
    """
    deviations = series.values - series.values.mean(axis=(0, 1))
    spread = np.sqrt(np.square(deviations).mean(axis=(0, 1)))
    varies = spread > _CONSTANT * np.abs(series.values).max(axis=(0, 1))
    if not varies.any():
        raise ArgumentError(argument, "constant values", "observables that vary")
    return np.where(varies, deviations / np.where(varies, spread, 1.0), 0.0)


def cuts(chains: int, layers: int, shortest: float) -> NDArray[np.intp]:
    """Return where to cut each chain: first layers of stretches not shorter than `shortest`.

    Chains are independent and stay whole where there are enough of them.
    """
    pieces = max(1, min(int(layers / shortest), -(-STRETCHES // chains)))
    return np.linspace(0, layers, pieces + 1).astype(np.intp)[:-1]


def rate_from_artanh(
    z: float, stderr: float, ends: tuple[float, float], steps: int
) -> tuple[float, float, tuple[float, float]]:
    """Return rate per layer, standard error and interval, from a correlation ``tanh z`` at `steps`.

    `ends` are those of the interval of z, so that of the correlation stays within (−1, 1).  The
    rate is the modulus to the power 1/steps; where the correlation may be 0, its interval begins
    there, which covers no less.
    """

    def rate(x: float) -> float:
        return math.copysign(math.tanh(abs(x)) ** (1.0 / steps), x)

    low, high = ends if z >= 0 else (-ends[1], -ends[0])
    z = abs(z)
    error = (rate(z + stderr) - rate(z - stderr)) / 2
    return rate(z), error, (max(rate(low), 0.0), max(rate(high), rate(-low)))


def _values(run: Trajectory, argument: str, observable: object) -> Float64Array:
    if isinstance(observable, str):
        if observable in run.moments:
            allowed = "a run that was not reduced over chains or layers"
            raise ArgumentError("run", run, allowed)
        if observable not in run.observables:
            raise UnknownNameError(argument, observable, run.observables)
        return run.observables[observable]
    if not callable(observable):
        raise ArgumentTypeError(argument, observable, "a name in the run or a function of G")
    grams = gram_of(run)
    values = [[observable(G) for G in chain] for chain in grams]
    return finite_array(argument, values, shape=(...,)).astype(np.float64)
