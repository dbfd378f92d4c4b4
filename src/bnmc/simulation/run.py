"""Ensembles of chains in depth."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Mapping
from concurrent.futures import Executor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bnmc._kernels.processor import host_cpu
from bnmc._support.arguments import choice, instance, integer, real
from bnmc._support.device_arrays import is_device_array
from bnmc._support.extras import require_extras
from bnmc._support.interruption import StillAtWork, Stop, uninterrupted, with_partial
from bnmc._support.progress import Progress, as_progress, reporting, with_forecast
from bnmc._support.workers import Workers, as_executor, run_work, thread_count
from bnmc.chain.chain import Chain, Network, as_network
from bnmc.chain.start import FirstLayer, as_initial
from bnmc.errors import ArgumentError, ArgumentTypeError, PrecisionWarning
from bnmc.simulation.engine.replay import biases_of_layer, weights_of_layer
from bnmc.simulation.engine.state import State
from bnmc.simulation.export import extras_of
from bnmc.simulation.memory import Request, require_memory
from bnmc.simulation.observables import OBSERVABLES, Observable
from bnmc.simulation.runs import NAMES, Run, number_of_projection
from bnmc.simulation.sinks import RunningMoments, reduced_axes, require_storable, sink_of
from bnmc.simulation.starting import is_on_host, run_of, started
from bnmc.simulation.store.store import RunStore, as_store_path
from bnmc.simulation.tiles import TILE_SECONDS, Grid, Tiles, grid_in_process, grid_of
from bnmc.simulation.trajectory import Moments, Trajectory

#: Estimated seconds, and recorded numbers, of runs that start no threads.
BRIEF_SECONDS, _BRIEF_NUMBERS = 2e-3, 20_000

#: Seconds that a worker should need for a tile of a store; `kill -9` loses as much.
STORED_TILE_SECONDS = 2.0

#: The kinds of the runs that this process has made, so that their kernels are compiled.
_compiled: set[tuple[object, ...]] = set()


def simulate(
    chain: Chain | Network,
    depth: int | None = None,
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
    chain : Chain or Network
        The network: width, batch, activation, normalization, weights; or a `Network` of layers that
        differ, which has a depth.
    depth : int, optional
        Number of layers of a chain, >= 0.  The number of the last layer, counted from the start of
        the chain, is below 2**32.
    chains : int, optional
        Number of independent networks.  The default is the number of batches in `initial`, or 1.
    initial : str, array_like, FirstLayer or State, default "gaussian"
        The input of the normalization of layer 0:

        - an array of shape (width, batch), one for all chains, or (chains, width, batch), one per
          chain; for `Chain.conv` also (channels, samples, height, width) or (chains, channels,
          samples, height, width).  It is either in host memory (anything with `__array__`,
          `__dlpack__` or a buffer; the run copies it) or on the GPU (C-contiguous, with
          `__cuda_array_interface__` or `__dlpack__`);
        - the `final_state` of a run, which continues with the same random numbers;
        - the name of a law that kernels draw: "gaussian" (i.i.d. normal entries) or "collinear"
          (rows N(0, 11ᵀ + 1e-6 I), that is, nearly equal samples);
        - a `FirstLayer`, for inputs whose number of features is not the width.
    inputs : int, optional
        Number k of batches that go through the same networks.  `initial` then has a leading axis
        of k batches, (k, width, batch); each batch is normalized on its own.
    rng : optional
        Anything `numpy.random.default_rng` takes (SPEC 7), from which one 64-bit key is drawn, or
        the ``key`` of a result.
    sampler : {"auto", "conditional", "weights"}
        "conditional" draws each layer given the Gram matrix of the layer before; it needs Gaussian
        or orthogonal weights and makes no weight matrix.  "weights" draws the weights and
        multiplies.  Both have the same law.  "auto" takes the cheaper valid one; or, if
        layers of a network differ in the law of their weights, "conditional" for all layers that it
        can make and "weights" for the others.
    backend : {"auto", "cpu", "cuda"}
        Where kernels run.  "cuda" divides the chains among all GPUs that CUDA sees (extras
        ``cuda12``, ``cuda13``); "auto" uses GPUs if there are any and the run is long enough.  The
        random numbers are those of the CPU, so trajectories agree to rounding if the chain
        contracts.  Orthogonal weights run on GPUs with the sampler "conditional" alone.
    dtype : {"float64", "float32"}
        Precision of rows and weights.  Gram matrices are summed and kept in float64.
    observables : names, Observables or functions of G, default ("gram",)
        Recorded functions of the Gram matrix: names among "gram", "scaled_gram", "cross_gram",
        "eigenvalues", "log_scale", "log_pivots", "orthogonality_gap", "rank_bound", "soft_rank"
        and "state_gram", and `Observable` objects.  "state_gram" is hᵀh/width of the rows h before
        the norm, for which kernels draw the parts of h, too, that the norm does not see.  If all
        are among "orthogonality_gap", "rank_bound" and `Distance`, a GPU writes only the numbers.
    every, burn_in : int, default 1 and 0
        The run records layers burn_in, burn_in + every, … and always the last one.
    reduce : {"chain", "layer"} or several of them, default ()
        Axes over which means and variances replace values.  With "layer", memory does not grow
        with depth.
    threads : int, optional
        Number of threads; the default is the number of processors.  Results do not depend on it.
    executor : concurrent.futures.Executor or Dask Client, optional
        Executor that runs the tasks.  A task is a block of chains and layers and uses one thread.
        Results do not depend on it.  If a worker dies, another worker repeats its task.  Your own
        functions are sent by cloudpickle.
    store : path, optional
        Path of a Zarr store, ``….zarr``, for finished parts of the run (extra ``xarray``).  If a
        run is interrupted in any way, the same call continues it and returns the same bits.  If
        the store is complete, the call returns the run.  With more chains or a larger depth, the
        same call extends the store, and uses the finished parts.  `bnmc.open` reads stores.  Values
        are read on access, in parts by `Trajectory.to_xarray`, so they may be larger than memory.
        If `rng` is omitted, the key is that of an existing store.  If the process is killed, the
        unfinished tiles are lost.  If the power fails, up to two finished tiles are lost too.  The
        store compares your own functions by code and state, so another process can resume the run.
    timeout : float, optional
        Seconds, > 0, after which the run returns its finished part: ``run.complete`` is False, and
        its layers are those that all chains have reached.
    progress : bool or callable, default False
        True for a bar on standard error (extra ``cli``), or a function of (done, total) layers.
    out : mapping of name to float64 array, optional
        Arrays for the values, of the shapes of the results, that share no memory with each other
        and have one place in memory for each element.  If "gram" alone is recorded, the array
        may be C-contiguous on the GPU: kernels then write to it without a copy, and it is the
        result, ``run["gram"]``.

    Returns
    -------
    Trajectory

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If an argument is not allowed, before any work.
    ResultTooLargeError
        If the run would not fit in memory, before any work; the message names chains and depth
        that would fit.
    ZeroVarianceError
        If a row of the input or of a layer has no variance; the message names the row.
    NonFiniteError
        If a chain without normalization leaves the range of its dtype.
    BackendError
        If the backend cannot run on this machine, or cannot run this chain; the message says why.
    Interrupted
        On Ctrl-C: a KeyboardInterrupt whose `partial` is the finished part of the run.  A step that
        does not end within a second continues in the background until the process ends.  If the
        handler of another signal raises, its exception ends the run in the same way and gets the
        attribute `partial`.
    StoreMismatchError
        If the store holds another run, or more chains or layers; the message names the difference.
    StoreInUseError
        If another run is writing the store.
    StoreReplacedError
        If the store is removed or replaced meanwhile.
    StoreLockError, StoreError
        If the file system has no locks, or the store cannot be read or written.
    WorkersLostError
        If workers of the executor die again and again.

    Warns
    -----
    PrecisionWarning
        If float32 rows do not resolve recorded Gram matrices, in runs with a skip connection or
        with weights; `Trajectory.unresolved` lists the chains.

    Notes
    -----
    Let d be the width, n the batch and a the activations of a layer.  The rows of W a are i.i.d.
    N(0, G) with G = aᵀa/d, so the sampler draws them through a factor of G, with d n normals
    instead of d².  This is exact at every width, also for singular G.  Equal samples stay equal to
    the bit.

    Orthogonal weights (``weights="haar"``) need a second pass over the rows: with the factor L of
    zᵀz/d, z the normals, the rows of z L⁻ᵀ are those of a uniformly distributed orthogonal frame.

    The conditional sampler resolves relative differences between samples above about 1e-7, the
    sampler "weights" above 1e-16.  Use ``sampler="weights"`` for closer samples.  If the Gram
    matrix of a float32 chain is near the limit of float32 rows, the chain continues in float64;
    `Trajectory.widened` lists such chains.

    Without normalization the scale of a deep chain leaves the range of float64.  If σ is positively
    homogeneous, the scale of each sample is split off exactly, at every layer and from the initial
    array on: "scaled_gram", "log_scale" and all scale-free observables are then valid at any depth,
    and for inputs of any size.  Homogeneous are linear, relu, leaky_relu, abs, and your own
    functions that consist of arithmetic, comparisons, ``abs``, ``max``, ``min`` and their NumPy
    forms.  A sample that is smaller than the largest one by more than float64 allows is zero in
    "scaled_gram"; the state keeps it.  If σ is not homogeneous and the Gram matrix becomes too
    small for the dtype, the run raises `NonFiniteError`.

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
    network = as_network(chain, depth)
    initial = as_initial(network.first, initial)
    choice("backend", backend, ("auto", "cpu", "cuda"))
    threads = thread_count(threads)
    executor = as_executor(executor)
    path = None if store is None else as_store_path(store)
    limit = None if timeout is None else real("timeout", timeout, above=0.0)
    progress = as_progress(progress)
    run = run_of(
        network, initial, chains=chains, inputs=inputs, rng=rng, sampler=sampler, dtype=dtype,
        observables=observables, every=every, burn_in=burn_in,
        stays=isinstance(out, Mapping) and any(map(is_device_array, out.values())),
    )  # fmt: skip
    axes = reduced_axes(reduce)
    seconds = None if executor is None else TILE_SECONDS
    if path is not None:
        seconds = STORED_TILE_SECONDS
    is_small = takes_milliseconds(run)
    if not is_small or not isinstance(initial, (str, State)):
        require_memory(Request(run, initial, threads, seconds, path is not None, axes, out))
    run, start = started(run, initial, rng, backend, threads, path, axes)
    _require_tiles(run, start, executor, path)
    if path is not None:
        require_storable(axes, out)
    sink = None if path is not None else sink_of(run, axes, out)
    kind = _kind_of(run, start)
    is_plain = seconds is None and not axes and not callable(progress)
    is_brief = is_plain and is_small and kind in _compiled
    label = with_forecast("simulate", run.chains * run.depth * run.seconds / threads)
    with (
        reporting(progress, label, "layers") as report,
        _workers(run, executor, 1 if is_brief else threads, seconds) as workers,
        nullcontext() if path is None else _opened(path, run, start, workers) as stored,
    ):
        grid = _division(run, workers, seconds) if stored is None else stored.grid
        stop = Stop(limit)
        tiles = Tiles(run, start, grid, workers, stop, sink, stored, _results(run, out))
        try:
            cause = uninterrupted(
                lambda: run_work(tiles, workers, stop, report), stop,
                # The current GPU is that of this thread.
                brief=is_brief or run.backend == "cuda",
            )  # fmt: skip
            state = tiles.state
        except StillAtWork as still:
            cause, state = still.cause, None
        try:
            result = trajectory_of(run, axes, tiles, state)
        except KeyboardInterrupt as error:  # what was finished comes along from here, too
            cause, result = error, trajectory_of(run, axes, tiles, state)
        if cause is not None:
            workers.is_left = True
            raise with_partial(cause, result if len(result.layers) else None)
    if result.complete:
        _compiled.add(kind)
    if result.unresolved:
        warnings.warn(
            f"float32 rows do not resolve the Gram matrices of chains {_list(result.unresolved)}: "
            "samples are nearly, or exactly, dependent; dtype='float64' resolves more",
            PrecisionWarning,
            stacklevel=3,
        )
    return result


def _require_tiles(run: Run, start: Any, executor: Executor | None, store: Path | None) -> None:
    """Raise if arrays of a device meet an executor or a store, or a store lacks its extra."""
    if run.stays or not is_on_host(start):
        for name, given in (("executor", executor), ("store", store)):
            if given is not None:
                raise ArgumentError(name, given, "None with arrays of a device")
    if store is not None:
        require_extras(extras_of(store))


def _workers(run: Run, executor: Executor | None, threads: int, seconds: float | None) -> Workers:
    """Return the workers of a run: the user's, threads of a CPU, or a thread for each GPU."""
    if run.backend == "cuda" and (run.devices > 1 or seconds is not None):
        threads = run.devices
    return Workers(executor, threads)


def _division(run: Run, workers: Workers, seconds: float | None) -> Grid:
    """Return the division of a run: into tiles of so many seconds, or as it is in this process."""
    if seconds is None:
        return grid_in_process(run, run.devices, workers.count)
    # Several parts per worker, so that none is idle while another makes its last one.
    return grid_of(run, 2 * workers.count, seconds)


def _opened(path: Path, run: Run, start: Any, workers: Workers) -> RunStore:
    """Return the store of a run."""
    grid = _division(run, workers, STORED_TILE_SECONDS)
    return RunStore(path, run, start, grid, trajectory_of(run, frozenset()).attributes())


def _results(run: Run, out: Any) -> Any:
    """Return the array on the device in which Gram matrices stay, or None."""
    if not run.stays:
        return None
    from bnmc.simulation.engine.gpu.arrays import device_result

    shape = (run.chains, run.recorded.count, *run.shapes["gram"])
    return device_result(out["gram"], shape)


def takes_milliseconds(run: Run) -> bool:
    """Whether a run is small, without functions of users: some megabytes, which nobody estimates.

    Threads would take longer to start than such a run takes if its kernels are compiled.
    """
    return (
        run.chains * (run.depth + 1) * run.seconds < BRIEF_SECONDS
        and run.chains * run.recorded.count * run.columns**2 < _BRIEF_NUMBERS
        and all(
            chain.activation.builtin and not callable(chain.weights) for chain in run.network.chains
        )
        and all(OBSERVABLES.get(each.name) is each for each in run.observables)
    )


def _kind_of(run: Run, start: Any) -> tuple[object, ...]:
    """Return what determines the kernels of a run in this process."""
    of_chains = {
        (
            chain.activation.name, chain.norm, str(chain.weights), chain.skip != 0.0, chain.order,
            chain.shows_bias, chain.convolution is None,
        )
        for chain in run.network.chains
    }  # fmt: skip
    return run.path, run.dtype, frozenset(of_chains), run.inputs is None, type(start)


def trajectory_of(
    run: Run, reduced: frozenset[str], tiles: Tiles | None = None, state: State | None = None
) -> Trajectory:
    """Return the result of tiles; without them, a result without layers."""
    slots, recorded = 0 if tiles is None else tiles.slots, run.recorded
    observables: Mapping[str, NDArray[np.float64]] = {}
    moments: dict[str, Moments] = {}
    sink = None if tiles is None else tiles.sink
    if tiles is not None and tiles.store is not None:
        observables = tiles.store.arrays(slots)
    elif isinstance(sink, RunningMoments):
        moments = sink.results()
    elif sink is not None:
        is_whole = slots == recorded.count
        observables = sink if is_whole else {name: a[:, :slots] for name, a in sink.items()}
    leading = [axis for axis in ("chain", "layer") if axis not in reduced]
    return Trajectory(
        network=run.network,
        layers=recorded.layers(0, slots),
        observables=observables,
        moments=moments,
        dims={name: (*leading, *axes) for name, axes in run.axes.items()},
        key=run.key,
        sampler=NAMES[run.path],
        dtype=run.dtype,
        backend=run.backend,
        cpu=host_cpu() if tiles is None else tiles.cpu,
        chains=run.chains,
        widened=() if tiles is None else tiles.marked("wide"),
        unresolved=() if tiles is None else tiles.marked("unresolved"),
        inputs=run.inputs,
        complete=slots == recorded.count,
        state=state,
    )


def _list(chains: tuple[int, ...]) -> str:
    shown = ", ".join(map(str, chains[:10]))
    return shown if len(chains) <= 10 else f"{shown} and {len(chains) - 10} more"


def drawn_weights(
    run: Trajectory, layer: int, *, chain: int = 0, projection: bool = False
) -> NDArray[np.floating[Any]]:
    r"""Return the weights of one chain that lead to a layer of a run.

    The function draws them again: a run never holds more than a tile of them.

    Parameters
    ----------
    run : Trajectory
        A run of the sampler "weights"; the conditional sampler makes no weights.
    layer : int
        The layer that the weights lead to, from 1 to the last layer of the run.
    chain : int, default 0
        Number of the chain.
    projection : bool, default False
        Whether to return P of the block that ends at the layer (`bnmc.Residual`), and not W.

    Returns
    -------
    (width, width of the layer before) ndarray of the run's dtype
        W, with entries of variance 1/columns: the layer is N(skip x + gain W σ(x)), or as the order
        of the chain says; see `bnmc.Chain`.  The weights of a convolution are (channels, channels,
        height, width) like those of ``torch.nn.Conv2d``, with variance 1/(input channels · taps).

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If the run has no weights, no such layer, chain or projection.

    Examples
    --------
    >>> import bnmc
    >>> run = bnmc.simulate(bnmc.Chain(50, 3), 2, sampler="weights", rng=0)
    >>> bnmc.drawn_weights(run, 1).shape
    (50, 50)
    """
    return weights_of_layer(*_drawn(run, layer, chain, projection))


def drawn_biases(
    run: Trajectory, layer: int, *, chain: int = 0, projection: bool = False
) -> NDArray[np.floating[Any]]:
    r"""Return the biases of one chain that lead to a layer of a run.

    Parameters
    ----------
    run : Trajectory
        A run of the sampler "weights"; the conditional sampler makes no biases.
    layer : int
        The layer that the biases lead to, from 1 to the last layer of the run.
    chain : int, default 0
        Number of the chain.
    projection : bool, default False
        Whether to return the biases of the projection of the block that ends at the layer.

    Returns
    -------
    (width,) ndarray of the run's dtype
        b, with entries of the variance of the layer, ``bias_variance``.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If the run has no weights, no such layer, chain or projection.

    Examples
    --------
    >>> import bnmc
    >>> chain = bnmc.Chain(50, 3, "tanh", norm="none", bias_variance=0.1)
    >>> run = bnmc.simulate(chain, 2, sampler="weights", rng=0)
    >>> bnmc.drawn_biases(run, 1).shape
    (50,)
    """
    return biases_of_layer(*_drawn(run, layer, chain, projection))


def _drawn(run: Trajectory, layer: int, chain: int, projection: bool) -> tuple[Run, int, int]:
    """Check the arguments; return the run on the CPU, the chain, and the layer or projection."""
    if not isinstance(run, Trajectory):
        raise ArgumentTypeError("run", run, "a Trajectory")
    if run.sampler != "weights":
        raise ArgumentError("run", run.sampler, "a run of the sampler 'weights'")
    last, most = int(run.layers[-1]), run.chains - 1
    layer, chain = (
        integer("layer", layer, low=1, high=last),
        integer("chain", chain, low=0, high=most),
    )
    by_weights = Run(run.network, "weights", 1, run.inputs, run.dtype, run.key)
    if not instance("projection", projection, bool, "True or False"):
        return by_weights, chain, layer
    number = number_of_projection(layer)
    if number not in by_weights.projections:
        raise ArgumentError("projection", True, f"False: no projection ends at layer {layer}")
    return by_weights, chain, number
