"""Settings of all tests."""

import os
import sys
import threading
from collections import Counter
from unittest import mock

import pytest
from hypothesis import HealthCheck, settings

# Numba reads this variable when it is imported: GPU kernels then run in its simulator.  Other tests
# do not depend on it.  Set NUMBA_ENABLE_CUDASIM=0 to run the kernels on a GPU.
os.environ.setdefault("NUMBA_ENABLE_CUDASIM", "1")

# Hypothesis draws the same examples in every run, and others in each run of `make fuzz`.  It has no
# deadline, because the first call of a kernel compiles it.
settings.register_profile("bnmc", deadline=None, derandomize=True, max_examples=50)
settings.register_profile(
    "bnmc-fuzz", deadline=None, max_examples=300, print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)  # fmt: skip
settings.load_profile("bnmc-fuzz" if os.environ.get("BNMC_FUZZ") == "1" else "bnmc")


def pytest_collection_modifyitems(items):
    """Let examples see what they import, and nothing else: they can be pasted into Python."""
    for item in items:
        if isinstance(item, pytest.DoctestItem):
            item.dtest.globs.clear()
            item.dtest.globs["__name__"] = "__main__"


#: Test files that compile loops over scalar functions, which runs no code of this package.
SCALAR_TESTS = ("test_activations", "test_elementary", "test_normal", "test_philox", "test_slopes")


@pytest.fixture(scope="session", autouse=True)
def compilation_without_a_tracer():
    """Switch coverage off while Numba compiles the functions of this package.

    Coverage makes the compiler slower by 60 to 75 %.  It stays on for functions that tests define,
    except those of `SCALAR_TESTS`, for those for C, and for implementations of an overload that
    these call, which are lambdas.  So the code of this package that runs while compiling, such as
    the intrinsics of vectors, counts as covered.
    """
    from numba.core.dispatcher import Dispatcher

    compiled = Dispatcher.compile

    def untraced(self, signature):
        function = self.py_func
        # Functions of doctests have no module.
        module = str(function.__module__)
        of_package = module.startswith("bnmc.") and function.__name__ != "<lambda>"
        if not of_package and module.rpartition(".")[2] not in SCALAR_TESTS:
            return compiled(self, signature)
        tracer = sys.gettrace()
        sys.settrace(None)
        try:
            return compiled(self, signature)
        finally:
            sys.settrace(tracer)

    with mock.patch.object(Dispatcher, "compile", untraced):
        yield


# How many cases of a parametrized test count for coverage, in folders where further ones run the
# same lines.  In others some cases run kernels as plain Python, or other kernels.
TRACED_CASES = 3
ALIKE = ("bounds", "chain", "experiments", "mean_field", "mixing", "random_matrix", "testing")


@pytest.fixture(scope="session")
def _cases():
    """Count the cases that have run, for each parametrized test."""
    return Counter()


@pytest.fixture(autouse=True)
def _untraced(request, _cases):
    """Switch coverage off where it only costs time, unless mutants.py asks what tests run.

    These are tests marked `untraced`, and in the folders `ALIKE` all but the first cases of
    parametrized tests.
    """
    test = request.node.nodeid.partition("[")[0]
    _cases[test] += 1
    repeats = test.startswith(tuple(f"tests/{name}/" for name in ALIKE))
    marked = request.node.get_closest_marker("untraced") is not None
    asked = "BNMC_TEST_SECONDS" in os.environ
    if asked or not (marked or (repeats and _cases[test] > TRACED_CASES)):
        yield
        return
    tracers = sys.gettrace(), threading.gettrace()
    sys.settrace(None)
    threading.settrace(None)
    yield
    sys.settrace(tracers[0])
    threading.settrace(tracers[1])
