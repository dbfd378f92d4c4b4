"""The exact tests of a step: p-values against SciPy and against repetitions."""

import numpy as np
import pytest
from oracle import FALSE_ALARM
from scipy import stats

import bnmc
from bnmc._claims.layer import Layer
from bnmc.testing.calls_on_state import CallsOnState
from bnmc.testing.exact_tests import _normal, exact_claims, largest_claim, uniform_claim


def test_each_p_value_is_uniform_or_above():
    """From 600 repetitions on one fixed state, by Massart's inequality; few calls, where a degree
    of freedom counts."""
    chain = bnmc.Chain(4, 4, "tanh")
    rng = np.random.default_rng(5)
    layer = Layer.of(chain, rng.standard_normal((1, 4, 4)), 0)
    found = {}
    for _ in range(600):
        state = CallsOnState("fixed", layer, 2.0**-52)
        for _ in range(2):
            weights = rng.standard_normal((2, 4, 4)) / np.sqrt(4)
            state.add(weights @ layer.a[0])
        for claim in exact_claims([state]):
            found.setdefault(claim.claim, []).append(claim.p_value)
    assert len(found) >= 10
    for name, values in found.items():
        p = np.sort(values)
        allowance = np.sqrt(np.log(len(found) / FALSE_ALARM) / (2 * p.size))
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
    state = CallsOnState("fixed", layer, 2.0**-52, np.random.default_rng(seed))
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
    found = claims_of([state])
    assert found["rows: all pairs independent"].p_value == 0.0
    assert found["rows: largest correlation"].p_value < 1e-100


@pytest.mark.parametrize("part", ["", ", squares"])
def test_products_of_rows_are_tested(part):
    """Neighbours with equal products, or with products of random sign that are too large."""
    states = [normals(calls=30, seed=7)]
    products = states[0].sequence.lags[1]
    products.total, products.square = 6.0 * np.sqrt(products.count), 2.0 * products.count
    claim = claims_of(states)["rows: neighbours independent" + part]
    count = products.count
    exact = 2 * stats.norm.sf(6.0) if not part else 2 * stats.chi2.sf(2.0 * count, count)
    assert claim.p_value == pytest.approx(exact, rel=1e-9)


def test_a_product_is_shown_per_number():
    """⟨A, B⟩ of ten numbers with |A|² = 4: its standard deviation is 2, and three are 6."""
    claim = _normal("", -6.0, 4.0, 10)
    assert (claim.statistic, claim.expected, claim.stderr) == (-0.6, 0.0, 0.2)
    assert claim.p_value == pytest.approx(2 * stats.norm.sf(3.0), rel=1e-12)
    none = _normal("", 0.0, 0.0, 0)
    assert (none.statistic, none.stderr, none.p_value) == (0.0, 0.0, 1.0)
