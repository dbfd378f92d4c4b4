"""``bnmc figure``, and completion in shells."""

import functools
import json
import os
import subprocess
import sys

import pytest

from bnmc import experiments, simulation
from bnmc.cli.commands import figure
from bnmc.experiments import bridging
from bnmc.experiments.bridging import distance_over_width

SMALL = {"widths": (400, 800), "networks": 4, "first": 41, "last": 60}


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Make Fig. 1b of *On bridging …* a matter of seconds."""
    public = bridging.fig_1b
    small = functools.wraps(public)(lambda **given: public(**SMALL | given))
    monkeypatch.setattr(bridging, "fig_1b", small)


def test_list_is_a_name_and_what_it_shows_on_each_line(run):
    status, out, err = run("figure", "--list")
    assert (status, err) == (0, "")
    lines = [line.split(maxsplit=1) for line in out.splitlines()]
    assert lines == [[name, experiments.describe(name)] for name in experiments.names()]


def test_list_as_json(run):
    status, out, err = run("figure", "--list", "--json")
    assert (status, err) == (0, "")
    assert json.loads(out) == {name: experiments.describe(name) for name in experiments.names()}
    status, _, err = run("figure", "bridging-1b", "--list")
    assert status == 2
    assert "name: got 'bridging-1b', allowed: nothing, with --list" in err


def test_images_reach_the_experiment(run, monkeypatch, tmp_path):
    seen = {}
    monkeypatch.setattr(
        experiments, "run", lambda name, **given: seen.update(given) or bridging.fig_1b()
    )
    run("figure", "rank-collapse-1", "--data", str(tmp_path))
    assert seen["data"] == tmp_path
    monkeypatch.undo()
    status, _, err = run("figure", "bridging-1b", "--data", str(tmp_path))
    assert status == 2
    assert "'bridging-1b' trains no network" in err


def test_table_on_a_terminal(run, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    status, out, _ = run("figure", "--list")
    assert status == 0
    assert "description" in out
    assert "bridging-poster" in out
    status, out, _ = run("figure", "bridging-1b", "--no-progress")
    assert status == 0
    assert "r.m.s. distance" in out
    assert "slope of the distance" in out


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
    assert "finished parts are in parts; the same command resumes" in err
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
    assert out.startswith(str(found) + "\nseed 3, seconds ")
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
    # The name of a figure is no file.
    status, out, _ = run("figure", "--json", "bridging-1b")
    assert (status, json.loads(out)["name"]) == (0, "bridging-1b")


def test_full_and_progress_are_handed_on(run, monkeypatch):
    called = {}

    def experiment(**given):
        called.update(given)
        return bridging_1b()

    bridging_1b = bridging.fig_1b
    monkeypatch.setattr(bridging, "fig_1b", experiment)
    assert run("figure", "bridging-1b", "--full", "--progress", "--threads", "2")[0] == 0
    assert (called["full"], called["rng"], called["threads"]) == (True, 0, 2)
    assert called["progress"] is True


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "bnmc figure --list prints their names"),
        (("bridging1a",), "did you mean 'bridging-1a'?"),
        (("bridging-1b", "--seed", "-1"), "seed: got -1"),
        (("bridging-1b", "--threads", "0"), "threads: got 0"),
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


def test_sizes(run):
    command = ("figure", "gap", "--set", "widths=50,60", "--set", "activations=tanh")
    status, out, err = run(
        *command, "--set", "batches=4", "--set", "networks=3", "--set", "last=70"
    )
    assert (status, err) == (0, "")
    assert "d = 50  d = 60" in out
    assert "At width 60 the ratio that differs most from 1 is that of tanh, batch 4" in out
    for wrong, said in {
        "width=3": "set: got 'width', allowed: activations, batches, widths",
        "widths": "set: got 'widths', allowed: a size and its value",
        "widths=x": "widths: got 'x', allowed: an integer >= 1",
        "activations=rleu": "(did you mean 'relu'?)",
    }.items():
        status, out, err = run("figure", "gap", "--set", wrong)
        assert (status, out) == (2, "")
        assert said in err


def test_help_lists_the_sizes_of_a_figure(run):
    status, out, _ = run("figure", "gap", "--help")
    assert status == 0
    text = " ".join(out.split())
    assert "Sizes of gap, for --set: activations=linear,relu," in text
    assert "networks=32 Networks of each kind. With --full: 64." in text
    assert "Sizes of" not in run("figure", "--help")[1]


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
    assert [name for name, _ in figure._names("rates")] == ["rates"]
