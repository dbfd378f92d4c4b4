"""Starts of chains: arrays, and laws that kernels draw.

A named law, and a first layer with another number of features, are Gaussian rows with a given
covariance of the samples.  Kernels draw them like a conditional layer, so no (width, batch) array
exists.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bnmc._kernels.scalar.scaling import LEEWAY
from bnmc._support.arguments import choice, finite_array, host_array
from bnmc._support.device_arrays import is_device_array
from bnmc._support.interruption import interruptible
from bnmc._support.machine import require_memory
from bnmc.chain.activations import Activation
from bnmc.chain.chain import Chain, Network, layer_at, layers_of, pattern_of
from bnmc.chain.homogeneity import keeps_scale
from bnmc.chain.layers import RowMap
from bnmc.errors import ArgumentError, ArgumentTypeError, ZeroVarianceError

#: Variance of the own part of each sample in the law "collinear"; the common part has variance 1.
_COLLINEAR_VARIANCE = 1e-6
#: Size of arrays for which the available memory, which takes 0.1 ms to find, is not looked up.
_UNCHECKED_BYTES = 1 << 24

_INITIAL_LAWS = ("gaussian", "collinear")


class FirstLayer:
    r"""Inputs with any number of features, which a first Gaussian layer takes to the width.

    Each chain starts from :math:`x_0 = N(W x)` with W of shape (width, features) and i.i.d.
    entries N(0, 1/features).  If the chain is convolutional, W is a convolution with the kernel of
    the chain, and its entries have variance 1/(features · taps).

    Parameters
    ----------
    x : (features, batch) array_like, or (inputs, features, batch)
        Finite real numbers.  Images for a convolutional chain have two axes more, (features, batch,
        height, width) or (inputs, features, batch, height, width), which the attribute `x` has
        joined with the batch.

    Attributes
    ----------
    x : (features, batch) or (inputs, features, batch) ndarray of float64

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If `x` is not such an array.
    ResultTooLargeError
        If a copy of `x` does not fit in memory.

    Examples
    --------
    >>> import bnmc
    >>> start = bnmc.FirstLayer([[1.0, 2.0], [0.5, -1.0], [3.0, 0.0]])
    >>> run = bnmc.simulate(bnmc.Chain(100, 2, "linear", norm="none"), 3, initial=start, rng=0)
    >>> run.gram.shape
    (1, 4, 2, 2)
    """

    def __init__(self, x: ArrayLike) -> None:
        features = ("features", "batch")
        given = shape_of(x)
        leading = ("inputs",) if len(given) in (3, 5) else ()
        images = ("height", "width") if len(given) in (4, 5) else ()
        _require_memory("x", given, 1.2)
        x = finite_array("x", x, shape=(*leading, *features, *images)).astype(np.float64)
        self.x = x.reshape(*x.shape[: len(leading) + 1], -1) if images else x


def shape_of(value: Any) -> tuple[int, ...]:
    """Return the shape of an array, or () if the value is none."""
    if is_device_array(value):
        return tuple(getattr(value, "shape", ()))
    try:
        return host_array("initial", value).shape
    except ArgumentTypeError:  # `finite_array` will raise it, too
        return ()


def _no_exponents() -> NDArray[np.int64]:
    return np.zeros((1, 1), np.int64)


@dataclass(frozen=True)
class Covariance:
    """Layer 0 has rows N(0, matrix) before its normalization; `matrix` is (columns, columns).

    Column i of the rows is in units of 2**exponents[0, i]; `exponents` is (1, columns or 1).
    """

    matrix: NDArray[np.float64]
    exponents: NDArray[np.int64] = field(default_factory=_no_exponents)

    def part(self, first: int, last: int) -> Covariance:
        """Return the start of some chains, which is the same."""
        return self


@dataclass(frozen=True)
class Representation:
    """Layer 0 is known: what its skip connection keeps, x_0 or h_0, and its activations.

    Both are (chains or 1, width, columns).  Column i of both is in units of 2**exponents[:, i];
    `exponents` is (chains or 1, columns or 1).  `state` is h_0 if x is not, and it is needed.
    """

    x: NDArray[np.float64]
    a: NDArray[np.float64]
    exponents: NDArray[np.int64] = field(default_factory=_no_exponents)
    state: NDArray[np.float64] | None = None

    @property
    def h(self) -> NDArray[np.float64]:
        """The rows before the norm."""
        return self.x if self.state is None else self.state

    def part(self, first: int, last: int) -> Representation:
        """Return the start of some chains."""
        if len(self.x) == 1:
            return self
        of_chains = slice(first, last) if len(self.exponents) > 1 else slice(1)
        state = None if self.state is None else self.state[first:last]
        exponents = self.exponents[of_chains]
        return Representation(self.x[first:last], self.a[first:last], exponents, state)


#: What layer 0 is.
Start = Covariance | Representation


def prepare(
    network: Network, initial: object, chains: int, inputs: int | None, *, keeps_h: bool = False
) -> Start:
    """Return the start that an argument `initial` means, or raise a typed error.

    `keeps_h` tells whether the rows before the norm are needed.
    """
    columns = network.batch * (inputs or 1)
    initial = as_initial(network.first, initial)
    if isinstance(initial, str):
        _require_memory("batch", (columns, columns), 3.0)
        matrix = np.eye(columns)
        return Covariance(matrix if initial == "gaussian" else 1.0 + _COLLINEAR_VARIANCE * matrix)
    if isinstance(initial, FirstLayer):
        return _through_first_layer(network, initial, inputs)
    return _from_array(network, initial, chains, inputs, keeps_h)


def as_initial(chain: Chain, initial: Any) -> Any:
    """Return an argument `initial` as `as_columns` does, or raise if it is no start at all.

    Arrays are checked when the start is prepared, since a check takes memory.
    """
    if isinstance(initial, str):
        return choice("initial", initial, _INITIAL_LAWS)
    if initial is None or callable(initial):
        allowed = f"an array, a FirstLayer, or one of {', '.join(_INITIAL_LAWS)}"
        raise ArgumentTypeError("initial", initial, allowed)
    return as_columns(chain, initial)


def as_columns(chain: Chain, initial: Any) -> Any:
    """Return an argument `initial`; images of a convolutional chain have one axis of columns then.

    That is, (…, channels, samples, height, width) becomes (…, channels, batch).  Everything else is
    returned as it is.
    """
    convolution = chain.convolution
    if convolution is None or isinstance(initial, str) or is_device_array(initial):
        return initial
    images = chain.width, chain.batch // convolution.positions, *convolution.shape
    shape = shape_of(initial)
    if len(shape) < 4 or shape[-4:] != images:
        return initial
    return host_array("initial", initial).reshape(*shape[:-3], chain.batch)


def _splits_scale(network: Network) -> bool:
    """Return whether all layers multiply a sample by c > 0 if the input does so."""
    return all(map(keeps_scale, layers_of(pattern_of(network)).layers))


def normalise(rows: RowMap, x: NDArray[np.float64], per_chain: bool) -> NDArray[np.float64]:
    """Return N(x) for x of shape (chains, width, columns); `per_chain`: one x per chain.

    Raises
    ------
    ZeroVarianceError
        If a row, or a sample under a norm over the features, has no variance and eps is 0.
    """
    if flat := rows.without_variance(x):
        index, *place = flat
        raise ZeroVarianceError(*((index, 0) if per_chain else (None, None)), *place)
    return rows.norm(x, rows.eps, rows.batch)


def _require_memory(name: str, shape: tuple[int, ...], copies: float) -> None:
    """Raise if copies of an array in float64 do not fit in memory; small ones are not checked."""
    size = int(8 * copies * math.prod(shape))
    if size > _UNCHECKED_BYTES:
        require_memory(name, size)


def _through_first_layer(network: Network, start: FirstLayer, inputs: int | None) -> Covariance:
    x, chain = start.x, network.first
    expected = (chain.batch,) if inputs is None else (inputs, chain.batch)
    actual = x.shape[-1:] if x.ndim == 2 else (x.shape[0], x.shape[2])
    if actual != expected or (x.ndim == 3) != (inputs is not None):
        axes = "(features, batch)" if inputs is None else "(inputs, features, batch)"
        hint = "samples × features? pass x.T" if x.shape[:-1] == (chain.batch,) else ""
        wanted = f"a FirstLayer of shape {axes}, batch = {chain.batch}"
        raise ArgumentError("initial", x.shape, wanted, hint)
    columns = chain.batch * (inputs or 1)
    _require_memory("batch", (columns, columns), 2.0)
    stacked = _side_by_side(x[None, None] if inputs is None else x[None])[0]
    rows, units = layer_at(network, 0).rows, _no_exponents()
    has_no_scale = rows.keeps_normed and rows.hides_scale()
    if has_no_scale:
        _require_variance(chain, stacked)
    if has_no_scale or _splits_scale(network):
        units = _exponents(stacked, axis=None if has_no_scale else 0)
    if units.any():
        stacked = np.ldexp(stacked, -units)
    covariance = np.zeros((stacked.shape[1], stacked.shape[1]))
    if not write_gram(stacked, covariance):
        largest = float(np.abs(x).max())
        raise ArgumentError("initial", largest, "numbers whose squares float64 can hold")
    covariance = chain.layers[1].linear.patches.covariance(covariance)
    return Covariance(covariance, _no_exponents() if has_no_scale else units)


def write_gram(x: NDArray[np.float64], out: NDArray[np.float64]) -> bool:
    """Write the Gram matrix xᵀx / features of x, (features, columns); return whether it is finite.

    Kernels of this package sum it.  The bits of a product by BLAS depend on the kind of BLAS, and
    on its threads.
    """
    from bnmc._kernels.cpu import layers, memory

    features, columns = x.shape
    rows = memory.aligned_zeros((columns, memory.stride(features)), np.float64)
    rows[:, :features] = x.T
    return bool(layers.gram_of_rows(rows, features, memory.work(columns, 1, "float64"), out))


def _require_variance(chain: Chain, stacked: NDArray[np.float64]) -> None:
    """Raise if all samples are equal (all zero): no row of W x would have variance.

    For a norm over the features: if one sample is zero.
    """
    if not chain.normalization.acts_on_rows:
        if chain.convolution is not None:
            return  # a zero pixel has neighbours
        zero = (stacked == 0.0).all(axis=0)
        if zero.any():
            raise ZeroVarianceError(None, None, None, int(zero.argmax()))
        return
    groups = stacked.reshape(stacked.shape[0], -1, chain.batch).swapaxes(0, 1)
    if chain.normalization.without_variance(groups).all(axis=-1).any():
        raise ZeroVarianceError(None, None, 0)


def _from_array(
    network: Network, initial: Any, chains: int, inputs: int | None, keeps_h: bool
) -> Representation:
    chain = network.first
    _require_memory("initial", shape_of(initial), 2.4 + keeps_h)
    axes = ("width", "batch") if inputs is None else ("inputs", "width", "batch")
    lengths = (chain.width, chain.batch) if inputs is None else (inputs, chain.width, chain.batch)
    x = finite_array("initial", initial, shape=(..., *axes))
    per_chain = x.ndim == len(axes) + 1
    if x.shape not in (lengths, (chains, *lengths)):
        wanted = f"{lengths} or {(chains, *lengths)}, that is (chains, {', '.join(axes)})"
        hint = ""
        if chain.convolution is not None:
            samples = chain.batch // chain.convolution.positions
            hint = f"images: {(chain.width, samples, *chain.convolution.shape)}, channels first"
        elif x.shape == lengths[::-1]:
            hint = "samples × features? pass x.T"
        elif x.shape[-1] == chain.batch and x.ndim == len(axes):
            hint = "wrap it in bnmc.FirstLayer to take another number of features to the width"
        raise ArgumentError("initial", x.shape, wanted, hint)
    # NumPy adds in an order that depends on the layout in memory.
    full = x.astype(np.float64, order="C", copy=False)
    full = _side_by_side(full.reshape(-1, inputs or 1, chain.width, chain.batch))
    if _splits_scale(network):
        return _of_any_scale(chain, full)
    # `_side_by_side` may return a view, of an array of the caller.
    state = full.copy() if keeps_h else None
    rows, activated = apply(layer_at(network, 0).rows, full, per_chain)
    if np.may_share_memory(rows, x):
        rows = rows.copy()  # the caller may write into x later
    return Representation(rows, activated, state=state)


def apply(
    rows: RowMap, h: NDArray[np.float64], per_chain: bool
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return what the skip connection keeps of states h, and their activations.

    Arguments and errors are those of `normalise`.
    """
    if rows.activates_first:
        return h, normalise(rows, _activated(rows.activation, h), per_chain)
    x = normalise(rows, h, per_chain)
    return x if rows.keeps_normed else h, _activated(rows.activation, x)


def _activated(activation: Activation, x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return σ(x)."""
    with np.errstate(all="ignore"):
        # The function of a user may never end.
        result = interruptible(partial(activation, x))
        return np.asarray(result, dtype=np.float64)


def _side_by_side(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Put the batches of each chain side by side: (chains, rows, inputs * batch)."""
    chains, inputs, width, batch = x.shape
    return np.ascontiguousarray(x.swapaxes(1, 2)).reshape(chains, width, inputs * batch)


def _of_any_scale(chain: Chain, x: NDArray[np.float64]) -> Representation:
    """Return a known layer 0, (chains or 1, width, columns), with the scale of its samples apart.

    The unit of a sample is that of its activations; if these are all zero, that of x.
    """
    digits, exponents = np.frexp(x)
    activated = np.asarray(chain.activation(digits), dtype=np.float64)
    sizes = np.where(activated != 0.0, np.frexp(activated)[1] + exponents, _LEAST)
    of_a = sizes.max(axis=1)
    of_x = np.where(x != 0.0, exponents, _LEAST).max(axis=1)
    units = np.where(of_a > _LEAST, of_a, np.where(of_x > _LEAST, of_x, 0))
    units[np.abs(units) <= LEEWAY] = 0
    by = exponents - units[:, None]
    with np.errstate(over="ignore"):  # x of a unit that no activation has
        return Representation(np.ldexp(digits, by), np.ldexp(activated, by), units.astype(np.int64))


#: Below every exponent of float64.
_LEAST = -5000


def _exponents(x: NDArray[np.float64], axis: int | None) -> NDArray[np.int64]:
    """Return the exponents (base 2) of the largest moduli, 0 where they are near 1: (1, ...)."""
    largest = np.maximum(x.max(axis=axis), -x.min(axis=axis))  # without a copy of x
    exponents = np.frexp(largest)[1].astype(np.int64).reshape(1, -1)
    return np.where(np.abs(exponents) > LEEWAY, exponents, 0)
