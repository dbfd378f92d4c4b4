"""Figs. 1a and 1b, and those of the poster: distances from the fixed point."""

import numpy as np
import pytest
from experiment_checks import require_near, stderr_of
from figure_sizes import FIGURES
from numpy.testing import assert_allclose

import bnmc
from bnmc.experiments import bridging
from bnmc.experiments.bridging import distances


class TestFig1a:
    FIGURE = "bridging-1a"

    def test_vanilla_grows_as_the_exact_formula(self, data):
        n, d = 5, 1000
        layers = data["layer"].values.astype(float)
        square = n * (n + 2) / 3 * (1 + 2 / d) ** layers - n * (n - 1) / 3 * (1 - 1 / d) ** layers
        part = data.sel(norm="none")
        assert_allclose(part["exact"], np.sqrt(square - n), rtol=1e-10)
        few = part.isel(layer=[0, 5, 20, -1])
        require_near(few["rms"], stderr_of(few, "rms", 400), 400, few["exact"])
        assert_allclose(data["equation_6"], np.sqrt(35 / 3) * np.exp(layers / d))
        assert_allclose(data["bound"], np.exp(1.5 * n * layers / d))

    def test_batch_norm_stays_at_its_level(self, data):
        part = data.sel(norm="batch")
        level = np.sqrt(bridging.stationary_linear(1000, 5))
        # m = 4: n² (m-1) (m+2)² / (4 m (m+1) d)
        assert level == pytest.approx(np.sqrt(25 * 3 * 36 / (4 * 4 * 5 * 1000)))
        # Corrections are of order n/d, transients are gone from layer 10 on.
        bias, few = 5 / 1000 * level, part.isel(layer=slice(10, None, 10))
        require_near(few["rms"], stderr_of(few, "rms", 100), 100, level, bias)
        error = float(stderr_of(data, "level", 100))
        assert error < 0.01 * level
        require_near(float(data["level"]), error, 100, level, bias)
        assert (part["band_low"] < part["mean"]).all()
        assert (part["mean"] < part["band_high"]).all()

    def test_the_table_has_layers_1_10_100_and_the_last(self, monkeypatch):
        """Where these are recorded; else the nearest ones, each once."""

        def errors(chain, depth, *, chains, every, rng, **options):
            layers = np.append(np.arange(0, depth, every), depth)
            result = 1.0 + rng.random((chains, len(layers)))
            return Recorded({"distance": result}, layers)

        class Recorded(dict):
            def __init__(self, numbers, layers):
                super().__init__(numbers)
                self.layers = layers

        monkeypatch.setattr(distances, "simulate", errors)
        for depth, points, expected in (
            (120, 120, [1, 10, 100, 120]), (120, 4, [0, 90, 120]), (20, 20, [1, 10, 20]),
        ):  # fmt: skip
            figure = bridging.fig_1a(depth=depth, chains=3, vanilla_chains=4, points=points)
            assert [row[0] for row in figure.table.rows] == expected
            nearest = expected[-2] if depth == 120 else 20
            assert f"at layer {nearest} (r.m.s.)" in figure.findings[1]

    def test_networks_start_at_the_fixed_point_without_normalization(self):
        x = distances._orthogonal_samples(np.random.default_rng(0))
        np.testing.assert_allclose(x.T @ x / len(x), np.eye(5), atol=1e-14)


class TestFig1b:
    FIGURE = "bridging-1b"

    def test_slope_and_level(self, data):
        low, high = data.attrs["slope_ci"]
        stderr = (high - low) / (2 * 1.959964)
        # At width 400 the law is 1 % too small, over a factor of 4 in width.
        require_near(data.attrs["slope"], stderr, 10**6, -0.5, 0.01 / np.log(4))
        widths = data["width"].values
        law = np.sqrt(100 * 8 * 121 / (4 * 9 * 10 * widths))
        assert_allclose(data["law"], law)
        require_near(data["rms"], stderr_of(data, "rms", 16), 16, law, 4 / widths * law)
        assert_allclose(data["printed"], 20 / np.sqrt(widths))
        assert (data["printed"] > 1.1 * data["rms"]).all()

    def test_the_paper_s_line_is_no_bound(self):
        d = 10**6
        above = [n for n in range(3, 40) if bridging.stationary_linear(d, n) > 4 * n**2 / d]
        assert above == list(range(16, 40))
        assert bridging.stationary_linear(d, 1000) == pytest.approx(1000**3 / (4 * d), rel=2e-3)
        # At n = 20 its root is 14 % above the line.
        chain = bnmc.Chain(4000, 20, "linear")
        star = bnmc.MeanField(chain).fixed_point().gram
        run = bnmc.simulate(
            chain, 80, chains=40, burn_in=60, observables=bnmc.Distance(star), rng=0
        )
        squares = (run["distance"] ** 2).mean(axis=1)
        assert squares.mean() - 6 * squares.std(ddof=1) / np.sqrt(40) > 4 * 20**2 / 4000


WIDTHS = np.array(FIGURES["bridging-poster"].sizes["widths"])


class TestPoster:
    FIGURE = "bridging-poster"

    def test_depth_follows_the_mean_field(self, data):
        part = data.sel(activation="relu")
        first, level = part.isel(layer=slice(4)), float(part["by_depth"][-1])
        field = first["mean_field"].values
        # |E‖D + Δ‖ - ‖D‖| <= E‖Δ‖²/(2‖D‖) + ‖EΔ‖, both of the order of level²; 1 % is that of the
        # quadrature.
        bias = 2 * level**2 / field + 0.01 * field
        require_near(first["by_depth"], stderr_of(first, "by_depth", 48), 48, field, bias)
        assert level < 0.25 * float(part["by_depth"][0])

    def test_width_and_batch(self, figure):
        (row,) = figure.table.rows
        slope = row[3]
        # Corrections of order 1/d at width 200 are a few percent, over a factor of 16 in width.
        require_near(slope.value, slope.stderr, 10**6, -0.5, 0.06 / np.log(16))
        part = figure.data.sel(activation="relu")
        assert (np.diff(part["by_batch"]) > 0).all()

    def test_predicted_level(self, data):
        part = data.sel(activation="relu")
        # The mean norm is at most the root mean square of 40.5666/d.
        predicted = part["predicted_by_width"].values
        assert_allclose(predicted * np.sqrt(WIDTHS), predicted[0] * np.sqrt(200), rtol=1e-9)
        assert 0.9 < predicted[0] / np.sqrt(40.5666 / 200) < 1
        # Corrections of order 1/d are a few percent at width 200.
        bias = predicted * 12 / WIDTHS
        require_near(part["by_width"], stderr_of(part, "by_width", 48), 48, predicted, bias)
        assert_allclose(part["predicted_by_depth"], float(predicted[1] * np.sqrt(0.8)))

    def test_theorem(self, figure):
        star = bnmc.MeanField(bnmc.Chain(1000, 10, "relu")).fixed_point()
        values = np.linalg.eigvalsh(star.gram)
        l = figure.data["layer"].values  # noqa: E741
        alpha = 1 - star.rate
        radius = values[-1] / values[0] * star.rate ** (l / 2)
        radius += 10 * np.sqrt(np.log(100) / (1000 * alpha))
        assert_allclose(figure.data["theorem_by_depth"][0], radius, rtol=1e-6)
        assert "above all measured means" in figure.findings[-1]
