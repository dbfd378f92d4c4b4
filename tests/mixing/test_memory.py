"""Requests of coupled pairs and coupled inputs beyond the memory are refused before any work."""

import tracemalloc

import numpy as np
import pytest
from slow_cases import some

import bnmc
from bnmc import Chain
from bnmc._support import array_arguments
from bnmc.errors import ResultTooLargeError
from bnmc.invariant import stationary_mean
from bnmc.mixing import contraction_rate, coupling, memory
from bnmc.simulation.engine import pairs

CHAIN = Chain(50, 8, "relu")
HUGE = Chain(100, 20_000, "relu")

CALLS = {
    "tv_bound": lambda chain, count: bnmc.mixing.tv_bound(
        chain, 5, replicates=count, lag=20, rng=0
    ),
    "contraction": lambda chain, count: bnmc.mixing.contraction(chain, pairs=count, rng=0),
    "expectation": lambda chain, count: bnmc.invariant.expectation(
        chain, "orthogonality_gap", replicates=count, burn_in=5, length=10, lag=10, rng=0
    ),
}


@pytest.fixture
def nothing_runs(monkeypatch):
    """Fail if a pair is made."""

    def refused(*_, **__):
        raise AssertionError("a pair was made")

    for module in (pairs, coupling, contraction_rate):
        monkeypatch.setattr(module, "Pairs", refused)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(("chain", "count"), [(CHAIN, 2**20), (HUGE, 2)])
def test_pairs_beyond_the_memory(call, chain, count, nothing_runs, monkeypatch):
    """Too many pairs, or too large a batch: here memory has 100 MB."""
    monkeypatch.setattr(array_arguments, "available_memory", lambda: 100_000_000)
    tracemalloc.start()
    try:
        with pytest.raises(ResultTooLargeError, match="^(replicates|batch): the result") as caught:
            CALLS[call](chain, count)
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()
    assert caught.value.available == 100_000_000


@pytest.mark.parametrize("call", some(CALLS, "tv_bound", "expectation"))
def test_the_estimate_for_pairs_is_within_a_third_of_the_peak(call, monkeypatch):
    """A tenfold number of pairs is measured, as the rest of a small call is of the same size.

    One task runs at a time: how many tasks of several overlap depends on the load of the machine.
    """
    count = {"tv_bound": 4000, "contraction": 1000, "expectation": 500}[call]
    for module in (coupling, contraction_rate, stationary_mean):
        monkeypatch.setattr(module, "available_processors", lambda: 1)
    with monkeypatch.context() as patch:
        patch.setattr(array_arguments, "available_memory", lambda: 0)
        with pytest.raises(ResultTooLargeError) as caught:
            CALLS[call](CHAIN, count)
    CALLS[call](CHAIN, count // 10)
    tracemalloc.start()
    try:
        CALLS[call](CHAIN, count)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert 1 / 1.3 < caught.value.requested / peak < 1.3


def test_each_task_that_runs_at_the_same_time_is_counted(monkeypatch):
    """Eight pairs in tasks of two: a task alone, two at a time, and as many as there are."""
    monkeypatch.setattr(array_arguments, "available_memory", lambda: 0)
    requests = []
    for workers in (1, 2, 4, 8):
        with pytest.raises(ResultTooLargeError) as caught:
            memory.require_memory_of_pairs(CHAIN, 8, 2, workers)
        requests.append(caught.value.requested)
    one, two, four, eight = requests
    assert two > one
    assert four - one == 3 * (two - one)
    assert eight == four


def test_inputs_of_one_network_beyond_the_memory(monkeypatch):
    monkeypatch.setattr(array_arguments, "available_memory", lambda: 100_000_000)
    x, y = np.random.default_rng(0).normal(size=(2, 50, 8))
    with pytest.raises(ResultTooLargeError, match="^depth, chains: the result needs"):
        bnmc.mixing.two_inputs(CHAIN, x, y, depth=1000, chains=1000, rng=0)
