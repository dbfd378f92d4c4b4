"""``bnmc figure`` and ``bnmc bench``, and completion in shells."""

import json
import os
import subprocess
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest

from bnmc import cli, experiments, simulation
from bnmc.chain import Chain
from bnmc.cli import bench, figure
from bnmc.errors import ArgumentError, ArgumentTypeError
from bnmc.experiments import bridging
from bnmc.experiments.bridging import distance_over_width

SMALL = distance_over_width.Sizes(widths=(400, 800), chains=4, first=41, last=60)


@pytest.fixture
def run(capsys, tmp_path, monkeypatch):
    """Run a command line in an empty folder and return its status and what it printed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(distance_over_width, "DEFAULT", SMALL)

    def run(*arguments):
        status = cli.main(arguments)
        return status, *capsys.readouterr()

    return run


def test_list_is_a_name_and_what_it_shows_on_each_line(run):
    status, out, err = run("figure", "--list")
    assert (status, err) == (0, "")
    lines = [line.split(maxsplit=1) for line in out.splitlines()]
    assert lines == [[name, experiments.describe(name)] for name in experiments.names()]


def test_json_goes_to_a_json_file(run):
    for arguments in (("bridging-1b", "--json", "out.txt"), ("bridging-1b", "--json=out.txt")):
        status, out, err = run("figure", *arguments)
        assert (status, out) == (2, "")
        assert "json (by its suffix): got '.txt', allowed: .json" in err
    status, out, _ = run("figure", "--json", "bridging-1b")
    assert (status, json.loads(out)["name"]) == (0, "bridging-1b")


def test_list_as_json(run):
    status, out, err = run("figure", "--list", "--json")
    assert (status, err) == (0, "")
    assert json.loads(out) == {name: experiments.describe(name) for name in experiments.names()}
    status, _, err = run("figure", "bridging-1b", "--list")
    assert status == 2
    assert "name: got 'bridging-1b', allowed: nothing, with --list" in err


def test_results_are_shown_even_if_the_picture_cannot_be_written(run, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", full)
    status, out, err = run("figure", "bridging-1b", "--plot", "a.png", "--json", "a.json")
    assert status == 2
    assert "No space left on device" in err
    assert "Slope of the distance" in out
    assert "data: a.json" in out
    with open("a.json") as file:
        assert json.load(file)["name"] == "bridging-1b"


def test_table_on_a_terminal(run, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    status, out, _ = run("figure", "--list")
    assert status == 0
    assert "what it shows" in out
    assert "bridging-poster" in out
    status, out, _ = run("figure", "bridging-1b", "--no-progress")
    assert status == 0
    assert "r.m.s. distance" in out
    assert "Slope of the distance" in out


def test_an_interrupted_figure_goes_on(run, monkeypatch):
    simulate, calls = simulation.simulate, []

    def second_is_interrupted(*arguments, **named):
        calls.append(arguments)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return simulate(*arguments, **named)

    monkeypatch.setattr(distance_over_width, "simulate", second_is_interrupted)
    command = "figure", "bridging-1b", "--json"
    status, out, err = run(*command, "--store", "parts")
    assert (status, out) == (130, "")
    assert "finished parts are in parts; the same command goes on" in err
    status, out, _ = run(*command, "--store", "parts")
    assert (status, len(calls)) == (0, 3)  # one of the two widths was there
    status, whole, _ = run(*command)
    found, expected = json.loads(out), json.loads(whole)
    assert {**found, "seconds": 0} == {**expected, "seconds": 0}
    status, _, err = run(*command, "--store", "parts", "--seed", "1")
    assert status == 2
    assert "expected a run with seed = 1, got 'parts', which has seed = 0" in err


def test_printed(run):
    status, out, err = run("figure", "bridging-1b", "--seed", "3", "--threads", "1")
    assert (status, err) == (0, "")
    found = bridging.fig_1b(rng=3)
    assert out.startswith(str(found) + "\n\nseed 3, ")
    assert out.count("seed") == 1


def test_files(run, tmp_path):
    arguments = ("figure", "bridging-1b", "--plot", "1b.svg", "--json", "1b.json")
    status, out, err = run(*arguments)
    assert (status, err) == (0, "")
    assert out.endswith("data: 1b.json\npicture: 1b.svg\n")
    assert (tmp_path / "1b.svg").read_text(encoding="utf-8").count("<path") > 5
    document = json.loads((tmp_path / "1b.json").read_text(encoding="utf-8"))
    assert document["variables"]["law"]["data"] == bridging.fig_1b().data["law"].values.tolist()
    assert (document["name"], document["seed"]) == ("bridging-1b", 0)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1b.json", "1b.svg"]
    # What is there is not replaced unless asked, and that is known before any work.
    for left in (arguments[:4], (*arguments[:2], *arguments[4:])):
        status, out, err = run(*left)
        assert (status, out) == (2, "")
        assert "--force replaces it" in err
    assert run(*arguments, "--force")[0] == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ("bridging-1b", "--json"),
        ("--json", "bridging-1b"),
        ("bridging-1b", "--json", "-"),
        ("--json", "--seed", "0", "bridging-1b"),
    ],
)
def test_json_without_a_file_is_printed(run, tmp_path, arguments):
    status, out, err = run("figure", *arguments)
    assert (status, err) == (0, "")
    assert json.loads(out)["findings"] == list(bridging.fig_1b().findings)
    assert not list(tmp_path.iterdir())


def test_full_and_progress_are_handed_on(run, monkeypatch):
    called = {}

    def experiment(**given):
        called.update(given)
        given["progress"](50, 100)
        return bridging_1b()

    bridging_1b = bridging.fig_1b
    monkeypatch.setattr(bridging, "fig_1b", experiment)
    status, _, err = run("figure", "bridging-1b", "--full", "--progress", "--threads", "2")
    assert status == 0
    assert err.startswith("bnmc: % 50 of 100, about ")
    assert (called["full"], called["rng"], called["threads"]) == (True, 0, 2)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "bnmc figure --list names them"),
        (("bridging1a",), "did you mean 'bridging-1a'?"),
        (("bridging-1b", "--seed", "-1"), "seed: got -1"),
        (("bridging-1b", "--threads", "0"), "threads: got 0"),
        (("bridging-1b", "--plot", "x.xyz"), "plot (by its suffix)"),
        (("bridging-1b", "--json", "no/x.json"), "json: got 'no/x.json'"),
        (("bridging-1b", "--json=x.txt"), "json (by its suffix)"),
        (("bridging-1b", "--fast"), "No such option"),
    ],
)
def test_bad_input(run, tmp_path, arguments, said):
    status, out, err = run("figure", *arguments)
    assert (status, out) == (2, "")
    assert err.startswith("bnmc: error: ")
    assert said in err
    assert err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_help(run):
    status, out, _ = run("figure", "--help")
    assert status == 0
    assert "Example: bnmc figure bridging-1a --plot error.png" in " ".join(out.split())
    for option in ("--list", "--full", "--seed", "--plot", "--json", "--force"):
        assert option in out
    assert "--install-completion" in run("--help")[1]


def test_a_shell_completes_names():
    asked = {
        "_BNMC_COMPLETE": "complete_bash", "COMP_WORDS": "bnmc figure bridging-1",
        "COMP_CWORD": "2",
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "bnmc"], env={**os.environ, **asked}, capture_output=True, text=True
    )
    assert done.stdout.split() == ["bridging-1a", "bridging-1b"]
    assert [name for name, _ in figure._known("rates")] == ["rates"]


class TestBench:
    def test_command(self, run):
        small = ("bench", "--width", "40", "--batch", "4", "--seconds", "0.01", "--threads", "1")
        status, out, err = run(*small, "--json")
        assert (status, err) == (0, "")
        rows = json.loads(out)["rows"]
        assert rows[0]["speed"] == 1.0
        # Normals of a layer: weights are 40 × 40, rows of centred samples 40 × 3.
        for row, normals in zip(rows, (1600, 120, 120, 120), strict=True):
            assert row["layers_per_second"] > 0
            ratio = row["normals_per_second"] / row["layers_per_second"]
            assert ratio == pytest.approx(normals)
            speed = row["layers_per_second"] / rows[0]["layers_per_second"]
            assert row["speed"] == pytest.approx(speed)
        status, out, _ = run(*small)
        assert status == 0
        assert "layers a second" in out
        assert run("bench", "--seconds", "0")[0] == 2

    def test_numpy_normalises_as_the_chain_does(self):
        seen = []

        def activation(x):
            seen.append(x)
            return np.maximum(x, 0.0)

        chain = SimpleNamespace(width=50, batch=4, norm="batch", activation=activation)
        bench._drawn(chain, 3)
        assert len(seen) == 3
        for x in seen:
            np.testing.assert_allclose(x.mean(axis=1), 0.0, atol=1e-12)
            np.testing.assert_allclose(np.square(x).mean(axis=1), 1.0)

    def test_bad_arguments(self):
        chain = Chain(50, 4)
        with pytest.raises(ArgumentError, match="seconds"):
            bench.measure(chain, seconds=61)
        with pytest.raises(ArgumentTypeError, match="threads"):
            bench.measure(chain, threads="all")

    def test_progress_and_normals(self, monkeypatch):
        told, ran = [], []
        monkeypatch.setattr(
            bench, "_run", lambda *given: ran.append(given) or time.sleep(1e-4 * given[1])
        )
        uncentred = Chain(30, 3, "linear", norm="batch-uncentred")
        rows = bench.measure(
            uncentred, seconds=0.002, threads=2, progress=lambda *one: told.append(one)
        )
        assert told == [(k, 16) for k in range(1, 17)]
        assert {(*one[:1], *one[2:]) for one in ran} == {
            (uncentred, 1, 1), (uncentred, 8, 2), (uncentred, 8, 2, "float32"),
        }  # fmt: skip
        for row, normals in zip(rows, (900, 90, 90, 90), strict=True):
            ratio = row["normals_per_second"] / row["layers_per_second"]
            assert ratio == pytest.approx(normals)
