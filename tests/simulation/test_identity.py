"""The identity of a run: the same in every process, and compared before anything is handed over."""

import io
import json
import os
import shutil
import subprocess
import sys
import threading
import zipfile
from concurrent.futures import ProcessPoolExecutor
from unittest import mock

import numpy as np
import pytest
from small_stores import run

import bnmc
from bnmc._support.archives import archived
from bnmc.errors import ArgumentTypeError, StoreError, StoreMismatchError
from bnmc.simulation import run as simulating
from bnmc.simulation import tiles as simulation_tiles
from bnmc.simulation.observables import SoftRank
from bnmc.simulation.store import parts, zarr_arrays
from bnmc.simulation.store.parts import with_facts, without_facts

pytestmark = pytest.mark.usefixtures("small_tiles")


def attributes(path):
    return json.loads((path / "zarr.json").read_text())["attributes"]


def rewrite(path, change):
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


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
        found = run(path, executor=executor)
    np.testing.assert_array_equal(found.gram, run().gram)
    shutil.rmtree(path)
    with (
        mock.patch.object(simulation_tiles, "versions", return_value="NumPy 1.0"),
        pytest.raises(StoreMismatchError, match="versions = "),
    ):
        run(path)


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
    other = path.with_name("other.zarr")
    run(other, rng=4)
    assert attributes(other)["identity"] != identity


def test_a_flipped_bit_in_the_stored_key_is_refused(path):
    whole = run(path)
    text = (path / "zarr.json").read_text()
    key = str(whole.key)
    flipped = key[:-1] + chr(ord(key[-1]) ^ 1)
    assert text.count(f'"key": "{key}"') == 1
    (path / "zarr.json").write_text(text.replace(f'"key": "{key}"', f'"key": "{flipped}"'))
    with pytest.raises(StoreError, match="attributes are damaged"):
        run(path, rng=None)
    with pytest.raises(StoreMismatchError, match=f"key = {flipped}"):
        run(path)
    with pytest.raises(StoreError, match="attributes are damaged"):
        whole["gram"]
    with pytest.raises(StoreError, match="attributes are damaged"):
        whole.to_xarray()


def test_every_attribute_has_a_part_in_the_checksum(path):
    run(path)
    intact = (path / "zarr.json").read_text()
    for name, value in attributes(path).items():
        changed = value + 1 if isinstance(value, int | float) else f"{value}x"
        changes = {name: changed}
        rewrite(path / "zarr.json", lambda one, by=changes: one["attributes"].update(by))
        with pytest.raises((StoreError, StoreMismatchError)):
            run(path)
        (path / "zarr.json").write_text(intact)
    rewrite(path / "zarr.json", lambda one: one["attributes"].update(note="of the reader"))
    assert run(path).complete


@pytest.fixture
def two(path):
    """Stores of two runs that differ in their keys, with the values of the first one."""
    other = path.with_name("other.zarr")
    run(other, rng=4)
    return path, other, run(path), run().gram


def test_a_tile_of_another_run_or_number_is_refused(two):
    path, other, whole, _ = two
    tile = path / "progress" / "part-0-1.npz"
    for source, said, read in (
        (other / "progress" / "part-0-1.npz", "key = ", "identity = "),
        (path / "progress" / "part-1-1.npz", "part = 1-1", "part = 1-1"),
    ):
        shutil.copy(source, tile)
        with pytest.raises(StoreMismatchError, match=said):
            run(path)
        with pytest.raises(StoreMismatchError, match=read):
            whole["gram"]


def test_arrays_of_another_run_are_never_handed_over(two):
    path, other, whole, expected = two
    shutil.rmtree(path / "gram" / "c")
    shutil.copytree(other / "gram" / "c", path / "gram" / "c")
    with pytest.raises(StoreError, match="gram of chains 0 to 1 is damaged"):
        whole["gram"]
    np.testing.assert_array_equal(run(path).gram, expected)


def test_arrays_and_tiles_of_another_run_are_refused(two):
    path, other, whole, _ = two
    for part in ("gram", "progress"):
        shutil.rmtree(path / part)
        shutil.copytree(other / part, path / part)
    with pytest.raises(StoreMismatchError, match="key = "):
        run(path)
    with pytest.raises(StoreMismatchError, match="identity = "):
        whole["gram"]


def test_another_store_at_the_path_is_refused(two):
    path, other, whole, _ = two
    shutil.rmtree(path)
    shutil.copytree(other, path)
    with pytest.raises(StoreMismatchError, match="identity"):
        whole["gram"]
    with pytest.raises(StoreMismatchError, match="identity"):
        whole.to_xarray()
    with pytest.raises(StoreMismatchError, match="key"):
        run(path)


def test_a_tile_of_another_division_is_refused(path, monkeypatch):
    run(path)

    def other_grid(run, *rest):
        return simulation_tiles.Grid.of_slots(run.chains, run.recorded, 1, 7)

    monkeypatch.setattr(simulating, "grid_of", other_grid)
    other = path.with_name("other.zarr")
    run(other)
    shutil.copy(other / "progress" / "part-0-0.npz", path / "progress" / "part-0-0.npz")
    with pytest.raises(StoreMismatchError, match="identity = "):
        run(path)


# --- metadata


@pytest.mark.parametrize("where", ["gram/zarr.json", "zarr.json"])
def test_flipped_names_of_dimensions_are_refused(where, path):
    whole = run(path)

    def flip(document):
        if where == "zarr.json":
            document = document["consolidated_metadata"]["metadata"]["gram"]
        document["dimension_names"] = document["dimension_names"][::-1]

    rewrite(path / where, flip)
    for call in (lambda: run(path), lambda: whole["gram"], whole.to_xarray):
        with pytest.raises(StoreError, match="dimension_names of gram"):
            call()


def test_names_of_dimensions_that_were_flipped_twice_are_refused(path):
    run(path)

    def flip(document):
        document["dimension_names"] = document["dimension_names"][::-1]

    rewrite(path / "gram/zarr.json", flip)
    rewrite(path / "zarr.json", lambda one: flip(one["consolidated_metadata"]["metadata"]["gram"]))
    with pytest.raises(StoreError, match="metadata of gram, layer are damaged"):
        run(path)


def test_metadata_that_are_missing_are_reported(path):
    run(path)
    rewrite(path / "zarr.json", lambda one: one.pop("consolidated_metadata"))
    with pytest.raises(StoreError, match="lacks the metadata"):
        run(path)


def forge(path, name, change):
    """Change the metadata of an array in both places, with the digests that belong to them."""
    rewrite(path / name / "zarr.json", change)

    def everywhere(document):
        copies = document["consolidated_metadata"]["metadata"]
        change(copies[name])
        facts = document["attributes"]
        facts["arrays"] = parts.digest_of_document(copies)
        facts["identity"] = parts._identity(facts)

    rewrite(path / "zarr.json", everywhere)


def chunks_of(*shape):
    return lambda one: one["chunk_grid"]["configuration"].update(chunk_shape=list(shape))


FORGED = {
    "huge chunks": (chunks_of(2, 2**50, 4, 4), "no tiles"),
    "chunks of no number": (chunks_of(2, 7.5, 4, 4), "not those of a run"),
    "compressed chunks": (
        lambda one: one["codecs"].append({"name": "zstd", "configuration": {}}),
        "not those of a run",
    ),
    "huge matrices": (
        lambda one: [one.update(shape=[4, 21, 2**40, 4]), chunks_of(2, 7, 2**40, 4)(one)],
        "bytes are available",
    ),
    "larger matrices": (
        lambda one: [one.update(shape=[4, 21, 5, 4]), chunks_of(2, 7, 5, 4)(one)],
        r"gram has float64 of shape \(4, 21, 5, 4\)",
    ),
    "other numbers": (lambda one: one.update(data_type="float32"), "gram has float32"),
}


@pytest.mark.parametrize("what", FORGED)
def test_forged_metadata_raise_before_memory_is_taken(what, path):
    change, message = FORGED[what]
    whole = run(path)
    forge(path, "gram", change)
    with pytest.raises(StoreError, match=message):
        run(path)
    with pytest.raises((StoreError, StoreMismatchError)):
        whole["gram"]


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
    forge(path, "gram", lambda one: one.update(shape=[10**6, 21, 4, 4]))
    with (
        mock.patch.object(zarr_arrays, "is_too_long", wraps=zarr_arrays.is_too_long) as asked,
        pytest.raises(StoreMismatchError),
    ):
        whole["gram"]
    assert asked.call_count == 0


@pytest.mark.parametrize(
    "name", ["gram/c/0/0/0/0", "layer/c/0", "progress/part-0-1.npz", "zarr.json"]
)
def test_files_that_are_longer_than_memory_are_not_read(name, path):
    """A sparse file has any length and takes no room on the disk."""
    expected = run().gram
    whole = run(path)
    os.truncate(path / name, 2**42)
    if name in ("gram/c/0/0/0/0", "layer/c/0"):
        if name.startswith("gram"):
            with pytest.raises(StoreError, match="gram of chains 0 to 1 is damaged"):
                whole["gram"]
        np.testing.assert_array_equal(run(path).gram, expected)
        return
    for call in (lambda: run(path), lambda: whole["gram"]):
        with pytest.raises(StoreError, match="do not fit in memory"):
            call()


@pytest.mark.parametrize("content", ["huge", "objects", "no archive", "encrypted"])
def test_forged_tiles_are_made_again(content, path):
    expected = run(path).gram
    tile = path / "progress" / "part-0-2.npz"
    header = {"huge": "'<f8', 'fortran_order': False, 'shape': (1099511627776,)",
              "objects": "'|O', 'fortran_order': False, 'shape': (1,)"}  # fmt: skip
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        text = f"{{'descr': {header.get(content, '')}}}".encode()
        length = len(text).to_bytes(2, "little")
        archive.writestr("gram.npy", b"\x93NUMPY\x01\x00" + length + text + b"\0" * 8)
    forged = bytearray(file.getvalue() if content != "no archive" else b"PK\5\6")
    if content == "encrypted":
        forged[forged.index(b"PK\1\2") + 8] |= 1
    tile.write_bytes(forged)
    np.testing.assert_array_equal(run(path).gram, expected)
    assert tile.read_bytes() != forged


NESTED = "[" * 100_000


@pytest.mark.parametrize("where", ["zarr.json", "gram/zarr.json"])
def test_nested_json_is_damage(where, path):
    whole = run(path)
    (path / where).write_text(NESTED)
    for call in (lambda: run(path), lambda: run(path, rng=None), lambda: whole["gram"]):
        with pytest.raises(StoreError, match="nested"):
            call()


@pytest.mark.parametrize("text", [NESTED, "[]", "{}", "\xff"])
def test_facts_of_a_tile_that_make_no_sense(text, path):
    expected = run().gram
    run(path)
    tile = path / "progress" / "part-0-1.npz"
    arrays = {"facts": np.frombuffer(text.encode("latin-1"), np.uint8)}
    tile.write_bytes(archived(arrays))
    if text in ("[]", "{}"):  # no facts
        with pytest.raises(StoreMismatchError, match="nothing"):
            run(path)
    else:
        np.testing.assert_array_equal(run(path).gram, expected)


@pytest.mark.parametrize("sums", [None, [], [1, 2], [[1]], ["x"], [2.5]])
def test_checksums_of_a_tile_that_make_no_sense_are_made_again(sums, path):
    expected = run().gram
    run(path)
    tile = path / "progress" / "part-0-1.npz"
    arrays, facts = without_facts(tile.read_bytes())
    del arrays["sums"]
    if sums is not None:
        arrays["sums"] = np.array(sums)
    tile.write_bytes(with_facts(arrays, facts))
    np.testing.assert_array_equal(run(path).gram, expected)


def test_a_chunk_that_is_damaged_is_noticed_by_every_reader(path):
    whole = run(path)
    dataset = whole.to_xarray()
    chunk = path / "gram" / "c" / "0" / "0" / "0" / "0"
    content = bytearray(chunk.read_bytes())
    content[5] ^= 1
    chunk.write_bytes(content)
    with pytest.raises(ValueError, match="checksum"):
        dataset["gram"].load()
    with pytest.raises(StoreError, match="gram of chains 0 to 1 is damaged"):
        whole["gram"]
