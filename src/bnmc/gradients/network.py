"""Forward and backward passes in NumPy, of networks with the rows of many layers in memory.

`Network` computes the forward pass and the backward pass of an ensemble, for every norm, order and
bias.  Other classes multiply by the weights and by their transposes.  Arrays have the shape
(networks, width, columns) and the dtype float64.

`NetworkTask` takes networks forward and back one at a time.  With drawn weights it is the
reference, and takes every law of weights.  With the rows of `simulate` it takes the layers without
kernels in `descent.py`: norms over the features, other orders of norm and activation, biases and
convolutions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from bnmc._kernels.cpu import memory, rows
from bnmc._kernels.cpu.backward_rows import normals_of
from bnmc._kernels.scalar import codes
from bnmc._support.arguments import Float64Array
from bnmc._support.interruption import Stop
from bnmc._support.machine import one_blas_thread
from bnmc.chain.layers import Linear, Normalised, Path, RowMap, Rows, linears_of
from bnmc.chain.start import Start
from bnmc.errors import NonFiniteError, ZeroVarianceError
from bnmc.gradients.descent import Stretch
from bnmc.gradients.directions import GivenRows, Readout, scaled
from bnmc.gradients.observables import Gradients
from bnmc.gradients.parts import Pass, Task, layers_of_stretch
from bnmc.simulation.engine.replay import biases_of_layer, unit_weights_of_layer
from bnmc.simulation.engine.rows import RowSampler
from bnmc.simulation.runs import Run, number_of_projection

#: Exponents of gradients whose squares are far from the ends of float64.
_MOST_EXPONENT = 400


def start_rows(run: Run, start: Start) -> Float64Array:
    """Return x of layer 0, which a skip connection keeps, (chains, width, columns)."""
    run, width = replace(run, path="weights"), run.layer(0).linear.width
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
    run : Run
        The networks.
    start : (networks, width, columns) ndarray or Rows
        Layer 0: what a skip connection keeps; or layer `begin` of such a network.
    weights : Weights
    last : int
        The last layer.
    begin : int, default 0
        The first layer.

    Attributes
    ----------
    layers : dict of int to Rows
        The layers by number; another network may start with one of them.
    """

    def __init__(
        self, run: Run, start: Float64Array | Rows, weights: Weights, last: int, begin: int = 0
    ) -> None:
        self.run, self.weights = run, weights
        if not isinstance(start, Rows):
            made = run.layer(0).rows
            # A norm before the state has been applied to that of layer 0.
            normed = Normalised(start, None, None)
            start = made.rows(start, normed if made.keeps_normed else self._normalised(start, 0))
        self.layers = {begin: start}
        #: By the layer where skip paths begin: whether they take a, gradients, and their exponent.
        self._of_skips: dict[int, list[tuple[bool, Float64Array, int]]] = {}
        #: By the layer where skip paths end: their projections, if a norm follows.
        self._projected: dict[int, Rows] = {}
        for layer in range(begin + 1, last + 1):
            self.advance(layer)

    def advance(self, layer: int) -> None:
        """Make a layer from those before it."""
        before, (linear, made, *_) = self.layers[layer - 1], self.run.layer(layer)
        with np.errstate(over="ignore", invalid="ignore"):  # raises below
            a = before.outputs()
            h = a if linear.law.is_identity else linear.gain * self.weights.times(layer, a)
            if made.skip != 0.0:
                h = h + made.skip * self._skipping(layer)
        if not np.isfinite(h).all():
            wrong = int(np.isfinite(h).all(axis=(1, 2)).argmin())
            raise NonFiniteError(self.run.first + wrong, layer, "representation")
        self.layers[layer] = made.rows(h, self._normalised(h, layer))
        self._require_range(layer)

    def taken(self, layer: int) -> Float64Array:
        """Return what the skip connection of a layer takes, before its projection."""
        path = path_to(self.run, layer)
        before = self.layers[layer - path.length]
        return before.outputs() if path.takes_activations else before.x

    def _skipping(self, layer: int) -> Float64Array:
        """Return what the skip connection of a layer adds, without its factor."""
        taken, number = self.taken(layer), number_of_projection(layer)
        if number not in self.run.projections:
            return taken
        rows = self.run.layer(number).linear.gain * self.weights.times(number, taken)
        path = self.run.layer(layer).path
        if path is None or path.norm is None:
            return rows
        self._projected[layer] = path.norm.rows(rows, self._normed(path.norm, rows, layer))
        return self._projected[layer].normed.values

    def gram(self, layer: int) -> Float64Array:
        """Return the Gram matrices aᵀa / width of a layer."""
        a = self.layers[layer].outputs()
        return a.swapaxes(1, 2) @ a / a.shape[1]

    def through_activation(self, layer: int, gradient: Float64Array) -> Float64Array:
        """Return the gradient with respect to h, given that with respect to a.

        Parameters
        ----------
        layer : int
            From 1 on.
        gradient : (networks, width, k * columns) ndarray
            Gradients of k functions.
        """
        return self.layers[layer].down(self._by_function(gradient)).reshape(gradient.shape)

    def down(self, layer: int, delta: Float64Array, exponent: int = 0) -> Float64Array:
        """Return the gradients with respect to h of layer - 1, given those of h of a layer >= 2.

        They are in units of 2**exponent.
        """
        before = self.layers[layer - 1]
        at_a = self._transposed(layer, before.outputs(), delta)
        at_x = np.zeros_like(at_a)
        self._go_through_skip(layer, delta, exponent)
        for takes_a, values, unit in self._of_skips.pop(layer - 1, []):
            at = at_a if takes_a else at_x
            at += np.ldexp(values, unit - exponent)
        return before.down(self._by_function(at_a), self._by_function(at_x)).reshape(at_a.shape)

    def _transposed(self, layer: int, a: Float64Array, delta: Float64Array) -> Float64Array:
        """Return the gradient at what the weights of a layer or projection multiply."""
        if self.run.layer(layer).linear.law.is_identity:
            return delta
        inner, by = in_range(delta)
        at_a = self.weights.transposed_times(layer, a, inner)
        return at_a * times_power(self.run.layer(layer).linear.gain, by)

    def at_projection(self, layer: int, delta: Float64Array) -> Float64Array:
        """Return the gradients with respect to P x, given those with respect to N(P x)."""
        if layer not in self._projected:
            return delta
        return self._projected[layer].through_norm(self._by_function(delta)).reshape(delta.shape)

    def _go_through_skip(self, layer: int, delta: Float64Array, exponent: int) -> None:
        """Keep the gradient with respect to what the skip connection of a layer takes."""
        made, number = self.run.layer(layer), number_of_projection(layer)
        if made.rows.skip == 0.0:
            return
        values = made.rows.skip * self.at_projection(layer, delta)
        if number in self.run.projections:
            values = self._transposed(number, self.taken(layer), values)
        path = path_to(self.run, layer)
        gradients = self._of_skips.setdefault(layer - path.length, [])
        gradients.append((path.takes_activations, values, exponent))

    def _by_function(self, gradient: Float64Array) -> Float64Array:
        networks, width, _ = gradient.shape
        return gradient.reshape(networks, width, -1, self.run.columns)

    def _normalised(self, h: Float64Array, layer: int) -> Normalised:
        """Apply the norm at its place of the layer, or raise if a part has no variance."""
        made = self.run.layer(layer).rows
        return self._normed(made, made.argument(h), layer)

    def _normed(self, made: RowMap, y: Float64Array, layer: int) -> Normalised:
        """Return N(y), or raise if a part has no variance."""
        if flat := made.without_variance(y):
            index, *place = flat
            raise ZeroVarianceError(self.run.first + index, layer, *place)
        return made.normalise(y)

    def _require_range(self, layer: int) -> None:
        """Raise if the squares of a representation without a norm are out of range."""
        if not self.run.layer(layer).rows.norm.is_identity:
            return
        largest = np.abs(self.layers[layer].x).max(axis=(1, 2))
        wrong = np.flatnonzero(~(largest < 1e150) | ((largest > 0.0) & (largest < 1e-140)))
        if wrong.size:
            raise NonFiniteError(self.run.first + int(wrong[0]), layer, "Gram matrix")


def path_to(run: Run, layer: int) -> Path:
    """Return the skip path that ends at a layer; a skip connection is one from the layer before."""
    return run.layer(layer).path or Path(1)


def in_range(delta: Float64Array) -> tuple[Float64Array, int]:
    """Return gradients in units of 2**exponent, which is 1 unless their squares leave float64.

    The gain of a layer divides them under a norm, and may be 1e200.
    """
    values, exponent = scaled(delta)
    return (values, exponent) if abs(exponent) > _MOST_EXPONENT else (delta, 0)


def times_power(value: float, exponent: int) -> float:
    """Return value · 2**exponent, infinite on overflow."""
    with np.errstate(over="ignore"):
        return float(np.ldexp(value, exponent))


# --- the backward pass, one network at a time

#: Bytes that the rows of a stretch of layers may take.
ROWS_BYTES = 1 << 25

#: Arrays of width × columns that a layer keeps: h, N(h) and normals, and some that NumPy makes.
_LAYER_ROWS = 4

#: Arrays of the size of the patches that a convolution needs.
_PATCHES = 6


class _NetworkPass(Pass):
    """The way of one network; the state of a layer is its rows."""

    task: NetworkTask
    _network: Network | None = None
    _delta: Float64Array
    _scale: int

    def _state_after(self, state: Rows | None, first: int, last: int) -> Rows:
        return self._layers(state, first, last).layers[last]

    def _layers(self, state: Rows | None, first: int, last: int) -> Network:
        """Return the rows of layers."""
        run = self.run
        rows = start_rows(run, self.start) if state is None else state
        weights = DrawnWeights(run) if run.path == "weights" else ReplayedRows(run)
        return Network(run, rows, weights, last, first)

    def _stretch(self, state: Rows | None, first: int, last: int) -> Stretch:
        self._network = None  # before the rows of the next stretch are made
        network = self._network = self._layers(state, first, last)
        grams = np.stack([network.gram(layer) for layer in range(first, last + 1)], axis=1)
        none, narrow = np.zeros((1, 1, 1, 1)), np.zeros(1, np.bool_)
        return Stretch(first, grams, np.zeros(grams.shape[:3], np.int64), none, narrow, narrow)

    def _descend(self, stretch: Stretch, gradients: Gradients) -> None:
        network, run, (products, scales) = self._network, self.run, gradients.chain(0)
        assert network is not None
        if stretch.first + stretch.layers == run.depth:
            self._delta, self._scale = self._top(network)
        for index in reversed(range(stretch.layers)):
            delta, layer = self._delta, stretch.first + 1 + index
            if not np.isfinite(delta).all():
                raise NonFiniteError(run.first, layer, "gradient")
            scales[index] = self._scale
            # Place 1 is for products with normals; no later step reads it.
            width = delta.shape[1]
            products[index, 0] = delta[0].T @ delta[0] / width
            if self.task.wants_hidden:
                products[index, 2] = network.layers[layer].hidden()[0].T @ delta[0] / width
            if layer > 1:
                self._delta, more = scaled(network.down(layer, delta, self._scale))
                self._scale += more

    def _top(self, network: Network) -> tuple[Float64Array, int]:
        """Return δ of the last layer, (1, width, columns), in units of 2**exponent."""
        run, direction, number = self.run, self.task.direction, self.run.first
        width, depth = run.layer(run.depth).linear.width, run.depth
        generator = generator_of(run, 0)
        if isinstance(direction, GivenRows):
            return scaled(direction.of(number).T[None])
        if not isinstance(direction, Readout):
            return scaled(generator.standard_normal((1, width, run.columns)))
        if direction.of_states:
            outputs = network.layers[depth].hidden()[0]
            gradient, exponent = scaled(direction.of_columns(outputs, number, depth))
            return gradient[None], exponent
        readout = generator.standard_normal((direction.classes, width)) / math.sqrt(width)
        outputs = readout @ network.layers[depth].outputs()[0]
        gradient, exponent = scaled(direction.of_columns(outputs, number, depth))
        at_a = (gradient.T @ readout).T
        delta, more = scaled(network.through_activation(depth, at_a[None]))
        return delta, exponent + more


@dataclass(frozen=True)
class NetworkTask(Task):
    """A backward pass with the rows of a stretch of layers in memory.

    Random numbers have the precision `dtype`; all products are float64.
    """

    chains_of_pass = 1
    uses_blas = True

    __call__ = one_blas_thread()(Task.__call__)

    def pass_of(self, run: Run, start: Start, stop: Stop) -> Pass:
        """Return the pass of one network."""
        return _NetworkPass(self, run, start, stop)

    def layers_of_stretch(self, chains: int) -> int:
        """Return the number of layers of a stretch."""
        size = 8 * _LAYER_ROWS * self._largest[0] * self.run.columns
        return layers_of_stretch(self.run.depth, size, ROWS_BYTES)

    def bytes_of_pass(self, chains: int) -> int:
        """Return the bytes of one network, about."""
        columns, layers = self.run.columns, self.layers_of_stretch(1)
        width, fan_in = self._largest
        # Rows of a stretch: representations, their norms, and normals; rows at the ends of
        # stretches; what a layer needs; and a weight matrix.
        rows = _LAYER_ROWS * layers + 2 * (self.run.depth // layers) + 10
        size = 8 * (width * columns * rows + 4 * columns**2 * layers)
        if fan_in > width:  # patches of a layer, and products with them
            size += 8 * _PATCHES * fan_in * columns
        return size + 24 * width * fan_in * (self.run.path == "weights")

    @property
    def _largest(self) -> tuple[int, int]:
        """The largest number of rows of a layer, and of weights of a row."""
        linears = linears_of(self.run.layers)
        return max(each.width for each in linears), max(each.fan_in for each in linears)


# --- products with the weights of networks, forward and transposed
#
# W a is the product of weights with what they see of the activations a: a itself, or under a
# convolution its patches, one row for each tap and channel.  So Wᵀ δ of a convolution is that of
# its patches, folded.
#
# `DrawnWeights` draws every matrix, for any law of weights.  `ReplayedRows` draws products with
# Gaussian matrices given all products before, and makes none; its rows are those of `simulate`.
# `UnseenWeights` does the same with any number of functions, and with rows of its own.

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
        self._run, self._numbers = run, range(run.first, run.first + run.chains)

    def times(self, layer: int, a: Float64Array) -> Float64Array:
        """Return W a + b 1ᵀ / gain."""
        # Scaled after the sum, so that sums of equal terms with signs ±1 vanish exactly.
        linear = self._run.layer(layer).linear
        products = np.stack([w @ seen for w, seen in self._each(layer, linear.patches.unfold(a))])
        scaled = products / np.sqrt(linear.fan_in)
        if self._run.spec(layer).bias != 0.0:
            biases = [biases_of_layer(self._run, number, layer) for number in self._numbers]
            scaled += np.stack(biases).astype(np.float64)[:, :, None] / linear.gain
        return scaled

    def transposed_times(self, layer: int, a: Float64Array, delta: Float64Array) -> Float64Array:
        """Return Wᵀ δ."""
        linear = self._run.layer(layer).linear
        products = np.stack([w.T @ each for w, each in self._each(layer, delta)])
        return linear.patches.fold(products / np.sqrt(linear.fan_in))

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
        self._sampler = RowSampler(replace(run, path="conditional"))
        self._run = self._sampler.run
        self._seen: dict[int, list[_Seen]] = {}

    def times(self, layer: int, a: Float64Array) -> Float64Array:
        """Return W a + b 1ᵀ / gain, and keep what gave it."""
        self._seen[layer] = [
            self._draw(index, layer, of_network) for index, of_network in enumerate(a)
        ]
        return np.stack([seen.normals @ seen.factor.T for seen in self._seen[layer]])

    def transposed_times(self, layer: int, a: Float64Array, delta: Float64Array) -> Float64Array:
        """Return Wᵀ δ; each layer once."""
        linear = self._run.layer(layer).linear
        root = np.sqrt(linear.fan_in)
        values, vectors = _eigen(delta)
        roots = vectors * np.sqrt(values)[:, None] / root
        products = []
        for index, (seen, operand) in enumerate(
            zip(self._seen.pop(layer), self._operand(layer, a), strict=True)
        ):
            at = np.flatnonzero(seen.regular)
            triangle = seen.factor[np.ix_(at, at)]
            # SciPy's triangular solver uses all threads of the BLAS, even for the smallest matrix.
            basis = np.linalg.solve(triangle, operand[:, at].T).T / root
            z = self._noise(index, layer, len(operand), roots[index])
            coordinates = seen.normals[:, at].T @ delta[index] / root - basis.T @ z
            products.append((z + basis @ coordinates)[: linear.fan_in])
        return linear.patches.fold(np.stack(products))

    def _draw(self, index: int, layer: int, a: Float64Array) -> _Seen:
        """Draw the normals of a layer of one network, as the conditional sampler does."""
        sampler, linear = self._sampler, linear_of(self._run, layer)
        work, columns = sampler.work(np.dtype(np.float64)), sampler.columns
        # Gradients depend on the scale of rows, and this covariance has the variance of the bias.
        spec = self._run.spec(layer)._replace(hides_scale=False, shared_variance=0.0)
        rows.factorise(linear.covariance()(a.T @ a / len(a)), spec, work)
        draw = sampler.addressed(layer, codes.STREAM_ROWS, index)
        normals = normals_of(linear.width, work.regular, draw, sampler.work().block)
        # The spec has gain 1 if the norm does not see the scale of rows.
        factor = np.tril(work.factor[:columns, :columns]) * work.regular / spec.gain
        return _Seen(normals, factor, work.regular.copy())

    def _operand(self, layer: int, a: Float64Array) -> Float64Array:
        """Return the part of a on which the rows depend, with one more row if there is a bias."""
        linear = linear_of(self._run, layer)
        if not self._run.spec(layer).hides_common:
            return _operand(linear, a)
        patches = linear.patches.unfold(a)
        by_batch = patches.reshape(*patches.shape[:2], -1, self._run.batch)
        return (by_batch - by_batch.mean(axis=-1, keepdims=True)).reshape(patches.shape)

    def _noise(self, index: int, layer: int, rows: int, root: Float64Array) -> Float64Array:
        """Return the rows Z, which are those of `root` times normals; one more for a bias."""
        generator = generator_of(self._run, index, 1, layer)
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
    run : Run
        With Gaussian weights.
    generators : list of Generator
        One for each network.
    """

    def __init__(self, run: Run, generators: list[np.random.Generator]) -> None:
        self._run, self._generators = run, generators
        self._products: dict[int, Float64Array] = {}

    def times(self, layer: int, a: Float64Array) -> Float64Array:
        """Return W a + b 1ᵀ / gain, and keep it."""
        linear = linear_of(self._run, layer)
        root = _root(_operand(linear, a), linear.fan_in)
        self._products[layer] = self._normals(linear.width, a.shape[2]) @ root
        return self._products[layer]

    def transposed_times(self, layer: int, a: Float64Array, delta: Float64Array) -> Float64Array:
        """Return Wᵀ δ; each layer once."""
        (width, columns), linear = delta.shape[1:], linear_of(self._run, layer)
        seen = _operand(linear, a)
        if columns < width:
            z = self._normals(seen.shape[1], columns) @ _root(delta, linear.fan_in)
        else:
            z = self._normals(seen.shape[1], width) @ delta / np.sqrt(linear.fan_in)
        products = self._products.pop(layer).swapaxes(1, 2) @ delta - seen.swapaxes(1, 2) @ z
        values, vectors = _eigen(seen)
        inverse = np.divide(1.0, values, out=np.zeros_like(values), where=values > 0.0)
        mixing = (vectors * inverse[:, None]) @ (vectors.swapaxes(1, 2) @ products)
        return linear.patches.fold((z + seen @ mixing)[:, : linear.fan_in])

    def _normals(self, rows: int, columns: int) -> Float64Array:
        return np.stack([each.standard_normal((rows, columns)) for each in self._generators])


def generator_of(run: Run, index: int, stream: int = 0, layer: int = 0) -> np.random.Generator:
    """Return a generator of a network of a run; rows that `simulate` draws have other numbers."""
    counter = [0, stream, layer, run.first + index]
    return np.random.Generator(np.random.Philox(key=run.key, counter=counter))


def linear_of(run: Run, layer: int) -> Linear:
    """Return the map that leads to a layer, without a bias that the norm subtracts."""
    linear = run.layer(layer).linear
    return linear if run.spec(layer).bias != 0.0 else replace(linear, bias_variance=0.0)


def _operand(linear: Linear, a: Float64Array) -> Float64Array:
    """Return what the weights and the bias of a row multiply.

    A bias multiplies one more row, whose entries are √(fan_in · bias_variance) / gain.
    """
    seen = linear.patches.unfold(a)
    if linear.bias_variance == 0.0:
        return seen
    constant = np.sqrt(linear.bias_variance * linear.fan_in) / linear.gain
    row = np.full((len(seen), 1, seen.shape[2]), constant)
    return np.concatenate([seen, row], axis=1)


def _root(a: Float64Array, fan_in: int) -> Float64Array:
    """Return the symmetric root of aᵀa / fan_in.

    Other roots contain signs of eigenvectors, which differ between processors.
    """
    values, vectors = _eigen(a)
    scaled = vectors * np.sqrt(values / fan_in)[:, None]
    return scaled @ vectors.swapaxes(1, 2)


def _eigen(a: Float64Array) -> tuple[Float64Array, Float64Array]:
    """Return eigenvalues of aᵀa, those that are rounding errors as 0, and eigenvectors."""
    values, vectors = np.linalg.eigh(a.swapaxes(1, 2) @ a)
    return np.where(values > _LEAST_EIGENVALUE * values[:, -1:], values, 0.0), vectors
