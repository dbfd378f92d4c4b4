"""Columns over named axes, their variables, cells and tables."""

import sys
from functools import partial
from typing import NamedTuple

import numpy as np
import pytest
from scipy import stats

import bnmc
from bnmc import Estimate, experiments
from bnmc.errors import MissingExtraError
from bnmc.experiments import kit
from bnmc.experiments.runs import Run
from bnmc.experiments.statistics import banded

ONE = Estimate(1.0, 0.1, (0.8, 1.2), 3, "means")
RATE = bnmc.mixing.RateEstimate(0.5, 0.1, (0.4, 0.6), 3, "x")
SQUARE = bnmc.Activation(lambda x: x * x, name="square")


@pytest.fixture
def results():
    return kit.Results(
        Run("name", {}, rng=5), activation=("relu", SQUARE), width=(10, 20),
        bin=kit.Axis([0.5, 1.5, 2.5], "middle of a bin", "m"),
    )  # fmt: skip


def finished(results):
    return results.experiment("Title", kit.Table((), ()), ["It is."], lambda *_: None, batch=4)


def test_numbers_over_axes(results):
    results.add("a", ("activation", "width"), [[1, 2], [3, 4]], "an integer", "neurons")
    data = finished(results).data
    np.testing.assert_array_equal(data["a"].sel(activation="square", width=20), 4)
    assert data["a"].attrs == {"long_name": "an integer", "units": "neurons"}
    assert data["a"].dtype.kind == "i"
    assert data["activation"].attrs == {"long_name": "activation"}
    assert data["width"].attrs == {"long_name": "width d", "units": "neurons"}
    assert data["bin"].attrs == {"long_name": "middle of a bin", "units": "m"}
    assert data["activation"].values.tolist() == ["relu", "square"]
    assert {name: data.attrs[name] for name in ("seed", "full", "batch")} == {
        "seed": "5", "full": 0, "batch": 4,
    }  # fmt: skip
    assert data.attrs["bnmc_version"] == bnmc.__version__


def test_points_are_in_the_order_of_rows(results):
    assert results.points("width", "activation") == [
        (10, "relu"), (10, SQUARE), (20, "relu"), (20, SQUARE),
    ]  # fmt: skip
    assert results.points() == [()]


def test_estimates_have_ends(results):
    column = results.add(
        "rate", ("activation", "width"), {("relu", 10): ONE, (SQUARE, 20): RATE}, "a rate"
    )
    data = finished(results).data
    np.testing.assert_array_equal(data["rate"], [[1.0, np.nan], [np.nan, 0.5]])
    np.testing.assert_array_equal(data["rate_low"], [[0.8, np.nan], [np.nan, 0.4]])
    np.testing.assert_array_equal(data["rate_high"], [[1.2, np.nan], [np.nan, 0.6]])
    assert data["rate_low"].attrs["long_name"] == "a rate, lower end of 95 %"
    assert data["rate_high"].attrs["long_name"] == "a rate, upper end of 95 %"
    assert column.cells() == {
        ("relu", 10): ONE, ("relu", 20): None, ("square", 10): None, ("square", 20): RATE,
    }  # fmt: skip
    assert column.at(width=0).cells() == {("relu",): ONE, ("square",): None}
    assert column.at(width=0, activation=0).cells() == {(): ONE}
    assert column.means().cells()["square", 20] == 0.5


def test_arrays_by_point_have_further_axes(results):
    arrays = {("relu",): [1.0, 2.0, 3.0]}
    column = results.add("a", ("activation", "bin"), arrays, "a number")
    np.testing.assert_array_equal(
        finished(results).data["a"], [[1.0, 2.0, 3.0], [np.nan, np.nan, np.nan]]
    )
    assert column.at(bin=-1).cells() == {("relu",): 3.0, ("square",): None}
    assert finished(results).data["a"].dims == ("activation", "bin")


def test_without_points_all_is_missing(results):
    results.add("a", ("activation",), {}, "a number")
    assert np.isnan(finished(results).data["a"]).all()


def test_means_over_networks_have_students_intervals(results):
    samples = {(width,): np.random.default_rng(width).normal(size=(7, 3)) for width in (10, 20)}
    column = results.add_means("a", ("width", "bin"), samples, "a mean", "m")
    data = finished(results).data
    bands = np.stack([banded(values) for values in samples.values()])
    for place, name in enumerate(("a", "a_low", "a_high")):
        np.testing.assert_array_equal(data[name], bands[..., place])
    cell = column.cells()[20, 1.5]
    assert (cell.value, cell.n) == (float(data["a"][1, 1]), 7)
    assert cell.stderr == pytest.approx(stats.sem(samples[(20,)])[1], rel=1e-9)
    assert data["a_low"].attrs == {"long_name": "a mean, lower end of 95 %", "units": "m"}


def test_means_that_are_not_finite_are_missing(results):
    samples = {("relu",): np.ones(3), (SQUARE,): np.array([1.0, np.nan, 2.0])}
    column = results.add_means("a", ("activation",), samples, "a mean")
    assert column.cells()["square",] is None
    assert kit.table_of({"mean": column}, missing="diverged").rows == (
        ("relu", column.cells()["relu",]),
    )
    numbers = results.add("b", ("activation",), [1, 2], "a number")
    table = kit.table_of({"mean": column, "number": numbers}, missing="diverged")
    assert table.rows[1] == ("square", "diverged", 2)


def test_ranges_contain_nine_tenths(results):
    samples = {("relu",): np.arange(21.0)[:, None] * [1, 2, 3]}
    results.add_range("a", ("activation", "bin"), samples, "a mean")
    of_relu = finished(results).data.sel(activation="relu")
    np.testing.assert_allclose(of_relu["a"], [10.0, 20.0, 30.0])
    np.testing.assert_allclose(of_relu["a_band_low"], [1.0, 2.0, 3.0])
    np.testing.assert_allclose(of_relu["a_band_high"], [19.0, 38.0, 57.0])
    assert of_relu["a_band_low"].attrs["long_name"] == "5 % of networks"


def test_tables(results):
    numbers = results.add("a", ("activation", "width"), [[1.0, 2.0], [np.nan, np.nan]], "a")
    rates = results.add("b", ("activation", "width"), {("relu", 20): ONE}, "b")
    table = kit.table_of({"number": numbers, "rate": rates})
    assert table.columns == ("activation", "width", "number", "rate")
    assert table.rows == (("relu", 10, 1.0, None), ("relu", 20, 2.0, ONE))
    words = results.column(("activation", "width"), [["a", "b"], ["c", "d"]])
    assert kit.table_of({"word": words, "number": numbers}).rows[2] == ("square", 10, "c", None)
    assert set(finished(results).data) == {"a", "b", "b_low", "b_high"}
    heads = kit.table_of({"number": numbers.at(width=0)}, heads=("σ",)).columns
    assert heads == ("σ", "number")


def test_entries_of_parts():
    assert kit.entry({(1,): ("a", "b"), (2,): ("c", "d")}, 1) == {(1,): "b", (2,): "d"}


# --- the decorator


class Sizes(NamedTuple):
    """Sizes.

    width: width of nothing
    """

    width: int = 3
    chains: int = 2


def public(trains=False):
    @kit.figure("nothing", Sizes(), trains=trains, width=30)
    def nothing(run, sizes):
        """Do nothing.

        Returns
        -------
        Experiment
        """
        return run, sizes

    return nothing


def test_sizes_are_chosen():
    assert public()()[1] == Sizes()
    assert public()(full=True, chains=4)[1] == Sizes(30, 4)
    run, _ = public()(full=True, rng=3, threads=2)
    assert (run.name, run.full, run.seed, run.parallel.threads) == ("nothing", True, 3, 2)
    assert public(trains=True)(data="folder")[0].data == "folder"


def test_the_docstring_describes_sizes():
    text = public().__doc__
    assert text.startswith("Do nothing.\n\nParameters\n----------\nfull : bool, default False\n")
    assert "width : int, default 3\n    Width of nothing.  With `full`: 30.\nchains : int" in text
    assert text.endswith("Networks of each kind.\n\nReturns\n-------\nExperiment")
    assert "\ndata : path" not in text
    assert "\ndata : path" in public(trains=True).__doc__


def test_without_xarray_nothing_is_run(monkeypatch):
    monkeypatch.setitem(sys.modules, "xarray", None)
    for figure in (public(), partial(experiments.run, "bridging-1a")):
        with pytest.raises(MissingExtraError, match="bnmc.xarray."):
            figure()
