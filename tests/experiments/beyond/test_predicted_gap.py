"""Mean squares over their predictions."""

import numpy as np
import pytest
from experiment_checks import require_near, stderr_of
from figure_sizes import FIGURES

from bnmc.experiments.beyond import gap

FIGURE = "gap"

SIZES = FIGURES["gap"].sizes


def test_predictions(data):
    """The closed form of linear chains: n²(m−1)(m+2)²/(4m(m+1)), m = n − 1."""
    constant = data["constant"].sel(activation="linear")
    for n in SIZES["batches"]:
        m = n - 1
        expected = n**2 * (m - 1) * (m + 2) ** 2 / (4 * m * (m + 1))
        assert float(constant.sel(batch=n)) == pytest.approx(expected, rel=1e-6)
    assert (data["error"] < 1e-4 * data["constant"]).all()


def test_ratios_are_one_up_to_one_over_the_width(data):
    # Linear, n = 12: 8/d.  The next order of n = 10 is at most that of n = 12.
    count, bias = SIZES["networks"], 10.0 / data["width"].values
    require_near(data["ratio"], stderr_of(data, "ratio", count), count, 1.0, bias)


def test_unstable_fixed_points_are_left_out():
    result = gap(
        activations=("tanh", "silu"), batches=(32,), widths=(100,), networks=2, first=2, last=3
    )
    assert result.findings[-1] == "Unstable, without a prediction: silu, batch 32."
    assert [row[0] for row in result.table.rows] == ["tanh"]
    assert np.isnan(result.data["ratio"].sel(activation="silu")).all()
    assert len(result.plot().axes[0].containers) == 1
