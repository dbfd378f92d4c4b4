"""Ctrl-C and time limits, which end long work between two steps and never within a step.

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
from concurrent.futures import Future, ThreadPoolExecutor, wait
from concurrent.futures import thread as pools
from typing import Any, TypeVar

T = TypeVar("T")

#: Time that the current step has to end after Ctrl-C, in seconds.
GRACE = 0.8


class StillAtWork(Exception):
    """Ctrl-C came in a long step, which goes on in its thread."""


class Stop:
    """A condition for long work to stop: it was set, by whatever thread, or its time is over.

    Parameters
    ----------
    timeout : float or None
        Time limit in seconds from now; None for no limit.
    """

    def __init__(self, timeout: float | None) -> None:
        self._is_set = False
        self._end = None if timeout is None else time.monotonic() + timeout

    def set(self) -> None:
        """Stop the work, also in other threads."""
        self._is_set = True

    def is_set(self) -> bool:
        """Return whether the work was stopped, as far as is known without a look at the time."""
        return self._is_set

    def __call__(self) -> bool:
        if self._end is not None and time.monotonic() >= self._end:
            self._is_set = True
        return self._is_set


def uninterrupted(work: Callable[[], None], stop: Stop, *, brief: bool = False) -> bool:
    """Call a function in a thread, and stop it between two steps after Ctrl-C.

    Python raises KeyboardInterrupt in the main thread only. So the main thread waits, and another
    thread works.  Starting it takes longer than brief work, which the main thread does itself.

    Parameters
    ----------
    work : callable
        Takes no arguments, and returns at the end of a step once `stop` is set.
    stop : Stop
        Receives Ctrl-C.
    brief : bool
        Whether the work takes milliseconds.  Ctrl-C then ends it at any point of its Python code.

    Returns
    -------
    bool
        True if the work ended by itself, False if Ctrl-C ended it.

    Raises
    ------
    StillAtWork
        If Ctrl-C came and the current step did not end within `GRACE` seconds.
    Exception
        Any error that `work` raises.
    """
    if threading.current_thread() is not threading.main_thread():
        work()
        return True
    if brief:
        try:
            work()
        except KeyboardInterrupt:
            return False
        return True
    future: Future[None] = Future()
    try:
        _start(work, future)  # may be at work before this line ends
        while not wait((future,), 0.5).done:
            pass
    except KeyboardInterrupt:
        stop.set()
        if not wait((future,), GRACE).done:
            raise StillAtWork from None
        return False
    error = future.exception()
    if isinstance(error, KeyboardInterrupt):  # of a worker or a function of the user
        return False
    if error is not None:
        raise error
    return True


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
    future: Future[T] = Future()
    _start(function, future)
    while not wait((future,), 0.5).done:
        pass
    return future.result()


def abandon(executor: ThreadPoolExecutor) -> None:
    """Shut down threads of which one may never end, without waiting for any.

    The end of the process does not wait for them either, which it does for all other executors.
    """
    executor.shutdown(wait=False, cancel_futures=True)
    waited_for: Any = getattr(pools, "_threads_queues", {})
    for thread in getattr(executor, "_threads", ()):
        waited_for.pop(thread, None)


def _start(function: Callable[[], T], future: Future[T]) -> None:
    """Call a function in a thread that the end of the process does not wait for."""

    def attempt() -> None:
        try:
            future.set_result(function())
        except BaseException as error:  # raised in the waiting thread
            future.set_exception(error)

    context = contextvars.copy_context()  # for one, the error state of NumPy
    thread = threading.Thread(target=context.run, args=(attempt,), name="bnmc-run", daemon=True)
    thread.start()
