"""The peaks of this machine, and that they are the peaks of the hardware.

A chain of dependent multiply-adds shows the latency of the instruction.  As it is a whole number of
cycles (4 on the x86 cores of the last years), it tells the clock rate and the multiply-adds a
cycle, which should be 2 where a core has two units of that width.
"""

import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from bench.roofline import DTYPES, STEPS, Rates
from bench.turns import BILLIONS, Candidate
from bnmc._kernels.cpu.peaks import fma_kernel, vector_registers

FMA_LATENCY_CYCLES = 4


@pytest.mark.parametrize("dtype", DTYPES)
def test_peaks(turns, dtype):
    bits, accumulators = vector_registers()
    lanes = bits // np.dtype(dtype).itemsize // 8
    alone, together = Rates(dtype, 1), Rates(dtype)
    turns.group = f"Peaks of this machine, {dtype}, vectors of {bits} bits"
    with ThreadPoolExecutor(together.threads) as pool:
        kernel = fma_kernel(dtype, bits, 1)
        dependent = Candidate(
            "dependent FMAs",
            lambda times: lambda: kernel(times * STEPS, 0.5, 0.25), STEPS, BILLIONS,
        )  # fmt: skip
        single = replace(alone.candidates(pool)[1], name="flops of one core")
        candidates = [dependent, single, *together.candidates(pool)]
        timings = turns(candidates, rounds=turns.of(9, 3), seconds=0.1)
    clock = FMA_LATENCY_CYCLES / timings[dependent.name].median
    turns.add(dependent.name, {
        "clock GHz": clock / 1e9,
        "vector FMAs in the assembly": vector_fmas(fma_kernel(dtype, bits, accumulators), bits),
    })  # fmt: skip
    a_cycle = 1.0 / (2 * lanes * clock * timings[single.name].median)
    turns.add(single.name, {"FMAs a cycle": a_cycle})


def vector_fmas(kernel, bits):
    """Return the multiply-adds of the full width in the kernel's assembly; None if not x86."""
    register = {512: "zmm", 256: "ymm", 128: "xmm"}[bits]
    assembly = "\n".join(kernel.inspect_asm().values())
    if "mm0" not in assembly:
        return None
    return len(re.findall(rf"\tvfn?m(?:add|sub)\w+p[sd]\s.*%{register}", assembly))
