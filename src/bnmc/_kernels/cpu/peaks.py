"""Peak speeds of this machine: multiply-adds alone, and the normals of the library alone."""

from __future__ import annotations

from functools import cache
from typing import Any

import numba
from llvmlite import binding, ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from bnmc._kernels.compiling import kernel
from bnmc._kernels.cpu import numbers
from bnmc._kernels.cpu.vectors import VectorType, broadcast, fused, sum_lanes
from bnmc._kernels.scalar import codes

#: Columns, normals and places of a block: 16 or 32 KiB, which stay in the first cache.
_COLUMNS = 8
NORMALS = _COLUMNS * numbers.BLOCK
PLACES = _COLUMNS * numbers.STRIDE


@kernel
def fill_blocks(out, times, key):
    """Fill a block of `PLACES` several times by the kernel that the samplers use."""
    for layer in range(times):
        draw = codes.Draw(layer, codes.STREAM_ROWS, key, key)
        numbers.fill_normals(out, 0, 0, _COLUMNS, 0, numbers.BLOCK, draw)


def vector_registers() -> tuple[int, int]:
    """Width in bits of the vectors of this machine, and accumulators that fit its registers.

    At least latency times issue width (4 x 2) accumulators have to be in flight; more hide
    unequal waiting, and all of them with the two constants have to fit: 32 registers with
    AVX-512 and on ARM, 16 with AVX2.
    """
    features = binding.get_host_cpu_features()
    if features.get("avx512f"):
        return 512, 24
    if features.get("fma"):
        return 256, 12
    return 128, 24 if features.get("neon") else 12


@cache
def fma_kernel(dtype: str, bits: int, accumulators: int) -> Any:
    """Compile ``kernel(steps, factor, offset)``, which makes `steps` steps on all accumulators.

    Accumulators are vectors of `bits`, because the vectoriser of a plain loop chooses the width
    and the unrolling by itself.
    """
    scalar = getattr(numba, dtype)
    vector = VectorType(scalar, bits // scalar.bitwidth)
    values = types.UniTuple(vector, accumulators)

    @intrinsic
    def start(typing_context: Any, offset: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            kind = context.get_value_type(vector)
            offsets = broadcast(context, builder, vector, arguments[0])
            factors = [ir.Constant(kind, [1.0 + k] * vector.lanes) for k in range(accumulators)]
            return context.make_tuple(builder, values, [builder.fmul(offsets, k) for k in factors])

        return values(scalar), codegen

    @intrinsic
    def advance(typing_context: Any, before: Any, factor: Any, offset: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            same = [broadcast(context, builder, vector, value) for value in arguments[1:]]
            after = [
                fused(context, builder, vector, value, *same)
                for value in cgutils.unpack_tuple(builder, arguments[0])
            ]
            return context.make_tuple(builder, values, after)

        return values(values, scalar, scalar), codegen

    @numba.njit(scalar(numba.int64, scalar, scalar), nogil=True)
    def multiply_adds(steps: int, factor: float, offset: float) -> Any:
        accumulated: Any = start(offset)
        for _ in range(steps):
            accumulated = advance(accumulated, factor, offset)
        # All accumulators enter the result, or the compiler would drop them.
        total = scalar(0.0)
        for value in accumulated:
            total += sum_lanes(value)
        return total

    return multiply_adds
