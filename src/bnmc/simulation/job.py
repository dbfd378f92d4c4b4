"""What all parts of a run have in common, and which layers are recorded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnmc._support.machine import blas_kernel
from bnmc.chain.chain import Chain
from bnmc.simulation.engine.choice import SAMPLERS
from bnmc.simulation.engine.sampler import Sampler
from bnmc.simulation.engine.state import Frames, State
from bnmc.simulation.observables import Observable, View

__all__ = ["Job", "Recorded"]


@dataclass(frozen=True)
class Recorded:
    """Which layers are recorded: first, first + every, … and always the last."""

    first: int
    every: int
    last: int

    @property
    def count(self) -> int:
        """Number of recorded layers."""
        return -(-(self.last - self.first) // self.every) + 1

    def layer(self, slot: int) -> int:
        """Return the layer of a slot, the number of a recorded layer."""
        return min(self.first + slot * self.every, self.last)

    def layers(self, first: int, last: int) -> NDArray[np.int64]:
        """Return the layers of slots first:last."""
        return np.minimum(self.first + np.arange(first, last) * self.every, self.last)

    def before(self, layer: int) -> int:
        """Return the number of recorded layers below a layer: its slot if it is recorded."""
        if layer > self.last:
            return self.count
        return max(0, -(-(layer - self.first) // self.every))

    def slots(self, first: int, last: int) -> NDArray[np.int64]:
        """Return 0, 1, … for the recorded ones of layers first:last, and -1 for the others."""
        before = self.before(first)
        count = self.before(last) - before
        if count == last - first:
            return np.arange(count)
        slots = np.full(last - first, -1)
        slots[self.layers(before, before + count) - first] = np.arange(count)
        return slots


@dataclass(frozen=True)
class Job:
    """The common values of all parts of a run."""

    chain: Chain
    path: str
    backend: str
    key: int
    inputs: int | None
    dtype: str
    observables: tuple[Observable, ...]
    recorded: Recorded
    #: Whether recorded Gram matrices stay on the GPU.
    stays: bool = False

    def with_blas(self, cpu: str) -> str:
        """Return a kind of processor, and BLAS too if the bits of an observable depend on it."""
        if any(one.uses_blas for one in self.observables):
            return f"{cpu}; {blas_kernel()}"
        return cpu

    @property
    def columns(self) -> int:
        """Number of samples in all input batches."""
        return self.chain.batch * (self.inputs or 1)

    def state(self, layer: int, arrays: dict[str, NDArray[Any]]) -> State:
        """Return the state of chains of this run at a layer."""
        return State(self.chain, self.path, self.key, layer, self.inputs, self.dtype, arrays)

    def sampler(self, first: int, last: int) -> Sampler:
        """Return the sampler of chains first:last."""
        sampler = self._kinds()[self.path](
            self.chain, last - first, self.inputs, self.dtype, self.key, first
        )
        measured = tuple(one.measure for one in self.observables if one.measure is not None)
        if len(measured) == len(self.observables) and sampler.can_measure(measured):
            sampler.record_only(measured)
        return sampler

    def _kinds(self) -> Mapping[str, Callable[..., Sampler]]:
        if self.backend == "cpu":
            return SAMPLERS
        from bnmc.simulation.engine.gpu.devices import GPU_SAMPLERS, ONE_DEVICE

        return ONE_DEVICE if self.stays else GPU_SAMPLERS

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of one value of each observable.

        Functions of the user are evaluated once, which checks that they return the declared shape.
        """
        return {
            one.name: one.known_shape(self.chain.batch, self.inputs) or self._shape_of(one)
            for one in self.observables
        }

    def _shape_of(self, observable: Observable) -> tuple[int, ...]:
        return self.values(observable, self._example).shape[2:]

    @cached_property
    def _example(self) -> View:
        """A chain whose Gram matrix is the identity."""
        pivots = self.columns if self.path == "factor" else 0
        none = np.zeros((1, 1))
        frames = Frames(np.eye(self.columns)[None, None], none, np.zeros((1, 1, pivots)))
        return View.of(self.chain, self.inputs or 1, frames)

    def values(self, observable: Observable, view: View) -> NDArray[np.float64]:
        """Evaluate an observable, without the axis of inputs if `inputs` is None."""
        values = observable.evaluate(view)
        if self.inputs is None and "input" in observable.dims(True):
            values = values[:, :, 0]
        return values
