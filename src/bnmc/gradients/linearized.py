"""The derivative of one network as a linear map: forward along tangents, and its transpose."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from bnmc._support.arguments import Float64Array
from bnmc.chain.start import Start
from bnmc.errors import NonFiniteError
from bnmc.gradients.matrices import Matrices
from bnmc.gradients.network import Network, path_to, start_rows
from bnmc.simulation.runs import Run, number_of_projection


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
        at = {0: (at_x, at_a)}
        for layer in range(1, self.run.depth + 1):
            linear, made, *_ = self.run.layer(layer)
            at_h = linear.gain * self._times(layer, at[layer - 1][1])
            if made.skip != 0.0:
                path, number = path_to(self.run, layer), number_of_projection(layer)
                taken = at[layer - path.length][path.takes_activations]
                if number in self.run.projections:
                    taken = self.run.layer(number).linear.gain * self._times(number, taken)
                at_h += made.skip * taken
            if added is not None:
                at_h += added[layer]
            at[layer] = self.layers[layer].along(at_h)[::-1]
        at_x, at_a = at[self.run.depth]
        return self._finite(at_x), self._finite(at_a)

    def back(
        self, at_x: Any, at_a: Any
    ) -> tuple[dict[int, Float64Array], Float64Array, Float64Array]:
        """Return the gradients with respect to h by layer, and those to x and a of layer 0."""
        deltas = {}
        #: Gradients with respect to x and a by layer.
        at: dict[int, list[Any]] = {self.run.depth: [at_x, at_a]}
        for layer in range(self.run.depth, 0, -1):
            linear, made, *_ = self.run.layer(layer)
            at_x, at_a = at.pop(layer)
            delta = deltas[layer] = self.layers[layer].down(at_a, at_x)
            before = at.setdefault(layer - 1, [0.0, 0.0])
            before[1] = before[1] + linear.gain * self._times(layer, delta, transposed=True)
            if made.skip != 0.0:
                path, number = path_to(self.run, layer), number_of_projection(layer)
                given = made.skip * delta
                if number in self.run.projections:
                    gain = self.run.layer(number).linear.gain
                    given = gain * self._times(number, given, transposed=True)
                begin = at.setdefault(layer - path.length, [0.0, 0.0])
                begin[path.takes_activations] = begin[path.takes_activations] + given
        at_x, at_a = at[0]
        return deltas, self._finite(np.broadcast_to(at_x, at_a.shape)), self._finite(at_a)

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
