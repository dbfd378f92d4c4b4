"""The time of compilations of kernels, and those who are told of them."""

import gc

import numpy as np
import pytest
from numba import config, njit

from bnmc._kernels.compile_time import compile_seconds, told_of_compilation
from bnmc._kernels.compiling import kernel


@pytest.fixture(autouse=True)
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path))


def add_one(values):
    for i in range(values.size):
        values[i] += 1.0


def test_a_compilation_counts_once_and_loading_does_not():
    begun = compile_seconds()
    told = []
    with told_of_compilation(lambda: told.append("begin"), lambda: told.append("end")):
        called = kernel(add_one)

        @kernel
        def twice(values):
            called(values)
            called(values)

        twice(np.zeros(3))
        spent = compile_seconds() - begun
        assert 0.0 < spent < 60.0
        assert told == ["begin", "end"], "once, with all that it calls"
        twice(np.zeros(3))
        assert compile_seconds() - begun == spent
        kernel(add_one)(np.zeros(3))  # machine code of its own
        assert told == ["begin", "end"] * 2
        spent = compile_seconds() - begun
        kernel(add_one)(np.zeros(3))  # from the disk
        assert compile_seconds() - begun == spent
    kernel(add_one)(np.zeros(3, np.float32))
    assert told == ["begin", "end"] * 2, "nobody listens any more"


def test_functions_of_users_do_not_count():
    begun = compile_seconds()
    njit(add_one)(np.zeros(3))
    assert compile_seconds() == begun


def test_a_kernel_that_cannot_be_compiled_ends():
    told = []
    with (
        told_of_compilation(lambda: told.append("begin"), lambda: told.append("end")),
        pytest.raises(Exception, match="size"),
    ):
        kernel(add_one)(3)
    assert told == ["begin", "end"]


@pytest.mark.parametrize("collects", [True, False])
def test_no_garbage_is_collected_meanwhile(collects):
    """Afterwards it is as before."""
    collecting = []
    with told_of_compilation(lambda: collecting.append(gc.isenabled()), lambda: None):
        (gc.enable if collects else gc.disable)()
        try:
            kernel(add_one)(np.zeros(3))
            assert gc.isenabled() == collects
        finally:
            gc.enable()
    assert collecting == [False]
