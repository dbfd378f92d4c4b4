"""Kernels of batch normalization against networks of finite width, closed forms and blocks."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from infinite_width_checks import assert_unbiased, extrapolated
from numpy_network import normalised
from slow_cases import slow

import bnmc
from bnmc import Activation
from bnmc._kernels.scalar.codes import NORM_FIRST
from bnmc.chain.layers import RowMap
from bnmc.chain.norms import as_norm
from bnmc.errors import PartialEstimateError
from bnmc.infinite_width import batches, convergence, kernels, nngp, ntk
from bnmc.infinite_width.batches import NormalizedBatches, RowPaths
from bnmc.infinite_width.networks import HiddenLayer, Weights

CHAINS, WIDTH, BATCH = 100, 48, 10
SWISH = Activation(
    lambda x: x / (1 + np.exp(-2 * x)), name="swish",
    derivative=lambda x: (1 + np.exp(-2 * x) * (1 + 2 * x)) / (1 + np.exp(-2 * x)) ** 2,
)  # fmt: skip
X = np.random.default_rng(0).standard_normal((9, 14))
WEIGHTS = {"norm": "batch", "weight_variance": 1.5, "bias_variance": 0.3}
ACTIVATED = {"activation": "tanh", "order": "activation-norm"}


def distance(kernel, expected):
    """Return the relative distance of a kernel from the expected one."""
    return np.linalg.norm(kernel - expected) / np.linalg.norm(expected)


# --- networks of finite width


@pytest.mark.parametrize("name", ["relu", slow("tanh"), slow("linear")])
def test_simulated_tangent_kernels_of_two_batches(name):
    # Layer 0 of the networks are copies of 24 rows, so that its Gram matrix is the same for all
    # widths.  Batches of 10 have 9 dimensions, so fourth moments are finite.  There are 400
    # entries, of which |z| > 6.5 has probability 2e-7 (t distribution).
    rows = np.random.default_rng(0).standard_normal((2, 24, BATCH))
    f = Activation.named(name)
    x = np.concatenate(list(f(normalised(rows))), axis=1)
    limit = ntk(x, 2, activation=name, norm="batch", batch=BATCH, rtol=4e-3, rng=0)
    narrow, wide = (
        bnmc.gradients.tangent_kernel(
            bnmc.Chain(width, BATCH, name), 2, chains=CHAINS, inputs=2, rng=width,
            initial=np.tile(rows, (1, width // 24, 1)),
        )
        for width in (WIDTH, 2 * WIDTH)
    )  # fmt: skip
    mean, error = extrapolated(narrow, wide)
    rounding = 4e-3 * np.linalg.norm(limit) if name == "tanh" else 0.0
    assert (np.abs(mean - limit) < 6.5 * error + rounding).all()


# The kernel of gradients has that of outputs in each of its layers.
@pytest.mark.parametrize("options", [{**ACTIVATED, "rtol": 4e-3}, slow({"activation": "relu"})])
@pytest.mark.parametrize("kernel", [slow(nngp), ntk])
def test_one_layer_of_finite_networks_has_the_mean_of_the_limit(kernel, options):
    """Rows of h_0 are Gaussian at every width, so the mean of K and Θ does not depend on it.

    Batches of 7 have 6 dimensions, so fourth moments of 1/|row| are finite.  Of 98 entries
    |z| > 6.5 has the probability 2e-8 (t distribution with 400 degrees of freedom).
    """
    options = {**WEIGHTS, **options, "skip": 0.7, "batch": 7}
    limit = kernel(X, 1, rng=0, **options)
    networks = kernel(X, 1, method="monte-carlo", width=24, chains=400, rng=1, **options)
    rounding = options.get("rtol", 0.0) * np.linalg.norm(limit) / len(limit)
    error = np.hypot(networks.stderr(), rounding)
    assert (np.abs(networks.mean() - limit) < 6.5 * error).all()


@pytest.mark.parametrize(
    ("kernel", "options", "skip", "depth"),
    [
        # Two layers with the norm last are tested each time in test_kernels.py.
        slow(ntk, {**ACTIVATED, "rtol": 4e-3}, 0.7, 2),
        (ntk, {"activation": "relu", "rtol": 1e-2}, 0.7, 2),
        slow(nngp, {**ACTIVATED, "rtol": 4e-3}, 0.7, 2),
        slow(ntk, {**ACTIVATED, "rtol": 4e-3}, 0.0, 2),
        slow(nngp, {"activation": "relu", "rtol": 1e-2}, 0.7, 2),
        slow(ntk, {"activation": "tanh", "rtol": 1e-2}, 0.7, 2),
        slow(ntk, {"activation": "relu", "rtol": 1e-2}, 0.7, 3),
        slow(nngp, {"activation": "tanh", "rtol": 1e-2}, 0.7, 3),
    ],
)
def test_layers_of_finite_networks(kernel, options, skip, depth):
    """Of 98 entries |z| > 6.5 has the probability 1e-7 (t, 150 degrees of freedom)."""
    options = {**WEIGHTS, **options, "skip": skip, "batch": 7}
    limit = kernel(X, depth, rng=0, **options)
    mean, error = extrapolated(
        *(
            kernel(X, depth, method="monte-carlo", width=width, chains=150, rng=width, **options)
            for width in (48, 96)
        )
    )
    error = np.hypot(error, options["rtol"] * np.linalg.norm(limit) / len(limit))
    assert (np.abs(mean - limit) < 6.5 * error).all()


@pytest.mark.slow
def test_finite_networks_converge_as_the_root_of_the_width():
    result = convergence(
        X[:, :7], 1, widths=[64, 256, 1024], chains=25, rng=1, rtol=5e-3, skip=0.5,
        **WEIGHTS, **ACTIVATED,
    )  # fmt: skip
    # Five standard errors, and 0.05 for the next order.
    assert abs(result.slope.value + 0.5) < 5 * result.slope.stderr + 0.05
    assert result.slope.stderr < 0.06


# --- batches of a set


# A sampled layer costs seconds; two layers of relu have all that goes from one to the next.
@pytest.mark.parametrize(
    ("options", "depth", "close"),
    [
        slow({"activation": "relu"}, 2, 1e-6),
        ({"activation": "relu", "skip": 0.7}, 2, 0.1),
        ({**ACTIVATED, "skip": 0.5, "rtol": 0.03}, 2, 0.1),
        slow({"activation": SWISH}, 1, 0.1),
        slow({"activation": SWISH}, 2, 0.1),
    ],
)
@pytest.mark.parametrize("kernel", [slow(nngp), ntk])
def test_batches_of_a_set_are_blocks(kernel, options, depth, close):
    x = np.random.default_rng(1).standard_normal((9, 12))
    options = {**WEIGHTS, "rng": 0, "rtol": 0.02, **options}
    whole = kernel(x, depth, batch=6, **options)
    # Only paths of rows, with a skip connection beside a norm that is first, are not symmetric.
    rounding = 1e-12 if options.get("skip") == 0.7 else 0.0
    np.testing.assert_allclose(whole, whole.T, rtol=rounding)
    blocks = [
        (whole[:6, :6], kernel(x[:, :6], depth, **options)),
        (whole[:6, :6], kernel(x[:, :6], depth, other=x[:, :6], **options)),
        (whole[6:, 6:], kernel(x[:, 6:], depth, **options)),
        (whole[:6, 6:], kernel(x[:, :6], depth, other=x[:, 6:], **options)),
        (whole[:, 6:], kernel(x, depth, other=x[:, 6:], batch=(6, 6), **options)),
    ]
    for block, expected in blocks:
        assert distance(block, expected) < close


def test_kernels_of_a_batch_are_those_of_its_differences():
    x = np.random.default_rng(2).standard_normal((9, 6))
    whole = ntk(x, 2, norm="batch")
    # A permutation of the batch permutes the kernel.
    order = [3, 1, 0, 5, 2, 4]
    np.testing.assert_allclose(ntk(x[:, order], 2, norm="batch"), whole[np.ix_(order, order)])

    # The mean and the scale of a batch do not matter, nor do those of weights and biases.  The
    # weights of the output are larger by the root of their variance.
    def gradients_below(x, **options):
        return ntk(x, 1, norm="batch", **options) - nngp(x, 1, norm="batch", **options)

    first = gradients_below(x)
    again = gradients_below(5.0 * x + 3.0, bias_variance=0.5)
    np.testing.assert_allclose(again, first, rtol=1e-9)
    np.testing.assert_allclose(gradients_below(x, weight_variance=1.5), 1.5 * first, rtol=1e-9)


def test_a_linear_activation_commutes_with_the_norm():
    options = {"norm": "batch", "activation": "linear", "weight_variance": 1.5, "batch": 7}
    for kernel in (nngp, ntk):
        last = kernel(X, 2, order="activation-norm", **options)
        np.testing.assert_allclose(last, kernel(X, 2, **options), rtol=1e-12)
        # The skip connection adds what it keeps, and its tangents.
        skipping = kernel(X, 1, order="activation-norm", skip=0.5, **options)
        expected = 0.25 * (1.5 * X.T @ X / 9) + kernel(X, 1, **options)
        np.testing.assert_allclose(skipping, expected, rtol=1e-12)


@pytest.mark.parametrize("batch", [None, 5])
def test_kernels_are_positive_semidefinite(batch):
    x = np.random.default_rng(3).standard_normal((12, 10))
    x[:, 1] = x[:, 0] + 1e-9 * x[:, 2]
    values = np.linalg.eigvalsh(ntk(x, 3, norm="batch", batch=batch))
    assert values[0] > -1e-7 * values[-1]


@pytest.mark.parametrize("options", [ACTIVATED, {"activation": "relu"}])
@pytest.mark.parametrize("kernel", [slow(nngp), ntk])
def test_kernels_with_skip_connections_are_positive_semidefinite(kernel, options):
    x = X[:, :8].copy()
    x[:, 1] = x[:, 0] * (1 + 1e-16) + 1e-16
    x[:, 2] = x[:, 0] + 1e-9 * x[:, 2]
    for inputs in (x, 1.0 + 2.0**-52 * np.round(8 * X[:, :8])):
        values = kernel(inputs, 2, rng=0, rtol=0.02, skip=0.5, **WEIGHTS, **options)
        assert np.isfinite(values).all()
        np.testing.assert_allclose(values, values.T, rtol=1e-12)
        eigenvalues = np.linalg.eigvalsh(values)
        assert eigenvalues[0] > -1e-9 * eigenvalues[-1]


def test_deep_tangent_kernels_grow_at_the_backward_rate():
    x = np.random.default_rng(4).standard_normal((12, 10))
    P = np.eye(10) - 0.1
    traces = [np.trace(P @ ntk(x, depth, norm="batch")) for depth in (25, 26)]
    rate = bnmc.MeanField(bnmc.Chain(1, 10, "relu")).fixed_point().backward_rate
    assert traces[1] / traces[0] == pytest.approx(rate, rel=1e-4)


@pytest.mark.parametrize("skip", [0.0, 0.7])
def test_small_batches(skip):
    """A normalized row of two samples is ±(1, −1) and has no derivative."""
    assert nngp(X[:, :6], 2, batch=3, rtol=0.05, rng=0, skip=skip, **WEIGHTS).shape == (6, 6)
    expected = 1.5 * 0.5 * np.eye(2) + 0.3
    of_skip = skip**2 * np.array([[1.0, -1.0], [-1.0, 1.0]])
    options = {**WEIGHTS, "skip": skip, "rng": 0}
    np.testing.assert_allclose(ntk(X[:, :2], 2, **options), expected, atol=1e-12)
    np.testing.assert_allclose(nngp(X[:, :2], 2, **options), expected + of_skip, atol=1e-12)


def test_small_networks_with_the_norm_last():
    options = {"norm": "batch", **ACTIVATED}
    two = nngp(X[:, :2], 1, rng=0, **options)
    np.testing.assert_allclose(two, [[1, -1], [-1, 1]], atol=1e-12)
    # A network without hidden layers has no norm.
    np.testing.assert_allclose(nngp(X, 0, skip=0.5, **options), X.T @ X / 9)


# --- nearly equal samples


def on_grid(samples, unit=2.0**-20):
    """Return multiples of a unit: their sums with 1 are exact, also times a small power of 2."""
    return unit * np.round(samples / unit)


@pytest.mark.parametrize("options", [
    {"activation": "relu"}, slow({"activation": "relu", "bias_variance": 0.7}),
    {"activation": "relu", "weight_variance": 1.5, "skip": 0.7, "rtol": 0.02},
    slow({"activation": "tanh"}),
])  # fmt: skip
@pytest.mark.parametrize("kernel", [slow(nngp), ntk])
def test_nearly_equal_samples_have_the_kernel_of_their_differences(kernel, options):
    """The first normalization hides their mean and their scale, up to rounding of 1e-16/1e-9."""
    x = on_grid(np.random.default_rng(4).standard_normal((8, 12)))
    for more in ({}, {"batch": 6}):
        near, wide = (
            kernel(inputs, 2, norm="batch", rng=0, **options, **more)
            for inputs in (1.0 + 2.0**-30 * x, x)
        )
        np.testing.assert_allclose(near, wide, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kernel", [nngp, ntk])
def test_nearly_equal_samples_see_a_linear_activation(kernel):
    """Then N(σ(u)) is N(u) or −N(u).  The rest is of the order of their differences."""
    wide = on_grid(X[:, :7], 0.25)
    expected = kernel(wide, 1, norm="batch", activation="linear")
    for by in (2.0**-50, 2.0**-20):
        near = kernel(1.0 + by * wide, 1, norm="batch", rng=0, rtol=4e-3, **ACTIVATED)
        assert distance(near, expected) < 0.02


# --- errors of integrals


def test_smooth_functions_reach_a_small_error(monkeypatch):
    x = np.random.default_rng(5).standard_normal((9, 6))
    calls = []
    kernel = ntk(
        x, 1, activation="tanh", norm="batch", rtol=5e-4, rng=0,
        progress=lambda done, total: calls.append((done, total)),
    )  # fmt: skip
    again = ntk(x, 1, activation="tanh", norm="batch", rtol=5e-4, rng=1)
    assert 0.0 < distance(again, kernel) < 5e-3
    # Each attempt, with more points than the last one, counts its 8 replicates; a slow one is
    # reported again.
    assert {total for _, total in calls} == {8}
    assert calls[-1] == (8, 8)
    for (before, _), (after, _) in itertools.pairwise(calls):
        assert after >= before or before == 8
    monkeypatch.setattr(batches, "_MOST_POINTS", 1 << 14)
    with pytest.raises(PartialEstimateError, match="rtol is 1.0e-09") as caught:
        ntk(x, 1, activation="tanh", norm="batch", rtol=1e-9, rng=0)
    assert distance(caught.value.partial, kernel) < 5e-3


def clustered(by):
    """Two samples, and two that are nearly the first: integrals converge slowly."""
    x = np.random.default_rng(1).standard_normal((40, 4))
    x[:, 2:] = x[:, :1] + by * x[:, 2:]
    return x


# Below, a limit on the evaluations makes integrals of other samples slow.
@pytest.mark.slow
@pytest.mark.parametrize("activation", ["tanh", "selu"])
def test_slow_integrals_are_estimated_instead(activation):
    """To the default error of estimates, 1e-3, beside samples that are equal."""
    options = {"norm": "batch", "activation": activation, "rng": 0}
    expected = nngp(clustered(0.0), 1, **options)
    assert distance(nngp(clustered(1e-4), 1, **options), expected) < 3e-3
    with pytest.raises(PartialEstimateError, match=r"kernel known to .* only, rtol is 1.0e-08"):
        nngp(clustered(1e-4), 1, rtol=1e-8, **options)


def test_the_default_error_limits_the_evaluations_of_integrals(monkeypatch):
    """8 shifts and 15 pairs of 5 samples in 2 layers: with fewer evaluations it is estimated."""
    x = np.random.default_rng(1).standard_normal((9, 5))
    limits, run = [], kernels.iterates

    def watched(*arguments):
        limits.append(arguments[-1])
        return run(*arguments)

    monkeypatch.setattr(kernels, "iterates", watched)
    options = {"norm": "batch", "activation": "selu", "rng": 0}
    exact = nngp(x, 2, **options)
    monkeypatch.setattr(kernels, "_MOST_EVALUATIONS", 8 * 15 * 2 * 300)
    estimated = nngp(x, 2, **options)
    again = nngp(x, 2, rtol=1e-5, **options)
    assert limits == [100_000, 300, 100_000]
    assert 1e-6 < distance(estimated, exact) < 5e-3
    assert distance(again, exact) < 5e-5


# --- how many coordinates points need


def network(sizes):
    inputs = np.random.default_rng(0).standard_normal((9, sum(sizes)))
    tanh = Activation.named("tanh")
    layer = HiddenLayer(RowMap(tanh, as_norm("batch"), NORM_FIRST, 1), Weights())
    return NormalizedBatches([inputs], [tuple(sizes)], Weights(), (layer,), False)


@pytest.mark.parametrize("sizes", [[4], [5, 5], [3, 6, 2, 5], [6, 3, 4]])
def test_points_have_the_coordinates_of_the_largest_pair(sizes):
    """A normalized row of n samples has n − 1 coordinates."""
    batched = network(sizes)
    needed = [sum(sizes[at] - 1 for at in {i, j}) for i, j in batched.own_and_pairs]
    assert batched.coordinates == max(needed)


def test_a_smaller_batch_does_not_change_the_points_of_the_others():
    two, three = network([5, 4]), network([5, 4, 3])
    three = replace(three, sets=[np.concatenate([two.inputs, three.inputs[:, 9:]], axis=1)])
    alone, beside = (
        batched.replicate(64, np.random.default_rng(1), lambda: None) for batched in (two, three)
    )
    np.testing.assert_array_equal(beside[:9, :9], alone)


# --- paths of rows


@pytest.mark.parametrize("tangent", [False, True])
def test_one_layer_of_paths_has_the_kernel_of_integrals(tangent):
    weights, relu = Weights(1.5, 0.3), Activation.named("relu")
    layer = HiddenLayer(RowMap(relu, as_norm("batch"), NORM_FIRST, 1), weights, 0.7)
    # Batches of different scales.
    for sets in ([X[:, :7]], [X[:, :7], 1e-5 * X[:, 7:]]):
        network = sets, [(7,)] * len(sets), weights, (layer,), tangent
        exact, error = NormalizedBatches(*network).integrals()(lambda: None)
        assert error < 1e-8
        paths = RowPaths(*network)
        assert_unbiased(
            [paths.replicate(1 << 11, np.random.default_rng(i), lambda: None) for i in range(16)],
            exact,
        )
