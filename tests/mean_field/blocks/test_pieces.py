"""The corners of an activation on an interval: those found, and those declared."""

import numpy as np
import pytest

from bnmc.chain.activations import Activation
from bnmc.mean_field.blocks.pieces import pieces


def smooth_rise(x):
    """A function with a continuous derivative, so that only a declaration tells of its kink."""
    return max(x - 0.3, 0.0) ** 2


@pytest.mark.parametrize("kinks", [(), (0.3,), (-6.0, -5.0, -4.9, 0.3, 4.9, 5.0, 6.0)])
def test_declared_kinks_inside_the_interval_are_corners(kinks):
    """The ends of the interval are none: nothing lies beyond them."""
    found = pieces(Activation(smooth_rise, kinks=kinks), 5.0)
    np.testing.assert_array_equal(found.corners, [kink for kink in kinks if abs(kink) < 5.0])
    assert found.jumps.size == 0
