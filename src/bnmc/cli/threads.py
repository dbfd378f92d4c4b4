"""The option ``--threads``: the number of threads, and an executor for library functions."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

__all__ = ["thread_count", "thread_pool"]


def thread_count(threads: int | None) -> int:
    """Return the number of threads of a run, all processors if `threads` is None."""
    from bnmc._support.machine import available_processors

    return available_processors() if threads is None else threads


@contextmanager
def thread_pool(threads: int | None) -> Iterator[ThreadPoolExecutor | None]:
    """Yield an executor with a number of threads, or None, for all processors, if it is None."""
    from bnmc._support.arguments import integer

    if threads is None:
        yield None
        return
    with ThreadPoolExecutor(integer("threads", threads, low=1)) as pool:
        yield pool
