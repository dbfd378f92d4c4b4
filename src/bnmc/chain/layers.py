"""A layer as a value: a linear map, then a map of rows.

The rows of a layer are h = skip x + gain W a + b 1ᵀ, with x and a of the layer before.  `Linear` is
the part W a + b 1ᵀ, and the law of its weights.  `RowMap` makes x and a from h: norm and
activation, in any order.  `Chain` is a layer that repeats; the layers of a run may differ.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bnmc._kernels.scalar.codes import ACTIVATION_FIRST, NORM_FIRST
from bnmc._support.linalg import binary_scale
from bnmc.chain.activations import Activation, slope_at
from bnmc.chain.convolution import NO_CONVOLUTION, Convolution
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
        return self == CovarianceMap()

    def __call__(self, gram: Float64Array) -> Float64Array:
        """Return the covariance for Gram matrices, (..., columns, columns)."""
        gram = (self.convolution or NO_CONVOLUTION).covariance(gram)
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

    @property
    def patches(self) -> Convolution:
        """What a row of weights multiplies: patches of one column without a convolution."""
        return self.convolution or NO_CONVOLUTION

    def covariance(self, *, shows_bias: bool = True) -> CovarianceMap:
        """Return the covariance of the rows of W a + b 1ᵀ / gain, or of W a."""
        variance = over_square(self.bias_variance, self.gain) if shows_bias else 0.0
        return CovarianceMap(self.convolution, variance)


def over_square(value: float, gain: float) -> float:
    """Return value / gain² for gain ≠ 0, also if gain² leaves the range of float64.

    Examples
    --------
    >>> from bnmc.chain.layers import over_square
    >>> over_square(3.0, 2.0), over_square(1e300, 1e200)
    (0.75, 1e-100)
    """
    square = gain * gain
    is_normal = sys.float_info.min <= square <= sys.float_info.max
    return value / square if is_normal else value / gain / gain


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
        Factor in h of x of the layer before, or of what a skip path adds.
    """

    activation: Activation
    norm: Norm
    order: int
    batch: int
    eps: float = 0.0
    skip: float = 0.0

    @property
    def activates_first(self) -> bool:
        """Whether the norm is applied to activations, a = N(σ(h))."""
        return self.order == ACTIVATION_FIRST

    @property
    def keeps_normed(self) -> bool:
        """Whether a skip connection keeps x = N(h), and not h."""
        return self.order == NORM_FIRST

    def hides_common_part(self) -> bool:
        """Whether neither x nor a depends on the means of the rows h over a batch.

        If the order is NORM_IN_BRANCH, that holds for a only: x is h.
        """
        return self.norm.hides_common_part and not self.activates_first

    def hides_scale(self) -> bool:
        """Whether the norm sees the rows of W a up to a positive factor only."""
        return self.norm.hides_scale(self.eps) and self.skip == 0.0

    def parts(self, x: Float64Array) -> Float64Array:
        """Return rows by batch, or the features by group, as `Norm.parts` does."""
        return self.norm.parts(x, self.batch)

    def argument(self, h: Float64Array) -> Float64Array:
        """Return what the norm is applied to."""
        return self.activation(h) if self.activates_first else h

    def without_variance(self, y: Float64Array) -> tuple[int, int | None, int | None] | None:
        """Return network, row and sample of the first part that N cannot divide, or None.

        `y`, (networks, width, columns), is an argument of the norm.  One of row and sample is None.
        """
        if not self.norm.hides_scale(self.eps):
            return None
        places = np.argwhere(self.norm.without_variance(y, self.batch))
        if places.size == 0:
            return None
        index, place = places[0].tolist()
        return (index, place, None) if self.norm.acts_on_rows else (index, None, place)

    def normalise(self, y: Float64Array) -> Normalised:
        """Return N(y).  Parts without variance give NaN, or a spread of 0."""
        if self.norm.is_identity:
            return Normalised(y, None, None)
        parts = self.parts(y)
        unit = binary_scale(parts)
        parts = parts / unit  # squares of large and small numbers leave the range
        mean = parts.mean(axis=-1, keepdims=True) if self.norm.centred else None
        squares = np.mean((parts if mean is None else parts - mean) ** 2, axis=-1, keepdims=True)
        spread = np.hypot(np.sqrt(squares) * unit, np.sqrt(self.eps))
        mean = None if mean is None else mean * unit
        return Normalised(self.norm(y, self.eps, self.batch), spread, mean)

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
        self.x = normed.values if row_map.keeps_normed else h

    def outputs(self) -> Float64Array:
        """Return the activations a, which the next weights multiply."""
        values = self.normed.values
        return values if self._map.activates_first else self._map.activation(values)

    def hidden(self) -> Float64Array:
        """Return h, without the means of its rows over a batch if no later layer sees them."""
        row_map, (values, spread, mean) = self._map, self.normed
        if not row_map.keeps_normed:
            if not row_map.hides_common_part():
                return self.x
            rows = row_map.parts(self.x)
            return (rows - rows.mean(axis=-1, keepdims=True)).reshape(self.x.shape)
        if spread is None:
            return values
        h = row_map.parts(values) * spread
        if mean is not None and not row_map.hides_common_part():
            h = h + mean
        return row_map.norm.joined(h, values.shape)

    def down(self, at_a: Float64Array, at_x: Float64Array | float = 0.0) -> Float64Array:
        """Return the gradient with respect to h, given those with respect to a and to x.

        Parameters
        ----------
        at_a, at_x : (..., width, k, columns) ndarray
            Gradients of k functions with respect to a, which the next weights multiply, and to x,
            which the skip connection keeps.
        """
        if self._map.keeps_normed:
            return self.through_norm(self.down_to_state(at_a, at_x))
        if self._map.activates_first:
            return self.through_norm(at_a) * self._slopes() + at_x
        return self.through_norm(at_a * self._slopes()) + at_x

    def along(self, direction: Float64Array) -> tuple[Float64Array, Float64Array]:
        """Return the derivatives of a and of x along directions of h, (..., width, k, columns)."""
        # The Jacobian of N is symmetric.
        if self._map.keeps_normed:
            at_x = self.through_norm(direction)
            return at_x * self._slopes(), at_x
        if self._map.activates_first:
            return self.through_norm(direction * self._slopes()), direction
        return self.through_norm(direction) * self._slopes(), direction

    def activated(self, at_x: Float64Array) -> Float64Array:
        """Return the derivatives of a along directions of x, (..., width, k, columns)."""
        return at_x * self._slopes() if self._map.keeps_normed else self.along(at_x)[0]

    def down_to_state(self, at_a: Float64Array, at_x: Float64Array | float = 0.0) -> Float64Array:
        """Return the gradient with respect to x, given that of a function of a and x."""
        return at_a * self._slopes() + at_x if self._map.keeps_normed else self.down(at_a, at_x)

    def through_norm(self, gradient: Float64Array) -> Float64Array:
        """Return the gradient with respect to y, given that with respect to N(y)."""
        (values, spread, _), norm = self.normed, self._map.norm
        if spread is None:
            return gradient
        x = self._map.parts(values)
        if self._map.eps == 0.0 and x.shape[-1] - norm.centred == 1:
            # In one dimension N(y) is 1 or -1 in each entry, whatever y.
            return np.zeros_like(gradient)
        by_function = gradient.swapaxes(-2, -3)  # (..., k, width, columns)
        g, x, spread = (
            self._map.parts(by_function),
            x[..., None, :, :, :],
            spread[..., None, :, :, :],
        )
        result: Float64Array = g - x * (g * x).mean(axis=-1, keepdims=True)
        if norm.centred:
            result -= g.mean(axis=-1, keepdims=True)
        result /= spread
        return norm.joined(result, by_function.shape).swapaxes(-2, -3)

    def _slopes(self) -> Float64Array:
        """Return the slopes of the activation, for gradients of any number of functions."""
        of = self.x if self._map.activates_first else self.normed.values
        return slope_at(self._map.activation, of)[..., None, :]


class Path(NamedTuple):
    """A skip path over several layers, from a layer to the rows h of a later one.

    Parameters
    ----------
    length : int
        Number of layers from its beginning to its end.
    projection : Linear or None
        The linear map through which it leads.
    takes_activations : bool
        Whether it begins with the activations of a layer, and not with what a skip connection sees.
    norm : RowMap or None
        The norm after the projection.
    """

    length: int
    projection: Linear | None = None
    takes_activations: bool = False
    norm: RowMap | None = None


class Layer(NamedTuple):
    """A layer, and what leads to it.

    Parameters
    ----------
    linear : Linear
    rows : RowMap
    path : Path, optional
        The skip path that ends here, in place of a skip connection from the layer before.
    begins : tuple of Path
        The skip paths that begin at the layer before; those that end later come first.
    """

    linear: Linear
    rows: RowMap
    path: Path | None = None
    begins: tuple[Path, ...] = ()

    @property
    def skips_from_before(self) -> bool:
        """Whether a skip connection leads here from the layer before."""
        return self.rows.skip != 0.0 and self.path is None

    @property
    def covariance(self) -> CovarianceMap:
        """The covariance of the rows on which the activations depend.

        A bias that the norm subtracts is no part of it.
        """
        return self.linear.covariance(shows_bias=not self.rows.hides_common_part())

    @property
    def is_row_by_row(self) -> bool:
        """Whether N acts on each row alone, before the activation and at the state's own place."""
        return self.rows.norm.acts_on_rows and self.rows.keeps_normed

    @property
    def is_plain(self) -> bool:
        """Whether rows are drawn one by one, given the Gram matrix itself and the layer before."""
        return self.is_row_by_row and self.covariance.is_identity and self.path is None

    def hides_common_part(self, others_do: Iterable[bool]) -> bool:
        """Whether no layer from this one on sees the means of the rows h over a batch.

        Parameters
        ----------
        others_do : iterable of bool
            Whether that holds for each layer to which a skip connection leads from here.
        """
        return self.rows.hides_common_part() and (self.rows.keeps_normed or all(others_do))

    def is_centred(self, previous: Layer | None) -> bool:
        """Whether the rows of W a have no means, because those of a have none."""
        if previous is None or not previous.rows.activates_first:
            return False
        return previous.rows.norm.hides_common_part and self.linear.bias_variance == 0.0


def linears_of(layers: Iterable[Layer]) -> list[Linear]:
    """Return the linear maps that lead to layers, with the projections of skip paths."""
    linears: list[Linear] = []
    for layer in layers:
        linears.append(layer.linear)
        if layer.path is not None and layer.path.projection is not None:
            linears.append(layer.path.projection)
    return linears


def start_of(layer: Layer) -> Layer:
    """Return layer 0 of a chain: Gaussian rows, with gain 1 and neither skip connection nor bias.

    If an array is given, layer 0 has these rows.
    """
    linear = replace(layer.linear, gain=1.0, bias_variance=0.0, convolution=None)
    return Layer(linear, layer.rows._replace(skip=0.0))
