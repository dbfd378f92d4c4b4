"""Mean squares over their predictions."""

import numpy as np
import pytest
from experiment_checks import drawn, require_near, stderr_of
from figure_sizes import FIGURES

from bnmc.experiments.beyond import gap

SIZES = FIGURES["gap"].sizes


class TestGap:
    @pytest.fixture
    def found(self, small):
        return small("gap")

    def test_predictions(self, found):
        """The closed form of linear chains: n²(m−1)(m+2)²/(4m(m+1)), m = n − 1."""
        constant = found.data["constant"].sel(activation="linear")
        for n in SIZES["batches"]:
            m = n - 1
            expected = n**2 * (m - 1) * (m + 2) ** 2 / (4 * m * (m + 1))
            assert float(constant.sel(batch=n)) == pytest.approx(expected, rel=1e-6)
        assert (found.data["error"] < 1e-4 * found.data["constant"]).all()

    def test_ratios_are_one_up_to_one_over_the_width(self, found):
        errors = stderr_of(found.data, "ratio", SIZES["networks"])
        for index, value in np.ndenumerate(found.data["ratio"].values):
            # Linear, n = 12: 8/d.  The next order of n = 10 is at most that of n = 12.
            require_near(
                value, errors[index], SIZES["networks"], 1.0, 10.0 / SIZES["widths"][index[2]]
            )

    def test_picture(self, found):
        figure = found.plot()
        assert len(figure.axes) == 2
        assert len(found.table.rows) == 4
        assert "At width 1000" in found.findings[1]
        assert drawn(figure.axes[0], found.data["ratio"].sel(activation="tanh", batch=4))


def test_unstable_fixed_points_are_left_out():
    found = gap(
        activations=("tanh", "silu"), batches=(32,), widths=(100,), networks=2, first=2, last=3
    )
    assert found.findings[-1] == "Unstable, without a prediction: silu, batch 32."
    assert [row[0] for row in found.table.rows] == ["tanh"]
    assert np.isnan(found.data["ratio"].sel(activation="silu")).all()
    assert len(found.plot().axes[0].containers) == 1
