"""Runs in files."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import xarray as xr

import bnmc
from bnmc.errors import ArgumentError, UnknownNameError
from bnmc.simulation import export


@pytest.fixture(scope="module")
def run():
    chain = bnmc.Chain(30, 3, "linear")
    return bnmc.simulate(chain, 4, chains=5, rng=0, observables=["gram", "orthogonality_gap"])


@pytest.fixture(scope="module")
def reduced():
    chain = bnmc.Chain(30, 3, "linear")
    return bnmc.simulate(chain, 4, chains=5, rng=0, reduce="chain")


def test_npz(run, tmp_path):
    export.write_run(run, tmp_path / "run.npz", attributes={"seed": 3}, star=np.eye(3))
    with np.load(tmp_path / "run.npz", allow_pickle=False) as stored:
        assert set(stored) == {"layer", "gram", "orthogonality_gap", "star", "attributes"}
        np.testing.assert_array_equal(stored["gram"], run.gram)
        np.testing.assert_array_equal(stored["layer"], run.layers)
        np.testing.assert_array_equal(stored["star"], np.eye(3))
        said = json.loads(str(stored["attributes"]))
    assert said == {
        **run.attributes(),
        "seed": 3,
        "axes": {name: list(axes) for name, axes in run.dims.items()},
    }


def test_npz_of_moments(reduced, tmp_path):
    export.write_run(reduced, tmp_path / "run.npz")
    with np.load(tmp_path / "run.npz") as stored:
        assert set(stored) == {"layer", "gram_mean", "gram_variance", "attributes"}
        np.testing.assert_array_equal(stored["gram_mean"], reduced.moments["gram"].mean)
        np.testing.assert_array_equal(stored["gram_variance"], reduced.moments["gram"].variance)


@pytest.mark.parametrize("suffix", ["nc", "zarr"])
def test_xarray(run, tmp_path, suffix):
    path = tmp_path / f"run.{suffix}"
    for force in (False, True):  # a folder is replaced in another way than a file
        export.write_run(run, path, attributes={"seed": 3}, star=np.eye(3), force=force)
    reader = (
        xr.open_dataset(path, engine="h5netcdf")
        if suffix == "nc"
        else xr.open_zarr(path, consolidated=False)
    )
    with reader as stored:
        xr.testing.assert_equal(stored.drop_vars("star").load(), run.to_xarray())
        np.testing.assert_array_equal(stored.star, np.eye(3))
        assert stored.attrs["key"] == str(run.key)
        assert stored.attrs["seed"] == 3
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_existing_file_stays(run, tmp_path):
    path = tmp_path / "run.npz"
    path.write_text("precious")
    with pytest.raises(ArgumentError, match="--force"):
        export.write_run(run, path)
    assert path.read_text() == "precious"
    export.write_run(run, path, force=True)
    assert np.load(path)["gram"].shape == run.gram.shape


@pytest.mark.parametrize("name", ["run.npz", "run.zarr"])
def test_never_replaces_a_folder_of_something_else(run, tmp_path, name):
    (tmp_path / name).mkdir()
    (tmp_path / name / "thesis.tex").touch()
    with pytest.raises(ArgumentError, match="Zarr store"):
        export.write_run(run, tmp_path / name, force=True)
    assert (tmp_path / name / "thesis.tex").exists()


@pytest.mark.parametrize("name", ["run.npz", "run.nc", "run.zarr"])
@pytest.mark.parametrize("force", [False, True])
def test_threads_that_write_one_path(run, tmp_path, name, force):
    """With `force` each writes a whole; without it one of them does."""
    path, together = tmp_path / name, threading.Barrier(4)
    if force:
        export.write_run(run, path)

    def write(number):
        together.wait(30.0)
        try:
            export.write_run(run, path, attributes={"seed": number}, force=force)
        except ArgumentError:
            return "refused"
        return "written"

    with ThreadPoolExecutor(4) as pool:
        ends = sorted(pool.map(write, range(4)))
    assert ends == (["written"] * 4 if force else ["refused"] * 3 + ["written"])
    assert [file.name for file in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize(
    ("name", "error", "match"),
    [("none/run.npz", ArgumentError, "existing folder"), ("run.h5", UnknownNameError, "'.h5'")],
)
def test_paths_that_are_refused(run, tmp_path, name, error, match):
    with pytest.raises(error, match=match):
        export.write_run(run, tmp_path / name)
