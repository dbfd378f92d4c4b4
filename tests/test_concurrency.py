"""Threads, processes and forks: the same bits, and no global state."""

import os
import random
import subprocess
import sys
import threading
import warnings
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context

import numpy as np
import pytest

from bnmc import Chain, simulate

SIGMA = "leaky_relu"
CHAINS = {
    "conditional": Chain(50, 4, SIGMA),
    "conditional, skip": Chain(50, 4, SIGMA, skip=0.5),
    "weights": Chain(50, 4, SIGMA, weights="uniform"),
    "factor": Chain(50, 4, "linear", norm="none"),
}


def run(name, threads=2):
    sampler = "conditional" if name.startswith("conditional") else "auto"
    chain, depth = CHAINS[name], 30
    return simulate(chain, depth, chains=3, rng=7, threads=threads, sampler=sampler).gram


def in_python(code, **environment):
    """Run a program in a fresh process; return what it printed."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# --- at once --------------------------------------------------------------------------------


def test_eight_threads_at_once():
    alone = {name: run(name, threads=1) for name in CHAINS}
    names = list(CHAINS) * 6
    start = threading.Barrier(8)

    def work(name):
        start.wait(timeout=60)
        return run(name)

    with ThreadPoolExecutor(8) as executor:
        for name, gram in zip(names, executor.map(work, names), strict=True):
            assert np.array_equal(gram, alone[name]), name


def test_spawned_processes():
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as executor:
        for name, gram in zip(CHAINS, executor.map(run, CHAINS), strict=True):
            assert np.array_equal(gram, run(name)), name


def test_errors_come_back_from_a_process():
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as executor:
        error = executor.submit(fail).exception(timeout=300)
    assert type(error).__name__ == "ZeroVarianceError"
    assert (error.chain, error.layer, error.row) == (None, None, 1)


def fail():
    return simulate(CHAINS["conditional"], 1, initial=np.eye(50, 4) * [[1], *[[0]] * 49])


FORK = """
import os
import numpy as np
from bnmc import Chain, simulate

def run():
    chain = Chain(50, 4, "leaky_relu")
    return simulate(chain, 30, chains=4, rng=7, threads=2, sampler="conditional").gram

before = run()
read, write = os.pipe()
child = os.fork()
if child == 0:
    os.write(write, run().tobytes()[:4096])
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert os.read(read, 4096) == before.tobytes()[:4096]
assert np.array_equal(run(), before)
print("same")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_fork_after_a_run():
    assert in_python(FORK) == "same\n"


def test_other_threads_run_meanwhile():
    """Kernels release the GIL: while one thread is in a kernel, another counts."""
    chain = Chain(4000, 20, SIGMA)
    arguments = {"rng": 0, "threads": 1, "sampler": "conditional", "reduce": "layer"}
    simulate(chain, 1, **arguments)
    done = threading.Event()
    steps = []

    def count():
        while not done.wait(0.001):
            steps.append(None)

    counter = threading.Thread(target=count)
    counter.start()
    try:
        # A few calls of a kernel, of a tenth of a second each.
        simulate(chain, 3000, **arguments)
    finally:
        done.set()
        counter.join()
    assert len(steps) > 20


# --- global state ---------------------------------------------------------------------------

STATE = """
import faulthandler, locale, os, random, signal, sys, threading, warnings
import numpy as np

def state():
    return {
        "environment": dict(os.environ),
        "errors": np.geterr(),
        "filters": list(warnings.filters),
        "hooks": (sys.excepthook, sys.displayhook, threading.excepthook, warnings.showwarning),
        "locale": locale.setlocale(locale.LC_ALL),
        "print": np.get_printoptions(),
        "random": random.getstate(),
        "NumPy's random": repr(np.random.get_state()),
        "recursion": sys.getrecursionlimit(),
        "signals": {s: signal.getsignal(s) for s in signal.valid_signals()},
        "threads": [thread.name for thread in threading.enumerate()],
        "where": (os.getcwd(), sys.path[:]),
    }

def same(what, before):
    for name, value in state().items():
        assert value == before[name], (what, name, before[name], value)
"""

IMPORT = """
before = state()
modules = set(sys.modules)
import bnmc
same("import", before)
new = {name.partition(".")[0] for name in set(sys.modules) - modules}
assert new.isdisjoint({"numba", "llvmlite", "scipy", "rich", "typer", "xarray"}), new
bnmc.Chain(10, 3, "relu").activation
same("chain", before)
assert "numba" not in sys.modules and "scipy" not in sys.modules
assert set(bnmc.__all__) <= set(dir(bnmc))
print("same")
"""


def test_an_import_changes_nothing_and_costs_nothing():
    assert in_python(STATE + IMPORT) == "same\n"


RUN = """
import numba
from bnmc import Chain, simulate
# What other packages do when they are imported is not ours.
before = {**state(), "numba": (numba.get_num_threads(), numba.config.NUMBA_NUM_THREADS)}
for dtype in ("float64", "float32"):
    run = simulate(
        Chain(50, 4, "leaky_relu"), 20, chains=3, threads=3, rng=1, sampler="conditional",
        dtype=dtype, observables=["gram", "rank_bound"],
    )
    assert np.isfinite(run.gram).all()
for bad in ({"depth": -1}, {"depth": 1, "initial": np.zeros((50, 4))}):
    try:
        simulate(Chain(50, 4, "leaky_relu"), **bad)
    except ValueError:
        pass
threads = numba.get_num_threads(), numba.config.NUMBA_NUM_THREADS
assert threads == before.pop("numba")
same("simulate", before)
print("same")
"""


def test_a_run_changes_nothing():
    assert in_python(STATE + RUN) == "same\n"


def test_the_callers_settings_do_not_matter():
    """Nor does a run care for NumPy's error handling, or for warnings that are errors."""
    plain = run("conditional")
    state = random.getstate(), np.random.get_state()[1].tobytes()  # noqa: NPY002
    with np.errstate(all="raise"), warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.array_equal(run("conditional"), plain)
        assert np.array_equal(run("factor"), run("factor", threads=1))
    assert state == (random.getstate(), np.random.get_state()[1].tobytes())  # noqa: NPY002
