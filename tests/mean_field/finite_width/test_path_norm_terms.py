"""Fluctuations of layers with norms over the features, biases and convolutions.

Against closed forms, finite differences of the mean-field map, and simulated chains.
"""

import math

import numpy as np
import pytest
from scipy import stats

import bnmc
from bnmc.chain import Chain, Convolution
from bnmc.errors import ArgumentError
from bnmc.mean_field import MeanField
from bnmc.mean_field.finite_width.gaussian import packed
from bnmc.mean_field.finite_width.path import _estimates, _whitening, norm_terms
from bnmc.mean_field.map.rows import gaussian_rows

FALSE_ALARM = 1e-6
START = np.array([[2.0, 0.5, -0.3], [0.5, 1.0, 0.2], [-0.3, 0.2, 0.7]])

CASES = {
    "layer": ("relu", {"norm": "layer"}),
    "rms, eps": ("tanh", {"norm": "rms", "eps": 0.5, "gain": 1.5}),
    "groups, bias": ("tanh", {"norm": "group(4)", "bias_variance": 0.3}),
    "layer after": ("relu", {"norm": "layer", "order": "activation-norm", "gain": 1.4}),
    "rms after, eps, bias": (
        "tanh",
        {"norm": "rms", "order": "activation-norm", "eps": 0.1, "bias_variance": 0.1},
    ),
    "none, bias": ("relu", {"norm": "none", "bias_variance": 0.4, "gain": 1.2}),
    "uncentred, bias": ("tanh", {"norm": "batch-uncentred", "bias_variance": 0.4}),
    "convolution": ("relu", {"convolution": Convolution((1, 3), (1, 2))}),
    "convolution, layer": ("relu", {"norm": "layer", "convolution": Convolution((1, 3), (1, 2))}),
    "convolution, none, bias": (
        "tanh",
        {"norm": "none", "bias_variance": 0.2, "convolution": Convolution((1, 3), (1, 2))},
    ),
}


def chain_of(name, width=1000):
    activation, options = CASES[name]
    return Chain(width, 3, activation, **options)


def along(chain, start, depth):
    found = MeanField(chain).trajectory(
        start, depth, rng=3, fluctuations=True, fluctuation_rtol=0.05
    )
    return found.fluctuations


@pytest.mark.parametrize(("norm", "expected"), [("rms", 0.75), ("layer", 0.75 - 2.0 / math.pi)])
def test_one_sample_of_relu(norm, expected):
    """The mean of σ² is that of z|z|/2 to first order, and E z₊³ = √(2/π) has the mean's part.

    The length of the sample is not passed on, so every layer has the same variance.
    """
    law = along(Chain(10, 1, "relu", norm=norm), [[3.0]], 3)
    found = law.mean_square(1)
    # Student's law with 7 degrees of freedom exceeds 25 with probability 4e-8.
    assert np.all(np.abs(found.value[1:] - expected) < 25 * found.stderr[1:])
    assert np.all(found.stderr[1:] < 0.05 * expected)


@pytest.mark.parametrize("norm", ["layer", "rms"])
@pytest.mark.parametrize("order", ["norm-activation", "activation-norm"])
def test_linear_layers_have_the_variance_of_a_sample_correlation(norm, order):
    """G_12 is a sample correlation, of variance (1 − c²)²/d, and is passed on with slope 1."""
    c = 0.6
    law = along(Chain(10, 2, "linear", norm=norm, order=order), [[1.0, c], [c, 1.0]], 4)
    found = [law.covariance(layer, 1)[0, 1, 0, 1] for layer in range(5)]
    expected = np.arange(5) * (1 - c**2) ** 2
    assert np.all(np.abs(found - expected) <= 25 * law.stderr + 1e-12)
    # The lengths of samples do not fluctuate.
    assert abs(law.covariance(4, 1)[0, 0, 0, 0]) < 25 * law.stderr[4]


@pytest.mark.parametrize("name", CASES)
def test_slopes_are_those_of_the_map(name):
    """J[Δ] of 32 replicates, against a central difference of F along a random Δ.

    Student's quantiles for each of 6 entries.
    """
    chain = chain_of(name)
    field, rng = MeanField(chain), np.random.default_rng(5)
    change = rng.standard_normal((3, 3))
    change = change + change.T
    step = 1e-4
    high, low = (
        field.step(START + sign * step * change, rtol=1e-8, rng=1).gram for sign in (1, -1)
    )
    expected = packed((high - low) / (2 * step))
    rows = gaussian_rows(chain.layers[1], START)
    terms = norm_terms(chain, rows, START, field.step(START, rtol=1e-8, rng=1).gram)
    seen = _whitening(chain, rows, START) @ packed(change)
    found = [
        terms.slopes(_estimates(chain, rows, terms, np.random.SeedSequence(seed), 12)) @ seen
        for seed in range(32)
    ]
    error = np.std(found, axis=0, ddof=1) / math.sqrt(32) * stats.t.isf(FALSE_ALARM / 12, 31)
    # The difference has an error of the order of 1e-8 / 1e-4.
    assert np.all(np.abs(np.mean(found, axis=0) - expected) < error + 3e-4)
    assert np.all(error < 0.12 * np.abs(expected).max() + 1e-12)


@pytest.mark.parametrize("eps", [0.0, 0.5])
def test_coefficients_of_lengths_are_means_with_the_derivative(eps):
    """L_ij,i = E u_i σ′(u_i) σ(u_j) by Gauss-Hermite sums of 60² nodes, for σ = exp(x/2)."""
    chain = Chain(10, 2, "tanh", norm="rms", eps=eps)
    gram = np.array([[2.0, 0.6], [0.6, 0.7]])
    rows = gaussian_rows(chain.layers[1], gram)
    root = rows.vectors * np.sqrt(rows.values)
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    z = np.stack(np.meshgrid(nodes, nodes), axis=-1).reshape(-1, 2)
    weight = np.outer(weights, weights).ravel() / (2 * math.pi)
    u = z @ root.T
    np.testing.assert_allclose((u * weight[:, None]).T @ u, root @ root.T, atol=1e-12)
    sigma = np.exp(0.5 * u)
    entries = np.stack([sigma[:, 0] ** 2, 2**0.5 * sigma[:, 0] * sigma[:, 1], sigma[:, 1] ** 2], 1)
    score = np.stack([z[:, 0] ** 2 - 1, 2**0.5 * z[:, 0] * z[:, 1], z[:, 1] ** 2 - 1], 1)
    slopes = 0.5 * (entries * weight[:, None]).T @ score
    stretched = 0.5 * u * sigma  # u σ′(u)
    expected = np.zeros((3, 2))
    for k, (i, j) in enumerate(((0, 0), (0, 1), (1, 1))):
        size = 1.0 if i == j else 2**0.5
        expected[k, i] += size * weight @ (stretched[:, i] * sigma[:, j])
        expected[k, j] += size * weight @ (sigma[:, i] * stretched[:, j])
    found = norm_terms(chain, rows, gram, np.eye(2))._coefficients(slopes)
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    if eps:
        assert abs(expected[1, 0] / expected[1, 1] - 1) > 0.05


def variances_agree(name, width, chains, depth):
    """Whether variances of simulated entries are those predicted, to `FALSE_ALARM`.

    The variance of nearly normal entries has a chi-squared law.  The linear theory is off by about
    nonlinearity/width, and may be off by ten times that.
    """
    chain = chain_of(name, width)
    x = np.random.default_rng(11).standard_normal((width, 3)) @ np.diag([1.0, 1.5, 2.0])
    x[:, 1] += x[:, 0]
    run = bnmc.simulate(chain, depth, chains=chains, initial=x, rng=12)
    law = (
        MeanField(chain)
        .trajectory(
            run.gram[0, 0], depth, rtol=1e-5, rng=13, fluctuations=True, fluctuation_rtol=0.01
        )
        .fluctuations
    )
    i, j = np.triu_indices(3)
    ratios = []
    for layer in range(1, depth + 1):
        predicted = np.diagonal(law.covariance(layer, width)[i, j][:, i, j])
        moving = predicted > 1e-9 / width
        measured = run.gram[:, layer][:, i, j].var(axis=0, ddof=1)
        assert np.all(measured[~moving] < 1e-9 / width)
        ratio = measured[moving] / predicted[moving]
        slack = 10 * law.nonlinearity[layer] / width
        slack += 25 * law.stderr[layer] / np.trace(law.covariances[layer])
        level = FALSE_ALARM / (2 * i.size * depth)
        low, high = (stats.chi2.ppf([level, 1 - level], chains - 1)) / (chains - 1)
        assert np.all(ratio > low * (1 - slack)), (layer, ratio, low, slack)
        assert np.all(ratio < high * (1 + slack)), (layer, ratio, high, slack)
        ratios.append(ratio)
    return ratios


@pytest.mark.parametrize("name", ["layer", "rms, eps", "layer after", "convolution, layer"])
def test_variances_are_those_of_simulated_chains(name):
    variances_agree(name, 1000, 1500, 3)


@pytest.mark.slow
@pytest.mark.parametrize("width", [1000, 3000, 10_000])
@pytest.mark.parametrize("name", CASES)
def test_variances_at_growing_width(name, width):
    variances_agree(name, width, 4000, 5)


@pytest.mark.slow
def test_deep_layers_fluctuate_as_at_the_fixed_point():
    """A chaotic network with layer norm: c* = 0 attracts, so the last layers are stationary."""
    width, depth, chains = 4000, 30, 2000
    chain = Chain(width, 3, "tanh", norm="layer", gain=2.0)
    law = along(chain, np.full((3, 3), 0.5) + 0.5 * np.eye(3), depth)
    run = bnmc.simulate(chain, depth, chains=chains, rng=4)
    found = run.gram[:, depth][:, 0, 1].var(ddof=1) * width
    for layer in (depth - 1, depth):
        predicted = law.covariance(layer, 1)[0, 1, 0, 1]
        level = FALSE_ALARM / 4
        low, high = stats.chi2.ppf([level, 1 - level], chains - 1) / (chains - 1)
        assert low * 0.9 < found / predicted < high * 1.1


def test_parallel_samples_of_different_lengths():
    """With eps the slopes of such a pair need a derivative of σ; equal samples do not."""
    chain = Chain(10, 2, "tanh", norm="layer", eps=0.1)
    with pytest.raises(ArgumentError, match="^G0: .*no parallel samples of different lengths"):
        along(chain, [[1.0, 2.0], [2.0, 4.0]], 2)
    law = along(chain, np.ones((2, 2)), 2)
    found = law.covariance(2, 1)
    np.testing.assert_allclose(found[0], found[1], atol=1e-12)
    # Without eps they are equal for the norm.
    law = along(Chain(10, 2, "tanh", norm="layer"), [[1.0, 2.0], [2.0, 4.0]], 2)
    np.testing.assert_allclose(law.covariance(2, 1)[0], law.covariance(2, 1)[1], atol=1e-12)


def test_rows_that_eps_hides():
    law = along(Chain(10, 2, "tanh", norm="rms", eps=0.1), np.zeros((2, 2)), 2)
    assert np.all(law.mean_square(1).value == 0.0)


def test_nonlinearity_leaves_out_the_lengths_of_samples():
    """One sample under a norm over the features: its length is all that fluctuates."""
    law = along(Chain(10, 1, "relu", norm="rms"), [[3.0]], 4)
    np.testing.assert_allclose(law.nonlinearity, 0.0, atol=1e-12)
    assert law.holds_from == 1


@pytest.mark.parametrize("eps", [0.0, 0.5])
def test_changes_of_lengths_are_visible_as_far_as_eps_lets_them(eps):
    """A change of the length of sample i alone shrinks by 1 − ρ_i, and others are seen in full.

    With R the covariance of rows, the first is e_i e_iᵀ R + R e_i e_iᵀ, to first order; the others
    leave the diagonal.  Without eps ρ_i is 1.
    """
    chain = Chain(10, 3, "tanh", norm="rms", eps=eps)
    rows = gaussian_rows(chain.layers[1], START)
    root = rows.vectors * np.sqrt(rows.values)
    covariance, inverse = root @ root.T, np.linalg.inv(root)
    terms = norm_terms(chain, rows, START, np.eye(3))

    def of(change):
        """Return the covariance of a change of R that has a random factor, in coordinates of A."""
        x = packed(inverse @ change @ inverse.T)
        return np.outer(x, x)

    for i, rho in enumerate(np.diagonal(START) / (np.diagonal(START) + eps)):
        change = np.zeros((3, 3))
        change[i] += covariance[i]
        change[:, i] += covariance[i]
        seen = of(change)
        tolerance = 1e-12 * np.abs(seen).max()
        np.testing.assert_allclose(terms.visible(seen), (1 - rho) ** 2 * seen, atol=tolerance)
    turned = of(np.ones((3, 3)) - np.eye(3))
    np.testing.assert_allclose(terms.visible(turned), turned, atol=1e-12 * np.abs(turned).max())
