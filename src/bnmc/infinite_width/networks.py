"""A network and its inputs, and kernels at finite width with real weights, in NumPy.

The parameters are standard normal, and the network multiplies those of a layer by σ_w/√inputs
(weights) and σ_b (biases).  `bnmc.gradients.tangent_kernel` simulates wider networks without making
their weights, but knows no biases and no gradients of the weights of the first layer.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from bnmc._support.machine import one_blas_thread, require_memory
from bnmc._support.text import Result
from bnmc._support.workers import Calls, Parallel, Shared
from bnmc.chain.layers import Path, RowMap, Rows
from bnmc.errors import ArgumentError, NonFiniteError, PartialEstimateError
from bnmc.mean_field.float64 import FloatArray
from bnmc.plot.drawn import Kernels


@dataclass(frozen=True, eq=False, repr=False)
class SimulatedKernel(Kernels, Result):
    """Kernels of networks of finite width; ``numpy.asarray`` of it is `mean()`.

    `plot` draws the median over networks of each entry as an image.

    Attributes
    ----------
    kernels : (chains, samples, samples) or (chains, samples, others) ndarray of float64
        The kernel of each network.
    width : int
    key : int
        The 64-bit key of all random numbers: as `rng` it repeats the call.
    dimensions : int or None
        Under norm "batch", the least number of dimensions of the differences of a batch.

    Examples
    --------
    >>> import numpy as np
    >>> from bnmc.infinite_width import ntk
    >>> x = np.array([[1.0, 0.0], [1.0, 2.0]])
    >>> found = ntk(x, 1, weight_variance=2.0, method="monte-carlo", chains=200, rng=0)
    >>> limit = ntk(x, 1, weight_variance=2.0)
    >>> bool((abs(found.mean() - limit) < 5 * found.stderr()).all())
    True
    """

    kernels: FloatArray
    width: int
    key: int = field(repr=False)
    dimensions: int | None = None

    @property
    def chains(self) -> int:
        """Number of networks."""
        return len(self.kernels)

    def mean(self) -> FloatArray:
        """Return the mean over networks. It differs from the limit by O(1/width).

        Raises
        ------
        PartialEstimateError
            If the expectation is infinite: under norm "batch", if differences of samples have two
            dimensions, as in a batch of 3. ``partial`` is the median of each entry.

        Notes
        -----
        For relu under norm "batch" and depth >= 2 the expectation is infinite at every finite
        width, by an event of exponentially small probability; see
        `bnmc.gradients.TangentKernel.mean`. The limit of infinite width is finite.
        """
        if self.dimensions == 2:
            raise _infinite("expectation", np.median(self.kernels, axis=0))
        return np.asarray(self.kernels.mean(axis=0))

    def stderr(self) -> FloatArray:
        """Return the standard errors of `mean`.

        Raises
        ------
        PartialEstimateError
            As `mean`; if the variance is infinite (under norm "batch", differences of samples with
            3 or 4 dimensions); or if there is one network. ``partial`` is the mean.
        """
        mean = self.mean()
        if self.dimensions in (3, 4):
            raise _infinite("variance", mean)
        if self.chains < 2:
            raise PartialEstimateError("standard errors need at least 2 networks", mean)
        return np.asarray(self.kernels.std(axis=0, ddof=1) / np.sqrt(self.chains))

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        return np.array(self.mean(), dtype=dtype, copy=copy)

    def __repr__(self) -> str:
        return f"<SimulatedKernel of {self.chains} networks of width {self.width}>"


def _infinite(moment: str, partial: FloatArray) -> PartialEstimateError:
    message = f"the {moment} of the kernel is infinite, since that of 1/variance of rows is"
    return PartialEstimateError(message, partial)


class Weights(NamedTuple):
    """Weights and biases: `variance`, times the number of inputs of a weight, and `bias`.

    `trained` replaces these two in what weights and biases add to the tangent kernel.
    """

    variance: float = 1.0
    bias: float = 0.0
    trained: tuple[float, float] | None = None

    @property
    def in_tangents(self) -> Weights:
        """The weights whose covariance is what these add to the tangent kernel."""
        return self if self.trained is None else Weights(*self.trained)

    def weighed(self, products: FloatArray) -> FloatArray:
        """Return σ_w² times a matrix, plus σ_b²."""
        return self.variance * products + self.bias


class HiddenLayer(NamedTuple):
    """A hidden layer, and its way to the next one.

    Parameters
    ----------
    rows : RowMap
        Its activation, norm and order matter.
    weights : Weights
        They multiply the outputs of the layer.
    skip : float
        Factor of the skip connection to the next layer.
    path : Path, optional
        The skip path that ends at the next layer, in place of a skip connection.
    projection : Weights, optional
        Those of the projection of the skip path.
    """

    rows: RowMap
    weights: Weights
    skip: float = 0.0
    path: Path | None = None
    projection: Weights | None = None


@dataclass(frozen=True)
class Network:
    """A random network of any width and its inputs: the arguments of a kernel, checked.

    Attributes
    ----------
    sets : list of ndarray of shape (features, samples)
        The inputs of the rows of the kernel, then those of the columns if they are others.
    batches : list of tuple of int
        Number of samples of each batch of each set, for norm "batch".
    first : Weights
        Those of the inputs.
    layers : tuple of HiddenLayer
    tangent : bool
        Whether the kernel is the tangent kernel, or the covariance of the outputs.
    """

    sets: list[FloatArray]
    batches: list[tuple[int, ...]]
    first: Weights
    layers: tuple[HiddenLayer, ...]
    tangent: bool

    @property
    def depth(self) -> int:
        """Number of hidden layers."""
        return len(self.layers)

    @property
    def name(self) -> str:
        """Name of the function that computes the kernel."""
        return "ntk" if self.tangent else "nngp"

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of samples of each batch."""
        return sum(self.batches, ())

    @property
    def inputs(self) -> FloatArray:
        """All inputs, one batch after the other."""
        return np.concatenate(self.sets, axis=1)

    def parts(self) -> list[FloatArray]:
        """Return the inputs of each batch."""
        return np.split(self.inputs, np.cumsum(self.sizes)[:-1], axis=1)

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of rows and columns of the kernel."""
        return self.sets[0].shape[1], self.sets[-1].shape[1]


@dataclass(frozen=True)
class FiniteNetwork(Network):
    """A network of finite width."""

    width: int

    @property
    def is_batched(self) -> bool:
        """Whether the output of a sample depends on its batch."""
        return any(layer.rows.norm.axis == "batch" for layer in self.layers)

    def kernel(self, rng: np.random.Generator) -> FloatArray:
        """Return the kernel of one network with weights from a generator."""
        inputs = self.inputs
        made: list[_Made] = []
        gram = self.first.weighed(inputs.T @ inputs / len(inputs))
        if not self.layers:
            return gram
        h = _product(rng, self.first, inputs, self.width)[1]
        for number, layer in enumerate(self.layers, 1):
            parts = [_rows(layer.rows, h[:, at]) for at in self._groups()]
            stream = np.concatenate([part.x for part in parts], axis=1)
            outputs = np.concatenate([part.outputs() for part in parts], axis=1)
            width = 1 if number == self.depth else self.width
            weights, product = _product(rng, layer.weights, outputs, width)
            made.append(_Made(parts, gram, weights))
            gram = layer.weights.weighed(outputs.T @ outputs / self.width)
            h = layer.skip * stream + product
        if self.tangent:
            return gram + self._of_earlier_layers(made)
        return gram + layer.skip**2 / self.width * stream.T @ stream

    def _groups(self) -> list[slice]:
        """Return the columns that one layer takes together: those of a batch, or all."""
        ends = np.cumsum((0, *self.sizes) if self.is_batched else (0, sum(self.sizes)))
        return [slice(*pair) for pair in pairwise(ends.tolist())]

    def _of_earlier_layers(self, made: list[_Made]) -> FloatArray:
        """Return the part of the tangent kernel of all weights but those of the output."""
        samples, groups = sum(self.sizes), self._groups()
        total = np.zeros((samples, samples))
        # The gradient with respect to the output, (1, functions, columns): the functions are the
        # outputs of a batch, or the sum of all outputs, which depend on their own samples only.
        deltas = [
            np.eye(at.stop - at.start)[None] if self.is_batched else np.ones((1, 1, samples))
            for at in groups
        ]
        for number in reversed(range(len(made))):
            (parts, grams, weights), is_last = made[number], number == len(made) - 1
            for place, part in enumerate(parts):
                # The gradient with respect to h, from that with respect to the next h.
                through: FloatArray = np.tensordot(weights, deltas[place], axes=(0, 0))
                stream = self.layers[number].skip * deltas[place]
                if is_last:  # the output is coordinate 0 of its layer
                    stream = np.concatenate([stream, np.zeros_like(through[1:])])
                deltas[place] = part.down(through, stream)
            for b, first in enumerate(groups):
                for c, second in enumerate(groups):
                    gram = grams[first, second]
                    if self.is_batched:
                        moved = np.tensordot(deltas[b] @ gram, deltas[c], axes=((0, 2), (0, 2)))
                    else:
                        moved = gram * (deltas[b][:, 0].T @ deltas[c][:, 0])
                    total[first, second] += moved
        return total


def _rows(row_map: RowMap, h: FloatArray) -> Rows:
    """Return the rows of a layer at some columns, or raise."""
    layer = row_map._replace(batch=h.shape[1])
    normed = layer.normalise(layer.argument(h))
    if normed.spread is not None and not (normed.spread > 0.0).all():
        allowed = f'samples that norm="{layer.norm.name}" can divide by their deviation'
        raise ArgumentError("x", "a row or a sample without variance", allowed)
    return layer.rows(h, normed)


def _product(
    rng: np.random.Generator, law: Weights, a: FloatArray, outputs: int
) -> tuple[FloatArray, FloatArray]:
    """Return new weights, and their product with activations plus new biases."""
    scale = np.sqrt(law.variance / len(a))
    weights = scale * rng.standard_normal((outputs, len(a)))
    biases = np.sqrt(law.bias) * rng.standard_normal((outputs, 1))
    return weights, weights @ a + biases


class _Made(NamedTuple):
    """One layer of one network.

    Attributes
    ----------
    parts : list of Rows
        Of the columns of each batch, or of all columns.
    gram : ndarray
        The products of gradients with respect to the parameters before h, for unit gradients of h.
    weights : ndarray
        The next weights.
    """

    parts: list[Rows]
    gram: FloatArray
    weights: FloatArray


def simulated_kernel(
    network: FiniteNetwork, chains: int, key: int, parallel: Parallel
) -> SimulatedKernel:
    """Return the kernels of some networks.

    Raises
    ------
    ArgumentError
        If a sample or a row cannot be normalized.
    NonFiniteError
        If a kernel overflows.
    ResultTooLargeError
        If the kernels or the weights would not fit in memory.
    PartialEstimateError
        If the time limit ends before the first network is finished.
    """
    samples, (rows, columns) = sum(network.sizes), network.shape
    # The matrices between hidden layers, and the normals that one of them is made from.
    weights = network.width**2 * (network.depth if network.depth > 1 else 0)
    hidden = network.width * samples * (4 * network.depth + 2)
    if network.is_batched:
        hidden += 6 * network.width * sum(size**2 for size in network.sizes)
    of_network = 8 * (weights + hidden + 4 * samples**2)
    hint = "take fewer networks, or narrower ones"
    results = 8 * chains * rows * columns
    require_memory("width, chains", results + of_network, hint)
    function = partial(_kernel_of, network, key, rows, columns)
    calls = _Kernels(
        Shared("executor", parallel.executor, function), np.empty((chains, rows, columns))
    )
    # The bits of products of narrow matrices depend on the number of their threads.
    with one_blas_thread():
        done = parallel.fitting(of_network, results).results(calls, network.name, "networks")
    kernels = calls.kernels[: len(done)]
    return SimulatedKernel(kernels, network.width, key, _dimensions(network))


class _Kernels(Calls[Any]):
    """The kernels of some networks, which are written to an array as they come."""

    def __init__(self, function: Shared, kernels: FloatArray) -> None:
        super().__init__(function, [(number,) for number in range(len(kernels))])
        self.kernels = kernels

    def take(self, part: int, block: int, result: Any) -> bool:
        """Write a kernel."""
        self.kernels[part] = result
        return super().take(part, block, True)


def _kernel_of(
    network: FiniteNetwork, key: int, rows: int, columns: int, number: int
) -> FloatArray:
    """Return the kernel of a network, (rows, columns)."""
    generator = np.random.Generator(np.random.Philox(key=key, counter=[0, 0, 0, number]))
    with one_blas_thread(), np.errstate(over="ignore", invalid="ignore"):
        kernel = network.kernel(generator)
    if not np.isfinite(kernel).all():
        raise NonFiniteError(number, network.depth, "kernel")
    return kernel[:rows, sum(network.sizes) - columns :]


def _dimensions(network: FiniteNetwork) -> int | None:
    """Return the least number of dimensions of the differences of a batch, if it matters."""
    if not network.is_batched or not network.tangent:
        return None
    parts = (part - part.mean(axis=1, keepdims=True) for part in network.parts())
    return min(*(int(np.linalg.matrix_rank(part)) for part in parts), network.width)
