"""Tasks on executors of any library, repeated if their worker dies."""

from __future__ import annotations

import itertools
import sys
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent import futures
from concurrent.futures import Executor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, Generic, Protocol, Self, TypeVar

from bnmc._support.arguments import integer, real
from bnmc._support.arithmetic import StandardArithmetic
from bnmc._support.interruption import StillAtWork, Stop, abandon, uninterrupted, with_partial
from bnmc._support.machine import available_memory, available_processors
from bnmc._support.progress import Progress, Reporter, as_progress, reporting
from bnmc.errors import ArgumentTypeError, WorkersLostError

_T = TypeVar("_T")

#: The largest number of losses of a task while no other task finishes.
MOST_LOSSES = 5

#: A `Shared` of fewer bytes goes with each task.
_SMALL = 1 << 16

#: What a task returns if its process lacks the content of a `Shared`.
_LACKING = b""

#: Errors of other packages for a lost worker, by module. Importing the packages for their
#: classes would take longer than many runs.
_LOSSES = {
    "distributed": (
        "KilledWorker", "CommClosedError", "FutureCancelledError", "FuturesCancelledError"
    ),
    "ray": ("WorkerCrashedError", "RayActorError", "NodeDiedError"),
}  # fmt: skip


def as_executor(executor: object) -> futures.Executor | None:
    """Return the argument `executor` as an executor, or None.

    Raises
    ------
    ArgumentTypeError
        If it is no executor, and no client of Dask, or if its workers are interpreters.
    """
    if isinstance(executor, getattr(futures, "InterpreterPoolExecutor", ())):
        reason = "NumPy and Numba cannot be imported in more than one interpreter of a process"
        raise ArgumentTypeError("executor", executor, "threads or processes", reason)
    if executor is None or isinstance(executor, futures.Executor):
        return executor
    # A client of Dask makes an executor.
    if callable(make := getattr(executor, "get_executor", None)):
        executor = make()
    # Executors of MPI and of Dask need not be subclasses; only their `submit` is called.
    if callable(getattr(executor, "submit", None)):
        return executor  # type: ignore[return-value]
    raise ArgumentTypeError(
        "executor", executor, "None, a concurrent.futures.Executor or a Dask Client"
    )


def thread_count(threads: int | None) -> int:
    """Return the argument `threads` as a number, by default that of the processors.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If it is neither None nor an integer from 1 to 2²⁰.
    """
    return (
        available_processors()
        if threads is None
        else integer("threads", threads, low=1, high=1 << 20)
    )


class Shared:
    """A function or an argument of many tasks, that each process receives once.

    Parameters
    ----------
    name, value : str and object
        Argument that an error names if the object cannot be pickled.
    what : object
        The object.
    """

    def __init__(self, name: str, value: object, what: Any) -> None:
        self.what = what
        self.key = uuid.uuid4().hex
        self._named = name, value

    @cached_property
    def content(self) -> bytes:
        """The object, pickled, or `ArgumentTypeError`."""
        return sendable(*self._named, self.what)


class _Place:
    """Where a task has a `Shared`."""


class Workers:
    """A context that runs numbered tasks on an executor, and yields results as they finish.

    Parameters
    ----------
    executor : Executor or None
        Executor of the user, which stays open afterwards; None for threads of this process.
    threads : int
        Number of threads, if there is no executor.

    Notes
    -----
    If the worker of a task dies, the task is submitted again. The death of a worker breaks a pool
    of processes, so a new pool with the same settings replaces it. On exit, tasks that have not
    begun are cancelled; threads of this process are waited for.

    Of function and arguments of a task, at most one is a `Shared`.  The first tasks, as many as
    there are workers, carry it.  A later task whose process lacks it is submitted again with it.
    Dask's workers get it from each other.

    All tasks, and the thread of the context, have standard arithmetic, which own threads inherit.
    """

    def __init__(self, executor: futures.Executor | None, threads: int) -> None:
        self._given = executor
        self._executor = executor
        self._threads = max(1, threads)
        #: Whether this object shuts the executor down.
        self._is_own = executor is None
        self._tasks: dict[int, tuple[Callable[..., Any] | Shared, tuple[Any, ...]]] = {}
        self._futures: dict[futures.Future[Any], int] = {}
        #: Losses of each task since the last task finished.
        self._losses: dict[int, int] = {}
        #: For each `Shared`: how many tasks carried it, and what Dask has instead of it.
        self._carried: dict[str, int] = {}
        self._scattered: dict[str, Any] = {}
        self._arithmetic = StandardArithmetic()
        #: Whether an exception ended the wait for the tasks, so that nobody waits for a long one.
        self.is_left = False

    @property
    def are_threads(self) -> bool:
        """Whether the workers are threads of this process that nobody else uses."""
        return self._given is None

    @property
    def executor(self) -> futures.Executor:
        """The executor; threads of this process start when they are first needed."""
        if self._executor is None:
            self._executor = futures.ThreadPoolExecutor(self._threads, "bnmc")
        return self._executor

    @property
    def shares_memory(self) -> bool:
        """Whether tasks run in this process, so that nothing is pickled."""
        return shares_memory(self._executor)

    @property
    def count(self) -> int:
        """Number of workers, or the largest number if it varies."""
        if self.are_threads:
            return self._threads
        executor: Any = self._executor
        # Attributes of the executors of the standard library, of mpi4py, and of Dask.
        count = getattr(executor, "_max_workers", None) or getattr(executor, "num_workers", None)
        if count is None and hasattr(executor, "_client"):
            count = sum(executor._client.nthreads().values())
        return max(1, int(count)) if count else available_processors()

    def __len__(self) -> int:
        return len(self._futures)

    def __enter__(self) -> Self:
        self._arithmetic.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._arithmetic.__exit__()
        for future in self._futures:
            future.cancel()
        if self._is_own and self._executor is not None:
            # After Ctrl-C a long task goes on in its thread.
            interrupted = self.is_left or (kind is not None and issubclass(kind, KeyboardInterrupt))
            if interrupted and isinstance(self._executor, futures.ThreadPoolExecutor):
                abandon(self._executor)
            else:
                self._executor.shutdown(wait=not interrupted, cancel_futures=True)

    def submit(self, number: int, function: Callable[..., Any] | Shared, *arguments: Any) -> None:
        """Submit a task under a number."""
        self._tasks[number] = (function, arguments)
        self._send(number)

    def finished(
        self, timeout: float = 0.5, *, together: bool = False
    ) -> Iterator[tuple[int, Any]]:
        """Wait for results, at most `timeout` seconds; yield their numbers and results in order.

        The error of the first failed task is raised.  With `together`, nothing is yielded or raised
        before all tasks have ended.
        """
        when = futures.ALL_COMPLETED if together else futures.FIRST_COMPLETED
        # Without a timeout, Ctrl-C would not interrupt the main thread.
        done, busy = futures.wait(self._futures, timeout=timeout, return_when=when)
        if together and busy:
            return
        for future in sorted(done, key=self._futures.__getitem__):
            number = self._futures.pop(future)
            try:
                result = future.result()
            except (Exception, futures.CancelledError) as error:
                if not _is_loss(error):
                    raise
                self._replace(number, error)
                continue
            if not self.shares_memory:
                if result == _LACKING:
                    self._send(number, whole=True)
                    continue
                result = received(result)
            self._losses.clear()
            del self._tasks[number]
            yield number, result

    def _replace(self, number: int, error: BaseException) -> None:
        """Submit a lost task again, or raise `WorkersLostError`."""
        self._losses[number] = self._losses.get(number, 0) + 1
        if self._losses[number] > MOST_LOSSES:
            raise WorkersLostError(self._losses[number], str(error)) from error
        self._scattered.clear()  # it may be lost, too
        self._send(number)

    def _send(self, number: int, *, whole: bool = False) -> None:
        function, arguments = self._tasks[number]
        call: tuple[Any, ...] = (function, *arguments)
        if self.shares_memory:
            call = (_standard, *map(_whole, call))
        else:
            shared = next((part for part in call if isinstance(part, Shared)), None)
            parts = tuple(_Place if part is shared else part for part in call)
            content = None if shared is None else self._content(shared, whole)
            key = "" if shared is None else shared.key
            # Dask deduplicates equal calls, also those that failed; a unique id forces a new run.
            pickled = sendable("executor", self._given, parts)
            call = (_called, uuid.uuid4().hex, key, content, pickled)
        try:
            future = self.executor.submit(*call)
        except futures.BrokenExecutor as error:
            self._executor, self._is_own = _another(self.executor, error)
            future = self._executor.submit(*call)
        self._futures[future] = number

    def _content(self, shared: Shared, whole: bool) -> Any:
        """Return what a task carries of a `Shared`: all, nothing, or Dask's name for it."""
        if len(shared.content) < _SMALL:
            return shared.content
        client = getattr(self.executor, "_client", None)
        if client is not None:
            if shared.key not in self._scattered:
                self._scattered[shared.key] = client.scatter(shared.content, hash=False)
            return self._scattered[shared.key]
        carried = self._carried.get(shared.key, 0)
        if not whole and carried >= self.count:
            return None
        self._carried[shared.key] = carried + 1
        return shared.content


def _whole(part: Any) -> Any:
    return part.what if isinstance(part, Shared) else part


def sendable(name: str, value: object, what: object) -> bytes:
    """Pickle an object for another process.

    Parameters
    ----------
    name, value : str and object
        Argument that the error names if the object cannot be pickled.
    what : object
        The object.

    Raises
    ------
    ArgumentTypeError
        If cloudpickle cannot pickle the object.
    """
    from numba import cloudpickle

    dumps: Callable[[object], bytes] = cloudpickle.dumps
    try:
        return dumps(what)
    except Exception as error:  # an object of the user may raise anything
        reason = f"cloudpickle cannot send it to another process: {error}"
        raise ArgumentTypeError(name, value, "what can be pickled", reason) from None


def received(content: bytes) -> Any:
    """Return the object that `sendable` pickled."""
    from numba import cloudpickle

    return cloudpickle.loads(content)


def _standard(function: Callable[..., _T], *arguments: Any) -> _T:
    """Call a function with standard arithmetic."""
    with StandardArithmetic():
        return function(*arguments)


#: The last objects of `Shared` that this process received.
_received: dict[str, Any] = {}
_MOST_RECEIVED = 8


def _called(once: str, key: str, content: bytes | None, call: bytes) -> bytes:
    """Make a pickled call in another process; `once` is unique to the call.

    The object of the `Shared` with this key takes its place in the call.
    """
    shared: Any = None
    if key:
        try:
            shared = _received[key]
        except KeyError:
            if content is None:
                return _LACKING
            shared = received(content)
            for old in list(_received)[: 1 - _MOST_RECEIVED]:
                _received.pop(old, None)  # another thread may remove it, too
            _received[key] = shared
    function, *arguments = (shared if part is _Place else part for part in received(call))
    return sendable("executor", "the result of a task", _standard(function, *arguments))


def shares_memory(executor: futures.Executor | None) -> bool:
    """Whether the tasks of an executor run in this process, so that nothing is pickled."""
    return executor is None or isinstance(executor, futures.ThreadPoolExecutor)


def _is_loss(error: BaseException) -> bool:
    """Whether an error is the loss of a worker, and not a failure of the task."""
    if isinstance(error, (futures.BrokenExecutor, futures.CancelledError)):
        return True
    return any(
        kind.__name__ in _LOSSES.get(kind.__module__.partition(".")[0], ())
        for kind in type(error).__mro__
    )


def _another(
    broken: futures.Executor, error: futures.BrokenExecutor
) -> tuple[futures.Executor, bool]:
    """Return a pool of processes with the settings of a broken pool, and whether it is ours."""
    settings: Any = broken
    options: tuple[str, ...]
    if isinstance(broken, futures.ProcessPoolExecutor):
        options = ("mp_context", "initializer", "initargs", "max_tasks_per_child")
        same = {name: getattr(settings, f"_{name}") for name in options}
        return futures.ProcessPoolExecutor(settings._max_workers, **same), True
    # That of loky, which joblib contains: one pool of a process, which everybody shares.
    renewed = getattr(sys.modules[type(broken).__module__], "get_reusable_executor", None)
    if renewed is None:
        raise WorkersLostError(1, str(error)) from error
    options = ("context", "timeout", "initializer", "initargs", "env")
    same = {name: getattr(settings, f"_{name}") for name in options}
    return renewed(settings._max_workers, **same), False


@dataclass(frozen=True)
class Parallel:
    """Who makes calls, and what tells of them: the arguments that all long functions share.

    Attributes
    ----------
    executor : Executor or None
        None for threads of this process.
    threads : int
    progress : bool or callable
    stop : Stop
    """

    executor: futures.Executor | None
    threads: int
    progress: bool | Progress
    stop: Stop

    @classmethod
    def of(
        cls,
        threads: int | None = None,
        executor: object = None,
        progress: object = False,
        timeout: float | None = None,
    ) -> Self:
        """Return those of the arguments of a function, or raise for one that is not allowed."""
        count, pool = thread_count(threads), as_executor(executor)
        limit = None if timeout is None else real("timeout", timeout, above=0.0)
        return cls(pool, count, as_progress(progress), Stop(limit))

    @property
    def options(self) -> dict[str, Any]:
        """The arguments of a function that this one calls."""
        return {"threads": self.threads, "executor": self.executor, "progress": self.progress}

    def fitting(self, size: int, results: int) -> Self:
        """Return who makes calls of `size` bytes: as many threads as fit beside all results."""
        fit = (available_memory() - results) // max(1, size)
        return replace(self, threads=max(1, min(self.threads, fit)))

    def silent(self, executor: futures.Executor) -> Self:
        """Return who makes parts of the work: without a report and a time limit of their own."""
        return replace(self, executor=executor, progress=False, stop=Stop(None))

    def results(
        self,
        calls: Calls[_T],
        label: str,
        unit: str,
        whole: Callable[[list[_T]], Any] = lambda results: None,
        least: int = 1,
        partial: object = None,
    ) -> list[_T]:
        """Make calls; return the results in order, as `results_of`.

        Raises
        ------
        PartialEstimateError
            If the time limit ends before the first `least` calls; it has `partial`.
        """
        report = reporting(self.progress, label, unit)
        results = results_of(calls, self.executor, self.threads, report, self.stop, whole)
        if len(results) < least:
            done = f"only {len(results)} of {calls.parts}" if results else "no"
            raise self.stop.error(f"{done} {unit} are finished", partial)
        return results


# --- consecutive ranges that make up a count, to share work among workers


def even_ranges(count: int, parts: int, *, first: int = 0) -> list[tuple[int, int]]:
    """Cut ``range(first, first + count)`` into ranges whose lengths differ by at most 1.

    Parameters
    ----------
    count : int
        Number of elements, >= 0.
    parts : int
        Number of ranges, >= 1. If it exceeds `count`, some ranges are empty.
    first : int, default 0
        First element.

    Returns
    -------
    list of (int, int)
        First element of each range, and the one after its last.

    Examples
    --------
    >>> from bnmc._support.workers import even_ranges
    >>> even_ranges(10, 4)
    [(0, 2), (2, 5), (5, 7), (7, 10)]
    """
    return list(pairwise(first + count * part // parts for part in range(parts + 1)))


def ranges(count: int, size: int) -> list[tuple[int, int]]:
    """Cut ``range(count)`` into ranges of `size` elements, the last of which may be shorter.

    Examples
    --------
    >>> from bnmc._support.workers import ranges
    >>> ranges(10, 4)
    [(0, 4), (4, 8), (8, 10)]
    """
    return [(first, min(first + size, count)) for first in range(0, count, size)]


# --- work in parts, which workers do in any order and which becomes whole block by block


class Work(Protocol):
    """What is computed in parts, each of them block by block, so that a block follows another.

    Attributes
    ----------
    parts, blocks : int
    ahead : int
        Blocks that a part may be ahead of the last part.
    together : bool
        Whether results are taken when all parts have theirs, in order: so is the first error.  The
        first blocks are then made in any case.
    here : bool
        Whether the thread that waits for results makes all blocks itself.
    """

    parts: int
    blocks: int
    ahead: int
    together: bool
    here: bool

    def skip(self, part: int, block: int) -> int:
        """Return the next block of a part to make, `block` or a later one."""

    def call(self, part: int, block: int) -> tuple[Any, ...]:
        """Return a function, which makes the block, and its arguments."""

    def take(self, part: int, block: int, result: Any) -> bool:
        """Take the result of a call; return whether it has the block, or was told to stop."""

    def hand_over(self, block: int) -> None:
        """Take note that all parts have a block, and all blocks before it."""

    def progress(self, following: Sequence[int]) -> tuple[int, int]:
        """Return what is done, and all that is to do, given the next block of each part."""

    def finish(self, complete: bool) -> None:
        """Take note that the work ends here, with or without all of its blocks."""


def run_work(work: Work, workers: Workers, stopped: Callable[[], bool], report: Reporter) -> None:
    """Do work until all of it is done, or `stopped` returns True."""
    following = [work.skip(part, 0) for part in range(work.parts)]
    busy: set[int] = set()
    whole = 0
    for turn in itertools.count():
        while whole < min(following):
            work.hand_over(whole)
            whole += 1
        done, total = work.progress(following)
        if done:
            (report if turn else report.resume)(done, total)
        if whole == work.blocks or ((turn or not work.together) and stopped()):
            break
        limit = min(work.blocks, whole + work.ahead)
        free = [part for part in range(work.parts) if part not in busy and following[part] < limit]
        free.sort(key=following.__getitem__)
        results: Iterable[tuple[int, Any]] = ()
        # One task more than workers, so that no worker waits.
        for part in free[: max(0, workers.count + 1 - len(busy))]:
            function, *arguments = work.call(part, following[part])
            if work.here:
                results = [(part, _whole(function)(*map(_whole, arguments)))]
            else:
                busy.add(part)
                workers.submit(part, function, *arguments)
        for part, result in results or workers.finished(0.1, together=work.together):
            busy.discard(part)
            if work.take(part, following[part], result):
                following[part] = work.skip(part, following[part] + 1)
    work.finish(whole == work.blocks)


class Calls(Generic[_T]):
    """Calls of a function that do not depend on each other, as work.

    Parameters
    ----------
    function : callable or Shared
    arguments : sequence of tuple
        Arguments of each call.
    sizes : sequence of int, optional
        What each call counts in the progress, by default 1.
    store : optional
        Context that keeps results: ``get(number)`` returns a result or None, ``put(number,
        result)`` keeps one, and after ``finish()`` the disk has all of them.

    Notes
    -----
    A call that returns None was told to stop.
    """

    blocks, ahead, together, here = 1, 1, False, False

    def __init__(
        self,
        function: Callable[..., _T | None] | Shared,
        arguments: Sequence[tuple[Any, ...]],
        sizes: Sequence[int] | None = None,
        store: Any = None,
    ) -> None:
        self.parts = len(arguments)
        self._function, self._arguments, self.store = function, arguments, store
        self._sizes = [1] * self.parts if sizes is None else sizes
        self._results: dict[int, _T] = {}

    def skip(self, part: int, block: int) -> int:
        """Return 1 for a call whose result is there."""
        if block == 0 and self.store is not None:
            result = self.store.get(part)
            if result is not None:
                self._results[part] = result
                return 1
        return block

    def call(self, part: int, block: int) -> tuple[Any, ...]:
        """Return a call."""
        return self._function, *self._arguments[part]

    def take(self, part: int, block: int, result: _T | None) -> bool:
        """Keep the result of a call."""
        if result is None:
            return False
        if self.store is not None:
            self.store.put(part, result)
        self._results[part] = result
        return True

    def hand_over(self, block: int) -> None:
        """Do nothing: there is one block."""

    def progress(self, following: Sequence[int]) -> tuple[int, int]:
        """Return the sizes of the finished calls and of all calls."""
        return sum(itertools.compress(self._sizes, following)), sum(self._sizes)

    def finish(self, complete: bool) -> None:
        """Wait until the disk has the results."""
        if self.store is not None:
            self.store.finish()

    @property
    def results(self) -> list[_T]:
        """The results up to the first call that is not finished."""
        numbers = itertools.takewhile(self._results.__contains__, range(self.parts))
        return [self._results[number] for number in numbers]


def results_of(
    calls: Calls[_T],
    executor: Executor | None,
    threads: int,
    reporter: AbstractContextManager[Reporter],
    stop: Stop | None = None,
    whole: Callable[[list[_T]], Any] = lambda results: None,
) -> list[_T]:
    """Make calls on an executor or in threads; return the results in order.

    Parameters
    ----------
    calls : Calls
    executor : Executor or None
        Executor that makes the calls; None for threads of this process.
    threads : int
        Number of threads, if there is no executor.
    reporter : context manager
        Yields a function of (done, total), called as calls finish.
    stop : Stop, optional
        Ends the work early.
    whole : callable, optional
        Makes a result of the results up to the first call that is not finished.

    Returns
    -------
    list
        Results up to the first call that is not finished.

    Raises
    ------
    Interrupted
        On Ctrl-C.  `partial` is that of `whole`, or None if there are no results.
    Exception
        The error of the first call, in their order, among the finished ones. Calls that have not
        begun are cancelled, also after Ctrl-C.
    """
    stop = stop or Stop(None)
    workers = Workers(executor, min(threads, calls.parts))
    with calls.store or nullcontext(), reporter as report, workers:
        try:
            cause = uninterrupted(lambda: run_work(calls, workers, stop, report), stop)
        except StillAtWork as still:
            cause = still.cause
        results = calls.results
        if cause is not None:
            workers.is_left = True
            raise with_partial(cause, whole(results) if results else None)
    return results
