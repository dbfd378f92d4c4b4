"""Jackknife errors of divergences, and of sums of them."""

import numpy as np
import pytest

from bnmc.experiments.limits.divergences import Compared, _jackknifed, _without_groups, combined


def test_jackknife_of_means():
    """Of a difference of means it is the usual standard error, for groups of single networks."""
    rng = np.random.default_rng(2)
    a, b = rng.standard_normal(9), rng.standard_normal(15) + 3.0
    left_a = np.array([np.delete(a, k).mean() - b.mean() for k in range(9)])
    left_b = np.array([a.mean() - np.delete(b, k).mean() for k in range(15)])
    difference = _jackknifed(a.mean() - b.mean(), left_a, left_b)
    assert difference.stderr == pytest.approx(np.sqrt(a.var(ddof=1) / 9 + b.var(ddof=1) / 15))
    assert difference.n == 9


def test_groups_are_equal_and_cover_the_sample():
    sample = np.arange(100)
    parts = _without_groups(sample)
    assert len(parts) == 25
    left = [np.setdiff1d(sample, part) for part in parts]
    np.testing.assert_array_equal(np.concatenate(left), sample)
    assert {len(other) for other in left} == {4}


def test_extrapolation_and_difference():
    """2 D(d) − D(d/2), with the errors of independent ensembles and of the shared reference."""
    rng = np.random.default_rng(3)
    other, wide, narrow = (
        Compared(rng.random(2), rng.random((5, 2)), rng.random((7, 2))) for _ in range(3)
    )
    limit = combined((2.0, wide), (-1.0, narrow))
    assert limit.value == pytest.approx(2 * wide.values[1] - narrow.values[1])
    gap = combined((1.0, other), (-2.0, wide), (1.0, narrow))
    assert gap.value == pytest.approx(other.values[1] - limit.value)
    shared = other.references - 2 * wide.references + narrow.references
    variance = 6 * np.var(shared[:, 1]) + 4 * (
        np.var(other.limits[:, 1]) + 4 * np.var(wide.limits[:, 1]) + np.var(narrow.limits[:, 1])
    )
    assert gap.stderr == pytest.approx(np.sqrt(variance))
