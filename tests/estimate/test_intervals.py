"""Confidence intervals against SciPy, and the jackknife of a mean and of a variance."""

import numpy as np
import pytest
from scipy import stats

from bnmc.estimate.intervals import clopper_pearson, half_width, jackknife, mean_interval


@pytest.mark.parametrize("level", [0.5, 0.95, 0.999])
@pytest.mark.parametrize("count", [1, 7, 1000])
def test_clopper_pearson_against_scipy(count, level):
    successes = np.unique(np.linspace(0, count, 8).astype(int))
    intervals = clopper_pearson(successes.astype(float), count, level)
    for k, interval in zip(successes, intervals, strict=True):
        expected = stats.binomtest(int(k), count).proportion_ci(level, "exact")
        assert interval == pytest.approx([expected.low, expected.high], rel=1e-9)


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
    assert high > expected[1]
    assert mean_interval(-skewed, 0.975)[1] == pytest.approx(-expected[0], rel=1e-9)
    assert mean_interval(np.full(4, 3), 0.975) == (3, 3)


def test_jackknife_of_a_mean_and_of_a_variance():
    values = np.random.default_rng(0).standard_normal(20)
    others = np.array([np.delete(values, i) for i in range(20)])
    estimate, stderr = jackknife(values.mean(), others.mean(axis=1))
    assert (estimate, stderr) == pytest.approx((values.mean(), stats.sem(values)))
    estimate, _ = jackknife(values.var(), others.var(axis=1))
    assert estimate == pytest.approx(values.var(ddof=1))
