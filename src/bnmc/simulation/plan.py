"""TODO-DOC bnmc.simulation.run.plan."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnmc._kernels.compiling import host_cpu
from bnmc._support.arguments import choice, integer, items, real, result_array
from bnmc._support.device_arrays import is_device_array
from bnmc._support.interruption import StillAtWork, Stop, uninterrupted
from bnmc._support.keys import draw_key
from bnmc._support.machine import available_memory, available_processors
from bnmc._support.progress import Progress, Reporter, as_progress
from bnmc._support.workers import Workers, as_executor
from bnmc.chain.chain import Chain
from bnmc.chain.start import Covariance, FirstLayer, Representation, prepare, shape_of
from bnmc.errors import (
    ArgumentError,
    ArgumentTypeError,
    BackendError,
    Interrupted,
    PrecisionWarning,
    ResultTooLargeError,
)
from bnmc.simulation.engine.choice import SAMPLERS, choose_sampler
from bnmc.simulation.engine.sampler import Sampler
from bnmc.simulation.engine.state import MOST_CHAINS, MOST_ROWS, State
from bnmc.simulation.export import require_extras
from bnmc.simulation.in_process import InProcessRun
from bnmc.simulation.job import Job, Recorded
from bnmc.simulation.observables import as_observables
from bnmc.simulation.segment import Leg, Pool
from bnmc.simulation.sinks import Arrays, RunningMoments
from bnmc.simulation.store.reading import StoredArrays
from bnmc.simulation.store.store import RunStore, as_store_path, stored_key
from bnmc.simulation.tiles import TILE_SECONDS, Grid, TiledRun, grid_of
from bnmc.simulation.trajectory import Moments, Trajectory

__all__ = []

#: The time that a run takes the CPU from which on a GPU is worth the compilation of its kernels.
WORTH_A_GPU = 20.0

#: What a GPU is not for.
OF_FACTORS = (
    "linear chains without normalization multiply Wishart factors, which costs the same at any "
    "width and leaves nothing for a GPU to do: backend='cpu'"
)


OF_PYTHON = "a function that samples weights is Python, which runs on the CPU alone: backend='cpu'"

#: What a tile of a store should take one worker, in seconds: as much is lost by a `kill -9`.
STORED_TILE_SECONDS = 2.0


class Plan:
    """A run whose every argument has been checked."""

    def __init__(
        self,
        chain: Chain,
        depth: int,
        chains: int | None,
        initial: Any,
        inputs: int | None,
        rng: Any,
        sampler: str,
        backend: str,
        dtype: Any,
        observables: Any,
        every: int,
        burn_in: int,
        reduce: str | Iterable[str],
        threads: int | None,
        executor: Any,
        store: Any,
        timeout: float | None,
        progress: bool | Progress,
        out: Mapping[str, NDArray[np.float64]] | None,
    ) -> None:
        if not isinstance(chain, Chain):
            raise ArgumentTypeError("chain", chain, "a bnmc.Chain")
        self.chain = chain
        self.depth = integer("depth", depth, low=0, high=2**32 - 1)
        self.wanted = choice("backend", backend, ("auto", "cpu", "cuda"))
        self.dtype = _precision(dtype)
        choice("sampler", sampler, ("auto", "conditional", "weights"))
        self.threads = (
            available_processors() if threads is None else integer("threads", threads, low=1)
        )
        self.reduce = _axes(reduce)
        self.executor = as_executor(executor)
        self.store = None if store is None else as_store_path(store)
        self.timeout = None if timeout is None else real("timeout", timeout, above=0.0)
        self.progress = as_progress(progress)
        #: Whether what is recorded stays on the device.
        self.stays = isinstance(out, Mapping) and any(map(is_device_array, out.values()))

        if isinstance(initial, State):
            self._continue(initial, chains, inputs, rng, sampler)
        else:
            self._choose(initial, chains, inputs, sampler)
        self.observables = as_observables(observables, self.inputs is not None)
        self.recorded = self._recorded(min(integer("every", every, low=1), 2**32), burn_in)
        self._require_memory()
        if self.stays:
            self._require_stay()
        if not isinstance(initial, State):
            self._start(initial, rng)
        backend = self._choose_backend(self.wanted)
        self.job = Job(
            chain, self.path, backend, self.key, self.inputs, self.dtype, self.observables,
            self.recorded, self.stays,
        )  # fmt: skip
        self._require_tiles(out)
        self.sink = self._sink(out)

    def _continue(
        self, state: State, chains: int | None, inputs: int | None, rng: Any, sampler: str
    ) -> None:
        """Take everything from a state; what else is given must agree with it."""
        if state.chain != self.chain:
            raise ArgumentError("initial", state.chain, f"a state of {self.chain}")
        for name, given, kept in (
            ("chains", chains, state.chains),
            ("inputs", inputs, state.inputs),
            ("dtype", self.dtype if self.dtype != "float64" else None, state.dtype),
        ):
            if given is not None and given != kept:
                raise ArgumentError(name, given, f"{kept}, that of the state")
        if rng is not None:
            raise ArgumentError("rng", rng, "None: a state goes on with its own random numbers")
        if sampler not in ("auto", SAMPLERS[state.path].name):
            raise ArgumentError("sampler", sampler, SAMPLERS[state.path].name)
        self.chains, self.inputs, self.key = state.chains, state.inputs, state.key
        self.dtype = state.dtype
        self.path, self.first_layer = state.path, state.layer
        self.start: State | Covariance | Representation = state

    def _choose(self, initial: Any, chains: int | None, inputs: int | None, sampler: str) -> None:
        """Settle how many chains and which sampler, before anything is made."""
        self.inputs = None if inputs is None else integer("inputs", inputs, low=1, high=MOST_CHAINS)
        if chains is None:
            batches = 2 if inputs is None else 3
            named = isinstance(initial, (str, FirstLayer))
            shape = () if named else shape_of(initial)
            chains = shape[0] if len(shape) == batches + 1 else 1
        self.chains = integer("chains", chains, low=1, high=MOST_CHAINS)
        self.path = choose_sampler(self.chain, self.inputs, sampler, self.dtype).path
        if self.path != "factor" and self.chain.width > MOST_ROWS:
            raise ArgumentError("width", self.chain.width, f"at most {MOST_ROWS} for this chain")
        self.first_layer = 0

    def _start(self, initial: Any, rng: Any) -> None:
        """Prepare layer 0 and draw the key."""
        self.chain.activation.check()
        self.start = self._prepared(initial)
        kept = stored_key(self.store) if self.store is not None and rng is None else None
        self.key = draw_key(rng) if kept is None else kept

    def _require_stay(self) -> None:
        """Refuse what an `out` of a device does not go with."""
        if [one.name for one in self.observables] != ["gram"] or self.reduce or self.inputs:
            allowed = "arrays of the host unless 'gram' alone is recorded, of one input, unreduced"
            raise ArgumentError("out", "an array of a device", allowed)
        if self.wanted == "cpu":
            raise ArgumentError("backend", "cpu", "'cuda' for an out array of a device")
        self.wanted = self._choose_backend("cuda")

    def _prepared(self, initial: Any) -> Any:
        if not is_device_array(initial):
            return prepare(self.chain, initial, self.chains, self.inputs)
        if self.wanted == "cpu":
            raise ArgumentError("backend", "cpu", "'cuda' for an initial array of a device")
        self.wanted = self._choose_backend("cuda")
        from bnmc.simulation.engine.gpu.arrays import DeviceRows

        return DeviceRows.of(initial, self.chain, self.chains, self.inputs)

    def _recorded(self, every: int, burn_in: int) -> Recorded:
        """Return which layers are recorded, counted from layer 0 of the chain."""
        first = self.first_layer + integer("burn_in", burn_in, low=0, high=self.depth)
        return Recorded(first, every, self.first_layer + self.depth)

    def _require_memory(self) -> None:
        """Refuse a run whose state and results would not fit."""
        chain, columns = self.chain, self.chain.batch * (self.inputs or 1)
        layers = self.recorded.count
        size = 8 * layers + 8 * self.chains * columns**2
        width = np.dtype(self.dtype).itemsize * columns * chain.width * self.chains
        size += width * (2 * (self.path == "weights") + (chain.skip != 0.0))
        if self.stays or self.store is not None:
            layers = 0
        per_value = sum(math.prod(shape) for shape in self._value_shapes())
        kept = 1 if "layer" in self.reduce else layers
        kept *= 1 if "chain" in self.reduce else self.chains
        size += 8 * per_value * kept * (2 if self.reduce else 1)
        available = available_memory()
        if size > available:
            raise ResultTooLargeError(
                "depth, chains",
                size,
                available,
                "record fewer layers with every=, moments with reduce=, or to a store=",
            )

    def _value_shapes(self) -> list[tuple[int, ...]]:
        n, k = self.chain.batch, self.inputs or 1
        known = {
            "gram": (k, n, n),
            "scaled_gram": (k, n, n),
            "cross_gram": (k, k, n, n),
            "eigenvalues": (k, n),
            "log_pivots": (k * n,),
        }
        return [known.get(one.name, (k, *getattr(one, "shape", ()))) for one in self.observables]

    def _choose_backend(self, wanted: str) -> str:
        """Return "cpu" or "cuda": what is wanted, or what is there and pays."""
        no_gpu = self.path == "factor" or callable(self.chain.weights)
        if wanted == "auto":
            columns = self.chain.batch * (self.inputs or 1)
            seconds = SAMPLERS[self.path].seconds(self.chain, columns, np.dtype(self.dtype))
            if no_gpu or self.chains * self.depth * seconds / self.threads < WORTH_A_GPU:
                return "cpu"
        if wanted == "cpu":
            return "cpu"
        from bnmc._kernels.gpu.device import SIMULATED, why_not

        if wanted == "auto" and SIMULATED:
            return "cpu"
        reason = why_not()
        if reason is None and no_gpu:
            reason = OF_PYTHON if callable(self.chain.weights) else OF_FACTORS
        if reason is None:
            return "cuda"
        if wanted == "cuda":
            raise BackendError("cuda", reason)
        return "cpu"

    def _require_tiles(self, out: object) -> None:
        """Refuse what an executor or a store does not go with."""
        tiled = [name for name in ("executor", "store") if getattr(self, name) is not None]
        on_device = self.stays or not isinstance(self.start, (State, Covariance, Representation))
        if tiled and on_device:
            raise ArgumentError(tiled[0], getattr(self, tiled[0]), "None with arrays of a device")
        if self.store is None:
            return
        require_extras(self.store)
        if self.reduce:
            hint = "the stored run has mean() and stderr() over chains, and to_xarray()"
            raise ArgumentError("reduce", sorted(self.reduce), "() together with store=", hint)
        if out:
            raise ArgumentError("out", list(out) if isinstance(out, Mapping) else out, "None")

    def _full_shape(self, name: str) -> tuple[int, ...]:
        return (self.chains, self.recorded.count, *self.job.shapes[name])

    def _sink(self, out: Mapping[str, NDArray[np.float64]] | None) -> Arrays | RunningMoments:
        """Return where values go: moments, or arrays, the user's where given."""
        self.device_array: Any = None
        if out is not None and not isinstance(out, Mapping):
            raise ArgumentTypeError("out", out, "a mapping of names to float64 arrays")
        given = dict(out or {})
        if self.reduce:
            if given:
                raise ArgumentError("out", list(given), "nothing together with reduce=")
            shapes = {name: (self.chains, *one) for name, one in self.job.shapes.items()}
            return RunningMoments(self.reduce, shapes)
        if self.store is not None:
            return Arrays({})
        results = {}
        for name in self.job.shapes:
            full = self._full_shape(name)
            array = given.pop(name, None)
            if self.stays and array is not None:
                self.device_array = array
            elif array is None:
                array = np.zeros(full)
            else:
                array = result_array("out", array, full, repr(name))
            results[name] = array
        if given:
            raise ArgumentError("out", next(iter(given)), ", ".join(self.job.shapes))
        return Arrays(results)

    def run(self) -> Trajectory:
        """Go through the layers, and return those that are finished in the end."""
        stop = Stop(self.timeout)
        with ExitStack() as stack:
            report = stack.enter_context(Reporter(self.progress, "simulate", "layers"))
            course = self._course(stack, stop)

            def work() -> None:
                course.run(stop, report)

            try:
                ended = self._do(work, stop)
                run = self._trajectory(course, course.state)
            except StillAtWork:
                ended, run = False, self._trajectory(course, None)
            if not ended:
                raise Interrupted(run if len(run.layers) else None)
        if run.unresolved:
            warnings.warn(
                f"float32 rows do not resolve the Gram matrices of chains {_list(run.unresolved)}: "
                "samples are nearly, or exactly, dependent; dtype='float64' resolves more",
                PrecisionWarning,
                stacklevel=3,
            )
        return run

    def _do(self, work: Callable[[], None], stop: Stop) -> bool:
        if self.job.backend == "cpu":
            return uninterrupted(work, stop)
        try:  # here, since a thread of its own would have a device of its own
            work()
        except KeyboardInterrupt:
            return False
        return True

    def _course(self, stack: ExitStack, stop: Stop) -> InProcessRun | TiledRun:
        """Return the way to go: in this process at once, or in tiles."""
        if self.store is None and self.executor is None:
            pool = Pool(stack, self.threads)
            leg = Leg(self.job, self._sampler(), self.threads, pool)
            return InProcessRun(leg, self.start, self.sink)
        threads = self.threads if self.job.backend == "cpu" else 1
        workers = stack.enter_context(Workers(self.executor, threads))
        grid = self._grid(workers)
        kept = None
        if self.store is not None:
            dims = {name: ("chain", "layer", *axes) for name, axes in self._axes().items()}
            kept = RunStore(self.store, self.job, self.start, grid, self._attributes(), dims)
            stack.enter_context(kept)
            grid = kept.grid
        sink = self.sink if kept is None else None
        own = max(1, threads // grid.parts) if self.executor is None else 1
        return TiledRun(self.job, self.start, grid, workers, own, kept, sink, stop.event)

    def _grid(self, workers: Workers) -> Grid:
        seconds = self._seconds()
        size = 8 * sum(math.prod(shape) for shape in self.job.shapes.values())
        # Several a worker, so that none is idle while another has its last one.
        parts = 2 * workers.count
        of_tile = TILE_SECONDS if self.store is None else STORED_TILE_SECONDS
        return grid_of(self.chains, self.recorded, parts, seconds, size, of_tile)

    def _seconds(self) -> float:
        """Return a guess of the time of one layer of one chain on one thread."""
        columns, dtype = self.job.columns, np.dtype(self.dtype)
        return SAMPLERS[self.path].seconds(self.chain, columns, dtype)

    def _sampler(self) -> Sampler:
        sampler = self.job.sampler(0, self.chains)
        if self.device_array is not None:
            from bnmc.simulation.engine.gpu.arrays import device_result
            from bnmc.simulation.engine.gpu.samplers import GpuSampler

            assert isinstance(sampler, GpuSampler)
            sampler.results = device_result(self.device_array, self._full_shape("gram"))
        return sampler

    def _axes(self) -> dict[str, tuple[str, ...]]:
        """Return the names of the axes of each observable after chain and layer."""
        return {one.name: one.dims(self.inputs is not None) for one in self.observables}

    def _attributes(self) -> dict[str, Any]:
        """Return what a store says of the run."""
        return self._described(0, {}, {}, None, host_cpu(), (), ()).attributes()

    def _trajectory(self, course: InProcessRun | TiledRun, state: State | None) -> Trajectory:
        slots = course.slots
        observables: Mapping[str, NDArray[np.float64]] = {}
        moments: dict[str, Moments] = {}
        if self.store is not None:
            observables = StoredArrays(self.store, tuple(self.job.shapes), slots)
        elif isinstance(self.sink, RunningMoments):
            moments = self.sink.results()
        else:
            kept = self.sink.arrays
            whole = slots == self.recorded.count
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
        leading = tuple(axis for axis in ("chain", "layer") if axis not in self.reduce)
        return Trajectory(
            chain=self.chain,
            layers=self.recorded.layers(0, slots),
            observables=observables,
            moments=moments,
            dims={name: (*leading, *axes) for name, axes in self._axes().items()},
            key=self.key,
            sampler=SAMPLERS[self.path].name,
            dtype=self.dtype,
            backend=self.job.backend,
            cpu=kind_of_cpu,
            chains=self.chains,
            widened=tuple(widened),
            unresolved=tuple(unresolved),
            inputs=self.inputs,
            complete=slots == self.recorded.count,
            state=state,
        )


def _list(chains: tuple[int, ...]) -> str:
    shown = ", ".join(map(str, chains[:10]))
    return shown if len(chains) <= 10 else f"{shown} and {len(chains) - 10} more"


def _precision(dtype: Any) -> str:
    try:
        name = np.dtype(dtype).name
    except MemoryError:
        raise
    except Exception as error:  # whatever a foreign object raises
        raise ArgumentTypeError("dtype", dtype, "'float64' or 'float32'") from error
    return choice("dtype", name, ("float64", "float32"))


def _axes(reduce: str | Iterable[str]) -> frozenset[str]:
    named = isinstance(reduce, str)
    axes = [reduce] if named else items("reduce", reduce, "'chain', 'layer' or both")
    return frozenset(choice("reduce", axis, ("chain", "layer")) for axis in axes)
