"""Noise and Jacobian of a layer on pairs, against sums over four samples and differences of F."""

import math

import numpy as np
import pytest

from bnmc.chain import Activation, Chain
from bnmc.errors import ArgumentError
from bnmc.mean_field import CorrelationMap
from bnmc.mean_field.finite_width.predicted import FINE, pair_moments

Q, C = 0.5, 0.6
# Not odd, and integrated by few nodes.
WAVE = Activation(lambda x: np.sin(x + 0.5), name="wave")
CASES = {
    "none": {"norm": "none", "gain": 1.7, "bias_variance": 0.2},
    "layer": {"norm": "layer"},
    "layer, eps": {"norm": "layer", "eps": 0.4, "bias_variance": 0.1},
    "rms, eps": {"norm": "rms", "eps": 0.4, "gain": 1.4},
    "group after, eps": {"norm": "group(2)", "order": "activation-norm", "eps": 0.2},
    "rms after": {"norm": "rms", "order": "activation-norm", "gain": 1.2},
}


def value(x):
    return np.sin(x + 0.5)


def chain_of(name):
    return Chain(8, 2, WAVE, **CASES[name])


def normal_points(covariance, count):
    """Return points and weights for N(0, covariance), by a tensor of Gauss-Hermite rules."""
    n = len(covariance)
    nodes, weights = np.polynomial.hermite_e.hermegauss(count)
    z = np.stack(np.meshgrid(*[nodes] * n, indexing="ij"), axis=-1).reshape(-1, n)
    weight = np.ones(1)
    for _ in range(n):
        weight = np.outer(weight, weights / weights.sum()).ravel()
    return z @ np.linalg.cholesky(covariance).T, weight


def following(chain, covariance):
    """F as a function of the covariance of two pre-activations, from its definition."""
    norm, after = chain.norm, chain.order == "activation-norm"
    if norm != "none" and not after:
        spread = np.sqrt(np.diag(covariance) + chain.eps)
        covariance = covariance / np.outer(spread, spread)
    u, weight = normal_points(covariance, 50)
    sigma = value(u)
    if after:
        sigma = sigma - (0 if norm == "rms" else weight @ sigma)
        sigma = sigma / np.sqrt(weight @ sigma**2 + chain.eps)
    return (sigma * weight[:, None]).T @ sigma


@pytest.mark.parametrize("name", CASES)
def test_jacobian_is_that_of_the_map(name):
    chain = chain_of(name)
    layer = CorrelationMap.of(chain).layer
    found = pair_moments(layer, Q, C, FINE)
    covariance = Q * np.array([[1.0, C], [C, 1.0]])
    gram = following(chain, covariance)
    np.testing.assert_allclose([found.square, found.pair], gram[0], rtol=1e-10)

    step = 1e-4

    def slope(i, j):
        change = np.zeros((2, 2))
        change[i, j] = change[j, i] = step
        high, low = (following(chain, covariance + sign * change) for sign in (1, -1))
        return chain.gain**2 * (high - low) / (2 * step)

    own, pair = slope(0, 0), slope(0, 1)
    expected = [own[0, 0], own[0, 1], pair[0, 1]]
    np.testing.assert_allclose(
        [found.of_length, found.of_first, found.of_pair], expected, atol=1e-7
    )
    assert abs(own[1, 1]) < 1e-7
    assert abs(pair[0, 0]) < 1e-7


@pytest.mark.parametrize("name", ["none", "layer, eps", "rms, eps", "group after, eps"])
def test_noise_is_the_covariance_of_the_entries_of_a_row(name):
    """The entries g_ij of four samples, with the derivative of σ, on 20⁴ nodes."""
    chain = chain_of(name)
    layer = CorrelationMap.of(chain).layer
    found = pair_moments(layer, Q, C, FINE).noise
    after = chain.order == "activation-norm"
    before = chain.norm != "none" and not after
    r = Q / (Q + chain.eps) if before else Q
    u, weight = normal_points(r * ((1 - C) * np.eye(4) + C), 20)
    x, slope, y = value(u), np.cos(u + 0.5), 0.5 * (u * u - r)
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
            assert found.between(first, second) == pytest.approx(expected[k, m], abs=1e-9)


@pytest.mark.parametrize("c", [0.0, 1 - 1e-6])
def test_uncorrelated_and_nearly_equal_samples_of_relu(c):
    """The product moments of relu: E u₁u₂ over a quadrant, and E u₊⁴ = 3/2 for equal samples."""
    layer = CorrelationMap.of(Chain(8, 2, "relu", norm="none")).layer
    found = pair_moments(layer, 1.0, c, FINE)
    angle = math.pi - math.acos(c)
    pair = (math.sqrt(1 - c * c) + angle * c) / (2 * math.pi)
    assert found.pair == pytest.approx(pair, abs=1e-12)
    assert found.of_pair == pytest.approx(angle / (2 * math.pi), abs=1e-9)
    # V is homogeneous of degree 1 in the covariance.
    assert 2 * found.of_first + c * found.of_pair == pytest.approx(pair, abs=1e-9)
    assert found.noise.ii_ii == pytest.approx(1.25, abs=1e-11)
    square = ((1 + 2 * c * c) * angle + 3 * c * math.sqrt(1 - c * c)) / (2 * math.pi)
    assert found.noise.ij_ij == pytest.approx(square - pair**2, abs=1e-11)


def test_fourth_moments_that_are_infinite():
    layer = CorrelationMap.of(
        Chain(8, 2, Activation(lambda x: np.exp(x * x / 7)), norm="none")
    ).layer
    with pytest.raises(ArgumentError, match=r"^activation: .*finite fourth moment"):
        pair_moments(layer, 1.0, 0.5, FINE)
