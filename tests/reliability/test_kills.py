"""Processes and workers that are killed while a run goes on; the run is then resumed."""

import multiprocessing
import os
import random
import shutil
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from reliability.processes import die_with_parent
from reliability.stored_runs import CLIENTS, OBSERVABLES, finished, run, same

import bnmc

#: Exit status of a process that Ctrl-C ended, and seconds after which it hangs.
INTERRUPTED, LONGEST = 5, 20.0


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT], ids=["SIGKILL", "SIGINT"])
@pytest.mark.parametrize("client", CLIENTS)
def test_a_process_that_writes_a_store(client, how, stores, option):
    """End a process at any time of its life; resume a copy of what it left, and itself."""
    rng = random.Random(f"{option('case-seed')} {client} {how}")
    make = CLIENTS[client]
    expected = make()
    context = multiprocessing.get_context("fork")
    make(stores / "zeroth.zarr")  # loads what it needs
    begun = time.perf_counter()
    make(stores / "first.zarr")
    life = time.perf_counter() - begun
    path, ends, left = stores / "run-0.zarr", 0, []
    while ends < option("kills"):
        before = finished(path)
        child = context.Process(target=write, args=(client, str(path)))
        # Python in the child is not ready for Ctrl-C until `write` begins.
        former = signal.signal(signal.SIGINT, signal.SIG_IGN)
        child.start()
        signal.signal(signal.SIGINT, former)
        child.join(rng.uniform(0.0, 1.1 * life))
        if child.exitcode is None:
            os.kill(child.pid, how)
        child.join(LONGEST)
        status = child.exitcode
        child.kill()
        child.join()
        assert status is not None, "a process hangs"
        if status == 0:  # it was faster
            assert equal(make(path), expected)
            path = path.with_name(f"{path.stem}x.zarr")
            continue
        ends += 1
        assert status in (-how, INTERRUPTED)
        after = finished(path)
        left.append(len(after))
        # Files are only added, so that what was finished before must still be there.
        assert before <= after
        copy = stores / "copy.zarr"
        if path.exists():
            shutil.copytree(path, copy)
        assert equal(make(copy), expected)
        shutil.rmtree(copy)
    print(f"finished parts, of {len(finished(stores / 'first.zarr'))}: {left}")


def write(client, path):
    """Write a store; Ctrl-C gives the process a status of its own."""
    die_with_parent()
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        CLIENTS[client](Path(path))
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Python ends
    except KeyboardInterrupt:  # also `Interrupted`
        os._exit(INTERRUPTED)


def equal(results, expected):
    return len(results) == len(expected) and all(map(np.array_equal, results, expected))


def slow_trace(G):
    time.sleep(2e-3)
    return float(np.trace(G))


@pytest.mark.filterwarnings("ignore")
def test_workers_of_dask(option):
    """Kill workers of a local cluster at random while runs go on."""
    import dask
    import distributed

    rng = random.Random(option("case-seed"))
    options = {"observables": [*OBSERVABLES, bnmc.Observable(slow_trace)], "chains": 32,
               "depth": 2000, "every": 20}  # fmt: skip
    expected, wanted, kills = run(**options), option("worker-kills"), []
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 10}),
        distributed.LocalCluster(
            n_workers=4, threads_per_worker=1, processes=True, dashboard_address=":0",
            memory_limit=0, silence_logs=60,
        ) as cluster,
        distributed.Client(cluster) as client,
    ):  # fmt: skip

        def kill_some(over):
            while not over.wait(rng.uniform(0.3, 1.5)) and len(kills) < wanted:
                workers = cluster.workers.values()
                running = [worker for worker in workers if worker.status.name == "running"]
                if len(running) > 1:
                    kills.append(rng.choice(running).pid)
                    os.kill(kills[-1], signal.SIGKILL)

        while len(kills) < wanted:
            cluster.scale(4)  # Dask gives some up that do not start at once
            over = threading.Event()
            killer = threading.Thread(target=kill_some, args=(over,))
            killer.start()
            try:
                result = run(executor=client, **options)
            finally:
                over.set()
                killer.join()
            assert same(result, expected)
