"""Ctrl-C and time limits, which end long work between two steps and never within a step."""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Callable

__all__ = ["StillAtWork", "Stop", "uninterrupted"]

#: Time that the current step has to end after Ctrl-C, in seconds.
GRACE = 0.8


class StillAtWork(Exception):
    """Ctrl-C came in a long step, which goes on in its thread."""


class Stop:
    """A condition for long work to stop: its event is set, or its time is over.

    Parameters
    ----------
    timeout : float or None
        Time limit in seconds from now; None for no limit.

    Attributes
    ----------
    event : threading.Event
        Set to stop the work, also in other threads.
    """

    def __init__(self, timeout: float | None) -> None:
        self.event = threading.Event()
        self._end = None if timeout is None else time.monotonic() + timeout

    def __call__(self) -> bool:
        if self._end is not None and time.monotonic() >= self._end:
            self.event.set()
        return self.event.is_set()


def uninterrupted(work: Callable[[], None], stop: Stop) -> bool:
    """Call a function in a thread, and stop it between two steps after Ctrl-C.

    Python raises KeyboardInterrupt in the main thread only. So the main thread waits, and another
    thread works.

    Parameters
    ----------
    work : callable
        Takes no arguments, and returns at the end of a step once the event of `stop` is set.
    stop : Stop
        Receives Ctrl-C.

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
    failed: list[BaseException] = []
    ended = threading.Event()  # after an interrupted join, the thread would count as ended

    def attempt() -> None:
        try:
            work()
        except BaseException as error:  # raised in the waiting thread
            failed.append(error)
        finally:
            ended.set()

    context = contextvars.copy_context()  # for one, the error state of NumPy
    thread = threading.Thread(target=context.run, args=(attempt,), name="bnmc-run", daemon=True)
    thread.start()
    try:
        while not ended.wait(0.5):
            pass
        thread.join()
    except KeyboardInterrupt:
        stop.event.set()
        if not ended.wait(GRACE):
            raise StillAtWork from None
        return False
    if failed and isinstance(failed[0], KeyboardInterrupt):  # of a worker or a function of the user
        return False
    if failed:
        raise failed[0]
    return True
