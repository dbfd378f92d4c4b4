"""Moments at one normal variable against adaptive integration and closed forms."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
from scipy import integrate, special

from bnmc import Activation
from bnmc.errors import ArgumentError
from bnmc.mean_field.correlation.gaussian_moments import moments, rough_moments
from bnmc.mean_field.duals.duals import dual
from bnmc.mean_field.quadrature.profile import Profile


def expectation(f, q, kinks=()):
    def integrand(z):
        return f(math.sqrt(q) * z) * math.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)

    points = sorted({0.0, *(kink / math.sqrt(q) for kink in kinks)})
    edges = [-12.0, *points, 12.0]
    options = {"epsabs": 1e-14, "epsrel": 1e-13, "limit": 200}
    return sum(integrate.quad(integrand, a, b, **options)[0] for a, b in itertools.pairwise(edges))


@pytest.mark.parametrize("q", [0.3, 4.0])
def test_a_smooth_function(q):
    at = moments(dual("tanh"), q)
    value, slope = math.tanh, lambda x: 1 / math.cosh(x) ** 2
    assert at.square == pytest.approx(expectation(lambda x: value(x) ** 2, q), rel=1e-12)
    assert at.gradient == pytest.approx(expectation(lambda x: slope(x) ** 2, q), rel=1e-12)
    first = expectation(lambda x: value(x) * x / math.sqrt(q), q)
    assert at.first == pytest.approx(first, rel=1e-12)
    change = expectation(lambda x: value(x) * slope(x) * x / q, q)
    assert at.square_slope == pytest.approx(change, rel=1e-11)
    assert at.mirror == -at.square
    assert at.error < 1e-13
    assert at.gradient_error < 1e-13


def bent(x):
    return np.tanh(x) if x < 0.377 else np.tanh(0.377) + 2.0 * (x - 0.377)


@pytest.mark.parametrize("q", [0.5, 2.0])
def test_a_kink_and_no_derivative(q):
    at = moments(dual(Activation(bent, kinks=(0.377,))), q)
    assert at.mean == pytest.approx(expectation(bent, q, [0.377]), rel=1e-12)
    square = expectation(lambda x: bent(x) ** 2, q, [0.377])
    assert at.square == pytest.approx(square, rel=1e-12)
    slope = expectation(lambda x: 4.0 if x > 0.377 else 1 / math.cosh(x) ** 4, q, [0.377])
    assert at.gradient == pytest.approx(slope, rel=1e-11)
    mirror = expectation(lambda x: bent(x) * bent(-x), q, [-0.377, 0.377])
    assert at.mirror == pytest.approx(mirror, rel=1e-12)
    assert max(at.error, at.gradient_error) < 1e-12


@pytest.mark.parametrize("q", [0.5, 2.0])
def test_the_error_includes_a_kink_that_was_neither_declared_nor_found(q):
    hidden = dual(Activation(bent))
    assert hidden.function.ends(0.0) == pytest.approx([0.377], rel=1e-12)
    unsearched = Profile(Activation(bent), (), 16.0, complete=True)
    at = moments(dataclasses.replace(hidden, function=unsearched), q)
    square = expectation(lambda x: bent(x) ** 2, q, [0.377])
    slope = expectation(lambda x: 4.0 if x > 0.377 else 1 / math.cosh(x) ** 4, q, [0.377])
    assert 1e-9 < abs(at.square / square - 1) <= at.error
    assert 1e-6 < abs(at.gradient / slope - 1) <= at.gradient_error


@pytest.mark.parametrize("q", [1e-8, 1.0, 1e6, 1e12])
def test_every_variance(q):
    at = moments(dual("erf"), q)
    square = 2 / np.pi * np.arctan2(2 * q, np.sqrt(1 + 4 * q))
    assert at.square == pytest.approx(square, rel=1e-13)
    assert at.gradient == pytest.approx(4 / np.pi / np.sqrt(1 + 4 * q), rel=1e-13)
    slope = 4 / np.pi / ((1 + 2 * q) * np.sqrt(1 + 4 * q))
    assert at.square_slope == pytest.approx(slope, rel=1e-9)


@pytest.mark.parametrize("name", ["relu^2", "relu^3", "cos", "exp", "step"])
def test_names_that_have_a_formula_only(name):
    q, power = 0.7, {"relu^2": 2, "relu^3": 3, "step": 0}.get(name)
    at = moments(dual(name), q)
    if power is not None:
        square = q**power * special.factorial2(2 * power - 1) / 2 if power else 0.5
        slope = power**2 * q ** (power - 1) * special.factorial2(2 * power - 3) / 2
        slope = slope if power else math.inf
    elif name == "exp":
        square = slope = math.exp(2 * q)
    else:
        square, slope = (1 + math.exp(-2 * q)) / 2, (1 - math.exp(-2 * q)) / 2
    assert at.square == pytest.approx(square, rel=1e-13)
    assert at.gradient == pytest.approx(slope, rel=1e-13)


def test_a_jump_has_no_mean_square_of_the_slope():
    jump = Activation(lambda x: x if x < 0.5 else x + 1.0, kinks=(0.5,), derivative=lambda x: 1.0)
    assert moments(dual(jump), 1.0).gradient == math.inf


def test_fast_growth():
    assert moments(dual("exp"), 20.0).square == pytest.approx(math.exp(40), rel=1e-12)
    fast = dual(Activation(lambda x: np.exp(x * x / 3)))
    with pytest.raises(ArgumentError, match="finite mean square"):
        moments(fast, 1.0)
    assert rough_moments(fast, 1.0).square == math.inf
    assert moments(fast, 0.5).square == pytest.approx((1 - 2 / 3) ** -0.5, rel=1e-12)


def test_a_kink_between_two_ranges_where_the_function_is_0_is_no_jump():
    once = moments(dual(Activation(lambda x: max(x, 0.0), kinks=(0.0,))), 2.0)
    twice = moments(dual(Activation(lambda x: max(x, 0.0), kinks=(-1.0, 0.0))), 2.0)
    assert once.gradient == pytest.approx(0.5, rel=1e-12)
    assert twice.gradient == pytest.approx(0.5, rel=1e-12)


def rooted(x):
    return abs(x - 0.3) ** 0.6


@pytest.mark.parametrize("kinks", [(), (0.3,)])
def test_the_mean_square_of_a_singular_slope(kinks):
    """E σ′² = .36 E |z − .3|^−.8, by SciPy's rule for this weight."""
    exact = 0.36 * sum(
        integrate.quad(
            lambda u, sign=sign: math.exp(-0.5 * (0.3 + sign * u) ** 2) / math.sqrt(2.0 * math.pi),
            *(0.0, 13.0), weight="alg", wvar=(-0.8, 0.0),
        )[0]
        for sign in (-1.0, 1.0)
    )  # fmt: skip
    at = moments(dual(Activation(rooted, kinks=kinks)), 1.0)
    assert abs(at.gradient / exact - 1.0) < at.gradient_error < 0.01


def jumping(x):
    return 1.0 + 0.1 * x if x > 0.5 else math.tanh(x)


def test_a_jump_is_at_its_place_among_narrow_panels():
    at = moments(dual(Activation(jumping)), 1.0)
    expected = expectation(lambda x: np.where(x > 0.5, 1.0 + 0.1 * x, np.tanh(x)) ** 2, 1.0, (0.5,))
    assert abs(at.square / expected - 1.0) < at.error + 1e-13
