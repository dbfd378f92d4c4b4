"""How long the kernels of this process have taken to compile, and who is told while they do."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from numba.core import event

#: What the kernels of one sampler and dtype take on a machine of 2026, for messages.
ABOUT_SECONDS = 10


#: Called at begin and end of compilations.
_told: list[tuple[Callable[[], None], Callable[[], None]]] = []


class _Clock(event.Listener):
    """Measures compilations of kernels, as Numba announces them.

    A kernel is compiled with the functions that it calls: the outermost compilation counts.  Numba
    compiles one function at a time, in whatever thread, and announces its end also if it fails.

    Python collects no garbage meanwhile: searching the compiler's many objects took a seventh of
    the time.
    """

    seconds = 0.0
    _depth = 0
    _begun = 0.0
    _collects = True

    def on_start(self, event: Any) -> None:
        if not getattr(event.data["dispatcher"], "is_kernel", False):
            return
        if self._depth == 0:
            self._begun, self._collects = time.perf_counter(), gc.isenabled()
            gc.disable()
            for begin, _ in tuple(_told):
                begin()
        self._depth += 1

    def on_end(self, event: Any) -> None:
        if not getattr(event.data["dispatcher"], "is_kernel", False):
            return
        self._depth -= 1
        if self._depth == 0:
            self.seconds += time.perf_counter() - self._begun
            if self._collects:
                gc.enable()
            for _, end in tuple(_told):
                end()


_clock = _Clock()


@cache
def watch_compilation() -> None:
    """Let this module see every later compilation."""
    event.register("numba:compile", _clock)


def compile_seconds() -> float:
    """Return the seconds for which this process has compiled kernels.

    Loading them from the disk does not count, nor does a compilation that has not ended.
    """
    return _clock.seconds


@contextmanager
def told_of_compilation(begin: Callable[[], None], end: Callable[[], None]) -> Iterator[None]:
    """Call `begin` and `end` at begin and end of compilations, in whatever thread they run."""
    pair = begin, end
    _told.append(pair)
    try:
        yield
    finally:
        _told.remove(pair)
