"""The derivative of one network as a linear map: forward along tangents, and its transpose."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from bnmc._support.arguments import Float64Array
from bnmc.chain.start import Start
from bnmc.errors import NonFiniteError
from bnmc.gradients.matrices import Matrices
from bnmc.gradients.network import Network, start_rows
from bnmc.simulation.runs import Run


class Linearized:
    """One network with all its rows and its weights, and products with its derivatives.

    Derivatives and gradients have the shape (1, width, k, columns).

    Parameters
    ----------
    run : Run
        Of one network.
    start : Start
    columns : int
        About the number of columns that each matrix will be asked for.
    """

    def __init__(self, run: Run, start: Start, columns: int) -> None:
        self.run, self._matrices = run, Matrices(run, columns)
        self.layers = Network(run, start_rows(run, start), self._matrices, run.depth).layers

    def forward(
        self, at_x: Any, at_a: Any, added: Mapping[int, Float64Array] | None = None
    ) -> tuple[Float64Array, Float64Array]:
        """Return the derivatives of x and a of the last layer, given those of layer 0.

        Parameters
        ----------
        at_x, at_a : (1, width, k, columns) ndarray
        added : mapping, optional
            By layer, what changes of the parameters add to the derivative of h.
        """
        for layer in range(1, self.run.depth + 1):
            linear, made, *_ = self.run.layer(layer)
            at_h = linear.gain * self._times(layer, at_a)
            if made.skip != 0.0:
                at_h += made.skip * at_x
            if added is not None:
                at_h += added[layer]
            at_a, at_x = self.layers[layer].along(at_h)
        return self._finite(at_x), self._finite(at_a)

    def back(
        self, at_x: Any, at_a: Any
    ) -> tuple[dict[int, Float64Array], Float64Array, Float64Array]:
        """Return the gradients with respect to h by layer, and those to x and a of layer 0."""
        deltas = {}
        for layer in range(self.run.depth, 0, -1):
            linear, made, *_ = self.run.layer(layer)
            delta = deltas[layer] = self.layers[layer].down(at_a, at_x)
            at_a = linear.gain * self._times(layer, delta, transposed=True)
            at_x = made.skip * delta if made.skip != 0.0 else np.zeros_like(at_a)
        return deltas, self._finite(at_x), self._finite(at_a)

    def _times(self, layer: int, values: Float64Array, transposed: bool = False) -> Float64Array:
        _, width, k, columns = values.shape
        flat = values.reshape(1, width, k * columns)
        if transposed:
            product = self._matrices.transposed_times(layer, flat, flat)
        else:
            product = self._matrices.product(layer, flat)
        return product.reshape(1, -1, k, columns)

    def _finite(self, values: Float64Array) -> Float64Array:
        if not np.isfinite(values).all():
            raise NonFiniteError(self.run.first, self.run.depth, "Jacobian")
        return values
