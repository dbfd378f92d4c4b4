"""Executors of other packages and of other processes: the same bits, also when workers die."""

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from worker_processes import assert_same_run, fresh

import bnmc
from bnmc._support import workers
from bnmc.errors import ArgumentTypeError, WorkersLostError
from bnmc.invariant import expectation
from bnmc.mixing import tv_bound

CHAIN = bnmc.Chain(12, 3, "relu")
KILL = pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="nothing kills like that here")


def run(executor=None, chain=CHAIN, **options):
    settings = {"depth": 40, "chains": 10, "rng": 3, **options}
    return bnmc.simulate(chain, executor=executor, **settings)


def bound(executor=None):
    return tv_bound(CHAIN, 6, lag=3, chains=40, rng=5, executor=executor)


def assert_same_everywhere(executor):
    assert_same_run(run(executor), run())
    reduced = {"reduce": ("chain", "layer"), "every": 7}
    assert_same_run(run(executor, **reduced), run(**reduced))
    np.testing.assert_array_equal(bound(executor).meeting_times, bound().meeting_times)


class Deadly:
    """A trace that kills so many of the processes that compute it, each in the middle of a task."""

    def __init__(self, folder, deaths):
        self.marks = [Path(folder, f"death-{number}") for number in range(deaths)]
        self.parent = os.getpid()
        self.calls = 0
        #: Too large to go with each task.
        self.ballast = np.ones(1 << 15)

    def __call__(self, G):
        self.calls += 1
        if os.getpid() != self.parent and self.calls > 3:
            for mark in self.marks:
                try:
                    os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
                except FileExistsError:
                    continue
                os.kill(os.getpid(), signal.SIGKILL)
        return np.trace(G)

    @property
    def observable(self):
        return bnmc.Observable(self, name="deadly")

    @property
    def deaths(self):
        return sum(mark.exists() for mark in self.marks)


# --- Dask -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def client():
    import dask  # not above: workers that import this file have no use for it
    import distributed

    with fresh(1) as pool:  # starts the server of processes, which Dask's own come from, too
        context = pool._mp_context.get_start_method()
        pool.submit(int).result()
    settings = {
        # A second death of a task's worker is an error that we hear of, not only Dask.
        "distributed.scheduler.allowed-failures": 1,
        "distributed.worker.multiprocessing-method": context,
    }
    with (
        dask.config.set(settings),
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0",
            memory_limit=0, silence_logs=50,
        ) as cluster,
        distributed.Client(cluster) as client,
    ):  # fmt: skip
        yield client


def test_dask(client):
    assert_same_everywhere(client)
    assert_same_run(run(client.get_executor()), run())
    assert len({os.getpid(), *client.run(os.getpid).values()}) == 3


@KILL
@pytest.mark.parametrize(
    ("chains", "deaths"), [pytest.param(10, 1, marks=pytest.mark.slow), (1, 2)]
)
def test_workers_of_dask_are_killed(client, tmp_path, chains, deaths):
    deadly = Deadly(tmp_path, deaths)
    options = {"observables": ["gram", deadly.observable], "chains": chains}
    assert_same_run(run(client, **options), run(**options))
    assert deadly.deaths == deaths


@pytest.fixture(scope="module")
def worker():
    with fresh(1) as pool:
        yield pool


# --- processes ------------------------------------------------------------------------------


@KILL
def test_workers_of_a_pool_are_killed(tmp_path):
    deadly = Deadly(tmp_path, 1)
    options = {"observables": ["gram", deadly.observable]}
    with fresh(2) as pool:
        assert_same_run(run(pool, **options), run(**options))
    assert deadly.deaths == 1


@KILL
@pytest.mark.slow
def test_workers_of_loky_are_killed(tmp_path):
    """joblib's pool, which each process has one of; a new one replaces it, and stays open."""
    loky = pytest.importorskip("joblib.externals.loky")
    deadly = Deadly(tmp_path, 1)
    options = {"observables": ["gram", deadly.observable]}
    pool = loky.get_reusable_executor(1, timeout=300)
    try:
        assert_same_run(run(pool, **options), run(**options))
        assert deadly.deaths == 1
        assert loky.get_reusable_executor(1, timeout=300).submit(int).result() == 0
    finally:
        loky.get_reusable_executor(1, timeout=300).shutdown(kill_workers=True)


@KILL
@pytest.mark.slow
def test_workers_that_die_again_and_again_end_the_run(tmp_path, monkeypatch):
    """`test_workers.py` counts losses each time, without processes."""
    monkeypatch.setattr(workers, "MOST_LOSSES", 1)
    deadly = Deadly(tmp_path, 50)
    with fresh(1) as pool, pytest.raises(WorkersLostError) as caught:
        run(pool, observables=deadly.observable, chains=1)
    assert caught.value.losses == deadly.deaths == 2


def test_functions_of_the_user_travel_by_value(worker):
    shift = 0.25
    weighed = bnmc.Chain(
        12, 3, lambda x: max(x, 0.0) + shift * x,
        weights=lambda rng, shape: rng.choice([-1.0, 1.0], shape),
    )  # fmt: skip
    shifted = bnmc.Observable(lambda G: G[0] + shift, (3,), name="shifted")
    options = {"chain": weighed, "observables": ["gram", shifted]}
    expected = run(**options)
    result = run(worker, **options)
    assert_same_run(result, expected)
    # The chain of the state is the very chain, not a copy with other functions.
    assert run(worker, weighed, chains=None, rng=None, initial=result.final_state).complete
    means = [
        expectation(
            CHAIN, lambda G: G[0, 1] + shift, burn_in=1, length=3, lag=2, chains=8, rng=1,
            executor=executor,
        )
        for executor in (None, worker)
    ]  # fmt: skip
    assert means[0] == means[1]


class Idle:
    """An executor of other processes, of which nothing is asked."""

    def submit(self, function, /, *args):
        raise AssertionError("work began")


def test_functions_that_cannot_be_pickled_are_refused_before_any_work():
    lock = threading.Lock()

    def locked(G):
        return float(lock.locked())

    def weights(rng, shape):
        return rng.normal(size=shape) + lock.locked()

    for name, work in (
        ("observables", lambda: run(Idle(), observables=bnmc.Observable(locked))),
        ("weights", lambda: run(Idle(), bnmc.Chain(12, 3, weights=weights))),
        ("f", lambda: expectation(CHAIN, locked, rng=0, executor=Idle())),
    ):
        with pytest.raises(ArgumentTypeError, match="lock") as caught:
            work()
        assert caught.value.argument == name
    with ThreadPoolExecutor(2) as pool:  # there nothing is pickled
        assert run(pool, observables=bnmc.Observable(locked))["locked"].shape == (10, 41)


def threads_of_task(G):
    """How many threads the process has, and how many of them are the library's."""
    ours = sum(thread.name.startswith("bnmc") for thread in threading.enumerate())
    return np.array([len(os.listdir("/proc/self/task")), ours])


@pytest.mark.skipif(sys.platform != "linux", reason="counts threads in /proc")
def test_a_task_runs_in_one_thread(worker):
    counted = bnmc.Observable(threads_of_task, (2,), name="counted")
    wide = bnmc.Chain(3000, 3, "relu")  # of which a layer is worth several threads
    # A narrow chain first, which starts what the libraries start at their first use.
    before = run(worker, depth=3, chains=1, observables=counted)["counted"][0, -1, 0]
    during = run(worker, wide, depth=3, chains=4, observables=counted)["counted"]
    assert (during[..., 0] == before).all()
    assert (during[..., 1] == 0).all()


# --- MPI ------------------------------------------------------------------------------------

OVER_MPI = """
import hashlib, os
from mpi4py.futures import MPIPoolExecutor
from bnmc.mixing import tv_bound
import bnmc

if __name__ == "__main__":
    chain = bnmc.Chain(12, 3, "relu")
    with MPIPoolExecutor() as pool:
        run = bnmc.simulate(chain, 40, chains=10, rng=3, executor=pool)
        bound = tv_bound(chain, 6, lag=3, chains=40, rng=5, executor=pool)
        workers = pool.num_workers
    digests = [hashlib.sha256(v.tobytes()).hexdigest() for v in (run.gram, bound.meeting_times)]
    print(workers, *digests)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="Open MPI comes with the extra on Linux only")
def test_mpi(tmp_path):
    script = tmp_path / "over_mpi.py"
    script.write_text(OVER_MPI)
    folders = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    mpiexec = shutil.which("mpiexec", path=folders)
    assert mpiexec is not None, "the extra 'test' brings Open MPI"
    done = subprocess.run(
        [mpiexec, "--allow-run-as-root", "--oversubscribe", "-n", "3",
         sys.executable, "-m", "mpi4py.futures", str(script)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "PATH": folders},
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    expected = [
        hashlib.sha256(values.tobytes()).hexdigest()
        for values in (run().gram, bound().meeting_times)
    ]
    assert done.stdout.split() == ["2", *expected]
