"""What calls cost from compiled code and from C, over the arithmetic, and what compiling costs.

The arithmetic of a layer is taken from the kernel that `simulate` calls once for thousands of
layers: there a layer has no call around it.  One core, float64, relu.
"""

import ctypes
import shutil
import statistics
import subprocess
import tempfile
from collections import defaultdict
from pathlib import Path

import numba
import numpy as np

import bnmc
from bench.children import child
from bench.turns import Candidate
from bnmc import kernels
from bnmc._kernels.cpu import layers, memory
from bnmc._kernels.cpu.sources import Drawn
from bnmc._kernels.scalar.codes import STREAM_ROWS
from bnmc.chain.compiled import spec_of
from bnmc.kernels import c

WIDTH, BATCH = 64, 8
#: Largest microseconds over the arithmetic, by the caller.
LIMITS = {"calls from njit": 1.0, "calls from C": 5.0}

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
gram, seconds = np.eye(8), {}

@numba.njit(nogil=True)
def user(sigma, law, gram, work):
    return kernels.conditional_layer(sigma, law, gram, 1, 0, np.uint64(7), gram, work)

def clock(name, call):
    start = time.perf_counter()
    call()
    seconds[name] = time.perf_counter() - start

clock("conditional_layer", lambda: kernels.conditional_layer(
    relu, law, gram, 1, 0, np.uint64(7), gram, work))
clock("a function that calls it", lambda: user(relu, law, gram, work))
clock("the table of C", lambda: c.table("relu"))
clock("warmup()", bnmc.warmup)
print(json.dumps(seconds))
"""


def test_overheads(turns):
    """A layer without a call, from njit, from C, and from Python."""
    turns.group = f"A conditional layer ({WIDTH}, {BATCH}), relu, float64, one core"
    makers = {
        "layers of one kernel": plain_layers, "calls from njit": njit_layers,
        "calls from C": c_layers, "calls from Python": python_layers,
    }  # fmt: skip
    if not shutil.which("cc"):
        del makers["calls from C"]
    candidates = [Candidate(name, maker()) for name, maker in makers.items()]
    timings = turns(candidates, rounds=turns.of(25, 5), seconds=0.05)
    least = timings["layers of one kernel"].seconds
    for name, timing in timings.items():
        over = statistics.median(1e6 * (a - b) for a, b in zip(timing.seconds, least, strict=True))
        turns.hold(name, "us over the arithmetic", over, at_most=LIMITS.get(name))


def test_compilation(turns):
    """Seconds of first calls in fresh processes: with an empty cache, and with a filled one."""
    turns.group = "Seconds of the first use in a process, in this order"
    seconds = defaultdict(list)
    for _ in range(turns.of(3, 1)):
        with tempfile.TemporaryDirectory() as cache:
            for state in ("empty cache", "filled cache"):
                for name, taken in child(COMPILE, cache=cache).items():
                    seconds[f"{name}, {state}"].append(taken)
    for name, samples in seconds.items():
        turns.record(name, samples)


def plain_layers():
    """For `Candidate.make`: so many layers in one call of the kernel of `simulate`."""
    sigma, _, _, gram = pieces()
    spec = spec_of(bnmc.Chain(WIDTH, BATCH, "relu"))
    work, sums = memory.work(BATCH, 1, "float64"), layers.sums_of(spec, "float64")
    source = Drawn(STREAM_ROWS)
    state = layers.State(gram[None], np.zeros((1, 0, 0)), np.zeros((1, 2, 0, 0)))

    def make(times):
        course = layers.Course(
            0, 1, np.uint32(7), np.uint32(0), np.full(times, -1), np.zeros((1, 0, BATCH, BATCH)),
            np.zeros((1, 0, 0), np.int64), np.zeros((1, 3), np.int64), 0.0, True, False,
        )  # fmt: skip
        specs = layers.records(spec)
        return lambda: layers.layers(None, source, sigma, specs, state, course, work, sums)

    return make


def njit_layers():
    """For `Candidate.make`: so many calls from a compiled loop."""
    sigma, law, work, gram = pieces()
    layer_of = kernels.conditional_layer

    @numba.njit(nogil=True)
    def layers(sigma, law, times, gram, work):
        status = 0
        for layer in range(1, times + 1):
            status |= layer_of(sigma, law, gram, layer, 0, np.uint64(7), gram, work)
        return status

    return lambda times: lambda: layers(sigma, law, times, gram, work)


def python_layers():
    """For `Candidate.make`: so many calls from Python."""
    sigma, law, work, gram = pieces()
    key = np.uint64(7)

    def make(times):
        def several():
            for layer in range(1, times + 1):
                kernels.conditional_layer(sigma, law, gram, layer, 0, key, gram, work)

        return several

    return make


def c_layers():
    """For `Candidate.make`: so many calls from a loop that the C compiler compiled."""
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

    def make(times):
        return lambda: layers(
            table.address, whole, times, gram.ctypes.data, work.ctypes.data, work.nbytes
        )

    return make


def pieces():
    """An activation, a law, a workspace and a Gram matrix."""
    chain = bnmc.Chain(WIDTH, BATCH, "relu")
    return (
        kernels.activation("relu"), kernels.law(chain), kernels.workspace(chain), np.eye(BATCH)
    )  # fmt: skip
