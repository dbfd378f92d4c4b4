"""``bnmc figure`` and ``demo``, and completion in shells."""

import functools
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bnmc import experiments, simulation
from bnmc.cli.commands import figures
from bnmc.experiments import bridging
from bnmc.experiments.bridging import distances

SMALL = {"widths": (400, 800), "chains": 4, "first": 41, "last": 60}


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Make Fig. 1b of *On bridging …* a matter of seconds."""
    public = bridging.fig_1b
    small = functools.wraps(public)(lambda **options: public(**SMALL | options))
    monkeypatch.setattr(bridging, "fig_1b", small)


def test_the_list_has_a_name_and_what_it_shows_on_each_line(printed, document_of):
    descriptions = {name: experiments.describe(name) for name in experiments.names()}
    lines = [line.split(maxsplit=1) for line in printed("figure --list").splitlines()]
    rows = document_of("figure --list")["rows"]
    assert dict(lines) == {row["name"]: row["description"] for row in rows} == descriptions


def test_images_full_and_progress_are_handed_on(printed, monkeypatch, tmp_path):
    options, figure = {}, bridging.fig_1b()

    def run(name, **others):
        options.update(others)
        return figure

    monkeypatch.setattr(experiments, "run", run)
    line = f"figure rank-collapse-1 --data {tmp_path} --full --progress --threads 2 --timeout 60"
    printed(line)
    expected = {"data": tmp_path, "full": True, "progress": True, "threads": 2, "rng": 0}
    expected["timeout"] = 60.0
    assert options == {**expected, "store": None}
    for line, progress in (("", False), ("--full", True), ("--full --no-progress", False)):
        printed(f"figure bridging-1b {line}")
        assert options["progress"] is progress


def test_table_on_a_terminal(printed, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    for line, words in (
        ("figure --list", ("description", "bridging-poster")),
        ("figure bridging-1b --no-progress", ("r.m.s. distance", "slope of the distance")),
    ):
        out = printed(line)
        assert all(text in out for text in words)


def test_an_interrupted_figure_goes_on(run, document_of, refusal, monkeypatch):
    simulate, calls = simulation.simulate, []

    def second_is_interrupted(*arguments, **named):
        calls.append(arguments)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return simulate(*arguments, **named)

    monkeypatch.setattr(distances, "simulate", second_is_interrupted)
    status, out, err = run("figure bridging-1b --json --store parts")
    assert (status, out) == (130, "")
    assert "finished parts are in parts; the same command resumes" in err
    status, out, err = run("figure bridging-1b --json --store parts")
    assert (status, json.loads(out)["command"]) == (0, "figure")
    resumed = r"bnmc: bridging-1b, 2 parts: \d\d % found in the store, continuing\n"
    assert re.fullmatch(resumed, err)
    continued = document_of("figure bridging-1b --store parts --no-progress")
    assert len(calls) == 3  # one of the two widths was there
    assert {**continued, "seconds": 0} == {**document_of("figure bridging-1b"), "seconds": 0}
    err = refusal("figure bridging-1b --store parts --seed 1")
    assert "expected a run with seed = 1, got 'parts', which has seed = 0" in err


def test_printed(printed):
    out = printed("figure bridging-1b --seed 3 --threads 1")
    assert out.startswith(str(bridging.fig_1b(rng=3)) + "\nseed 3; seconds ")
    assert out.count("seed") == 1


def test_files(printed, document_of, tmp_path):
    out = printed("figure bridging-1b --plot 1b.svg --json 1b.json")
    assert out.endswith("data: 1b.json\npicture: 1b.svg\n")
    assert (tmp_path / "1b.svg").read_text(encoding="utf-8").count("<path") > 5
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1b.json", "1b.svg"]
    document = json.loads((tmp_path / "1b.json").read_text(encoding="utf-8"))
    assert document["variables"]["law"]["data"] == bridging.fig_1b().data["law"].values.tolist()
    assert (document["name"], document["seed"]) == ("bridging-1b", 0)
    # The name of a figure is no file.
    assert json.loads(printed("figure --json bridging-1b"))["name"] == "bridging-1b"


def test_sizes(printed):
    sizes = ("widths=50,60", "activations=tanh", "batches=4", "chains=3", "last=70")
    out = printed("figure gap " + " ".join(f"--set {size}" for size in sizes))
    assert "d = 50  d = 60" in out
    assert "At width 60 the ratio that differs most from 1 is that of tanh, batch 4" in out


def test_help(printed):
    text = " ".join(printed("figure gap --help").split())
    assert "Sizes of gap, for --set: activations=linear,relu," in text
    assert "chains=32 Networks of each kind. With --full: 64." in text
    out = printed("figure --help")
    assert "Sizes of" not in out
    assert "Example: bnmc figure bridging-1a --plot error.png" in " ".join(out.split())
    for option in ("--list", "--full", "--seed", "--plot", "--json", "--force"):
        assert option in out
    assert "--install-completion" in printed("--help")


def test_a_shell_completes_names():
    asked = {
        "_BNMC_COMPLETE": "complete_bash", "COMP_WORDS": "bnmc figure bridging-1",
        "COMP_CWORD": "2",
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "bnmc"], env={**os.environ, **asked}, capture_output=True, text=True
    )
    assert done.stdout.split() == ["bridging-1a", "bridging-1b"]
    assert [name for name, _ in figures._names("rates")] == ["rates"]


def test_it_is_two_figures_and_a_picture(printed):
    out = printed("demo --depth 20 --chains 10 --seed 3")
    assert "\x1b" not in out
    assert Path("bnmc-demo.png").read_bytes().startswith(b"\x89PNG")
    sizes = "--set depth=20 --set chains=10 --set vanilla_chains=50"
    for figure in ("digits", f"bridging-1a {sizes}"):
        shown = printed(f"figure {figure} --seed 3").partition("\nseed 3")[0]
        assert shown.rstrip("\n") in out


def test_it_replaces_its_last_picture(printed):
    Path("picture.png").write_text("of the last time")
    printed("demo --depth 3 --chains 4 --plot picture.png")
    assert Path("picture.png").read_bytes().startswith(b"\x89PNG")
