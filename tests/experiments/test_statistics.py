"""Slopes, root mean squares and shares beside other ways to compute them."""

import numpy as np
import pytest

from bnmc import Estimate
from bnmc.experiments.statistics import (
    banded,
    interval,
    mean_of_band,
    overlap_note,
    proportion,
    rms,
    short_interval,
    slope,
)


class TestStatistics:
    def test_slope_is_weighted_least_squares(self):
        rng = np.random.default_rng(0)
        x, errors = np.array([1.0, 3.0, 10.0, 50.0]), np.array([0.02, 0.01, 0.05, 0.03])
        y = 2.0 * x**-0.5 * np.exp(errors * rng.standard_normal(4))
        estimates = [Estimate(v, v * e, (0.0, 9.0), 9, "x") for v, e in zip(y, errors, strict=True)]
        found = slope(x, estimates)
        design = np.stack([np.ones(4), np.log(x)], axis=1) / errors[:, None]
        covariance = np.linalg.inv(design.T @ design)
        expected = covariance @ design.T @ (np.log(y) / errors)
        assert found.value == pytest.approx(expected[1], rel=1e-12)
        assert found.stderr == pytest.approx(covariance[1, 1] ** 0.5, rel=1e-12)
        assert found.ci[1] - found.ci[0] == pytest.approx(2 * 1.959964 * found.stderr, rel=1e-6)

    def test_rms(self):
        found = rms([3.0, 4.0, 5.0])
        assert found.value == pytest.approx((50 / 3) ** 0.5)
        mean = Estimate.from_samples([9.0, 16.0, 25.0])
        assert found.stderr == pytest.approx(mean.stderr / (2 * found.value))
        assert found.ci == (0.0, pytest.approx(mean.ci[1] ** 0.5))
        assert rms([0.0, 0.0]).stderr == 0.0

    @pytest.mark.parametrize(
        ("value", "low", "high", "text"),
        [
            (0.123456, 0.1, 0.2, "0.123 [0.1, 0.2]"),
            (0.123456, 0.12345, 0.12346, "0.123456 [0.12345, 0.12346]"),
            (2.0, 2.0, 2.0, "2 [2, 2]"),
            (0.0, 0.0, 0.05, "0 [0, 0.05]"),
        ],
    )
    def test_intervals_in_words(self, value, low, high, text):
        assert interval(Estimate(value, 0.0, (low, high), 3, "x")) == text

    def test_shares_have_exact_intervals(self):
        from scipy.stats import binomtest

        for hits in (0, 3, 20):
            found = proportion(np.arange(20) < hits)
            exact = binomtest(hits, 20).proportion_ci(method="exact")
            assert found.value == hits / 20
            np.testing.assert_allclose(found.ci, exact, rtol=1e-9)

    @pytest.mark.parametrize("networks", [2, 3, 20])
    def test_bands_are_students_intervals(self, networks):
        """Of independent networks, at each place of the samples."""
        from scipy import stats

        samples = np.random.default_rng(1).normal(3.0, 0.5, (networks, 4, 2))
        found = banded(samples)
        assert found.shape == (4, 2, 3)
        np.testing.assert_allclose(found[..., 0], samples.mean(axis=0), rtol=1e-14)
        low, high = stats.t.interval(
            0.95, networks - 1, samples.mean(axis=0), stats.sem(samples, axis=0)
        )
        np.testing.assert_allclose(found[..., 1], low, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(found[..., 2], high, rtol=1e-9)
        one = mean_of_band(found[1, 0], networks)
        assert one.value == found[1, 0, 0]
        assert one.stderr == pytest.approx(stats.sem(samples[:, 1, 0]), rel=1e-9)
        assert (one.ci, one.n, one.level) == (tuple(found[1, 0, 1:]), networks, 0.95)

    def test_levels_of_slopes_and_root_mean_squares(self):
        from scipy import stats

        y = [Estimate(v, 0.02 * v, (0.0, 9.0), 9, "x") for v in (2.0, 1.1, 0.6)]
        found = slope([1.0, 4.0, 16.0], y, level=0.8)
        half = stats.norm.isf(0.1) * found.stderr
        assert found.ci == pytest.approx((found.value - half, found.value + half), rel=1e-9)
        samples = np.array([3.0, 4.0, 5.0, 4.5])
        low, high = stats.t.interval(0.8, 3, (samples**2).mean(), stats.sem(samples**2))
        assert rms(samples, level=0.8).ci == pytest.approx((low**0.5, high**0.5), rel=1e-9)

    def test_a_band_in_words(self):
        assert short_interval(np.array([0.123456, 0.1, 2.0])) == "0.123 [0.1, 2]"
        assert short_interval(np.full(3, np.nan)) == "undefined"
        assert overlap_note(np.full(3, np.nan), np.array([1.0, 0.0, 2.0])) == ""

    @pytest.mark.parametrize(
        ("low", "high", "overlaps"),
        [
            (-1.0, np.nextafter(1.0, 0.0), False), (-1.0, 1.0, True), (1.2, 1.8, True),
            (0.0, 3.0, True), (2.0, 4.0, True), (np.nextafter(2.0, 3.0), 4.0, False),
        ],
    )  # fmt: skip
    def test_intervals_with_a_common_point_overlap(self, low, high, overlaps):
        """The ends belong to an interval, here [1, 2] and one beside it, whichever comes first."""
        one, other = np.array([1.5, 1.0, 2.0]), np.array([(low + high) / 2, low, high])
        for pair in ((one, other), (other, one)):
            assert ("undecided" in overlap_note(*pair)) is overlaps
