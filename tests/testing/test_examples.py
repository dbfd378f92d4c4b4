"""The layers in PyTorch and JAX: the default has the law of a chain, and options are recognized."""

import functools
import re
import sys

import pytest

import bnmc
from bnmc.errors import ArgumentError, BackendError, UnknownNameError
from bnmc.testing import (
    LawMismatch,
    assert_same_law,
    examples,
)

RELU = bnmc.Chain(20, 5, "relu")


def mismatch(step, chain=RELU, **options):
    with pytest.raises(LawMismatch) as caught:
        assert_same_law(step, chain, **{"rng": 0, **options})
    return caught.value


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
    for seed in (-1, above):
        with pytest.raises(ArgumentError, match="^seed"):
            build(10, seed=seed)


@pytest.mark.parametrize(
    ("framework", "options", "words"),
    [
        ("torch", {}, None),
        # test_same_law.py finds these mistakes in NumPy each time.
        pytest.param("torch", {"eps": 1e-5}, "eps = 1e-05", marks=pytest.mark.slow),
        pytest.param("torch", {"training": False}, "evaluation mode", marks=pytest.mark.slow),
        ("torch", {"training": False, "momentum": 0.1}, "momentum"),
        pytest.param(
            "torch", {"training": False, "momentum": 1.0}, "ddof = 1", marks=pytest.mark.slow
        ),
        pytest.param("torch", {"weights": "kaiming"}, "Kaiming", marks=pytest.mark.slow),
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
        assert re.search(words, mismatch(step).causes[0])


def test_examples_know_activations_by_name():
    pytest.importorskip("torch")
    with pytest.raises(UnknownNameError, match="did you mean 'relu'"):
        examples.torch_step(10, "rellu")
