"""Kernels of networks with batch normalization: by integrals, or estimated to a relative error.

The outputs of the samples of a batch depend on the whole batch.  So a layer maps the covariances of
all pairs of samples of two batches at once: first those of each batch with itself, which determine
the law of its rows, then those between two batches, given the laws of both.

**Normalization before the activation.**  A network without skip connections has Gaussian rows in
all layers.  `batch_integrals` computes a layer for activations that are positively homogeneous,
`batch_points` for all others.  With a skip connection, h_1 = skip N(h_0) + W σ(N(h_0)) + b is the
sum of a vector on a sphere and of a normal one.  Its covariance and tangents are those of the
layer, plus skip² times those of a linear one.  Later layers need the law of h_1, too, and so paths
of rows.

**Paths of rows.**  A row of ``h_{l+1} = skip N(h_l) + W σ(N(h_l)) + b`` is not Gaussian: with
x_l = N(h_l), a vector on a sphere, and Q_l = E σ(x_l) σ(x_l)ᵀ,

    h_{l+1} = skip x_l + g_l,    g_l ~ N(0, σ_w² Q_l + σ_b²) independent of the past.

At infinite width the rows are independent paths of this law.  So paths are sampled, and Q_l is the
mean over them.  The tangent kernel of a coordinate of h_l depends on its path also at infinite
width.  With D_l the derivative of N at h_l, and s_l = σ′(x_l),

    Θ_{l+1} = skip² D_l Θ_l D_lᵀ + σ_w² Q_l + σ_b² + σ_w² E diag(s_l) D_l Θ_l D_lᵀ diag(s_l).

The kernels are expectations: that of h_L h_Lᵀ, and that of Θ_L.  In the first layer 1/(|u||v|), for
the deviations u and v of h_0 from their means, is replaced by its mean given the direction of the
row; see `batch_points`.

**Normalization after the activation.**  All rows of ``h_{l+1} = skip h_l + W N(σ(h_l)) + b`` are
Gaussian, as its terms are.  With V and T the covariances and tangents of a layer in `batch_points`,
the kernels obey

    K_{l+1} = skip² K_l + σ_w² V + σ_b²,
    Θ_{l+1} = skip² Θ_l + σ_w² V + σ_b² + σ_w² T.

N(σ(h)) has mean 0 over the batch, so in split coordinates V and T have a block of deviations only.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Protocol

import numpy as np
from scipy.linalg import block_diag

from bnmc._support.interruption import Stop
from bnmc._support.linalg import binary_scale
from bnmc._support.machine import one_blas_thread
from bnmc._support.progress import reporting
from bnmc._support.workers import Calls, Parallel, Shared
from bnmc.chain.activations import Activation, slope_at
from bnmc.chain.homogeneity import homogeneous_slopes
from bnmc.chain.layers import Rows
from bnmc.errors import ArgumentError, NonFiniteError
from bnmc.infinite_width.batch_integrals import (
    BatchLaw,
    Homogeneous,
    Pair,
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
from bnmc.mean_field.float64 import EPSILON, FloatArray, within

# Most points of a replicate.
_MOST_POINTS = 1 << 18

_Key = tuple[int, int]
_Moments = tuple[FloatArray, FloatArray]
_Report = Callable[[], None]


class BatchLayer(Protocol):
    """One layer: covariances of its outputs, and tangents of earlier layers."""

    @property
    def error(self) -> float:
        """The largest relative error of a result so far."""

    def own(self, law: BatchLaw, tangent: FloatArray | None) -> tuple[FloatArray, FloatArray]:
        """Return both for one batch; zeros for tangents that are None."""

    def across(self, pair: Pair) -> tuple[FloatArray, FloatArray]:
        """Return both for two batches."""


class BatchNetwork(Network, ABC):
    """A network with batch normalization.

    The first batches are rows of the kernel, and the others its columns; if there are no others,
    all batches are both.

    Attributes
    ----------
    limits : (int, int)
        Points of a replicate that are always allowed, and coordinates of more points, at most.
    copies : int
        Arrays of all coordinates that a replicate keeps in memory.
    """

    limits: ClassVar[tuple[int, int]]
    copies: ClassVar[int]

    @property
    def steps(self) -> int:
        """Number of reports of the integrals, and of each call of `replicate`: one per layer."""
        return self.depth

    @property
    @abstractmethod
    def coordinates(self) -> int:
        """Number of coordinates of a point."""

    @property
    def most_points(self) -> int:
        """Largest number of points of a replicate, a power of 2."""
        points, coordinates, (least, most) = _MOST_POINTS, self.coordinates, self.limits
        while points > least and points * coordinates > most:
            points //= 2
        return points

    @property
    def numbers(self) -> int:
        """Numbers that a replicate with the most points keeps in memory, about."""
        return self.copies * self.most_points * self.coordinates

    def integrals(self) -> Callable[[_Report], tuple[FloatArray, float]] | None:
        """Return what computes the kernel and its relative error by integrals, or None."""
        return None

    @abstractmethod
    def replicate(self, points: int, rng: np.random.Generator, report: _Report) -> FloatArray:
        """Return an estimate of the kernel from some random points."""

    @property
    def pairs(self) -> list[_Key]:
        """The pairs of batches whose kernels are needed, i <= j."""
        rows, columns = self._axes
        return [(i, j) for i in rows for j in columns if i <= j]

    @property
    def own_and_pairs(self) -> set[_Key]:
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

    def products(self, parts: list[FloatArray]) -> dict[_Key, FloatArray]:
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

    def assembled(self, blocks: dict[_Key, FloatArray]) -> FloatArray:
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

    limits, copies = (1 << 16, 1 << 25), 2  # the points, and their uniform origins

    @property
    def coordinates(self) -> int:
        """Number of coordinates of a point."""
        return max(1, sum(size - 1 for size in sorted(self.sizes)[-2:]))

    def layer(self, activation: Activation, normals: FloatArray | None) -> BatchLayer | None:
        """Return a layer by integrals, else at given points; None if there are no points."""
        pair = homogeneous_slopes(activation)
        if pair is not None:
            return Homogeneous(*pair)
        # The control variate is for one batch.
        return None if normals is None else Sampled(activation, normals, mean_slopes(activation))

    def streams(self) -> list[BatchLayer]:
        """Return the layers of the skip connections: linear, since they start behind the norm."""
        return [Homogeneous(1.0, 1.0)] * self.depth

    def of_inputs(self) -> dict[_Key, FloatArray]:
        """Return the covariances of h_0, of all needed pairs and of each batch with itself.

        If there is a layer, which hides them, without the scales and means of batches and without
        the bias: beside these, differences of nearly equal samples would be lost by rounding.
        """
        if self.layers:
            return self.products([_unit_deviations(part) for part in self.parts()])
        products = self.products(self.parts())
        return {key: self.with_bias(block, self.first) for key, block in products.items()}

    def with_bias(self, kernel: FloatArray, weights: Weights) -> FloatArray:
        """Return a kernel plus σ_b²."""
        return kernel + weights.bias

    def joined(self, blocks: dict[_Key, FloatArray]) -> dict[_Key, FloatArray]:
        """Return the kernels of samples."""
        return blocks

    @property
    def steps(self) -> int:
        """Number of reports: one for each pair and layer."""
        return self.depth * len(self.own_and_pairs)

    def integrals(self) -> Callable[[_Report], tuple[FloatArray, float]] | None:
        """Return what computes the kernel and its relative error by integrals, or None."""
        layers = self.layers_at(None)
        if layers is None:
            return None

        def compute(report: _Report) -> tuple[FloatArray, float]:
            streams = self.streams()
            kernel = self._through(layers, streams, report)
            return kernel, max((layer.error for layer in (*streams, *layers)), default=0.0)

        return compute

    def replicate(self, points: int, rng: np.random.Generator, report: _Report) -> FloatArray:
        """Return an estimate of the kernel from some random points."""
        layers = self.layers_at(normal_points(self.coordinates, points, rng))
        assert layers is not None
        return self._through(layers, self.streams(), report)

    def layers_at(self, normals: FloatArray | None) -> list[BatchLayer] | None:
        """Return the layers, one object for each activation; None if one needs points."""
        activations = [layer.rows.activation for layer in self.layers]
        made = {activation: self.layer(activation, normals) for activation in set(activations)}
        layers = [layer for activation in activations if (layer := made[activation]) is not None]
        return layers if len(layers) == self.depth else None

    def _through(
        self, layers: Sequence[BatchLayer], streams: Sequence[BatchLayer], report: _Report
    ) -> FloatArray:
        """Return the kernel, computed layer by layer."""
        kernels = self.of_inputs()
        of_inputs = kernels
        if self.first.trained is not None:
            of_inputs = replace(self, first=self.first.in_tangents).of_inputs()
        tangents = {pair: of_inputs[pair] for pair in self.pairs}
        sources: dict[tuple[int, _Key], list[_Moments]] = {}
        begins = {
            number + 1 - layer.path.length for number, layer in enumerate(self.layers) if layer.path
        }
        for depth, (layer, stream) in enumerate(zip(layers, streams, strict=True)):
            _, weights, skip, path, projection = self.layers[depth]
            laws = [self.law(kernels[i, i], depth, i) for i in range(len(self.sizes))]
            following: dict[_Key, FloatArray] = {}
            for key, kernel in kernels.items():
                tangent = tangents.get(key) if self.tangent else None
                pair = Pair(laws[key[0]], laws[key[1]], kernel, tangent)
                value, slope = _moments(layer, pair)
                moved = weights.variance * slope
                following[key], fresh = self._weighed(value, weights)
                if depth in begins:
                    sources[depth, key] = [(value, slope), _moments(stream, pair)]
                if skip:
                    if path is None:
                        value, slope = _moments(stream, pair)
                    else:
                        value, slope = sources[depth + 1 - path.length, key][
                            0 if path.takes_activations else 1
                        ]
                    if projection is not None:
                        through = projection.variance * slope
                        value, added = self._weighed(value, projection)
                        slope = added + through
                    with np.errstate(over="ignore"):
                        following[key] = following[key] + skip**2 * value
                        moved = moved + skip**2 * slope
                if not np.isfinite(following[key]).all():
                    raise NonFiniteError(None, depth + 1, "kernel")
                if key in tangents:
                    tangents[key] = fresh + moved
                report()
            kernels = following
        return self.assembled(self.joined(tangents if self.tangent else kernels))

    def _weighed(self, value: FloatArray, weights: Weights) -> _Moments:
        """Return the covariance of W a + b, and what W and b add to the tangent kernel."""
        covariance = self.with_bias(weights.variance * value, weights)
        if weights.trained is None:
            return covariance, covariance
        trained = weights.in_tangents
        return covariance, self.with_bias(trained.variance * value, trained)


def _moments(layer: BatchLayer, pair: Pair) -> tuple[FloatArray, FloatArray]:
    """Return the covariances of the activations of a pair, and the tangents of earlier layers."""
    if pair.left is not pair.right:
        return layer.across(pair)
    value, slope = layer.own(pair.left, pair.tangent)
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

    def layer(self, activation: Activation, normals: FloatArray | None) -> BatchLayer | None:
        """Return a linear layer by integrals, another one at given points; None without points."""
        pair = homogeneous_slopes(activation)
        if pair is not None and pair[0] == pair[1]:
            return Linear()
        return None if normals is None else ActivatedPoints(activation, normals)

    def streams(self) -> list[BatchLayer]:
        """Return the identities."""
        return [Stream()] * self.depth

    def of_inputs(self) -> dict[_Key, FloatArray]:
        """Return the covariances of deviations and mean of h_0."""
        parts = [
            np.column_stack([_centred(part), 2.0 * (0.5 * part).mean(axis=1)])
            for part in self.parts()
        ]
        products = self.products(parts)
        return {key: self.with_bias(block, self.first) for key, block in products.items()}

    def with_bias(self, kernel: FloatArray, weights: Weights) -> FloatArray:
        """Return a kernel plus σ_b², which joins the means only."""
        kernel[-1, -1] += weights.bias
        return kernel

    def joined(self, blocks: dict[_Key, FloatArray]) -> dict[_Key, FloatArray]:
        """Return the kernels of samples from those of deviations and means."""
        sums = {
            key: block[:-1, :-1] + block[:-1, -1:] + block[-1:, :-1] + block[-1, -1]
            for key, block in blocks.items()
        }
        # Sums in another order may round differently.
        return {(i, j): 0.5 * (k + k.T) if i == j else k for (i, j), k in sums.items()}


def _centred(batch: FloatArray) -> FloatArray:
    """Return the samples of a batch, (features, samples), minus their mean."""
    # Half of the numbers, so that sums do not overflow.
    return batch - 2.0 * (0.5 * batch).mean(axis=1, keepdims=True)


def _unit_deviations(batch: FloatArray) -> FloatArray:
    """Return centred samples over a power of 2, so that products neither overflow nor vanish."""
    deviations = _centred(batch / binary_scale(batch))
    return np.asarray(deviations / binary_scale(deviations))


# --- networks whose rows are not Gaussian


class RowPaths(BatchNetwork):
    """A network of the order "norm-activation" with skip connections between its layers."""

    limits, copies = (2, 1 << 24), 4

    @property
    def coordinates(self) -> int:
        """Numbers of the rows and of the tangents of a point."""
        pairs = self.pairs if self.tangent else []
        return sum(self.sizes) + sum(self.sizes[i] * self.sizes[j] for i, j in pairs)

    def replicate(self, points: int, rng: np.random.Generator, report: _Report) -> FloatArray:
        """Return an estimate of the kernel from some random paths."""
        h, weight, tangents = self._first(normal_points(sum(self.sizes), points, rng))
        for depth, (row_map, weights, skip, *_) in enumerate(self.layers, 1):
            layers = [row_map._replace(batch=part.shape[1]).rows(part) for part in h]
            a = np.concatenate([layer.outputs() for layer in layers], axis=1)
            fresh = self._blocks(weights.weighed(a.T @ a / points))
            moved = {
                (i, j): weight * _through_norms(layers[i], layers[j], tangent)
                for (i, j), tangent in tangents.items()
            }
            for (i, j), tangent in moved.items():
                ends = [slope_at(row_map.activation, layers[batch].x) for batch in (i, j)]
                seen = np.einsum("pi,pij,pj->ij", ends[0], tangent, ends[1], optimize=True)
                fresh[i, j] += weights.variance * seen / points
            tangents = {key: skip**2 * block + fresh[key] for key, block in moved.items()}
            x = np.concatenate([layer.x for layer in layers], axis=1)
            report()
            if depth < self.depth:
                h, weight = self._next(a, x, depth, rng), np.ones(1)
        if self.tangent:
            return self.assembled({key: block.mean(axis=0) for key, block in tangents.items()})
        stream = self._blocks(skip**2 * (x.T @ x) / points)
        return self.assembled({key: fresh[key] + block for key, block in stream.items()})

    def _first(
        self, normals: FloatArray
    ) -> tuple[list[FloatArray], FloatArray, dict[_Key, FloatArray]]:
        """Return the deviations of h_0, the weights of its tangents, and these."""
        parts = [_unit_deviations(part) for part in self.parts()]
        products = self.products(parts)
        laws = [self.law(products[i, i], 0, i) for i in range(len(parts))]
        # Batches of all scales are alike.
        scales = [np.sqrt(self.first.variance / len(parts[0]) / law.trace) for law in laws]
        units = np.hstack([scale * part for scale, part in zip(scales, parts, strict=True)])
        factor = _factor(units.T @ units, laws)
        z = normals[:, : factor.shape[1]]
        rows = self._split(z @ factor.T)
        h = [np.sqrt(law.trace) * row for law, row in zip(laws, rows, strict=True)]
        # The norm hides means and bias, beside which small differences would be lost.
        first = {
            pair: np.broadcast_to(products[pair], (len(z), *products[pair].shape))
            for pair in (self.pairs if self.tangent else [])
        }
        freedom = max(1, factor.shape[1] - 2)
        weight = np.sum(z**2, axis=1)[:, None, None] / freedom
        return h, weight, first

    def _next(
        self, a: FloatArray, x: FloatArray, depth: int, rng: np.random.Generator
    ) -> list[FloatArray]:
        """Return the deviations of h of the next layer."""
        (points, samples), (_, weights, skip, *_) = x.shape, self.layers[depth - 1]
        outputs = np.hstack([part - part.mean(axis=1, keepdims=True) for part in self._split(a)])
        covariance = weights.variance * (outputs.T @ outputs) / points
        rows = self._blocks(covariance + skip**2 * (x.T @ x) / points)
        laws = [self.law(rows[i, i], depth, i) for i in range(len(self.sizes))]
        for batch, law in enumerate(laws):
            # The variance of 1/variance of a row is infinite, and so that of estimates.
            if self.tangent and law.rank in (3, 4):
                raise ArgumentError(
                    self.argument(batch),
                    f"a batch whose differences have {law.rank} dimensions",
                    "batches of at least 6 samples whose differences have at least 5 dimensions, "
                    'with norm="batch", a skip connection and at least 2 layers',
                    'estimates of the tangent kernel have infinite variance; method="monte-carlo" '
                    "gives those of single networks",
                )  # fmt: skip
        factor = _factor(covariance, laws)
        # In the same order, points of two layers would depend on each other.  Each path keeps its
        # negative.
        order = rng.permutation(points // 2)
        both = np.concatenate([order, order + points // 2])
        normals = normal_points(samples, points, rng)[both]
        h = skip * x + normals[:, : factor.shape[1]] @ factor.T
        return self._split(h)

    def _split(self, rows: FloatArray) -> list[FloatArray]:
        """Return the rows of each batch."""
        return np.split(rows, np.cumsum(self.sizes)[:-1], axis=1)

    def _blocks(self, matrix: FloatArray) -> dict[_Key, FloatArray]:
        """Return the blocks of needed pairs, and of each batch, of a matrix of all samples."""
        bands = np.split(matrix, np.cumsum(self.sizes)[:-1], axis=0)
        return {(i, j): self._split(bands[i])[j].copy() for i, j in self.own_and_pairs}


def _through_norms(left: Rows, right: Rows, tangent: FloatArray) -> FloatArray:
    """Return D Θ D′ᵀ, with the derivatives of the norms of two batches, (points, n, n′)."""
    return left.through_norm(right.through_norm(tangent).swapaxes(1, 2)).swapaxes(1, 2)


def _factor(covariance: FloatArray, laws: list[BatchLaw]) -> FloatArray:
    """Return L with L Lᵀ the covariance of the rows of some batches as their norms see them.

    The column of the largest eigenvalue is the first one.  The largest entry of each column is
    positive, so that rounding does not change signs.
    """
    # Rounding has directions that the norms do not see.
    seen = block_diag(*(law.vectors for law in laws))
    values, vectors = np.linalg.eigh(seen.T @ covariance @ seen)
    positive = values > len(covariance) * EPSILON * values[-1]
    factor = (seen @ (vectors[:, positive] * np.sqrt(values[positive])))[:, ::-1]
    largest = np.take_along_axis(factor, np.abs(factor).argmax(axis=0)[None], axis=0)
    return np.ascontiguousarray(factor * np.sign(largest))


# --- kernels to a relative error

# Independent replicates of the points; standard errors come from their spread.
_REPLICATES = 8

# Points of a replicate in the first attempt.
_FEWEST = 1 << 11


def batch_kernel(network: BatchNetwork, rtol: float, key: int, parallel: Parallel) -> FloatArray:
    """Return the covariance or the tangent kernel of a network with batch normalization.

    Raises
    ------
    ArgumentError, ZeroVarianceError
        If a batch cannot be normalized, or its tangent kernel is infinite.
    PartialEstimateError
        If `rtol` is not reached; ``partial`` is the kernel.  If the time limit ends the work,
        ``partial`` is the last estimate whose replicates are all finished, or None.
    """
    integrals = network.integrals()
    if integrals is None:
        return _sampled(network, rtol, key, parallel)
    with reporting(parallel.progress, network.name, "pairs of batches") as report:
        kernel, error = integrals(_counted(report, network.steps, parallel.stop))
    return _accurate(network, kernel, error, rtol, "by quadrature")


def _sampled(network: BatchNetwork, rtol: float, key: int, parallel: Parallel) -> FloatArray:
    """Return the mean of the kernels of all replicates, with more points until `rtol` holds."""
    most = network.most_points
    points, rng = min(_FEWEST, most), np.random.default_rng(key)
    results = 8 * _REPLICATES * math.prod(network.shape)
    mean: FloatArray | None = None
    while True:
        generators = rng.spawn(_REPLICATES)
        calls: Calls[FloatArray] = Calls(
            Shared("executor", parallel.executor, partial(_replicate, network, points)),
            [(each,) for each in generators],
        )
        # Matrices of a block of points are too small for several threads.
        with one_blas_thread():
            kernels = parallel.fitting(8 * network.numbers, results).results(
                calls, network.name, "replicates", least=_REPLICATES, partial=mean
            )
        mean = np.mean(kernels, axis=0)
        spread = np.std(kernels, axis=0, ddof=1) / np.sqrt(_REPLICATES)
        norm = float(np.linalg.norm(mean))
        error = float(np.linalg.norm(spread)) / norm if norm > 0.0 else 0.0
        if error <= rtol or points == most:
            what = f"with {_REPLICATES} replicates of {points} points"
            return _accurate(network, mean, error, rtol, what)
        # The error falls at best as 1/points: so far from `rtol`, twice the points are too few.
        points = min(most, points * (4 if error > 4.0 * rtol else 2))


def _replicate(network: BatchNetwork, points: int, rng: np.random.Generator) -> FloatArray:
    with one_blas_thread():  # another process has threads of its own
        return network.replicate(points, rng, lambda: None)


def _accurate(
    network: BatchNetwork, kernel: FloatArray, error: float, rtol: float, what: str
) -> FloatArray:
    """Return the kernel; raise if it is not finite, or its error exceeds the tolerance."""
    if not np.isfinite(kernel).all():
        raise NonFiniteError(None, network.depth, "kernel")
    return within(kernel, error, rtol, "kernel", f" ({what})")


def _counted(report: Any, steps: int, stop: Stop) -> _Report:
    """Report that no step is done, and return a function that reports one more in each call.

    It raises if the time limit ends before the last step.
    """
    counter = itertools.count(1)
    report(0, steps)

    def step() -> None:
        report(done := next(counter), steps)
        if done < steps and stop():
            raise stop.error(f"only {done} of {steps} pairs of batches are finished")

    return step
