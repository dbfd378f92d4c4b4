"""The bodies of the functions for C, in Python."""

import ctypes

import numpy as np
import pytest

import bnmc
from bnmc import kernels
from bnmc.kernels import c
from bnmc.kernels.c_functions import bodies

CHAIN = bnmc.Chain(70, 5, "relu")


KEY = 0xFEDCBA9876543210


class Law(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in ("width", "batch", "columns", "norm")),
        *((name, ctypes.c_double) for name in ("skip", "gain", "eps")),
    )


def law_of(chain, **changes):
    return Law(*kernels.law(chain)._replace(**changes))


@pytest.fixture(scope="module")
def relu():
    return c.table("relu").functions


@pytest.fixture
def work(relu):
    law = law_of(CHAIN)
    return np.full(relu["workspace_bytes"](ctypes.byref(law)) // 8 + 1, np.nan)


def test_python_bodies_say_the_same(relu, work):
    """In Python pointers are numbers: the same calls, with the same statuses and results."""
    law = law_of(CHAIN)
    plain = bodies(kernels.activation("relu"), np.float64)
    pointer, found = ctypes.addressof(law), []
    for functions in (relu, plain):
        a, out, numbers = kernels.activations(CHAIN), np.eye(5), np.zeros(64)
        h = np.random.default_rng(0).standard_normal((70, 5))
        words = np.arange(8, dtype=np.uint32)
        ends, key = (work.ctypes.data, work.nbytes), np.uint64(KEY)
        if functions is relu:
            key = int(key)
        to, rows = out.ctypes.data, (h.ctypes.data, 70)
        address = numbers.ctypes.data, 64, 1, 0, 2, 3, key, 0
        calls = [
            ("workspace_bytes", pointer), ("workspace_bytes", None), ("stride", pointer),
            ("conditional_layer", pointer, to, 0, 0, key, to, *ends, None, a.ctypes.data),
            ("weights_layer", pointer, 0, a.ctypes.data, 1, 0, key, to, *ends, None),
            ("normalise_activate", pointer, *rows, h.ctypes.data, *ends),
            ("gram", pointer, *rows, to, *ends), ("failed_row", *ends),
            ("normals", *address), ("uniforms", *address),
            ("philox", words.ctypes.data, words.ctypes.data, words.ctypes.data + 16),
            ("conditional_layer", None, to, 0, 0, key, to, *ends, None, None),
            ("conditional_layer", pointer, to, -1, 0, key, to, *ends, None, None),
            ("weights_layer", None, 0, a.ctypes.data, 1, 0, key, to, *ends, None),
            ("weights_layer", pointer, 0, a.ctypes.data, -1, 0, key, to, *ends, None),
            ("normalise_activate", None, *rows, h.ctypes.data, *ends),
            ("normalise_activate", pointer, h.ctypes.data, -1, h.ctypes.data, *ends),
            ("gram", None, *rows, to, *ends), ("gram", pointer, rows[0], -1, to, *ends),
            ("failed_row", None, 0), ("normals", None, *address[1:]),
            ("uniforms", None, *address[1:]), ("philox", None, None, None),
        ]  # fmt: skip
        statuses = [functions[name](*arguments) for name, *arguments in calls]
        law.columns = 4
        statuses.append(functions["workspace_bytes"](pointer))
        law.columns = 5
        found.append((statuses, out, a, numbers, words))
    for compiled, in_python in zip(*found, strict=True):
        np.testing.assert_array_equal(compiled, in_python)
    assert plain["activate"](np.float64(-1.0)) == 0.0
