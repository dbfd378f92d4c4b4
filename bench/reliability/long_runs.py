"""The resident set of long runs, and the time that processes and stores cost."""

from __future__ import annotations

import multiprocessing
import statistics
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import bench.startup as startup
import bnmc
from bench.reliability.stored_runs import die_with_parent
from bench.report import Cell, Floor, Report, Table

SOAK_LAYERS = 10**7

# --- memory of long runs --------------------------------------------------------------------

SOAK = """
import json, os, tempfile, ctypes, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, 9)
import bnmc

resident = []

def note(done, total):
    with open("/proc/self/statm") as file:
        size = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    resident.append((done, size))

chain = bnmc.Chain(4, 2, "relu")
with tempfile.TemporaryDirectory() as folder:
    options = {options}
    run = bnmc.simulate(chain, {layers}, chains=1, rng=0, threads=1, progress=note, **options)
    assert run.complete
first, middle = {layers} // 10, {layers} // 2
before = [size for done, size in resident if first <= done < middle]
after = [size for done, size in resident if done >= middle]
step = max(1, len(resident) // 50)
print(json.dumps({{"before": max(before), "after": max(after), "n": len(before) + len(after),
                   "samples": resident[::step]}}))
"""


def add_soak(report: Report, quick: bool) -> None:
    """The resident set of long runs: the most after half of the layers over the most before.

    Sizes before a tenth of the layers are left out.  A least size would count memory that is given
    back at the end as growth.
    """
    layers = SOAK_LAYERS // (100 if quick else 1)
    ways = {
        "moments": '{"reduce": "layer", "observables": "orthogonality_gap"}',
        "store": '{"store": folder + "/run.zarr", "every": 1000}',
    }
    rows: list[list[Cell]] = []
    for name, options in ways.items():
        found = startup.child(SOAK.format(options=options, layers=layers))
        growth = found["after"] / found["before"] - 1.0
        rows.append([name, layers, found["n"], found["before"], found["after"], 100.0 * growth])
        report.samples[f"MB resident, {name}"] = found["samples"]
        report.floors.append(
            Floor(f"growth of the resident set, {name}", growth, 0.01, at_most=True)
        )
    headers = ["way", "layers", "samples", "most MB, first half", "second half", "growth %"]
    report.tables.append(Table("Resident set of a long run", headers, rows))


# --- what it costs --------------------------------------------------------------------------


def add_overhead(report: Report, quick: bool) -> None:
    """Processes against one of them, and stores against memory, in turns."""
    rounds = 1 if quick else 5
    add_processes(report, rounds, depth=300 if quick else 3000)
    rows: list[list[Cell]] = []
    for wanted, limit in ((1e6, 1.10), (200e6, 2.0)):
        rows.append(store_overhead(report, wanted, limit, rounds, 1.0 if quick else 10.0))
    headers = ["MB/s", "in memory s", "to a store s", "ratio"]
    report.tables.append(Table("A run to a store against one in memory", headers, rows))


def add_processes(report: Report, rounds: int, depth: int) -> None:
    """Two spawned processes against one."""
    chain = bnmc.Chain(1000, 10, "relu")
    context = multiprocessing.get_context("spawn")
    seconds: dict[int, list[float]] = {1: [], 2: []}
    with (
        ProcessPoolExecutor(1, context, die_with_parent) as one,
        ProcessPoolExecutor(2, context, die_with_parent) as two,
    ):

        def clock(pool: ProcessPoolExecutor, layers: int) -> float:
            begun = time.perf_counter()
            bnmc.simulate(chain, layers, chains=16, rng=0, executor=pool, every=10)
            return time.perf_counter() - begun

        # Started here: what is started in a thread of a run would die with that thread.
        for workers, pool in ((1, one), (2, two)):
            for future in [pool.submit(time.sleep, 0.5) for _ in range(workers)]:
                future.result()
        for pool in (one, two, two):  # loads what they need
            clock(pool, depth)
        for _ in range(rounds):
            for workers, pool in ((1, one), (2, two)):
                seconds[workers].append(clock(pool, depth))
    ratio = statistics.median(a / b for a, b in zip(seconds[1], seconds[2], strict=True))
    rows: list[list[Cell]] = [[n, statistics.median(taken)] for n, taken in seconds.items()]
    title = f"16 chains of (1000, 10) through {depth} layers"
    report.tables.append(Table(title, ["processes", "s"], rows))
    report.samples["processes"] = seconds
    report.floors.append(Floor("2 processes over 1", ratio, 1.8))


def store_overhead(
    report: Report, wanted: float, limit: float, rounds: int, seconds: float
) -> list[Cell]:
    """Time a run in memory and in a store, whose values come at a wanted rate."""
    chain = bnmc.Chain(1000, 10, "relu") if wanted < 1e7 else bnmc.Chain(20, 16, "relu")
    chains = 4

    def clock(depth: int, every: int, path: Path | None) -> tuple[float, int]:
        begun = time.perf_counter()
        found = bnmc.simulate(chain, depth, chains=chains, rng=0, every=every, store=path)
        return time.perf_counter() - begun, len(found.layers)

    clock(100, 1, None)
    with tempfile.TemporaryDirectory() as folder:
        clock(100, 1, Path(folder, "run.zarr"))
    probe, _ = clock(2000, 2000, None)
    layer = probe / 2000
    numbers = 8 * chains * chain.batch**2
    every = max(1, round(numbers / (wanted * layer)))
    depth = round(min(seconds, 1e9 / wanted) / layer)
    taken: dict[str, list[float]] = {"memory": [], "store": []}
    recorded = 0
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            once, recorded = clock(depth, every, None)
            taken["memory"].append(once)
            taken["store"].append(clock(depth, every, Path(folder, "run.zarr"))[0])
    ratio = statistics.median(s / m for s, m in zip(taken["store"], taken["memory"], strict=True))
    memory, store = (statistics.median(taken[name]) for name in ("memory", "store"))
    rate = numbers * recorded / memory / 1e6
    report.samples[f"store at {wanted / 1e6:g} MB/s"] = taken
    what = f"time to a store over memory, about {wanted / 1e6:g} MB/s"
    report.floors.append(Floor(what, ratio, limit, at_most=True))
    return [rate, memory, store, ratio]
