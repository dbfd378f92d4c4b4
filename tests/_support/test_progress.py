"""Reports of progress while kernels are compiled."""

import time

import numpy as np
import pytest

from bnmc._kernels import compile_time
from bnmc._support import progress
from bnmc._support.progress import reporting


class Dispatcher:
    is_kernel = True


@pytest.fixture
def compilation(monkeypatch):
    """A function that lets a compilation of some seconds pass."""
    monkeypatch.setattr(progress, "PATIENT_SECONDS", 0.02)
    clock = compile_time._clock

    class Event:
        data = {"dispatcher": Dispatcher(), "args": ()}  # noqa: RUF012

    def passed(seconds):
        clock.on_start(Event)
        time.sleep(seconds)
        clock.on_end(Event)

    return passed


@pytest.mark.parametrize("wanted", [True, lambda done, total: None])
def test_one_line_without_a_terminal(compilation, capsys, wanted):
    with reporting(wanted, "work", "tasks") as report:
        for _ in range(2):
            compilation(0.2)
        report(1, 1)
    lines = [line for line in capsys.readouterr().err.splitlines() if "compiling" in line]
    assert lines == [f"bnmc: compiling kernels, once, about {compile_time.ABOUT_SECONDS} s"]


def test_no_line_for_a_moment_and_none_unless_wanted(compilation, capsys):
    for wanted, seconds in ((True, 0.0), (False, 0.2), (np.bool_(False), 0.2)):
        with reporting(progress.as_progress(wanted), "work", "tasks"):
            compilation(seconds)
    compilation(0.2)  # nobody reports any more
    assert "compiling" not in capsys.readouterr().err


def test_the_bar_says_so_on_a_terminal(compilation, monkeypatch):
    rich = pytest.importorskip("rich.progress")
    monkeypatch.setenv("FORCE_COLOR", "1")  # Rich then takes standard error for a terminal
    said = []
    update = rich.Progress.update

    def noted(self, task, **fields):
        said.append(fields.get("description"))
        update(self, task, **fields)

    monkeypatch.setattr(rich.Progress, "update", noted)
    with reporting(True, "work", "tasks"):
        compilation(0.0)
    assert said == [f"compiling kernels, once, about {compile_time.ABOUT_SECONDS} s", "work"]
