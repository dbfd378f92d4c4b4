"""Two inputs through one network beside Corollary 4."""

import numpy as np
import pytest
from experiment_checks import require_near, stderr_of

import bnmc

FIGURE = "bridging-two-inputs"


def test_both_certificates_fall_to_a_level(data):
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
