"""What the networks of a training have in common: layers, matrices and parametrization."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bnmc._kernels.scalar.codes import NORM_FIRST
from bnmc._support.arguments import Float64Array
from bnmc.chain.chain import Chain, Network, require_no_blocks
from bnmc.chain.layers import Layer, RowMap
from bnmc.chain.needs import FULLY_CONNECTED, NO_BIAS, lacking
from bnmc.errors import ArgumentError
from bnmc.implicit.matrix import GaussianMatrix, HaarMatrix, ImplicitMatrix
from bnmc.implicit.words import key_of, normals
from bnmc.training.scalings import HIDDEN, INPUT, READOUT, Powers
from bnmc.training.weights import DrawnWeights, ImplicitWeights, MaximizedWeights, Weights


class Matrix(NamedTuple):
    """The law of a matrix, and how it is trained.

    Attributes
    ----------
    rows, columns : int
    place : int
        `INPUT`, `HIDDEN` or `READOUT`.
    deviation : float
        Standard deviation of the entries.
    factor : float
        Of the learning rate.
    is_orthogonal, is_maximized, is_implicit : bool
        A maximized matrix is an orthogonal one to which the start adds coefficients.
    directions : (int, int)
        The most directions for which an implicit matrix and its transpose are asked.
    """

    rows: int
    columns: int
    place: int
    deviation: float
    factor: float
    is_orthogonal: bool = False
    is_maximized: bool = False
    is_implicit: bool = False
    directions: tuple[int, int] = (0, 0)

    def weights(self, key: tuple[int, ...], dtype: str) -> Weights:
        """Return the weights at initialization, which the key determines."""
        if self.is_implicit or self.is_maximized:
            matrix = self._implicit(key, dtype)
            matrix.reserve(*self.directions)
            return (MaximizedWeights if self.is_maximized else ImplicitWeights)(matrix)
        entries = self._normals(key, dtype)
        if self.is_orthogonal:
            q, r = np.linalg.qr(entries)
            # The signs make the law of Q uniform.
            entries = q * (np.sign(np.diag(r)) * math.sqrt(self.columns))
        return DrawnWeights(np.ascontiguousarray(self.deviation * entries, dtype))

    def _implicit(self, key: tuple[int, ...], dtype: str) -> ImplicitMatrix:
        """Return the matrix that is decided where it is asked."""
        if self.is_orthogonal:
            gain = self.deviation * math.sqrt(self.columns)
            return HaarMatrix(self.columns, gain=gain, rng=key, dtype=dtype)
        size = self.rows, self.columns
        return GaussianMatrix(*size, scale=self.deviation, rng=key, dtype=dtype)

    def _normals(self, key: tuple[int, ...], dtype: str) -> Float64Array:
        """Return standard normal entries, one call for the shorter side."""
        count, size = sorted((self.rows, self.columns))
        home = np.zeros(0)
        entries: Float64Array = normals(key_of(key), 0, np.arange(count), size, dtype, home)
        return entries if self.rows == count else entries.T


class Architecture(NamedTuple):
    """The layers of a network in training, from its inputs on, and the matrices between them.

    Attributes
    ----------
    layers : tuple of Layer
        The inputs, as a layer without norm and activation, and the layers of the network.
    matrices : tuple of Matrix
        That of each layer after the inputs, and the readout.
    first : int
        The number in `layers` of layer 0 of the network: 0 if the inputs are that layer.
    network : Network
    dtype : str
        Precision of the vectors that are kept, and of entries that are drawn.
    """

    layers: tuple[Layer, ...]
    matrices: tuple[Matrix, ...]
    first: int
    network: Network
    dtype: str

    @property
    def outputs(self) -> int:
        """Number of outputs."""
        return self.matrices[-1].rows

    def reading(self, outputs: int) -> Architecture:
        """Return the architecture with a readout of some outputs."""
        *matrices, readout = self.matrices
        return self._replace(matrices=(*matrices, readout._replace(rows=outputs)))

    @property
    def mixes_samples(self) -> bool:
        """Whether a norm acts over the batch."""
        return any(layer.rows.norm.axis == "batch" for layer in self.layers)


def architecture_of(
    network: Network,
    features: int,
    *,
    powers: Powers,
    reference_width: int,
    readout_gain: float,
    is_maximized: bool,
    dtype: str,
) -> Architecture:
    """Return the architecture of a network for inputs of some features, or raise.

    Its readout has one output; see `Architecture.reading`.
    """
    require_no_blocks(network, "bnmc.simulate takes blocks", "network")
    for chain in network.chains:
        _require(chain)
    layers = [network.layer(number) for number in range(network.depth + 1)]
    inputs = Chain(features, network.batch, norm="none").layers[0]
    is_input = _leaves_inputs(layers[0].rows) and layers[0].linear.width == features
    if is_input:
        layers = layers[1:]
    if not layers:
        raise ArgumentError("network", network, "a network with a layer after its inputs")
    matrices = []
    before = features
    for place, layer in enumerate(layers):
        linear = layer.linear
        matrices.append(
            _matrix(
                linear.width, before, INPUT if place == 0 else HIDDEN, abs(linear.gain),
                (linear.law.is_orthogonal or is_maximized) and place > 0, powers, reference_width,
            )._replace(is_maximized=is_maximized and place > 0)
        )  # fmt: skip
        before = linear.width
    matrices.append(_matrix(1, before, READOUT, readout_gain, False, powers, reference_width))
    for matrix in matrices:
        if matrix.is_orthogonal and matrix.rows != matrix.columns:
            name = "start" if matrix.is_maximized else "weights"
            value = "maximized" if matrix.is_maximized else "haar"
            allowed = "equal widths of hidden layers, as orthogonal matrices are square"
            raise ArgumentError(name, value, allowed)
    return Architecture((inputs, *layers), tuple(matrices), 0 if is_input else 1, network, dtype)


def _matrix(
    rows: int,
    columns: int,
    place: int,
    gain: float,
    is_orthogonal: bool,
    powers: Powers,
    reference_width: int,
) -> Matrix:
    """Return the matrix of a place, with the powers of its width."""
    ratio = (rows if place == INPUT else columns) / reference_width
    deviation = gain / math.sqrt(columns) * ratio ** powers.deviations[place]
    return Matrix(rows, columns, place, deviation, ratio ** powers.rates[place], is_orthogonal)


def _leaves_inputs(rows: RowMap) -> bool:
    """Whether a layer keeps its rows as they are."""
    return rows.norm.is_identity and rows.activation.is_linear and rows.order == NORM_FIRST


def _require(chain: Chain) -> None:
    """Raise unless training knows the chain."""
    need = lacking(chain, (FULLY_CONNECTED, NO_BIAS))
    if need is not None:
        raise need.refusal(getattr(chain, need.option), "biases are not trained")
    if not (chain.is_gaussian or chain.is_orthogonal):
        hint = "chain.idealized() has Gaussian weights"
        raise ArgumentError("weights", chain.weights, '"gaussian" or "haar"', hint)


def rows_for(layers: Sequence[Layer], samples: int) -> list[RowMap]:
    """Return the maps of rows of layers, whose batch is all samples of a pass."""
    return [layer.rows._replace(batch=samples) for layer in layers]
