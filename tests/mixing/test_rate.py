"""`RateEstimate`: its fields, what follows from them, and how often intervals of rates cover.

Coverage is counted over independent runs: of 1000, the count of an interval that covers with
probability 95 % leaves 95 ± 3.6 % with probability 4e-7, of 2000 it leaves 95 ± 2.5 % with 6e-7
(binomial).  Conservative intervals and those that are counted less often are below `lowest` with
probability 1e-6 at most.
"""

import math

import numpy as np
import pytest
from slow_cases import some
from stationary_processes import ar1, coverage, lowest, many, singular_values, times, turning, var1

from bnmc.estimate import Estimate
from bnmc.mixing import RateEstimate, relaxation, spectral
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


#: Numbers of runs, and largest deviations of the coverage, of intervals that are not conservative.
#: An error that is stated 20 % too small, a coverage of 88 %, is missed with probability 1e-3.
EXACT = {"times": (1000, 0.036), "spectral": (1000, 0.036), "relaxation": (2000, 0.025)}


def process(*sizes):
    return lambda rng: (ar1 if np.ndim(sizes[2]) == 0 else var1)(rng, *sizes)


def by_spectral(lags):
    return lambda values: spectral(values, lags).ci


def decay(sizes, limit=lambda rng: 0.0):
    """Values that decay, and their limit."""
    return lambda rng: (ar1(rng, *sizes), limit(rng))


def two_modes(sign):
    return lambda rng: (ar1(rng, 60, 30, 0.7, 60) + sign * ar1(rng, 60, 30, 0.3, 60), 0.0)


def uncertain(rng):
    value = rng.normal(0, 0.1)
    return Estimate(value, 0.1, (value - 0.2, value + 0.2), 9, "given")


def by_relaxation(case):
    return relaxation(*case).ci


def truths(rho, mean=0.0):
    """Rate, integrated time and mean."""
    return abs(rho), (1 + rho) / (1 - rho), mean


ONE = by_spectral(1)
#: Intervals, runs, the truth, and the least share of runs that do not raise.
COVERAGE = {
    "times": (times, process(50, 200, 0.4), truths(0.4), 1.0),
    "times, alternating": (times, process(64, 200, -0.4), truths(-0.4), 1.0),
    "times, white": (times, process(50, 100, 0.0), truths(0.0), 1.0),
    "times, one chain": (times, process(1, 1500, 0.4), truths(0.4), 1.0),
    "times, few chains": (times, process(8, 400, 0.6), truths(0.6), 1.0),
    # The square of an AR(1) process has ρ(k) = ρ^{2k}, and heavy tails.
    "times, not Gaussian": (
        times, lambda rng: np.square(ar1(rng, 100, 150, 0.6)), truths(0.36, 1.0), 1.0,
    ),
    # A lag is rejected with probability 1 %, the second after the first more often than that.
    "spectral": (by_spectral([1, 2]), process(50, 60, 0.5), 0.5, 0.99),
    "spectral, alternating": (ONE, process(50, 60, -0.5), 0.5, 0.0),
    "spectral, white": (ONE, process(50, 60, 0.0), 0.0, 0.0),
    "spectral, one chain": (ONE, process(1, 3000, 0.6), 0.6, 0.0),
    "spectral, few chains": (ONE, process(8, 400, 0.6), 0.6, 0.0),
    **{
        f"spectral, {name}": (ONE, process(60, 40, A), singular_values(A, 1)[0], 0.0)
        for name, A in {
            "separate": np.diag([0.6, 0.2]), "near": np.diag([0.6, 0.58, 0.55]),
            "equal": np.diag([0.6, 0.6, 0.6]), "turning": turning(0.6, 0.5),
        }.items()
    },
    "relaxation": (by_relaxation, decay((50, 24, 0.5, 40)), 0.5, 0.99),
    "relaxation, alternating": (by_relaxation, decay((50, 30, -0.6, 60)), 0.6, 0.95),
    "relaxation, few chains": (by_relaxation, decay((8, 40, 0.7, 60)), 0.7, 0.95),
    "relaxation, fitted limit": (
        by_relaxation, decay((50, 24, 0.5, 60), lambda rng: None), 0.5, 0.95,
    ),
    "relaxation, estimated limit": (
        by_relaxation, decay((50, 30, 0.6, 60), uncertain), 0.6, 0.95,
    ),
    # A second, faster mode is waited for.
    "relaxation, two modes": (by_relaxation, two_modes(1), 0.7, 0.95),
    "relaxation, opposite modes": (by_relaxation, two_modes(-1), 0.7, 0.95),
}  # fmt: skip
NOW = {"times, alternating", "times, not Gaussian", "spectral"}


@pytest.mark.untraced
@pytest.mark.parametrize("name", some(COVERAGE, *NOW, "relaxation, two modes"))
def test_intervals_cover(name):
    intervals, run, truth, least = COVERAGE[name]
    seeds, deviation = EXACT.get(name, (300 if name.endswith("modes") else 600, None))
    share, passed = coverage(many(seeds, run), intervals, truth)
    assert np.min(share) >= lowest(seeds)
    assert passed >= least
    if deviation:
        np.testing.assert_allclose(share, 0.95, atol=deviation)
