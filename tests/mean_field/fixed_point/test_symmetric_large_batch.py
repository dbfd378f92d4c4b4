"""The limit of large batches: closed forms, integrals of one normal number, finite batches."""

import math

import numpy as np
import pytest

import bnmc
from bnmc.errors import ArgumentError, PartialEstimateError, UnknownNameError
from bnmc.mean_field.fixed_point.symmetric import limit

SMOOTH = ["linear", "tanh", "sigmoid", "sin", "erf", "silu", "gelu"]


def normal_mean(function):
    """E f(z): Gauss-Hermite quadrature of 200 nodes, exact to rounding for what is smooth."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(200)
    return float(weights @ function(nodes)) / math.sqrt(2 * math.pi)


def test_relu_has_the_published_limits():
    relu = limit("relu")
    mu = 0.5 * (1 - 1 / math.pi)
    assert relu.b == pytest.approx(0.5, rel=1e-13)
    assert relu.c == pytest.approx(1 / math.pi, rel=1e-13)
    assert relu.backward_rate == pytest.approx(math.pi / (math.pi - 1), rel=1e-13)
    assert relu.backward_rate == pytest.approx(1.467, abs=1e-4)
    assert relu.eigenvalues[1] == pytest.approx(0.25 / mu, rel=1e-13)
    assert relu.cross_batch == pytest.approx(1 / (2 * math.pi), rel=1e-13)
    assert relu.cross_batch_rate == pytest.approx(0.25 / mu, rel=1e-13)


@pytest.mark.parametrize("name", SMOOTH)
def test_smooth_activations_are_integrals_of_one_normal_number(name):
    sigma = bnmc.Activation(name) if callable(name) else bnmc.Chain(1, 2, name).activation
    found = limit(name)
    mean = normal_mean(sigma)
    mu = normal_mean(lambda z: (sigma(z) - mean) ** 2)
    first = normal_mean(lambda z: sigma(z) * z)
    assert found.b == pytest.approx(mu + mean**2, rel=1e-11)
    assert found.c == pytest.approx(mean**2 / (mu + mean**2), rel=1e-11, abs=1e-13)
    diagonal = normal_mean(lambda z: (sigma(z) - mean) ** 2 * (z * z - 1)) / (2 * mu)
    assert found.eigenvalues == pytest.approx((diagonal, first**2 / mu), rel=1e-10)
    assert found.rate == max(map(abs, found.eigenvalues))
    # E σ'^2 = Σ k² a_k² / k! by Hermite's expansion: here from values alone, by differences.
    step = 1e-5
    slope = normal_mean(lambda z: ((sigma(z + step) - sigma(z - step)) / (2 * step)) ** 2)
    assert found.backward_rate == pytest.approx(slope / mu, rel=1e-8)
    assert found.cross_batch_rate == pytest.approx(first**2 / mu, rel=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("norm", ["batch", "batch-uncentred"])
@pytest.mark.parametrize("name", ["relu", "tanh", "silu"])
def test_finite_batches_approach_the_limit_as_one_over_n(name, norm):
    # f(n) = f + a/n + O(1/n²): Richardson's 2 f(2n) − f(n) is off by O(1/n²).
    at = limit(name, norm=norm)
    fields = ("b", "c", "rate", "cross_batch", "cross_batch_rate", "backward_rate")
    n = 2000 if norm == "batch" else 500
    once, twice = (
        bnmc.MeanField(bnmc.Chain(10, size, name, norm=norm)).fixed_point() for size in (n, 2 * n)
    )
    for field in fields:
        f1, f2, f = (getattr(point, field) for point in (once, twice, at))
        assert abs(f1 - f) < 20.0 / n, field
        assert abs(2.0 * f2 - f1 - f) < 400.0 / n**2, field


def test_ten_thousand_samples_lose_no_accuracy():
    point = bnmc.MeanField(bnmc.Chain(10, 10_000, "relu")).fixed_point()
    rho = -1 / 9999
    arc = (math.sqrt(1 - rho**2) + (math.pi - math.acos(rho)) * rho) / math.pi
    slope = (math.pi - math.acos(rho)) / math.pi
    assert point.c == pytest.approx(arc, rel=1e-12)
    assert point.eigenvalues[1] == pytest.approx(10_000 / 10_001 * slope / (1 - arc), rel=1e-11)


def test_gradients_explode_or_vanish_over_a_depth():
    relu = limit("relu")
    assert relu.explosion_depth == pytest.approx(1 / math.log(math.pi / (math.pi - 1)))
    assert abs(limit("linear").explosion_depth) > 1e12  # of a rate of 1, but for rounding
    assert limit("sigmoid").stable
    assert not limit("silu").stable


def test_an_activation_that_jumps_has_no_gradient():
    steps = bnmc.Activation(lambda x: 1.0 if x > 0 else 0.0, kinks=(0.0,), name="step")
    assert limit(steps).backward_rate == math.inf


def test_bad_input_is_refused():
    with pytest.raises(UnknownNameError, match="norm"):
        limit("relu", norm="bach")
    with pytest.raises(UnknownNameError, match="activation"):
        limit("rellu")
    with pytest.raises(ArgumentError, match="rtol"):
        limit("relu", rtol=0.0)
    with pytest.raises(ArgumentError, match="constant"):
        limit(bnmc.Activation(lambda x: 2.0 + 0.0 * x, name="two"))
    with pytest.raises(PartialEstimateError) as found:
        limit("relu", rtol=1e-17)
    assert found.value.partial.b == pytest.approx(0.5)
