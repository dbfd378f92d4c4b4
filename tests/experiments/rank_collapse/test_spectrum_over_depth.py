"""Fig. 3b and Lemma 3: eigenvalues and angles over depth, from nearly equal or apart samples."""

import math

import numpy as np
import pytest
from experiment_checks import errors
from scipy import special

from bnmc.experiments.pictures import curve
from bnmc.experiments.rank_collapse import spectrum_over_depth


class TestFig3b:
    FIGURE = "rank-collapse-3b"

    def test_the_start_is_nearly_of_rank_one(self, data):
        eigenvalues = data.eigenvalue.values[0]
        assert eigenvalues[0] == pytest.approx(20, rel=1e-9)
        # Noise of 5e-7 of the rest has singular values up to 2 √20 times that, over √20.
        assert np.all(eigenvalues[1:] < (2 * 5e-7 * 1.5) ** 2 * 20)
        assert data.rank_bound.values[0] == pytest.approx(1, abs=1e-9)

    def test_small_eigenvalues_rise_while_the_largest_falls(self, data):
        eigenvalues = data.eigenvalue.values
        assert eigenvalues[0, 1] < 1e-10 < 1 < eigenvalues[10, 1]
        assert eigenvalues[10, 0] < eigenvalues[0, 0]

    def test_the_start_is_forgotten(self, data):
        last = np.log(curve(data, "eigenvalue")[-1])
        settled = np.log(curve(data, "settled"))
        (error, allowed), (other, _) = errors(last, 64), errors(settled, 64)
        assert np.all(np.abs(last[:, 0] - settled[:, 0]) <= allowed * np.hypot(error, other))


class TestLemma3:
    FIGURE = "rank-collapse-lemma-3"

    def test_angles_are_averaged_over_all_pairs(self):
        """log sin² of the angles 30, 45 and 75 degrees between three vectors in a plane."""
        angles = np.radians([0.0, 30.0, 75.0])
        vectors = np.array([np.cos(angles), np.sin(angles)]) * [1.0, 2.0, 3.0]
        gram = np.tile(vectors.T @ vectors, (2, 3, 1, 1))
        band = spectrum_over_depth._mean_log_squared_sines(gram)
        expected = np.log(np.sin(np.radians([30.0, 45.0, 75.0])) ** 2).mean()
        np.testing.assert_allclose(band, np.full((2, 3), expected), rtol=1e-12)

    def test_the_pace_is_that_of_the_last_recorded_layer(self):
        """A last layer for angles that is not recorded gives the results of the one before."""
        first, second = (
            spectrum_over_depth.lemma_3(width=4, depth=12, angle_depth=depth, chains=3)
            for depth in (8, 11)
        )
        assert first.data.identical(second.data)

    def test_angles_follow_the_exact_law_at_every_layer(self, data):
        layers = data.angle_layer.values
        band = curve(data, "log_squared_sine")
        plain_pace = special.digamma(15 / 2) - special.digamma(16 / 2)
        # With a residual branch: volumes of one and two columns of I + γW, by simulation.
        rng = np.random.default_rng(24)
        columns = 0.25 * rng.standard_normal((80_000, 16, 2)) + np.eye(16, 2)
        gram = columns.swapaxes(1, 2) @ columns
        logs = np.log(np.linalg.det(gram)) - np.log(gram[:, 0, 0]) - np.log(gram[:, 1, 1])
        for case, pace, uncertain in (
            (0, plain_pace, 0.0),
            (2, logs.mean(), logs.std(ddof=1) / math.sqrt(len(logs))),
        ):
            error, allowed = errors(band[case], 200)
            away = np.abs(band[case, :, 0] - pace * layers)
            assert np.all(away <= allowed * np.hypot(error, uncertain * layers) + 1e-12)

    def test_the_theory_is_drawn(self, data):
        pace = special.digamma(15 / 2) - special.digamma(16 / 2)
        assert float(data.pace_in_theory[0]) == pytest.approx(pace, rel=1e-10)

    def test_every_network_collapses_the_residual_ones_later(self, data):
        excess = curve(data, "excess_rank")
        assert np.all(excess[:, 0, 0] == pytest.approx(15))
        assert np.all(excess[:, -1, 2] < 1e-4)
        logs = np.log(excess[:, -1])
        error, _ = errors(logs, 200)
        allowed = special.stdtrit(199, 1 - 1e-6 / 2)  # of two comparisons
        for plain_case, residual in ((0, 2), (1, 3)):
            later = logs[residual, 0] - logs[plain_case, 0]
            assert later > allowed * math.hypot(error[residual], error[plain_case])
