"""One layer of samples: errors name the sample, wherever it is."""

import numpy as np
import pytest

import bnmc
from bnmc._claims.layer import Layer
from bnmc.errors import ZeroVarianceError
from bnmc.invariant import check

RELU = bnmc.Chain(6, 3, "relu", norm="batch-uncentred")


@pytest.mark.parametrize("first", [0, 40])
def test_the_sample_that_cannot_be_normalized_is_named(first):
    states = np.random.default_rng(0).standard_normal((5, 6, 3))
    Layer.of(RELU, states, first)
    states[3:, 2] = 0.0  # a row without variance
    with pytest.raises(ZeroVarianceError) as caught:
        Layer.of(RELU, states, first)
    assert (caught.value.chain, caught.value.row) == (first + 3, 2)
    states[3:] = -1.0  # all activations are 0
    with pytest.raises(ZeroVarianceError) as caught:
        Layer.of(RELU, states, first)
    assert caught.value.chain == first + 3


def test_samples_are_numbered_through_a_report():
    samples = np.random.default_rng(1).standard_normal((400, 6, 3))
    samples[377, 4] = 0.0
    with pytest.raises(ZeroVarianceError) as caught:
        check(RELU, samples=samples, rng=0)
    assert (caught.value.chain, caught.value.row) == (377, 4)
