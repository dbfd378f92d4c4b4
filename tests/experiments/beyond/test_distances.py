"""Distances from the fixed point: over their prediction, and at large widths and batches."""

import numpy as np
import pytest
from experiment_checks import drawn, require_near, stderr_of
from figure_sizes import FIGURES
from numpy.testing import assert_allclose

from bnmc.experiments.beyond import gap

SIZES = FIGURES["gap"].sizes


class TestGap:
    FIGURE = "gap"

    def test_predictions(self, data):
        """The closed form of linear chains: n²(m−1)(m+2)²/(4m(m+1)), m = n − 1."""
        constant = data["constant"].sel(activation="linear")
        for n in SIZES["batches"]:
            m = n - 1
            expected = n**2 * (m - 1) * (m + 2) ** 2 / (4 * m * (m + 1))
            assert float(constant.sel(batch=n)) == pytest.approx(expected, rel=1e-6)
        assert (data["error"] < 1e-4 * data["constant"]).all()

    def test_ratios_are_one_up_to_one_over_the_width(self, data):
        # Linear, n = 12: 8/d.  The next order of n = 10 is at most that of n = 12.
        count, bias = SIZES["chains"], 10.0 / data["width"].values
        require_near(data["ratio"], stderr_of(data, "ratio", count), count, 1.0, bias)

    def test_unstable_fixed_points_are_left_out(self):
        result = gap(
            activations=("tanh", "silu"), batches=(32,), widths=(100,), chains=2, first=2, last=3
        )
        assert result.findings[-1] == "Unstable, without a prediction: silu, batch 32."
        assert [row[0] for row in result.table.rows] == ["tanh"]
        assert np.isnan(result.data["ratio"].sel(activation="silu")).all()
        assert len(result.plot().axes[0].containers) == 1


class TestScale:
    FIGURE = "scale"

    def test_slopes_and_laws(self, data):
        errors, values = stderr_of(data, "distance", 8), data["distance"].values
        n, width = 4, data["width"].values
        law = np.sqrt(16 * 2 * 25 / (4 * 3 * 4 * width))
        assert_allclose(data["law"], law)
        require_near(values[0], errors[0], 8, law, (n**2 / width + 1e-6) * law)
        slope = np.log(values[:, -1] / values[:, 0]) / np.log(100)
        error = np.hypot(*(errors / values)[:, [0, -1]].T) / np.log(100)
        require_near(slope, error, 8, -0.5, 0.02 / np.log(100))

    def test_batches(self, data):
        part = data.sel(large="linear")
        n = part["batch"].values.astype(float)
        exact = n * np.sqrt((n - 2) / ((n - 1) * 2048))
        assert_allclose(part["one_step_law"], exact)
        require_near(part["one_step"], stderr_of(part, "one_step", 16), 16, exact)
        assert (data["deeper"] > data["one_step"]).all()
        assert (data["speed"] > 0).all()
        assert (data["pace"] > 0).all()

    def test_picture(self, figure):
        left, middle, right = figure.plot().axes
        assert drawn(left, figure.data["law"])
        assert drawn(middle, figure.data["one_step_law"])
        assert drawn(right, figure.data["pace"][1])
