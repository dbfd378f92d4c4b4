"""``bnmc demo``: its figures and its picture."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., tuple[int, str, str]]


class TestDemo:
    def test_it_is_two_figures_and_a_picture(self, run: Run) -> None:
        status, out, err = run("demo", "--depth", "20", "--chains", "10", "--seed", "3")
        assert (status, err) == (0, "")
        assert "\x1b" not in out
        assert Path("bnmc-demo.png").read_bytes().startswith(b"\x89PNG")
        parts = [["digits"], ["bridging-1a", "--set", "depth=20", "--set", "networks=10"]]
        parts[1] += ["--set", "vanilla=50"]
        for arguments in parts:
            status, figure, _ = run("figure", *arguments, "--seed", "3")
            assert status == 0
            shown, _, _ = figure.partition("\nseed 3")
            assert shown.rstrip("\n") in out

    def test_runs_again(self, run: Run) -> None:
        Path("picture.png").write_text("of the last time")
        status, *_ = run("demo", "--depth", "3", "--chains", "4", "--plot", "picture.png")
        assert status == 0
        assert Path("picture.png").read_bytes().startswith(b"\x89PNG")

    @pytest.mark.parametrize("option", ["--depth", "--chains", "--threads"])
    def test_a_demo_is_refused_before_any_work(self, run: Run, option: str) -> None:
        status, out, err = run("demo", option, "0")
        assert (status, out) == (2, "")
        least = 2 if option == "--chains" else 1
        assert f"{option[2:]}: got 0, allowed: an integer >= {least}" in err

    def test_bad_input(self, run: Run) -> None:
        for arguments in (["--depth", "0"], ["--chains", "0"], ["--seed", "-1"], ["--plot", "x.q"]):
            status, _, err = run("demo", *arguments)
            assert status == 2
            assert re.fullmatch(r"bnmc: error: [^\n]+\n", err)
