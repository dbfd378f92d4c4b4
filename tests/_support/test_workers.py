"""Tasks on executors: results do not depend on who runs them, errors and interruptions end them."""

import multiprocessing
import os
import pickle
import signal
import threading
import time
from concurrent.futures import (
    BrokenExecutor,
    CancelledError,
    Executor,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
)
from contextlib import nullcontext
from itertools import pairwise

import numpy as np
import pytest
from worker_processes import fresh

import bnmc
from bnmc._support.progress import as_progress, reporting
from bnmc._support.workers import (
    MOST_LOSSES,
    Calls,
    Workers,
    as_executor,
    even_ranges,
    ranges,
    received,
    results_of,
)
from bnmc.errors import ArgumentTypeError, BnmcError, NotMixing, WorkersLostError, ZeroVarianceError
from bnmc.invariant import expectation
from bnmc.invariant.certified_sample import sample
from bnmc.mixing import coupling
from bnmc.mixing.contraction_rate import contraction
from bnmc.mixing.meeting_bound import tv_bound
from bnmc.simulation import run as simulating
from bnmc.simulation import tiles

# The package has a function of the same name.
CHAIN = bnmc.Chain(20, 3, "relu")


class Duck:
    """An executor that does not derive from the class."""

    def __init__(self):
        self.submitted = 0

    def submit(self, function, /, *args):
        self.submitted += 1
        future = Future()
        future.set_result(function(*args))
        return future


def silent(done, total):
    pass


class Losing(Duck):
    """An executor that loses every other task, in a way of its own."""

    # The number of tasks must not depend on the processors of the machine.
    _max_workers = 3

    def __init__(self, error, every=2):
        super().__init__()
        self.error = error
        self.every = every

    def submit(self, function, /, *args):
        future = super().submit(function, *args)
        if self.submitted % self.every == 0:
            future = Future()
            future.set_exception(self.error)
        return future


def results(executor=None):
    cert = tv_bound(CHAIN, 8, lag=3, replicates=40, rng=5, executor=executor)
    rate = contraction(CHAIN, pairs=8, rng=5, executor=executor)
    mean = expectation(
        CHAIN, "orthogonality_gap", burn_in=1, length=5, lag=2, replicates=20, rng=5,
        executor=executor,
    )  # fmt: skip
    return cert, rate, mean


def assert_same(found, expected):
    np.testing.assert_array_equal(found[0].meeting_times, expected[0].meeting_times)
    np.testing.assert_array_equal(found[0].ci, expected[0].ci)
    assert (found[0].tries, found[0].refusals) == (expected[0].tries, expected[0].refusals)
    np.testing.assert_array_equal(found[1].distance, expected[1].distance)
    assert found[1].rate_estimate == expected[1].rate_estimate
    assert found[2] == expected[2]


def test_results_do_not_depend_on_the_executor():
    expected = results()
    duck = Duck()
    assert_same(results(duck), expected)
    assert duck.submitted > 3
    with ThreadPoolExecutor(3) as pool:
        assert_same(results(pool), expected)
    # Fresh processes, as on the systems that cannot fork and on clusters.
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        assert_same(results(pool), expected)


def test_results_do_not_depend_on_how_work_is_cut(monkeypatch):
    expected = results()
    monkeypatch.setattr(coupling, "TASK_NUMBERS", 1.0)
    monkeypatch.setattr(coupling, "available_processors", lambda: 50)
    assert_same(results(), expected)


def test_numbers_are_cut_into_ranges():
    assert ranges(7, 3) == [(0, 3), (3, 6), (6, 7)]
    assert ranges(3, 9) == [(0, 3)]


def run_tasks(function, tasks, executor, threads, report):
    return results_of(Calls(function, tasks), executor, threads, nullcontext(report))


def test_results_are_in_the_order_of_tasks():
    def late(number):
        time.sleep(0.02 * (3 - number))
        return number

    assert run_tasks(late, [(0,), (1,), (2,)], None, 3, silent) == [0, 1, 2]


def test_an_error_is_raised_and_what_has_not_begun_is_cancelled():
    begun = []

    def fail(number):
        begun.append(number)
        if number == 1:
            raise ZeroDivisionError("task 1")
        time.sleep(0.01)
        return number

    with pytest.raises(ZeroDivisionError, match="task 1"):
        run_tasks(fail, [(number,) for number in range(200)], None, 1, silent)
    assert len(begun) < 150
    with ThreadPoolExecutor(1) as pool:
        begun.clear()
        with pytest.raises(ZeroDivisionError):
            run_tasks(fail, [(number,) for number in range(200)], pool, 1, silent)
        # The pool is the user's, and goes on to serve.
        assert pool.submit(int, "3").result() == 3
    assert len(begun) < 150


def test_an_interruption_cancels_what_has_not_begun():
    begun = []
    first = threading.Event()

    def work(number):
        begun.append(number)
        first.set()
        time.sleep(0.01)
        return number

    def interrupt(done, total):
        assert first.wait(10)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_tasks(work, [(number,) for number in range(200)], None, 1, interrupt)
    assert len(begun) < 150


def test_tasks_submitted_before_a_submission_fails_are_cancelled():
    class Full(Executor):
        futures: list[Future] = []  # noqa: RUF012

        def submit(self, function, /, *args):
            if len(self.futures) == 2:
                raise RuntimeError("no more")
            self.futures.append(Future())
            return self.futures[-1]

    with pytest.raises(RuntimeError, match="no more"):
        run_tasks(int, [(1,)] * 5, Full(), 1, silent)
    assert all(future.cancelled() for future in Full.futures)


def test_an_error_comes_back_from_another_process():
    with (
        fresh(1) as pool,
        pytest.raises(BnmcError, match="layer 1"),
    ):
        # An identity that is even: rows (-1, 1) become (1, 1), without variance.
        tv_bound(bnmc.Chain(5, 2, abs), 3, lag=1, replicates=4, rng=0, executor=pool)


@pytest.mark.parametrize("executor", [3, "threads", type("Half", (), {"map": print})()])
def test_what_is_no_executor(executor):
    with pytest.raises(ArgumentTypeError, match="executor"):
        as_executor(executor)


def test_progress_is_called_until_all_is_done():
    for estimator, options in (
        (tv_bound, {"depth": 3, "lag": 2, "replicates": 40}),
        (contraction, {"pairs": 8}),
        (expectation, {"f": np.trace, "replicates": 20, "burn_in": 1, "length": 2, "lag": 2}),
        (sample, {"size": 3, "tolerance": 0.1}),
    ):
        calls = []
        estimator(CHAIN, rng=0, progress=lambda *at, calls=calls: calls.append(at), **options)
        assert calls[-1][0] == calls[-1][1] > 0


def test_a_progress_that_raises_ends_the_work():
    def stop(done, total):
        raise LookupError("enough")

    with pytest.raises(LookupError, match="enough"):
        tv_bound(CHAIN, 3, lag=2, replicates=40, rng=0, progress=stop)


def test_a_bar_on_standard_error(capsys):
    with reporting(True, "work", "tasks") as report:
        report(1, 2)
        report(2, 2)
    assert capsys.readouterr().out == ""
    with reporting(as_progress(np.bool_(False)), "work", "tasks") as report:
        report(1, 2)
    with pytest.raises(ArgumentTypeError, match="progress"):
        as_progress(1)


def test_not_mixing_survives_pickling():
    import pickle

    error = pickle.loads(pickle.dumps(NotMixing("0 of 3 pairs met", (1, 2), -0.5, 0.25)))
    assert type(error) is NotMixing
    assert str(error) == error.reason == "0 of 3 pairs met"
    assert (error.partial, error.exponent, error.pivot_trend) == ((1, 2), -0.5, 0.25)


# --- simulations in tiles

RUNS = {
    "conditional": (CHAIN, {}),
    "inputs, skip": (bnmc.Chain(20, 3, "relu", skip=0.5), {"inputs": 2, "every": 4, "burn_in": 2}),
    "weights in float32": (bnmc.Chain(20, 3, "relu", weights="uniform"), {"dtype": "float32"}),
    "factor": (bnmc.Chain.vanilla(20, 3), {"observables": ["scaled_gram", "log_scale"]}),
    "moments": (CHAIN, {"reduce": ("chain", "layer")}),
    "moments over chains": (CHAIN, {"reduce": "chain", "every": 3}),
}


def run(chain, **options):
    return bnmc.simulate(chain, 30, chains=7, rng=2, **options)


def assert_same_run(found, expected):
    assert found.complete
    for name, values in expected.observables.items():
        np.testing.assert_array_equal(found[name], values)
    for name, moments in expected.moments.items():
        np.testing.assert_array_equal(found.moments[name].mean, moments.mean)
        np.testing.assert_array_equal(found.moments[name].variance, moments.variance)
        assert found.moments[name].count == moments.count
    for name, values in expected.final_state.arrays.items():
        np.testing.assert_array_equal(found.final_state.arrays[name], values)


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize(("part", "block"), [(1, 1), (3, 5), (7, 31), (2, 100)])
def test_bits_do_not_depend_on_how_a_run_is_cut(name, part, block, monkeypatch):
    chain, options = RUNS[name]

    def grid_of(run, *_):
        return tiles.Grid.of_slots(run.chains, run.recorded, part, block)

    monkeypatch.setattr(simulating, "grid_of", grid_of)
    expected = run(chain, **options)
    with ThreadPoolExecutor(3) as pool:
        assert_same_run(run(chain, **options, executor=pool), expected)


def test_functions_of_the_user_go_to_other_processes():
    offset = 2.5
    chain = bnmc.Chain(
        20, 3, bnmc.Activation(lambda x: x * x * x, name="cube"),
        weights=lambda generator, shape: generator.normal(size=shape),
    )  # fmt: skip
    observables = {"f": lambda g: g[0, 1] + offset, "gap": lambda g: bnmc.gram.orthogonality_gap(g)}
    assert pickle.loads(pickle.dumps(chain)).weights(np.random.default_rng(0), (2, 2)).shape == (
        2,
        2,
    )
    expected = run(chain, observables=observables)
    with fresh(2) as pool:
        assert_same_run(run(chain, observables=observables, executor=pool), expected)


def test_functions_that_cannot_be_sent_are_named_before_any_work():
    lock = threading.Lock()
    observables = {"f": lambda g: g[0, 0] if lock else 0.0}
    duck = Duck()
    with pytest.raises(ArgumentTypeError, match=r"observables.*cloudpickle"):
        run(CHAIN, observables=observables, executor=duck)
    weights = bnmc.Chain(20, 3, weights=lambda generator, shape: np.ones(shape) if lock else lock)
    with pytest.raises(ArgumentTypeError, match=r"weights.*cloudpickle"):
        run(weights, executor=duck)
    assert duck.submitted == 0
    # Threads share memory: nothing is sent.
    with ThreadPoolExecutor(2) as pool:
        run(CHAIN, observables=observables, executor=pool)


class KilledWorker(Exception):
    __module__ = "distributed.scheduler"


@pytest.mark.parametrize(
    "error", [BrokenExecutor("gone"), CancelledError(), KilledWorker("gone")], ids=repr
)
def test_a_lost_task_is_done_again(error):
    expected = run(CHAIN)
    losing = Losing(error)
    assert_same_run(run(CHAIN, executor=losing), expected)
    # Seven chains in four parts of one tile each: three are lost once, as every other call is.
    assert losing.submitted == 7
    assert_same(results(Losing(error)), results())


def test_tasks_that_are_always_lost_end_the_run():
    with pytest.raises(WorkersLostError, match=r"lost 6 times: gone") as caught:
        run(CHAIN, executor=Losing(BrokenExecutor("gone"), every=1))
    assert caught.value.losses == 6


def test_an_executor_that_is_broken_and_cannot_be_replaced():
    class Broken(Duck):
        def submit(self, function, /, *args):
            raise BrokenExecutor("for good")

    with pytest.raises(WorkersLostError, match="for good"):
        run(CHAIN, executor=Broken())


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def die_once(path):
    """Kill the process that this runs in, unless it was done before."""
    if not path.exists():
        path.touch()
        die()
    return "alive"


@pytest.mark.slow
def test_a_pool_of_processes_that_broke_is_replaced(tmp_path):
    with fresh(1) as pool:
        found = run_tasks(die_once, [(tmp_path / "a",), (tmp_path / "b",)], pool, 1, silent)
        assert found == ["alive", "alive"]
        # The user's own is broken; it is none of ours to close.
        with pytest.raises(BrokenExecutor):
            pool.submit(int)
        assert run_tasks(die_once, [(tmp_path / "a",)], pool, 1, silent) == ["alive"]


def test_a_client_makes_its_executor():
    duck = Duck()
    client = type("Client", (), {"get_executor": lambda self: duck})()
    assert as_executor(client) is duck
    assert_same_run(run(CHAIN, executor=client), run(CHAIN))


def test_how_many_workers_an_executor_has():
    with ThreadPoolExecutor(5) as pool:
        assert Workers(pool, 1).count == 5
    of_mpi = Duck()
    of_mpi.num_workers = 7
    assert Workers(of_mpi, 1).count == 7
    of_dask = Duck()
    of_dask._client = type("Client", (), {"nthreads": lambda self: {"a": 2, "b": 1}})()
    assert Workers(of_dask, 1).count == 3
    assert Workers(Duck(), 1).count >= 1


def test_a_limit_of_time_with_an_executor(monkeypatch):
    monkeypatch.setattr(simulating, "grid_of", lambda run, *_: tiles.Grid.of_slots(
        run.chains, run.recorded, 3, 100
    ))  # fmt: skip
    with ThreadPoolExecutor(2) as pool:
        partial = bnmc.simulate(
            CHAIN, 10**7, chains=7, rng=2, executor=pool, timeout=0.5, reduce="chain"
        )
    assert not partial.complete
    count = len(partial.layers)
    assert count > 0
    expected = bnmc.simulate(CHAIN, count - 1, chains=7, rng=2, reduce="chain")
    np.testing.assert_array_equal(partial.moments["gram"].mean, expected.moments["gram"].mean)
    np.testing.assert_array_equal(partial.final_state.arrays["gram"],
                                  expected.final_state.arrays["gram"])  # fmt: skip


def test_errors_of_a_part_name_the_chain_of_the_ensemble():
    """Only one chain fails, so the error does not depend on which part finishes first."""
    # Rows (1, 0, 0) become (sqrt(2), -sqrt(1/2), -sqrt(1/2)), which this function maps to zeros.
    chain = bnmc.Chain(5, 3, lambda x: 0.0 if abs(x * x - 1.25) > 0.74 else x)
    start = np.tile([1.0, 0.0, -1.0], (7, 5, 1))
    start[6] = [1.0, 0.0, 0.0]
    with pytest.raises(ZeroVarianceError, match="chain 2, layer 1") as expected:
        bnmc.simulate(chain, 1, rng=0, initial=start[4:])
    with pytest.raises(ZeroVarianceError) as found, ThreadPoolExecutor(2) as pool:
        bnmc.simulate(chain, 1, rng=0, initial=start[4:], executor=pool)
    assert str(found.value) == str(expected.value)


def test_what_an_executor_does_not_go_with():
    with pytest.raises(ArgumentTypeError, match="executor"):
        run(CHAIN, executor="threads")


class Scripted(Duck):
    """An executor that loses the tasks that a function of their argument names."""

    def __init__(self, is_lost):
        super().__init__()
        self.is_lost = is_lost

    def submit(self, function, /, *args):
        future = super().submit(function, *args)
        _, number = received(args[-1])
        if self.is_lost(number):
            future = Future()
            future.set_exception(BrokenExecutor("gone"))
        return future


def test_losses_count_while_no_other_task_finishes():
    """A worker that dies now and then, however often, is no reason to end a long run."""
    lost = True
    with Workers(Scripted(lambda number: lost and number == 0), 1) as workers:
        workers.submit(0, int, 0)
        for number in range(1, 3 * MOST_LOSSES):
            workers.submit(number, int, number)
            assert list(workers.finished()) == [(number, number)]
        lost = False
        while len(workers):
            assert list(workers.finished()) in ([], [(0, 0)])


@pytest.mark.parametrize("losses", [MOST_LOSSES, MOST_LOSSES + 1])
def test_the_number_of_losses_in_a_row_that_ends_a_run(losses):
    remaining = losses

    def is_lost(number):
        nonlocal remaining
        remaining -= 1
        return remaining >= 0

    report = []
    call = (int, [(7,)], Scripted(is_lost), 1, lambda *one: report.append(one))
    if losses > MOST_LOSSES:
        with pytest.raises(WorkersLostError) as caught:
            run_tasks(*call)
        assert caught.value.losses == losses
    else:
        assert run_tasks(*call) == [7]
        assert report[-1] == (1, 1)


@pytest.mark.parametrize("count", [0, 1, 7, 100])
@pytest.mark.parametrize("parts", [1, 3, 8])
@pytest.mark.parametrize("first", [0, 5])
def test_even_ranges_cover_the_count_and_differ_by_one(count, parts, first):
    found = even_ranges(count, parts, first=first)
    assert len(found) == parts
    assert found[0][0] == first
    assert found[-1][1] == first + count
    assert all(before[1] == after[0] for before, after in pairwise(found))
    lengths = [b - a for a, b in found]
    assert max(lengths) - min(lengths) <= 1


@pytest.mark.parametrize("count", [0, 1, 7, 100])
@pytest.mark.parametrize("size", [1, 3, 200])
def test_ranges_are_of_one_size_but_for_the_last(count, size):
    found = ranges(count, size)
    assert [k for a, b in found for k in range(a, b)] == list(range(count))
    assert all(b - a == size for a, b in found[:-1])
