"""Observables of a run as one array in order of depth, and components of G for such observables.

A jackknife needs nearly independent units: `cuts` cuts chains into stretches.

Permutations of the n samples act on symmetric n × n matrices.  The centred, traceless matrices
split into two parts, here called sectors, that every permutation maps to themselves.  At a fixed
point that all permutations leave unchanged, the Jacobian of the mean-field map has one eigenvalue
on each sector.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bnmc._support.arguments import Float64Array, finite_array, integer
from bnmc.chain.convolution import Convolution
from bnmc.errors import ArgumentError, ArgumentTypeError, UnknownNameError
from bnmc.mean_field.fixed_point.results import FixedPoint
from bnmc.simulation.trajectory import Trajectory

#: An observable as a function of one Gram matrix.
Function = Callable[[Float64Array], ArrayLike]

#: Fewest recorded layers of a run.
_LEAST_LAYERS = 4

#: An observable whose spread is at most this share of its size is constant up to rounding.
_CONSTANT = 1e-12

#: Largest value whose square, summed over a run, does not overflow.
_LARGEST = 1e140

#: The fewest stretches that give a standard error.
LEAST_STRETCHES = 5

#: Chains are cut into about as many stretches in total; more would not improve the error.
_ENOUGH_STRETCHES = 50

#: The shortest stretch of a chain that is cut, in correlation times.
STRETCH_TIMES = 10


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
    used = layers >= integer("burn_in", burn_in, low=0)
    layers = layers[used]
    if len(layers) < _LEAST_LAYERS:
        hint = f"{len(layers)} from layer {burn_in} on"
        raise ArgumentError("run", run, f"a run of at least {_LEAST_LAYERS} recorded layers", hint)
    strides = np.diff(layers)
    if (strides != strides[0]).any():
        hint = "let depth − burn_in be a multiple of every"
        raise ArgumentError("run", run, "equally spaced layers", hint)
    return Series(values[:, used].astype(np.float64), layers, int(strides[0]))


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
    columns = [_values(run, argument, observable) for observable in wanted]
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


# --- stretches, the nearly independent units of a jackknife


def cuts(chains: int, layers: int, shortest: float) -> NDArray[np.intp]:
    """Return the first layer of each stretch of a chain.

    Parameters
    ----------
    chains, layers : int
        Number of chains, and of recorded layers of each.
    shortest : float
        Least length of a stretch, in recorded layers.

    Returns
    -------
    (stretches,) ndarray of int
        ``[0]`` if there are enough chains: these are independent, so they stay whole.
    """
    pieces = max(1, min(int(layers / shortest), -(-_ENOUGH_STRETCHES // chains)))
    return np.linspace(0, layers, pieces + 1).astype(np.intp)[:-1]


# --- components of the Gram matrix that permutations of the batch do not mix


def sector(S: Float64Array, which: int) -> Float64Array:
    """Project symmetric matrices onto a sector.

    Parameters
    ----------
    S : (..., n, n) ndarray of float64
        Symmetric matrices, n >= 3.
    which : {0, 1}
        With the projector P orthogonal to the vector of ones, sector 0 holds the matrices
        ``P diag(d) P`` of trace 0.  Sector 1 is its orthogonal complement among the centred,
        traceless matrices; it needs n >= 4.

    Returns
    -------
    (..., n, n) ndarray of float64

    Notes
    -----
    The order is that of `bnmc.mean_field.FixedPoint.eigenvalues`.
    """
    n = S.shape[-1]
    P = np.eye(n) - 1.0 / n
    traceless = P @ S @ P
    traceless -= np.trace(traceless, axis1=-2, axis2=-1)[..., None, None] / (n - 1) * P
    # ⟨P diag(d) P, P diag(e) P⟩ = (1 − 2/n) ⟨d, e⟩ if d and e sum to zero.
    d = np.diagonal(traceless, axis1=-2, axis2=-1) / (1.0 - 2.0 / n)
    diagonal = P @ (d[..., None] * P)
    return traceless - diagonal if which else diagonal


def contrast(n: int, which: int) -> Float64Array:
    """Return a matrix D of unit norm in a sector.

    The observable ``⟨D, G⟩`` has stationary mean 0 and decays by one eigenvalue alone.
    """
    seed = np.zeros((n, n))
    seed[0, which] = seed[which, 0] = 1.0
    D = sector(seed, which)
    return D / np.linalg.norm(D)


def slowest_component(point: FixedPoint, convolution: Convolution | None) -> Float64Array:
    """Return the matrix D of unit norm that decays at the rate of a fixed point of norm "batch".

    For a convolution D has one spatial frequency k: a contrast, times cos(2πk·r), is averaged over
    shifts by r of all images.

    Parameters
    ----------
    point : FixedPoint
        With at least one eigenvalue.
    convolution : Convolution or None
        That of the chain.
    """
    n = point.batch
    if convolution is None:
        return contrast(n, slowest_sector(point.eigenvalues))
    mode = max(point.modes, key=lambda candidate: candidate.rate)
    value = max(mode.eigenvalues, key=abs)
    which = int(np.argmin(np.abs(value - mode.factor * np.array(point.eigenvalues))))
    places = np.arange(n).reshape(-1, *convolution.shape)

    def averaged(column: int) -> Float64Array:
        seed, D = np.zeros((2, n, n))
        seed[0, column] = seed[column, 0] = 1.0
        for shift in np.ndindex(*convolution.shape):
            moved = np.roll(places, shift, axis=(1, 2)).ravel()
            turns = (np.array(mode.frequency) * shift / convolution.shape).sum()
            D += np.cos(2.0 * np.pi * turns) * seed[np.ix_(moved, moved)]
        return sector(D, which)

    largest = max(map(averaged, range(1 + which, n)), key=np.linalg.norm)
    return largest / np.linalg.norm(largest)


def slowest_sector(eigenvalues: Sequence[complex]) -> int:
    """Return the sector whose eigenvalue has the largest modulus, that is, decays most slowly."""
    return int(np.argmax(np.abs(eigenvalues)))
