"""Rates of mixing beside the closed form of relu."""

from types import SimpleNamespace

import numpy as np
import pytest
from experiment_checks import drawn, relu_rate, require_near
from figure_sizes import FIGURES
from numpy.testing import assert_allclose

from bnmc.experiments.beyond import estimated_rates

SIZES = FIGURES["rates"].sizes


class TestRates:
    @pytest.fixture
    def found(self, small):
        return small("rates")

    def test_estimators_agree_with_the_mean_field(self, found):
        data = found.data
        assert data.sizes == {"activation": 1, "batch": 2, "width": 2, "estimator": 5}
        assert_allclose(data["mean_field_by_batch"][0], [relu_rate(3), relu_rate(5)], rtol=1e-6)
        assert_allclose(data["mean_field_by_width"][0], relu_rate(5), rtol=1e-6)
        for name, bias in (("contraction", 5e-3), ("spectral", 0.02)):
            for axis in ("batch", "width"):
                one = data.sel(estimator=name, activation="relu")
                reach = one[f"rate_by_{axis}_high"] - one[f"rate_by_{axis}_low"]
                for k in range(2):
                    require_near(
                        float(one[f"rate_by_{axis}"][k]), float(reach[k]) / (2 * 1.96), 10,
                        float(one[f"mean_field_by_{axis}"][k]), bias,
                    )  # fmt: skip
        # Batch 5 at width 1000 is one run, not two.
        shared = data.sel(batch=5, width=1000)
        assert_allclose(shared["rate_by_batch"], shared["rate_by_width"])
        assert len(found.table.rows) == 3
        assert len(found.findings) == 5

    def test_picture(self, found):
        figure = found.plot()
        for ax, axis in zip(figure.axes, ("batch", "width"), strict=True):
            assert drawn(ax, found.data[f"mean_field_by_{axis}"][0])
            assert drawn(ax, found.data[f"rate_by_{axis}"][0, :, 3])


def test_rates_that_nobody_estimates(monkeypatch):
    rows = [
        SimpleNamespace(name=name, estimate=None) for name in ("", *estimated_rates._ESTIMATORS)
    ]
    monkeypatch.setattr(estimated_rates, "compare", lambda chain, **_: SimpleNamespace(rows=rows))
    found = estimated_rates.rates(**SIZES)
    assert np.isnan(found.data["rate_by_batch"]).all()
    assert all(one.endswith("no estimate.") for one in found.findings)
    assert found.table.rows[0][4:] == (None,) * 5
