"""Digests of functions: functions that differ at one point differ in their digest."""

import collections
import ctypes
import enum
import math

import numba
import numpy as np
import pytest
from numba.experimental import jitclass
from numba.extending import intrinsic

from bnmc.chain.activations import Activation
from bnmc.chain.code_digest import digest_of
from bnmc.errors import ArgumentError


def using(value):
    """A function whose closure is a value: its digest covers the value."""
    return lambda x: value(x)


def generalized(k):
    def fill(x, out):
        for i in range(x.shape[0]):
            out[i] = k * x[i]

    return numba.guvectorize(["(float64[:], float64[:])"], "(n)->(n)")(fill)


def jit_class(k, of=numba.float64):
    def start(self, a):
        self.a = a

    def value(self, x):
        return k * self.a * x

    body = {"__init__": start, "value": value}
    return jitclass([("a", of)])(type("Scaled", (), body))


def intrinsic_function(k):
    def define(typing_context, x):
        def generate(context, builder, signature, arguments):
            return context.get_constant(x, k)

        return x(x), generate

    return intrinsic(define)


def of_global(constant):
    """A function of another module, with a global variable."""
    return eval("lambda x: K * x", {"__name__": "elsewhere", "K": constant})


FIELDS = "[('a', 'f8'), ('b', 'f8')]", "[('b', 'f8'), ('a', 'f8')]"
#: Values that a function may refer to, and two texts for ? with which they differ at one point.
DIFFERENT = {
    "code, constant": ("lambda x: ? * x", "2.0", "3.0"),
    "code, type of a constant": ("lambda x: x + ?", "1", "1.0"),
    "code, sign of zero": ("lambda x: x * ?", "0.0", "-0.0"),
    "code, global": ("of_global(?)", "1.0", "2.0"),
    "code, name": ("lambda x: math.?(x)", "sin", "cos"),
    "code, order of names": (
        "lambda x: ?", "math.sin(x) - math.cos(x)", "math.cos(x) - math.sin(x)",
    ),
    "code, module": ("lambda x: ?.sin(x)", "np", "math"),
    "code, inner function": ("lambda x: (lambda y: y ? x)(x)", "+", "-"),
    "code, set": ("lambda x: x in {1, ?}", "2", "3"),
    "keyword default": ("lambda x, *, k=?: k * x", "1.0", "2.0"),
    "closure": ("using(?)", "1.0", "2.0"),
    "helper": ("using(numba.njit(lambda x: ?))", "x", "-x"),
    "plain helper": ("using(lambda x: ?)", "x", "-x"),
    "vectorize": ("numba.vectorize(lambda x: ? * x)", "0.1", "0.5"),
    "vectorize, options": ("numba.vectorize(?)(lambda x: 0.1 * x)", "", "fastmath=True"),
    "vectorize, eager": ("numba.vectorize(['float64(float64)'])(lambda x: ? * x)", "0.1", "0.5"),
    "vectorize, signatures": ("numba.vectorize(['?(?)'])(lambda x: 0.3 * x)", "float64", "float32"),
    "guvectorize": ("generalized(?)", "1.0", "2.0"),
    "cfunc": ("numba.cfunc('float64(float64)')(lambda x: ? * x)", "1.0", "2.0"),
    "cfunc, signature": ("numba.cfunc('?(?)')(lambda x: 1.0 * x)", "float64", "float32"),
    "njit": ("numba.njit(lambda x: ? * x)", "1.0", "2.0"),
    "njit, options": ("numba.njit(?)(lambda x: 1.0 * x)", "", "fastmath=True"),
    "njit, locals": ("numba.njit(?)(lambda x: 1.0 * x)", "", "locals={'x': numba.float32}"),
    "njit, signatures": ("numba.njit('float64(?)')(lambda x: 1.0 * x)", "float64", "float32"),
    "jitclass, method": ("jit_class(?)", "1.0", "2.0"),
    "jitclass, field": ("jit_class(1.0, numba.?)", "float64", "float32"),
    "intrinsic": ("intrinsic_function(?)", "1.0", "2.0"),
    "enum member": ("enum.Enum('Colour', {'RED': ?}).RED", "1.0", "2.0"),
    "enum class": ("enum.Enum('Colour', {'RED': ?, 'BLUE': 7.0})", "1.0", "2.0"),
    "int enum member": ("enum.IntEnum('Level', {'LOW': ?}).LOW", "1", "2"),
    "named tuple, fields": ("collections.namedtuple('Point', '?')(1.0, 2.0)", "a b", "b a"),
    "named tuple, class": (
        "collections.namedtuple('Point', 'a b', defaults=[?])", "1.0", "2.0",
    ),
    "tuple and list": ("?", "(1.0, 2.0)", "[1.0, 2.0]"),
    "nested tuple": ("?", "((1.0,), 2.0)", "((1.0, 2.0),)"),
    "record array, fields": ("np.zeros(2, ?)", *FIELDS),
    "record array, offsets": (
        "np.zeros(2, {'names': ['a'], 'formats': ['f8'], 'offsets': [?], 'itemsize': 24})",
        "0", "8",
    ),
    "record": ("np.zeros(2, ?)[0]", *FIELDS),
    "array, dtype": ("np.zeros(2, '?')", "f8", "f4"),
    "array, shape": ("np.zeros(?)", "(2, 3)", "(3, 2)"),
    "array, value": ("np.array([?])", "0.0", "-0.0"),
    "array, byte order": ("np.ones(2, '?f8')", "<", ">"),
    "scalar, dtype": ("np.?(1.0)", "float32", "float64"),
    "dtype": ("np.dtype(?)", *FIELDS),
    "bool and int": ("?", "True", "1"),
    "int and float": ("?", "1", "1.0"),
    "text and bytes": ("?'a'", "", "b"),
    "complex": ("?1j", "+", "-"),
    "set": ("{1, ?}", "2", "3"),
    "frozen set": ("frozenset([?])", "1", "1.0"),
    "dict, value": ("{'a': ?}", "1", "2"),
    "dict, order": ("?", "{'a': 1, 'b': 2}", "{'b': 2, 'a': 1}"),
    "function of C": ("math.?", "sin", "cos"),
    "ufunc": ("np.?", "sin", "cos"),
    "Python function": ("lambda x: ?", "x", "-x"),
    "default": ("lambda x, k=?: x", "1", "2"),
    "type to convert to": ("numba.?", "float32", "float64"),
    "type of NumPy": ("np.?", "float32", "float64"),
}  # fmt: skip
SPACE = {**globals(), "collections": collections, "enum": enum, "math": math}


def pair(what):
    """Return the two values of a name in `DIFFERENT`."""
    template, *texts = DIFFERENT[what]
    return [eval(template.replace("?", text), SPACE) for text in texts]


@pytest.mark.parametrize("what", DIFFERENT)
def test_values_that_differ_at_one_point_have_different_digests(what):
    first, other = pair(what)
    assert digest_of(first) == digest_of(first)
    assert digest_of(first) != digest_of(other)
    assert Activation(using(first)).digest != Activation(using(other)).digest


def test_all_values_have_different_digests():
    # Kinds do not collide either.
    digests = collections.Counter(digest_of(pair(what)[0]) for what in DIFFERENT)
    shared = [count for count in digests.values() if count > 1]
    # The same njit stands in three pairs; a cfunc, a vectorize and a jitclass in two.
    assert sorted(shared) == [2, 2, 2, 3]


def test_pointers_to_c_functions_are_refused():
    pointer = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double)(lambda x: x)
    for value in (pointer, ctypes.CDLL(None).sin):
        with pytest.raises(ArgumentError, match="pointer to a C function"):
            Activation(using(value))


def test_a_function_that_only_bears_the_name_of_a_known_one_is_read():
    def made(k):
        def sin(x):
            return k * x

        sin.__module__ = "math"
        return sin

    assert digest_of(made(1.0)) != digest_of(made(2.0))


def test_padding_between_fields_is_no_part_of_a_digest():
    layout = np.dtype({"names": ["a"], "formats": ["f8"], "offsets": [0], "itemsize": 16})
    buffers = [bytearray([fill] * 32) for fill in (0, 255)]
    first, other = (np.frombuffer(buffer, layout) for buffer in buffers)
    first["a"] = other["a"] = 1.0
    assert buffers[0] != buffers[1]
    assert digest_of(first) == digest_of(other)
