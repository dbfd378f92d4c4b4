"""Observables of a run, or an array in its place, as one array in order of depth."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bnmc._support.arguments import finite_array, integer
from bnmc.errors import ArgumentError, ArgumentTypeError, UnknownNameError
from bnmc.simulation.trajectory import Trajectory

Float64Array = NDArray[np.float64]

#: An observable as a function of one Gram matrix.
Function = Callable[[Float64Array], ArrayLike]

#: Fewest recorded layers of a run.
_LEAST_LAYERS = 4

#: An observable whose spread is at most this share of its size is constant up to rounding.
_CONSTANT = 1e-12

#: Largest value whose square, summed over a run, does not overflow.
_LARGEST = 1e140


@dataclass(frozen=True)
class Series:
    """Observables of a run in order of depth.

    Attributes
    ----------
    values : (chains, layers, features) ndarray of float64
    layers : (layers,) ndarray of int
        Equally spaced.
    stride : int
        Spacing of the recorded layers, in layers.
    """

    values: Float64Array
    layers: NDArray[np.int64]
    stride: int


def read(run: object, argument: str, observables: object, burn_in: int = 0) -> Series:
    """Return the observables of a run side by side, or the array given in place of a run.

    Parameters
    ----------
    run : Trajectory or array_like
    argument : str
        Name of the caller's argument for the observables, for messages.
    observables : str, callable or a sequence of these, or None
        Names in the run, or functions of its Gram matrices; None if `run` is an array.
    burn_in : int, default 0
        First layer of the series.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For an argument that is not allowed, fewer than 4 recorded layers, or layers that are not
        equally spaced.
    """
    if isinstance(run, Trajectory):
        layers, values = run.layers, _side_by_side(run, argument, observables)
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
    if largest > _LARGEST:
        allowed = f"values up to {_LARGEST:g}, whose squares have sums"
        raise ArgumentError(argument, largest, allowed)
    kept = layers >= integer("burn_in", burn_in, low=0)
    layers = layers[kept]
    kept_values: Float64Array = values[:, kept].astype(np.float64)
    if len(layers) < _LEAST_LAYERS:
        hint = f"{len(layers)} from layer {burn_in} on"
        raise ArgumentError("run", run, f"a run of at least {_LEAST_LAYERS} recorded layers", hint)
    strides = np.diff(layers)
    if (strides != strides[0]).any():
        hint = "let depth − burn_in be a multiple of every"
        raise ArgumentError("run", run, "equally spaced layers", hint)
    return Series(kept_values, layers, int(strides[0]))


def read_scalar(run: object, observable: object, burn_in: int = 0) -> Series:
    """Return one observable of a run as a series with one feature.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        As `read`, and if the observable is an array in each layer.
    """
    series = read(run, "observable", observable, burn_in)
    if series.values.shape[2] != 1:
        allowed = "a scalar: one value for each chain and layer"
        raise ArgumentError("observable", series.values.shape, allowed)
    return series


def gram_of(run: Trajectory) -> Float64Array:
    """Return the recorded Gram matrices, (chains, layers, ..., n, n), or raise."""
    if "gram" not in run.observables:
        raise ArgumentError("run", run, "a run that has recorded 'gram', with its chains apart")
    return run.observables["gram"]


def standardized(series: Series, argument: str) -> Float64Array:
    """Return the deviations from the mean over chains and layers, in standard deviations.

    Features that are constant up to rounding become zero.

    Raises
    ------
    ArgumentError
        If all features are constant.
    """
    deviations = series.values - series.values.mean(axis=(0, 1))
    spread = np.sqrt(np.square(deviations).mean(axis=(0, 1)))
    varies = spread > _CONSTANT * np.abs(series.values).max(axis=(0, 1))
    if not varies.any():
        raise ArgumentError(argument, "constant values", "observables that vary")
    return np.where(varies, deviations / np.where(varies, spread, 1.0), 0.0)


def _side_by_side(run: Trajectory, argument: str, observables: object) -> NDArray[np.floating]:
    """Return all entries of the observables as features, (chains, layers, features)."""
    wanted = observables if isinstance(observables, (list, tuple)) else [observables]
    if not wanted:
        raise ArgumentError(argument, wanted, "at least one name or function of G")
    columns = [_values(run, argument, one) for one in wanted]
    values = np.concatenate([c.reshape(*c.shape[:2], -1) for c in columns], axis=2)
    return finite_array(argument, values, shape=("chains", "layers", "features"))


def _values(run: Trajectory, argument: str, observable: object) -> Float64Array:
    """Return one observable, recorded or evaluated at each recorded Gram matrix."""
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
