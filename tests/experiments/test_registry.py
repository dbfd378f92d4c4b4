"""The names of the experiments, and running one by its name."""

import importlib
import inspect
import subprocess
import sys

import pytest

import bnmc
import bnmc._support.extras
import bnmc.chain.activations
from bnmc import experiments
from bnmc.errors import (
    ArgumentError,
    ArgumentTypeError,
    MissingExtraError,
    UnknownNameError,
)
from bnmc.experiments.experiment import Experiment, Table
from bnmc.experiments.registry import function_of


class TestRegistry:
    def test_every_name_has_a_documented_function(self):
        assert len(set(experiments.names())) == len(experiments.names()) == 45
        for name in experiments.names():
            function = function_of(name)
            parameters = list(inspect.signature(function).parameters)
            assert parameters[:5] == ["full", "rng", "progress", "threads", "store"]
            defaults = [one.default for one in inspect.signature(function).parameters.values()]
            # Quiet, in its quick form, and with the same numbers each time, unless asked otherwise.
            assert defaults[:5] == [False, 0, False, None, None]
            assert "Returns\n" in inspect.getdoc(function), name
            description = experiments.describe(name)
            assert "\n" not in description
            assert len(name) + len(description) < 98

    def test_an_unknown_name_is_told_the_nearest(self):
        for ask in (experiments.describe, experiments.run):
            with pytest.raises(UnknownNameError) as caught:
                ask("bridging1a")
            assert caught.value.suggestion == "bridging-1a"
            assert caught.value.names == experiments.names()

    def test_run_hands_everything_on(self, monkeypatch):
        called = {}
        module = importlib.import_module("bnmc.experiments.beyond")
        monkeypatch.setattr(module, "scale", lambda **given: called.update(given) or "done")
        report = print
        given = {"full": True, "rng": 5, "progress": report, "threads": 1, "store": "folder"}
        assert experiments.run("scale", **given, widths=(3, 4)) == "done"
        assert called == {**given, "data": None, "widths": (3, 4)}

    def test_names_cost_no_heavy_import(self):
        script = (
            "import sys; from bnmc import experiments; experiments.names()\n"
            "experiments.describe('rates')\n"
            "heavy = {'xarray', 'matplotlib', 'numba', 'bnmc.experiments.bridging'}\n"
            "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
        )
        subprocess.run([sys.executable, "-c", script], check=True)

    def test_classes_are_found_when_asked_for(self):
        assert experiments.Experiment is Experiment
        assert experiments.Table is Table
        with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
            experiments.Nothing  # noqa: B018
        assert bnmc.experiments is experiments

    def test_only_training_takes_images(self, monkeypatch):
        called = {}
        module = importlib.import_module("bnmc.experiments.rank_collapse")

        def stand_in(*, data=None, **given):
            called.update(given, data=data)
            return "done"

        monkeypatch.setattr(module, "fig_1", stand_in)
        assert experiments.run("rank-collapse-1", data="folder") == "done"
        assert called["data"] == "folder"
        with pytest.raises(ArgumentError, match="data: got 'folder', allowed: None"):
            experiments.run("scale", data="folder")

    @pytest.mark.parametrize("name", ["bridging-1a", "stability-atlas"])
    def test_without_xarray_nothing_is_run(self, name, monkeypatch):
        monkeypatch.setitem(sys.modules, "xarray", None)
        with pytest.raises(MissingExtraError, match="bnmc.xarray."):
            experiments.run(name)

    @pytest.mark.parametrize(
        ("given", "error"),
        [
            ({"full": 1}, ArgumentTypeError),
            ({"rng": "x"}, ArgumentTypeError),
            ({"rng": -1}, ArgumentTypeError),
            ({"progress": "yes"}, ArgumentTypeError),
        ],
    )
    def test_bad_arguments(self, given, error):
        with pytest.raises(error):
            experiments.run("bridging-1b", **given)
