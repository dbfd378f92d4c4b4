"""Stores that are opened without the call that made them, one or several."""

import sys
from unittest import mock

import numpy as np
import pytest
import xarray as xr
from damaged_stores import CHUNK, DAMAGE
from small_stores import RELU, run

import bnmc
from bnmc import errors
from bnmc.simulation.store.store import RunStore

pytestmark = pytest.mark.usefixtures("small_tiles")


@pytest.fixture
def paths(tmp_path):
    return [tmp_path / f"{number}.zarr" for number in range(3)]


def test_one_store_is_the_dataset_of_its_run(path):
    expected = run(path).to_xarray().load()
    dataset = bnmc.open(str(path))
    xr.testing.assert_equal(dataset.load(), expected)
    assert expected.attrs.items() <= dataset.attrs.items()
    assert (dataset.attrs["depth"], dataset.attrs["every"]) == (20, "1")


def test_several_stores_are_joined_along_the_chains(paths):
    runs = [run(path, rng=seed, chains=seed + 2) for seed, path in enumerate(paths)]
    dataset = bnmc.open(iter(paths))
    assert dataset["gram"].chunks is not None  # read on access
    np.testing.assert_array_equal(dataset["gram"], np.concatenate([each.gram for each in runs]))
    np.testing.assert_array_equal(dataset["chain"], np.arange(9))
    keys = [each.key for each in runs for _ in range(each.chains)]
    np.testing.assert_array_equal(dataset["key"], np.array(keys, np.uint64))
    assert dataset.attrs["chain"] == repr(RELU)
    assert not {"key", "chains", "identity"} & dataset.attrs.keys()


def test_layers_are_those_that_all_chains_have_finished(paths):
    """Of runs that record every 4th layer and the last one; one has lost a tile."""
    expected = [
        run(path, rng=seed, depth=depth, every=4).gram
        for seed, (path, depth) in enumerate(zip(paths, (61, 80, 50), strict=True))
    ]
    assert bnmc.open(paths[:2])["layer"].to_numpy().tolist() == [*range(0, 61, 4)]
    assert bnmc.open(paths)["layer"].to_numpy().tolist() == [*range(0, 49, 4)]
    (paths[2] / "progress" / "part-1-1.npz").unlink()
    dataset = bnmc.open(paths)
    assert dataset["layer"].to_numpy().tolist() == [*range(0, 25, 4)]
    np.testing.assert_array_equal(dataset["gram"], np.concatenate([g[:, :7] for g in expected]))


def test_stores_of_one_key_raise(paths):
    for path in paths[:2]:
        run(path)
    with pytest.raises(errors.ArgumentError, match="paths: .*1.zarr.*different keys.*0.zarr"):
        bnmc.open(paths[:2])
    with pytest.raises(errors.ArgumentError, match="different keys"):
        bnmc.open([paths[0], paths[0]])


OTHERS = {
    "chain": {"chain": bnmc.Chain(31, 4, "relu")},
    "every": {"every": 2},
    "observables": {"observables": "eigenvalues"},
    "dtype": {"dtype": "float32"},
    "start": {"initial": "collinear"},
}


@pytest.mark.parametrize("name", OTHERS)
def test_stores_of_other_chains_raise(name, paths):
    run(paths[0])
    run(paths[1], rng=4, **OTHERS[name])
    with pytest.raises(errors.StoreMismatchError, match=f"{name} = ") as caught:
        bnmc.open(paths[:2])
    assert (caught.value.name, caught.value.path) == (name, str(paths[1]))


def test_what_is_no_store_raises(paths, tmp_path):
    with pytest.raises(errors.ArgumentError, match="at least one path"):
        bnmc.open([])
    for wrong in (3, [3]):
        with pytest.raises(errors.ArgumentTypeError, match="paths"):
            bnmc.open(wrong)
    with pytest.raises(errors.StoreError, match="No such file"):
        bnmc.open(paths[0])
    run(rng=0).to_xarray().to_zarr(paths[0], consolidated=False)
    with pytest.raises(errors.StoreError, match="names no version|format"):
        bnmc.open(paths[0])
    with mock.patch.dict(sys.modules, {"xarray": None}), pytest.raises(errors.MissingExtraError):
        bnmc.open(paths[0])


@pytest.mark.parametrize("what", ["a flipped bit in the key", "swapped names", "long metadata"])
def test_a_damaged_store_raises(what, path):
    run(path)
    DAMAGE[what][0](path)
    with pytest.raises(errors.StoreError):
        bnmc.open(path)


def test_a_lost_chunk_is_no_finished_tile(path):
    """Zarr would return NaN in its place."""
    run(path)
    (path / CHUNK).unlink()
    assert bnmc.open(path).sizes["layer"] == 0


def test_a_tile_of_the_run_before_the_store_grew_is_not_finished(path):
    run(path, depth=9)
    died = mock.patch.object(RunStore, "first_missing", side_effect=RuntimeError)
    with died, pytest.raises(RuntimeError):
        run(path, depth=12)
    assert bnmc.open(path).sizes["layer"] == 7
    np.testing.assert_array_equal(bnmc.open(path)["gram"], run(depth=6).gram)
