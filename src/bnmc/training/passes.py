"""Forward, backward and tangent passes of one network in training, with a tape written by hand."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bnmc._support.arguments import Float64Array
from bnmc.chain.layers import Rows
from bnmc.errors import NonFiniteError, ZeroVarianceError
from bnmc.training.architecture import Architecture, rows_for
from bnmc.training.weights import (
    DrawnWeights,
    ImplicitWeights,
    MaximizedWeights,
    Weights,
)

#: Representations with larger entries have squares that overflow: the training has diverged.
_LARGEST = 1e150


class Tape(NamedTuple):
    """A forward pass.

    Attributes
    ----------
    rows : list of Rows
        The layers from the inputs on, of arrays (width, samples).
    hidden : list of (width, samples) ndarray
        h of each layer.
    located : list of ndarray
        Coordinates of the activations that each matrix multiplied.
    outputs : (samples, outputs) ndarray
    """

    rows: list[Rows]
    hidden: list[Float64Array]
    located: list[Float64Array]
    outputs: Float64Array


class Model:
    """A network in training.

    Parameters
    ----------
    architecture : Architecture
    key : int
        The key of all random numbers of the training.
    chain : int
        Number of the network.
    inputs : (features, samples) ndarray
        The batch for which a maximized start is made.
    """

    def __init__(
        self, architecture: Architecture, key: int, chain: int, inputs: Float64Array
    ) -> None:
        self.architecture, self.chain = architecture, chain
        self.weights: list[Weights] = [
            matrix.weights((key, chain, number), architecture.dtype)
            for number, matrix in enumerate(architecture.matrices)
        ]
        if any(matrix.is_maximized for matrix in architecture.matrices):
            self.forward(inputs)
            for number, matrix in enumerate(architecture.matrices):
                weights = self.weights[number]
                if isinstance(weights, MaximizedWeights) and not matrix.is_implicit:
                    entries = weights.entries().astype(architecture.dtype)
                    self.weights[number] = DrawnWeights(entries)

    @property
    def values(self) -> list[Float64Array]:
        """The values of all matrices."""
        return [weights.value for weights in self.weights]

    def forward(self, inputs: Float64Array) -> Tape:
        """Return the pass of a batch, (features, samples).

        Raises
        ------
        NonFiniteError
            If a layer or the outputs leave the range of numbers.
        ZeroVarianceError
            If a part that a norm divides has no variance.
        """
        layers = self.architecture.layers
        maps = rows_for(layers, inputs.shape[1])
        rows, hidden, located = [maps[0].rows(inputs)], [inputs], []
        for number, (weights, made) in enumerate(zip(self.weights, maps[1:], strict=False), 1):
            h, coordinates = self._product(weights, rows[-1].outputs())
            if made.skip != 0.0:
                h += made.skip * rows[-1].x
            self._require_finite(h, number)
            normed = made.normalise(y := made.argument(h))
            if flat := made.without_variance(y[None]):
                raise ZeroVarianceError(self.chain, self._layer(number), *flat[1:])
            located.append(coordinates)
            hidden.append(h)
            rows.append(made.rows(h, normed))
        outputs, coordinates = self._product(self.weights[-1], rows[-1].outputs())
        self._require_finite(outputs, len(layers))
        return Tape(rows, hidden, [*located, coordinates], np.ascontiguousarray(outputs.T))

    def backward(
        self, tape: Tape, gradient: Float64Array
    ) -> tuple[list[Float64Array], list[Float64Array]]:
        """Return δ of each matrix as rows, and as coordinates.

        Parameters
        ----------
        tape : Tape
        gradient : (k, samples, outputs) ndarray
            Gradients of k functions with respect to the outputs.

        Returns
        -------
        list of (k · samples, rows) ndarray, list of ndarray
        """
        count, samples, _ = gradient.shape
        deltas, located = [], []
        delta = gradient.reshape(count * samples, -1)
        skip, above = 0.0, np.zeros((0, 0))
        for number in reversed(range(len(self.weights))):
            weights = self.weights[number]
            if not np.isfinite(delta).all():
                raise NonFiniteError(self.chain, self._layer(number + 1), "gradient")
            coordinates = weights.locate(delta, 1)
            deltas.append(delta)
            located.append(coordinates)
            if number == 0:
                break
            at_a = weights.times(coordinates, 1, weights.value)
            at_x = skip * self._columns(above, count) if skip != 0.0 else 0.0
            h = tape.rows[number].down(self._columns(at_a, count), at_x)
            above, skip = h.reshape(len(h), -1).T, self.architecture.layers[number].rows.skip
            delta = np.ascontiguousarray(above)
        return deltas[::-1], located[::-1]

    def gradients(self, tape: Tape, gradient: Float64Array) -> list[Float64Array]:
        """Return the gradient of each value, given that of the outputs, (samples, outputs)."""
        _, located = self.backward(tape, gradient[None])
        parts = zip(self.weights, located, tape.located, strict=True)
        return [weights.gradient(delta, x) for weights, delta, x in parts]

    def along(self, tape: Tape, directions: list[Float64Array]) -> Float64Array:
        """Return the derivative of the outputs along directions of the values."""
        change = self.weights[0].times(tape.located[0], 0, directions[0])
        for weights, x, direction, rows, layer in zip(
            self.weights[1:], tape.located[1:], directions[1:], tape.rows[1:],
            [*self.architecture.layers[2:], None], strict=True,
        ):  # fmt: skip
            at_a, at_x = (part[:, 0].T for part in rows.along(change.T[:, None]))
            moved = weights.locate(at_a, 0)
            change = weights.times(x, 0, direction) + weights.times(moved, 0, weights.value)
            if layer is not None and layer.rows.skip != 0.0:
                change = change + layer.rows.skip * at_x
        return change

    def kernel(self, tape: Tape) -> Float64Array:
        """Return Θ, (samples · outputs, samples · outputs), with the sample as the slower index.

        It is the sum over matrices of factor · ⟨∂f_i/∂W, ∂f_j/∂W⟩: one small step of gradient
        descent of rate η changes the outputs by −η Θ ∂L/∂f.
        """
        samples, outputs = tape.outputs.shape
        if self.architecture.mixes_samples:
            seeds = np.eye(samples * outputs).reshape(-1, samples, outputs)
        else:  # a sample's outputs depend on this sample alone
            seeds = np.eye(outputs)[:, None, :].repeat(samples, axis=1)
        deltas, _ = self.backward(tape, seeds)
        total = np.zeros((samples * outputs, samples * outputs))
        for matrix, delta, rows in zip(self.architecture.matrices, deltas, tape.rows, strict=True):
            a = rows.outputs()
            gram = a.T @ a
            products = (delta @ delta.T).reshape(len(seeds), samples, len(seeds), samples)
            if self.architecture.mixes_samples:
                part = np.einsum("ksjt,st->kj", products, gram)
            else:
                part = (products * gram[:, None, :]).transpose(1, 0, 3, 2).reshape(total.shape)
            total += matrix.factor * part
        return total

    def kernel_times(self, tape: Tape, vector: Float64Array) -> Float64Array:
        """Return Θ v for v of shape (samples, outputs), by one backward and one tangent pass."""
        gradients = self.gradients(tape, vector)
        factors = [matrix.factor for matrix in self.architecture.matrices]
        directions = [factor * part for factor, part in zip(factors, gradients, strict=True)]
        return self.along(tape, directions)

    def asked(self) -> list[tuple[int, int]]:
        """Return how many directions each matrix and its transpose were asked for; 0 if drawn."""
        return [
            weights.matrix.asked if isinstance(weights, ImplicitWeights) else (0, 0)
            for weights in self.weights
        ]

    def _product(self, weights: Weights, a: Float64Array) -> tuple[Float64Array, Float64Array]:
        """Return W a, (rows, samples), and the coordinates of a."""
        coordinates = weights.locate(np.ascontiguousarray(a.T), 0)
        return weights.times(coordinates, 0, weights.value).T, coordinates

    def _columns(self, rows: Float64Array, count: int) -> Float64Array:
        """Return rows of k functions as (width, k, samples)."""
        return rows.T.reshape(rows.shape[1], count, -1)

    def _layer(self, number: int) -> int:
        """Return the number of a layer of the network."""
        return number - self.architecture.first

    def _require_finite(self, h: Float64Array, number: int) -> None:
        """Raise if a layer leaves the range of numbers, as that of a training that diverges."""
        if not np.abs(h).max() < _LARGEST:
            what = "outputs" if number == len(self.architecture.layers) else "representation"
            raise NonFiniteError(self.chain, self._layer(number), what)
