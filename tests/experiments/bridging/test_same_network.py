"""Two inputs through one network beside Corollary 4."""

import numpy as np
import pytest
from experiment_checks import drawn, require_near, stderr_of

import bnmc


class TestTwoInputs:
    @pytest.fixture
    def found(self, small):
        return small("bridging-two-inputs")

    def test_both_certificates_fall_to_a_level(self, found):
        one = found.data.sel(activation="relu")
        n = 5
        c_star = bnmc.MeanField(bnmc.Chain(1000, n, "relu")).fixed_point()
        for k, width in enumerate(one["width"].values):
            # The distortion of relu is 1, the least eigenvalue of G* is b(1 - c).
            least = c_star.b * (1 - c_star.c)
            assert one["epsilon"][k] == pytest.approx(n / np.sqrt(least * width), rel=1e-6)
        for kind in ("spectral", "relative"):
            levels, errors = one[f"{kind}_level"].values, stderr_of(one, f"{kind}_level", 32)
            slope = np.log(levels[-1] / levels[0]) / np.log(16)
            error = np.hypot(*(errors / levels)[[0, -1]]) / np.log(16)
            # Of second order is a deviation times itself, and the level is 0.5 at width 250.
            bias = 0.5 * levels[0] ** 2 / np.log(16)
            require_near(slope, error, 32, -0.5, bias)
            assert (one[kind][:, 0] > 5 * levels).all()
            # All networks have the same layer 0, where the mean is rounded.
            assert (one[f"{kind}_band_low"] <= one[kind] * (1 + 1e-12)).all()

    def test_picture(self, found):
        left, *levels = found.plot().axes
        one = found.data.sel(activation="relu")
        assert drawn(left, one["spectral"].sel(width=1000))
        # Colours are widths on the left and activations on the right.
        widths, activations = ({line.get_color() for line in ax.lines} for ax in (left, levels[0]))
        assert len(widths) == 3
        assert not widths & activations
        for ax, kind in zip(levels, ("spectral", "relative"), strict=True):
            assert drawn(ax, one[f"{kind}_level"])
            assert drawn(ax, one["epsilon"]) == (kind == "relative")
