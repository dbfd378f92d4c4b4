"""Powers of the width in a step, against those of the parametrizations."""

import numpy as np
import pytest
from numpy.testing import assert_allclose


class TestKernelChange:
    FIGURE = "training-kernel-change"

    def test_slopes(self, data):
        """Within 6 standard errors, and .25 for the narrow widths."""
        expected = {"NTK, tanh": -1.0, "standard/n, tanh": -1.0, "NTK, GELU": -1.0, "μP, tanh": 0.0}
        for case, value in expected.items():
            slopes = data.sel(case=case)
            error = float(slopes["slope_high"] - slopes["slope_low"]) / 3.92
            assert abs(float(slopes["slope"]) - value) < 6 * error + 0.25

    def test_more_units_of_relu_stop_than_start(self, data):
        relu = data.sel(case="NTK, ReLU")
        assert (relu["stops"] > relu["starts"]).all()

    def test_the_first_step_has_its_exact_mean(self, data):
        """Within 5 standard errors."""
        error = (data["first_step_high"] - data["first_step_low"]) / 3.92
        assert (abs(data["first_step"] - data["first_step_theory"]) < 5 * error).all()


class TestCoordinateCheck:
    FIGURE = "coordinate-check"

    @pytest.mark.parametrize(
        ("name", "slopes"),
        [
            ("standard", (-0.5, 0.5, 0.5, 1.0)),
            ("standard/n", (-1.5, -0.5, -0.5, 0.0)),
            ("ntk", (-0.5, -0.5, -0.5, 0.0)),
            ("mean-field", (-1.0, -0.5, -1.0, -1.0)),
            ("mup", (0.0, 0.0, 0.0, 0.0)),
            ("symmetric", (0.0, 0.0, 0.0, 0.5)),
            ("Muon", (0.0, 0.0, 0.0, 0.0)),
        ],
    )
    def test_slopes(self, data, name, slopes):
        """Within 6 standard errors, and .1 for the narrow widths."""
        part = data.sel(parametrization=name)
        errors = (part["slope_high"] - part["slope_low"]).values / 3.92
        assert_allclose(part["slope"].values, slopes, atol=float(6 * np.max(errors) + 0.1))
