"""Places where a fine grid shows a sudden change of an activation."""

import numpy as np
import pytest

from bnmc.mean_field.quadrature.resolution import _outstanding


@pytest.mark.parametrize("place", [1, 2, 500, 1023, 1024, 1025, 1026, 2500, 3000 - 2])
@pytest.mark.parametrize("share", [-0.3, 0.0, 0.3])
def test_the_point_of_the_grid_next_to_a_kink_stands_out(place, share):
    """In all stretches, and at both ends of the grid.

    The second differences of |x − kink| are 2 (1 − t) and 2 t at the points next to the kink, if it
    is at the fraction t of the way from one to the other.
    """
    index = np.arange(3000.0)
    found = _outstanding(np.abs(index - (place + share)))
    assert place in found
    # Two stretches overlap, or share the kink, so both of its neighbours may stand out.
    assert set(found) <= {place - 1, place, place + 1}


def test_nothing_stands_out_of_a_parabola_or_of_rounding():
    index = np.arange(3000.0)
    assert _outstanding(index**2) == []
    assert _outstanding(np.full(3000, 0.1)) == []
