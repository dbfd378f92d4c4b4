"""Alignment of labels: formulas written out, the bound, and interruption."""

import numpy as np
import pytest

from bnmc.experiments.limits import label_alignment

FIGURE = "limits-alignment"


def test_true_labels_align_and_random_ones_do_not(figure):
    share = figure.data["share"].values
    assert share[0, 4] > 0.8
    assert (np.diff(share, axis=1) > -1e-12).all()
    np.testing.assert_allclose(share[:, -1], 1.0, rtol=1e-9)
    # Independent signs: E of the share of k is k/n.  The standard deviation of a draw of k = 20 of
    # 40 is at most √2 · √20 / 40 = .16, that of the mean of 12 draws .046; five of them.
    assert abs(share[1, 19] - 0.5) < 0.23
    assert figure.table.rows[1][2].value > 5 * figure.table.rows[0][2]


def test_residuals_are_the_formula(figure):
    """Σ (yᵀv)² exp(−2 λ t / n) / n from the dataset's own shares and eigenvalues."""
    shares, values = figure.data["share"].values[0], figure.data["eigenvalue"].values
    squares = np.diff(shares, prepend=0.0)
    times = figure.data["time"].values
    expected = np.exp(-2 * times[:, None] * values / len(values)) @ squares
    np.testing.assert_allclose(figure.data["residual"].values[0], expected, rtol=1e-8, atol=1e-12)
    assert np.interp(figure.table.rows[0][2], times, expected) == pytest.approx(0.1, abs=0.02)
    bound = figure.data["bound"].values
    np.testing.assert_allclose(bound, np.exp(-values[-1] * times / len(values)), rtol=1e-12)
    assert (expected <= bound + 1e-12).all()


def test_wide_networks_follow_the_kernel(data):
    """Ratios of mean squares: their order is 1/√width = .022, with a factor of 10 steps."""
    ratio = data["ratio"].values
    np.testing.assert_allclose(ratio[:, 0], 1.0, rtol=1e-9)
    assert (np.abs(ratio - 1.0) < 0.3).all()
    assert (np.abs(ratio[:, 1] - 1.0) < 0.05).all()


def test_time_until_a_tenth_is_left():
    rates, squares = np.array([2.0, 0.5]), np.array([3.0, 0.0])
    assert label_alignment._time_left(rates, squares) == pytest.approx(np.log(10) / 2)
    assert label_alignment._time_left(np.array([2.0, 0.0]), np.ones(2)) == np.inf


def test_steps_of_infinite_width():
    kernel = np.array([[2.0, 0.5], [0.5, 1.0]])
    residuals = np.array([[1.0, -2.0]])
    step = np.eye(2) - kernel / 2
    expected = [np.mean((np.linalg.matrix_power(step, k) @ residuals[0]) ** 2) for k in (0, 3)]
    squares = label_alignment._of_infinite_width(kernel, residuals, (0, 3))
    np.testing.assert_allclose(squares[0], expected, rtol=1e-12)
