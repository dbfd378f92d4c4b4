"""Rates of mixing beside the closed form of relu."""

from types import SimpleNamespace

import numpy as np
from experiment_checks import relu_rate, require_near
from figure_sizes import FIGURES
from numpy.testing import assert_allclose

from bnmc.experiments.beyond import estimated_rates

FIGURE = "rates"

SIZES = FIGURES["rates"].sizes


def test_estimators_agree_with_the_mean_field(figure):
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


def test_rates_that_nobody_estimates(monkeypatch):
    rows = [
        SimpleNamespace(name=name, estimate=None) for name in ("", *estimated_rates._ESTIMATORS)
    ]
    monkeypatch.setattr(estimated_rates, "compare", lambda chain, **_: SimpleNamespace(rows=rows))
    result = estimated_rates.rates(**SIZES)
    assert np.isnan(result.data["rate_by_batch"]).all()
    assert all(part.endswith("no estimate.") for part in result.findings)
    assert result.table.rows[0][4:] == (None,) * 5
