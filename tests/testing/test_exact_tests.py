"""The exact tests of a step: p-values against SciPy and against repetitions."""

import numpy as np
import pytest
from oracle import FALSE_ALARM
from scipy import stats

import bnmc
from bnmc._claims.layer import Layer
from bnmc.testing.calls_on_state import CallsOnState
from bnmc.testing.exact_tests import exact_claims, largest_claim, uniform_claim


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


@pytest.mark.parametrize("largest", [2.0, 3.2, 6.0])
def test_the_largest_of_normals(largest):
    values = np.append(np.zeros(99), -largest)
    below = (2 * stats.norm.cdf(largest) - 1) ** 100
    claim = largest_claim("", values)
    assert claim.p_value == pytest.approx(2 * min(below, 1 - below), rel=1e-6)
    assert (2 * stats.norm.cdf(claim.expected) - 1) ** 100 == pytest.approx(0.5, rel=1e-9)
