"""Means over trained networks, and what a table has of them."""

import numpy as np
import pytest

from bnmc.experiments import kit
from bnmc.experiments.runs import Run
from bnmc.experiments.training.curves import Curves, mean_at, or_diverged
from bnmc.experiments.training.trainer import Plan


class Trained:
    """Two cases with three networks and two records; the second one has diverged."""

    run = Run("x", {})
    plan = Plan(5, 2, 5)

    def records(self, cases):
        rng = np.random.default_rng(0)
        return {
            case: {"loss": rng.random((3, 2)), "rate": np.array(rate)}
            for case, rate in zip(cases, (0.1, 0.2), strict=True)
        }


@pytest.fixture
def curves():
    made = Curves(Trained(), {("a",): None, ("b",): None}, ("loss",), case=kit.Axis("ab", "kind"))
    made.columns["loss"].values[1, 1] = np.nan
    return made


def test_means_have_students_intervals(curves):
    column, samples = curves.columns["loss"], curves.samples["a",]["loss"]
    np.testing.assert_allclose(column.values[0, :, 0], samples.mean(axis=0))
    # Student's quantile of 2 degrees of freedom at 97.5 % is 4.302653.
    reach = 4.302653 * samples[:, 1].std(ddof=1) / np.sqrt(3)
    mean, low, high = mean_at(curves.after("loss"), "a")
    np.testing.assert_allclose([mean - low, high - mean], reach, rtol=1e-6)
    assert mean_at(curves.before("loss"), "b").tolist() == column.values[1, 0].tolist()
    assert np.isnan(mean_at(curves.after("loss"), "b")).all()


def test_a_network_that_diverged_is_named_in_the_table(curves):
    cells = or_diverged(curves.results, curves.after("loss")).cells()
    assert cells["a",].value == curves.columns["loss"].values[0, 1, 0]
    assert cells["b",] == "diverged"


def test_the_data(curves):
    table = kit.table_of({"rate": curves.rate})
    data = curves.results.experiment("title", table, (), None).data
    assert data["loss"].dims == ("case", "epoch")
    assert data.epoch.values.tolist() == [0, 5]
    assert data.rate.values.tolist() == [0.1, 0.2]
