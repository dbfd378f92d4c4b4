"""The roofline of a layer, and the two rates of this machine that it consists of.

The roofline of a layer is the time its normals take at the rate of the library's own normal
kernel plus the time its floating-point operations take at the FMA peak, both measured in the same
rounds as the layer itself.

The FMA peak is that of a kernel that touches registers only: independent accumulators in vectors
as wide as the machine has them, each step ``x <- x * factor + offset``.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench.turns import BILLIONS, THREADS, Candidate, Run, Timing, Timings, at_once
from bnmc._kernels.cpu import memory
from bnmc._kernels.cpu.peaks import NORMALS, PLACES, fill_blocks, fma_kernel, vector_registers
from bnmc.testing.machine_limits import layer_flops, layer_normals

DTYPES = ("float32", "float64")
STEPS = 20_000


@dataclass(frozen=True)
class Rates:
    """The two rates of a dtype, measured on some cores at once."""

    dtype: str
    threads: int = THREADS

    @property
    def normals(self) -> str:
        return f"normals {self.dtype}"

    @property
    def flops(self) -> str:
        return f"flops {self.dtype}"

    def candidates(self, pool: ThreadPoolExecutor) -> list[Candidate]:
        """The library's normal kernel, and multiply-adds: units are a normal and an operation."""
        makers = [library_normals(self.dtype, seed) for seed in range(self.threads)]
        bits, accumulators = vector_registers()
        lanes = bits // np.dtype(self.dtype).itemsize // 8
        operations = self.threads * STEPS * 2.0 * lanes * accumulators
        multiply_adds = multiply_add_runs(self.dtype, bits, accumulators)

        def fill(times: int) -> Run:
            return at_once([maker(times) for maker in makers], pool)

        def multiply(times: int) -> Run:
            return at_once([multiply_adds(times)] * self.threads, pool)

        return [
            Candidate(self.normals, fill, self.threads * NORMALS, BILLIONS),
            Candidate(self.flops, multiply, operations, BILLIONS),
        ]

    def layer(
        self, timings: Timings, *, width: int, batch: int, sampler: str, drawn: bool = False
    ) -> Timing:
        """The roofline of a layer in seconds, round by round.

        With `drawn`, only normals count that the conditional sampler draws under centred
        normalization: width (batch - 1).
        """
        normals = layer_normals(width, batch, sampler)
        if drawn and sampler == "conditional":
            normals -= width
        flops = layer_flops(width, batch, sampler)
        pairs = zip(timings[self.normals].seconds, timings[self.flops].seconds, strict=True)
        return Timing(tuple(normals * a + flops * b for a, b in pairs))


def library_normals(dtype: str, seed: int) -> Callable[[int], Run]:
    """For `Candidate.make`: fill a block so many times from the kernel that the samplers use.

    The repetitions are in compiled code, as in the samplers, and so is the size of the block,
    which stays in the level-1 cache.
    """
    out = memory.aligned_zeros((PLACES,), dtype)
    return lambda times: lambda: fill_blocks(out, times, np.uint32(seed))


def multiply_add_runs(dtype: str, bits: int, accumulators: int) -> Callable[[int], Run]:
    """For `Candidate.make`: so many times `STEPS` multiply-adds of each accumulator."""
    kernel: Any = fma_kernel(dtype, bits, accumulators)
    return lambda times: lambda: kernel(times * STEPS, 0.5, 0.25)
