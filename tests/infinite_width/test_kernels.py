"""`nngp` and `ntk` against a recursion by hand and against networks with real weights.

The networks are of finite width d.  Their mean kernels m differ from the limit by powers of 1/d, so
the test takes (8 m(4d) − 6 m(2d) + m(d))/3, which leaves O(1/d³).  Per entry |z| > 6.5 has
probability 4e-10 (t distribution), so a false alarm in any of 10 settings × 2 kernels × 6 entries
has 5e-8.
"""

import itertools
import math
import re

import gaussian_bumps
import numpy as np
import pytest
from infinite_width_checks import extrapolated
from slow_cases import slow, some

import bnmc
from bnmc import Activation, Chain, MeanField
from bnmc._kernels.scalar.codes import ACTIVATION_FIRST, NORM_FIRST, NORM_IN_BRANCH
from bnmc._support import machine
from bnmc._support.workers import Parallel
from bnmc.chain.activations import as_activation
from bnmc.chain.layers import RowMap
from bnmc.chain.norms import as_norm
from bnmc.errors import ArgumentError, PartialEstimateError, ResultTooLargeError
from bnmc.infinite_width import dual, nngp, ntk
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

NETWORKS, WIDTH = 300, 64
INPUTS = np.array([[1.0, 0.8, -0.5], [0.3, 0.5, 1.1], [-0.7, -0.9, 0.2], [0.4, 0.1, 0.6]])
HIDDEN = Activation(
    lambda x: max(x - 0.377, 0.0) + x, derivative=lambda x: 2.0 if x > 0.377 else 1.0
)


# --- networks of finite width


#: Activation, norm, order, weight variance, bias variance, skip; the last one runs each time.
SETTINGS = {
    " ".join(map(str, setting)): setting
    for setting in [
        ("relu", "none", "norm-activation", 2.0, 0.0, 0.0),
        ("relu", "layer", "norm-activation", 2.0, 0.1, 0.0),
        ("tanh", "layer", "norm-activation", 2.0, 0.1, 0.8),
        ("relu", "rms", "norm-activation", 2.0, 0.1, 0.5),
        ("relu", "layer", "activation-norm", 1.5, 0.1, 0.0),
        ("relu", "rms", "activation-norm", 1.5, 0.0, 0.0),
        ("relu", "none", "norm-activation", 1.5, 0.3, 0.0),
        ("tanh", "none", "norm-activation", 1.5, 0.3, 0.7),
        ("tanh", "layer", "activation-norm", 1.5, 0.1, 0.8),
        ("tanh", "rms", "activation-norm", 1.5, 0.2, 0.8),
    ]
}


# Each time, networks of other layers in rows: `test_pairwise_layers_are_those_of_networks`.
@pytest.mark.slow
@pytest.mark.parametrize("setting", SETTINGS)
def test_networks_of_finite_width(setting):
    names = "activation", "norm", "order", "weight_variance", "bias_variance", "skip"
    options = dict(zip(names, SETTINGS[setting], strict=True))
    for kernel in (nngp, ntk):
        networks = [
            kernel(INPUTS, 2, method="monte-carlo", width=d, chains=NETWORKS, rng=d, **options)
            for d in (WIDTH, 2 * WIDTH, 4 * WIDTH)
        ]
        terms = list(zip((1 / 3, -2.0, 8 / 3), networks, strict=True))
        mean = sum(factor * simulated.mean() for factor, simulated in terms)
        error = np.sqrt(sum((factor * simulated.stderr()) ** 2 for factor, simulated in terms))
        z = (mean - kernel(INPUTS, 2, **options)) / error
        assert np.abs(z).max() < 6.5, z


# --- a recursion by hand


def relu_by_hand(x, y, depth, weight, bias):
    """Return K and Θ of two vectors by the recursion in angles, with Python's floats."""

    def first(a, b):
        return weight * sum(s * t for s, t in zip(a, b, strict=True)) / len(a) + bias

    p, q, k = first(x, x), first(y, y), first(x, y)
    theta = k
    for _ in range(depth):
        angle = math.acos(max(-1.0, min(1.0, k / math.sqrt(p * q))))
        slope = (math.pi - angle) / (2 * math.pi)
        value = math.sqrt(p * q) * math.sin(angle) / (2 * math.pi) + k * slope
        p, q, k = weight * p / 2 + bias, weight * q / 2 + bias, weight * value + bias
        theta = k + weight * theta * slope
    return k, theta


@pytest.mark.parametrize(("weight", "bias", "depth"), [(2.0, 0.0, 10), (1.3, 0.2, 4), (1.0, 0, 0)])
def test_relu_by_hand(weight, bias, depth):
    x = np.random.default_rng(1).standard_normal((7, 6))
    options = {"activation": "relu", "weight_variance": weight, "bias_variance": bias}
    kernels = np.array([nngp(x, depth, **options), ntk(x, depth, **options)])
    for i, j in itertools.permutations(range(6), 2):
        expected = relu_by_hand(x[:, i].tolist(), x[:, j].tolist(), depth, weight, bias)
        assert kernels[:, i, j] == pytest.approx(expected, rel=1e-13)
    # On the diagonal of a network without bias and with weight variance 2, Θ_ii = (L + 1) K_ii.
    if weight == 2.0:
        assert np.diag(kernels[1]) == pytest.approx((depth + 1) * np.diag(kernels[0]), rel=1e-13)


def test_narrow_bumps_need_not_be_declared():
    """Against the recursion with closed forms of the dual activations."""
    bumps, weight, bias, depth = ((0.7, 0.003), (-0.4, 1.3)), 1.2, 0.1, 2
    options = {"activation": gaussian_bumps.line_and_bumps(*bumps), "weight_variance": weight}
    kernel = weight * INPUTS.T @ INPUTS / len(INPUTS) + bias
    tangent = kernel
    for _ in range(depth):
        q = np.diagonal(kernel)
        pairs = itertools.product(range(3), range(3))
        duals = np.array([gaussian_bumps.dual(bumps, q[i], q[j], kernel[i, j]) for i, j in pairs])
        value, slope = duals.T.reshape(2, 3, 3)
        kernel = weight * value + bias
        tangent = kernel + weight * slope * tangent
    options["bias_variance"] = bias
    np.testing.assert_allclose(nngp(INPUTS, depth, **options), kernel, rtol=1e-7)
    off = ntk(INPUTS, depth, **options) - tangent
    scale = np.sqrt(np.diagonal(tangent))
    assert np.abs(off / scale / scale[:, None]).max() < 1e-6


@pytest.mark.parametrize("depth", [0, 3])
def test_a_linear_network_in_closed_form(depth):
    x = np.random.default_rng(2).standard_normal((5, 4))
    options = {"activation": "linear", "weight_variance": 1.5}
    expected = 1.5 ** (depth + 1) * x.T @ x / 5
    assert nngp(x, depth, **options) == pytest.approx(expected)
    assert ntk(x, depth, **options) == pytest.approx((depth + 1) * expected)


# --- equal inputs, other activations


def test_equal_inputs_have_equal_entries():
    x = np.random.default_rng(4).standard_normal((50, 5))[:, [0, 1, 1, 2, 3, 0, 4]]
    theta = ntk(x, 5, activation="relu", weight_variance=2.0)
    assert theta[1, 2] == theta[1, 1] == theta[2, 2]
    assert (theta[0] == theta[5]).all()
    assert np.linalg.eigvalsh(theta)[0] > -1e-14 * np.trace(theta)


@pytest.mark.parametrize("activation", ["relu", "erf", "gelu", "sin", "abs", "tanh"])
@pytest.mark.parametrize("norm", ["none", "layer"])
def test_kernels_are_positive_semidefinite(activation, norm):
    rng = np.random.default_rng(5)
    sample = rng.standard_normal((20, 1))
    close = sample + 10.0 ** -rng.integers(6, 18, 12) * rng.standard_normal((20, 12))
    x = np.hstack([rng.standard_normal((20, 12)), close, -sample, 3.0 * sample])
    options = {"activation": activation, "norm": norm, "weight_variance": 2.0, "bias_variance": 0.1}
    for kernel, tolerance in ((nngp, 1e-13), (ntk, 1e-7)):
        values = np.linalg.eigvalsh(kernel(x, 4, **options))
        assert np.isfinite(values).all()
        assert values[0] > -tolerance * values[-1]


def test_duals_and_functions_as_activations():
    x = np.random.default_rng(7).standard_normal((4, 3))
    assert (ntk(x, 2, activation=dual("cos")) == ntk(x, 2, activation="cos")).all()
    cosine = Activation(np.cos, derivative=lambda x: -np.sin(x))
    assert ntk(x, 2, activation=cosine) == pytest.approx(ntk(x, 2, activation="cos"), rel=1e-12)


# --- batch normalization


def test_batch_normalization_against_rows():
    x = np.random.default_rng(8).standard_normal((6, 4))
    options = {"activation": "tanh", "norm": "batch", "weight_variance": 1.5, "bias_variance": 0.2}
    kernel = nngp(x, 1, rng=0, **options)
    rows = np.random.default_rng(9).standard_normal((400_000, 6)) @ x
    rows -= rows.mean(axis=1, keepdims=True)
    values = np.tanh(rows / rows.std(axis=1, keepdims=True))
    products = np.einsum("ri,rj->rij", values, values)
    error = 1.5 * products.std(axis=0) / np.sqrt(len(rows))
    z = (1.5 * products.mean(axis=0) + 0.2 - kernel) / error
    assert np.abs(z).max() < 6.0  # 10 entries: 2e-8


def test_batch_normalization_in_depth_and_its_limits():
    x = np.random.default_rng(10).standard_normal((6, 4))
    deep = nngp(x, 30, activation="relu", norm="batch")
    again = nngp(x, 31, activation="relu", norm="batch", bias_variance=0.0)
    assert deep == pytest.approx(again, rel=1e-5)
    assert nngp(x, 0, norm="batch", dtype="float32").dtype == np.float32
    with pytest.raises(PartialEstimateError) as caught:
        nngp(x[:, :3], 1, activation=HIDDEN, norm="batch", rtol=1e-12, rng=0)
    assert caught.value.partial.shape == (3, 3)


# --- errors


def test_the_matrices_of_a_batch_are_counted(monkeypatch):
    """Of 256 samples in one, two or four batches: all that differs is quadratic in the batch."""
    monkeypatch.setattr(machine, "available_memory", lambda: 0)
    requests = []
    for batch in (256, 128, 64):
        with pytest.raises(ResultTooLargeError, match="smaller batches") as caught:
            nngp(np.ones((1, 256)), 2, activation="relu", norm="batch", batch=batch, skip=0.5)
        requests.append(caught.value.requested)
    single, two, four = requests
    assert single - two == 4 * (two - four)
    assert two - four >= 8 * (128**2 - 64**2)  # at least one matrix of float64


# --- layers that differ


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
    rows, weights, skip, *_ = layer
    return PairwiseLayer(
        sigma=dual(rows.activation), norm=rows.norm.name, order=ORDERS[rows.order], skip=skip,
        weight_variance=weights.variance, bias_variance=weights.bias,
    )  # fmt: skip


def tiled(layers, tangent, inputs=X):
    tiles = TiledKernel([inputs], FIRST, [pairwise(layer) for layer in layers], tangent)
    return tiles.compute("ntk" if tangent else "nngp", 1e-9, "float64", Parallel.of())


def simulated(layers, tangent, width, inputs=X):
    sets, batches = [inputs], [(inputs.shape[1],)]
    network = FiniteNetwork(sets, batches, FIRST, layers, tangent, width)
    return simulated_kernel(network, 150, 5, Parallel.of())


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


# A kernel of gradients has the kernel of outputs in each of its layers.
@pytest.mark.parametrize("tangent", [slow(False), True])
def test_pairwise_layers_are_those_of_networks(tangent):
    """Of 36 entries |z| > 6.5 has the probability 1e-7 (t, 150 degrees of freedom)."""
    x = X[:, :6]
    mean, error = extrapolated(*(simulated(PAIRWISE, tangent, width, x) for width in (64, 128)))
    assert (np.abs(mean - tiled(PAIRWISE, tangent, x)) < 6.5 * error + 1e-2).all()


# Points and norms that are last are among layers of several kinds, below.
@pytest.mark.parametrize("tangent", [slow(False), True])
@pytest.mark.parametrize("kind", some(BATCHES, "integrals", "paths"))
def test_batches_are_those_of_networks(kind, tangent):
    """As the test before, with 144 entries; the limits have relative errors of 2 %."""
    layers = BATCHES[kind]
    network = Network([X], [(12,)], FIRST, layers, tangent)
    limit = of_batches(network, 0.02, 1, Parallel.of())
    mean, error = extrapolated(*(simulated(layers, tangent, width) for width in (24, 48)))
    off = 6.5 * error + 0.02 * np.linalg.norm(limit) / 12
    assert (np.abs(mean - limit) < off).all()
    other = of_batches(Network([X], [(12,)], FIRST, layers[::-1], tangent), 0.02, 1, Parallel.of())
    assert np.linalg.norm(other - limit) > 0.1 * np.linalg.norm(limit)


OPTIONS = {"gain": 1.3, "bias_variance": 0.1}


@pytest.mark.parametrize(
    "chain",
    [
        Chain(7, 4, "tanh", norm="none", **OPTIONS),
        Chain(7, 4, "relu", norm="layer", eps=0.3, skip=0.5, weights="haar", **OPTIONS),
        Chain(8, 4, "tanh", norm="group(2)", order="pre-activation", skip=-1.0, eps=0.1, **OPTIONS),
        Chain(7, 4, "erf", norm="rms", order="activation-norm", skip=0.5, weights="pytorch"),
    ],
    ids=lambda chain: f"{chain.norm}, {chain.order}",
)
def test_kernels_of_chains_follow_their_layers(chain):
    """The recurrence of the docstring of `Chain`, sample by sample; layer 0 has gain 1."""
    x, other = np.random.default_rng(3).normal(size=(2, 5, 3))
    both = np.hstack([x, other])
    K = theta = both.T @ both / 5
    for _ in range(3):
        q = np.diag(K)
        is_last = chain.order == "activation-norm"
        scale = np.ones(6) if chain.norm == "none" or is_last else np.sqrt(q + chain.eps)
        C = K / np.outer(scale, scale)
        value, slope = dual(chain.activation)(np.diag(C)[:, None], np.diag(C), C)
        if is_last:
            scale = np.sqrt(np.diag(value) + chain.eps)
            value = value / np.outer(scale, scale)
        stream, tangent = (C, theta / np.outer(scale, scale))
        if chain.order != "norm-activation":
            stream, fresh = K, chain.gain**2 * value + chain.bias_variance
            theta = chain.skip**2 * theta + chain.gain**2 * tangent * slope + fresh
        else:
            fresh = chain.gain**2 * value + chain.bias_variance
            theta = (chain.skip**2 + chain.gain**2 * slope) * tangent + fresh
        K = chain.skip**2 * stream + fresh
    np.testing.assert_allclose(nngp(chain, both, 3), K, rtol=1e-9)
    np.testing.assert_allclose(ntk(chain, both, 3), theta, rtol=1e-9)
    np.testing.assert_allclose(nngp(chain, x, 3, other=other), K[:3, 3:], rtol=1e-9)


def test_kernels_of_chains_with_a_norm_over_the_batch():
    x = np.random.default_rng(4).normal(size=(6, 4))
    chain = Chain(30, 4, "relu", gain=2.0, bias_variance=0.5)
    G = MeanField(chain).step(x.T @ x / 6).gram
    path = MeanField(chain).trajectory(nngp(chain, x, 1), 1).gram
    np.testing.assert_allclose(nngp(chain, x, 1), 4.0 * G + 0.5, rtol=1e-7)
    np.testing.assert_allclose(nngp(chain, x, 2), 4.0 * path[1] + 0.5, rtol=1e-7)


@pytest.mark.parametrize(
    ("chain", "options", "match"),
    [
        (Chain(9, 4, norm="batch-uncentred"), {}, "^norm: "),
        (Chain(9, 4, "tanh", eps=1e-5), {}, r"^eps: .*chain\.idealized\(\) has eps 0"),
        (Chain.conv(4, 2, shape=(2, 2), kernel=(1, 1)), {}, "^convolution: "),
        (Chain(9, 4), {"activation": "relu"}, "^activation: .*no activation beside a chain"),
        (Chain(9, 4), {"width": 4}, "^width: "),
        (Chain(9, 4), {"method": "monte-carlo"}, "^method: .*simulate"),
    ],
)
def test_other_chains_have_no_kernels(chain, options, match):
    for kernel in (nngp, ntk):
        with pytest.raises(ArgumentError, match=match):
            kernel(chain, np.eye(4), 2, **options)


# --- networks whose layers differ in kind

RESIDUAL = {
    "blocks": (
        hidden("relu", "batch", 2.0, 0.1, 1.0, NORM_IN_BRANCH),
        hidden("relu", "batch", 1.4, 0.0, 0.9, NORM_IN_BRANCH),
        hidden("relu", "batch", 0.7, 0.2, 0.8, NORM_IN_BRANCH),
    ),
    "kinds": (
        hidden("tanh", "none", 1.3, 0.3, 0.7),
        hidden("relu", "batch", 1.1, 0.2),
        hidden("relu", "layer", 0.8, 0.1, 0.6),
        hidden("linear", "batch", 0.9, 0.3, 0.5, ACTIVATION_FIRST),
        hidden("relu", "batch", 1.5, 0.0, 0.4, NORM_IN_BRANCH),
    ),
    "points": (
        hidden("tanh", "batch", 1.3, 0.3, 0.5, NORM_IN_BRANCH),
        hidden("tanh", "batch", 0.8, 0.1, 0.0, ACTIVATION_FIRST),
    ),
}


@pytest.mark.parametrize(
    ("kind", "tangent"),
    [
        *((kind, True) for kind in RESIDUAL), *(slow(kind, False) for kind in RESIDUAL),
    ],
)  # fmt: skip
def test_layers_of_several_kinds_are_those_of_networks(kind, tangent):
    """As for batches of one kind."""
    layers = RESIDUAL[kind]
    network = Network([X], [(12,)], FIRST, layers, tangent)
    limit = of_batches(network, 0.02, 1, Parallel.of())
    mean, error = extrapolated(*(simulated(layers, tangent, width) for width in (24, 48)))
    off = 6.5 * error + 0.02 * np.linalg.norm(limit) / 12
    assert (np.abs(mean - limit) < off).all()


def test_batches_of_several_kinds():
    """A batch beside another one has the kernel that it has alone; blocks between are not 0."""
    layers = RESIDUAL["kinds"]
    both, alone = (
        of_batches(Network([x], [sizes], FIRST, layers, True), 1e-4, 1, Parallel.of())
        for x, sizes in ((X, (6, 6)), (X[:, 6:], (6,)))
    )
    np.testing.assert_allclose(both[6:, 6:], alone, rtol=0, atol=1e-6 * np.abs(both).max())
    np.testing.assert_allclose(both, both.T, rtol=0, atol=1e-12 * np.abs(both).max())
    assert np.abs(both[:6, 6:]).min() > 0.01


def test_large_means_beside_a_norm_over_the_batch():
    """Means of 1e6 leave the kernel of residual blocks with digits of differences."""
    layers, shifted = RESIDUAL["blocks"][:1], X + 1e6
    small, large = (
        of_batches(Network([x], [(12,)], Weights(1.0, 0.0), layers, True), 1e-4, 1, Parallel.of())
        for x in (X, shifted)
    )
    centre = np.eye(12) - 1 / 12
    np.testing.assert_allclose(centre @ large @ centre, centre @ small @ centre, rtol=0, atol=1e-2)


# --- chains and networks as arguments


def test_residual_blocks_have_the_covariance_of_the_mean_field():
    chain = Chain.resnet(30, 6, "relu", gain=1.3, bias_variance=0.2)
    x = X[:, :6]
    path = MeanField(chain).trajectory(covariance=x.T @ x / 9, depth=4)
    np.testing.assert_allclose(nngp(chain, x, 4), path.covariance[4], rtol=1e-7)
    weaker = Chain(30, 6, "relu", skip=0.9, order="pre-activation")
    path = MeanField(weaker).trajectory(covariance=x.T @ x / 9, depth=4)
    np.testing.assert_allclose(nngp(weaker, x, 4), path.covariance[4], rtol=1e-7)


def test_kernels_of_networks():
    """A constant network is its chain, layers go stage by stage, and an input has no weights."""
    x = X[:, :4]
    for chain in (
        Chain(30, 4, "relu", gain=1.3, bias_variance=0.1),
        Chain(30, 4, "tanh", norm="layer", skip=0.5, eps=0.1),
    ):
        for kernel in (nngp, ntk):
            expected = kernel(chain, x, 3)
            np.testing.assert_array_equal(kernel(chain.repeat(3), x), expected)
            cut = chain.repeat(1) + Chain(30, 4, "relu", norm="none").repeat(1)
            assert np.abs(kernel(cut + chain.repeat(1), x) - expected).max() > 0.01
    width = [9, 40, 30, 3]
    perceptron = bnmc.Network.of(
        width=width, batch=4, activation=["relu", "tanh", "linear"], norm="none",
        gain=[2**0.5, 1.2, 0.5], bias_variance=[0.1, 0.2, 0.3],
    )  # fmt: skip
    K = theta = 2.0 * x.T @ x / 9 + 0.1
    for name, variance, bias in (("relu", 1.44, 0.2), ("tanh", 0.25, 0.3)):
        value, slope = dual(name)(np.diag(K)[:, None], np.diag(K), K)
        K = variance * value + bias
        theta = K + variance * slope * theta
    np.testing.assert_allclose(nngp(perceptron, x), K, rtol=1e-10)
    np.testing.assert_allclose(ntk(perceptron, x), theta, rtol=1e-10)
    np.testing.assert_allclose(nngp(perceptron, x, other=x[:, :2]), K[:, :2], rtol=1e-10)


def test_networks_that_have_no_kernel():
    x = X[:, :4]
    perceptron = bnmc.Network.of(width=[9, 20, 5], batch=4, norm="none")
    with pytest.raises(ArgumentError, match="depth: got 2, allowed: None with a network"):
        nngp(perceptron, x, 2)
    after = Chain(20, 4, "tanh", norm="none", skip=0.5)
    normed = Chain(20, 4, "relu").repeat(1) + after.repeat(2)
    with pytest.raises(ArgumentError, match="skip: got 0.5, .*not Gaussian"):
        ntk(normed, x)
    with pytest.raises(ArgumentError, match="norm: got 'batch-uncentred'"):
        nngp(Chain(20, 4, "relu").repeat(1) + Chain(20, 4, norm="batch-uncentred").repeat(1), x)


# --- blocks with a skip path


def block_network(width):
    """Return layers of no norm: a block of state, and one of activations with a projection."""
    tanh = Chain(width, 3, "tanh", norm="none", gain=1.3)
    relu = Chain(width, 3, "relu", norm="none", gain=0.8, bias_variance=0.3)
    end = Chain(2 * width, 3, "tanh", norm="none", gain=0.9)
    projection = Chain(2 * width, 3, norm="none", gain=1.2, bias_variance=0.2)
    return bnmc.Network(
        (tanh, 0),
        bnmc.Residual(bnmc.Network((relu, 1), (tanh, 1)), skip=0.7),
        bnmc.Residual(
            bnmc.Network((relu, 1), (end, 1)), projection, skip=-0.6, source="activations"
        ),
    )


class Tangents:
    """Rows (width, samples) and their derivatives by blocks of standard normal parameters."""

    def __init__(self, rows, blocks=()):
        self.rows, self.blocks = rows, list(blocks)

    def through(self, function, slope):
        return Tangents(
            function(self.rows), [slope(self.rows)[..., None] * block for block in self.blocks]
        )

    def weighed(self, rng, width, gain, bias):
        """Return gain W a + b, with the derivatives by its own parameters as the last blocks."""
        fan_in, samples = self.rows.shape
        scale = gain / np.sqrt(fan_in)
        w = scale * rng.standard_normal((width, fan_in))
        b = np.sqrt(bias) * rng.standard_normal((width, 1))
        blocks = [np.einsum("wf,fsp->wsp", w, block) for block in self.blocks]
        unit = np.eye(width)
        of_w = scale * np.einsum("vw,fs->vswf", unit, self.rows).reshape(width, samples, -1)
        of_b = np.sqrt(bias) * np.einsum("vw,s->vsw", unit, np.ones(samples))
        return Tangents(w @ self.rows + b, [*blocks, of_w, of_b])

    def plus(self, other, factor):
        """Return the sum with rows whose parameters are the first ones, and some of its own."""
        blocks = list(self.blocks)
        for place, block in enumerate(other.blocks[: other.shared]):
            blocks[place] = blocks[place] + factor * block
        extra = [factor * block for block in other.blocks[other.shared :]]
        return Tangents(self.rows + factor * other.rows, blocks + extra)

    def sharing(self, count):
        self.shared = count
        return self

    def kernel(self):
        """Return the mean of the tangent kernels of the rows."""
        products = (np.tensordot(block, block, axes=((0, 2), (0, 2))) for block in self.blocks)
        return sum(products) / len(self.rows)


def tangents_of_blocks(width, rng, x):
    """Return covariance and tangent kernel of the last layer of one network in plain NumPy."""
    tanh = np.tanh, lambda h: 1.0 / np.cosh(h) ** 2
    relu = lambda h: np.maximum(h, 0.0), lambda h: (h > 0.0) * 1.0
    h0 = Tangents(x).weighed(rng, width, 1.0, 0.0)
    h1 = h0.through(*tanh).weighed(rng, width, 0.8, 0.3)
    h2 = h1.through(*relu).weighed(rng, width, 1.3, 0.0).plus(h0.sharing(2), 0.7)
    a2 = h2.through(*tanh)
    h3 = a2.weighed(rng, width, 0.8, 0.3)
    h4 = h3.through(*relu).weighed(rng, 2 * width, 0.9, 0.0)
    path = a2.weighed(rng, 2 * width, 1.2, 0.2).sharing(len(a2.blocks))
    last = h4.plus(path, -0.6)
    return last.rows.T @ last.rows / len(last.rows), last.kernel()


def test_kernels_of_blocks():
    """200 networks of widths 10 and 20 in plain NumPy, extrapolated to infinite width.

    Of 18 entries |z| > 6.5 has the probability 1e-8 (t, 199 degrees of freedom); the terms of
    second order are about 1/20² of the kernel.
    """
    x, network = X[:, :3], block_network(8)
    limits = nngp(network, x), ntk(network, x)
    path = MeanField(network).trajectory(covariance=x.T @ x / 9)
    np.testing.assert_allclose(limits[0], path.covariance[-1], rtol=1e-9)
    samples = []
    for width in (10, 20):
        rng = np.random.default_rng(width)
        samples.append(np.array([tangents_of_blocks(width, rng, x) for _ in range(200)]))
    means, errors = zip(*((s.mean(0), s.std(0, ddof=1) / 200**0.5) for s in samples), strict=True)
    mean = 2.0 * means[1] - means[0]
    error = np.hypot(2.0 * errors[1], errors[0])
    for value, limit, off, most in zip(mean, limits, error, (0.1, 0.04), strict=True):
        size = np.abs(limit).max()
        assert (np.abs(value - limit) < 6.5 * off + 0.01 * size).all(), value / limit
        assert off.max() < most * size


def test_blocks_with_a_norm_over_the_batch():
    """Blocks of batch norm, whose last layers the mean field has; and blocks that have no map."""
    x = X[:, :5]
    pre = Chain(20, 5, "relu", order="pre-activation", gain=1.3)
    block = bnmc.Residual(bnmc.Network((pre, 2)), skip=0.8)
    network = bnmc.Network((pre, 1), block, block)
    path = MeanField(network).trajectory(covariance=x.T @ x / 9)
    np.testing.assert_allclose(nngp(network, x), path.covariance[-1], rtol=1e-7)
    assert np.linalg.eigvalsh(ntk(network, x)).min() > 0.0
    # A block of a single layer is a skip connection.
    first = bnmc.Network((pre, 0), bnmc.Residual(bnmc.Network((pre, 1)), skip=0.8))
    skipping = Chain(20, 5, "relu", order="pre-activation", gain=1.3, skip=0.8)
    np.testing.assert_allclose(ntk(first, x), ntk(skipping, x, 1), rtol=1e-9)
    plain = Chain(20, 5, "relu", norm="none")
    after = bnmc.Residual(bnmc.Network((plain, 2)), source="activations")
    for function in (
        lambda: ntk(bnmc.Network((plain, 0), after), x),
        lambda: MeanField(bnmc.Network((plain, 0), after)).trajectory(np.eye(5)),
    ):
        with pytest.raises(ArgumentError, match="skip: .*not Gaussian"):
            function()
    sums = bnmc.Residual(bnmc.Network((plain, 2)), activation="relu")
    normed = bnmc.Residual(bnmc.Network((plain, 2)), Chain(20, 5))
    for block, name in ((sums, "activation"), (normed, "projection")):
        for function in (
            lambda block=block: ntk(bnmc.Network((plain, 0), block), x),
            lambda block=block: MeanField(bnmc.Network((plain, 0), block)).trajectory(np.eye(5)),
        ):
            with pytest.raises(ArgumentError, match=f"{name}: .*not Gaussian"):
                function()


def test_a_missing_argument_beside_a_chain_or_a_network_is_explained():
    chain = bnmc.Chain(10, 3, "relu", norm="none")
    network = bnmc.Network.of(width=[10, 12, 1], batch=3, activation="relu", norm="none")
    x = np.eye(10)[:, :3]
    for arguments, call in (
        ((chain, x), "ntk(chain, x, depth)"), ((chain, 3), "ntk(chain, x, depth)"),
        ((network,), "ntk(network, x)"),
    ):  # fmt: skip
        with pytest.raises(TypeError, match=re.escape(f"call {call}, x of shape")):
            ntk(*arguments)
