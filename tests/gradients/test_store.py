"""Stores of `backpropagate`: interrupted runs continue with the same bits, and nothing is lost."""

import json
import os
import signal
import threading
import time
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
from gradient_runs import ALL, assert_same_bits
from slow_cases import some

import bnmc
from bnmc import Chain, errors
from bnmc._support import interruption
from bnmc.gradients import parts
from bnmc.gradients.network import NetworkTask
from bnmc.gradients.parts import Task
from bnmc.gradients.store import ChainStore
from bnmc.simulation.store.parts import without_facts

TANH = Chain(20, 4, "tanh")
X = np.random.default_rng(0).standard_normal((20, 4))


def cube(outputs):
    return outputs**3


RUNS = {
    "kernels": (TANH, {}),
    "float32 with a readout": (TANH, {"dtype": "float32", "loss_gradient": cube, "classes": 3}),
    "layer norm": (Chain(20, 4, "relu", norm="layer"), {}),
    "weights": (Chain(20, 4, "tanh", weights="uniform"), {"every": 2}),
}


def run(store=None, chain=TANH, depth=6, **options):
    settings = {"chains": 5, "rng": 3, "threads": 1, "observables": ALL, **options}
    return bnmc.backpropagate(chain, depth, store=store, **settings)


def stopping_after(count):
    def interrupt(done, total):
        if done >= count:
            raise KeyboardInterrupt

    return interrupt


@pytest.fixture(autouse=True)
def _one_chain_per_part(monkeypatch):
    monkeypatch.setattr(parts, "PART_SECONDS", 1e-9)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "gradients"


@contextmanager
def counted():
    """Yield a list of the first chains of the parts that are made."""
    made = []

    def counting(call):
        def count(self, start, first, last, stop=None):
            made.append(first)
            return call(self, start, first, last, stop)

        return count

    with ExitStack() as patches:
        for kind in (Task, NetworkTask):
            patches.enter_context(mock.patch.object(kind, "__call__", counting(kind.__call__)))
        yield made


def interrupted(path, chain=TANH, **options):
    """Interrupt a run after two parts.  The worker waits with the fourth one, so some remain.

    It is told to stop, and has stopped when this returns: what it does later is not counted.
    """
    before = {*threading.enumerate()}
    with ExitStack() as patches:
        for kind in (Task, NetworkTask):
            patches.enter_context(mock.patch.object(kind, "__call__", waiting(kind.__call__)))
        with pytest.raises(errors.Interrupted) as caught:
            run(path, chain, progress=stopping_after(2), **options)
        for thread in {*threading.enumerate()} - before:
            thread.join(20)
            assert not thread.is_alive()
    return caught.value


def waiting(call):
    def wait(self, start, first, last, stop=None):
        while first >= 3 and not stop.is_set():
            time.sleep(0.01)
        return call(self, start, first, last, stop)

    return wait


@pytest.mark.parametrize("name", RUNS)
def test_an_interrupted_run_continues_with_the_same_bits(name, path):
    chain, options = RUNS[name]
    expected = run(chain=chain, **options)
    stopped = interrupted(path, chain, **options)
    files = list(path.glob("part-*.npz"))
    assert 2 <= len(files) < 5
    assert stopped.partial.chains == len(files)
    seen = []
    with counted() as made:
        # Another number of threads cuts the chains into other parts; the store keeps its own.
        more = {"threads": 3, "progress": lambda *report: seen.append(report)}
        assert_same_bits(run(path, chain, **options, **more), expected)
        assert sorted(made) == list(range(len(files), 5))
        assert seen[0] == (len(files), 5)
        made.clear()
        assert_same_bits(run(path, chain, **options), expected)
        assert made == []
    assert len(list(path.glob("part-*.npz"))) == 5


def test_a_finished_part_that_ctrl_c_overtakes_is_kept(path, monkeypatch):
    """Ctrl-C arrives before the part enters the store: the run writes it first."""
    presses = iter([signal.SIGINT])
    put = ChainStore.put

    def interrupted(self, number, part):
        for press in presses:
            os.kill(os.getpid(), press)
            time.sleep(0.1)
        put(self, number, part)

    monkeypatch.setattr(ChainStore, "put", interrupted)
    # A shell lets the commands that it starts in the background ignore Ctrl-C.
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(errors.Interrupted) as caught:
            run(path)
    finally:
        signal.signal(signal.SIGINT, former)
    assert caught.value.partial.chains >= 1
    assert (path / "part-0000.npz").exists()


def test_a_timeout_keeps_what_is_finished(path, monkeypatch):
    def slow(outputs):
        time.sleep(0.02)
        return outputs

    with pytest.raises(errors.PartialEstimateError, match="timeout"):
        run(path, loss_gradient=slow, classes=2, chains=60, timeout=1e-9)
    # Time passes with finished parts, so the test does not depend on the speed of the machine.
    clock = SimpleNamespace(monotonic=lambda: float(len(list(path.glob("part-*.npz")))))
    with monkeypatch.context() as patched:
        patched.setattr(interruption, "time", clock)
        partial = run(path, loss_gradient=slow, classes=2, chains=60, timeout=2.0)
    assert not partial.complete
    assert partial.chains >= 2
    whole = run(path, loss_gradient=slow, classes=2, chains=60)
    assert whole.complete
    assert_same_bits(whole, run(loss_gradient=lambda outputs: outputs, classes=2, chains=60))


def test_without_a_seed_the_store_has_the_key(path):
    first = run(path, rng=None)
    assert_same_bits(run(path, rng=None), first)
    with pytest.raises(errors.StoreMismatchError, match="key"):
        run(path, rng=3)


def with_derivative(derivative):
    return {"chain": Chain(20, 4, bnmc.Activation(abs, name="own", derivative=derivative))}


SQUARED = {"loss": "squared", "labels": [0, 1, 0, 1]}
#: Arguments of two runs, and what the error names.
DIFFERENT = {
    "depth": ({}, {"depth": 7}, "depth = 7"),
    "chains": ({"chains": 6}, {}, "chains = 5.*grow and do not shrink"),
    "every": ({}, {"every": 2}, "every = 2"),
    "rng": ({}, {"rng": 4}, "a run with key:"),
    "dtype": ({}, {"dtype": "float32"}, "dtype = float32"),
    "sampler": ({}, {"sampler": "weights"}, "sampler = weights"),
    "inputs": ({}, {"inputs": 1, "initial": X[None]}, "inputs = 1"),
    "initial": ({}, {"initial": X}, "start = "),
    "observables": ({}, {"observables": ("gram",)}, "observables = "),
    "loss": ({}, SQUARED, "loss = squared"),
    "rows": ({}, {"loss": np.ones((20, 4))}, "loss = given"),
    "function": ({}, {"loss_gradient": cube, "classes": 2}, "loss = function"),
    "chain": ({}, {"chain": Chain(20, 4, "relu")}, "chain = "),
    # Of one name.
    "other rows": ({"loss": np.ones((20, 4))}, {"loss": np.full((20, 4), 2.0)}, "loss = given"),
    "other functions": (
        {"loss_gradient": cube, "classes": 2}, {"loss_gradient": np.square, "classes": 2},
        "loss = function",
    ),
    "other labels": (SQUARED, {**SQUARED, "labels": [0, 1, 1, 1]}, "loss = squared"),
    "other observables": (
        {"observables": {"t": lambda *m: m[0][..., 0, 0]}},
        {"observables": {"t": lambda *m: m[1][..., 0, 0]}}, "observables = t",
    ),
    # Two sets of kernels are compiled.
    "other derivatives": (
        with_derivative(lambda x: 1.0), with_derivative(lambda x: 2.0), "derivative_digest = ",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", some(DIFFERENT, *(set(DIFFERENT) - {"other derivatives"})))
def test_a_store_of_another_run_raises(what, path, monkeypatch):
    monkeypatch.setattr(bnmc.Activation, "check_derivative", lambda self: None)
    first, other, named = DIFFERENT[what]
    run(path, timeout=60, **first)
    with pytest.raises(errors.StoreMismatchError, match=named):
        run(path, **other)


def test_more_chains_extend_a_folder(path, monkeypatch):
    """The last part of three chains has one chain, and is made again with two."""
    monkeypatch.setattr(Task, "chains_of_part", lambda *_: 2)
    run(path, chains=3)
    with counted() as made:
        assert_same_bits(run(path), run())
    assert made == [2, 4, 0, 2, 4]
    x = np.stack([X] * 5)
    run(path.with_name("starts"), initial=x[:3] + np.arange(3)[:, None, None], chains=None)
    with pytest.raises(errors.StoreMismatchError, match="start = .* of 5 chains.* of 3 chains"):
        run(path.with_name("starts"), initial=x + np.arange(5)[:, None, None], chains=None)


def made_on(kind_of):
    """Let each part say that another processor made it, by the number of its first chain."""
    call = Task.__call__

    def made(self, start, first, *more):
        return call(self, start, first, *more) | {parts.CPU: np.array([kind_of(first)])}

    return mock.patch.object(Task, "__call__", made)


def test_workers_of_other_kinds_are_named_and_fill_no_store(path):
    with made_on(lambda first: f"kind {first % 2}"):
        assert run().cpu == "kind 0, kind 1"
        with pytest.raises(errors.StoreMismatchError, match="cpu = kind 0"):
            run(path)
    assert not list(path.glob("part-*.npz"))
    assert run(path).cpu == run().cpu


def test_a_part_has_its_first_and_last_chain(path):
    run(path)
    facts = [without_facts(file.read_bytes())[1] for file in sorted(path.glob("part-*.npz"))]
    assert [each["of_chains"] for each in facts] == [f"{chain} to {chain}" for chain in range(5)]


def test_damaged_and_missing_parts_are_made_again(path):
    expected = run(path)
    files = sorted(path.glob("part-*.npz"))
    files[0].unlink()
    files[1].write_bytes(b"")
    content = bytearray(files[2].read_bytes())
    content[content.index(expected.log_gradient_norm[2].tobytes()) + 5] ^= 4
    files[2].write_bytes(content)
    files[3].write_bytes(files[3].read_bytes()[:-1])
    with counted() as made:
        assert_same_bits(run(path), expected)
    assert made == [0, 1, 2, 3]


def test_a_damaged_size_of_parts_raises(path):
    run(path)
    header = path / "gradients.json"
    document = json.loads(header.read_text())
    for size in ("0", "6", "-1", "x"):
        document["attributes"]["part"] = size
        header.write_text(json.dumps(document))
        with pytest.raises(errors.StoreError, match="damaged"):
            run(path)


def test_what_is_no_store(tmp_path):
    (tmp_path / "file").write_text("mine")
    for place in (tmp_path, tmp_path / "file"):
        with pytest.raises(errors.ArgumentError, match="a new or empty folder"):
            run(place)
    with pytest.raises(errors.ArgumentTypeError, match="store"):
        run(3)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["file"]
