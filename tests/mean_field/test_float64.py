"""Roots of a function of one number: places, directions, infinite values."""

import math

import numpy as np
import pytest

from bnmc.mean_field.float64 import roots

GRID = np.linspace(0.0, 2.0, 9)


def test_roots_are_those_between_points_and_at_points():
    places = (0.1, 0.5, 1.6, 2.0)
    crossings = roots(lambda x: math.prod(x - place for place in places), GRID)
    assert crossings == pytest.approx(places, rel=1e-14)


def test_rising_roots_are_those_before_a_positive_value():
    places = (0.1, 0.5, 1.1, 1.5, 1.9)
    crossings = roots(lambda x: math.prod(x - place for place in places), GRID, rising=True)
    assert crossings == pytest.approx(places[::2], rel=1e-14)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_jump_to_infinity_is_no_root_and_a_pole_after_a_root_hides_none(sign):
    assert roots(lambda q: sign * (math.inf if q > 0.9 else -1.0), GRID) == []
    assert roots(lambda q: sign * (-math.inf if q < 0.9 else 1.0), GRID) == []
    crossings = roots(lambda q: sign * (math.inf if q >= 1.0 else 1.0 / (1.0 - q) - 20.0), GRID)
    assert crossings == pytest.approx([0.95], rel=1e-12)


def test_intervals_with_a_nan_at_an_end_are_left_out():
    assert roots(lambda x: math.nan if x > 0.9 else x - 0.6, GRID) == pytest.approx([0.6])
    assert roots(lambda x: math.nan if x > 0.7 else x - 0.6, GRID) == []
