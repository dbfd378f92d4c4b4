"""Tangent kernels of batch normalization against networks of finite width, and batches."""

import numpy as np
import pytest

import bnmc
from bnmc import Activation
from bnmc.errors import ArgumentError, PartialEstimateError
from bnmc.infinite_width import batches, kernels, nngp, ntk

CHAINS, WIDTH, BATCH = 100, 48, 10
SWISH = Activation(
    lambda x: x / (1 + np.exp(-2 * x)), name="swish",
    derivative=lambda x: (1 + np.exp(-2 * x) * (1 + 2 * x)) / (1 + np.exp(-2 * x)) ** 2,
)  # fmt: skip


def normalised(rows):
    centred = rows - rows.mean(axis=-1, keepdims=True)
    return centred / centred.std(axis=-1, keepdims=True)


@pytest.mark.parametrize(
    "name", ["relu", *(pytest.param(name, marks=pytest.mark.slow) for name in ("tanh", "linear"))]
)
def test_simulated_tangent_kernels_of_two_batches(name):
    # Layer 0 of the networks are copies of 24 rows, so that its Gram matrix is the same for all
    # widths.  The mean differs from the limit by O(1/width), which 2 m(2d) − m(d) removes.  Batches
    # of 10 have 9 dimensions, so fourth moments are finite.  There are 400 entries, of which |z| >
    # 6.5 has probability 2e-7 (t distribution).
    rows = np.random.default_rng(0).standard_normal((2, 24, BATCH))
    f = Activation.named(name)
    x = np.concatenate(list(f(normalised(rows))), axis=1)
    limit = ntk(x, 2, activation=name, norm="batch", batch=BATCH, rtol=4e-3, rng=0)
    means, errors = [], []
    for width in (WIDTH, 2 * WIDTH):
        found = bnmc.gradients.tangent_kernel(
            bnmc.Chain(width, BATCH, name), 2, chains=CHAINS, inputs=2, rng=width,
            initial=np.tile(rows, (1, width // 24, 1)),
        )  # fmt: skip
        means.append(found.mean())
        errors.append(found.stderr())
    mean = 2 * means[1] - means[0]
    error = np.sqrt(4 * errors[1] ** 2 + errors[0] ** 2)
    rounding = 4e-3 * np.linalg.norm(limit) if name == "tanh" else 0.0
    assert (np.abs(mean - limit) < 6.5 * error + rounding).all()


# A sampled layer costs seconds; two layers of relu have all that goes from one to the next.
@pytest.mark.parametrize(
    ("activation", "depth"),
    [("relu", 2), (SWISH, 1), pytest.param(SWISH, 2, marks=pytest.mark.slow)],
)
def test_batches_of_a_set_are_blocks(activation, depth):
    x = np.random.default_rng(1).standard_normal((9, 12))
    options = {
        "activation": activation, "norm": "batch", "weight_variance": 1.5, "bias_variance": 0.2,
        "rng": 0, "rtol": 0.02,
    }  # fmt: skip
    for function in (nngp, ntk):
        whole = function(x, depth, batch=6, **options)
        assert (whole == whole.T).all()
        blocks = [
            (whole[:6, :6], function(x[:, :6], depth, **options)),
            (whole[6:, 6:], function(x[:, 6:], depth, **options)),
            (whole[:6, 6:], function(x[:, :6], depth, other=x[:, 6:], **options)),
            (whole[:, 6:], function(x, depth, other=x[:, 6:], batch=(6, 6), **options)),
        ]
        for found, expected in blocks:
            close = 1e-7 if activation == "relu" else 0.1
            assert np.linalg.norm(found - expected) < close * np.linalg.norm(expected)


def test_kernels_between_a_batch_and_itself():
    x = np.random.default_rng(2).standard_normal((9, 6))
    whole = ntk(x, 2, norm="batch")
    np.testing.assert_allclose(ntk(x, 2, norm="batch", other=x), whole, rtol=1e-6)
    # A permutation of the batch permutes the kernel.
    order = [3, 1, 0, 5, 2, 4]
    np.testing.assert_allclose(ntk(x[:, order], 2, norm="batch"), whole[np.ix_(order, order)])
    # The mean and the scale of a batch do not matter, nor do those of weights and biases.
    first = ntk(x, 1, norm="batch") - nngp(x, 1, norm="batch")
    other = 5.0 * x + 3.0
    again = ntk(other, 1, norm="batch", bias_variance=0.5) - nngp(
        other, 1, norm="batch", bias_variance=0.5
    )
    np.testing.assert_allclose(again, first, rtol=1e-9)
    # The weights of the output are larger by the root of their variance.
    options = {"norm": "batch", "weight_variance": 1.5}
    larger = ntk(x, 1, **options) - nngp(x, 1, **options)
    np.testing.assert_allclose(larger, 1.5 * first, rtol=1e-9)


@pytest.mark.parametrize("batch", [None, 5])
def test_kernels_are_positive_semidefinite(batch):
    x = np.random.default_rng(3).standard_normal((12, 10))
    x[:, 1] = x[:, 0] + 1e-9 * x[:, 2]
    values = np.linalg.eigvalsh(ntk(x, 3, norm="batch", batch=batch))
    assert values[0] > -1e-7 * values[-1]


def test_deep_tangent_kernels_grow_at_the_backward_rate():
    x = np.random.default_rng(4).standard_normal((12, 10))
    P = np.eye(10) - 0.1
    traces = [np.trace(P @ ntk(x, depth, norm="batch")) for depth in (25, 26)]
    rate = bnmc.MeanField(bnmc.Chain(1, 10, "relu")).fixed_point().backward_rate
    assert traces[1] / traces[0] == pytest.approx(rate, rel=1e-4)


def test_smooth_functions_reach_a_small_error(monkeypatch):
    x = np.random.default_rng(5).standard_normal((9, 6))
    calls = []
    found = ntk(
        x, 1, activation="tanh", norm="batch", rtol=5e-4, rng=0,
        progress=lambda done, total: calls.append((done, total)),
    )  # fmt: skip
    again = ntk(x, 1, activation="tanh", norm="batch", rtol=5e-4, rng=1)
    assert 0.0 < np.linalg.norm(found - again) < 5e-3 * np.linalg.norm(found)
    assert calls[0] == (0, 8)
    assert calls[-1] == (8, 8)
    monkeypatch.setattr(batches, "_MOST_POINTS", 1 << 14)
    with pytest.raises(PartialEstimateError, match="rtol is 1.0e-09") as caught:
        ntk(x, 1, activation="tanh", norm="batch", rtol=1e-9, rng=0)
    assert np.linalg.norm(caught.value.partial - found) < 5e-3 * np.linalg.norm(found)


def test_small_batches():
    x = np.random.default_rng(6).standard_normal((9, 6))
    with pytest.raises(ArgumentError, match="infinite"):
        ntk(x, 1, norm="batch", batch=3)
    assert nngp(x, 1, norm="batch", batch=3).shape == (6, 6)
    # With two samples a normalized row is ±1 and has no derivative.
    pair = ntk(x[:, :2], 2, norm="batch", weight_variance=1.5, bias_variance=0.1)
    np.testing.assert_allclose(pair, 1.5 * 0.5 * np.eye(2) + 0.1, atol=1e-12)
    with pytest.raises(ArgumentError, match="equal samples"):
        ntk(np.ones((3, 4)), 1, norm="batch")
    with pytest.raises(ArgumentError, match="other"):
        ntk(x, 1, norm="batch", other=np.ones((9, 4)))


def apart(samples, by=1e-9):
    """Nearly equal samples: their differences are `by` times those of the given ones."""
    # Differences of multiples of 2^-20 and their sums with 1 are exact.
    return 1.0 + by * np.round(samples * 2**20) / 2**20


@pytest.mark.parametrize("options", [
    {"activation": "relu"}, {"activation": "relu", "bias_variance": 0.7},
    pytest.param({"activation": "tanh"}, marks=pytest.mark.slow),
])  # fmt: skip
@pytest.mark.parametrize("kernel", [nngp, ntk])
def test_nearly_equal_samples_have_the_kernel_of_their_differences(kernel, options):
    """The first normalization hides their mean and their scale, up to rounding of 1e-16/1e-9."""
    x = np.random.default_rng(4).standard_normal((8, 10))
    near = apart(x, 2.0**-30)
    for more in ({}, {"batch": 5}):
        wide = kernel(np.round(x * 2**20) / 2**20, 2, norm="batch", rng=0, **options, **more)
        np.testing.assert_allclose(
            kernel(near, 2, norm="batch", rng=0, **options, **more), wide, rtol=0, atol=1e-5
        )


def clustered(by):
    """Two samples, and two that are nearly the first: integrals converge slowly."""
    x = np.random.default_rng(1).standard_normal((40, 4))
    x[:, 2:] = x[:, :1] + by * x[:, 2:]
    return x


@pytest.mark.parametrize("activation", ["tanh", pytest.param("selu", marks=pytest.mark.slow)])
def test_slow_integrals_are_estimated_instead(activation):
    """To the default error of estimates, 1e-3, beside samples that are equal."""
    expected = nngp(clustered(0.0), 1, norm="batch", activation=activation, rng=0)
    found = nngp(clustered(1e-4), 1, norm="batch", activation=activation, rng=0)
    assert np.linalg.norm(found - expected) < 3e-3 * np.linalg.norm(expected)
    with pytest.raises(PartialEstimateError, match=r"kernel known to .* only, rtol is 1.0e-08"):
        nngp(clustered(1e-4), 1, norm="batch", activation=activation, rng=0, rtol=1e-8)


def test_the_default_error_limits_the_evaluations_of_integrals(monkeypatch):
    """8 shifts and 21 pairs of 6 samples in 2 layers: with fewer evaluations it is estimated."""
    x = np.random.default_rng(1).standard_normal((9, 6))
    given, run = [], kernels.iterates

    def watched(*arguments):
        given.append(arguments[-1])
        return run(*arguments)

    monkeypatch.setattr(kernels, "iterates", watched)
    exact = nngp(x, 2, norm="batch", activation="selu", rng=0)
    monkeypatch.setattr(kernels, "_MOST_EVALUATIONS", 8 * 21 * 2 * 300)
    estimated = nngp(x, 2, norm="batch", activation="selu", rng=0)
    again = nngp(x, 2, norm="batch", activation="selu", rng=0, rtol=1e-5)
    assert given == [100_000, 300, 100_000]
    size = np.linalg.norm(exact)
    assert 1e-6 * size < np.linalg.norm(estimated - exact) < 5e-3 * size
    assert np.linalg.norm(again - exact) < 5e-5 * size
