"""Progress of long work: a bar, a function of the user, or nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from bnmc._support.extras import import_extra
from bnmc.errors import ArgumentTypeError

__all__ = ["Progress", "Reporter", "as_progress"]

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


class Reporter:
    """A context that yields a function of (done, total), which reports progress.

    Parameters
    ----------
    progress : bool or callable
        True for a bar on standard error (extra ``cli``), False for no report, or a function of
        (done, total), which the context then yields.
    label : str
        The work, beside the bar: "simulate".
    unit : str
        The unit of the amounts, beside the bar: "layers".

    Raises
    ------
    MissingExtraError
        If `progress` is True and Rich is not installed.
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
