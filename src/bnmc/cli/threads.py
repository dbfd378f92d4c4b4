"""Threads of commands whose library functions take an executor."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

__all__ = ["thread_pool"]


@contextmanager
def thread_pool(threads: int | None) -> Iterator[ThreadPoolExecutor | None]:
    """Yield an executor with a number of threads, or None, for all processors, if it is None."""
    from bnmc._support.arguments import integer

    if threads is None:
        yield None
        return
    with ThreadPoolExecutor(integer("threads", threads, low=1)) as pool:
        yield pool
