"""Stability of the fixed point beside the closed form of relu."""

import numpy as np
import pytest
from experiment_checks import relu_rate, require_near, require_sound
from figure_sizes import FIGURES
from numpy.testing import assert_allclose

from bnmc import mean_field
from bnmc.errors import NotMixing
from bnmc.experiments.beyond import stability

FIGURE = "stability-atlas"

SIZES = FIGURES["stability-atlas"].sizes


def test_rates_and_where_they_cross(figure):
    data = figure.data
    assert_allclose(
        data["rate"].sel(activation="relu"), [relu_rate(n) for n in (8, 24, 32)], rtol=1e-6
    )
    assert data["unstable_from"].values.tolist() == [0, 26]
    assert_allclose(data["rate"], np.maximum(abs(data["lambda_L"]), abs(data["lambda_M"])))
    assert [row[-1] for row in figure.table.rows] == [None, 26]
    assert "silu from 26" in figure.findings[0]
    assert_allclose(figure.plot().axes[0].images[0].get_array(), data["rate"])


def test_rates_rise_with_the_batch_but_for_those_of_sin():
    batches = [4, 8, 16, 17, 18, 32, 64]
    for entry in mean_field.atlas(("linear", "relu", "tanh", "sigmoid", "sin", "gelu"), batches):
        if entry.activation == "sin":
            assert np.argmax(entry.rates) == 3
            assert entry.rates[3] == pytest.approx(0.866, abs=5e-4)
        else:
            assert (np.diff(entry.rates) > 0).all()


def test_measured_contraction(data):
    part = data.sel(measured="relu")
    errors = (part["contraction_high"] - part["contraction_low"]).values / (2 * 2.13)
    # Finite width: measured .0011 at n = 8, d = 1000.
    rates = [relu_rate(4), relu_rate(8)]
    require_near(part["contraction"], errors, 16, rates, 5.0 / 1000)


def test_chains_that_do_not_meet_are_said_to(monkeypatch):
    def contraction(*_, **__):
        raise NotMixing("0 of 16 pairs met", None, 0.01, 0.0)

    monkeypatch.setattr(stability, "contraction", contraction)
    result = stability.stability_atlas(**SIZES)
    assert np.isnan(result.data["contraction"]).all()
    assert "relu, batch 4: the pairs did not meet" in result.findings[1]
    require_sound(result, "stability-atlas", "stability-without-meetings")
