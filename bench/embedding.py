"""What calls cost from compiled code and from C, over the arithmetic, and what compiling costs.

The arithmetic of a layer is taken from the kernel that `simulate` calls once for thousands of
layers: there a layer has no call around it.  One core, float64, relu.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from bench.report import Cell, Floor, Report, Table
from bench.timing import Candidate, Run, interleave

WIDTH, BATCH = 64, 8
NJIT_MICROSECONDS, C_MICROSECONDS = 1.0, 5.0

LOOP = """
#include "bnmc.h"
int32_t layers(const bnmc_f64 *table, const bnmc_law *law, int64_t times, double *gram, void *work,
               int64_t bytes) {
  int32_t status = 0;
  for (int64_t layer = 1; layer <= times; layer++)
    status |= table->conditional_layer(law, gram, layer, 0, UINT64_C(7), gram, work, bytes, 0, 0);
  return status;
}
"""

COMPILE = """
import json, time
import numpy as np
import numba, bnmc
from bnmc import kernels
from bnmc.kernels import c
chain = bnmc.Chain(64, 8, "relu")
relu, law, work = kernels.activation("relu"), kernels.law(chain), kernels.workspace(chain)
gram, found = np.eye(8), {}

@numba.njit(nogil=True)
def user(sigma, law, gram, work):
    return kernels.conditional_layer(sigma, law, gram, 1, 0, np.uint64(7), gram, work)

def clock(name, call):
    start = time.perf_counter()
    call()
    found[name] = time.perf_counter() - start

clock("conditional_layer", lambda: kernels.conditional_layer(
    relu, law, gram, 1, 0, np.uint64(7), gram, work))
clock("a function that calls it", lambda: user(relu, law, gram, work))
clock("the table of C", lambda: c.table("relu"))
clock("warmup()", bnmc.warmup)
print(json.dumps(found))
"""


def benchmark(*, quick: bool) -> Report:
    """Overheads of calls in turns with the arithmetic; compilation in fresh processes."""
    report = Report("embedding")
    add_overheads(report, rounds=5 if quick else 25)
    add_compilation(report, rounds=1 if quick else 3)
    return report


def add_overheads(report: Report, *, rounds: int) -> None:
    """A layer without a call, from njit, from C, and from Python."""
    candidates = [
        Candidate("layers of one kernel", plain_layers()),
        Candidate("calls from njit", njit_layers()),
        Candidate("calls from Python", python_layers()),
    ]
    if shutil.which("cc"):
        candidates.insert(2, Candidate("calls from C", c_layers()))
    timings = interleave(candidates, rounds=rounds, seconds=0.05)
    least = timings["layers of one kernel"].seconds
    rows: list[list[Cell]] = []
    overheads = {}
    for name, timing in timings.items():
        pairs = zip(timing.seconds, least, strict=True)
        overheads[name] = 1e6 * statistics.median(a - b for a, b in pairs)
        rows.append([name, 1e6 * timing.median, overheads[name]])
    title = f"Microseconds of a conditional layer ({WIDTH}, {BATCH}), relu, float64, one core"
    report.tables.append(Table(title, ["how", "us", "us over the arithmetic"], rows))
    report.floors.append(
        Floor("us of a call from njit", overheads["calls from njit"], NJIT_MICROSECONDS, True)
    )
    if "calls from C" in overheads:
        report.floors.append(
            Floor("us of a call from C", overheads["calls from C"], C_MICROSECONDS, True)
        )
    report.samples["layers"] = {name: timing.seconds for name, timing in timings.items()}


def plain_layers() -> Any:
    """For `Candidate.make`: so many layers in one call of the kernel of `simulate`."""
    import bnmc
    from bnmc._kernels.cpu import layers, memory
    from bnmc._kernels.cpu.sources import Drawn
    from bnmc._kernels.scalar.codes import STREAM_ROWS
    from bnmc.chain.compiled import spec_of

    sigma, _, _, gram = pieces()
    spec = spec_of(bnmc.Chain(WIDTH, BATCH, "relu"))
    work, sums = memory.work(BATCH, 1, "float64"), layers.sums_of(spec, "float64")
    source = Drawn(STREAM_ROWS)
    state = layers.State(
        gram[None], np.zeros((1, 0, 0)), np.zeros((1, 2, 0, 0)), np.zeros((1, 0), np.int64)
    )

    def make(times: int) -> Run:
        course = layers.Course(
            0, 1, np.uint32(7), np.uint32(0), np.full(times, -1), np.zeros((1, 0, BATCH, BATCH)),
            np.zeros((1, 0, 0), np.int64), np.zeros((1, 3), np.int64), 0,
        )  # fmt: skip
        specs = layers.records(spec)
        return lambda: layers.layers(None, source, sigma, specs, state, course, work, sums)

    return make


def njit_layers() -> Any:
    """For `Candidate.make`: so many calls from a compiled loop."""
    import numba

    from bnmc import kernels

    sigma, law, work, gram = pieces()
    layer_of = kernels.conditional_layer

    @numba.njit(nogil=True)
    def layers(sigma: Any, law: Any, times: int, gram: Any, work: Any) -> int:
        status = 0
        for layer in range(1, times + 1):
            status |= layer_of(sigma, law, gram, layer, 0, np.uint64(7), gram, work)
        return status

    return lambda times: lambda: layers(sigma, law, times, gram, work)


def python_layers() -> Any:
    """For `Candidate.make`: so many calls from Python."""
    from bnmc import kernels

    sigma, law, work, gram = pieces()
    key = np.uint64(7)

    def make(times: int) -> Run:
        def several() -> None:
            for layer in range(1, times + 1):
                kernels.conditional_layer(sigma, law, gram, layer, 0, key, gram, work)

        return several

    return make


def c_layers() -> Any:
    """For `Candidate.make`: so many calls from a loop that the C compiler compiled."""
    from bnmc.kernels import c

    _, law, work, gram = pieces()
    table = c.table("relu")
    whole = np.array(law[:4], np.int64).tobytes() + np.array(law[4:], np.float64).tobytes()
    with tempfile.TemporaryDirectory() as folder:
        c.write_header(folder)
        source, target = Path(folder, "loop.c"), Path(folder, "loop.so")
        source.write_text(LOOP)
        command = ["cc", "-O2", "-shared", "-fPIC", str(source), "-o", str(target)]
        subprocess.run(command, check=True)
        layers = ctypes.CDLL(str(target)).layers
    pointer, integer = ctypes.c_void_p, ctypes.c_int64
    layers.argtypes = (pointer, ctypes.c_char_p, integer, pointer, pointer, integer)

    def make(times: int) -> Run:
        return lambda: layers(
            table.address, whole, times, gram.ctypes.data, work.ctypes.data, work.nbytes
        )

    return make


def pieces() -> tuple[Any, Any, Any, Any]:
    """An activation, a law, a workspace and a Gram matrix."""
    import bnmc
    from bnmc import kernels

    chain = bnmc.Chain(WIDTH, BATCH, "relu")
    return (
        kernels.activation("relu"), kernels.law(chain), kernels.workspace(chain), np.eye(BATCH)
    )  # fmt: skip


def add_compilation(report: Report, *, rounds: int) -> None:
    """Seconds of first calls in fresh processes: with an empty cache, and with a filled one."""
    found: dict[str, list[dict[str, float]]] = {"cold": [], "warm": []}
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as cache:
            for state in found:
                done = subprocess.run(
                    [sys.executable, "-c", COMPILE],
                    env={**os.environ, "NUMBA_CACHE_DIR": cache},
                    capture_output=True, text=True, check=True,
                )  # fmt: skip
                found[state].append(json.loads(done.stdout))
    rows: list[list[Cell]] = []
    for name in found["cold"][0]:
        medians = [statistics.median(one[name] for one in found[state]) for state in found]
        rows.append([name, *medians])
    title = "Seconds of the first use in a process, in this order"
    report.tables.append(Table(title, ["what", "empty cache", "filled cache"], rows))
    report.samples["compilation"] = found
