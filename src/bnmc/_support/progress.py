"""Progress of long work: a bar, a function of the user, or nothing."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from bnmc._support.extras import import_extra
from bnmc.errors import ArgumentTypeError

#: Seconds of compilation before a line says so.
PATIENT_SECONDS = 2.0

#: A function of the amount that is done, and the total amount.
Progress = Callable[[int, int], None]


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
def reporting(progress: bool | Progress, label: str, unit: str) -> Iterator[Progress]:
    """Yield a function of (done, total), which reports progress.

    Parameters
    ----------
    progress : bool or callable
        True for a bar on standard error (extra ``cli``), False for no report, or a function of
        (done, total), which the context then yields.  While kernels are compiled, the bar says so;
        if there is none, as without a terminal, one line on standard error does after
        `PATIENT_SECONDS`, unless `progress` is False.
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
        yield lambda done, total: None
        return
    from bnmc._kernels.compile_time import told_of_compilation

    if callable(progress):
        with told_of_compilation(*_line()):
            yield progress
        return
    rich = import_extra("rich.progress", "cli")
    console = import_extra("rich.console", "cli").Console(stderr=True)
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
            yield lambda done, total: bar.update(task, completed=done, total=total)


def _compiling() -> str:
    from bnmc._kernels.compile_time import ABOUT_SECONDS

    return f"compiling kernels, once, about {ABOUT_SECONDS} s"


def _line() -> tuple[Callable[[], None], Callable[[], None]]:
    """Return what begins and what ends the wait for one line on standard error."""
    waits: list[threading.Timer] = []
    written = threading.Event()

    def write() -> None:
        if not written.is_set():
            written.set()
            print(f"bnmc: {_compiling()}", file=sys.stderr, flush=True)

    def begin() -> None:
        wait = threading.Timer(PATIENT_SECONDS, write)
        wait.daemon = True
        waits.append(wait)
        wait.start()

    def end() -> None:
        while waits:
            waits.pop().cancel()

    return begin, end
