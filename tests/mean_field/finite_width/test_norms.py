"""The mean norm of a Gaussian vector, against closed forms."""

import math

import pytest

from bnmc.mean_field.finite_width.norms import mean_norm


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
