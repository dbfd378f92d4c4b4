"""`backpropagate`: gradients of a loss with respect to the weights of every layer."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from bnmc._kernels.scalar.codes import MOST_LAYERS, MOST_ROWS
from bnmc._support.arguments import Float64Array, choice, draw_key, integer, real
from bnmc._support.device_arrays import require_gpu
from bnmc._support.environment import with_blas
from bnmc._support.interruption import Stop
from bnmc._support.machine import require_memory
from bnmc._support.progress import Progress, as_progress, reporting, with_forecast
from bnmc._support.workers import Calls, Shared, as_executor, ranges, results_of, thread_count
from bnmc.chain.activations import require_derivative
from bnmc.chain.chain import Chain, Network, as_network, layers_of, pattern_of
from bnmc.chain.layers import linears_of
from bnmc.chain.start import FirstLayer, Start, as_initial, prepare
from bnmc.errors import ArgumentError, BackendError
from bnmc.gradients.directions import Readout, direction_of
from bnmc.gradients.network import NetworkTask
from bnmc.gradients.observables import as_gradient_observables
from bnmc.gradients.parts import CPU, NORMS, SCALES, WIDE, Part, Task, joined
from bnmc.gradients.result import Backpropagation
from bnmc.gradients.store import ChainStore
from bnmc.simulation.engine.state import State
from bnmc.simulation.memory import Request
from bnmc.simulation.runs import Recorded, is_drawn
from bnmc.simulation.starting import run_of
from bnmc.simulation.store.parts import as_folder


def backpropagate(
    chain: Chain | Network,
    depth: int | None = None,
    *,
    chains: int | None = None,
    initial: str | ArrayLike | FirstLayer = "gaussian",
    inputs: int | None = None,
    loss: Any = "gaussian",
    loss_gradient: Callable[[Float64Array], ArrayLike] | None = None,
    labels: ArrayLike | None = None,
    classes: int | None = None,
    rng: Any = None,
    sampler: str = "auto",
    backend: str = "auto",
    observables: Any = ("delta_gram",),
    every: int = 1,
    dtype: str | np.dtype[Any] | type = "float64",
    threads: int | None = None,
    executor: Executor | None = None,
    store: str | os.PathLike[str] | None = None,
    timeout: float | None = None,
    progress: bool | Progress = False,
) -> Backpropagation:
    r"""Simulate gradients with respect to the weights of all layers of random networks.

    A network has the layers

    .. math:: h_{l+1} = \mathrm{skip}\, x_l + \mathrm{gain}\, W_l \sigma(x_l) + b_l 1^T, \qquad
              x_{l+1} = N(h_{l+1}), \qquad x_0 = N(\mathrm{initial}),

    or those of another order (`bnmc.Chain`), where the entries of W are independent, N(0, 1/width),
    or W is uniformly distributed on the orthogonal matrices (``weights="haar"``), and the loss L is
    a function of h_depth.

    Parameters
    ----------
    chain : Chain or Network
        The network; or a `Network` of layers that differ, on the CPU.
    depth : int, optional
        Number of layers of a chain, >= 1.
    chains : int, optional
        Number of independent networks, as in `simulate`.
    initial : str, array_like or FirstLayer, default "gaussian"
        The input of the normalization of layer 0, as in `simulate`.
    inputs : int, optional
        Number of batches that go through the same networks.  The loss is one function of all.
    loss : {"gaussian", "cross-entropy", "squared"} or array_like
        The direction of the gradient at the top:

        - "gaussian": the entries of ∂L/∂h_depth are independent standard normals;
        - "cross-entropy" or "squared": the loss of outputs f = V a_depth, where a is σ(N(h)), or as
          the order of the chain says, and V has one row per class and independent entries
          N(0, 1/width): the mean over samples of the cross-entropy with softmax, or of
          ‖f − target‖²/2;
        - an array ∂L/∂h_depth of shape (width, batch), or (chains, width, batch), with an axis of
          inputs before the width if there are several.

        The samples of a convolutional chain are its images: V takes the mean of a over the pixels
        of an image.  The array may be (channels, images, height, width).
    loss_gradient : callable, optional
        Another loss of the outputs f, by its gradient: a function of f, (samples, classes), that
        returns ∂L/∂f, in place of `loss`.  If `classes` is omitted, f is h_depth, as if the last
        layer were the readout.
    labels : array_like, optional
        For "cross-entropy" and "squared": the class of each sample, (samples,), or targets of shape
        (samples, classes).
    classes : int, optional
        Number of outputs of the readout V.  The default is that of `labels`.
    rng : optional
        Anything `numpy.random.default_rng` takes.  The forward pass is that of `simulate` with the
        same `rng` and sampler.
    sampler : {"auto", "conditional", "weights"}
        "conditional" makes no weight matrix.  It needs Gaussian weights, or orthogonal weights
        without bias and with a norm over the batch before the activation, or none; it is the
        default for these chains.  "weights" is the reference, for every law of weights: it draws
        the matrices of `drawn_weights`, and multiplies by them and their transposes.  This takes
        O(width²) operations per layer and sample, and the rows of many layers in memory.  Its Gram
        matrices equal those of `simulate` up to rounding.  For a convolution with more columns than
        channels it is the default, because it is faster there.
    backend : {"auto", "cpu", "cuda"}
        "cuda" takes all chains through one GPU, for the sampler "conditional", its default.
        With a norm over the batch before the activation or none, without convolution, and without
        a bias that the norm does not subtract, its random numbers are those of the CPU, so results
        agree up to rounding; a float32 chain that goes on in float64 does so on the CPU.  For the
        other layers, Gram matrices agree up to rounding, and gradients agree in law.  No device is
        chosen yet: "auto" is "cpu".
    observables : names or functions, default ("delta_gram",)
        Recorded at layers: "delta_gram", δᵀδ for δ = ∂L/∂h_l; "gram", G_l; "hidden_delta", h_lᵀδ;
        "log_delta_norm", ln ‖δ‖; "log_bias_norm", ln ‖∂L/∂b_l‖ of the bias of layer l, random or 0
        and trained, −inf if the loss does not depend on it because norms subtract it;
        or functions of (G, δᵀδ, hᵀδ), each of shape (chains, layers, samples, samples), that return
        one number for each chain and layer.  A mapping gives names, with (function, shape) for
        arrays.  δ is in units of exp(`log_scale`).  If the norm subtracts the means of rows of h,
        hᵀδ is computed without these means.
    every : int, default 1
        The observables are recorded at every so many layers, and at the last one.
    dtype : {"float64", "float32"}
        Precision of rows.
    threads : int, optional
        Number of threads; the default is the number of processors.  Results do not depend on it.
    executor : concurrent.futures.Executor or Dask Client, optional
        Executor that runs parts of the chains.  Results do not depend on it.
    store : path, optional
        Folder for finished parts of the chains.  If a run is interrupted in any way, the same call
        continues it and returns the same bits; if the store is complete, the call returns the run.
        If `rng` is omitted, the key is that of an existing store.  The results are in memory in any
        case.  The store compares your own functions by code and state.
    timeout : float, optional
        Seconds, > 0, after which the run returns the first chains, up to the first one that is not
        finished: ``run.complete`` is False.
    progress : bool or callable, default False
        True for a bar on standard error (extra ``cli``), or a function of (done, total) chains.

    Returns
    -------
    Backpropagation

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If an argument is not allowed, or the derivative of the activation is not known: pass
        ``Activation(function, derivative=…)``.
    BackendError
        If `backend` is "cuda", and there is no GPU, or it has no kernels for the chain.
    ResultTooLargeError
        If the result would not fit in memory, before any work.
    ZeroVarianceError, NonFiniteError
        If a row of a layer has no variance, or a chain or gradient leaves the range of numbers.
    PartialEstimateError
        If no chain is finished within `timeout`.
    Interrupted
        On Ctrl-C; `partial` has the finished chains up to the first that is not finished.
    StoreMismatchError
        If the store holds another run; the message names the difference.
    StoreInUseError
        If another run is writing the store.
    StoreLockError, StoreError
        If the file system has no locks, or the store cannot be read or written.

    Notes
    -----
    The sampler "conditional" makes no weight matrix.  Let a (width × batch) be the activations of a
    layer and δ the gradient with respect to the next h = W a.  Given the forward pass, W is
    Gaussian, conditioned on W a = h, and δ depends on W through h alone.  So

    .. math:: W^T δ = a (a^T a)^{+} (h^T δ - a^T Z) + Z, \qquad
              \text{rows of } Z \sim N(0, δ^T δ / \mathrm{width}),

    has the exact joint law of forward and backward pass, at every width and for singular Gram
    matrices.  A norm that centres does not see the mean of a row of W a, which is therefore never
    drawn; then a − mean a takes the place of a.  Forward and backward pass use different random
    numbers.  The forward pass keeps its Gram matrices; if there are too many, it keeps states at
    checkpoints and is made again from these.

    A bias is the weight of one more row of a, which is constant; its gradient δ 1 has the squared
    norm 1ᵀδᵀδ 1, which `delta_gram` has.  For norms over the features, other orders than
    "norm-activation", biases and convolutions, both samplers keep the rows of a stretch of layers
    (32 MiB, or √depth layers if these take more), and the Gram matrices of "conditional" equal
    those of `simulate` up to rounding.

    A block (`bnmc.Residual`) adds the gradient of its last layer to that of what its skip path
    takes, through the projection if there is one.  `log_gradient_norm` has no projections.

    A convolution multiplies the patches of a, a matrix P with one row for each tap and channel.
    Then P takes the place of a, and its number of rows that of the width.  The gradient with
    respect to a is the sum over the taps of the shifted rows of :math:`W^T δ`.

    If W is orthogonal, h has the orthonormal basis H = W B, B an orthonormal basis of a.  Then

    .. math:: W^T δ = B H^T δ + Y T, \qquad T^T T = δ^T (I - H H^T) δ,

    where Y is a uniformly distributed matrix with orthonormal columns orthogonal to B.  It has as
    many columns as the rank of T.

    If float32 does not resolve a Gram matrix or the difference between gradients of samples, the
    chain continues in float64.

    Examples
    --------
    >>> import bnmc
    >>> run = bnmc.backpropagate(bnmc.Chain(200, 5, "relu"), 30, chains=20, rng=0)
    >>> run.log_gradient_norm.shape
    (20, 30)
    >>> bool(run.log_gradient_norm[:, 0].mean() > run.log_gradient_norm[:, -1].mean() + 3)
    True
    """
    network = as_network(chain, depth, low=1)
    initial = as_initial(network.first, initial)
    of_layers, depth = network.chains, network.depth
    on_gpu = choice("backend", backend, ("auto", "cpu", "cuda")) == "cuda"
    if (width := max(each.width for each in of_layers)) > MOST_ROWS:
        raise ArgumentError("width", width, f"at most {MOST_ROWS}")
    step = min(integer("every", every, low=1), MOST_LAYERS)
    workers = thread_count(threads)
    pool, report_to = as_executor(executor), as_progress(progress)
    folder = as_folder(store)
    limit = None if timeout is None else real("timeout", timeout, above=0.0)
    recorded_functions = as_gradient_observables(observables)
    run = run_of(
        network, initial, chains=chains, inputs=inputs, rng=rng, sampler=sampler, dtype=dtype
    )
    if isinstance(initial, State):
        raise ArgumentError("initial", "a State", "a start: gradients need all layers")
    direction = direction_of(
        loss, loss_gradient, labels, classes, network.last, run.chains, run.inputs
    )
    # Chains on a GPU have no other sampler.
    of_gpu = on_gpu and sampler == "auto"
    of_states = isinstance(direction, Readout) and direction.of_states
    kind, path = _kind_of_task(
        network, run.columns, "conditional" if of_gpu else sampler, needs_rows=of_states
    )
    if on_gpu:
        if of_states:
            raise BackendError("cuda", "no loss of the states h: pass classes, or backend='cpu'")
        kind, workers = _gpu_task(path, network, pool), 1
    run = replace(
        run,
        path=path,
        backend="cuda" if on_gpu else "cpu",
        # Slots are layers 1 + k * every; the last layer is always one.
        recorded=Recorded(min(step, depth), step, depth),
    )
    key = ChainStore.stored_key(folder) if folder is not None and rng is None else None
    run = replace(run, key=draw_key(rng) if key is None else key)
    task = kind(run, direction, recorded_functions)
    size = task.chains_of_part(workers if pool is None else None)
    for each in of_layers:
        each.activation.check()
        require_derivative(each.activation)
    task.require_device()
    _require_memory(task, initial, size, workers)
    start = prepare(network, initial, run.chains, run.inputs)
    stored = None if folder is None else ChainStore(folder, task, start, size)
    pieces = ranges(run.chains, size if stored is None else stored.size)
    stop = Stop(limit)
    # Workers of an executor are not told to stop.
    told = stop if pool is None else None
    is_of_all = start.part(0, 1) is start
    calls: Calls[Part] = Calls(
        Shared("executor", pool, partial(_begun, task, start if is_of_all else None)),
        [
            (None if is_of_all else start.part(first, last), first, last, told)
            for first, last in pieces
        ],
        [last - first for first, last in pieces],
        stored,
    )
    label = with_forecast("backpropagate", run.chains * task.seconds_of_chain / workers)
    parts = results_of(
        calls, pool, workers, reporting(report_to, label, "chains"), stop,
        lambda parts: _joined(task, parts),
    )  # fmt: skip
    if not parts:
        raise stop.error("no chain is finished")
    return _joined(task, parts)


def _begun(
    task: Task, start_of_all: Start | None, start: Start | None, first: int, last: int, stop: Any
) -> Part | None:
    """Run a task from the start of all chains, which its workers share, or of these chains."""
    begun = start or start_of_all
    assert begun is not None
    return task(begun, first, last, stop)


def _kind_of_task(
    network: Network, columns: int, sampler: str, *, needs_rows: bool
) -> tuple[type[Task], str]:
    """Return the class of tasks for a sampler that `run_of` has checked, and what draws rows.

    `needs_rows` tells whether the direction at the top depends on the rows h.
    """
    # Fewer weights than normals: a convolution has taps · width², and patches taps · width rows of
    # as many normals as columns.
    layers = layers_of(pattern_of(network)).layers[1:]
    has_few_weights = any(
        linear.convolution is not None and columns > linear.width for linear in linears_of(layers)
    )
    if sampler == "weights" or (sampler == "auto" and has_few_weights):
        return NetworkTask, "weights"
    if not needs_rows and all(is_drawn(layer) and layer.is_plain for layer in layers):
        return Task, "conditional"
    laws = [linear.law for linear in linears_of(layers)]
    are_gaussian = all(law.rows_given_gram or law.is_identity for law in laws)
    return NetworkTask, "conditional" if are_gaussian else "weights"


def _gpu_task(path: str, network: Network, pool: Executor | None) -> type[Task]:
    """Return the class of tasks of a GPU, or raise what it cannot do."""
    if not network.is_repeated:
        raise BackendError("cuda", "no gradients of layers that differ: backend='cpu'")
    chain = network.chain
    for applies, what in (
        ("conditional" not in chain.layers[1].linear.law.samplers, "these weights"),
        (
            not (chain.is_gaussian or chain.layers[1].is_plain),
            "orthogonal weights, unless a norm over the batch comes first, or none, without bias",
        ),
        (path == "weights", "sampler='weights'"),
    ):
        if applies:
            raise BackendError("cuda", f"no gradients of chains with {what}: backend='cpu'")
    require_gpu(pool)
    from bnmc.gradients.on_gpu import GpuTask

    return GpuTask


def _require_memory(task: Task, initial: Any, size: int, workers: int) -> None:
    """Raise unless the results, and the passes of all workers, fit in memory."""
    results = task.run.chains * task.bytes_of_results
    busy = min(workers, -(-task.run.chains // size))
    passes = busy * task.bytes_of_pass(min(size, task.chains_of_pass))
    starting, start = Request(task.run, initial, workers).start()
    # Parts are joined at the end.
    needed = max(starting, start + results + max(passes, results))
    hint = "record fewer layers with every=, or nothing with observables=()"
    require_memory("depth, chains", needed, hint)


def _joined(task: Task, parts: list[Part]) -> Backpropagation:
    whole, run = joined(parts), task.run
    return Backpropagation(
        network=run.network,
        depth=run.depth,
        loss=task.direction.name,
        layers=run.recorded.layers(0, run.recorded.count),
        log_gradient_norm=whole[NORMS],
        log_scale=whole[SCALES],
        observables={each.name: whole[each.name] for each in task.observables},
        key=run.key,
        dtype=run.dtype,
        cpu=with_blas(", ".join(sorted({*whole[CPU].tolist()})), blas=task.uses_blas),
        inputs=run.inputs,
        sampler=run.path,
        widened=tuple(np.flatnonzero(whole[WIDE]).tolist()),
        complete=len(whole[NORMS]) == run.chains,
        backend=run.backend,
    )
