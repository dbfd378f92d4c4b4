"""Base class of the samplers that make a layer row by row."""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnmc._kernels.cpu import layers, memory
from bnmc._kernels.cpu.scaling import rescale
from bnmc._kernels.scalar import codes
from bnmc._support.workers import even_ranges
from bnmc.chain.compiled import raise_stopped, spec_of_start
from bnmc.chain.start import Covariance, Representation
from bnmc.errors import NonFiniteError
from bnmc.simulation.engine.passes import Passes
from bnmc.simulation.engine.precision import in_range, least_pivots
from bnmc.simulation.engine.sampler import FloatArray, ScaledSampler
from bnmc.simulation.engine.state import Frames

__all__ = ["Share"]

#: A function that calls a task on ranges of panels that make up a layer, and returns its results.
Share = Callable[[Callable[[int, int], int]], list[int]]

#: Order of a triangle from which on threads share it: smaller ones take less time than the threads
#: take to start.
SHARED_ROWS = 512

#: Relative pivot of a Gram matrix below which float32 rows do not resolve the samples.  In each
#: layer rounding moves a sample by at least 2**-24 of its size, which is then 0.05 % of its
#: distance from the span of the others.
LOST_PIVOT = 2.0**-26


class RowSampler(ScaledSampler):
    """A sampler that makes each layer row by row.

    The state of a chain is its Gram matrix, its representation x if there is a skip connection, and
    the activations of all rows if weights multiply them.
    """

    def _allocate(self) -> None:
        super()._allocate()
        chain, chains = self.chain, self.chains
        self.panel = memory.panel_rows(chain.width, self.rows_are_worth)
        self.grams = np.zeros((chains, self.columns, self.columns))
        stride = memory.stride(chain.width)
        keeps_x = chain.skip != 0.0
        #: The representations, and the activations of two layers; kernels take small arrays in
        #: place of those that the state does not have.
        self.xs: FloatArray = np.zeros((1, 1, 1), self.dtype)
        if keeps_x:
            self.xs = memory.aligned_zeros((chains, self.columns, stride), self.dtype)
        self.activations: FloatArray = np.zeros((1, 2, 0, 0), self.dtype)
        if self.keeps_a:
            of_a = (chains, 2, memory.padded(self.columns), stride)
            self.activations = memory.aligned_zeros(of_a, self.dtype)
        #: The passes over the rows of a layer, unless the layers are row by row without bias.
        self.passes: Passes | None = None
        if not chain.is_row_by_row or chain.shows_bias:
            self.passes = Passes(chain, self.columns, self.panel, self.panels, keeps_a=self.keeps_a)
        self.is_watched = self.dtype == np.float32 and (keeps_x or self.keeps_a)

    @property
    def precision_arrays(self) -> dict[str, NDArray[Any]]:
        """The arrays of the state that describe its precision."""
        arrays: dict[str, NDArray[Any]] = {}
        if self.is_scaled:
            arrays["exponent"] = self.exponents
        if self.is_watched:
            arrays["unresolved"] = self.unresolved
        return arrays

    def watch_precision(self, frames: Frames) -> None:
        if self.is_watched:
            n, centred = self.chain.batch, self.chain.normalization.hides_common_part
            for first in range(0, self.columns, n):
                own = frames.gram[..., first : first + n, first : first + n]
                least = least_pivots(own, centred, self.chain.width)
                self.unresolved |= (least < LOST_PIVOT).any(axis=1)
        if self.is_scaled:
            in_range(frames.gram, frames.log_scale, frames.units)
        elif self.chain.normalization.is_identity:
            self.require_scale(self.grams)

    @property
    def keeps_a(self) -> bool:
        """Whether the activations of all rows are part of the state."""
        return False

    @property
    def rows_are_worth(self) -> int:
        """Cost of a row, in numbers."""
        return self.columns

    @property
    def panels(self) -> int:
        return -(-self.chain.width // self.panel)

    def begin(
        self, start: Covariance | Representation, first: int, last: int, frames: Frames
    ) -> None:
        if self.is_scaled:
            own = slice(first, last) if len(start.exponents) > 1 else slice(1)
            self.exponents[first:last] = start.exponents[own]
        if isinstance(start, Covariance):
            self._draw_start(start, first, last, frames)
            return
        self._copy_start(start, first, last)
        frames.gram[first:last, 0] = self.grams[first:last]
        if self.is_scaled:
            frames.units[first:last, 0] = self.exponents[first:last]

    def record(self, frames: Frames) -> None:
        frames.gram[:, 0] = self.grams
        if self.is_scaled:
            frames.units[:, 0] = self.exponents

    def _draw_start(self, start: Covariance, first: int, last: int, frames: Frames) -> None:
        """Draw layer 0 given its covariance, as if that were the Gram matrix of a layer -1."""
        self.grams[first:last] = start.matrix
        spec = spec_of_start(self.spec)
        record = frames.gram[first:last], frames.units[first:last]
        self._draw(self._rows_kernel, spec, first, last, 0, np.zeros(1, np.int64), *record, 0)

    def _rows_kernel(self, dtype: np.dtype[Any]) -> Callable[..., None]:
        """Return the kernel that draws layers with Gaussian weights, for rows of a dtype."""
        kernel: Callable[..., None] = layers.conditional_layers
        return kernel if self.passes is None else self.passes.drawn(dtype)

    def _draw(
        self,
        kernel_of: Callable[[np.dtype[Any]], Callable[..., None]],
        spec: codes.LayerSpec,
        first: int,
        last: int,
        layer: int,
        slots: NDArray[np.int64],
        record: NDArray[np.float64],
        units: NDArray[np.int64],
        lift: int,
    ) -> None:
        """Take chains first:last through layers, each drawn given the one before.

        `kernel_of` returns the kernel for rows of a dtype.  If float32 rows do not resolve the
        Gram matrix of a float32 chain, the chain continues in float64, in all later layers.
        Rounding then neither loses nor creates small eigenvalues.
        """
        if last - first > 1 and self.wide[first:last].any():
            for index in range(first, last):
                one = slice(index - first, index - first + 1)
                self._draw(
                    kernel_of, spec, index, index + 1, layer, slots, record[one], units[one], lift
                )
            return
        dtype = np.dtype(np.float64) if self.wide[first] else self.dtype
        status = np.zeros((last - first, 3), np.int64)
        work = self.work(dtype)
        kernel_of(dtype)(
            self.activation(dtype), spec, self.grams[first:last], self._xs(first, last, dtype),
            self._activations(first, last, dtype), self.offset + first, layer, slots, record,
            self.panel,
            *self.key_words, np.zeros(len(work.sums)), work, status, self.exponents[first:last],
            units, lift,
        )  # fmt: skip
        del work
        if not np.count_nonzero(status[:, 0]):
            return
        for index in (first + np.flatnonzero(status[:, 0] == codes.UNRESOLVED)).tolist():
            self.widen(index)
            one = slice(index - first, index - first + 1)
            done = int(status[index - first, 1]) - layer
            status[one] = 0
            self._draw(
                kernel_of, spec, index, index + 1, layer + done, slots[done:], record[one],
                units[one], lift,
            )  # fmt: skip
        self.check(status, first)

    def _copy_start(self, start: Representation, first: int, last: int) -> None:
        width, shared = self.chain.width, len(start.x) == 1
        work = memory.work(self.chain.batch, self.inputs or 1, np.dtype(np.float64))
        rows = memory.aligned_zeros((self.columns, memory.stride(width)), np.float64)
        for index in range(first, first + 1 if shared else last):
            rows[:, :width] = start.a[0 if shared else index].T
            if not layers.gram_of_rows(rows, width, work, self.grams[index]):
                chain = None if shared else self.offset + index
                raise NonFiniteError(chain, 0, "Gram matrix")
        if shared:
            self.grams[first + 1 : last] = self.grams[first]

        some = slice(1) if shared else slice(first, last)
        kept = []
        with np.errstate(over="ignore"):
            if self.chain.skip != 0.0:
                kept.append(self.xs[first:last, :, :width])
                kept[-1][...] = start.x[some].swapaxes(1, 2)
            if self.keeps_a:
                kept.append(self.activations[first:last, 0, : self.columns, :width])
                kept[-1][...] = start.a[some].swapaxes(1, 2)
        for values in kept:
            finite = np.isfinite(values).all(axis=(1, 2))
            if not finite.all():
                chain = None if shared else self.offset + first + int(finite.argmin())
                raise NonFiniteError(chain, 0, f"{self.dtype} representation")

    def rows_of_x(self, index: int, dtype: np.dtype[Any] | None = None) -> FloatArray:
        """Return x of one chain, (columns, >= width); of shape (1, 1) without a skip connection."""
        x: FloatArray = self.xs[index if self.chain.skip != 0.0 else 0]
        return x.astype(dtype or self.dtype, copy=False)

    def _xs(self, first: int, last: int, dtype: np.dtype[Any]) -> FloatArray:
        if self.chain.skip != 0.0:
            return self.xs[first:last]
        return self.xs.astype(dtype, copy=False)

    def _activations(self, first: int, last: int, dtype: np.dtype[Any]) -> FloatArray:
        if self.keeps_a:
            return self.activations[first:last]
        return self.activations.astype(dtype, copy=False)

    def advance_together(
        self,
        executor: Executor,
        threads: int,
        layer: int,
        slots: NDArray[np.int64],
        frames: Frames,
    ) -> None:
        parts = min(threads, self.panels)
        own, *others = even_ranges(self.panels, parts)

        def share(make: Callable[[int, int], int]) -> list[int]:
            tasks = [executor.submit(make, *part) for part in others]
            return [make(*own), *(task.result() for task in tasks)]

        for index in range(self.chains):
            for step, slot in enumerate(slots):
                self._one_layer(index, layer + step, share)
                self._record_one(index, slot, frames)

    def _record_one(self, index: int, slot: int, frames: Frames) -> None:
        """Record the state of one chain, unless the slot is -1."""
        if slot < 0:
            return
        frames.gram[index, slot] = self.grams[index]
        if self.is_scaled:
            frames.units[index, slot] = self.exponents[index]

    def _one_layer(self, index: int, layer: int, share: Share) -> None:
        """Make one layer of one chain; `share` runs a task on ranges that make up all panels."""
        panel_sums, total = self._sums
        x = self.rows_of_x(index)
        degenerate = share(self._layer_task(index, layer, x, panel_sums, share))

        def merge(first: int, last: int) -> int:
            begin, end = (self._tiles_of_part(number) for number in (first, last))
            return int(
                layers.merge_tiles(
                    panel_sums, self.spec.width, total, self.grams[index], begin, end
                )
            )

        shared = self.columns >= SHARED_ROWS
        finite = all(share(merge) if shared else [merge(0, self.panels)])
        if self.is_scaled and finite:
            a = self.activations[index, layer % 2] if self.keeps_a else self.activations[0, 0]
            finite = rescale(self.grams[index], x, a, self.exponents[index], self.lift)
        rows = [row for row in degenerate if row >= 0]
        if rows or not finite:
            status = codes.ZERO_VARIANCE if finite else codes.NOT_FINITE
            raise_stopped(status, self.offset + index, layer, min(rows, default=-1))

    @property
    def _sums(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The buffers of the calling thread for the sums of all panels, and for their total."""
        if not hasattr(self._buffers, "sums"):
            sums = memory.tile_sums(self.columns)
            self._buffers.sums = np.zeros((self.panels, sums)), np.zeros(sums)
        found: tuple[NDArray[np.float64], NDArray[np.float64]] = self._buffers.sums
        return found

    def _tiles_of_part(self, number: int) -> int:
        """Return the row of tiles before which the work of `number` panels lies, of a triangle."""
        return round(memory.padded(self.columns) // 4 * math.sqrt(number / self.panels))

    def _layer_task(
        self, index: int, layer: int, x: FloatArray, panel_sums: FloatArray, share: Share
    ) -> Callable[[int, int], int]:
        """Return a function of a range of panels that makes them, for one layer of one chain.

        `share` runs what must be known of all panels before.
        """
        raise NotImplementedError
