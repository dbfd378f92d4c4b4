"""Ensembles of chains in depth."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor
from contextlib import ExitStack
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bnmc._device_arrays import is_device_array
from bnmc._executor import Workers, as_executor
from bnmc._interrupt import StillAtWork, Stop, uninterrupted
from bnmc._kernels.jit import host_cpu
from bnmc._leg import Job, Leg, Pool, Recorded, Sink
from bnmc._machine import available_memory, available_processors
from bnmc._progress import Progress, Reporter, as_progress
from bnmc._samplers import (
    MOST_CHAINS,
    MOST_ROWS,
    SAMPLERS,
    Sampler,
    State,
    WeightsSampler,
    choose_sampler,
)
from bnmc._sinks import Arrays, RunningMoments
from bnmc._tiles import TILE_SECONDS, Grid, Origin, TiledRun, grid_of
from bnmc._validate import choice, generator, integer, items, real, result_array
from bnmc.chain import Chain
from bnmc.errors import (
    ArgumentError,
    ArgumentTypeError,
    BackendError,
    Interrupted,
    PrecisionWarning,
    ResultTooLargeError,
)
from bnmc.files import require_extras
from bnmc.initial import Covariance, FirstLayer, Representation, prepare, shape_of
from bnmc.observables import Observable, as_observables
from bnmc.store import RunStore, StoredArrays, as_store_path, stored_key
from bnmc.trajectory import Moments, Trajectory

__all__ = ["drawn_weights", "simulate"]

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


def simulate(
    chain: Chain,
    depth: int,
    *,
    chains: int | None = None,
    initial: str | ArrayLike | FirstLayer | State = "gaussian",
    inputs: int | None = None,
    rng: Any = None,
    sampler: str = "auto",
    backend: str = "auto",
    dtype: str | np.dtype[Any] | type = "float64",
    observables: str | Observable | Iterable[str | Observable] | Mapping[str, Any] = ("gram",),
    every: int = 1,
    burn_in: int = 0,
    reduce: str | Iterable[str] = (),
    threads: int | None = None,
    executor: Executor | None = None,
    store: str | os.PathLike[str] | None = None,
    timeout: float | None = None,
    progress: bool | Progress = False,
    out: Mapping[str, NDArray[np.float64]] | None = None,
) -> Trajectory:
    r"""Simulate an ensemble of independent chains and record functions of their Gram matrices.

    Parameters
    ----------
    chain : Chain
        Which Markov chain.
    depth : int
        Layers to go, >= 0.
    chains : int, optional
        Number of independent networks; 1 unless `initial` has one batch for each.
    initial : str, array_like, FirstLayer or State, default "gaussian"
        What layer 0 normalises.  An array of shape (width, batch), one for all chains, or
        (chains, width, batch), one a chain, in the memory of the host (anything with `__array__`,
        `__dlpack__` or a buffer; not changed, a run holds normalised copies) or, C-contiguous and
        with `__cuda_array_interface__` or `__dlpack__`, of the GPU; the `final_state` of a run, to
        go on from there with the same random numbers; or a law, drawn inside the kernels:
        "gaussian" (i.i.d. normal entries) or "collinear" (rows N(0, 11ᵀ + 1e-6 I): samples that
        nearly are equal, which centring undoes at once).  `FirstLayer` takes another number of
        features to the width.
    inputs : int, optional
        With k, `initial` has a leading axis of k batches, (k, width, batch), that go through the
        same networks; each is normalised on its own.
    rng : optional
        Anything `numpy.random.default_rng` takes (SPEC 7).  One 64-bit key is drawn from it.
    sampler : {"auto", "conditional", "weights"}
        "conditional" draws each layer given the Gram matrix of the one before (Gaussian weights
        only, no weights exist); "weights" draws them and multiplies.  Both have one law; "auto"
        takes the cheaper that is valid.
    backend : {"auto", "cpu", "cuda"}
        Where kernels run.  "cuda" is the GPU (extras ``cuda12``, ``cuda13``), or all that CUDA
        sees, with a part of the chains each; "auto" takes it if there is one and it pays.  The
        random numbers are those of the CPU, so that trajectories agree to rounding where the
        chain contracts.
    dtype : {"float64", "float32"}
        Precision of rows and weights.  Gram matrices are summed and kept in float64.
    observables : names, Observables or functions of G
        What to record: of "gram", "scaled_gram", "cross_gram", "eigenvalues", "log_scale",
        "log_pivots", "orthogonality_gap", "rank_bound", "soft_rank", and `Observable`.  Of
        "orthogonality_gap", "rank_bound" and `Distance` alone a GPU writes only the numbers.
    every, burn_in : int
        Recorded are layers burn_in, burn_in + every, … and always the last.
    reduce : {"chain", "layer"} or several of them
        Record means and variances over these axes in place of values: over layers, memory does
        not grow with depth.
    threads : int, optional
        All processors unless given.  Results do not depend on it.
    executor : concurrent.futures.Executor or Dask Client, optional
        Who makes parts of the run: some chains through some layers, on one thread each.  Results do
        not depend on it.  A worker that dies costs what it was making, which another one makes
        again.  The user's functions travel by cloudpickle.
    store : path, optional
        A Zarr store, ``….zarr``, that keeps what is finished (extra ``xarray``).  The same call
        goes on where it was interrupted, however that was, and ends with the same bits; of a store
        that is complete it returns the run.  Values are read when they are asked for, in parts by
        `Trajectory.to_xarray`, so that they may be larger than memory.  Without `rng` a store that
        exists gives the key.
    timeout : float, optional
        Seconds, > 0, after which the run returns what is finished: ``run.complete`` is False, and
        its layers are those that all chains have got to.
    progress : bool or callable
        True for a bar on standard error (extra ``cli``), or a function of (done, total) layers.
    out : mapping of name to float64 array, optional
        Where to put the values, of just the shape of the result.  Where "gram" alone is recorded
        it may be an array of the GPU, C-contiguous: kernels write to it, nothing is copied, and it
        is the result, ``run["gram"]``; methods of the run that compute with it are then its
        library's.

    Returns
    -------
    Trajectory

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For an argument that is not allowed, before any work.
    ResultTooLargeError
        If the result would not fit in memory, before any work.
    ZeroVarianceError
        For a row that cannot be normalised, of the input or in mid-run; it names the row.
    NonFiniteError
        If a chain without normalization leaves the range of float64.
    BackendError
        If the backend cannot run here, or not this chain; it says what is missing.
    Interrupted
        On Ctrl-C: a KeyboardInterrupt whose `partial` is the run as far as it got.
    StoreMismatchError
        If the store holds another run; it names what differs.
    StoreInUseError, StoreError
        If another run is writing the store, or it cannot be read or written.
    WorkersLostError
        If workers of the executor die again and again.

    Warns
    -----
    PrecisionWarning
        If float32 rows, where a skip connection or the weights need them kept, do not resolve
        recorded Gram matrices; `Trajectory.unresolved` names the chains.

    Notes
    -----
    Given activations a, the rows of W a are i.i.d. N(0, G) with G = aᵀa/d, so they can be drawn
    through a factor of G with d n normals instead of d²: exactly, at every width, singular G
    included.  Equal samples stay equal to the bit.

    A Gram matrix in float64 tells samples apart that differ by more than about 1e-7 of their size,
    weights such as differ by 1e-16: start samples that are closer with ``sampler="weights"``.
    So it is with any direction: samples that nearly are multiples of one another leave that later.
    float32 rows resolve less, so a float32 chain whose Gram matrix comes near that limit goes on
    in float64; `Trajectory.widened` names it.

    Without normalization the scale of a deep chain leaves the range of float64.  Where σ is
    positively homogeneous (linear, relu, leaky_relu, abs) it is split off, exactly: "scaled_gram"
    and "log_scale" go to any depth, as do the scale-free observables.

    Examples
    --------
    >>> import bnmc
    >>> run = bnmc.simulate(bnmc.Chain(1000, 10, "relu"), 30, chains=4, rng=0)
    >>> run.gram.shape
    (4, 31, 10, 10)
    >>> deeper = bnmc.simulate(run.chain, 10, initial=run.final_state)
    >>> int(deeper.layers[0]), int(deeper.layers[-1])
    (30, 40)
    """
    plan = _Plan(
        chain, depth, chains, initial, inputs, rng, sampler, backend, dtype, observables, every,
        burn_in, reduce, threads, executor, store, timeout, progress, out,
    )  # fmt: skip
    return plan.run()


def drawn_weights(run: Trajectory, layer: int, *, chain: int = 0) -> NDArray[np.floating[Any]]:
    r"""Return the weights that took one chain of a run to a layer.

    They are drawn again: a run never holds more than a tile of them.

    Parameters
    ----------
    run : Trajectory
        Of the sampler "weights"; the conditional one has no weights.
    layer : int
        Which layer they led to, from 1 to the last of the run.
    chain : int, default 0
        Which chain of the ensemble.

    Returns
    -------
    (width, width) ndarray of the run's dtype
        W, with entries of variance 1/width: the layer is N(skip x + gain W σ(x)).

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If the run has no weights, or no such layer or chain.

    Examples
    --------
    >>> import bnmc
    >>> run = bnmc.simulate(bnmc.Chain(50, 3), 2, sampler="weights", rng=0)
    >>> bnmc.drawn_weights(run, 1).shape
    (50, 50)
    """
    if not isinstance(run, Trajectory):
        raise ArgumentTypeError("run", run, "a Trajectory")
    if run.sampler != WeightsSampler.name:
        raise ArgumentError("run", run.sampler, "a run of the sampler 'weights'")
    layer = integer("layer", layer, low=1, high=int(run.layers[-1]))
    chain = integer("chain", chain, low=0, high=run.chains - 1)
    return WeightsSampler(run.chain, 1, run.inputs, run.dtype, run.key, chain).drawn(layer)


class _Plan:
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
        from bnmc._gpu_samplers import DeviceRows

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

    def _course(self, stack: ExitStack, stop: Stop) -> _Here | TiledRun:
        """Return the way to go: in this process at once, or in tiles."""
        if self.store is None and self.executor is None:
            pool = Pool(stack, self.threads)
            leg = Leg(self.job, self._sampler(), self.threads, pool)
            return _Here(leg, self.start, self.sink)
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
            from bnmc._gpu_samplers import _GpuSampler, device_result

            assert isinstance(sampler, _GpuSampler)
            sampler.results = device_result(self.device_array, self._full_shape("gram"))
        return sampler

    def _axes(self) -> dict[str, tuple[str, ...]]:
        """Return the names of the axes of each observable after chain and layer."""
        return {one.name: one.dims(self.inputs is not None) for one in self.observables}

    def _attributes(self) -> dict[str, Any]:
        """Return what a store says of the run."""
        return self._described(0, {}, {}, None, host_cpu(), (), ()).attributes()

    def _trajectory(self, course: _Here | TiledRun, state: State | None) -> Trajectory:
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


class _Here:
    """A run in this process, all chains together: threads share the chains, or a layer."""

    cpu = host_cpu()

    def __init__(self, leg: Leg, start: Origin, sink: Sink) -> None:
        self.leg = leg
        self.start = start
        self.sink = sink
        #: How many layers are recorded.
        self.slots = 0
        self._state: State | None = None

    def run(self, stopped: Callable[[], bool], report: Callable[[int, int], None]) -> None:
        """Go through the layers, until there are no more or it is to stop."""
        recorded, leg = self.leg.job.recorded, self.leg
        leg.begin(self.start, self.sink)
        first = leg.layer
        self._note()
        while leg.layer < recorded.last and not stopped():
            self._state = None
            leg.advance(recorded.last, self.sink)
            self._note()
            report(leg.layer - first, recorded.last - first)

    def _note(self) -> None:
        self.slots = self.leg.job.recorded.before(self.leg.layer + 1)
        self._state = self.leg.state

    @property
    def state(self) -> State | None:
        """Where the chains have got to; None in the middle of a block, or before the first."""
        return self._state

    @property
    def widened(self) -> list[int]:
        """The chains that have gone on in float64."""
        return _numbers(self.leg.sampler.wide)

    @property
    def unresolved(self) -> list[int]:
        """The chains whose Gram matrices float32 rows did not resolve."""
        return _numbers(self.leg.sampler.unresolved)


def _numbers(chosen: NDArray[np.bool_]) -> list[int]:
    found: list[int] = np.flatnonzero(chosen).tolist()
    return found


def draw_key(rng: Any) -> int:
    """Draw the 64-bit key of a run from anything `numpy.random.default_rng` takes."""
    return int(generator(rng).integers(0, 2**64, dtype=np.uint64))


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
