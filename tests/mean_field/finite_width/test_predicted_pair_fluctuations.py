"""Stationary fluctuations of norms over the features, biases and no norm.

Against the recursion of the covariance for all entries, the path of one input, and simulation.
"""

import math

import numpy as np
import pytest
from slow_cases import some

import bnmc
from bnmc.chain import Activation, Chain, Convolution
from bnmc.errors import ArgumentError, NotMixing
from bnmc.mean_field import CorrelationMap, MeanField, PairFluctuations, Phase
from bnmc.mean_field.finite_width.predicted import FINE, pair_moments

CASES = {
    "none": (Activation(np.sin, name="sin"), {"norm": "none", "gain": 2.0, "bias_variance": 0.2}),
    "layer": ("tanh", {"norm": "layer"}),
    "rms, eps": ("tanh", {"norm": "rms", "eps": 0.5, "gain": 2.0, "bias_variance": 0.1}),
    "layer after": ("relu", {"norm": "layer", "order": "activation-norm"}),
    "group after, eps": (
        "relu",
        {"norm": "group(4)", "order": "activation-norm", "eps": 0.1, "bias_variance": 0.1},
    ),
}


def chain_of(name, batch, width=1000):
    activation, options = CASES[name]
    return Chain(width, batch, activation, **options)


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
    found = law.covariance(1)
    for row, first in enumerate(places):
        for column, second in enumerate(places):
            expected = stationary[row, column]
            assert found.between(first, second) == pytest.approx(expected, rel=1e-9, abs=1e-11)
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
    own, pairs = (at.of_length, n), (at.of_pair, n * (n - 1) // 2)
    expected = [own, pairs] if at.of_length else [pairs]
    found = list(zip(point.eigenvalues, point.multiplicities, strict=True))
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_covariance_is_that_of_deep_layers():
    """The path that begins at the fixed point, after 12 layers: what is missing is rate^24."""
    chain = chain_of("none", 3)
    law = MeanField(chain).fluctuations()
    assert law.fixed_point.rate**24 < 1e-7
    path = MeanField(chain).trajectory(
        law.fixed_point.gram, 12, rng=1, fluctuations=True, fluctuation_rtol=0.1
    )
    found, covariance = path.fluctuations, law.covariance(1)
    deep = found.covariance(12, 1)
    # Student's law with 7 degrees of freedom exceeds 25 with probability 4e-8.
    for index in np.ndindex(3, 3, 3, 3):
        expected = covariance.between(index[:2], index[2:])
        assert abs(deep[index] - expected) < 25 * found.stderr[12]
    assert found.stderr[12] < 0.01 * np.trace(found.covariances[12])


SIMULATED = ["layer after", "group after, eps", "rms, eps", "layer"]


@pytest.mark.parametrize("name", some(SIMULATED, SIMULATED[0]))
def test_simulation(name):
    """Mean square, distance and gap of 64 chains, as in test_predicted.py.

    The 64 means of the chains are independent.  7 standard errors (Student's law with 63 degrees of
    freedom) have a false alarm of 2e-9 per number.
    """
    width = 1000 if name == SIMULATED[0] else 8000
    chain = chain_of(name, 3, width)
    law = MeanField(chain).fluctuations()
    burn_in = math.ceil(-10 / math.log(law.fixed_point.rate))
    run = bnmc.simulate(chain, depth=2 * burn_in, burn_in=burn_in, chains=64, rng=7)
    deviation = run.gram - law.fixed_point.gram
    square = (deviation**2).sum(axis=(-2, -1))
    measured = square, np.sqrt(square), bnmc.gram.orthogonality_gap(run.gram)
    allowed = law.least_width / width / 10
    assert allowed < 0.05
    predicted = [of(width).value for of in (law.mean_square, law.mean_distance, law.gap)]
    for numbers, expected in zip(measured, predicted, strict=True):
        means = numbers.mean(axis=1)
        error = means.std(ddof=1) / 8
        assert error < 0.05 * expected
        assert abs(means.mean() - expected) < 7 * error + allowed * expected


RAISING = [
    ({"norm": "none"}, "relu", r"^norm: .*tends to 0.*trajectory\(.*fluctuations=True"),
    ({"norm": "none", "gain": 2**0.5}, "relu", r"random walk"),
    ({"norm": "none", "gain": 2.0}, "relu", r"diverges"),
    ({"norm": "layer"}, "linear", r"^activation: .*every correlation is a fixed point"),
    ({"norm": "layer", "skip": 0.5}, "tanh", r"^skip: .*bnmc\.simulate"),
    ({"norm": "layer", "convolution": Convolution((1, 4), (1, 3))}, "tanh", r"^convolution: "),
    ({"norm": "layer", "weights": "haar"}, "tanh", r"^weights: "),
]


@pytest.mark.parametrize(("options", "activation", "message"), RAISING)
def test_chains_without_stationary_fluctuations(options, activation, message):
    with pytest.raises(ArgumentError, match=message):
        MeanField(Chain(100, 4, activation, **options)).fluctuations()
    with pytest.raises(ArgumentError, match="batch"):
        MeanField(Chain(100, 1, "tanh", norm="layer")).fluctuations()


def test_samples_that_become_parallel():
    chain = Chain(100, 4, "tanh", norm="none", gain=1.2, bias_variance=0.3)
    with pytest.raises(NotMixing, match=r"tends to 1 \(ordered phase\).*trajectory") as caught:
        MeanField(chain).fluctuations()
    assert isinstance(caught.value.partial, Phase)
    assert caught.value.exponent == pytest.approx(
        0.5 * math.log(caught.value.partial.gradient_factor)
    )
    with pytest.raises(NotMixing, match="critical phase"):
        MeanField(Chain(100, 4, "relu", norm="layer")).fluctuations()


def test_bias_raises():
    law = MeanField(chain_of("layer after", 3)).fluctuations()
    with pytest.raises(ArgumentError, match=r"^norm: .*bnmc\.simulate measures"):
        law.bias(100)
    with pytest.raises(ArgumentError, match="^width: "):
        law.bias(0)
