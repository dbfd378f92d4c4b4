"""Kernels of networks with batch normalization: by integrals, or estimated to a relative error.

The outputs of the samples of a batch depend on the whole batch.  So a layer maps the covariances of
all pairs of samples of two batches at once: first those of each batch with itself, which determine
the law of its rows, then those between two batches, given the laws of both.

**Normalization before the activation.**  A network without skip connections has Gaussian rows in
all layers.  `batch_integrals` computes a layer for activations that are positively homogeneous,
`batch_points` for all others.  With a skip connection, h_1 = skip N(h_0) + W σ(N(h_0)) + b is the
sum of a vector on a sphere and of a normal one.  Its covariance and tangents are those of the
layer, plus skip² times those of a linear one.  Later layers need the law of h_1, too: they are in
`row_paths`.

**Normalization after the activation.**  All rows of ``h_{l+1} = skip h_l + W N(σ(h_l)) + b`` are
Gaussian, as its terms are.  With V and T the covariances and tangents of a layer in `batch_points`,
the kernels obey

    K_{l+1} = skip² K_l + σ_w² V + σ_b²,
    Θ_{l+1} = skip² Θ_l + σ_w² V + σ_b² + σ_w² T.

N(σ(h)) has mean 0 over the batch, so in split coordinates V and T have a block of deviations only.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bnmc._support.linalg import binary_scale
from bnmc._support.machine import one_blas_thread
from bnmc._support.progress import Progress, reporting
from bnmc.chain.activations import Activation
from bnmc.chain.homogeneity import homogeneous_slopes
from bnmc.errors import NonFiniteError
from bnmc.infinite_width.batch_integrals import (
    BatchLaw,
    Homogeneous,
    batch_law,
    require_finite_tangents,
)
from bnmc.infinite_width.batch_points import (
    ActivatedPoints,
    Linear,
    Sampled,
    Stream,
    mean_slopes,
    normal_points,
)
from bnmc.infinite_width.networks import Network, Weights
from bnmc.mean_field.float64 import FloatArray, within

# Most points of a replicate, and beyond 2^16 points the most coordinates of all of them.
_MOST_POINTS, _MOST_COORDINATES = 1 << 18, 1 << 25

Key = tuple[int, int]
Report = Callable[[], None]

# One layer: covariances of its outputs, and tangents of earlier layers.
_Layer = Homogeneous | Linear | Sampled | ActivatedPoints | Stream


class BatchNetwork(Network, ABC):
    """A network with batch normalization.

    The first batches are rows of the kernel, and the others its columns; if there are no others,
    all batches are both.
    """

    @property
    @abstractmethod
    def steps(self) -> int:
        """Number of reports of the integrals, and of each call of `replicate`."""

    @property
    @abstractmethod
    def most_points(self) -> int:
        """Largest number of points of a replicate."""

    @property
    @abstractmethod
    def numbers(self) -> int:
        """Numbers that a replicate with the most points keeps in memory, about."""

    def integrals(self) -> Callable[[Report], tuple[FloatArray, float]] | None:
        """Return what computes the kernel and its relative error by integrals, or None."""
        return None

    @abstractmethod
    def replicate(self, points: int, rng: np.random.Generator, report: Report) -> FloatArray:
        """Return an estimate of the kernel from some random points."""

    @property
    def pairs(self) -> list[Key]:
        """The pairs of batches whose kernels are needed, i <= j."""
        rows, columns = self._axes
        return [(i, j) for i in rows for j in columns if i <= j]

    @property
    def own_and_pairs(self) -> set[Key]:
        """The needed pairs, and each batch with itself."""
        return {*self.pairs, *((i, i) for i in range(len(self.sizes)))}

    @property
    def _axes(self) -> tuple[range, range]:
        """The batches that are rows of the kernel, and those that are columns."""
        rows, last = len(self.batches[0]), len(self.sizes)
        return range(rows), range(rows if rows < last else 0, last)

    def argument(self, batch: int) -> str:
        """Return the name of the argument that contains a batch."""
        return "x" if batch in self._axes[0] else "other"

    def products(self, parts: list[FloatArray]) -> dict[Key, FloatArray]:
        """Return σ_w² times the mean products of features, of all pairs and own batches."""
        with np.errstate(over="ignore", invalid="ignore"):
            blocks = {
                (i, j): self.first.variance * (parts[i].T @ parts[j] / len(parts[0]))
                for i, j in self.own_and_pairs
            }
        if not all(np.isfinite(block).all() for block in blocks.values()):
            raise NonFiniteError(None, 0, "kernel")
        return blocks

    def law(self, kernel: FloatArray, depth: int, batch: int) -> BatchLaw:
        """Return the law of a row of a batch as the norm of a layer sees it, or raise."""
        name, rows = self.argument(batch), self.layers[depth].rows
        law = batch_law(rows._replace(batch=self.sizes[batch]), kernel, depth, name)
        if self.tangent:
            require_finite_tangents(law, name)
        return law

    def assembled(self, blocks: dict[Key, FloatArray]) -> FloatArray:
        """Return the blocks of all pairs as one matrix."""
        rows, columns = self._axes
        return np.block(
            [[blocks[i, j] if (i, j) in blocks else blocks[j, i].T for j in columns] for i in rows]
        )


# --- networks whose rows are Gaussian


class NormalizedBatches(BatchNetwork):
    """A network of the order "norm-activation"; only its last layer may have a skip connection.

    Its rows are Gaussian in all layers, so points of one layer suffice.  A layer that integrals
    give is integrated, also if others are estimated.
    """

    @property
    def coordinates(self) -> int:
        """Number of coordinates of a point."""
        return max(1, sum(size - 1 for size in sorted(self.sizes)[-2:]))

    def layer(self, activation: Activation, normals: FloatArray | None) -> _Layer | None:
        """Return a layer by integrals, else at given points; None if there are no points."""
        pair = homogeneous_slopes(activation)
        if pair is not None:
            return Homogeneous(*pair)
        # The control variate is for one batch.
        return None if normals is None else Sampled(activation, normals, mean_slopes(activation))

    def stream(self) -> Homogeneous | Stream:
        """Return the layer of the skip connection: linear, since it starts behind the norm."""
        return Homogeneous(1.0, 1.0)

    def of_inputs(self) -> dict[Key, FloatArray]:
        """Return the covariances of h_0, of all needed pairs and of each batch with itself.

        If there is a layer, which hides them, without the scales and means of batches and without
        the bias: beside these, differences of nearly equal samples would be lost by rounding.
        """
        if self.layers:
            return self.products([unit_deviations(part) for part in self.parts()])
        products = self.products(self.parts())
        return {key: self.with_bias(block, self.first) for key, block in products.items()}

    def with_bias(self, kernel: FloatArray, weights: Weights) -> FloatArray:
        """Return a kernel plus σ_b²."""
        return kernel + weights.bias

    def joined(self, blocks: dict[Key, FloatArray]) -> dict[Key, FloatArray]:
        """Return the kernels of samples."""
        return blocks

    @property
    def steps(self) -> int:
        """Number of reports: one for each pair and layer."""
        return self.depth * len(self.own_and_pairs)

    @property
    def most_points(self) -> int:
        """Largest number of points of a replicate."""
        return halved(_MOST_POINTS, 1 << 16, _MOST_COORDINATES, self.coordinates)

    @property
    def numbers(self) -> int:
        """Numbers of the points and of their uniform origins."""
        return 2 * self.most_points * self.coordinates

    def integrals(self) -> Callable[[Report], tuple[FloatArray, float]] | None:
        """Return what computes the kernel and its relative error by integrals, or None."""
        layers = self._layers(None)
        if layers is None:
            return None

        def compute(report: Report) -> tuple[FloatArray, float]:
            stream = self.stream()
            kernel = self._through(layers, stream, report)
            return kernel, max(layer.error for layer in (stream, *layers))

        return compute

    def replicate(self, points: int, rng: np.random.Generator, report: Report) -> FloatArray:
        """Return an estimate of the kernel from some random points."""
        layers = self._layers(normal_points(self.coordinates, points, rng))
        assert layers is not None
        return self._through(layers, self.stream(), report)

    def _layers(self, normals: FloatArray | None) -> list[_Layer] | None:
        """Return the layers, one object for each activation; None if one needs points."""
        activations = [layer.rows.activation for layer in self.layers]
        made = {activation: self.layer(activation, normals) for activation in set(activations)}
        layers = [layer for activation in activations if (layer := made[activation]) is not None]
        return layers if len(layers) == self.depth else None

    def _through(self, layers: Sequence[_Layer], stream: _Layer, report: Report) -> FloatArray:
        """Return the kernel, computed layer by layer."""
        kernels = self.of_inputs()
        tangents = {pair: kernels[pair] for pair in self.pairs}
        for depth, (layer, (_, weights, skip)) in enumerate(zip(layers, self.layers, strict=True)):
            laws = [self.law(kernels[i, i], depth, i) for i in range(len(self.sizes))]
            following: dict[Key, FloatArray] = {}
            for pair, kernel in kernels.items():
                tangent = tangents.get(pair) if self.tangent else None
                value, slope = _moments(layer, laws, pair, kernel, tangent)
                fresh, moved = weights.variance * value, weights.variance * slope
                following[pair] = fresh = self.with_bias(fresh, weights)
                if skip:
                    value, slope = _moments(stream, laws, pair, kernel, tangent)
                    with np.errstate(over="ignore"):
                        following[pair] = fresh + skip**2 * value
                        moved = moved + skip**2 * slope
                if not np.isfinite(following[pair]).all():
                    raise NonFiniteError(None, depth + 1, "kernel")
                if pair in tangents:
                    tangents[pair] = fresh + moved
                report()
            kernels = following
        return self.assembled(self.joined(tangents if self.tangent else kernels))


def _moments(
    layer: _Layer, laws: list[BatchLaw], pair: Key, kernel: FloatArray, tangent: FloatArray | None
) -> tuple[FloatArray, FloatArray]:
    """Return the covariances of the activations of a pair, and the tangents of earlier layers."""
    if pair[0] != pair[1]:
        return layer.across(laws[pair[0]], laws[pair[1]], kernel, tangent)
    value, slope = layer.own(laws[pair[0]], tangent)
    # Products of the same numbers may round differently.
    return 0.5 * (value + value.T), 0.5 * (slope + slope.T)


class ActivatedBatches(NormalizedBatches):
    """A network of the order "activation-norm", with kernels in split coordinates.

    Its rows are Gaussian with skip connections, too.
    """

    @property
    def coordinates(self) -> int:
        """Number of coordinates of a point."""
        return sum(sorted(self.sizes)[-2:]) + 1

    def layer(self, activation: Activation, normals: FloatArray | None) -> _Layer | None:
        """Return a linear layer by integrals, another one at given points; None without points."""
        pair = homogeneous_slopes(activation)
        if pair is not None and pair[0] == pair[1]:
            return Linear()
        return None if normals is None else ActivatedPoints(activation, normals)

    def stream(self) -> Stream:
        """Return the identity."""
        return Stream()

    def of_inputs(self) -> dict[Key, FloatArray]:
        """Return the covariances of deviations and mean of h_0."""
        parts = [
            np.column_stack([centred(part), 2.0 * (0.5 * part).mean(axis=1)])
            for part in self.parts()
        ]
        products = self.products(parts)
        return {key: self.with_bias(block, self.first) for key, block in products.items()}

    def with_bias(self, kernel: FloatArray, weights: Weights) -> FloatArray:
        """Return a kernel plus σ_b², which joins the means only."""
        kernel[-1, -1] += weights.bias
        return kernel

    def joined(self, blocks: dict[Key, FloatArray]) -> dict[Key, FloatArray]:
        """Return the kernels of samples from those of deviations and means."""
        sums = {
            key: block[:-1, :-1] + block[:-1, -1:] + block[-1:, :-1] + block[-1, -1]
            for key, block in blocks.items()
        }
        # Sums in another order may round differently.
        return {(i, j): 0.5 * (k + k.T) if i == j else k for (i, j), k in sums.items()}


def halved(points: int, least: int, most: int, numbers: int) -> int:
    """Return the points, halved until they have at most `most` numbers; at least about `least`."""
    while points > least and points * numbers > most:
        points //= 2
    return points


def centred(batch: FloatArray) -> FloatArray:
    """Return the samples of a batch, (features, samples), minus their mean."""
    # Half of the numbers, so that sums do not overflow.
    return batch - 2.0 * (0.5 * batch).mean(axis=1, keepdims=True)


def unit_deviations(batch: FloatArray) -> FloatArray:
    """Return centred samples over a power of 2, so that products neither overflow nor vanish."""
    deviations = centred(batch / binary_scale(batch))
    return np.asarray(deviations / binary_scale(deviations))


# --- kernels to a relative error

# Independent replicates of the points; standard errors come from their spread.
_REPLICATES = 8

# Points of a replicate in the first attempt.
_FEWEST = 1 << 11


def batch_kernel(
    network: BatchNetwork, rtol: float, key: int, progress: bool | Progress
) -> FloatArray:
    """Return the covariance or the tangent kernel of a network with batch normalization.

    Raises
    ------
    ArgumentError, ZeroVarianceError
        If a batch cannot be normalized, or its tangent kernel is infinite.
    PartialEstimateError
        If `rtol` is not reached; ``partial`` is the kernel.
    """
    integrals = network.integrals()
    if integrals is None:
        return _sampled(network, rtol, key, progress)
    with reporting(progress, network.name, "pairs of batches") as report:
        kernel, error = integrals(_counted(report, network.steps))
    return _accurate(network, kernel, error, rtol, "by quadrature")


def _sampled(network: BatchNetwork, rtol: float, key: int, progress: bool | Progress) -> FloatArray:
    """Return the mean of the kernels of all replicates, with more points until `rtol` holds."""
    most = network.most_points
    points, rng = min(_FEWEST, most), np.random.default_rng(key)
    steps = _REPLICATES * network.steps
    while True:
        generators = rng.spawn(_REPLICATES)
        # Matrices of a block of points are too small for several threads.
        with reporting(progress, network.name, "pairs of batches") as report, one_blas_thread():
            done = _counted(report, steps)
            kernels = [network.replicate(points, each, done) for each in generators]
        mean = np.mean(kernels, axis=0)
        spread = np.std(kernels, axis=0, ddof=1) / np.sqrt(_REPLICATES)
        norm = float(np.linalg.norm(mean))
        error = float(np.linalg.norm(spread)) / norm if norm > 0.0 else 0.0
        if error <= rtol or points == most:
            what = f"with {_REPLICATES} replicates of {points} points"
            return _accurate(network, mean, error, rtol, what)
        # The error falls at best as 1/points: so far from `rtol`, twice the points are too few.
        points = min(most, points * (4 if error > 4.0 * rtol else 2))


def _accurate(
    network: BatchNetwork, kernel: FloatArray, error: float, rtol: float, what: str
) -> FloatArray:
    """Return the kernel; raise if it is not finite, or its error exceeds the tolerance."""
    if not np.isfinite(kernel).all():
        raise NonFiniteError(None, network.depth, "kernel")
    return within(kernel, error, rtol, "kernel", f" ({what})")


def _counted(report: Any, steps: int) -> Report:
    """Report that no step is done, and return a function that reports one more in each call."""
    done = itertools.count(1)
    report(0, steps)
    return lambda: report(next(done), steps)
