"""The backward pass of networks with the rows of a stretch of layers, one network at a time.

The forward pass keeps the layers at the ends of stretches; going back, each stretch is made again
from its counters.

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
from bnmc.chain.network import Layer
from bnmc.chain.start import Covariance, Representation
from bnmc.errors import NonFiniteError
from bnmc.gradients.directions import GivenRows, Readout, scaled
from bnmc.gradients.network import Network, first_rows
from bnmc.gradients.parts import Part, Task, layers_of_stretch
from bnmc.gradients.products import DrawnWeights, ReplayedRows

Float64Array = NDArray[np.float64]

#: Bytes that the rows of a stretch of layers may take.
ROWS_BYTES = 1 << 25

#: Arrays of width × columns that a layer keeps: h, N(h) and normals, and some that NumPy makes.
_LAYER_ROWS = 4

#: Arrays of the size of the patches that a convolution needs.
_PATCHES = 6


@dataclass(frozen=True)
class NetworkTask(Task):
    """A backward pass with the rows of a stretch of layers in memory.

    Random numbers have the precision `dtype`; all products are float64.
    """

    #: The products with weights.
    products: ClassVar[type[DrawnWeights | ReplayedRows]]

    def __call__(
        self, start: Covariance | Representation, first: int, last: int, stop: Event | None = None
    ) -> Part | None:
        """Take chains first:last forward and back; return None if told to stop."""
        done = []
        with one_blas_thread():
            for number in range(first, last):
                part = self._one(
                    start.part(number - first, number - first + 1), number, stop or Event()
                )
                if part is None:
                    return None
                done.append(part)
        return Part.joined(done)

    def bytes_of_network(self) -> int:
        """Return the bytes of one network, about."""
        width, columns, layers = self.chain.width, self.columns, self._stretch()
        # Rows of a stretch: representations, their norms, and normals; rows at the ends of
        # stretches; what a layer needs; and a weight matrix.
        rows = _LAYER_ROWS * layers + 2 * (self.depth // layers) + 10
        matrices = 4 * columns**2 * layers
        size = 8 * (width * columns * rows + matrices)
        if self.chain.convolution is not None:  # the patches of a layer, and products with them
            size += 8 * _PATCHES * self.chain.fan_in * columns
        return size + 24 * width * self.chain.fan_in * (self.products is DrawnWeights)

    def _stretch(self) -> int:
        """Return the layers of a stretch."""
        size = 8 * _LAYER_ROWS * self.chain.width * self.columns
        return layers_of_stretch(self.depth, size, ROWS_BYTES)

    def _network(self, start: Float64Array | Layer, begin: int, last: int, number: int) -> Network:
        """Return the rows of the layers of a stretch."""
        weights = self.products(self.chain, self.inputs, self.dtype, self.key, number, number + 1)
        return Network(self.chain, self.inputs or 1, start, weights, last, number, begin)

    def _one(self, start: Covariance | Representation, number: int, stop: Event) -> Part | None:
        """Take one chain forward and back; return None if told to stop."""
        depth, size = self.depth, self._stretch()
        of_run = self.inputs, self.dtype, self.key, number, number + 1
        begin: Float64Array | Layer = first_rows(self.chain, start, *of_run)
        begins: list[Float64Array | Layer] = []
        network = None
        for first in range(0, depth, size):
            if stop.is_set():
                return None
            network = None  # before the rows of the next stretch are made
            network = self._network(begin, first, min(first + size, depth), number)
            begins.append(begin)
            begin = network.layer(min(first + size, depth))
        assert network is not None
        delta, scale = self._top(network, number)
        part = Part.empty(self, number, number + 1)
        for first in reversed(range(0, depth, size)):
            last = min(first + size, depth)
            begin = begins.pop()
            if stop.is_set():
                return None
            if last < depth:
                network = None
                network = self._network(begin, first, last, number)
            grams = np.concatenate([network.gram(layer) for layer in range(first, last + 1)])
            states = np.zeros((last - first, 3, self.columns, self.columns))
            scales = np.zeros(last - first)
            for layer in range(last, first, -1):
                if not np.isfinite(delta).all():
                    raise NonFiniteError(number, layer, "gradient")
                index = layer - first - 1
                scales[index] = scale
                # Place 1 is for products with normals; no later step reads it.
                states[index, 0] = delta[0].T @ delta[0] / self.chain.width
                if self.wants_hidden:
                    states[index, 2] = network.hidden(layer)[0].T @ delta[0] / self.chain.width
                if layer > 1:
                    delta, more = scaled(network.down(layer, delta))
                    scale += more
            units = np.zeros((1, len(grams), self.columns), np.int64)
            part.record(self, first, grams[None], units, states[None], scales[None])
        return part

    def _top(self, network: Network, number: int) -> tuple[Float64Array, int]:
        """Return δ of the last layer, (1, width, columns), in units of 2**exponent."""
        width, direction = self.chain.width, self.direction
        generator = np.random.Generator(np.random.Philox(key=self.key, counter=[0, 0, 0, number]))
        if isinstance(direction, GivenRows):
            return scaled(direction.of(number).T[None])
        if not isinstance(direction, Readout):
            return scaled(generator.standard_normal((1, width, self.columns)))
        readout = generator.standard_normal((direction.classes, width)) / math.sqrt(width)
        outputs = readout @ network.activations(self.depth)[0]
        gradient, exponent = scaled(direction.of_columns(outputs, number, self.depth))
        at_a = (gradient.T @ readout).T
        delta, more = scaled(network.through_activation(self.depth, at_a[None]))
        return delta, exponent + more


@dataclass(frozen=True)
class DrawnTask(NetworkTask):
    """A backward pass that draws every weight matrix, multiplies by it, and by its transpose."""

    products = DrawnWeights

    @property
    def sampler(self) -> str:
        """What `backpropagate` calls the sampler."""
        return "weights"


@dataclass(frozen=True)
class ReplayedTask(NetworkTask):
    """A backward pass that draws the rows of `simulate`, and products given these."""

    products = ReplayedRows
