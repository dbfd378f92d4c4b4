"""`dual`: closed forms and series against integrals that share no code with it, and errors."""

import gaussian_bumps
import mpmath
import numpy as np
import pytest
from mean_field_oracles import NODES, WEIGHTS, pair_mean
from scipy import integrate, special
from scipy.special import expit
from slow_cases import pairs, slow

import bnmc
from bnmc import Activation
from bnmc.errors import PartialEstimateError
from bnmc.infinite_width import Dual, dual
from bnmc.mean_field.duals.duals import CLOSED_FORMS

#: Functions, and derivatives, that are analytic in a strip.
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
SMOOTH = {
    **ENTIRE,
    "tanh": (np.tanh, lambda x: 1 / np.cosh(x) ** 2),
    "sigmoid": (expit, lambda x: expit(x) * expit(-x)),
    "silu": (lambda x: x * expit(x), lambda x: expit(x) * (1 + x * expit(-x))),
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
    (3.0, 3.0, 2.95),
]


@pytest.mark.parametrize("name", SMOOTH)
@pytest.mark.parametrize("triple", TRIPLES)
def test_smooth_functions(name, triple):
    values = dual(name)(*triple)
    for value, function in zip(values, SMOOTH[name], strict=True):
        expected = pair_mean(function, function, *triple)
        assert value == pytest.approx(expected, rel=1e-12, abs=1e-13)


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
    mine = Activation(np.tanh, derivative=lambda x: 1.0 - np.tanh(x) ** 2)
    ours = np.array(dual(mine)(1.0, 1.5, 0.6))
    assert ours == pytest.approx(np.array(dual("tanh")(1.0, 1.5, 0.6)), abs=1e-14)
    leaky = dual(lambda x: x if x > 0 else 0.2 * x)
    assert leaky.closed_form
    assert leaky(2.0, 2.0, 2.0)[0] == pytest.approx(1.04)
    assert dual(leaky) is leaky
    assert isinstance(leaky, Dual)


def test_hidden_kinks_are_found():
    """A corner and a jump, of the function and of its derivative: those of the declared ones."""

    def bent(x):
        return max(x - 0.377, 0.0) + (x if x < 1.37 else 0.5)

    def slope_of_bent(x):
        return (1.0 if x > 0.377 else 0.0) + (1.0 if x < 1.37 else 0.0)

    kinks = 0.377, 1.37
    for c in (0.3, -0.8, 0.99999):
        result = dual(Activation(bent, derivative=slope_of_bent))(1.0, 1.0, c, rtol=1e-8)
        declared = Activation(bent, derivative=slope_of_bent, kinks=kinks)
        np.testing.assert_allclose(result, dual(declared)(1.0, 1.0, c, rtol=1e-8), rtol=1e-9)


@pytest.mark.parametrize(
    ("bump", "rho"),
    pairs(
        [(0.0, 0.003), (0.7, 0.003), (-1.1, 0.05), (0.7, 1e-4)],
        [0.0, 0.5, 0.9, 0.999, 1 - 1e-6, 1.0, -0.999, -1.0],
        every=3,
    ),
)
@pytest.mark.parametrize(("p", "q"), [slow(1.0, 1.0), (0.3, 2.5)])
def test_narrow_bumps_need_not_be_declared(bump, rho, p, q):
    bumps, c = (bump, (-0.4, 1.3)), rho * np.sqrt(p * q)
    result = dual(gaussian_bumps.line_and_bumps(*bumps))(p, q, c)
    expected = gaussian_bumps.dual(bumps, p, q, c)
    left, right = (gaussian_bumps.dual(bumps, r, r, r) for r in (p, q))
    for k in (0, 1):
        assert abs(result[k] - expected[k]) <= 1e-6 * np.sqrt(left[k] * right[k])


def test_too_many_kinks_raise_with_the_result():
    stairs = Activation(lambda x: np.floor(5.0 * x), derivative=lambda x: 0.0)
    with pytest.raises(PartialEstimateError, match="declare kinks") as caught:
        dual(stairs)(1.0, 1.0, 0.99999)
    value, slope = caught.value.partial
    assert value.shape == slope.shape == ()
    exact, _ = dual(stairs)(1.0, 1.0, 1.0, rtol=0.1)
    assert value == pytest.approx(float(exact), rel=1e-2)


# --- Closed forms against independent integrals: by mpmath in the angle, and by Gauss and Hermite


def angle_mean(shape, p, q, c):
    """Return E f(u) f(v) for homogeneous f of degree k.

    u = √p r cos a and v = √q r cos(a − θ), with E r^2k = 2^k k! and a uniform.
    """
    degree, left, right = shape
    left, right = mpmath.mpf(left), mpmath.mpf(right)
    with mpmath.workdps(30):
        p, q, c = map(mpmath.mpf, (p, q, c))
        theta = mpmath.acos(c / mpmath.sqrt(p * q))

        def f(x):
            return (right if x > 0 else left) * abs(x) ** degree

        kinks = [-mpmath.pi / 2, mpmath.pi / 2, theta - mpmath.pi / 2, theta + mpmath.pi / 2]
        kinks = sorted({kink % (2 * mpmath.pi) for kink in kinks} | {mpmath.mpf(0), 2 * mpmath.pi})
        mean = mpmath.quad(lambda a: f(mpmath.cos(a)) * f(mpmath.cos(a - theta)), kinks)
        radial = mpmath.mpf(2) ** degree * mpmath.factorial(degree)
        return float(radial * mean / (2 * mpmath.pi) * mpmath.sqrt(p * q) ** degree)


@pytest.mark.parametrize(("name", "triple"), pairs(HOMOGENEOUS, TRIPLES))
def test_homogeneous_functions(name, triple):
    values = dual(name)(*triple)
    for value, shape in zip(values, HOMOGENEOUS[name], strict=True):
        expected = 0.0 if shape is None else angle_mean(shape, *triple)
        assert value == pytest.approx(expected, rel=1e-12, abs=1e-13)


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
    for value, shape in zip(dual(name)(3.0, 3.0, 3.0), HOMOGENEOUS[name], strict=True):
        if shape is not None:
            degree, *sides = shape
            moment = special.factorial2(2 * degree - 1) if degree else 1.0
            expected = moment * 3.0**degree * sum(float(side) ** 2 for side in sides) / 2
            assert value == pytest.approx(expected, rel=4e-16 * 8)


@pytest.mark.parametrize("name", [*ENTIRE, *HOMOGENEOUS])
def test_variance_zero(name):
    value, slope = dual(name)([0.0, 0.0], [0.0, 2.0], [0.0, 0.0])
    assert np.isfinite([value, slope]).all()
    if name in ENTIRE:
        f, _ = ENTIRE[name]
        mean = WEIGHTS @ f(np.sqrt(2.0) * NODES)
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
    of_name = dual(name)
    q = np.array([0.5, 2.0])
    # With an independent v whose function has mean m(q): V(p, q, 0) = m(p) m(q).
    value, _ = of_name(q[0], q[1], 0.0)
    mean = of_name.mean(of_name.side(q, False))
    assert mean[0] * mean[1] == pytest.approx(float(value), rel=1e-13, abs=1e-15)


@pytest.mark.parametrize("variance", [0.3, 1.0, 4.0])
@pytest.mark.parametrize("name", ["relu", "leaky_relu", "abs", "erf", "gelu", "sin"])
def test_means_by_quadrature(name, variance):
    sigma, z = bnmc.Activation.named(name), np.linspace(0.0, 12.0, 40_001)
    both = sigma(np.sqrt(variance) * z) + sigma(-np.sqrt(variance) * z)
    expected = integrate.simpson(both * np.exp(-0.5 * z * z) / np.sqrt(2.0 * np.pi), x=z)
    mean = CLOSED_FORMS[name].mean(np.array([variance]))
    np.testing.assert_allclose(mean, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("place", [0.0, 0.7])
@pytest.mark.parametrize(
    ("width", "rho"), pairs([0.03, 0.003, 0.0003], [0.5, 0.999, -0.999], every=3)
)
def test_narrow_bumps(width, place, rho):
    """tanh x + exp(−((x−c)/w)²): two of the three parts of V are Gaussian integrals."""

    def sigma(x):
        return np.tanh(x) + np.exp(-(((x - place) / width) ** 2))

    result = dual(Activation(sigma))
    side = result.side(np.ones(1), False)
    value, _, error = result.pair(side, side, np.array([[rho]]), needs_slope=False)
    # Given the bump at u, u is normal, and so is v.
    shrunk = width**2 / (width**2 + 2.0)
    mass = np.sqrt(shrunk) * np.exp(-(place**2) / (width**2 + 2.0))
    mean, spread = rho * place * 2.0 / (width**2 + 2.0), 1.0 - rho**2 * (1.0 - shrunk)
    z, weight = np.polynomial.hermite_e.hermegauss(100)
    mixed = mass * (weight @ np.tanh(mean + np.sqrt(spread) * z)) / np.sqrt(2.0 * np.pi)
    form = width**2 * np.eye(2) + 2.0 * np.array([[1.0, rho], [rho, 1.0]])
    centre = np.full(2, place)
    both = width**2 / np.sqrt(np.linalg.det(form)) * np.exp(-centre @ np.linalg.solve(form, centre))
    smooth = dual("tanh")(1.0, 1.0, rho, rtol=1e-12)[0]
    assert value[0, 0] == pytest.approx(smooth + 2.0 * mixed + both, abs=1e-11)
    assert error < 1e-9
