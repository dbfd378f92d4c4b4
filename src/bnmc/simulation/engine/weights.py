"""The sampler that draws weights and multiplies: the reference, for every law of weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnmc._kernels.cpu import layers, passes
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
        return 1e-6 + chain.width**2 * (of_entry + 6e-11 * columns) * dtype.itemsize / 4

    def advance(
        self, first: int, last: int, layer: int, slots: NDArray[np.int64], frames: Frames
    ) -> None:
        if self.weight_code == codes.GIVEN:
            self._advance_given(first, last, layer, slots, frames)
            return
        status = np.zeros((last - first, 3), np.int64)
        work = self.work()
        kernel: Callable[..., None] = layers.weighted_layers
        if self.passes is not None:
            kernel = self.passes.multiplied(self.dtype)
        kernel(
            self.activation(), self.law, self.weight_code, np.zeros((1, 1), self.dtype),
            self.grams[first:last], self._xs(first, last, self.dtype),
            self.activations[first:last], self.offset + first, layer, slots,
            frames.gram[first:last], self.panel, *self.key_words, np.zeros_like(work.sums), work,
            status, self.exponents[first:last], frames.units[first:last], self.lift,
        )  # fmt: skip
        self.check(status, first)

    def _advance_given(
        self, first: int, last: int, layer: int, slots: NDArray[np.int64], frames: Frames
    ) -> None:
        """Take chains through layers whose weights the user's sampler draws, panel by panel."""
        for index in range(first, last):
            for step, slot in enumerate(slots):
                self._one_layer(index, layer + step, lambda make: [make(0, self.panels)])
                self._record_one(index, slot, frames)

    def _layer_task(
        self, index: int, layer: int, x: FloatArray, panel_sums: FloatArray, share: Share
    ) -> Callable[[int, int], int]:
        a = self.activations[index, (layer + 1) % 2]
        following = self.activations[index, layer % 2]
        draw = self.addressed(layer, codes.STREAM_WEIGHTS, index)
        given_panel = self.given_panels(index, layer)
        if self.passes is not None:
            self._begin(self.passes, index, layer, x, draw, share)
            over, room = self.passes, self.passes.room(self.dtype)
            return lambda first, last: over.finish(
                self.activation(), self.law, x, following, following, (first, last), draw,
                self.work(), room, panel_sums,
            )  # fmt: skip

        def multiply(given: FloatArray, first: int, last: int) -> int:
            degenerate: int = layers.multiply_panels(
                self.activation(), self.law, self.weight_code, given, a, x, following, first,
                last, self.panel, draw, self.work(), panel_sums,
            )  # fmt: skip
            return degenerate

        def make(first: int, last: int) -> int:
            if self.weight_code != codes.GIVEN:
                return multiply(np.zeros((1, 1), self.dtype), first, last)
            for panel in range(first, last):
                degenerate = multiply(given_panel(panel), panel, panel + 1)
                if degenerate >= 0:
                    return degenerate
            return -1

        return make

    def _begin(
        self, over: Passes, index: int, layer: int, x: FloatArray, draw: codes.Draw, share: Share
    ) -> None:
        """Make the first pass over the rows of a layer, which multiplies by the weights."""
        a = self.activations[index, (layer + 1) % 2]
        following = self.activations[index, layer % 2]
        given_panel, room = self.given_panels(index, layer), over.room(self.dtype)

        def multiply(given: FloatArray, first: int, last: int) -> None:
            passes.multiply_moments(
                over.style, self.activation(), self.law, self.weight_code, given, a, x, following,
                first, last, self.panel, draw, self.work(), room,
            )  # fmt: skip

        def begin(first: int, last: int) -> int:
            if self.weight_code == codes.GIVEN:
                for panel in range(first, last):
                    multiply(given_panel(panel), panel, panel + 1)
            else:
                multiply(np.zeros((1, 1), self.dtype), first, last)
            return -1

        share(begin)
        over.merge(self.law, self.work(), room, self.offset + index, layer)

    def given_panels(self, index: int, layer: int) -> Callable[[int], FloatArray]:
        """Return a function of a panel that returns its unit-variance weights, (panel, width).

        The generators depend on key, chain, layer and panel alone.  If kernels draw the weights,
        the arrays have shape (1, 1).
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
            none = np.zeros((1, 1), self.dtype)
            return lambda panel: none
        return lambda panel: self._given(index, layer, panel)

    def _generator(self, index: int, layer: int, panel: int) -> np.random.Generator:
        counter = [0, panel, layer, self.offset + index]
        return np.random.Generator(np.random.Philox(key=self.key, counter=counter))

    def _given(self, index: int, layer: int, panel: int) -> FloatArray:
        """Return a panel of weights by the user's sampler."""
        width, generator = self.chain.width, self._generator(index, layer, panel)
        rows = min(self.panel, width - panel * self.panel)
        assert callable(self.chain.weights)
        returned = self.chain.weights(generator, (rows, width))
        allowed = f"a sampler of real numbers of shape {(rows, width)}"
        try:
            drawn = host_array("weights", returned, allowed)
        except ArgumentTypeError as error:  # ragged, or masked
            raise ArgumentError("weights", returned, allowed, str(error)) from None
        if drawn.shape != (rows, width) or drawn.dtype.kind not in "fiu":
            got = f"{drawn.dtype} of shape {drawn.shape}"
            raise ArgumentError("weights", got, f"real numbers of shape {(rows, width)}")
        if not np.isfinite(drawn).all():
            raise ArgumentError("weights", "a sample that is not finite", "finite real numbers")
        weights = np.zeros((self.panel, width), self.dtype)
        weights[:rows] = drawn
        return weights
