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


def vectorized(k, **options):
    return numba.vectorize(**options)(lambda x: k * x)


def vectorized_eagerly(k):
    return numba.vectorize(["float64(float64)"])(lambda x: k * x)


def generalized(k):
    def fill(x, out):
        for i in range(x.shape[0]):
            out[i] = k * x[i]

    return numba.guvectorize(["(float64[:], float64[:])"], "(n)->(n)")(fill)


def compiled_for(signature):
    return numba.njit(signature)(lambda x: 1.0 * x)


def callback(k, signature="float64(float64)"):
    return numba.cfunc(signature)(lambda x: k * x)


def compiled(k, **options):
    return numba.njit(**options)(lambda x: k * x)


def member(k):
    return enum.Enum("Colour", {"RED": k}).RED


def enumeration(k):
    return enum.Enum("Colour", {"RED": k, "BLUE": 7.0})


def whole_member(k):
    return enum.IntEnum("Level", {"LOW": k}).LOW


def named_tuple(*fields):
    return collections.namedtuple("Point", fields)(1.0, 2.0)


def tuple_class(*defaults):
    return collections.namedtuple("Point", ["a", "b"], defaults=defaults)


def record(*fields):
    return np.zeros(2, dtype=[(name, "f8") for name in fields])


def padded(offset):
    layout = {"names": ["a"], "formats": ["f8"], "offsets": [offset], "itemsize": 24}
    return np.zeros(2, dtype=layout)


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


def defined(text, constant=1.0):
    """A function of another module."""
    namespace = {"__name__": "elsewhere", "K": constant, "math": math, "np": np}
    exec(f"f = lambda x: {text}", namespace)
    return namespace["f"]


#: Pairs of values that a function may refer to, and that differ at one point.
DIFFERENT = {
    "code, constant": (lambda x: 2.0 * x, lambda x: 3.0 * x),
    "code, type of a constant": (lambda x: x + 1, lambda x: x + 1.0),
    "code, sign of zero": (lambda x: x * 0.0, lambda x: x * -0.0),
    "code, global": (defined("K * x"), defined("K * x", 2.0)),
    "code, name": (defined("math.sin(x)"), defined("math.cos(x)")),
    "code, order of names": (
        defined("math.sin(x) - math.cos(x)"), defined("math.cos(x) - math.sin(x)"),
    ),
    "code, module": (defined("np.sin(x)"), defined("math.sin(x)")),
    "code, inner function": (lambda x: (lambda y: y + x)(x), lambda x: (lambda y: y - x)(x)),
    "code, set": (lambda x: x in {1, 2}, lambda x: x in {1, 3}),
    "keyword default": (lambda x, *, k=1.0: k * x, lambda x, *, k=2.0: k * x),
    "closure": (using(1.0), using(2.0)),
    "helper": (using(numba.njit(lambda x: x)), using(numba.njit(lambda x: -x))),
    "plain helper": (using(lambda x: x), using(lambda x: -x)),
    "vectorize": (vectorized(0.1), vectorized(0.5)),
    "vectorize, options": (vectorized(0.1), vectorized(0.1, fastmath=True)),
    "vectorize, eager": (vectorized_eagerly(0.1), vectorized_eagerly(0.5)),
    "guvectorize": (generalized(1.0), generalized(2.0)),
    "cfunc": (callback(1.0), callback(2.0)),
    "cfunc, signature": (callback(1.0), callback(1.0, "float32(float32)")),
    "njit": (compiled(1.0), compiled(2.0)),
    "njit, options": (compiled(1.0), compiled(1.0, fastmath=True)),
    "njit, locals": (compiled(1.0), compiled(1.0, locals={"x": numba.float32})),
    "njit, signatures": (compiled_for("float64(float64)"), compiled_for("float64(float32)")),
    "vectorize, signatures": (
        vectorized_eagerly(0.3), numba.vectorize(["float32(float32)"])(lambda x: 0.3 * x),
    ),
    "jitclass, method": (jit_class(1.0), jit_class(2.0)),
    "jitclass, field": (jit_class(1.0), jit_class(1.0, numba.float32)),
    "intrinsic": (intrinsic_function(1.0), intrinsic_function(2.0)),
    "enum member": (member(1.0), member(2.0)),
    "enum class": (enumeration(1.0), enumeration(2.0)),
    "int enum member": (whole_member(1), whole_member(2)),
    "named tuple, fields": (named_tuple("a", "b"), named_tuple("b", "a")),
    "named tuple, class": (tuple_class(1.0), tuple_class(2.0)),
    "tuple and list": ((1.0, 2.0), [1.0, 2.0]),
    "nested tuple": (((1.0,), 2.0), ((1.0, 2.0),)),
    "record array, fields": (record("a", "b"), record("b", "a")),
    "record array, offsets": (padded(0), padded(8)),
    "record": (record("a", "b")[0], record("b", "a")[0]),
    "array, dtype": (np.zeros(2), np.zeros(2, np.float32)),
    "array, shape": (np.zeros((2, 3)), np.zeros((3, 2))),
    "array, value": (np.array([0.0]), np.array([-0.0])),
    "array, byte order": (np.ones(2), np.ones(2, ">f8")),
    "scalar, dtype": (np.float32(1.0), np.float64(1.0)),
    "dtype": (np.dtype([("a", "f8"), ("b", "f4")]), np.dtype([("b", "f8"), ("a", "f4")])),
    "bool and int": (True, 1),
    "int and float": (1, 1.0),
    "text and bytes": ("a", b"a"),
    "complex": (1j, -1j),
    "set": ({1, 2}, {1, 3}),
    "frozen set": (frozenset([1]), frozenset([1.0])),
    "dict, value": ({"a": 1}, {"a": 2}),
    "dict, order": ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    "function of C": (math.sin, math.cos),
    "ufunc": (np.sin, np.cos),
    "Python function": (lambda x: x, lambda x: -x),
    "default": (lambda x, k=1: x, lambda x, k=2: x),
    "type to convert to": (numba.float32, numba.float64),
    "type of NumPy": (np.float32, np.float64),
}  # fmt: skip


@pytest.mark.parametrize("what", DIFFERENT)
def test_values_that_differ_at_one_point_have_different_digests(what):
    first, other = DIFFERENT[what]
    assert digest_of(first) == digest_of(first)
    assert digest_of(first) != digest_of(other)
    assert Activation(using(first)).digest != Activation(using(other)).digest


def test_all_values_have_different_digests():
    # Kinds do not collide either.
    first = [pair[0] for pair in DIFFERENT.values()]
    digests = collections.Counter(digest_of(value) for value in first)
    shared = [count for count in digests.values() if count > 1]
    # compiled(1.0) stands in three pairs; callback(1.0), vectorized(0.1) and jit_class(1.0) in two.
    assert sorted(shared) == [2, 2, 2, 3]


def test_leaky_relus_by_vectorize_have_their_own_gram_matrices():
    import bnmc

    def made(slope):
        leaky = numba.vectorize(lambda x: x if x > 0.0 else slope * x)
        return lambda x: leaky(x)

    grams = [
        bnmc.simulate(bnmc.Chain(30, 3, made(slope)), 2, rng=0).gram for slope in (0.1, 0.5, 1.0)
    ]
    linear = bnmc.simulate(bnmc.Chain(30, 3, lambda x: 1.0 * x), 2, rng=0).gram
    assert not np.array_equal(grams[0], grams[1])
    np.testing.assert_array_equal(grams[2], linear)


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
