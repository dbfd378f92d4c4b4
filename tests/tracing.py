"""Coverage where it costs little: it makes Python code slower by a factor of two to five.

A test is traced as long as it reaches lines that no test has reached, for `SECONDS` of processor
time at most.  The cases of a parametrized test are traced until they reach no such line for some
time.  So the first tests of a run are traced most, and each line counts, whichever test reaches it
first.  Tests marked `untraced` run without coverage.
"""

from __future__ import annotations

import os
import pkgutil
import signal
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib import import_module
from typing import Any
from unittest import mock

import pytest

#: Most processor time of a test under coverage, in seconds, and the steps of its clock.
SECONDS, STEP = 0.2, 0.05

#: For how many seconds of processor time a test is traced that reaches no new line, and further
#: cases of a parametrized test.
IDLE, IDLE_CASES = 0.1, 0.25

#: Test files that compile loops over scalar functions, which runs no code of this package.
SCALAR_TESTS = ("test_activations", "test_elementary", "test_normal", "test_philox", "test_slopes")

#: Modules of other packages that this package imports and that take more than half a second.
LARGE_MODULES = ("numba.cuda", "scipy.stats", "torch._dynamo")


def reached() -> int:
    """Return how many lines coverage has seen in this process."""
    return sum(map(len, getattr(sys.gettrace(), "data", {}).values()))


@contextmanager
def switched_off(after: float = 0.0) -> Iterator[None]:
    """Switch coverage off, in this thread and in those that start meanwhile.

    This may be after some seconds of processor time, or before, if no new line was reached for
    `IDLE` seconds.  It is repeated, because the end of a compilation switches coverage on.
    """
    if sys.gettrace() is None:
        yield
        return

    left, idle, lines = after, 0.0, reached()

    def stop(*_: object) -> None:
        nonlocal left, idle, lines
        if sys.gettrace() is not None:
            before, lines = lines, reached()
            idle = 0.0 if lines > before else idle + STEP
            left = left - STEP if idle < IDLE else 0.0
        if left <= 0.0:
            sys.settrace(None)
            threading.settrace(None)

    tracer = threading.gettrace() or sys.gettrace()
    handler = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, STEP, STEP)
    if not after:
        stop()
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
        signal.signal(signal.SIGVTALRM, handler)
        # What a thread begins with is a new tracer.  The former one has not seen that functions
        # returned, and would take lines for those of another file.
        sys.settrace(tracer)
        threading.settrace(tracer)


@contextmanager
def compilation_without_a_tracer() -> Iterator[None]:
    """Switch coverage off while Numba compiles the functions of this package.

    Coverage makes the compiler slower by 60 to 75 %.  It stays on for functions that tests define,
    except those of `SCALAR_TESTS`, for those for C, and for implementations of an overload that
    these call, which are lambdas.  So the code of this package that runs while compiling, such as
    the intrinsics of vectors, counts as covered.
    """
    from numba.core.dispatcher import Dispatcher

    compiled = Dispatcher.compile

    def untraced(self: Any, signature: Any) -> Any:
        function = self.py_func
        # Functions of doctests have no module.
        module = str(function.__module__)
        of_package = module.startswith("bnmc.") and function.__name__ != "<lambda>"
        if not of_package and module.rpartition(".")[2] not in SCALAR_TESTS:
            return compiled(self, signature)
        # Other threads may start threads meanwhile, so `switched_off` is too much.
        tracer = sys.gettrace()
        sys.settrace(None)
        try:
            return compiled(self, signature)
        finally:
            sys.settrace(tracer)

    with mock.patch.object(Dispatcher, "compile", untraced):
        yield


def runs_no_tests(config: pytest.Config) -> bool:
    """Return whether this process only hands tests to others."""
    workers = getattr(config.option, "numprocesses", None)
    return bool(workers) and not hasattr(config, "workerinput")


def untraced_where_no_tests_run(session: pytest.Session) -> AbstractContextManager[None]:
    """Switch coverage off in the process that only hands tests to others, and in its threads."""
    return switched_off() if runs_no_tests(session.config) else nullcontext()


def import_package() -> None:
    """Import all modules of this package, and without coverage the largest that these import."""
    with switched_off():
        for name in LARGE_MODULES:
            import_module(name)

    import bnmc  # after conftest.py has chosen the simulator

    for module in pkgutil.walk_packages(bnmc.__path__, "bnmc."):
        if not module.name.endswith("__main__"):
            import_module(module.name)


class Tracing:
    """A pytest plugin that switches coverage off where it only costs time.

    This is in the process that hands tests to workers, while tests are collected, in tests that
    reach no new lines, and in tests marked `untraced`.  In tests of GPU kernels, simulator.py lets
    coverage see few threads.  If mutants.py asks what the tests execute, all of it is traced.
    """

    def __init__(self) -> None:
        self.idle: dict[str, float] = defaultdict(float)
        self.everything = "BNMC_TEST_SECONDS" in os.environ

    @contextmanager
    def around(self, item: pytest.Item) -> Iterator[None]:
        """Run a test, whose turn it is, with or without coverage."""
        test = item.nodeid.partition("[")[0]
        if self.everything or "simulator" in item.fixturenames:
            yield
        elif item.get_closest_marker("untraced") or self.idle[test] > IDLE_CASES:
            with switched_off():
                yield
        else:
            lines, begun = reached(), time.process_time()
            with switched_off(SECONDS):
                yield
            spent = min(time.process_time() - begun, IDLE)
            self.idle[test] = 0.0 if reached() > lines else self.idle[test] + spent

    @pytest.hookimpl(wrapper=True)
    def pytest_sessionstart(self, session: pytest.Session) -> Iterator[None]:
        """Start workers, and the threads that listen to them."""
        with untraced_where_no_tests_run(session):
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_collection(self, session: pytest.Session) -> Iterator[object]:
        """Collect tests without coverage, which makes this twice as long, most of it in pytest.

        The package is imported before: coverage that is switched on for one import, and off within
        it for those of other packages, would lose the lines after these.
        """
        if sys.gettrace() is None or runs_no_tests(session.config):
            return (yield)
        import_package()
        with switched_off():
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Iterator[object]:
        """Run tests here, or hand them to workers."""
        with untraced_where_no_tests_run(session):
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        """Run a test; its fixtures, which other tests may share, are always traced."""
        with self.around(item):
            return (yield)
