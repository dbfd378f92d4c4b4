"""Guarantees for wide networks, written out."""

import math

import pytest

from bnmc.bounds import limits


def test_written_out():
    assert limits.du_width(20, 0.5, 0.1, 3.0) == pytest.approx(3 * 20**6 / (0.1**3 * 0.5**4))
    expected = 3 * 20**4 / 0.5**4 * math.log(200) ** 3
    assert limits.song_yang_width(20, 0.5, 0.1, 3.0) == pytest.approx(expected)
    assert limits.du_residual(4.0, 20, 0.5, 0.3) == pytest.approx(math.exp(-0.3 * 0.5 * 4 / 20))
    expected = 0.7 + 2 * math.sqrt(math.log(20 / (0.5 * 0.1)) / 20)
    assert limits.arora_error(0.7, 20, 0.5, 0.1, 2.0) == pytest.approx(expected)
    assert limits.arora_error(0.7, 2, 50.0, 0.5) == pytest.approx(0.7)


def test_arguments_broadcast():
    assert limits.du_width([10, 20], [[0.1], [0.2], [0.3]], 0.1).shape == (3, 2)
    assert limits.arora_error([0.1, 0.2], 10, 0.1, [[0.1], [0.2]]).shape == (2, 2)
