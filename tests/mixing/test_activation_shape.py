"""`activation_shape`: symmetries of activations with known ones."""

import numpy as np
import pytest

from bnmc import Activation
from bnmc.mixing.absorption import activation_shape, flat_pieces

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


INF = np.inf


def steps(x):
    if x < -0.7:
        return -1.0
    if x < 0.0:
        return 0.25
    if x < 1.0:
        return x
    return 0.25


def narrow(x):
    return 0.0 if abs(x - 0.5) < 1e-5 else x


@pytest.mark.parametrize("name", ["linear", "abs", "tanh", "sigmoid", "erf", "gelu", "elu"])
def test_activations_without_flat_pieces_have_none_even_where_rounding_makes_them_constant(name):
    assert len(flat_pieces(Activation.named(name), 50.0)) == 0


def test_relu_is_flat_below_zero():
    pieces = flat_pieces(Activation.named("relu"), 3.0)
    assert (*pieces.low, *pieces.high, *pieces.value) == (-INF, 0.0, 0.0)
    assert pieces.depends_on_signs


def test_pieces_have_their_ends_and_values():
    pieces = flat_pieces(Activation(steps), 2.0)
    assert pieces.low == pytest.approx([-INF, -0.7, 1.0], abs=1e-15)
    assert pieces.high == pytest.approx([-0.7, 0.0, INF], abs=1e-15)
    assert pieces.value.tolist() == [-1.0, 0.25, 0.25]
    assert not pieces.depends_on_signs
    x = np.array([-5.0, -0.71, -0.69, -1e-9, 1e-9, 0.25, 0.99, 1.01, 9.0])
    assert pieces.labels(x).tolist() == [0, 0, 1, 1, -1, -1, -1, 1, 1]


def test_a_narrow_piece_needs_its_kinks():
    assert len(flat_pieces(Activation(narrow), 2.0)) == 0
    pieces = flat_pieces(Activation(narrow, kinks=(0.5 - 1e-5, 0.5 + 1e-5)), 2.0)
    assert (*pieces.low, *pieces.high) == pytest.approx((0.5 - 1e-5, 0.5 + 1e-5), abs=1e-15)


def test_equal_values_at_points_of_the_grid_are_no_piece():
    # It has the same value at all points of an even grid over [-1, 1] with 6000 points.
    pieces = flat_pieces(Activation(lambda x: np.sin(np.pi * 5999.0 * (x + 1.0)) ** 2 > 0.5), 1.0)
    assert not np.isinf(pieces.low).any()


@pytest.mark.parametrize("kinks", [(), (-0.5, 0.9)])
def test_a_value_that_lasts_to_the_reach_lasts_for_ever(kinks):
    """The activation is not evaluated beyond: there this one has other values on both sides."""
    activation = Activation(lambda x: x if abs(x) > 1.0 else np.sign(x), kinks=kinks)
    pieces = flat_pieces(activation, 1.0)
    assert pieces.low.tolist() == [-INF, 0.0]
    assert pieces.high.tolist() == [0.0, INF]
    assert pieces.value.tolist() == [-1.0, 1.0]
