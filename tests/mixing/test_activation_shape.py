"""`activation_shape`: symmetries of activations with known ones."""

import pytest

from bnmc import Activation
from bnmc.mixing.activation_shape import activation_shape

REACH = 2.0


def shape_of(function):
    activation = Activation(function) if callable(function) else Activation.named(function)
    return activation_shape(activation, REACH)


@pytest.mark.parametrize(
    ("function", "odd", "even", "degree", "one_sided"),
    [
        ("relu", False, False, 1.0, True),
        ("leaky_relu", False, False, 1.0, False),
        ("linear", True, False, 1.0, False),
        ("abs", False, True, 1.0, False),
        ("tanh", True, False, None, False),
        ("elu", False, False, None, False),
        (lambda x: 3.0 if x > 0.0 else -1.0, False, False, 0.0, False),
        (lambda x: 1.0 if x > 0.0 else 0.0, False, False, 0.0, True),
        (lambda x: -(max(-x, 0.0) ** 1.5), False, False, 1.5, True),
        (lambda x: max(x - 0.5, 0.0), False, False, None, True),
        (lambda x: x - 1.0 if x > 0.0 else 0.0, False, False, None, False),
    ],
)
def test_symmetries(function, odd, even, degree, one_sided):
    shape = shape_of(function)
    assert (shape.is_odd, shape.is_even, shape.is_one_sided) == (odd, even, one_sided)
    assert shape.degree == (degree if degree is None else pytest.approx(degree, abs=1e-8))
    assert shape.has_parity == (odd or even)


def test_values_at_zero_and_the_centre():
    step = shape_of(lambda x: 1.0 if x > 0.0 else 0.0)
    assert (step.is_zero_at_zero, step.is_centred_at_zero) == (True, False)
    assert (step.is_odd, step.is_odd_about_centre) == (False, True)
    assert (step.above, step.below) == (1.0, 0.0)
    sigmoid = shape_of("sigmoid")
    assert (sigmoid.is_zero_at_zero, sigmoid.is_centred_at_zero) == (False, True)
    assert (sigmoid.is_odd, sigmoid.is_odd_about_centre) == (False, True)
    assert not shape_of("relu").is_odd_about_centre


@pytest.mark.parametrize("degree", [0.123456789, 1.123456784])
def test_degrees_have_nine_decimals(degree):
    """Rounded to eight decimals, a degree would not fit the values."""
    shape = shape_of(lambda x: abs(x) ** degree * (2.0 if x > 0.0 else -3.0))
    assert shape.degree == degree
    assert (shape.above, shape.below) == (pytest.approx(2.0), pytest.approx(-3.0))
