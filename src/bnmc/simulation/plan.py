"""A run whose every argument has been checked, and how it goes through its layers."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnmc._kernels.processor import host_cpu
from bnmc._support.arguments import draw_key
from bnmc._support.device_arrays import is_device_array
from bnmc._support.extras import require_extras
from bnmc._support.interruption import StillAtWork, Stop, uninterrupted
from bnmc._support.progress import Reporter
from bnmc._support.workers import Workers
from bnmc.chain.start import Covariance, Representation, prepare
from bnmc.errors import ArgumentError, Interrupted, PrecisionWarning
from bnmc.simulation.engine.choice import SAMPLERS
from bnmc.simulation.engine.sampler import Sampler
from bnmc.simulation.engine.state import State
from bnmc.simulation.execution import Execution, choose_backend
from bnmc.simulation.export import extras_of
from bnmc.simulation.in_process import InProcessRun
from bnmc.simulation.job import Job
from bnmc.simulation.memory import Request, require_memory
from bnmc.simulation.observables import OBSERVABLES
from bnmc.simulation.recording import Recording
from bnmc.simulation.segment import Pool, Segment
from bnmc.simulation.sinks import RunningMoments
from bnmc.simulation.store.store import RunStore, stored_key
from bnmc.simulation.tiles import TILE_SECONDS, Grid, TiledRun, grid_of
from bnmc.simulation.trajectory import Moments, Trajectory

__all__ = ["Plan"]

#: Estimated seconds, and recorded numbers, of runs that start no threads.
BRIEF_SECONDS, BRIEF_NUMBERS = 2e-3, 20_000

#: The kinds of the runs that this process has made, so that their kernels are compiled.
_made: set[tuple[object, ...]] = set()

#: Seconds that a worker should need for a tile of a store; `kill -9` loses as much.
STORED_TILE_SECONDS = 2.0


class Plan:
    """A run: chains, recorded functions, execution and start.

    Parameters
    ----------
    recording : Recording
        With its ensemble.
    execution : Execution
    initial : object
        Where layer 0 comes from, as `simulate` takes it, if the ensemble continues no state.
    rng : object
        As `simulate` takes it.

    Raises
    ------
    ArgumentError, ArgumentTypeError, ResultTooLargeError, BackendError, ZeroVarianceError
        Before any layer is made.
    """

    def __init__(self, recording: Recording, execution: Execution, initial: Any, rng: Any) -> None:
        ensemble = recording.ensemble
        self.ensemble, self.recording, self.execution = ensemble, recording, execution
        stored = execution.store is not None
        seconds = self._tile_seconds()
        require_memory(Request(recording, initial, execution.threads, seconds, stored))
        backend = execution.backend
        if recording.on_device:
            recording.require_device_out()
            backend = self._on_device("out", "an out array of a device")
        if ensemble.state is None:
            ensemble.chain.activation.check()
            if is_device_array(initial):
                backend = self._on_device("initial", "an initial array of a device")
            self.start, self.key = self._started(initial), self._drawn_key(rng)
        else:
            self.start, self.key = ensemble.state, ensemble.state.key
        self.job = Job(
            ensemble.chain, ensemble.path, self._backend(backend), self.key, ensemble.inputs,
            ensemble.dtype, recording.observables, recording.recorded, recording.on_device,
        )  # fmt: skip
        self._require_tiles()
        self.sink = recording.sink(self.job, stored=stored)
        self._kind = self._kind_of_run()
        self._is_brief = self._kind in _made and self._takes_milliseconds()

    def _tile_seconds(self) -> float | None:
        """Return the seconds of a tile, or None if the run is not divided into tiles."""
        if self.execution.store is not None:
            return STORED_TILE_SECONDS
        return None if self.execution.executor is None else TILE_SECONDS

    def _backend(self, wanted: str) -> str:
        depth = self.recording.recorded.last - self.ensemble.first_layer
        return choose_backend(wanted, self.ensemble, depth, self.execution.threads)

    def _on_device(self, name: str, what: str) -> str:
        """Return "cuda", which an array of a device needs, or raise."""
        if self.execution.backend == "cpu":
            raise ArgumentError("backend", "cpu", f"'cuda' for {what}")
        return self._backend("cuda")

    def _started(self, initial: Any) -> Any:
        """Return layer 0, on the GPU if `initial` is there."""
        ensemble = self.ensemble
        if not is_device_array(initial):
            return prepare(ensemble.chain, initial, ensemble.chains, ensemble.inputs)
        from bnmc.simulation.engine.gpu.arrays import DeviceRows

        return DeviceRows.of(initial, ensemble.chain, ensemble.chains, ensemble.inputs)

    def _drawn_key(self, rng: Any) -> int:
        """Return the key of the random numbers: the store's if there is one and no `rng`."""
        store = self.execution.store
        kept = stored_key(store) if store is not None and rng is None else None
        return draw_key(rng) if kept is None else kept

    def _require_tiles(self) -> None:
        """Raise if arrays of a device meet an executor or a store, or a store lacks its extra."""
        on_host = isinstance(self.start, (State, Covariance, Representation))
        if self.recording.on_device or not on_host:
            for name in ("executor", "store"):
                given = getattr(self.execution, name)
                if given is not None:
                    raise ArgumentError(name, given, "None with arrays of a device")
        if self.execution.store is not None:
            require_extras(extras_of(self.execution.store))
            self.recording.require_storable()

    def run(self) -> Trajectory:
        """Go through the layers, and return those that are finished in the end."""
        stop = Stop(self.execution.timeout)
        reporter = Reporter(self.execution.progress, "simulate", "layers")
        with reporter as report, ExitStack() as stack:
            course = self._course(stack, stop)

            def work() -> None:
                course.run(stop, report)

            try:
                ended = self._do(work, stop)
                state = course.state
            except StillAtWork:
                ended, state = False, None
            try:
                run = self._trajectory(course, state)
            except KeyboardInterrupt:  # what was finished comes along from here, too
                ended, run = False, self._trajectory(course, state)
            if not ended:
                raise Interrupted(run if len(run.layers) else None)
        if run.complete:
            _made.add(self._kind)
        if run.unresolved:
            warnings.warn(
                f"float32 rows do not resolve the Gram matrices of chains {_list(run.unresolved)}: "
                "samples are nearly, or exactly, dependent; dtype='float64' resolves more",
                PrecisionWarning,
                stacklevel=4,
            )
        return run

    def _do(self, work: Callable[[], None], stop: Stop) -> bool:
        """Return whether the work came to its end, and Ctrl-C did not."""
        if self.job.backend == "cpu":
            return uninterrupted(work, stop, brief=self._is_brief)
        try:  # in this thread, since another one would have a device of its own
            work()
        except KeyboardInterrupt:
            return False
        return True

    def _takes_milliseconds(self) -> bool:
        """Whether the run is small, without functions of users.

        Threads would take longer to start than such a run takes if its kernels are compiled.
        """
        ensemble, recorded, execution = self.ensemble, self.recording.recorded, self.execution
        layers = recorded.last - ensemble.first_layer + 1
        numbers = ensemble.chains * recorded.count * ensemble.columns**2
        return (
            ensemble.chains * layers * ensemble.seconds < BRIEF_SECONDS
            and numbers < BRIEF_NUMBERS
            and execution.store is None
            and execution.executor is None
            and not callable(execution.progress)
            and not self.recording.reduce
            and ensemble.chain.activation.builtin
            and not callable(ensemble.chain.weights)
            and all(OBSERVABLES.get(one.name) is one for one in self.recording.observables)
        )

    def _kind_of_run(self) -> tuple[object, ...]:
        """Return what determines the kernels of the run in this process."""
        ensemble = self.ensemble
        chain = ensemble.chain
        return (
            ensemble.path, ensemble.dtype, chain.activation.name, chain.norm, str(chain.weights),
            chain.skip != 0.0, chain.order, chain.shows_bias, chain.convolution is None,
            ensemble.inputs is None, type(self.start),
        )  # fmt: skip

    def _course(self, stack: ExitStack, stop: Stop) -> InProcessRun | TiledRun:
        """Return the way through the layers: in this process at once, or in tiles."""
        execution = self.execution
        if execution.store is None and execution.executor is None:
            threads = 1 if self._is_brief else execution.threads
            segment = Segment(self.job, self._sampler(), threads, Pool(stack, threads))
            return InProcessRun(segment, self.start, self.sink)
        threads = execution.threads if self.job.backend == "cpu" else 1
        workers = stack.enter_context(Workers(execution.executor, threads))
        grid = self._grid(workers)
        kept = None
        if execution.store is not None:
            dims = {name: ("chain", "layer", *axes) for name, axes in self.recording.axes.items()}
            kept = RunStore(execution.store, self.job, self.start, grid, self._attributes(), dims)
            stack.enter_context(kept)
            grid = kept.grid
        sink = self.sink if kept is None else None
        own = max(1, threads // grid.parts) if execution.executor is None else 1
        return TiledRun(self.job, self.start, grid, workers, own, kept, sink, stop)

    def _grid(self, workers: Workers) -> Grid:
        ensemble, seconds = self.ensemble, self._tile_seconds()
        assert seconds is not None
        # Several parts per worker, so that none is idle while another makes its last one.
        return grid_of(
            ensemble.chains, self.recording.recorded, 2 * workers.count, ensemble.seconds,
            8 * self.recording.per_value, seconds,
        )  # fmt: skip

    def _sampler(self) -> Sampler:
        sampler = self.job.sampler(0, self.ensemble.chains)
        if self.recording.device_array is not None:
            from bnmc.simulation.engine.gpu.arrays import device_result
            from bnmc.simulation.engine.gpu.samplers import GpuSampler

            assert isinstance(sampler, GpuSampler)
            shape = self.recording.shape("gram", self.job)
            sampler.results = device_result(self.recording.device_array, shape)
        return sampler

    def _attributes(self) -> dict[str, Any]:
        """Return what a store says of the run."""
        return self._described(0, {}, {}, None, host_cpu(), (), ()).attributes()

    def _trajectory(self, course: InProcessRun | TiledRun, state: State | None) -> Trajectory:
        slots = course.slots
        observables: Mapping[str, NDArray[np.float64]] = {}
        moments: dict[str, Moments] = {}
        if self.execution.store is not None:
            assert isinstance(course, TiledRun)
            observables = course.store.arrays(slots)
        elif isinstance(self.sink, RunningMoments):
            moments = self.sink.results()
        else:
            kept = self.sink.arrays
            whole = slots == self.recording.recorded.count
            observables = kept if whole else {name: one[:, :slots] for name, one in kept.items()}
        return self._described(
            slots, observables, moments, state, course.cpu, course.widened, course.unresolved
        )

    def _described(
        self,
        slots: int,
        observables: Mapping[str, NDArray[np.float64]],
        moments: Mapping[str, Moments],
        state: State | None,
        kind_of_cpu: str,
        widened: Iterable[int],
        unresolved: Iterable[int],
    ) -> Trajectory:
        recorded = self.recording.recorded
        return Trajectory(
            chain=self.ensemble.chain,
            layers=recorded.layers(0, slots),
            observables=observables,
            moments=moments,
            dims=self.recording.dims,
            key=self.key,
            sampler=SAMPLERS[self.ensemble.path].name,
            dtype=self.ensemble.dtype,
            backend=self.job.backend,
            cpu=kind_of_cpu,
            chains=self.ensemble.chains,
            widened=tuple(widened),
            unresolved=tuple(unresolved),
            inputs=self.ensemble.inputs,
            complete=slots == recorded.count,
            state=state,
        )


def _list(chains: tuple[int, ...]) -> str:
    shown = ", ".join(map(str, chains[:10]))
    return shown if len(chains) <= 10 else f"{shown} and {len(chains) - 10} more"
