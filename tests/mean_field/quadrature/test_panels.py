"""Tables of functions of an angle: their panels, whichever end they start from."""

import numpy as np
import pytest

from bnmc.mean_field.quadrature.panels import Table, tabulate


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


def test_singular_points_share_the_panel_between_them():
    """A panel is a polynomial in the root of the distance to one end: half belongs to either."""

    def roots(angle):
        return np.sqrt([abs(angle - 1.0), abs(angle - 1.5)])

    table = tabulate(roots, np.array([0.0, 2.0]), np.array([1.0, 1.5]), 20, np.full(2, 1e-9))
    np.testing.assert_array_equal(table.edges, [0.0, 1.0, 1.25, 1.5, 2.0])
    np.testing.assert_array_equal(table.power, 2.0)
    np.testing.assert_array_equal(table.start, [1.0, 1.0, 1.5, 1.5])
    angle = np.linspace(0.0, 2.0, 101)
    np.testing.assert_allclose(table(angle), np.transpose([roots(x) for x in angle]), atol=1e-8)
