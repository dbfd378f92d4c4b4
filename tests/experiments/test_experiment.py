"""The face of the experiments, and what they are made with."""

import errno
import hashlib
import importlib
import inspect
import json
import os
import pathlib
import pickle
import subprocess
import sys

import numpy as np
import pytest

import bnmc
import bnmc._support.extras
import bnmc.chain.activations
from bnmc import Estimate, experiments
from bnmc._support.json import plain
from bnmc.errors import (
    ArgumentError,
    ArgumentTypeError,
    MissingExtraError,
    StoreError,
    StoreMismatchError,
    UnknownNameError,
)
from bnmc.experiments import _experiment as parts
from bnmc.experiments import beyond, bridging


class TestRegistry:
    def test_every_name_has_a_documented_function(self):
        assert len(set(experiments.names())) == len(experiments.names()) == 22
        for name in experiments.names():
            entry = experiments._REGISTRY[name]
            function = getattr(
                importlib.import_module(f"bnmc.experiments.{entry.module}"), entry.function
            )
            assert list(inspect.signature(function).parameters) == [
                "full", "rng", "progress", "threads", "store",
            ]  # fmt: skip
            assert "Returns\n" in inspect.getdoc(function), name
            assert experiments.describe(name) == entry.description
            assert "\n" not in entry.description
            assert len(name) + len(entry.description) < 98

    def test_an_unknown_name_is_told_the_nearest(self):
        for ask in (experiments.describe, experiments.run):
            with pytest.raises(UnknownNameError) as caught:
                ask("bridging1a")
            assert caught.value.suggestion == "bridging-1a"
            assert caught.value.known == experiments.names()

    def test_run_hands_everything_on(self, monkeypatch):
        called = {}
        module = importlib.import_module("bnmc.experiments.beyond")
        monkeypatch.setattr(module, "scale", lambda **given: called.update(given) or "done")
        report = print
        given = {"full": True, "rng": 5, "progress": report, "threads": 1, "store": "folder"}
        assert experiments.run("scale", **given) == "done"
        assert called == given

    def test_names_cost_no_heavy_import(self):
        script = (
            "import sys; from bnmc import experiments; experiments.names()\n"
            "experiments.describe('rates')\n"
            "heavy = {'xarray', 'matplotlib', 'numba', 'bnmc.experiments.bridging'}\n"
            "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
        )
        subprocess.run([sys.executable, "-c", script], check=True)

    def test_classes_are_found_when_asked_for(self):
        assert experiments.Experiment is parts.Experiment
        assert experiments.Table is parts.Table
        with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
            experiments.Nothing  # noqa: B018
        assert bnmc.experiments is experiments

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


def made(sources=None):
    """An experiment of nothing."""
    one = Estimate(1.0, 0.1, (0.8, 1.2), 3, "means")
    data = parts.dataset(
        {"y": parts.Variable(("x",), [1.0, np.nan, np.inf], "thing", "neurons")},
        {"x": parts.Variable(("x",), ["a", "b", "c"], "ex", "")},
        sources or parts.Sources(3), True, {"batch": 3, "widths": [1, 2], "pair": (0.5, np.nan)},
    )  # fmt: skip
    table = parts.Table(("name", "value", "rest"), (("long name", one, None), ("b", 2.5, 7)))

    def draw(data, figure):
        ax = parts.axes_of(figure, 2)[0, 1]
        ax.plot([0, 1], [2, 3])

    return parts.Experiment("none", "Nothing", data, table, ("It is nothing.",), draw)


class TestExperiment:
    def test_data_say_how_to_repeat_them(self):
        data = made().data
        assert data.attrs["seed"] == "3"
        assert data.attrs["full"] == 1
        assert data.attrs["bnmc_version"] == bnmc.__version__
        assert data["y"].attrs == {"long_name": "thing", "units": "neurons"}
        assert "units" not in data["x"].attrs

    def test_json_has_no_numbers_that_are_none(self):
        document = json.loads(json.dumps(made().to_dict(), allow_nan=False))
        assert document["variables"]["y"]["data"] == [1.0, None, "Infinity"]
        assert document["attributes"]["pair"] == [0.5, None]
        assert document["table"][0]["value"] == {
            "value": 1.0, "stderr": 0.1, "ci": [0.8, 1.2], "level": 0.95, "n": 3,
        }  # fmt: skip
        assert document["table"][1] == {"name": "b", "value": 2.5, "rest": 7}
        with pytest.raises(ArgumentTypeError):
            plain(object())
        assert plain(np.arange(2)) == [0, 1]
        assert plain((-np.inf, {3: np.float32(np.nan)})) == ["-Infinity", {"3": None}]

    def test_printed(self):
        assert str(made()).splitlines() == [
            "Nothing",
            "",
            "name              value  rest",
            "long name  1 [0.8, 1.2]",
            "b                   2.5     7",
            "",
            "It is nothing.",
        ]

    def test_drawn_where_it_is_told(self):
        figure = made().plot()
        assert [ax.get_lines() != [] for ax in figure.axes] == [False, True]
        assert figure.get_size_inches()[0] == pytest.approx(10.4)
        half = made().plot().subfigures(1, 2)[0]
        assert made().plot(half) is half
        assert len(half.axes) == 2


SEVEN = parts.Sources(7)


class TestParts:
    def test_seeds_repeat(self):
        for rng in (7, np.int64(7)):
            assert parts.Sources(rng).seed == 7
        first = parts.Sources(np.random.default_rng(1))
        again = parts.Sources(first.seed)
        assert first.generator.random() == again.generator.random()
        assert parts.Sources(None).seed != parts.Sources(None).seed

    def test_progress_only_grows_and_ends(self):
        told = []
        with parts.Parts(lambda done, total: told.append((done, total)), "x", [1, 3], SEVEN) as run:
            report = run.next()
            report(1, 2)
            report(0, 2)
            report = run.next()
            report(1, 2)
            run.next()  # a run too many stays within the last part
        assert told == [(0, 100), (12, 100), (25, 100), (62, 100), (100, 100)]
        told.clear()
        stopped = parts.Parts(lambda *one: told.append(one), "x", [1], SEVEN)
        stopped.__enter__().next()
        stopped.__exit__(KeyError, KeyError(), None)
        assert told == [(0, 100)]  # what failed is not done

    def test_slope_is_weighted_least_squares(self):
        rng = np.random.default_rng(0)
        x, errors = np.array([1.0, 3.0, 10.0, 50.0]), np.array([0.02, 0.01, 0.05, 0.03])
        y = 2.0 * x**-0.5 * np.exp(errors * rng.standard_normal(4))
        estimates = [Estimate(v, v * e, (0.0, 9.0), 9, "x") for v, e in zip(y, errors, strict=True)]
        found = parts.slope(x, estimates)
        design = np.stack([np.ones(4), np.log(x)], axis=1) / errors[:, None]
        covariance = np.linalg.inv(design.T @ design)
        expected = covariance @ design.T @ (np.log(y) / errors)
        assert found.value == pytest.approx(expected[1], rel=1e-12)
        assert found.stderr == pytest.approx(covariance[1, 1] ** 0.5, rel=1e-12)
        assert found.ci[1] - found.ci[0] == pytest.approx(2 * 1.959964 * found.stderr, rel=1e-6)

    def test_rms(self):
        found = parts.rms([3.0, 4.0, 5.0])
        assert found.value == pytest.approx((50 / 3) ** 0.5)
        mean = Estimate.from_samples([9.0, 16.0, 25.0])
        assert found.stderr == pytest.approx(mean.stderr / (2 * found.value))
        assert found.ci == (0.0, pytest.approx(mean.ci[1] ** 0.5))
        assert parts.rms([0.0, 0.0]).stderr == 0.0

    def test_estimates_become_arrays(self):
        one = Estimate(1.0, 0.1, (0.8, 1.2), 3, "means")
        rate = bnmc.mixing.RateEstimate(0.5, 0.1, (0.4, 0.6), 3, "x")
        found = parts.estimated("a", ("k", "i"), [[one, one], [rate, one]], "thing", "layers")
        assert list(found) == ["a", "a_low", "a_high"]
        np.testing.assert_array_equal(found["a"].values, [[1.0, 1.0], [0.5, 1.0]])
        np.testing.assert_array_equal(found["a_low"].values, [[0.8, 0.8], [0.4, 0.8]])
        assert {v.units for v in found.values()} == {"layers"}

    @pytest.mark.parametrize(
        ("value", "low", "high", "text"),
        [
            (0.123456, 0.1, 0.2, "0.123 [0.1, 0.2]"),
            (0.123456, 0.12345, 0.12346, "0.123456 [0.12345, 0.12346]"),
            (2.0, 2.0, 2.0, "2 [2, 2]"),
            (0.0, 0.0, 0.05, "0 [0, 0.05]"),
        ],
    )
    def test_intervals_in_words(self, value, low, high, text):
        assert parts.interval(Estimate(value, 0.0, (low, high), 3, "x")) == text


class Stopped(KeyboardInterrupt):
    """A Ctrl-C that the tests tell from one of the user's."""


class TestStore:
    """An experiment of four runs, each of which draws from the generator, as do lines between."""

    def made(self, folder, runs=4, seed=7, full=False, label="x", calls=None):
        sources, found = parts.Sources(seed), []

        def draw(scale, *, progress):
            if len(found) == runs:
                raise Stopped
            if calls is not None:
                calls.append(scale)
            return scale * sources.generator.standard_normal(3)

        with parts.Parts(False, label, [1.0] * 4, sources, full, folder) as run:
            for scale in range(1, 5):
                offset = sources.generator.random()
                found.append(offset + run.run(draw, scale))
        return np.stack(found)

    @pytest.mark.parametrize("stop", [0, 1, 3, 4])
    def test_an_interrupted_experiment_goes_on(self, tmp_path, stop):
        folder, calls = tmp_path / "a" / "parts", []
        if stop < 4:
            with pytest.raises(Stopped):
                self.made(folder, stop)
        else:
            self.made(folder)
        np.testing.assert_array_equal(self.made(folder, calls=calls), self.made(None))
        assert calls == list(range(1, 5))[stop:]

    def test_a_damaged_part_is_made_again(self, tmp_path):
        expected = self.made(tmp_path / "parts")
        for number, content in ((0, b""), (1, b"nonsense"), (3, None)):
            file = tmp_path / "parts" / f"part-{number:04d}.pickle"
            file.write_bytes(file.read_bytes()[:-1] if content is None else content)
        calls = []
        np.testing.assert_array_equal(self.made(tmp_path / "parts", calls=calls), expected)
        assert calls == [1, 2, 4]

    @pytest.mark.parametrize(
        ("other", "named"),
        [({"seed": 8}, "seed = 8"), ({"full": True}, "full = True"), ({"label": "y"}, "= y")],
    )
    def test_another_experiment_is_refused(self, tmp_path, other, named):
        self.made(tmp_path / "parts")
        with pytest.raises(StoreMismatchError, match=named):
            self.made(tmp_path / "parts", **other)

    def test_what_is_no_store_is_refused(self, tmp_path):
        (tmp_path / "file").write_text("mine")
        for path in (tmp_path, tmp_path / "file"):
            with pytest.raises(ArgumentError, match="a new or empty folder"):
                self.made(path)
        with pytest.raises(ArgumentTypeError, match="store"):
            self.made(3)
        (tmp_path / "damaged").mkdir()
        (tmp_path / "damaged" / "experiment.json").write_text("{")
        with pytest.raises(StoreError, match="is damaged"):
            self.made(tmp_path / "damaged")
        with pytest.raises(StoreError, match="Not a directory"):
            self.made(tmp_path / "file" / "parts")

    def test_a_part_that_cannot_be_written_is_an_error(self, tmp_path, monkeypatch):
        def full(self, content):
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(pathlib.Path, "write_bytes", full)
        with pytest.raises(StoreError, match="No space left on device"):
            self.made(tmp_path / "parts")
        assert [file.name for file in (tmp_path / "parts").iterdir()] == ["experiment.json"]

    @pytest.mark.parametrize(
        "foreign",
        [
            os.system, eval, pathlib.Path, importlib.import_module,
            bnmc._support.extras.import_extra,
            bnmc.chain.activations._unpickled,
        ],
    )  # fmt: skip
    def test_nothing_foreign_is_called(self, tmp_path, foreign):
        class Trap:
            def __reduce__(self):
                return foreign, ("bnmc",)

        self.made(tmp_path / "parts")
        pickled = pickle.dumps((Trap(), {}))
        digest = hashlib.sha256(pickled).digest()
        (tmp_path / "parts" / "part-0002.pickle").write_bytes(digest + pickled)
        with pytest.raises(StoreError, match="is nothing that an experiment keeps"):
            self.made(tmp_path / "parts")

    def test_no_function_comes_along_with_a_chain(self, tmp_path):
        def mine(rng, rows, columns):
            return rng.standard_normal((rows, columns))

        folder = tmp_path / "parts"
        with parts.Parts(False, "x", [1.0], SEVEN, False, folder) as run:
            run.run(lambda *, progress: bnmc.Chain(4, 2, weights=mine))
        with (
            pytest.raises(StoreError, match="a function is nothing"),
            parts.Parts(False, "x", [1.0], SEVEN, False, folder) as run,
        ):
            run.run(None)

    def test_no_name_within_a_name_is_followed(self, tmp_path):
        self.made(tmp_path / "parts")
        for name in ("files.os.system", "os.system"):
            pickled = pickle.PROTO + b"\x04" + b"".join(
                [pickle.SHORT_BINUNICODE + bytes([len(one)]) + one.encode() for one in
                 ("bnmc._support.files", name)]
            ) + pickle.STACK_GLOBAL + pickle.STOP  # fmt: skip
            digest = hashlib.sha256(pickled).digest()
            (tmp_path / "parts" / "part-0000.pickle").write_bytes(digest + pickled)
            with pytest.raises(StoreError, match="is nothing that an experiment keeps"):
                self.made(tmp_path / "parts")

    @pytest.mark.parametrize(
        ("name", "module", "entry", "sizes", "functions"),
        [
            (
                "bridging-1b", bridging, "1b",
                {"widths": (400, 800), "chains": 4, "first": 41, "last": 60}, ("simulate",),
            ),
            (
                "bridging-certificate", bridging, "certificate",
                {"activations": ("tanh",), "width": 100, "replicates": 50, "pairs": 4, "depth": 20},
                ("tv_bound", "contraction"),
            ),
            (
                "rates", beyond, "rates",
                {
                    "activations": ("tanh",), "batches": (3,), "widths": (100, 1000),
                    "settings": {"pairs": 4, "replicates": 30, "chains": 6},
                },
                ("compare",),
            ),
        ],
    )  # fmt: skip
    def test_each_kind_of_result_can_be_kept(
        self, name, module, entry, sizes, functions, tmp_path, monkeypatch
    ):
        monkeypatch.setitem(module.DEFAULT, entry, sizes)
        first = experiments.run(name, store=tmp_path / "parts")
        for function in functions:
            monkeypatch.setattr(module, function, lambda *_, **named: pytest.fail("made again"))
        again = experiments.run(name, store=tmp_path / "parts")
        assert again.data.identical(first.data)
        assert str(again) == str(first)
