"""Functions that count as positively homogeneous: only such that their own code proves to be."""

import math

import numpy as np
import pytest

import bnmc
from bnmc._kernels.scalar.activations import BUILTIN
from bnmc.chain.activations import Activation
from bnmc.chain.homogeneity import homogeneous_slopes, keeps_scale
from bnmc.errors import ArgumentError

SLOPE = 0.2


def branches(x):
    if x > 0:
        return x
    y = SLOPE * x
    return y - x / 2


def in_place(x):
    y = SLOPE * x
    y += x
    y /= 4
    return y


HOMOGENEOUS = [
    lambda x: x,
    lambda x: -3 * x,
    lambda x: max(x, 0),
    lambda x: max(SLOPE * x, x),
    lambda x: abs(x) - 0.5 * x,
    lambda x: x if x >= 0.0 else SLOPE * x,
    lambda x: 0.0 if x < 0 else x,
    lambda x: np.maximum(x, SLOPE * x),
    lambda x: np.where(x > 0, x, SLOPE * x),
    lambda x: np.float64(0.1) * x,
    lambda x: x * (x > 0),
    lambda x: np.sign(x) * x,
    lambda x: x * 0.0,
    branches,
    in_place,
]
OTHERS = [
    lambda x: x + 1.0,
    lambda x: 1.0,
    lambda x: min(max(x, 0.0), 6.0),
    lambda x: x * x,
    lambda x: x / (1.0 + abs(x)),
    lambda x: np.tanh(x),
    lambda x: math.fabs(x),  # it is, but nothing is known of the function
    lambda x: np.sign(x),
    lambda x: x if x < 3.0 else 3.0,
    lambda x: x if 0.1 * x + 0.2 * x > 0.3 * x else 0.0,  # rounding decides
    lambda x: x if x > 0 else 1.0,
    lambda x: x * abs(x),
    lambda x: np.where(x > 0.0, np.nan, x),
    lambda x: x + math.exp(-((x - 2.5) ** 2) * 1e8),  # a bump that no grid of points would meet
]


@pytest.mark.parametrize("number", range(len(HOMOGENEOUS)))
def test_homogeneous_functions(number):
    function = HOMOGENEOUS[number]
    left, right = homogeneous_slopes(Activation(function))
    assert (-left, right) == (function(-1.0), function(1.0))
    x = np.random.default_rng(0).normal(size=50)
    for exponent in (-700, -3, 5, 800):
        for value in x.tolist():
            scaled = function(math.ldexp(value, exponent))
            assert scaled == math.ldexp(float(function(value)), exponent)


@pytest.mark.parametrize("number", range(len(OTHERS)))
def test_other_functions(number):
    assert homogeneous_slopes(Activation(OTHERS[number])) is None


def test_named_activations():
    slopes = {"linear": (1, 1), "relu": (0, 1), "leaky_relu": (0.01, 1), "abs": (-1, 1)}
    for name in BUILTIN:
        assert homogeneous_slopes(Activation.named(name)) == slopes.get(name)
    for name, (left, right) in slopes.items():
        named = Activation.named(name)
        assert (named(-2.0), named(2.0)) == (-2.0 * left, 2.0 * right)


def test_chains_whose_scale_is_split_off():
    for name in ("linear", "relu", "leaky_relu", "abs"):
        assert keeps_scale(bnmc.Chain(5, 2, name, norm="none").layers[1])
        assert not keeps_scale(bnmc.Chain(5, 2, name).layers[1])
    assert keeps_scale(bnmc.Chain(5, 2, HOMOGENEOUS[3], norm="none").layers[1])
    assert not keeps_scale(bnmc.Chain(5, 2, "tanh", norm="none").layers[1])


@pytest.mark.parametrize("exponent", [-700, 700])
def test_slopes_whose_squares_leave_float64_raise(exponent):
    """They gave Gram matrices of zeros, or Python's OverflowError."""
    slope = 2.0**exponent
    activation = Activation(lambda x: slope * max(x, 0.0))
    for call in (
        lambda chain: bnmc.simulate(chain, 1, rng=0),
        lambda chain: bnmc.MeanField(chain).step(np.eye(3)),
        lambda chain: bnmc.infinite_width.dual(chain.activation),
    ):
        with pytest.raises(ArgumentError, match=r"activation: .*slopes.*gain= scales the chain"):
            call(bnmc.Chain(9, 3, activation, norm="none"))
    assert homogeneous_slopes(Activation(lambda x: 2.0**-500 * x)) == (2.0**-500, 2.0**-500)
