"""`nngp` and `ntk` against a recursion by hand and against networks with real weights.

The networks are of finite width d.  Their mean kernels differ from the limit by c/d + O(1/d²), so
the test takes 2 m(2d) − m(d), with m the mean over networks.  With 300 networks and d = 64 the
rest, about 1e-4, is less than a tenth of the standard error.  Per entry |z| > 6.5 has probability
4e-10 (t distribution), so a false alarm in any of 10 settings × 2 kernels × 6 entries has 5e-8.
"""

import itertools
import math

import gaussian_bumps
import numpy as np
import pytest

from bnmc import Activation
from bnmc._support import machine
from bnmc.errors import (
    ArgumentError,
    ArgumentTypeError,
    NonFiniteError,
    PartialEstimateError,
    ResultTooLargeError,
    UnknownNameError,
)
from bnmc.infinite_width import dual, nngp, ntk

NETWORKS, WIDTH, READ = 300, 64, 8
INPUTS = np.array([[1.0, 0.8, -0.5], [0.3, 0.5, 1.1], [-0.7, -0.9, 0.2], [0.4, 0.1, 0.6]])
FUNCTIONS = {
    "relu": (lambda x: np.maximum(x, 0.0), lambda x: (x > 0) * 1.0),
    "tanh": (np.tanh, lambda x: 1 / np.cosh(x) ** 2),
}


HIDDEN = Activation(
    lambda x: max(x - 0.377, 0.0) + x, derivative=lambda x: 2.0 if x > 0.377 else 1.0
)
#: More jumps than are searched for.
STAIRS = Activation(lambda x: np.floor(5.0 * x), derivative=lambda x: 0.0)


# --- networks of real weights


def normalised(h, norm):
    """Return N(h) for h of shape (width, samples), and the map of gradients through N."""
    if norm == "none":
        return h, lambda g: g
    mean = h.mean(axis=0) if norm == "layer" else np.zeros(h.shape[1])
    size = np.sqrt(np.mean((h - mean) ** 2, axis=0))
    n = (h - mean) / size

    def back(g):  # (outputs, width, samples)
        inner = g - g.mean(axis=1, keepdims=True) if norm == "layer" else g
        return (inner - n * np.mean(g * n, axis=1, keepdims=True)) / size

    return n, back


def gradient_gram(g):
    """Return the mean over outputs of gᵀg, for g of shape (outputs, width, samples)."""
    flat = g.reshape(-1, g.shape[2])
    return flat.T @ flat / READ


def finite_kernels(rng, width, depth, name, norm, order, weight, bias, skip):
    """Return K and Θ of one network: K over all coordinates of h_L, Θ over the first `READ`."""
    f, slope = FUNCTIONS[name]
    steps = []
    features = len(INPUTS)
    h = math.sqrt(weight / features) * rng.standard_normal((width, features)) @ INPUTS
    h += math.sqrt(bias) * rng.standard_normal((width, 1))
    for _ in range(depth):
        W = math.sqrt(weight / width) * rng.standard_normal((width, width))
        b = math.sqrt(bias) * rng.standard_normal((width, 1))
        if order == "norm-activation":
            n, back = normalised(h, norm)
            a, stream = f(n), n
            steps.append((W, a, slope(n), back))
        else:
            a, back = normalised(f(h), norm)
            stream = h
            steps.append((W, a, slope(h), back))
        h = skip * stream + W @ a + b
    K = h.T @ h / width
    g = np.repeat(np.eye(READ, width)[:, :, None], INPUTS.shape[1], axis=2)
    theta = 0.0
    for W, a, derivative, back in reversed(steps):
        gram = gradient_gram(g)
        theta = theta + gram * (weight * a.T @ a / width + bias)
        down = W.T @ g
        if order == "norm-activation":
            g = back(down * derivative + skip * g)
        else:
            g = back(down) * derivative + skip * g
    gram = gradient_gram(g)
    return K, theta + gram * (weight * INPUTS.T @ INPUTS / features + bias)


SETTINGS = [
    pytest.param(("relu", "none", "norm-activation", 2.0, 0.0, 0.0), marks=pytest.mark.slow),
    ("relu", "none", "norm-activation", 1.5, 0.3, 0.0),
    ("tanh", "none", "norm-activation", 1.5, 0.3, 0.7),
    pytest.param(("relu", "layer", "norm-activation", 2.0, 0.1, 0.0), marks=pytest.mark.slow),
    pytest.param(("tanh", "layer", "norm-activation", 2.0, 0.1, 0.8), marks=pytest.mark.slow),
    pytest.param(("relu", "rms", "norm-activation", 2.0, 0.1, 0.5), marks=pytest.mark.slow),
    pytest.param(("relu", "layer", "activation-norm", 1.5, 0.1, 0.0), marks=pytest.mark.slow),
    ("tanh", "layer", "activation-norm", 1.5, 0.1, 0.8),
    pytest.param(("relu", "rms", "activation-norm", 1.5, 0.0, 0.0), marks=pytest.mark.slow),
    ("tanh", "rms", "activation-norm", 1.5, 0.2, 0.8),
]


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda one: " ".join(map(str, one)))
def test_networks_of_finite_width(setting):
    name, norm, order, weight, bias, skip = setting
    rng = np.random.default_rng(20261122)
    draws = []
    for width in (WIDTH, 2 * WIDTH):
        arguments = (width, 2, name, norm, order, weight, bias, skip)
        draws.append(np.array([finite_kernels(rng, *arguments) for _ in range(NETWORKS)]))
    mean = 2 * draws[1].mean(axis=0) - draws[0].mean(axis=0)
    variance = (4 * draws[1].var(axis=0, ddof=1) + draws[0].var(axis=0, ddof=1)) / NETWORKS
    options = {
        "activation": name, "norm": norm, "order": order, "weight_variance": weight,
        "bias_variance": bias, "skip": skip,
    }  # fmt: skip
    limits = np.array([nngp(INPUTS, 2, **options), ntk(INPUTS, 2, **options)])
    z = (mean - limits) / np.sqrt(variance)
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
    found = np.array([nngp(x, depth, **options), ntk(x, depth, **options)])
    for i in range(6):
        for j in range(6):
            if i != j:
                expected = relu_by_hand(x[:, i].tolist(), x[:, j].tolist(), depth, weight, bias)
                assert found[:, i, j] == pytest.approx(expected, rel=1e-13)
    # On the diagonal of a network without bias and with weight variance 2, Θ_ii = (L + 1) K_ii.
    if weight == 2.0:
        assert np.diag(found[1]) == pytest.approx((depth + 1) * np.diag(found[0]), rel=1e-13)


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
    found = nngp(INPUTS, depth, bias_variance=bias, **options)
    np.testing.assert_allclose(found, kernel, rtol=1e-7)
    found = ntk(INPUTS, depth, bias_variance=bias, **options)
    scale = np.sqrt(np.diagonal(tangent))
    assert np.abs((found - tangent) / scale / scale[:, None]).max() < 1e-6


def test_a_linear_network_in_closed_form():
    x = np.random.default_rng(2).standard_normal((5, 4))
    first = 1.5 * x.T @ x / 5
    assert nngp(x, 3, activation="linear", weight_variance=1.5) == pytest.approx(first * 1.5**3)
    theta = ntk(x, 3, activation="linear", weight_variance=1.5)
    assert theta == pytest.approx(4 * first * 1.5**3)


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
    one = rng.standard_normal((20, 1))
    close = one + 10.0 ** -rng.integers(6, 18, 12) * rng.standard_normal((20, 12))
    x = np.hstack([rng.standard_normal((20, 12)), close, -one, 3.0 * one])
    options = {"activation": activation, "norm": norm, "weight_variance": 2.0, "bias_variance": 0.1}
    kernel = nngp(x, 4, **options)
    theta = ntk(x, 4, **options)
    for found, tolerance in ((kernel, 1e-13), (theta, 1e-7)):
        assert np.isfinite(found).all()
        assert np.linalg.eigvalsh(found)[0] > -tolerance * np.linalg.eigvalsh(found)[-1]


def test_a_network_without_hidden_layers():
    x = np.array([[1.0, 2.0], [0.0, 1.0]])
    expected = 0.5 * x.T @ x + 0.25
    assert nngp(x, 0, bias_variance=0.25) == pytest.approx(expected)
    assert ntk(x, 0, bias_variance=0.25) == pytest.approx(expected)


def test_duals_and_functions_as_activations():
    x = np.random.default_rng(7).standard_normal((4, 3))
    assert (ntk(x, 2, activation=dual("cos")) == ntk(x, 2, activation="cos")).all()
    own = Activation(np.cos, derivative=lambda x: -np.sin(x))
    assert ntk(x, 2, activation=own) == pytest.approx(ntk(x, 2, activation="cos"), rel=1e-12)


# --- batch normalization


def test_batch_normalization_against_rows():
    x = np.random.default_rng(8).standard_normal((6, 4))
    found = nngp(
        x, 1, activation="tanh", norm="batch", weight_variance=1.5, bias_variance=0.2, rng=0
    )
    rows = np.random.default_rng(9).standard_normal((400_000, 6)) @ x
    rows -= rows.mean(axis=1, keepdims=True)
    values = np.tanh(rows / rows.std(axis=1, keepdims=True))
    products = np.einsum("ri,rj->rij", values, values)
    error = 1.5 * products.std(axis=0) / np.sqrt(len(rows))
    z = (1.5 * products.mean(axis=0) + 0.2 - found) / error
    assert np.abs(z).max() < 6.0  # 10 entries: 2e-8


def test_batch_normalization_in_depth_and_its_limits():
    x = np.random.default_rng(10).standard_normal((6, 4))
    deep = nngp(x, 30, activation="relu", norm="batch")
    again = nngp(x, 31, activation="relu", norm="batch", bias_variance=0.0)
    assert deep == pytest.approx(again, rel=1e-5)
    assert nngp(x, 0, norm="batch", dtype="float32").dtype == np.float32
    for options in ({"order": "activation-norm"}, {"activation": dual("relu")}):
        with pytest.raises(ArgumentError, match="batch"):
            nngp(x, 1, norm="batch", **options)
    with pytest.raises(PartialEstimateError) as caught:
        nngp(x[:, :3], 1, activation=HIDDEN, norm="batch", rtol=1e-12, rng=0)
    assert caught.value.partial.shape == (3, 3)


# --- errors


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"x": [1.0, 2.0]}, ArgumentError),
        ({"x": [[np.nan]]}, ArgumentError),
        ({"x": "x"}, ArgumentTypeError),
        ({"other": np.ones((3, 2))}, ArgumentError),
        ({"depth": -1}, ArgumentError),
        ({"depth": 1.5}, ArgumentTypeError),
        ({"norm": "bath"}, UnknownNameError),
        ({"order": "norm"}, UnknownNameError),
        ({"weight_variance": 0.0}, ArgumentError),
        ({"bias_variance": -1.0}, ArgumentError),
        ({"skip": np.inf}, ArgumentError),
        ({"skip": 1e200}, ArgumentError),
        ({"rtol": 0.0}, ArgumentError),
        ({"dtype": "int8"}, UnknownNameError),
        ({"progress": 3}, ArgumentTypeError),
        ({"activation": "rleu"}, UnknownNameError),
        ({"activation": lambda x: x * x}, ArgumentError),
        ({"x": np.zeros((2, 2)), "norm": "rms"}, ArgumentError),
        ({"activation": "exp", "depth": 9}, NonFiniteError),
        ({"x": np.full((2, 2), 1e200)}, NonFiniteError),
        ({"x": np.eye(2) + 1e-4, "activation": STAIRS, "bias_variance": 500}, PartialEstimateError),
        ({"method": "exact"}, UnknownNameError),
        ({"method": "monte-carlo", "width": 1}, ArgumentError),
        ({"method": "monte-carlo", "networks": 0}, ArgumentError),
        ({"method": "monte-carlo", "activation": dual("relu")}, ArgumentError),
        ({"batch": 2}, ArgumentError),
        ({"norm": "batch", "batch": 0}, ArgumentError),
        ({"norm": "batch", "batch": "2"}, ArgumentTypeError),
        ({"norm": "batch", "batch": (2, 2)}, ArgumentError),
        ({"norm": "batch", "x": np.eye(9)[:, :8], "batch": 3}, ArgumentError),
    ],
    ids=lambda one: " ".join(one) if isinstance(one, dict) else "",
)
def test_bad_input_raises(options, kind):
    with pytest.raises(kind):
        ntk(**{"x": np.eye(2), "depth": 1, "activation": "relu", **options})


def test_large_results_raise_before_any_work():
    with pytest.raises(ResultTooLargeError):
        ntk(np.ones((1, 1_000_000)), 1, other=np.ones((1, 10_000_000)))


def test_the_matrices_of_a_batch_are_counted(monkeypatch):
    """Of 256 samples in one, two or four batches: all that differs is quadratic in the batch."""
    monkeypatch.setattr(machine, "available_memory", lambda: 0)
    requests = []
    for batch in (256, 128, 64):
        with pytest.raises(ResultTooLargeError, match="smaller batches") as caught:
            nngp(np.ones((1, 256)), 2, activation="relu", norm="batch", batch=batch, skip=0.5)
        requests.append(caught.value.requested)
    one, two, four = requests
    assert one - two == 4 * (two - four)
    assert two - four >= 8 * (128**2 - 64**2)  # at least one matrix of float64
