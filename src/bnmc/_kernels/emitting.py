"""Functions whose calls emit instructions in compiled code.

They have a Python body, which says what they do.  An `overload` would be one more function to
compile for each combination of types, which takes about 50 ms.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.core.typing.templates import AbstractTemplate, infer_global
from numba.extending import lower_builtin

from bnmc._kernels.scalar import elementary, normal, philox


def emits(function: Any, *kinds: Any) -> Callable[[Callable[..., Any]], None]:
    """Let compiled code emit what the decorated function returns in place of calls of `function`.

    The decorated function takes the types of the arguments, and returns a signature and the
    function that emits code, as that of an `intrinsic` does; or None for other types than `kinds`.
    """

    def register(body: Callable[..., Any]) -> None:
        class Template(AbstractTemplate):
            key = function

            def generic(self, args: Any, kws: Any) -> Any:
                emitted = body(*args)
                return None if emitted is None else emitted[0]

        infer_global(function, types.Function(Template))

        @lower_builtin(function, *(kinds or (types.VarArg(types.Any),)))
        def lower(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            codegen = body(*signature.args)[1]
            return codegen(context, builder, signature, arguments)

    return register


# --- instructions that the functions of `scalar` name


def _define_choice(function: Any, comparison: str) -> None:
    @emits(function)
    def emit(a: Any, b: Any) -> Any:
        kinds = {types.unliteral(kind) for kind in (a, b)}
        if len(kinds) > 1 and not all(getattr(kind, "signed", False) for kind in kinds):
            return None
        kind: Any = types.int64 if len(kinds) > 1 else kinds.pop()

        def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            first, second = values
            if isinstance(kind, types.Float):
                wins = builder.fcmp_ordered(comparison, second, first)
            elif kind.signed:
                wins = builder.icmp_signed(comparison, second, first)
            else:
                wins = builder.icmp_unsigned(comparison, second, first)
            return builder.select(wins, second, first)

        return kind(kind, kind), codegen


_define_choice(elementary.smaller, "<")
_define_choice(elementary.larger, ">")


@emits(elementary.same_bits)
def _same_bits(x: Any, kind: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.bitcast(values[0], context.get_value_type(kind.instance_type))

    return kind.instance_type(x, kind), codegen


@emits(philox.product)
def _product(factor: Any, multiplier: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.mul(*values)

    return types.uint64(types.uint64, types.uint64), codegen


@emits(normal.joined)
def _joined(high: Any, low: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.or_(builder.shl(values[0], ir.Constant(ir.IntType(64), 32)), values[1])

    return types.uint64(types.uint64, types.uint64), codegen


def _define_polynomial(function: Any) -> None:
    @emits(function)
    def emit(values: Any, x: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            coefficients, at = arguments
            total, *others = cgutils.unpack_tuple(builder, coefficients)
            for value in others:
                total = builder.fadd(builder.fmul(total, at), value)
            return total

        return values.dtype(values, values.dtype), codegen


for _function in elementary.polynomial:
    _define_polynomial(_function)


def _define_root(function: Any, kind: Any, name: str) -> None:
    @emits(function)
    def emit(x: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            value = context.get_value_type(kind)
            root = ir.FunctionType(value, [value])
            called = cgutils.get_or_insert_function(builder.module, root, name)
            return builder.call(called, values)

        return kind(kind), codegen


_define_root(normal.root32, types.float32, "llvm.sqrt.f32")
_define_root(normal.root64, types.float64, "llvm.sqrt.f64")

#: The functions above, which no `inlined` compiles.
INSTRUCTIONS = {
    elementary.smaller, elementary.larger, elementary.same_bits, *elementary.polynomial,
    philox.product, normal.joined, normal.root32, normal.root64,
}  # fmt: skip
