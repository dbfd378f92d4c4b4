"""Certified mixing beside the rate of the mean field."""

import numpy as np
import pytest
from experiment_checks import relu_rate, require_near
from numpy.testing import assert_allclose

FIGURE = "bridging-certificate"


def test_the_chain_mixes_as_the_mean_field_says(data):
    part = data.sel(activation="relu")
    rate = float(part["mean_field_rate"])
    assert rate == pytest.approx(relu_rate(5))
    assert_allclose(part["assumed"], rate ** data["layer"].values)
    error = float(part["rate_high"] - part["rate_low"]) / (2 * 2.13)  # Student's, 15
    # A correction of order n/d: measured .0018 at width 1000, n = 5.
    require_near(float(part["rate"]), error, 16, rate, 5.0 / 1000)


def test_the_bound_falls_from_above_what_is_assumed(figure):
    data = figure.data
    assert (np.diff(data["bound"]) <= 0).all()
    assert (data["bound_low"] <= data["bound"]).all()
    assert (data["bound"] <= data["bound_high"]).all()
    assert (data["bound_high"] > data["assumed"]).all()
    assert (data["bound"][:, -1] < 0.05).all()
    assert (data["bound"][:, 0] >= 0.99).all()
    assert all(row[-1] < 15 for row in figure.table.rows)
