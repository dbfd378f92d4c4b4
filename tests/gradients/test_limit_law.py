"""The limit law of Jacobians: closed forms, the backward rate, and wide networks."""

import itertools
import math

import numpy as np
import pytest
from slow_cases import some

from bnmc import Chain, MeanField, Network, errors
from bnmc.gradients import jacobian, jacobian_law

MARGIN = 2e-3


@pytest.mark.parametrize("depth", [1, 4, 10])
def test_networks_without_norm(depth):
    relu = jacobian_law(Chain(10, 1, "relu", norm="none", gain=2**0.5), depth)
    assert (relu.mean, relu.dispersion) == pytest.approx((1.0, 2.0 * depth))
    linear = jacobian_law(Chain(10, 1, "linear", norm="none"), depth)
    assert linear.largest == pytest.approx((depth + 1) ** (depth + 1) / depth**depth)
    haar = jacobian_law(Chain(10, 1, "linear", norm="none", weights="haar"), depth)
    assert (haar.mean, haar.dispersion, haar.largest) == pytest.approx((1.0, 0.0, 1.0))


def test_smooth_slopes_by_quadrature():
    """E tanh′² and E tanh′⁴ at the variance of the second layer, by Gauss-Hermite quadrature."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    weights = weights / weights.sum()
    variance = weights @ np.tanh(nodes) ** 2
    slopes = 1 - np.tanh(math.sqrt(1.44 * variance + 0.2) * nodes) ** 2
    law = jacobian_law(Chain(10, 1, "tanh", norm="none", gain=1.2, bias_variance=0.2), 1)
    assert law.mean == pytest.approx(1.44 * weights @ slopes**2, rel=1e-4)
    ratio = weights @ slopes**4 / (weights @ slopes**2) ** 2
    assert law.dispersion == pytest.approx(ratio, rel=1e-3)


@pytest.mark.parametrize("name", ["linear", "relu", "tanh", "sin", "gelu"])
def test_inner_layers_grow_at_the_backward_rate(name):
    chain = Chain(10, 8, name)
    growth = jacobian_law(chain, 3).log_mean - jacobian_law(chain, 2).log_mean
    rate = MeanField(chain).fixed_point().backward_rate
    assert growth == pytest.approx(math.log(rate), abs=MARGIN)


def test_linear_layers_under_batch_norm_by_chi_squared_moments():
    """Q/s² with Q of rank n - 2 in n - 1 dimensions, and s² of n - 1 degrees of freedom."""
    n = 9
    law = jacobian_law(Chain(10, n, "linear"), 1)
    # s² = χ²/(n - 1), since the eigenvalue of the Gram matrix is n/(n - 1).
    first, second = (n - 1) / (n - 3), (n - 1) ** 2 / ((n - 3) * (n - 5))
    share = (n - 2) / (n - 1)
    assert law.mean == pytest.approx(share * first * (n - 1) / n, rel=1e-6)
    # The second moment of a free compound Poisson law is that of its jumps plus the squared mean.
    expected = (second * share + (first * share) ** 2) * (n - 1) / n / law.mean**2 - 1
    assert law.dispersion == pytest.approx(expected, rel=1e-6)
    assert jacobian_law(Chain(10, 5, "linear"), 1).dispersion == math.inf


WIDE = {
    "layer": (Chain(300, 1, "tanh", norm="layer", gain=1.1), 3),
    "rms after": (Chain(300, 1, "relu", norm="rms", order="activation-norm"), 3),
    "none, haar": (Chain(300, 1, "gelu", norm="none", weights="haar", gain=1.5), 3),
    "batch": (Chain(40, 12, "relu"), 2),
    "batch, haar": (Chain(40, 12, "tanh", weights="haar"), 2),
    "uncentred": (Chain(40, 10, "sin", norm="batch-uncentred"), 2),
}


@pytest.mark.parametrize("name", some(WIDE, "layer", "none, haar", "batch"))
def test_wide_networks(name):
    """Finite width changes moments by order 1/width, here a few percent; 6 networks."""
    chain, depth = WIDE[name]
    ours = jacobian(chain, depth, every=depth, chains=6, rng=1)
    law = ours.law()
    assert ours.mean().value == pytest.approx(law.mean, rel=0.12)
    assert ours.dispersion().value == pytest.approx(law.dispersion, rel=0.15)


def test_the_density_of_wide_networks_under_batch_norm():
    chain = Chain(60, 10, "relu")
    ours = jacobian(chain, 1, chains=4, rng=1)
    squares, law = ours.squared_singular_values, ours.law()
    edges = np.quantile(squares[squares > 1e-9], [0.3, 0.5, 0.7, 0.9])
    for low, high in itertools.pairwise(edges):
        x = np.linspace(low, high, 201)
        share = ((squares > low) & (squares <= high)).mean()
        assert np.trapezoid(law.density(x), x) == pytest.approx(share, abs=0.02)


def test_unequal_layers():
    network = Network.of(width=[40, 80, 20], batch=1, activation="linear", norm="none")
    law = jacobian_law(network)
    assert (law.mean, law.dispersion) == pytest.approx((0.5, 40 / 80 + 40 / 20))


@pytest.mark.parametrize(
    ("chain", "argument"),
    [
        (Chain(9, 3, "relu"), "batch"),
        (Chain(9, 6, "relu", eps=0.1), "eps"),
        (Chain(9, 6, "tanh", order="activation-norm"), "order"),
        (Chain(9, 6, "relu", norm="batch-uncentred"), "activation"),
        (Chain(9, 6, "relu", skip=1.0), "skip"),
        (Chain.conv(3, 2, "relu"), "convolution"),
        (Network((Chain(9, 6, "relu"), 1), (Chain(9, 6, "relu", norm="none"), 1)), "norm"),
    ],
)
def test_unknown_laws_raise(chain, argument):
    with pytest.raises(errors.ArgumentError, match=f"^{argument}"):
        jacobian_law(chain, None if isinstance(chain, Network) else 2)
    if argument == "batch":
        with pytest.raises(errors.ArgumentError, match="^mean_square"):
            jacobian_law(Chain(9, 6, "relu"), 2, mean_square=1.0)
