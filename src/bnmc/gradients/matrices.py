"""The weights of one network, for products of any number and order with W and Wᵀ.

Gaussian and orthogonal matrices are drawn by direction (`bnmc.implicit`).  If that would
ask for as many columns as W has, the matrix is drawn, which has the same law and takes less time.
Matrices of all other laws are drawn: those of `bnmc.drawn_weights` with the same key.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from bnmc._support.arguments import Float64Array
from bnmc.gradients.network import generator_of
from bnmc.implicit import GaussianMatrix, HaarMatrix
from bnmc.simulation.engine.replay import biases_of_layer, unit_weights_of_layer
from bnmc.simulation.runs import Run

#: Streams of `generator_of`.
_OF_MATRICES, _OF_BIASES = 2, 3


class Matrices:
    """Products with the weights W and the biases b of one network; see `bnmc.gradients.network`.

    Arrays have the shape (1, width, columns).

    Parameters
    ----------
    run : Run
        Of one network.
    columns : int
        About the number of columns that each matrix will be asked for.
    """

    def __init__(self, run: Run, columns: int) -> None:
        self._run, self._columns = run, columns
        self._matrices: dict[int, Any] = {}

    def times(self, layer: int, a: Float64Array) -> Float64Array:
        """Return W a + b 1ᵀ / gain of the layer that they lead to."""
        product, linear = self.product(layer, a), self._run.layer(layer).linear
        if self._run.spec(layer).bias != 0.0:
            product += self._biases(layer)[None, :, None] / linear.gain
        return product

    def product(self, layer: int, a: Float64Array) -> Float64Array:
        """Return W a."""
        seen = self._run.layer(layer).linear.patches.unfold(a)[0]
        return np.ascontiguousarray(self.matrix(layer) @ seen)[None]

    def transposed_times(self, layer: int, a: Float64Array, delta: Float64Array) -> Float64Array:
        """Return Wᵀ δ; it does not depend on `a`."""
        product = np.ascontiguousarray(self.matrix(layer).T @ delta[0])[None]
        return self._run.layer(layer).linear.patches.fold(product)

    def matrix(self, layer: int) -> Any:
        """Return W, an array or an implicit matrix, of shape (width, fan_in)."""
        if layer not in self._matrices:
            self._matrices[layer] = self._begun(layer)
        return self._matrices[layer]

    def forget(self, layer: int) -> None:
        """Free the memory of a matrix that no product needs any more."""
        self._matrices.pop(layer, None)

    def _begun(self, layer: int) -> Any:
        run, linear = self._run, self._run.layer(layer).linear
        shape, law = (linear.width, linear.fan_in), linear.law
        is_drawn = self._columns >= min(shape)
        if law.is_orthogonal:
            if not is_drawn:
                return HaarMatrix(linear.width, rng=self._key(layer))
            normals = generator_of(run, 0, _OF_MATRICES, layer).standard_normal(shape)
            basis, triangle = np.linalg.qr(normals)
            return basis * np.sign(np.diagonal(triangle))
        if not law.rows_given_gram:
            unit = unit_weights_of_layer(run, run.first, layer)
            return unit.astype(np.float64) / np.sqrt(linear.fan_in)
        if is_drawn:
            normals = generator_of(run, 0, _OF_MATRICES, layer).standard_normal(shape)
            return normals / np.sqrt(linear.fan_in)
        return GaussianMatrix(*shape, rng=self._key(layer))

    def _key(self, layer: int) -> list[int]:
        return [self._run.key, self._run.first, layer]

    def _biases(self, layer: int) -> Float64Array:
        run, linear = self._run, self._run.layer(layer).linear
        if linear.law.rows_given_gram or linear.law.is_orthogonal:
            normals = generator_of(run, 0, _OF_BIASES, layer).standard_normal(linear.width)
            return normals * np.sqrt(linear.bias_variance)
        return biases_of_layer(run, run.first, layer).astype(np.float64)
