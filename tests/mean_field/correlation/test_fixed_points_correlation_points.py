"""The correlation map at one level, and what errors of the moments of pairs do to it."""

import numpy as np
import pytest

import bnmc
from bnmc.mean_field import CorrelationMap
from bnmc.mean_field.correlation.fixed_points import correlation_points
from bnmc.mean_field.correlation.layer import LevelMap, pair_function


class Wrong:
    """Moments of pairs that are wrong by a known share of V(1)."""

    def __init__(self, right, share, one):
        self.right, self.share, self.one = right, share, one

    def value(self, correlation):
        return self.right.value(correlation)[0] + self.share * self.one, self.share

    def slope(self, correlation):
        return self.right.slope(correlation)[0] + self.share * self.one, self.share


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
        found, error = getattr(wrong, name)(at)
        made = np.abs(found - getattr(right, name)(at)[0]).max()
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
    found = np.polynomial.polynomial.polyval(c, shares)
    np.testing.assert_allclose(found, at.value(c)[0], rtol=0.0, atol=1e-12 + error)


class Geometric:
    """Some terms of Φ(c) = (1 − q)/(1 − qc), so that ψ(c) = q/(1 − qc)."""

    is_odd = False

    def __init__(self, q, terms):
        self.q, self.terms, self.constant = q, terms, 1 - q
        self.gradient = q / (1 - q)

    def slope(self, correlation):
        return (1 - self.q) * self.q / (1 - self.q * correlation) ** 2, 0.0

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
