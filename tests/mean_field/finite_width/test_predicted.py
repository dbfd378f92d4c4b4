"""Predicted fluctuations against closed forms and simulation, and what raises."""

import math
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
from mean_field_oracles import mean_field, normal_points
from slow_cases import some

import bnmc
from bnmc.chain import Activation, Chain
from bnmc.errors import ArgumentError, ArgumentTypeError, NotMixing, PartialEstimateError
from bnmc.mean_field import (
    CorrelationMap,
    FixedPoint,
    Fluctuations,
    MeanField,
    PairFluctuations,
    Phase,
)
from bnmc.mean_field.finite_width import bias, joint_moments, predicted
from bnmc.mean_field.finite_width.predicted import FINE, pair_moments
from bnmc.mean_field.fixed_point import uncentred
from bnmc.mean_field.fixed_point.symmetric import fixed_point_and_errors


def fluctuations(activation, batch, **options) -> Fluctuations:
    return mean_field(activation, batch, **options).fluctuations()


@pytest.mark.parametrize("n", [2, 3, 4, 5, 10, 100, 1000])
def test_linear_centred(n):
    m = n - 1
    law = fluctuations("linear", n)
    expected = n**2 * (m - 1) * (m + 2) ** 2 / (4 * m * (m + 1))
    prediction = law.mean_square(1)
    assert prediction.value == pytest.approx(expected, rel=1e-9, abs=1e-12)
    assert prediction.stderr <= 1e-5 * prediction.value + 1e-12


@pytest.mark.parametrize("n", [2, 3, 5, 50])
def test_linear_uncentred(n):
    law = fluctuations("linear", n, norm="batch-uncentred")
    # G has trace n, so that G/Tr G − I/n is (G − G*)/n.
    expected = (n - 1) * (n + 2) ** 2 / (4 * n * (n + 1))
    assert law.mean_square(1).value / n**2 == pytest.approx(expected, rel=1e-10)
    # All G have the same trace.
    assert law.mean_distance(300).value == pytest.approx(n * law.gap(300).value, rel=1e-10)
    # The mean norm is at most the root mean square, and of many components nearly equal.
    ratio = law.gap(300).value / np.sqrt(expected / 300)
    assert (0.99 if n == 50 else 0.7) < ratio < 1


def test_two_samples_are_independent_layers():
    """For relu and n = 2 the rows are ±(1, −1): σσᵀ has one entry, 1, at random."""
    law = fluctuations("relu", 2)
    assert law.mean_square(8).value == pytest.approx(0.5 / 8)
    covariance = law.covariance(8)
    assert covariance.ii_ii == pytest.approx(0.25 / 8)
    assert covariance.ii_jj == pytest.approx(-0.25 / 8)
    assert covariance.ij_ij == pytest.approx(0, abs=1e-15)
    assert law.least_width == 1
    assert law.autocorrelation([[1, 0], [0, 0]], [0, 1]).tolist() == [1.0, 0.0]


def test_width_for():
    law = fluctuations("relu", 10)
    width = law.width_for(0.1)
    assert law.mean_square(width).value <= 0.01 < law.mean_square(width - 1).value
    assert law.width_for(1e9) == 1


AFTER = {"order": "activation-norm"}
PAIRS = {
    "none": (Activation(np.sin, name="sin"), {"norm": "none", "gain": 2.0, "bias_variance": 0.2}),
    "layer": ("tanh", {"norm": "layer"}),
    "rms, eps": ("tanh", {"norm": "rms", "eps": 0.5, "gain": 2.0, "bias_variance": 0.1}),
    "layer after": ("relu", AFTER | {"norm": "layer"}),
    "group after, eps": ("relu", AFTER | {"norm": "group(4)", "eps": 0.1, "bias_variance": 0.1}),
}


def chain_of(name, batch, width=1000):
    activation, options = PAIRS[name]
    return Chain(width, batch, activation, **options)


def assert_as_predicted(chain, depth, burn_in, second_order):
    """Mean square, distance and gap of 64 chains, which give independent means.

    7 standard errors (Student's law with 63 degrees of freedom) have a false alarm of 2e-9 per
    number. Terms of second order get `least_width`/width/10: at that width the criterion allows
    about 10 %.
    """
    law = MeanField(chain).fluctuations()
    run = bnmc.simulate(chain, depth=depth, burn_in=burn_in, chains=64, rng=7)
    square = ((run.gram - law.fixed_point.gram) ** 2).sum(axis=(-2, -1))
    gap = bnmc.gram.orthogonality_gap(run.gram)
    allowed = law.least_width / chain.width / 10
    assert allowed < second_order
    for numbers, prediction in (
        (square, law.mean_square), (np.sqrt(square), law.mean_distance), (gap, law.gap),
    ):  # fmt: skip
        means, expected = numbers.mean(axis=1), prediction(chain.width).value
        error = means.std(ddof=1) / 8
        assert error < 0.05 * expected
        assert abs(means.mean() - expected) < 7 * error + allowed * expected


# For means that are not zero, test_sectors.py compares with brute force each time.
SIMULATED = {
    f"{activation}-{n}-{norm}": Chain(3000, n, activation, norm=norm)
    for activation, n, norm in (
        ("relu", 5, "batch"), ("tanh", 10, "batch"), ("tanh", 5, "batch-uncentred"),
        ("gelu", 3, "batch-uncentred"), ("relu", 10, "batch-uncentred"),
        ("sigmoid", 5, "batch-uncentred"),
    )
}  # fmt: skip


@pytest.mark.parametrize("name", some(SIMULATED, "relu-5-batch"))
def test_simulation(name):
    assert_as_predicted(SIMULATED[name], 200, 41, 0.015)


@pytest.mark.parametrize(
    "name", some(["layer after", "group after, eps", "rms, eps", "layer"], "layer after")
)
def test_simulation_of_pairs(name):
    chain = chain_of(name, 3, 1000 if name == "layer after" else 8000)
    rate = MeanField(chain).fluctuations().fixed_point.rate
    burn_in = math.ceil(-10 / math.log(rate))
    assert_as_predicted(chain, 2 * burn_in, burn_in, 0.05)


def bump(place):
    return Activation(lambda x: np.tanh(x) + np.exp(-(((x - place) / 0.04) ** 2)))


def test_a_narrow_bump_of_three_samples():
    """A rule that misses it has a sector of negative variance, and an autocorrelation of 0.209."""
    law = fluctuations(bump(0.7), 3)
    assert all(np.linalg.eigvalsh(sector.variance)[0] > 0.0 for sector in law.sectors)
    prediction = law.mean_square(1)
    assert prediction.stderr < 1e-6 * prediction.value


@pytest.mark.slow
def test_the_error_of_a_narrow_bump_of_six_samples_is_a_bound():
    """13.3035 is from an independent quadrature of 4 · 10⁸ points."""
    with pytest.raises(PartialEstimateError, match="mean square is known") as caught:
        fluctuations(bump(0.0), 6)
    prediction = caught.value.partial.mean_square(1)
    assert abs(prediction.value - 13.3035) < prediction.stderr < 0.05


def test_too_many_narrow_features_raise_before_the_work():
    with (
        mock.patch.object(joint_moments, "_MOST_NEEDED", 1e6),
        pytest.raises(PartialEstimateError, match="too many narrow features") as caught,
    ):
        fluctuations(bump(0.7), 6)
    assert isinstance(caught.value.partial, FixedPoint)


def test_errors_of_sectors_do_not_cancel():
    law = fluctuations("tanh", 4)
    first, second, third = law.sectors
    # The change of both sectors together leaves the trace as it is.
    change = 1e-3 * np.eye(2)
    larger = replace(first, variance=first.variance + 3.0 * change)
    smaller = replace(second, variance=second.variance - change)
    wrong = replace(law, coarse=(larger, smaller, third)).mean_square(1)
    assert wrong.stderr == pytest.approx(12e-3, rel=1e-3)


def test_negative_variances_beyond_the_error():
    law = fluctuations("tanh", 4)
    assert law.negative_variance[1] == 0.0
    wrong = replace(law.sectors[1], variance=law.sectors[1].variance - 10.0 * np.eye(2))
    sectors = (law.sectors[0], wrong, law.sectors[2])
    assert replace(law, sectors=sectors).negative_variance[1] == 0.0  # the error is large
    name, excess = replace(law, sectors=sectors, coarse=sectors).negative_variance
    least = np.linalg.eigvalsh(law.sectors[1].variance)[0]
    assert (name, excess) == ("standard", pytest.approx(10.0 - least, rel=1e-6))
    with (
        pytest.raises(PartialEstimateError, match="'?standard'?, whose variance is negative"),
        mock.patch.object(predicted, "stationary", return_value=sectors),
    ):
        fluctuations("tanh", 4)


def test_inaccurate_autocorrelations():
    law = fluctuations("tanh", 4)
    first = replace(law.sectors[1], variance=1.5 * law.sectors[1].variance)
    wrong = replace(law, coarse=(law.sectors[0], first, law.sectors[2]))
    observable = np.diag([1.0, -1.0, 0.0, 0.0])
    with pytest.raises(PartialEstimateError, match="autocorrelations known") as caught:
        wrong.autocorrelation(observable, [0, 1])
    np.testing.assert_array_equal(caught.value.partial, law.autocorrelation(observable, [0, 1]))


def test_a_correlation_of_0_does_not_mean_that_the_activation_is_odd():
    """For n = 2 and G = I, this even part has E σ(φ₁)σ(φ₂) = 0: the row is uniform on a circle."""
    activation = Activation(lambda x: x + 0.3 * (x**3 + 2.0 * x**4 - 3.0 * x * x), name="quartic")
    chain = Chain(100, 2, activation, norm="batch-uncentred")
    with mock.patch.object(uncentred, "cross_batch", return_value=(0.0, 0.0)):
        point, errors = fixed_point_and_errors(chain)
    assert abs(point.c) < 1e-12
    exact = replace(point, c=0.0), errors
    with mock.patch.object(predicted, "fixed_point_and_errors", return_value=exact):
        law = MeanField(chain).fluctuations()
    angle = np.pi * (np.arange(400) + 0.5) / 200
    s = np.asarray(activation(np.sqrt(2.0) * np.stack([np.cos(angle), np.sin(angle)])))
    pair, square = s[0] * s[1], s[0] ** 2
    noise = law.sectors[0].noise
    assert noise[0, 1] == pytest.approx(2.0 * np.mean(square * pair), abs=1e-6)
    assert abs(noise[0, 1]) > 0.05  # 0 for odd activations
    with mock.patch.object(bias, "_uncentred_bias", return_value=(1.0, 2.0)):
        assert law.mean_shift == (1.0, 2.0)


@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_a_norm_without_eps_has_no_eigenvalue_of_scaling(activation):
    """E x² is 1 to rounding there, so the eigenvalue was 1e-16, and not 0."""
    law = fluctuations(activation, 3, norm="layer", order="activation-norm", bias_variance=0.2)
    assert len(law.fixed_point.eigenvalues) == 1
    assert law.fixed_point.multiplicities == (3,)


def test_what_raises():
    with pytest.raises(NotMixing, match="unstable") as caught:
        fluctuations("silu", 40)
    assert isinstance(caught.value.partial, FixedPoint)
    assert caught.value.exponent > 0
    with pytest.raises(PartialEstimateError, match="mean square is known") as caught:
        mean_field("relu", 4).fluctuations(rtol=1e-10)
    assert isinstance(caught.value.partial, Fluctuations)
    law = fluctuations("tanh", 4)
    for name in ("mean_square", "mean_distance", "covariance", "gap", "spectrum", "bias"):
        with pytest.raises(ArgumentError, match="width"):
            getattr(law, name)(0)
    with pytest.raises(ArgumentError, match="distance"):
        law.width_for(0.0)
    for lags, error in (([-1], ArgumentError), ([0.5], ArgumentTypeError)):
        with pytest.raises(error, match="lags"):
            law.autocorrelation(np.eye(4), lags)
    with pytest.raises(ArgumentError, match="first order"):
        law.autocorrelation(lambda G: np.sum((G - law.fixed_point.gram) ** 2), [1])
    between = law.covariance(1).between
    for first, second, kind, message in (
        ((0, 1, 2), (0, 1), ArgumentError, "^first: .*a row and a column"),
        ((0, 1), (0, -1), ArgumentError, "^second: got -1"),
        ((0, 1), 3, ArgumentTypeError, "^second: "),
        ((0, 0.5), (0, 1), ArgumentTypeError, "^first: "),
    ):
        with pytest.raises(kind, match=message):
            between(first, second)


def test_errors_are_differences_of_two_quadratures_and_that_of_the_fixed_point():
    """If one quadrature is given twice, the error of the fixed point is left; a root halves it.

    If the other one has four times the variances, mean squares differ by three times the value and
    mean norms by the value.
    """
    law = fluctuations("relu", 4)
    same = replace(law, coarse=law.sectors)
    square, distance = same.mean_square(10), same.mean_distance(10)
    alone = square.stderr / square.value
    assert 0.0 < alone < 1e-3
    assert distance.stderr / distance.value == pytest.approx(0.5 * alone, rel=1e-12)
    larger = tuple(replace(sector, variance=4.0 * sector.variance) for sector in law.sectors)
    apart = replace(law, coarse=larger)
    square, distance = apart.mean_square(10), apart.mean_distance(10)
    assert square.stderr / square.value == pytest.approx(3.0 + alone, rel=1e-12)
    # The distance is concave, so changes of one sector at a time are more than that of all.
    assert 1.0 < distance.stderr / distance.value - 0.5 * alone < 1.1


def test_prediction_prints_and_converts():
    prediction = fluctuations("tanh", 4).mean_square(10)
    assert float(prediction) == prediction.value
    assert str(prediction) == f"{prediction.value:.6g}"


# The correlations are compared with brute force in `test_sectors.py`.
@pytest.mark.slow
def test_autocorrelation_time_of_a_long_run():
    """The integrated time 1 + 2 Σ ρ_k of an entry, against `mixing.autocorrelation`.

    Its interval of level 1 − 1e-6 contains the true time of width 2000; the predicted one differs
    by `least_width`/width/10, less than 1 %.
    """
    chain = Chain(width=2000, batch=5, activation="relu")
    law = MeanField(chain).fluctuations()
    weights = np.zeros((5, 5))
    weights[0, 0] = 1.0
    lags = law.autocorrelation(weights, np.arange(100))
    expected = 2.0 * lags.sum() - 1.0
    assert 1.1 < expected < (1 + law.fixed_point.rate) / (1 - law.fixed_point.rate)
    run = bnmc.simulate(chain, depth=1240, burn_in=41, chains=16, rng=8)
    result = bnmc.mixing.autocorrelation(run, lambda G: G[..., 0, 0], level=1 - 1e-6)
    low, high = result.time.ci
    assert 0.99 * low < expected < 1.01 * high
    assert high / low < 2


@pytest.mark.slow
def test_two_samples_under_selu():
    """The rate between two batches is known to 2e-5 only, but no part of the law of G."""
    law = fluctuations("selu", 2, norm="batch-uncentred")
    prediction = law.mean_square(1)
    assert law.point_error < 1e-8 < law.fixed_point.error
    assert prediction.stderr < 1e-5 * prediction.value


# --- Stationary fluctuations of norms over the features, biases and no norm


@pytest.mark.parametrize(("name", "n"), [("none", 4), ("rms, eps", 3), ("layer after", 2)])
def test_covariance_is_the_limit_of_its_recursion(name, n):
    """S ← J S Jᵀ + C for all n² entries, from S = 0."""
    chain = chain_of(name, n)
    law = MeanField(chain).fluctuations()
    assert isinstance(law, PairFluctuations)
    assert not law.centred
    field = CorrelationMap.of(chain)
    q, c = field.phase().variance, field.phase().correlation
    at = pair_moments(field.layer, q, c, FINE)
    point = law.fixed_point
    covariance = chain.gain**2 * point.gram + chain.bias_variance
    np.testing.assert_allclose(covariance[0, :2], [q, q * c], rtol=1e-9)
    assert point.cross_batch == point.gram[0, 1]
    places = list(np.ndindex(n, n))
    jacobian, noise = np.zeros((2, n * n, n * n))
    for row, (i, j) in enumerate(places):
        for column, other in enumerate(places):
            noise[row, column] = at.noise.between((i, j), other)
        if i == j:
            jacobian[row, row] = at.of_length
        else:
            jacobian[row, [i * n + i, j * n + j]] = at.of_first
            jacobian[row, row] = at.of_pair
    stationary = np.zeros((n * n, n * n))
    for _ in range(600):
        stationary = jacobian @ stationary @ jacobian.T + noise
    covariances = law.covariance(1)
    for row, first in enumerate(places):
        for column, second in enumerate(places):
            expected = stationary[row, column]
            assert covariances.between(first, second) == pytest.approx(
                expected, rel=1e-9, abs=1e-11
            )
    mean_square = law.mean_square(7)
    assert mean_square.value == pytest.approx(np.trace(stationary) / 7, rel=1e-9)
    assert mean_square.stderr < 1e-9
    assert point.rate == pytest.approx(max(abs(np.linalg.eigvals(jacobian))), rel=1e-9)
    assert point.cross_batch_rate == pytest.approx(field.slope(c), rel=1e-9)

    g = np.random.default_rng(3).standard_normal((n, n))
    g = (g + g.T).ravel()
    later = [g @ np.linalg.matrix_power(jacobian, k) @ stationary @ g for k in (0, 1, 3)]
    correlations = law.autocorrelation(g.reshape(n, n), [0, 1, 3])
    np.testing.assert_allclose(correlations, np.divide(later, later[0]), rtol=1e-8)

    # `least_width`, with the map of Δ to its relative change as a matrix.
    values, vectors = np.linalg.eigh(covariance)
    whitener = (vectors / np.sqrt(values)) @ vectors.T
    seen = np.kron(whitener, whitener) * chain.gain**2
    if name == "rms, eps":
        hidden = np.zeros((n * n, n * n))
        for row, (i, j) in enumerate(places):
            hidden[row, i * n + i] += 0.5 * covariance[i, j] / q
            hidden[row, j * n + j] += 0.5 * covariance[i, j] / q
        seen = seen @ (np.eye(n * n) - hidden)
    square = np.trace(seen @ stationary @ seen.T) / n**2
    assert law.relative_square == pytest.approx(square, rel=1e-8)
    assert law.least_width == math.ceil(10 * law.relative_square / (1 - point.rate))
    lengths, pairs = (at.of_length, n), (at.of_pair, n * (n - 1) // 2)
    expected = [pairs] if field.layer.fixes_variance else [lengths, pairs]
    covariances = list(zip(point.eigenvalues, point.multiplicities, strict=True))
    np.testing.assert_allclose(covariances, expected, rtol=1e-12)


def test_covariance_is_that_of_deep_layers():
    """The path that begins at the fixed point, after 12 layers: what is missing is rate^24."""
    chain = chain_of("none", 3)
    law = MeanField(chain).fluctuations()
    assert law.fixed_point.rate**24 < 1e-7
    path = MeanField(chain).trajectory(
        law.fixed_point.gram, 12, rng=1, fluctuations=True, fluctuation_rtol=0.1
    )
    result, covariance = path.fluctuations, law.covariance(1)
    deep = result.covariance(12, 1)
    # Student's law with 7 degrees of freedom exceeds 25 with probability 4e-8.
    for index in np.ndindex(3, 3, 3, 3):
        expected = covariance.between(index[:2], index[2:])
        assert abs(deep[index] - expected) < 25 * result.stderr[12]
    assert result.stderr[12] < 0.01 * np.trace(result.covariances[12])


def test_samples_that_become_parallel():
    chain = Chain(100, 4, "tanh", norm="none", gain=1.2, bias_variance=0.3)
    with pytest.raises(NotMixing, match=r"tends to 1 \(ordered phase\).*trajectory") as caught:
        MeanField(chain).fluctuations()
    assert isinstance(caught.value.partial, Phase)
    assert caught.value.exponent == pytest.approx(
        0.5 * math.log(caught.value.partial.backward_rate)
    )
    with pytest.raises(NotMixing, match="critical phase"):
        MeanField(Chain(100, 4, "relu", norm="layer")).fluctuations()


def test_bias_raises():
    law = MeanField(chain_of("layer after", 3)).fluctuations()
    with pytest.raises(ArgumentError, match=r"^norm: .*bnmc\.simulate measures"):
        law.bias(100)
    with pytest.raises(ArgumentError, match="^width: "):
        law.bias(0)


# --- Noise and Jacobian of a layer on pairs, against sums over four samples and differences of F


Q, C = 0.5, 0.6
# Not odd, and integrated by few nodes.
WAVE = Activation(lambda x: np.sin(x + 0.5), name="wave")
WAVES = {
    "none": {"norm": "none", "gain": 1.7, "bias_variance": 0.2},
    "layer": {"norm": "layer"},
    "layer, eps": {"norm": "layer", "eps": 0.4, "bias_variance": 0.1},
    "rms, eps": {"norm": "rms", "eps": 0.4, "gain": 1.4},
    "group after, eps": {"norm": "group(2)", "order": "activation-norm", "eps": 0.2},
    "rms after": {"norm": "rms", "order": "activation-norm", "gain": 1.2},
}


def following(chain, covariance):
    """F as a function of the covariance of two pre-activations, from its definition."""
    norm, after = chain.norm, chain.order == "activation-norm"
    if norm != "none" and not after:
        spread = np.sqrt(np.diag(covariance) + chain.eps)
        covariance = covariance / np.outer(spread, spread)
    u, weight = normal_points(covariance, 50)
    sigma = np.sin(u + 0.5)
    if after:
        sigma = sigma - (0 if norm == "rms" else weight @ sigma)
        sigma = sigma / np.sqrt(weight @ sigma**2 + chain.eps)
    return (sigma * weight[:, None]).T @ sigma


@pytest.mark.parametrize("name", WAVES)
def test_jacobian_is_that_of_the_map(name):
    chain = Chain(8, 2, WAVE, **WAVES[name])
    layer = CorrelationMap.of(chain).layer
    at = pair_moments(layer, Q, C, FINE)
    covariance = Q * np.array([[1.0, C], [C, 1.0]])
    gram = following(chain, covariance)
    np.testing.assert_allclose([at.square, at.pair], gram[0], rtol=1e-10)

    step = 1e-4

    def slope(i, j):
        change = np.zeros((2, 2))
        change[i, j] = change[j, i] = step
        high, low = (following(chain, covariance + sign * change) for sign in (1, -1))
        return chain.gain**2 * (high - low) / (2 * step)

    length, pair = slope(0, 0), slope(0, 1)
    expected = [length[0, 0], length[0, 1], pair[0, 1]]
    np.testing.assert_allclose([at.of_length, at.of_first, at.of_pair], expected, atol=1e-7)
    assert abs(length[1, 1]) < 1e-7
    assert abs(pair[0, 0]) < 1e-7


@pytest.mark.parametrize("name", ["none", "layer, eps", "rms, eps", "group after, eps"])
def test_noise_is_the_covariance_of_the_entries_of_a_row(name):
    """The entries g_ij of four samples, with the derivative of σ, on 20⁴ nodes."""
    chain = Chain(8, 2, WAVE, **WAVES[name])
    layer = CorrelationMap.of(chain).layer
    result = pair_moments(layer, Q, C, FINE).noise
    after = chain.order == "activation-norm"
    before = chain.norm != "none" and not after
    r = Q / (Q + chain.eps) if before else Q
    u, weight = normal_points(r * ((1 - C) * np.eye(4) + C), 20)
    x, slope, y = np.sin(u + 0.5), np.cos(u + 0.5), 0.5 * (u * u - r)
    if after:
        x = x - weight @ x
        x = x / np.sqrt(weight @ x**2 + chain.eps)
    entries, places = [], [(i, j) for i in range(4) for j in range(i + 1)]
    for i, j in places:
        g = x[:, i] * x[:, j]
        if after:
            g = g - 0.5 * (weight @ g) * (x[:, i] ** 2 + x[:, j] ** 2)
        elif before:
            for a, b in ((i, j), (j, i)):
                change = slope[:, a] * x[:, b]
                g = g - (weight @ (u[:, a] * change)) * y[:, a]
                if chain.norm == "layer":
                    g = g - (weight @ change) * u[:, a]
        entries.append(g - weight @ g)
    entries = np.array(entries)
    expected = (entries * weight) @ entries.T
    for k, first in enumerate(places):
        for m, second in enumerate(places):
            assert result.between(first, second) == pytest.approx(expected[k, m], abs=1e-9)


@pytest.mark.parametrize("c", [0.0, 1 - 1e-6])
def test_uncorrelated_and_nearly_equal_samples_of_relu(c):
    """The product moments of relu: E u₁u₂ over a quadrant, and E u₊⁴ = 3/2 for equal samples."""
    layer = CorrelationMap.of(Chain(8, 2, "relu", norm="none")).layer
    at = pair_moments(layer, 1.0, c, FINE)
    angle = math.pi - math.acos(c)
    pair = (math.sqrt(1 - c * c) + angle * c) / (2 * math.pi)
    assert at.pair == pytest.approx(pair, abs=1e-12)
    assert at.of_pair == pytest.approx(angle / (2 * math.pi), abs=1e-9)
    # V is homogeneous of degree 1 in the covariance.
    assert 2 * at.of_first + c * at.of_pair == pytest.approx(pair, abs=1e-9)
    assert at.noise.ii_ii == pytest.approx(1.25, abs=1e-11)
    square = ((1 + 2 * c * c) * angle + 3 * c * math.sqrt(1 - c * c)) / (2 * math.pi)
    assert at.noise.ij_ij == pytest.approx(square - pair**2, abs=1e-11)


def test_fourth_moments_that_are_infinite():
    layer = CorrelationMap(lambda x: np.exp(x * x / 7)).layer
    with pytest.raises(ArgumentError, match=r"^activation: .*finite fourth moment"):
        pair_moments(layer, 1.0, 0.5, FINE)
