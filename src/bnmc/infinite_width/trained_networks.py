"""`train_networks`: networks of finite width, trained by gradient descent under a scaling.

They approximate the limits of infinite width of a `Scaling`, and they are the reference with which
`logit_divergence` compares a limit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit

from bnmc._support.arguments import choice, finite_array, generator, integer, integers, real
from bnmc._support.machine import one_blas_thread, require_memory
from bnmc._support.progress import Progress
from bnmc._support.text import Result
from bnmc._support.workers import Calls, Parallel, Shared
from bnmc.chain.activations import Activation, as_activation, require_derivative, slope_at
from bnmc.errors import ArgumentError, NonFiniteError
from bnmc.infinite_width.scalings import SCALINGS, Scaling
from bnmc.mean_field.float64 import FloatArray
from bnmc.plot.drawn import Drawn, draw_outputs

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Derivative of the loss of one sample in the output f, for the label y.
_GRADIENTS: dict[str, Callable[[FloatArray, FloatArray], FloatArray]] = {
    "cross-entropy": lambda f, y: np.asarray(expit(f)) - y,
    "squared": lambda f, y: f - y,
}

#: Rows of the weights of networks that are trained together: their arrays stay in the cache.
_ROWS = 1024

_Record = tuple[FloatArray, FloatArray, FloatArray, FloatArray]


@dataclass(frozen=True)
class NetworkTraining(Drawn, Result):
    """Networks through training; `train_networks` returns it.

    `plot` draws the outputs for the training inputs against the step: medians over networks, in
    bands that contain 90 % of the networks.

    Attributes
    ----------
    steps : (times,) ndarray of int
        Numbers of steps at which the networks are recorded.
    outputs : (chains, times, samples) ndarray of float64
        Outputs for the training inputs.
    test_outputs : (chains, times, tests) ndarray of float64, or None
        Outputs for the test inputs.
    kernels : (chains, times, hidden_layers + 1) ndarray of float64
        Means over the training inputs of the diagonals of the tangent kernels of the weights of
        each layer, times its learning rate. The first is that of the output weights, the last that
        of the input weights.
    weight_squares : (chains, times, hidden_layers + 1) ndarray of float64
        Mean squares of the weights of each layer, in the same order.
    weight_changes : (chains, times, hidden_layers + 1) ndarray of float64
        Mean squares of their differences from the initial weights.

    Examples
    --------
    >>> import numpy as np
    >>> from bnmc.infinite_width import train_networks
    >>> x = np.random.default_rng(0).standard_normal((3, 8))
    >>> run = train_networks("ntk", x, x[0] > 0, [0, 10], width=64, chains=4, rng=0)
    >>> run.outputs.shape, run.kernels.shape
    ((4, 2, 8), (4, 2, 2))
    """

    steps: np.ndarray[Any, np.dtype[np.int64]]
    outputs: FloatArray
    test_outputs: FloatArray | None
    kernels: FloatArray
    weight_squares: FloatArray
    weight_changes: FloatArray

    def _draw(self, ax: Axes) -> None:
        low, middle, high = np.quantile(self.outputs, [0.05, 0.5, 0.95], axis=0)
        draw_outputs(ax, self.steps, middle, low, high)
        ax.set(xlabel="step", ylabel="output: median, 90 % of the networks")


def train_networks(
    scaling: str | Scaling,
    x: ArrayLike,
    y: ArrayLike,
    steps: ArrayLike,
    *,
    width: int,
    hidden_layers: int = 1,
    chains: int = 10,
    reference_width: int = 128,
    activation: str | Activation | Callable[[Any], Any] = "leaky_relu",
    learning_rate: float = 0.02,
    loss: str = "cross-entropy",
    test: ArrayLike | None = None,
    rng: Any = None,
    threads: int | None = None,
    executor: Executor | None = None,
    timeout: float | None = None,
    progress: bool | Progress = False,
) -> NetworkTraining:
    """Train networks whose weights and learning rates follow a scaling.

    Parameters
    ----------
    scaling : str or Scaling
        "ntk", "mean-field", "default", "sym-default", "ic-mf", or a `Scaling`.
    x : (features, samples) array_like
        Training inputs. Input weights have variance 1, so columns should have length about 1.
    y : (samples,) or (chains, samples) array_like
        Labels of all networks, or of each: real numbers or booleans; for cross-entropy
        probabilities of class 1, in [0, 1].
    steps : (times,) array_like of int
        Numbers of steps, increasing, >= 0, at which the networks are recorded.
    width : int
        d >= 1, of each hidden layer.
    hidden_layers : int, default 1
        H >= 1.
    chains : int, default 10
        Number of networks.
    reference_width : int, default 128
        d*, the width at which all scalings are one network: weights of variance 1/d* after the
        first hidden layer, and the learning rate `learning_rate` for all weights.
    activation : str, Activation or callable, default "leaky_relu"
        With a known derivative.
    learning_rate : float, default 0.02
        > 0.
    loss : {"cross-entropy", "squared"}
        The mean over samples of the logistic loss, or of (f − y)²/2.
    test : (features, tests) array_like, optional
        Test inputs.
    rng : optional
        Anything `numpy.random.default_rng` takes (SPEC 7), or a list of generators, one for each
        network.
    threads : int, optional
        Number of threads, >= 1. Default: all processors, or fewer if memory is short. Results do
        not depend on it.
    executor : concurrent.futures.Executor or Dask Client, optional
        Executor that trains groups of networks in place of threads.
    timeout : float, optional
        Seconds, > 0, after which the result has the first networks, up to the first that is not
        trained.
    progress : bool or callable, default False
        True for a bar on standard error (extra ``cli``), or a function of (done, total) networks.

    Returns
    -------
    NetworkTraining

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If an argument is not allowed.
    NonFiniteError
        If the training diverges beyond the range of float64.
    PartialEstimateError
        If no network is finished within `timeout`.
    ResultTooLargeError
        If a network does not fit in memory.

    Notes
    -----
    The network is ``f = aᵀ φ(h_H)`` with ``h_1 = W_0 x`` and ``h_{k+1} = W_k φ(h_k)``. One step is
    ``W −= η_W mean(∂ℓ ∂f/∂W)`` for the weights W of each layer. `Scaling.factors` has the factors
    of the output weights, of their learning rate and of that of the input weights; the weights
    between hidden layers have the factor of the output weights and the learning rate
    `Scaling.hidden_rate`. With a corrected scaling (IC-MF) the outputs are ``f − f_0 + g_0``: f
    minus its start, plus the start g_0 of a network with ``q_sigma = −1/2`` and the same normals.
    The lectures add this start without subtracting f_0, which tends to 0 as the width grows.

    Examples
    --------
    >>> import numpy as np
    >>> from bnmc.infinite_width import train_networks
    >>> x = np.random.default_rng(0).standard_normal((3, 40)) / np.sqrt(3)
    >>> run = train_networks("mean-field", x, x[0] > 0, [0, 300], width=256, rng=0)
    >>> right = (run.outputs > 0) == (x[0] > 0)
    >>> bool(right[:, 1].mean() > right[:, 0].mean() + 0.2)
    True
    """
    chosen = scaling
    if not isinstance(chosen, Scaling):
        chosen = SCALINGS[choice("scaling", chosen, SCALINGS)]
    inputs = finite_array("x", x, shape=("features", "samples")).astype(np.float64)
    given = np.asarray(y)
    if given.dtype == np.bool_:
        given = given.astype(np.float64)
    count = integer("chains", chains, low=1)
    shape = (count, inputs.shape[1]) if given.ndim == 2 else (inputs.shape[1],)
    labels = finite_array("y", given, shape=shape).astype(np.float64)
    kind = choice("loss", loss, _GRADIENTS)
    if kind == "cross-entropy" and ((labels < 0.0) | (labels > 1.0)).any():
        raise ArgumentError("y", float(np.abs(labels).max()), "probabilities, in [0, 1]")
    when = integers("steps", steps, low=0).astype(np.int64)
    if when.ndim != 1 or when.size == 0 or (np.diff(when) <= 0).any():
        raise ArgumentError("steps", when.tolist(), "increasing numbers of steps")
    d = integer("width", width, low=1)
    reference = integer("reference_width", reference_width, low=1)
    sigma = as_activation(activation)
    require_derivative(sigma)
    rate = real("learning_rate", learning_rate, above=0.0)
    layers = integer("hidden_layers", hidden_layers, low=1)
    tests = inputs[:, :0]
    if test is not None:
        tests = finite_array("test", test, shape=(len(inputs), "tests")).astype(np.float64)
    parallel = Parallel.of(threads, executor, progress, timeout)
    generators = _generators(rng, count)
    columns, together = inputs.shape[1] + tests.shape[1], max(1, min(count, _ROWS // d))
    # The outputs at each step are joined by network, then for all networks.
    outputs = 3 * count * when.size * columns
    numbers = together * d * (4 * len(inputs) + 6 * layers * columns + 4 * (layers - 1) * d)
    require_memory("width", 8 * (numbers + outputs))
    plan = _Plan(chosen, inputs, tests, when, layers, d, reference, sigma, rate, kind)
    each = np.broadcast_to(labels, (count, inputs.shape[1]))
    groups = [slice(first, first + together) for first in range(0, count, together)]
    calls: Calls[list[_Record]] = Calls(
        Shared("executor", parallel.executor, partial(_trained, plan)),
        [(each[at], generators[at]) for at in groups],
        [len(each[at]) for at in groups],
    )
    with one_blas_thread():
        records = parallel.fitting(8 * numbers, 8 * outputs).results(
            calls, "train_networks", "networks"
        )
    outputs, kernels, squares, changes = (
        np.concatenate([np.stack([record[part] for record in group], axis=1) for group in records])
        for part in range(4)
    )
    if not np.isfinite(outputs).all():
        raise NonFiniteError(None, None, "outputs of the training, which diverges,")
    samples = inputs.shape[1]
    test_outputs = None if test is None else outputs[..., samples:]
    return NetworkTraining(when, outputs[..., :samples], test_outputs, kernels, squares, changes)


def _trained(
    plan: _Plan, labels: FloatArray, generators: Sequence[np.random.Generator]
) -> list[_Record]:
    """Return the records of a group of networks."""
    with one_blas_thread(), np.errstate(over="ignore", invalid="ignore"):  # raises at the end
        return list(plan.trained(labels, generators))


def _generators(rng: Any, count: int) -> list[np.random.Generator]:
    """Return the generator of each network."""
    if isinstance(rng, Sequence) and any(isinstance(seed, np.random.Generator) for seed in rng):
        if len(rng) != count or not all(isinstance(seed, np.random.Generator) for seed in rng):
            raise ArgumentError("rng", f"{len(rng)} objects", f"{count} generators, or one seed")
        return list(rng)
    return generator(rng).spawn(count)


class _Plan(NamedTuple):
    """What all networks share; the arguments of `train_networks`, checked."""

    scaling: Scaling
    inputs: FloatArray
    tests: FloatArray
    steps: np.ndarray[Any, np.dtype[np.int64]]
    layers: int
    width: int
    reference: int
    sigma: Activation
    rate: float
    loss: str

    def trained(
        self, labels: FloatArray, generators: Sequence[np.random.Generator]
    ) -> Iterator[_Record]:
        """Yield outputs, kernels and mean squares of weights and of their changes at each step.

        `labels` are (chains, samples), and so all arrays have the networks in front.  Networks
        that are trained together have the bits of networks that are trained one by one, since
        `matmul` multiplies the matrices of a stack one by one.
        """
        factor, output_rate, input_rate = self.scaling.factors(self.width, self.reference)
        hidden = [self.scaling.hidden_rate(self.width, self.reference)] * (self.layers - 1)
        rates = [self.rate * factor for factor in (input_rate, *hidden, output_rate)]
        normals = self._normals(generators)
        root = math.sqrt(self.width)
        weights = [normals[0], *(layer * (factor / root) for layer in normals[1:])]
        first = [layer.copy() for layer in weights]
        both, samples = np.hstack([self.inputs, self.tests]), self.inputs.shape[1]
        shift = np.zeros((len(generators), both.shape[1]))
        if self.scaling.corrected:
            unscaled = [normals[0], *(layer / root for layer in normals[1:])]
            shift = self._outputs(unscaled, both) - self._outputs(weights, both)
        for step in range(int(self.steps[-1]) + 1):
            active, outputs, deltas = self._passes(weights)
            if step in self.steps:
                kernels = [
                    eta * (_lengths(x) * _lengths(delta)).mean(axis=-1)
                    for eta, x, delta in zip(rates, active, deltas, strict=True)
                ]
                squares = [_mean_squares(layer) for layer in weights]
                pairs = zip(weights, first, strict=True)
                changes = [_mean_squares(new - old) for new, old in pairs]
                f = self._outputs(weights, both) + shift
                yield f, _last_first(kernels), _last_first(squares), _last_first(changes)
            if step == self.steps[-1]:
                return
            pull = _GRADIENTS[self.loss](outputs + shift[:, :samples], labels) / samples
            for matrix, eta, x, delta in zip(weights, rates, active, deltas, strict=True):
                matrix -= (delta * (eta * pull)[:, None]) @ x.swapaxes(-1, -2)

    def _normals(self, generators: Sequence[np.random.Generator]) -> list[FloatArray]:
        """Return the standard normal weights of each layer, (chains, outputs, inputs)."""
        d = self.width
        shapes = [(d, len(self.inputs)), *[(d, d)] * (self.layers - 1), (1, d)]
        each = [[rng.standard_normal(shape) for shape in shapes] for rng in generators]
        return [np.stack(layer) for layer in zip(*each, strict=True)]

    def _outputs(self, weights: list[FloatArray], inputs: FloatArray) -> FloatArray:
        """Return the outputs of the networks, (chains, samples)."""
        x = inputs
        for matrix in weights[:-1]:
            x = self.sigma(matrix @ x)
        outputs: FloatArray = (weights[-1] @ x)[:, 0]
        return outputs

    def _passes(
        self, weights: list[FloatArray]
    ) -> tuple[list[FloatArray], FloatArray, list[FloatArray]]:
        """Return each layer's input x, the outputs, and each layer's derivative of the outputs.

        The derivative in the weights of a layer is the outer product of the derivative δ in what
        the layer returns and of its input x, sample by sample.  For the output weights δ is 1.
        """
        active, slopes = [self.inputs], []
        for matrix in weights[:-1]:
            h = matrix @ active[-1]
            slopes.append(slope_at(self.sigma, h))
            active.append(self.sigma(h))
        outputs = weights[-1] @ active[-1]
        deltas = [np.ones((len(outputs), 1, 1))]
        for matrix, slope in zip(weights[:0:-1], slopes[::-1], strict=True):
            slope *= matrix.swapaxes(-1, -2) @ deltas[-1]
            deltas.append(slope)
        return active, outputs[:, 0], deltas[::-1]


def _last_first(layers: list[FloatArray]) -> FloatArray:
    """Return numbers of each layer, that of the output first, (chains, layers)."""
    return np.stack(layers[::-1], axis=-1)


def _lengths(columns: FloatArray) -> FloatArray:
    """Return the squares of the lengths of columns, (..., samples)."""
    return np.asarray(np.square(columns).sum(axis=-2))


def _mean_squares(weights: FloatArray) -> FloatArray:
    """Return the mean square of the weights of each network."""
    return np.asarray(np.square(weights).reshape(len(weights), -1).mean(axis=1))
