"""Growth laws of residual networks: iterated maps of closed form, and networks in NumPy."""

import math

import numpy as np
import numpy_network
import pytest
from mean_field_oracles import arc_cosine, erf_pair, erf_slope, pair_of_states, reach
from scipy import stats
from slow_cases import slow

import bnmc
from bnmc import Activation, Chain, MeanField, gram, simulate
from bnmc.errors import ArgumentError, PartialEstimateError
from bnmc.mean_field import CorrelationMap, isometry_rate, residual_growth


def iterated(pair, w, b, layers, norm=False, c=0.3, q=1.0):
    """Return (q, c) at some layers of h ← h + W σ(N(h)) + b, V given by `pair`."""
    result = []
    for layer in range(layers[-1]):
        inner = 1.0 if norm else q
        following = q + w * pair(inner, 1.0) + b
        c = min((q * c + w * pair(inner, c) + b) / following, 1.0)
        q = following
        if layer + 1 in layers:
            result.append((q, c))
    return np.array(result)


LAYERS = [30_000, 120_000]


def exponent(values):
    return math.log(values[1] / values[0]) / math.log(LAYERS[1] / LAYERS[0])


def test_relu():
    w, layers = 1.5, [600, 700]
    growth = residual_growth("relu", weight_variance=w)
    assert (growth.limit, growth.correlation.kind, growth.correlation.rate) == (1.0, "power", -2.0)
    run = iterated(lambda q, c: 0.5 * q * arc_cosine(c)[0], w, 0.0, layers)
    grown = math.log(run[1, 0] / run[0, 0]) / 100
    assert grown == pytest.approx(math.log(growth.variance.rate), rel=1e-12)
    assert growth.gradient.rate == growth.variance.rate
    # 1/√(1 − c) grows linearly, with a slope whose corrections are of order 1/l.
    slope = (1 / math.sqrt(1 - run[1, 1]) - 1 / math.sqrt(1 - run[0, 1])) / 100
    assert slope**-2 == pytest.approx(growth.correlation.coefficient, rel=0.02)


@pytest.mark.parametrize("b", [slow(0.0), 0.5])
def test_saturating(b):
    growth = residual_growth("erf", bias_variance=b)
    q, c = iterated(erf_pair, 1.0, b, LAYERS).T
    assert q[1] / LAYERS[1] == pytest.approx(growth.variance.coefficient, rel=0.01)
    if b == 0.0:
        # Yang and Schoenholz: the exponent is 1 − 2/π.
        assert (growth.limit, growth.correlation.rate) == (0.0, pytest.approx(2 / math.pi - 1))
        assert exponent(c) == pytest.approx(growth.correlation.rate, abs=0.005)
    else:
        a = 1.0 + b
        star = growth.limit
        assert (2 / math.pi * math.asin(star) + b) / a == pytest.approx(star, abs=1e-12)
        rate = 1 - 2 / math.pi / a / math.sqrt(1 - star**2)
        assert growth.correlation.rate == pytest.approx(-min(rate, 0.5))
    slopes = erf_slope(np.linspace(q[0], q[1], 4001), 1.0)
    gained = np.mean(np.log1p(slopes)) * (LAYERS[1] - LAYERS[0])
    expected = growth.gradient.rate * (math.sqrt(LAYERS[1]) - math.sqrt(LAYERS[0]))
    assert gained == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize(("w", "b"), [slow(1.0, 0.0), (0.3, 0.0), (2.3, 0.5)])
def test_power_of_the_gradient(w, b):
    """The logarithm of the gradient, less s √l, grows by p ln 4 from layer 25,000 to 100,000.

    Later terms are of order ln l/√l: at most .01 here.
    """
    law = residual_growth("erf", weight_variance=w, bias_variance=b).gradient
    q, grown = 1.0, [0.0]
    for _ in range(100_000):
        grown.append(grown[-1] + math.log1p(w * erf_slope(q, 1.0)))
        q += w * erf_pair(q, 1.0) + b
    beyond = grown[100_000] - grown[25_000] - law.rate * (math.sqrt(100_000) - math.sqrt(25_000))
    assert beyond == pytest.approx(law.power * math.log(4.0), abs=0.015)
    assert abs(law.power * math.log(4.0)) > 0.1


@pytest.mark.parametrize(
    ("function", "slopes", "squares"),
    [
        # ∫σ′² and ∫(1 − σ²).
        ("tanh", 4 / 3, 2.0),
        (lambda x: math.tanh(x / 300), 4 / 900, 600.0),
        (lambda x: x / math.sqrt(1.0 + x * x), 3 * math.pi / 8, math.pi),
    ],
)
def test_power_in_closed_form(function, slopes, squares):
    density, lacking = slopes / math.sqrt(2 * math.pi), squares / math.sqrt(2 * math.pi)
    law = residual_growth(function, weight_variance=1.0, bias_variance=0.5).gradient
    assert law.rate == pytest.approx(2 * density / math.sqrt(1.5), rel=1e-7)
    power = density * lacking / 1.5**2 - density**2 / 3.0
    assert law.power == pytest.approx(power, abs=1e-5)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x / (1.0 + abs(x)),
        math.atan,
        lambda x: x / (1.0 + abs(x) ** 0.9) ** (1 / 0.9),
        "step",
    ],
)
def test_gradients_without_a_power(function):
    """1 − σ² is like 1/|x| or its power .9, or σ jumps."""
    law = residual_growth(function).gradient
    assert law.power is None
    assert "o(√l)" in str(law)


@pytest.mark.parametrize(("b", "kind"), [(0.0, "chaotic"), (1.0, "ordered")])
def test_norms(b, kind):
    growth = residual_growth("erf", bias_variance=b, norm="layer")
    field = CorrelationMap("erf", bias_variance=b, norm="layer").phase()
    assert field.name == kind
    q, c = iterated(erf_pair, 1.0, b, LAYERS, norm=True).T
    assert growth.limit == field.correlation
    assert growth.variance.coefficient == pytest.approx(erf_pair(1.0, 1.0) + b, rel=1e-12)
    assert q[1] - q[0] == pytest.approx(
        growth.variance.coefficient * (LAYERS[1] - LAYERS[0]), rel=1e-9
    )
    assert exponent(np.abs(c - growth.limit)) == pytest.approx(growth.correlation.rate, abs=2e-3)
    gradient = 4 / math.pi / math.sqrt(5) / growth.variance.coefficient
    assert growth.gradient.rate == pytest.approx(gradient, rel=1e-12)


def test_a_norm_over_the_batch_at_finite_depths():
    """Published and simulated numbers: v_10, v_50, v_100, and squared gradients of 100 blocks."""
    n, depth = 64, 100
    growth = residual_growth("relu", norm="batch", batch=n, weight_variance=2.0)
    star = MeanField(Chain(512, n, "relu")).fixed_point()
    a, start = growth.centred_variance.coefficient, (n - 1) / n
    for layer, variance in ((10, 7.77249), (50, 34.92496), (100, 68.86555)):
        assert start + layer * a == pytest.approx(variance, abs=1e-5)

    def gradient(layer):
        factors = 1 + growth.gradient.rate * a / (start + a * np.arange(layer, depth))
        parts = star.b * (1 - star.c), star.b * (1 + (n - 1) * star.c)
        return ((n - 1) * factors.prod() * parts[0] + parts[1]) / n

    assert math.log(gradient(1) / gradient(depth)) == pytest.approx(5.044941, abs=1e-5)


@pytest.mark.parametrize(("skip", "gain", "bias"), [(1.0, 2**0.5, 0.0), (0.8, 1.0, 0.3)])
def test_a_norm_over_the_batch_simulated(skip, gain, bias):
    """Five standard errors, and the bias of a finite width, which is of order 1/width."""
    width, n, depth = 2000, 8, 60
    options = {"skip": skip, "gain": gain, "bias_variance": bias}
    chain = Chain(width, n, "relu", order="pre-activation", **options)
    run = simulate(chain, depth, chains=40, rng=3, every=20, observables="state_gram")
    law = residual_growth(
        "relu", norm="batch", batch=n, weight_variance=gain**2, bias_variance=bias, skip=skip
    )
    states = run["state_gram"]
    square = np.trace(states, axis1=-2, axis2=-1) / n
    common = states.mean(axis=(-2, -1))
    for values, of in ((square, law.variance), (square - common, law.centred_variance)):
        values = (values[:, 3] - values[:, 1]) / 40 if skip == 1.0 else values[:, 3]
        error = 5 * values.std() / math.sqrt(len(values)) / of.coefficient
        assert values.mean() / of.coefficient == pytest.approx(1.0, abs=error + 10 / width)
    apart = (n * common - square) / (n - 1) / square
    assert apart[:, 3].mean() == pytest.approx(law.limit, abs=0.05)


def test_skip_connections_of_other_sizes():
    """Deviations of the map Σ ← s² Σ + F(Σ) fall as the law says."""
    options = {"norm": "batch", "batch": 6, "weight_variance": 1.5, "bias_variance": 0.2}
    star = MeanField(Chain(10, 6, "tanh")).fixed_point()
    weak, plain, strong = (residual_growth("tanh", **options, skip=s) for s in (0.7, 1.0, 1.1))
    assert weak.variance.coefficient == pytest.approx(plain.variance.coefficient / 0.51)
    assert weak.correlation.rate == pytest.approx(0.49 + 0.51 * star.rate)
    assert plain.correlation.rate == pytest.approx(star.rate - 1.0)
    assert (plain.gradient.rate, weak.limit) == (star.backward_rate, plain.limit)
    assert weak.gradient.rate == pytest.approx(0.49 + 0.51 * star.backward_rate)
    assert (strong.variance.rate, strong.gradient.rate) == (pytest.approx(1.21),) * 2
    assert (strong.limit, strong.correlation.kind) == (None, "constant")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"norm": "batch"}, "batch: got None"),
        ({"batch": 5}, "batch: got 5"),
        ({"norm": "layer", "skip": 0.5}, "CorrelationMap"),
        ({"activation": "gelu", "norm": "batch", "batch": 64}, "activation: got 'gelu'"),
    ],
)
def test_refusals_of_batches(options, text):
    with pytest.raises(ArgumentError, match=text):
        residual_growth(**{"activation": "relu"} | options)


def test_relu_with_a_norm_is_logarithmic():
    growth = residual_growth("relu", weight_variance=2.0, norm="rms")
    assert (growth.correlation.kind, growth.correlation.rate) == ("logarithmic", -2.0)
    _, c = iterated(lambda q, c: 0.5 * arc_cosine(c)[0], 2.0, 0.0, LAYERS, norm=True).T
    slope = np.diff(1 / np.sqrt(1 - c))[0] / math.log(LAYERS[1] / LAYERS[0])
    # The next terms of 1 − Φ are of relative order √(1 − c), which is .05 here.
    assert slope**-2 == pytest.approx(growth.correlation.coefficient, rel=0.15)


@pytest.mark.parametrize(("name", "norm"), [("relu", "none"), ("tanh", "layer")])
def test_networks(name, norm):
    """Variances of networks in NumPy grow by the stated law, and correlations by the map."""
    width, depth, count, w = 4000, 30, 24, 0.5
    chain = bnmc.Chain(width, 2, name, norm=norm, gain=w**0.5, skip=1.0, order="pre-activation")
    law = residual_growth(name, weight_variance=w, norm=norm).variance
    rng = np.random.default_rng(5)
    grams = np.array([
        numpy_network.state_grams(chain, pair_of_states(width, 1.0, 0.3, rng), depth, rng)[-1]
        for _ in range(count)
    ])  # fmt: skip
    if law.kind == "exponential":
        expected = depth * math.log(law.rate)
    else:
        expected = math.log(1.0 + law.coefficient * depth)
    size, bias = np.log(grams[:, 0, 0]), 20.0 * depth / width
    assert abs(size.mean() - expected) <= reach(size) + bias
    run = CorrelationMap.of(chain).trajectory(depth, correlation=0.3)
    c = gram.correlation(grams)[:, 0, 1]
    assert abs(c.mean() - run.correlation[-1]) <= reach(c) + bias / 4
    assert reach(c) + bias / 4 < 0.1


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("gelu", "1.5^l | 1.0 | 399.7 l^-2"),
        ("linear", "2^l | None | constant"),
        ("sigmoid", "0.5 l | 0.789832628373442 | l^-0.481"),
    ],
)
def test_other_activations(name, text):
    growth = residual_growth(name)
    assert f"{growth.variance} | {growth.limit} | {growth.correlation}" == text


def test_identity_with_a_norm():
    growth = residual_growth("linear", norm="layer")
    laws = growth.correlation.kind, str(growth.gradient)
    assert (growth.limit, laws) == (None, ("constant", "l^1"))


@pytest.mark.parametrize("left", [-1.0, -0.3, 0.4])
def test_homogeneous_activations_with_any_two_slopes(left):
    """1 − Φ = δ − K δ^(3/2) from the dual of α x + β |x|, with α and β known; K has the laws.

    The next term of 1 − Φ is smaller by the factor δ = 1e-5; rounding is about 1e-8 of K.
    """
    w, delta = 1.5, 1e-5
    alpha, beta = 0.5 * (1 + left), 0.5 * (1 - left)
    c = 1 - delta
    of_abs = 2 / math.pi * (math.sqrt((1 - c) * (1 + c)) + c * math.asin(c))
    size = alpha**2 + beta**2
    bend = (delta - (1 - (alpha**2 * c + beta**2 * of_abs) / size)) / delta**1.5
    bent = Activation(lambda x: x if x > 0 else left * x, kinks=(0.0,))
    kappa = w * size
    growth = residual_growth(bent, weight_variance=w)
    assert growth.variance.rate == pytest.approx(1 + kappa, rel=1e-14)
    root = 2 * (1 + kappa) / (kappa * bend)
    assert growth.correlation.coefficient == pytest.approx(root**2, rel=1e-4)
    growth = residual_growth(bent, weight_variance=w, norm="rms")
    assert growth.correlation.coefficient == pytest.approx(4 / bend**2, rel=1e-4)


# --- Rates of isometry: published values, and the map of two inputs


def test_published_values():
    relu = isometry_rate("relu")
    assert relu.beta == pytest.approx(2 - 0.5 * np.pi / (np.pi - 1), rel=1e-12)
    assert relu.beta == pytest.approx(1.266529, abs=1e-6)
    assert relu.escape_rate == pytest.approx(np.pi / (np.pi - 1), rel=1e-12)
    assert isometry_rate("tanh").beta == pytest.approx(1.070, abs=1e-3)
    assert isometry_rate("linear").beta == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("name", ["tanh", "silu", "relu"])
def test_rates_are_those_of_the_map(name):
    rates = isometry_rate(name, variance=2.0)
    field = CorrelationMap(name, norm="layer", order="activation-norm", weight_variance=2.0)
    assert rates.correlation_rate == pytest.approx(float(field.slope(0.0)), rel=1e-10)
    assert rates.escape_rate == pytest.approx(float(field.slope(1.0)), rel=1e-10)
    small = float(field(1e-4)) / 1e-4
    assert rates.gap_rate == pytest.approx(small**2, rel=1e-3)


def test_activations_without_a_rate():
    with pytest.raises(ArgumentError, match="constant"):
        isometry_rate(Activation(lambda x: 1.0 + 0.0 * x))
    with pytest.raises(PartialEstimateError) as caught:
        isometry_rate(Activation(lambda x: np.floor(5.0 * x)))  # too many jumps
    assert 1.0 < caught.value.partial.beta < 2.0


def test_a_step_that_nobody_declared():
    """(E 1[z > s] z)² / Var = φ(s)²/(p(1 − p)) with p = P(z > s)."""
    s, tail = 0.377, stats.norm.sf(0.377)
    expected = stats.norm.pdf(s) ** 2 / (tail * (1.0 - tail))
    rates = isometry_rate(Activation(lambda x: 1.0 if x > s else 0.0))
    assert rates.correlation_rate == pytest.approx(expected, rel=1e-10)
