"""Ensembles of chains in depth."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from concurrent.futures import Executor
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bnmc._support.arguments import integer
from bnmc._support.progress import Progress
from bnmc.chain.chain import Chain, as_chain
from bnmc.chain.start import FirstLayer
from bnmc.errors import ArgumentError, ArgumentTypeError
from bnmc.simulation.engine.replay import weights_of_layer
from bnmc.simulation.engine.state import State
from bnmc.simulation.engine.weights import WeightsSampler
from bnmc.simulation.ensemble import ensemble_of
from bnmc.simulation.execution import execution_of
from bnmc.simulation.observables import Observable
from bnmc.simulation.plan import Plan
from bnmc.simulation.recording import recording_of
from bnmc.simulation.trajectory import Trajectory

__all__ = ["drawn_weights", "simulate"]


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
    as_chain(chain)
    depth = integer("depth", depth, low=0, high=2**32 - 1)
    execution = execution_of(
        backend=backend, threads=threads, executor=executor, store=store, timeout=timeout,
        progress=progress,
    )  # fmt: skip
    ensemble = ensemble_of(
        chain, initial, chains=chains, inputs=inputs, rng=rng, sampler=sampler, dtype=dtype
    )
    recording = recording_of(
        ensemble, depth, observables=observables, every=every, burn_in=burn_in, reduce=reduce,
        out=out,
    )  # fmt: skip
    return Plan(recording, execution, initial, rng).run()


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
    return weights_of_layer(run.chain, run.inputs, run.dtype, run.key, chain, layer)
