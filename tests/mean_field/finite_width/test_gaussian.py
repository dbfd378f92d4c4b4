"""The mean norm of a Gaussian vector, against closed forms."""

import math

import numpy as np
import pytest

from bnmc.mean_field.finite_width.gaussian import mean_norm, norm_quantile


@pytest.mark.parametrize("k", [1, 2, 5, 200])
def test_chi(k):
    expected = math.sqrt(2) * math.exp(math.lgamma((k + 1) / 2) - math.lgamma(k / 2))
    assert mean_norm([(1.0, 1), (1.0, k - 1)]) == pytest.approx(expected, rel=1e-12)
    assert mean_norm([(1e-8, 1), (1e-8, k - 1)]) == pytest.approx(1e-4 * expected, rel=1e-12)


def test_with_a_mean():
    # E|z| of z ~ N(m, 1).
    m = 0.7
    expected = math.sqrt(2 / math.pi) * math.exp(-m * m / 2) + m * math.erf(m / math.sqrt(2))
    assert mean_norm([(1.0, 1)], m) == pytest.approx(expected, rel=1e-12)
    assert mean_norm([(-1e-20, 1)], m) == pytest.approx(m, rel=1e-12)
    # Rice's law with noncentrality only in the first of two components.
    from scipy.stats import rice

    assert mean_norm([(4.0, 1), (4.0, 1)], 3.0) == pytest.approx(rice(1.5, scale=2).mean())


def test_zero():
    assert mean_norm([(0.0, 1)]) == 0.0
    assert norm_quantile(np.zeros(3), 0.5) == 0.0


@pytest.mark.parametrize("k", [1, 2, 15, 30, 31, 500])
@pytest.mark.parametrize("probability", [0.001, 0.05, 0.5, 0.95, 0.999])
def test_quantiles_of_chi(k, probability):
    from scipy.stats import chi

    expected = 1e3 * chi(k).ppf(probability)
    assert norm_quantile(np.full(k, 1e6), probability) == pytest.approx(expected, rel=1e-5)


def test_quantile_of_two_scales():
    """The sum of two exponential variables of means 2 and 1."""
    q = norm_quantile(np.array([1.0, 1.0, 0.5, 0.5, -1e-20, 0.0]), 0.9) ** 2
    assert 1 - 2 * math.exp(-q / 2) + math.exp(-q) == pytest.approx(0.9, rel=1e-8)
    # One large variance beside many small ones: their sum is nearly constant.
    many = np.concatenate([[1.0], np.full(20_000, 5e-5)])
    expected = math.sqrt(1.0 + 3.841458820694124)
    assert norm_quantile(many, 0.95) == pytest.approx(expected, rel=1e-3)
