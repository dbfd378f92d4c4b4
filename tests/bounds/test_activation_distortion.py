"""The distortion of activations: closed forms, a search of the sphere, bad arguments."""

import itertools
import math

import numpy as np
import pytest
from bridging_checks import bump, wave
from scipy import optimize, spatial, stats
from slow_cases import pairs

import bnmc
from bnmc.bounds import activation_distortion, bridging
from bnmc.errors import ArgumentError, ArgumentTypeError

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


@pytest.mark.parametrize("name", NAMED)
@pytest.mark.parametrize("n", [1, 2, 3, 10, 1000])
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


def test_distortion_of_functions_that_jump():
    """At n = 4 one entry fits beyond 1.5, where duality would have 4/1.5² = 1.78 of them."""
    result = bridging.distortion(bnmc.Activation(spike, kinks=(1.5,)), 4, curvature=0)
    assert result.lower == pytest.approx(2.5)
    assert result.upper == pytest.approx(5 / 1.5, rel=1e-8)
    result = bridging.distortion(bnmc.Activation(step, kinks=(0.3,)), 4, curvature=0)
    assert (result.lower, result.upper) == (pytest.approx(2), pytest.approx(2, rel=1e-8))
    twice = bnmc.Activation(step, kinks=(0.3, float(np.nextafter(0.3, 1))))
    assert bridging.distortion(twice, 4, curvature=0).upper == pytest.approx(2, rel=1e-8)


@pytest.mark.parametrize("name", NAMED)
def test_curvatures_of_named_activations(name):
    """Second differences on a fine grid on both sides of 0: below the constant, and near it."""
    sigma, known = bnmc.Activation.named(name), activation_distortion.CURVATURES[name]
    h = 1e-3
    for start, stop in ((-30.0, 0.0), (0.0, 30.0)):
        x = np.linspace(start + h, stop - h, 60_001)
        second = np.abs(sigma(x + h) - 2 * sigma(x) + sigma(x - h)) / h**2
        assert second.max() <= known + 1e-7  # rounding of σ <= 60: 4 ulp of it over h²
    if name in ("linear", "relu", "leaky_relu", "abs"):
        assert known == 0
    else:
        x = np.linspace(-5, 5, 200_001) if name not in ("elu", "celu", "selu") else np.array([-h])
        second = np.abs(sigma(x + h) - 2 * sigma(x) + sigma(x - h)) / h**2
        assert second.max() >= known * (1 - 2e-3)


def test_distortion_of_many_samples_stops_in_time():
    """A flat maximum needs more cells than allowed, so the bound is wider, but holds."""
    result = bridging.distortion("celu", 10**6, curvature=3.0)
    assert 1 <= result.upper <= 1 + 1e-3
    assert result.lower == pytest.approx(1)


def narrow(x):
    return x + 3 * math.exp(-((x - 1.2345) ** 2) * 1e3)


def two_needles(x):
    """Peaks narrower than the first cells; the finer grid of the lower bound detects both."""
    return 0.5 + math.exp(-((x - 0.7774) ** 2) * 1e6) + math.exp(-((x - 1.2316) ** 2) * 1e6)


def pole(x):
    return 1 / (x - 1.0001) ** 8 if x > 1.0001 else 1e200


@pytest.mark.parametrize(
    ("activation", "batch", "curvature", "error", "named"),
    [
        (narrow, 5, 0.1, ArgumentError, "curvature"),
        (two_needles, 5, 0, ArgumentError, "curvature"),
        (math.tanh, 5, 0.1, ArgumentError, "curvature"),
        (math.tanh, 5, None, ArgumentTypeError, "curvature"),
        ("tanh", 5, -1, ArgumentError, "curvature"),
        ("tanh", 5, np.inf, ArgumentError, "curvature"),
        ("tanh", 0, None, ArgumentError, "batch"),
        ("tanh", 2.5, None, ArgumentTypeError, "batch"),
        ("tahn", 5, None, ArgumentError, "activation"),
        (3, 5, None, ArgumentTypeError, "activation"),
        (math.log, 5, 1, ArgumentError, "activation"),
        (pole, 5, 1, ArgumentError, "activation"),
    ],
)
def test_bad_arguments_of_distortion(activation, batch, curvature, error, named):
    with pytest.raises(error) as caught:
        bridging.distortion(activation, batch, curvature=curvature)
    assert caught.value.argument == named
