"""One layer applied to given states, checks of these, and draws of the next ones with NumPy."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnmc import gram as gm
from bnmc._support.arguments import Float64Array, finite_array
from bnmc._support.linalg import semidefinite_root
from bnmc.chain.chain import Chain
from bnmc.chain.convolution import Convolution
from bnmc.chain.start import apply
from bnmc.errors import ArgumentError, NonFiniteError, ZeroVarianceError

#: Fourth powers of numbers between the inverse of this and this neither overflow nor underflow.
LARGEST = 1e30

#: Largest unit of rounding in the tests; coarser rounding, as in half precision, acts as noise.
COARSE = float(np.finfo(np.float32).eps)

#: Units of rounding coarser than that which count as an error: directions of at least 10 units are
#: tested, and the rest of these errors acts as noise.
_OF_COARSE = 10 / 512

#: Least number of rows of rounding errors whose mean square is taken.
_ROWS_OF_ERRORS = 128


def as_states(
    name: str, value: object, shape: tuple[int | str, ...], chain: Chain
) -> NDArray[np.floating[Any]]:
    """Return states (..., width, batch) as an array whose moments neither overflow nor underflow.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If they are not finite real numbers of this shape and a suitable size.
    """
    array = finite_array(name, value, shape=shape)
    with np.errstate(over="ignore"):
        largest = np.abs(array).max(axis=(-2, -1)).astype(np.float64) / abs(chain.gain)
    outside = ~((largest >= 1.0 / LARGEST) & (largest <= LARGEST))
    if outside.any():
        raise ArgumentError(
            name, float(largest[outside].flat[0]),
            f"states whose largest entry over the gain is {1.0 / LARGEST:g} to {LARGEST:g} in size",
        )  # fmt: skip
    return array


def rounding_of(value: object) -> float:
    """Return the unit of rounding of an array: at least that of float64."""
    dtype = np.asarray(value).dtype
    exact = float(np.finfo(np.float64).eps)
    return max(exact, float(np.finfo(dtype).eps)) if dtype.kind == "f" else exact


def rounding_noise(chain: Chain, layer: Layer, rounding: float) -> Float64Array:
    r"""Return the covariance of rounding errors of the rows of R = (h′ − skip x)/gain in a step.

    Parameters
    ----------
    chain : Chain
    layer : Layer
        The given states.
    rounding : float
        Unit of rounding of the numbers with which the step computes.

    Returns
    -------
    (samples, batch, batch) ndarray of float64
        Uncentred, averaged over rows; `LARGEST` times the unit matrix if a norm of the step may
        divide by 0.

    Notes
    -----
    The layer is computed again with errors of random signs: in h, in the means that the norm
    subtracts, after the first of norm and activation, and after the second.  A sum of k numbers has
    errors of √k units.  Norm and activation thus amplify errors as they do in the step, whatever
    their order.  The error of an activation σ(x) is relative to the larger of |σ(x)| and
    min(|x|, 1), since formulas such as exp(x) − 1 cancel.
    """
    generator, norm = np.random.default_rng(0), chain.normalization
    h = chain.gain * layer.y
    samples, width, n = h.shape
    rows, draws = chain.layers[1].rows, max(2, -(-_ROWS_OF_ERRORS // width))
    unit = min(rounding, COARSE) * math.sqrt(max(layer.factors.shape[1], n))
    lost = np.zeros(samples, dtype=np.bool_)

    def signs(shape: tuple[int, ...]) -> Float64Array:
        return 2.0 * generator.integers(0, 2, shape).astype(np.float64) - 1.0

    def rounded(values: Float64Array, least: Float64Array | float = 0.0) -> Float64Array:
        return values + unit * signs(values.shape) * np.maximum(np.abs(values), least)

    def normalized(values: Float64Array) -> Float64Array:
        if not norm.centred:
            return norm(values, chain.eps)
        parts = norm.parts(values)
        spread = np.hypot(parts.std(axis=-1, keepdims=True), math.sqrt(chain.eps))
        of_mean = unit * np.abs(parts).max(axis=-1, keepdims=True) / spread
        lost[~(of_mean < 1.0).all(axis=(1, 2, 3))] = True
        moved = np.broadcast_to(signs(of_mean.shape) * of_mean, parts.shape)
        return norm(values, chain.eps) + norm.joined(moved, values.shape)

    def activated(values: Float64Array) -> Float64Array:
        return rounded(chain.activation(values), np.minimum(np.abs(values), 1.0))

    noise = unit**2 * np.eye(n) * np.diagonal(layer.gram, 0, 1, 2)[:, None]
    if rounding > COARSE:
        trace = np.trace(layer.gram, 0, 1, 2)[:, None, None]
        noise = noise + n * (_OF_COARSE * rounding) ** 2 * trace * np.eye(n)
    with np.errstate(all="ignore"):
        for _ in range(draws):
            x = rounded(h)
            if rows.activates_first:
                a = normalized(activated(x))
            else:
                normed = rounded(normalized(x))
                a, x = activated(normed), normed if rows.keeps_normed else x
            for error in (a - layer.a, chain.skip / chain.gain * (x - layer.x)):
                noise = noise + gm.cross_gram(error, error) / draws
    lost |= ~np.isfinite(noise).all(axis=(1, 2))
    noise[lost] = LARGEST * np.eye(n)
    return noise


def near_a_line(chain: Chain, generator: np.random.Generator) -> Float64Array:
    """Return a batch of samples near a line: after any norm its law is far from Gaussian."""
    places = np.linspace(1.0, 2.0, chain.batch)
    line = generator.standard_normal((chain.width, 1)) * places
    return line + 0.1 * generator.standard_normal(line.shape)


def next_states(chain: Chain, layer: Layer, generator: np.random.Generator) -> Float64Array:
    """Draw skip x + gain W a + b for each sample.

    For Gaussian weights, rows are drawn given the Gram matrix.
    """
    width = chain.width
    if chain.is_gaussian:
        rows = generator.standard_normal(layer.a.shape) @ semidefinite_root(layer.gram)
    else:
        rows = np.stack([_weights(chain, generator) @ of_sample for of_sample in layer.a])
        rows /= width**0.5
        if chain.bias_variance > 0.0:
            biases = generator.standard_normal((len(rows), width))
            if chain.layers[1].linear.law.uniform_bias:
                biases = generator.uniform(-(3.0**0.5), 3.0**0.5, biases.shape)
            rows += (float(np.sqrt(chain.bias_variance)) * biases)[..., None] / chain.gain
    return chain.skip * layer.x + chain.gain * rows


def _weights(chain: Chain, generator: np.random.Generator) -> NDArray[np.floating[Any]]:
    shape = chain.width, chain.width
    entries = chain.layers[1].linear.law.entries(generator, shape)
    return finite_array("weights(rng, shape)", entries, shape=shape)


@dataclass(frozen=True)
class Layer:
    """States h of a chain, and what the law of the next states depends on.

    Attributes
    ----------
    y : (samples, width, batch) ndarray of float64
        h / gain.
    x, a : (samples, width, batch) ndarray of float64
        What the skip connection keeps, and what W multiplies: N(h) and σ(N(h)), or those of another
        order.
    gram : (samples, batch, batch) ndarray of float64
        aᵀa / width, averaged over the taps of a convolution, plus the variance of the bias over
        gain²: the covariance of rows of (W a + b 1ᵀ / gain).
    square : (samples, batch, batch) ndarray of float64
        yᵀy / width.
    convolution : Convolution or None
        That of the chain.
    """

    y: Float64Array
    x: Float64Array
    a: Float64Array
    gram: Float64Array
    square: Float64Array
    convolution: Convolution | None = field(default=None, kw_only=True)

    @property
    def factors(self) -> Float64Array:
        """What rows of W multiply, (samples, weights of a row, batch)."""
        if self.convolution is None:
            return self.a
        *leading, n = self.a.shape
        seen = self.a[..., self.convolution.neighbours(n)]
        return seen.reshape(leading[0], -1, n)

    @classmethod
    def of(cls, chain: Chain, h: NDArray[np.floating[Any]], first: int) -> Layer:
        """Apply norm and activation to states h.

        Parameters
        ----------
        chain : Chain
        h : (samples, width, batch) ndarray
        first : int
            Number of the first sample, for messages.

        Raises
        ------
        ZeroVarianceError
            For a row with zero variance, or a sample whose activations are all 0.
        NonFiniteError
            If the activation overflows.
        """
        states = h.astype(np.float64)
        try:
            x, a = apply(chain.layers[1].rows, states, True)
        except ZeroVarianceError as error:
            number = first + (error.chain or 0)
            raise ZeroVarianceError(number, None, error.row, error.sample) from None
        if not (np.abs(a) <= LARGEST).all():
            raise NonFiniteError(None, None, "activation")
        y, gram = states / chain.gain, gm.cross_gram(a, a)
        vanishes = ~(np.trace(gram, 0, 1, 2) > 0.0)
        if vanishes.any():
            raise ZeroVarianceError(first + int(vanishes.argmax()), None, 0)
        covariance = chain.covariance_of_states(gram)
        return cls(y, x, a, covariance, gm.cross_gram(y, y), convolution=chain.convolution)
