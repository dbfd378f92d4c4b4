"""Layers in PyTorch and JAX, whose default has the law of a chain, and adapters of other layers."""

import functools
import re
import sys

import numpy as np
import pytest
from numpy_network import standardised
from numpy_steps import Network
from slow_cases import slow

import bnmc
from bnmc import testing
from bnmc.errors import ArgumentError, ArgumentTypeError, BackendError, UnknownNameError
from bnmc.testing import LawMismatch, assert_same_law, examples, from_linear_first

RELU = bnmc.Chain(20, 5, "relu")


def causes_of(step, **options):
    with pytest.raises(LawMismatch) as caught:
        assert_same_law(step, RELU, rng=0, **options)
    return caught.value.causes


@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_frameworks_that_are_missing(framework, monkeypatch):
    monkeypatch.setitem(sys.modules, framework, None)
    build = getattr(examples, f"{framework}_step")
    with pytest.raises(BackendError, match=f"{framework}.*pip install {framework}"):
        build(10)
    with pytest.raises(UnknownNameError):
        build(10, weights="uniform")
    with pytest.raises(ArgumentError):
        build(0)
    above = 2 ** {"torch": 63, "jax": 32}[framework]
    with pytest.raises(BackendError):  # the largest seed is no error
        build(10, seed=above - 1)
    for step, seed in ((build, -1), (build, above), (examples.torch_conv_step, 2**63)):
        with pytest.raises(ArgumentError, match="^seed"):
            step(10, seed=seed)


@pytest.mark.parametrize(
    ("framework", "options", "words"),
    [
        ("torch", {}, None),
        # test_same_law.py finds these mistakes in NumPy each time.
        slow("torch", {"eps": 1e-5}, "eps = 1e-05"),
        slow("torch", {"training": False}, "evaluation mode"),
        ("torch", {"training": False, "momentum": 0.1}, "momentum"),
        slow("torch", {"training": False, "momentum": 1.0}, "ddof = 1"),
        slow("torch", {"weights": "kaiming"}, "Kaiming"),
        ("torch", {"weights": "default"}, "a bias"),
        ("jax", {}, None),
        ("jax", {"eps": 1e-5}, "eps = 1e-05"),
        ("jax", {"training": False}, "evaluation mode"),
        ("jax", {"ddof": 1}, "ddof = 1"),
        ("jax", {"weights": "kaiming"}, "Kaiming"),
        ("jax", {"weights": "flax"}, "truncated"),
    ],
)
def test_layers_of_frameworks(framework, options, words, request):
    module = pytest.importorskip(framework)
    if framework == "torch":  # threads that wait for each other, on cores that others use, too
        request.addfinalizer(functools.partial(module.set_num_threads, module.get_num_threads()))
        module.set_num_threads(1)
    step = getattr(examples, f"{framework}_step")(20, **options)
    if words is None:
        assert_same_law(step, RELU, rng=0, rows=512)
    else:
        assert re.search(words, causes_of(step)[0])


def test_examples_know_activations_by_name():
    pytest.importorskip("torch")
    with pytest.raises(UnknownNameError, match="did you mean 'relu'"):
        examples.torch_step(10, "rellu")


# --- adapters of layers with other layouts


def test_features_last_and_weights_first():
    rng = np.random.default_rng(1)

    def step(h):  # (batch, features)
        x = (h - h.mean(axis=0)) / h.std(axis=0)
        return np.maximum(x, 0.0) @ rng.standard_normal((20, 20)) / np.sqrt(20)

    assert_same_law(testing.from_features_last(step), RELU, rng=0, rows=512)
    network = Network()
    block = (lambda a: network.draw() @ a, standardised, network.sigma)
    assert_same_law(from_linear_first(*block), RELU, rng=0, rows=512)
    causes_of(from_linear_first(block[0], standardised, np.tanh), rows=512)


def test_adapters_refuse_what_is_no_function():
    for layers, error in (((np.tanh, 3), ArgumentTypeError), ((np.tanh,), ArgumentError)):
        with pytest.raises(error):
            from_linear_first(*layers)
