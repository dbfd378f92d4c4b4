"""What processes and stores cost: two processes against one, and stores against memory."""

import multiprocessing
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

import bnmc
from bench.turns import SECONDS, Candidate, repeating


def test_processes(turns):
    """Two spawned processes against one."""
    depth = turns.of(3000, 300, 20)
    chain = bnmc.Chain(turns.of(1000, 1000, 20), 10, "relu")
    turns.group = f"16 chains of ({chain.width}, 10) through {depth} layers"
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context) as single, ProcessPoolExecutor(2, context) as pair:

        def runs(pool):
            return repeating(lambda: bnmc.simulate(
                chain, depth, chains=16, rng=0, executor=pool, every=10
            ))  # fmt: skip

        # Started here: what is started in a thread of a run would die with that thread.
        for workers, pool in ((1, single), (2, pair)):
            for future in [pool.submit(time.sleep, 0.5) for _ in range(workers)]:
                future.result()
        candidates = [
            Candidate("1 process", runs(single), shown=SECONDS),
            Candidate("2 processes", runs(pair), shown=SECONDS),
        ]
        timings = turns(candidates, rounds=turns.of(5, 1), seconds=0.1)
    speed = timings["2 processes"].speed_over(timings["1 process"])
    turns.hold("2 processes", "x 1 process", speed, at_least=1.8)


@pytest.mark.parametrize(("wanted", "limit"), [(1e6, 1.10), (200e6, 2.0)], ids=["1 MB", "200 MB"])
def test_stores(turns, wanted, limit):
    """A run in memory and in a store, whose values come at a wanted rate in bytes per second."""
    chain = bnmc.Chain(1000, 10, "relu") if wanted < 1e7 else bnmc.Chain(20, 16, "relu")
    chains, long = 4, turns.of(10.0, 1.0, 0.01)
    turns.group = f"A run to a store against one in memory, about {wanted / 1e6:g} MB/s"

    def simulate(depth, every, store=None):
        return bnmc.simulate(chain, depth, chains=chains, rng=0, every=every, store=store)

    def to_a_store(depth, every):
        with tempfile.TemporaryDirectory() as folder:
            return simulate(depth, every, Path(folder, "run.zarr"))

    simulate(100, 1)
    to_a_store(100, 1)
    layers = turns.of(2000, 2000, 100)
    begun = time.perf_counter()
    simulate(layers, layers)
    layer = (time.perf_counter() - begun) / layers
    numbers = 8 * chains * chain.batch**2
    every = max(1, round(numbers / (wanted * layer)))
    depth = round(min(long, 1e9 / wanted) / layer)
    candidates = [
        Candidate("in memory", repeating(lambda: simulate(depth, every)), shown=SECONDS),
        Candidate("to a store", repeating(lambda: to_a_store(depth, every)), shown=SECONDS),
    ]
    timings = turns(candidates, rounds=turns.of(5, 1), seconds=0.1)
    memory, store = (timings[candidate.name] for candidate in candidates)
    recorded = numbers * (depth // every + 1)
    turns.add("in memory", {"MB/s": recorded / memory.median / 1e6})
    turns.hold("to a store", "over memory", memory.speed_over(store), at_most=limit)
