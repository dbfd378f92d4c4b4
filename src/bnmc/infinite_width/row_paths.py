"""Kernels of deep networks with batch normalization before the activation and skip connections.

A row of ``h_{l+1} = skip N(h_l) + W σ(N(h_l)) + b`` is not Gaussian: with x_l = N(h_l), a vector on
a sphere, and Q_l = E σ(x_l) σ(x_l)ᵀ,

    h_{l+1} = skip x_l + g_l,    g_l ~ N(0, σ_w² Q_l + σ_b²) independent of the past.

At infinite width the rows are independent paths of this law.  So paths are sampled, and Q_l is the
mean over them.  The tangent kernel of a coordinate of h_l depends on its path also at infinite
width.  With D_l the derivative of N at h_l, and s_l = σ′(x_l),

    Θ_{l+1} = skip² D_l Θ_l D_lᵀ + σ_w² Q_l + σ_b² + σ_w² E diag(s_l) D_l Θ_l D_lᵀ diag(s_l).

The kernels are expectations: that of h_L h_Lᵀ, and that of Θ_L.  In the first layer 1/(|u||v|), for
the deviations u and v of h_0 from their means, is replaced by its mean given the direction of the
row; see `batch_points`.
"""

from __future__ import annotations

import numpy as np
from scipy.linalg import block_diag

from bnmc.chain.activations import slope_at
from bnmc.chain.layers import Rows
from bnmc.errors import ArgumentError
from bnmc.infinite_width.batch_integrals import BatchLaw
from bnmc.infinite_width.batch_points import normal_points
from bnmc.infinite_width.batches import BatchNetwork, Key, Report, halved, unit_deviations
from bnmc.mean_field.float64 import EPSILON, FloatArray

# Numbers of one array of all points, at most.
_NUMBERS = 1 << 24
_MOST = 1 << 18


class RowPaths(BatchNetwork):
    """A network of the order "norm-activation" with skip connections between its layers."""

    @property
    def steps(self) -> int:
        """Number of reports: one for each layer."""
        return self.depth

    @property
    def most_points(self) -> int:
        """Largest number of points of a replicate, a power of 2."""
        return halved(_MOST, 2, _NUMBERS, self._numbers_of_point)

    @property
    def numbers(self) -> int:
        """Numbers of the tangents, of the rows, and of their copies."""
        return 4 * self.most_points * self._numbers_of_point

    @property
    def _numbers_of_point(self) -> int:
        samples = sum(self.sizes)
        if not self.tangent:
            return samples
        return samples + sum(self.sizes[i] * self.sizes[j] for i, j in self.pairs)

    def replicate(self, points: int, rng: np.random.Generator, report: Report) -> FloatArray:
        """Return an estimate of the kernel from some random paths."""
        normals = normal_points(sum(self.sizes), points, rng)
        h, weight, tangents = self._first(normals)
        for depth, (row_map, weights, skip) in enumerate(self.layers, 1):
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
    ) -> tuple[list[FloatArray], FloatArray, dict[Key, FloatArray]]:
        """Return the deviations of h_0, the weights of its tangents, and these."""
        parts = [unit_deviations(part) for part in self.parts()]
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
        (points, samples), (_, weights, skip) = x.shape, self.layers[depth - 1]
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

    def _blocks(self, matrix: FloatArray) -> dict[Key, FloatArray]:
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
