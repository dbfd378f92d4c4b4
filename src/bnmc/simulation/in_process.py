"""A run in the calling process: all chains go through the layers together."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from bnmc._kernels.processor import host_cpu
from bnmc.simulation.engine.state import State
from bnmc.simulation.segment import Segment, Sink
from bnmc.simulation.tiles import Origin

__all__ = []


class InProcessRun:
    """A run in this process, all chains together; threads share the chains, or each layer."""

    def __init__(self, segment: Segment, start: Origin, sink: Sink) -> None:
        self.segment = segment
        self.start = start
        self.sink = sink
        #: Number of recorded layers.
        self.slots = 0
        #: Whether the chains are between two blocks, so that they have a state.
        self._is_between = False

    def run(self, stopped: Callable[[], bool], report: Callable[[int, int], None]) -> None:
        """Go through the layers until the last one, or until `stopped` returns True."""
        recorded, segment = self.segment.job.recorded, self.segment
        segment.begin(self.start, self.sink)
        first = segment.layer
        self._note()
        while segment.layer < recorded.last and not stopped():
            self._is_between = False
            segment.advance(recorded.last, self.sink)
            self._note()
            report(segment.layer - first, recorded.last - first)

    def _note(self) -> None:
        self.slots = self.segment.job.recorded.before(self.segment.layer + 1)
        self._is_between = True

    @property
    def cpu(self) -> str:
        """The kind of processor."""
        return self.segment.job.with_blas(host_cpu())

    @property
    def state(self) -> State | None:
        """The state of the chains; None in the middle of a block, and before the first one."""
        return self.segment.state if self._is_between else None

    @property
    def widened(self) -> list[int]:
        """The chains that continued in float64."""
        return _numbers(self.segment.sampler.wide)

    @property
    def unresolved(self) -> list[int]:
        """The chains with Gram matrices that float32 rows did not resolve."""
        return _numbers(self.segment.sampler.unresolved)


def _numbers(chosen: NDArray[np.bool_]) -> list[int]:
    found: list[int] = chosen.nonzero()[0].tolist()
    return found
