"""Closed forms against independent integrals: by mpmath in the angle, and by Gauss and Hermite."""

import mpmath
import numpy as np
import pytest
from scipy import integrate, special
from slow_cases import pairs

import bnmc
from bnmc.infinite_width import dual
from bnmc.mean_field.duals.duals import CLOSED_FORMS

#: Functions and derivatives that are entire, so that Gauss-Hermite rules converge fast.
ENTIRE = {
    "linear": (lambda x: x, np.ones_like),
    "erf": (special.erf, lambda x: 2 / np.sqrt(np.pi) * np.exp(-(x**2))),
    "gelu": (
        lambda x: x * special.ndtr(x),
        lambda x: special.ndtr(x) + x * np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi),
    ),
    "sin": (np.sin, np.cos),
    "cos": (np.cos, lambda x: -np.sin(x)),
    "exp": (np.exp, np.exp),
}
#: Degree of homogeneity, and values at −1 and 1, of functions and their derivatives.
HOMOGENEOUS = {
    "relu": ((1, 0, 1), (0, 0, 1)),
    "relu^2": ((2, 0, 1), (1, 0, 2)),
    "relu^3": ((3, 0, 1), (2, 0, 3)),
    "step": ((0, 0, 1), None),
    "leaky_relu": ((1, "-0.01", 1), (0, "0.01", 1)),
    "abs": ((1, 1, 1), (0, -1, 1)),
}
TRIPLES = [
    (1.0, 1.5, 0.6),
    (0.3, 2.0, -0.5),
    (1.2, 1.2, 1.1999),
    (1.0, 4.0, -1.99),
    (0.5, 3.0, 0.0),
]


def hermite_mean(f, p, q, c):
    """Return E f(u) f(v) by a product rule with 200 × 200 nodes."""
    z, weights = special.roots_hermitenorm(200)
    weights = weights / weights.sum()
    v = np.sqrt(q) * (c / np.sqrt(p * q) * z[:, None] + np.sqrt(1 - c * c / (p * q)) * z)
    return weights @ (f(np.sqrt(p) * z)[:, None] * f(v)) @ weights


def angle_mean(shape, p, q, c):
    """Return E f(u) f(v) for homogeneous f of degree k.

    u = √p r cos a and v = √q r cos(a − θ), with E r^2k = 2^k k! and a uniform.
    """
    degree, left, right = shape
    left, right = mpmath.mpf(left), mpmath.mpf(right)
    with mpmath.workdps(30):
        p, q, c = (mpmath.mpf(one) for one in (p, q, c))
        theta = mpmath.acos(c / mpmath.sqrt(p * q))

        def f(x):
            return (right if x > 0 else left) * abs(x) ** degree

        kinks = [-mpmath.pi / 2, mpmath.pi / 2, theta - mpmath.pi / 2, theta + mpmath.pi / 2]
        kinks = sorted({one % (2 * mpmath.pi) for one in kinks} | {mpmath.mpf(0), 2 * mpmath.pi})
        mean = mpmath.quad(lambda a: f(mpmath.cos(a)) * f(mpmath.cos(a - theta)), kinks)
        radial = mpmath.mpf(2) ** degree * mpmath.factorial(degree)
        return float(radial * mean / (2 * mpmath.pi) * mpmath.sqrt(p * q) ** degree)


@pytest.mark.parametrize("name", ENTIRE)
@pytest.mark.parametrize("triple", TRIPLES)
def test_entire_functions(name, triple):
    value, slope = dual(name)(*triple)
    f, derivative = ENTIRE[name]
    assert value == pytest.approx(hermite_mean(f, *triple), rel=1e-12, abs=1e-13)
    assert slope == pytest.approx(hermite_mean(derivative, *triple), rel=1e-12, abs=1e-13)


@pytest.mark.parametrize(("name", "triple"), pairs(HOMOGENEOUS, TRIPLES))
def test_homogeneous_functions(name, triple):
    value, slope = dual(name)(*triple)
    shape, derivative = HOMOGENEOUS[name]
    assert value == pytest.approx(angle_mean(shape, *triple), rel=1e-12, abs=1e-13)
    expected = 0.0 if derivative is None else angle_mean(derivative, *triple)
    assert slope == pytest.approx(expected, rel=1e-12, abs=1e-13)


@pytest.mark.parametrize("name", [*ENTIRE, *HOMOGENEOUS])
def test_correlation_one_is_exact_and_rounding_is_harmless(name):
    for q in (1e-6, 0.7, 1.0, 9.0):
        c = q * np.array([1.0 - 1e-16, 1.0, 1.0 + 2e-16, -1.0, -1.0 - 2e-16, -1.0 + 2e-16])
        value, slope = dual(name)(q, q, c)
        assert np.isfinite([value, slope]).all()
        # E f(u)f(v) of a function with a jump has a root at correlation 1: √(2 · 2e-16) / π, times
        # the squared height.
        loose = 1e-8 if name == "step" else 1e-14
        assert value == pytest.approx(np.repeat(value[[1, 3]], 3), rel=loose, abs=loose)
        assert slope == pytest.approx(np.repeat(slope[[1, 3]], 3), rel=3e-8, abs=3e-8)


@pytest.mark.parametrize("name", HOMOGENEOUS)
def test_correlation_one_is_the_mean_square(name):
    (degree, left, right), derivative = HOMOGENEOUS[name]
    moment = special.factorial2(2 * degree - 1) if degree else 1.0
    value, slope = dual(name)(3.0, 3.0, 3.0)
    assert value == pytest.approx(
        moment * 3.0**degree * (float(left) ** 2 + float(right) ** 2) / 2, rel=4e-16 * 8
    )
    if derivative is not None:
        degree, left, right = derivative
        moment = special.factorial2(2 * degree - 1) if degree else 1.0
        expected = moment * 3.0**degree * (float(left) ** 2 + float(right) ** 2) / 2
        assert slope == pytest.approx(expected, rel=4e-16 * 8)


@pytest.mark.parametrize("name", [*ENTIRE, *HOMOGENEOUS])
def test_variance_zero(name):
    value, slope = dual(name)([0.0, 0.0], [0.0, 2.0], [0.0, 0.0])
    assert np.isfinite([value, slope]).all()
    if name in ENTIRE:
        f, _ = ENTIRE[name]
        z, weights = special.roots_hermitenorm(200)
        mean = weights / weights.sum() @ f(np.sqrt(2.0) * z)
        assert value[1] == pytest.approx(float(f(np.zeros(1))[0] * mean), rel=1e-12, abs=1e-14)


@pytest.mark.parametrize("name", ["relu", "abs", "leaky_relu", "linear"])
def test_extreme_variances(name):
    for size in (1e-300, 1e-200, 1e150, 1e300):
        value, slope = dual(name)(size, size, size)
        unit, same = dual(name)(1.0, 1.0, 1.0)
        assert value / size == pytest.approx(unit, rel=1e-14)
        assert slope == pytest.approx(same, rel=1e-14)


@pytest.mark.parametrize("name", ["relu", "relu^2", "step", "abs", "gelu", "cos", "exp", "erf"])
def test_means(name):
    found = dual(name)
    q = np.array([0.5, 2.0])
    # With an independent v whose function has mean m(q): V(p, q, 0) = m(p) m(q).
    value, _ = found(q[0], q[1], 0.0)
    mean = found.mean(found.side(q, False))
    assert mean[0] * mean[1] == pytest.approx(float(value), rel=1e-13, abs=1e-15)


@pytest.mark.parametrize("variance", [0.3, 1.0, 4.0])
@pytest.mark.parametrize("name", ["relu", "leaky_relu", "abs", "erf", "gelu", "sin"])
def test_means_by_quadrature(name, variance):
    sigma = bnmc.Activation.named(name)
    z = np.linspace(0.0, 12.0, 40_001)
    density = np.exp(-0.5 * z * z) / np.sqrt(2.0 * np.pi)
    halves = [
        integrate.simpson(sigma(sign * np.sqrt(variance) * z) * density, x=z) for sign in (-1, 1)
    ]
    found = CLOSED_FORMS[name].mean(np.array([variance]))
    np.testing.assert_allclose(found, sum(halves), rtol=0, atol=1e-12)
