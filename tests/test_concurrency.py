"""Threads, processes and forks: the same bits, and no global state."""

import hashlib
import os
import platform
import random
import sys
import threading
import warnings
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from importlib import metadata
from multiprocessing import get_context

import numpy as np
import pytest
from slow_cases import some
from worker_processes import printed_by

from bnmc import Chain, simulate

SIGMA = "leaky_relu"
CHAINS = {
    "conditional": Chain(50, 4, SIGMA),
    "conditional, skip": Chain(50, 4, SIGMA, skip=0.5),
    "weights": Chain(50, 4, SIGMA, weights="uniform"),
    "factor": Chain(50, 4, "linear", norm="none"),
}


def run(name, threads=2, chains=3):
    sampler = "conditional" if name.startswith("conditional") else "auto"
    return simulate(CHAINS[name], 30, chains=chains, rng=7, threads=threads, sampler=sampler).gram


def in_python(code, **environment):
    return printed_by(code, "-W", "error", **environment)


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


def test_results_and_errors_come_back_from_a_spawned_process():
    # Runs here first: the process then loads the kernels, and does not compile them.
    expected = {name: run(name) for name in CHAINS}
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as executor:
        for name, gram in zip(CHAINS, executor.map(run, CHAINS), strict=True):
            assert np.array_equal(gram, expected[name]), name
        error = executor.submit(fail).exception(timeout=300)
    assert type(error).__name__ == "ZeroVarianceError"
    assert (error.chain, error.layer, error.row) == (None, None, 1)


def fail():
    return simulate(CHAINS["conditional"], 1, initial=np.eye(50, 4) * [[1], *[[0]] * 49])


needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")

FORK = """
import os
import numpy as np
from bnmc import Chain, simulate

def run():
    chain = Chain(50, 4, "leaky_relu")
    return simulate(chain, 30, chains=4, rng=7, threads=2, sampler="conditional").gram

def in_child(work):
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(write, work()[:4096])
        finally:
            os._exit(0)
    os.close(write)
    with open(read, "rb") as pipe:
        found = pipe.read()
    assert os.waitpid(child, 0)[1] == 0
    return found
"""

# The program begins in several threads at once, before the package is imported.
FIRST_USE = """
import threading
from concurrent.futures import ThreadPoolExecutor

start = threading.Barrier(24)

def work(number):
    start.wait(timeout=60)
    import bnmc
    sampler, weights = [("conditional", "gaussian"), ("weights", "uniform")][number % 2]
    chain = bnmc.Chain(50, 4, "leaky_relu", weights=weights)
    run = bnmc.simulate(chain, 30, chains=3, rng=7, threads=number % 3 + 1, sampler=sampler)
    return run.gram.tobytes()

with ThreadPoolExecutor(24) as executor:
    results = list(executor.map(work, range(24)))
assert len(set(results[::2])) == len(set(results[1::2])) == 1
assert results[0] != results[1]
print("same")
"""


def test_the_first_use_is_by_24_threads_at_once():
    assert in_python(FIRST_USE) == "same\n"


# A parallel function of another package has started Numba's threads.  GNU's OpenMP fails after a
# fork, and `workqueue` ends the process if two threads use it.  The kernels use neither.
LAYER = """
import hashlib
from concurrent.futures import ThreadPoolExecutor
import numba
from numba.np.ufunc.parallel import _launch_threads

expected = run()
try:
    raise SystemExit(f"kernels started {numba.threading_layer()}")
except ValueError:
    pass
_launch_threads()
threads = numba.get_num_threads()
with ThreadPoolExecutor(6) as executor:
    for future in [executor.submit(run) for _ in range(12)]:
        assert np.array_equal(future.result(), expected)
bits = expected.tobytes()[:4096]
assert in_child(lambda: run().tobytes()) == bits
# The same holds for a child of a child, and here after the fork.
assert in_child(lambda: run().tobytes() and in_child(lambda: run().tobytes())) == bits
assert np.array_equal(run(), expected)
assert numba.get_num_threads() == threads
print(numba.threading_layer(), hashlib.sha256(expected.tobytes()).hexdigest())
"""


@needs_fork
@pytest.mark.parametrize("layer", some(["workqueue", "omp", "tbb"], "workqueue"))
def test_threading_layers_of_numba(layer):
    environment = {"NUMBA_THREADING_LAYER": layer}
    if layer == "tbb":
        # The loader does not search the folder into which pip installs the library.
        environment["LD_LIBRARY_PATH"] = library_folder("tbb", "libtbb.so")
    gram = run("conditional", threads=1, chains=4)
    digest = hashlib.sha256(gram.tobytes()).hexdigest()
    assert in_python(FORK + LAYER, **environment) == f"{layer} {digest}\n"


def library_folder(distribution, name):
    """Return the folder of a library of a distribution in the extra `test`, on Linux."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        pytest.skip(f"the extra brings no {distribution} for this system")
    files = metadata.files(distribution) or ()
    return str(next(file.locate().resolve().parent for file in files if file.name.startswith(name)))


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
        # The run makes a few calls of a kernel; each takes a tenth of a second.
        simulate(chain, 1000, **arguments)
    finally:
        done.set()
        counter.join()
    assert len(steps) > 20


# --- global state ---------------------------------------------------------------------------

STATE = """
import faulthandler, gc, locale, logging, multiprocessing, os, random, signal, sys, threading
import warnings
import numpy as np

def state():
    return {
        "environment": dict(os.environ),
        "collector": (gc.isenabled(), gc.get_threshold()),
        "errors": (np.geterr(), np.geterrcall()),
        "faults": faulthandler.is_enabled(),
        "filters": list(warnings.filters),
        "hooks": (sys.excepthook, sys.displayhook, sys.unraisablehook, threading.excepthook),
        "logging": (logging.root.handlers[:], logging.root.level, logging.raiseExceptions),
        "locale": locale.setlocale(locale.LC_ALL),
        "print": np.get_printoptions(),
        "random": random.getstate(),
        "NumPy's random": repr(np.random.get_state()),
        "recursion": sys.getrecursionlimit(),
        "showing of warnings": (warnings.showwarning, warnings.formatwarning),
        "start method": multiprocessing.get_start_method(allow_none=True),
        "streams": (sys.stdin, sys.stdout, sys.stderr),
        "switches": (sys.getswitchinterval(), sys.gettrace(), sys.getprofile()),
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


WARNING = """
import numba, sys, warnings

class Finder:
    def find_spec(name, *_):
        if name == "numba.cuda":
            warnings.warn("of the CUDA target", DeprecationWarning)

sys.meta_path.insert(0, Finder)
warnings.simplefilter("error")
import bnmc.kernels.cuda
print("same")
"""


def test_warnings_of_the_import_of_numbas_cuda_target_are_not_errors():
    assert in_python(WARNING) == "same\n"


CALLS = """
import numba, scipy.integrate, scipy.linalg, scipy.optimize, scipy.special, scipy.stats
import bnmc
from bnmc import bounds, gram, invariant, mean_field, mixing, random_matrix, regularity, testing
# Imports of other packages change global state before this point.  So does the next line: Numba
# chooses a start method when it is asked for its number of threads.
threads = numba.get_num_threads(), numba.config.NUMBA_NUM_THREADS
settings = dict(vars(numba.config))
before = state()

chain = bnmc.Chain(40, 4, "relu")
x = np.random.default_rng(0).standard_normal((40, 4))
bnmc.simulate(chain, 3, chains=2, reduce="chain", observables="rank_bound")
for dtype in ("float64", "float32"):
    bnmc.simulate(chain, 20, chains=3, threads=3, sampler="conditional", dtype=dtype)
bnmc.MeanField(chain).fixed_point()
mean_field.stability("tanh", [3])
mixing.tv_bound(chain, 5, chains=20)
mixing.contraction(chain, chains=4)
invariant.expectation(chain, "orthogonality_gap", chains=10, burn_in=1, length=1, lag=2)
invariant.check(chain, samples=np.random.default_rng(1).standard_normal((200, 40, 4)))
linear = bnmc.Chain(8, 8, "linear", norm="batch-uncentred")
regularity.averages(linear, rtol=0.2, chains=4, depth=2000)
bounds.bridging.distortion("tanh", 4, curvature=1)
random_matrix.lyapunov_residual_estimate(8, 1.0, 2, samples=50)
gram.eigenvalues(gram.gram(x))
testing.from_linear_first(lambda x: x, lambda x: x)
for wrong in ({"depth": -1}, {"depth": 1, "initial": np.zeros((40, 4))}):
    try:
        bnmc.simulate(chain, **wrong)
    except ValueError:
        pass
same("calls", before)
assert threads == (numba.get_num_threads(), numba.config.NUMBA_NUM_THREADS)
assert settings == dict(vars(numba.config))
print("same")
"""


def test_a_run_and_calls_all_over_the_package_change_nothing():
    assert in_python(STATE + CALLS) == "same\n"


def test_the_callers_settings_do_not_matter():
    """A run depends neither on NumPy's error handling nor on filters of warnings."""
    plain = run("conditional")
    state = random.getstate(), np.random.get_state()[1].tobytes()  # noqa: NPY002
    with np.errstate(all="raise"), warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.array_equal(run("conditional"), plain)
        assert np.array_equal(run("factor"), run("factor", threads=1))
    assert state == (random.getstate(), np.random.get_state()[1].tobytes())  # noqa: NPY002
