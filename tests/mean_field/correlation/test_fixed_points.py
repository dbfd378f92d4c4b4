"""Fixed points of the variance: intervals of their search, and factors per layer that are 1."""

import math

import numpy as np
import pytest
from scipy.integrate import quad

import bnmc
from bnmc.chain.activations import Activation
from bnmc.mean_field import CorrelationMap
from bnmc.mean_field.correlation.fixed_points import (
    attractor,
    correlation_points,
    gradient_at_zero,
    variance_points,
    variance_roots,
)
from bnmc.mean_field.correlation.layer import LevelMap, pair_function, pair_layer
from bnmc.mean_field.duals.duals import dual


def crossing(*points):
    """A function of the variance whose roots are powers of ten."""
    return lambda q: math.prod(math.log10(q) - point for point in points)


@pytest.mark.parametrize(
    ("points", "smallest"),
    [((1 / 16, 3 / 16), 1e-12), ((1 / 16, 3 / 16), 1e-3), ((-12 + 1 / 16, 12 - 1 / 16), 1e-12)],
)
def test_all_intervals_are_searched(points, smallest):
    """Eight per factor of ten: two that are neighbours, and the first and the last one."""
    result = variance_roots(crossing(*points), smallest)
    assert result == pytest.approx([10**point for point in points], rel=1e-12)


def test_a_variance_beyond_which_the_moment_is_infinite_is_no_fixed_point():
    """E σ² of σ = exp(x²/4) / (1 + x²) is finite up to a variance of 1 alone."""
    chain = CorrelationMap(lambda x: np.exp(0.25 * x * x) / (1.0 + x * x), weight_variance=0.3)
    (point,) = chain.variance_fixed_points()
    q = point.variance

    def integrand(x):
        return math.exp(0.5 * x * x * (1.0 - 1.0 / q)) / ((1.0 + x * x) ** 2)

    moment = quad(integrand, -math.inf, math.inf)[0] / math.sqrt(2.0 * math.pi * q)
    assert q == pytest.approx(0.3 * moment, rel=1e-7)


BENT = Activation(lambda x: x + max(x, 0.0) + x * x, kinks=(0.0,))
KNOWN = Activation(lambda x: x + max(x, 0.0), derivative=lambda x: 2.0 if x > 0.0 else 1.0)


@pytest.mark.parametrize("function", [BENT, KNOWN])
def test_the_gradient_at_zero_has_the_slopes_on_both_sides(function):
    limit, error = gradient_at_zero(dual(function))
    assert abs(limit / 2.5 - 1.0) <= error < 1e-4


# The distance of float64 numbers just below 1; above 1 it is twice that.
ULP = 2.0**-53


@pytest.mark.parametrize(
    ("rate", "limit"),
    [
        (1.0 - 17 * ULP, 0.0),
        (1.0 - 16 * ULP, 3.0),
        (1.0, 3.0),
        (1.0 + 16 * ULP, 3.0),
        (1.0 + 18 * ULP, math.inf),
    ],
)
def test_a_factor_per_layer_within_rounding_is_one(rate, limit):
    """Eight of the distances after 1 are rounding, on both sides and with the ends.

    Then every variance is a fixed point, and a network keeps the one that it starts with.
    """
    layer = pair_layer("linear", "none", "norm-activation", weight_variance=rate)
    assert layer.scale_rate == rate
    expected = [] if limit == 3.0 else [0.0]
    assert [point.variance for point in variance_points(layer)] == expected
    assert attractor(layer, 3.0) == limit
    assert CorrelationMap("linear", weight_variance=rate).phase().name == "critical"


@pytest.mark.parametrize("steps", [15, 16])
def test_a_bias_makes_the_variance_diverge_if_the_factor_is_one(steps):
    layer = pair_layer(
        "linear", "none", "norm-activation", weight_variance=1.0 - steps * ULP, bias_variance=0.1
    )
    assert attractor(layer, 3.0) == math.inf


# --- The correlation map at one level, and what errors of the moments of pairs do to it


class Wrong:
    """Moments of pairs that are wrong by a known share of V(1)."""

    def __init__(self, right, share, square):
        self.right, self.error, self.shift = right, share, share * square

    def value(self, correlation):
        return self.right.value(correlation)[0] + self.shift, self.error

    def slope(self, correlation):
        return self.right.slope(correlation)[0] + self.shift, self.error


@pytest.mark.parametrize(
    "options", [{"norm": "none", "bias_variance": 0.5}, {"norm": "rms", "gain": 3.0}]
)
def test_errors_are_those_that_wrong_moments_make(options):
    layer = CorrelationMap.of(bnmc.Chain(50, 2, "tanh", **options)).layer
    level = layer.level(0.7)
    pairs = pair_function(layer.sigma, level.inner)
    right = LevelMap(layer, level, pairs)
    wrong = LevelMap(layer, level, Wrong(pairs, 1e-3, level.inner.square))
    at = np.array([-0.3, 0.2])
    for name in ("value", "slope"):
        result, error = getattr(wrong, name)(at)
        made = np.abs(result - getattr(right, name)(at)[0]).max()
        assert error - level.error == pytest.approx(made, rel=1e-9)
        assert made > 2e-4


@pytest.mark.parametrize("options", [{"skip": 0.6}, {"skip": 0.6, "bias_variance": 0.3}, {}])
def test_shares_are_the_coefficients_of_the_map(options):
    """Φ(c) = Σ β_k c^k, with the skip connection in β_1 and the biases in β_0."""
    layer = CorrelationMap.of(bnmc.Chain(50, 2, "silu", norm="rms", **options)).layer
    level = layer.level(0.7)
    at = LevelMap(layer, level, pair_function(layer.sigma, level.inner))
    shares, error = at.shares()
    c = np.array([-0.8, -0.3, 0.0, 0.4, 0.9])
    result = np.polynomial.polynomial.polyval(c, shares)
    np.testing.assert_allclose(result, at.value(c)[0], rtol=0.0, atol=1e-12 + error)


class Geometric:
    """Some terms of Φ(c) = (1 − q)/(1 − qc), so that ψ(c) = q/(1 − qc)."""

    is_odd = False

    def __init__(self, q, terms):
        self.q, self.terms = q, terms

    def image(self, correlation):
        return (1 - self.q) / (1 - self.q * correlation)

    def slope_at(self, correlation):
        return (1 - self.q) * self.q / (1 - self.q * correlation) ** 2

    def shares(self):
        return (1 - self.q) * self.q ** np.arange(self.terms), 0.0


@pytest.mark.parametrize("terms", [3, 5])
@pytest.mark.parametrize("q", [0.55, 0.9])
def test_terms_that_are_left_out_are_bounded(q, terms):
    """The correlation is (1 − q)/q, and B_j = q^(j+1).

    With q = 0.55 the sum of the B_j that are left out is the smaller bound, with q = 0.9 that by a
    geometric series with the last B_j.
    """
    gradient = q / (1 - q)
    inner, _ = correlation_points(Geometric(q, terms), 1e-9)
    assert abs(inner.correlation - (1 - q) / q) <= inner.error
    tails = q ** np.arange(1, terms + 1)

    def known(c):
        return np.polynomial.polynomial.polyval(c, tails)

    low, high = inner.correlation - inner.error, inner.correlation + inner.error
    left_out = gradient - tails.sum(), tails[-1] / (1 - low)
    assert (left_out[0] < left_out[1]) == (q == 0.55)
    assert known(low) + min(left_out) * low**terms == pytest.approx(1, abs=1e-12)
    assert known(high) == pytest.approx(1, abs=1e-12)


def clipped(x):
    return max(-1.0, min(1.0, x))


@pytest.mark.parametrize(
    ("activation", "weight_variance", "slope"), [(clipped, 1.0, 1.0), ("gelu", 2.0, 0.5)]
)
def test_rounding_makes_no_fixed_points(activation, weight_variance, slope):
    """Small inputs of the first map, and large ones of the second, keep their variance to rounding.

    Their growth had 51 and 11 roots; the only fixed point is 0.
    """
    (point,) = CorrelationMap(activation, weight_variance=weight_variance).variance_fixed_points()
    assert point.variance == 0.0
    assert point.slope == pytest.approx(slope, abs=1e-9)
