"""Layers with batch normalization before the activation: how many coordinates points need."""

from dataclasses import replace

import numpy as np
import pytest

from bnmc import Activation
from bnmc._kernels.scalar.codes import NORM_FIRST
from bnmc.chain.layers import RowMap
from bnmc.chain.norms import as_norm
from bnmc.infinite_width.batches import NormalizedBatches
from bnmc.infinite_width.networks import HiddenLayer, Weights


def network(sizes):
    inputs = np.random.default_rng(0).standard_normal((9, sum(sizes)))
    tanh = Activation.named("tanh")
    layer = HiddenLayer(RowMap(tanh, as_norm("batch"), NORM_FIRST, 1), Weights())
    return NormalizedBatches([inputs], [tuple(sizes)], Weights(), (layer,), False)


@pytest.mark.parametrize("sizes", [[4], [5, 5], [3, 6, 2, 5], [6, 3, 4]])
def test_points_have_the_coordinates_of_the_largest_pair(sizes):
    """A normalized row of n samples has n − 1 coordinates."""
    made = network(sizes)
    needed = [sum(sizes[one] - 1 for one in {i, j}) for i, j in made.own_and_pairs]
    assert made.coordinates == max(needed)


def test_a_smaller_batch_does_not_change_the_points_of_the_others():
    two, three = network([5, 4]), network([5, 4, 3])
    three = replace(three, sets=[np.concatenate([two.inputs, three.inputs[:, 9:]], axis=1)])
    found = [one.replicate(64, np.random.default_rng(1), lambda: None) for one in (two, three)]
    np.testing.assert_array_equal(found[1][:9, :9], found[0])
