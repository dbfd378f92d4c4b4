"""Type inference of kernels: calls are resolved once, and as Numba resolves them."""

import operator

import numpy as np
import pytest
from numba import config, types
from numba.core.registry import cpu_target

from bnmc import Activation, simulate
from bnmc._kernels.compiling import kernel
from bnmc._kernels.inference import _Calls
from bnmc._kernels.pipeline import InnerLibrary
from bnmc.chain.chain import Chain

NUMBERS = (types.int64, types.uint32, types.float32, types.float64, types.boolean)


@pytest.fixture(autouse=True)
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path))


@pytest.mark.parametrize("function", [operator.add, operator.truediv, operator.lt, np.sqrt])
def test_signatures_are_those_of_numba(function):
    context = cpu_target.typing_context
    context.refresh()
    calls = _Calls(context)
    for first in NUMBERS:
        for second in NUMBERS:
            args = (first,) if function is np.sqrt else (first, second)
            expected = context.resolve_function_type(function, args, {})
            for _ in range(2):
                found = calls.resolve_function_type(function, args, {})
                assert (found.args, found.return_type) == (expected.args, expected.return_type)


def test_a_call_with_numbers_is_resolved_once(monkeypatch):
    context = cpu_target.typing_context
    context.refresh()
    asked = []

    class Counted:
        def __getattr__(self, name):
            return getattr(context, name)

        def resolve_function_type(self, func, args, kws):
            asked.append(args)
            return context.resolve_function_type(func, args, kws)

    monkeypatch.setattr(_Calls, "known", {})
    calls = _Calls(Counted())
    array = types.Array(types.float64, 1, "C")
    for _ in range(3):
        calls.resolve_function_type(operator.add, (types.float64, types.float64), {})
        calls.resolve_function_type(operator.getitem, (array, types.int64), {})
    assert len(asked) == 1 + 3, "arrays, whose layout and views decide, are asked for each time"


def test_functions_of_numba_are_inner_code():
    """`min`, `max` and views of numbers have no machine code of their own."""

    @kernel
    def least(values, most):
        low, high = most, -most
        for value in values:
            low, high = min(low, value), max(high, value)
        return low, high, np.float64(values.size).view(np.int64)

    values = np.array([3.0, -1.0, 2.0])
    assert least(values, 10.0) == (-1.0, 3.0, np.float64(3.0).view(np.int64))
    (made,) = least.overloads.values()
    linked = [one for one in made.library._linking_libraries if one.name != "nrt"]
    assert {type(one) for one in linked} == {InnerLibrary}


def test_functions_of_users_may_allocate_and_contain_closures():
    """Kernels count no references and skip passes; functions of users do not."""

    def scalar(x):
        def doubled(y):
            return y + y

        both = np.array([doubled(x), 0.0 * x])
        return both.max()

    chain = Chain(20, 3, Activation(scalar, kinks=(0.0,)))
    own, relu = (simulate(one, 3, rng=0).gram for one in (chain, Chain(20, 3, "relu")))
    np.testing.assert_allclose(own, 4.0 * relu)
