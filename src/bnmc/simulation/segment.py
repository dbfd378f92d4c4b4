"""Some chains of a run and their way through its layers, in one process."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from bnmc._support.interruption import abandon
from bnmc._support.workers import even_ranges
from bnmc.chain.start import Covariance, Representation
from bnmc.errors import ArgumentError
from bnmc.simulation.engine.sampler import Sampler
from bnmc.simulation.engine.state import Frames, State
from bnmc.simulation.job import Job
from bnmc.simulation.observables import View

__all__ = ["Pool", "Segment", "Sink", "layers_of_block"]

#: Seconds that a task of one thread should take, for prompt Ctrl-C and progress.
TASK_SECONDS = 0.2

#: Bytes that the frames of a block of layers may take.
FRAME_BYTES = 1 << 25

#: Seconds of a layer above which threads share it.
SHARED_LAYER_SECONDS = 3e-4


class Sink(Protocol):
    """A place for recorded values."""

    def room(self, first: int, last: int) -> dict[str, NDArray[np.float64]]:
        """Return arrays (chains, slots, ...) by name, for slots first:last to be written to."""

    def filled(self, first: int, last: int, arrays: dict[str, NDArray[np.float64]]) -> None:
        """Take the arrays of `room` after they were written."""


class Segment:
    """Chains first:last of a run, at some layer.

    Parameters
    ----------
    job : Job
    sampler : Sampler
        The sampler of these chains.
    threads : int
    pool : Pool
        Pool of `threads` threads.
    """

    def __init__(self, job: Job, sampler: Sampler, threads: int, pool: Pool) -> None:
        self.job = job
        self.sampler = sampler
        self.threads = threads
        self.pool = pool
        self.chains = sampler.chains
        self.layer = 0
        #: Estimated time of one layer of one chain on one thread.
        self._seconds = sampler.seconds(job.chain, sampler.columns, sampler.dtype)
        numbers = len(sampler.measures) * (job.inputs or 1) or sampler.columns**2
        busy = threads if sampler.divisible else 1
        #: Layers between two looks at Ctrl-C.
        self._block = layers_of_block(
            sampler.chains, busy, self._seconds, numbers, sampler.frame_factor
        )

    def begin(self, start: Covariance | Representation | State, sink: Sink) -> None:
        """Go to layer 0 or to the layer of a state, and record it if it is due."""
        frames = self._frames(1)
        if isinstance(start, State):
            self.resume(start)
            self.sampler.record(frames)
        else:
            law = start
            self._spread(lambda a, b: self.sampler.begin(law, a, b, frames), self.sampler.divisible)
        self.sampler.watch_precision(frames)
        if self.job.recorded.first == self.layer:
            self._take(frames, 0, 1, sink)

    def resume(self, state: State) -> None:
        """Continue a state whose layer was recorded before."""
        self.layer = state.layer
        self.sampler.take(state)

    def advance(self, last: int, sink: Sink) -> None:
        """Go through one block of layers, at most to layer `last`."""
        first, end = self.layer + 1, min(self.layer + self._block, last) + 1
        recorded = self.job.recorded
        slots = recorded.slots(first, end)
        before, after = recorded.before(first), recorded.before(end)
        frames = self._frames(after - before)
        if self.job.stays:
            slots[slots >= 0] += before
        self._go(first, slots, frames)
        self.layer = end - 1
        self.sampler.watch_precision(frames)
        self._take(frames, before, after, sink)

    @property
    def state(self) -> State:
        """The state at the current layer; a view of the arrays of the sampler."""
        return self.job.state(self.layer, self.sampler.arrays)

    def _frames(self, layers: int) -> Frames:
        columns = self.sampler.columns
        measures = len(self.sampler.measures)
        if measures or self.job.stays:
            none = np.zeros((0, 0))
            values = np.zeros((self.chains, layers, measures, self.job.inputs or 1))
            return Frames(none[:, :, None, None], none, none[:, :, None], values)
        pivots = columns if self.job.path == "factor" else 0
        units = columns if self.sampler.is_scaled else 0
        return Frames(
            np.zeros((self.chains, layers, columns, columns)),
            np.zeros((self.chains, layers)),
            np.zeros((self.chains, layers, pivots)),
            units=np.zeros((self.chains, layers, units), np.int64),
        )

    def _go(self, layer: int, slots: NDArray[np.int64], frames: Frames) -> None:
        few = self.chains < self.threads and self.sampler.panels > 1
        if few and self._seconds > SHARED_LAYER_SECONDS:
            self.sampler.advance_together(self.pool.executor, self.threads, layer, slots, frames)
            return
        self._spread(
            lambda a, b: self.sampler.advance(a, b, layer, slots, frames), self.sampler.divisible
        )

    def _spread(self, task: Callable[[int, int], None], divisible: bool = True) -> None:
        """Run a task on ranges of chains, on all threads."""
        parts = min(self.threads, self.chains) if divisible else 1
        if parts == 1:
            task(0, self.chains)
        else:
            self.pool.map(task, even_ranges(self.chains, parts))

    def _take(self, frames: Frames, first: int, last: int, sink: Sink) -> None:
        """Evaluate the observables of recorded layers, whose slots are first:last."""
        if first == last or self.job.stays:
            return
        results = sink.room(first, last)

        def evaluate(a: int, b: int) -> None:
            part = frames.part(a, b)
            view = View.of(
                self.job.chain, self.job.inputs or 1, part, self.sampler.offset + a,
                lambda index: self.job.recorded.layer(first + index),
            )  # fmt: skip
            for one in self.job.observables:
                results[one.name][a:b] = self.job.values(one, view)

        if self.sampler.measures:
            self._sort(frames.values, results)
        else:
            self._spread(evaluate)
        sink.filled(first, last, results)

    def _sort(self, values: NDArray[np.float64], results: dict[str, NDArray[np.float64]]) -> None:
        """Put the numbers that kernels recorded into the arrays of the observables."""
        if np.isnan(values).any():
            raise ArgumentError("G", 0.0, "matrices of positive trace")
        for index, one in enumerate(self.job.observables):
            measured = values[:, :, index]
            results[one.name][...] = measured if self.job.inputs is not None else measured[:, :, 0]


def layers_of_block(chains: int, threads: int, seconds: float, numbers: int, factor: float) -> int:
    """Return the layers between two looks at Ctrl-C, which are evaluated together.

    Parameters
    ----------
    chains, threads : int
    seconds : float
        Time of one layer of one chain on one thread.
    numbers : int
        Numbers that the frame of one layer of one chain has.
    factor : float
        Factor of `FRAME_BYTES`.
    """
    by_time = TASK_SECONDS / (-(-chains // threads) * seconds)
    by_memory = FRAME_BYTES / (8 * chains * numbers) * factor
    return max(1, int(min(by_time, by_memory, 100_000)))


class Pool:
    """Threads that start when they are first needed and stop in any event."""

    def __init__(self, stack: ExitStack, threads: int) -> None:
        self._stack = stack
        self._threads = threads
        self._executor: ThreadPoolExecutor | None = None

    @property
    def executor(self) -> ThreadPoolExecutor:
        """The threads."""
        if self._executor is None:
            self._executor = ThreadPoolExecutor(self._threads, thread_name_prefix="bnmc")
            self._stack.push(self._end)
        return self._executor

    def _end(self, kind: type[BaseException] | None, *_: object) -> None:
        assert self._executor is not None
        # Ctrl-C does not wait for the end of a long layer.
        if kind is not None and issubclass(kind, KeyboardInterrupt):
            abandon(self._executor)
        else:
            self._executor.shutdown(cancel_futures=True)

    def map(self, task: Callable[[int, int], None], ranges: list[tuple[int, int]]) -> None:
        """Run a task on ranges, and raise the first error in the order of ranges."""
        futures: list[Future[None]] = [self.executor.submit(task, *one) for one in ranges]
        for future in futures:
            future.result()
