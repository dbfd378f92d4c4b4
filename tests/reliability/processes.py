"""Processes of the tests of reliability: they die with their parent, and no hang goes unnoticed."""

import collections
import ctypes
import multiprocessing
import os
import signal
import sys
import time


def die_with_parent():
    """Let the kernel kill this process when the thread that started it ends (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        if os.getppid() == 1:
            os._exit(1)


def watched(factory, arguments, numbers, hang):
    """Run numbered cases in processes that may crash; return the ends and what must not occur.

    Parameters
    ----------
    factory : callable
        In the process, ``factory(*arguments)`` returns a function of a number, which returns the
        name of an end, and a list of findings.
    arguments : tuple
    numbers : range
    hang : float
        Seconds after which a case hangs.  After a crash or a hang, another process continues.
    """
    context = multiprocessing.get_context("spawn")
    ends, findings = collections.Counter(), []
    first = numbers.start
    while first < numbers.stop:
        results, at = context.Queue(), context.Value("q", first, lock=False)
        child = context.Process(
            target=_work, args=(factory, arguments, range(first, numbers.stop), at, results)
        )
        child.start()
        since, seen, hangs = time.monotonic(), first, False
        while child.is_alive() and not hangs:
            if at.value != seen:
                since, seen = time.monotonic(), at.value
            hangs = time.monotonic() - since > hang
            _take(results, ends, findings)
            time.sleep(0.05)
        child.kill()
        child.join()
        _take(results, ends, findings)
        if child.exitcode == 0:
            break
        end = "a hang" if hangs else f"exit status {child.exitcode}"
        findings.append(f"case {at.value}: {end}")
        first = at.value + 1
    print(dict(sorted(ends.items())))
    return ends, findings


def _work(factory, arguments, numbers, at, results):
    die_with_parent()
    case = factory(*arguments)
    for number in numbers:
        at.value = number
        results.put(case(number))
    results.close()
    results.join_thread()


def _take(results, ends, findings):
    """Count the results that a process sent."""
    while not results.empty():
        end, problems = results.get()
        ends[end] += 1
        findings += problems
