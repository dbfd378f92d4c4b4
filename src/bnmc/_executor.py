"""Independent tasks on any `concurrent.futures.Executor`, their results in a fixed order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Any, TypeVar

from bnmc.errors import ArgumentTypeError

__all__ = ["as_executor", "ranges", "run_tasks"]

T = TypeVar("T")


def as_executor(executor: object) -> Executor | None:
    """Return what a user passes as `executor`, or raise."""
    if executor is None or isinstance(executor, Executor):
        return executor
    # Executors of MPI and of Dask need not derive from the class; nothing else is called.
    if callable(getattr(executor, "submit", None)):
        return executor  # type: ignore[return-value]
    raise ArgumentTypeError("executor", executor, "None or a concurrent.futures.Executor")


def ranges(count: int, size: int) -> list[tuple[int, int]]:
    """Cut range(count) into consecutive ranges of at most `size`."""
    return [(first, min(first + size, count)) for first in range(0, count, size)]


def run_tasks(
    function: Callable[..., T],
    tasks: Sequence[tuple[Any, ...]],
    executor: Executor | None,
    workers: int,
    report: Callable[[int, int], None],
) -> list[T]:
    """Call a function with each tuple of arguments; return the results in the order of tasks.

    Without an executor, so many threads run them, as kernels hold no lock. The first error, in the
    order of tasks among those that ran, is raised, and an interruption cancels what has not begun.
    """
    with _pool(executor, min(workers, len(tasks))) as pool:
        futures: list[Future[T]] = []
        try:
            futures.extend(pool.submit(function, *task) for task in tasks)
            pending = set(futures)
            while pending:
                # A timeout keeps the main thread open to Ctrl-C.
                done, pending = wait(pending, timeout=0.5, return_when=FIRST_COMPLETED)
                report(len(futures) - len(pending), len(futures))
                if any(future.exception() is not None for future in done):
                    break
        finally:
            for future in futures:
                future.cancel()
        for future in futures:
            if not future.cancelled() and (error := future.exception()) is not None:
                raise error
        return [future.result() for future in futures]


@contextmanager
def _pool(executor: Executor | None, workers: int) -> Iterator[Executor]:
    if executor is not None:
        yield executor
        return
    own = ThreadPoolExecutor(max(1, workers), thread_name_prefix="bnmc")
    try:
        yield own
    finally:
        own.shutdown(wait=True, cancel_futures=True)
