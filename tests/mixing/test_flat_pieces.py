"""`flat_pieces`: values and ends of the intervals on which an activation is constant."""

import numpy as np
import pytest

from bnmc import Activation
from bnmc.mixing.flat_pieces import flat_pieces

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
