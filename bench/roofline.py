"""How fast this machine could be: the FMA peak, the rate of normals, and a layer's roofline.

The roofline of a layer is the time its normals take at the rate of the library's own normal
kernel plus the time its floating-point operations take at the FMA peak, both measured here, at
the same time as the layer itself (they are candidates of the same round robin).

The FMA peak is that of a kernel that touches registers only: independent accumulators in vectors
as wide as the machine has them, each step ``x <- x * factor + offset``.  One accumulator alone
shows the latency of the instruction; as it is a whole number of cycles (4 on the x86 cores of the
last years), ``python -m bench roofline`` reads from it the clock rate and the FMAs a cycle, to be
compared with the 2 a cycle that the hardware has.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from bench.report import Cell, Report, Table, usable_cores
from bench.timing import Candidate, Run, Timings, at_once, interleave

DTYPES = ("float32", "float64")
NORMALS = 8 * 512  # of one block: 16 or 32 KiB, which stay in the first cache
FMA_LATENCY_CYCLES = 4
_STEPS = 20_000


def layer_normals(width: int, batch: int, sampler: str) -> int:
    """Normals that one layer of one chain needs: d n for Z R, d^2 for W.

    Under centred normalization the library's own sampler draws d (n - 1), since R has a column
    less, and n - 1 in place of n would make the roofline 6 to 8 % lower at n = 10, 1 % at n = 100.
    """
    return width * width if sampler == "weights" else width * batch


def layer_flops(width: int, batch: int, sampler: str) -> int:
    """Floating-point operations of one layer of one chain, a multiply-add counted as two.

    Conditional: Z R with triangular R (d n^2) and half of the symmetric a' a (d n^2).
    Weights: W a (2 d^2 n) and half of the symmetric a' a (d n^2).
    """
    if sampler == "weights":
        return 2 * width * width * batch + width * batch * batch
    return 2 * width * batch * batch


@dataclass(frozen=True)
class Rates:
    """Names of the two candidates that give a dtype's rates; all cores at work together."""

    dtype: str

    @property
    def normals(self) -> str:
        return f"normals {self.dtype}"

    @property
    def flops(self) -> str:
        return f"FMA {self.dtype}"

    def candidates(self, pool: ThreadPoolExecutor, threads: int) -> list[Candidate]:
        return [
            normals_candidate(self.dtype, pool, threads),
            fma_candidate(self.dtype, pool, threads),
        ]

    def times(
        self, timings: Mapping[str, Timings], *, width: int, batch: int, sampler: str
    ) -> Timings:
        """The roofline of a layer in seconds, round by round."""
        normals = layer_normals(width, batch, sampler)
        flops = layer_flops(width, batch, sampler)
        pairs = zip(timings[self.normals].seconds, timings[self.flops].seconds, strict=True)
        return Timings(tuple(normals * a + flops * b for a, b in pairs))


def normals_candidate(dtype: str, pool: ThreadPoolExecutor, threads: int) -> Candidate:
    """The library's normal kernel on `threads` cores; the unit of work is one normal."""
    makers = [library_normals(dtype, seed) for seed in range(threads)]

    def make(times: int) -> Run:
        return at_once([maker(times) for maker in makers], pool)

    return Candidate(Rates(dtype).normals, make, units=threads * NORMALS)


def library_normals(dtype: str, seed: int) -> Callable[[int], Run]:
    """For `Candidate.make`: fill a block so many times from the kernel that the samplers use.

    The repetitions are in compiled code, as in the samplers, and so is the size of the block:
    16 columns of as many rows as the samplers work on at a time.  It stays in the level-1 cache.
    """
    from bnmc._kernels import memory

    fill = _filling()
    out = memory.aligned_zeros((NORMALS,), dtype)
    return lambda times: lambda: fill(out, times, np.uint32(seed))


@cache
def _filling() -> Any:
    import numba

    from bnmc._kernels import cpu

    kernel, draw, stream = cpu.fill_normals, cpu.Draw, cpu.STREAM_ROWS
    rows = cpu.BLOCK
    columns = NORMALS // rows

    @numba.njit(nogil=True)
    def fill(out: Any, times: int, key: Any) -> None:
        for layer in range(times):
            kernel(out, 0, 0, columns, 0, rows, draw(layer, stream, key, key))

    return fill


def fma_candidate(dtype: str, pool: ThreadPoolExecutor, threads: int) -> Candidate:
    """The FMA peak on `threads` cores; the unit of work is one floating-point operation."""
    bits, accumulators = vector_registers()
    kernel = fma_kernel(dtype, bits, accumulators)

    def make(times: int) -> Run:
        return at_once([lambda: kernel(times * _STEPS, 0.5, 0.25)] * threads, pool)

    lanes = bits // np.dtype(dtype).itemsize // 8
    return Candidate(Rates(dtype).flops, make, units=threads * _STEPS * 2.0 * lanes * accumulators)


def vector_registers() -> tuple[int, int]:
    """Width in bits of the vectors of this machine, and accumulators that fit its registers.

    At least latency times issue width (4 x 2) accumulators have to be in flight; more hide
    unequal waiting, and all of them with the two constants have to fit: 32 registers with
    AVX-512 and on ARM, 16 with AVX2.
    """
    from llvmlite import binding

    features = binding.get_host_cpu_features()
    if features.get("avx512f"):
        return 512, 24
    if features.get("fma"):
        return 256, 12
    return 128, 24 if features.get("neon") else 12


@cache
def fma_kernel(dtype: str, bits: int, accumulators: int) -> Any:
    """Compile ``kernel(steps, factor, offset)``: so many steps on all accumulators.

    Written in LLVM IR, because the vectoriser of a plain loop chooses the vector width and the
    unrolling by itself.
    """
    import numba
    from llvmlite import ir
    from numba.core import cgutils
    from numba.extending import intrinsic

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
    def kernel(steps: int, factor: float, offset: float) -> Any:
        return chains(steps, factor, offset)

    return kernel


def vector_fmas(kernel: Any, bits: int) -> int | None:
    """Fused multiply-adds of the full width in the kernel's assembly; None if not x86."""
    register = {512: "zmm", 256: "ymm", 128: "xmm"}[bits]
    assembly = "\n".join(kernel.inspect_asm().values())
    if "mm0" not in assembly:
        return None
    return len(re.findall(rf"\tvfn?m(?:add|sub)\w+p[sd]\s.*%{register}", assembly))


def benchmark(*, quick: bool) -> Report:
    """Print the peaks, and that they are the peaks of the hardware."""
    threads = usable_cores()
    bits, accumulators = vector_registers()
    report = Report("roofline")
    with ThreadPoolExecutor(threads) as pool:
        candidates = [latency_candidate(dtype, bits) for dtype in DTYPES]
        for dtype in DTYPES:
            candidates += [fma_candidate(dtype, pool, 1).renamed(f"one core {dtype}")]
            candidates += Rates(dtype).candidates(pool, threads)
        timings = interleave(candidates, rounds=3 if quick else 9, seconds=0.1)
    rows: list[list[Cell]] = []
    for dtype in DTYPES:
        lanes = bits // np.dtype(dtype).itemsize // 8
        clock = FMA_LATENCY_CYCLES / timings[f"latency {dtype}"].median
        one = 1 / timings[f"one core {dtype}"].median
        rows.append(
            [
                dtype,
                bits,
                vector_fmas(fma_kernel(dtype, bits, accumulators), bits),
                clock / 1e9,
                one / 1e9,
                one / (2 * lanes * clock),
                1e-9 / timings[Rates(dtype).flops].median,
                1e-9 / timings[Rates(dtype).normals].median,
            ]
        )
    headers = ["dtype", "vector bits", "vector FMAs in the assembly", "clock GHz"]
    headers += ["GFlop/s, one core", "FMAs a cycle", f"GFlop/s, {threads} cores"]
    headers += [f"1e9 normals/s, {threads} cores"]
    report.tables.append(Table("Peaks of this machine", headers, rows))
    report.samples = {name: timing.seconds for name, timing in timings.items()}
    return report


def latency_candidate(dtype: str, bits: int) -> Candidate:
    """A single chain of dependent FMAs; the unit of work is one of them."""
    kernel = fma_kernel(dtype, bits, 1)

    def make(times: int) -> Run:
        return lambda: kernel(times * _STEPS, 0.5, 0.25)

    return Candidate(f"latency {dtype}", make, units=_STEPS)
