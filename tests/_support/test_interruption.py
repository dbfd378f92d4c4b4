"""Ctrl-C and limits of time: answered at once, and nothing that was finished is lost."""

import contextlib
import signal
import subprocess
import sys
import textwrap
import threading
import time
from unittest import mock

import numpy as np
import pytest
from slow_cases import pairs, some
from worker_processes import printed_by

import bnmc
from bnmc._support import interruption
from bnmc._support.interruption import StillAtWork, Stop, uninterrupted
from bnmc.errors import ArgumentError, Interrupted
from bnmc.simulation import run as simulating
from bnmc.simulation import segment
from bnmc.simulation.observables import OBSERVABLES
from bnmc.simulation.runs import Run

CHAIN = bnmc.Chain(30, 4, "relu")


def press(after):
    """Send Ctrl-C to the main thread so many seconds from now."""
    timer = threading.Timer(after, signal.raise_signal, [signal.SIGINT])
    timer.start()
    return timer


def pressing_when(layers):
    """Return a progress report that has Ctrl-C sent once so many layers are done."""
    pressed = threading.Event()

    def report(done, total):
        if done >= layers and not pressed.is_set():
            pressed.set()
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    return report


@pytest.fixture(autouse=True)
def hearing():
    """Let the main thread hear Ctrl-C wherever the tests run."""
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, former)


RUNS = {
    "conditional": (CHAIN, {}),
    "skip": (bnmc.Chain(30, 4, "relu", skip=0.5), {"dtype": "float32"}),
    "weights": (bnmc.Chain(24, 3, "relu", weights="uniform"), {"inputs": 2}),
    "factor": (bnmc.Chain(30, 3, "linear", norm="none"), {"observables": "log_scale"}),
}


@pytest.mark.parametrize(("kind", "threads"), pairs(RUNS, [1, 2]))
def test_what_was_finished_comes_along_and_goes_on(kind, threads):
    chain, options = RUNS[kind][0], dict(RUNS[kind][1])
    expected = bnmc.simulate(chain, 20_000, chains=3, rng=1, **options)
    with (
        mock.patch.object(segment, "TASK_SECONDS", 1e-4),
        pytest.raises(KeyboardInterrupt) as caught,
    ):
        bnmc.simulate(
            chain, 20_000, chains=3, rng=1, threads=threads, progress=pressing_when(500), **options
        )
    assert type(caught.value) is Interrupted
    partial = caught.value.partial
    count = len(partial.layers)
    assert not partial.complete
    assert 500 < count < 20_001
    assert partial.layers[-1] == partial.final_state.layer == count - 1
    name = next(iter(expected.observables))
    np.testing.assert_array_equal(partial[name], expected[name][:, :count])
    options.pop("inputs", None)
    deeper = bnmc.simulate(chain, 20_001 - count, initial=partial.final_state, **{
        key: value for key, value in options.items() if key == "observables"
    })  # fmt: skip
    np.testing.assert_array_equal(deeper[name][:, 1:], expected[name][:, count:])


def test_ctrl_c_while_the_result_is_put_together():
    """The run is over, and comes along whole."""
    expected, put_together = bnmc.simulate(CHAIN, 20, rng=1), simulating.trajectory_of
    pressed = mock.Mock(side_effect=[KeyboardInterrupt, mock.DEFAULT], wraps=put_together)
    with (
        mock.patch.object(simulating, "trajectory_of", pressed),
        pytest.raises(Interrupted) as caught,
    ):
        bnmc.simulate(CHAIN, 20, rng=1)
    assert caught.value.partial.complete
    np.testing.assert_array_equal(caught.value.partial.gram, expected.gram)


@pytest.mark.parametrize("reduce", ["chain", "layer", ("chain", "layer")])
def test_moments_of_what_was_finished(reduce):
    values = bnmc.simulate(CHAIN, 20_000, chains=3, rng=1).gram
    with mock.patch.object(segment, "TASK_SECONDS", 1e-4), pytest.raises(Interrupted) as caught:
        bnmc.simulate(CHAIN, 20_000, chains=3, rng=1, reduce=reduce, progress=pressing_when(300))
    partial = caught.value.partial
    count = len(partial.layers)
    assert 300 < count < 20_001
    axes = {"chain": 0, "layer": 1, ("chain", "layer"): (0, 1)}[reduce]
    expected = values[:, :count].mean(axis=axes)
    np.testing.assert_allclose(partial.moments["gram"].mean, expected, rtol=1e-12)
    number = {"chain": 3, "layer": count, ("chain", "layer"): 3 * count}[reduce]
    assert partial.moments["gram"].count == number


def test_a_limit_of_time():
    # Which also loads what the limit is not for.
    expected = bnmc.simulate(CHAIN, 2000, every=1000, rng=1, observables="rank_bound")
    begun = time.monotonic()
    partial = bnmc.simulate(CHAIN, 10**8, every=1000, rng=1, observables="rank_bound", timeout=0.4)
    assert 0.4 <= time.monotonic() - begun < 5.0
    assert not partial.complete
    assert len(partial.layers) > 1
    assert "interrupted" in repr(partial)
    np.testing.assert_array_equal(partial["rank_bound"][:, :2], expected["rank_bound"][:, :2])
    whole = bnmc.simulate(CHAIN, 3, rng=1, timeout=1e9)
    assert whole.complete


def test_a_limit_of_time_before_anything_is_recorded():
    bnmc.simulate(CHAIN, 1, rng=1)  # what is loaded is not in the limit
    for options in ({}, {"reduce": "chain"}, {"reduce": ("chain", "layer")}):
        partial = bnmc.simulate(CHAIN, 10**7, burn_in=10**7, rng=1, timeout=0.2, **options)
        assert not partial.complete
        assert len(partial.layers) == 0
        assert partial.final_state.layer > 0
        assert "0 layers" in repr(partial)
        for moments in partial.moments.values():
            assert moments.count == 0


def test_ctrl_c_of_the_users_function_is_ctrl_c():
    calls = 0

    def f(g):
        nonlocal calls
        calls += 1
        if calls == 200:
            raise KeyboardInterrupt
        return g[0, 0]

    with mock.patch.object(segment, "TASK_SECONDS", 0.0), pytest.raises(Interrupted) as caught:
        bnmc.simulate(CHAIN, 1000, rng=1, observables=f, threads=1)
    partial = caught.value.partial
    # It came in the middle of a layer, so there is no state to go on from.
    assert len(partial.layers) == 198
    with pytest.raises(ArgumentError, match="middle of a layer"):
        partial.final_state  # noqa: B018


def test_ctrl_c_while_the_thread_starts():
    """The thread is at work before `Thread.start` returns, so Ctrl-C comes to a run, too."""
    steps, stop, start = [], Stop(None), interruption._Call.start

    def work():
        while not stop():
            steps.append(time.sleep(0.001))

    def started(call):
        start(call)
        raise KeyboardInterrupt

    with mock.patch.object(interruption._Call, "start", started):
        assert isinstance(uninterrupted(work, stop), KeyboardInterrupt)
    done = len(steps)
    time.sleep(0.02)
    assert len(steps) == done


def test_ctrl_c_between_two_lines_of_a_condition():
    """`Thread.start` waits for a condition: where Ctrl-C overtakes it, its lock raises an error."""

    def overtaken(thread):
        try:
            raise KeyboardInterrupt
        finally:
            threading.Lock().release()

    with mock.patch.object(threading.Thread, "start", overtaken), pytest.raises(StillAtWork):
        uninterrupted(lambda: None, Stop(None))
    with (
        mock.patch.object(threading.Thread, "start", side_effect=RuntimeError("no thread")),
        pytest.raises(RuntimeError, match="no thread"),
    ):
        uninterrupted(lambda: None, Stop(None))


@pytest.mark.parametrize("brief", [False, True])
@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_an_exception_of_the_work_stops_other_threads(error, brief):
    """For example one that the user's report of progress raises."""
    stop = Stop(None)
    with contextlib.suppress(ValueError):
        uninterrupted(mock.Mock(side_effect=error), stop, brief=brief)
    assert stop.is_set()


def test_a_step_that_takes_long_is_left_alone():
    going_on, seen = threading.Event(), []

    def work():
        seen.append(1)
        going_on.wait(30)

    def f(g):
        if len(seen) == 4:
            press(0.05)
            going_on.wait(30)
        seen.append(1)
        return g[0, 0]

    begun = time.monotonic()
    with mock.patch.object(interruption, "GRACE", 0.1):
        press(0.05)
        with pytest.raises(StillAtWork):
            uninterrupted(work, Stop(None))
        assert seen == [1]
        with mock.patch.object(segment, "TASK_SECONDS", 0.0), pytest.raises(Interrupted) as caught:
            bnmc.simulate(CHAIN, 1000, rng=1, observables=f)
    assert time.monotonic() - begun < 10
    going_on.set()
    assert len(caught.value.partial.layers) == 2
    assert caught.value.partial.state is None


class TooLateError(Exception):
    """What the handler of an alarm raises."""


LONG = {
    "one chain": lambda: bnmc.simulate(CHAIN, 10**7, chains=1, rng=1),
    "chains": lambda: bnmc.simulate(CHAIN, 10**6, chains=40, rng=1, every=1000),
    "gradients": lambda: bnmc.backpropagate(CHAIN, 2000, chains=10**4, rng=1),
    "kernels": lambda: bnmc.gradients.tangent_kernel(CHAIN, 20, chains=10**5, rng=1),
    "mixing": lambda: bnmc.mixing.tv_bound(CHAIN, 100, chains=10**5, rng=1),
}


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no alarm")
@pytest.mark.parametrize("name", some(LONG, "one chain", "gradients", "mixing"))
def test_an_exception_of_a_signal_handler_ends_the_work(name):
    """As with pytest-timeout and supervisors: no thread goes on, and what is finished remains."""

    def handler(*_):
        raise TooLateError("too late")

    def waits(call, seconds, has_ended=interruption._Call.has_ended):
        if seconds == 0.5 and not call.error:
            signal.setitimer(signal.ITIMER_REAL, 0.2)
        return has_ended(call, seconds)

    former = signal.signal(signal.SIGALRM, handler)
    try:
        with (
            mock.patch.object(interruption._Call, "has_ended", waits),
            pytest.raises(TooLateError) as caught,
        ):
            LONG[name]()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, former)
    assert hasattr(caught.value, "partial")
    limit = time.monotonic() + 20
    while any(thread.name.startswith("bnmc") for thread in threading.enumerate()):
        assert time.monotonic() < limit
        time.sleep(0.01)


def test_work_in_another_thread_is_done_there():
    outcome = []

    def body():
        outcome.append(uninterrupted(lambda: outcome.append(threading.current_thread()), None))

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    assert outcome == [thread, None]


def test_the_error_state_of_numpy_is_that_of_the_caller():
    def divides(g):
        return np.float64(1.0) / (g[0, 0] - g[0, 0])

    with np.errstate(divide="raise"), pytest.raises(FloatingPointError):
        bnmc.simulate(CHAIN, 1, rng=0, observables=divides)
    with np.errstate(divide="ignore"):
        run = bnmc.simulate(CHAIN, 1, rng=0, observables=divides)
    assert np.isinf(run["divides"]).all()


SCRIPT = """
import sys, time, signal, bnmc
signal.signal(signal.SIGINT, signal.default_int_handler)
width, depth, chains, sampler = {arguments}
chain = bnmc.Chain(width, 4, "relu")
small = bnmc.Chain(30, 4, "relu")
bnmc.simulate(small, 1, chains=1, rng=0, sampler=sampler)  # compiles, or loads what is
def report(done, total):
    print("at work", flush=True)
print("ready", flush=True)
try:
    bnmc.simulate(
        chain, depth, chains=chains, rng=0, sampler=sampler, backend="cpu", every=depth // 4,
        observables="rank_bound", progress=report,
    )
except bnmc.errors.Interrupted as stop:
    print("interrupted", None if stop.partial is None else len(stop.partial.layers), flush=True)
"""


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param((30, 10**8, 1, "auto"), id="many short layers"),
        pytest.param((20_000, 10**6, 4, "auto"), id="chains", marks=pytest.mark.slow),
        pytest.param((30_000, 40, 1, "weights"), id="layers of a second"),
    ],
)
def test_ctrl_c_is_answered_within_a_second(arguments):
    script = textwrap.dedent(SCRIPT).replace("{arguments}", repr(arguments))
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.7)
        begun = time.monotonic()
        process.send_signal(signal.SIGINT)
        lines = []
        while not lines or lines[-1].startswith("at work"):
            lines.append(process.stdout.readline())
        seconds = time.monotonic() - begun
        process.kill()
    assert lines[-1].startswith("interrupted")
    # Within a second of an idle machine's time; the machine that tests may be a busy one.
    assert seconds < 3.0


NEVER_ENDS = {
    "Python": "chains=2, threads=2, observables=[spin]",
    "compiled": "activation=compiled",
    "compiled, an array": "activation=far, initial=np.full((5, 2), 9.0) + np.eye(5, 2)",
}


@pytest.mark.parametrize("what", some(NEVER_ENDS, "compiled, an array"))
def test_a_function_that_never_ends(what):
    """The first Ctrl-C ends the call after `GRACE`, and the process ends without its threads."""
    script = f"""
        import os, signal, threading, time
        import numpy as np
        import bnmc
        from bnmc._support import interruption

        interruption.GRACE = 0.1  # in which all threads spin
        once = threading.Lock()

        def press():
            if not once.acquire(blocking=False):  # by another chain
                return
            print("spins", flush=True)
            time.sleep(0.1)
            os.kill(os.getpid(), signal.SIGINT)

        def spin(G):
            if (G != np.eye(2)).any():  # else the check of its shape
                threading.Thread(target=press).start()
                while True:
                    pass
            return 0.0

        def compiled(x):
            while x < 5.0:
                x = x * 1.0
            return x

        def far(x):
            while x > 5.0:
                x = x * 1.0
            return x

        def run(activation="relu", **options):
            if activation != "relu":
                bnmc.Activation(activation)([10.0 if activation is compiled else -1.0])  # compile
                threading.Timer(0.3, press).start()
            norm = "none" if activation is far else "batch"
            chain = bnmc.Chain(5, 2, activation, norm=norm)
            bnmc.simulate(chain, 3, rng=0, **options)

        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            run({NEVER_ENDS[what]})
        except KeyboardInterrupt:
            print("ended", flush=True)
    """
    assert printed_by(script).split() == ["spins", "ended"]


def test_shapes_of_spectra_are_known_without_one():
    """At batch 3000 a spectrum takes seconds, in which Ctrl-C would find no run to return."""
    with mock.patch("bnmc.gram.eigenvalues", side_effect=AssertionError):
        for inputs in (None, 2):
            observables = (OBSERVABLES["eigenvalues"],)
            run = Run(CHAIN.repeat(1), "conditional", 1, inputs, "float64", observables=observables)
            assert run.shapes == {"eigenvalues": (4,) if inputs is None else (2, 4)}


def test_brief_work_is_done_in_the_same_thread():
    def interrupt():
        raise KeyboardInterrupt

    threads = []
    assert (
        uninterrupted(lambda: threads.append(threading.current_thread()), Stop(None), brief=True)
        is None
    )
    assert threads == [threading.main_thread()]
    assert isinstance(uninterrupted(interrupt, Stop(None), brief=True), KeyboardInterrupt)
    with pytest.raises(ZeroDivisionError):
        uninterrupted(lambda: 1 / 0, Stop(None), brief=True)
