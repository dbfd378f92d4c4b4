"""`Measurement`: table, dataset, growth of gradients; and verdicts."""

import dataclasses
import math

import numpy as np
import pytest
from torch_models import mlp, one_thread, torch  # noqa: F401

from bnmc.errors import ArgumentError, PartialEstimateError
from bnmc.torch import measure

pytestmark = pytest.mark.usefixtures("one_thread")


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
    assert len([row for row in rows[:end] if row[0].isdigit()]) == 24
    assert rows[0][0] == "0"
    mean, error = measurement.scale[:, 0].mean(), measurement.scale[:, 0].std(ddof=1) / 2.0
    assert f"{mean:.4g} ± {error:.1g}" in lines[3]
    assert measurement.prediction.table() in measurement.table()
    assert str(measurement) == f"{measurement.table()}\n\n{measurement.verdict}"
    text = "<Measurement of Sequential: 4 networks, 30 layers, 6 samples, with gradients>"
    assert repr(measurement) == text


def test_dataset(measurement):
    data = measurement.to_xarray()
    assert dict(data.sizes) == {
        "network": 4, "layer": 30, "sample_i": 6, "sample_j": 6, "parameter": 122
    }  # fmt: skip
    assert data.gram.dims == ("network", "layer", "sample_i", "sample_j")
    assert data.gradient_norm.dims == ("network", "parameter")
    for name in (
        "gram", "rank", "soft_rank", "rank_bound", "orthogonality_gap", "mean_correlation", "scale",
        "gradient_norm", "gradient_cosine", "isometry", "layer_gradient_norm",
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


@pytest.fixture(scope="module")
def two_layers():
    return measure(mlp(2, 4), torch.randn(4, 4))


@pytest.fixture
def verdict(two_layers):
    """The verdict on a measurement of two layers with given numbers."""

    def verdict(
        *, norms=None, rank=64, soft=(64, 60), correlation=0.3, most=64, first=64, threshold=1e-5
    ):
        def row(*values):
            return np.array([values], dtype=float)

        return dataclasses.replace(
            two_layers, rank=row(first, rank), soft_rank=row(*soft),
            mean_correlation=row(0.1, correlation), rank_threshold=np.array([threshold] * 2),
            spectrum=tuple(np.zeros((1, size)) for size in (64, most)),
            layer_gradient_norm=None if norms is None else row(*norms),
            comparable=() if norms is None else tuple(range(len(norms))),
        ).verdict  # fmt: skip

    return verdict


def test_sentences(verdict):
    grown = 3000.0 ** (-np.arange(40) / 39)
    assert verdict(norms=grown, rank=63) == (
        "Gradients explode towards the input: squared norms grow by the factor 1.51 per layer, so "
        "norms by ×3e+03 over 40 layers. The rank keeps 63 of 64 over 2 layers."
    )
    vanishing = "Gradients vanish towards the input: squared norms change by the factor 0.6"
    assert vanishing in verdict(norms=1.0 / grown)
    assert verdict(norms=(2.0, 1.0)).startswith(
        "Gradients are stable: squared gradient norms change by the factor 4 per layer"
    )
    assert "norms by ×10^261 over" in verdict(norms=(1e300, 1e39))
    assert "is zero" in verdict(norms=(1.0, 0.0))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "The rank keeps 64 of 64 over 2 layers."),
        ({"soft": (60, 29), "rank": 40}, "The samples collapse: the soft rank goes from 60 to 29"),
        ({"correlation": 0.96}, "mean correlation 0.96 (rank 64 of 64)."),
        ({"correlation": np.nan}, "The rank keeps"),
        ({"rank": 0}, "The last layer is zero for all samples."),
        ({"rank": 16, "soft": (40, 12), "most": 16}, "The rank keeps 16 of 16 over 2 layers."),
        ({"threshold": 0.1}, "The rank keeps 64 of 64 over 2 layers."),
        ({"rank": 31}, "The rank falls from 64 to 31 of 64 over 2 layers."),
        ({"rank": 32}, "The rank keeps 32 of 64 over 2 layers."),
        (
            {"rank": 1, "first": 1, "soft": (22, 20), "threshold": 0.5},
            "The soft rank goes from 22 to 20 over 2 layers. The precision is too low for a rank.",
        ),
        (
            {"rank": 1, "first": 1, "soft": (22, 2), "threshold": 0.5},
            "The samples collapse: the soft rank goes from 22 to 2 over 2 layers, mean correlation "
            "0.3.",
        ),
    ],
)
def test_ranks(verdict, options, said):
    assert said in verdict(**options)


def test_one_layer():
    measured = measure(mlp(1, 3), torch.randn(3, 3))
    whole = dataclasses.replace(measured, rank=np.array([[3]]), soft_rank=np.array([[3]]))
    assert whole.verdict == "The rank keeps 3 of 3 in 1 layer."
