"""Confidence intervals against SciPy, and the jackknife of a mean and of a variance."""

import numpy as np
import pytest
from scipy import stats

from bnmc.estimate.estimate import (
    bounded_mean_interval,
    clopper_pearson,
    half_width,
    jackknife,
    mean_interval,
)


@pytest.mark.parametrize("level", [0.5, 0.95, 0.999])
@pytest.mark.parametrize("count", [1, 7, 1000])
def test_clopper_pearson_against_scipy(count, level):
    successes = np.unique(np.linspace(0, count, 8).astype(int))
    intervals = clopper_pearson(successes.astype(float), count, level)
    for k, interval in zip(successes, intervals, strict=True):
        expected = stats.binomtest(int(k), count).proportion_ci(level, "exact")
        assert interval == pytest.approx([expected.low, expected.high], rel=1e-9)


def test_ends_of_the_interval_for_a_bounded_mean_solve_its_equation():
    level, count = 0.9, 50
    for m in (0.02, 0.3, 0.5, 0.97):
        for mu in bounded_mean_interval(m, count, level):
            divergence = m * np.log(m / mu) + (1 - m) * np.log((1 - m) / (1 - mu))
            assert count * divergence == pytest.approx(np.log(20.0), rel=1e-9)
    # At the ends of [0, 1] the equation is n log(1 − μ) = −log(2/(1 − level)).
    end = 1.0 - 20.0 ** (-1.0 / count)
    expected = [[0.0, end], [1.0 - end, 1.0]]
    np.testing.assert_allclose(bounded_mean_interval([0.0, 1.0], count, level), expected, rtol=1e-9)
    assert bounded_mean_interval(np.zeros((2, 3)), 5, 0.5).shape == (2, 3, 2)


@pytest.mark.parametrize("count", [2, 10, 200])
@pytest.mark.parametrize("level", [0.5, 0.95])
def test_each_end_for_a_bounded_mean_misses_at_most_half_of_the_rest(count, level):
    # Exactly, by summation over a binomial law: by Hoeffding's proof no law on [0, 1] is worse for
    # the bound that the interval inverts.
    successes = np.arange(count + 1)
    low, high = bounded_mean_interval(successes / count, count, level).T
    worst = 0.0
    for probability in np.linspace(0.0, 1.0, 101):
        law = stats.binom(count, probability).pmf(successes)
        worst = max(worst, law[low > probability].sum(), law[high < probability].sum())
    assert worst <= 0.5 * (1.0 - level)
    # Both ends do miss: the interval is not vacuous.
    assert worst > 0.02 * (1.0 - level)


def test_half_width_is_that_of_students_interval():
    for degrees, level in ((1, 0.95), (9, 0.5), (1e6, 0.999)):
        expected = stats.t.interval(level, degrees, scale=0.3)[1]
        assert half_width(0.3, degrees, level) == pytest.approx(expected, rel=1e-9)


def test_mean_interval_is_students_unless_samples_are_skewed_to_the_right():
    values = np.arange(10)
    low, high = mean_interval(values, 0.975)
    expected = stats.t.interval(0.95, 9, values.mean(), stats.sem(values))
    assert (low, high) == pytest.approx(expected, rel=1e-9)
    skewed = values**3
    low, high = mean_interval(skewed, 0.975)
    expected = stats.t.interval(0.95, 9, skewed.mean(), stats.sem(skewed))
    assert low == pytest.approx(expected[0], rel=1e-9)
    # Hall's term of the upper end, with the skewness over the standard deviation of ddof 1.
    t, spread = stats.t.isf(0.025, 9), skewed.std(ddof=1)
    skewness = ((skewed - skewed.mean()) ** 3).mean() / spread**3
    assert skewness > 0.5
    shift = skewness * (1 + 2 * t * t) * spread / (6 * 10)
    assert high == pytest.approx(expected[1] + shift, rel=1e-9)
    assert mean_interval(-skewed, 0.975)[1] == pytest.approx(-expected[0], rel=1e-9)
    assert mean_interval(np.full(4, 3), 0.975) == (3, 3)


def test_jackknife_of_a_mean_and_of_a_variance():
    values = np.random.default_rng(0).standard_normal(20)
    others = np.array([np.delete(values, i) for i in range(20)])
    estimate, stderr = jackknife(values.mean(), others.mean(axis=1))
    assert (estimate, stderr) == pytest.approx((values.mean(), stats.sem(values)))
    estimate, _ = jackknife(values.var(), others.var(axis=1))
    assert estimate == pytest.approx(values.var(ddof=1))
