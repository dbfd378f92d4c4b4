"""The experiments beyond the papers: shapes of the results, by the numbers they have."""

from types import SimpleNamespace

import numpy as np
import pytest
from experiment_checks import drawn, require_near, require_sound, stderr_of
from numpy.testing import assert_allclose

from bnmc import mean_field
from bnmc.experiments import beyond

SIZES = {
    "atlas": {
        "activations": ("relu", "silu"), "batches": (8, 24, 32), "measured": ("relu",),
        "at": (4, 8), "width": 1000, "pairs": 16,
    },
    "rates": {
        "activations": ("relu",), "batches": (3, 5), "widths": (500, 1000),
        "settings": {"pairs": 16, "replicates": 60, "chains": 10},
    },
    "scale": {
        "widths": (1000, 10_000, 100_000), "chains": 8, "layers": 30, "batches": (8, 64),
        "width": 2048, "networks": 16, "deep": 1,
    },
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def small():
    """Sizes that take about a second each."""
    with pytest.MonkeyPatch.context() as patch:
        for name, sizes in SIZES.items():
            patch.setitem(beyond.DEFAULT, name, sizes)
        yield


def relu_rate(n):
    """The rate of relu in closed form, from the moments of two normals of correlation ρ."""
    rho = -1 / (n - 1)
    slope = (np.pi - np.arccos(rho)) / np.pi
    J = np.sqrt(1 - rho**2) / np.pi + slope * rho
    light = ((n - 2) * (1 - J) + n * slope / (n - 1)) / ((n + 1) * (1 - J))
    return max(light, n / (n + 1) * slope / (1 - J))


class TestAtlas:
    @pytest.fixture(scope="class")
    @classmethod
    def found(cls):
        return beyond.stability_atlas(threads=2)

    def test_rates_and_where_they_cross(self, found):
        data = found.data
        assert_allclose(
            data["rate"].sel(activation="relu"), [relu_rate(n) for n in (8, 24, 32)], rtol=1e-6
        )
        assert data["unstable_from"].values.tolist() == [0, 26]
        assert_allclose(data["rate"], np.maximum(abs(data["lambda_L"]), abs(data["lambda_M"])))
        assert [row[-1] for row in found.table.rows] == [None, 26]
        assert "silu from 26" in found.findings[0]

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

    def test_measured_contraction(self, found):
        one = found.data.sel(measured="relu")
        errors = (one["contraction_high"] - one["contraction_low"]).values / (2 * 2.13)
        for k, n in enumerate((4, 8)):
            # Finite width: measured .0011 at n = 8, d = 1000.
            require_near(float(one["contraction"][k]), errors[k], 16, relu_rate(n), 5.0 / 1000)

    def test_picture(self, found):
        figure = require_sound(found, "stability-atlas")
        left, right = figure.axes[:2]
        assert drawn(right, found.data["rate"].sel(activation="silu"))
        assert_allclose(left.images[0].get_array(), found.data["rate"])
        (bar,) = left.get_lines()  # silu, between 24 and 32
        assert_allclose(bar.get_xdata(), 1.5)
        assert_allclose(bar.get_ydata(), [0.5, 1.5])


def test_chains_that_do_not_meet_are_said_to(monkeypatch):
    from bnmc.errors import NotMixing

    def contraction(*_, **__):
        raise NotMixing("0 of 16 pairs met", None, 0.01, 0.0)

    monkeypatch.setattr(beyond, "contraction", contraction)
    found = beyond.stability_atlas()
    assert np.isnan(found.data["contraction"]).all()
    assert "relu, batch 4: the pairs did not meet" in found.findings[1]
    require_sound(found, "stability-atlas")


class TestRates:
    @pytest.fixture(scope="class")
    @classmethod
    def found(cls):
        return beyond.rates(threads=2)

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
        figure = require_sound(found, "rates")
        for ax, axis in zip(figure.axes, ("batch", "width"), strict=True):
            assert drawn(ax, found.data[f"mean_field_by_{axis}"][0])
            assert drawn(ax, found.data[f"rate_by_{axis}"][0, :, 3])


def test_rates_that_nobody_estimates(monkeypatch):
    sizes = {**SIZES["rates"], "batches": (3,), "widths": ()}
    monkeypatch.setitem(beyond.DEFAULT, "rates", sizes)
    rows = [SimpleNamespace(name=name, estimate=None) for name in ("", *beyond.ESTIMATORS)]
    monkeypatch.setattr(beyond, "compare", lambda chain, **_: SimpleNamespace(rows=rows))
    found = beyond.rates()
    assert np.isnan(found.data["rate_by_batch"]).all()
    assert all(one.endswith("no estimate.") for one in found.findings)
    assert found.table.rows[0][4:] == (None,) * 5


class TestScale:
    @pytest.fixture(scope="class")
    @classmethod
    def found(cls):
        return beyond.scale()

    def test_slopes_and_laws(self, found):
        data, n = found.data, 4
        errors = stderr_of(data, "distance", 8)
        law = np.sqrt(16 * 2 * 25 / (4 * 3 * 4 * data["width"].values))
        assert_allclose(data["law"], law)
        for k, width in enumerate(data["width"].values):
            level = float(data["distance"][0, k])
            require_near(level, errors[0, k], 8, law[k], (n**2 / width + 1e-6) * law[k])
        values = data["distance"].values
        slope = np.log(values[:, -1] / values[:, 0]) / np.log(100)
        error = np.hypot(*(errors / values)[:, [0, -1]].T) / np.log(100)
        for k in range(2):
            require_near(slope[k], error[k], 8, -0.5, 0.02 / np.log(100))

    def test_batches(self, found):
        one = found.data.sel(large="linear")
        n = one["batch"].values.astype(float)
        exact = n * np.sqrt((n - 2) / ((n - 1) * 2048))
        assert_allclose(one["one_step_law"], exact)
        errors = stderr_of(one, "one_step", 16)
        for k in range(2):
            require_near(float(one["one_step"][k]), errors[k], 16, exact[k])
        assert (found.data["deeper"] > found.data["one_step"]).all()
        assert (found.data["speed"] > 0).all()
        assert (found.data["pace"] > 0).all()

    def test_picture(self, found):
        left, middle, right = require_sound(found, "scale").axes
        assert drawn(left, found.data["law"])
        assert drawn(middle, found.data["one_step_law"])
        assert drawn(right, found.data["pace"][1])
