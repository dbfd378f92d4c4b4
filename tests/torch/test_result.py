"""`Measurement`: table, dataset, growth of gradients; and verdicts."""

import math

import numpy as np
import pytest
from torch_models import mlp, one_thread, torch  # noqa: F401

import bnmc
from bnmc.errors import ArgumentError, PartialEstimateError

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def found():
    labels = [0, 1, 2, 0, 1, 2]
    return bnmc.torch.measure(mlp(30, 8), torch.randn(6, 8), labels=labels, networks=4)


def test_table(found):
    lines = found.table().splitlines()
    assert lines[0] == "Sequential, 4 networks; rows are samples"
    assert lines[1] == "layout of 0 to 87: 6 samples × 8 features"
    rows = [line.split() for line in lines[3:]]
    assert len([row for row in rows if row[0].isdigit()]) == 24
    assert rows[0][0] == "0"
    mean, error = found.scale[:, 0].mean(), found.scale[:, 0].std(ddof=1) / 2.0
    assert f"{mean:.4g} ± {error:.1g}" in lines[3]
    assert any(line.startswith("infinite width  ") for line in lines)
    assert f"measured ×{found.rate().value:.4g}" in found.table()
    assert str(found) == f"{found.table()}\n\n{found.verdict}"
    assert (
        repr(found)
        == "<Measurement of Sequential: 4 networks, 30 layers, 6 samples, with gradients>"
    )


def test_dataset(found):
    data = found.to_xarray()
    assert dict(data.sizes) == {
        "network": 4, "layer": 30, "sample_i": 6, "sample_j": 6, "parameter": 122
    }  # fmt: skip
    assert data.gram.dims == ("network", "layer", "sample_i", "sample_j")
    assert data.gradient_norm.dims == ("network", "parameter")
    for name in (
        "gram", "rank", "soft_rank", "rank_bound", "orthogonality_gap", "mean_correlation", "scale",
        "gradient_norm", "gradient_cosine", "isometry", "layer_gradient_norm",
    ):  # fmt: skip
        np.testing.assert_array_equal(data[name], getattr(found, name))
    assert list(data.layer.values) == list(found.layers)
    plain = bnmc.torch.measure(mlp(2, 8), torch.randn(6, 8)).to_xarray()
    assert "parameter" not in plain.sizes


def test_rate_is_the_growth_of_logarithms(found):
    norms = found.layer_gradient_norm
    growth = 2.0 * np.log(norms[:, 7] / norms[:, 22]) / 15
    rate = found.rate()
    assert abs(rate.value - math.exp(growth.mean())) < 1e-12
    assert abs(rate.stderr - rate.value * growth.std(ddof=1) / 2.0) < 1e-12
    with pytest.raises(ArgumentError, match="last: got 30"):
        found.rate(last=30)
    with pytest.raises(ArgumentError, match="loss: got None"):
        bnmc.torch.measure(mlp(4, 8), torch.randn(6, 8)).rate()
    one = bnmc.torch.measure(mlp(4, 8), torch.randn(6, 8), labels=[0, 1] * 3)
    with pytest.raises(PartialEstimateError) as caught:
        one.rate()
    norms = one.layer_gradient_norm[0]
    assert abs(caught.value.partial - (norms[1] / norms[3])) < 1e-9
    model = mlp(4, 8, norm=False)
    with torch.no_grad():
        model[-1].weight.zero_()
    with pytest.raises(PartialEstimateError, match="zero"):
        bnmc.torch.measure(model, torch.randn(6, 8), labels=[0, 1] * 3).rate()
