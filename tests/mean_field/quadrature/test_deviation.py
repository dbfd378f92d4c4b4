"""The range of integration, where the activation is not finite everywhere."""

import math

import numpy as np
import pytest
from scipy import integrate, special

from bnmc.mean_field.quadrature.deviation import range_of
from bnmc.mean_field.quadrature.sphere import reach


def growing_until(hole):
    """exp(x²/5) where x > 0, which decays late beside the normal density; NaN below −hole."""

    def function(x):
        grown = np.where(x > 0.0, np.exp(np.minimum(0.2 * x * x, 700.0)), 1.0)
        return np.where(x < -hole, np.nan, grown)

    return function


def test_the_range_ends_where_the_other_side_is_no_longer_finite():
    """The range is symmetric, so it ends at the hole on the left; what the right has beyond it is
    not bounded."""
    whole = range_of(growing_until(math.inf), math.inf)
    assert whole.limit > reach(math.inf) + 5.0
    assert whole.tail < 1e-20
    hole = 0.5 * (reach(math.inf) + whole.limit)
    cut = range_of(growing_until(hole), math.inf)
    assert hole - 0.125 <= cut.limit <= hole  # samples are 1/8 apart
    assert cut.tail == math.inf


@pytest.mark.parametrize("beyond", [1.0, 10.0])
def test_a_hole_beyond_the_range_does_not_count(beyond):
    whole = range_of(growing_until(math.inf), math.inf)
    assert range_of(growing_until(whole.limit + beyond), math.inf) == whole


@pytest.mark.parametrize("dimension", [600, 3000, 10**7, math.inf])
def test_the_tail_bounds_what_lies_beyond_the_range(dimension):
    """E exp(8x) has its mass near x = 8, so the range must reach beyond the cut of the density."""
    result = range_of(lambda x: np.exp(4.0 * x), dimension)
    assert reach(dimension) < result.limit < math.sqrt(dimension)

    def integrand(x):
        if dimension == math.inf:
            logarithm = -0.5 * x * x - 0.5 * math.log(2.0 * math.pi)
        else:
            logarithm = 0.5 * (dimension - 3) * math.log1p(-x * x / dimension)
            logarithm -= special.betaln(0.5, 0.5 * (dimension - 1)) + 0.5 * math.log(dimension)
        return math.exp(8.0 * x + logarithm) * (1.0 + x * x) ** 2

    far = min(result.limit + 10.0, math.sqrt(dimension))
    beyond = integrate.quad(integrand, result.limit, far, epsabs=0.0)[0]
    whole = integrate.quad(integrand, -20.0, result.limit, points=[8.0], epsabs=0.0)[0]
    assert beyond <= result.tail
    # The integrand beyond is at most exp(−70) of its maximum, and falls.
    assert result.tail < 1e-29 * whole
