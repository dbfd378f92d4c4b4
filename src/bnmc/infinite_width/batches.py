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

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from bnmc._support.machine import one_blas_thread
from bnmc._support.progress import Progress, reporting
from bnmc.chain.activations import Activation, require_derivative
from bnmc.chain.chain import Chain
from bnmc.errors import NonFiniteError, PartialEstimateError
from bnmc.infinite_width.batch_integrals import (
    BatchLaw,
    Homogeneous,
    batch_law,
    require_finite_tangents,
)
from bnmc.infinite_width.batch_points import (
    ActivatedLaw,
    ActivatedPoints,
    Control,
    Linear,
    Sampled,
    normal_points,
)
from bnmc.mean_field.float64 import FloatArray
from bnmc.mean_field.map.homogeneous import slopes

# Most points of a replicate, and beyond 2^16 points the most coordinates of all of them.
_MOST_POINTS, _MOST_COORDINATES = 1 << 18, 1 << 25

Key = tuple[int, int]
Report = Callable[[], None]


@dataclass(frozen=True)
class BatchNetwork(ABC):
    """A network with batch normalization, and its inputs.

    Attributes
    ----------
    inputs : ndarray of shape (features, samples)
        The batches one after the other.
    sizes : tuple of int
        Number of samples of each batch.
    rows : int
        Number of batches that are rows of the kernel.  The others are its columns; if there are no
        others, all batches are both.
    depth : int
    activation : Activation
    weight_variance, bias_variance, skip : float
    tangent : bool
        Whether the tangent kernel is needed.
    """

    inputs: FloatArray
    sizes: tuple[int, ...]
    rows: int
    depth: int
    activation: Activation
    weight_variance: float
    bias_variance: float
    skip: float
    tangent: bool

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
    def one_set(self) -> bool:
        """Whether the kernel is that of one set with itself."""
        return self.rows == len(self.sizes)

    @property
    def pairs(self) -> list[Key]:
        """The pairs of batches whose kernels are needed, i <= j."""
        last = len(self.sizes)
        if self.one_set:
            return [(i, j) for i in range(last) for j in range(i, last)]
        return [(i, j) for i in range(self.rows) for j in range(self.rows, last)]

    @property
    def own_and_pairs(self) -> set[Key]:
        """The needed pairs, and each batch with itself."""
        return {*self.pairs, *((i, i) for i in range(len(self.sizes)))}

    def parts(self) -> list[FloatArray]:
        """Return the inputs of each batch."""
        return np.split(self.inputs, np.cumsum(self.sizes)[:-1], axis=1)

    def weighed(self, products: FloatArray) -> FloatArray:
        """Return σ_w² times a matrix, plus σ_b²."""
        return np.asarray(self.weight_variance * products + self.bias_variance)

    def products(self, parts: list[FloatArray]) -> dict[Key, FloatArray]:
        """Return σ_w² times the mean products of features, of all pairs and own batches."""
        with np.errstate(over="ignore", invalid="ignore"):
            found = {
                (i, j): self.weight_variance * (parts[i].T @ parts[j] / len(self.inputs))
                for i, j in self.own_and_pairs
            }
        if not all(np.isfinite(one).all() for one in found.values()):
            raise NonFiniteError(None, 0, "kernel")
        return found

    def law(self, kernel: FloatArray, depth: int, batch: int) -> BatchLaw:
        """Return the law of a row of a batch as its normalization sees it, or raise."""
        name = "x" if batch < self.rows else "other"
        # The width does not matter.
        law = batch_law(Chain(1, len(kernel), self.activation), kernel, depth, name)
        if self.tangent:
            require_finite_tangents(law, name)
        return law

    def assembled(self, blocks: dict[Key, FloatArray]) -> FloatArray:
        """Return the blocks of all pairs as one matrix."""
        last = len(self.sizes)
        columns = range(last) if self.one_set else range(self.rows, last)
        return np.block(
            [
                [blocks[i, j] if (i, j) in blocks else blocks[j, i].T for j in columns]
                for i in range(self.rows)
            ]
        )


class _LayerwiseNetwork(BatchNetwork):
    """A network whose rows are Gaussian in all layers, so that points of one layer suffice."""

    @property
    @abstractmethod
    def coordinates(self) -> int:
        """Number of coordinates of a point."""

    @property
    def steps(self) -> int:
        """Number of reports: one for each pair and layer."""
        return self.depth * len(self.own_and_pairs)

    @property
    def most_points(self) -> int:
        """Largest number of points of a replicate."""
        points = _MOST_POINTS
        while points > 1 << 16 and points * self.coordinates > _MOST_COORDINATES:
            points //= 2
        return points

    @property
    def numbers(self) -> int:
        """Numbers of the points and of their uniform origins."""
        return 2 * self.most_points * self.coordinates


def centred(batch: FloatArray) -> FloatArray:
    """Return the samples of a batch, (features, samples), minus their mean."""
    # Half of the numbers, so that sums do not overflow.
    return np.asarray(batch - 2.0 * (0.5 * batch).mean(axis=1, keepdims=True))


# --- normalization before the activation


class _Layer(Protocol):
    """One layer, as `Homogeneous` and `Sampled` compute it."""

    def own(self, law: BatchLaw, tangent: FloatArray | None) -> tuple[FloatArray, FloatArray]: ...

    def across(
        self, left: BatchLaw, right: BatchLaw, across: FloatArray, tangent: FloatArray | None
    ) -> tuple[FloatArray, FloatArray]: ...


class NormalizedBatches(_LayerwiseNetwork):
    """A network of the order "norm-activation", with at most one layer if `skip` is not 0."""

    @property
    def coordinates(self) -> int:
        """Number of coordinates of a point."""
        return max(1, sum(size - 1 for size in sorted(self.sizes)[-2:]))

    def integrals(self) -> Callable[[Report], tuple[FloatArray, float]] | None:
        """Return what computes the kernel of a homogeneous activation, and its relative error."""
        found = slopes(self.activation)
        if found is None:
            return None
        layer, stream = Homogeneous(*found), Homogeneous(1.0, 1.0)

        def compute(report: Report) -> tuple[FloatArray, float]:
            kernel = self._through(layer, stream, report)
            return kernel, max(layer.error, stream.error)

        return compute

    def replicate(self, points: int, rng: np.random.Generator, report: Report) -> FloatArray:
        """Return an estimate of the kernel from some random points."""
        normals = normal_points(self.coordinates, points, rng)
        layer = Sampled(self.activation, normals, Control.of(self.activation))
        return self._through(layer, Homogeneous(1.0, 1.0), report)

    def first(self) -> dict[Key, FloatArray]:
        """Return the covariances of h_0, of all needed pairs and of each batch with itself.

        If there is a layer, which hides them, without the means of batches and without the bias:
        beside these, differences of nearly equal samples would be lost by rounding.
        """
        if self.depth:
            return self.products([centred(one) for one in self.parts()])
        return {key: one + self.bias_variance for key, one in self.products(self.parts()).items()}

    def _through(self, layer: _Layer, stream: _Layer, report: Report) -> FloatArray:
        """Return the kernel, computed layer by layer."""
        kernels = self.first()
        tangents = {pair: kernels[pair] for pair in self.pairs}
        for depth in range(self.depth):
            laws = [self.law(kernels[i, i], depth, i) for i in range(len(self.sizes))]
            following: dict[Key, FloatArray] = {}
            for pair, kernel in kernels.items():
                tangent = tangents.get(pair) if self.tangent else None
                value, slope = _moments(layer, laws, pair, kernel, tangent)
                fresh, moved = self.weighed(value), self.weight_variance * slope
                following[pair] = fresh
                if self.skip != 0.0:
                    value, slope = _moments(stream, laws, pair, kernel, tangent)
                    following[pair] = fresh + self.skip**2 * value
                    moved = moved + self.skip**2 * slope
                if pair in tangents:
                    tangents[pair] = fresh + moved
                report()
            kernels = following
        return self.assembled(tangents if self.tangent else kernels)


def _moments(
    layer: _Layer, laws: list[BatchLaw], pair: Key, kernel: FloatArray, tangent: FloatArray | None
) -> tuple[FloatArray, FloatArray]:
    """Return the covariances of the activations of a pair, and the tangents of earlier layers."""
    if pair[0] != pair[1]:
        return layer.across(laws[pair[0]], laws[pair[1]], kernel, tangent)
    found = layer.own(laws[pair[0]], tangent)
    # Products of the same numbers may round differently.
    return 0.5 * (found[0] + found[0].T), 0.5 * (found[1] + found[1].T)


# --- normalization after the activation


class _ActivatedLayer(Protocol):
    """One layer, as `Linear` and `ActivatedPoints` compute it."""

    def own(
        self, law: ActivatedLaw, tangent: FloatArray | None
    ) -> tuple[FloatArray, FloatArray]: ...

    def across(
        self,
        left: ActivatedLaw,
        right: ActivatedLaw,
        across: FloatArray,
        tangent: FloatArray | None,
    ) -> tuple[FloatArray, FloatArray]: ...


class ActivatedBatches(_LayerwiseNetwork):
    """A network of the order "activation-norm"."""

    @property
    def coordinates(self) -> int:
        """Number of coordinates of a point."""
        return sum(sorted(self.sizes)[-2:]) + 1

    def integrals(self) -> Callable[[Report], tuple[FloatArray, float]] | None:
        """Return what computes the kernel of a linear activation, and its relative error."""
        found = slopes(self.activation)
        if found is None or found[0] != found[1]:
            return None
        layer = Linear()

        def compute(report: Report) -> tuple[FloatArray, float]:
            return self._through(layer, report), layer.inner.error

        return compute

    def replicate(self, points: int, rng: np.random.Generator, report: Report) -> FloatArray:
        """Return an estimate of the kernel from some random points."""
        normals = normal_points(self.coordinates, points, rng)
        return self._through(ActivatedPoints(self.activation, normals), report)

    def first(self) -> dict[Key, FloatArray]:
        """Return the covariances of h_0 in split coordinates."""
        parts = [
            np.column_stack([centred(one), 2.0 * (0.5 * one).mean(axis=1)]) for one in self.parts()
        ]
        return {key: self._with_bias(one) for key, one in self.products(parts).items()}

    def _through(self, layer: _ActivatedLayer, report: Report) -> FloatArray:
        """Return the kernel, computed layer by layer."""
        kernels = self.first()
        tangents = {pair: kernels[pair] for pair in self.pairs}
        for depth in range(self.depth):
            laws = [
                ActivatedLaw(self.law(kernels[i, i][:-1, :-1], depth, i), kernels[i, i])
                for i in range(len(self.sizes))
            ]
            following: dict[Key, FloatArray] = {}
            for (i, j), kernel in kernels.items():
                tangent = tangents.get((i, j)) if self.tangent else None
                if i == j:
                    found = layer.own(laws[i], tangent)
                    value, slope = (0.5 * (one + one.T) for one in found)
                else:
                    value, slope = layer.across(laws[i], laws[j], kernel, tangent)
                fresh = self._with_bias(np.pad(self.weight_variance * value, (0, 1)))
                with np.errstate(over="ignore"):
                    following[i, j] = self.skip**2 * kernel + fresh
                    if (i, j) in tangents:
                        moved = np.pad(self.weight_variance * slope, (0, 1))
                        tangents[i, j] = self.skip**2 * tangents[i, j] + fresh + moved
                if not np.isfinite(following[i, j]).all():
                    raise NonFiniteError(None, depth + 1, "kernel")
                report()
            kernels = following
        found_blocks = tangents if self.tangent else kernels
        return self.assembled(
            {(i, j): _joined(one, i == j) for (i, j), one in found_blocks.items()}
        )

    def _with_bias(self, split: FloatArray) -> FloatArray:
        """Return a kernel in split coordinates plus σ_b²."""
        split[-1, -1] += self.bias_variance
        return split


def _joined(split: FloatArray, same: bool) -> FloatArray:
    """Return the kernel of samples from that of deviations and means, of one batch or of two."""
    found = split[:-1, :-1] + split[:-1, -1:] + split[-1:, :-1] + split[-1, -1]
    # Sums in another order may round differently.
    return 0.5 * (found + found.T) if same else np.asarray(found)


# --- kernels to a relative error

# Independent replicates of the points; standard errors come from their spread.
_REPLICATES = 8

# Points of a replicate in the first attempt.
_FEWEST = 1 << 11


def batch_kernel(
    network: BatchNetwork, name: str, rtol: float, key: int, progress: bool | Progress
) -> FloatArray:
    """Return the covariance or the tangent kernel of a network with batch normalization.

    Raises
    ------
    ArgumentError, ZeroVarianceError
        If a batch cannot be normalized, or its tangent kernel is infinite.
    PartialEstimateError
        If `rtol` is not reached; ``partial`` is the kernel.
    """
    network.activation.check()
    if network.tangent and slopes(network.activation) is None:
        require_derivative(network.activation)
    integrals = network.integrals()
    if integrals is None:
        return _sampled(network, name, rtol, key, progress)
    with reporting(progress, name, "pairs of batches") as report:
        kernel, error = integrals(_Counter(report, network.steps))
    return _accurate(network, kernel, error, rtol, "of the quadrature")


def _sampled(
    network: BatchNetwork, name: str, rtol: float, key: int, progress: bool | Progress
) -> FloatArray:
    """Return the mean of the kernels of all replicates, with more points until `rtol` holds."""
    most = network.most_points
    points, rng = min(_FEWEST, most), np.random.default_rng(key)
    steps = _REPLICATES * network.steps
    while True:
        generators = rng.spawn(_REPLICATES)
        # Matrices of a block of points are too small for several threads.
        with reporting(progress, name, "pairs of batches") as report, one_blas_thread():
            done = _Counter(report, steps)
            kernels = [network.replicate(points, one, done) for one in generators]
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
    if not error <= rtol:
        raise PartialEstimateError(f"relative error {error:.1e} {what}, rtol is {rtol:.1e}", kernel)
    return kernel


class _Counter:
    """Reports each call as one more step."""

    def __init__(self, report: Any, steps: int) -> None:
        self._report, self._steps, self._done = report, steps, 0
        report(0, steps)

    def __call__(self) -> None:
        self._done += 1
        self._report(self._done, self._steps)
