"""Tangent kernels against the width: slopes, and kernels of infinite width."""

import numpy as np
from experiment_checks import CERTAIN
from scipy import special

from bnmc.experiments.limits import ntk_over_width

FIGURE = "limits-ntk-convergence"


def test_slopes_are_minus_one_half(data):
    """Up to four of the errors of a normal estimate, and to the order depth/d at width 64."""
    power, high = data["slope"].values, data["slope_high"].values
    errors = (high - power) / special.ndtri(0.975)
    allowed = -special.ndtri(CERTAIN / 2) * errors + 0.05
    assert (np.abs(power + 0.5) < allowed).all()
    assert (allowed < 0.3).all()


def test_means_of_networks_are_the_kernel_of_infinite_width(data):
    """The ratio's square is at most a chi-squared number of one degree of freedom, scaled."""
    ratio = data["distance_of_mean"] / data["noise"]
    shallow = ratio.sel(network="1 hidden layer").values
    # If one eigenvalue of the covariance dominates, the ratio is |z|; with others it is smaller.
    # 60 networks are not normal: the square of a normal output weight has kurtosis 15.
    assert (shallow < 7.0).all()
    assert (ratio.sel(network="3 hidden layers").values < 9.0).all()
    assert np.isnan(ratio.values[-1]).all()


def test_the_closed_form_of_one_hidden_layer():
    """Arc-cosine kernels of degrees 1 and 0 (Cho and Saul) for K = xᵀx/features."""
    x = np.random.default_rng(2).standard_normal((5, 4))
    activations, expected = arc_cosine(x.T @ x / 5)
    np.testing.assert_allclose(ntk_over_width._limit(x, 1), expected, rtol=1e-7)
    # A fixed first layer: the kernel of its activations, in the same way.
    _, expected = arc_cosine(activations)
    np.testing.assert_allclose(ntk_over_width._limit(x, 2), expected, rtol=1e-7)


def arc_cosine(K):
    """Return the covariance of relu of normals of covariance K, and the tangent kernel."""
    norms = np.sqrt(np.outer(np.diag(K), np.diag(K)))
    theta = np.arccos(np.clip(K / norms, -1, 1))
    covariance = norms * (np.sin(theta) + (np.pi - theta) * np.cos(theta)) / (2 * np.pi)
    return covariance, covariance + K * (np.pi - theta) / (2 * np.pi)


def test_kernels_of_one_network():
    """Gradients of f = Σ a relu(w x) / √d by differences, with the numbers of the generator."""
    x = np.array([[0.5, 1.0, -1.0], [1.0, 0.2, 0.3]])
    width = 4
    (kernel,) = ntk_over_width._shallow_kernels(
        x, width, networks=1, rng=np.random.default_rng(3), progress=lambda *now: None
    )
    rng = np.random.default_rng(3)
    values, vectors = np.linalg.eigh(x.T @ x / 2)
    h = rng.standard_normal((width, 3)) @ (vectors * np.sqrt(np.maximum(values, 0))) @ vectors.T
    a = rng.standard_normal(width)
    expected = np.zeros((3, 3))
    for i in range(3):
        for k in range(3):
            of_a = np.sum(np.maximum(h[:, i], 0) * np.maximum(h[:, k], 0)) / width
            both = (h[:, i] > 0) & (h[:, k] > 0)
            expected[i, k] = of_a + np.sum(a[both] ** 2) * (x[:, i] @ x[:, k]) / 2 / width
    np.testing.assert_allclose(kernel, expected, rtol=1e-10, atol=1e-12)
