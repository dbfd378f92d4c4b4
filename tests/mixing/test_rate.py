"""`RateEstimate`: its fields are checked, and what follows from them."""

import math

import pytest

from bnmc.mixing import RateEstimate
from bnmc.mixing.rate import rate_from_artanh


def test_timescale_and_alpha_follow_from_the_rate():
    rate = RateEstimate(0.8, 0.01, (0.78, 0.82), 50, "test")
    assert rate.alpha == pytest.approx(0.2)
    assert rate.timescale == pytest.approx(-1 / math.log(0.8))
    assert rate.timescale_ci == pytest.approx((-1 / math.log(0.78), -1 / math.log(0.82)))
    assert rate.rate_estimate == rate
    assert rate.rate == rate.value == 0.8
    assert rate.compatible(0.83)
    assert str(rate) == f"{rate}" == "0.800 ± 0.010 per layer, timescale 4.48 (test)"


def test_the_ends_have_their_timescales():
    rate = RateEstimate(0.0, 0.0, (0.0, 1.0), 5, "test")
    assert rate.timescale == 0.0
    assert rate.timescale_ci == (0.0, math.inf)


@pytest.mark.parametrize("lag", [1, 4])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_correlation_and_its_interval_become_those_of_a_rate(lag, sign):
    """|tanh z|^(1/lag), at z and at the ends of its interval; all signs are one rate."""

    def rate(z):
        return math.tanh(z) ** (1 / lag)

    ends = tuple(sorted((sign * 0.5, sign * 0.8)))
    estimate = rate_from_artanh(sign * 0.7, 0.1, ends, lag, 5, "test", 0.9)
    assert (estimate.n, estimate.method, estimate.level) == (5, "test", 0.9)
    assert estimate.rate == pytest.approx(rate(0.7), rel=1e-15)
    assert estimate.stderr == pytest.approx((rate(0.8) - rate(0.6)) / 2, rel=1e-12)
    assert estimate.ci == pytest.approx((rate(0.5), rate(0.8)), rel=1e-15)
    # If the correlation may be 0, so may the rate, and the farther end of both counts.
    for ends, most in (((-0.3, 0.2), 0.3), ((-0.2, 0.3), 0.3)):
        estimate = rate_from_artanh(sign * 0.05, 0.1, ends, lag, 5, "test", 0.9)
        assert estimate.ci == (0.0, pytest.approx(rate(most), rel=1e-15))
