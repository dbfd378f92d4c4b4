"""The errors of a truncated power series: the largest that the left out terms can have."""

import numpy as np
import pytest

from bnmc.mean_field.correlation.gaussian_moments import Moments
from bnmc.mean_field.correlation.layer import PowerSeries

TERMS, REST = 5, 1e-3
SQUARES = 0.5 ** np.arange(TERMS)


def series(gradient):
    """Five terms; those left out sum to a thousandth.  `gradient` is that of all terms."""
    square = float(SQUARES.sum()) + REST
    inner = Moments(2.0, 0.0, 0.0, square, 0.0, 0.0, 0.0, gradient)
    return PowerSeries(SQUARES, REST, 0.0, inner), square


@pytest.mark.parametrize("rho", [0.3, 0.8, -0.8, 0.97])
def test_the_error_of_a_value_is_that_of_the_first_term_left_out(rho):
    terms, square = series(np.inf)
    error = terms.value(np.array([rho]))[1]
    assert error == pytest.approx(REST * abs(rho) ** TERMS / square, rel=1e-12)


@pytest.mark.parametrize("rho", [0.3, 0.8, -0.8, 0.97])
def test_the_error_of_a_slope_is_that_of_the_worst_exponent(rho):
    """k |ρ|^(k − 1) over all k from that of the first term left out, in units of V(1)."""
    terms, square = series(np.inf)
    error = terms.slope(np.array([rho]))[1]
    k = np.linspace(TERMS, 200.0, 200_001)
    assert error == pytest.approx(REST * (k * abs(rho) ** (k - 1.0)).max() / square, rel=1e-6)


@pytest.mark.parametrize("missing", [0.006, 0.01])
def test_a_known_slope_at_one_bounds_the_error(missing):
    """If V′(1) is known, so is the sum of the slopes left out; none falls slower than ρ^(K − 1)."""
    rho, slopes = 0.97, float(np.arange(TERMS) @ SQUARES)
    terms, square = series(0.5 * (slopes + missing))
    error = terms.slope(np.array([rho]))[1]
    assert error == pytest.approx(missing * rho ** (TERMS - 1) / square, rel=1e-9)
