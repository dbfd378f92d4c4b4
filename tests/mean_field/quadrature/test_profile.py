"""The profile of an activation: kinks, jumps, singular points, slopes, narrow features."""

import math

import numpy as np
import pytest

from bnmc import Activation
from bnmc.mean_field.quadrature.profile import profile


def smooth_rise(x):
    """A function with a continuous derivative."""
    return max(x - 0.3, 0.0) ** 2


@pytest.mark.parametrize("kinks", [(), (0.3,), (-6.0, -5.0, -4.9, 0.3, 4.9, 5.0, 6.0)])
def test_corners_are_those_found_and_those_declared_inside_the_interval(kinks):
    """The ends of the interval are none: nothing lies beyond them."""
    sigma = profile(Activation(smooth_rise, kinks=kinks), 5.0)
    expected = sorted({0.3, *(kink for kink in kinks if abs(kink) < 5.0)})
    np.testing.assert_allclose(sigma.corners, expected, rtol=1e-9)
    assert sigma.steep.size == 0
    assert sigma.singular == []


def test_a_jump_a_corner_and_a_root_are_told_apart():
    def mixed(x):
        return math.sqrt(abs(x - 1.7)) if x > 1.0 else max(x + 0.6, 0.0)

    sigma = profile(Activation(mixed), 5.0)
    assert sorted({*sigma.steep.round(6).tolist()}) == [1.0, 1.7]
    assert sigma.ends(0.0).round(6).tolist() == [-0.6, 1.0, 1.7]
    x = np.array([-2.0, 0.3, 3.0])
    np.testing.assert_allclose(sigma.slope(x), [0.0, 1.0, 0.5 / np.sqrt(1.3)], atol=1e-9)


def test_a_declared_jump_beyond_the_interval_is_one():
    sigma = profile(Activation(lambda x: x if x < 20.0 else x + 1.0, kinks=(20.0,)), 16.0)
    assert sigma.steep.tolist() == [20.0]
    assert sigma.corners.size == 0


def test_a_power_is_singular_but_its_square_integrable():
    (spot,) = profile(Activation(lambda x: abs(x - 0.3) ** 0.75), 5.0).singular
    assert spot.point == pytest.approx(0.3, abs=1e-9)
    # ∫ (3/4)² |x|^(−1/2) from 0 to h is (9/8) √h
    reach = np.sqrt(0.3 - spot.low) + np.sqrt(spot.high - 0.3)
    assert spot.energy == pytest.approx(9 / 8 * reach, abs=2 * spot.error)


@pytest.mark.parametrize("width", [0.07, 0.003, 1e-4])
def test_panels_end_around_narrow_bumps_only(width):
    def bumps(x):
        return (
            np.tanh(x) + np.exp(-(((x - 0.7) / width) ** 2)) + np.exp(-(((x + 2.9) / width) ** 2))
        )

    sigma = profile(Activation(bumps), 16.0)
    ends = sigma.ends(0.5)
    assert sigma.centres(0.5).size <= 4
    for centre in (-2.9, 0.7):
        assert (np.abs(ends - centre) < 4 * width).sum() >= 3
    assert (np.minimum(np.abs(ends - 0.7), np.abs(ends + 2.9)) < 1.5).all()


def test_a_named_activation_is_not_searched():
    relu = profile(Activation.named("relu"), 16.0)
    assert relu.ends(1.0).tolist() == relu.centres(1.0).tolist() == [0.0]
    assert profile(Activation.named("tanh"), 16.0).ends(1.0).size == 0
    assert relu is profile(Activation.named("relu"), 16.0)
