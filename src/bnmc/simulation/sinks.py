"""Where recorded values go: arrays, or means and variances."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnmc._kernels.cpu import layers
from bnmc._support.arguments import choice, items, result_array
from bnmc.errors import ArgumentError, ArgumentTypeError
from bnmc.simulation.runs import Run
from bnmc.simulation.trajectory import Moments

#: Values of observables by name, each of shape (chains, slots, ...).  They may belong to the user.
Values = dict[str, NDArray[np.float64]]

#: _Shapes of the values of a layer by name, with the axis of chains.
_Shapes = dict[str, tuple[int, ...]]


class RunningMoments:
    """Means and variances over chains, layers or both, updated in a fixed order.

    Values are added layer after layer and, within a layer, chain after chain.  So the result does
    not depend on the division of layers into blocks and of chains into parts.
    """

    def __init__(self, reduce: frozenset[str], layers: int, shapes: _Shapes) -> None:
        self._reduce, self._shapes = reduce, shapes
        #: Mean and sum of squares of each observable: for all layers unless these are reduced.
        self._moments = {}
        for name, (chains, *shape) in shapes.items():
            of_layers = [] if "layer" in reduce else [layers]
            of_chains = [] if "chain" in reduce else [chains]
            self._moments[name] = np.zeros((2, *of_layers, *of_chains, *shape))
        #: Number of values in each mean, and of layers that were added.
        self._count = self._layers = 0
        #: The values of blocks that not all chains have finished, by the first slot.
        self._waiting: dict[int, Values] = {}

    def room(self, chains: slice, slots: slice) -> Values:
        """Return arrays (chains, slots, ...) by name, for values to be written to."""
        if slots.start not in self._waiting:
            self._waiting[slots.start] = {
                name: np.zeros((shape[0], slots.stop - slots.start, *shape[1:]))
                for name, shape in self._shapes.items()
            }
        return {name: values[chains] for name, values in self._waiting[slots.start].items()}

    def filled(self, slots: slice) -> None:
        """Add the values of slots, of all chains."""
        before, over_layers = self._count, "layer" in self._reduce
        for name, values in self._waiting.pop(slots.start).items():
            moments = self._moments[name]
            if over_layers:
                values = values.swapaxes(0, 1)
                if "chain" in self._reduce:
                    values = values.reshape(-1, *values.shape[2:])
            else:
                moments = moments[:, slots]
            rows = np.ascontiguousarray(values).reshape(len(values), -1)
            mean, squares = moments.reshape(2, -1)
            self._count = layers.update_moments(rows, before * over_layers, mean, squares)
        self._layers = slots.stop

    def results(self) -> dict[str, Moments]:
        """Return the moments, with an axis of layers unless they were reduced."""
        results = {}
        for name, (mean, squares) in self._moments.items():
            if "layer" not in self._reduce:
                mean, squares = mean[: self._layers], squares[: self._layers]
            with np.errstate(invalid="ignore", divide="ignore"):
                variance = squares / np.float64(self._count - 1)
            results[name] = Moments(self._count, mean, variance)
        return results


def reduced_axes(reduce: str | Iterable[str]) -> frozenset[str]:
    """Return the axes that an argument `reduce` means, or raise."""
    allowed = "'chain', 'layer' or both"
    axes = [reduce] if isinstance(reduce, str) else items("reduce", reduce, allowed)
    return frozenset(choice("reduce", axis, ("chain", "layer")) for axis in axes)


def sink_of(
    run: Run, reduce: frozenset[str], out: Mapping[str, Any] | None
) -> Values | RunningMoments:
    """Return where values go: into moments, or into arrays, which may be the user's."""
    if out is not None and not isinstance(out, Mapping):
        raise ArgumentTypeError("out", out, "a mapping of names to float64 arrays")
    given = dict(out or {})
    if reduce:
        if given:
            raise ArgumentError("out", list(given), "nothing together with reduce=")
        shapes = {name: (run.chains, *shape) for name, shape in run.shapes.items()}
        return RunningMoments(reduce, run.recorded.count, shapes)
    arrays: dict[str, Any] = {}
    for name, shape in run.shapes.items():
        whole, array = (run.chains, run.recorded.count, *shape), given.pop(name, None)
        if array is None:
            arrays[name] = np.zeros(whole)
        else:
            arrays[name] = array if run.stays else result_array("out", array, whole, repr(name))
    if given:
        raise ArgumentError("out", next(iter(given)), ", ".join(run.shapes))
    if out and not run.stays:
        _require_separate({name: arrays[name] for name in out})
    return arrays


def require_storable(reduce: frozenset[str], out: Any) -> None:
    """Raise unless values go with a store."""
    if reduce:
        hint = "the stored run has mean() and stderr() over chains, and to_xarray()"
        raise ArgumentError("reduce", sorted(reduce), "() together with store=", hint)
    if out:
        given = list(out) if isinstance(out, Mapping) else out
        raise ArgumentError("out", given, "None")


def _require_separate(arrays: Mapping[str, NDArray[np.float64]]) -> None:
    """Raise if two of the user's arrays share memory."""
    for (name, first), (other, second) in itertools.combinations(arrays.items(), 2):
        try:
            # Not -1, the default: the exact answer may take exponential time.
            shared = np.shares_memory(first, second, max_work=10_000)  # type: ignore[arg-type]
        except np.exceptions.TooHardError:
            shared = True
        if shared:
            raise ArgumentError("out", f"{name}, {other}", "arrays that share no memory")
