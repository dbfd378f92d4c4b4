"""Quadrature near correlation 1 against one-dimensional integrals and closed forms."""

import itertools

import numpy as np
import pytest
from scipy import integrate, special

from bnmc import Activation
from bnmc.infinite_width import dual, nngp, ntk
from bnmc.mean_field.duals.series import nearly_equal
from bnmc.mean_field.quadrature.profile import Profile

SHIFT = 0.7


def declared(function, kinks=()):
    """Return the profile of a function that is not searched for other kinks."""
    return Profile(Activation(function, kinks=kinks), kinks, 16.0, complete=True)


RAMP = declared(lambda x: max(x - SHIFT, 0.0), kinks=(SHIFT,))
STEP = declared(lambda x: 1.0 if x > SHIFT else 0.0, kinks=(SHIFT,))


def ramp_by_hand(p, q, rho, power):
    """Return E (u − s)₊^power (v − s)₊^power, by the law of v given u."""
    rest = np.sqrt(q * (1 - rho) * (1 + rho))

    def integrand(u):
        mean = rho * np.sqrt(q / p) * u - SHIFT
        tail, density = special.ndtr(mean / rest), np.exp(-0.5 * (mean / rest) ** 2)
        inner = mean * tail + rest * density / np.sqrt(2 * np.pi) if power else tail
        return (u - SHIFT) ** power * inner * np.exp(-0.5 * u * u / p) / np.sqrt(2 * np.pi * p)

    edge = SHIFT / (rho * np.sqrt(q / p)) if rho else SHIFT
    ends = {SHIFT, 12.0 * np.sqrt(p)}
    ends |= {edge + k * rest for k in (-8, -4, -2, -1, 0, 1, 2, 4, 8) if edge + k * rest > SHIFT}
    ends = sorted(end for end in ends if end <= 12.0 * np.sqrt(p))
    pieces = itertools.pairwise(ends)
    return sum(integrate.quad(integrand, a, b, epsabs=1e-15, epsrel=1e-13)[0] for a, b in pieces)


@pytest.mark.parametrize("rho", [0.5, 0.99, 0.9999, 1 - 1e-8, -0.999])
def test_a_shifted_ramp_and_a_step(rho):
    p, q = np.array([1.0, 0.6]), np.array([1.0, 2.3])
    for f, power in ((RAMP, 1), (STEP, 0)):
        found, error = nearly_equal(f, p, q, np.full(2, rho))
        expected = [ramp_by_hand(*pair, rho, power) for pair in zip(p, q, strict=True)]
        assert np.abs(found - expected).max() < 1e-11
        assert (error < 1e-9).all()


def test_many_pairs_of_the_same_variances_are_interpolated():
    rho = 1.0 - np.linspace(0.0, 0.1, 60) ** 2
    found, error = nearly_equal(STEP, np.full(60, 1.3), np.full(60, 1.3), rho)
    alone = np.concatenate([nearly_equal(STEP, *np.array([[1.3], [1.3], [r]]))[0] for r in rho])
    assert np.abs(found - alone).max() < 1e-11
    assert (error < 1e-9).all()
    same, _ = nearly_equal(STEP, np.full(60, 1.3), np.full(60, 1.3), np.full(60, 0.999))
    assert np.ptp(same) == 0.0


def test_an_undeclared_kink_is_in_the_error():
    hidden = declared(lambda x: 1.0 if x > SHIFT else 0.0)
    found, error = nearly_equal(hidden, *np.array([[1.0], [1.0], [0.9999]]))
    assert error[0] > 1e-6
    assert abs(found[0] - ramp_by_hand(1.0, 1.0, 0.9999, 0)) < 10 * error[0]


@pytest.mark.parametrize(
    ("norm", "activation"),
    [("none", "own"), ("layer", "selu"), ("layer", "own"),
     pytest.param("none", "selu", marks=pytest.mark.slow)],
)  # fmt: skip
def test_kernels_of_nearly_equal_inputs_are_positive_semidefinite(activation, norm):
    if activation == "own":
        activation = Activation(
            lambda x: max(x - SHIFT, 0.0) + 0.1 * x, kinks=(SHIFT,),
            derivative=lambda x: 1.1 if x > SHIFT else 0.1,
        )  # fmt: skip
    rng = np.random.default_rng(0)
    one = rng.standard_normal((20, 1))
    x = one + 10.0 ** -np.array([1, 3, 5, 8, 12, 16, 17]) * rng.standard_normal((20, 7))
    for function, tolerance in ((nngp, 1e-12), (ntk, 1e-7)):
        kernel = function(x, 2, activation=activation, norm=norm, bias_variance=0.1)
        values = np.linalg.eigvalsh(kernel)
        assert values[0] > -tolerance * values[-1]


@pytest.mark.parametrize("name", ["selu", "elu", "relu", "gelu"])
def test_correlations_of_one_and_rounding(name):
    # V′ changes by about √(2 · 2e-16) there, V by 1e-16.
    correlation = np.array([1.0, 1.0 - 1.2e-16, 1.0 + 2.3e-16, 1.0 - 2.3e-16])
    value, slope = dual(name)(1.0, 1.0, correlation)
    assert value == pytest.approx([value[0]] * 4, rel=1e-14)
    assert slope == pytest.approx([slope[0]] * 4, rel=1e-7)
