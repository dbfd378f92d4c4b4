"""Ends of the intervals of a fitted rate."""

import math
from types import SimpleNamespace

import pytest

from bnmc.mixing.relaxation_curve import end_of_interval


def curve(size):
    """A score of modulus |artanh ρ| / size."""
    return SimpleNamespace(score=lambda rho: math.atanh(rho) / size)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("half", [0.1, 1.0, 2.5])
@pytest.mark.parametrize("end", [4.05, 5.8, 6.9])
def test_an_end_is_where_the_score_is_the_quantile(sign, half, end):
    """Also if the next step from the last one before it leads beyond 7."""
    found = end_of_interval(curve(2.0), sign * 4.0, sign * half, end / 2.0)
    assert found == pytest.approx(sign * end, abs=1e-5)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("z", [4.0, 7.2])
def test_an_end_beyond_a_modulus_of_7_is_infinite(sign, z):
    assert end_of_interval(curve(2.0), sign * z, sign * 1.0, 7.5) == sign * math.inf
    assert end_of_interval(curve(2.0), sign * 4.0, sign * 1.0, 3.75) == sign * math.inf
