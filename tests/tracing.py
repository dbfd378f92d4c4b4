"""Coverage where it costs little: it makes Python code slower by a factor of two to five.

A test is traced for its first `SECONDS` of processor time.  What it runs later are mostly the same
lines again, in further layers, chains and draws.  Tests marked `untraced` run without coverage.
"""

from __future__ import annotations

import os
import pkgutil
import signal
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib import import_module
from typing import Any
from unittest import mock

import pytest

#: Processor time of a test under coverage, in seconds, and of the later steps of its clock.
SECONDS, STEP = 0.3, 0.05

#: How many cases of a parametrized test count for coverage, in folders where further ones run the
#: same lines.  In others some cases run kernels as plain Python, or other kernels.
TRACED_CASES = 3
ALIKE = ("bounds", "chain", "experiments", "mean_field", "mixing", "random_matrix", "testing")

#: In such folders, tests of which each case runs other lines: the figures.
DIFFERENT = ("tests/experiments/test_figures.py::test_a_figure_is_sound",)

#: Test files that compile loops over scalar functions, which runs no code of this package.
SCALAR_TESTS = ("test_activations", "test_elementary", "test_normal", "test_philox", "test_slopes")


@contextmanager
def switched_off(after: float = 0.0) -> Iterator[None]:
    """Switch coverage off, in this thread and in those that start meanwhile.

    This may be after some seconds of processor time, and then again and again: the end of a
    compilation switches coverage on.
    """
    if sys.gettrace() is None:
        yield
        return

    def stop(*_: object) -> None:
        sys.settrace(None)
        threading.settrace(None)

    tracers = sys.gettrace(), threading.gettrace()
    handler = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, after, STEP)
    if not after:
        stop()
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
        signal.signal(signal.SIGVTALRM, handler)
        sys.settrace(tracers[0])
        threading.settrace(tracers[1])


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


def untraced_where_no_tests_run(session: pytest.Session) -> AbstractContextManager[None]:
    """Switch coverage off in the process that only hands tests to others, and in its threads."""
    config = session.config
    workers = getattr(config.option, "numprocesses", None)
    return switched_off() if workers and not hasattr(config, "workerinput") else nullcontext()


def import_package() -> None:
    """Import all modules of this package."""
    import bnmc  # after conftest.py has chosen the simulator

    for module in pkgutil.walk_packages(bnmc.__path__, "bnmc."):
        if not module.name.endswith("__main__"):
            import_module(module.name)


class Tracing:
    """A pytest plugin that switches coverage off where it only costs time.

    This is in the process that hands tests to workers, while tests are collected, after the first
    `SECONDS` of a test, in tests marked `untraced`, and in the folders `ALIKE` in all but the first
    cases of parametrized tests, but for those in `DIFFERENT`.  If mutants.py asks what the tests
    execute, all of it is traced.
    """

    def __init__(self) -> None:
        self.cases: Counter[str] = Counter()
        self.everything = "BNMC_TEST_SECONDS" in os.environ

    def around(self, item: pytest.Item) -> AbstractContextManager[None]:
        """Return what a test, whose turn it is, runs in."""
        test = item.nodeid.partition("[")[0]
        self.cases[test] += 1
        if self.everything:
            return nullcontext()
        repeats = test.startswith(tuple(f"tests/{name}/" for name in ALIKE))
        repeats = repeats and test not in DIFFERENT
        if item.get_closest_marker("untraced") or (repeats and self.cases[test] > TRACED_CASES):
            return switched_off()
        return switched_off(SECONDS)

    @pytest.hookimpl(wrapper=True)
    def pytest_sessionstart(self, session: pytest.Session) -> Iterator[None]:
        """Start workers, and the threads that listen to them."""
        with untraced_where_no_tests_run(session):
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_collection(self) -> Iterator[object]:
        """Collect tests without coverage, which makes this twice as long, most of it in pytest.

        The package is imported before: coverage that is switched on for one import, and off within
        it for those of other packages, would lose the lines after these.
        """
        if sys.gettrace() is None:
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
