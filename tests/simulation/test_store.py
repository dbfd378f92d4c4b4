"""Runs in a store: interrupted in any way, they resume, with the bits of one that was not."""

import itertools
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import small_stores
import xarray as xr
import zarr
from damaged_stores import (
    ATTRIBUTES,
    BEFORE_READING,
    DAMAGE,
    LATER,
    OF_METADATA,
    attributes,
    chunks,
    flip,
)
from slow_cases import slow, some

import bnmc
from bnmc import errors
from bnmc.simulation import memory
from bnmc.simulation import run as simulating
from bnmc.simulation import tiles as simulation_tiles
from bnmc.simulation.store import store, zarr_arrays

RELU = bnmc.Chain(30, 4, "relu")
#: One run of each sampler's state: Gram matrices, rows as well, activations, Wishart factors.
RUNS = {
    "conditional": (RELU, {}),
    "skip in float32": (
        bnmc.Chain(30, 4, "relu", skip=0.5), {"dtype": "float32", "initial": "collinear"}
    ),
    "widened": (bnmc.Chain(30, 4, "linear"), {"dtype": "float32", "initial": "collinear"}),
    "weights": (bnmc.Chain(24, 3, "relu", weights="uniform"), {"inputs": 2, "burn_in": 3}),
    "factor": (
        bnmc.Chain(30, 3, "linear", norm="none"), {"observables": ["scaled_gram", "log_scale"]}
    ),
    "passes": (bnmc.Chain(40, 4, "tanh", norm="group(4)", skip=0.5, bias_variance=0.1), {}),
    "taps": (bnmc.Chain.conv(40, 1, "tanh", shape=(2, 2), kernel=(1, 2)), {}),
}  # fmt: skip
DEPTH, CHAINS = 40, 5

pytestmark = pytest.mark.usefixtures("small_tiles")


def run(chain=RELU, depth=DEPTH, *, rng=3, **options):
    return bnmc.simulate(chain, depth, **{"chains": CHAINS, **options}, rng=rng)


def assert_same(result, expected):
    assert result.complete
    assert set(result.observables) == set(expected.observables)
    for name, values in expected.observables.items():
        np.testing.assert_array_equal(result[name], values)
    np.testing.assert_array_equal(result.layers, expected.layers)
    assert (result.key, result.sampler, result.dtype, result.widened) == (
        expected.key, expected.sampler, expected.dtype, expected.widened
    )  # fmt: skip
    assert result.final_state.layer == expected.final_state.layer
    for name, values in expected.final_state.arrays.items():
        np.testing.assert_array_equal(result.final_state.arrays[name], values)


class Died(BaseException):
    """Stands for the end of a process."""


def dying(after):
    """Let a run die right before it writes the file of a tile, after so many of them."""
    count = 0
    original = store.RunStore.put
    write = store.RunStore.write

    def counts(self, *arguments):
        nonlocal count
        count += 1
        original(self, *arguments)

    def dies(self, *arguments):
        if count > after:
            raise Died
        write(self, *arguments)

    return mock.patch.multiple(store.RunStore, put=counts, write=dies)


@contextmanager
def counted():
    """Yield a list that gets an entry for each tile; threads would lose counts of a mock."""
    made, make_tile = [], simulation_tiles.make_tile

    def make(*arguments, **options):
        made.append(None)
        return make_tile(*arguments, **options)

    with mock.patch.object(simulation_tiles, "make_tile", make):
        yield made


@pytest.mark.parametrize("name", RUNS)
def test_an_interrupted_run_resumes_with_the_same_bits(name, path):
    chain, options = RUNS[name]
    expected = run(chain, **options)
    assert (name == "widened") == bool(expected.widened)
    tiles = 3 * -(-len(expected.layers) // 7)
    with dying(5), pytest.raises(Died):
        run(chain, **options, store=path)
    with dying(4), pytest.raises(Died):
        run(chain, **options, store=path, threads=1)
    with counted() as made:
        assert_same(run(chain, **options, store=path), expected)
    # Those that died in hand are made again, and one before each where its state is not kept.
    assert tiles - 9 <= len(made) <= tiles - 9 + 3
    with mock.patch.object(simulation_tiles, "make_tile", side_effect=AssertionError("work began")):
        assert_same(run(chain, **options, store=path), expected)


def test_a_store_is_a_plain_zarr_dataset(path):
    expected = run(observables=["gram", "rank_bound"], every=3)
    stored = run(observables=["gram", "rank_bound"], every=3, store=path)
    dataset = xr.open_zarr(path)  # a warning would be an error here
    assert set(dataset.variables) == {"gram", "rank_bound", "layer", "chain"}
    assert dataset["gram"].dims == ("chain", "layer", "sample_i", "sample_j")
    np.testing.assert_array_equal(dataset["layer"], expected.layers)
    np.testing.assert_array_equal(dataset["gram"], expected.gram)
    assert zarr.open_group(path, mode="r")["gram"].metadata.zarr_format == 3
    assert dataset.attrs["key"] == str(expected.key)
    wanted = {"width": 30, "batch": 4, "sampler": "conditional", "backend": "cpu", "chains": CHAINS}
    assert wanted.items() <= dataset.attrs.items()
    xr.testing.assert_identical(stored.to_xarray().load(), expected.to_xarray())
    lazily = stored.to_xarray()
    assert not isinstance(lazily["gram"].variable._data, np.ndarray)
    np.testing.assert_array_equal(lazily["gram"], expected.gram)
    np.testing.assert_array_equal(stored.mean("rank_bound"), expected.mean("rank_bound"))
    assert len(xr.open_datatree(path, engine="zarr")["/"].data_vars) == 2


@pytest.mark.filterwarnings("ignore:Consolidated metadata")
def test_datasets_of_stores_and_of_memory_go_together(path):
    stored, other = run(store=path).to_xarray(), run(rng=4).to_xarray()
    joined = xr.concat([stored, other], "chain")
    for number, (first, second) in enumerate(itertools.permutations([stored, other])):
        place = path.with_name(f"{number}.zarr")
        first.to_zarr(place)
        second.to_zarr(place, append_dim="chain")
        chains = slice(None) if number == 0 else [*range(CHAINS, 2 * CHAINS), *range(CHAINS)]
        xr.testing.assert_equal(xr.open_zarr(place).load(), joined.isel(chain=chains))


def test_a_stored_run_can_be_pickled_and_continued(path):
    expected = run(depth=DEPTH + 5)
    stored = pickle.loads(pickle.dumps(run(store=path)))
    deeper = bnmc.simulate(RELU, 5, initial=stored.final_state)
    np.testing.assert_array_equal(deeper.gram, expected.gram[:, DEPTH:])
    again = bnmc.simulate(RELU, 5, initial=stored.final_state, store=path.with_name("more.zarr"))
    np.testing.assert_array_equal(again.gram, expected.gram[:, DEPTH:])


def test_without_a_seed_the_store_has_it(path):
    with dying(4), pytest.raises(Died):
        run(store=path, rng=None)
    key = json.loads((path / "zarr.json").read_text())["attributes"]["key"]
    stored = run(store=path, rng=None)
    assert str(stored.key) == key
    second = run(store=path.with_name("other.zarr"), rng=None)
    assert second.key != stored.key


def test_a_limit_of_time_returns_what_is_finished(path):
    expected = run()
    with mock.patch.object(simulating, "Stop", return_value=StopAfter(9)):
        partial = run(store=path, timeout=1.0, threads=1)
    assert not partial.complete
    assert 0 < len(partial.layers) < len(expected.layers)
    np.testing.assert_array_equal(partial.gram, expected.gram[:, : len(partial.layers)])
    sizes = partial.to_xarray().sizes
    assert sizes["layer"] == len(partial.layers)
    assert "interrupted" in repr(partial)
    more = DEPTH - int(partial.layers[-1])
    deeper = bnmc.simulate(RELU, more, initial=partial.final_state)
    np.testing.assert_array_equal(deeper.gram[:, 1:], expected.gram[:, len(partial.layers) :])
    assert_same(run(store=path), expected)


class StopAfter:
    """A limit of time that is over when it has been asked so many times."""

    def __init__(self, times):
        self.left = times

    def is_set(self):
        return False

    def __call__(self):
        self.left -= 1
        return self.left < 0


# --- what another run is


CHANGES = {
    "chain": {"chain": bnmc.Chain(31, 4, "relu")},
    "depth": {"depth": 39},
    "chains": {"chains": 4},
    "key": {"rng": 4},
    "dtype": {"dtype": "float32"},
    "sampler": {"sampler": "weights"},
    "every": {"every": 2},
    "burn_in": {"burn_in": 1},
    "inputs": {"inputs": 1},
    "start": {"initial": "collinear"},
    "observables": {"observables": ["eigenvalues"]},
}


@pytest.mark.parametrize("name", some(CHANGES, "chain", "key", "dtype", "inputs", "observables"))
def test_a_store_of_another_run_is_refused(name, path):
    options, change = {"chain": RELU, "depth": DEPTH, "rng": 3}, CHANGES[name]
    run(**options, store=path)
    with pytest.raises(errors.StoreMismatchError, match="expected a run with") as caught:
        run(**{**options, **change}, store=path)
    assert caught.value.name == name
    assert caught.value.stored != caught.value.wanted


@pytest.mark.parametrize(
    ("name", "change"),
    [("passes", {"norm": "group(2)"}), ("passes", {"bias_variance": 0.2}),
     ("passes", {"order": "pre-activation"})]
    + [("taps", {"convolution": bnmc.Convolution(shape, (2, 1))}) for shape in ((2, 2), (4, 1))],
)  # fmt: skip
def test_a_store_of_another_chain_is_refused(name, change, path):
    chain, _ = RUNS[name]
    (argument,) = change
    assert run(chain, 3, store=path).attributes()[argument] in (
        getattr(chain, argument),
        str(getattr(chain, argument)),
    )
    with pytest.raises(errors.StoreMismatchError, match="chain"):
        run(replace(chain, **change), 3, store=path)


@pytest.mark.parametrize("name", ["bnmc_version", "cpu", "activation_digest", "weights_digest"])
def test_what_a_call_does_not_show_is_compared_as_well(name, path):
    run(store=path)
    metadata = json.loads((path / "zarr.json").read_text())
    metadata["attributes"][name] = "another"
    (path / "zarr.json").write_text(json.dumps(metadata))
    with pytest.raises(errors.StoreMismatchError, match=f"{name} = another") as caught:
        run(store=path)
    assert (caught.value.name, caught.value.stored) == (name, "another")


def test_arrays_of_the_start_are_told_apart(path):
    x = np.random.default_rng(0).normal(size=(30, 4))
    expected = run(initial=x)
    with dying(3), pytest.raises(Died):
        run(initial=x, store=path)
    assert_same(run(initial=x, store=path), expected)
    with pytest.raises(errors.StoreMismatchError, match="start"):
        run(initial=x + 1e-3 * x**2, store=path)


# --- growth


GROWN = {
    # (chains, depth) of two runs, options, and tiles that are made again or first, of 2 chains and
    # 7 layers: those that the first run has cut short, and those beyond it.
    "deeper": ((5, 20), (5, 41), {}, 9),
    "deeper, from the middle of a tile": ((5, 21), (5, 41), {}, 9),
    "deeper, from a layer between": ((5, 72), (5, 75), {"every": 10, "burn_in": 5}, 3),
    "more chains": ((4, 20), (7, 20), {}, 6),
    "more chains, from the middle of a tile": ((3, 20), (4, 20), {}, 3),
    "both": ((3, 17), (5, 29), {}, 13),
}


@pytest.mark.parametrize("name", some(GROWN, *(set(GROWN) - {"deeper", "more chains"})))
def test_more_chains_and_layers_extend_a_store(name, path):
    (chains, depth), (more, deeper), options, expected = GROWN[name]
    former = run(depth=depth, chains=chains, store=path, **options)
    with counted() as made:
        grown = run(depth=deeper, chains=more, store=path, threads=1, **options)
    assert len(made) == expected
    fresh = path.with_name("fresh.zarr")
    assert_same(grown, run(depth=deeper, chains=more, store=fresh, **options))
    assert attributes(path) == attributes(fresh)
    xr.testing.assert_identical(xr.open_zarr(path), xr.open_zarr(fresh))
    changed = "chains" if more > chains else "depth"
    for reader in (lambda: former["gram"], former.to_xarray):
        with pytest.raises(errors.StoreMismatchError, match=f"{changed} = "):
            reader()
    with pytest.raises(errors.StoreMismatchError, match="grow and do not shrink; bnmc.open"):
        run(depth=depth, chains=chains, store=path, **options)


# Each of these samplers resumes above; some of them grow each time.
@pytest.mark.parametrize("name", some(RUNS, "conditional", "skip in float32"))
def test_a_run_that_was_interrupted_grows(name, path):
    """The state of each sampler, with the states of large tiles that are not kept."""
    chain, options = RUNS[name]
    with dying(5), pytest.raises(Died):
        run(chain, **options, store=path, threads=1)
    grown = run(chain, DEPTH + 9, **options, chains=6, store=path)
    assert_same(grown, run(chain, DEPTH + 9, **options, chains=6))


def test_a_store_whose_chains_start_apart_grows_in_depth_alone(path):
    x = np.random.default_rng(0).normal(size=(7, 30, 4))
    run(initial=x[:5], store=path)
    assert_same(run(depth=45, initial=x[:5], store=path), run(depth=45, initial=x[:5]))
    with pytest.raises(errors.StoreMismatchError, match="start = .* of 7 chains.* of 5 chains"):
        run(depth=45, initial=x, chains=7, store=path)


def changes_files(event, arguments):
    """Return whether an event of Python's audit hooks may change a file or a folder."""
    if event == "open":
        return bool(arguments[2] & (os.O_WRONLY | os.O_RDWR))
    return event in ("os.rename", "os.remove", "os.mkdir", "os.truncate")


def dies_at(event, path):
    """Return whether a process that extends a store to 3 chains and 12 layers died at an event.

    The events are those that change files before it makes tiles.
    """
    child = os.fork()
    if child == 0:
        left = iter(range(event))

        def hook(name, arguments):
            if changes_files(name, arguments) and next(left, None) is None:
                os._exit(9)

        sys.addaudithook(hook)
        with mock.patch.object(store.RunStore, "first_missing", side_effect=lambda *_: os._exit(0)):
            run(depth=12, chains=3, store=path, threads=1)
        os._exit(1)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, 9)
    return code == 9


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs processes of POSIX")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("step", [6, slow(1)])
def test_a_process_that_dies_while_a_store_grows_loses_nothing(step, path):
    expected = run(depth=12, chains=3)
    run(depth=9, chains=2, store=path)
    copy, event = path.with_name("copy.zarr"), 0
    states = set()
    while True:
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(path, copy)
        died = dies_at(event, copy)
        states.add((attributes(copy)["depth"], (copy / "chain" / "zarr.json").read_text()))
        with suppress(errors.StoreError):
            dataset = bnmc.open(copy)
            first = expected.gram[: dataset.sizes["chain"], : dataset.sizes["layer"]]
            np.testing.assert_array_equal(dataset["gram"], first)
        with counted() as made:
            assert_same(run(depth=12, chains=3, store=copy), expected)
        assert len(made) == 3  # one tile of two chains was finished
        event += step
        if not died:
            break
    assert event > 15
    assert step > 1 or len(states) == 3  # before, between the header and the rest, after


# --- damage


TWICE = (
    "a flipped bit", "an empty chunk", "a torn tile", "chunks that changed places", "lost tiles",
    "damaged tiles",
)  # fmt: skip
OF_TILES = {
    "lost tiles": lambda path: [file.unlink() for file in path.glob("progress/part-*-[1-5].npz")],
    "damaged tiles": lambda path: [flip(file) for file in path.glob("progress/part-*.npz")],
}


# A chunk of an interrupted run is damaged in one way each time; others are below.
@pytest.mark.parametrize("what", some(TWICE, "a flipped bit", "lost tiles", "damaged tiles"))
def test_what_is_damaged_is_made_again(what, path):
    """In a run that was interrupted, and when it is finished."""
    expected, damage = run(), OF_TILES.get(what) or DAMAGE[what][0]
    with dying(11), pytest.raises(Died):
        run(store=path)
    damage(path)
    with counted() as made:
        assert_same(run(store=path), expected)
    assert len(made) > 18 - 11
    damage(path)
    assert_same(run(store=path), expected)
    np.testing.assert_array_equal(xr.open_zarr(path)["gram"], expected.gram)


def lengths(path):
    return [(file, file.lstat().st_size) for file in sorted(path.rglob("*"))]


@pytest.mark.parametrize("what", some(DAMAGE, *(set(DAMAGE) - LATER)))
def test_damage_is_made_good_or_an_error(what, path):
    if os.name != "posix" and what.startswith(("a link", "a pipe", "a second name")):
        pytest.skip("this system has no links and pipes of POSIX")
    damage, of_run, of_reader = DAMAGE[what]
    whole, expected = small_stores.run(path), small_stores.run()
    damage(path)
    before, readers = lengths(path), [lambda: whole["gram"]]
    if what in BEFORE_READING:
        readers.append(whole.to_xarray)
    if what in ATTRIBUTES:
        readers.append(lambda: small_stores.run(path, rng=None))
    for reader in readers if of_reader else []:
        with pytest.raises((errors.StoreError, errors.StoreMismatchError), match=of_reader):
            reader()
    if of_run:
        with pytest.raises((errors.StoreError, errors.ArgumentError), match=of_run):
            small_stores.run(path)
        assert lengths(path) == before
        return
    with counted() as made:
        assert_same(small_stores.run(path), expected)
    assert made or what in OF_METADATA


def test_a_lost_chunk_of_a_finished_run_is_all_that_is_made_again(path):
    expected = run(store=path)
    chunks(path)[0].unlink()
    with counted() as made:
        assert_same(run(store=path), expected)
    assert len(made) == 1


def test_what_dead_writers_left_is_removed(path):
    with dying(3), pytest.raises(Died):
        run(store=path)
    left = [path / "gram" / "c" / "0" / "x.partial", path / "progress" / "part-0-0.partial"]
    for file in left:
        file.write_bytes(b"half")
    run(store=path)
    assert not any(file.exists() for file in left)


def test_a_full_disk_loses_nothing(path):
    expected = run()
    written = 0
    original = zarr.Array.__setitem__

    def full(self, where, values):
        nonlocal written
        written += 1
        if written > 6:
            raise OSError(28, "No space left on device")
        original(self, where, values)

    with (
        mock.patch.object(zarr.Array, "__setitem__", full),
        pytest.raises(errors.StoreError, match="No space left on device") as caught,
    ):
        run(store=path)
    assert isinstance(caught.value, OSError)
    with counted() as made:
        assert_same(run(store=path), expected)
    assert len(made) <= 18 - 4


@pytest.mark.parametrize("name", ["layer", "zarr.json"])
def test_a_store_that_was_not_completed_is_made_by_the_same_call(name, path):
    """A disk that is full, or a process that dies, before the store has its header."""
    replace = store.RunStore.replace

    def full(self, *arguments):
        raise OSError(28, "No space left on device")

    failing = {
        "layer": mock.patch.object(zarr_arrays, "metadata_of", full),
        "zarr.json": mock.patch.object(store.RunStore, "replace", full),
    }[name]
    with failing, pytest.raises(errors.StoreError, match="No space left on device"):
        run(store=path)
    assert store.RunStore.replace is replace
    assert not (path / "zarr.json").exists()
    assert_same(run(store=path), run())


@pytest.mark.parametrize("made", [[], ["progress"]])
def test_a_folder_whose_writer_died_before_the_lock_is_free(made, path):
    for folder in ("", *made):
        (path / folder).mkdir()
    assert_same(run(store=path), run())


def test_a_want_of_files_or_memory_is_no_damage(path):
    """Otherwise all that is sound would be made again."""
    expected = run(store=path).gram
    original = zarr.Array.__getitem__
    for error, kind in (
        (OSError(24, "Too many open files"), errors.StoreError),
        (MemoryError(), MemoryError),
    ):
        with (
            mock.patch.object(zarr.Array, "__getitem__", side_effect=error),
            counted() as made,
            pytest.raises(kind),
        ):
            run(store=path)
        assert len(made) == 0
    assert zarr.Array.__getitem__ is original
    with counted() as made:
        np.testing.assert_array_equal(run(store=path).gram, expected)
    assert len(made) == 0


# --- one writer


SCRIPT = """
import sys, bnmc
from bnmc.simulation import run as simulating
simulating.STORED_TILE_SECONDS = 0.05
def report(done, total):
    print(done, flush=True)
bnmc.simulate(
    bnmc.Chain(30, 4, "relu"), 100_000, chains=5, rng=3, every=1000, store=sys.argv[1],
    threads=1, progress=report,
)
"""


def test_a_killed_process_leaves_its_lock_and_its_layers(path):
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(SCRIPT), path], stdout=subprocess.PIPE, text=True
    )
    with process:
        try:
            assert process.stdout is not None
            while not int(process.stdout.readline()):
                pass
            with pytest.raises(errors.StoreInUseError, match="another run"):
                run(depth=100_000, every=1000, store=path)
        finally:
            process.send_signal(signal.SIGKILL)
        process.communicate()
    entries = len(list((path / "progress").glob("part-*.npz")))
    assert entries > 0
    expected = run(depth=100_000, every=1000)
    with counted() as made:
        assert_same(run(depth=100_000, every=1000, store=path), expected)
    grid = json.loads((path / "zarr.json").read_text())["attributes"]
    tiles = -(-CHAINS // grid["part"]) * -(-101 // grid["block"])
    assert len(made) <= tiles - entries + -(-CHAINS // grid["part"])


def test_a_second_writer_of_one_process_is_refused(path):
    run(store=path)

    def refused(done, total):
        with pytest.raises(errors.StoreInUseError):
            run(depth=20, store=second)
        raise Died

    second = path.with_name("second.zarr")
    with pytest.raises(Died):
        run(depth=20, store=second, progress=refused)
    run(depth=20, store=second)


# --- arguments


def test_what_is_no_store(tmp_path):
    other = tmp_path / "other.zarr"
    other.mkdir()
    (other / "mine.txt").touch()
    with pytest.raises(errors.ArgumentError, match="a store that a run made"):
        run(store=other)
    with pytest.raises(errors.ArgumentError, match="reduce"):
        run(store=tmp_path / "new.zarr", reduce="chain")
    with pytest.raises(errors.ArgumentError, match="out"):
        run(store=tmp_path / "new.zarr", out={"gram": np.zeros((CHAINS, DEPTH + 1, 4, 4))})
    with (
        mock.patch.dict(sys.modules, {"zarr": None}),
        pytest.raises(bnmc.errors.MissingExtraError, match="xarray"),
    ):
        run(store=tmp_path / "new.zarr")
    assert list(tmp_path.iterdir()) == [other]


def test_values_that_memory_does_not_hold_stay_in_the_store(path, monkeypatch):
    stored = run(store=path)
    # What a result would take does not count, as it never is in memory.
    size = stored.gram.nbytes
    monkeypatch.setattr(zarr_arrays, "available_memory", lambda: size - 1)
    with pytest.raises(errors.ResultTooLargeError, match="to_xarray"):
        stored["gram"]
    assert stored.to_xarray()["gram"][0, -1].shape == (4, 4)
    with pytest.raises(KeyError):
        stored.observables["other"]
    assert (len(stored.observables), list(stored.observables)) == (1, ["gram"])
    monkeypatch.setattr(memory, "available_memory", lambda: 50_000)
    with pytest.raises(errors.ResultTooLargeError, match="store="):
        run(depth=1000)


@pytest.mark.parametrize(("name", "named"), [("host_cpu", "cpu"), ("versions", "versions = ")])
def test_a_worker_of_another_kind_is_refused(name, named, path):
    with (
        mock.patch.object(simulation_tiles, name, return_value="another"),
        pytest.raises(errors.StoreMismatchError, match=named),
    ):
        run(store=path)


def test_any_executor_fills_a_store(path):
    expected = run()
    with dying(5), pytest.raises(Died), ThreadPoolExecutor(3) as pool:
        run(store=path, executor=pool)
    with ThreadPoolExecutor(1) as pool:
        assert_same(run(store=path, executor=pool), expected)


def test_the_command_line_resumes(path, capsys):
    from bnmc.cli import main

    arguments = f"simulate --width 40 --depth 30 --chains 5 --store {path}".split()
    with dying(4), pytest.raises(Died):
        main([*arguments, "--seed", "5"])
    assert main([*arguments, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["files"]["store"], document["complete"]) == (str(path), True)
    assert main([*arguments, "--seed", "6"]) == 2
    assert "key" in capsys.readouterr().err


def test_path_types(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run(depth=3, store="run.zarr")
    run(depth=3, store=Path("run.zarr"))
    assert store.as_store_path("run.zarr") == Path("run.zarr")


@pytest.mark.parametrize("name", ["weights", "skip in float32"])
def test_a_damaged_last_tile_is_made_from_the_state_before_it(name, path):
    """Of large states only the last two of a part are kept: the last tile alone is made again."""
    chain, options = RUNS[name]
    expected = run(chain, **options)
    run(chain, store=path, **options)
    blocks = -(-len(expected.layers) // 7)
    part = 1
    with_state = [
        block
        for block in range(blocks)
        if len(np.load(path / "progress" / f"part-{part}-{block}.npz").files) > 3
    ]
    assert with_state == [blocks - 2, blocks - 1]
    last = path / "gram" / "c" / str(part) / str(blocks - 1)
    flip(next(file for file in last.rglob("*") if file.is_file()))
    with counted() as made:
        assert_same(run(chain, store=path, **options), expected)
    assert len(made) == 1


def test_a_folder_that_another_process_removes_is_free(tmp_path):
    path = tmp_path / "run.zarr"
    path.mkdir()
    with mock.patch.object(Path, "glob", side_effect=FileNotFoundError):
        assert store.as_store_path(path) == path
