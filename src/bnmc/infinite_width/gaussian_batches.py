"""Kernels of networks whose layers differ, with batch normalization in some of them.

If no skip connection keeps N(h) with N over the batch, the rows of all layers are Gaussian, so the
map of each layer is that of its own kind:

    K_{l+1} = skip² P + σ_w² V + σ_b²,    Θ_{l+1} = skip² Θ_P + σ_w² (V + T) + σ_b²,

with V and T the covariances and tangents of the activations, and P and Θ_P those of the rows that
the skip connection keeps: K and Θ themselves, or behind a norm over the features of the order
"norm-activation" both over the standard deviations of the two samples.  In the pre-activation
residual block h + W σ(N(h)) they are K and Θ.

Kernels are in split coordinates, as in `batch_points`: a norm over the batch hides the means,
beside which small differences of samples would be lost.
"""

from __future__ import annotations

import numpy as np

from bnmc.chain.layers import RowMap
from bnmc.infinite_width.batch_integrals import BatchLaw, Pair
from bnmc.infinite_width.batch_points import Stream
from bnmc.infinite_width.batches import ActivatedBatches, BatchLayer, NormalizedBatches
from bnmc.mean_field.float64 import FloatArray
from bnmc.mean_field.pairwise_layer import Level, PairwiseLayer


class GaussianBatches(ActivatedBatches):
    """A network of layers of any kind whose rows are Gaussian."""

    def layers_at(self, normals: FloatArray | None) -> list[BatchLayer] | None:
        """Return the layers, one object for each kind; None if one needs points."""
        kinds = [layer.rows for layer in self.layers]
        made = {rows: self._layer(rows, normals) for rows in set(kinds)}
        layers = [layer for rows in kinds if (layer := made[rows]) is not None]
        return layers if len(layers) == self.depth else None

    def _layer(self, rows: RowMap, normals: FloatArray | None) -> BatchLayer | None:
        if rows.norm.axis != "batch":
            return _Pairs(rows)
        if rows.activates_first:
            return self.layer(rows.activation, normals)
        layer = NormalizedBatches.layer(self, rows.activation, normals)
        return None if layer is None else _Normalized(layer)

    def streams(self) -> list[BatchLayer]:
        """Return what the skip connections keep."""
        behind = {rows: _BehindNorm(rows) for rows in {layer.rows for layer in self.layers}}
        return [
            behind[layer.rows] if layer.rows.norm.axis == "features" else Stream()
            for layer in self.layers
        ]

    def law(self, kernel: FloatArray, depth: int, batch: int) -> BatchLaw:
        """Return the law of a row of a batch as the norm of a layer sees it, or raise."""
        if self.layers[depth].rows.norm.axis == "batch":
            return super().law(kernel, depth, batch)
        n, none = self.sizes[batch], np.zeros(0)
        return BatchLaw(np.zeros((n, 0)), none, none, 1.0, 1.0, trace=0.0, covariance=kernel)


class _Normalized:
    """A layer with batch normalization before the activation, in split coordinates."""

    def __init__(self, layer: BatchLayer) -> None:
        self._layer = layer

    @property
    def error(self) -> float:
        """The largest relative error of a result so far."""
        return self._layer.error

    def own(self, law: BatchLaw, tangent: FloatArray | None) -> tuple[FloatArray, FloatArray]:
        """Return the covariances of activations, and the tangents of earlier layers."""
        return _in_split(*self._layer.own(law, None if tangent is None else tangent[:-1, :-1]))

    def across(self, pair: Pair) -> tuple[FloatArray, FloatArray]:
        """Return the covariances of activations, and the tangents of earlier layers."""
        tangent = None if pair.tangent is None else pair.tangent[:-1, :-1]
        across = pair.across[:-1, :-1]
        return _in_split(*self._layer.across(pair._replace(across=across, tangent=tangent)))


class _Pairs:
    """A layer that acts on pairs of samples, in split coordinates."""

    def __init__(self, rows: RowMap) -> None:
        self.error = 0.0
        self._layer = PairwiseLayer.of_rows(rows, 1.0, 0.0, 0.0)

    def own(self, law: BatchLaw, tangent: FloatArray | None) -> tuple[FloatArray, FloatArray]:
        """Return the covariances of activations, and the tangents of earlier layers."""
        return self.across(Pair(law, law, law.covariance, tangent))

    def across(self, pair: Pair) -> tuple[FloatArray, FloatArray]:
        """Return the covariances of activations, and the tangents of earlier layers."""
        tangent = None if pair.tangent is None else _joined(pair.tangent)
        left, right = (self._level(law, tangent is not None) for law in (pair.left, pair.right))
        is_own = pair.left is pair.right
        value, total, error = self._layer.step(left, right, _joined(pair.across), tangent, is_own)
        self.error = max(self.error, error)
        return _in_split(value, np.zeros_like(value) if total is None else total - value)

    def _level(self, law: BatchLaw, slopes: bool) -> Level:
        return self._layer.levels(np.diagonal(_joined(law.covariance)).copy(), slopes)


class _BehindNorm(Stream):
    """What a skip connection keeps behind a norm over the features."""

    def __init__(self, rows: RowMap) -> None:
        self._rows = rows

    def across(self, pair: Pair) -> tuple[FloatArray, FloatArray]:
        """Return the covariances and the tangents of the rows."""
        value, slope = super().across(pair)
        if not self._rows.keeps_normed:
            return value, slope
        ends = [
            np.sqrt(np.diagonal(_joined(law.covariance)) + self._rows.eps)
            for law in (pair.left, pair.right)
        ]
        scale = ends[0][:, None] * ends[1]
        return _in_split(_joined(value) / scale, _joined(slope) / scale)


def _joined(block: FloatArray) -> FloatArray:
    """Return a kernel of samples from that of deviations and means."""
    deviations = block[:-1, :-1] + block[:-1, -1:]
    return np.asarray(deviations + block[-1:, :-1] + block[-1, -1])


def _in_split(*kernels: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return two kernels of samples in split coordinates: deviations and mean."""
    split = []
    for kernel in kernels:
        rows = np.vstack([kernel - kernel.mean(axis=0), kernel.mean(axis=0)])
        mean = rows.mean(axis=1)[:, None]
        split.append(np.hstack([rows - mean, mean]))
    first, second = split
    return first, second
