"""Reports of progress: lines without a terminal, and while kernels are compiled."""

import time

import numpy as np
import pytest

from bnmc._kernels import compile_time
from bnmc._support import progress
from bnmc._support.progress import reporting

COMPILING = f"compiling kernels, about {compile_time.ABOUT_SECONDS} s; later runs load them"


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
    assert lines == [f"bnmc: {COMPILING}"]


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
    assert said == [COMPILING, "work"]


@pytest.fixture
def waits(monkeypatch):
    """The waits between 13 lines, which pass at once."""
    waits = []

    class Event:
        def wait(self, seconds):
            waits.append(seconds)
            now[0] += seconds
            return len(waits) > 12

        def set(self):
            pass

    class Thread:
        def __init__(self, target, **_):
            self.start, self.join = (lambda: None), target

    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(progress.threading, "Event", Event)
    monkeypatch.setattr(progress.threading, "Thread", Thread)
    return waits


def test_lines_come_whenever_the_time_has_doubled(waits, capsys):
    with progress._lines("work", "tasks") as report:
        report(3, 4)
    assert waits == [2.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 600.0, 600.0, 600.0]
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "bnmc: work: 2 s, 3 of 4 tasks, about 1 s left"
    assert lines[-1] == "bnmc: work: 37 min, 3 of 4 tasks, about 12 min left"


@pytest.mark.usefixtures("waits")
def test_what_a_store_has_took_no_time(capsys):
    with progress._lines("work", "tasks") as report:
        report.resume(31, 50)
        report(35, 50)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "bnmc: work: 62 % found in the store, continuing"
    assert lines[1] == "bnmc: work: 2 s, 35 of 50 tasks, about 8 s left"  # 4 tasks in 2 s


def test_lines_have_the_latest_amount_and_end_with_the_work(monkeypatch, capsys):
    monkeypatch.setattr(progress, "PATIENT_SECONDS", 0.02)
    with reporting(True, "work", "tasks") as report:
        time.sleep(0.1)
        report(7, 7)
        time.sleep(0.4)
    lines = capsys.readouterr().err.splitlines()
    assert (lines[0], lines[-1]) == ("bnmc: work: 0 s", "bnmc: work: 0 s, 7 of 7 tasks")
    time.sleep(0.5)
    assert not capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "patience", "said"),
    [({}, 0.02, True), ({}, 60.0, False), ({"at_once": True}, 60.0, True)],
)
def test_a_line_about_work_comes_after_a_wait_or_at_once(
    monkeypatch, capsys, options, patience, said
):
    monkeypatch.setattr(progress, "PATIENT_SECONDS", patience)
    with progress.waiting("work", progress=False, **options):
        time.sleep(0.1)
    assert not capsys.readouterr().err
    with progress.waiting("work", progress=True, **options):
        time.sleep(0.2)
    assert capsys.readouterr().err == "bnmc: work\n" * said


def test_short_work_has_no_lines(capsys):
    with reporting(True, "work", "tasks") as report:
        report(1, 1)
    assert not capsys.readouterr().err


@pytest.mark.parametrize(("done", "then"), [(31, "continuing"), (50, "nothing to compute")])
def test_a_line_tells_what_a_store_has(capsys, done, then):
    told = []
    for wanted in (True, False, lambda *amounts: told.append(amounts)):
        with reporting(wanted, "work", "tasks") as report:
            report.resume(done, 50)
    assert capsys.readouterr().err == f"bnmc: work: {2 * done} % found in the store, {then}\n"
    assert told == [(done, 50)]


def test_the_bar_leaves_the_line_about_the_store(monkeypatch, capsys):
    pytest.importorskip("rich")
    monkeypatch.setenv("FORCE_COLOR", "1")
    with reporting(True, "work", "tasks") as report:
        report.resume(31, 50)
    assert "bnmc: work: 62 % found in the store, continuing\n" in capsys.readouterr().err


def test_long_work_has_its_forecast_in_the_label():
    assert progress.with_forecast("work", 9.0) == "work"
    assert progress.with_forecast("work", 200.0) == "work, forecast 3.3 min"


@pytest.mark.parametrize(
    ("seconds", "text"), [(4.2, "4 s"), (89.0, "89 s"), (600.0, "10 min"), (9000.0, "2.5 h")]
)
def test_durations_in_words(seconds, text):
    assert progress.duration_text(seconds) == text
