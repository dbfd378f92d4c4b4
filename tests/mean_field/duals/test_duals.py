"""`dual`: which activations it takes, series against references, errors."""

import gaussian_bumps
import numpy as np
import pytest
from scipy import special

from bnmc import Activation
from bnmc.errors import (
    ArgumentError,
    ArgumentTypeError,
    NonFiniteError,
    PartialEstimateError,
    UnknownNameError,
)
from bnmc.infinite_width import Dual, dual


def sigmoid(x):
    return special.expit(x)


SMOOTH = {
    "tanh": (np.tanh, lambda x: 1 / np.cosh(x) ** 2),
    "sigmoid": (sigmoid, lambda x: sigmoid(x) * sigmoid(-x)),
    "silu": (lambda x: x * sigmoid(x), lambda x: sigmoid(x) * (1 + x * sigmoid(-x))),
}


def trapezoidal(f, p, q, c):
    """Return E f(u) f(v) by the trapezoidal rule, which converges exponentially on the plane."""
    z = np.arange(-9.5, 9.5, 0.04)
    density = np.exp(-(z**2) / 2) * 0.04 / np.sqrt(2 * np.pi)
    v = np.sqrt(q) * (c / np.sqrt(p * q) * z[:, None] + np.sqrt(1 - c * c / (p * q)) * z)
    return density @ (f(np.sqrt(p) * z)[:, None] * f(v)) @ density


@pytest.mark.parametrize("name", SMOOTH)
@pytest.mark.parametrize("triple", [(1.0, 1.5, 0.6), (0.2, 0.5, -0.3), (3.0, 3.0, 2.95)])
def test_smooth_functions(name, triple):
    value, slope = dual(name)(*triple)
    f, derivative = SMOOTH[name]
    assert value == pytest.approx(trapezoidal(f, *triple), rel=1e-12, abs=1e-13)
    assert slope == pytest.approx(trapezoidal(derivative, *triple), rel=1e-12, abs=1e-13)


def test_published_digits():
    # κ and κ̇ at variances 1, 1.5 and covariance 0.6
    for name, value, slope in (
        ("relu", 0.368820768577647, 0.331482984031119),
        ("gelu", 0.284110195822443, 0.342688122707842),
        ("tanh", 0.196571605626940, 0.339318996404189),
        ("silu", 0.229548428289398, 0.316484306537455),
    ):
        assert np.array(dual(name)(1.0, 1.5, 0.6)) == pytest.approx([value, slope], abs=2e-15)


def test_a_series_at_correlation_one():
    near = np.array([1.0 - 1e-16, 1.0, 1.0 + 2e-16])
    value, slope = dual("tanh")(1.0, 1.0, near)
    assert value == pytest.approx([value[1]] * 3, rel=1e-13)
    assert slope == pytest.approx([slope[1]] * 3, rel=1e-13)


def test_shapes_broadcast():
    value, slope = dual("tanh")(np.ones((3, 1)), np.ones(40), 0.5)
    assert value.shape == slope.shape == (3, 40)
    assert np.ptp(value) < 1e-15


def test_functions_of_the_user():
    own = Activation(np.tanh, derivative=lambda x: 1.0 - np.tanh(x) ** 2)
    ours = np.array(dual(own)(1.0, 1.5, 0.6))
    assert ours == pytest.approx(np.array(dual("tanh")(1.0, 1.5, 0.6)), abs=1e-14)
    leaky = dual(lambda x: x if x > 0 else 0.2 * x)
    assert leaky.closed_form
    assert leaky(2.0, 2.0, 2.0)[0] == pytest.approx(1.04)
    assert dual(leaky) is leaky
    assert isinstance(leaky, Dual)


def test_a_function_without_derivative_raises():
    with pytest.raises(ArgumentError, match="derivative="):
        dual(lambda x: np.tanh(x) + x)(1.0, 1.0, 0.5)


def test_a_wrong_derivative_raises():
    with pytest.raises(ArgumentError, match="derivative"):
        dual(Activation(np.tanh, derivative=np.cos))


def test_hidden_kinks_are_found():
    """A corner and a jump, of the function and of its derivative: those of the declared ones."""

    def bent(x):
        return max(x - 0.377, 0.0) + (x if x < 1.37 else 0.5)

    def slope_of_bent(x):
        return (1.0 if x > 0.377 else 0.0) + (1.0 if x < 1.37 else 0.0)

    kinks = 0.377, 1.37
    for c in (0.3, -0.8, 0.99999):
        found = dual(Activation(bent, derivative=slope_of_bent))(1.0, 1.0, c, rtol=1e-8)
        declared = Activation(bent, derivative=slope_of_bent, kinks=kinks)
        np.testing.assert_allclose(found, dual(declared)(1.0, 1.0, c, rtol=1e-8), rtol=1e-9)


@pytest.mark.parametrize("bump", [(0.0, 0.003), (0.7, 0.003), (-1.1, 0.05), (0.7, 1e-4)])
@pytest.mark.parametrize("rho", [0.0, 0.5, 0.9, 0.999, 1 - 1e-6, 1.0, -0.999, -1.0])
@pytest.mark.parametrize(("p", "q"), [(1.0, 1.0), (0.3, 2.5)])
def test_narrow_bumps_need_not_be_declared(bump, rho, p, q):
    bumps, c = (bump, (-0.4, 1.3)), rho * np.sqrt(p * q)
    found = dual(gaussian_bumps.line_and_bumps(*bumps))(p, q, c)
    expected = gaussian_bumps.dual(bumps, p, q, c)
    left, right = (gaussian_bumps.dual(bumps, r, r, r) for r in (p, q))
    for k in (0, 1):
        assert abs(found[k] - expected[k]) <= 1e-6 * np.sqrt(left[k] * right[k])


def test_too_many_kinks_raise_with_the_result():
    stairs = Activation(lambda x: np.floor(5.0 * x), derivative=lambda x: 0.0)
    with pytest.raises(PartialEstimateError, match="declare kinks") as caught:
        dual(stairs)(1.0, 1.0, 0.99999)
    value, slope = caught.value.partial
    assert value.shape == slope.shape == ()
    exact, _ = dual(stairs)(1.0, 1.0, 1.0, rtol=0.1)
    assert value == pytest.approx(float(exact), rel=1e-2)


@pytest.mark.parametrize(
    ("triple", "kind"),
    [
        ((-1.0, 1.0, 0.0), ArgumentError),
        ((1.0, 1.0, 1.001), ArgumentError),
        ((1.0, np.nan, 0.0), ArgumentError),
        ((1.0, "1", 0.0), ArgumentTypeError),
        (([1.0, 1.0], [1.0, 1.0, 1.0], 0.0), ArgumentError),
    ],
)
def test_bad_numbers_raise(triple, kind):
    with pytest.raises(kind):
        dual("relu")(*triple)


@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize(("rtol", "kind"), [(0.0, ArgumentError), ("word", ArgumentTypeError)])
def test_bad_tolerances_raise(activation, rtol, kind):
    with pytest.raises(kind, match="^rtol"):
        dual(activation)(1.0, 1.0, 0.5, rtol=rtol)


def test_overflow_raises():
    with pytest.raises(NonFiniteError):
        dual("exp")(1e3, 1e3, 1e3)


def test_unknown_names_raise():
    with pytest.raises(UnknownNameError, match=r"silu, .*cos.*\(did you mean 'relu\^2'\?\)"):
        dual("relu2")
    with pytest.raises(UnknownNameError, match="tanh"):
        dual("tahn")
    with pytest.raises(ArgumentTypeError):
        dual(3)
