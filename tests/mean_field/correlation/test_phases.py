"""The edge of chaos: closed forms, and tanh against mpmath."""

import math

import mpmath
import numpy as np
import pytest
from mean_field_oracles import erf_pair, erf_slope
from scipy.optimize import brentq
from slow_cases import some

from bnmc import Activation
from bnmc.errors import PartialEstimateError
from bnmc.mean_field import CorrelationMap, edge_of_chaos


def edge_of_tanh(bias):
    """Return σ_w² with q = V/S + σ_b² and σ_w² = 1/S, from integrals at 20 digits."""

    def mean(f, q):
        root = mpmath.sqrt(q)
        return mpmath.quad(lambda z: f(root * z) * mpmath.npdf(z), [-12, -4, 0, 4, 12])

    def slope(q):
        return mean(lambda x: mpmath.sech(x) ** 4, q)

    with mpmath.workdps(20):
        start = bias ** (1 / 3)
        q = mpmath.findroot(
            lambda q: q - mean(lambda x: mpmath.tanh(x) ** 2, q) / slope(q) - bias,
            (start, 1.5 * start), solver="anderson", tol=1e-14,
        )  # fmt: skip
        return float(1 / slope(q))


@pytest.mark.untraced
@pytest.mark.parametrize("bias", some([0.05, 0.3], 0.3))
def test_tanh(bias):
    edge = edge_of_chaos("tanh", bias)
    exact = edge_of_tanh(bias)
    assert float(edge.weight_variance) == pytest.approx(exact, rel=1e-11)
    assert abs(float(edge.weight_variance) / exact - 1) <= float(edge.error)
    assert edge.stable


BIASES = np.array([1e-3, 0.05, 0.5, 3.0])


#: E σ² and E σ′² at a variance.
SQUARES = {
    "erf": lambda q: (erf_pair(q, 1.0), erf_slope(q, 1.0)),
    "sin": lambda q: ((1 - np.exp(-2 * q)) / 2, (1 + np.exp(-2 * q)) / 2),
}


@pytest.mark.parametrize(("name", "squares"), SQUARES.items())
def test_closed_forms(name, squares):
    def bias(q):
        square, slope = squares(q)
        return q - square / slope

    roots = [brentq(lambda q, b=b: bias(q) - b, 1e-3, 1e3, xtol=1e-15) for b in BIASES]
    edge = edge_of_chaos(name, BIASES)
    exact = 1 / squares(np.array(roots))[1]
    assert edge.weight_variance == pytest.approx(exact, rel=1e-10)
    assert (np.abs(edge.weight_variance / exact - 1) <= edge.error + 1e-13).all()


@pytest.mark.parametrize(
    ("name", "weight"),
    [("relu", 2.0), ("tanh", 1.0), ("erf", math.pi / 4), ("abs", 1.0), ("linear", 1.0)],
)
def test_without_bias(name, weight):
    edge = edge_of_chaos(name)
    assert float(edge.weight_variance) == pytest.approx(weight, rel=1e-14)
    # Homogeneous functions keep any variance; those that saturate keep 0 alone, which attracts.
    assert float(edge.variance) == (0.0 if name in ("tanh", "erf") else 1.0)
    assert float(edge.variance_slope) == 1.0


def test_a_function_without_derivative():
    steeper = Activation(lambda x: np.tanh(2.0 * x))
    assert float(edge_of_chaos(steeper).weight_variance) == pytest.approx(0.25, rel=1e-9)
    # tanh(2x) with variance q is tanh with variance 4q: σ_b² is a quarter.
    edge = edge_of_chaos(steeper, 0.05 / 4)
    tanh = edge_of_chaos("tanh", 0.05)
    assert float(edge.weight_variance) == pytest.approx(float(tanh.weight_variance) / 4, rel=1e-10)


@pytest.mark.parametrize(
    "options",
    [
        {"norm": "layer"},
        {"norm": "rms", "order": "activation-norm"},
        {"norm": "layer", "order": "activation-norm"},
        {},
    ],
)
def test_networks_there_are_critical(options):
    edge = edge_of_chaos("tanh", [0.02, 0.4], **options)
    for w, b in zip(edge.weight_variance, edge.bias_variance, strict=True):
        phases = [
            CorrelationMap("tanh", weight_variance=k * w, bias_variance=b, **options).phase().name
            for k in (0.99, 1.0, 1.01)
        ]
        assert phases == ["ordered", "critical", "chaotic"]


def test_variances_that_repel_are_marked():
    edge = edge_of_chaos("gelu", [0.05, 0.3])
    assert edge.stable.tolist() == [False, True]
    assert (edge.variance_slope > 1.0).tolist() == [True, False]


def test_kinks_that_are_not_declared():
    """A kink is found; more than 32 of them raise with the result."""

    def bent(x):
        return np.tanh(x) if x < 0.377 else np.tanh(0.377)

    edge = edge_of_chaos(Activation(bent), 0.1)
    declared = edge_of_chaos(Activation(bent, kinks=(0.377,)), 0.1)
    assert edge.weight_variance == pytest.approx(declared.weight_variance, rel=1e-10)
    zigzag = Activation(lambda x: x + 0.3 * abs(5.0 * x - np.floor(5.0 * x) - 0.5))
    with pytest.raises(PartialEstimateError) as caught:
        edge_of_chaos(zigzag, 0.1)
    assert caught.value.partial.weight_variance > 0


def test_a_variance_of_zero_that_repels_has_the_next_slope_after_one():
    """σ = |x| + d maps q to q + 2d √(2q/π) + d² at the weight 1, so that all variances rise.

    V(q)/q is 1 to less than 1e-3 at the smallest variance that does not count as 0.
    """
    offset = 5e-10
    shifted = Activation(
        lambda x: abs(x) + offset, kinks=(0.0,), derivative=lambda x: 1.0 if x > 0.0 else -1.0
    )
    edge = edge_of_chaos(shifted)
    assert (float(edge.weight_variance), float(edge.variance)) == (1.0, 0.0)
    assert float(edge.variance_slope) == np.nextafter(1.0, 2.0)
    assert not edge.stable


@pytest.mark.parametrize("bias", [5e-324, 1e-320, 1e-300, 1.0])
def test_homogeneous_networks_have_the_same_rates_at_the_least_variances(bias):
    phase = CorrelationMap("relu", weight_variance=0.5, bias_variance=bias).phase()
    rates = phase.variance_rate, phase.correlation_rate, phase.backward_rate
    assert (rates, phase.correlation) == ((0.25, 0.25, 0.25), 1.0)
    linear = CorrelationMap("linear").phase(start=bias)
    assert (linear.correlation, linear.variance_rate) == (None, 1.0)
