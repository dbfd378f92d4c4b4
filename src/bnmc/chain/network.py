"""One layer of networks in NumPy, forward and back: activation and norm, in any order.

Finite networks with real weights differ in how they multiply by their weights.  Everything between
two products is here, for `gradients.network` and for the finite networks of `infinite_width`.
Representations are (..., width, columns), and gradients of k functions (..., width, k, columns).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bnmc._kernels.scalar.codes import ACTIVATION_FIRST, NORM_FIRST
from bnmc.chain.activations import Activation
from bnmc.chain.norms import Norm
from bnmc.chain.slopes import slope_at

Float64Array = NDArray[np.float64]


class Normalised(NamedTuple):
    """N(y), and what its derivative needs; `spread` and `mean` broadcast to the parts of y.

    values : (..., width, columns) ndarray
    spread : ndarray or None
        Standard deviations; None without a norm, and for an argument that is N of something.
    mean : ndarray or None
    """

    values: Float64Array
    spread: Float64Array | None
    mean: Float64Array | None


class Layers(NamedTuple):
    """Activation, norm and order of all layers of some networks.

    Parameters
    ----------
    activation : Activation
    norm : Norm
    order : int
        `NORM_FIRST`, `ACTIVATION_FIRST` or `NORM_IN_BRANCH` of `bnmc._kernels.scalar.codes`.
    batch : int
        Samples of a batch; the columns of a representation are some batches.
    eps : float, default 0.0
    """

    activation: Activation
    norm: Norm
    order: int
    batch: int
    eps: float = 0.0

    def parts(self, x: Float64Array) -> Float64Array:
        """Return rows by batch, or the features by group, over which the norm takes moments."""
        *leading, width, columns = x.shape
        if self.norm.axis == "features":
            groups = self.norm.groups
            return x.reshape(*leading, groups, width // groups, columns)
        return x.reshape(*leading, width, columns // self.batch, self.batch)

    def argument(self, h: Float64Array) -> Float64Array:
        """Return what the norm is applied to."""
        return self._applied(h) if self.order == ACTIVATION_FIRST else h

    def normalise(self, y: Float64Array) -> Normalised:
        """Return N(y).  Parts without variance give NaN, or a spread of 0."""
        if self.norm.is_identity:
            return Normalised(y, None, None)
        parts = self.parts(y)
        axis = -1 if self.norm.axis == "batch" else -2
        mean = parts.mean(axis=axis, keepdims=True) if self.norm.centred else None
        seen = parts if mean is None else parts - mean
        squares = np.mean(seen**2, axis=axis, keepdims=True)
        spread = np.hypot(np.sqrt(squares), np.sqrt(self.eps))
        values = self.norm(parts if self.norm.axis == "batch" else y, self.eps)
        return Normalised(values.reshape(y.shape), spread, mean)

    def of(self, h: Float64Array, normed: Normalised) -> Layer:
        """Return the layer with h, and with N of its argument."""
        return Layer(self, h, normed)

    def _applied(self, x: Float64Array) -> Float64Array:
        return self.activation(x)


class Layer:
    """One layer of some networks.

    Parameters
    ----------
    layers : Layers
    h : (..., width, columns) ndarray
        The sum of the skip connection and of the product with the weights.
    normed : Normalised
        Of ``layers.argument(h)``.

    Attributes
    ----------
    x : (..., width, columns) ndarray
        What a skip connection keeps: N(h), or h in other orders.
    normed : Normalised
    """

    def __init__(self, layers: Layers, h: Float64Array, normed: Normalised) -> None:
        self._layers, self.normed = layers, normed
        self.x = normed.values if layers.order == NORM_FIRST else h

    def outputs(self) -> Float64Array:
        """Return the activations a, which the next weights multiply."""
        if self._layers.order == ACTIVATION_FIRST:
            return self.normed.values
        return self._layers._applied(self.normed.values)

    def down(self, at_a: Float64Array, at_x: Float64Array | float = 0.0) -> Float64Array:
        """Return the gradient with respect to h, given those with respect to a and to x.

        Parameters
        ----------
        at_a, at_x : (..., width, k, columns) ndarray
            Gradients with respect to a, which the next weights multiply, and to x, which the skip
            connection keeps.
        """
        if self._layers.order == NORM_FIRST:
            return self.through_norm(at_a * self._slopes() + at_x)
        if self._layers.order == ACTIVATION_FIRST:
            return self.through_norm(at_a) * self._slopes() + at_x
        return self.through_norm(at_a * self._slopes()) + at_x

    def through_norm(self, gradient: Float64Array) -> Float64Array:
        """Return the gradient with respect to y, given that with respect to N(y)."""
        layers, normed, norm = self._layers, self.normed, self._layers.norm
        if normed.spread is None:
            return gradient
        if layers.eps == 0.0 and self._dimensions() == 1:
            # N(y) is 1 or -1 in each entry, whatever y.
            return np.zeros_like(gradient)
        *leading, width, count, columns = gradient.shape
        if norm.axis == "batch":
            shape = [*leading, width, count, columns // layers.batch, layers.batch]
            of_functions, axis = -3, -1
        else:
            shape = [*leading, norm.groups, width // norm.groups, count, columns]
            of_functions, axis = -2, -3
        x = np.expand_dims(layers.parts(normed.values), of_functions)
        g = gradient.reshape(shape)
        result: Float64Array = g - x * (g * x).mean(axis=axis, keepdims=True)
        if norm.centred:
            result -= g.mean(axis=axis, keepdims=True)
        result /= np.expand_dims(normed.spread, of_functions)
        return result.reshape(gradient.shape)

    def _slopes(self) -> Float64Array:
        """Return the slopes of the activation, for gradients of any number of functions."""
        is_first = self._layers.order == ACTIVATION_FIRST
        at = slope_at(self._layers.activation, self.x if is_first else self.normed.values)
        return at[..., None, :]

    def _dimensions(self) -> int:
        """Dimension of the space of what the norm divides by a root mean square."""
        norm, width = self._layers.norm, self.x.shape[-2]
        size = self._layers.batch if norm.axis == "batch" else width // norm.groups
        return size - 1 if norm.centred else size
