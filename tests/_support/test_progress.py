"""Reports of progress: lines without a terminal, and while kernels are compiled."""

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


def test_a_line_for_each_tenth_of_the_work(monkeypatch, capsys):
    clock = iter(range(1000))
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock) / 2.0)
    monkeypatch.setattr(progress, "PATIENT_SECONDS", 0.5)
    with reporting(True, "work", "tasks") as report:
        for done in range(101):
            report(done, 100)
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        *(
            f"bnmc: work: {done} of 100 tasks"
            + (f", about {(done + 1) / 2 * (100 - done) / max(done, 1):.0f} s left" if done else "")
            for done in range(0, 100, 10)
        ),
        "bnmc: work: 100 of 100 tasks",
    ]


def test_short_work_has_no_lines(monkeypatch, capsys):
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    with reporting(True, "work", "tasks") as report:
        for done in range(11):
            report(done, 10)
        now[0] = progress.PATIENT_SECONDS
        for done in (3, 4):  # the second one comes too soon
            report(done, 10)
    assert capsys.readouterr().err == "bnmc: work: 3 of 10 tasks, about 5 s left\n"


@pytest.mark.parametrize(
    ("seconds", "text"), [(4.2, "4 s"), (89.0, "89 s"), (600.0, "10 min"), (9000.0, "2.5 h")]
)
def test_durations_in_words(seconds, text):
    assert progress.duration_text(seconds) == text
