"""Forks while another thread compiles.

A forked process has a copy of every lock, but only the thread that forked.  If another thread was
compiling, the copy of Numba's lock would stay locked, and the first compilation of the child would
never end.
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, suppress
from functools import cache


@cache
def wait_for_compilation(locks: tuple[AbstractContextManager[object], ...]) -> None:
    """Let every later fork of this process wait until no other thread compiles.

    The fork takes the locks of a compilation, in its order, and parent and child release them.
    """

    def acquire() -> None:
        for lock in locks:
            lock.__enter__()

    def release() -> None:
        for lock in reversed(locks):
            with suppress(RuntimeError):  # not acquired, as Ctrl-C ended the wait
                lock.__exit__(None, None, None)

    if hasattr(os, "register_at_fork"):  # Windows has no fork
        os.register_at_fork(before=acquire, after_in_parent=release, after_in_child=release)
