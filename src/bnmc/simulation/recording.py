"""What is recorded of a run, and where the values go."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnmc._kernels.scalar.codes import MOST_LAYERS
from bnmc._support.arguments import choice, integer, items, result_array
from bnmc._support.device_arrays import is_device_array
from bnmc.errors import ArgumentError, ArgumentTypeError
from bnmc.simulation.ensemble import Ensemble
from bnmc.simulation.job import Job, Recorded
from bnmc.simulation.observables import Observable, as_observables
from bnmc.simulation.sinks import Arrays, RunningMoments

__all__ = ["Recording", "recording_of"]


@dataclass(frozen=True)
class Recording:
    """The recorded layers, the recorded functions, and the reduction of their values.

    Attributes
    ----------
    ensemble : Ensemble
    observables : tuple of Observable
    recorded : Recorded
        The layers, counted from layer 0 of the chain.
    reduce : frozenset of {"chain", "layer"}
        Axes over which moments replace values.
    out : mapping or None
        The user's arrays for values.
    on_device : bool
        Whether values stay on the GPU, as `out` is there.
    """

    ensemble: Ensemble
    observables: tuple[Observable, ...]
    recorded: Recorded
    reduce: frozenset[str]
    out: Mapping[str, Any] | None
    on_device: bool

    @property
    def axes(self) -> dict[str, tuple[str, ...]]:
        """Names of the axes of each observable after chain and layer."""
        several = self.ensemble.inputs is not None
        return {one.name: one.dims(several) for one in self.observables}

    @property
    def dims(self) -> dict[str, tuple[str, ...]]:
        """Names of all axes of each observable that the run returns."""
        leading = tuple(axis for axis in ("chain", "layer") if axis not in self.reduce)
        return {name: (*leading, *axes) for name, axes in self.axes.items()}

    @property
    def per_value(self) -> int:
        """Numbers that are recorded of one layer of one chain."""
        return sum(math.prod(shape) for shape in self._value_shapes())

    def _value_shapes(self) -> list[tuple[int, ...]]:
        n, k = self.ensemble.chain.batch, self.ensemble.inputs or 1
        known = {
            "gram": (k, n, n),
            "scaled_gram": (k, n, n),
            "cross_gram": (k, k, n, n),
            "eigenvalues": (k, n),
            "log_pivots": (k * n,),
        }
        return [known.get(one.name, (k, *getattr(one, "shape", ()))) for one in self.observables]

    def require_device_out(self) -> None:
        """Raise unless an `out` on the GPU goes with the rest of the recording."""
        names = [one.name for one in self.observables]
        if names != ["gram"] or self.reduce or self.ensemble.inputs:
            allowed = "arrays of the host unless 'gram' alone is recorded, of one input, unreduced"
            raise ArgumentError("out", "an array of a device", allowed)

    def require_storable(self) -> None:
        """Raise unless the recording goes with a store."""
        if self.reduce:
            hint = "the stored run has mean() and stderr() over chains, and to_xarray()"
            raise ArgumentError("reduce", sorted(self.reduce), "() together with store=", hint)
        if self.out:
            given = list(self.out) if isinstance(self.out, Mapping) else self.out
            raise ArgumentError("out", given, "None")

    def shape(self, name: str, job: Job) -> tuple[int, ...]:
        """Return the shape of all values of an observable: (chains, layers, ...)."""
        return (self.ensemble.chains, self.recorded.count, *job.shapes[name])

    def sink(self, job: Job, *, stored: bool) -> Arrays | RunningMoments:
        """Return where values go: into moments, or into arrays, which may be the user's."""
        if self.out is not None and not isinstance(self.out, Mapping):
            raise ArgumentTypeError("out", self.out, "a mapping of names to float64 arrays")
        given = dict(self.out or {})
        if self.reduce:
            if given:
                raise ArgumentError("out", list(given), "nothing together with reduce=")
            shapes = {name: (self.ensemble.chains, *one) for name, one in job.shapes.items()}
            return RunningMoments(self.reduce, shapes)
        if stored:
            return Arrays({})
        if not given:
            return Arrays({name: np.zeros(self.shape(name, job)) for name in job.shapes})
        arrays = {name: self._array(name, job, given.pop(name, None)) for name in job.shapes}
        if given:
            raise ArgumentError("out", next(iter(given)), ", ".join(job.shapes))
        if not self.on_device:
            _require_separate({name: arrays[name] for name in self.out or {}})
        return Arrays(arrays)

    def _array(self, name: str, job: Job, given: Any) -> NDArray[np.float64] | Any:
        shape = self.shape(name, job)
        if given is None:
            return np.zeros(shape)
        if self.on_device:
            return given
        return result_array("out", given, shape, repr(name))

    @property
    def device_array(self) -> Any:
        """The user's array on the GPU for Gram matrices, or None."""
        return dict(self.out or {}).get("gram") if self.on_device else None


def recording_of(
    ensemble: Ensemble,
    depth: int,
    *,
    observables: Any,
    every: int,
    burn_in: int,
    reduce: str | Iterable[str],
    out: Any,
) -> Recording:
    """Return what the arguments of `simulate` ask to record, or raise."""
    axes = _reduced_axes(reduce)
    functions = as_observables(observables, ensemble.inputs is not None)
    step = min(integer("every", every, low=1), MOST_LAYERS)
    first = ensemble.first_layer + integer("burn_in", burn_in, low=0, high=depth)
    if ensemble.first_layer + depth >= MOST_LAYERS:
        most = MOST_LAYERS - 1 - ensemble.first_layer
        allowed = f"an integer <= {most}: layers have numbers below 2**32, and the state has one"
        raise ArgumentError("depth", depth, f"{allowed} of {ensemble.first_layer}")
    recorded = Recorded(first, step, ensemble.first_layer + depth)
    on_device = isinstance(out, Mapping) and any(map(is_device_array, out.values()))
    return Recording(ensemble, functions, recorded, axes, out, on_device)


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


def _reduced_axes(reduce: str | Iterable[str]) -> frozenset[str]:
    named = isinstance(reduce, str)
    axes = [reduce] if named else items("reduce", reduce, "'chain', 'layer' or both")
    return frozenset(choice("reduce", axis, ("chain", "layer")) for axis in axes)
