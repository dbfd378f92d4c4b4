"""The exact tests of a step: p-values against SciPy and against repetitions."""

import math
import re
from pathlib import Path

import numpy as np
import pytest
from oracle import FALSE_ALARM
from scipy import integrate, optimize, stats

import bnmc
from bnmc._claims.layer import Layer
from bnmc.testing.calls_on_state import CallsOnState
from bnmc.testing.exact_tests import (
    _normal,
    exact_claims,
    largest_claim,
    scores,
    spread_claim,
    uniform_claim,
)


def test_each_p_value_is_uniform_or_above():
    """From 600 repetitions on one fixed state, by Massart's inequality; few calls, where a degree
    of freedom counts."""
    chain = bnmc.Chain(4, 4, "tanh")
    rng = np.random.default_rng(5)
    layer = Layer.of(chain, rng.standard_normal((1, 4, 4)), 0)
    p_values = {}
    for _ in range(600):
        state = CallsOnState("fixed", layer, np.zeros_like(layer.gram[0]), np.random.default_rng(0))
        for _ in range(2):
            weights = rng.standard_normal((2, 4, 4)) / np.sqrt(4)
            state.add(weights @ layer.a[0])
        for claim in exact_claims([state]):
            p_values.setdefault(claim.claim, []).append(claim.p_value)
    page = Path(__file__).parents[2] / "docs" / "testing.rst"
    text = " ".join(page.read_text(encoding="utf-8").split()) if page.exists() else None
    assert len(p_values) >= 10
    for name in p_values:  # the page explains each
        explained = re.sub(", state .*|, squared correlations", "", name)
        assert text is None or re.sub(r"r \+ \d+", "r + k", explained) in text
    for name, values in p_values.items():
        p = np.sort(values)
        allowance = np.sqrt(np.log(len(p_values) / FALSE_ALARM) / (2 * p.size))
        assert (np.arange(1, p.size + 1) / p.size - p).max() <= allowance, name


@pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
def test_distances_from_the_uniform_law(power):
    values = np.random.default_rng(1).uniform(size=300) ** power
    claim = uniform_claim("", [values[:100], values[100:]])
    exact = stats.kstest(values, "uniform", method="exact")
    assert claim.statistic == pytest.approx(exact.statistic, rel=1e-12)
    assert exact.pvalue <= claim.p_value <= 2.0 * np.exp(-600 * exact.statistic**2) * (1 + 1e-9)


def test_numbers_that_are_too_even_have_probability_one():
    """The midpoints of 300 intervals are nearest to the uniform law: the bound exceeds 1."""
    claim = uniform_claim("", [(np.arange(300) + 0.5) / 300])
    assert claim.statistic == pytest.approx(0.5 / 300, rel=1e-9)
    assert claim.p_value == 1.0


@pytest.mark.parametrize("largest", [2.0, 3.2, 6.0])
def test_the_largest_of_normals(largest):
    values = np.append(np.zeros(99), -largest)
    below = (2 * stats.norm.cdf(largest) - 1) ** 100
    claim = largest_claim("", values)
    assert claim.p_value == pytest.approx(2 * min(below, 1 - below), rel=1e-6)
    assert (2 * stats.norm.cdf(claim.expected) - 1) ** 100 == pytest.approx(0.5, rel=1e-9)


def normals(calls=4, width=6, rank=5, seed=0):
    """A state of a given rank with normal rows, and what it has seen."""
    chain = bnmc.Chain(width, rank, "tanh", norm="none")
    rng = np.random.default_rng(seed)
    layer = Layer.of(chain, rng.standard_normal((1, width, rank)), 0)
    state = CallsOnState("fixed", layer, np.zeros_like(layer.gram[0]), np.random.default_rng(seed))
    weights = rng.standard_normal((calls, width, width)) / np.sqrt(width)
    state.add(weights @ layer.a[0])
    return state


def claims_of(states):
    return {claim.claim: claim for claim in exact_claims(states)}


def test_the_largest_correlation_of_rows_has_its_beta_law():
    states = [normals(seed=1), normals(calls=6, seed=2)]
    gram = sum(state.row_pairs.gram for state in states)
    scale = np.sqrt(np.diagonal(gram))
    r = np.abs(np.triu(gram / np.outer(scale, scale), 1)).max()
    columns = 5 * (4 + 6)
    claim = claims_of(states)["rows: largest correlation"]
    assert claim.statistic == pytest.approx(r, rel=1e-12)
    # The correlation coefficient of two vectors of 50 normals with known mean 0, two-sided.
    t = r * np.sqrt((columns - 1) / (1 - r**2))
    assert claim.p_value == pytest.approx(min(1.0, 15 * 2 * stats.t.sf(t, columns - 1)), rel=1e-9)


def test_all_pairs_of_rows_have_wisharts_law():
    """Regressions of each row on those before it: their explained sums of squares are χ²."""
    states = [normals(seed=3), normals(calls=6, seed=4)]
    gram = sum(state.row_pairs.gram for state in states)
    explained = sum(
        gram[row, :row] @ np.linalg.solve(gram[:row, :row], gram[:row, row]) for row in range(1, 6)
    )
    claim = claims_of(states)["rows: all pairs independent"]
    assert claim.statistic == pytest.approx(explained / 15, rel=1e-9)
    p = 2 * min(stats.chi2.sf(explained, 15), stats.chi2.cdf(explained, 15))
    assert claim.p_value == pytest.approx(p, rel=1e-9)
    few = [normals(calls=2, seed=3)]  # 10 columns of 6 rows
    assert "rows: all pairs independent" not in claims_of(few)


def test_the_largest_correlation_of_calls_has_its_beta_law():
    states = [normals(calls=6, seed=5), normals(calls=8, seed=6)]
    p = []
    for state in states:
        r, pairs = np.sqrt(state.call_pairs.largest), state.call_pairs.pairs
        p.append(pairs * 2 * stats.t.sf(r * np.sqrt(29 / (1 - r**2)), 29))  # 30 entries
    claim = claims_of(states)["calls: largest correlation"]
    assert claim.p_value == pytest.approx(min(1.0, 2 * min(p)), rel=1e-9)


def test_linearly_dependent_rows_are_impossible():
    state = normals(calls=20)
    state.row_pairs.gram[:, 1] = state.row_pairs.gram[:, 0]
    state.row_pairs.gram[1] = state.row_pairs.gram[0]
    state.row_pairs.gram[1, 1] = state.row_pairs.gram[0, 0] * (1 - 1e-9)
    claims = claims_of([state])
    assert claims["rows: all pairs independent"].p_value == 0.0
    assert claims["rows: largest correlation"].p_value < 1e-100


@pytest.mark.parametrize("part", ["", ", squared correlations"])
def test_products_of_rows_are_tested(part):
    """Neighbours with equal products, or with products of random sign that are too large."""
    states = [normals(calls=30, seed=7)]
    products = states[0].sequence.lags[1]
    products.total, products.square = 6.0 * np.sqrt(products.count), 2.0 * products.count
    claim = claims_of(states)["rows: neighbours independent" + part]
    count = products.count
    shown = products.total / products.length if not part else 2.0  # a correlation, a mean square
    assert claim.statistic == pytest.approx(shown, rel=1e-9)
    exact = 2 * stats.norm.sf(6.0) if not part else 2 * stats.chi2.sf(2.0 * count, count)
    assert claim.p_value == pytest.approx(exact, rel=1e-9)


def test_a_product_is_shown_per_number():
    """⟨A, B⟩ of ten numbers with |A|² = 4: its standard deviation is 2, and three are 6."""
    claim = _normal("", -6.0, 4.0, 10)
    assert (claim.statistic, claim.expected, claim.stderr) == (-0.6, 0.0, 0.2)
    assert claim.p_value == pytest.approx(2 * stats.norm.sf(3.0), rel=1e-12)
    none = _normal("", 0.0, 0.0, 0)
    assert (none.statistic, none.stderr, none.p_value) == (0.0, 0.0, 1.0)


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
