"""Adapters of layers with other layouts to the functions that `assert_same_law` takes."""

import numpy as np
import pytest
from numpy_steps import Network, normalised

import bnmc
from bnmc.errors import ArgumentError, ArgumentTypeError
from bnmc.testing import (
    LawMismatch,
    assert_same_law,
    from_features_last,
    from_linear_first,
)

RELU = bnmc.Chain(20, 5, "relu")


def mismatch(step, chain=RELU, **options):
    with pytest.raises(LawMismatch) as caught:
        assert_same_law(step, chain, **{"rng": 0, **options})
    return caught.value


def test_features_last_and_weights_first():
    rng = np.random.default_rng(1)

    def step(h):  # (batch, features)
        x = (h - h.mean(axis=0)) / h.std(axis=0)
        return np.maximum(x, 0.0) @ rng.standard_normal((20, 20)) / np.sqrt(20)

    assert_same_law(from_features_last(step), RELU, rng=0, rows=512)
    network = Network()
    block = (lambda a: network.draw() @ a, normalised, network.sigma)
    assert_same_law(from_linear_first(*block), RELU, rng=0, rows=512)
    mismatch(from_linear_first(block[0], normalised, np.tanh), rows=512)


def test_adapters_refuse_what_is_no_function():
    for call in (lambda: from_features_last(3), lambda: from_linear_first(np.tanh, 3)):
        with pytest.raises(ArgumentTypeError):
            call()
    with pytest.raises(ArgumentError):
        from_linear_first(np.tanh)
