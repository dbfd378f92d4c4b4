"""Progress of long work: a bar on a terminal, lines elsewhere, or a function of the user."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import numpy as np

from bnmc._support.extras import import_extra
from bnmc.errors import ArgumentTypeError

#: Seconds before the first line without a terminal, of compilation or of work.
PATIENT_SECONDS = 2.0

# Seconds from which on work has a forecast.
_LONG_SECONDS = 10.0

# The longest time between two lines, in seconds.
_RARE_SECONDS = 600.0

#: A function of the amount that is done, and the total amount.
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Reporter:
    """A function of (done, total) that reports progress.

    Attributes
    ----------
    report : callable
        Function of (done, total).
    label : str
        The work.
    say : callable
        Prints a line.
    resumed : callable
        Takes the amount that a store has.
    """

    report: Progress
    label: str = ""
    say: Callable[[str], object] = lambda text: None
    resumed: Callable[[int], object] = lambda done: None

    def __call__(self, done: int, total: int) -> None:
        self.report(done, total)

    def resume(self, done: int, total: int) -> None:
        """Report what a store has, before the work begins, and say how much that is."""
        then = "continuing" if done < total else "nothing to compute"
        self.say(f"bnmc: {self.label}: {100 * done // total} % found in the store, {then}")
        self.resumed(done)
        self.report(done, total)


def as_progress(progress: object) -> bool | Progress:
    """Return the argument `progress` as a bool or a function.

    Raises
    ------
    ArgumentTypeError
        If it is neither.
    """
    if callable(progress):
        return progress
    if isinstance(progress, (bool, np.bool_)):
        return bool(progress)
    raise ArgumentTypeError("progress", progress, "a bool or a function of (done, total)")


@contextmanager
def reporting(progress: bool | Progress, label: str, unit: str) -> Iterator[Reporter]:
    """Yield a function of (done, total), which reports progress.

    Parameters
    ----------
    progress : bool or callable
        True for a report on standard error (extra ``cli``): a bar on a terminal or in a notebook,
        elsewhere a line after 2 s, 4 s, 8 s and so on, and then every 10 min. False for no report.
        A function of (done, total) is what the context yields. While kernels are compiled, the bar
        says so; without a bar, one line on standard error does after `PATIENT_SECONDS`, unless
        `progress` is False.
    label : str
        The work, beside the bar: "simulate".
    unit : str
        The unit of the amounts, beside the bar: "layers".

    Raises
    ------
    MissingExtraError
        If `progress` is True and Rich is not installed.
    """
    if progress is False:
        yield Reporter(lambda done, total: None)
        return
    from bnmc._kernels.compile_time import told_of_compilation

    if callable(progress):
        with told_of_compilation(*_line()):
            yield Reporter(progress)
        return
    rich = import_extra("rich.progress", "cli")
    console = import_extra("rich.console", "cli").Console(stderr=True)
    if not (console.is_terminal or console.is_jupyter):
        with told_of_compilation(*_line()), _lines(label, unit) as report:
            yield report
        return
    with rich.Progress(
        rich.TextColumn("{task.description}"), rich.BarColumn(), rich.MofNCompleteColumn(),
        rich.TextColumn(unit), rich.TimeRemainingColumn(), console=console, transient=True,
    ) as bar:  # fmt: skip
        task = bar.add_task(label, total=None)
        told = (
            lambda: bar.update(task, description=_compiling()),
            lambda: bar.update(task, description=label),
        )
        with told_of_compilation(*(told if console.is_terminal else _line())):
            yield Reporter(
                lambda done, total: bar.update(task, completed=done, total=total), label,
                partial(bar.console.out, highlight=False),
            )  # fmt: skip


def duration_text(seconds: float) -> str:
    """Return a duration in the unit that a reader would choose."""
    for unit, size in (("h", 3600.0), ("min", 60.0)):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.2g} {unit}"
    return f"{seconds:.0f} s"


def with_forecast(label: str, seconds: float) -> str:
    """Return the label of work with its predicted duration, unless it is short."""
    is_short = seconds < _LONG_SECONDS
    return label if is_short else f"{label}, forecast {duration_text(seconds)}"


def announce(
    label: str, seconds: float, why: str, say: Callable[[str], object] | None = None
) -> None:
    """Say how long work will take, and why, unless it is short; by default on standard error."""
    if seconds >= _LONG_SECONDS:
        (say or _print)(f"bnmc: {label} takes about {duration_text(seconds)}: {why}")


@contextmanager
def waiting(work: str, *, progress: bool, at_once: bool = False) -> Iterator[None]:
    """Print a line about work on standard error: at once, or if it takes `PATIENT_SECONDS`."""
    line = f"bnmc: {work}"
    wait = threading.Timer(PATIENT_SECONDS, _print, [line])
    wait.daemon = True
    if progress:
        (partial(_print, line) if at_once else wait.start)()
    try:
        yield
    finally:
        wait.cancel()


@contextmanager
def _lines(label: str, unit: str) -> Iterator[Reporter]:
    """Yield a function of (done, total), and print lines: one whenever the time has doubled."""
    begun = time.monotonic()
    ended = threading.Event()
    before = 0
    latest = 0, 0

    def resumed(done: int) -> None:
        nonlocal before
        before = done

    def report(done: int, total: int) -> None:
        nonlocal latest
        latest = done, total

    def write() -> None:
        wait = PATIENT_SECONDS
        while not ended.wait(wait):
            (done, total), taken = latest, time.monotonic() - begun
            amount = f", {done} of {total} {unit}" if total else ""
            if before < done < total:
                left = taken * (total - done) / (done - before)
                amount += f", about {duration_text(left)} left"
            _print(f"bnmc: {label}: {duration_text(taken)}{amount}")
            wait = min(taken, _RARE_SECONDS)

    writer = threading.Thread(target=write, name="bnmc-progress", daemon=True)
    writer.start()
    try:
        yield Reporter(report, label, _print, resumed)
    finally:
        ended.set()
        writer.join()


def _print(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _compiling() -> str:
    from bnmc._kernels.compile_time import ABOUT_SECONDS

    return f"compiling kernels, about {ABOUT_SECONDS} s; later runs load them"


def _line() -> tuple[Callable[[], None], Callable[[], None]]:
    """Return what begins and what ends the wait for one line on standard error."""
    waits: list[threading.Timer] = []
    written = threading.Event()

    def write() -> None:
        if not written.is_set():
            written.set()
            _print(f"bnmc: {_compiling()}")

    def begin() -> None:
        wait = threading.Timer(PATIENT_SECONDS, write)
        wait.daemon = True
        waits.append(wait)
        wait.start()

    def end() -> None:
        while waits:
            waits.pop().cancel()

    return begin, end
