"""The sampler that draws weights and multiplies: the reference, for every law of weights."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnmc._kernels.cpu import memory, numbers, sources
from bnmc._kernels.scalar import codes
from bnmc._support.arguments import host_array
from bnmc.chain.chain import Chain
from bnmc.errors import ArgumentError, ArgumentTypeError
from bnmc.simulation.engine.rows import RowSampler
from bnmc.simulation.engine.sampler import FloatArray
from bnmc.simulation.engine.state import Frames
from bnmc.simulation.engine.threads import Threads


class WeightsSampler(RowSampler):
    """Draws the weights, a tile at a time, and multiplies them, for every law of weights."""

    name = path = "weights"
    keeps_a = True

    def _allocate(self) -> None:
        worth = max(self.columns, self.chain.width)
        self.spec = self.spec._replace(panel=memory.panel_rows(self.chain.width, worth))
        super()._allocate()

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        arrays = {
            "gram": self.grams, "activations": self.activations, **self.precision_arrays
        }  # fmt: skip
        return {**arrays, "x": self.xs} if self.chain.skip != 0.0 else arrays

    @staticmethod
    def seconds(chain: Chain, columns: int, dtype: np.dtype[Any]) -> float:
        # An orthogonal matrix takes a factorization.
        of_entry = 5e-10 * chain.width if chain.is_orthogonal else 0.5e-9
        entries = chain.width * chain.fan_in
        return 1e-6 + entries * (of_entry + 6e-11 * columns) * dtype.itemsize / 4

    @property
    def layer_spec(self) -> codes.LayerSpec:
        return self.spec._replace(hides_common=False)

    def source(self, dtype: np.dtype[Any]) -> Any:
        given = np.zeros((0, 0), dtype)
        convolution = self.chain.convolution
        if convolution is None:
            return sources.Multiplied(codes.STREAM_WEIGHTS, given)
        shape = memory.padded(self.columns), memory.stride(self.chain.fan_in)
        unfolded = self.buffer("unfolded", lambda: memory.aligned_zeros(shape, dtype))
        neighbours = convolution.neighbours(self.columns)
        return sources.Convolved(codes.STREAM_WEIGHTS, given, neighbours, unfolded)

    def advance(
        self, first: int, last: int, layer: int, slots: NDArray[np.int64], frames: Frames
    ) -> None:
        if self.spec.weights == codes.GIVEN:
            self._advance_given(None, 1, first, last, layer, slots, frames)
        else:
            super().advance(first, last, layer, slots, frames)

    def advance_together(
        self,
        executor: Executor,
        threads: int,
        layer: int,
        slots: NDArray[np.int64],
        frames: Frames,
    ) -> None:
        if self.spec.weights == codes.GIVEN:
            self._advance_given(executor, threads, 0, self.chains, layer, slots, frames)
        else:
            super().advance_together(executor, threads, layer, slots, frames)

    def _advance_given(
        self,
        executor: Executor | None,
        threads: int,
        first: int,
        last: int,
        layer: int,
        slots: NDArray[np.int64],
        frames: Frames,
    ) -> None:
        """Take chains through layers one by one, whose weights no kernel draws."""
        for index in range(first, last):
            for step in range(len(slots)):
                shared = self.threads_of(index, layer + step, executor, threads)
                at, stage = slots[step : step + 1], self._stage.after(step)
                self._run(stage, index, index + 1, layer + step, at, frames, shared)

    def threads_of(
        self, index: int, layer: int, executor: Executor | None = None, threads: int = 1
    ) -> Threads:
        """Return threads that give kernels the weights of a layer that no kernel draws."""
        call = partial(_with_weights, self.given_panels(index, layer))
        return Threads(executor, threads, self.work, call)

    def given_panels(self, index: int, layer: int) -> Callable[[int], FloatArray]:
        """Return a function of a panel that returns its unit-variance weights.

        They are (panel, weights of a row), or (0, 0) if kernels draw them.  The generators depend
        on key, chain, layer and panel alone.
        """
        if self.spec.weights != codes.GIVEN:
            none = np.zeros((0, 0), self.dtype)
            return lambda panel: none
        if self.chain.is_orthogonal:
            # The rows of a matrix depend on each other.
            width = self.chain.width
            matrix = np.zeros((self.panels * self.spec.panel, width), self.dtype)
            generator = self._generator(index, layer, 0)
            matrix[:width] = self.chain.weight_law.entries(generator, (width, width))
            panels = matrix.reshape(self.panels, self.spec.panel, width)
            return lambda panel: panels[panel]
        return lambda panel: self._given(index, layer, panel)

    def _generator(self, index: int, layer: int, panel: int) -> np.random.Generator:
        counter = [0, panel, layer, self.offset + index]
        return np.random.Generator(np.random.Philox(key=self.key, counter=counter))

    def _given(self, index: int, layer: int, panel: int) -> FloatArray:
        """Return a panel of weights by the user's sampler."""
        generator = self._generator(index, layer, panel)
        rows = min(self.spec.panel, self.chain.width - panel * self.spec.panel)
        shape = rows, self.chain.fan_in
        assert callable(self.chain.weights)
        returned = self.chain.weights(generator, shape)
        allowed = f"a sampler of real numbers of shape {shape}"
        try:
            entries = host_array("weights", returned, allowed)
        except ArgumentTypeError as error:  # ragged, or masked
            raise ArgumentError("weights", returned, allowed, str(error)) from None
        if entries.shape != shape or entries.dtype.kind not in "fiu":
            got = f"{entries.dtype} of shape {entries.shape}"
            raise ArgumentError("weights", got, f"real numbers of shape {shape}")
        if not np.isfinite(entries).all():
            raise ArgumentError("weights", "a sample that is not finite", "finite real numbers")
        weights = np.zeros((self.spec.panel, self.chain.fan_in), self.dtype)
        weights[:rows] = entries
        return weights


def _with_weights(
    given_panel: Callable[[int], FloatArray],
    task: Any,
    first: int,
    last: int,
    work: numbers.Work,
    source: Any,
    *arguments: Any,
) -> int:
    """Call a task panel by panel, with the weights of each."""
    for panel in range(first, last):
        given = source._replace(given=given_panel(panel))
        result: int = task(panel, panel + 1, work, given, *arguments)
        if result >= 0:
            return result
    return -1
