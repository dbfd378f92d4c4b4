"""The poster's figure beside the mean field and its theorem."""

import numpy as np
from experiment_checks import require_near, stderr_of
from figure_sizes import FIGURES
from numpy.testing import assert_allclose

import bnmc

FIGURE = "bridging-poster"

WIDTHS = np.array(FIGURES["bridging-poster"].sizes["widths"])


def test_depth_follows_the_mean_field(data):
    part = data.sel(activation="relu")
    first, level = part.isel(layer=slice(4)), float(part["by_depth"][-1])
    field = first["mean_field"].values
    # |E‖D + Δ‖ - ‖D‖| <= E‖Δ‖²/(2‖D‖) + ‖EΔ‖, both of the order of level²; 1 % is that of the
    # quadrature.
    bias = 2 * level**2 / field + 0.01 * field
    require_near(first["by_depth"], stderr_of(first, "by_depth", 48), 48, field, bias)
    assert level < 0.25 * float(part["by_depth"][0])


def test_width_and_batch(figure):
    (row,) = figure.table.rows
    slope = row[3]
    # Corrections of order 1/d at width 200 are a few percent, over a factor of 16 in width.
    require_near(slope.value, slope.stderr, 10**6, -0.5, 0.06 / np.log(16))
    part = figure.data.sel(activation="relu")
    assert (np.diff(part["by_batch"]) > 0).all()


def test_predicted_level(data):
    part = data.sel(activation="relu")
    # The mean norm is at most the root mean square of 40.5666/d.
    predicted = part["predicted_by_width"].values
    assert_allclose(predicted * np.sqrt(WIDTHS), predicted[0] * np.sqrt(200), rtol=1e-9)
    assert 0.9 < predicted[0] / np.sqrt(40.5666 / 200) < 1
    # Corrections of order 1/d are a few percent at width 200.
    bias = predicted * 12 / WIDTHS
    require_near(part["by_width"], stderr_of(part, "by_width", 48), 48, predicted, bias)
    assert_allclose(part["predicted_by_depth"], float(predicted[1] * np.sqrt(0.8)))


def test_theorem(figure):
    star = bnmc.MeanField(bnmc.Chain(1000, 10, "relu")).fixed_point()
    values = np.linalg.eigvalsh(star.gram)
    l = figure.data["layer"].values  # noqa: E741
    alpha = 1 - star.rate
    radius = values[-1] / values[0] * star.rate ** (l / 2)
    radius += 10 * np.sqrt(np.log(100) / (1000 * alpha))
    assert_allclose(figure.data["theorem_by_depth"][0], radius, rtol=1e-6)
    assert "above all measured means" in figure.findings[-1]
