"""What a fresh process pays: imports, the first simulation, and the memory of a wide run.

Everything here runs in child processes; each prints one JSON object.
"""

import tempfile
from pathlib import Path

import pytest

from bench.children import CAN_WATCH, child, memory_of

IMPORT_FLOOR = 1.3
WARM_SECONDS, COLD_SECONDS = 1.0, 20.0
MIB = 1.048576  # in MB of 10^6 bytes
MEMORY = 64 * MIB

#: Limits of the first call of each kind with an empty cache, in CPU seconds of the process, which
#: other processes disturb less than the time that passes.  They include imports.
FIRST_CALLS = {"simulate": 6.0, "tv_bound": 8.0, "expectation": 8.0}

#: Milliseconds of a small run whose kernels are compiled.
WARM_CALL = 0.25

IMPORT = """
import json, time
start = time.perf_counter()
import {modules}
print(json.dumps({{"import": time.perf_counter() - start}}))
"""

FIRST = """
import json, time
start = time.perf_counter()
import bnmc
imported = time.perf_counter()
chain = bnmc.Chain(width=1000, batch=10, activation="relu")
bnmc.simulate(chain, depth=10, chains=4, initial="gaussian", rng=0)
done = time.perf_counter()
print(json.dumps({"import": imported - start, "simulate": done - imported}))
"""

CALL = """
import json, time
from numba.core import event

class Count(event.Listener):
    compiled = 0
    def on_start(self, event):
        self.compiled += 1
    def on_end(self, event):
        pass

count = Count()
event.register("numba:compile", count)
import bnmc
from bnmc import gram, invariant, mixing

chain = bnmc.Chain(width=1000, batch=10, activation="{activation}")
begun = time.process_time()
if "{kind}" == "simulate":
    bnmc.simulate(chain, 10, rng=0)
elif "{kind}" == "tv_bound":
    mixing.tv_bound(chain, depth=5, chains=20, rng=0)
else:
    invariant.expectation(chain, gram.orthogonality_gap, chains=20, rng=0)
print(json.dumps({{"cpu": time.process_time() - begun, "compiled": count.compiled}}))
"""

WARM_RUN = """
import json, time
import bnmc
chain = bnmc.Chain(8, 4)
for _ in range(20):
    bnmc.simulate(chain, 1, rng=0)
taken = []
for _ in range(500):
    begun = time.perf_counter()
    bnmc.simulate(chain, 1, rng=0)
    taken.append(time.perf_counter() - begun)
print(json.dumps(sorted(1e3 * each for each in taken)))
"""

WIDE_SETUP = """
import bnmc

def run(width):
    chain = bnmc.Chain(width=width, batch=10, activation="relu")
    return bnmc.simulate(chain, depth=2, every=2, chains={chains}, initial="gaussian", rng=0,
                         sampler="conditional", dtype="{dtype}")

run(1000)
"""
CONTROL = "bytearray(b'1') * (100 * 2**20)"  # the method has to see these 100 MB


@pytest.fixture(scope="module")
def cache():
    """A cache of compiled kernels, which the first call fills."""
    with tempfile.TemporaryDirectory() as folder:
        yield folder


def test_imports(turns):
    """`import bnmc` against `import numba, numpy`, in turns."""
    turns.group = "Seconds to import, fresh process"
    seconds = {"bnmc": [], "numba, numpy": []}
    for turn in range(turns.of(12, 4, 2)):
        for modules, taken in seconds.items():
            sample = child(IMPORT.format(modules=modules))["import"]
            if turn:  # the first turn reads the files from disk and compiles them to bytecode
                taken.append(sample)
    medians = [turns.record(f"import {name}", taken).median for name, taken in seconds.items()]
    ratio = medians[0] / medians[1]
    turns.hold("import bnmc", "over import numba, numpy", ratio, at_most=IMPORT_FLOOR)


def test_first_simulation(turns):
    """First simulation with an empty compilation cache, then with the filled one."""
    turns.group = "Seconds of the first simulate in a fresh process"
    samples = {"empty cache": [], "filled cache": []}
    for _ in range(turns.of(3, 1)):
        with tempfile.TemporaryDirectory() as folder:
            samples["empty cache"].append(child(FIRST, cache=folder))
            if not any(Path(folder).rglob("*.nbc")):
                raise RuntimeError("the run left no compiled code in NUMBA_CACHE_DIR")
            warm = [child(FIRST, cache=folder) for _ in range(turns.of(3, 3, 1))]
            samples["filled cache"].extend(warm)
    for (name, results), limit in zip(samples.items(), (COLD_SECONDS, WARM_SECONDS), strict=True):
        simulated = turns.record(name, [result["simulate"] for result in results]).median
        imported = turns.record(f"import, {name}", [result["import"] for result in results]).median
        turns.add(name, {"with the import": simulated + imported})
        turns.hold(name, "s", simulated, at_most=limit)


@pytest.mark.parametrize("kind", FIRST_CALLS)
def test_first_calls(turns, kind):
    """First calls with an empty compilation cache: CPU seconds and functions compiled."""
    turns.group = "First call at (1000, 10), empty cache, CPU seconds"
    script = CALL.format(kind=kind, activation="linear" if kind == "simulate" else "relu")
    samples = []
    for _ in range(turns.of(3, 1)):
        with tempfile.TemporaryDirectory() as folder:
            samples.append(child(script, cache=folder))
    seconds = turns.record(kind, [sample["cpu"] for sample in samples]).median
    turns.add(kind, {"functions compiled": int(samples[0]["compiled"])})
    turns.hold(kind, "s", seconds, at_most=FIRST_CALLS[kind])


def test_small_run(turns, cache):
    """A small run whose kernels are compiled: what a call costs besides its layers."""
    turns.group = "A small run, 500 calls"
    child(WARM_RUN, cache=cache)
    calls = child(WARM_RUN, cache=cache)
    name = "simulate(Chain(8, 4), 1)"
    turns.record(name, [seconds / 1e3 for seconds in calls])
    turns.add(name, {"median, ms": calls[len(calls) // 2]})
    turns.hold(name, "least, ms", calls[0], at_most=WARM_CALL)


@pytest.mark.skipif(not CAN_WATCH, reason="the peak of a process cannot be reset")
@pytest.mark.parametrize("chains", [1, 16])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_memory(turns, cache, dtype, chains):
    """Peak resident memory that a run at (10**6, 10) adds to a warmed-up process."""
    width = turns.of(10**6, 10**6, 1000)
    turns.group = f"Memory of a run at ({width}, 10)"
    setup, wide = WIDE_SETUP.format(dtype=dtype, chains=chains), f"run({width})"
    memory_of(setup, wide, cache=cache)  # a wide run may need kernels of its own
    control = memory_of(setup, CONTROL, cache=cache)["added"]
    if not 99 < control / MIB < 110:
        raise RuntimeError(f"{100 * MIB} MB allocated, {control} MB seen: the method is broken")
    name = f"{dtype}, {chains} chains"
    added = turns.timed(name, lambda: memory_of(setup, wide, cache=cache))["added"]
    turns.add(name, {"control of 105 MB": control})
    turns.hold(name, "MB added", added, at_most=MEMORY)
