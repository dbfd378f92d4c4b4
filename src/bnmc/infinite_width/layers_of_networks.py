"""The hidden layers of a `bnmc.Network` or a chain, as kernels see them."""

from __future__ import annotations

from itertools import pairwise

from bnmc.chain.chain import Network, layers_of, pattern_of
from bnmc.chain.layers import Layer
from bnmc.chain.needs import FULLY_CONNECTED, Need, require
from bnmc.errors import ArgumentError
from bnmc.infinite_width.networks import HiddenLayer, Weights
from bnmc.mean_field.map.iteration import require_no_sum
from bnmc.mean_field.pairwise_layer import PairwiseLayer

#: A chain with a limit of infinite width: batches of one kind, and samples of any kind.
_LIMIT = (
    FULLY_CONNECTED._replace(hint="the samples of a convolution have no kernel here"),
    Need(
        "norm",
        lambda chain: chain.norm != "batch-uncentred",
        "none, batch, layer, rms or group(g)",
        "bnmc.MeanField(chain).trajectory takes this norm",
    ),
    Need(
        "eps",
        lambda chain: chain.eps == 0.0 or chain.normalization.axis != "batch",
        "0 with a norm over the batch",
        "chain.idealized() has eps 0",
    ),
)


def hidden_layers(
    network: Network, *, starts_at_input: bool
) -> tuple[Weights, tuple[HiddenLayer, ...]]:
    """Return the weights of the inputs, and the hidden layers with the weights behind them.

    Parameters
    ----------
    network : Network
        Its rows are those from the start ``FirstLayer(x)``.
    starts_at_input : bool
        Whether a layer 0 without norm and activation is the input itself, without weights.

    Raises
    ------
    ArgumentError
        If a layer has no limit.
    """
    require_limit(network)
    distinct = layers_of(pattern_of(network))
    layers = [distinct.layers[distinct.at(number)] for number in range(network.depth + 1)]
    for layer in layers:
        require_no_sum(layer)
    made: dict[tuple[int, int], HiddenLayer] = {}
    for pair in pairwise(layers):
        key = id(pair[0]), id(pair[1])
        if key not in made:
            made[key] = _hidden(*pair)
    hidden = tuple(made[id(before), id(after)] for before, after in pairwise(layers))
    require_gaussian_rows(hidden)
    is_input = starts_at_input and bool(hidden) and _is_identity(layers[0])
    if is_input and hidden[0].skip == 0.0 and not layers[1].begins:
        return hidden[0].weights, hidden[1:]
    return Weights(1.0, 0.0), hidden


def require_limit(network: Network) -> None:
    """Raise unless each layer of a network has a limit of infinite width."""
    for chain in network.chains:
        require(chain, _LIMIT)


def _hidden(before: Layer, after: Layer) -> HiddenLayer:
    """Return a layer with the way to the next one."""
    linear = after.linear
    weights = Weights(linear.gain * linear.gain, linear.bias_variance)
    rows = before.rows._replace(batch=1, skip=0.0)
    of_path = None if after.path is None else after.path.projection
    projection = None
    if of_path is not None:
        projection = Weights(of_path.gain * of_path.gain, of_path.bias_variance)
    return HiddenLayer(rows, weights, after.rows.skip, after.path, projection)


def _is_identity(layer: Layer) -> bool:
    return layer.rows.norm.is_identity and layer.rows.activation.is_linear


def require_gaussian_rows(hidden: tuple[HiddenLayer, ...]) -> None:
    """Raise unless rows are Gaussian, or all layers keep N(h) with N over the batch."""

    def is_normed(layer: HiddenLayer) -> bool:
        return layer.rows.norm.axis == "batch" and layer.rows.keeps_normed

    if all(is_normed(layer) and layer.path is None for layer in hidden):
        return
    for number, layer in enumerate(hidden):
        path = layer.path
        if layer.skip == 0.0 or (path is not None and path.projection is not None):
            continue
        source = layer if path is None else hidden[number + 1 - path.length]
        if is_normed(source) or (path is not None and path.takes_activations):
            allowed = '0 after a norm over the batch of the order "norm-activation"'
            hint = "rows of N(x + W σ(x)) are not Gaussian; all layers may be of this kind"
            if path is not None and path.takes_activations:
                allowed = 'that of a block with a projection, or of source "state"'
                hint = "rows of W a + σ(x) are not Gaussian"
            raise ArgumentError("skip", layer.skip, allowed, hint)


def pairwise_layer(layer: HiddenLayer) -> PairwiseLayer:
    """Return a layer without norm over the batch, with the weights behind it."""
    variance, bias, _ = layer.weights
    return PairwiseLayer.of_rows(layer.rows, variance, bias, layer.skip)
