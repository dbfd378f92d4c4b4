"""Fig. 1a beside the exact growth and the level of linear networks."""

import numpy as np
import pytest
from experiment_checks import require_near, stderr_of
from numpy.testing import assert_allclose

from bnmc.experiments import bridging
from bnmc.experiments.bridging import error_over_depth

FIGURE = "bridging-1a"


def test_vanilla_grows_as_the_exact_formula(data):
    n, d = 5, 1000
    layers = data["layer"].values.astype(float)
    square = n * (n + 2) / 3 * (1 + 2 / d) ** layers - n * (n - 1) / 3 * (1 - 1 / d) ** layers
    part = data.sel(norm="none")
    assert_allclose(part["exact"], np.sqrt(square - n), rtol=1e-10)
    few = part.isel(layer=[0, 5, 20, -1])
    require_near(few["rms"], stderr_of(few, "rms", 400), 400, few["exact"])
    assert_allclose(data["equation_6"], np.sqrt(35 / 3) * np.exp(layers / d))
    assert_allclose(data["bound"], np.exp(1.5 * n * layers / d))


def test_batch_norm_stays_at_its_level(data):
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


def test_the_table_has_layers_1_10_100_and_the_last(monkeypatch):
    """Where these are recorded; else the nearest ones, each once."""

    def errors(chain, depth, *, chains, every, rng, **options):
        layers = np.append(np.arange(0, depth, every), depth)
        result = 1.0 + rng.random((chains, len(layers)))
        return Recorded({"distance": result}, layers)

    class Recorded(dict):
        def __init__(self, numbers, layers):
            super().__init__(numbers)
            self.layers = layers

    monkeypatch.setattr(error_over_depth, "simulate", errors)
    for depth, points, expected in (
        (120, 120, [1, 10, 100, 120]), (120, 4, [0, 90, 120]), (20, 20, [1, 10, 20]),
    ):  # fmt: skip
        figure = bridging.fig_1a(depth=depth, networks=3, vanilla=4, points=points)
        assert [row[0] for row in figure.table.rows] == expected
        nearest = expected[-2] if depth == 120 else 20
        assert f"at layer {nearest} (r.m.s.)" in figure.findings[1]


def test_networks_start_at_the_fixed_point_without_normalization():
    x = error_over_depth._orthogonal_samples(np.random.default_rng(0))
    np.testing.assert_allclose(x.T @ x / len(x), np.eye(5), atol=1e-14)
