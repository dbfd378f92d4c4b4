"""Against the width: tangent kernels, and powers of the width in one step of training."""

import numpy as np
from experiment_checks import CERTAIN
from scipy import special

from bnmc.experiments.limits import over_width


def arc_cosine(K):
    """Return the covariance of relu of normals of covariance K, and the tangent kernel."""
    norms = np.sqrt(np.outer(np.diag(K), np.diag(K)))
    theta = np.arccos(np.clip(K / norms, -1, 1))
    covariance = norms * (np.sin(theta) + (np.pi - theta) * np.cos(theta)) / (2 * np.pi)
    return covariance, covariance + K * (np.pi - theta) / (2 * np.pi)


class TestKernels:
    FIGURE = "limits-ntk-convergence"

    def test_slopes_are_minus_one_half(self, data):
        """Up to four of the errors of a normal estimate, and to the order depth/d at width 64."""
        power, high = data["slope"].values, data["slope_high"].values
        errors = (high - power) / special.ndtri(0.975)
        allowed = -special.ndtri(CERTAIN / 2) * errors + 0.05
        assert (np.abs(power + 0.5) < allowed).all()
        assert (allowed < 0.3).all()

    def test_means_of_networks_are_the_kernel_of_infinite_width(self, data):
        """The ratio's square is at most a chi-squared number of one degree of freedom, scaled."""
        ratio = data["distance_of_mean"] / data["noise"]
        shallow = ratio.sel(network="1 hidden layer").values
        # If an eigenvalue of the covariance dominates, the ratio is |z|; else it is smaller.
        # 60 networks are not normal: the square of a normal output weight has kurtosis 15.
        assert (shallow < 7.0).all()
        assert (ratio.sel(network="3 hidden layers").values < 9.0).all()
        assert np.isnan(ratio.values[-1]).all()

    def test_the_closed_form_of_one_hidden_layer(self):
        """Arc-cosine kernels of degrees 1 and 0 (Cho and Saul) for K = xᵀx/features."""
        x = np.random.default_rng(2).standard_normal((5, 4))
        activations, expected = arc_cosine(x.T @ x / 5)
        np.testing.assert_allclose(over_width._limit(x, 1), expected, rtol=1e-7)
        # A fixed first layer: the kernel of its activations, in the same way.
        _, expected = arc_cosine(activations)
        np.testing.assert_allclose(over_width._limit(x, 2), expected, rtol=1e-7)

    def test_kernels_of_one_network(self):
        """Gradients of f = Σ a relu(w x) / √d by differences, with the numbers of the generator."""
        x = np.array([[0.5, 1.0, -1.0], [1.0, 0.2, 0.3]])
        width = 4
        (kernel,) = over_width._shallow_kernels(
            x, width, chains=1, rng=np.random.default_rng(3), progress=lambda *now: None
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


#: Outputs, two kernels, change of outputs, square of output weights, change of both weights, and
#: change of both kernels as sums over neurons.
THEORY = {
    "ntk": (0, 0, 0, 0, -1, -0.5, -0.5, -1, -1),
    "mean-field": (-0.5, 0, 0, 0, -2, 0, 0, 0, 0),
    "default": (0, 1, 0, 1, -1, 0.5, -0.5, -1, 1),
    "sym-default": (0, 0.5, 0.5, 0.5, -1, 0, 0, 0, 0),
    "ic-mf": (0, 0, 0, 0, -2, 0, 0, 0, 0),
}


PRINTED = {
    "ntk": (-0.5, -0.5), "mean-field": (0, 0), "default": (-0.5, 0.5), "sym-default": (0, 0),
    "ic-mf": (0, 0),
}  # fmt: skip


class TestPowers:
    FIGURE = "limits-exponents"

    def test_theory(self, data):
        for name, powers in THEORY.items():
            part = data.sel(scaling=name)
            np.testing.assert_allclose(part["summed"], powers, atol=1e-12)
            np.testing.assert_allclose(part["printed"], (*powers[:7], *PRINTED[name]), atol=1e-12)

    def test_measured_powers(self, data):
        """Within six standard errors and 0.15, for the next order at width 64."""
        power = data["power"]
        errors = (data["power_high"] - power) / special.ndtri(0.975)
        gap = np.abs(power - data["summed"])
        assert (gap < 6 * errors + 0.15).all()
        assert float(errors.median()) < 0.03
        # The power -1/2 of the change of kernels under NTK is excluded.
        change = power.sel(scaling="ntk", quantity="change of kernel of output weights")
        assert float(change) < -0.7
