"""Forks while another thread compiles.

A forked process has a copy of every lock, but only the thread that forked.  If another thread was
compiling, the copy of Numba's lock would stay locked, and the first compilation of the child would
never end.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from functools import cache

from llvmlite.binding import ffi
from numba.core.compiler_lock import global_compiler_lock

__all__ = ["wait_for_compilation"]


@cache
def wait_for_compilation() -> None:
    """Let every later fork of this process wait until no other thread compiles.

    The fork takes the locks of Numba and LLVM, in the order of a compilation, and parent and child
    release them.
    """
    if hasattr(os, "register_at_fork"):  # Windows has no fork
        os.register_at_fork(before=_acquire, after_in_parent=_release, after_in_child=_release)


def _acquire() -> None:
    global_compiler_lock.acquire()
    ffi.lib._lock.__enter__()


def _release() -> None:
    steps: tuple[Callable[[], object], ...] = (
        lambda: ffi.lib._lock.__exit__(None, None, None),
        global_compiler_lock.release,
    )
    for step in steps:
        with suppress(RuntimeError):  # not acquired, as Ctrl-C ended the wait
            step()
