"""What the networks of a training have in common: layers, matrices and parametrization."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bnmc._kernels.scalar.codes import NORM_FIRST
from bnmc._support.arguments import Float64Array
from bnmc.chain.chain import Chain, Network, layer_at, require_plain_sums
from bnmc.chain.layers import Layer, Linear, Path, RowMap, Rows
from bnmc.chain.needs import FULLY_CONNECTED, require
from bnmc.errors import ArgumentError
from bnmc.implicit.matrix import GaussianMatrix, HaarMatrix, ImplicitMatrix
from bnmc.implicit.words import key_of, normals
from bnmc.training.scalings import HIDDEN, INPUT, READOUT, Powers
from bnmc.training.weights import DrawnWeights, ImplicitWeights, MaximizedWeights, Weights

#: What a matrix multiplies: the activations of a layer, the state that it keeps, or 1 for a bias.
ACTIVATIONS, STATE, ONES = "activations", "state", "ones"


class Source(NamedTuple):
    """What a matrix multiplies, or a skip connection takes.

    Attributes
    ----------
    layer : int
        Its place in `Architecture.layers`.
    part : str
        `ACTIVATIONS`, `STATE` or `ONES`.
    """

    layer: int
    part: str = ACTIVATIONS

    def of(self, rows: Sequence[Rows]) -> Float64Array:
        """Return it, (width, samples), given the rows of the layers."""
        made = rows[self.layer]
        if self.part == ACTIVATIONS:
            return made.outputs()
        return made.x if self.part == STATE else np.ones((1, made.x.shape[-1]))


class Matrix(NamedTuple):
    """The law of a matrix, what it multiplies, and how it is trained.

    A bias is a matrix of one column, which multiplies 1.

    Attributes
    ----------
    rows, columns : int
    place : int
        `INPUT`, `HIDDEN` or `READOUT`.
    deviation : float
        Standard deviation of the entries.
    factor : float
        Of the learning rate.
    name : str
    source : Source
        What it multiplies.
    target : int
        The layer to which it leads, as its place in `Architecture.layers`; after the last of these
        come the outputs.
    scale : float
        Factor of its product.
    is_on_path : bool
        Whether it belongs to the projection of a skip path.
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
    name: str
    source: Source
    target: int
    scale: float = 1.0
    is_on_path: bool = False
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
        """Return the matrix that is drawn by direction."""
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
        That of each layer after the inputs, the readout, the projections of skip paths, and biases.
    skips : dict of int to Source
        What the skip connection of a layer takes if no projection multiplies it.
    first : int
        The number in `layers` of layer 0 of the network: 0 if the inputs are that layer.
    network : Network
    dtype : str
        Precision of the vectors that are kept, and of entries that are drawn.
    """

    layers: tuple[Layer, ...]
    matrices: tuple[Matrix, ...]
    skips: dict[int, Source]
    first: int
    network: Network
    dtype: str

    @property
    def outputs(self) -> int:
        """Number of outputs."""
        return self.matrices[len(self.layers) - 1].rows

    def reading(self, outputs: int) -> Architecture:
        """Return the architecture with a readout of some outputs."""
        matrices = [*self.matrices]
        place = len(self.layers) - 1
        matrices[place] = matrices[place]._replace(rows=outputs)
        return self._replace(matrices=tuple(matrices))

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
    require_plain_sums(network, "network")
    for chain in network.chains:
        _require(chain)
    layers = [layer_at(network, number) for number in range(network.depth + 1)]
    inputs = Chain(features, network.batch, norm="none").layers[0]
    is_input = _leaves_inputs(layers[0].rows) and layers[0].linear.width == features
    if is_input:
        layers = layers[1:]
    if not layers:
        raise ArgumentError("network", network, "a network with a layer after its inputs")
    first = 0 if is_input else 1
    every = (inputs, *layers)
    plan = _Plan(powers, reference_width, [layer.linear.width for layer in every])
    matrices, projections, biases = list[Matrix](), list[Matrix](), list[Matrix]()
    skips: dict[int, Source] = {}
    for target, layer in enumerate(layers, 1):
        name = f"layer {target - first}"
        matrix = plan.weights(layer.linear, name, Source(target - 1), target)
        if is_maximized and matrix.place == HIDDEN:
            matrix = matrix._replace(is_orthogonal=True, is_maximized=True)
        matrices.append(matrix)
        biases += plan.biases(layer.linear, name, target)
        if (skip := layer.rows.skip) == 0.0:
            continue
        path = layer.path or Path(1)
        source = Source(target - path.length, ACTIVATIONS if path.takes_activations else STATE)
        if path.projection is None:
            skips[target] = source
            continue
        name = f"projection to layer {target - first}"
        on_path = [plan.weights(path.projection, name, source, target)]
        on_path += plan.biases(path.projection, name, target)
        weights, *of_path = (each._replace(scale=skip, is_on_path=True) for each in on_path)
        projections.append(weights)
        biases += of_path
    matrices.append(plan.readout(readout_gain))
    for matrix in (*matrices, *projections):
        if matrix.is_orthogonal and matrix.rows != matrix.columns:
            name = "start" if matrix.is_maximized else "weights"
            value = "maximized" if matrix.is_maximized else "haar"
            allowed = "equal widths of hidden layers, as orthogonal matrices are square"
            raise ArgumentError(name, value, allowed)
    every_matrix = *matrices, *projections, *biases
    return Architecture(every, every_matrix, skips, first, network, dtype)


class _Plan(NamedTuple):
    """How the matrices of a network follow from its linear maps.

    Attributes
    ----------
    powers : Powers
    reference_width : int
    widths : list of int
        Of the inputs and the layers.
    """

    powers: Powers
    reference_width: int
    widths: list[int]

    def weights(self, linear: Linear, name: str, source: Source, target: int) -> Matrix:
        """Return the weights of a linear map."""
        place = INPUT if source.layer == 0 else HIDDEN
        size = linear.width, self.widths[source.layer]
        matrix = self._matrix(*size, place, abs(linear.gain), name, source, target)
        is_orthogonal = linear.law.is_orthogonal and place == HIDDEN
        return matrix._replace(is_orthogonal=is_orthogonal)

    def biases(self, linear: Linear, name: str, target: int) -> list[Matrix]:
        """Return the bias of a linear map, if it has one: weights of an input that is 1."""
        if linear.bias_variance == 0.0:
            return []
        deviation, source = math.sqrt(linear.bias_variance), Source(0, ONES)
        name = f"bias of {name}"
        return [self._matrix(linear.width, 1, INPUT, deviation, name, source, target)]

    def readout(self, gain: float) -> Matrix:
        """Return the readout of one output."""
        target = len(self.widths)
        source = Source(target - 1)
        return self._matrix(1, self.widths[-1], READOUT, gain, "readout", source, target)

    def _matrix(
        self, rows: int, columns: int, place: int, gain: float,
        name: str, source: Source, target: int,
    ) -> Matrix:  # fmt: skip
        """Return the matrix of a place, with the powers of its width."""
        ratio = (rows if place == INPUT else columns) / self.reference_width
        deviation = gain / math.sqrt(columns) * ratio ** self.powers.deviations[place]
        factor = ratio ** self.powers.rates[place]
        return Matrix(rows, columns, place, deviation, factor, name, source, target)


def _leaves_inputs(rows: RowMap) -> bool:
    """Whether a layer keeps its rows as they are."""
    return rows.norm.is_identity and rows.activation.is_linear and rows.order == NORM_FIRST


def _require(chain: Chain) -> None:
    """Raise unless training knows the chain."""
    require(chain, (FULLY_CONNECTED,))
    if not (chain.is_gaussian or chain.is_orthogonal):
        hint = "chain.idealized() has Gaussian weights"
        raise ArgumentError("weights", chain.weights, '"gaussian" or "haar"', hint)


def rows_for(layers: Sequence[Layer], samples: int) -> list[RowMap]:
    """Return the maps of rows of layers, whose batch is all samples of a pass."""
    return [layer.rows._replace(batch=samples) for layer in layers]
