"""A layer as a value: a linear map, then a map of rows.

The rows of a layer are h = skip x + gain W a + b 1ᵀ, with x and a of the layer before.  `Linear` is
the part W a + b 1ᵀ, and the law of its weights.  `RowMap` makes x and a from h: norm and
activation, in any order.  `Chain` is a layer that repeats; the layers of a run may differ.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bnmc._kernels.scalar.codes import ACTIVATION_FIRST, NORM_FIRST
from bnmc.chain.activations import Activation, slope_at
from bnmc.chain.convolution import Convolution
from bnmc.chain.norms import Norm
from bnmc.chain.weights import WeightLaw

Float64Array = NDArray[np.float64]


@dataclass(frozen=True)
class CovarianceMap:
    """The covariance of the rows of W a + b 1ᵀ / gain, as a map of the Gram matrix G = aᵀa / width.

    Without bias and convolution the rows are i.i.d. N(0, G).

    Parameters
    ----------
    convolution : Convolution or None
        G is averaged over its taps.
    variance : float
        Variance of the bias over gain², which all samples share.
    """

    convolution: Convolution | None = None
    variance: float = 0.0

    @property
    def is_identity(self) -> bool:
        """Whether the covariance is G itself."""
        return self.convolution is None and self.variance == 0.0

    def __call__(self, gram: Float64Array) -> Float64Array:
        """Return the covariance for Gram matrices, (..., columns, columns)."""
        if self.convolution is not None:
            gram = self.convolution.covariance(gram)
        return gram if self.variance == 0.0 else gram + self.variance


@dataclass(frozen=True)
class Linear:
    """The linear map that leads to a layer: gain W a + b 1ᵀ.

    Parameters
    ----------
    width : int
        Rows of the layer.
    fan_in : int
        Weights of a row of W.  Their variance is 1/fan_in.
    law : WeightLaw
    gain : float
    bias_variance : float
    convolution : Convolution or None
    """

    width: int
    fan_in: int
    law: WeightLaw
    gain: float = 1.0
    bias_variance: float = 0.0
    convolution: Convolution | None = None

    def covariance(self, *, shows_bias: bool = True) -> CovarianceMap:
        """Return the covariance of the rows of W a + b 1ᵀ / gain, or of W a."""
        shows_bias = shows_bias and self.bias_variance > 0.0
        variance = self.bias_variance / self.gain**2 if shows_bias else 0.0
        return CovarianceMap(self.convolution, variance)


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


class RowMap(NamedTuple):
    """What a layer makes of its rows h, in NumPy for arrays (..., width, columns).

    Parameters
    ----------
    activation : Activation
    norm : Norm
    order : int
        `NORM_FIRST`, `ACTIVATION_FIRST` or `NORM_IN_BRANCH` of `bnmc._kernels.scalar.codes`.
    batch : int
        Samples of a batch; the columns of a representation are some batches.
    eps : float, default 0.0
    skip : float, default 0.0
        Factor of x of the layer before in h.
    """

    activation: Activation
    norm: Norm
    order: int
    batch: int
    eps: float = 0.0
    skip: float = 0.0

    def hides_common_part(self) -> bool:
        """Whether neither x nor a depends on the means of the rows h over a batch.

        If the order is NORM_IN_BRANCH, that holds for a only: x is h.
        """
        return self.norm.hides_common_part and self.order != ACTIVATION_FIRST

    def hides_scale(self) -> bool:
        """Whether the norm sees the rows of W a up to a positive factor only."""
        return self.norm.hides_scale(self.eps) and self.skip == 0.0

    def parts(self, x: Float64Array) -> Float64Array:
        """Return rows by batch, or the features by group, over which the norm takes moments."""
        *leading, width, columns = x.shape
        if self.norm.axis == "features":
            groups = self.norm.groups
            return x.reshape(*leading, groups, width // groups, columns)
        return x.reshape(*leading, width, columns // self.batch, self.batch)

    def argument(self, h: Float64Array) -> Float64Array:
        """Return what the norm is applied to."""
        return self.activation(h) if self.order == ACTIVATION_FIRST else h

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

    def rows(self, h: Float64Array, normed: Normalised | None = None) -> Rows:
        """Return the rows of a layer; `normed` is N of ``argument(h)`` if it is known."""
        return Rows(self, h, self.normalise(self.argument(h)) if normed is None else normed)


class Rows:
    """The rows of a layer of some networks.

    Parameters
    ----------
    row_map : RowMap
    h : (..., width, columns) ndarray
        The sum of the skip connection and of the product with the weights.
    normed : Normalised
        Of ``row_map.argument(h)``.

    Attributes
    ----------
    x : (..., width, columns) ndarray
        What a skip connection keeps: N(h), or h in other orders.
    normed : Normalised
    """

    def __init__(self, row_map: RowMap, h: Float64Array, normed: Normalised) -> None:
        self._map, self.normed = row_map, normed
        self.x = normed.values if row_map.order == NORM_FIRST else h

    def outputs(self) -> Float64Array:
        """Return the activations a, which the next weights multiply."""
        values = self.normed.values
        return values if self._map.order == ACTIVATION_FIRST else self._map.activation(values)

    def down(self, at_a: Float64Array, at_x: Float64Array | float = 0.0) -> Float64Array:
        """Return the gradient with respect to h, given those with respect to a and to x.

        Parameters
        ----------
        at_a, at_x : (..., width, k, columns) ndarray
            Gradients of k functions with respect to a, which the next weights multiply, and to x,
            which the skip connection keeps.
        """
        if self._map.order == NORM_FIRST:
            return self.through_norm(at_a * self._slopes() + at_x)
        if self._map.order == ACTIVATION_FIRST:
            return self.through_norm(at_a) * self._slopes() + at_x
        return self.through_norm(at_a * self._slopes()) + at_x

    def through_norm(self, gradient: Float64Array) -> Float64Array:
        """Return the gradient with respect to y, given that with respect to N(y)."""
        normed, norm, batch = self.normed, self._map.norm, self._map.batch
        if normed.spread is None:
            return gradient
        size = batch if norm.axis == "batch" else self.x.shape[-2] // norm.groups
        if self._map.eps == 0.0 and size - norm.centred == 1:
            # In one dimension N(y) is 1 or -1 in each entry, whatever y.
            return np.zeros_like(gradient)
        *leading, width, count, columns = gradient.shape
        if norm.axis == "batch":
            shape = [*leading, width, count, columns // batch, batch]
            of_functions, axis = -3, -1
        else:
            shape = [*leading, norm.groups, width // norm.groups, count, columns]
            of_functions, axis = -2, -3
        x = np.expand_dims(self._map.parts(normed.values), of_functions)
        g = gradient.reshape(shape)
        result: Float64Array = g - x * (g * x).mean(axis=axis, keepdims=True)
        if norm.centred:
            result -= g.mean(axis=axis, keepdims=True)
        result /= np.expand_dims(normed.spread, of_functions)
        return result.reshape(gradient.shape)

    def _slopes(self) -> Float64Array:
        """Return the slopes of the activation, for gradients of any number of functions."""
        is_first = self._map.order == ACTIVATION_FIRST
        return slope_at(self._map.activation, self.x if is_first else self.normed.values)[
            ..., None, :
        ]


class Layer(NamedTuple):
    """A layer, and what leads to it.

    Parameters
    ----------
    linear : Linear
    rows : RowMap
    """

    linear: Linear
    rows: RowMap

    @property
    def is_row_by_row(self) -> bool:
        """Whether N acts on each row alone, before the activation and at the state's own place."""
        return self.rows.norm.acts_on_rows and self.rows.order == NORM_FIRST

    def hides_common_part(self, later_layers_do: bool, skip: float) -> bool:
        """Whether no layer from this one on sees the means of the rows h over a batch.

        Parameters
        ----------
        later_layers_do : bool
            Whether that holds for the next layer.
        skip : float
            Of the next layer.
        """
        keeps_h = self.rows.order != NORM_FIRST and skip != 0.0
        return self.rows.hides_common_part() and (later_layers_do or not keeps_h)

    def is_centred(self, previous: Layer | None) -> bool:
        """Whether the rows of W a have no means, because those of a have none."""
        if previous is None or previous.rows.order != ACTIVATION_FIRST:
            return False
        return previous.rows.norm.hides_common_part and self.linear.bias_variance == 0.0


def start_of(layer: Layer) -> Layer:
    """Return layer 0 of a chain: Gaussian rows, with gain 1 and neither skip connection nor bias.

    If an array is given, layer 0 has these rows.
    """
    linear = replace(layer.linear, gain=1.0, bias_variance=0.0, convolution=None)
    return Layer(linear, layer.rows._replace(skip=0.0))
