"""Bits do not depend on the arithmetic that another library chose for the thread."""

import inspect
import pickle
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import ModuleType

import numpy as np
import pytest

import bnmc
from bnmc._support.arithmetic import StandardArithmetic, make_public
from bnmc.experiments.runs import Run

torch = pytest.importorskip("torch")


@contextmanager
def flushing():
    """Flush the small numbers of this thread, and of those that it starts, to zero."""
    if not torch.set_flush_denormal(True):
        pytest.skip("PyTorch cannot make this processor flush small numbers to zero")
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


def flushes():
    return not (np.array([1e-310]) * 0.5).any()


def test_the_mode_of_the_thread_is_restored():
    with StandardArithmetic():
        assert not flushes()
    assert not flushes()
    with flushing():
        assert flushes()
        with StandardArithmetic():
            assert not flushes()
        assert flushes()
        with pytest.raises(ZeroDivisionError), StandardArithmetic():
            raise ZeroDivisionError
        assert flushes()


def test_parts_of_figures_keep_small_numbers():
    with flushing():
        assert Run("x", {}).parts(lambda progress: flushes(), [()]) == {(): False}
        assert flushes()


@pytest.mark.parametrize("threads", [1, 2, "pool"])
def test_runs_have_the_same_bits_where_small_numbers_are_flushed(threads):
    """Products of float32 numbers are below 2⁻¹²⁶ at this depth."""
    chain = bnmc.Chain(60, 5, "tanh", norm="none", gain=0.5)
    options = {"rng": 0, "chains": 2, "sampler": "weights", "dtype": "float32"}
    expected = bnmc.simulate(chain, 57, threads=1, **options).gram
    with flushing():
        assert (np.float32(2.0**-130) * np.ones(1, np.float32) == 0.0).all()
        if threads == "pool":
            with ThreadPoolExecutor(
                2, initializer=torch.set_flush_denormal, initargs=(True,)
            ) as pool:
                gram = bnmc.simulate(chain, 57, executor=pool, **options).gram
                assert pool.submit(flushes).result()
        else:
            gram = bnmc.simulate(chain, 57, threads=threads, **options).gram
        assert flushes()
    np.testing.assert_array_equal(gram, expected)


# --- NumPy's error state

MODULE = """
import functools, numpy as np
from bnmc._support.arithmetic import make_public

__all__ = ["later", "squared"]

def squared(x, *, times=1):
    return x * x * times

class Kind:
    def __init__(self, x):
        self.x, self.first = x, x * x
    def __call__(self):
        return self.x * self.x
    def method(self):
        return self.x * self.x
    @property
    def attribute(self):
        return self.x * self.x
    @functools.cached_property
    def cached(self):
        return self.x * self.x
    @classmethod
    def made(cls, x):
        return cls(x * x)
    @staticmethod
    def alone(x):
        return x * x

make_public(__name__)
"""


def test_functions_and_classes_make_public(monkeypatch):
    module = ModuleType("bnmc.made")
    monkeypatch.setitem(sys.modules, "bnmc.made", module)
    exec(MODULE, vars(module))
    tiny, kind = np.float64(1e-200), module.Kind
    with np.errstate(under="raise"):
        thing = kind(tiny)
        calls = module.squared(tiny), thing(), thing.method(), kind.alone(tiny), kind.made(tiny).x
        assert {*calls, thing.first, thing.attribute, thing.cached} == {0.0}
        assert np.geterr()["under"] == "raise"
        with pytest.raises(FloatingPointError):
            tiny * tiny
    assert str(inspect.signature(module.squared)) == "(x, *, times=1)"
    assert pickle.loads(pickle.dumps(module.squared)) is module.squared
    once = module.squared
    make_public("bnmc.made")
    assert module.squared is once
