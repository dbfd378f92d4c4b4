"""Work in parts, which workers do in any order and which becomes whole block by block."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from typing import Any, Generic, Protocol, TypeVar

from bnmc._support.interruption import StillAtWork, Stop, uninterrupted
from bnmc._support.workers import Workers

_T = TypeVar("_T")


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


def run_work(
    work: Work, workers: Workers, stopped: Callable[[], bool], report: Callable[[int, int], None]
) -> None:
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
            report(done, total)
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
                results = [(part, function(*arguments))]
            else:
                busy.add(part)
                workers.submit(part, function, *arguments)
        for part, result in results or workers.finished(0.1, together=work.together):
            busy.discard(part)
            if work.take(part, following[part], result):
                following[part] = work.skip(part, following[part] + 1)
    work.finish(whole == work.blocks)


def is_finished(
    work: Work,
    workers: Workers,
    stop: Stop,
    report: Callable[[int, int], None],
    *,
    brief: bool = False,
) -> bool:
    """Do work; return False if Ctrl-C ended it, in a step that has ended since or goes on."""
    try:
        return uninterrupted(lambda: run_work(work, workers, stop, report), stop, brief=brief)
    except StillAtWork:
        return False


class Calls(Generic[_T]):
    """Calls of a function that do not depend on each other, as work.

    Parameters
    ----------
    function : callable
    arguments : sequence of tuple
        Arguments of each call.
    sizes : sequence of int, optional
        What each call counts in the progress, by default 1.
    store : optional
        Keeps results: ``get(number)`` returns a result or None, ``put(number, result)`` keeps one,
        and after ``finish()`` the disk has all of them.
    """

    blocks, ahead, together, here = 1, 1, False, False

    def __init__(
        self,
        function: Callable[..., _T],
        arguments: Sequence[tuple[Any, ...]],
        sizes: Sequence[int] | None = None,
        store: Any = None,
    ) -> None:
        self.parts = len(arguments)
        self._function, self._arguments, self._store = function, arguments, store
        self._sizes = [1] * self.parts if sizes is None else sizes
        self._results: dict[int, _T] = {}

    def skip(self, part: int, block: int) -> int:
        """Return 1 for a call whose result is there."""
        if block == 0 and self._store is not None:
            result = self._store.get(part)
            if result is not None:
                self._results[part] = result
                return 1
        return block

    def call(self, part: int, block: int) -> tuple[Any, ...]:
        """Return a call."""
        return self._function, *self._arguments[part]

    def take(self, part: int, block: int, result: _T) -> bool:
        """Keep the result of a call."""
        if self._store is not None:
            self._store.put(part, result)
        self._results[part] = result
        return True

    def hand_over(self, block: int) -> None:
        """Do nothing: there is one block."""

    def progress(self, following: Sequence[int]) -> tuple[int, int]:
        """Return the sizes of the finished calls and of all calls."""
        return sum(itertools.compress(self._sizes, following)), sum(self._sizes)

    def finish(self, complete: bool) -> None:
        """Wait until the disk has the results."""
        if self._store is not None:
            self._store.finish()

    @property
    def results(self) -> list[_T]:
        """The results up to the first call that is not finished."""
        numbers = itertools.takewhile(self._results.__contains__, range(self.parts))
        return [self._results[number] for number in numbers]


def run_tasks(
    function: Callable[..., _T],
    tasks: Sequence[tuple[Any, ...]],
    executor: Executor | None,
    workers: int,
    report: Callable[[int, int], None],
) -> list[_T]:
    """Call a function with each tuple of arguments, on an executor or in threads.

    Parameters
    ----------
    function : callable
    tasks : sequence of tuple
        Arguments of each call.
    executor : Executor or None
        Executor that runs the calls; None for threads of this process.
    workers : int
        Number of threads, if there is no executor.
    report : callable
        Function of (done, total), called as calls finish.

    Returns
    -------
    list
        Results in the order of the tasks.

    Raises
    ------
    Exception
        The error of the first task, in their order, among the finished ones. Calls that have not
        begun are cancelled, also after Ctrl-C.
    """
    calls = Calls(function, tasks)
    with Workers(executor, min(workers, len(tasks))) as pool:
        run_work(calls, pool, lambda: False, report)
    return calls.results
