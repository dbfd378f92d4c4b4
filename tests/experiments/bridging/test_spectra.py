"""Fig. 2 beside Marchenko-Pastur, exact variances and linear response."""

import numpy as np
import pytest
from experiment_checks import drawn, require_near, stderr_of
from numpy.testing import assert_allclose

import bnmc
from bnmc.experiments.bridging.common import bulk
from bnmc.experiments.bridging.spectra import stationary_spread


class TestFig2:
    @pytest.fixture
    def found(self, small):
        return small("bridging-2")

    def test_one_step_is_exact_and_layer_20_is_wider(self, found):
        data, n = found.data, 20
        one = data.sel(activation="linear")
        single, deep = one["variance"].values
        errors = stderr_of(one, "variance", 100)
        require_near(single, errors[0], 100, (n - 2) / n)
        # The square of λ = (n-1)/(n+1) in 20 layers; corrections of order n/d are within 3 %.
        factor = ((n - 1) / (n + 1)) ** 2
        stationary = (n - 2) / n / (1 - factor)
        theory = stationary * (1 - factor**21)
        require_near(deep, errors[1], 100, theory, 0.03 * theory)
        error = stderr_of(one, "predicted", 100)
        require_near(float(one["predicted"]), error, 100, stationary)
        assert "(n - 2)/n = 0.9 in one step" in found.findings[-1]
        relu = data.sel(activation="relu")
        error = np.hypot(stderr_of(relu, "variance", 100)[1], stderr_of(relu, "predicted", 100))
        require_near(
            float(relu["variance"][1]), error, 100, float(relu["predicted"]),
            0.03 * float(relu["predicted"]),
        )  # fmt: skip

    def test_densities(self, found):
        data, n, d = found.data, 20, 2000
        z = data["bin"].values
        width = z[1] - z[0]
        assert_allclose(data["density"].sum("bin") * width, 1.0, atol=0.01)
        low, high = (1 - np.sqrt(n / d)) ** 2, (1 + np.sqrt(n / d)) ** 2
        inside = np.maximum((high - z**2) * (z**2 - low), 0.0)
        assert_allclose(data["marchenko_pastur"], np.sqrt(inside) / (np.pi * n / d * z), atol=1e-10)

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
            found = stationary_spread(single, star, 0.5)
            expected = (part**2).sum() / (1 - rate**2) / (n - 1) / 0.5
            assert found.mean() == pytest.approx(expected, rel=1e-9)

    def test_picture(self, found):
        figure = found.plot()
        for ax, name in zip(figure.axes, ("linear", "relu"), strict=True):
            assert name in ax.get_title(loc="left")
            assert drawn(ax, found.data["marchenko_pastur"])
            assert drawn(ax, found.data["density"].sel(activation=name)[1])
