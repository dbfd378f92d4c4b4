"""How many layers a backward pass keeps at a time."""

import math

import pytest

from bnmc import Chain
from bnmc.gradients.parts import STRETCH_BYTES, stretch_layers


@pytest.mark.parametrize(("skip", "depth"), [(0.0, 5000), (0.5, 150)])
def test_a_stretch_fills_its_memory(skip, depth):
    """Three matrices of each layer and chain, and representations if there are skip connections."""
    width, columns, chains = 1000, 32, 4
    each = 3 * 8 * columns**2 * chains
    if skip:
        each += 8 * columns * 1024 * chains  # rows of whole blocks of 64
    found = stretch_layers(Chain(width, columns, skip=skip), columns, chains, 8, depth)
    assert found == STRETCH_BYTES // each
    assert math.isqrt(depth) < found < depth


def test_a_stretch_is_at_least_a_root_of_the_depth_and_at_most_the_depth():
    chain = Chain(4000, 128, skip=1.0)
    assert stretch_layers(chain, 128, 50, 8, 400) == 20
    assert stretch_layers(chain, 128, 50, 8, 1) == 1
    assert stretch_layers(Chain(10, 3), 3, 1, 8, 7) == 7
