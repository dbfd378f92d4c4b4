"""Kernels of networks whose layers differ: against networks of finite width, and by hand."""

import numpy as np
import pytest

from bnmc._kernels.scalar.codes import ACTIVATION_FIRST, NORM_FIRST
from bnmc.chain.activations import as_activation
from bnmc.chain.layers import RowMap
from bnmc.chain.norms import as_norm
from bnmc.infinite_width import dual
from bnmc.infinite_width.kernels import of_batches
from bnmc.infinite_width.networks import (
    FiniteNetwork,
    HiddenLayer,
    Network,
    Weights,
    simulated_kernel,
)
from bnmc.infinite_width.tiles import TiledKernel
from bnmc.mean_field.pairwise_layer import PairwiseLayer

X = np.random.default_rng(0).standard_normal((9, 12))
FIRST = Weights(1.4, 0.2)
ORDERS = {NORM_FIRST: "norm-activation", ACTIVATION_FIRST: "activation-norm"}


def hidden(activation, norm, variance, bias, skip=0.0, order=NORM_FIRST):
    rows = RowMap(as_activation(activation), as_norm(norm), order, 1)
    return HiddenLayer(rows, Weights(variance, bias), skip)


PAIRWISE = (
    hidden("tanh", "none", 2.0, 0.1, 0.6),
    hidden("relu", "layer", 1.3, 0.0),
    hidden("gelu", "rms", 0.7, 0.4, 0.8, ACTIVATION_FIRST),
    hidden("relu", "none", 1.1, 0.3, 0.5),
)
BATCHES = {
    "integrals": (hidden("relu", "batch", 1.3, 0.3), hidden("abs", "batch", 0.8, 0.1, 0.7)),
    "points": (hidden("tanh", "batch", 1.3, 0.3), hidden("relu", "batch", 0.8, 0.1, 0.7)),
    "activated": (
        hidden("tanh", "batch", 1.3, 0.3, 0.6, ACTIVATION_FIRST),
        hidden("linear", "batch", 0.8, 0.1, 0.0, ACTIVATION_FIRST),
    ),
    "paths": (hidden("relu", "batch", 1.3, 0.3, 0.6), hidden("tanh", "batch", 0.8, 0.1, 0.9)),
}


def pairwise(layer):
    rows, weights, skip = layer
    return PairwiseLayer(
        sigma=dual(rows.activation), norm=rows.norm.name, order=ORDERS[rows.order], skip=skip,
        weight_variance=weights.variance, bias_variance=weights.bias,
    )  # fmt: skip


def tiled(layers, tangent, inputs=X):
    tiles = TiledKernel([inputs], FIRST, [pairwise(layer) for layer in layers], tangent)
    return tiles.compute("ntk" if tangent else "nngp", 1e-9, "float64", progress=False)


def simulated(layers, tangent, width, networks, inputs=X):
    sets, batches = [inputs], [(inputs.shape[1],)]
    network = FiniteNetwork(sets, batches, FIRST, layers, tangent, width)
    return simulated_kernel(network, networks, 5, progress=False)


@pytest.mark.parametrize("tangent", [False, True])
def test_pairwise_layers_are_passed_one_after_the_other(tangent):
    K = FIRST.weighed(X.T @ X / 9)
    theta = K
    for layer in map(pairwise, PAIRWISE):
        level = layer.levels(np.diag(K), slopes=True)
        K, theta, _ = layer.step(level, level, K, theta, same=True)
    expected = theta if tangent else K
    np.testing.assert_allclose(tiled(PAIRWISE, tangent), expected, rtol=1e-12)
    assert np.abs(tiled(PAIRWISE[::-1], tangent) - expected).max() > 0.1


@pytest.mark.parametrize("tangent", [False, True])
def test_pairwise_layers_are_those_of_networks(tangent):
    """Their mean differs from the limit by O(1/width), which 2 m(2d) − m(d) removes.

    Of 36 entries |z| > 6.5 has the probability 1e-7 (t distribution with 150 degrees of freedom).
    """
    x = X[:, :6]
    narrow, wide = (simulated(PAIRWISE, tangent, width, 150, x) for width in (64, 128))
    mean = 2.0 * wide.mean() - narrow.mean()
    error = np.hypot(2.0 * wide.stderr(), narrow.stderr())
    assert (np.abs(mean - tiled(PAIRWISE, tangent, x)) < 6.5 * error + 1e-2).all()


@pytest.mark.parametrize("tangent", [False, True])
@pytest.mark.parametrize("kind", BATCHES)
def test_batches_are_those_of_networks(kind, tangent):
    """As the test before, with 144 entries; the limits have relative errors of 2 %."""
    layers = BATCHES[kind]
    network = Network([X], [(12,)], FIRST, layers, tangent)
    limit = of_batches(network, 0.02, 1, progress=False)
    narrow, wide = (simulated(layers, tangent, width, 150) for width in (24, 48))
    mean = 2.0 * wide.mean() - narrow.mean()
    error = np.hypot(2.0 * wide.stderr(), narrow.stderr())
    off = 6.5 * error + 0.02 * np.linalg.norm(limit) / 12
    assert (np.abs(mean - limit) < off).all()
    other = of_batches(Network([X], [(12,)], FIRST, layers[::-1], tangent), 0.02, 1, progress=False)
    assert np.linalg.norm(other - limit) > 0.1 * np.linalg.norm(limit)
