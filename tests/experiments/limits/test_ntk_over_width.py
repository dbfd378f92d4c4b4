"""Tangent kernels against the width: slopes, and kernels of infinite width."""

import numpy as np
import pytest
from experiment_checks import CERTAIN, drawn
from scipy import special

from bnmc.experiments import limits
from bnmc.experiments.limits import ntk_over_width


@pytest.fixture
def found(small):
    return small("limits-ntk-convergence")


def test_slopes_are_minus_one_half(found):
    """Up to four of the errors of a normal estimate, and to the order depth/d at width 64."""
    power, high = found.data["slope"].values, found.data["slope_high"].values
    errors = (high - power) / special.ndtri(0.975)
    allowed = -special.ndtri(CERTAIN / 2) * errors + 0.05
    assert (np.abs(power + 0.5) < allowed).all()
    assert (allowed < 0.3).all()


def test_means_of_networks_are_the_kernel_of_infinite_width(found):
    """The ratio's square is at most a chi-squared number of one degree of freedom, scaled."""
    ratio = found.data["distance_of_mean"] / found.data["noise"]
    shallow = ratio.sel(network="1 hidden layer").values
    # If one eigenvalue of the covariance dominates, the ratio is |z|; with others it is smaller.
    # 60 networks are not normal: the square of a normal output weight has kurtosis 15.
    assert (shallow < 7.0).all()
    assert (ratio.sel(network="3 hidden layers").values < 9.0).all()
    assert np.isnan(ratio.values[-1]).all()


def test_the_closed_form_of_one_hidden_layer():
    """Arc-cosine kernels of degrees 1 and 0 (Cho and Saul) for K = xᵀx/features."""
    x = np.random.default_rng(2).standard_normal((5, 4))
    K = x.T @ x / 5
    norms = np.sqrt(np.outer(np.diag(K), np.diag(K)))
    theta = np.arccos(np.clip(K / norms, -1, 1))
    one = norms * (np.sin(theta) + (np.pi - theta) * np.cos(theta)) / (2 * np.pi)
    expected = one + K * (np.pi - theta) / (2 * np.pi)
    np.testing.assert_allclose(ntk_over_width._limit(x, 1), expected, rtol=1e-7)
    # A fixed first layer: the kernel of its activations, of covariance `one`, in the same way.
    norms = np.sqrt(np.outer(np.diag(one), np.diag(one)))
    theta = np.arccos(np.clip(one / norms, -1, 1))
    two = norms * (np.sin(theta) + (np.pi - theta) * np.cos(theta)) / (2 * np.pi)
    expected = two + one * (np.pi - theta) / (2 * np.pi)
    np.testing.assert_allclose(ntk_over_width._limit(x, 2), expected, rtol=1e-7)


def test_kernels_of_one_network():
    """Gradients of f = Σ a relu(w x) / √d by differences, with the numbers of the generator."""
    x = np.array([[0.5, 1.0, -1.0], [1.0, 0.2, 0.3]])
    width = 4
    (found,) = ntk_over_width._shallow_kernels(
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
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)


def test_picture(found):
    figure = found.plot()
    assert drawn(figure.axes[0], found.data["distance"][0])
    assert len(found.table.rows) == 3
    assert "theory -0.5" in found.findings[0]


def test_bad_data(tmp_path):
    with pytest.raises(ValueError, match="^data"):
        limits.ntk_convergence(data=tmp_path)
