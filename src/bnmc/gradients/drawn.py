"""The backward pass of networks whose rows are all in memory, one network at a time.

`DrawnTask` draws weights: the reference, and the way of other laws of weights.  `ReplayedTask`
makes none, for the layers that the kernels of `descent.py` do not know: norms over the features,
other orders of norm and activation, and biases.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from threading import Event
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from bnmc.chain.start import Covariance, Representation
from bnmc.errors import NonFiniteError
from bnmc.gradients.directions import GivenRows, Readout
from bnmc.gradients.network import Network, first_rows
from bnmc.gradients.observables import GradientView
from bnmc.gradients.parts import Part, Task
from bnmc.gradients.products import DrawnWeights, ReplayedRows

__all__ = ["DrawnTask", "NetworkTask", "ReplayedTask"]

Float64Array = NDArray[np.float64]


@dataclass(frozen=True)
class NetworkTask(Task):
    """A backward pass with all layers of a network in memory.

    Random numbers have the precision `dtype`; all products are float64.
    """

    #: The products with weights.
    products: ClassVar[type[DrawnWeights | ReplayedRows]]

    def __call__(
        self, start: Covariance | Representation, first: int, last: int, stop: Event | None = None
    ) -> Part | None:
        """Take chains first:last forward and back; return None if told to stop."""
        done = []
        for number in range(first, last):
            if stop is not None and stop.is_set():
                return None
            done.append(self._one(start.part(number - first, number - first + 1), number))
        return Part.joined(done)

    def bytes_of_network(self) -> int:
        """Return the bytes of one network, about."""
        width, columns = self.chain.width, self.columns
        # Representations, their norms or normals of all layers; and a weight matrix.
        rows = 8 * width * columns * (3 * self.depth + 10)
        return rows + 24 * width**2 * (self.products is DrawnWeights)

    def _one(self, start: Covariance | Representation, number: int) -> Part:
        """Take one chain forward and back."""
        chain, depth = self.chain, self.depth
        of_run = self.inputs, self.dtype, self.key, number, number + 1
        network = Network(
            chain, self.inputs or 1, first_rows(chain, start, *of_run),
            self.products(chain, *of_run), depth, number,
        )  # fmt: skip
        grams = np.concatenate([network.gram(layer) for layer in range(depth + 1)])
        states = np.zeros((depth, 3, self.columns, self.columns))
        scales = np.zeros(depth)
        delta, scale = self._top(network, number)
        for layer in range(depth, 0, -1):
            if layer < depth:
                delta, more = _scaled(network.down(layer + 1, delta))
                scale += more
            if not np.isfinite(delta).all():
                raise NonFiniteError(number, layer, "gradient")
            scales[layer - 1] = scale
            # The place between is that of products with normals, which there are none of.
            states[layer - 1, 0] = delta[0].T @ delta[0] / chain.width
            states[layer - 1, 2] = network.hidden(layer)[0].T @ delta[0] / chain.width
        return self._part(number, grams, states, scales)

    def _top(self, network: Network, number: int) -> tuple[Float64Array, int]:
        """Return δ of the last layer, (1, width, columns), in units of 2**exponent."""
        width, direction = self.chain.width, self.direction
        generator = np.random.Generator(np.random.Philox(key=self.key, counter=[0, 0, 0, number]))
        if isinstance(direction, GivenRows):
            return _scaled(direction.of(number).T[None])
        if not isinstance(direction, Readout):
            return _scaled(generator.standard_normal((1, width, self.columns)))
        readout = generator.standard_normal((direction.classes, width)) / math.sqrt(width)
        outputs = (readout @ network.activations(self.depth)[0]).T
        if not np.isfinite(outputs).all():
            raise NonFiniteError(number, self.depth, "outputs")
        gradient, exponent = _scaled(direction(outputs))
        delta, more = _scaled(network.through_activation(self.depth, (gradient @ readout).T[None]))
        return delta, exponent + more

    def _part(
        self, number: int, grams: Float64Array, states: Float64Array, scales: Float64Array
    ) -> Part:
        """Return the results of one chain, from its Gram matrices and the states of layers."""
        products = np.einsum("lij,lij->l", states[:, 0], grams[:-1])
        factor = 2.0 * math.log(abs(self.chain.gain) * self.chain.width)
        with np.errstate(divide="ignore"):
            logs = 0.5 * (np.log(np.maximum(products, 0.0)) + factor)
        logs += math.log(2.0) * scales
        slots = self.recorded.slots(np.arange(1, self.depth + 1))
        due = np.flatnonzero(slots >= 0)
        view = GradientView(self.chain, grams[None, due + 1], states[None, due])
        values = {one.name: one.evaluate(view) for one in self.observables}
        return Part(number, logs[None], values, math.log(2.0) * scales[None, due], [])


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


def _scaled(values: Float64Array) -> tuple[Float64Array, int]:
    """Return an array divided by a power of two, so that its largest entry is about 1."""
    largest = float(np.abs(values).max())
    if largest == 0.0 or not math.isfinite(largest):
        return values, 0
    exponent = math.frexp(largest)[1]
    return np.ldexp(values, -exponent), exponent
