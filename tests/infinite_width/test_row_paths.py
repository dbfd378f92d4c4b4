"""Batch normalization with skip connections, against finite networks and in closed form."""

import numpy as np
import pytest

from bnmc import Activation
from bnmc._kernels.scalar.codes import NORM_FIRST
from bnmc.chain.layers import RowMap
from bnmc.chain.norms import as_norm
from bnmc.errors import ArgumentError
from bnmc.infinite_width import nngp, ntk
from bnmc.infinite_width.batches import NormalizedBatches
from bnmc.infinite_width.networks import HiddenLayer, Weights
from bnmc.infinite_width.row_paths import RowPaths

X = np.random.default_rng(0).standard_normal((9, 14))
OPTIONS = {"norm": "batch", "weight_variance": 1.5, "bias_variance": 0.3, "skip": 0.7}


@pytest.mark.parametrize("tangent", [False, True])
def test_one_layer_of_paths_has_the_kernel_of_integrals(tangent):
    weights, relu = Weights(1.5, 0.3), Activation.named("relu")
    layer = HiddenLayer(RowMap(relu, as_norm("batch"), NORM_FIRST, 1), weights, 0.7)
    # Batches of different scales.
    for sets in ([X[:, :7]], [X[:, :7], 1e-5 * X[:, 7:]]):
        given = sets, [(7,)] * len(sets), weights, (layer,), tangent
        exact, error = NormalizedBatches(*given).integrals()(lambda: None)
        assert error < 1e-8
        paths = RowPaths(*given)
        found = np.array(
            [paths.replicate(1 << 11, np.random.default_rng(i), lambda: None) for i in range(16)]
        )
        off = np.linalg.norm(found.mean(axis=0) - exact)
        spread = np.linalg.norm(found.std(axis=0, ddof=1)) / 4.0
        # If all entries had one common error, t with 15 degrees of freedom: |t| > 10 has 5e-8.
        assert off < 10.0 * spread
        assert spread < 0.02 * np.linalg.norm(exact)


@pytest.mark.parametrize("kernel", [nngp, ntk])
def test_one_layer_of_finite_networks_has_the_mean_of_the_limit(kernel):
    """Rows of h_0 are Gaussian at every width.  Of 49 entries |z| > 6.5 has 1e-8 (t, 400)."""
    limit = kernel(X[:, :7], 1, activation="relu", **OPTIONS)
    found = kernel(
        X[:, :7], 1, activation="relu", method="monte-carlo", width=24, networks=400, rng=1,
        **OPTIONS,
    )  # fmt: skip
    assert (np.abs(found.mean() - limit) < 6.5 * found.stderr()).all()


@pytest.mark.parametrize(
    ("kernel", "name", "depth"),
    [
        (ntk, "relu", 2),
        *(
            pytest.param(*one, marks=pytest.mark.slow)
            for one in ((nngp, "relu", 2), (ntk, "tanh", 2), (ntk, "relu", 3), (nngp, "tanh", 3))
        ),
    ],
)
def test_layers_of_finite_networks(kernel, name, depth):
    """Their mean differs from the limit by O(1/width), which 2 m(2d) − m(d) removes.

    Of 98 entries |z| > 6.5 has the probability 1e-7 (t distribution with 150 degrees of freedom).
    """
    options = {**OPTIONS, "activation": name, "batch": 7}
    limit = kernel(X, depth, rng=0, rtol=1e-2, **options)
    one, two = (
        kernel(X, depth, method="monte-carlo", width=width, networks=150, rng=width, **options)
        for width in (48, 96)
    )
    mean = 2 * two.mean() - one.mean()
    error = np.sqrt(4 * two.stderr() ** 2 + one.stderr() ** 2)
    error = np.hypot(error, 1e-2 * np.linalg.norm(limit) / len(limit))
    assert (np.abs(mean - limit) < 6.5 * error).all()


def test_batches_of_two_sets():
    options = {**OPTIONS, "rng": 0, "rtol": 0.02}
    for kernel in (nngp, ntk):
        whole = kernel(X, 2, batch=7, **options)
        across = kernel(X[:, :7], 2, other=X[:, 7:], **options)
        assert np.linalg.norm(whole[:7, 7:] - across) < 0.1 * np.linalg.norm(across)
        values = np.linalg.eigvalsh(whole)
        np.testing.assert_allclose(whole, whole.T, rtol=1e-12)
        assert values[0] > -1e-12 * values[-1]


@pytest.mark.parametrize("kernel", [nngp, ntk])
def test_nearly_equal_samples_have_the_kernel_of_their_differences(kernel):
    wide = np.round(X[:, :7] * 2**20) / 2**20
    options = {**OPTIONS, "rng": 0, "rtol": 0.02}
    found = kernel(1.0 + 2.0**-30 * wide, 2, **options)
    np.testing.assert_allclose(found, kernel(wide, 2, **options), rtol=0, atol=1e-5)
    x = wide.copy()
    x[:, 1] = x[:, 0] * (1 + 1e-16)
    assert np.isfinite(kernel(x, 2, **options)).all()


def test_small_batches():
    with pytest.raises(ArgumentError, match="infinite"):
        ntk(X[:, :3], 2, **OPTIONS)
    with pytest.raises(ArgumentError, match="infinite variance"):
        ntk(X[:, :5], 2, **OPTIONS)
    assert nngp(X[:, :5], 2, rtol=0.05, rng=0, **OPTIONS).shape == (5, 5)
    # A normalized row of two samples is ±(1, −1), so K = skip² N Nᵀ + σ_w² V + σ_b².
    signs = np.array([[1.0, -1.0], [-1.0, 1.0]])
    expected = 1.5 * 0.5 * np.eye(2) + 0.3
    np.testing.assert_allclose(ntk(X[:, :2], 2, rng=0, **OPTIONS), expected, atol=1e-12)
    np.testing.assert_allclose(
        nngp(X[:, :2], 2, rng=0, **OPTIONS), expected + 0.49 * signs, atol=1e-12
    )
