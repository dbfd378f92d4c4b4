"""`Measurement`: table, dataset, growth of gradients."""

import math
import re
from dataclasses import replace

import numpy as np
import pytest
from torch_models import mlp, one_thread, torch  # noqa: F401

from bnmc.errors import ArgumentError, PartialEstimateError
from bnmc.torch import measure, prediction

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(autouse=True)
def _few(monkeypatch):
    """Predict from the fewest networks."""
    monkeypatch.setattr(prediction, "_MOST", prediction._LEAST)


@pytest.fixture
def measurement():
    labels = [0, 1, 2, 0, 1, 2]
    return measure(mlp(30, 8), torch.randn(6, 8), labels=labels, networks=4)


def test_table(measurement):
    lines = measurement.table().splitlines()
    assert lines[0] == "Sequential, 4 networks; rows are samples"
    assert lines[1] == "layout of 0 to 87: 6 samples × 8 features"
    rows = [line.split() for line in lines[3:]]
    end = next(place for place, row in enumerate(rows) if row[0] == "rank:")
    assert len([row for row in rows[: end - 2] if row[0].isdigit()]) == 24
    assert lines[1 + end] == "24 of 30 layers are shown"
    assert lines[2 + end].startswith("left out of the table, which is full: gap")
    assert rows[0][0] == "0"
    mean, error = measurement.scale[:, 0].mean(), measurement.scale[:, 0].std(ddof=1) / 2.0
    assert f"{mean:.3g} ± {error:.1g}" in lines[3]
    assert max(map(len, lines)) <= 100
    shown = [row[0] for row in rows[:24]]
    assert measurement.prediction.table(shown) in measurement.table()
    assert str(measurement).endswith(f"\n\n{measurement.table()}")
    text = "<Measurement of Sequential: 4 networks, 30 layers, 6 samples, with gradients>"
    assert repr(measurement) == text


def test_verdict_and_cures_are_printed_first():
    labels = torch.arange(12) % 3
    tried = measure(mlp(12, 8, norm=False), torch.randn(12, 8), labels=labels, tries=True)
    assert len(tried.cures) > 1
    others = ["other cures:", *(f"- {cure}" for cure in tried.cures[1:])]
    for measured, expected in ((tried, others), (replace(tried, tried={}), [])):
        first, _, tables = str(measured).partition("\n\n")
        assert tables == measured.table()
        assert max(map(len, first.splitlines())) <= 100
        assert first.split() == " ".join([measured.verdict, *expected]).split()


def test_tables_show_the_same_layers_and_the_factor_of_the_verdict():
    measured = measure(mlp(30, 8), torch.randn(6, 8), labels=[0, 1, 2, 0, 1, 2])
    lines = str(measured).splitlines()
    assert max(map(len, lines)) <= 100
    heads = [place for place, line in enumerate(lines) if line.startswith(("layer ", "weight lay"))]
    first, second = ([line.split()[0] for line in lines[k + 1 : k + 26]] for k in heads)
    assert second == [*first[:24], "90"]  # the readout is the last one
    ratio = measured.facts.state_gradient_ratio
    (text,) = re.findall(r"gradients of activations grow (×\d+) from the last", " ".join(lines))
    assert lines[heads[0] + 1].split()[-2] == text == f"×{float(f'{ratio:.2g}'):g}"
    assert measured.state_gradient_ratio[0, 0] == pytest.approx(ratio)
    assert (
        measured.to_dict()["rows"][0]["state_gradient_ratio"] == measured.state_gradient_ratio[0, 0]
    )
    assert measured.to_dict()["rows"][-1]["effective_rank"] == measured.facts.effective_rank


def test_the_band_of_gradients_is_that_of_the_prediction():
    measured = measure(mlp(3, 8), torch.randn(6, 8), labels=[0, 1, 2, 0, 1, 2])
    readout = measured.gradient_norm[0, measured.parameters.index(f"{len(mlp(3, 8)) - 1}.weight")]
    expected = readout * np.exp(measured.prediction.bands["gradient"][:3])
    np.testing.assert_allclose(measured.gradient_band, expected, rtol=1e-6)
    assert measure(mlp(3, 8), torch.randn(6, 8)).gradient_band is None


def test_dataset(measurement):
    data = measurement.to_xarray()
    assert dict(data.sizes) == {
        "network": 4, "layer": 30, "sample_i": 6, "sample_j": 6, "parameter": 122
    }  # fmt: skip
    assert data.gram.dims == ("network", "layer", "sample_i", "sample_j")
    assert data.gradient_norm.dims == ("network", "parameter")
    for name in (
        "gram", "rank", "soft_rank", "rank_bound", "orthogonality_gap", "mean_correlation", "scale",
        "gradient_norm", "gradient_cosine", "isometry", "layer_gradient_norm", "effective_rank",
        "state_gradient_ratio",
    ):  # fmt: skip
        np.testing.assert_array_equal(data[name], getattr(measurement, name))
    assert list(data.layer.values) == list(measurement.layers)
    plain = measure(mlp(2, 8), torch.randn(6, 8)).to_xarray()
    assert "parameter" not in plain.sizes


def test_rate_is_the_growth_of_logarithms(measurement):
    norms = measurement.layer_gradient_norm
    growth = 2.0 * np.log(norms[:, 7] / norms[:, 22]) / 15
    rate = measurement.backward_rate()
    assert abs(rate.value - math.exp(growth.mean())) < 1e-12
    assert abs(rate.stderr - rate.value * growth.std(ddof=1) / 2.0) < 1e-12
    with pytest.raises(ArgumentError, match="last: got 30"):
        measurement.backward_rate(last=30)
    with pytest.raises(ArgumentError, match="loss: got None"):
        measure(mlp(4, 8), torch.randn(6, 8)).backward_rate()
    single = measure(mlp(4, 8), torch.randn(6, 8), labels=[0, 1] * 3)
    with pytest.raises(PartialEstimateError) as caught:
        single.backward_rate()
    norms = single.layer_gradient_norm[0]
    assert abs(caught.value.partial - (norms[1] / norms[3])) < 1e-9
    model = mlp(4, 8, norm=False)
    with torch.no_grad():
        model[-1].weight.zero_()
    with pytest.raises(PartialEstimateError, match="zero"):
        measure(model, torch.randn(6, 8), labels=[0, 1] * 3).backward_rate()
