"""`RateEstimate`: its fields are checked, and what follows from them."""

import math

import pytest

from bnmc.errors import ArgumentError
from bnmc.mixing import RateEstimate


def test_timescale_and_alpha_follow_from_the_rate():
    rate = RateEstimate(0.8, 0.01, (0.78, 0.82), 50, "test")
    assert rate.alpha == pytest.approx(0.2)
    assert rate.timescale == pytest.approx(-1 / math.log(0.8))
    assert rate.timescale_ci == pytest.approx((-1 / math.log(0.78), -1 / math.log(0.82)))
    assert rate.rate_estimate == rate
    assert "a layer" in str(rate)


def test_the_ends_have_their_timescales():
    rate = RateEstimate(0.0, 0.0, (0.0, 1.0), 5, "test")
    assert rate.timescale == 0.0
    assert rate.timescale_ci == (0.0, math.inf)


def test_a_rate_outside_of_its_range_is_refused():
    with pytest.raises(ArgumentError):
        RateEstimate(1.5, 0.1, (1.4, 1.6), 5, "test")
    with pytest.raises(ArgumentError, match="ci"):
        RateEstimate(0.5, 0.1, (-0.1, 0.6), 5, "test")
