"""The maps of variance and correlation: closed forms, other implementations, wide networks."""

import math

import gaussian_bumps
import numpy as np
import numpy_network
import pytest
from mean_field_oracles import arc_cosine, erf_pair, erf_slope, pair_of_states, reach
from scipy.optimize import brentq
from slow_cases import slow

import bnmc
from bnmc import Activation, gram
from bnmc._kernels.scalar.codes import NORM_NONE
from bnmc.chain.norms import Norm
from bnmc.errors import ArgumentError, ArgumentTypeError, PartialEstimateError
from bnmc.infinite_width import nngp
from bnmc.mean_field import CorrelationMap

# --- closed forms


@pytest.mark.parametrize(("w", "b"), [(3.0, 0.1), (0.8, 0.2)])
def test_erf(w, b):
    q = brentq(lambda q: w * erf_pair(q, 1.0) + b - q, 1e-3, 1e3, xtol=1e-15)
    field = CorrelationMap("erf", weight_variance=w, bias_variance=b)
    (point,) = field.variance_fixed_points()
    assert abs(point.variance / q - 1) <= point.error + 1e-14
    slope = w * 4 / np.pi / ((1 + 2 * q) * np.sqrt(1 + 4 * q))
    assert point.slope == pytest.approx(slope, rel=1e-10)
    phase = field.phase()
    gradient = w * 4 / np.pi / np.sqrt(1 + 4 * q)
    assert phase.backward_rate == pytest.approx(gradient, rel=1e-12)
    assert phase.gradient_depth == pytest.approx(1 / abs(math.log(gradient)), rel=1e-10)
    assert phase.variance_depth == pytest.approx(-1 / math.log(slope), rel=1e-9)
    c = np.array([-1.0, -0.3, 0.0, 0.9, 1.0])
    assert field(c) == pytest.approx((w * erf_pair(q, c) + b) / q, rel=1e-12, abs=1e-14)
    assert field.slope(c) == pytest.approx(w * erf_slope(q, c), rel=1e-11)
    if gradient < 1:
        assert (phase.name, phase.correlation) == ("ordered", 1.0)
        assert phase.correlation_depth == pytest.approx(phase.gradient_depth)
        return
    star = brentq(lambda c: (w * erf_pair(q, c) + b) / q - c, 0.0, 0.99, xtol=1e-15)
    assert (phase.name, phase.correlation) == ("chaotic", pytest.approx(star, abs=1e-12))
    depth = -1 / math.log(w * erf_slope(q, star))
    assert phase.correlation_depth == pytest.approx(depth, rel=1e-10)
    inner, top = field.fixed_points()
    assert (inner.stable, top.stable, top.correlation) == (True, False, 1.0)
    assert abs(inner.correlation - star) <= inner.error + 1e-14


def test_series_and_closed_form_agree():
    series = Activation(lambda x: math.erf(x))
    for options in ({"weight_variance": 3.0, "bias_variance": 0.1}, {"norm": "rms", "eps": 0.1}):
        closed, other = (CorrelationMap(name, **options) for name in ("erf", series))
        c = np.linspace(-1.0, 1.0, 9)
        assert other(c) == pytest.approx(closed(c), abs=1e-12)
        assert other.slope(c) == pytest.approx(closed.slope(c), rel=1e-9)
        for a, b in zip(closed.fixed_points(), other.fixed_points(), strict=True):
            assert abs(a.correlation - b.correlation) <= a.error + b.error
            assert a.slope == pytest.approx(b.slope, rel=1e-9)


def test_relu():
    edge = CorrelationMap("relu", weight_variance=2.0)
    assert (edge.phase(start=3.0).variance, edge.phase().name) == (3.0, "critical")
    assert edge.variance_fixed_points() == ()
    assert math.isinf(edge.phase().correlation_depth)
    assert math.isinf(edge.phase().gradient_depth)
    c = np.array([-0.5, 0.2])
    assert edge(c) == pytest.approx(arc_cosine(c)[0], rel=1e-13)
    for w, b, name, variance in (
        (1.5, 0.1, "ordered", 0.4),
        (1.5, 0.0, "ordered", 0.0),
        (2.5, 0.0, "chaotic", math.inf),
        (2.5, 0.1, "chaotic", math.inf),
        (2.0, 0.1, "critical", math.inf),
    ):
        phase = CorrelationMap("relu", weight_variance=w, bias_variance=b).phase()
        assert (phase.name, phase.correlation) == (name, 1.0)
        assert phase.variance == pytest.approx(variance)
        assert phase.backward_rate == pytest.approx(w / 2, rel=1e-14)


@pytest.mark.parametrize(
    ("options", "name", "correlation", "backward_rate"),
    [
        ({"norm": "layer"}, "critical", 1.0, 1.0),
        ({"norm": "group", "bias_variance": 0.1}, "ordered", 1.0, 1 / 1.2),
        ({"norm": "layer", "order": "activation-norm"}, "chaotic", 0.0, np.pi / (np.pi - 1)),
        ({"norm": "rms", "order": "activation-norm"}, "critical", 1.0, 1.0),
    ],
)
def test_relu_with_a_norm(options, name, correlation, backward_rate):
    phase = CorrelationMap("relu", **options).phase()
    assert (phase.name, phase.correlation) == (name, correlation)
    assert phase.backward_rate == pytest.approx(backward_rate, rel=1e-12)


def test_the_bias_of_a_linear_network_wins_if_weights_do_not_grow():
    """q_{l+1} = w q_l + b and so of covariances: correlations tend to 1 for w ≤ 1 if b > 0."""
    for w, b, correlation in (
        (0.9, 0.0, None), (1.0, 0.0, None), (1.1, 0.0, None),
        (0.9, 0.1, 1.0), (1.0, 0.1, 1.0), (1.1, 0.1, None),
    ):  # fmt: skip
        phase = CorrelationMap("linear", weight_variance=w, bias_variance=b).phase()
        assert phase.correlation == correlation


def test_odd_functions_without_bias():
    points = CorrelationMap("tanh", norm="layer").fixed_points()
    assert [point.correlation for point in points] == [-1.0, 0.0, 1.0]
    assert [point.stable for point in points] == [False, True, False]
    assert points[0].slope == pytest.approx(points[2].slope)


def test_networks_that_become_linear():
    for w, name in ((0.9, "ordered"), (1.0, "critical")):
        phase = CorrelationMap("tanh", weight_variance=w).phase()
        assert (phase.name, phase.variance, phase.correlation) == (name, 0.0, None)
        assert phase.backward_rate == pytest.approx(w, rel=1e-14)
    assert CorrelationMap("linear").phase().correlation is None
    with pytest.raises(ArgumentError, match="every correlation is a fixed point"):
        CorrelationMap("linear").fixed_points()


def test_several_attractors():
    # exp: q = σ_w² exp(2q) has two solutions, the larger one unstable.
    field = CorrelationMap("exp", weight_variance=0.1)
    low, high = field.variance_fixed_points()
    for point in (low, high):
        assert point.variance == pytest.approx(0.1 * math.exp(2 * point.variance), rel=1e-12)
        assert point.slope == pytest.approx(2 * point.variance, rel=1e-10)
    assert (low.stable, high.stable) == (True, False)
    assert field.phase().variance == low.variance
    beyond = field.phase(start=2.0)
    assert (beyond.variance, beyond.backward_rate) == (math.inf, math.inf)


@pytest.mark.parametrize("distance", [3e-4, 1e-9])
def test_two_fixed_points_that_nearly_coincide(distance):
    """exp: 2q exp(−2q) = 2σ_w² ≤ 1/e; near it, the series of both solutions around q = 1/2.

    Their ratios are 1.05 and 1 + 9e-5; the search has points at ratios of 1.33.
    """
    w = (1 - distance) / (2 * math.e)
    points = CorrelationMap("exp", weight_variance=w).variance_fixed_points()
    series = [0.5 + sign * math.sqrt(distance / 2) + distance / 3 for sign in (-1, 1)]
    variances = [point.variance for point in points]
    assert variances == pytest.approx(series, abs=distance**1.5 + 1e-10)
    assert [point.stable for point in points] == [True, False]
    w = (1 + distance) / (2 * math.e)
    assert CorrelationMap("exp", weight_variance=w).variance_fixed_points() == ()


def test_a_variance_map_that_decreases():
    # V(q) = E exp(−2x²) = 1/√(1 + 4q)
    field = CorrelationMap(Activation(lambda x: np.exp(-x * x)), weight_variance=50.0)
    phase, q = field.phase(), brentq(lambda q: 50 / np.sqrt(1 + 4 * q) - q, 1.0, 50.0, xtol=1e-14)
    assert phase.variance == pytest.approx(q, rel=1e-12)
    assert phase.variance_rate == pytest.approx(-2 * q / (1 + 4 * q), rel=1e-9)
    run = field.trajectory(40, correlation=0.0, rtol=1.0)
    assert run.variance[-1] == pytest.approx(q, rel=1e-9)


def test_a_jump_is_chaotic():
    phase = CorrelationMap("step").phase()
    assert (phase.name, phase.backward_rate) == ("chaotic", math.inf)
    star = brentq(lambda c: 0.5 + np.arcsin(c) / np.pi - c, 0.1, 0.9, xtol=1e-15)
    assert phase.correlation == pytest.approx(star, abs=1e-12)
    assert phase.gradient_depth == 0.0


def test_gradients_that_vanish_in_one_layer_have_no_depth():
    """1/|ln χ| tends to 0 if χ does; it is infinite at χ = 1, as of a linear network."""
    constant = CorrelationMap(Activation(lambda x: 0.0 * x), bias_variance=0.5).phase()
    assert (constant.name, constant.backward_rate) == ("ordered", 0.0)
    assert constant.gradient_depth == 0.0
    linear = CorrelationMap("linear", weight_variance=1.0).phase()
    assert (linear.name, linear.backward_rate) == ("critical", 1.0)
    assert linear.gradient_depth == math.inf


@pytest.mark.parametrize("q", [1e-300, 1e-150, 1e150, 1e300])
def test_relu_at_the_ends_of_float64(q):
    """Correlations do not depend on the scale, even if a norm divides by E σ²."""
    for norm in ("none", "layer"):
        field = CorrelationMap("relu", weight_variance=1.5, norm=norm, order="activation-norm")
        at, same = ([float(f(0.3, variance=v)) for f in (field, field.slope)] for v in (q, 1.0))
        assert at == pytest.approx(same, rel=1e-12)
        points = [field.fixed_points(variance=v)[-1].slope for v in (q, 1.0)]
        assert points[0] == pytest.approx(points[1], rel=1e-12)


@pytest.mark.parametrize("size", [1e-160, 1e-170])
@pytest.mark.parametrize(("norm", "order"), [
    ("none", "norm-activation"), ("rms", "norm-activation"), ("layer", "activation-norm"),
])  # fmt: skip
def test_activations_whose_squares_underflow(norm, order, size):
    """E σ² is 4e-321, of three digits, and its inverse infinite; or it is 0."""
    tiny = Activation(lambda x: size * math.tanh(x))
    field = CorrelationMap(tiny, norm=norm, order=order)
    calls = [field, field.slope, lambda c, **at: field.fixed_points(**at)]
    for call in calls:
        with pytest.raises(ArgumentError, match="normal float64 number|not constant"):
            call(0.5, variance=1.0)
    if norm == "none":  # the bias hides σ, of which no digit is certain
        beside = CorrelationMap(tiny, bias_variance=1.0)
        with pytest.raises(PartialEstimateError):
            beside(0.5)


# --- other implementations


@pytest.mark.parametrize("skip", [0.0, 0.7])
@pytest.mark.parametrize(
    ("norm", "order"),
    [
        ("none", "norm-activation"),
        ("rms", "norm-activation"),
        ("layer", "activation-norm"),
        ("rms", "activation-norm"),
    ],
)
def test_trajectories_are_kernels_of_infinite_width(norm, order, skip):
    c, options = 0.3, {"norm": norm, "order": order, "skip": skip}
    options |= {"weight_variance": 1.7, "bias_variance": 0.2}
    x = np.array([[1.0, c], [0.0, math.sqrt(1 - c * c)]])
    kernel = nngp(x, 4, activation="gelu", **options)
    first = nngp(x, 0, weight_variance=1.7, bias_variance=0.2)
    start = {"variance": first[0, 0], "correlation": first[0, 1] / first[0, 0]}
    run = CorrelationMap("gelu", **options).trajectory(4, **start)
    assert run.variance[-1] == pytest.approx(kernel[0, 0], rel=1e-12)
    assert run.correlation[-1] == pytest.approx(kernel[0, 1] / kernel[0, 0], rel=1e-12)
    assert run.layers.tolist() == [0, 1, 2, 3, 4]


def test_chains():
    layer = Norm("layer", NORM_NONE, "features", centred=True)
    rms = Norm("rms", NORM_NONE, "features", centred=False)
    chain = bnmc.Chain(10, 2, "tanh", norm="none", gain=1.5, skip=0.5, eps=0.0)
    plain = CorrelationMap.of(chain)
    same = CorrelationMap("tanh", weight_variance=2.25, skip=0.5)
    assert float(plain(0.2)) == float(same(0.2))
    for norm, name in ((layer, "layer"), (rms, "rms")):
        made = CorrelationMap.of(bnmc.Chain(10, 2, "tanh", norm=norm, gain=1.5, eps=0.1))
        named = CorrelationMap("tanh", weight_variance=2.25, norm=name, eps=0.1)
        assert float(made(0.2)) == float(named(0.2))
    with pytest.raises(ArgumentError, match="MeanField"):
        CorrelationMap.of(bnmc.Chain(10, 2, "tanh"))
    with pytest.raises(ArgumentTypeError):
        CorrelationMap.of("tanh")


# --- wide networks

NETWORKS, WIDTH = 50, 16_000
#: The maps have errors of order 1/width at finite width; this many times 1/width is allowed per
#: layer.  Curvatures and slopes of the maps here are at most about 3.
BIAS = 20.0 / WIDTH


@pytest.mark.parametrize(
    ("name", "options", "start"),
    [
        # The map of a slow case has a norm, a skip connection and a bias of others.
        pytest.param("tanh", {"gain": 1.2**0.5, "bias_variance": 0.3}, 0.9999,
                     marks=pytest.mark.slow),
        ("tanh", {"gain": 2.5**0.5, "bias_variance": 0.05}, 0.9999),
        pytest.param("tanh", {"gain": 2.5**0.5, "bias_variance": 0.05}, 0.0,
                     marks=pytest.mark.slow),
        ("relu", {"norm": "group(4)", "order": "activation-norm", "bias_variance": 0.1}, 0.999),
        pytest.param("relu", {"norm": "layer", "gain": 3.0**0.5, "bias_variance": 0.1, "skip": 0.5},
                     0.5, marks=pytest.mark.slow),
        ("tanh", {"norm": "rms", "order": "pre-activation", "skip": 1.0}, 0.99),
    ],
)  # fmt: skip
def test_networks(name, options, start):
    depth, variance = 6, 0.8
    chain = bnmc.Chain(WIDTH, 2, name, **{"norm": "none", **options})
    run = CorrelationMap.of(chain).trajectory(depth, correlation=start, variance=variance)
    rng = np.random.default_rng(20261123)
    grams = np.array([
        numpy_network.state_grams(chain, pair_of_states(WIDTH, variance, start, rng), depth, rng)
        for _ in range(NETWORKS)
    ])  # fmt: skip
    # Logarithms: their slopes are those of the depth scales where 1 − c is small.
    gaps = 1.0 - gram.correlation(grams[:, 1:])[..., 0, 1]
    for samples, expected in ((grams[:, 1:, 0, 0], run.variance), (gaps, 1.0 - run.correlation)):
        logarithms = np.log(samples)
        allowed = reach(logarithms) + BIAS * np.arange(1, depth + 1)
        assert (np.abs(logarithms.mean(axis=0) - np.log(expected[1:])) <= allowed).all()
    assert allowed.max() < 0.1


def test_the_depth_scale_of_correlations():
    """Nearly equal inputs separate or meet at the rate χ, over the depth scales of the phase."""
    rng, start, depth = np.random.default_rng(3), 1.0 - 1e-5, 6
    for w, b, direction in ((1.2, 0.3, -1.0), (3.0, 0.05, 1.0)):
        chain = bnmc.Chain(WIDTH, 2, "tanh", norm="none", gain=w**0.5, bias_variance=b)
        phase, rates = CorrelationMap.of(chain).phase(), []
        for _ in range(NETWORKS):
            h = pair_of_states(WIDTH, phase.variance, start, rng)
            gap = 1.0 - gram.correlation(numpy_network.state_grams(chain, h, depth, rng))[:, 0, 1]
            rates.append(np.log(gap[-1] / gap[0]) / depth)
        # Φ is curved: over these layers 1 − c stays below 1e-4, so that the slope changes by 1e-3.
        allowed = reach(rates) + BIAS + 1e-3
        assert allowed < 0.02
        assert abs(np.mean(rates) - direction / phase.gradient_depth) <= allowed


@pytest.mark.parametrize(
    "options",
    [
        {"norm": "none", "gain": 2.5**0.5, "bias_variance": 0.05},
        slow({"norm": "layer"}),
        {"norm": "layer", "order": "activation-norm", "bias_variance": 0.2},
        {"norm": "rms", "order": "pre-activation", "skip": 1.0},
    ],
)
def test_gradients_of_networks(options):
    """The squared gradient norm of networks with weights grows by the factors of a trajectory."""
    width, depth, variance = 300, 5, 0.8
    chain = bnmc.Chain(width, 1, "tanh", **options)
    run = CorrelationMap.of(chain).trajectory(depth, correlation=0.0, variance=variance)
    rng, logarithms = np.random.default_rng(11), []
    for _ in range(40):
        h = rng.standard_normal((width, 1))
        h *= math.sqrt(variance / np.mean(h**2))
        networks = numpy_network.Networks(chain, depth, 1, rng, initial=h)
        deltas, _ = networks.backward(rng.standard_normal((1, width, 1)))
        logarithms.append(np.log(np.sum(deltas[0] ** 2) / np.sum(deltas[-1] ** 2)))
    # E log of a mean over `width` entries is below its limit by about their variance / (2 width):
    # at most 10 per layer is allowed, and as much for the forward pass.
    allowed = reach(logarithms) + 2 * 5.0 * depth / width
    assert abs(np.mean(logarithms) - np.log(run.backward_rate[1:]).sum()) <= allowed
    assert allowed < 0.5


# --- errors


def test_kinks_without_closed_form_raise_with_the_result():
    stairs = Activation(lambda x: np.floor(10.0 * x))  # more jumps than are searched for
    field = CorrelationMap(stairs, norm="rms")
    with pytest.raises(PartialEstimateError, match="declare the kinks") as caught:
        field(0.99999, rtol=1e-12)
    assert caught.value.partial == pytest.approx(1.0, abs=1e-2)
    with pytest.raises(PartialEstimateError):
        field.trajectory(1, correlation=0.99999, rtol=1e-12)
    with pytest.raises(PartialEstimateError) as caught:
        CorrelationMap(stairs, norm="rms").phase()
    assert caught.value.partial.name == "chaotic"
    with pytest.raises(PartialEstimateError):
        CorrelationMap(stairs, norm="rms", bias_variance=0.1).fixed_points(rtol=1e-9)


def test_a_kink_near_correlation_one():
    """V of selu is that of its two halves: V(1) − V(c) = E (σ(u) − σ(v))² / 2."""
    field, c = CorrelationMap("selu", norm="rms"), 0.99999
    x, weights = np.polynomial.hermite_e.hermegauss(101)
    scale, alpha = 1.0507009873554805, 1.6732632423543772
    z = np.linspace(-12.0, 12.0, 400_001)
    selu = scale * np.where(z > 0, z, alpha * np.expm1(np.minimum(z, 0.0)))
    density = np.exp(-0.5 * z * z) * (z[1] - z[0]) / np.sqrt(2 * np.pi)
    moved = [np.interp(c * z + math.sqrt(1 - c * c) * y, z, selu) for y in x]
    mean = sum(
        w * (density @ ((selu - other) ** 2)) for w, other in zip(weights, moved, strict=True)
    )
    expected = 1.0 - 0.5 * mean / weights.sum() / (density @ selu**2)
    assert float(field(c, rtol=1e-9)) == pytest.approx(expected, abs=1e-9)
    assert float(field(1.0)) == 1.0
    run = field.trajectory(1, correlation=c, rtol=1e-9)
    assert run.correlation[1] == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("bump", [slow((0.0, 0.003)), (0.7, 0.003), slow((-1.1, 0.05))])
def test_narrow_bumps_need_not_be_declared(bump):
    bumps, c = (bump, (-0.4, 1.3)), np.array([-1.0, -0.999, 0.0, 0.5, 0.99, 0.99999, 1.0])
    sigma = gaussian_bumps.line_and_bumps(*bumps)
    expected = (
        np.array([gaussian_bumps.dual(bumps, 1.0, 1.0, x) for x in c]).T
        / (gaussian_bumps.dual(bumps, 1.0, 1.0, 1.0)[0])
    )
    field = CorrelationMap(sigma)
    assert field(c, variance=1.0) == pytest.approx(expected[0], abs=1e-6)
    assert field.slope(c, variance=1.0) == pytest.approx(expected[1], rel=1e-6, abs=1e-6)
    run = field.trajectory(1, correlation=c, variance=1.0)
    assert run.correlation[1] == pytest.approx(expected[0], abs=1e-6)
    # The map of a function without its derivative has the same values.
    assert CorrelationMap(sigma.function)(c, variance=1.0) == pytest.approx(expected[0], abs=1e-6)


@pytest.mark.parametrize("norm", ["none", "rms"])
def test_kinks_need_not_be_declared(norm):
    def bent(x):
        return np.tanh(x) if x < 0.377 else np.tanh(0.377) + 3 * (x - 0.377)

    options = {"norm": norm, "weight_variance": 0.2, "bias_variance": 0.1}
    result = CorrelationMap(Activation(bent), **options)
    declared = CorrelationMap(Activation(bent, kinks=(0.377,)), **options)
    assert result.phase().error < 1e-11
    assert result.phase().backward_rate == pytest.approx(declared.phase().backward_rate, rel=1e-11)
    c = np.array([-0.9, 0.3, 0.99])
    np.testing.assert_allclose(result(c, rtol=1e-8), declared(c, rtol=1e-8), rtol=0, atol=1e-10)


# --- networks


def layers_that_differ():
    tanh = bnmc.Chain(20, 2, "tanh", norm="layer", skip=0.7, order="pre-activation", eps=0.2)
    relu = bnmc.Chain(20, 2, "relu", norm="none", gain=1.3, bias_variance=0.3)
    gelu = bnmc.Chain(20, 2, "gelu", norm="rms", order="activation-norm", skip=-0.4)
    return relu.repeat(1) + tanh.repeat(2) + gelu.repeat(1) + relu.repeat(1)


def test_paths_of_networks_are_those_of_the_mean_field():
    network, q, c = layers_that_differ(), 1.7, 0.4
    run = CorrelationMap.path(network, variance=q, correlation=c)
    start = q * np.array([[1.0, c], [c, 1.0]])
    states = bnmc.MeanField(network).trajectory(covariance=start).covariance
    np.testing.assert_allclose(run.variance, states[:, 0, 0], rtol=1e-9)
    np.testing.assert_allclose(run.correlation, states[:, 0, 1] / states[:, 0, 0], rtol=1e-8)
    assert run.backward_rate.shape == (5,)


def test_a_path_of_one_chain_is_its_trajectory():
    chain = bnmc.Chain(20, 2, "gelu", norm="none", gain=1.2, bias_variance=0.1)
    run = CorrelationMap.path(chain.repeat(4), correlation=[0.1, 0.9], variance=2.0)
    expected = CorrelationMap.of(chain).trajectory(4, correlation=[0.1, 0.9], variance=2.0)
    for name in ("variance", "correlation", "backward_rate"):
        np.testing.assert_array_equal(getattr(run, name), getattr(expected, name))


def test_networks_without_a_path_of_pairs():
    chain = bnmc.Chain(20, 2, "relu", norm="none")
    block = bnmc.Residual(chain.repeat(2))
    with pytest.raises(ArgumentError, match="network: .*without residual blocks"):
        CorrelationMap.path(bnmc.Network((chain, 0), block), correlation=0.5)
    with pytest.raises(ArgumentError, match="norm: .*MeanField"):
        CorrelationMap.path(bnmc.Chain(20, 2).repeat(2), correlation=0.5)
    with pytest.raises(ArgumentTypeError, match="network"):
        CorrelationMap.path(chain, correlation=0.5)
    with pytest.raises(ArgumentTypeError, match="meaning for one repeated layer only"):
        CorrelationMap.of(layers_that_differ())
