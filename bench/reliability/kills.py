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
    OBSERVABLES,
    SEED,
    damaged,
    die_with_parent,
    journal,
    many_tiles,
    run,
    same,
)
from bench.report import Cell, Floor, Report, Table

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
