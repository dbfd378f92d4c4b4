"""Settings of all tests."""

import gc
import os
from contextlib import nullcontext

import pytest
from hypothesis import HealthCheck, settings
from sharing import parse_package, rewrite_files
from tracing import Tracing, compilation_without_a_tracer

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


def pytest_configure(config):
    """Switch coverage off where it only costs time."""
    config.pluginmanager.register(Tracing(), "tracing")


def pytest_sessionstart(session):
    """Compile the files of this worker, and let other workers compile others."""
    rewrite_files(session.config)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection(session):
    """Leave what is collected, which lives as long as the process, out of garbage collections.

    These are rare in tests, too: at the default thresholds they take 4 % of the time.
    """
    gc.disable()
    parse_package(session.config)
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()
        gc.set_threshold(20_000, 10, 10)


def pytest_collection_modifyitems(items):
    """Let examples see what they import, and nothing else: they can be pasted into Python."""
    for item in items:
        if isinstance(item, pytest.DoctestItem):
            item.dtest.globs.clear()
            item.dtest.globs["__name__"] = "__main__"


@pytest.fixture(scope="session", autouse=True)
def _compilation():
    """Compile without coverage, which slows the compiler down."""
    with compilation_without_a_tracer():
        yield


@pytest.fixture(scope="module")
def settled():
    """Make collections fast: they skip the objects that earlier tests have left."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module")
def simulator():
    """Run GPU kernels on a GPU, or else in the simulator with faster calls and barriers."""
    from simulator import fast_simulator

    from bnmc._kernels.gpu import device

    with fast_simulator() if device.SIMULATED else nullcontext():
        yield


@pytest.fixture(scope="session")
def numba_stays():
    """Load all that a compilation needs before pytester runs tests in this process.

    Pytester forgets the modules that its runs import.  Numba registers types in modules that it
    imports when it first compiles, and allows no second registration.
    """
    from bnmc import testing

    testing.roofline(int, width=2, batch=2, rounds=1)
