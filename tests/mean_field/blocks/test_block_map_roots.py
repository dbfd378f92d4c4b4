"""Roots of a block map, each once."""

import numpy as np

from bnmc.mean_field.blocks.block_map import _distinct


def test_roots_are_the_same_if_all_their_coordinates_are():
    roots = [np.array(one) for one in ([0.1, 0.3], [0.1, 0.5], [0.1, 0.3 + 1e-9], [0.4, 0.3])]
    assert [list(one) for one in _distinct(roots)] == [[0.1, 0.3], [0.1, 0.5], [0.4, 0.3]]
