"""The forward pass as the backward pass needs it: Gram matrices of a stretch of layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bnmc.chain.chain import Chain
from bnmc.chain.start import Covariance, Representation
from bnmc.simulation.engine.conditional import ConditionalSampler
from bnmc.simulation.engine.sampler import FloatArray
from bnmc.simulation.engine.state import Frames, State

__all__ = ["Forward", "Stretch"]

#: Layers between two looks at whether to stop.
BLOCK_LAYERS = 256


class Stretch(NamedTuple):
    """Layers first, …, last of some chains.

    grams : (chains, layers, columns, columns) float64
        Entry (i, j) of a Gram matrix is in units of 2**(units[i] + units[j]).
    units : (chains, layers, columns) int64
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


class Forward:
    """Some chains of an ensemble, which go forward through layers, as often as needed.

    Parameters
    ----------
    chain : Chain
    start : Covariance or Representation
        Where these chains start.
    first, last : int
        The numbers of the chains.
    inputs : int or None
    dtype : str
    key : int
    """

    def __init__(
        self,
        chain: Chain,
        start: Covariance | Representation,
        first: int,
        last: int,
        inputs: int | None,
        dtype: str,
        key: int,
    ) -> None:
        self.chain, self.start, self.count = chain, start, last - first
        self.sampler = ConditionalSampler(chain, self.count, inputs, dtype, key, first)
        self._layer = -1

    def _state(self) -> State:
        sampler = self.sampler
        arrays = {name: values.copy() for name, values in sampler.arrays.items()}
        return State(
            self.chain, sampler.path, sampler.key, self._layer, sampler.inputs,
            sampler.dtype.name, arrays,
        )  # fmt: skip

    def checkpoints(self, layers: list[int], stopped: Callable[[], bool]) -> list[State]:
        """Go from the start through ascending layers; return the states there.

        The list is shorter if `stopped` returns True.
        """
        self._begin()
        states: list[State] = []
        for layer in layers:
            while self._layer < layer:
                if stopped():
                    return states
                self._advance(min(layer, self._layer + BLOCK_LAYERS))
            states.append(self._state())
        return states

    def stretch(self, state: State | None, last: int, stopped: Callable[[], bool]) -> Stretch:
        """Return the layers from a state, or from the start, to layer `last`."""
        if state is None:
            frames = [self._begin()]
        else:
            self.sampler.take(state)
            self._layer = state.layer
            frames = [self._frames(1)]
            self.sampler.record(frames[0])
            self._watched(frames[0])
        first = self._layer
        wide_before = self.sampler.wide.copy()
        keeps_x = self.chain.skip != 0.0
        xs = [self._kept_x()] if keeps_x else []
        while self._layer < last and not stopped():
            # With a skip connection every representation is kept.
            step = 1 if keeps_x else BLOCK_LAYERS
            frames.append(self._advance(min(last, self._layer + step)))
            if keeps_x and self._layer < last:
                xs.append(self._kept_x())
        grams = np.concatenate([one.gram for one in frames], axis=1)
        units = np.concatenate([one.units for one in frames], axis=1)
        none = np.zeros((self.count, 1, 1, 1), self.sampler.dtype)
        kept = np.stack(xs, axis=1) if keeps_x else none
        wide = self.sampler.wide.copy()
        return Stretch(first, grams, units, kept, wide_before, wide)

    def _kept_x(self) -> FloatArray:
        """Return the representations, in the units of the Gram matrices."""
        x: FloatArray = self.sampler.xs.copy()
        return x

    def _frames(self, layers: int) -> Frames:
        columns, count = self.sampler.columns, self.count
        return Frames(
            np.zeros((count, layers, columns, columns)),
            np.zeros((count, layers)),
            np.zeros((count, layers, 0)),
            units=np.zeros((count, layers, columns), np.int64),
        )

    def _watched(self, frames: Frames) -> Frames:
        """Check the precision of frames, which stay in their units."""
        own = frames
        if self.sampler.is_scaled:
            own = frames._replace(gram=frames.gram.copy())
        self.sampler.watch_precision(own)
        return frames

    def _begin(self) -> Frames:
        frames = self._frames(1)
        self.sampler.take(self._empty)
        self.sampler.begin(self.start, 0, self.count, frames)
        self._layer = 0
        return self._watched(frames)

    @property
    def _empty(self) -> State:
        """A state of zeros, for a sampler that begins again."""
        sampler = self.sampler
        arrays = {name: np.zeros_like(values) for name, values in sampler.arrays.items()}
        return State(
            self.chain, sampler.path, sampler.key, 0, sampler.inputs, sampler.dtype.name, arrays
        )

    def _advance(self, last: int) -> Frames:
        """Go to layer `last`, and return the Gram matrices on the way."""
        frames = self._frames(last - self._layer)
        slots = np.arange(last - self._layer)
        self.sampler.advance(0, self.count, self._layer + 1, slots, frames)
        self._layer = last
        return self._watched(frames)
