"""Forward and backward passes in NumPy, of networks whose rows are all in memory.

`Network` computes the forward pass and the backward pass of an ensemble, for every norm, order and
bias.  The classes of `products.py` multiply by the weights and by their transposes.  Arrays have
the shape (networks, width, columns) and the dtype float64.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bnmc._kernels.scalar.codes import ACTIVATION_FIRST, NORM_FIRST, NORM_IN_BRANCH
from bnmc.chain.activations import Activation
from bnmc.chain.chain import Chain
from bnmc.chain.slopes import slope_at
from bnmc.chain.start import Covariance, Representation
from bnmc.errors import NonFiniteError, ZeroVarianceError
from bnmc.gradients.products import Weights
from bnmc.simulation.engine.state import Frames
from bnmc.simulation.engine.weights import WeightsSampler

__all__ = ["Network", "first_rows"]

Float64Array = NDArray[np.float64]


def first_rows(
    chain: Chain,
    start: Covariance | Representation,
    inputs: int | None,
    dtype: str,
    key: int,
    first: int,
    last: int,
) -> Float64Array:
    """Return what a skip connection keeps of layer 0, of networks first:last of `simulate`."""
    # With a skip connection, samplers keep representations; that of layer 0 is the same.
    sampler = WeightsSampler(_with_skip(chain), last - first, inputs, dtype, key, first)
    none = np.zeros((last - first, 1, sampler.columns, sampler.columns))
    units = np.zeros((last - first, 1, sampler.columns), np.int64)
    unscaled = np.zeros((last - first, 1))
    frames = Frames(none, unscaled, np.zeros((last - first, 1, 0)), units=units)
    sampler.begin(start, 0, last - first, frames)
    x = sampler.xs[:, :, : chain.width].swapaxes(1, 2).astype(np.float64)
    return np.ascontiguousarray(np.ldexp(x, units.astype(np.int32)))


def _with_skip(chain: Chain) -> Chain:
    if chain.skip != 0.0:
        return chain
    # Without a skip connection, the norm inside the branch is that before the state.
    order = "norm-activation" if chain.order_code == NORM_FIRST else chain.order
    return Chain(
        chain.width, chain.batch, chain.activation, norm=chain.normalization, skip=1.0,
        gain=chain.gain, weights=chain.weights, eps=chain.eps, order=order,
        bias_variance=chain.bias_variance,
    )  # fmt: skip


class Network:
    """Some networks with all their layers.

    Parameters
    ----------
    chain : Chain
    inputs : int
    x : (networks, width, columns) ndarray
        Layer 0: what a skip connection keeps.
    weights : Weights
    depth : int
    first : int
        Number of the first network, for errors.

    Attributes
    ----------
    x : list of (networks, width, columns) ndarray
        What a skip connection keeps of layers 0, …, depth: N(h), or h in other orders.
    """

    def __init__(
        self, chain: Chain, inputs: int, x: Float64Array, weights: Weights, depth: int, first: int
    ) -> None:
        self.chain, self.inputs, self.weights, self.depth = chain, inputs, weights, depth
        self._first = first
        self.x: list[Float64Array] = []
        self._normed: list[Normalised] = []
        is_first = chain.order_code == NORM_FIRST
        # A norm before the state has been applied to that of layer 0.
        self._keep(x, Normalised(x, None, None) if is_first else self._normalise(x, 0))
        for layer in range(1, depth + 1):
            h = chain.skip * self.x[-1]
            h += chain.gain * weights.times(layer, self.activations(layer - 1))
            normed = self._normalise(h, layer)
            self._keep(normed.values if is_first else h, normed)
            self._require_range(layer)

    def _keep(self, x: Float64Array, normed: Normalised) -> None:
        self.x.append(x)
        self._normed.append(normed)

    def activations(self, layer: int) -> Float64Array:
        """Return the activations a of a layer, which W multiplies."""
        normed = self._normed[layer].values
        if self.chain.order_code == ACTIVATION_FIRST:
            return normed
        return _applied(self.chain.activation, normed)

    def gram(self, layer: int) -> Float64Array:
        """Return the Gram matrices aᵀa / width of a layer."""
        a = self.activations(layer)
        return a.swapaxes(1, 2) @ a / self.chain.width

    def hidden(self, layer: int) -> Float64Array:
        """Return h of a layer from 1 on, without the means of rows if no later layer sees them."""
        chain, x = self.chain, self.x[layer]
        if chain.order_code != NORM_FIRST:
            if not (chain.normalization.hides_common_part and chain.order_code == NORM_IN_BRANCH):
                return x
            rows = self._parts(x)
            seen: Float64Array = rows - rows.mean(axis=-1, keepdims=True)
            return seen.reshape(x.shape)
        normed = self._normed[layer]
        if normed.spread is None:
            return x
        h = self._parts(x) * normed.spread
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
        if self.chain.order_code == ACTIVATION_FIRST:
            slopes = slope_at(self.chain.activation, self.x[layer])
            return self._many(self.through_norm(layer, gradient), slopes)
        slopes = slope_at(self.chain.activation, self._normed[layer].values)
        return self.through_norm(layer, self._many(gradient, slopes))

    def through_norm(self, layer: int, gradient: Float64Array) -> Float64Array:
        """Return the gradient with respect to y, given that with respect to N(y)."""
        normed, norm = self._normed[layer], self.chain.normalization
        if normed.spread is None:
            return gradient
        if self.chain.eps == 0.0 and self._dimensions == 1:
            # N(y) is 1 or -1 in each entry, whatever y.
            return np.zeros_like(gradient)
        # The axis of moments, and that of functions, which have all columns each.
        axis, of_functions = (-1, 2) if norm.axis == "batch" else (2, 3)
        x = np.expand_dims(self._parts(normed.values), of_functions)
        g = gradient.reshape(*x.shape[:of_functions], -1, *x.shape[of_functions + 1 :])
        result: Float64Array = g - x * (g * x).mean(axis=axis, keepdims=True)
        if norm.centred:
            result -= g.mean(axis=axis, keepdims=True)
        result /= np.expand_dims(normed.spread, of_functions)
        return result.reshape(gradient.shape)

    def down(self, layer: int, delta: Float64Array) -> Float64Array:
        """Return the gradients with respect to h of layer - 1, given those of h of a layer >= 2."""
        chain = self.chain
        at_a = self.weights.transposed_times(layer, self.activations(layer - 1), delta)
        at_a *= chain.gain
        if chain.skip == 0.0:
            return self.through_activation(layer - 1, at_a)
        if chain.order_code != NORM_FIRST:
            below: Float64Array = self.through_activation(layer - 1, at_a) + chain.skip * delta
            return below
        at_x = self._many(at_a, slope_at(chain.activation, self.x[layer - 1]))
        return self.through_norm(layer - 1, at_x + chain.skip * delta)

    @property
    def _dimensions(self) -> int:
        """Dimension of the space of what the norm divides by a root mean square."""
        norm, width = self.chain.normalization, self.chain.width
        size = self.chain.batch if norm.axis == "batch" else width // norm.groups
        return size - 1 if norm.centred else size

    def _many(self, gradient: Float64Array, factor: Float64Array) -> Float64Array:
        """Return gradients of k functions times a factor that they share."""
        split = gradient.reshape(*factor.shape[:2], -1, factor.shape[2])
        return (split * factor[:, :, None]).reshape(gradient.shape)

    def _parts(self, x: Float64Array) -> Float64Array:
        """Return rows by batch, or the features by group, over which the norm takes moments."""
        norm, (networks, width, columns) = self.chain.normalization, x.shape
        if norm.axis == "features":
            return x.reshape(networks, norm.groups, width // norm.groups, columns)
        return x.reshape(networks, width, self.inputs, self.chain.batch)

    def _normalise(self, h: Float64Array, layer: int) -> Normalised:
        """Apply the norm at its place of the layer."""
        chain, norm, eps = self.chain, self.chain.normalization, self.chain.eps
        y = _applied(chain.activation, h) if chain.order_code == ACTIVATION_FIRST else h
        if norm.is_identity:
            return Normalised(y, None, None)
        parts = self._parts(y)
        if eps == 0.0:
            self._require_variance(y, parts, layer)
        axis = -1 if norm.axis == "batch" else 2
        mean = parts.mean(axis=axis, keepdims=True) if norm.centred else None
        seen = parts if mean is None else parts - mean
        spread = np.hypot(np.sqrt((seen**2).mean(axis=axis, keepdims=True)), np.sqrt(eps))
        values = norm(parts if norm.axis == "batch" else y, eps).reshape(h.shape)
        return Normalised(values, spread, mean)

    def _require_variance(self, y: Float64Array, parts: Float64Array, layer: int) -> None:
        """Raise if a row or a sample has no variance."""
        norm = self.chain.normalization
        if norm.axis == "batch":
            places = np.argwhere(norm.without_variance(parts))
        else:
            places = np.argwhere(norm.samples_without_variance(y))
        if places.size == 0:
            return
        index, place = (int(i) for i in places[0, :2])
        row, sample = (place, None) if norm.axis == "batch" else (None, place)
        raise ZeroVarianceError(self._first + index, layer, row, sample)

    def _require_range(self, layer: int) -> None:
        """Raise if the squares of a representation without a norm are out of range."""
        if not self.chain.normalization.is_identity:
            return
        largest = np.abs(self.x[layer]).max(axis=(1, 2))
        wrong = np.flatnonzero(~(largest < 1e150) | ((largest > 0.0) & (largest < 1e-140)))
        if wrong.size:
            raise NonFiniteError(self._first + int(wrong[0]), layer, "Gram matrix")


class Normalised(NamedTuple):
    """N(y), and what its derivative needs; `spread` and `mean` broadcast to the parts of y.

    values : (networks, width, columns) ndarray
    spread : ndarray or None
        Standard deviations; None without a norm, and for a layer 0 that is N of the initial state.
    mean : ndarray or None
    """

    values: Float64Array
    spread: Float64Array | None
    mean: Float64Array | None


def _applied(activation: Activation, x: Float64Array) -> Float64Array:
    values: Float64Array = activation(x)
    return values
