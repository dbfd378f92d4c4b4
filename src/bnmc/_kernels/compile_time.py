"""How long the kernels of this process have taken to compile, and who is told while they do."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from numba.core import event

__all__ = ["ABOUT_SECONDS", "compile_seconds", "told_of_compilation"]

#: What the kernels of one sampler and dtype take on a machine of 2026, for messages.
ABOUT_SECONDS = 10


class Clock(event.Listener):
    """Measures compilations of kernels, as Numba announces them.

    A kernel is compiled with the functions that it calls: the outermost compilation counts.  Numba
    compiles one function at a time, in whatever thread.
    """

    def __init__(self) -> None:
        self._outermost: Any = None
        self._begun = 0.0
        self._ended = 0.0
        self._told: list[tuple[Callable[[], None], Callable[[], None]]] = []
        self._lock = threading.Lock()

    def on_start(self, event: Any) -> None:
        """Begin with the first kernel."""
        dispatcher = event.data["dispatcher"]
        if self._outermost is None and getattr(dispatcher, "is_kernel", False):
            self._begun, self._outermost = time.perf_counter(), (dispatcher, event.data["args"])
            for begin, _ in self._listeners():
                begin()

    def on_end(self, event: Any) -> None:
        """End with the same kernel, also if it could not be compiled."""
        if self._outermost == (event.data["dispatcher"], event.data["args"]):
            self._ended += time.perf_counter() - self._begun
            self._outermost = None
            for _, end in self._listeners():
                end()

    @property
    def seconds(self) -> float:
        """Seconds of all compilations until now."""
        running = time.perf_counter() - self._begun if self._outermost is not None else 0.0
        return self._ended + running

    @contextmanager
    def telling(self, begin: Callable[[], None], end: Callable[[], None]) -> Iterator[None]:
        """Call `begin` and `end` at begin and end of compilations, in whatever thread they run."""
        pair = begin, end
        with self._lock:
            self._told.append(pair)
        try:
            yield
        finally:
            with self._lock:
                self._told.remove(pair)

    def _listeners(self) -> list[tuple[Callable[[], None], Callable[[], None]]]:
        with self._lock:
            return list(self._told)


_clock = Clock()
event.register("numba:compile", _clock)


def compile_seconds() -> float:
    """Return the seconds for which this process has compiled kernels.

    Loading them from the disk does not count.
    """
    return _clock.seconds


def told_of_compilation(begin: Callable[[], None], end: Callable[[], None]) -> Any:
    """Return a context in which `begin` and `end` are called at begin and end of compilations."""
    return _clock.telling(begin, end)
