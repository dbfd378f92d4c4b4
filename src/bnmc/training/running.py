"""`train`: gradient descent of random networks whose large matrices are never drawn."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import Executor
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bnmc._kernels.processor import host_cpu
from bnmc._support.arguments import (
    choice,
    draw_key,
    finite_array,
    integer,
    integers,
    precision,
    real,
)
from bnmc._support.environment import with_blas
from bnmc._support.interruption import Stop
from bnmc._support.machine import require_memory
from bnmc._support.progress import Progress, as_progress, duration_text, reporting
from bnmc._support.workers import Calls, Shared, as_executor, results_of, thread_count
from bnmc.chain.activations import require_derivative
from bnmc.chain.chain import Chain, Network, as_network
from bnmc.errors import ArgumentError, Interrupted
from bnmc.gradients.directions import targets_of
from bnmc.infinite_width.scalings import Scaling
from bnmc.simulation.store.parts import as_folder
from bnmc.training.architecture import architecture_of
from bnmc.training.course import ASKED, BATCH_LOSS, DIVERGED, DONE, Course, Part, Watch
from bnmc.training.forecast import forecast_of, with_matrices
from bnmc.training.observables import OfLayers, as_training_observables
from bnmc.training.result import Training
from bnmc.training.scalings import powers_of
from bnmc.training.steps import LOSSES, Descent
from bnmc.training.store import TrainingStore

#: A training of more steps does not end.
_MOST_STEPS = 10**8


def train(
    network: Network | Chain,
    inputs: ArrayLike,
    labels: ArrayLike,
    *,
    steps: int,
    learning_rate: float,
    depth: int | None = None,
    loss: str = "cross-entropy",
    test: ArrayLike | None = None,
    batches: Any = None,
    optimizer: str = "sgd",
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    parametrization: str | Scaling = "standard",
    reference_width: int = 128,
    readout_gain: float = 1.0,
    start: str = "random",
    chains: int = 1,
    observables: Any = ("orthogonality_gap",),
    layers: Sequence[int] | None = None,
    record: ArrayLike | None = None,
    matrices: str = "auto",
    dtype: str | np.dtype[Any] | type = "float64",
    rng: Any = None,
    threads: int | None = None,
    executor: Executor | None = None,
    store: str | os.PathLike[str] | None = None,
    timeout: float | None = None,
    progress: bool | Progress = False,
) -> Training:
    r"""Train random networks by gradient descent, exactly in law at any width.

    Hidden matrices are never drawn if that is slower: :math:`W_t = κ W_0 + C^T M A` with a random
    :math:`W_0` that is drawn by direction (`bnmc.implicit`), and a step adds
    coefficients to M. So T steps with n samples take O(width (n T)²) operations per layer in place
    of O(width² n T), and widths of 10⁶ fit in memory.

    Parameters
    ----------
    network : Network or Chain
        The layers, without readout, and with Gaussian or orthogonal weights; also with blocks
        (`bnmc.Residual`). If layer 0 has neither norm nor activation and as many features as the
        inputs, as in `Network.of`, it is the inputs. Otherwise a Gaussian matrix with entries of
        variance 1/features leads to it. A layer with a `bias_variance` has a bias, which is trained
        from Gaussian entries of this variance.
    inputs : (features, samples) array_like
        Training inputs. Without `batches`, their number is the batch of the network.
    labels : (samples,) array_like of int, or (samples, outputs) array_like
        The class of each sample, of which the readout has one output each; or targets.
    steps : int
        Number of steps, >= 0.
    learning_rate : float
        η > 0.
    depth : int, optional
        Number of layers after layer 0, >= 0, if `network` is a chain.
    loss : {"cross-entropy", "squared"}
        The mean over samples of the cross-entropy with softmax, or of ‖f − target‖²/2.
    test : (features, tests) array_like, optional
        Test inputs; they pass the networks at each recorded step, as a batch of their own.
    batches : None, "epochs" or (steps, batch) array_like of int
        The samples of each step: all; as many as the batch of the network, without repetition until
        the rest is smaller than a batch; or these.
    optimizer : {"sgd", "muon"}
        With "muon", hidden matrices take steps of Muon (Jordan et al., 2024), and the first matrix
        and the readout those of gradient descent.
    momentum : float, default 0.0
        μ in [0, 1).
    weight_decay : float, default 0.0
        ω >= 0; see Notes.
    parametrization : {"standard", "standard/n", "ntk", "mean-field", "mup", "symmetric"} or Scaling
        Powers of the width in initial weights and learning rates; see Notes.
    reference_width : int, default 128
        The width at which all parametrizations are the same.
    readout_gain : float, default 1.0
        The entries of the readout have the standard deviation readout_gain/√width, > 0.
    start : {"random", "maximized"}
        With "maximized", the matrices between hidden layers are orthogonal, times a factor that
        makes the outputs of each for the training inputs orthogonal, as
        `bnmc.torch.orthogonalize_` does. Projections of blocks keep their law.
    chains : int, default 1
        Number of independent networks.
    observables : names, Observables or functions of G, default ("orthogonality_gap",)
        - of Gram matrices, for each of `layers`: "gram", "eigenvalues", "orthogonality_gap",
          "rank_bound", "soft_rank", or as in `simulate`;
        - "gradient_norm": the Frobenius norm of the gradient of the loss of all inputs, for each
          matrix and bias (`Training.parameters`);
        - "size" and "movement": the root mean square of h, and of its change since step 0, of each
          layer after the inputs, and of the outputs;
        - "sign_changes": the part of the entries of h of each layer that have become positive since
          step 0, and the part that has ceased to be;
        - "kernel": the tangent kernel Θ, of shape (samples · outputs, samples · outputs). It asks
          for as many directions as samples times outputs, and with a norm over the batch samples
          times as many; record it at few steps;
        - "kernel_on_targets": Θ times the targets, by as many directions as samples.
    layers : sequence of int, optional
        Layers of observables that are functions of Gram matrices; by default all layers.
    record : array_like of int, optional
        The steps at which outputs and observables are recorded, increasing; by default all of
        0, …, steps.
    matrices : {"auto", "implicit", "drawn"}
        How hidden matrices are kept. "auto" chooses what a forecast finds faster, from sizes alone;
        the law is the same.
    dtype : {"float64", "float32"}
        Precision of the vectors that are kept, and of drawn entries.
    rng : optional
        Anything `numpy.random.default_rng` takes (SPEC 7).
    threads : int, optional
        Number of threads; by default the number of processors. If there are fewer networks, threads
        share the large products of a network. Results do not depend on it.
    executor : concurrent.futures.Executor or Dask Client, optional
        Executor that trains the networks. Results do not depend on it.
    store : path, optional
        Folder for finished networks. The same call continues an interrupted training with the same
        bits.
    timeout : float, optional
        Seconds, > 0, after which the training ends; see `Interrupted` below.
    progress : bool or callable, default False
        True for a bar on standard error (extra ``cli``), or a function of (done, total) steps.
        The bar begins with a forecast of the duration, within a factor of about 3.

    Returns
    -------
    Training

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If an argument is not allowed.
    ResultTooLargeError
        If the networks or the results would not fit in memory, before any work.
    ZeroVarianceError
        If a part of a layer that a norm divides has no variance.
    PartialEstimateError
        If no step is finished within `timeout`.
    Interrupted
        On Ctrl-C; `partial` has the finished networks, or else the finished steps of the first.
    StoreError, StoreMismatchError
        If the store holds another training, or cannot be read or written.

    Notes
    -----
    Trained are W, not multiples: the gain of a layer is part of its weights, as in PyTorch. With r
    the fan-in over `reference_width` (for the matrix of the inputs its number of rows over
    `reference_width`), standard deviation and learning rate of the weights of the inputs, hidden
    layers and readout have the following powers of r, on top of gain/√fan_in:

    ============  ===========  ===========  ========================================
    name          deviations   rates        source
    ============  ===========  ===========  ========================================
    standard      0 0 0        0 0 0        PyTorch; SP of Yang & Hu (2021)
    standard/n    0 0 0        −1 −1 −1     SP with a rate that stays stable
    ntk           0 0 0        0 −1 −1      Jacot et al. (2018)
    mean-field    0 −½ −½      1 0 −1       Golikov (2020), q_σ = −1, q̃ = 1
    mup           0 0 −½       1 0 −1       Yang et al. (2022), table 3, SGD
    symmetric     0 0 0        ½ −½ −½      Golikov (2020), q_σ = −½, q̃ = ½
    ============  ===========  ===========  ========================================

    A bias has the powers of the weights of the inputs, with r the number of its rows over
    `reference_width`, and Muon does not change it: SGD does. A projection of a block has those of a
    hidden layer; its gradient has the factor `skip` of the block.

    Multipliers are folded: f = m w x with the rate η for w is W = m w with m² η. A step of gradient
    descent is v ← μ v + factor · ∇L + ω W, W ← W − η v: the factor of the rate does not multiply
    the decay. (Parameter groups of PyTorch with the rate η · factor have the decay ω/factor.) A
    step of Muon is v ← μ v + ∇L, W ← (1 − η ω) W − η · factor · p(∇L + μ v), with Nesterov's
    momentum and the polynomial p of Newton and Schulz. The tangent kernel is the sum over matrices
    Θ = Σ factor · ⟨∂f/∂W, ∂f/∂W⟩, so a small step changes the outputs by −η Θ ∂L/∂f. In "kernel"
    the output is the faster index.

    Observables that multiply by implicit matrices ("gradient_norm" at the last step, "kernel",
    "kernel_on_targets") and test inputs ask for more directions: they change the random numbers of
    later steps, and not their law.

    A norm over the batch takes the samples of a step, all training inputs where the training inputs
    are recorded, and all test inputs. Networks in float32 take directions below 1e-6 of a vector as
    rounding, so changes of the kernel have a floor of about 4e-6.

    Examples
    --------
    Two hidden matrices with 10¹⁰ weights each:

    >>> import bnmc, numpy as np
    >>> x = np.random.default_rng(0).standard_normal((10, 4))
    >>> network = bnmc.Network.of(width=[10] + 3 * [10**5], batch=4, activation="tanh", norm="none")
    >>> run = bnmc.train(
    ...     network,
    ...     x,
    ...     [0, 1, 0, 1],
    ...     steps=2,
    ...     learning_rate=0.5,
    ...     parametrization="mup",
    ...     dtype="float32",
    ...     rng=0,
    ... )
    >>> run.matrices
    ('drawn', 'implicit', 'implicit', 'drawn')
    >>> bool(run.loss[0, 2] < run.loss[0, 0])
    True
    """
    layered = as_network(network, depth, name="network")
    for chain in layered.chains:
        require_derivative(chain.activation)
    x = finite_array("inputs", inputs, shape=("features", "samples")).astype(np.float64)
    samples = x.shape[1]
    kind = choice("loss", loss, LOSSES)
    count = integer("steps", steps, low=0, high=_MOST_STEPS)
    chosen = _as_batches(batches, layered.batch, x.shape, count)
    tests = x[:, :0]
    if test is not None:
        tests = finite_array("test", test, shape=(len(x), "tests")).astype(np.float64)
    descent = Descent(
        real("learning_rate", learning_rate, above=0.0),
        real("momentum", momentum, low=0.0, below=1.0),
        real("weight_decay", weight_decay, low=0.0),
    )
    rule = choice("optimizer", optimizer, ("sgd", "muon"))
    architecture = architecture_of(
        layered, len(x), powers=powers_of(parametrization),
        reference_width=integer("reference_width", reference_width, low=1),
        readout_gain=real("readout_gain", readout_gain, above=0.0),
        is_maximized=choice("start", start, ("random", "maximized")) == "maximized",
        dtype=precision(dtype),
    )  # fmt: skip
    recorded = _as_layers(layers, 1 - architecture.first, layered.depth)
    what, times = as_training_observables(observables, recorded), _as_times(record, count)
    networks = integer("chains", chains, low=1)
    workers, pool = thread_count(threads), as_executor(executor)
    report_to = as_progress(progress)
    limit = None if timeout is None else real("timeout", timeout, above=0.0)
    how = choice("matrices", matrices, ("auto", "implicit", "drawn"))
    folder = as_folder(store)
    key = TrainingStore.stored_key(folder) if folder is not None and rng is None else None
    key = draw_key(rng) if key is None else key
    targets = targets_of(kind, labels, None, samples)
    course = with_matrices(
        Course(
            architecture.reading(targets.shape[1]), x, targets, tests, chosen, kind, rule,
            descent, count, times, what, key,
        ),
        how,
    )  # fmt: skip
    seconds = _forecast_seconds(course, networks, min(workers, networks))
    settings = {
        "loss": kind, "learning rate": descent.rate, "optimizer": course.optimizer,
        "momentum": descent.momentum, "weight decay": descent.decay,
        "parametrization": parametrization, "start": start, "dtype": architecture.dtype,
    }  # fmt: skip
    label = f"train, forecast {duration_text(seconds)}"
    stop = Stop(limit)
    watch = Watch(stop, networks)
    stored = None if folder is None else TrainingStore(folder, course, networks)
    calls = _Networks(course, networks, watch, pool, stored, max(1, workers // networks))

    def whole(parts: list[Part]) -> Training | None:
        parts = parts or [part for part in [watch.parts.get(0)] if part and part[DONE][0]]
        return _training(course, parts, networks, settings, recorded) if parts else None

    try:
        results = results_of(
            calls, pool, workers, reporting(report_to, label, "steps"), stop, whole
        )
    except Interrupted as error:
        raise Interrupted(error.partial or whole([])) from None
    run = whole(results)
    if run is None:
        raise stop.error("no step is finished")
    return run


class _Networks(Calls[Part]):
    """The networks of a training as work, whose progress is in steps.

    Parameters
    ----------
    course : Course
    chains : int
    watch : Watch
        Of threads of this process; an executor is told nothing.
    pool : Executor or None
    store : TrainingStore or None
    threads : int
        Of a network, if no executor trains it.
    """

    def __init__(
        self,
        course: Course,
        chains: int,
        watch: Watch,
        pool: Executor | None,
        store: TrainingStore | None,
        threads: int,
    ) -> None:
        told = (watch, threads) if pool is None else ()
        arguments = [(chain, *told) for chain in range(chains)]
        sizes = [course.steps + 1] * chains
        super().__init__(Shared("executor", pool, course), arguments, sizes, store)
        self._watch = watch

    def progress(self, following: Sequence[int]) -> tuple[int, int]:
        """Return the finished steps, also of networks in training, and all steps."""
        done, total = super().progress(following)
        begun = sum(
            int(self._watch.steps[part]) for part in range(self.parts) if not following[part]
        )
        return done + begun, total


def _as_batches(
    batches: Any, batch: int, shape: tuple[int, ...], steps: int
) -> str | NDArray[np.int64] | None:
    """Return the samples of the steps: all, "epochs", or (steps, batch) numbers; or raise."""
    features, samples = shape
    hint = "the batch of the network is the number of samples of a step"
    if features == batch:
        hint = "samples × features? pass x.T"
    if batches is None:
        if samples != batch:
            raise ArgumentError("inputs", shape, f"(features, {batch})", hint)
        return None
    if isinstance(batches, str):
        if samples < batch:
            raise ArgumentError("inputs", shape, f"(features, at least {batch})", hint)
        return choice("batches", batches, ("epochs",))
    numbers = integers("batches", batches, low=0, high=samples - 1).astype(np.int64)
    if numbers.shape != (steps, batch):
        raise ArgumentError("batches", numbers.shape, f"the shape {(steps, batch)}", hint)
    return numbers


def _as_layers(layers: Any, first: int, depth: int) -> tuple[int, ...]:
    """Return the layers of observables; by default those from `first` to the last."""
    if layers is None:
        return tuple(range(first, depth + 1))
    numbers = integers("layers", layers, low=0, high=depth).astype(np.int64)
    if numbers.ndim != 1 or not numbers.size or len({*numbers.tolist()}) < numbers.size:
        raise ArgumentError("layers", numbers.tolist(), "different numbers of layers")
    return tuple(numbers.tolist())


def _as_times(record: Any, steps: int) -> NDArray[np.int64]:
    """Return the recorded steps; by default all."""
    if record is None:
        return np.arange(steps + 1)
    numbers = integers("record", record, low=0, high=steps).astype(np.int64)
    if numbers.ndim != 1 or not numbers.size or (np.diff(numbers) <= 0).any():
        raise ArgumentError("record", numbers.tolist(), "increasing numbers of steps")
    return numbers


def _forecast_seconds(course: Course, chains: int, workers: int) -> float:
    """Return a forecast of the duration, or raise unless networks and results fit in memory."""
    forecast = forecast_of(course)
    hint = (
        f"a network takes {forecast.bytes_of_chain} bytes: take fewer steps, samples or threads, "
        'dtype="float32", or record= for fewer steps'
    )
    size = workers * forecast.bytes_of_chain + 2 * chains * forecast.bytes_of_results
    require_memory("steps, chains", size, hint)
    return forecast.seconds * -(-chains // workers)


def _training(
    course: Course,
    parts: list[Part],
    chains: int,
    settings: dict[str, Any],
    layers: tuple[int, ...],
) -> Training:
    """Return the result of consecutive networks, or of the finished steps of one."""
    done = int(parts[0][DONE][0])
    is_finished = done > course.steps or parts[0][DIVERGED][0] >= 0
    steps = course.steps if is_finished else done - 1
    whole = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    times = course.times[course.times <= steps]
    at = slice(0, len(times))
    tests = whole["test_outputs"][:, at]
    return Training(
        network=course.architecture.network,
        steps=times,
        loss=whole["loss"][:, at],
        outputs=whole["outputs"][:, at],
        test_outputs=tests if course.tests.shape[1] else None,
        batch_loss=whole[BATCH_LOSS][:, :steps],
        observables={each.name: whole[each.name][:, at] for each in course.observables},
        dims={each.name: each.axes for each in course.observables},
        layers=layers if any(isinstance(each, OfLayers) for each in course.observables) else (),
        diverged=whole[DIVERGED],
        targets=course.targets,
        parameters=tuple(matrix.name for matrix in course.architecture.matrices),
        matrices=tuple(
            "implicit" if matrix.is_implicit else "drawn" for matrix in course.architecture.matrices
        ),
        asked=whole[ASKED],
        settings=settings,
        key=course.key,
        cpu=with_blas(host_cpu(), blas=True),
        complete=is_finished and len(parts) == chains,
    )
