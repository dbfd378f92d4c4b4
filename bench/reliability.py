"""Runs that are killed, interrupted, corrupted and fed with nonsense: counts, and what it costs.

Every run is compared bit by bit with one that nothing happened to.  Children die with this process.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import multiprocessing
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

import bench.startup as startup
import bnmc
from bench.memory import add_memory
from bench.report import Cell, Floor, Report, Table
from bnmc.simulation import plan

NAMES = ("kills", "dask", "fuzz", "soak", "overhead", "corruption", "full disk", "memory")
SEED = 2026
#: Of the stores of these benchmarks: short runs are to have many tiles.
TILE_SECONDS = 2e-3
DEPTH = 12_000
CHAIN = {"width": 20, "batch": 4, "activation": "relu"}
OBSERVABLES = ["gram", "eigenvalues"]

SOAK_LAYERS = 10**7
#: Calls of each group of `tests/fuzzing.py`, for each 1000.
SHARES = {
    "functions": 640, "runs": 150, "files": 120, "pickles": 40, "command line": 25, "written": 15,
    "stores": 10,
}  # fmt: skip


def benchmark(*, quick: bool, only: str | None = None) -> Report:
    """Kills of processes and workers, hostile calls, memory of long runs, damage, overhead."""
    if only is not None and only not in NAMES:
        raise SystemExit(f"--only {only}: none of {', '.join(NAMES)}")
    report = Report("reliability" if only is None else f"reliability-{only.replace(' ', '-')}")
    parts: dict[str, Callable[[Report, bool], None]] = {
        "kills": add_kills, "dask": add_dask, "fuzz": add_fuzz, "soak": add_soak,
        "overhead": add_overhead, "corruption": add_corruption, "full disk": add_full_disk,
        "memory": add_memory,
    }  # fmt: skip
    for name in NAMES if only is None else (only,):
        parts[name](report, quick)
    return report


# --- what they share ------------------------------------------------------------------------


def run(path: Path | None = None, **options: Any) -> bnmc.Trajectory:
    """The run of these benchmarks, in memory or in a store."""
    settings = {
        "depth": DEPTH, "every": 10, "chains": 4, "rng": SEED, "observables": OBSERVABLES,
        "threads": 1, **options,
    }  # fmt: skip
    return bnmc.simulate(bnmc.Chain(**CHAIN), store=path, **settings)


def same(found: bnmc.Trajectory, expected: bnmc.Trajectory) -> bool:
    """Whether two runs have the same bits, their final states included."""
    pairs = [(found[name], expected[name]) for name in OBSERVABLES]
    states = found.final_state.arrays, expected.final_state.arrays
    pairs += [(states[0][name], states[1][name]) for name in states[1]]
    return found.complete and all(np.array_equal(one, other) for one, other in pairs)


@contextlib.contextmanager
def many_tiles() -> Iterator[Path]:
    """A folder for stores, which have many tiles meanwhile."""
    former = plan.STORED_TILE_SECONDS
    plan.STORED_TILE_SECONDS = TILE_SECONDS
    try:
        with tempfile.TemporaryDirectory() as folder:
            yield Path(folder)
    finally:
        plan.STORED_TILE_SECONDS = former


def die_with_parent() -> None:
    """Let the kernel kill this process when the thread that started it ends (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        if os.getppid() == 1:
            os._exit(1)


def journal(path: Path) -> list[bytes]:
    """The finished tiles of a store."""
    file = path / "progress" / "journal"
    return file.read_bytes().splitlines(keepends=True) if file.exists() else []


# --- kill -9 of a process that writes a store -----------------------------------------------


def write(path: str) -> None:
    die_with_parent()
    run(Path(path))


def add_kills(report: Report, quick: bool) -> None:
    """Kill a process at any time of its life; resume a copy of what it left, and itself."""
    wanted = 10 if quick else 200
    rng = random.Random(SEED)
    counts: collections.Counter[str] = collections.Counter()
    found: list[int] = []
    expected = run()
    context = multiprocessing.get_context("fork")
    with many_tiles() as folder:
        run(folder / "zeroth.zarr")  # loads what it needs
        begun = time.perf_counter()
        run(folder / "first.zarr")
        life = time.perf_counter() - begun
        tiles = len(journal(folder / "first.zarr"))
        path = folder / "run-0.zarr"
        while counts["kills"] < wanted:
            before = journal(path)
            child = context.Process(target=write, args=(str(path),))
            child.start()
            child.join(rng.uniform(0.0, 1.1 * life))
            child.kill()
            child.join()
            if child.exitcode == 0:  # it was faster
                counts["runs that ended themselves"] += 1
                counts["of these, other bits"] += not same(run(path), expected)
                path = folder / f"run-{counts['runs that ended themselves']}.zarr"
                continue
            counts["kills"] += 1
            after = journal(path)
            found.append(len(after))
            # Lines are only added, so that what was finished before must still be there.
            counts["lost blocks"] += before != after[: len(before)]
            copy = folder / "copy.zarr"
            if path.exists():
                shutil.copytree(path, copy)
            counts["lost blocks"] += damaged(copy, expected) if after else 0
            counts["identical resumes"] += same(run(copy), expected)
            shutil.rmtree(copy)
    rows: list[list[Cell]] = [[name, count] for name, count in counts.items()]
    rows.append([f"blocks found after a kill, of {tiles}, median", statistics.median(found)])
    report.tables.append(Table("kill -9 of a process that writes a store", ["what", "n"], rows))
    report.samples["blocks found after a kill"] = found
    report.floors += [
        Floor("lost blocks", counts["lost blocks"], 0, at_most=True),
        Floor("identical resumes after a kill -9", counts["identical resumes"], wanted),
        Floor("runs killed again and again, other bits", counts["of these, other bits"], 0, True),
    ]


def damaged(path: Path, expected: bnmc.Trajectory) -> int:
    """How many blocks of the journal have other data than an uninterrupted run."""
    import json

    import zarr

    group = zarr.open_group(path, mode="r", zarr_format=3)
    part, block = (int(group.attrs[name]) for name in ("part", "block"))
    wrong = 0
    for line in journal(path):
        if not line.endswith(b"\n"):  # it was being written
            continue
        entry = json.loads(line.partition(b" ")[2])
        chains = slice(entry["part"] * part, (entry["part"] + 1) * part)
        slots = slice(entry["block"] * block, (entry["block"] + 1) * block)
        wrong += not all(
            np.array_equal(group[name][chains, slots], expected[name][chains, slots])
            for name in OBSERVABLES
        )
    return wrong


# --- workers of Dask ------------------------------------------------------------------------


def slow_trace(G: np.ndarray[Any, Any]) -> float:
    time.sleep(2e-3)
    return float(np.trace(G))


def add_dask(report: Report, quick: bool) -> None:
    """Kill workers of a local cluster at random while runs go on."""
    import dask
    import distributed

    wanted = 5 if quick else 50
    rng = random.Random(SEED)
    options = {"observables": [*OBSERVABLES, bnmc.Observable(slow_trace)], "chains": 32,
               "depth": 2000, "every": 20}  # fmt: skip
    expected = run(**options)
    counts: collections.Counter[str] = collections.Counter(kills=0)
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 10}),
        distributed.LocalCluster(
            n_workers=4, threads_per_worker=1, processes=True, dashboard_address=":0",
            memory_limit=0, silence_logs=60,
        ) as cluster,
        distributed.Client(cluster) as client,
    ):  # fmt: skip
        while counts["kills"] < wanted:
            cluster.scale(4)  # Dask gives some up that do not start at once
            over = threading.Event()

            def kill_some(over: threading.Event = over) -> None:
                while not over.wait(rng.uniform(0.3, 1.5)) and counts["kills"] < wanted:
                    nannies = [
                        one
                        for one in list(cluster.workers.values())
                        if one.status.name == "running"
                    ]
                    if len(nannies) > 1:
                        os.kill(rng.choice(nannies).pid, signal.SIGKILL)
                        counts["kills"] += 1

            killer = threading.Thread(target=kill_some)
            killer.start()
            try:
                found = run(executor=client, **options)
            finally:
                over.set()
                killer.join()
            counts["runs"] += 1
            counts["identical runs"] += same(found, expected)
    rows: list[list[Cell]] = [[name, count] for name, count in counts.items()]
    report.tables.append(Table("kill -9 of workers of Dask", ["what", "n"], rows))
    report.floors += [
        Floor("kills of workers of Dask", counts["kills"], wanted),
        Floor("share of these runs that have the same bits",
              counts["identical runs"] / counts["runs"], 1.0),
    ]  # fmt: skip


# --- hostile calls --------------------------------------------------------------------------

Calls = list[tuple[str, int]]


def make_calls(
    calls: Calls, at: Any, folder: str, results: Any, first: int
) -> None:  # in a child: a crash is to be seen
    die_with_parent()
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    import fuzzing

    ends: collections.Counter[str] = collections.Counter()
    findings = []
    for number in range(first, len(calls)):
        at.value = number
        try:
            ends[fuzzing.fuzz(*calls[number], Path(folder))] += 1
        except fuzzing.Finding as finding:
            ends["finding"] += 1
            findings.append(str(finding))
    results.put((dict(ends), findings))


def add_fuzz(report: Report, quick: bool) -> None:
    """Hostile calls, of which none may crash, hang or raise what is no error of the library."""
    thousands = 2 if quick else 100
    # Other seeds than those of the tests.
    calls: Calls = [
        (group, 10**6 + number)
        for group, share in SHARES.items()
        for number in range(share * thousands)
    ]
    random.Random(SEED).shuffle(calls)
    context = multiprocessing.get_context("spawn")
    at, results = context.Value("q", 0), context.Queue()
    ends: collections.Counter[str] = collections.Counter()
    findings: list[str] = []
    first = 0
    with tempfile.TemporaryDirectory() as folder:
        while first < len(calls):
            child = context.Process(target=make_calls, args=(calls, at, folder, results, first))
            child.start()
            stuck, since = -1, time.monotonic()
            while child.is_alive():
                if not results.empty():
                    counted, found = results.get()
                    ends.update(counted)
                    findings += found
                    child.join()
                    break
                if at.value != stuck:
                    stuck, since = at.value, time.monotonic()
                elif time.monotonic() - since > 60.0:  # 20 s of a call, on a machine that is busy
                    child.kill()
                    findings.append(f"a hang: fuzz{calls[stuck]}")
                time.sleep(0.2)
            child.join()
            if child.exitcode == 0:
                break
            findings.append(f"exit status {child.exitcode}: fuzz{calls[at.value]}")
            ends["finding"] += 1
            first = at.value + 1  # what was counted of this child is lost with it
    rows: list[list[Cell]] = [[name, count] for name, count in sorted(ends.items())]
    report.tables.append(Table("Hostile calls", ["end", "n"], rows))
    if findings:
        report.tables.append(Table("Findings", ["what"], [[one[:300]] for one in findings[:20]]))
    report.samples["findings"] = findings
    report.floors += [
        Floor("hostile calls", sum(ends.values()), 1000 * thousands),
        Floor("crashes, hangs and foreign errors", len(findings), 0, at_most=True),
    ]


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
first = {layers} // 10
sizes = [size for done, size in resident if done >= first]
step = max(1, len(resident) // 50)
print(json.dumps({{"least": min(sizes), "most": max(sizes), "n": len(sizes),
                   "samples": resident[::step]}}))
"""


def add_soak(report: Report, quick: bool) -> None:
    """The resident set of long runs after a tenth of their layers."""
    layers = SOAK_LAYERS // (100 if quick else 1)
    ways = {
        "moments": '{"reduce": "layer", "observables": "orthogonality_gap"}',
        "store": '{"store": folder + "/run.zarr", "every": 1000}',
    }
    rows: list[list[Cell]] = []
    for name, options in ways.items():
        found = startup.child(SOAK.format(options=options, layers=layers))
        growth = found["most"] / found["least"] - 1.0
        rows.append([name, layers, found["n"], found["least"], found["most"], 100.0 * growth])
        report.samples[f"MB resident, {name}"] = found["samples"]
        report.floors.append(
            Floor(f"growth of the resident set, {name}", growth, 0.01, at_most=True)
        )
    headers = ["way", "layers", "samples", "least MB", "most MB", "growth %"]
    report.tables.append(Table("Resident set after a tenth of the layers", headers, rows))


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


# --- damage ---------------------------------------------------------------------------------


def add_corruption(report: Report, quick: bool) -> None:
    """Damage a complete store at random; the same call must find it and make it good."""
    wanted = 12 if quick else 100
    rng = random.Random(SEED)
    counts: collections.Counter[str] = collections.Counter()
    kinds = (truncated, flipped, deleted, swapped, torn_journal, damaged_state)
    expected = run()
    with many_tiles() as folder:
        base = folder / "base.zarr"
        run(base)
        for number in range(wanted):
            kind = kinds[number % len(kinds)]
            path = folder / "copy.zarr"
            shutil.copytree(base, path)
            kind(path, rng)
            # What nobody repairs is wrong: else there would be nothing to find.
            whole = len(journal(path)) == len(journal(base))
            is_seen = kind is damaged_state or not whole or damaged_or_torn(path, expected)
            counts[f"{kind.__name__}, real"] += is_seen
            counts["real"] += is_seen
            repaired = same(run(path), expected) and not damaged_or_torn(path, expected)
            counts[f"{kind.__name__}, repaired"] += repaired
            counts["repaired"] += repaired
            shutil.rmtree(path)
    rows: list[list[Cell]] = [
        [kind.__name__.replace("_", " "), counts[f"{kind.__name__}, real"],
         counts[f"{kind.__name__}, repaired"]]
        for kind in kinds
    ]  # fmt: skip
    report.tables.append(Table("Damaged stores", ["kind", "damaged", "repaired"], rows))
    report.floors.append(Floor("damaged stores found and repaired", counts["repaired"], wanted))
    report.floors.append(Floor("of these, really damaged", counts["real"], wanted))


def damaged_or_torn(path: Path, expected: bnmc.Trajectory) -> bool:
    try:
        return damaged(path, expected) > 0
    except ValueError:  # what Zarr says of bytes that are no chunk, and JSON of a torn line
        return True


def a_chunk(path: Path, rng: random.Random) -> Path:
    return rng.choice(
        sorted(
            one for name in OBSERVABLES for one in (path / name / "c").rglob("*") if one.is_file()
        )
    )


def truncated(path: Path, rng: random.Random) -> None:
    chunk = a_chunk(path, rng)
    content = chunk.read_bytes()
    chunk.write_bytes(content[: rng.randrange(len(content))])


def flipped(path: Path, rng: random.Random) -> None:
    # The last block has room for more layers than there are; a byte of these is no damage.
    chunk = a_chunk(path, rng)
    content = bytearray(chunk.read_bytes())
    content[rng.randrange(max(1, len(content) // 50))] ^= 1 << rng.randrange(8)
    chunk.write_bytes(content)


def deleted(path: Path, rng: random.Random) -> None:
    a_chunk(path, rng).unlink()


def swapped(path: Path, rng: random.Random) -> None:
    one, other = a_chunk(path, rng), a_chunk(path, rng)
    while one.read_bytes() == other.read_bytes():
        other = a_chunk(path, rng)
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)


def torn_journal(path: Path, rng: random.Random) -> None:
    file = path / "progress" / "journal"
    content = file.read_bytes()
    file.write_bytes(content[: rng.randrange(len(content) - 1)])


def damaged_state(path: Path, rng: random.Random) -> None:
    state = rng.choice(sorted((path / "progress").glob("state-*.npz")))
    content = bytearray(state.read_bytes())
    content[rng.randrange(len(content))] ^= 0xFF
    state.write_bytes(content)


# --- a full disk ----------------------------------------------------------------------------

FULL = """
import ctypes, json, resource, signal, sys
from pathlib import Path
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, 9)
from bench import reliability
from bnmc.errors import StoreError

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
reliability.plan.STORED_TILE_SECONDS = reliability.TILE_SECONDS
if {limit}:
    resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))
try:
    reliability.run(Path({path!r}))
    end = "complete"
except StoreError as error:
    end = f"StoreError: {{error}}"
print(json.dumps(end))
"""


def add_full_disk(report: Report, quick: bool) -> None:
    """Fill a disk, or where none can be mounted let files be no longer than a limit."""
    wanted = 2 if quick else 10
    rng = random.Random(SEED)
    expected = run()
    stopped = repaired = 0
    with many_tiles() as folder:
        disk = folder / "disk"
        disk.mkdir()
        has_disk = mounted(disk)
        try:
            for _ in range(wanted):
                path = disk / "run.zarr"
                if has_disk:  # of what would be 768 kB and more
                    size = rng.randrange(100, 700) << 10
                    subprocess.run(["mount", "-o", f"remount,size={size}", str(disk)], check=True)
                # A file of the limit's length is the journal or a chunk.
                limit = 0 if has_disk else rng.randrange(500, 4000)
                end = startup.child(FULL.format(path=str(path), limit=limit))
                stopped += end.startswith("StoreError")
                if has_disk:
                    subprocess.run(["mount", "-o", "remount,size=1g", str(disk)], check=True)
                repaired += same(run(path), expected)
                shutil.rmtree(path, ignore_errors=True)
        finally:
            if has_disk:
                subprocess.run(["umount", str(disk)], check=True)
    how = "a tmpfs that is full" if has_disk else "files that reach RLIMIT_FSIZE"
    rows: list[list[Cell]] = [[how, wanted, stopped, repaired]]
    headers = ["how", "runs", "ended by a StoreError", "identical resumes"]
    report.tables.append(Table("Full disks", headers, rows))
    report.floors += [
        Floor("full disks that ended a run by a StoreError", stopped, wanted),
        Floor("identical resumes after a full disk", repaired, wanted),
    ]


def mounted(path: Path) -> bool:
    """Mount a small disk, if this is allowed."""
    command = ["mount", "-t", "tmpfs", "-o", "size=100k", "tmpfs", str(path)]
    try:
        return subprocess.run(command, capture_output=True).returncode == 0
    except OSError:
        return False
