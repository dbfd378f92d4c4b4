"""Kernels of networks with batch normalization: each batch is normalized by its own statistics.

The outputs of the samples of a batch depend on the whole batch.  So a layer maps the covariances of
all pairs of samples of two batches at once: first those of each batch with itself, which determine
the law of its rows, then those between two batches, given the laws of both.  `batch_integrals` does
this for activations that are positively homogeneous, `batch_points` for all others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from bnmc._support.blas import one_blas_thread
from bnmc._support.progress import Progress, Reporter
from bnmc.chain.activations import Activation
from bnmc.chain.chain import Chain
from bnmc.chain.slopes import require_derivative
from bnmc.errors import NonFiniteError, PartialEstimateError
from bnmc.infinite_width.batch_integrals import Homogeneous
from bnmc.infinite_width.batch_law import BatchLaw, batch_law, require_finite_tangents
from bnmc.infinite_width.batch_points import Control, Sampled, normal_points
from bnmc.mean_field.float64 import FloatArray
from bnmc.mean_field.map.homogeneous import slopes

__all__ = ["BatchNetwork", "batch_kernel", "centred", "dimensions_of", "most_points"]

#: Independent replicates of the points; standard errors come from their spread.
REPLICATES = 8

# Points of a replicate: those of the first attempt, and the most.
_FEWEST, _MOST = 1 << 11, 1 << 18

# Beyond 2^16 points, the most coordinates of all points of a replicate.
_COORDINATES = 1 << 25

_Key = tuple[int, int]


class _Layer(Protocol):
    """One layer, as `Homogeneous` and `Sampled` compute it."""

    def own(self, law: BatchLaw, tangent: FloatArray | None) -> tuple[FloatArray, FloatArray]: ...

    def across(
        self, left: BatchLaw, right: BatchLaw, across: FloatArray, tangent: FloatArray | None
    ) -> tuple[FloatArray, FloatArray]: ...


@dataclass(frozen=True)
class BatchNetwork:
    """A network with batch normalization before the activation, and its inputs.

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
    weight_variance, bias_variance : float
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
    tangent: bool

    @property
    def one_set(self) -> bool:
        """Whether the kernel is that of one set with itself."""
        return self.rows == len(self.sizes)

    @property
    def pairs(self) -> list[_Key]:
        """The pairs of batches whose kernels are needed, i <= j."""
        last = len(self.sizes)
        if self.one_set:
            return [(i, j) for i in range(last) for j in range(i, last)]
        return [(i, j) for i in range(self.rows) for j in range(self.rows, last)]

    def first(self) -> dict[_Key, FloatArray]:
        """Return the covariances of h_0, of all needed pairs and of each batch with itself.

        If there is a layer, which hides them, without the means of batches and without the bias:
        beside these, differences of nearly equal samples would be lost by rounding.
        """
        ends = np.cumsum(self.sizes)[:-1]
        parts = np.split(self.inputs, ends, axis=1)
        with np.errstate(over="ignore", invalid="ignore"):
            if self.depth:
                parts = [centred(one) for one in parts]
            bias = 0.0 if self.depth else self.bias_variance
            found = {
                (i, j): self.weight_variance * (parts[i].T @ parts[j] / len(self.inputs)) + bias
                for i, j in {*self.pairs, *((i, i) for i in range(len(parts)))}
            }
        if not all(np.isfinite(one).all() for one in found.values()):
            raise NonFiniteError(None, 0, "kernel")
        return found

    def weighed(self, products: FloatArray) -> FloatArray:
        """Return σ_w² times a matrix, plus σ_b²."""
        return np.asarray(self.weight_variance * products + self.bias_variance)

    def through(self, layer: _Layer, report: Callable[[], None]) -> FloatArray:
        """Return the kernel, computed layer by layer."""
        kernels = self.first()
        tangents = {pair: kernels[pair] for pair in self.pairs}
        for depth in range(self.depth):
            laws = [self._law(kernels[i, i], depth, i) for i in range(len(self.sizes))]
            following: dict[_Key, FloatArray] = {}
            for pair, kernel in kernels.items():
                tangent = tangents.get(pair) if self.tangent else None
                if pair[0] == pair[1]:
                    found = layer.own(laws[pair[0]], tangent)
                    # Products of the same numbers may round differently.
                    value, slope = (0.5 * (one + one.T) for one in found)
                else:
                    value, slope = layer.across(laws[pair[0]], laws[pair[1]], kernel, tangent)
                following[pair] = self.weighed(value)
                if pair in tangents:
                    tangents[pair] = following[pair] + self.weight_variance * slope
                report()
            kernels = following
        return self._assembled(tangents if self.tangent else kernels)

    def _law(self, kernel: FloatArray, depth: int, batch: int) -> BatchLaw:
        name = "x" if batch < self.rows else "other"
        # The width does not matter.
        law = batch_law(Chain(1, len(kernel), self.activation), kernel, depth, name)
        if self.tangent:
            require_finite_tangents(law, name)
        return law

    def _assembled(self, blocks: dict[_Key, FloatArray]) -> FloatArray:
        """Return the blocks of all pairs as one matrix."""
        last = len(self.sizes)
        columns = range(last) if self.one_set else range(self.rows, last)
        return np.block(
            [
                [blocks[i, j] if (i, j) in blocks else blocks[j, i].T for j in columns]
                for i in range(self.rows)
            ]
        )


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
    found = slopes(network.activation)
    if found is None:
        if network.tangent:
            require_derivative(network.activation)
        return _sampled(network, name, rtol, key, progress)
    layer = Homogeneous(*found)
    steps = network.depth * len(network.first())
    with Reporter(progress, name, "pairs of batches") as report:
        done = _Counter(report, steps)
        kernel = network.through(layer, done)
    return _accurate(network, kernel, layer.error, rtol, "of the quadrature")


def centred(batch: FloatArray) -> FloatArray:
    """Return the samples of a batch, (features, samples), minus their mean."""
    # Half of the numbers, so that sums do not overflow.
    return np.asarray(batch - 2.0 * (0.5 * batch).mean(axis=1, keepdims=True))


def dimensions_of(sizes: tuple[int, ...]) -> int:
    """Return the number of coordinates of a point for batches of these sizes."""
    return max(1, sum(size - 1 for size in sorted(sizes)[-2:]))


def most_points(dimensions: int) -> int:
    """Return the largest number of points of a replicate."""
    points = _MOST
    while points > 1 << 16 and points * dimensions > _COORDINATES:
        points //= 2
    return points


def _sampled(
    network: BatchNetwork, name: str, rtol: float, key: int, progress: bool | Progress
) -> FloatArray:
    """Return the mean of the kernels of all replicates, with more points until `rtol` holds."""
    dimensions = dimensions_of(network.sizes)
    most = most_points(dimensions)
    points, rng = _FEWEST, np.random.default_rng(key)
    steps = REPLICATES * network.depth * len(network.first())
    control = Control.of(network.activation)
    while True:
        generators = rng.spawn(REPLICATES)
        kernels = []
        # Matrices of a block of points are too small for several threads.
        with Reporter(progress, name, "pairs of batches") as report, one_blas_thread():
            done = _Counter(report, steps)
            for one in generators:
                normals = normal_points(dimensions, points, one)
                layer = Sampled(network.activation, normals, control)
                kernels.append(network.through(layer, done))
        mean = np.mean(kernels, axis=0)
        spread = np.std(kernels, axis=0, ddof=1) / np.sqrt(REPLICATES)
        norm = float(np.linalg.norm(mean))
        error = float(np.linalg.norm(spread)) / norm if norm > 0.0 else 0.0
        if error <= rtol or points == most:
            what = f"with {REPLICATES} replicates of {points} points"
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
