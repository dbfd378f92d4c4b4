"""Processes for tests: programs, and pools for tests of executors, whose runs have equal bits."""

import multiprocessing
import os
import subprocess
import sys
import textwrap
from concurrent.futures import ProcessPoolExecutor

import numpy as np

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


def assert_same_run(run, expected, complete=True):
    """Compare all that two runs of `bnmc.simulate` recorded, and where they ended."""
    assert run.complete == complete
    assert list(run.observables) == list(expected.observables)
    for name, values in expected.observables.items():
        np.testing.assert_array_equal(run[name], values, strict=True)
    for name, moments in expected.moments.items():
        np.testing.assert_array_equal(run.moments[name].mean, moments.mean)
        np.testing.assert_array_equal(run.moments[name].variance, moments.variance)
        assert run.moments[name].count == moments.count
    for name, array in expected.final_state.arrays.items():
        np.testing.assert_array_equal(run.final_state.arrays[name], array)


def printed_by(code, *options, **environment):
    """Run a program in a fresh process, which can import what this one can; return its output."""
    done = subprocess.run(
        [sys.executable, *options, "-c", textwrap.dedent(code)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout
