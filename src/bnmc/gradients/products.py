"""Products with the weights of networks, forward and transposed, in NumPy.

W a is the product of weights with what they see of the activations a: a itself, or under a
convolution its patches, one row for each tap and channel.  So Wᵀ δ of a convolution is that of its
patches, folded.

`DrawnWeights` draws every matrix, for any law of weights.  `ReplayedRows` draws products with
Gaussian matrices given all products before, and makes none; its rows are those of `simulate`.
`UnseenWeights` does the same with any number of functions, and with rows of its own.  Arrays are
(networks, width, columns), in float64.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from bnmc._kernels.cpu import rows
from bnmc._kernels.cpu.backward_rows import normals_of
from bnmc._kernels.scalar import codes
from bnmc.chain.chain import Chain
from bnmc.simulation.engine.replay import biases_of_layer, unit_weights_of_layer
from bnmc.simulation.engine.rows import RowSampler
from bnmc.simulation.runs import Run

Float64Array = NDArray[np.float64]

#: Eigenvalues of a Gram matrix below this part of the largest one count as zero.
_LEAST_EIGENVALUE = 1e-14


class Weights(Protocol):
    """Products with the weights W and the biases b of the layers, for some networks."""

    def times(self, layer: int, a: Float64Array) -> Float64Array:
        """Return W a + b 1ᵀ / gain of the layer that they lead to, (networks, width, columns)."""

    def transposed_times(self, layer: int, a: Float64Array, delta: Float64Array) -> Float64Array:
        """Return Wᵀ δ for the same weights; `a` is that of `times`, δ has any columns."""


class DrawnWeights:
    """Weights and biases that are drawn: those of `bnmc.drawn_weights` with the same key.

    A bias that the norm subtracts is not added.

    Parameters
    ----------
    run : Run
        The networks; its dtype is the precision of the weights.
    """

    def __init__(self, run: Run) -> None:
        self._chain, self._numbers = run.chain, range(run.first, run.first + run.chains)
        self._run = run

    def times(self, layer: int, a: Float64Array) -> Float64Array:
        """Return W a + b 1ᵀ / gain."""
        # Scaled after the sum, so that sums of equal terms with signs ±1 vanish exactly.
        products = np.stack([w @ seen for w, seen in self._each(layer, _patches(self._chain, a))])
        scaled: Float64Array = products / np.sqrt(self._chain.fan_in)
        if self._chain.shows_bias:
            scaled += self._biases(layer)[:, :, None] / self._chain.gain
        return scaled

    def _biases(self, layer: int) -> Float64Array:
        biases = [biases_of_layer(self._run, number, layer) for number in self._numbers]
        return np.stack(biases).astype(np.float64)

    def transposed_times(self, layer: int, a: Float64Array, delta: Float64Array) -> Float64Array:
        """Return Wᵀ δ."""
        products = np.stack([w.T @ each for w, each in self._each(layer, delta)])
        scaled: Float64Array = products / np.sqrt(self._chain.fan_in)
        return _folded(self._chain, scaled)

    def _each(
        self, layer: int, operands: Float64Array
    ) -> Iterator[tuple[Float64Array, Float64Array]]:
        """Yield the weights of each network, with entries of variance 1, and its operand."""
        for number, operand in zip(self._numbers, operands, strict=True):
            yield unit_weights_of_layer(self._run, number, layer).astype(np.float64), operand


class ReplayedRows:
    """Gaussian weights that are never made, with the rows that `simulate` draws.

    Let a (width × columns) be what the rows of Y = W a depend on, F a lower triangular factor of
    aᵀa / width = F Fᵀ, and Y = z Fᵀ with the normals z of the run.  Then B = a F⁻ᵀ / √width has
    orthonormal columns, and given Y, with δ a function of Y,

        Wᵀ δ = B (zᵀδ / √width - BᵀZ) + Z,    rows of Z: N(0, δᵀδ / width).

    Under a centring norm over the batch, a is taken without the means of its rows.  A bias is the
    column of W that multiplies one more row of a: Y = W a + b 1ᵀ / gain, and all entries of that
    row are √(width · bias_variance) / gain.  Under a convolution the patches of a take the place of
    a, and their number of rows, taps · width, that of the width.

    Parameters
    ----------
    run : Run
        Networks with Gaussian weights; its dtype is the precision of the normals z.
    """

    def __init__(self, run: Run) -> None:
        self._chain = run.chain
        self._sampler = RowSampler(replace(run, path="conditional"))
        # Gradients depend on the scale of rows, and the covariance of the chain has the variance of
        # the bias already.
        self._spec = self._sampler.spec._replace(hides_scale=False, shared_variance=0.0)
        self._seen: dict[int, list[_Seen]] = {}

    def times(self, layer: int, a: Float64Array) -> Float64Array:
        """Return W a + b 1ᵀ / gain, and keep what gave it."""
        self._seen[layer] = [
            self._draw(index, layer, of_network) for index, of_network in enumerate(a)
        ]
        return np.stack([seen.normals @ seen.factor.T for seen in self._seen[layer]])

    def transposed_times(self, layer: int, a: Float64Array, delta: Float64Array) -> Float64Array:
        """Return Wᵀ δ; each layer once."""
        fan_in = self._chain.fan_in
        root = np.sqrt(fan_in)
        values, vectors = _eigen(delta)
        roots = vectors * np.sqrt(values)[:, None] / root
        products = []
        for index, (seen, operand) in enumerate(
            zip(self._seen.pop(layer), self._operand(a), strict=True)
        ):
            at = np.flatnonzero(seen.regular)
            triangle = seen.factor[np.ix_(at, at)]
            # SciPy's triangular solver uses all threads of the BLAS, even for the smallest matrix.
            basis = np.linalg.solve(triangle, operand[:, at].T).T / root
            z = self._noise(index, layer, len(operand), roots[index])
            coordinates = seen.normals[:, at].T @ delta[index] / root - basis.T @ z
            products.append((z + basis @ coordinates)[:fan_in])
        return _folded(self._chain, np.stack(products))

    def _draw(self, index: int, layer: int, a: Float64Array) -> _Seen:
        """Draw the normals of a layer of one network, as the conditional sampler does."""
        sampler = self._sampler
        work, columns = sampler.work(np.dtype(np.float64)), sampler.columns
        rows.factorise(self._chain.covariance(a.T @ a / len(a)), self._spec, work)
        draw = sampler.addressed(layer, codes.STREAM_ROWS, index)
        normals = normals_of(self._chain.width, work.regular, draw, sampler.work().block)
        # The spec has gain 1 if the norm does not see the scale of rows.
        factor = np.tril(work.factor[:columns, :columns]) * work.regular / self._spec.gain
        return _Seen(normals, factor, work.regular.copy())

    def _operand(self, a: Float64Array) -> Float64Array:
        """Return the part of a on which the rows depend, with one more row if there is a bias."""
        if not self._spec.hides_common:
            return _operand(self._chain, a)
        patches = _patches(self._chain, a)
        by_batch = patches.reshape(*patches.shape[:2], -1, self._chain.batch)
        return (by_batch - by_batch.mean(axis=-1, keepdims=True)).reshape(patches.shape)

    def _noise(self, index: int, layer: int, rows: int, root: Float64Array) -> Float64Array:
        """Return the rows Z, which are those of `root` times normals; one more for a bias."""
        counter = [0, 1, layer, self._sampler.offset + index]
        generator = np.random.Generator(
            np.random.Philox(key=self._sampler.run.key, counter=counter)
        )
        return generator.standard_normal((rows, len(root))) @ root.T


class _Seen(NamedTuple):
    """The normals z (width, columns), the factor F, and which of its columns are not zero."""

    normals: Float64Array
    factor: Float64Array
    regular: NDArray[np.bool_]


class UnseenWeights:
    """Gaussian weights that are never made: products have their law given all products before.

    Let s be what the weights of a row and its bias multiply: the activations a, or their patches,
    with one more row if there is a bias (see `ReplayedRows`), and f the number of weights of a row.
    The rows of h = W s are independent N(0, sᵀs / f).  Given h, with δ a function of h,

        Wᵀ δ = s (sᵀs)⁺ (hᵀδ - sᵀZ) + Z,    rows of Z: N(0, δᵀδ / f).

    Parameters
    ----------
    chain : Chain
        With Gaussian weights.
    generators : list of Generator
        One for each network.
    """

    def __init__(self, chain: Chain, generators: list[np.random.Generator]) -> None:
        self._chain, self._generators = chain, generators
        self._products: dict[int, Float64Array] = {}

    def times(self, layer: int, a: Float64Array) -> Float64Array:
        """Return W a + b 1ᵀ / gain, and keep it."""
        normals = self._normals(a.shape[1], a.shape[2])
        self._products[layer] = normals @ self._root(_operand(self._chain, a))
        return self._products[layer]

    def transposed_times(self, layer: int, a: Float64Array, delta: Float64Array) -> Float64Array:
        """Return Wᵀ δ; each layer once."""
        (width, columns), fan_in = delta.shape[1:], self._chain.fan_in
        seen = _operand(self._chain, a)
        if columns < width:
            z = self._normals(seen.shape[1], columns) @ self._root(delta)
        else:
            z = self._normals(seen.shape[1], width) @ delta / np.sqrt(fan_in)
        products = self._products.pop(layer).swapaxes(1, 2) @ delta - seen.swapaxes(1, 2) @ z
        values, vectors = _eigen(seen)
        inverse = np.divide(1.0, values, out=np.zeros_like(values), where=values > 0.0)
        mixing = (vectors * inverse[:, None]) @ (vectors.swapaxes(1, 2) @ products)
        return _folded(self._chain, (z + seen @ mixing)[:, :fan_in])

    def _root(self, a: Float64Array) -> Float64Array:
        """Return the symmetric root of aᵀa / fan_in.

        Other roots contain signs of eigenvectors, which differ between processors.
        """
        values, vectors = _eigen(a)
        scaled = vectors * np.sqrt(values / self._chain.fan_in)[:, None]
        return scaled @ vectors.swapaxes(1, 2)

    def _normals(self, rows: int, columns: int) -> Float64Array:
        return np.stack([each.standard_normal((rows, columns)) for each in self._generators])


def _operand(chain: Chain, a: Float64Array) -> Float64Array:
    """Return what the weights and the bias of a row multiply.

    A bias multiplies one more row, whose entries are √(fan_in · bias_variance) / gain.
    """
    seen = _patches(chain, a)
    if not chain.shows_bias:
        return seen
    constant = np.sqrt(chain.bias_variance * chain.fan_in) / chain.gain
    row = np.full((len(seen), 1, seen.shape[2]), constant)
    return np.concatenate([seen, row], axis=1)


def _patches(chain: Chain, a: Float64Array) -> Float64Array:
    """Return what the weights multiply: a, or its patches, (networks, taps * width, columns)."""
    return a if chain.convolution is None else chain.convolution.unfold(a)


def _folded(chain: Chain, gradient: Float64Array) -> Float64Array:
    """Return the gradient with respect to a, given that of what the weights multiply."""
    return gradient if chain.convolution is None else chain.convolution.fold(gradient)


def _eigen(a: Float64Array) -> tuple[Float64Array, Float64Array]:
    """Return eigenvalues of aᵀa, those that are rounding errors as 0, and eigenvectors."""
    values, vectors = np.linalg.eigh(a.swapaxes(1, 2) @ a)
    return np.where(values > _LEAST_EIGENVALUE * values[:, -1:], values, 0.0), vectors
