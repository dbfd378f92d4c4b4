"""True and random labels: alignment with kernels, convergence, and the bound of Arora et al."""

import numpy as np
import pytest

from bnmc.experiments import limits
from bnmc.experiments.limits import randomized_labels
from bnmc.experiments.limits.ensembles import two_classes, unit_length


class TestAlignment:
    FIGURE = "limits-alignment"

    def test_true_labels_align_and_random_ones_do_not(self, figure):
        share = figure.data["share"].values
        assert share[0, 4] > 0.8
        assert (np.diff(share, axis=1) > -1e-12).all()
        np.testing.assert_allclose(share[:, -1], 1.0, rtol=1e-9)
        # Independent signs: E of the share of k is k/n.  The standard deviation of a draw of k = 20
        # of 40 is at most √2 · √20 / 40 = .16, that of the mean of 12 draws .046; five of them.
        assert abs(share[1, 19] - 0.5) < 0.23
        assert figure.table.rows[1][2].value > 5 * figure.table.rows[0][2]

    def test_residuals_are_the_formula(self, figure):
        """Σ (yᵀv)² exp(−2 λ t / n) / n from the dataset's own shares and eigenvalues."""
        shares, values = figure.data["share"].values[0], figure.data["eigenvalue"].values
        squares = np.diff(shares, prepend=0.0)
        times = figure.data["time"].values
        expected = np.exp(-2 * times[:, None] * values / len(values)) @ squares
        np.testing.assert_allclose(
            figure.data["residual"].values[0], expected, rtol=1e-8, atol=1e-12
        )
        assert np.interp(figure.table.rows[0][2], times, expected) == pytest.approx(0.1, abs=0.02)
        bound = figure.data["bound"].values
        np.testing.assert_allclose(bound, np.exp(-values[-1] * times / len(values)), rtol=1e-12)
        assert (expected <= bound + 1e-12).all()

    def test_wide_networks_follow_the_kernel(self, data):
        """Ratios of mean squares: their order is 1/√width = .022, with a factor of 10 steps."""
        ratio = data["ratio"].values
        np.testing.assert_allclose(ratio[:, 0], 1.0, rtol=1e-9)
        assert (np.abs(ratio - 1.0) < 0.3).all()
        assert (np.abs(ratio[:, 1] - 1.0) < 0.05).all()

    def test_time_until_a_tenth_is_left(self):
        rates, squares = np.array([2.0, 0.5]), np.array([3.0, 0.0])
        assert randomized_labels._time_left(rates, squares) == pytest.approx(np.log(10) / 2)
        assert randomized_labels._time_left(np.array([2.0, 0.0]), np.ones(2)) == np.inf

    def test_steps_of_infinite_width(self):
        kernel = np.array([[2.0, 0.5], [0.5, 1.0]])
        residuals = np.array([[1.0, -2.0]])
        step = np.eye(2) - kernel / 2
        expected = [np.mean((np.linalg.matrix_power(step, k) @ residuals[0]) ** 2) for k in (0, 3)]
        squares = randomized_labels._of_infinite_width(kernel, residuals, (0, 3))
        np.testing.assert_allclose(squares[0], expected, rtol=1e-12)


class TestComplexity:
    FIGURE = "limits-complexity"

    def test_splits_written_out(self):
        """H of Arora et al., with the orders and the signs of the generator."""
        shares = (0.0, 0.5, 1.0)
        result = limits.complexity(train=12, test=8, classes=(3, 8), shares=shares, splits=2, rng=4)
        inputs = unit_length(two_classes(None, 12, 8, (3, 8)))
        x = np.hstack([inputs.train, inputs.test])
        y = np.where(np.hstack([inputs.labels, inputs.test_labels]), 1.0, -1.0)
        products = np.clip(x.T @ x, -1.0, 1.0)
        H = products * (np.pi - np.arccos(products)) / (2 * np.pi)
        rng = np.random.default_rng(4)
        expected = {name: np.zeros(3) for name in ("complexity", "bound", "loss", "error")}
        for _ in range(2):
            order = rng.permutation(20)
            rank, signs = rng.random(20), np.where(rng.random(20) < 0.5, 1.0, -1.0)
            inner, outer = order[:12], order[12:]
            G = H[np.ix_(inner, inner)]
            for column, share in enumerate(shares):
                given = np.where(rank < share, signs, y)
                weights = np.linalg.solve(G, given[inner])
                f = H[np.ix_(outer, inner)] @ weights
                leading = np.sqrt(2 * given[inner] @ weights / 12)
                second = np.sqrt(np.log(12 / (np.linalg.eigvalsh(G)[0] * 0.05)) / 12)
                expected["complexity"][column] += leading / 2
                expected["bound"][column] += (leading + second) / 2
                expected["loss"][column] += np.minimum(np.abs(f - given[outer]), 1.0).mean() / 2
                expected["error"][column] += np.mean(f * y[outer] <= 0) / 2
        for name, values in expected.items():
            np.testing.assert_allclose(result.data[name], values, rtol=1e-6, err_msg=name)

    def test_the_bound_holds_and_grows(self, data):
        for name in ("complexity", "loss"):
            values = data[name].values
            assert (np.diff(values) > 0).all()
        assert (data["loss"] <= data["complexity"]).all()
        assert float(data["error"][0]) < 0.05
        # Eight overlapping splits of 40 test images with random training labels.
        assert abs(float(data["error"][-1]) - 0.5) < 0.3
