"""Ctrl-C, other signals and time limits end long work between two steps, never within a step.

Python cannot stop a thread.  If a step does not end, as with a function of the user that never
returns, the call ends without it: after the first Ctrl-C within `GRACE` seconds, and at a second
one at once.  The thread then goes on in the background until the process ends, and the end of the
process does not wait for it.
"""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import thread as pools
from contextlib import suppress
from typing import Any, Generic, TypeVar

from bnmc.errors import Interrupted, PartialEstimateError

T = TypeVar("T")

#: Time that the current step has to end after Ctrl-C, in seconds.
GRACE = 0.8


class StillAtWork(Exception):
    """An exception, `cause`, came in a long step, which goes on in its thread."""

    def __init__(self, cause: BaseException) -> None:
        self.cause = cause
        super().__init__(cause)


class Stop:
    """A condition for long work to stop: it was set, by whatever thread, or its time is over.

    Parameters
    ----------
    timeout : float or None
        Time limit in seconds from now; None for no limit.
    """

    def __init__(self, timeout: float | None) -> None:
        self._is_set = False
        self._timeout = timeout
        self._end = None if timeout is None else time.monotonic() + timeout

    def set(self) -> None:
        """Stop the work, also in other threads."""
        self._is_set = True

    def is_set(self) -> bool:
        """Return whether the work was stopped, as far as is known without a look at the time."""
        return self._is_set

    @property
    def seconds_left(self) -> float | None:
        """The time limit of work that begins now, above 0; None for no limit."""
        return None if self._end is None else max(1e-9, self._end - time.monotonic())

    def error(self, what: str, partial: object = None) -> PartialEstimateError:
        """Return the error for work that the time limit ended, after `what` is done."""
        return PartialEstimateError(f"{what} within timeout={self._timeout:g} seconds", partial)

    def __call__(self) -> bool:
        if self._end is not None and time.monotonic() >= self._end:
            self._is_set = True
        return self._is_set


def uninterrupted(
    work: Callable[[], None], stop: Stop, *, brief: bool = False
) -> BaseException | None:
    """Call a function in a thread, and stop it between two steps after Ctrl-C.

    Python runs handlers of signals in the main thread only: that of Ctrl-C, which raises
    KeyboardInterrupt, and those of the user, which may raise anything.  So the main thread waits,
    and another thread works.  Starting it takes longer than brief work, which the main thread does
    itself.

    Parameters
    ----------
    work : callable
        Takes no arguments, and returns at the end of a step once `stop` is set.
    stop : Stop
        Is set when an exception ends the work or the wait.
    brief : bool
        Whether the work takes milliseconds.  Ctrl-C then ends it at any point of its Python code.

    Returns
    -------
    BaseException or None
        None if the work ended by itself, else the exception that ended it.

    Raises
    ------
    StillAtWork
        If an exception ended the wait, and the current step did not end within `GRACE` seconds.
    Exception
        Any error that `work` raises.
    """

    def told() -> None:
        """Work, and tell other threads to stop if an exception ends the work."""
        try:
            work()
        except BaseException:
            stop.set()
            raise

    if threading.current_thread() is not threading.main_thread():
        told()
        return None
    if brief:
        try:
            told()
        except KeyboardInterrupt as error:
            return error
        return None
    call = _Call(told)
    try:
        call.start()  # may be at work before this line ends
        while not call.has_ended(0.5):
            pass
    except BaseException as error:
        stop.set()
        if isinstance(error, RuntimeError) and not call.has_begun:  # no thread is left
            raise
        if not call.has_ended(GRACE):
            raise StillAtWork(error) from None
        return error
    if isinstance(call.error, KeyboardInterrupt):  # of a worker or a function of the user
        return call.error
    call.result()
    return None


def with_partial(error: BaseException, partial: object) -> BaseException:
    """Return the exception to raise when `error` ended a run: it has the finished part.

    Ctrl-C becomes `Interrupted`.  The exception of another handler stays what it is, with the
    attribute `partial`.
    """
    if isinstance(error, KeyboardInterrupt):
        return Interrupted(partial)
    with suppress(AttributeError):  # of a class with slots
        error.partial = partial  # type: ignore[attr-defined]
    return error


def interruptible(function: Callable[[], T]) -> T:
    """Call a function that may never return to Python, such as compiled code of the user.

    Python handles Ctrl-C between two of its own instructions only.  So another thread calls the
    function, and after Ctrl-C nobody waits for that thread.

    Returns
    -------
    object
        What the function returns.

    Raises
    ------
    KeyboardInterrupt
        On Ctrl-C, at once.
    Exception
        Any error that the function raises.
    """
    if threading.current_thread() is not threading.main_thread():
        return function()
    call = _Call(function)
    call.start()
    while not call.has_ended(0.5):
        pass
    return call.result()


def abandon(executor: ThreadPoolExecutor) -> None:
    """Shut down threads of which one may never end, without waiting for any.

    The end of the process does not wait for them either, which it does for all other executors.
    """
    executor.shutdown(wait=False, cancel_futures=True)
    waited_for: Any = getattr(pools, "_threads_queues", {})
    for thread in getattr(executor, "_threads", ()):
        waited_for.pop(thread, None)


class _Call(Generic[T]):
    """The call of a function in a thread that the end of the process does not wait for.

    Ctrl-C may overtake the main thread between any two lines of Python, also in those of a
    `threading.Condition`, on which events and futures wait, whose lock is then in a wrong state.
    So the main thread waits for a lock itself.

    Parameters
    ----------
    function : callable
        Takes no arguments.
    """

    def __init__(self, function: Callable[[], T]) -> None:
        self._function = function
        self._values: list[T] = []
        self.error: BaseException | None = None
        self.has_begun = False
        self._ended, self._end = False, threading.Lock()
        self._end.acquire()

    def start(self) -> None:
        """Start the thread.

        Raises
        ------
        KeyboardInterrupt
            On Ctrl-C, which the thread may be ahead of.
        """
        context = contextvars.copy_context()  # for one, the error state of NumPy
        thread = threading.Thread(target=context.run, args=(self._run,), name="bnmc-run")
        thread.daemon = True
        try:
            thread.start()
        except RuntimeError as error:  # of a condition that Ctrl-C overtook
            if error.__context__ is not None:
                raise error.__context__ from None
            raise

    def has_ended(self, seconds: float) -> bool:
        """Return whether the call ends within so many seconds."""
        if not self._ended:
            self._end.acquire(timeout=seconds)
        return self._ended

    def result(self) -> T:
        """Return the result of the function, or raise its error, after the end."""
        if self.error is not None:
            raise self.error
        return self._values[0]

    def _run(self) -> None:
        self.has_begun = True
        try:
            self._values.append(self._function())
        except BaseException as error:  # raised in the waiting thread
            self.error = error
        self._ended = True
        self._end.release()
