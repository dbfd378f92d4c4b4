"""The conditional sampler: rows given the Gram matrix of the layer before, and no weights."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnmc._kernels.cpu import factor, layers, memory, numbers, orthogonal, passes, rows
from bnmc._kernels.scalar import codes
from bnmc.chain.chain import Chain
from bnmc.chain.covariance import WithBias
from bnmc.simulation.engine.passes import Passes
from bnmc.simulation.engine.rows import SHARED_ROWS, RowSampler, Share
from bnmc.simulation.engine.sampler import FloatArray
from bnmc.simulation.engine.state import Frames

__all__ = ["ConditionalSampler"]


class ConditionalSampler(RowSampler):
    """Draws each layer given the Gram matrix of the one before; no weights exist."""

    name = path = "conditional"

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        arrays = {"gram": self.grams, "wide": self.wide, **self.precision_arrays}
        return {**arrays, "x": self.xs} if self.chain.skip != 0.0 else arrays

    @staticmethod
    def seconds(chain: Chain, columns: int, dtype: np.dtype[Any]) -> float:
        each = (0.6e-9 + 4e-11 * columns) * dtype.itemsize / 4
        # Orthogonal weights, and norms over the features, take a second pass over the rows.
        each *= 1.7 if chain.is_orthogonal or not chain.normalization.acts_on_rows else 1.0
        of_matrix = 4e-10 + 2e-11 * columns
        if chain.convolution is not None:  # the averages over taps
            of_matrix += 0.6e-9 * sum(chain.convolution.kernel)
        return 1e-6 + chain.width * columns * each + columns**2 * of_matrix

    def advance(
        self, first: int, last: int, layer: int, slots: NDArray[np.int64], frames: Frames
    ) -> None:
        record = frames.gram[first:last], frames.units[first:last]
        covariance, kernel = self.chain.covariance, self._kernel
        if isinstance(covariance, WithBias) and self.passes is not None:
            kernel = partial(self.passes.drawn, variance=covariance.variance)
        elif not covariance.is_identity:
            self._advance_singly(first, last, layer, slots, frames)
            return
        self._draw(kernel, self.spec, first, last, layer, slots, *record, self.lift)

    def _advance_singly(
        self, first: int, last: int, layer: int, slots: NDArray[np.int64], frames: Frames
    ) -> None:
        """Take chains through layers, whose Gram matrices are mapped between kernels."""
        record = frames.gram[first:last], frames.units[first:last]
        for step in range(len(slots)):
            self.grams[first:last] = self.chain.covariance(self.grams[first:last])
            self._draw(
                self._kernel, self.spec, first, last, layer + step, slots[step : step + 1],
                *record, self.lift,
            )  # fmt: skip

    def _kernel(self, dtype: np.dtype[Any]) -> Callable[..., None]:
        """Return the kernel that draws layers, for rows of a dtype."""
        if self.chain.is_orthogonal:
            return partial(orthogonal.orthogonal_layers, self._frame(dtype))
        return self._rows_kernel(dtype)

    def _frame(self, dtype: np.dtype[Any]) -> orthogonal.Frame:
        """Return the buffers of the calling thread for orthogonal weights."""
        name = f"frame_{dtype.name}"
        if not hasattr(self._buffers, name):
            frame = orthogonal.frame(self.columns, self.panels, dtype)
            setattr(self._buffers, name, frame)
        buffers: orthogonal.Frame = getattr(self._buffers, name)
        return buffers

    def factorised(
        self, index: int, layer: int, share: Share | None = None
    ) -> tuple[np.dtype[Any], codes.Draw, numbers.Work]:
        """Factorise the covariance of the rows of a layer, for one chain.

        Returns the dtype of the rows, the address of their random numbers, and the buffers of the
        calling thread, which hold the factor.  If float32 rows would not resolve the Gram matrix,
        the chain continues in float64.  `share` divides a pass over all rows among threads.
        """
        dtype = np.dtype(np.float64) if self.wide[index] else self.dtype
        own = self.work(dtype)
        least_pivot = self._factorise(self.chain.covariance(self.grams[index]), own, share)
        if dtype == np.float32 and self.chain.skip == 0.0 and least_pivot < codes.RESOLVED_PIVOT:
            del own
            self.widen(index)
            return self.factorised(index, layer, share)
        draw = self.addressed(layer, codes.STREAM_ROWS, index)
        if self.chain.is_orthogonal:
            self._orthogonalise(dtype, draw, own, share or (lambda make: [make(0, self.panels)]))
        return dtype, draw, own

    def _factorise(
        self, gram: NDArray[np.float64], own: numbers.Work, share: Share | None
    ) -> float:
        """Write the factor of a covariance to a `Work`; return the least pivot.

        This is `rows.factorise`, where threads share the products of panels.
        """
        scale = rows.prepare_factor(gram, self.spec, self.spec.hides_common, own)
        for first in range(0, self.columns, memory.PANEL):
            last = min(first + memory.PANEL, self.columns)

            def make(left: int, right: int, first: int = first, last: int = last) -> None:
                factor.make_panel(
                    own.covariance, own.diagonal, own.twin, scale, own.panel, own.factor,
                    own.regular, first, last, left, right,
                )  # fmt: skip

            make(first, last)
            if last == self.columns:
                break

            def extend(begin: int, end: int, start: int = last, make: Any = make) -> int:
                make(*(self._column_of_part(start, number) for number in (begin, end)))
                return -1

            def subtract(begin: int, end: int, start: int = last) -> int:
                row, stop = (self._row_of_part(start, number) for number in (begin, end))
                factor.subtract_products(own.covariance, own.panel, row, stop)
                return -1

            for task in (extend, subtract):
                if share is None or self.columns - last < SHARED_ROWS:
                    task(0, self.panels)
                else:
                    share(task)
        factor.copy_twins(own.twin, own.factor)
        least: float = rows.least_pivot(self.spec, own.twin, own.diagonal)
        return least

    def _column_of_part(self, start: int, number: int) -> int:
        """Return the column, from `start` on, before which `number` panels' work lies."""
        return start + (self.columns - start) * number // self.panels

    def _row_of_part(self, start: int, number: int) -> int:
        """Return the row of a triangle, from `start` on, before which `number` panels' work lies.

        All panels together do the whole upper triangle.  Rows are in fours from `start` on, as they
        are in the product, so that its bits do not depend on the parts.
        """
        if number == self.panels:
            return self.columns
        height = (self.columns - start) * (1.0 - math.sqrt(1.0 - number / self.panels))
        return start + int(height) // 4 * 4

    def _orthogonalise(
        self, dtype: np.dtype[Any], draw: codes.Draw, own: numbers.Work, share: Share
    ) -> None:
        """Correct a factor like `orthogonal.orthogonal_factor`, where threads share the panels."""
        frame = self._frame(dtype)
        orthogonal.limit_rank(self.chain.width, own.regular, own.factor)
        orthogonal.begin_frame(frame)
        for number in range(codes.MOST_PASSES):

            def add(first: int, last: int, is_first: bool = number == 0) -> int:
                work = self.work(dtype)._replace(regular=own.regular)
                orthogonal.sum_panels(
                    self.spec, is_first, first, last, self.panel, draw, work, frame
                )
                return -1

            share(add)
            if orthogonal.orthogonalise(self.spec, own, frame) >= codes.ORTHOGONAL_PIVOT:
                break
        orthogonal.multiply_lower(own.factor, frame.inverse)

    def _layer_task(
        self, index: int, layer: int, x: FloatArray, panel_sums: FloatArray, share: Share
    ) -> Callable[[int, int], int]:
        dtype, draw, own = self.factorised(index, layer, share)
        x = x.astype(dtype, copy=False)
        kept = self._activations(index, index + 1, dtype)[0, 0]
        sigma = self.activation(dtype)
        if self.passes is not None:
            return self._task_of_passes(
                self.passes, index, layer, x, kept, panel_sums, share, dtype, draw, own
            )

        def make(first: int, last: int) -> int:
            work = self.work(dtype)._replace(factor=own.factor, regular=own.regular)
            degenerate: int = layers.draw_panels(
                sigma, self.spec, x, kept, first, last, self.panel, draw, work, panel_sums
            )
            return degenerate

        return make

    def _task_of_passes(
        self,
        over: Passes,
        index: int,
        layer: int,
        x: FloatArray,
        kept: FloatArray,
        panel_sums: FloatArray,
        share: Share,
        dtype: np.dtype[Any],
        draw: codes.Draw,
        own: numbers.Work,
    ) -> Callable[[int, int], int]:
        """Make the first pass over the rows, and return the task of the second one."""
        room, sigma = over.room(dtype), self.activation(dtype)

        def work() -> numbers.Work:
            return self.work(dtype)._replace(factor=own.factor, regular=own.regular)

        def begin(first: int, last: int) -> int:
            passes.draw_moments(
                sigma, self.spec, x, room.hidden, first, last, self.panel, draw, work(),
                room,
            )  # fmt: skip
            return -1

        if self.spec.groups:
            share(begin)
            over.merge(self.spec, own, room, self.offset + index, layer)
        return lambda first, last: over.finish(
            sigma, self.spec, x, kept, room.hidden, (first, last), draw, work(), room, panel_sums
        )
