"""Settings that all tests share."""

import os
import sys
from unittest import mock

import pytest
from hypothesis import settings

# GPU kernels run in Numba's simulator, which is chosen when Numba is imported; elsewhere this has
# no effect.  NUMBA_ENABLE_CUDASIM=0 runs them on a GPU.
os.environ.setdefault("NUMBA_ENABLE_CUDASIM", "1")

# The same examples in every run, and no deadline: the first call of a kernel compiles it.
settings.register_profile("bnmc", deadline=None, derandomize=True)
settings.load_profile("bnmc")


@pytest.fixture(scope="session", autouse=True)
def compilation_without_a_tracer():
    """Hide Numba's compiler from coverage, under which it takes a third longer.

    The first time that a process compiles a function is traced: what this package does while
    compiling counts as covered.
    """
    from numba.core.dispatcher import Dispatcher

    compiled = Dispatcher.compile

    def untraced(self, signature):
        if not self.stats.cache_misses:
            return compiled(self, signature)
        tracer = sys.gettrace()
        sys.settrace(None)
        try:
            return compiled(self, signature)
        finally:
            sys.settrace(tracer)

    with mock.patch.object(Dispatcher, "compile", untraced):
        yield
