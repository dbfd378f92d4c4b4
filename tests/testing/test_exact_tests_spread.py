"""The tests of the spread of χ² variables: Chernoff's bound against quadrature and known tails."""

import math

import numpy as np
import pytest
from scipy import integrate, optimize, stats

from bnmc.testing.exact_tests import scores, spread_claim

TAIL = 1e-5


def polynomial(q, m):
    """Laguerre's polynomial of degree 2 for χ² with m degrees of freedom, orthonormal."""
    return (q**2 - 2 * (m + 2) * q + m * (m + 2)) / math.sqrt(8 * m * (m + 2))


def expectation(function, m):
    """E f(g(q)) with q moved into its quantiles, by SciPy's quadrature over q = r²."""
    low, high = stats.chi2.ppf(TAIL, m), stats.chi2.isf(TAIL, m)

    def integrand(r):
        return 2 * r * stats.chi2.pdf(r**2, m) * function(polynomial(r**2, m))

    middle = math.sqrt(m)
    inner = sum(
        integrate.quad(integrand, *ends, epsabs=0, epsrel=1e-12, limit=200)[0]
        for ends in ((math.sqrt(low), middle), (middle, math.sqrt(high)))
    )
    return inner + TAIL * (function(polynomial(low, m)) + function(polynomial(high, m)))


@pytest.mark.parametrize("m", [1, 2, 5, 60])
def test_scores_are_an_orthonormal_polynomial_between_the_quantiles(m):
    low, high = stats.chi2.ppf([0.1, 0.9], m)
    q = np.linspace(low, high, 7)
    np.testing.assert_allclose(scores(q, m), polynomial(q, m), rtol=1e-12, atol=1e-12)
    ends = stats.chi2.ppf(TAIL, m), stats.chi2.isf(TAIL, m)
    outside = scores(np.array([0.0, 1e30]), m)
    np.testing.assert_allclose(outside, polynomial(np.array(ends), m), rtol=1e-9)
    # E q^k = m (m + 2) … (m + 2k − 2), in integers: E g = 0 and E g² = 1.
    moments = [math.prod(range(m, m + 2 * k, 2)) for k in range(5)]
    coefficients = np.array([m * (m + 2), -2 * (m + 2), 1], dtype=object)
    square = np.convolve(coefficients, coefficients)
    assert coefficients @ np.array(moments[:3], dtype=object) == 0
    assert square @ np.array(moments, dtype=object) == 8 * m * (m + 2)


@pytest.mark.parametrize("m", [1, 3, 40])
@pytest.mark.parametrize("factor", [0.6, 1.2])
def test_p_values_are_chernoffs_bound(m, factor):
    values = m + factor * (np.random.default_rng(m).chisquare(m, 500) - m)
    claim = spread_claim("", [(values[:100], m), (values[100:], m)])
    total = float(scores(values, m).sum())
    sign = math.copysign(1.0, total)
    assert sign == (1.0 if factor > 1.0 else -1.0)

    def bound(log_t):
        t = math.exp(log_t)
        cumulant = math.log(expectation(lambda g: math.exp(sign * t * g), m))
        return 500 * cumulant - t * abs(total)

    best = optimize.minimize_scalar(bound, bounds=(-8.0, 1.0), method="bounded").fun
    assert claim.statistic == pytest.approx(total / 500, rel=1e-12)
    # The grid of t has steps of 11 %: at most 1 % of the exponent, which is nearly quadratic in t.
    assert 2 * math.exp(best) * (1 - 1e-6) <= claim.p_value <= 2 * math.exp(0.99 * best)


def test_the_bound_is_close_to_the_tail_of_many():
    """The p-value of z standard errors is above the normal tail, by about z√(2π) and no more."""
    rng = np.random.default_rng(0)
    for m, z in ((1, 5.0), (4, -6.0), (30, 5.5)):
        values = rng.chisquare(m, 10**6)
        g = scores(values, m)
        # Replace values by larger or smaller ones, until the mean is z standard errors off.
        order = np.argsort(g)
        worst = stats.chi2.isf(1e-3, m) if z > 0 else float(m + 2)
        step = float(scores(np.array([worst]), m)[0])
        places = order if z > 0 else order[::-1]
        missing = z * 1e3 - g.sum()
        count = int(np.searchsorted(np.abs(np.cumsum(step - g[places])), abs(missing)))
        values[places[:count]] = worst
        claim = spread_claim("", [(values, m)])
        exact_z = claim.statistic * 1e3
        assert exact_z == pytest.approx(z, abs=0.1)
        tail = 2 * stats.norm.sf(abs(exact_z))
        assert tail < claim.p_value < 2 * abs(z) * math.sqrt(2 * math.pi) * tail


def test_one_value_is_bounded_by_its_law():
    """P(g ≥ g(q)) is known for one value; no p-value may be less."""
    for m in (1, 6):
        for q in stats.chi2.isf([0.3, 0.05, 1e-3, 2e-5], m):
            g = polynomial(q, m)
            other = 2 * (m + 2) - q  # the polynomial is symmetric about m + 2
            above = stats.chi2.sf(max(q, other), m) + stats.chi2.cdf(min(q, other), m)
            claim = spread_claim("", [(np.array([q]), m)])
            assert claim.statistic == pytest.approx(g, rel=1e-9)
            assert claim.p_value >= 2 * min(above, 1 - above)


def test_no_values_are_no_evidence():
    assert spread_claim("", [(np.empty(0), 3)]).p_value == 1.0
