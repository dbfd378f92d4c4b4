"""Forward, backward and tangent passes of one network in training, with a tape written by hand."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from bnmc._support.arguments import Float64Array
from bnmc.chain.layers import Rows
from bnmc.errors import NonFiniteError, ZeroVarianceError
from bnmc.training.architecture import ACTIVATIONS, STATE, Architecture, Source, rows_for
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
        #: The numbers of the matrices that lead to each layer, and to the outputs.
        self._before: list[list[int]] = [[] for _ in range(len(architecture.layers) + 1)]
        for number, matrix in enumerate(architecture.matrices):
            self._before[matrix.target].append(number)
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
        layers, matrices = self.architecture.layers, self.architecture.matrices
        maps = rows_for(layers, inputs.shape[1])
        rows, hidden = [maps[0].rows(inputs)], [inputs]
        located = [np.zeros((0, 0))] * len(matrices)
        for target, numbers in enumerate(self._before[1:], 1):
            h = np.zeros((matrices[numbers[0]].rows, 0))
            for number in numbers:
                weights, matrix = self.weights[number], matrices[number]
                a = np.ascontiguousarray(matrix.source.of(rows).T)
                located[number] = weights.locate(a, 0)
                product = weights.times(located[number], 0, weights.value).T
                h = h + matrix.scale * product if h.size else product
            if target in self.architecture.skips:
                h += layers[target].rows.skip * self.architecture.skips[target].of(rows)
            self._require_finite(h, target)
            if target == len(layers):
                break
            made = maps[target]
            normed = made.normalise(y := made.argument(h))
            if flat := made.without_variance(y[None]):
                raise ZeroVarianceError(self.chain, self._layer(target), *flat[1:])
            hidden.append(h)
            rows.append(made.rows(h, normed))
        return Tape(rows, hidden, located, np.ascontiguousarray(h.T))

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
        matrices, skips = self.architecture.matrices, self.architecture.skips
        deltas = [np.zeros((0, 0))] * len(matrices)
        located = list(deltas)
        # The gradients with respect to what matrices and skip connections take.
        at: dict[Source, Any] = {}

        def add(source: Source, part: Float64Array) -> None:
            at[source] = at.get(source, 0.0) + self._columns(part, count)

        delta = gradient.reshape(count * samples, -1)
        for target in reversed(range(1, len(self._before))):
            if target < len(tape.rows):
                parts = (at.pop(Source(target, part), 0.0) for part in (ACTIVATIONS, STATE))
                h = tape.rows[target].down(*parts)
                delta = np.ascontiguousarray(h.reshape(len(h), -1).T)
            if not np.isfinite(delta).all():
                raise NonFiniteError(self.chain, self._layer(target), "gradient")
            for number in self._before[target]:
                weights, matrix = self.weights[number], matrices[number]
                deltas[number] = delta if matrix.scale == 1.0 else matrix.scale * delta
                located[number] = weights.locate(deltas[number], 1)
                if matrix.source.layer > 0:
                    at_source = weights.times(located[number], 1, weights.value)
                    add(matrix.source, at_source)
            if target in skips:
                add(skips[target], self.architecture.layers[target].rows.skip * delta)
        return deltas, located

    def gradients(self, tape: Tape, gradient: Float64Array) -> list[Float64Array]:
        """Return the gradient of each value, given that of the outputs, (samples, outputs)."""
        _, located = self.backward(tape, gradient[None])
        parts = zip(self.weights, located, tape.located, strict=True)
        return [weights.gradient(delta, x) for weights, delta, x in parts]

    def along(self, tape: Tape, directions: list[Float64Array]) -> Float64Array:
        """Return the derivative of the outputs along directions of the values."""
        matrices, skips = self.architecture.matrices, self.architecture.skips
        moved: dict[Source | None, Float64Array] = {}
        for target, numbers in enumerate(self._before[1:], 1):
            change: Any = 0.0
            for number in numbers:
                weights, matrix = self.weights[number], matrices[number]
                part = weights.times(tape.located[number], 0, directions[number])
                if matrix.source in moved:
                    located = weights.locate(moved[matrix.source], 0)
                    part = part + weights.times(located, 0, weights.value)
                change = change + matrix.scale * part
            if (source := skips.get(target)) in moved:
                change = change + self.architecture.layers[target].rows.skip * moved[source]
            if target < len(tape.rows):
                at_a, at_x = (part[:, 0].T for part in tape.rows[target].along(change.T[:, None]))
                moved |= {Source(target): at_a, Source(target, STATE): at_x}
        return np.asarray(change)

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
        for matrix, delta in zip(self.architecture.matrices, deltas, strict=True):
            a = matrix.source.of(tape.rows)
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
        """Return the numbers of directions of each matrix and of its transpose; 0 if drawn."""
        return [
            weights.matrix.asked if isinstance(weights, ImplicitWeights) else (0, 0)
            for weights in self.weights
        ]

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
