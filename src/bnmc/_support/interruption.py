"""Long work that Ctrl-C and time limits end between two steps, never within one."""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Callable

__all__ = ["StillAtWork", "Stop", "uninterrupted"]

#: How long Ctrl-C lets the step that is being done come to its end, in seconds.
GRACE = 0.8


class StillAtWork(Exception):
    """Ctrl-C came in a step that takes long, and goes on in its thread."""


class Stop:
    """Whether work is to stop: since it was told to, or since its time is over.

    Parameters
    ----------
    timeout : float or None
        Seconds from now on.
    """

    def __init__(self, timeout: float | None) -> None:
        self.event = threading.Event()
        self._end = None if timeout is None else time.monotonic() + timeout

    def __call__(self) -> bool:
        if self._end is not None and time.monotonic() >= self._end:
            self.event.set()
        return self.event.is_set()


def uninterrupted(work: Callable[[], None], stop: Stop) -> bool:
    """Do work; return True at its end, or False if Ctrl-C ended it.

    Python hands Ctrl-C to the main thread alone, so that thread waits while another one works.

    Parameters
    ----------
    work : callable
        Returns early, at the end of a step, once `stop` is set; what it raises is raised here.
    stop : Stop

    Raises
    ------
    StillAtWork
        If Ctrl-C came and the step did not end in time.
    """
    if threading.current_thread() is not threading.main_thread():
        work()
        return True
    failed: list[BaseException] = []
    ended = threading.Event()  # as a join that is interrupted takes the thread for ended

    def attempt() -> None:
        try:
            work()
        except BaseException as error:  # handed over to the thread that waits
            failed.append(error)
        finally:
            ended.set()

    context = contextvars.copy_context()  # of NumPy's error state, among others
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
    if failed and isinstance(failed[0], KeyboardInterrupt):  # of a worker, or of the user's code
        return False
    if failed:
        raise failed[0]
    return True
