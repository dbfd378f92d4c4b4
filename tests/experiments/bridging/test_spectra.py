"""Fig. 2 and Corollaries 2, 4 and 8: spectra of Gram matrices."""

import numpy as np
import pytest
from experiment_checks import require_near, stderr_of
from numpy.testing import assert_allclose

import bnmc
from bnmc.experiments.bridging.common import bulk
from bnmc.experiments.bridging.spectra import stationary_spread


class TestFig2:
    FIGURE = "bridging-2"

    def test_one_step_is_exact_and_layer_20_is_wider(self, figure):
        data, n = figure.data, 20
        of_linear = data.sel(activation="linear")
        # The square of λ = (n-1)/(n+1) in 20 layers; corrections of order n/d are within 3 %.
        factor = ((n - 1) / (n + 1)) ** 2
        stationary = (n - 2) / n / (1 - factor)
        theory = stationary * (1 - factor**21)
        errors, expected = stderr_of(of_linear, "variance", 100), np.array([(n - 2) / n, theory])
        require_near(of_linear["variance"], errors, 100, expected, np.array([0.0, 0.03 * theory]))
        error = stderr_of(of_linear, "predicted", 100)
        require_near(of_linear["predicted"], error, 100, stationary)
        assert "(n - 2)/n = 0.9 in one step" in figure.findings[-1]
        relu = data.sel(activation="relu")
        error = np.hypot(stderr_of(relu, "variance", 100)[1], stderr_of(relu, "predicted", 100))
        predicted = float(relu["predicted"])
        require_near(relu["variance"][1], error, 100, predicted, 0.03 * predicted)

    def test_densities(self, data):
        n, d = 20, 2000
        z = data["bin"].values
        width = z[1] - z[0]
        assert_allclose(data["density"].sum("bin") * width, 1.0, atol=0.01)
        low, high = (1 - np.sqrt(n / d)) ** 2, (1 + np.sqrt(n / d)) ** 2
        inside = np.maximum((high - z**2) * (z**2 - low), 0.0)
        assert_allclose(data["marchenko_pastur"], np.sqrt(inside) / (np.pi * n / d * z), atol=1e-10)

    def test_the_stationary_law_is_near_and_one_eigenvalue_outside(self, data):
        """Distribution functions differ by less than .06, and those of ratio n/d by more."""
        width = float(data["bin"][1] - data["bin"][0])
        deep = data["density"].isel(which=1)
        gaps = [
            np.abs(np.cumsum(deep - data[name], axis=-1) * width).max(axis=-1)
            for name in ("stationary_bulk", "marchenko_pastur")
        ]
        assert (gaps[0] < 0.06).all()
        assert (gaps[1] > 0.08).all()
        relu = data.sel(activation="relu")
        star = bnmc.MeanField(bnmc.Chain(100, 20, "relu")).fixed_point()
        outside = star.b * (1 + 19 * star.c)
        assert_allclose(relu["outlier_theory"], outside, rtol=1e-9)
        # The mean of the eigenvalue differs by order 1/width.
        require_near(relu["outlier"], stderr_of(relu, "outlier", 100), 100, outside, 0.01)
        assert abs(float(data.sel(activation="linear")["outlier"])) < 1e-9

    def test_a_deviation_lasts_as_its_sector_does(self):
        n = 6
        basis = bulk(np.eye(n))  # identity of n - 1 dimensions
        assert_allclose(basis, np.eye(n - 1), atol=1e-14)
        star = bnmc.MeanField(bnmc.Chain(100, n, "relu")).fixed_point()
        slow, fast = star.eigenvalues
        rng = np.random.default_rng(0)
        P = np.eye(n) - 1 / n
        v = rng.standard_normal(n)
        light = P @ np.diag(v - v.mean()) @ P
        S = rng.standard_normal((n, n))
        S = P @ (S + S.T) @ P
        S -= np.trace(S) / (n - 1) * P
        w = np.linalg.solve((1 - 2 / n) * np.eye(n), np.diag(S))
        heavy = S - P @ np.diag(w) @ P
        assert np.abs(np.diag(heavy)).max() < 1e-12
        for part, rate in ((light, slow), (heavy, fast)):
            part = 0.01 * part
            single = np.eye(n - 1) + bulk(np.stack([part, -part]))
            prediction = stationary_spread(single, star, 0.5)
            expected = (part**2).sum() / (1 - rate**2) / (n - 1) / 0.5
            assert prediction.mean() == pytest.approx(expected, rel=1e-9)


class TestConditioning:
    FIGURE = "bridging-conditioning"

    def test_the_bulk_narrows_as_the_root_of_the_width(self, data):
        part = data.sel(activation="tanh")
        spread = (part["largest"] - part["smallest"]).values
        errors = np.hypot(stderr_of(part, "largest", 48), stderr_of(part, "smallest", 48))
        error = np.hypot(*(errors / spread)) / np.log(16)
        # A spread of s has a correction of order s² at width 200.
        bias = 0.1 * spread[0] ** 2 / np.log(16)
        require_near(np.log(spread[1] / spread[0]) / np.log(16), error, 48, -0.5, bias)

    def test_windows_are_too_narrow(self, figure):
        n = 10
        for k, d in enumerate(figure.data["width"].values):
            root = np.sqrt(n / d)
            assert_allclose(figure.data["printed_window"][k], [1 - root, 1 + root])
            assert_allclose(figure.data["mp_window"][k], [(1 - root) ** 2, (1 + root) ** 2])
        for row in figure.table.rows:
            printed = row[4]
            assert printed.ci[1] < 0.5
        start, *_, end = figure.data["condition"].values[0]
        assert start > 50 > 2 > end > 1


class TestTwoInputs:
    FIGURE = "bridging-two-inputs"

    def test_both_certificates_fall_to_a_level(self, data):
        part = data.sel(activation="relu")
        n = 5
        c_star = bnmc.MeanField(bnmc.Chain(1000, n, "relu")).fixed_point()
        for k, width in enumerate(part["width"].values):
            # The distortion of relu is 1, the least eigenvalue of G* is b(1 - c).
            least = c_star.b * (1 - c_star.c)
            assert part["epsilon"][k] == pytest.approx(n / np.sqrt(least * width), rel=1e-6)
        for kind in ("spectral", "relative"):
            levels, errors = part[f"{kind}_level"].values, stderr_of(part, f"{kind}_level", 32)
            slope = np.log(levels[-1] / levels[0]) / np.log(16)
            error = np.hypot(*(errors / levels)[[0, -1]]) / np.log(16)
            # Of second order is a deviation times itself, and the level is 0.5 at width 250.
            bias = 0.5 * levels[0] ** 2 / np.log(16)
            require_near(slope, error, 32, -0.5, bias)
            assert (part[kind][:, 0] > 5 * levels).all()
            # All networks have the same layer 0, where the mean is rounded.
            assert (part[f"{kind}_band_low"] <= part[kind] * (1 + 1e-12)).all()
