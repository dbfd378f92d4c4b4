"""Progress of long work: a bar, a function of the user's, or nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from bnmc._support.extras import import_extra
from bnmc.errors import ArgumentTypeError

__all__ = ["Progress", "Reporter", "as_progress"]

#: Called with how much is done, and how much there is.
Progress = Callable[[int, int], None]


def as_progress(progress: object) -> bool | Progress:
    """Return what a user passes as `progress`, or raise."""
    if callable(progress):
        return progress
    if isinstance(progress, (bool, np.bool_)):
        return bool(progress)
    raise ArgumentTypeError("progress", progress, "a bool or a function of (done, total)")


class Reporter:
    """Progress, as a context: a bar on standard error, the user's function, or nothing.

    Parameters
    ----------
    progress : bool or callable
        As `as_progress` returns it.
    label, unit : str
        What is done, and what is counted: "simulate", "layers".
    """

    def __init__(self, progress: bool | Progress, label: str, unit: str) -> None:
        self._progress = progress
        self._label = label
        self._unit = unit
        self._bar: Any = None

    def __enter__(self) -> Progress:
        if callable(self._progress):
            return self._progress
        if not self._progress:
            return lambda done, total: None
        rich = import_extra("rich.progress", "cli")
        console = import_extra("rich.console", "cli").Console(stderr=True)
        self._bar = rich.Progress(
            rich.TextColumn("{task.description}"), rich.BarColumn(), rich.MofNCompleteColumn(),
            rich.TextColumn(self._unit), rich.TimeRemainingColumn(), console=console,
            transient=True,
        )  # fmt: skip
        self._bar.start()
        task = self._bar.add_task(self._label, total=None)
        return lambda done, total: self._bar.update(task, completed=done, total=total)

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
