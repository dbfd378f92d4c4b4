"""Kernels of networks with batch normalization after the activation.

All rows of ``h_{l+1} = skip h_l + W N(σ(h_l)) + b`` are Gaussian, as its terms are.  With V and T
the covariances and tangents of a layer in `activated_points`, the kernels obey

    K_{l+1} = skip² K_l + σ_w² V + σ_b²,
    Θ_{l+1} = skip² Θ_l + σ_w² V + σ_b² + σ_w² T.

N(σ(h)) has mean 0 over the batch, so in split coordinates V and T have a block of deviations only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from bnmc.errors import NonFiniteError
from bnmc.infinite_width.activated_points import ActivatedLaw, ActivatedPoints, Linear
from bnmc.infinite_width.batch_network import Key, LayerwiseNetwork, Report, centred
from bnmc.infinite_width.batch_points import normal_points
from bnmc.mean_field.float64 import FloatArray
from bnmc.mean_field.map.homogeneous import slopes

__all__ = ["ActivatedBatches"]


class _Layer(Protocol):
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


class ActivatedBatches(LayerwiseNetwork):
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

    def _through(self, layer: _Layer, report: Report) -> FloatArray:
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
