"""Tables of functions of an angle: the edges of their panels, whichever end they start from."""

import numpy as np
import pytest

from bnmc.mean_field.quadrature.table import Table


@pytest.mark.parametrize(
    ("start", "end"),
    [
        ((0, 1, 2), (1, 2, 4)), ((1, 2, 4), (0, 1, 2)), ((0, 2, 4), (1, 1, 2)),
        ((1, 1, 2), (0, 2, 4)),
    ],
)  # fmt: skip
def test_edges_are_the_ends_of_panels_that_start_on_either_side(start, end):
    """On each panel the table is ((angle − start)/(end − start))^(1/power)."""
    power, identity = np.array([1.0, 2.0, 2.0]), np.array([0.5, 0.5])
    first, last = np.array(start, float), np.array(end, float)
    table = Table(first, last, power, np.tile(identity, (3, 1))[:, :, None])
    np.testing.assert_array_equal(table.edges, [0, 1, 2, 4])
    share = np.array([0.0625, 0.25, 0.5625])
    for panel in range(3):
        angle = first[panel] + share * (last[panel] - first[panel])
        expected = share ** (1 / power[panel])
        np.testing.assert_allclose(table(angle)[0], expected, rtol=1e-14)
