"""Roots of functions of the variance: in which intervals of the search they lie."""

import math

import pytest

from bnmc.mean_field.correlation.variance import roots


def crossing(*points):
    """A function of the variance whose roots are powers of ten."""
    return lambda q: math.prod(math.log10(q) - point for point in points)


@pytest.mark.parametrize("smallest", [1e-12, 1e-3])
def test_roots_in_neighbouring_intervals_are_two(smallest):
    """The search has eight points per factor of ten; an interval reaches to the next one alone."""
    found = roots(crossing(1 / 16, 3 / 16), smallest)
    assert found == pytest.approx([10 ** (1 / 16), 10 ** (3 / 16)], rel=1e-12)


def test_the_first_and_the_last_interval_are_searched():
    points = (-12 + 1 / 16, 12 - 1 / 16)
    assert roots(crossing(*points)) == pytest.approx([10**point for point in points], rel=1e-12)
