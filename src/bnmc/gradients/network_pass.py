"""The backward pass of networks with the rows of a stretch of layers, one network at a time.

`DrawnTask` draws weights: it is the reference, and takes every law of weights.  `ReplayedTask`
draws no weights.  It takes the layers without kernels in `descent.py`: norms over the features,
other orders of norm and activation, biases and convolutions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from threading import Event
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from bnmc._support.machine import one_blas_thread
from bnmc.chain.layers import Rows
from bnmc.chain.start import Covariance, Representation
from bnmc.errors import NonFiniteError
from bnmc.gradients.directions import GivenRows, Readout, scaled
from bnmc.gradients.forward import Stretch
from bnmc.gradients.network import Network, start_rows
from bnmc.gradients.observables import Gradients
from bnmc.gradients.parts import Part, Pass, Task, layers_of_stretch
from bnmc.gradients.products import DrawnWeights, ReplayedRows
from bnmc.simulation.runs import Run

Float64Array = NDArray[np.float64]

#: Bytes that the rows of a stretch of layers may take.
ROWS_BYTES = 1 << 25

#: Arrays of width × columns that a layer keeps: h, N(h) and normals, and some that NumPy makes.
_LAYER_ROWS = 4

#: Arrays of the size of the patches that a convolution needs.
_PATCHES = 6


class _NetworkPass(Pass):
    """The way of one network; the state of a layer is its rows."""

    task: NetworkTask
    _network: Network | None = None
    _delta: Float64Array
    _scale: int

    def _checkpoints(self, layers: list[int]) -> list[Rows]:
        states: list[Rows] = []
        for first, last in zip([0, *layers], layers, strict=False):
            if not self.stop.is_set():
                state = states[-1] if states else None
                states.append(self._layers(state, first, last).layer(last))
        return states

    def _layers(self, state: Rows | None, first: int, last: int) -> Network:
        """Return the rows of layers."""
        run = self.run
        rows = start_rows(run, self.start) if state is None else state
        weights = self.task.products(run)
        return Network(run.chain, run.inputs or 1, rows, weights, last, run.first, first)

    def _stretch(self, state: Rows | None, first: int, last: int) -> Stretch:
        self._network = None  # before the rows of the next stretch are made
        network = self._network = self._layers(state, first, last)
        grams = np.stack([network.gram(layer) for layer in range(first, last + 1)], axis=1)
        none, narrow = np.zeros((1, 1, 1, 1)), np.zeros(1, np.bool_)
        return Stretch(first, grams, np.zeros(grams.shape[:3], np.int64), none, narrow, narrow)

    def _descend(self, stretch: Stretch, gradients: Gradients) -> None:
        network, run, (products, scales) = self._network, self.run, gradients.chain(0)
        assert network is not None
        if stretch.first + stretch.layers == run.depth:
            self._delta, self._scale = self._top(network)
        for index in reversed(range(stretch.layers)):
            delta, layer = self._delta, stretch.first + 1 + index
            if not np.isfinite(delta).all():
                raise NonFiniteError(run.first, layer, "gradient")
            scales[index] = self._scale
            # Place 1 is for products with normals; no later step reads it.
            products[index, 0] = delta[0].T @ delta[0] / run.chain.width
            if self.task.wants_hidden:
                products[index, 2] = network.hidden(layer)[0].T @ delta[0] / run.chain.width
            if layer > 1:
                self._delta, more = scaled(network.down(layer, delta))
                self._scale += more

    def _top(self, network: Network) -> tuple[Float64Array, int]:
        """Return δ of the last layer, (1, width, columns), in units of 2**exponent."""
        run, direction, number = self.run, self.task.direction, self.run.first
        width, depth = run.chain.width, run.depth
        generator = np.random.Generator(np.random.Philox(key=run.key, counter=[0, 0, 0, number]))
        if isinstance(direction, GivenRows):
            return scaled(direction.of(number).T[None])
        if not isinstance(direction, Readout):
            return scaled(generator.standard_normal((1, width, run.columns)))
        readout = generator.standard_normal((direction.classes, width)) / math.sqrt(width)
        outputs = readout @ network.activations(depth)[0]
        gradient, exponent = scaled(direction.of_columns(outputs, number, depth))
        at_a = (gradient.T @ readout).T
        delta, more = scaled(network.through_activation(depth, at_a[None]))
        return delta, exponent + more


@dataclass(frozen=True)
class NetworkTask(Task):
    """A backward pass with the rows of a stretch of layers in memory.

    Random numbers have the precision `dtype`; all products are float64.
    """

    #: The products with weights.
    products: ClassVar[type[DrawnWeights | ReplayedRows]]
    chains_of_pass = 1

    def __call__(
        self, start: Covariance | Representation, first: int, last: int, stop: Event | None = None
    ) -> Part | None:
        """Take chains first:last forward and back; return None if told to stop."""
        with one_blas_thread():
            return super().__call__(start, first, last, stop)

    def pass_of(self, run: Run, start: Covariance | Representation, stop: Event) -> Pass:
        """Return the pass of one network."""
        return _NetworkPass(self, run, start, stop)

    def layers_of_stretch(self, chains: int) -> int:
        """Return the number of layers of a stretch."""
        size = 8 * _LAYER_ROWS * self.run.chain.width * self.run.columns
        return layers_of_stretch(self.run.depth, size, ROWS_BYTES)

    def bytes_of_pass(self, chains: int) -> int:
        """Return the bytes of one network, about."""
        chain, columns, layers = self.run.chain, self.run.columns, self.layers_of_stretch(1)
        # Rows of a stretch: representations, their norms, and normals; rows at the ends of
        # stretches; what a layer needs; and a weight matrix.
        rows = _LAYER_ROWS * layers + 2 * (self.run.depth // layers) + 10
        size = 8 * (chain.width * columns * rows + 4 * columns**2 * layers)
        if chain.convolution is not None:  # the patches of a layer, and products with them
            size += 8 * _PATCHES * chain.fan_in * columns
        return size + 24 * chain.width * chain.fan_in * (self.products is DrawnWeights)


@dataclass(frozen=True)
class DrawnTask(NetworkTask):
    """A backward pass that draws every weight matrix, multiplies by it, and by its transpose."""

    products = DrawnWeights


@dataclass(frozen=True)
class ReplayedTask(NetworkTask):
    """A backward pass that draws the rows of `simulate`, and products given these."""

    products = ReplayedRows
