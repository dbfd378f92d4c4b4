"""What a fresh process pays: imports, the first simulation, and the memory of a wide run.

Everything here runs in child processes; each prints one JSON object.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench.report import Cell, Floor, Report, Table

IMPORT_FLOOR = 1.3
WARM_SECONDS, COLD_SECONDS = 1.0, 20.0
MEMORY_MB = 64.0

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
    mixing.tv_bound(chain, depth=5, replicates=20, rng=0)
else:
    invariant.expectation(chain, gram.orthogonality_gap, replicates=20, rng=0)
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
taken.sort()
print(json.dumps({"least": 1e3 * taken[0], "median": 1e3 * taken[250]}))
"""

# The peak of a process never falls, so one left by compilation would hide what the run adds.
# Linux lets a process reset its own peak (proc_pid_clear_refs(5)).
MEMORY = """
import json
import bnmc

def status(field):
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(field))

def run(width):
    chain = bnmc.Chain(width=width, batch=10, activation="relu")
    return bnmc.simulate(chain, depth=2, every=2, chains={chains}, initial="gaussian", rng=0,
                         sampler="conditional", dtype="{dtype}")

run(1000)
with open("/proc/self/clear_refs", "w") as file:
    file.write("5")
before = status("VmRSS:")
{measured}
print(json.dumps({{"before": before, "added": status("VmHWM:") - before}}))
"""
WIDE = "run(10**6)"
CONTROL = "bytearray(b'1') * (100 * 2**20)"  # the method has to see these 100 MB


def benchmark(*, quick: bool) -> Report:
    """Import time, first simulation, and memory; medians over fresh processes."""
    report = Report("startup")
    with tempfile.TemporaryDirectory() as cache:
        add_imports(report, rounds=3 if quick else 11)
        add_first_simulation(report, rounds=1 if quick else 3)
        add_first_calls(report, rounds=1 if quick else 3)
        add_warm_run(report, cache)
        add_memory(report, cache)
    return report


def add_imports(report: Report, *, rounds: int) -> None:
    """`import bnmc` against `import numba, numpy`, in turns."""
    seconds: dict[str, list[float]] = {"bnmc": [], "numba, numpy": []}
    for turn in range(rounds + 1):
        for modules, taken in seconds.items():
            found = child(IMPORT.format(modules=modules))["import"]
            if turn:  # the first turn reads the files from disk and compiles them to bytecode
                taken.append(found)
    medians = {modules: statistics.median(taken) for modules, taken in seconds.items()}
    rows: list[list[Cell]] = [[f"import {modules}", taken] for modules, taken in medians.items()]
    report.tables.append(Table("Seconds to import, fresh process", ["statement", "s"], rows))
    ratio = medians["bnmc"] / medians["numba, numpy"]
    report.floors.append(
        Floor("import bnmc over import numba, numpy", ratio, IMPORT_FLOOR, at_most=True)
    )
    report.samples["imports"] = seconds


def add_first_simulation(report: Report, *, rounds: int) -> None:
    """First simulation with an empty compilation cache, then with the filled one."""
    cold: list[dict[str, float]] = []
    warm: list[dict[str, float]] = []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as cache:
            cold.append(child(FIRST, cache=cache))
            if not any(Path(cache).rglob("*.nbc")):
                raise RuntimeError("the run left no compiled code in NUMBA_CACHE_DIR")
            warm.extend(child(FIRST, cache=cache) for _ in range(3))
    rows: list[list[Cell]] = []
    for name, found, limit in (("cold", cold, COLD_SECONDS), ("warm", warm, WARM_SECONDS)):
        imported = statistics.median(sample["import"] for sample in found)
        simulated = statistics.median(sample["simulate"] for sample in found)
        rows.append([name, imported, simulated, imported + simulated])
        report.floors.append(
            Floor(f"seconds of the first simulate, {name} cache", simulated, limit, at_most=True)
        )
    headers = ["cache", "import", "first simulate", "both"]
    report.tables.append(Table("Seconds in a fresh process", headers, rows))
    report.samples["first"] = {"cold": cold, "warm": warm}


def add_first_calls(report: Report, *, rounds: int) -> None:
    """First calls with an empty compilation cache, in turns: CPU seconds and functions compiled."""
    found: dict[str, list[dict[str, float]]] = {kind: [] for kind in FIRST_CALLS}
    for _ in range(rounds):
        for kind, samples in found.items():
            activation = "linear" if kind == "simulate" else "relu"
            with tempfile.TemporaryDirectory() as cache:
                script = CALL.format(kind=kind, activation=activation)
                samples.append(child(script, cache=cache))
    rows: list[list[Cell]] = []
    for kind, samples in found.items():
        seconds = statistics.median(sample["cpu"] for sample in samples)
        rows.append([kind, seconds, int(samples[0]["compiled"])])
        what = f"CPU seconds of the first {kind}, empty cache"
        report.floors.append(Floor(what, seconds, FIRST_CALLS[kind], at_most=True))
    title = "First call at (1000, 10), empty cache"
    report.tables.append(Table(title, ["call", "CPU s", "functions compiled"], rows))
    report.samples["first calls"] = found


def add_warm_run(report: Report, cache: str) -> None:
    """A small run whose kernels are compiled: what a call costs besides its layers."""
    child(WARM_RUN, cache=cache)
    found = child(WARM_RUN, cache=cache)
    rows: list[list[Cell]] = [["simulate(Chain(8, 4), 1)", found["least"], found["median"]]]
    title = "Milliseconds of a small run, 500 calls"
    report.tables.append(Table(title, ["call", "least", "median"], rows))
    what = "milliseconds of simulate(Chain(8, 4), 1), least of 500"
    report.floors.append(Floor(what, found["least"], WARM_CALL, at_most=True))
    report.samples["warm run"] = found


def add_memory(report: Report, cache: str) -> None:
    """Peak resident memory that a run at (10**6, 10) adds to a warmed-up process."""
    if not os.access("/proc/self/clear_refs", os.W_OK):
        report.tables.append(Table("Memory: needs /proc/self/clear_refs (Linux)", ["MB"], []))
        return
    memory("float32", 1, "", cache)  # fills the compilation cache
    control = memory("float32", 1, CONTROL, cache)
    if not 99 < control < 110:
        raise RuntimeError(f"100 MB allocated, {control} MB seen: the method is broken")
    rows: list[list[Cell]] = []
    for dtype in ("float32", "float64"):
        for chains in (1, 16):
            memory(dtype, chains, WIDE, cache)  # a wide run may need kernels of its own
            added = memory(dtype, chains, WIDE, cache)
            rows.append([dtype, chains, added])
            what = f"MB added by a conditional {dtype} run at (10**6, 10), chains={chains}"
            report.floors.append(Floor(what, added, MEMORY_MB, at_most=True))
    title = f"Memory of a run at (10**6, 10); 100 MB of control seen as {control:.1f}"
    report.tables.append(Table(title, ["dtype", "chains", "MB added"], rows))


def memory(dtype: str, chains: int, measured: str, cache: str) -> float:
    """Peak MB above the state before the measured statement."""
    script = MEMORY.format(dtype=dtype, chains=chains, measured=measured)
    return float(child(script, cache=cache)["added"])


def child(script: str, *, cache: str | None = None) -> Any:
    """Run a script in a fresh interpreter and return the JSON object it prints."""
    environment = dict(os.environ)
    if cache is not None:
        environment["NUMBA_CACHE_DIR"] = cache
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(f"child process failed:\n{done.stderr}")
    return json.loads(done.stdout)
