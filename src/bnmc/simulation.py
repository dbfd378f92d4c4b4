"""Ensembles of chains in depth."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import ExitStack
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bnmc._device_arrays import is_device_array
from bnmc._kernels import cpu
from bnmc._kernels.jit import host_cpu
from bnmc._progress import Progress, Reporter, as_progress
from bnmc._samplers import (
    MOST_CHAINS,
    MOST_ROWS,
    SAMPLERS,
    Frames,
    Sampler,
    State,
    WeightsSampler,
    choose_sampler,
)
from bnmc._validate import choice, integer
from bnmc.chain import Chain
from bnmc.errors import ArgumentError, ArgumentTypeError, BackendError, ResultTooLargeError
from bnmc.initial import Covariance, FirstLayer, Representation, prepare, shape_of
from bnmc.observables import Observable, View, as_observables
from bnmc.trajectory import Moments, Trajectory

__all__ = ["drawn_weights", "simulate"]

#: What a task of one thread should take, in seconds: short enough for Ctrl-C and for progress.
TASK_SECONDS = 0.2
#: What the frames of a block of layers may take, in bytes.
FRAME_BYTES = 1 << 25
#: The time that a run takes the CPU from which on a GPU is worth the compilation of its kernels.
WORTH_A_GPU = 20.0
#: The time of a layer from which on threads share it, in seconds.
SHARED_LAYER_SECONDS = 3e-4


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

    Notes
    -----
    Given activations a, the rows of W a are i.i.d. N(0, G) with G = aᵀa/d, so they can be drawn
    through a factor of G with d n normals instead of d²: exactly, at every width, singular G
    included.  Equal samples stay equal to the bit.

    A Gram matrix in float64 tells samples apart that differ by more than about 1e-7 of their size,
    weights such as differ by 1e-16: start samples that are closer with ``sampler="weights"``.
    float32 rows resolve less, so a float32 chain whose Gram matrix comes near that limit goes on
    in float64; `Trajectory.widened` names it.

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
        burn_in, reduce, threads, progress, out,
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
    # Of one chain, since buffers are made for all of a sampler's: chains differ by their index.
    sampler = WeightsSampler(run.chain, 1, run.inputs, run.dtype, run.key)
    return sampler.drawn(chain, layer)


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
        self.progress = as_progress(progress)
        #: Whether what is recorded stays on the device.
        self.stays = isinstance(out, Mapping) and any(map(is_device_array, out.values()))

        if isinstance(initial, State):
            self._continue(initial, chains, inputs, rng, sampler)
        else:
            self._choose(initial, chains, inputs, sampler)
        self.observables = as_observables(observables, self.inputs is not None)
        self.layers = self._recorded(integer("every", every, low=1), burn_in)
        if self.stays:
            self._require_stay()
        if not isinstance(initial, State):
            self._start(initial, rng)
        self.backend = self._choose_backend(self.wanted)
        self.sampler = self._make_sampler()
        self.shapes = self._shapes()
        self.out = self._destinations(out)

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
        self.inputs = None if inputs is None else integer("inputs", inputs, low=1)
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
        self.key = draw_key(rng)

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

    def _recorded(self, every: int, burn_in: int) -> NDArray[np.int64]:
        """Return the recorded layers, counted from layer 0 of the chain."""
        last = self.first_layer + self.depth
        first = self.first_layer + integer("burn_in", burn_in, low=0, high=self.depth)
        self._require_memory(-(-(last - first) // every) + 1)
        layers = np.arange(first, last + 1, every)
        return layers if layers[-1] == last else np.append(layers, last)

    def _is_recorded(self, layers: NDArray[np.int64]) -> NDArray[np.bool_]:
        found = np.searchsorted(self.layers, layers)
        recorded: NDArray[np.bool_] = self.layers[np.minimum(found, len(self.layers) - 1)] == layers
        return recorded

    def _require_memory(self, layers: int) -> None:
        """Refuse a run whose state and results, of so many layers, would not fit."""
        chain, columns = self.chain, self.chain.batch * (self.inputs or 1)
        size = 8 * layers + 8 * self.chains * columns**2
        width = np.dtype(self.dtype).itemsize * columns * chain.width * self.chains
        size += width * (2 * (self.path == "weights") + (chain.skip != 0.0))
        if self.stays:
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
                "record fewer layers with every=, or moments with reduce=",
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

    def _make_sampler(self) -> Sampler:
        sampler = self._samplers()[self.path](
            self.chain, self.chains, self.inputs, self.dtype, self.key
        )
        measured = [one.measure for one in self.observables]
        if sampler.measuring and None not in measured:
            sampler.measure(tuple(one for one in measured if one is not None))
        if isinstance(self.start, State):
            sampler.take(self.start)
        return sampler

    def _samplers(self) -> Mapping[str, Callable[..., Sampler]]:
        if self.backend == "cpu":
            return SAMPLERS
        from bnmc._gpu_samplers import GPU_SAMPLERS, ONE_DEVICE

        return ONE_DEVICE if self.stays else GPU_SAMPLERS

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
        from bnmc._kernels.target import SIMULATED, why_not

        if wanted == "auto" and SIMULATED:
            return "cpu"
        reason = why_not()
        if reason is None and no_gpu:
            reason = "linear chains without normalization go by Wishart factors, on the CPU"
            if callable(self.chain.weights):
                reason = "a function that samples weights runs on the CPU"
        if reason is None:
            return "cuda"
        if wanted == "cuda":
            raise BackendError("cuda", reason)
        return "cpu"

    def _frames(self, layers: int) -> Frames:
        columns = self.sampler.columns
        measures = len(self.sampler.measures)
        if measures or self.stays:
            none, values = np.zeros((0, 0)), (self.chains, layers, measures, self.inputs or 1)
            return Frames(none[:, :, None, None], none, none[:, :, None], np.zeros(values))
        pivots = columns if self.path == "factor" else 0
        return Frames(
            np.zeros((self.chains, layers, columns, columns)),
            np.zeros((self.chains, layers)),
            np.zeros((self.chains, layers, pivots)),
        )

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of one value of each observable, found by evaluating it once."""
        columns = self.sampler.columns
        frames = Frames(
            np.eye(columns)[None, None],
            np.zeros((1, 1)),
            np.zeros((1, 1, columns if self.path == "factor" else 0)),
        )
        view = View.of(self.chain, self.inputs or 1, frames, 0, np.zeros(1, np.int64))
        return {one.name: self._values(one, view).shape[2:] for one in self.observables}

    def _values(self, observable: Observable, view: View) -> NDArray[np.float64]:
        """Evaluate an observable; without `inputs` the axis of inputs goes."""
        values = observable.evaluate(view)
        if self.inputs is None and "input" in observable.dims(True):
            values = values[:, :, 0]
        return values

    def _destinations(
        self, out: Mapping[str, NDArray[np.float64]] | None
    ) -> dict[str, NDArray[np.float64]]:
        """Return the arrays of values, the user's where given."""
        if out is not None and not isinstance(out, Mapping):
            raise ArgumentTypeError("out", out, "a mapping of names to float64 arrays")
        given = dict(out or {})
        if self.reduce:
            if given:
                raise ArgumentError("out", list(given), "nothing together with reduce=")
            return {}
        results = {}
        for name, shape in self.shapes.items():
            full = (self.chains, len(self.layers), *shape)
            array = given.pop(name, None)
            if self.stays and array is not None:
                self._keep_on_device(array, full)
            elif array is None:
                array = np.zeros(full)
            elif not isinstance(array, np.ndarray) or array.dtype != np.float64:
                raise ArgumentTypeError("out", array, f"a float64 array for {name!r}")
            elif array.shape != full or not array.flags.writeable:
                raise ArgumentError("out", array.shape, f"a writable array {full} for {name!r}")
            results[name] = array
        if given:
            raise ArgumentError("out", next(iter(given)), ", ".join(self.shapes))
        return results

    def _keep_on_device(self, array: Any, shape: tuple[int, ...]) -> None:
        from bnmc._gpu_samplers import _GpuSampler, device_result

        assert isinstance(self.sampler, _GpuSampler)
        self.sampler.results = device_result(array, shape)

    def run(self) -> Trajectory:
        """Go through the layers, block by block."""
        last = self.first_layer + self.depth
        moments = {
            name: _RunningMoments(self.reduce, (self.chains, *shape))
            for name, shape in self.shapes.items()
            if self.reduce
        }
        done = 0
        with ExitStack() as stack:
            report = stack.enter_context(Reporter(self.progress, "simulate", "layers"))
            pool = _Pool(stack, self.threads)
            if not isinstance(self.start, State):
                frames = self._frames(1)
                self._spread(pool, lambda a, b: self._begin(a, b, frames), self.sampler.divisible)
                done = self._take(pool, frames, np.zeros(1, np.int64), done, moments)
            else:
                done = self._retake(pool, done, moments)
            layer = self.first_layer
            while layer < last:
                block = min(self._layers_of_block(), last - layer)
                numbers = np.arange(layer + 1, layer + block + 1)
                slots = np.where(self._is_recorded(numbers), 0, -1)
                slots[slots >= 0] = np.arange(np.count_nonzero(slots >= 0))
                if self.stays:
                    slots[slots >= 0] += done
                frames = self._frames(int(np.count_nonzero(slots >= 0)))
                self._advance(pool, layer + 1, slots, frames)
                done = self._take(pool, frames, numbers[slots >= 0], done, moments)
                layer += block
                report(layer - self.first_layer, self.depth)
        return self._trajectory(last, moments)

    def _begin(self, first: int, last: int, frames: Frames) -> None:
        assert not isinstance(self.start, State)
        self.sampler.begin(self.start, first, last, frames)

    def _retake(self, pool: _Pool, done: int, moments: dict[str, _RunningMoments]) -> int:
        """Record the layer of the state again, as the first layer of this run."""
        if self.layers[0] != self.first_layer:
            return done
        frames = self._frames(1)
        self.sampler.record(frames)
        return self._take(pool, frames, self.layers[:1], done, moments)

    def _advance(self, pool: _Pool, layer: int, slots: NDArray[np.int64], frames: Frames) -> None:
        seconds = self._seconds()
        shared = self.threads > 1 and self.sampler.panels > 1
        if shared and self.chains < self.threads and seconds > SHARED_LAYER_SECONDS:
            self.sampler.advance_together(pool.executor, self.threads, layer, slots, frames)
        else:
            self._spread(
                pool,
                lambda a, b: self.sampler.advance(a, b, layer, slots, frames),
                self.sampler.divisible,
            )

    def _spread(
        self, pool: _Pool, task: Callable[[int, int], None], divisible: bool = True
    ) -> None:
        """Run a task on ranges of chains, on all threads."""
        parts = min(self.threads, self.chains) if divisible else 1
        bounds = [self.chains * k // parts for k in range(parts + 1)]
        pool.map(task, bounds)

    def _take(
        self,
        pool: _Pool,
        frames: Frames,
        layers: NDArray[np.int64],
        done: int,
        moments: dict[str, _RunningMoments],
    ) -> int:
        """Evaluate the observables of recorded layers; return how many are recorded."""
        layers = layers[self._is_recorded(layers)]
        if layers.size == 0 or self.stays:
            return done + layers.size
        slots = slice(done, done + layers.size)
        results = (
            {
                name: np.zeros((self.chains, layers.size, *shape))
                for name, shape in self.shapes.items()
            }
            if self.reduce
            else {name: array[:, slots] for name, array in self.out.items()}
        )

        def evaluate(first: int, last: int) -> None:
            part = Frames(*(values[first:last] for values in frames))
            view = View.of(self.chain, self.inputs or 1, part, first, layers)
            for one in self.observables:
                results[one.name][first:last] = self._values(one, view)

        if self.sampler.measures:
            self._sort(frames.values, results)
        else:
            self._spread(pool, evaluate)
        for name, running in moments.items():
            running.update(results[name])
        return done + layers.size

    def _sort(self, values: NDArray[np.float64], results: dict[str, NDArray[np.float64]]) -> None:
        """Put what kernels have measured in the arrays of the observables."""
        if np.isnan(values).any():
            raise ArgumentError("G", 0.0, "matrices of positive trace")
        for index, one in enumerate(self.observables):
            measured = values[:, :, index]
            results[one.name][...] = measured if self.inputs is not None else measured[:, :, 0]

    def _seconds(self) -> float:
        """Return a guess of the time of one layer of one chain on one thread."""
        return self.sampler.seconds(self.chain, self.sampler.columns, self.sampler.dtype)

    def _layers_of_block(self) -> int:
        chains = -(-self.chains // (self.threads if self.sampler.divisible else 1))
        by_time = TASK_SECONDS / (chains * self._seconds())
        numbers = len(self.sampler.measures) * (self.inputs or 1) or self.sampler.columns**2
        by_memory = FRAME_BYTES / (8 * self.chains * numbers)
        by_memory *= self.sampler.frame_factor
        return max(1, int(min(by_time, by_memory, 100_000)))

    def _trajectory(self, last: int, moments: dict[str, _RunningMoments]) -> Trajectory:
        state = State(
            self.chain, self.path, self.key, last, self.inputs, self.dtype, self.sampler.arrays
        )
        reduced = [axis for axis in ("chain", "layer") if axis in self.reduce]
        leading = tuple(axis for axis in ("chain", "layer") if axis not in reduced)
        has_inputs = self.inputs is not None
        return Trajectory(
            chain=self.chain,
            layers=self.layers,
            observables=self.out,
            moments={name: running.result() for name, running in moments.items()},
            dims={one.name: (*leading, *one.dims(has_inputs)) for one in self.observables},
            key=self.key,
            sampler=self.sampler.name,
            dtype=self.dtype,
            backend=self.backend,
            cpu=host_cpu(),
            chains=self.chains,
            widened=tuple(np.flatnonzero(self.sampler.wide).tolist()),
            inputs=self.inputs,
            final_state=state,
        )


class _RunningMoments:
    """Means and variances over chains, layers or both, updated in a fixed order.

    Values are added layer after layer and, within a layer, chain after chain, so the result does
    not depend on how layers came in blocks.
    """

    def __init__(self, reduce: frozenset[str], shape: tuple[int, ...]) -> None:
        self.reduce = reduce
        self.shape = shape
        self.parts: list[tuple[int, NDArray[np.float64], NDArray[np.float64]]] = []
        if "layer" in reduce:
            kept = shape[1:] if "chain" in reduce else shape
            self.parts = [(0, np.zeros(kept), np.zeros(kept))]

    def update(self, values: NDArray[np.float64]) -> None:
        """Add values of shape (chains, layers, ...)."""
        if "layer" not in self.reduce:
            count, mean, squares = 0, np.zeros(values.shape[1:]), np.zeros(values.shape[1:])
            self.parts.append(self._added(values, count, mean, squares))
            return
        ordered = values.swapaxes(0, 1)
        if "chain" in self.reduce:
            ordered = ordered.reshape(-1, *values.shape[2:])
        self.parts = [self._added(ordered, *self.parts[0])]

    def _added(
        self,
        values: NDArray[np.float64],
        count: int,
        mean: NDArray[np.float64],
        squares: NDArray[np.float64],
    ) -> tuple[int, NDArray[np.float64], NDArray[np.float64]]:
        rows = np.ascontiguousarray(values).reshape(len(values), -1)
        count = cpu.update_moments(rows, count, mean.reshape(-1), squares.reshape(-1))
        return count, mean, squares

    def result(self) -> Moments:
        """Return the moments, with an axis of layers unless they were reduced."""
        count = self.parts[0][0]
        mean = np.concatenate([np.atleast_1d(part[1]) for part in self.parts])
        squares = np.concatenate([np.atleast_1d(part[2]) for part in self.parts])
        if "layer" in self.reduce:
            mean, squares = self.parts[0][1], self.parts[0][2]
        with np.errstate(invalid="ignore", divide="ignore"):
            return Moments(count, mean, squares / np.float64(count - 1))


class _Pool:
    """Threads that are started when first needed, and stopped whatever happens."""

    def __init__(self, stack: ExitStack, threads: int) -> None:
        self._stack = stack
        self._threads = threads
        self._executor: ThreadPoolExecutor | None = None

    @property
    def executor(self) -> Executor:
        """The threads."""
        if self._executor is None:
            self._executor = ThreadPoolExecutor(self._threads, thread_name_prefix="bnmc")
            self._stack.callback(self._executor.shutdown, wait=True, cancel_futures=True)
        return self._executor

    def map(self, task: Callable[[int, int], None], bounds: list[int]) -> None:
        """Run a task on the ranges between bounds; the first error in their order is raised."""
        ranges = list(pairwise(bounds))
        if len(ranges) == 1:
            task(*ranges[0])
            return
        futures: list[Future[None]] = [self.executor.submit(task, *one) for one in ranges]
        for future in futures:
            future.result()


def draw_key(rng: Any) -> int:
    """Draw the 64-bit key of a run from anything `numpy.random.default_rng` takes."""
    try:
        generator = np.random.default_rng(rng)
    except (TypeError, ValueError):
        raise ArgumentTypeError(
            "rng", rng, "None, a seed >= 0, a SeedSequence, a BitGenerator or a Generator"
        ) from None
    return int(generator.integers(0, 2**64, dtype=np.uint64))


def available_processors() -> int:
    """Return how many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def available_memory() -> int:
    """Return the bytes of memory that are free, or all there are, or no bound, as is known."""
    try:
        with open("/proc/meminfo") as lines:
            for line in lines:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    if not hasattr(os, "sysconf"):
        return 1 << 62
    return int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def _precision(dtype: Any) -> str:
    try:
        name = np.dtype(dtype).name
    except TypeError:
        raise ArgumentTypeError("dtype", dtype, "'float64' or 'float32'") from None
    return choice("dtype", name, ("float64", "float32"))


def _axes(reduce: str | Iterable[str]) -> frozenset[str]:
    if not isinstance(reduce, Iterable):
        raise ArgumentTypeError("reduce", reduce, "'chain', 'layer' or both")
    axes = [reduce] if isinstance(reduce, str) else list(reduce)
    return frozenset(choice("reduce", axis, ("chain", "layer")) for axis in axes)
