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
from typing import Any

import numpy as np

from bench.report import Cell, Report, Table, usable_cores
from bench.timing import Candidate, Run, Timings, at_once, interleave
from bnmc._kernels.cpu.peaks import NORMALS, fma_kernel, vector_registers
from bnmc.testing.machine_limits import layer_seconds, peak_normals, peak_operations

DTYPES = ("float32", "float64")
FMA_LATENCY_CYCLES = 4
_STEPS = 20_000


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
        self,
        timings: Mapping[str, Timings],
        *,
        width: int,
        batch: int,
        sampler: str,
        drawn: bool = False,
    ) -> Timings:
        """The roofline of a layer in seconds, round by round.

        With `drawn`, only normals count that the conditional sampler draws under centred
        normalization: width (batch - 1).
        """
        fewer = width if drawn and sampler == "conditional" else 0
        pairs = zip(timings[self.normals].seconds, timings[self.flops].seconds, strict=True)
        return Timings(
            tuple(layer_seconds(width, batch, sampler, a, b) - fewer * a for a, b in pairs)
        )


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
    run = peak_normals(dtype, seed).run
    return lambda times: lambda: run(times)


def fma_candidate(dtype: str, pool: ThreadPoolExecutor, threads: int) -> Candidate:
    """The FMA peak on `threads` cores; the unit of work is one floating-point operation."""
    peak = peak_operations(dtype)

    def make(times: int) -> Run:
        return at_once([lambda: peak.run(times * _STEPS)] * threads, pool)

    return Candidate(Rates(dtype).flops, make, units=threads * _STEPS * peak.units)


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
