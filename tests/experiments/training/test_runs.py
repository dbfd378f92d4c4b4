"""Several trained networks: seeds, learning rates, random images, kept parts, and means."""

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from bnmc.errors import ArgumentError, MissingExtraError  # noqa: E402
from bnmc.experiments import kit  # noqa: E402
from bnmc.experiments.runs import Run  # noqa: E402
from bnmc.experiments.statistics import banded  # noqa: E402
from bnmc.experiments.training import runs  # noqa: E402
from bnmc.experiments.training.networks import mlp  # noqa: E402
from bnmc.experiments.training.trainer import Plan  # noqa: E402

BUILD = partial(mlp, 64, 8, 1)


def made(*cases, rates=(0.1,), rng=1, count=32, **further):
    sizes = SimpleNamespace(images=count, batch=16, epochs=2, chains=2)
    run = Run("x", {}, rng=rng)
    training = runs.Training(run, sizes, rates, **further)
    return list(training.records({(k,): case for k, case in enumerate(cases)}).values())


def test_networks_differ_and_the_seed_repeats_them():
    (first,), (again,), (other,) = (made(runs.Case(BUILD), rng=rng) for rng in (1, 1, 2))
    assert first["loss"].shape == (2, 3)
    assert first["loss"][0, 0] != first["loss"][1, 0]
    assert all(np.array_equal(first[name], again[name]) for name in first)
    assert not np.array_equal(first["loss"], other["loss"])


def test_the_best_learning_rate_is_that_of_the_smallest_final_loss():
    best, slower = made(runs.Case(BUILD), runs.Case(BUILD, faster=0.5), rates=(1e-6, 0.3, 1e30))
    assert best["rate"] == 0.3
    assert slower["rate"] == 0.15


def test_a_preparation_changes_the_network_before_the_training():
    def prepare(model, inputs, rng):
        assert inputs.shape == (32, 1, 8, 8)
        assert float(inputs.max()) == 255.0
        with torch.no_grad():
            model[-1].weight.zero_()
            model[-1].bias.zero_()

    (zero,) = made(runs.Case(BUILD, prepare), rates=(1e-6,), scale=(250.0, 5.0))
    np.testing.assert_allclose(zero["loss"][:, 0], np.log(10), rtol=1e-12)


def test_noise_replaces_the_images():
    seen = []
    made(runs.Case(BUILD, lambda model, inputs, rng: seen.append(inputs), noise=True))
    assert len({inputs.numpy().tobytes() for inputs in seen}) == 2
    pixels = torch.stack(seen).numpy()
    assert 0 <= pixels.min() < 0.01
    assert 0.99 < pixels.max() <= 1
    # The mean of 4096 uniform numbers, within 5.1 standard errors (probability 4e-7).
    assert abs(pixels.mean() - 0.5) < 5.1 / np.sqrt(12 * pixels.size)


def test_what_is_missing_is_told_before_any_work(monkeypatch):
    with pytest.raises(ArgumentError, match="images: got 8, allowed: an integer >= 16"):
        made(count=8)
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    with pytest.raises(MissingExtraError, match=r"bnmc\[torch\]"):
        made()


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
    made = runs.Curves(
        Trained(), {("a",): None, ("b",): None}, ("loss",), case=kit.Axis("ab", "kind")
    )
    made.columns["loss"].values[1, 1] = np.nan
    return made


def test_means_have_students_intervals(curves):
    column, samples = curves.columns["loss"], curves.samples["a",]["loss"]
    np.testing.assert_array_equal(column.values[0], banded(samples))
    assert runs.mean_at(curves.after("loss"), "a").tolist() == column.values[0, 1].tolist()
    assert runs.mean_at(curves.before("loss"), "b").tolist() == column.values[1, 0].tolist()
    assert np.isnan(runs.mean_at(curves.after("loss"), "b")).all()


def test_a_network_that_diverged_is_named_in_the_table(curves):
    cells = runs.or_diverged(curves.results, curves.after("loss")).cells()
    assert cells["a",].value == curves.columns["loss"].values[0, 1, 0]
    assert cells["b",] == "diverged"


def test_the_data(curves):
    table = kit.table_of({"rate": curves.rate})
    data = curves.results.experiment("title", table, (), None).data
    assert data["loss"].dims == ("case", "epoch")
    assert data.epoch.values.tolist() == [0, 5]
    assert data.rate.values.tolist() == [0.1, 0.2]
