"""`train`: its options, stores, interruptions, divergence and forecasts."""

import itertools
import re
import signal
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from unittest import mock

import numpy as np
import pytest

import bnmc
from bnmc._support import machine
from bnmc._support.interruption import Stop
from bnmc.errors import (
    Interrupted,
    ResultTooLargeError,
    StoreMismatchError,
    ZeroVarianceError,
)
from bnmc.implicit import products
from bnmc.training import course, forecast, running

X = np.random.default_rng(0).standard_normal((5, 6))
LABELS = [0, 1, 2, 0, 1, 2]
NETWORK = bnmc.Network.of(width=[5, 30, 30, 30], batch=6, activation="tanh", norm="none")
OPTIONS = {"steps": 4, "learning_rate": 0.2, "rng": 3}


def arrays_of(run):
    named = [run.loss, run.outputs, run.batch_loss, run.diverged, run.asked]
    return [*named, *run.observables.values()]


def assert_same_bits(a, b):
    for left, right in zip(arrays_of(a), arrays_of(b), strict=True):
        np.testing.assert_array_equal(left, right)


@pytest.mark.parametrize("matrices", ["implicit", "drawn"])
def test_bits_depend_on_the_key_alone(matrices):
    def run(**options):
        everything = ("gram", "kernel", "gradient_norm", "movement", "kernel_on_targets")
        settings = {**OPTIONS, "observables": everything, "matrices": matrices, **options}
        return bnmc.train(NETWORK, X, LABELS, chains=5, **settings)

    first = run(threads=1)
    assert_same_bits(first, run(threads=3, rng=first.key))
    with ProcessPoolExecutor(1) as pool:
        assert_same_bits(first, run(executor=pool))
    assert len(np.unique(first.loss[:, 0])) == 5


def test_threads_share_a_network(monkeypatch):
    """Threads that have no network of their own share products, in blocks of 8 numbers here."""
    monkeypatch.setattr(products, "_BLOCK", 8)
    monkeypatch.setattr(products, "_SHARED", 0)

    def run(threads):
        settings = {**OPTIONS, "observables": ("kernel", "movement"), "matrices": "implicit"}
        with mock.patch.object(
            machine, "ThreadPoolExecutor", side_effect=machine.ThreadPoolExecutor
        ) as pools:
            result = bnmc.train(NETWORK, X, LABELS, chains=2, threads=threads, **settings)
        return result, {call.args[0] for call in pools.call_args_list}

    one_each, pools = run(2)
    assert not pools
    for threads, shares in ((1, set()), (5, {2}), (6, {3})):
        shared, pools = run(threads)
        assert pools == shares
        assert_same_bits(shared, one_each)


def test_a_store_continues_with_the_same_bits(tmp_path):
    whole = bnmc.train(NETWORK, X, LABELS, chains=4, **OPTIONS)
    bnmc.train(NETWORK, X, LABELS, chains=2, store=tmp_path / "a", **OPTIONS)
    with mock.patch.object(course, "Model", side_effect=course.Model) as made:
        grown = bnmc.train(NETWORK, X, LABELS, chains=4, store=tmp_path / "a", **OPTIONS)
    assert made.call_count == 2
    assert_same_bits(grown, whole)
    with mock.patch.object(course, "Model", side_effect=AssertionError):
        without_key = {name: OPTIONS[name] for name in ("steps", "learning_rate")}
        again = bnmc.train(NETWORK, X, LABELS, chains=4, store=tmp_path / "a", **without_key)
    assert_same_bits(again, whole)
    for changed in (
        {"learning_rate": 0.3},
        {"momentum": 0.1},
        {"optimizer": "muon"},
        {"parametrization": "mup"},
        {"start": "maximized"},
        {"matrices": "implicit"},
        {"steps": 5},
        {"test": X[:, :2]},
        {"record": [0, 4]},
        {"loss": "squared"},
        {"dtype": "float32"},
        {"observables": "gram"},
    ):
        with pytest.raises(StoreMismatchError):
            bnmc.train(NETWORK, X, LABELS, chains=4, store=tmp_path / "a", **OPTIONS | changed)


def slowly(seconds, after):
    """Return a model whose forward passes take a while from the given one on."""

    class Slow(course.Model):
        def forward(self, inputs):
            if self.chain >= after:
                time.sleep(seconds)
            return super().forward(inputs)

    return Slow


@pytest.fixture
def _ctrl_c():
    """Let Ctrl-C raise, also in a process in the background, which ignores it."""
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, former)


@pytest.mark.usefixtures("_ctrl_c")
def test_ctrl_c_returns_the_finished_steps(monkeypatch):
    """Ctrl-C comes in the forward pass of step 2, which waits until the training has to stop."""
    stop, passes = Stop(None), itertools.count()

    class Pressing(course.Model):
        def forward(self, inputs):
            if next(passes) == 2:
                signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
                end = time.monotonic() + 30
                while not stop.is_set() and time.monotonic() < end:
                    time.sleep(1e-3)
            return super().forward(inputs)

    whole = bnmc.train(NETWORK, X, LABELS, **OPTIONS | {"steps": 2})
    monkeypatch.setattr(running, "Stop", lambda limit: stop)
    monkeypatch.setattr(course, "Model", Pressing)
    with pytest.raises(Interrupted) as caught:
        bnmc.train(NETWORK, X, LABELS, **OPTIONS | {"steps": 50})
    part = caught.value.partial
    assert not part.complete
    np.testing.assert_array_equal(part.steps, [0, 1, 2])
    assert part.batch_loss.shape == (1, 2)
    for name in ("loss", "outputs", "batch_loss"):
        np.testing.assert_array_equal(getattr(part, name), getattr(whole, name))
    assert "incomplete" in str(part)


def test_a_time_limit_returns_finished_networks(monkeypatch):
    monkeypatch.setattr(course, "Model", slowly(0.2, 1))
    part = bnmc.train(NETWORK, X, LABELS, chains=3, threads=1, timeout=0.3, **OPTIONS)
    assert (part.chains, part.complete) == (1, False)
    monkeypatch.setattr(course, "Model", slowly(0.1, 0))
    part = bnmc.train(NETWORK, X, LABELS, timeout=0.2, **OPTIONS | {"steps": 100})
    assert (part.chains, part.complete) == (1, False)
    assert len(part.steps) < 10


def test_progress_is_in_steps():
    told = []
    bnmc.train(NETWORK, X, LABELS, chains=2, progress=lambda *now: told.append(now), **OPTIONS)
    assert told[-1] == (10, 10)


@pytest.mark.parametrize(("dtype", "matrices"), [
    ("float64", "implicit"), ("float64", "drawn"), ("float32", "implicit"), ("float32", "drawn"),
])  # fmt: skip
def test_diverged_networks_end_and_are_counted(dtype, matrices):
    relu = bnmc.Network.of(width=[5, 30, 30], batch=6, activation="relu", norm="none", gain=2**0.5)
    run = bnmc.train(
        relu, X, np.eye(6)[:, :2], loss="squared", chains=6, steps=25, learning_rate=1.4, rng=0,
        dtype=dtype, matrices=matrices, threads=1,
    )  # fmt: skip
    lost = run.diverged >= 0
    assert 0 < lost.sum() < 6 or lost.all()
    for chain, step in enumerate(run.diverged):
        end = 26 if step < 0 else step
        assert np.isfinite(run.loss[chain, :end]).all()
        assert np.isnan(run.loss[chain, end:]).all()
    assert np.isinf(run.median("loss")[-1]) == (lost.sum() > 3)
    shown = str(run)
    assert "diverged: " in shown
    assert ("diverged)" in shown or " diverged\n" in shown) == (lost.sum() > 2)
    assert not re.search(r"\b(inf|nan)\b", shown)


def test_means_are_those_of_survivors():
    run = bnmc.train(NETWORK, X, LABELS, chains=4, **OPTIONS)
    run.loss[0, 2:] = np.nan
    run.diverged[0] = 2
    assert run.estimate("loss").n == 3
    assert run.estimate("loss", 2).value == pytest.approx(run.loss[1:, 2].mean())
    assert run.median("loss")[-1] == pytest.approx(np.median([*run.loss[1:, -1], 1e300]))


def test_a_forecast_comes_before_the_work():
    wide = bnmc.Network.of(width=[5, 10**6, 10**6, 10**6], batch=6, norm="none")
    with (
        mock.patch.object(course, "Model", side_effect=AssertionError),
        pytest.raises(ResultTooLargeError, match="a network takes .* fewer steps"),
    ):
        bnmc.train(wide, X, LABELS, steps=10_000, learning_rate=0.1)


def test_the_bar_begins_with_the_forecast(monkeypatch):
    """Ten networks in two threads take five times the seconds of one."""
    one_network = forecast.Forecast(90.0, 1, 1)
    monkeypatch.setattr(running, "forecast_of", lambda course: one_network)
    with mock.patch.object(running, "reporting", side_effect=ZeroDivisionError) as told:
        for chains in (1, 10):
            with pytest.raises(ZeroDivisionError):
                bnmc.train(NETWORK, X, LABELS, chains=chains, threads=2, **OPTIONS)
    assert [call.args[1] for call in told.call_args_list] == [
        "train, forecast 1.5 min", "train, forecast 7.5 min",
    ]  # fmt: skip


def test_small_networks_are_drawn_and_large_ones_are_not():
    def matrices(width, **options):
        network = bnmc.Network.of(width=[5, width, width], batch=6, norm="none")
        settings = {**OPTIONS, "steps": 2, **options}
        run = bnmc.train(network, X, LABELS, **settings)
        implicit = int(run.matrices[1] == "implicit")
        assert f"hidden matrices: {implicit} implicit, {1 - implicit} drawn" in str(run)
        return run.matrices[1]

    assert matrices(100) == "drawn"
    assert matrices(20_000) == "implicit"
    assert matrices(100, matrices="implicit") == "implicit"


def test_epochs_give_each_sample_its_turn():
    network = bnmc.Network.of(width=[5, 20], batch=2, norm="none")
    with mock.patch.object(
        course.Course, "samples_of_steps", autospec=True, side_effect=course.Course.samples_of_steps
    ) as spy:
        run = bnmc.train(
            network, X, LABELS, chains=2, batches="epochs", threads=1, **OPTIONS | {"steps": 7}
        )
    orders = [course.Course.samples_of_steps(*call.args) for call in spy.call_args_list]
    for order in orders[:2]:
        assert order.shape == (7, 2)
        for epoch in (order[:3], order[3:6]):
            assert sorted(epoch.ravel()) == list(range(6))
    assert (orders[0] != orders[1]).any()
    assert run.batch_loss.shape == (2, 7)


def test_rows_without_variance_raise():
    with pytest.raises(ZeroVarianceError):
        bnmc.train(bnmc.Chain(8, 6, "relu"), np.ones((5, 6)), LABELS, depth=1, **OPTIONS)


def test_a_layer_zero_that_keeps_rows_is_the_inputs():
    """A chain without norm and activation whose width is the number of features, too."""
    chain = bnmc.Chain(5, 6, norm="none")
    assert len(bnmc.train(chain.repeat(1), X, LABELS, **OPTIONS).matrices) == 2
    run = bnmc.train(bnmc.Chain(5, 6, "relu", norm="none").repeat(1), X, LABELS, **OPTIONS)
    assert len(run.matrices) == 3
    assert run.layers == (0, 1)
