"""Which tests run under coverage: those that reach lines that no other traced test reaches.

Coverage makes Python code slower by a factor of two to five, and most lines are reached by many
tests.  `untraced.txt` lists tests that run without coverage, because others reach all their lines.
If those others change, coverage is underestimated, and the list should be written again::

    .venv/bin/python tests/tracing.py FOLDER

This runs all tests under coverage (an hour), and keeps in the folder which lines each one executes.
"""

from __future__ import annotations

import os
import pkgutil
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

__all__ = ["LIST", "Tracing", "compilation_without_a_tracer", "listed", "others_reach"]

LIST = Path(__file__).with_name("untraced.txt")

#: How many cases of a parametrized test count for coverage, in folders where further ones run the
#: same lines.  In others some cases run kernels as plain Python, or other kernels.
TRACED_CASES = 3
ALIKE = ("bounds", "chain", "experiments", "mean_field", "mixing", "random_matrix", "testing")

#: Test files that compile loops over scalar functions, which runs no code of this package.
SCALAR_TESTS = ("test_activations", "test_elementary", "test_normal", "test_philox", "test_slopes")

#: Tests that take fewer seconds, all cases together, and single cases: not worth a line.
LEAST_SECONDS, LEAST_OF_CASE = 0.15, 0.15

HEAD = """\
# Tests that run without coverage, because others reach the same lines: see tracing.py.
"""


def listed(text: str) -> frozenset[str]:
    """Return the names in the text of a list: of tests, and of single cases."""
    lines = (line.strip() for line in text.splitlines())
    return frozenset(line for line in lines if line and not line.startswith("#"))


@contextmanager
def switched_off() -> Iterator[None]:
    """Switch coverage off, in this thread and in those that start meanwhile."""
    tracers = sys.gettrace(), threading.gettrace()
    sys.settrace(None)
    threading.settrace(None)
    try:
        yield
    finally:
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

    This is in the process that hands tests to workers, while tests are collected, in listed tests,
    in tests marked `untraced`, and in the folders `ALIKE` in all but the first cases of
    parametrized tests.  If mutants.py asks what the tests execute, coverage traces all tests.
    """

    def __init__(self, names: Collection[str]) -> None:
        self.names = names
        self.cases: Counter[str] = Counter()
        self.everything = "BNMC_TEST_SECONDS" in os.environ

    def traces(self, item: pytest.Item) -> bool:
        """Whether coverage counts this test, whose turn it is."""
        test = item.nodeid.partition("[")[0]
        self.cases[test] += 1
        if self.everything:
            return True
        repeats = test.startswith(tuple(f"tests/{name}/" for name in ALIKE))
        return not (
            test in self.names
            or item.nodeid in self.names
            or item.get_closest_marker("untraced")
            or (repeats and self.cases[test] > TRACED_CASES)
        )

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
        if self.traces(item):
            return (yield)
        with switched_off():
            return (yield)


def others_reach(
    lines: Mapping[str, Collection[object]], seconds: Mapping[str, float]
) -> list[str]:
    """Return names all of whose lines the remaining names reach, in alphabetical order.

    Names are those of tests.  Where some cases of a parametrized test must remain, they are those
    of the other cases.

    Parameters
    ----------
    lines : mapping
        By name of a case, the lines that it executes.
    seconds : mapping
        By name of a case, its time.
    """
    tests = defaultdict(list)
    for name in lines:
        tests[name.partition("[")[0]].append(name)
    reached = Counter(line for own in lines.values() for line in own)
    found = []
    cases = {name: [name] for name in lines}
    for parts, least in ((tests, LEAST_SECONDS), (cases, LEAST_OF_CASE)):
        times = {name: sum(seconds.get(case, 0.0) for case in parts[name]) for name in parts}
        for name in sorted(parts, key=lambda name: (-times[name], name)):
            if times[name] < least or name.partition("[")[0] in found:
                continue
            own = Counter(line for case in parts[name] for line in lines[case])
            if all(reached[line] > count for line, count in own.items()):
                reached.subtract(own)
                found.append(name)
    return sorted(found)


def main(folder: Path) -> None:
    """Write the list from what `mutants.learn` kept in a folder."""
    import mutants

    learned = mutants.learn(["-m", "not slow"], folder)
    # Some execute no line of the package, or only in other processes.
    tests: dict[str, set[tuple[str, int]]] = {name: set() for name in learned.seconds}
    for path, lines in learned.of_line.items():
        for line, names in lines.items():
            for name in names:
                tests.setdefault(name, set()).add((path, line))
    found = others_reach(tests, learned.seconds)
    LIST.write_text(HEAD + "".join(f"{name}\n" for name in found))
    saved = sum(
        seconds
        for name, seconds in learned.seconds.items()
        if name in found or name.partition("[")[0] in found
    )
    total = sum(learned.seconds.values())
    print(f"{len(found)} tests run without coverage: {saved:.0f} s of {total:.0f} s")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
