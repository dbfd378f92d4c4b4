"""Inner code: what compiled code calls is linked there, compiled once, and kept on disk."""

import numpy as np
import pytest
from numba import cloudpickle, config, njit

from bnmc import Activation, Chain, simulate
from bnmc._kernels.compiling import kernel
from bnmc._kernels.numba_internals import InnerLibrary, KernelCache


def add_to(values, first, amount):
    """Add an amount to all values from `first` on."""
    for i in range(first, values.size):
        values[i] += amount


@pytest.fixture
def pair(tmp_path, monkeypatch):
    """A kernel, and one that calls it with a constant and with a variable."""
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path))
    return pair_of_kernels()


def pair_of_kernels():
    inner = kernel(add_to)

    @kernel
    def outer(values, first):
        inner(values, 0, 1.0)
        inner(values, first, 10.0)

    return inner, outer


def test_compiled_code_calls_inner_code(pair):
    called, outer = pair
    values = np.zeros(4)
    outer(values, 2)
    np.testing.assert_array_equal(values, [1.0, 1.0, 11.0, 11.0])
    assert not called.overloads, "machine code for Python, which nobody called"
    (made,) = called.inner.overloads.values()  # one for the constant 0 and for the variable
    assert isinstance(made.library, InnerLibrary)
    assert made.library.get_pointer_to_function(made.fndesc.llvm_func_name) == 0


def test_python_calls_machine_code_of_the_same_function(pair):
    called, outer = pair
    values, others = np.zeros(4), np.zeros(4)
    outer(values, 2)
    called(others, 0, 1.0)
    called(others, 2, 10.0)
    np.testing.assert_array_equal(values, others)


def test_functions_of_users_call_inner_code(pair):
    called, _ = pair

    @njit
    def total(values):
        called(values, 1, 2.0)
        return values.sum()

    assert total(np.zeros(3)) == 4.0
    assert not called.overloads


def test_inner_code_is_kept_for_callers_that_come_later(pair):
    pair[1](np.zeros(4), 2)
    called, _ = pair_of_kernels()

    @kernel
    def later(values):
        called(values, 1, 5.0)

    values = np.zeros(3)
    later(values)
    np.testing.assert_array_equal(values, [0.0, 5.0, 5.0])
    assert sum(called.inner.stats.cache_hits.values()) == 1
    assert sum(called.inner.stats.cache_misses.values()) == 0


def test_what_inner_code_raises_comes_through(pair):
    @kernel
    def refuse(x):
        if x > 1.0:
            raise ValueError("too large")
        return x

    @kernel
    def outer(x):
        return refuse(x) + 1.0

    assert outer(0.5) == 1.5
    with pytest.raises(ValueError, match="too large"):
        outer(2.0)


def test_functions_of_users_may_allocate_and_contain_closures(pair):
    """Kernels count no references; functions of users do."""

    def scalar(x):
        def doubled(y):
            return y + y

        both = np.array([doubled(x), 0.0 * x])
        return both.max()

    chain = Chain(20, 3, Activation(scalar, kinks=(0.0,)))
    of_user, relu = (simulate(spec, 3, rng=0).gram for spec in (chain, Chain(20, 3, "relu")))
    np.testing.assert_allclose(of_user, 4.0 * relu)


def test_kernels_can_be_pickled(pair):
    """A worker then compiles them in the same way."""
    called = cloudpickle.loads(cloudpickle.dumps(kernel(add_to)))
    values = np.zeros(3)
    called(values, 1, 2.0)
    np.testing.assert_array_equal(values, [0.0, 2.0, 2.0])
    assert isinstance(called._cache, KernelCache)
