"""The identity of a run: the same in every process, and compared before anything is handed over."""

import os
import subprocess
import sys
import threading
from concurrent.futures import ProcessPoolExecutor
from unittest import mock

import numpy as np
import pytest
from damaged_stores import CHUNK, attributes, flip, forge, rewrite
from small_stores import run

import bnmc
from bnmc.errors import ArgumentTypeError, StoreError, StoreMismatchError
from bnmc.simulation.observables import SoftRank
from bnmc.simulation.store import zarr_arrays
from bnmc.simulation.store.parts import without_facts

pytestmark = pytest.mark.usefixtures("small_tiles")


# --- other processes


PROGRAM = """
import os, sys, numpy as np, bnmc
from bnmc.simulation import run as simulating, tiles
from bnmc.simulation.store import store

simulating.grid_of = lambda run, *rest: tiles.Grid.of_slots(run.chains, run.recorded, 2, 5)

class Sampler:
    signs = {-1.0, 1.0}
    def __init__(self, scale): self.scale, self.seen = scale, {"x", "y", "z"}
    def __call__(self, generator, shape):
        return self.scale * generator.choice(sorted(self.signs), size=shape)
    def corner(self, g): return self.scale * g[0, 0]

LEVELS = {"low", "high", "middle"}
def of_set(g): return g[0, 1] * len(LEVELS) * (len(LEVELS) in {1, 2, 3})

put, left = store.RunStore.put, int(sys.argv[2])
def dies(self, *arguments):
    global left
    if left == 0: os._exit(9)
    left -= 1
    put(self, *arguments)
store.RunStore.put = dies

sampler = Sampler(1.0)
def run(store):
    return bnmc.simulate(
        bnmc.Chain(20, 3, "relu", weights=sampler), 20, chains=4, rng=0, threads=1, store=store,
        observables={"corner": sampler.corner, "of_set": of_set, "l": lambda g: sampler.scale},
    )

stored, expected = run(sys.argv[1]), run(None)
same = stored["corner"].tobytes() == expected["corner"].tobytes()
print(stored.complete, same, left)
"""


def in_a_process(path, tiles, seed):
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, str(path), str(tiles)], capture_output=True, text=True,
        env={**os.environ, "PYTHONHASHSEED": seed},
    )  # fmt: skip


def test_a_run_with_functions_of_the_main_module_resumes_in_another_process(path):
    assert in_a_process(path, 4, "1").returncode == 9
    resumed = in_a_process(path, 99, "2")
    assert resumed.returncode == 0, resumed.stderr
    complete, same, left = resumed.stdout.split()
    assert (complete, same) == ("True", "True")
    assert int(left) == 99 - (10 - 4)  # the finished tiles were not made again


def test_workers_find_the_versions_of_the_coordinator(path):
    with ProcessPoolExecutor(1) as executor:
        stored = run(path, executor=executor)
    np.testing.assert_array_equal(stored.gram, run().gram)


# --- functions


class Offset:
    def __init__(self, k):
        self.k = k

    def corner(self, g):
        return g[0, 0] + self.k

    def __call__(self, g):
        return g[0, 0] + self.k


class OwnObservable(bnmc.Observable):
    pass


OBSERVABLES = {
    "bound methods": lambda k: {"f": Offset(k).corner},
    "callable objects": lambda k: {"f": Offset(k)},
    "values of a closure": lambda k: {"f": lambda g: g[0, 0] + k},
    "sets": lambda k: {"f": lambda g, s=frozenset([k]): g[0, 0] + sum(s)},
    "thresholds": lambda k: SoftRank(k, name="f"),
    "attributes of an own class": lambda k: _with(OwnObservable(np.trace, name="f"), k),
}  # fmt: skip


def _with(observable, k):
    observable.k = k
    return observable


@pytest.mark.parametrize("what", OBSERVABLES)
def test_observables_of_one_name_are_told_apart(what, path):
    made = OBSERVABLES[what]
    run(path, observables=made(1.0))
    run(path, observables=made(1.0))
    with pytest.raises(StoreMismatchError, match="observables = f"):
        run(path, observables=made(2.0))


def test_samplers_of_weights_are_told_apart(path):
    class Sampler:
        def __init__(self, high):
            self.high = high

        def __call__(self, generator, shape):
            return generator.uniform(-self.high, self.high, shape)

    def chain(high):
        return bnmc.Chain(20, 3, "relu", weights=Sampler(high))

    run(path, chain(1.5))
    run(path, chain(1.5))
    assert "0x" not in attributes(path)["chain"]
    with pytest.raises(StoreMismatchError, match="weights_digest"):
        run(path, chain(1.6))


def test_a_subclass_of_chain_is_another_chain(path):
    class Own(bnmc.Chain):
        pass

    run(path)
    with pytest.raises(StoreMismatchError, match="chain_digest"):
        run(path, Own(30, 4, "relu"))


def test_what_cannot_be_compared_is_refused_with_a_store_only(path):
    lock = threading.Lock()

    def guarded(g):
        with lock:
            return g[0, 0]

    def sampler(generator, shape):
        with lock:
            return generator.standard_normal(shape)

    chain = bnmc.Chain(20, 3, "relu", weights=sampler)
    assert run(observables=guarded)["guarded"].shape == (4, 21)
    assert run(None, chain).complete
    with pytest.raises(ArgumentTypeError, match="observables: .*store.*_thread.lock.*__getstate__"):
        run(path, observables=guarded)
    with pytest.raises(ArgumentTypeError, match="weights: .*_thread.lock"):
        run(path, chain)
    assert not path.exists()


# --- other stores


def test_header_and_tiles_contain_the_identity(path):
    run(path)
    identity = attributes(path)["identity"]
    assert len(identity) == 64
    tiles = sorted((path / "progress").glob("part-*.npz"))
    assert len(tiles) == 6
    for tile in tiles:
        facts = without_facts(tile.read_bytes())[1]
        assert (facts["identity"], facts["key"]) == (identity, attributes(path)["key"])
        assert tile.name == f"part-{facts['part']}.npz"
    assert (facts["of_chains"], facts["of_slots"]) == ("2 to 3", "14 to 20")
    other = path.with_name("other.zarr")
    run(other, rng=4)
    assert attributes(other)["identity"] != identity


def test_every_attribute_has_a_part_in_the_checksum(path):
    run(path)
    intact = (path / "zarr.json").read_text()
    for name, value in attributes(path).items():
        changed = value + 1 if isinstance(value, int | float) else f"{value}x"
        changes = {name: changed}
        rewrite(path / "zarr.json", lambda document, by=changes: document["attributes"].update(by))
        with pytest.raises((StoreError, StoreMismatchError)):
            run(path)
        (path / "zarr.json").write_text(intact)
    rewrite(
        path / "zarr.json", lambda document: document["attributes"].update(note="of the reader")
    )
    assert run(path).complete


def test_only_finished_tiles_are_looked_for(path):
    """Metadata may claim many more chains than there are, and still fit in memory."""
    whole = run(path)
    for tile in (path / "progress").glob("part-*.npz"):
        if tile.name != "part-0-0.npz":
            tile.unlink()
    with (
        mock.patch.object(zarr_arrays, "is_too_long", wraps=zarr_arrays.is_too_long) as asked,
        pytest.raises(StoreError, match="gram of chains 0 to 1 is damaged from recorded layer 7"),
    ):
        whole["gram"]
    assert asked.call_count == 1
    forge(path, "gram", lambda document: document.update(shape=[10**6, 21, 4, 4]))
    with (
        mock.patch.object(zarr_arrays, "is_too_long", wraps=zarr_arrays.is_too_long) as asked,
        pytest.raises(StoreMismatchError),
    ):
        whole["gram"]
    assert asked.call_count == 0


def test_a_chunk_that_is_damaged_is_noticed_by_xarray(path):
    dataset = run(path).to_xarray()
    flip(path / CHUNK)
    with pytest.raises(ValueError, match="checksum"):
        dataset["gram"].load()
