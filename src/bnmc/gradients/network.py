"""Networks whose rows are all in memory, in NumPy: products with weights, and norms backward.

`Network` goes forward through all layers and takes gradients down again.  It multiplies by weights
through one of two classes: `DrawnWeights` draws every matrix, for any law of weights;
`UnseenWeights` draws products with Gaussian matrices, given all products before, and makes none.
Arrays are (networks, width, columns), in float64.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from bnmc.chain.activations import Activation
from bnmc.chain.chain import Chain
from bnmc.chain.slopes import slope_at
from bnmc.chain.start import Covariance, Representation
from bnmc.errors import NonFiniteError, ZeroVarianceError
from bnmc.simulation.engine.replay import unit_weights_of_layer
from bnmc.simulation.engine.state import Frames
from bnmc.simulation.engine.weights import WeightsSampler

__all__ = ["DrawnWeights", "Network", "UnseenWeights", "first_rows"]

Float64Array = NDArray[np.float64]

#: Eigenvalues of a Gram matrix below this part of the largest one count as zero.
LEAST_EIGENVALUE = 1e-14


class Weights(Protocol):
    """Products with the weights W of the layers, for some networks."""

    def times(self, layer: int, a: Float64Array) -> Float64Array:
        """Return W a for the weights that lead to a layer, (networks, width, columns)."""

    def transposed_times(self, layer: int, a: Float64Array, delta: Float64Array) -> Float64Array:
        """Return Wᵀ δ for the same weights; `a` is that of `times`, δ has any columns."""


class DrawnWeights:
    """Weights that are drawn: those of `bnmc.drawn_weights` with the same key.

    Parameters
    ----------
    chain : Chain
    inputs : int or None
    dtype : str
        Precision of the weights.
    key : int
    first, last : int
        Numbers of the networks.
    """

    def __init__(
        self, chain: Chain, inputs: int | None, dtype: str, key: int, first: int, last: int
    ) -> None:
        self._chain, self._inputs, self._dtype, self._key = chain, inputs, dtype, key
        self._numbers = range(first, last)

    def times(self, layer: int, a: Float64Array) -> Float64Array:
        """Return W a."""
        # Scaled after the sum, so that sums of equal terms with signs ±1 vanish exactly.
        products = np.stack([w @ one for w, one in self._each(layer, a)])
        scaled: Float64Array = products / np.sqrt(a.shape[1])
        return scaled

    def transposed_times(self, layer: int, a: Float64Array, delta: Float64Array) -> Float64Array:
        """Return Wᵀ δ."""
        products = np.stack([w.T @ one for w, one in self._each(layer, delta)])
        scaled: Float64Array = products / np.sqrt(a.shape[1])
        return scaled

    def _each(
        self, layer: int, operands: Float64Array
    ) -> Iterator[tuple[Float64Array, Float64Array]]:
        """Yield the weights of each network, with entries of variance 1, and its operand."""
        for number, one in zip(self._numbers, operands, strict=True):
            weights = unit_weights_of_layer(
                self._chain, self._inputs, self._dtype, self._key, number, layer
            )
            yield weights.astype(np.float64), one


class UnseenWeights:
    """Gaussian weights that are never made: products have their law given all products before.

    The rows of W a are independent N(0, aᵀa / width).  Given h = W a, with δ a function of h,

        Wᵀ δ = a (aᵀa)⁺ (hᵀδ - aᵀZ) + Z,    rows of Z: N(0, δᵀδ / width).

    Parameters
    ----------
    generators : list of Generator
        One for each network.
    """

    def __init__(self, generators: list[np.random.Generator]) -> None:
        self._generators = generators
        self._products: dict[int, Float64Array] = {}

    def times(self, layer: int, a: Float64Array) -> Float64Array:
        """Return W a, and keep it."""
        values, vectors = _eigen(a)
        roots = vectors * np.sqrt(values / a.shape[1])[:, None]
        normals = self._normals(a.shape[1], a.shape[2])
        self._products[layer] = normals @ roots.swapaxes(1, 2)
        return self._products[layer]

    def transposed_times(self, layer: int, a: Float64Array, delta: Float64Array) -> Float64Array:
        """Return Wᵀ δ; each layer once."""
        width, columns = delta.shape[1:]
        if columns < width:
            values, vectors = _eigen(delta)
            roots = vectors * np.sqrt(values / width)[:, None]
            z = self._normals(width, columns) @ roots.swapaxes(1, 2)
        else:
            z = self._normals(width, width) @ delta / np.sqrt(width)
        products = self._products.pop(layer).swapaxes(1, 2) @ delta - a.swapaxes(1, 2) @ z
        values, vectors = _eigen(a)
        inverse = np.divide(1.0, values, out=np.zeros_like(values), where=values > 0.0)
        mixing = (vectors * inverse[:, None]) @ (vectors.swapaxes(1, 2) @ products)
        drawn: Float64Array = z + a @ mixing
        return drawn

    def _normals(self, rows: int, columns: int) -> Float64Array:
        return np.stack([one.standard_normal((rows, columns)) for one in self._generators])


def _eigen(a: Float64Array) -> tuple[Float64Array, Float64Array]:
    """Return eigenvalues of aᵀa, those that are rounding errors as 0, and eigenvectors."""
    values, vectors = np.linalg.eigh(a.swapaxes(1, 2) @ a)
    return np.where(values > LEAST_EIGENVALUE * values[:, -1:], values, 0.0), vectors


def first_rows(
    chain: Chain,
    start: Covariance | Representation,
    inputs: int | None,
    dtype: str,
    key: int,
    first: int,
    last: int,
) -> Float64Array:
    """Return x_0 of networks first:last, which are those of `simulate`."""
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
    return Chain(
        chain.width, chain.batch, chain.activation, norm=chain.norm, skip=1.0, gain=chain.gain,
        weights=chain.weights, eps=chain.eps,
    )  # fmt: skip


class Network:
    """Some networks with all their layers.

    Parameters
    ----------
    chain : Chain
    inputs : int
    x : (networks, width, columns) ndarray
        Layer 0.
    weights : Weights
    depth : int
    first : int
        Number of the first network, for errors.

    Attributes
    ----------
    x : list of (networks, width, columns) ndarray
        Representations of layers 0, …, depth.
    spread : list of (networks, width, inputs, 1) ndarray
        Standard deviations of the rows of h, of layers 1, …, depth; empty without a norm.
    """

    def __init__(
        self, chain: Chain, inputs: int, x: Float64Array, weights: Weights, depth: int, first: int
    ) -> None:
        self.chain, self.inputs, self.weights, self.depth = chain, inputs, weights, depth
        self.x = [x]
        self.spread: list[Float64Array] = []
        for layer in range(1, depth + 1):
            h = chain.skip * x + chain.gain * weights.times(layer, self.activations(layer - 1))
            x = self._normalise(h, layer, first)
            self.x.append(x)
            self._require_range(layer, first)

    def activations(self, layer: int) -> Float64Array:
        """Return a = σ(x) of a layer."""
        return _applied(self.chain.activation, self.x[layer])

    def gram(self, layer: int) -> Float64Array:
        """Return the Gram matrices aᵀa / width of a layer."""
        a = self.activations(layer)
        return a.swapaxes(1, 2) @ a / self.chain.width

    def hidden(self, layer: int) -> Float64Array:
        """Return h of a layer from 1 on, without the means of rows if the norm centres."""
        x = self.x[layer]
        if not self.spread:
            return x
        return (self._by_batch(x) * self.spread[layer - 1]).reshape(x.shape)

    def through_activation(self, layer: int, gradient: Float64Array) -> Float64Array:
        """Return the gradient with respect to h, given that with respect to a = σ(N(h)).

        Parameters
        ----------
        layer : int
            From 1 on.
        gradient : (networks, width, k * columns) ndarray
            Gradients of k functions.
        """
        slopes = slope_at(self.chain.activation, self.x[layer])
        return self.through_norm(layer, self._many(gradient, slopes))

    def through_norm(self, layer: int, gradient: Float64Array) -> Float64Array:
        """Return the gradient with respect to h, given that with respect to x = N(h)."""
        if not self.spread:
            return gradient
        chain = self.chain
        x = self._by_batch(self.x[layer])[:, :, None]
        g = gradient.reshape(*x.shape[:2], -1, *x.shape[3:])
        if chain.eps == 0.0 and chain.normalization.dimensions(chain.batch) == 1:
            # N(h) is 1 or -1 in each entry, whatever h.
            return np.zeros_like(gradient)
        result: Float64Array = g - x * (g * x).mean(axis=-1, keepdims=True)
        if chain.normalization.hides_common_part:
            result -= g.mean(axis=-1, keepdims=True)
        result /= self.spread[layer - 1][:, :, None]
        return result.reshape(gradient.shape)

    def down(self, layer: int, delta: Float64Array) -> Float64Array:
        """Return the gradients with respect to h of layer - 1, given those of h of a layer >= 2."""
        chain, x = self.chain, self.x[layer - 1]
        at_a = self.weights.transposed_times(layer, self.activations(layer - 1), delta)
        at_x = self._many(chain.gain * at_a, slope_at(chain.activation, x))
        if chain.skip != 0.0:
            at_x += chain.skip * delta
        return self.through_norm(layer - 1, at_x)

    def _many(self, gradient: Float64Array, factor: Float64Array) -> Float64Array:
        """Return gradients of k functions times a factor that they share."""
        split = gradient.reshape(*factor.shape[:2], -1, factor.shape[2])
        return (split * factor[:, :, None]).reshape(gradient.shape)

    def _by_batch(self, x: Float64Array) -> Float64Array:
        return x.reshape(*x.shape[:2], self.inputs, self.chain.batch)

    def _normalise(self, h: Float64Array, layer: int, first: int) -> Float64Array:
        norm, eps = self.chain.normalization, self.chain.eps
        if norm.is_identity:
            return h
        rows = self._by_batch(h)
        if eps == 0.0 and (constant := norm.without_variance(rows)).any():
            index, row, _ = (int(i) for i in np.argwhere(constant)[0])
            raise ZeroVarianceError(first + index, layer, row)
        seen = rows - rows.mean(axis=-1, keepdims=True) if norm.hides_common_part else rows
        root_mean_square = np.sqrt((seen**2).mean(axis=-1, keepdims=True))
        self.spread.append(np.hypot(root_mean_square, np.sqrt(eps)))
        return norm(rows, eps).reshape(h.shape)

    def _require_range(self, layer: int, first: int) -> None:
        """Raise if the squares of a representation without a norm are out of range."""
        if self.spread:
            return
        largest = np.abs(self.x[layer]).max(axis=(1, 2))
        wrong = np.flatnonzero(~(largest < 1e150) | ((largest > 0.0) & (largest < 1e-140)))
        if wrong.size:
            raise NonFiniteError(first + int(wrong[0]), layer, "Gram matrix")


def _applied(activation: Activation, x: Float64Array) -> Float64Array:
    values: Float64Array = activation(x)
    return values
