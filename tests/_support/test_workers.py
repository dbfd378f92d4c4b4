"""Tasks on executors: results do not depend on who runs them, errors and interruptions end them."""

import multiprocessing
import os
import pickle
import signal
import threading
import time
from concurrent import futures
from concurrent.futures import (
    BrokenExecutor,
    CancelledError,
    Executor,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
)
from contextlib import nullcontext
from functools import partial

import numpy as np
import pytest
from worker_processes import assert_same_run, fresh

import bnmc
from bnmc._support import workers
from bnmc._support.machine import available_processors
from bnmc._support.progress import Reporter, as_progress, reporting
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
from bnmc.errors import ArgumentTypeError, BnmcError, WorkersLostError, ZeroVarianceError
from bnmc.gradients.parts import Task
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
    """An executor that loses the tasks that a function chooses, by their number and argument."""

    # The number of tasks must not depend on the processors of the machine.
    _max_workers = 3

    def __init__(self, is_lost, error=None):
        super().__init__()
        self.is_lost, self.error = is_lost, error or BrokenExecutor("gone")

    def submit(self, function, /, *args):
        future = super().submit(function, *args)
        if self.is_lost(self.submitted, received(args[-1])[1]):
            future = Future()
            future.set_exception(self.error)
        return future


def every_other(count, argument):
    return count % 2 == 0


def results(executor=None):
    cert = tv_bound(CHAIN, 8, lag=3, chains=40, rng=5, executor=executor)
    rate = contraction(CHAIN, chains=8, rng=5, executor=executor)
    mean = expectation(
        CHAIN, "orthogonality_gap", burn_in=1, length=5, lag=2, chains=20, rng=5,
        executor=executor,
    )  # fmt: skip
    return cert, rate, mean


def assert_same(result, expected):
    np.testing.assert_array_equal(result[0].meeting_times, expected[0].meeting_times)
    np.testing.assert_array_equal(result[0].ci, expected[0].ci)
    assert (result[0].tries, result[0].refusals) == (expected[0].tries, expected[0].refusals)
    np.testing.assert_array_equal(result[1].distance, expected[1].distance)
    assert result[1].rate_estimate == expected[1].rate_estimate
    assert result[2] == expected[2]


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
    monkeypatch.setattr(workers, "available_processors", lambda: 50)
    assert_same(results(), expected)


def run_tasks(function, tasks, executor, threads, report):
    return results_of(Calls(function, tasks), executor, threads, nullcontext(Reporter(report)))


def test_results_are_in_the_order_of_tasks():
    def late(number):
        time.sleep(0.02 * (3 - number))
        return number

    assert run_tasks(late, [(0,), (1,), (2,)], None, 3, silent) == [0, 1, 2]


def test_an_error_is_raised_and_what_has_not_begun_is_cancelled():
    begun, first, tasks = [], threading.Event(), [(number,) for number in range(200)]

    def work(number, fails):
        begun.append(number)
        first.set()
        if fails and number == 1:
            raise ZeroDivisionError("task 1")
        time.sleep(0.01)
        return number

    def interrupt(done, total):
        assert first.wait(10)
        raise KeyboardInterrupt

    with ThreadPoolExecutor(1) as pool:
        for executor, report in ((None, silent), (pool, silent), (None, interrupt)):
            begun.clear()
            error = ZeroDivisionError if report is silent else KeyboardInterrupt
            with pytest.raises(error):
                run_tasks(partial(work, fails=report is silent), tasks, executor, 1, report)
            assert len(begun) < 150
        # The pool is the user's, and goes on to serve.
        assert pool.submit(int, "3").result() == 3


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
        tv_bound(bnmc.Chain(5, 2, abs), 3, lag=1, chains=4, rng=0, executor=pool)


@pytest.mark.parametrize("executor", [3, "threads", type("Half", (), {"map": print})()])
def test_what_is_no_executor(executor):
    with pytest.raises(ArgumentTypeError, match="executor"):
        as_executor(executor)


def test_progress_is_called_until_all_is_done():
    for estimator, options in (
        (tv_bound, {"depth": 3, "lag": 2, "chains": 40}),
        (contraction, {"chains": 8}),
        (expectation, {"f": np.trace, "chains": 20, "burn_in": 1, "length": 2, "lag": 2}),
        (sample, {"chains": 3, "atol": 0.1}),
    ):
        calls = []
        estimator(CHAIN, rng=0, progress=lambda *at, calls=calls: calls.append(at), **options)
        assert calls[-1][0] == calls[-1][1] > 0


@pytest.mark.parametrize(
    "call",
    [
        lambda **options: tv_bound(CHAIN, 3, lag=2, chains=40, **options),
        lambda **options: bnmc.simulate(CHAIN, 100, **options),
    ],
    ids=["calls", "tiles"],
)
def test_a_progress_that_raises_ends_the_work(call):
    def stop(done, total):
        raise LookupError("enough")

    with pytest.raises(LookupError, match="enough"):
        call(rng=0, progress=stop)


def test_a_bar_on_standard_error(capsys):
    with reporting(True, "work", "tasks") as report:
        report(1, 2)
        report(2, 2)
    assert capsys.readouterr().out == ""
    with reporting(as_progress(np.bool_(False)), "work", "tasks") as report:
        report(1, 2)
    with pytest.raises(ArgumentTypeError, match="progress"):
        as_progress(1)


# --- simulations in tiles

RUNS = {
    "conditional": (CHAIN, {}),
    "inputs, skip": (bnmc.Chain(20, 3, "relu", skip=0.5), {"inputs": 2, "every": 4, "burn_in": 2}),
    "weights in float32": (bnmc.Chain(20, 3, "relu", weights="uniform"), {"dtype": "float32"}),
    "factor": (
        bnmc.Chain(20, 3, "linear", norm="none"),
        {"observables": ["scaled_gram", "log_scale"]},
    ),
    "moments": (CHAIN, {"reduce": ("chain", "layer")}),
    "moments over chains": (CHAIN, {"reduce": "chain", "every": 3}),
}


def run(chain, **options):
    return bnmc.simulate(chain, 30, chains=7, rng=2, **options)


def grid(part, block):
    """Return a function that cuts a run into tiles of so many chains and slots."""
    return lambda run, *_: tiles.Grid.of_slots(run.chains, run.recorded, part, block)


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize(("part", "block"), [(1, 1), (3, 5), (7, 31), (2, 100)])
def test_bits_do_not_depend_on_how_a_run_is_cut(name, part, block, monkeypatch):
    chain, options = RUNS[name]
    monkeypatch.setattr(simulating, "grid_of", grid(part, block))
    expected = run(chain, **options)
    with ThreadPoolExecutor(3) as pool:
        assert_same_run(run(chain, **options, executor=pool), expected)


class KilledWorker(Exception):
    __module__ = "distributed.scheduler"


@pytest.mark.parametrize(
    "error", [BrokenExecutor("gone"), CancelledError(), KilledWorker("gone")], ids=repr
)
def test_a_lost_task_is_done_again(error):
    expected = run(CHAIN)
    losing = Losing(every_other, error)
    assert_same_run(run(CHAIN, executor=losing), expected)
    # Seven chains in four parts of one tile each: three are lost once, as every other call is.
    assert losing.submitted == 7
    assert_same(results(Losing(every_other, error)), results())


def test_tasks_that_are_always_lost_end_the_run():
    with pytest.raises(WorkersLostError, match=r"lost 6 times: gone") as caught:
        run(CHAIN, executor=Losing(lambda *_: True))
    assert caught.value.losses == 6


def test_an_executor_that_is_broken_and_cannot_be_replaced():
    class Broken(Duck):
        def submit(self, function, /, *args):
            raise BrokenExecutor("for good")

    with pytest.raises(WorkersLostError, match="for good"):
        run(CHAIN, executor=Broken())


class Measured(Duck):
    """An executor that measures what it is sent; one task runs in a fresh process."""

    _max_workers = 4

    def __init__(self, fresh):
        super().__init__()
        self.bytes, self.fresh = [], fresh

    def submit(self, function, /, *args):
        self.bytes.append(len(pickle.dumps(args)))
        if len(self.bytes) == self.fresh:
            workers._received.clear()
        return super().submit(function, *args)


class Heavy:
    """An observable with a large array."""

    def __init__(self):
        self.array = np.ones(1 << 17)

    def __call__(self, G):
        return np.trace(G) * self.array[0]


INITIAL = np.random.default_rng(0).standard_normal((40_000, 3))
SHARING = {
    "simulate": lambda executor: bnmc.simulate(
        bnmc.Chain(40_000, 3), 2, chains=12, rng=2, initial=INITIAL, executor=executor,
        observables=bnmc.Observable(Heavy(), name="heavy"),
    )["heavy"],
    "expectation": lambda executor: expectation(
        CHAIN, Heavy(), burn_in=1, length=5, lag=2, chains=40, rng=5, executor=executor
    ).value,
    "backpropagate": lambda executor: bnmc.backpropagate(
        bnmc.Chain(4000, 3), 2, chains=12, rng=2, initial=INITIAL[:4000], executor=executor
    )["delta_gram"],
}  # fmt: skip


@pytest.mark.parametrize("name", SHARING)
def test_a_process_receives_once_what_tasks_share(name, monkeypatch):
    """Four workers receive it; a process that begins later asks for it."""
    monkeypatch.setattr(Task, "chains_of_part", lambda self, workers: 1)
    expected = SHARING[name](None)
    for begins in (None, 6):
        measured = Measured(begins)
        np.testing.assert_array_equal(SHARING[name](measured), expected)
        heavy = sum(size > INITIAL[:4000].nbytes for size in measured.bytes)
        assert (heavy == 4) is (begins is None)
        assert heavy < measured.submitted >= 6


def test_interpreters_are_no_threads(monkeypatch):
    """Python 3.14's executor of interpreters derives from that of threads."""
    interpreters = type("InterpreterPoolExecutor", (ThreadPoolExecutor,), {})
    monkeypatch.setattr(futures, "InterpreterPoolExecutor", interpreters, raising=False)
    with interpreters(1) as pool, pytest.raises(ArgumentTypeError, match="more than one interp"):
        run(CHAIN, executor=pool)


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
        result = run_tasks(die_once, [(tmp_path / "a",), (tmp_path / "b",)], pool, 1, silent)
        assert result == ["alive", "alive"]
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
    client = type("Client", (), {"nthreads": lambda self: {"a": 2, "b": 1}})()
    for attribute, value, count in (
        ("_max_workers", 5, 5), ("num_workers", 7, 7), ("_client", client, 3),
        ("other", 0, available_processors()),
    ):  # fmt: skip
        duck = Duck()
        setattr(duck, attribute, value)
        assert Workers(duck, 1).count == count


def test_a_limit_of_time_with_an_executor(monkeypatch):
    monkeypatch.setattr(simulating, "grid_of", grid(3, 100))
    with ThreadPoolExecutor(2) as pool:
        ended = bnmc.simulate(
            CHAIN, 10**7, chains=7, rng=2, executor=pool, timeout=0.5, reduce="chain"
        )
    count = len(ended.layers)
    assert count > 0
    expected = bnmc.simulate(CHAIN, count - 1, chains=7, rng=2, reduce="chain")
    assert_same_run(ended, expected, complete=False)


def test_errors_of_a_part_name_the_chain_of_the_ensemble():
    """Only one chain fails, so the error does not depend on which part finishes first."""
    # Rows (1, 0, 0) become (sqrt(2), -sqrt(1/2), -sqrt(1/2)), which this function maps to zeros.
    chain = bnmc.Chain(5, 3, lambda x: 0.0 if abs(x * x - 1.25) > 0.74 else x)
    start = np.tile([1.0, 0.0, -1.0], (7, 5, 1))
    start[6] = [1.0, 0.0, 0.0]
    with pytest.raises(ZeroVarianceError, match="chain 2, layer 1") as expected:
        bnmc.simulate(chain, 1, rng=0, initial=start[4:])
    with pytest.raises(ZeroVarianceError) as result, ThreadPoolExecutor(2) as pool:
        bnmc.simulate(chain, 1, rng=0, initial=start[4:], executor=pool)
    assert str(result.value) == str(expected.value)


def test_losses_count_while_no_other_task_finishes():
    """A worker that dies now and then, however often, is no reason to end a long run."""
    lost = True
    with Workers(Losing(lambda _, number: lost and number == 0), 1) as workers:
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

    def is_lost(*_):
        nonlocal remaining
        remaining -= 1
        return remaining >= 0

    report = []
    call = (int, [(7,)], Losing(is_lost), 1, lambda *first: report.append(first))
    if losses > MOST_LOSSES:
        with pytest.raises(WorkersLostError) as caught:
            run_tasks(*call)
        assert caught.value.losses == losses
    else:
        assert run_tasks(*call) == [7]
        assert report[-1] == (1, 1)


@pytest.mark.parametrize("count", [0, 1, 7, 100])
@pytest.mark.parametrize("size", [1, 3, 8, 200])
def test_ranges_cover_the_count(count, size):
    pieces = ranges(count, size)
    assert [k for a, b in pieces for k in range(a, b)] == list(range(count))
    assert all(b - a == size for a, b in pieces[:-1])
    even = even_ranges(count, size, first=5)
    assert [k for a, b in even for k in range(a, b)] == list(range(5, 5 + count))
    lengths = [b - a for a, b in even]
    assert len(even) == size
    assert max(lengths) - min(lengths) <= 1
