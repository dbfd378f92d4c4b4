"""Laws of depth over width: the simulations of the figure, and its columns."""

import numpy as np
import pytest

from bnmc.errors import ArgumentError
from bnmc.experiments.beyond import depth_over_width
from bnmc.experiments.beyond.as_deep_as_wide import (
    _dispersion,
    _relu_networks,
    _shaped_networks,
    _tanh_networks,
)

COUNT = 30_000


def near(estimate, expected):
    """Student with many degrees of freedom: 6 standard errors have the probability 2e-9."""
    assert abs(estimate.value - expected) < 6 * estimate.stderr
    assert estimate.stderr < 0.05 * expected


def test_networks_given_their_gram_matrices_are_networks():
    """Θ and norms at (4, 3) against drawn weights in NumPy."""
    width, depth, rng = 4, 3, np.random.default_rng(0)
    squares, tangents = _relu_networks(width, [depth], COUNT, rng)
    a, layers = np.ones((COUNT, width)), []
    for _ in range(depth):
        weights = rng.standard_normal((COUNT, width, width)) / np.sqrt(width)
        z = np.einsum("kij,kj->ki", weights, a)
        layers.append((a, weights, z > 0.0))
        a = np.sqrt(2.0) * np.maximum(z, 0.0)
    total = np.mean(a**2, axis=1)
    back = rng.standard_normal((COUNT, width)) / np.sqrt(width)
    for a_below, weights, active in reversed(layers):
        back = np.sqrt(2.0) * active * back
        total += np.mean(a_below**2, axis=1) * np.sum(back**2, axis=1)
        back = np.einsum("kij,ki->kj", weights, back)
    total /= depth + 1.0
    for ours, theirs in ((squares[:, 0], np.mean(a**2, axis=1)), (tangents[:, 0], total)):
        for power in (1, 2):
            gap = np.mean(ours**power) - np.mean(theirs**power)
            stderr = np.hypot(np.std(ours**power), np.std(theirs**power)) / np.sqrt(COUNT)
            assert abs(gap) < 6 * stderr


def test_tanh_and_shaped_networks_of_one_layer():
    """One layer: E K = E tanh² and Var K = Var tanh²/d; an odd activation keeps its sign."""
    width, rng = 50, np.random.default_rng(1)
    K = _tanh_networks(width, [1], COUNT, rng)[:, 0]
    z, weight = np.polynomial.hermite_e.hermegauss(120)
    weight = weight / np.sqrt(2.0 * np.pi)
    second, fourth = (float(weight @ np.tanh(z) ** power) for power in (2, 4))
    near(_dispersion(K), 1.0 + (fourth / second**2 - 1.0) / width)
    correlations = _shaped_networks(10**4, [1], 500, rng)[:, 0]
    assert abs(correlations.mean() - 0.3) < 6 * 0.91 / np.sqrt(500 * 10**4) + 1e-4


def test_columns_are_the_laws(small):
    data = small("depth-over-width").data
    assert data["tangent_theory"].dims == ("width", "time")
    for name in ("variance", "tangent", "vertex"):
        ratio = data[name] / data[f"{name}_theory"]
        assert ((ratio > 0.6) & (ratio < 1.5)).all()
    assert np.abs(data["correlation"] - data["correlation_limit"]).max() < 0.25


def test_layers_of_zeros_raise():
    with pytest.raises(ArgumentError, match="widths: got 2, .*a layer is 0"):
        depth_over_width(widths=(2, 3), ratio=5.0, chains=50)
