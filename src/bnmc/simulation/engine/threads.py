"""Threads that share each layer of a chain, by panels of rows; see `_kernels.cpu.sharing`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnmc._kernels.cpu import factor, memory, numbers, rows, sharing
from bnmc._kernels.scalar import codes
from bnmc._support.workers import even_ranges

#: Order of a triangle from which on threads share it: smaller ones take less time than the threads
#: take to start.
SHARED_ROWS = 512


@dataclass(frozen=True)
class Threads:
    """The calling thread, and those of an executor.

    Parameters
    ----------
    executor : Executor or None
        None if the calling thread does everything.
    count : int
        Number of threads, with the calling one.
    work : callable
        Returns the `Work` of the thread that calls it, for rows of a dtype.
    panel_of : callable, optional
        Returns the weights of a panel of a layer, which kernels are given.
    """

    executor: Executor | None
    count: int
    work: Callable[[np.dtype[Any]], numbers.Work]
    panel_of: Callable[[int], NDArray[Any]] | None = None

    def share(self, task: Any, panels: int, work: numbers.Work, *arguments: Any) -> int:
        """Call a task with ranges of panels; return the least result >= 0, or -1."""

        def run(first: int, last: int) -> int:
            buffers = self.work(work.block.dtype)
            buffers = buffers._replace(factor=work.factor, regular=work.regular)
            if self.panel_of is None:
                return int(task(first, last, buffers, *arguments))
            source, *others = arguments
            for panel in range(first, last):
                given = source._replace(given=self.panel_of(panel))
                result = int(task(panel, panel + 1, buffers, given, *others))
                if result >= 0:
                    return result
            return -1

        return self._together(run, even_ranges(panels, min(self.count, panels)))

    def _together(self, task: Callable[[Any, Any], int], parts: Sequence[Any]) -> int:
        """Call a task with parts, the first one in this thread; return the least result >= 0."""
        first, *others = parts
        futures = [self.executor.submit(task, *part) for part in others if self.executor]
        results = [task(*first), *(future.result() for future in futures)]
        return min((result for result in results if result >= 0), default=-1)

    def _share_large(self, task: Callable[[float, float], int], order: int) -> int:
        """Call a task with ranges of shares from 0 to 1, if a triangle is large."""
        if self.executor is None or order < SHARED_ROWS:
            return task(0.0, 1.0)
        ends = [number / self.count for number in range(self.count + 1)]
        return self._together(task, list(pairwise(ends)))

    def merge(
        self,
        sums: NDArray[np.float64],
        width: int,
        gram: NDArray[np.float64],
        start: int,
        tiles: int,
    ) -> bool:
        """Write the Gram matrix of the sums of all panels; return whether it is finite."""

        def part(begin: float, end: float) -> int:
            # The rows of tiles of a triangle before which a share of the work lies.
            first, last = (round(tiles * math.sqrt(share)) for share in (begin, end))
            return -1 if sharing.merge_tiles(sums, width, gram, first, last) else 0

        return self._share_large(part, len(gram)) < 0

    def factorise(
        self, gram: NDArray[np.float64], spec: codes.LayerSpec, work: numbers.Work
    ) -> float:
        """Write the factor of a covariance to a `Work`, as `rows.factorise` does."""
        columns = spec.columns
        scale = rows.prepare_factor(gram, spec, spec.hides_common, work)
        factored = factor.Factored(
            work.covariance, work.diagonal, work.twin, work.panel, work.factor, work.regular
        )
        for first in range(0, columns, memory.PANEL):
            last = min(first + memory.PANEL, columns)

            def make(left: int, right: int, first: int = first, last: int = last) -> None:
                factor.make_panel(factored, scale, first, last, left, right)

            make(first, last)
            if last == columns:
                break

            def extend(begin: float, end: float, start: int = last, make: Any = make) -> int:
                make(*(start + int((columns - start) * share) for share in (begin, end)))
                return -1

            def subtract(begin: float, end: float, start: int = last) -> int:
                row, stop = (_row_of_share(start, columns, share) for share in (begin, end))
                factor.subtract_products(work.covariance, work.panel, row, stop)
                return -1

            for task in (extend, subtract):
                self._share_large(task, columns - last)
        factor.copy_twins(work.twin, work.factor)
        return rows.least_pivot(spec, gram, scale, work)


def _row_of_share(start: int, stop: int, share: float) -> int:
    """Return the row of a triangle, from `start` on, before which a share of the work lies.

    Rows are in fours from `start` on, as they are in the product, so that its bits do not depend on
    the parts.
    """
    if share == 1.0:
        return stop
    height = (stop - start) * (1.0 - math.sqrt(1.0 - share))
    return start + int(height) // 4 * 4
