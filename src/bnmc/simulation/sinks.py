"""Sinks of recorded values: arrays, or means and variances."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnmc._kernels.cpu import layers
from bnmc.simulation.trajectory import Moments

__all__ = ["Arrays", "RunningMoments", "Values"]

#: Values of observables by name, each of shape (chains, slots, ...).
Values = dict[str, NDArray[np.float64]]


class Arrays:
    """Keeps values in arrays (chains, recorded layers, ...), which may belong to the user."""

    def __init__(self, arrays: dict[str, Any]) -> None:
        self.arrays = arrays

    def room(self, first: int, last: int) -> Values:
        """Return the parts of the arrays for slots first:last."""
        return {name: array[:, first:last] for name, array in self.arrays.items()}

    def filled(self, first: int, last: int, arrays: Values) -> None:
        """Do nothing: the values are in their places."""

    def put(self, chains: slice, slots: slice, values: Values) -> None:
        """Take the values of some chains and slots from another process."""
        for name, array in self.arrays.items():
            array[chains, slots] = values[name]


class RunningMoments:
    """Means and variances over chains, layers or both, updated in a fixed order.

    Values are added layer after layer and, within a layer, chain after chain.  So the result does
    not depend on the division of layers into blocks and of chains into parts.
    """

    def __init__(self, reduce: frozenset[str], shapes: dict[str, tuple[int, ...]]) -> None:
        self.reduce = reduce
        self.shapes = shapes
        #: (count, mean, sum of squares) of each observable, for each layer unless reduced.
        self.parts: dict[str, list[tuple[int, NDArray[np.float64], NDArray[np.float64]]]] = {
            name: [] for name in shapes
        }
        if "layer" in reduce:
            for name, shape in shapes.items():
                kept = shape[1:] if "chain" in reduce else shape
                self.parts[name] = [(0, np.zeros(kept), np.zeros(kept))]
        self._waiting: Values = {}

    def room(self, first: int, last: int) -> Values:
        """Return new arrays for slots first:last."""
        return {
            name: np.zeros((shape[0], last - first, *shape[1:]))
            for name, shape in self.shapes.items()
        }

    def filled(self, first: int, last: int, arrays: Values) -> None:
        """Add the values of slots first:last, of all chains."""
        for name, values in arrays.items():
            self.parts[name] = self._updated(self.parts[name], values)

    def put(self, chains: slice, slots: slice, values: Values) -> None:
        """Take the values of some chains; the parts of a block arrive in the order of chains."""
        if not self._waiting:
            self._waiting = self.room(slots.start, slots.stop)
        for name, waiting in self._waiting.items():
            waiting[chains] = values[name]
            complete = chains.stop == len(waiting)
        if complete:
            self.filled(slots.start, slots.stop, self._waiting)
            self._waiting = {}

    def _updated(
        self,
        parts: list[tuple[int, NDArray[np.float64], NDArray[np.float64]]],
        values: NDArray[np.float64],
    ) -> list[tuple[int, NDArray[np.float64], NDArray[np.float64]]]:
        if "layer" not in self.reduce:
            zeros = np.zeros(values.shape[1:])
            return [*parts, _added(values, 0, zeros, zeros.copy())]
        ordered = values.swapaxes(0, 1)
        if "chain" in self.reduce:
            ordered = ordered.reshape(-1, *values.shape[2:])
        return [_added(ordered, *parts[0])]

    def results(self) -> dict[str, Moments]:
        """Return the moments, with an axis of layers unless they were reduced."""
        return {name: self._result(name) for name in self.shapes}

    def _result(self, name: str) -> Moments:
        parts = self.parts[name]
        if not parts:
            none = np.zeros((0, *self.shapes[name][1:]))
            return Moments(0, none, none)
        count = parts[0][0]
        if "layer" in self.reduce:
            _, mean, squares = parts[0]
        else:
            mean = np.concatenate([np.atleast_1d(part[1]) for part in parts])
            squares = np.concatenate([np.atleast_1d(part[2]) for part in parts])
        with np.errstate(invalid="ignore", divide="ignore"):
            return Moments(count, mean, squares / np.float64(count - 1))


def _added(
    values: NDArray[np.float64],
    count: int,
    mean: NDArray[np.float64],
    squares: NDArray[np.float64],
) -> tuple[int, NDArray[np.float64], NDArray[np.float64]]:
    rows = np.ascontiguousarray(values).reshape(len(values), -1)
    count = layers.update_moments(rows, count, mean.reshape(-1), squares.reshape(-1))
    return count, mean, squares
