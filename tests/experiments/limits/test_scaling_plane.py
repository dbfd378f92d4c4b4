"""The plane of scalings: its strip, its regions, and the table of the lectures."""

import numpy as np

from bnmc.experiments.limits import scaling_plane
from bnmc.infinite_width import SCALINGS

FIGURE = "limits-plane"


def test_conditions_of_the_lectures(data):
    q, t = np.meshgrid(data["q_sigma"], data["q_tilde"], indexing="ij")
    expected = (q == -0.5, 2 * q + t + 1 == 0, q + t + 0.5 == 0, q + t == 0)
    for index, condition in enumerate(expected):  # multiples of 1/8 are exact
        np.testing.assert_array_equal(data["held"].values[..., index], condition)
    strip = (q + t >= -0.5) & (q + t <= 0)
    np.testing.assert_array_equal(data["region"].values > 0, strip)


def test_there_are_13_regions(figure):
    """3 combinations on the lower edge, where two lines meet, and 5 inside and on the upper one."""
    assert set(np.unique(figure.data["region"])) == set(range(14))
    assert "have 13 combinations" in figure.findings[0]


def test_regions_have_one_combination_of_signs(data):
    q, t = np.meshgrid(data["q_sigma"], data["q_tilde"], indexing="ij")
    powers = np.stack([q + 0.5, 2 * q + t + 1, q + t + 0.5, q + t], axis=-1)
    for number in range(1, 14):
        signs = np.sign(powers[data["region"].values == number])
        assert (signs == signs[0]).all()
    assert scaling_plane._region(SCALINGS["mean-field"].properties()) == (-1, 0, 1, 0)


def test_table_and_findings(figure):
    rows = {row[0]: row[1:] for row in figure.table.rows}
    assert rows["ntk"] == ("0", "0", "0", "-1/2", "yes", "yes", "yes", "no")
    assert rows["default"][:4] == ("1, 0", "0", "1, 0", "-1/2, 1/2")
    assert rows["ic-mf"][4:] == ("yes",) * 4
    assert "at most 3 of the four properties; of the named ones ntk." in figure.findings[1]
    assert "than ntk, mean-field and sym-default" in figure.findings[2]
    assert figure.findings[3].startswith("All four properties: ic-mf,")
