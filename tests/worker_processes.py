"""Processes for tests of executors: fresh ones, without the seconds of an import in each."""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor

#: What the server imports once.  A module that cannot be imported is left out.
PRELOADED = [
    "bnmc.invariant", "bnmc.mixing", "bnmc.simulation.run", "numba.cloudpickle", "distributed",
]  # fmt: skip


def fresh(count):
    """Return a pool of processes that share nothing with this one, but have imported `bnmc`.

    Like spawned ones they get every object by pickling.  They are forks of a server that has
    imported `bnmc`, if the system has such servers.
    """
    available = "forkserver" in multiprocessing.get_all_start_methods()
    context = multiprocessing.get_context("forkserver" if available else "spawn")
    if available:
        context.set_forkserver_preload(PRELOADED)
    return ProcessPoolExecutor(count, mp_context=context)
