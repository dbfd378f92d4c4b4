"""A pairwise layer against quadratures on a plane: kernels and tangents, all norms and orders."""

import itertools
import math

import numpy as np
import pytest
from mean_field_oracles import NODES, WEIGHTS, pair_mean

import bnmc
from bnmc.chain.activations import Activation
from bnmc.infinite_width import dual
from bnmc.mean_field import MeanField
from bnmc.mean_field.pairwise_layer import PairwiseLayer

ROOT = np.array([[1.0, 0.4, -0.2], [0.0, 0.7, 0.5], [0.0, 0.0, 1.3]])
K = ROOT.T @ ROOT
THETA = K + 0.4 * np.eye(3)
ORDERS = ("norm-activation", "activation-norm", "pre-activation")


def tanh_slope(x):
    return 1.0 - np.tanh(x) ** 2


def plain_layer(norm, order, weight, bias, skip, eps):
    """K and Θ after a layer with tanh, entry by entry, from the table in the module."""
    q, n = np.diag(K), len(K)
    s, mean = np.ones(n), np.zeros(n)
    first = norm == "none" or order != "activation-norm"
    if norm != "none" and first:
        s = np.sqrt(q + eps)
    argument = K / np.outer(s, s)
    value, slope = np.empty((n, n)), np.empty((n, n))
    for i, j in itertools.product(range(n), repeat=2):
        at = argument[i, i], argument[j, j], argument[i, j]
        value[i, j] = pair_mean(np.tanh, np.tanh, *at)
        slope[i, j] = pair_mean(tanh_slope, tanh_slope, *at)
    if not first:
        if norm == "layer":
            mean = np.array([WEIGHTS @ np.tanh(math.sqrt(v) * NODES) for v in q])
        s = np.sqrt(np.diag(value) - mean**2 + eps)
        value = (value - np.outer(mean, mean)) / np.outer(s, s)
    normalized = norm != "none" and order == "norm-activation"
    stream, flow = (argument, THETA / np.outer(s, s)) if normalized else (K, THETA)
    fresh = weight * value + bias
    tangent = skip**2 * flow + weight * THETA / np.outer(s, s) * slope + fresh
    return skip**2 * stream + fresh, tangent


@pytest.mark.parametrize(("skip", "eps"), [(0.0, 0.0), (0.7, 0.3)])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("norm", ["none", "layer", "rms"])
def test_a_layer_is_that_of_its_formulas(norm, order, skip, eps):
    layer = PairwiseLayer(
        sigma=dual("tanh"), norm=norm, order=order, weight_variance=1.7, bias_variance=0.2,
        skip=skip, eps=eps,
    )  # fmt: skip
    level = layer.levels(np.diag(K), slopes=True)
    result = layer.step(level, level, K, THETA, same=True)
    expected = plain_layer(norm, order, 1.7, 0.2, skip, eps)
    np.testing.assert_allclose(result[0], expected[0], rtol=0, atol=1e-12)
    np.testing.assert_allclose(result[1], expected[1], rtol=0, atol=1e-12)
    alone, none, error = layer.step(level, level.at(slice(1, 3)), K[:, 1:], None, same=False)
    np.testing.assert_allclose(alone, expected[0][:, 1:], rtol=0, atol=1e-12)
    assert none is None
    assert error < 1e-12


@pytest.mark.parametrize("eps", [0.0, 0.3])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("norm", ["none", "layer", "rms", "group(4)"])
def test_the_map_of_a_chain_is_that_of_a_layer_without_weights(norm, order, eps):
    chain = bnmc.Chain(8, 3, "tanh", norm=norm, order=order, gain=1.3, bias_variance=0.4, eps=eps)
    step = MeanField(chain).step((K - 0.4) / 1.69)
    kind = {"group(4)": "layer"}.get(norm, norm)
    expected, _ = plain_layer(kind, order, 1.0, 0.0, 0.0, eps)
    np.testing.assert_allclose(step, expected, rtol=0, atol=1e-12)
    assert step.method == "pairwise"
    assert (step.nodes, step.key, step.stderr.any()) == (0, None, False)
    assert step.error < 1e-12


def test_samples_that_have_no_variance_are_named():
    layer = PairwiseLayer(sigma=dual("tanh"), norm="rms")
    assert layer.levels(np.array([1.0, 0.0, 2.0])).flat == 1
    after = PairwiseLayer(sigma=dual("cos"), norm="layer", order="activation-norm")
    assert after.levels(np.array([0.0, 1.0])).flat == 0
    assert after.levels(np.array([0.5, 1.0])).flat is None


@pytest.mark.parametrize("scale", [1e-200, 1e200])
def test_scales_that_a_norm_hides(scale):
    """Also if gain² G is outside the range of float64."""
    chain = bnmc.Chain(8, 3, "tanh", norm="layer", gain=1e60)
    expected = MeanField(bnmc.Chain(8, 3, "tanh", norm="layer")).step(K)
    np.testing.assert_allclose(MeanField(chain).step(scale * K), expected, rtol=0, atol=1e-12)


def test_a_corner_that_nobody_declared():
    """E max(u − s, 0)² = (q + s²) Φ(−s/√q) − s √q φ(s/√q)."""
    chain = bnmc.Chain(8, 3, Activation(lambda x: max(x - 0.377, 0.0)), norm="none")
    result = np.diag(MeanField(chain).step(K, rtol=1e-9))
    s, root = 0.377, np.sqrt(np.diag(K))
    tail = np.array([0.5 * math.erfc(s / r / math.sqrt(2.0)) for r in root])
    density = np.exp(-0.5 * (s / root) ** 2) / math.sqrt(2.0 * math.pi)
    np.testing.assert_allclose(result, (root**2 + s**2) * tail - s * root * density, rtol=1e-9)
