"""The names of the experiments, and running one by its name."""

import importlib
import inspect
import subprocess
import sys

import pytest

import bnmc
from bnmc import experiments
from bnmc.errors import ArgumentError, UnknownNameError
from bnmc.experiments.experiment import Experiment, Table
from bnmc.experiments.registry import function_of


def test_every_name_has_a_documented_function():
    for name in experiments.names():
        function = function_of(name)
        parameters = list(inspect.signature(function).parameters)
        shared = ["full", "rng", "progress", "threads", "executor", "store"]
        assert parameters[:6] == shared
        parameters = inspect.signature(function).parameters.values()
        # Quiet, in its quick form, and with the same numbers each time, unless asked otherwise.
        defaults = [parameter.default for parameter in parameters]
        assert defaults[:6] == [False, 0, False, None, None, None]
        assert "Returns\n" in inspect.getdoc(function), name
        description = experiments.describe(name)
        assert "\n" not in description
        assert len(name) + len(description) < 98


def test_an_unknown_name_is_told_the_nearest():
    for ask in (experiments.describe, experiments.run):
        with pytest.raises(UnknownNameError) as caught:
            ask("bridging1a")
        assert caught.value.suggestion == "bridging-1a"
        assert caught.value.names == experiments.names()


@pytest.mark.parametrize(
    ("name", "module", "further"),
    [("scale", "beyond", {"data": None, "widths": (3, 4)}),
     ("rank-collapse-1", "rank_collapse", {"data": "folder"})],
)  # fmt: skip
def test_run_hands_everything_on(name, module, further, monkeypatch):
    called = {}

    def stand_in(*, data=None, **given):
        called.update(given, data=data)
        return "done"

    module, function = importlib.import_module(f"bnmc.experiments.{module}"), function_of(name)
    vars(stand_in).update(extras={})
    monkeypatch.setattr(module, function.__name__, stand_in)
    given = {
        "full": True, "rng": 5, "progress": print, "threads": 1, "executor": "pool",
        "store": "folder", "timeout": 9.0,
    }  # fmt: skip
    assert experiments.run(name, **given, **further) == "done"
    assert called == {**given, **further}
    with pytest.raises(ArgumentError, match="data: got 'folder', allowed: None"):
        experiments.run("isometry", data="folder")


def test_names_cost_no_heavy_import():
    script = (
        "import sys; from bnmc import experiments; experiments.names()\n"
        "experiments.describe('rates')\n"
        "heavy = {'xarray', 'matplotlib', 'numba', 'bnmc.experiments.bridging'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_classes_are_found_when_asked_for():
    assert experiments.Experiment is Experiment
    assert experiments.Table is Table
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        experiments.Nothing  # noqa: B018
    assert bnmc.experiments is experiments
