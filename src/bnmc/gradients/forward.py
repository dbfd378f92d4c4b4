"""The forward pass as the backward pass needs it: Gram matrices of a stretch of layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bnmc.chain.start import Covariance, Representation
from bnmc.simulation.engine.sampler import Sampler
from bnmc.simulation.engine.state import FloatArray, Frames, State
from bnmc.simulation.runs import Run

#: Number of layers between two checks whether to stop.
_BLOCK_LAYERS = 256


class Stretch(NamedTuple):
    """Layers first, …, last of some chains.

    grams : (chains, layers + 1, columns, columns) float64
        Entry (i, j) of a Gram matrix is in units of 2**(units[i] + units[j]).
    units : (chains, layers + 1, columns) int64
        Zeros unless the scale is split off.
    xs : (chains, layers, columns, >= width), or (chains, 1, 1, 1) without a skip connection
        The representations of all layers but the last one.
    wide_before : (chains,) bool
        The float32 chains that had float64 rows in the first layer.
    wide : (chains,) bool
        The float32 chains that have float64 rows in the last layer.
    """

    first: int
    grams: NDArray[np.float64]
    units: NDArray[np.int64]
    xs: FloatArray
    wide_before: NDArray[np.bool_]
    wide: NDArray[np.bool_]

    @property
    def layers(self) -> int:
        """Number of layers after the first one."""
        return self.grams.shape[1] - 1


class Forward:
    """Some chains of an ensemble, which go forward through layers, as often as needed.

    Parameters
    ----------
    run : Run
        These chains.
    start : Covariance or Representation
        Where they start.
    sampler : Sampler
        The conditional sampler of these chains, on the CPU or a GPU.
    """

    def __init__(self, run: Run, start: Covariance | Representation, sampler: Sampler) -> None:
        self.run, self.start, self.sampler = run, start, sampler
        self._layer = -1

    def _state(self, copy: Callable[[NDArray[Any]], NDArray[Any]]) -> State:
        arrays = {name: copy(values) for name, values in self.sampler.arrays.items()}
        return self.run.state(self._layer, arrays)

    def checkpoints(self, layers: list[int], stopped: Callable[[], bool]) -> list[State]:
        """Go from the start through ascending layers; return the states there.

        The list is shorter if `stopped` returns True.
        """
        states: list[State] = []
        if layers:
            self._begin(self._frames(1))
        for layer in layers:
            while self._layer < layer:
                if stopped():
                    return states
                to = min(layer, self._layer + _BLOCK_LAYERS)
                self._advance(to, self._frames(to - self._layer), 0)
            states.append(self._state(np.copy))
        return states

    def stretch(self, state: State | None, last: int, stopped: Callable[[], bool]) -> Stretch:
        """Return the layers from a state, or from the start, to layer `last`."""
        first = 0 if state is None else state.layer
        frames = self._frames(last - first + 1)
        if state is None:
            self._begin(frames)
        else:
            self.sampler.take(state)
            self._layer = first
            self.sampler.record(frames)
            self._watch(frames, 0, 1)
        wide_before = self.sampler.wide.copy()
        # With a skip connection every representation is kept, in the units of the Gram matrices.
        keeps_x = "x" in self.run.layout
        xs = [self.sampler.arrays["x"].copy()] if keeps_x else []
        while self._layer < last and not stopped():
            step = 1 if keeps_x else _BLOCK_LAYERS
            self._advance(min(last, self._layer + step), frames, self._layer + 1 - first)
            if keeps_x and self._layer < last:
                xs.append(self.sampler.arrays["x"].copy())
        none = np.zeros((self.run.chains, 1, 1, 1), self.sampler.dtype)
        of_skip = np.stack(xs, axis=1) if keeps_x else none
        return Stretch(
            first, frames.gram, frames.units, of_skip, wide_before, self.sampler.wide.copy()
        )

    def _frames(self, layers: int) -> Frames:
        units = np.zeros((self.run.chains, layers, self.run.columns), np.int64)
        return self.run.frames(layers)._replace(units=units)

    def _watch(self, frames: Frames, first: int, last: int) -> None:
        """Check the precision of slots first:last of frames, which stay in their units."""
        gram = frames.gram[:, first:last]
        self.sampler.watch_precision(
            frames._replace(
                gram=gram.copy() if self.run.splits_scale else gram,
                log_scale=frames.log_scale[:, first:last],
                units=frames.units[:, first:last],
            )
        )

    def _begin(self, frames: Frames) -> None:
        """Go to layer 0, and write it to the first slot."""
        self._layer = 0
        self.sampler.take(self._state(np.zeros_like))
        self.sampler.begin(self.start, 0, self.run.chains, frames)
        self._watch(frames, 0, 1)

    def _advance(self, last: int, frames: Frames, slot: int) -> None:
        """Go to layer `last`, and write the layers on the way to frames, from `slot` on."""
        slots = np.arange(slot, slot + last - self._layer)
        self.sampler.advance(0, self.run.chains, self._layer + 1, slots, frames)
        self._layer = last
        self._watch(frames, slot, slot + len(slots))
