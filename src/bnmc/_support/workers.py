"""Tasks on any `concurrent.futures.Executor`, whose workers may die."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    CancelledError,
    Executor,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
    wait,
)
from typing import Any, Self, TypeVar

from bnmc._support.machine import available_processors
from bnmc._support.splits import ranges as ranges
from bnmc.errors import ArgumentTypeError, WorkersLostError

__all__ = ["Workers", "as_executor", "ranges", "received", "run_tasks", "sendable", "shares_memory"]
T = TypeVar("T")

#: How often a task may be lost while no other one is finished.
MOST_LOSSES = 5

#: What executors of other packages raise where a worker is gone, by module and name: importing
#: these packages to name their classes would cost more than any run.
_LOSSES = {
    ("distributed", "KilledWorker"),
    ("distributed", "CommClosedError"),
    ("distributed", "FutureCancelledError"),
    ("distributed", "FuturesCancelledError"),
    ("ray", "WorkerCrashedError"),
    ("ray", "RayActorError"),
    ("ray", "NodeDiedError"),
}


def as_executor(executor: object) -> Executor | None:
    """Return what a user passes as `executor`, or raise."""
    if executor is None or isinstance(executor, Executor):
        return executor
    # A client of Dask makes one.
    if callable(make := getattr(executor, "get_executor", None)):
        executor = make()
    # Executors of MPI and of Dask need not derive from the class; nothing else is called.
    if callable(getattr(executor, "submit", None)):
        return executor  # type: ignore[return-value]
    raise ArgumentTypeError(
        "executor", executor, "None, a concurrent.futures.Executor or a Dask Client"
    )


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
    results: dict[int, T] = {}
    with Workers(executor, min(workers, len(tasks))) as pool:
        for number, task in enumerate(tasks):
            pool.submit(number, function, *task)
        while len(results) < len(tasks):
            results.update(pool.finished())
            report(len(results), len(tasks))
    return [results[number] for number in range(len(tasks))]


class Workers:
    """An executor, as a context: tasks go in under a number, results come out as they finish.

    Parameters
    ----------
    executor : Executor or None
        The user's, which goes on to serve afterwards; None for threads of this process.
    threads : int
        How many threads, without an executor.

    Notes
    -----
    A task whose worker died is given to another one: a process pool, which the death of one
    worker breaks, is replaced by one of the same kind; executors of clusters have more workers.
    Leaving the context cancels what has not begun and waits for what has, where that is in threads
    of this process.
    """

    def __init__(self, executor: Executor | None, threads: int) -> None:
        self._given = executor
        own = executor is None
        self._executor = ThreadPoolExecutor(max(1, threads), "bnmc") if own else executor
        self._is_own = own
        self._tasks: dict[int, tuple[Callable[..., Any], tuple[Any, ...]]] = {}
        self._futures: dict[Future[Any], int] = {}
        #: How often each task was lost since one was finished.
        self._losses: Counter[int] = Counter()

    @property
    def shares_memory(self) -> bool:
        """Whether what tasks get need not be pickled."""
        return shares_memory(self._executor)

    @property
    def count(self) -> int:
        """How many workers there are, or may be."""
        executor: Any = self._executor
        # Of the standard library, of mpi4py, and of Dask.
        count = getattr(executor, "_max_workers", None) or getattr(executor, "num_workers", None)
        if count is None and hasattr(executor, "_client"):
            count = sum(executor._client.nthreads().values())
        return max(1, int(count)) if count else available_processors()

    def __len__(self) -> int:
        return len(self._futures)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for future in self._futures:
            future.cancel()
        if self._is_own and self._executor is not None:
            # After Ctrl-C what takes long is left to itself.
            wait = kind is None or not issubclass(kind, KeyboardInterrupt)
            self._executor.shutdown(wait=wait, cancel_futures=True)

    def submit(self, number: int, function: Callable[..., Any], *arguments: Any) -> None:
        """Give a task to a worker."""
        self._tasks[number] = (function, arguments)
        self._send(number)

    def finished(self, timeout: float = 0.5) -> Iterator[tuple[int, Any]]:
        """Wait for results, so long at most; yield number and result of each, in this order.

        The error of the first task that failed is raised.
        """
        # A timeout keeps the main thread open to Ctrl-C.
        done, _ = wait(self._futures, timeout=timeout, return_when=FIRST_COMPLETED)
        for future in sorted(done, key=self._futures.__getitem__):
            number = self._futures.pop(future)
            try:
                result = future.result()
            except (Exception, CancelledError) as error:
                if not _is_loss(error):
                    raise
                self._replace(number, error)
                continue
            self._losses.clear()
            del self._tasks[number]
            yield number, result if self.shares_memory else received(result)

    def _replace(self, number: int, error: BaseException) -> None:
        """Send a lost task again, or give up."""
        self._losses[number] += 1
        if self._losses[number] > MOST_LOSSES:
            raise WorkersLostError(self._losses[number], str(error)) from error
        self._send(number)

    def _send(self, number: int) -> None:
        function, arguments = self._tasks[number]
        assert self._executor is not None
        # Dask takes a call with the arguments of another one for the same, whose end it may know:
        # the death of its workers, say.
        call: tuple[Any, ...] = (function, *arguments)
        if not self.shares_memory:
            call = (_called, uuid.uuid4().hex, sendable("executor", self._given, call))
        try:
            future = self._executor.submit(*call)
        except BrokenExecutor as error:
            self._executor = _another(self._executor, error)
            self._is_own = True
            future = self._executor.submit(*call)
        self._futures[future] = number


def sendable(name: str, value: object, what: object) -> bytes:
    """Return what goes to another process as bytes, or raise about the argument `name`."""
    from numba import cloudpickle

    dumps: Callable[[object], bytes] = cloudpickle.dumps
    try:
        return dumps(what)
    except Exception as error:  # whatever pickling a user's object raises
        reason = f"cloudpickle cannot send it to workers: {error}"
        raise ArgumentTypeError(name, value, "what can be pickled", reason) from None


def received(content: bytes) -> Any:
    """Return what `sendable` packed."""
    from numba import cloudpickle

    return cloudpickle.loads(content)


def _called(once: str, call: bytes) -> bytes:
    """Make a call in another process; `once` tells it from all others."""
    function, *arguments = received(call)
    return sendable("executor", "the result of a task", function(*arguments))


def shares_memory(executor: Executor | None) -> bool:
    """Whether an executor's tasks run in this process, so that nothing is pickled."""
    return executor is None or isinstance(executor, ThreadPoolExecutor)


def _is_loss(error: BaseException) -> bool:
    """Whether an error says that a worker is gone, and not that a task failed."""
    if isinstance(error, (BrokenExecutor, CancelledError)):
        return True
    kinds = type(error).__mro__
    return any((kind.__module__.partition(".")[0], kind.__name__) in _LOSSES for kind in kinds)


def _another(broken: Executor, error: BrokenExecutor) -> Executor:
    """Return a pool of processes like one that a death has broken."""
    if not isinstance(broken, ProcessPoolExecutor):
        raise WorkersLostError(1, str(error)) from error
    settings: Any = broken
    return ProcessPoolExecutor(
        settings._max_workers,
        mp_context=settings._mp_context,
        initializer=settings._initializer,
        initargs=settings._initargs,
        max_tasks_per_child=settings._max_tasks_per_child,
    )
