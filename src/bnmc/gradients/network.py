"""Forward and backward passes in NumPy, of networks with the rows of many layers in memory.

`Network` computes the forward pass and the backward pass of an ensemble, for every norm, order and
bias.  The classes of `products.py` multiply by the weights and by their transposes.  Arrays have
the shape (networks, width, columns) and the dtype float64.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from bnmc._kernels.cpu import memory
from bnmc._kernels.scalar.codes import NORM_FIRST, NORM_IN_BRANCH
from bnmc.chain.chain import Chain
from bnmc.chain.layers import Normalised, RowMap, Rows
from bnmc.chain.start import Covariance, Representation
from bnmc.errors import NonFiniteError, ZeroVarianceError
from bnmc.gradients.products import Weights
from bnmc.simulation.engine.rows import RowSampler
from bnmc.simulation.runs import Run

Float64Array = NDArray[np.float64]


def start_rows(run: Run, start: Covariance | Representation) -> Float64Array:
    """Return x of layer 0, which a skip connection keeps, (chains, width, columns)."""
    run, width = replace(run, path="weights"), run.chain.width
    sampler = RowSampler(run)
    # Also without a skip connection.
    shape = run.chains, run.columns, memory.stride(width)
    sampler.xs = memory.aligned_zeros(shape, sampler.dtype)
    frames = run.frames(1)
    sampler.begin(start, 0, run.chains, frames)
    x = sampler.xs[:, :, :width].swapaxes(1, 2).astype(np.float64)
    if run.splits_scale:
        x = np.ldexp(x, frames.units.astype(np.int32))
    return np.ascontiguousarray(x)


class Network:
    """Some networks with the rows of successive layers.

    Parameters
    ----------
    chain : Chain
    inputs : int
    start : (networks, width, columns) ndarray or Rows
        Layer 0: what a skip connection keeps; or layer `begin` of such a network.
    weights : Weights
    last : int
        The last layer.
    first : int
        Number of the first network, for errors.
    begin : int, default 0
        The first layer.
    """

    def __init__(
        self,
        chain: Chain,
        inputs: int,
        start: Float64Array | Rows,
        weights: Weights,
        last: int,
        first: int,
        begin: int = 0,
    ) -> None:
        self.chain, self.inputs, self.weights = chain, inputs, weights
        self._first = first
        self._made = RowMap(
            chain.activation, chain.normalization, chain.order_code, chain.batch, chain.eps
        )
        if not isinstance(start, Rows):
            # A norm before the state has been applied to that of layer 0.
            is_first = chain.order_code == NORM_FIRST
            normed = Normalised(start, None, None) if is_first else self._normalised(start, 0)
            start = self._made.rows(start, normed)
        self._layers = {begin: start}
        for layer in range(begin + 1, last + 1):
            h = chain.skip * self.x_of(layer - 1)
            h += chain.gain * weights.times(layer, self.activations(layer - 1))
            self._layers[layer] = self._made.rows(h, self._normalised(h, layer))
            self._require_range(layer)

    def layer(self, number: int) -> Rows:
        """Return a layer, with which another network may start."""
        return self._layers[number]

    def x_of(self, layer: int) -> Float64Array:
        """Return x of a layer, which a skip connection keeps."""
        return self._layers[layer].x

    def activations(self, layer: int) -> Float64Array:
        """Return the activations a of a layer, which W multiplies."""
        return self._layers[layer].outputs()

    def gram(self, layer: int) -> Float64Array:
        """Return the Gram matrices aᵀa / width of a layer."""
        a = self.activations(layer)
        return a.swapaxes(1, 2) @ a / self.chain.width

    def hidden(self, layer: int) -> Float64Array:
        """Return h of a layer from 1 on, without the means of rows if no later layer sees them."""
        chain, x = self.chain, self.x_of(layer)
        if chain.order_code != NORM_FIRST:
            if not (chain.normalization.hides_common_part and chain.order_code == NORM_IN_BRANCH):
                return x
            rows = self._made.parts(x)
            seen: Float64Array = rows - rows.mean(axis=-1, keepdims=True)
            return seen.reshape(x.shape)
        normed = self._layers[layer].normed
        if normed.spread is None:
            return x
        h = self._made.parts(x) * normed.spread
        if normed.mean is not None and chain.normalization.axis == "features":
            h = h + normed.mean
        return h.reshape(x.shape)

    def through_activation(self, layer: int, gradient: Float64Array) -> Float64Array:
        """Return the gradient with respect to h, given that with respect to a.

        Parameters
        ----------
        layer : int
            From 1 on.
        gradient : (networks, width, k * columns) ndarray
            Gradients of k functions.
        """
        return self._layers[layer].down(self._by_function(gradient)).reshape(gradient.shape)

    def down(self, layer: int, delta: Float64Array) -> Float64Array:
        """Return the gradients with respect to h of layer - 1, given those of h of a layer >= 2."""
        chain = self.chain
        at_a = self.weights.transposed_times(layer, self.activations(layer - 1), delta)
        at_a *= chain.gain
        at_x = chain.skip * self._by_function(delta) if chain.skip != 0.0 else 0.0
        return self._layers[layer - 1].down(self._by_function(at_a), at_x).reshape(delta.shape)

    def _by_function(self, gradient: Float64Array) -> Float64Array:
        networks, width, _ = gradient.shape
        return gradient.reshape(networks, width, -1, self.chain.batch * self.inputs)

    def _normalised(self, h: Float64Array, layer: int) -> Normalised:
        """Apply the norm at its place of the layer."""
        chain, y = self.chain, self._made.argument(h)
        if chain.eps == 0.0 and not chain.normalization.is_identity:
            self._require_variance(y, layer)
        return self._made.normalise(y)

    def _require_variance(self, y: Float64Array, layer: int) -> None:
        """Raise if a row or a sample has no variance."""
        norm = self.chain.normalization
        parts = self._made.parts(y) if norm.acts_on_rows else y
        places = np.argwhere(norm.without_variance(parts))
        if places.size == 0:
            return
        index, place = (int(i) for i in places[0, :2])
        row, sample = (place, None) if norm.acts_on_rows else (None, place)
        raise ZeroVarianceError(self._first + index, layer, row, sample)

    def _require_range(self, layer: int) -> None:
        """Raise if the squares of a representation without a norm are out of range."""
        if not self.chain.normalization.is_identity:
            return
        largest = np.abs(self.x_of(layer)).max(axis=(1, 2))
        wrong = np.flatnonzero(~(largest < 1e150) | ((largest > 0.0) & (largest < 1e-140)))
        if wrong.size:
            raise NonFiniteError(self._first + int(wrong[0]), layer, "Gram matrix")
