"""Peak speeds of this machine: multiply-adds alone, and the normals of the library alone."""

from __future__ import annotations

from functools import cache
from typing import Any

import numba
import numpy as np
from llvmlite import binding, ir
from numba.core import cgutils
from numba.extending import intrinsic

from bnmc._kernels.compiling import kernel
from bnmc._kernels.cpu import numbers
from bnmc._kernels.scalar import codes

#: Columns, normals and places of a block: 16 or 32 KiB, which stay in the first cache.
COLUMNS = 8
NORMALS = COLUMNS * numbers.BLOCK
PLACES = COLUMNS * numbers.STRIDE


@kernel
def fill_blocks(out, times, key):
    """Fill a block of `PLACES` several times by the kernel that the samplers use."""
    for layer in range(times):
        draw = codes.Draw(layer, codes.STREAM_ROWS, key, key)
        numbers.fill_normals(out, 0, 0, COLUMNS, 0, numbers.BLOCK, draw)


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

    Written in LLVM IR, because the vectoriser of a plain loop chooses the vector width and the
    unrolling by itself.
    """
    scalar = getattr(numba, dtype)
    element, suffix = {
        "float32": (ir.FloatType(), "f32"),
        "float64": (ir.DoubleType(), "f64"),
    }[dtype]
    lanes = bits // np.dtype(dtype).itemsize // 8
    vector = ir.VectorType(element, lanes)
    integer = ir.IntType(32)

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        steps, factor, offset = arguments

        def spread(value: Any) -> Any:
            undefined = ir.Constant(vector, ir.Undefined)
            first = builder.insert_element(undefined, value, ir.Constant(integer, 0))
            zeros = ir.Constant(ir.VectorType(integer, lanes), [0] * lanes)
            return builder.shuffle_vector(first, undefined, zeros)

        fma = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(vector, [vector] * 3), f"llvm.fma.v{lanes}{suffix}"
        )
        factors, offsets = spread(factor), spread(offset)
        starts = [
            builder.fmul(offsets, ir.Constant(vector, [1.0 + index] * lanes))
            for index in range(accumulators)
        ]
        before = builder.block
        loop = builder.append_basic_block("loop")
        after = builder.append_basic_block("after")
        builder.branch(loop)

        builder.position_at_end(loop)
        step = builder.phi(steps.type)
        values = [builder.phi(vector) for _ in starts]
        following = [builder.call(fma, [value, factors, offsets]) for value in values]
        next_step = builder.add(step, ir.Constant(steps.type, 1))
        step.add_incoming(ir.Constant(steps.type, 0), before)
        step.add_incoming(next_step, loop)
        for value, start, new in zip(values, starts, following, strict=True):
            value.add_incoming(start, before)
            value.add_incoming(new, loop)
        builder.cbranch(builder.icmp_signed("<", next_step, steps), loop, after)

        # All accumulators enter the result, or the compiler would drop them.
        builder.position_at_end(after)
        total = following[0]
        for value in following[1:]:
            total = builder.fadd(total, value)
        result = builder.extract_element(total, ir.Constant(integer, 0))
        for lane in range(1, lanes):
            result = builder.fadd(
                result, builder.extract_element(total, ir.Constant(integer, lane))
            )
        return result

    @intrinsic
    def chains(typing_context: Any, steps: Any, factor: Any, offset: Any) -> Any:
        return scalar(numba.int64, scalar, scalar), emit

    @numba.njit(scalar(numba.int64, scalar, scalar), nogil=True)
    def multiply_adds(steps: int, factor: float, offset: float) -> Any:
        return chains(steps, factor, offset)

    return multiply_adds
