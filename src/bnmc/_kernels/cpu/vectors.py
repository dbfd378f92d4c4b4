"""Vectors of the CPU as values in compiled code.

Loops over elements are left to the compiler, which vectorises them well.  Matrix products are
not: their speed depends on which sums stay in registers, and their bits on how many partial sums
there are.  Both are decided here, by hand: a `Vector` is a fixed number of lanes whatever the
processor has, and every sum over lanes follows a fixed tree.

A function of this file has two bodies.  The Python body works on NumPy arrays of the lanes'
length and defines what the function does; the other, `emits`, emits the same operation for Numba.
An `overload` would be one more function to compile for each combination of types.
"""

from __future__ import annotations

import operator

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.core.datamodel import models
from numba.extending import register_model
from numba.np.arrayobj import populate_array

from bnmc._kernels.emitting import emits
from bnmc._kernels.processor import cpu_features

#: Bytes of a `Vector` whose lanes are added, or that are chains side by side; bits depend on them.
WIDE_BYTES = 256
NARROW_BYTES = 64


#: Whether the processor has 32 registers of 64 bytes.  Others have 16 of 32 bytes, or 32 of 16.
WIDE_REGISTERS = bool(cpu_features().get("avx512f"))

#: Bytes of a `Vector` that covers a strip of rows, each worked on by itself, and of a part of a
#: narrow vector.  Bits do not depend on these.  Four strips, or ten parts, fit in the registers
#: with what they are multiplied by; more would go to memory and back at each step.
STRIP_BYTES = 256 if WIDE_REGISTERS else 64
PART_BYTES = 64 if WIDE_REGISTERS else 32


class VectorType(types.Type):
    """Numba's name for a vector of `lanes` elements of a floating dtype."""

    def __init__(self, dtype, lanes):
        self.dtype = dtype
        self.lanes = lanes
        super().__init__(name=f"Vector({dtype}, {lanes})")


@register_model(VectorType)
class _VectorModel(models.PrimitiveModel):
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


def fused(context, builder, vector, a, b, c):
    """Emit a * b + c of vectors of a type, rounded once where the processor can."""
    kind = context.get_value_type(vector)
    name = f"llvm.fma.v{vector.lanes}f{vector.dtype.bitwidth}"
    signature = ir.FunctionType(kind, [kind, kind, kind])
    return builder.call(cgutils.get_or_insert_function(builder.module, signature, name), [a, b, c])


def broadcast(context, builder, vector, scalar):
    """Emit a vector of a type whose lanes all are `scalar`."""
    undefined = ir.Constant(context.get_value_type(vector), ir.Undefined)
    single = builder.insert_element(undefined, scalar, ir.Constant(ir.IntType(32), 0))
    pattern = ir.Constant(ir.VectorType(ir.IntType(32), vector.lanes), None)
    return builder.shuffle_vector(single, single, pattern)


def _define_load(function, total_bytes, count=0):
    """Let `function` load a vector, or a tuple of `count` vectors that are a step apart."""

    @emits(function)
    def emit(array, *places):
        vector = VectorType(array.dtype, total_bytes // _item_bytes(array.dtype))
        result = types.UniTuple(vector, count) if count else vector

        def codegen(context, builder, signature, arguments):
            whole, index, *step = arguments
            values = []
            for k in range(count or 1):
                at = builder.add(index, builder.mul(step[0], _number(k))) if k else index
                values.append(
                    builder.load(_vector_pointer(context, builder, array, whole, at, vector))
                )
                values[k].align = _item_bytes(array.dtype)
            return context.make_tuple(builder, result, values) if count else values[0]

        return result(array, *(types.intp for _ in places)), codegen


def _number(k):
    return ir.Constant(ir.IntType(64), k)


def load_wide(array, index):
    """Return the 256 bytes of the 1-d `array` from element `index` on as a vector."""
    return array[index : index + WIDE_BYTES // array.itemsize].copy()


def load_strip(array, index):
    """Return the `STRIP_BYTES` of the 1-d `array` from element `index` on as a vector."""
    return array[index : index + STRIP_BYTES // array.itemsize].copy()


def load_part(array, index):
    """Return the `PART_BYTES` of the 1-d `array` from element `index` on as a vector."""
    return array[index : index + PART_BYTES // array.itemsize].copy()


def load_strips(array, index, step):
    """Return four vectors as of `load_strip`: from index + k * step on, k = 0 … 3."""
    return tuple(load_strip(array, index + k * step) for k in range(4))


def load_parts(array, index, step):
    """Return four vectors as of `load_part`: from index + k * step on, k = 0 … 3."""
    return tuple(load_part(array, index + k * step) for k in range(4))


def load_two_parts(array, index, step):
    """Return the first two of `load_parts`."""
    return load_part(array, index), load_part(array, index + step)


def load_column(matrix, i, k):
    """Return the entries (i, k) … (i + 3, k) of a matrix."""
    return tuple(matrix[i : i + 4, k])


def flat(array):
    """Return the elements of a C-contiguous array as an array of one axis, without a copy."""
    return array.reshape(-1)


def store(array, index, vector):
    """Write `vector` to the 1-d `array` from element `index` on."""
    array[index : index + len(vector)] = vector


def store_strips(array, index, step, vectors):
    """Write four vectors to the 1-d `array`, from index + k * step on, k = 0 … 3."""
    for k in range(4):
        store(array, index + k * step, vectors[k])


def zero_wide(array):
    """Return a wide vector of zeros of the dtype of `array`."""
    return np.zeros(WIDE_BYTES // array.itemsize, array.dtype)


def zero_strip(array):
    """Return a vector of zeros for a strip of rows of the dtype of `array`."""
    return np.zeros(STRIP_BYTES // array.itemsize, array.dtype)


def zero_part(array):
    """Return a vector of zeros for a part of a narrow one of the dtype of `array`."""
    return np.zeros(PART_BYTES // array.itemsize, array.dtype)


def multiply_add(a, b, c):
    """Return a * b + c for vectors, rounded once where the processor can."""
    return a * b + c


def add_scaled(scalars, vector, sums):
    """Return the vectors `sums` with multiples of `vector` added to the last ones, one a scalar."""
    before = len(sums) - len(scalars)
    added = tuple(s * vector + t for s, t in zip(scalars, sums[before:], strict=True))
    return sums[:before] + added


def add_products(first, second, sums):
    """Return the vectors `sums` with the products of all pairs added: those of first[0] first."""
    products = [(a, b) for a in first for b in second]
    return tuple(multiply_add(a, b, t) for (a, b), t in zip(products, sums, strict=True))


def add_squares(vectors, sums):
    """Return `sums` with the products of each of `vectors` and those up to it added."""
    products = [(a, b) for k, a in enumerate(vectors) for b in vectors[: k + 1]]
    return tuple(multiply_add(a, b, t) for (a, b), t in zip(products, sums, strict=True))


def fill_like(vector, scalar):
    """Return a vector like `vector` whose lanes all are `scalar`."""
    return np.full_like(vector, scalar)


def square_root(vector):
    """Return the square root of every lane."""
    return np.sqrt(vector)


def load_across(array, index, step):
    """Return the elements index + k * step of the 1-d `array`, k = 0 … 3, as a float64 vector."""
    return array[index : index + 3 * step + 1 : step].astype(np.float64)


def sum_lanes(vector):
    """Return the sum of the lanes: upper half to lower half, until one is left."""
    while len(vector) > 1:
        half = len(vector) // 2
        vector = vector[:half] + vector[half:]
    return vector[0]


def all_greater(a, b):
    """Return whether a > b in every lane; False if any is NaN."""
    return bool(np.all(a > b))


def add_all(first, second):
    """Return the sums of the vectors of two tuples, one by one."""
    return tuple(a + b for a, b in zip(first, second, strict=True))


def subtract_all(first, second):
    """Return the differences of the vectors of two tuples, one by one."""
    return tuple(a - b for a, b in zip(first, second, strict=True))


#: Which of the 16 entries of a tile so many sums are: all, the upper half, the lower triangle, or
#: that of the first two rows.
_PLACES = {
    16: tuple(range(16)), 8: tuple(range(8)), 10: (0, 4, 5, 8, 9, 10, 12, 13, 14, 15), 3: (0, 4, 5),
}  # fmt: skip


def store_sums(out, index, vectors):
    """Write the sum of the lanes of each of `vectors` to the tile out[index : index + 16].

    If they are fewer than 16, the other entries of the tile become zero; see `_PLACES`.  The lanes
    of one vector are added in a fixed order: upper half to lower half, until one is left.  Sixteen
    vectors are folded together, so that no step wastes lanes.
    """
    out[index : index + 16] = 0.0
    for k, lanes in zip(_PLACES[len(vectors)], vectors, strict=True):
        while len(lanes) > 1:
            half = len(lanes) // 2
            lanes = lanes[:half] + lanes[half:]
        out[index + k] = lanes[0]


_define_load(load_wide, WIDE_BYTES)

_define_load(load_strip, STRIP_BYTES)

_define_load(load_part, PART_BYTES)

_define_load(load_strips, STRIP_BYTES, 4)

_define_load(load_parts, PART_BYTES, 4)

_define_load(load_two_parts, PART_BYTES, 2)


@emits(load_column)
def _load_column(matrix, i, k):
    result = types.UniTuple(matrix.dtype, 4)

    def codegen(context, builder, signature, arguments):
        whole = context.make_array(matrix)(context, builder, arguments[0])
        entries = [
            builder.load(
                cgutils.get_item_pointer(
                    context, builder, matrix, whole,
                    [builder.add(arguments[1], _number(row)), arguments[2]],
                )
            )
            for row in range(4)
        ]  # fmt: skip
        return context.make_tuple(builder, result, entries)

    return result(matrix, types.intp, types.intp), codegen


@emits(flat)
def _flat(array):
    if array.layout != "C":
        return None
    whole = array.copy(ndim=1)

    def codegen(context, builder, signature, arguments):
        given = context.make_array(array)(context, builder, arguments[0])
        result = context.make_array(whole)(context, builder)
        populate_array(
            result, given.data, [given.nitems], [given.itemsize], given.itemsize, given.meminfo,
            given.parent,
        )  # fmt: skip
        return result._getvalue()

    return whole(array), codegen


@emits(store)
def _store(array, index, vector):
    def codegen(context, builder, signature, arguments):
        pointer = _vector_pointer(context, builder, array, *arguments[:2], vector)
        builder.store(arguments[2], pointer).align = _item_bytes(array.dtype)
        return context.get_dummy_value()

    return types.void(array, types.intp, vector), codegen


@emits(store_strips)
def _store_strips(array, index, step, vectors):
    vector = vectors.dtype

    def codegen(context, builder, signature, arguments):
        whole, index, step, values = arguments
        for k in range(4):
            at = builder.add(index, builder.mul(step, _number(k)))
            pointer = _vector_pointer(context, builder, array, whole, at, vector)
            builder.store(builder.extract_value(values, k), pointer).align = _item_bytes(
                array.dtype
            )
        return context.get_dummy_value()

    return types.void(array, types.intp, types.intp, vectors), codegen


def _define_zero(function, total_bytes):
    @emits(function)
    def emit(array):
        vector = VectorType(array.dtype, total_bytes // _item_bytes(array.dtype))

        def codegen(context, builder, signature, arguments):
            return ir.Constant(context.get_value_type(vector), None)

        return vector(array), codegen


_define_zero(zero_wide, WIDE_BYTES)

_define_zero(zero_strip, STRIP_BYTES)

_define_zero(zero_part, PART_BYTES)


@emits(multiply_add)
def _multiply_add(a, b, c):
    def codegen(context, builder, signature, arguments):
        return fused(context, builder, c, *arguments)

    return c(a, b, c), codegen


@emits(add_scaled)
def _add_scaled(scalars, vector, sums):
    before = sums.count - scalars.count

    def codegen(context, builder, signature, arguments):
        factors, lanes, totals = arguments
        added = [builder.extract_value(totals, k) for k in range(sums.count)]
        for k in range(scalars.count):
            factor = broadcast(context, builder, vector, builder.extract_value(factors, k))
            added[before + k] = fused(context, builder, vector, factor, lanes, added[before + k])
        return context.make_tuple(builder, sums, added)

    return sums(types.UniTuple(vector.dtype, scalars.count), vector, sums), codegen


def _add_pairs(context, builder, sums, pairs, totals):
    """Emit the sums of `totals` and of the products of pairs."""
    added = [
        fused(context, builder, sums.dtype, a, b, builder.extract_value(totals, k))
        for k, (a, b) in enumerate(pairs)
    ]
    return context.make_tuple(builder, sums, added)


@emits(add_products)
def _add_products(first, second, sums):
    def codegen(context, builder, signature, arguments):
        left, right = (cgutils.unpack_tuple(builder, value) for value in arguments[:2])
        pairs = [(a, b) for a in left for b in right]
        return _add_pairs(context, builder, sums, pairs, arguments[2])

    return sums(first, second, sums), codegen


@emits(add_squares)
def _add_squares(vectors, sums):
    def codegen(context, builder, signature, arguments):
        values = cgutils.unpack_tuple(builder, arguments[0])
        pairs = [(a, b) for k, a in enumerate(values) for b in values[: k + 1]]
        return _add_pairs(context, builder, sums, pairs, arguments[1])

    return sums(vectors, sums), codegen


@emits(load_across)
def _load_across(array, index, step):
    vector = VectorType(types.float64, 4)

    def codegen(context, builder, signature, arguments):
        pointer = _element_pointer(context, builder, array, *arguments[:2])
        kind = context.get_value_type(array.dtype)
        four = ir.Constant(ir.VectorType(kind, vector.lanes), ir.Undefined)
        for lane in range(vector.lanes):
            value = builder.load(pointer)
            four = builder.insert_element(four, value, ir.Constant(ir.IntType(32), lane))
            pointer = builder.gep(pointer, [arguments[2]])
        wide = context.get_value_type(vector)
        return four if four.type == wide else builder.fpext(four, wide)

    return vector(array, types.intp, types.intp), codegen


@emits(sum_lanes)
def _sum_lanes(vector):
    def codegen(context, builder, signature, arguments):
        value, lanes = arguments[0], vector.lanes
        while lanes > 1:
            lanes //= 2
            lower, upper = (
                ir.Constant(ir.VectorType(ir.IntType(32), lanes), list(range(at, at + lanes)))
                for at in (0, lanes)
            )
            value = builder.fadd(
                builder.shuffle_vector(value, value, lower),
                builder.shuffle_vector(value, value, upper),
            )
        return builder.extract_element(value, ir.Constant(ir.IntType(32), 0))

    return vector.dtype(vector), codegen


def _define_all(function, name):
    @emits(function)
    def emit(first, second):
        def codegen(context, builder, signature, arguments):
            pairs = zip(*(cgutils.unpack_tuple(builder, value) for value in arguments), strict=True)
            results = [getattr(builder, name)(*pair) for pair in pairs]
            return context.make_tuple(builder, first, results)

        return first(first, second), codegen


_define_all(add_all, "fadd")

_define_all(subtract_all, "fsub")


@emits(store_sums)
def _store_sums(out, index, vectors):
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
        folded = [ir.Constant(context.get_value_type(vector), None)] * 16
        for k, place in enumerate(_PLACES[vectors.count]):
            folded[place] = builder.extract_value(values, k)
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


def keep_order():
    """Keep loads and stores of before and after apart.

    Unrolled loops of products are otherwise rewritten with all loads first, more than there are
    registers for.  The call costs no instruction.
    """


@emits(keep_order)
def _keep_order():
    def codegen(context, builder, signature, arguments):
        builder.fence("acq_rel", "singlethread")
        return context.get_dummy_value()

    return types.void(), codegen


@emits(fill_like)
def _fill_like(vector, scalar):
    def codegen(context, builder, signature, arguments):
        return broadcast(context, builder, vector, arguments[1])

    return vector(vector, vector.dtype), codegen


def _define_operator(function, name):
    @emits(function, VectorType, VectorType)
    def emit(a, b):
        if not (isinstance(a, VectorType) and isinstance(b, VectorType)):
            return None

        def codegen(context, builder, signature, arguments):
            return getattr(builder, name)(*arguments)

        return a(a, b), codegen


for _function, _name in (
    (operator.add, "fadd"),
    (operator.sub, "fsub"),
    (operator.mul, "fmul"),
    (operator.truediv, "fdiv"),
):
    _define_operator(_function, _name)


@emits(square_root)
def _square_root(vector):
    def codegen(context, builder, signature, arguments):
        kind = context.get_value_type(vector)
        name = f"llvm.sqrt.v{vector.lanes}f{vector.dtype.bitwidth}"
        function = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(kind, [kind]), name
        )
        return builder.call(function, arguments)

    return vector(vector), codegen


@emits(all_greater)
def _all_greater(a, b):
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
