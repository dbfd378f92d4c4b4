"""The sampler that draws weights and multiplies: the reference, for every law of weights."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnmc._kernels.cpu import convolving, layers, memory, passes
from bnmc._kernels.scalar import codes
from bnmc._support.arguments import host_array
from bnmc.chain.chain import Chain
from bnmc.errors import ArgumentError, ArgumentTypeError
from bnmc.simulation.engine.passes import Passes
from bnmc.simulation.engine.rows import RowSampler, Share
from bnmc.simulation.engine.sampler import FloatArray
from bnmc.simulation.engine.state import Frames

__all__ = ["WeightsSampler"]


class WeightsSampler(RowSampler):
    """Draws the weights, a tile at a time, and multiplies them, for every law of weights."""

    name = path = "weights"

    @property
    def keeps_a(self) -> bool:
        return True

    @property
    def rows_are_worth(self) -> int:
        return max(self.columns, self.chain.width)

    @property
    def weight_code(self) -> int:
        """How kernels call the law of the weights."""
        return self.chain.weight_law.code

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

    def advance(
        self, first: int, last: int, layer: int, slots: NDArray[np.int64], frames: Frames
    ) -> None:
        convolution = self.chain.convolution
        if self.weight_code == codes.GIVEN or (convolution is not None and self.passes is not None):
            self._advance_singly(first, last, layer, slots, frames)
            return
        status = np.zeros((last - first, 3), np.int64)
        work = self.work()
        kernel: Callable[..., None] = layers.weighted_layers
        if self.passes is not None:
            kernel = self.passes.multiplied(self.dtype)
        elif convolution is not None:
            kernel = partial(
                convolving.convolved_layers, convolution.neighbours(self.columns), self._unfolded,
                np.zeros((self.panels, work.sums.size)),
            )  # fmt: skip
        kernel(
            self.activation(), self.spec, self.weight_code, self._no_weights,
            self.grams[first:last], self._xs(first, last, self.dtype),
            self.activations[first:last], self.offset + first, layer, slots,
            frames.gram[first:last], self.panel, *self.key_words, np.zeros_like(work.sums), work,
            status, self.exponents[first:last], frames.units[first:last], self.lift,
        )  # fmt: skip
        self.check(status, first)

    def _advance_singly(
        self, first: int, last: int, layer: int, slots: NDArray[np.int64], frames: Frames
    ) -> None:
        """Take chains through layers one by one: weights or factors are made between kernels."""
        for index in range(first, last):
            for step, slot in enumerate(slots):
                self._one_layer(index, layer + step, lambda make: [make(0, self.panels)])
                self._record_one(index, slot, frames)

    def _layer_task(
        self, index: int, layer: int, x: FloatArray, panel_sums: FloatArray, share: Share
    ) -> Callable[[int, int], int]:
        a = self.factors(index, layer)
        following = self.activations[index, layer % 2]
        draw = self.addressed(layer, codes.STREAM_WEIGHTS, index)
        given_panel = self.given_panels(index, layer)
        if self.passes is not None:
            self._begin(self.passes, index, layer, a, x, draw, share)
            over, room = self.passes, self.passes.room(self.dtype)
            return lambda first, last: over.finish(
                self.activation(), self.spec, x, following, following, (first, last), draw,
                self.work(), room, panel_sums,
            )  # fmt: skip

        def multiply(given: FloatArray, first: int, last: int) -> int:
            degenerate: int = layers.multiply_panels(
                self.activation(), self.spec, self.weight_code, given, a, x, following, first,
                last, self.panel, draw, self.work(), panel_sums,
            )  # fmt: skip
            return degenerate

        def make(first: int, last: int) -> int:
            if self.weight_code != codes.GIVEN:
                return multiply(self._no_weights, first, last)
            for panel in range(first, last):
                degenerate = multiply(given_panel(panel), panel, panel + 1)
                if degenerate >= 0:
                    return degenerate
            return -1

        return make

    def factors(self, index: int, layer: int) -> FloatArray:
        """Return what the weights that lead to a layer multiply, for one chain.

        These are the activations, (padded columns, >= width), or under a convolution those that all
        taps see, (padded columns, >= weights of a row), in a buffer of the calling thread.
        """
        a: FloatArray = self.activations[index, (layer + 1) % 2]
        convolution = self.chain.convolution
        if convolution is None:
            return a
        neighbours = convolution.neighbours(self.columns)
        convolving.unfold(a, neighbours, self.chain.width, self._unfolded)
        return self._unfolded

    @property
    def _unfolded(self) -> FloatArray:
        """The buffer of the calling thread for the activations that all taps see."""
        if not hasattr(self._buffers, "unfolded"):
            shape = memory.padded(self.columns), memory.stride(self.chain.fan_in)
            self._buffers.unfolded = memory.aligned_zeros(shape, self.dtype)
        unfolded: FloatArray = self._buffers.unfolded
        return unfolded

    @property
    def _no_weights(self) -> FloatArray:
        """An array that tells kernels that draw weights how many a row has."""
        return np.zeros((1, self.chain.fan_in), self.dtype)

    def _begin(
        self,
        over: Passes,
        index: int,
        layer: int,
        a: FloatArray,
        x: FloatArray,
        draw: codes.Draw,
        share: Share,
    ) -> None:
        """Make the first pass over the rows of a layer, which multiplies by the weights."""
        following = self.activations[index, layer % 2]
        given_panel, room = self.given_panels(index, layer), over.room(self.dtype)

        def multiply(given: FloatArray, first: int, last: int) -> None:
            passes.multiply_moments(
                self.activation(), self.spec, self.weight_code, given, a, x, following,
                first, last, self.panel, draw, self.work(), room,
            )  # fmt: skip

        def begin(first: int, last: int) -> int:
            if self.weight_code == codes.GIVEN:
                for panel in range(first, last):
                    multiply(given_panel(panel), panel, panel + 1)
            else:
                multiply(self._no_weights, first, last)
            return -1

        share(begin)
        over.merge(self.spec, self.work(), room, self.offset + index, layer)

    def given_panels(self, index: int, layer: int) -> Callable[[int], FloatArray]:
        """Return a function of a panel that returns its unit-variance weights.

        They are (panel, weights of a row).  The generators depend on key, chain, layer and panel
        alone.  If kernels draw the weights, the arrays have one row, of no weights.
        """
        if self.chain.is_orthogonal:
            # The rows of a matrix depend on each other.
            width = self.chain.width
            matrix = np.zeros((self.panels * self.panel, width), self.dtype)
            generator = self._generator(index, layer, 0)
            matrix[:width] = self.chain.weight_law.entries(generator, (width, width))
            panels = matrix.reshape(self.panels, self.panel, width)
            return lambda panel: panels[panel]
        if not callable(self.chain.weights):
            none = self._no_weights
            return lambda panel: none
        return lambda panel: self._given(index, layer, panel)

    def _generator(self, index: int, layer: int, panel: int) -> np.random.Generator:
        counter = [0, panel, layer, self.offset + index]
        return np.random.Generator(np.random.Philox(key=self.key, counter=counter))

    def _given(self, index: int, layer: int, panel: int) -> FloatArray:
        """Return a panel of weights by the user's sampler."""
        generator = self._generator(index, layer, panel)
        rows = min(self.panel, self.chain.width - panel * self.panel)
        shape = rows, self.chain.fan_in
        assert callable(self.chain.weights)
        returned = self.chain.weights(generator, shape)
        allowed = f"a sampler of real numbers of shape {shape}"
        try:
            drawn = host_array("weights", returned, allowed)
        except ArgumentTypeError as error:  # ragged, or masked
            raise ArgumentError("weights", returned, allowed, str(error)) from None
        if drawn.shape != shape or drawn.dtype.kind not in "fiu":
            got = f"{drawn.dtype} of shape {drawn.shape}"
            raise ArgumentError("weights", got, f"real numbers of shape {shape}")
        if not np.isfinite(drawn).all():
            raise ArgumentError("weights", "a sample that is not finite", "finite real numbers")
        weights = np.zeros((self.panel, self.chain.fan_in), self.dtype)
        weights[:rows] = drawn
        return weights
