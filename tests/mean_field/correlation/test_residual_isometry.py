"""Rates of isometry: published values, and the map of two inputs."""

import numpy as np
import pytest
from scipy import stats

from bnmc import Activation
from bnmc.errors import ArgumentError, PartialEstimateError
from bnmc.mean_field import CorrelationMap, isometry_rate


def test_published_values():
    relu = isometry_rate("relu")
    assert relu.beta == pytest.approx(2 - 0.5 * np.pi / (np.pi - 1), rel=1e-12)
    assert relu.beta == pytest.approx(1.266529, abs=1e-6)
    assert relu.escape_rate == pytest.approx(np.pi / (np.pi - 1), rel=1e-12)
    assert isometry_rate("tanh").beta == pytest.approx(1.070, abs=1e-3)
    assert isometry_rate("linear").beta == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("name", ["tanh", "silu", "relu"])
def test_rates_are_those_of_the_map(name):
    found = isometry_rate(name, variance=2.0)
    field = CorrelationMap(name, norm="layer", order="activation-norm", weight_variance=2.0)
    assert found.correlation_rate == pytest.approx(float(field.slope(0.0)), rel=1e-10)
    assert found.escape_rate == pytest.approx(float(field.slope(1.0)), rel=1e-10)
    small = float(field(1e-4)) / 1e-4
    assert found.gap_rate == pytest.approx(small**2, rel=1e-3)


def test_activations_without_a_rate():
    with pytest.raises(ArgumentError, match="constant"):
        isometry_rate(Activation(lambda x: 1.0 + 0.0 * x))
    with pytest.raises(PartialEstimateError) as caught:
        isometry_rate(Activation(lambda x: np.floor(5.0 * x)))  # too many jumps
    assert 1.0 < caught.value.partial.beta < 2.0


def test_a_step_that_nobody_declared():
    """(E 1[z > s] z)² / Var = φ(s)²/(p(1 − p)) with p = P(z > s)."""
    s, tail = 0.377, stats.norm.sf(0.377)
    expected = stats.norm.pdf(s) ** 2 / (tail * (1.0 - tail))
    found = isometry_rate(Activation(lambda x: 1.0 if x > s else 0.0))
    assert found.correlation_rate == pytest.approx(expected, rel=1e-10)
