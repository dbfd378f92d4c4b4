"""``bnmc demo``: its tables and its picture."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

Run = Callable[..., tuple[int, str, str]]


class TestDemo:
    def test_tables_and_picture(self, run: Run) -> None:
        status, out, err = run("demo", "--depth", "20", "--chains", "10")
        assert (status, err) == (0, "")
        assert "\x1b" not in out
        assert Path("bnmc-demo.png").read_bytes().startswith(b"\x89PNG")
        rows = [line.split() for line in out.splitlines() if re.match(r" +\d+  ", line)]
        assert [int(row[0]) for row in rows] == [0, 1, 2, 5, 10, 20, 40, 1, 2, 5, 10, 20]
        relu_distance = [float(row[1]) for row in rows[:7]]
        assert relu_distance[-1] < 0.5 * relu_distance[0]
        normalised = [float(row[1]) for row in rows[7:]]
        vanilla = [float(row[4]) for row in rows[7:]]
        assert max(normalised) < 2 * min(normalised)
        assert vanilla == sorted(vanilla)
        assert vanilla[-1] > 3 * vanilla[0]
        # Of 10 networks the standard error is s/√10, and rms² is mean² + 0.9 s².  Errors are
        # printed to two digits.
        for row in rows[7:]:
            mean, error, rms = float(row[4]), float(row[6]), float(row[7])
            assert rms == pytest.approx(np.hypot(mean, 3.0 * error), rel=0.05)
        assert float(rows[-1][-1]) == pytest.approx(np.exp(20 / 1000), abs=1e-3)
        # The growth is that of the printed means, as far as these are rounded.
        text = r"From layer 1 to 20 the error grew by the factor (.*) without .* and (.*) with it\."
        found = re.search(text, out)
        assert found is not None
        for growth, column in zip(found.groups(), (4, 1), strict=True):
            first, last = rows[7][column], rows[-1][column]
            half, end = (0.5 * 10.0 ** -len(one.partition(".")[2]) for one in (first, last))
            least = (float(last) - end) / (float(first) + half)
            most = (float(last) + end) / (float(first) - half)
            assert least - 0.05 <= float(growth) <= most + 0.05

    def test_runs_again(self, run: Run) -> None:
        Path("picture.png").write_text("of the last time")
        status, *_ = run("demo", "--depth", "3", "--chains", "4", "--plot", "picture.png")
        assert status == 0
        assert Path("picture.png").read_bytes().startswith(b"\x89PNG")

    @pytest.mark.parametrize("option", ["--depth", "--chains", "--threads"])
    def test_a_demo_is_refused_before_any_work(self, run: Run, option: str) -> None:
        status, out, err = run("demo", option, "0")
        assert (status, out) == (2, "")
        assert f"{option[2:]}: got 0, allowed: an integer >= 1" in err

    def test_bad_input(self, run: Run) -> None:
        for arguments in (["--depth", "0"], ["--chains", "0"], ["--seed", "-1"], ["--plot", "x.q"]):
            status, _, err = run("demo", *arguments)
            assert status == 2
            assert re.fullmatch(r"bnmc: error: [^\n]+\n", err)
