"""Kernels of networks with batch normalization before the activation.

A network without skip connections has Gaussian rows in all layers.  `batch_integrals` computes a
layer for activations that are positively homogeneous, `batch_points` for all others.  With a skip
connection, h_1 = skip N(h_0) + W σ(N(h_0)) + b is the sum of a vector on a sphere and of a normal
one.  Its covariance and tangents are those of the layer, plus skip² times those of a linear one.
Later layers need the law of h_1, too: they are in `row_paths`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from bnmc.infinite_width.batch_integrals import Homogeneous
from bnmc.infinite_width.batch_law import BatchLaw
from bnmc.infinite_width.batch_network import Key, LayerwiseNetwork, Report, centred
from bnmc.infinite_width.batch_points import Control, Sampled, normal_points
from bnmc.mean_field.float64 import FloatArray
from bnmc.mean_field.map.homogeneous import slopes

__all__ = ["NormalizedBatches"]


class _Layer(Protocol):
    """One layer, as `Homogeneous` and `Sampled` compute it."""

    def own(self, law: BatchLaw, tangent: FloatArray | None) -> tuple[FloatArray, FloatArray]: ...

    def across(
        self, left: BatchLaw, right: BatchLaw, across: FloatArray, tangent: FloatArray | None
    ) -> tuple[FloatArray, FloatArray]: ...


class NormalizedBatches(LayerwiseNetwork):
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
