"""Processes and workers that are killed while a run goes on; the run is then resumed."""

from __future__ import annotations

import collections
import multiprocessing
import os
import random
import shutil
import signal
import statistics
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

import bnmc
from bench.reliability.stored_runs import (
    CLIENTS,
    OBSERVABLES,
    SEED,
    die_with_parent,
    finished,
    many_tiles,
    run,
    same,
)
from bench.report import Cell, Floor, Report, Table

#: Exit status of a process that Ctrl-C ended, and seconds after which it hangs.
INTERRUPTED, LONGEST = 5, 20.0
#: What must not happen, and all that is counted.
FORBIDDEN = ("lost parts", "other bits", "errors", "processes that hang")
COUNTED = ("ends", "identical resumes", *FORBIDDEN)

# --- a process that writes a store is killed, or gets Ctrl-C ---------------------------------


def write(client: str, path: str) -> None:
    die_with_parent()
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        CLIENTS[client](Path(path))
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Python ends
    except KeyboardInterrupt:  # also `Interrupted`
        os._exit(INTERRUPTED)


def add_kills(report: Report, quick: bool) -> None:
    """End a process at any time of its life; resume a copy of what it left, and itself."""
    wanted = 10 if quick else 200
    for how in (signal.SIGKILL, signal.SIGINT):
        for client in CLIENTS:
            _add_ends(report, client, how, wanted)


def _add_ends(report: Report, client: str, how: signal.Signals, wanted: int) -> None:
    rng = random.Random(f"{SEED} {client} {how}")
    counts: collections.Counter[str] = collections.Counter(dict.fromkeys(COUNTED, 0))
    left: list[int] = []
    make = CLIENTS[client]
    expected = make()
    context = multiprocessing.get_context("fork")
    with many_tiles() as folder:
        make(folder / "zeroth.zarr")  # loads what it needs
        begun = time.perf_counter()
        make(folder / "first.zarr")
        life = time.perf_counter() - begun
        parts = len(finished(folder / "first.zarr"))
        path, stores = folder / "run-0.zarr", 0
        while counts["ends"] < wanted:
            before = finished(path)
            child = context.Process(target=write, args=(client, str(path)))
            # Python in the child is not ready for Ctrl-C until `write` begins.
            former = signal.signal(signal.SIGINT, signal.SIG_IGN)
            child.start()
            signal.signal(signal.SIGINT, former)
            child.join(rng.uniform(0.0, 1.1 * life))
            if child.pid is not None and child.exitcode is None:
                os.kill(child.pid, how)
            child.join(LONGEST)
            counts["processes that hang"] += child.exitcode is None
            child.kill()
            child.join()
            if child.exitcode == 0:  # it was faster
                stores += 1
                counts["other bits"] += not _equal(make(path), expected)
                path = folder / f"run-{stores}.zarr"
                continue
            counts["ends"] += 1
            counts["errors"] += child.exitcode not in (-how, INTERRUPTED)
            after = finished(path)
            left.append(len(after))
            # Files are only added, so that what was finished before must still be there.
            counts["lost parts"] += not before <= after
            copy = folder / "copy.zarr"
            if path.exists():
                shutil.copytree(path, copy)
            counts["identical resumes"] += _equal(make(copy), expected)
            shutil.rmtree(copy)
    what = f"{how.name} of a process: {client}"
    rows: list[list[Cell]] = [[name, count] for name, count in counts.items()]
    rows.append([f"parts that were finished, of {parts}, median", statistics.median(left)])
    report.tables.append(Table(what, ["what", "n"], rows))
    report.samples[f"finished parts after {what}"] = left
    report.floors += [
        *(Floor(f"{what}: {name}", counts[name], 0, at_most=True) for name in FORBIDDEN),
        Floor(f"{what}: identical resumes", counts["identical resumes"], wanted),
    ]


def _equal(values: list[Any], expected: list[Any]) -> bool:
    return len(values) == len(expected) and all(map(np.array_equal, values, expected))


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
