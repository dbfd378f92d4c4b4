"""Fluctuations along a path: against closed forms, the stationary law, and simulated chains."""

import math
import warnings
from unittest import mock

import numpy as np
import pytest
from mean_field_oracles import normal_points
from oracle import FALSE_ALARM
from scipy import stats

import bnmc
from bnmc.chain import Chain, Convolution
from bnmc.errors import ArgumentError, ArgumentTypeError, LinearTheoryWarning, PartialEstimateError
from bnmc.mean_field import MeanField, PathFluctuations
from bnmc.mean_field.finite_width.gaussian import packed
from bnmc.mean_field.finite_width.path import _estimates, _relative_square, _whitening, norm_terms
from bnmc.mean_field.map.rows import gaussian_rows
from bnmc.random_matrix import linear_covariance

START = np.array([[2.0, 0.5, -0.3], [0.5, 1.0, 0.2], [-0.3, 0.2, 0.7]])


def along(chain, start, depth, **options) -> PathFluctuations:
    options = {"rng": 3, "fluctuation_rtol": 0.05} | options
    return MeanField(chain).trajectory(start, depth, fluctuations=True, **options).fluctuations


def test_linear_chain_without_normalization():
    """To leading order in depth/width, Cov(G_ij, G_km) = (G_ik G_jm + G_im G_jk) l/d."""
    depth, width = 5, 10**9
    gain = 0.5
    law = along(Chain(width=10, batch=3, activation="linear", norm="none", gain=gain), START, depth)
    expected = linear_covariance(START, width, depth) * gain ** (4 * depth)
    covariances = law.covariance(depth, width)
    scale = np.abs(expected).max()
    # Eight replicates of 1024 points, whose errors are below 3 % of the largest entry each.
    assert covariances == pytest.approx(expected, abs=0.1 * scale)
    total = law.mean_square(width)
    expected = np.einsum("ijij", expected)
    assert abs(total.value[depth] - expected) < 8 * total.stderr[depth]
    assert total.stderr[depth] < 0.05 * expected


@pytest.mark.parametrize("q", [3.0, 1e-100])
def test_one_sample_relu_without_normalization(q):
    """G is multiplied by the mean of d squares σ(z)², of relative variance 5/d, in each layer.

    The spread of replicates is seen, even if its square is out of the range of float64.
    """
    law = along(Chain(10, 1, "relu", norm="none", gain=np.sqrt(2.0)), [[q]], 7)
    prediction = law.mean_square(1000)
    expected = q**2 * 5.0 * np.arange(8) / 1000
    assert np.all(np.abs(prediction.value - expected) <= 8 * prediction.stderr)
    assert np.all(prediction.stderr[1:] < 0.05 * expected[1:])


@pytest.mark.parametrize(
    ("activation", "norm"),
    [("relu", "batch"), pytest.param("tanh", "batch-uncentred", marks=pytest.mark.slow)],
    ids=str,
)
def test_deep_layers_are_stationary(activation, norm):
    """Student's law with 7 degrees of freedom exceeds 25 with probability 4e-8."""
    chain = Chain(width=10, batch=4, activation=activation, norm=norm)
    law = along(chain, np.diag([1.0, 2.0, 3.0, 4.0]), 40)
    expected = MeanField(chain).fluctuations().mean_square(1).value
    prediction = law.mean_square(1)
    assert abs(prediction.value[-1] - expected) < 25 * prediction.stderr[-1]
    assert prediction.stderr[-1] < 0.02 * expected


@pytest.mark.parametrize(
    ("options", "activation"),
    [({}, "relu"), ({"norm": "none", "gain": 1.3}, "tanh"), ({"eps": 0.3, "gain": 0.7}, "relu")],
    ids=str,
)
def test_coverage_and_mean_square(options, activation):
    """The 90 % bands of 600 chains of width 4000, and their mean squares.

    The count in a band is binomial, and leaves its quantiles of 1e-9 and 1 − 1e-9 with probability
    2e-9; there are 20 counts. The linear theory is off by about 1/√width, 1 % of the chains.
    """
    width, depth, chains, n = 4000, 5, 600, 3
    chain = Chain(width=width, batch=n, activation=activation, **options)
    x = np.random.default_rng(11).standard_normal((width, n)) @ np.diag([1.0, 2.0, 3.0])
    x[:, 1] += x[:, 0]
    run = bnmc.simulate(chain, depth, chains=chains, initial=x, rng=12)
    field = MeanField(chain).trajectory(
        run.gram[0, 0], depth, rtol=1e-5, rng=13, fluctuations=True, fluctuation_rtol=0.02
    )
    law = field.fluctuations
    deviation = run.gram - field.gram
    distance = np.linalg.norm(deviation, axis=(-2, -1))
    weights = np.arange(9.0).reshape(3, 3)
    entries = np.sum(weights * run.gram, axis=(-2, -1))
    few, many = stats.binom(chains, 0.9).ppf([1e-9, 1 - 1e-9])
    for values, observable in ((distance, None), (entries, weights)):
        low, high = law.band(width, observable)
        inside = np.sum((values >= low) & (values <= high), axis=0)[1:]
        assert np.all(inside >= few - 0.01 * chains), inside
        assert np.all(inside <= many + 0.01 * chains), inside
    low, high = law.band(width, lambda G: float(np.sum(weights * G)))
    np.testing.assert_allclose([low, high], law.band(width, weights), rtol=1e-6)
    # 7 standard errors are 1e-9 for means of 600 (nearly exponential) squares; 2 % for the next
    # order and 25 standard errors of the prediction (7 degrees of freedom).
    square = distance**2
    predicted = law.mean_square(width)
    error = 7 * square.std(axis=0, ddof=1) / np.sqrt(chains) + 25 * predicted.stderr
    off = np.abs(square.mean(axis=0) - predicted.value)
    assert np.all(off <= error + 0.02 * predicted.value)
    assert np.all(predicted.value[0] == 0.0)


def test_least_widths_without_normalization():
    """Linear chains: S_l = l S_1, so r_l = l (m+1)/m, and layer l has (l−1)/l of it from before.

    Relative to G, one layer makes Δ = W − I with W the Gram matrix of standard normal rows, and
    E‖Δ‖² = m(m+1)/d.
    """
    law = along(Chain(width=10, batch=3, activation="linear", norm="none"), START, 6)
    expected = np.zeros(7)
    for layer in range(1, 6):
        rho = np.sqrt(layer / (layer + 1))
        expected[layer + 1] = rho * (expected[layer] + layer * 4 / 3)
    # The standard error of a trace is at most 3 % of it.
    assert law.nonlinearity == pytest.approx(expected, rel=0.1, abs=1e-12)
    assert law.least_widths.tolist()[:2] == [1, 1]
    assert law.least_widths[6] == law.holds_from == np.ceil(10 * law.nonlinearity[6])


@pytest.mark.parametrize("activation", ["linear", "relu"])
def test_least_widths_of_deep_layers(activation):
    """Those of the stationary law, with ρ in place of the rate."""
    chain = Chain(width=10, batch=4, activation=activation)
    result = along(chain, np.diag([1.0, 2.0, 3.0, 4.0]), 16)
    law = MeanField(chain).fluctuations()
    sectors = law.sectors
    carried = sum(
        s.multiplicity * np.trace(s.jacobian @ s.variance @ s.jacobian.T) for s in sectors
    )
    total = sum(s.multiplicity * np.trace(s.variance) for s in sectors)
    rho, r = np.sqrt(carried / total), law.relative_square
    # Standard errors are 5 %, and rate¹⁶ < 1e-3.
    assert result.nonlinearity[-1] == pytest.approx(rho * r / (1 - rho), rel=0.2)
    assert result.least_widths[-1] <= 1.2 * law.least_width


def test_the_linear_theory_holds_from_least_width():
    """Linear chains, whose exact covariance at finite width is known: within 10 % from there on.

    At a fifth of the width, the difference exceeds 10 %.
    """
    depth, chain = 6, Chain(width=10, batch=3, activation="linear", norm="none")
    law = along(chain, START, depth, fluctuation_rtol=0.02)

    def excess(width):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            predicted = law.mean_square(width)
        exact = np.einsum("ijij", linear_covariance(START, width, depth))
        assert predicted.stderr[depth] < 0.02 * predicted.value[depth]
        return exact / predicted.value[depth] - 1

    assert abs(excess(law.holds_from)) < 0.1
    assert excess(law.holds_from // 5) > 0.1


def test_warning_below_the_least_width():
    law = along(Chain(10, 3, "linear", norm="none"), START, 5)
    least = law.least_widths
    for call in (law.mean_square, law.band):
        with pytest.warns(LinearTheoryWarning, match=f"layer 5 holds from width {least[5]}"):
            call(int(least[5]) - 1)
    with pytest.warns(LinearTheoryWarning, match=f"layer 4 holds from width {least[4]}"):
        law.covariance(4, int(least[4]) - 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for width in (1, law.holds_from):
            law.mean_square(width)
            law.band(width)
        law.covariance(4, int(least[4]))


def test_jumps_have_a_jacobian():
    """A step function: no derivative is taken, so S is that of the stationary equation."""
    activation = bnmc.Activation(lambda x: 1.0 if x > 0.2 else 0.0, kinks=(0.2,))
    chain = Chain(10, 3, activation)
    law = along(chain, np.diag([1.0, 2.0, 2.0]), 30, fluctuation_rtol=0.1, rtol=1e-3)
    expected = MeanField(chain).fluctuations(rtol=1e-2).mean_square(1).value
    prediction = law.mean_square(1)
    assert abs(prediction.value[-1] - expected) < 25 * prediction.stderr[-1]


def test_singular_inputs():
    """Equal samples remain equal: their rows of S are equal, too."""
    start = np.ones((3, 3))
    start[2] = start[:, 2] = 0.0
    start[2, 2] = 2.0
    law = along(Chain(10, 3, "tanh", norm="batch-uncentred"), start, 3)
    covariances = law.covariance(3, 10)
    np.testing.assert_allclose(covariances[0], covariances[1], atol=1e-12)
    # eps hides rows that are 0.
    for norm in ("batch", "rms"):
        law = along(Chain(10, 2, "tanh", norm=norm, eps=0.1), np.zeros((2, 2)), 2)
        assert np.all(law.mean_square(1).value == 0.0)
        assert np.all(law.band(1) == 0.0)
        assert law.error == 0.0


def test_what_raises():
    with pytest.raises(PartialEstimateError, match="mean square known to") as caught:
        along(Chain(10, 3, "tanh"), START, 2, fluctuation_rtol=1e-9, max_points=600)
    law = caught.value.partial.fluctuations
    assert law.error > 1e-9
    for argument, call in (
        ("width", lambda: law.mean_square(0)),
        ("width", lambda: law.band(0)),
        ("width", lambda: law.covariance(1, 0)),
        ("layer", lambda: law.covariance(3, 10)),
        ("level", lambda: law.band(10, level=1.0)),
        ("observable", lambda: law.band(10, np.eye(2))),
    ):
        with pytest.raises(ArgumentError, match=argument):
            call()


def test_reproducible_and_no_cost_if_not_asked():
    chain = Chain(10, 3, "tanh")
    first, second = (along(chain, START, 2, rng=5) for _ in range(2))
    np.testing.assert_array_equal(first.covariances, second.covariances)
    plain = MeanField(chain).trajectory(START, 2, rng=5)
    assert plain.fluctuations is None
    np.testing.assert_array_equal(plain.gram, first.gram)


def test_relative_square_leaves_out_the_size_if_only_the_direction_counts():
    """E‖A‖²/m², less that of the trace if there is no damping, from 7 symmetric matrices A."""
    A = np.random.default_rng(5).standard_normal((7, 3, 3))
    A += A.swapaxes(1, 2)
    entries = packed(A)
    seen = entries.T @ entries / 7
    square, trace = np.square(A).sum(axis=(1, 2)), np.trace(A, axis1=1, axis2=2)
    for damping, expected in ((0.0, square - trace**2 / 3), (0.1, square)):
        rows = mock.Mock(vectors=np.zeros((4, 3)), damping=damping)
        assert _relative_square(seen, rows) == pytest.approx(expected.mean() / 9, rel=1e-12)


# --- Fluctuations of layers with norms over the features, biases and convolutions


AFTER = {"order": "activation-norm"}
TAPS = {"convolution": Convolution((1, 3), (1, 2))}
CASES = {
    "layer": ("relu", {"norm": "layer"}),
    "rms, eps": ("tanh", {"norm": "rms", "eps": 0.5, "gain": 1.5}),
    "groups, bias": ("tanh", {"norm": "group(4)", "bias_variance": 0.3}),
    "layer after": ("relu", AFTER | {"norm": "layer", "gain": 1.4}),
    "rms after, eps, bias": ("tanh", AFTER | {"norm": "rms", "eps": 0.1, "bias_variance": 0.1}),
    "none, bias": ("relu", {"norm": "none", "bias_variance": 0.4, "gain": 1.2}),
    "uncentred, bias": ("tanh", {"norm": "batch-uncentred", "bias_variance": 0.4}),
    "convolution": ("relu", TAPS),
    "convolution, layer": ("relu", TAPS | {"norm": "layer"}),
    "convolution, none, bias": ("tanh", TAPS | {"norm": "none", "bias_variance": 0.2}),
}


def chain_of(name, width=1000):
    activation, options = CASES[name]
    return Chain(width, 3, activation, **options)


@pytest.mark.parametrize(("norm", "expected"), [("rms", 0.75), ("layer", 0.75 - 2.0 / math.pi)])
def test_one_sample_of_relu(norm, expected):
    """The mean of σ² is that of z|z|/2 to first order, and E z₊³ = √(2/π) has the mean's part.

    The length of the sample is not passed on, so every layer has the same variance.
    """
    law = along(Chain(10, 1, "relu", norm=norm), [[3.0]], 3)
    prediction = law.mean_square(1)
    # Student's law with 7 degrees of freedom exceeds 25 with probability 4e-8.
    assert np.all(np.abs(prediction.value[1:] - expected) < 25 * prediction.stderr[1:])
    assert np.all(prediction.stderr[1:] < 0.05 * expected)


@pytest.mark.parametrize("norm", ["layer", "rms"])
@pytest.mark.parametrize("order", ["norm-activation", "activation-norm"])
def test_linear_layers_have_the_variance_of_a_sample_correlation(norm, order):
    """G_12 is a sample correlation, of variance (1 − c²)²/d, and is passed on with slope 1."""
    c = 0.6
    law = along(Chain(10, 2, "linear", norm=norm, order=order), [[1.0, c], [c, 1.0]], 4)
    result = [law.covariance(layer, 1)[0, 1, 0, 1] for layer in range(5)]
    expected = np.arange(5) * (1 - c**2) ** 2
    assert np.all(np.abs(result - expected) <= 25 * law.stderr + 1e-12)
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
    terms = norm_terms(chain.layers[1], rows, START, field.step(START, rtol=1e-8, rng=1).gram)
    seen = _whitening(chain.layers[1], rows, START) @ packed(change)
    result = [
        terms.slopes(_estimates(chain.layers[1], rows, terms, np.random.SeedSequence(seed), 12))
        @ seen
        for seed in range(32)
    ]
    error = np.std(result, axis=0, ddof=1) / math.sqrt(32) * stats.t.isf(FALSE_ALARM / 12, 31)
    # The difference has an error of the order of 1e-8 / 1e-4.
    assert np.all(np.abs(np.mean(result, axis=0) - expected) < error + 3e-4)
    assert np.all(error < 0.12 * np.abs(expected).max() + 1e-12)


@pytest.mark.parametrize("eps", [0.0, 0.5])
def test_coefficients_of_lengths_are_means_with_the_derivative(eps):
    """L_ij,i = E u_i σ′(u_i) σ(u_j) by Gauss-Hermite sums of 60² nodes, for σ = exp(x/2)."""
    chain = Chain(10, 2, "tanh", norm="rms", eps=eps)
    gram = np.array([[2.0, 0.6], [0.6, 0.7]])
    rows = gaussian_rows(chain.layers[1], gram)
    root = rows.vectors * np.sqrt(rows.values)
    z, weight = normal_points(np.eye(2), 60)
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
    result = norm_terms(chain.layers[1], rows, gram, np.eye(2))._coefficients(slopes)
    np.testing.assert_allclose(result, expected, rtol=1e-9)
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
    law = along(chain, run.gram[0, 0], depth, rtol=1e-5, rng=13, fluctuation_rtol=0.01)
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
    result = run.gram[:, depth][:, 0, 1].var(ddof=1) * width
    for layer in (depth - 1, depth):
        predicted = law.covariance(layer, 1)[0, 1, 0, 1]
        level = FALSE_ALARM / 4
        low, high = stats.chi2.ppf([level, 1 - level], chains - 1) / (chains - 1)
        assert low * 0.9 < result / predicted < high * 1.1


def test_parallel_samples_of_different_lengths():
    """With eps the slopes of such a pair need a derivative of σ; equal samples do not."""
    chain = Chain(10, 2, "tanh", norm="layer", eps=0.1)
    with pytest.raises(ArgumentError, match="^G0: .*no parallel samples of different lengths"):
        along(chain, [[1.0, 2.0], [2.0, 4.0]], 2)
    law = along(chain, np.ones((2, 2)), 2)
    covariances = law.covariance(2, 1)
    np.testing.assert_allclose(covariances[0], covariances[1], atol=1e-12)
    # Without eps they are equal for the norm.
    law = along(Chain(10, 2, "tanh", norm="layer"), [[1.0, 2.0], [2.0, 4.0]], 2)
    np.testing.assert_allclose(law.covariance(2, 1)[0], law.covariance(2, 1)[1], atol=1e-12)


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
    terms = norm_terms(chain.layers[1], rows, START, np.eye(3))

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


# --- networks

INPUT = np.random.default_rng(21).standard_normal((12, 3)) @ np.diag([1.0, 2.0, 1.5]) + 0.5
#: Layers 0 to 4, of unequal widths.
LAYERS = (
    (400, "relu", {"norm": "none", "gain": 1.4}),
    (900, "tanh", {"norm": "layer", "bias_variance": 0.2}),
    (300, "relu", {"order": "activation-norm", "eps": 0.01}),
    (500, "relu", {"norm": "batch-uncentred", "gain": 0.5}),
    (250, "silu", {"norm": "none", "gain": 1.5}),
)


def network_of_layers(factor=1, layers=LAYERS):
    stages = ((Chain(factor * width, 3, name, **rest), 1) for width, name, rest in layers[1:])
    width, name, rest = layers[0]
    return bnmc.Network((Chain(factor * width, 3, name, **rest), 0), *stages)


def of_network(network, **options):
    options = {"rng": 3, "covariance": INPUT.T @ INPUT / 12} | options
    return MeanField(network).trajectory(fluctuations=True, **options)


@pytest.mark.parametrize("starts_at_state", [True, False])
def test_networks_of_unequal_widths(starts_at_state):
    """Five layers of widths 250 to 900 beside 3000 simulated networks: mean squares and bands.

    A count in a 90 % band is binomial and leaves its quantiles of 1e-8 with probability 2e-8; 9 or
    10 counts.  A mean of 3000 squares is within 6.5 standard errors with probability 1 − 1e-10 if
    it is normal.  The next order in 1/width is about 1/250 of the squares, times a few.
    """
    network, chains = network_of_layers(), 3000
    if starts_at_state:
        run = bnmc.simulate(network, chains=chains, initial=bnmc.FirstLayer(INPUT), rng=8)
        path = of_network(network)
    else:
        # One state, the same in all networks.
        state = np.random.default_rng(5).standard_normal((400, 3)) @ np.diag([1.0, 2.0, 1.5])
        run = bnmc.simulate(network, chains=chains, initial=state, rng=8)
        path = of_network(network, covariance=None, G0=run.gram[0, 0])
    law = path.fluctuations
    few, many = stats.binom(chains, 0.9).ppf([1e-8, 1 - 1e-8])
    weights = np.array([[1.0, 0.5, -0.2], [0.5, -1.0, 0.3], [-0.2, 0.3, 0.4]])
    entries = np.sum(weights * run.gram, axis=(-2, -1))
    low, high = law.band(observable=weights)
    inside = np.sum((entries >= low) & (entries <= high), axis=0)[1 - starts_at_state :]
    assert ((few - 0.02 * chains <= inside) & (inside <= many + 0.02 * chains)).all(), inside
    square = np.sum((run.gram - path.gram) ** 2, axis=(-2, -1))
    predicted = law.mean_square()
    error = 6.5 * square.std(axis=0, ddof=1) / math.sqrt(chains) + 25 * predicted.stderr
    off = np.abs(square.mean(axis=0) - predicted.value)
    assert (off <= error + 0.03 * predicted.value).all(), square.mean(axis=0) / predicted.value
    assert (predicted.value[1:] > 0.0).all()
    assert (predicted.value[0] > 0.0) == starts_at_state


def test_a_network_of_one_chain_has_its_fluctuations():
    """The covariance is that of the chain at the width of the network, and scales with widths."""
    chain = Chain(width=40, batch=3, activation="tanh")
    law = along(chain.repeat(3), START, None)
    expected = along(chain, START, 3)
    np.testing.assert_allclose(law.covariances * 40, expected.covariances, rtol=1e-12)
    np.testing.assert_allclose(law.nonlinearity * 40, expected.nonlinearity, rtol=1e-12)
    assert law.least_widths.tolist() == expected.least_widths.tolist()
    assert (law.widths.tolist(), expected.widths) == ([40] * 4, None)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        squares = law.mean_square().value, expected.mean_square(40).value
        assert np.shape(law.covariance(2)) == (3, 3, 3, 3)
    np.testing.assert_allclose(*squares, rtol=1e-12)
    assert {each.category for each in caught} <= {LinearTheoryWarning}
    assert law.holds_from == math.ceil(expected.holds_from / 40)
    with pytest.raises(ArgumentError, match="width: got 40, allowed: None for a network"):
        law.mean_square(40)
    with pytest.raises(ArgumentTypeError, match="width: got None"):
        expected.mean_square()


def test_a_narrow_network_warns():
    narrow = Chain(4, 3, "linear", norm="none").repeat(8)
    law = along(narrow, START, None)
    assert law.holds_from > 1
    with pytest.warns(LinearTheoryWarning, match="from width [0-9]+ on, but width is 4"):
        law.mean_square()
