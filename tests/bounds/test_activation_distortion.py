"""The distortion of activations: closed forms, and a search of the sphere or in one variable."""

import itertools
import math

import numpy as np
import pytest
from bridging_checks import bump, wave
from scipy import optimize, spatial, stats
from slow_cases import pairs

import bnmc
from bnmc.bounds import activation_distortion, bridging

NAMED = ("linear", "relu", "leaky_relu", "abs", "tanh", "sigmoid", "sin", "erf")


NAMED += ("elu", "celu", "selu", "gelu", "silu")


def test_distortion_bounds_values_on_the_sphere_only():
    gamma = bridging.distortion(bnmc.Activation(np.cos), 4, curvature=1)
    assert gamma.upper < 1  # and cos 0 = 1


def below_envelope(sigma, n):
    """Largest gap between σ² and its least concave majorant in x², over |x| <= √n."""
    s = np.linspace(0, n, 20_001)
    phi = np.maximum(sigma(np.sqrt(s)) ** 2, sigma(-np.sqrt(s)) ** 2)
    corners = np.sort(spatial.ConvexHull(np.column_stack([s, phi])).vertices)
    chord = np.interp(s[corners], s[[0, -1]], phi[[0, -1]])
    upper = corners[phi[corners] >= chord - 1e-12]
    return (np.interp(s, s[upper], phi[upper]) - phi).max()


@pytest.mark.parametrize(("name", "n"), pairs(NAMED, [1, 2, 3, 10, 1000]))
def test_distortion_of_named_activations(name, n):
    result = bridging.distortion(name, n)
    x = result.maximiser
    assert x.shape == (n,)
    assert np.linalg.norm(x) == pytest.approx(math.sqrt(n), rel=1e-14)
    values = bnmc.Activation.named(name)(x)
    assert np.linalg.norm(values) / np.linalg.norm(x) == pytest.approx(result.lower, rel=1e-13)
    assert 0 < result.lower <= result.upper
    # Tight, except for the one entry of selu's maximiser that is off the concave envelope.
    gap = below_envelope(bnmc.Activation.named(name), n) / n if name == "selu" else 0
    assert result.upper**2 - result.lower**2 <= gap + 2e-7
    directions = np.random.default_rng(n).standard_normal((2000, n))
    points = directions * (math.sqrt(n) / np.linalg.norm(directions, axis=1, keepdims=True))
    attained = np.linalg.norm(bnmc.Activation.named(name)(points), axis=1) / math.sqrt(n)
    assert attained.max() <= result.upper


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("linear", 1), ("relu", 1), ("leaky_relu", 1), ("abs", 1), ("celu", 1), ("elu", 1),
        ("tanh", math.tanh(1)), ("sigmoid", 1 / (1 + math.exp(-1))), ("sin", math.sin(1)),
        ("erf", math.erf(1)), ("gelu", stats.norm.cdf(math.sqrt(7))),
        ("silu", 1 / (1 + math.exp(-math.sqrt(7)))),
    ],
)  # fmt: skip
def test_distortion_in_closed_form(name, expected):
    """σ(x)²/… concave in x²: all entries ±1; convex: one entry √n, the others 0."""
    result = bridging.distortion(name, 7)
    assert result.lower == pytest.approx(expected, rel=1e-9)
    assert result.lower <= expected * (1 + 1e-14)
    assert result.upper >= expected * (1 - 1e-14)


@pytest.mark.parametrize(
    ("given", "n"), pairs([("selu", None), ("gelu", None), (wave, 9), (bump, 16)], [2, 3])
)
def test_distortion_against_a_search_of_the_sphere(given, n):
    """All local maxima found from a fine net of the sphere are below; the largest is attained."""
    function, curvature = given
    sigma = bnmc.chain.activations.as_activation(function)
    result = bridging.distortion(sigma, n, curvature=curvature)

    def point(angles):
        x = [math.sqrt(n)]
        for angle in np.atleast_1d(angles):
            x = [*x[:-1], x[-1] * math.cos(angle), x[-1] * math.sin(angle)]
        return np.array(x)

    def height(angles):
        return np.sum(np.square(sigma(point(angles)))) / n

    turns = np.linspace(-math.pi, math.pi, 721 if n == 2 else 91)
    net = list(itertools.product(turns, repeat=n - 1))
    points = np.array([point(angles) for angles in net])
    heights = np.sum(np.square(sigma(points)), axis=1) / n
    best = max(
        -optimize.minimize(
            lambda angles: -height(angles), net[k], method="Nelder-Mead",
            options={"xatol": 1e-9, "fatol": 1e-13},
        ).fun
        for k in np.argsort(heights)[-12:]
    )  # fmt: skip
    assert math.sqrt(best) <= result.upper
    assert result.lower == pytest.approx(math.sqrt(best), rel=1e-6)


def spike(x):
    return 5.0 if x > 1.5 else 0.0


def step(x):
    return 2.0 if x >= 0.3 else 0.0


@pytest.mark.parametrize(
    ("function", "kinks", "lower", "upper"),
    [
        (spike, (1.5,), 2.5, 5 / 1.5),
        (step, (0.3,), 2, 2),
        (step, (0.3, float(np.nextafter(0.3, 1))), 2, 2),
    ],
)
def test_distortion_of_functions_that_jump(function, kinks, lower, upper):
    """At n = 4 one entry fits beyond 1.5, where duality would have 4/1.5² = 1.78 of them."""
    result = bridging.distortion(bnmc.Activation(function, kinks=kinks), 4, curvature=0)
    assert result.lower == pytest.approx(lower)
    assert result.upper == pytest.approx(upper, rel=1e-8)


@pytest.mark.parametrize("name", NAMED)
def test_curvatures_of_named_activations(name):
    """Second differences on a fine grid on both sides of 0: below the constant, and near it."""
    sigma, curvature = bnmc.Activation.named(name), activation_distortion.CURVATURES[name]
    h = 1e-3

    def largest_second_difference(x):
        return (np.abs(sigma(x + h) - 2 * sigma(x) + sigma(x - h)) / h**2).max()

    for start, stop in ((-30.0, 0.0), (0.0, 30.0)):
        x = np.linspace(start + h, stop - h, 60_001)
        # Rounding of σ <= 60: 4 ulp of it over h².
        assert largest_second_difference(x) <= curvature + 1e-7
    if name in ("linear", "relu", "leaky_relu", "abs"):
        assert curvature == 0
    else:
        x = np.linspace(-5, 5, 200_001) if name not in ("elu", "celu", "selu") else np.array([-h])
        assert largest_second_difference(x) >= curvature * (1 - 2e-3)


def test_distortion_of_many_samples_stops_in_time():
    """A flat maximum needs more cells than allowed, so the bound is wider, but holds."""
    result = bridging.distortion("celu", 10**6, curvature=3.0)
    assert 1 <= result.upper <= 1 + 1e-3
    assert result.lower == pytest.approx(1)


def affine(x):
    return 1.0 + x / 2


@pytest.mark.parametrize("slope", [-0.3, 0.0, 0.2, 0.55, 0.8, 2.0])
@pytest.mark.parametrize(
    ("function", "curvature"), [(affine, 0), (math.tanh, 0.76981), (wave, 9), (bump, 16)]
)
def test_the_certified_maximum_in_one_variable(function, curvature, slope):
    """The bound of σ(x)² − slope x² is at least the maximum, and within the requested gap."""
    reach = 3.0
    sigma = bnmc.chain.activations.as_activation(function)

    def height(x):
        return function(x) ** 2 - slope * x * x

    x = np.linspace(-reach, reach, 3001)
    start = x[np.argmax([height(point) for point in x])]
    nearby = np.clip([start - 0.002, start + 0.002], -reach, reach)
    inside = -optimize.minimize_scalar(
        lambda point: -height(point), bounds=nearby, method="bounded", options={"xatol": 1e-12}
    ).fun
    exact = max(inside, height(-reach), height(reach))
    bound = activation_distortion.largest_excess(sigma, reach, slope, curvature)
    assert exact <= bound <= exact + 1e-7
