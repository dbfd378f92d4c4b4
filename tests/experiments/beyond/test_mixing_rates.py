"""Rates of mixing by every estimator, and the batch sizes with a stable fixed point."""

from types import SimpleNamespace

import numpy as np
import pytest
from experiment_checks import relu_rate, require_near, require_sound
from figure_sizes import FIGURES
from numpy.testing import assert_allclose

from bnmc import mean_field
from bnmc.errors import NotMixing
from bnmc.experiments.beyond import mixing_rates

STABILITY_SIZES = FIGURES["stability-atlas"].sizes


class TestStability:
    FIGURE = "stability-atlas"

    def test_rates_and_where_they_cross(self, figure):
        data = figure.data
        assert_allclose(
            data["rate"].sel(activation="relu"), [relu_rate(n) for n in (8, 24, 32)], rtol=1e-6
        )
        assert data["unstable_from"].values.tolist() == [0, 26]
        assert_allclose(data["rate"], np.maximum(abs(data["lambda_L"]), abs(data["lambda_M"])))
        assert [row[-1] for row in figure.table.rows] == [None, 26]
        assert "silu from 26" in figure.findings[0]
        assert_allclose(figure.plot().axes[0].images[0].get_array(), data["rate"])

    def test_rates_rise_with_the_batch_but_for_those_of_sin(self):
        batches = [4, 8, 16, 17, 18, 32, 64]
        for entry in mean_field.atlas(
            ("linear", "relu", "tanh", "sigmoid", "sin", "gelu"), batches
        ):
            if entry.activation == "sin":
                assert np.argmax(entry.rates) == 3
                assert entry.rates[3] == pytest.approx(0.866, abs=5e-4)
            else:
                assert (np.diff(entry.rates) > 0).all()

    def test_measured_contraction(self, data):
        part = data.sel(measured="relu")
        errors = (part["contraction_high"] - part["contraction_low"]).values / (2 * 2.13)
        # Finite width: measured .0011 at n = 8, d = 1000.
        rates = [relu_rate(4), relu_rate(8)]
        require_near(part["contraction"], errors, 16, rates, 5.0 / 1000)

    def test_chains_that_do_not_meet_are_said_to(self, monkeypatch):
        def contraction(*_, **__):
            raise NotMixing("0 of 16 pairs met", None, 0.01, 0.0)

        monkeypatch.setattr(mixing_rates, "contraction", contraction)
        result = mixing_rates.stability_atlas(**STABILITY_SIZES)
        assert np.isnan(result.data["contraction"]).all()
        assert "relu, batch 4: the pairs did not meet" in result.findings[1]
        require_sound(result, "stability-atlas", "stability-without-meetings")


RATE_SIZES = FIGURES["rates"].sizes


class TestRates:
    FIGURE = "rates"

    def test_estimators_agree_with_the_mean_field(self, figure):
        data = figure.data
        assert data.sizes == {"activation": 1, "batch": 2, "width": 2, "estimator": 5}
        assert_allclose(data["mean_field_by_batch"][0], [relu_rate(3), relu_rate(5)], rtol=1e-6)
        assert_allclose(data["mean_field_by_width"][0], relu_rate(5), rtol=1e-6)
        for name, bias in (("contraction", 5e-3), ("spectral", 0.02)):
            for axis in ("batch", "width"):
                part = data.sel(estimator=name, activation="relu")
                reach = part[f"rate_by_{axis}_high"] - part[f"rate_by_{axis}_low"]
                theory = part[f"mean_field_by_{axis}"]
                require_near(part[f"rate_by_{axis}"], reach / (2 * 1.96), 10, theory, bias)
        # Batch 5 at width 1000 is one run, not two.
        shared = data.sel(batch=5, width=1000)
        assert_allclose(shared["rate_by_batch"], shared["rate_by_width"])
        assert len(figure.table.rows) == 3

    def test_rates_that_nobody_estimates(self, monkeypatch):
        rows = [
            SimpleNamespace(name=name, estimate=None) for name in ("", *mixing_rates._ESTIMATORS)
        ]
        monkeypatch.setattr(mixing_rates, "compare", lambda chain, **_: SimpleNamespace(rows=rows))
        result = mixing_rates.rates(**RATE_SIZES)
        assert np.isnan(result.data["rate_by_batch"]).all()
        assert all(part.endswith("no estimate.") for part in result.findings)
        assert result.table.rows[0][4:] == (None,) * 5
