"""Some chains of a run and their way through its layers, in one process."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from bnmc._support.workers import Workers, even_ranges
from bnmc.chain.start import Start
from bnmc.errors import ArgumentError
from bnmc.simulation.engine.rows import RowSampler
from bnmc.simulation.engine.sampler import Sampler
from bnmc.simulation.engine.state import Frames, State
from bnmc.simulation.engine.threads import Threads
from bnmc.simulation.engine.wishart import FactorSampler
from bnmc.simulation.runs import Run
from bnmc.simulation.sinks import Values

#: Seconds that a task of one thread should take, for prompt Ctrl-C and progress.
TASK_SECONDS = 0.2

#: Bytes that the frames of a block of layers may take.
FRAME_BYTES = 1 << 25

#: How many times as many bytes they may take on a GPU.
_GPU_FRAMES = 16

#: Seconds of a layer above which threads share it.
SHARED_LAYER_SECONDS = 3e-4


class Segment:
    """The chains of a run, at some layer.

    Parameters
    ----------
    run : Run
    threads : int
    workers : Workers, optional
        Has the threads, if there are several.
    """

    def __init__(self, run: Run, threads: int, workers: Workers | None = None) -> None:
        self.run = run
        self.sampler = _sampler_of(run)
        self.threads = threads
        self.workers = workers
        self.layer = run.start_layer
        #: Whether the chains are between two steps, so that they have a state.
        self.is_between = False
        self._step = layers_of_step(run, threads)

    def begin(self, start: Start | State, values: Values, slot: int = 0) -> None:
        """Go to layer 0 or to the layer of a state, and record it if it is due."""
        frames = self.run.frames(1)
        if isinstance(start, State):
            self.sampler.take(start)
            self.sampler.record(frames)
        else:
            law = start
            self._spread(lambda a, b: self.sampler.begin(law, a, b, frames), self.sampler.divisible)
        self.sampler.watch_precision(frames)
        if self.run.recorded.first == self.layer:
            self._take(frames, 0, 1, values, slot)
        self.is_between = True

    def resume(self, state: State) -> None:
        """Continue a state whose layer was recorded before."""
        self.layer = state.layer
        self.sampler.take(state)
        self.is_between = True

    def advance(
        self, end: int, values: Values, slot: int, stopped: Callable[[], bool] | None = None
    ) -> bool:
        """Go to layer `end`; return False if `stopped` returned True before.

        Parameters
        ----------
        end : int
        values : dict of (chains, slots, ...) ndarray
            Receive the values of recorded layers.
        slot : int
            Their first slot.
        stopped : callable, optional
        """
        recorded = self.run.recorded
        while self.layer < end:
            if stopped is not None and stopped():
                return False
            self.is_between = False
            first, last = self.layer + 1, min(self.layer + self._step, end) + 1
            slots = recorded.slots(first, last)
            before, after = recorded.before(first), recorded.before(last)
            frames = self.run.frames(after - before)
            if self.run.stays:
                slots[slots >= 0] += before
            self._go(first, slots, frames)
            self.layer = last - 1
            self.sampler.watch_precision(frames)
            self._take(frames, before, after, values, slot)
            self.is_between = True
        return True

    @property
    def state(self) -> State:
        """The state at the current layer; a view of the arrays of the sampler."""
        return self.run.state(self.layer, self.sampler.arrays)

    def _go(self, layer: int, slots: NDArray[np.int64], frames: Frames) -> None:
        few = self.run.chains < self.threads and self.sampler.panels > 1
        if few and self.workers is not None and self.run.seconds > SHARED_LAYER_SECONDS:
            executor = self.workers.executor
            threads = Threads(executor, self.threads, self.sampler.work)
            self.sampler.advance(0, self.run.chains, layer, slots, frames, threads)
            return
        self._spread(
            lambda a, b: self.sampler.advance(a, b, layer, slots, frames), self.sampler.divisible
        )

    def _spread(self, task: Callable[[int, int], None], divisible: bool = True) -> None:
        """Run a task on ranges of chains, on all threads; raise the error of the first range."""
        parts = min(self.threads, self.run.chains) if divisible else 1
        if parts == 1 or self.workers is None:
            task(0, self.run.chains)
            return
        ranges = even_ranges(self.run.chains, parts)
        for future in [self.workers.executor.submit(task, *each) for each in ranges]:
            future.result()

    def _take(self, frames: Frames, first: int, last: int, values: Values, slot: int) -> None:
        """Evaluate the observables of recorded layers, whose slots are first:last."""
        run = self.run
        if first == last or run.stays:
            return
        room = {name: array[:, first - slot : last - slot] for name, array in values.items()}

        def evaluate(a: int, b: int) -> None:
            view = run.view(frames.part(a, b), a, first)
            for each in run.observables:
                room[each.name][a:b] = run.values(each, view)

        if run.measures:
            self._sort(frames.values, room)
        else:
            self._spread(evaluate)

    def _sort(self, numbers: NDArray[np.float64], room: Values) -> None:
        """Put the numbers that kernels recorded into the arrays of the observables."""
        if np.isnan(numbers).any():
            raise ArgumentError("G", 0.0, "matrices of positive trace")
        for index, each in enumerate(self.run.observables):
            measured = numbers[:, :, index]
            room[each.name][...] = measured if self.run.inputs is not None else measured[:, :, 0]


def _sampler_of(run: Run) -> Sampler:
    """Return the sampler of the chains of a run."""
    if run.backend == "cuda":
        from bnmc.simulation.engine.gpu.samplers import GpuSampler

        return GpuSampler(run)
    return FactorSampler(run) if run.path == "factor" else RowSampler(run)


def layers_of_step(run: Run, threads: int) -> int:
    """Return the layers between two looks at Ctrl-C, which are evaluated together."""
    is_on_cpu = run.backend == "cpu"
    busy = threads if is_on_cpu else 1
    numbers = len(run.measures) * (run.inputs or 1) or run.columns**2
    by_time = TASK_SECONDS / (-(-run.chains // busy) * run.seconds)
    by_memory = FRAME_BYTES / (8 * run.chains * numbers) * (1 if is_on_cpu else _GPU_FRAMES)
    return max(1, int(min(by_time, by_memory, 100_000)))
