"""Vectors of the CPU as values in compiled code.

Loops over elements are left to the compiler, which vectorises them well.  Matrix products are
not: their speed depends on which sums stay in registers, and their bits on how many partial sums
there are.  Both are decided here, by hand: a `Vector` is a fixed number of lanes whatever the
processor has, and every sum over lanes follows a fixed tree.

A function of this file has two bodies.  The Python body works on NumPy arrays of the lanes'
length and defines what the function does; the other emits the same operation for Numba.
"""

from __future__ import annotations

import operator

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.core.datamodel import models
from numba.extending import intrinsic, overload, register_model

#: Bytes of a `Vector` that covers a strip of rows, and of one that covers a part of it.
WIDE_BYTES = 256
NARROW_BYTES = 64


class VectorType(types.Type):
    """Numba's name for a vector of `lanes` elements of a floating dtype."""

    def __init__(self, dtype, lanes):
        self.dtype = dtype
        self.lanes = lanes
        super().__init__(name=f"Vector({dtype}, {lanes})")


@register_model(VectorType)
class VectorModel(models.PrimitiveModel):
    def __init__(self, dmm, fe_type):
        element = dmm.lookup(fe_type.dtype).get_value_type()
        super().__init__(dmm, fe_type, ir.VectorType(element, fe_type.lanes))


def _element_pointer(context, builder, array_type, array, index):
    data = context.make_array(array_type)(context, builder, array).data
    return builder.gep(data, [index])


def _vector_pointer(context, builder, array_type, array, index, vector):
    pointer = _element_pointer(context, builder, array_type, array, index)
    return builder.bitcast(pointer, context.get_value_type(vector).as_pointer())


def _item_bytes(dtype):
    return dtype.bitwidth // 8


def _fused(context, builder, vector, a, b, c):
    kind = context.get_value_type(vector)
    name = f"llvm.fma.v{vector.lanes}f{vector.dtype.bitwidth}"
    signature = ir.FunctionType(kind, [kind, kind, kind])
    return builder.call(cgutils.get_or_insert_function(builder.module, signature, name), [a, b, c])


def _broadcast(context, builder, vector, scalar):
    undefined = ir.Constant(context.get_value_type(vector), ir.Undefined)
    single = builder.insert_element(undefined, scalar, ir.Constant(ir.IntType(32), 0))
    pattern = ir.Constant(ir.VectorType(ir.IntType(32), vector.lanes), None)
    return builder.shuffle_vector(single, single, pattern)


def _loader(total_bytes):
    @intrinsic
    def emit(typing_context, array, index):
        vector = VectorType(array.dtype, total_bytes // _item_bytes(array.dtype))

        def codegen(context, builder, signature, arguments):
            pointer = _vector_pointer(context, builder, array, *arguments, vector)
            value = builder.load(pointer)
            value.align = _item_bytes(array.dtype)
            return value

        return vector(array, types.intp), codegen

    return emit


_load_wide = _loader(WIDE_BYTES)

_load_narrow = _loader(NARROW_BYTES)


def load_wide(array, index):
    """Return the 256 bytes of the 1-d `array` from element `index` on as a vector."""
    return array[index : index + WIDE_BYTES // array.itemsize].copy()


def load_narrow(array, index):
    """Return the 64 bytes of the 1-d `array` from element `index` on as a vector."""
    return array[index : index + NARROW_BYTES // array.itemsize].copy()


def store(array, index, vector):
    """Write `vector` to the 1-d `array` from element `index` on."""
    array[index : index + len(vector)] = vector


def zero_wide(array):
    """Return a wide vector of zeros of the dtype of `array`."""
    return np.zeros(WIDE_BYTES // array.itemsize, array.dtype)


def zero_narrow(array):
    """Return a narrow vector of zeros of the dtype of `array`."""
    return np.zeros(NARROW_BYTES // array.itemsize, array.dtype)


def multiply_add(a, b, c):
    """Return a * b + c for vectors, rounded once where the processor can."""
    return a * b + c


def scale_add(scalar, b, c):
    """Return scalar * b + c for vectors b and c."""
    return scalar * b + c


def fill_like(vector, scalar):
    """Return a vector like `vector` whose lanes all are `scalar`."""
    return np.full_like(vector, scalar)


def square_root(vector):
    """Return the square root of every lane."""
    return np.sqrt(vector)


def all_greater(a, b):
    """Return whether a > b in every lane; False if any is NaN."""
    return bool(np.all(a > b))


def store_sums(out, index, vectors):
    """Write the sum of the lanes of each of the 16 `vectors` to out[index : index + 16].

    The lanes of one vector are added in a fixed order: upper half to lower half, until one is
    left.  Sixteen vectors are folded together, so that no step wastes lanes.
    """
    for k in range(16):
        lanes = vectors[k]
        while len(lanes) > 1:
            half = len(lanes) // 2
            lanes = lanes[:half] + lanes[half:]
        out[index + k] = lanes[0]


overload(load_wide)(lambda array, index: lambda array, index: _load_wide(array, index))


overload(load_narrow)(lambda array, index: lambda array, index: _load_narrow(array, index))


@intrinsic
def _store(typing_context, array, index, vector):
    def codegen(context, builder, signature, arguments):
        pointer = _vector_pointer(context, builder, array, *arguments[:2], vector)
        builder.store(arguments[2], pointer).align = _item_bytes(array.dtype)
        return context.get_dummy_value()

    return types.void(array, types.intp, vector), codegen


overload(store)(
    lambda array, index, vector: lambda array, index, vector: _store(array, index, vector)
)


def _zero(total_bytes):
    @intrinsic
    def emit(typing_context, array):
        vector = VectorType(array.dtype, total_bytes // _item_bytes(array.dtype))

        def codegen(context, builder, signature, arguments):
            return ir.Constant(context.get_value_type(vector), None)

        return vector(array), codegen

    return emit


_zero_wide = _zero(WIDE_BYTES)

_zero_narrow = _zero(NARROW_BYTES)


overload(zero_wide)(lambda array: lambda array: _zero_wide(array))


overload(zero_narrow)(lambda array: lambda array: _zero_narrow(array))


@intrinsic
def _multiply_add(typing_context, a, b, c):
    def codegen(context, builder, signature, arguments):
        return _fused(context, builder, c, *arguments)

    return c(a, b, c), codegen


overload(multiply_add)(lambda a, b, c: lambda a, b, c: _multiply_add(a, b, c))


@intrinsic
def _scale_add(typing_context, scalar, b, c):
    def codegen(context, builder, signature, arguments):
        value, vector, addend = arguments
        return _fused(context, builder, b, _broadcast(context, builder, b, value), vector, addend)

    return c(b.dtype, b, c), codegen


overload(scale_add)(lambda scalar, b, c: lambda scalar, b, c: _scale_add(scalar, b, c))


@intrinsic
def _store_sums(typing_context, out, index, vectors):
    vector = vectors.dtype
    lanes = vector.lanes

    def fold(builder, a, b, group):
        """Halve the groups of `group` lanes in a and b; the result has those of a, then b's."""
        starts = range(0, 2 * lanes, group)

        def pick(offset):
            order = [s + offset + k for s in starts for k in range(group // 2)]
            pattern = ir.Constant(ir.VectorType(ir.IntType(32), lanes), order)
            return builder.shuffle_vector(a, b, pattern)

        return builder.fadd(pick(0), pick(group // 2))

    def codegen(context, builder, signature, arguments):
        array, start, values = arguments
        folded = [builder.extract_value(values, k) for k in range(16)]
        group = lanes
        while group > 1:
            folded = [fold(builder, *folded[k : k + 2], group) for k in range(0, len(folded), 2)]
            group //= 2
        for k, sums in enumerate(folded):
            at = builder.add(start, ir.Constant(start.type, k * lanes))
            pointer = _vector_pointer(context, builder, out, array, at, vector)
            builder.store(sums, pointer).align = _item_bytes(out.dtype)
        return context.get_dummy_value()

    return types.void(out, types.intp, vectors), codegen


overload(store_sums)(
    lambda out, index, vectors: lambda out, index, vectors: _store_sums(out, index, vectors)
)


def keep_order():
    """Keep loads and stores of before and after apart.

    Unrolled loops of products are otherwise rewritten with all loads first, more than there are
    registers for.  The call costs no instruction.
    """


@intrinsic
def _keep_order(typing_context):
    def codegen(context, builder, signature, arguments):
        builder.fence("acq_rel", "singlethread")
        return context.get_dummy_value()

    return types.void(), codegen


overload(keep_order)(lambda: lambda: _keep_order())


@intrinsic
def _fill_like(typing_context, vector, scalar):
    def codegen(context, builder, signature, arguments):
        return _broadcast(context, builder, vector, arguments[1])

    return vector(vector, vector.dtype), codegen


overload(fill_like)(lambda vector, scalar: lambda vector, scalar: _fill_like(vector, scalar))


def _lanewise(name):
    @intrinsic
    def emit(typing_context, a, b):
        def codegen(context, builder, signature, arguments):
            return getattr(builder, name)(*arguments)

        return a(a, b), codegen

    return emit


def _define_operator(function, name):
    emit = _lanewise(name)

    @overload(function)
    def implementation(a, b):
        if isinstance(a, VectorType) and isinstance(b, VectorType):
            return lambda a, b: emit(a, b)
        return None


for _function, _name in (
    (operator.add, "fadd"),
    (operator.sub, "fsub"),
    (operator.mul, "fmul"),
    (operator.truediv, "fdiv"),
):
    _define_operator(_function, _name)


@intrinsic
def _square_root(typing_context, vector):
    def codegen(context, builder, signature, arguments):
        kind = context.get_value_type(vector)
        name = f"llvm.sqrt.v{vector.lanes}f{vector.dtype.bitwidth}"
        function = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(kind, [kind]), name
        )
        return builder.call(function, arguments)

    return vector(vector), codegen


overload(square_root)(lambda vector: lambda vector: _square_root(vector))


@intrinsic
def _all_greater(typing_context, a, b):
    def codegen(context, builder, signature, arguments):
        lanes = ir.VectorType(ir.IntType(1), a.lanes)
        greater = builder.fcmp_ordered(">", *arguments)
        function = cgutils.get_or_insert_function(
            builder.module,
            ir.FunctionType(ir.IntType(1), [lanes]),
            f"llvm.vector.reduce.and.v{a.lanes}i1",
        )
        return builder.call(function, [greater])

    return types.boolean(a, b), codegen


overload(all_greater)(lambda a, b: lambda a, b: _all_greater(a, b))
