"""Slopes, root mean squares and shares beside other ways to compute them."""

import numpy as np
import pytest
from scipy import stats

from bnmc import Estimate
from bnmc.experiments import statistics


def test_slope_is_weighted_least_squares():
    rng = np.random.default_rng(0)
    x, errors = np.array([1.0, 3.0, 10.0, 50.0]), np.array([0.02, 0.01, 0.05, 0.03])
    y = 2.0 * x**-0.5 * np.exp(errors * rng.standard_normal(4))
    estimates = [Estimate(v, v * e, (0.0, 9.0), 9, "x") for v, e in zip(y, errors, strict=True)]
    estimate = statistics.slope(x, estimates)
    design = np.stack([np.ones(4), np.log(x)], axis=1) / errors[:, None]
    covariance = np.linalg.inv(design.T @ design)
    expected = covariance @ design.T @ (np.log(y) / errors)
    assert estimate.value == pytest.approx(expected[1], rel=1e-12)
    assert estimate.stderr == pytest.approx(covariance[1, 1] ** 0.5, rel=1e-12)
    assert estimate.ci[1] - estimate.ci[0] == pytest.approx(
        2 * 1.959964 * estimate.stderr, rel=1e-6
    )


def test_rms():
    estimate = statistics.rms([3.0, 4.0, 5.0])
    assert estimate.value == pytest.approx((50 / 3) ** 0.5)
    mean = Estimate.from_samples([9.0, 16.0, 25.0])
    assert estimate.stderr == pytest.approx(mean.stderr / (2 * estimate.value))
    assert estimate.ci == (0.0, pytest.approx(mean.ci[1] ** 0.5))
    assert statistics.rms([0.0, 0.0]).stderr == 0.0


@pytest.mark.parametrize(
    ("value", "low", "high", "text"),
    [
        (0.123456, 0.1, 0.2, "0.123 [0.1, 0.2]"),
        (0.123456, 0.12345, 0.12346, "0.123456 [0.12345, 0.12346]"),
        (2.0, 2.0, 2.0, "2 [2, 2]"),
        (0.0, 0.0, 0.05, "0 [0, 0.05]"),
    ],
)
def test_intervals_in_words(value, low, high, text):
    assert statistics.interval(Estimate(value, 0.0, (low, high), 3, "x")) == text


def test_shares_have_exact_intervals():
    for hits in (0, 3, 20):
        estimate = statistics.proportion(np.arange(20) < hits)
        exact = stats.binomtest(hits, 20).proportion_ci(method="exact")
        assert estimate.value == hits / 20
        np.testing.assert_allclose(estimate.ci, exact, rtol=1e-9)


@pytest.mark.parametrize("networks", [2, 3, 20])
def test_bands_are_students_intervals(networks):
    """Of independent networks, at each place of the samples."""
    samples = np.random.default_rng(1).normal(3.0, 0.5, (networks, 4, 2))
    estimate = statistics.banded(samples)
    assert estimate.shape == (4, 2, 3)
    np.testing.assert_allclose(estimate[..., 0], samples.mean(axis=0), rtol=1e-14)
    low, high = stats.t.interval(
        0.95, networks - 1, samples.mean(axis=0), stats.sem(samples, axis=0)
    )
    np.testing.assert_allclose(estimate[..., 1], low, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(estimate[..., 2], high, rtol=1e-9)
    cell = statistics.mean_of_band(estimate[1, 0], networks)
    assert cell.value == estimate[1, 0, 0]
    assert cell.stderr == pytest.approx(stats.sem(samples[:, 1, 0]), rel=1e-9)
    assert (cell.ci, cell.n, cell.level) == (tuple(estimate[1, 0, 1:]), networks, 0.95)


def test_levels_of_slopes_and_root_mean_squares():
    y = [Estimate(v, 0.02 * v, (0.0, 9.0), 9, "x") for v in (2.0, 1.1, 0.6)]
    estimate = statistics.slope([1.0, 4.0, 16.0], y, level=0.8)
    half = stats.norm.isf(0.1) * estimate.stderr
    assert estimate.ci == pytest.approx((estimate.value - half, estimate.value + half), rel=1e-9)
    samples = np.array([3.0, 4.0, 5.0, 4.5])
    low, high = stats.t.interval(0.8, 3, (samples**2).mean(), stats.sem(samples**2))
    assert statistics.rms(samples, level=0.8).ci == pytest.approx((low**0.5, high**0.5), rel=1e-9)


def test_a_band_in_words():
    assert statistics.short_interval(np.array([0.123456, 0.1, 2.0])) == "0.123 [0.1, 2]"
    assert statistics.short_interval(np.full(3, np.nan)) == "undefined"
    assert statistics.overlap_note(np.full(3, np.nan), np.array([1.0, 0.0, 2.0])) == ""


@pytest.mark.parametrize(
    ("low", "high", "overlaps"),
    [
        (-1.0, np.nextafter(1.0, 0.0), False), (-1.0, 1.0, True), (1.2, 1.8, True),
        (0.0, 3.0, True), (2.0, 4.0, True), (np.nextafter(2.0, 3.0), 4.0, False),
    ],
)  # fmt: skip
def test_intervals_with_a_common_point_overlap(low, high, overlaps):
    """The ends belong to an interval, here [1, 2] and one beside it, whichever comes first."""
    band, other = np.array([1.5, 1.0, 2.0]), np.array([(low + high) / 2, low, high])
    for pair in ((band, other), (other, band)):
        assert ("undecided" in statistics.overlap_note(*pair)) is overlaps
