"""Tasks on executors: results do not depend on who runs them, errors and interruptions end them."""

import importlib
import multiprocessing
import threading
import time
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor

import numpy as np
import pytest

import bnmc
from bnmc._executor import as_executor, ranges, run_tasks
from bnmc._progress import Reporter, as_progress
from bnmc.errors import ArgumentTypeError, BnmcError, NotMixing
from bnmc.invariant import expectation
from bnmc.invariant.sample import sample
from bnmc.mixing import coupling
from bnmc.mixing.contraction import contraction
from bnmc.mixing.coupling import tv_bound

# The package has a function of the same name.
contraction_module = importlib.import_module("bnmc.mixing.contraction")
EXPECTATION = importlib.import_module("bnmc.invariant.expectation")
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
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        assert_same(results(pool), expected)


def test_results_do_not_depend_on_how_work_is_cut(monkeypatch):
    expected = results()
    monkeypatch.setattr(coupling, "TASK_NUMBERS", 1.0)
    for module in ("coupling", "contraction"):
        target = {"coupling": coupling, "contraction": contraction_module}[module]
        monkeypatch.setattr(target, "available_processors", lambda: 50)
    monkeypatch.setattr(EXPECTATION, "available_processors", lambda: 50)
    assert_same(results(), expected)


def test_numbers_are_cut_into_ranges():
    assert ranges(7, 3) == [(0, 3), (3, 6), (6, 7)]
    assert ranges(3, 9) == [(0, 3)]


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
        ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool,
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
    with Reporter(True, "work", "tasks") as report:
        report(1, 2)
        report(2, 2)
    assert capsys.readouterr().out == ""
    with Reporter(as_progress(np.bool_(False)), "work", "tasks") as report:
        report(1, 2)
    with pytest.raises(ArgumentTypeError, match="progress"):
        as_progress(1)


def test_not_mixing_survives_pickling():
    import pickle

    error = pickle.loads(pickle.dumps(NotMixing("0 of 3 pairs met", (1, 2), -0.5, 0.25)))
    assert type(error) is NotMixing
    assert str(error) == error.reason == "0 of 3 pairs met"
    assert (error.partial, error.exponent, error.pivot_trend) == ((1, 2), -0.5, 0.25)
