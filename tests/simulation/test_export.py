"""Reading inputs and writing runs."""

from __future__ import annotations

import json
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

import bnmc
from bnmc._support import files
from bnmc.cli import inputs
from bnmc.errors import ArgumentError, ArgumentTypeError, UnknownNameError
from bnmc.experiments import digits
from bnmc.simulation import export

X = np.array([[1.0, 2.0], [0.5, -1.0], [3.0, 0.25]])


@pytest.fixture(scope="module")
def run() -> bnmc.Trajectory:
    chain = bnmc.Chain(30, 3, "linear")
    return bnmc.simulate(chain, 4, chains=5, rng=0, observables=["gram", "orthogonality_gap"])


@pytest.fixture(scope="module")
def reduced() -> bnmc.Trajectory:
    chain = bnmc.Chain(30, 3, "linear")
    return bnmc.simulate(chain, 4, chains=5, rng=0, reduce="chain")


class TestReadInput:
    @pytest.mark.parametrize("dtype", ["f8", "f4", ">f8", "i2", "u1"])
    def test_npy(self, tmp_path: Path, dtype: str) -> None:
        np.save(tmp_path / "x.npy", np.abs(X).astype(dtype))
        read = inputs.read_input(tmp_path / "x.npy")
        assert read.dtype == np.float64
        np.testing.assert_array_equal(read, np.abs(X).astype(dtype))

    def test_fortran_order_and_samples_first(self, tmp_path: Path) -> None:
        np.save(tmp_path / "x.npy", np.asfortranarray(X))
        read = inputs.read_input(tmp_path / "x.npy", samples_first=True)
        assert read.flags.c_contiguous
        np.testing.assert_array_equal(read, X.T)

    def test_npz_of_one_array(self, tmp_path: Path) -> None:
        np.savez_compressed(tmp_path / "x.npz", X)
        np.testing.assert_array_equal(inputs.read_input(tmp_path / "x.npz"), X)

    def test_npz_of_several(self, tmp_path: Path) -> None:
        np.savez(tmp_path / "x.npz", first=X, second=2 * X)
        np.testing.assert_array_equal(inputs.read_input(tmp_path / "x.npz", array="second"), 2 * X)
        with pytest.raises(ArgumentError, match="first, second"):
            inputs.read_input(tmp_path / "x.npz")
        with pytest.raises(UnknownNameError, match="did you mean 'second'"):
            inputs.read_input(tmp_path / "x.npz", array="secnd")

    @pytest.mark.parametrize(
        "text",
        [
            "1,2\n0.5,-1\n3,0.25\n",
            "\ufeff# made by hand\n\n1, 2\n0.5, -1\n3, 0.25",
            'left,"right, too"\n1,2\n0.5,-1\n3,2.5e-1\n',
            "1,2\r\n0.5,-1\r\n3,0.25\r\n",
        ],
    )
    def test_csv(self, tmp_path: Path, text: str) -> None:
        (tmp_path / "x.csv").write_text(text, encoding="utf-8", newline="")
        np.testing.assert_array_equal(inputs.read_input(tmp_path / "x.csv"), X)

    def test_csv_of_one_column_is_one_sample(self, tmp_path: Path) -> None:
        (tmp_path / "x.csv").write_text("1\n2\n3\n")
        assert inputs.read_input(tmp_path / "x.csv").shape == (3, 1)

    def test_missing_file_is_an_os_error(self, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError):
            inputs.read_input(tmp_path / "x.npy")

    def test_other_format(self, tmp_path: Path) -> None:
        with pytest.raises(UnknownNameError, match="'.npx'.*did you mean '.npz'"):
            inputs.read_input(tmp_path / "x.npx")

    def test_folder(self, tmp_path: Path) -> None:
        (tmp_path / "x.npy").mkdir()
        with pytest.raises(ArgumentError, match="regular file"):
            inputs.read_input(tmp_path / "x.npy")

    def test_array_of_a_npy(self, tmp_path: Path) -> None:
        np.save(tmp_path / "x.npy", X)
        with pytest.raises(ArgumentError, match="^array"):
            inputs.read_input(tmp_path / "x.npy", array="x")

    @pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
    def test_not_finite(self, tmp_path: Path, value: float) -> None:
        np.save(tmp_path / "x.npy", [[1.0, 2.0], [3.0, value]])
        with pytest.raises(ArgumentError, match=r"^input: got .*first at index \(1, 1\)"):
            inputs.read_input(tmp_path / "x.npy")

    @pytest.mark.parametrize("shape", [(3,), (2, 3, 4), (0, 3), (3, 0), ()])
    def test_shape(self, tmp_path: Path, shape: tuple[int, ...]) -> None:
        np.save(tmp_path / "x.npy", np.zeros(shape))
        with pytest.raises(ArgumentError, match="^input"):
            inputs.read_input(tmp_path / "x.npy")

    @pytest.mark.parametrize("dtype", ["c16", "U3", "?", "M8[s]"])
    def test_type(self, tmp_path: Path, dtype: str) -> None:
        np.save(tmp_path / "x.npy", np.zeros((2, 2), dtype))
        with pytest.raises(ArgumentTypeError, match="^input"):
            inputs.read_input(tmp_path / "x.npy")


class Bomb:
    """Leaves a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.path,)


def damaged(folder: Path, kind: str) -> Path:
    """Make a file that claims to be what it is not."""
    np.save(folder / "good.npy", np.ones((50, 40)))
    np.savez_compressed(folder / "good.npz", x=np.ones((50, 40)), y=np.ones(3))
    npy, npz = (folder / "good.npy").read_bytes(), (folder / "good.npz").read_bytes()
    bomb = np.array([[Bomb(folder / "unpickled")]], dtype=object)
    path = folder / f"bad.{kind.split()[0]}"
    if kind == "npy pickled":
        np.save(path, bomb, allow_pickle=True)
    elif kind == "npy bare pickle":
        path.write_bytes(pickle.dumps(bomb))
    elif kind == "npz pickled":
        np.savez(path, bomb, allow_pickle=True)
    elif kind == "npy huge":
        path.write_bytes(npy.replace(b"(50, 40)", b"(9999,4)"))
    elif kind == "npy absurd":
        path.write_bytes(npy.replace(b"(50, 40), ", b"(1" + b"0" * 7 + b",)"))
    elif kind == "npz claims":
        header = npy[:128].replace(b"(50, 40), }  ", b"(5000000,40)}")
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("x.npy", header + npy[128:])
    else:
        content = {
            "npy empty": b"",
            "npy truncated": npy[:-8],
            "npy header cut": npy[:40],
            "npy text": b"1,2\n3,4\n",
            "npz empty": b"",
            "npz truncated": npz[: len(npz) // 2],
            "npz flipped": npz[:80] + bytes(b ^ 255 for b in npz[80:100]) + npz[100:],
            "npz a npy": npy,
            "npz no arrays": b"PK\x05\x06" + bytes(18),
            "csv empty": b"",
            "csv header only": b"a,b\n",
            "csv words": b"1,2\nthree,4\n",
            "csv ragged": b"1,2\n3\n",
            "csv binary": bytes(range(256)),
            "csv nul": b"1,2\n3,\x00\n",
        }[kind]
        path.write_bytes(content)
    return path


DAMAGED = (
    "npy pickled", "npy bare pickle", "npz pickled", "npy huge", "npy absurd", "npz claims",
    "npy empty", "npy truncated", "npy header cut", "npy text", "npz empty", "npz truncated",
    "npz flipped", "npz a npy", "npz no arrays", "csv empty", "csv header only", "csv words",
    "csv ragged", "csv binary", "csv nul",
)  # fmt: skip


@pytest.mark.parametrize("kind", DAMAGED)
def test_damaged_file(tmp_path: Path, kind: str) -> None:
    path = damaged(tmp_path, kind)
    with pytest.raises(ArgumentError) as caught:
        inputs.read_input(path, array="x" if kind in ("npz flipped", "npz truncated") else None)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "unpickled").exists()


def test_archive_that_unpacks_to_too_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez_compressed(tmp_path / "x.npz", np.zeros((100, 100)))
    monkeypatch.setattr(files, "MOST_BYTES", 10_000)
    with pytest.raises(ArgumentError, match="unpacks to 80128 bytes"):
        inputs.read_input(tmp_path / "x.npz")


class TestDigits:
    def test_distinct_and_every_class_in_turn(self) -> None:
        from sklearn.datasets import load_digits

        x = digits.digits(25)
        bundled = load_digits()
        labels = [
            int(bundled.target[(bundled.data == 16 * column).all(axis=1)][0]) for column in x.T
        ]
        assert labels == [*range(10), *range(10), *range(5)]
        assert len(np.unique(x, axis=1).T) == 25
        assert x.min() == 0
        assert x.max() == 1

    def test_fewer_are_the_first_of_more(self) -> None:
        np.testing.assert_array_equal(digits.digits(7), digits.digits(30)[:, :7])

    @pytest.mark.parametrize("count", [0, -1, 1741])
    def test_out_of_range(self, count: int) -> None:
        with pytest.raises(ArgumentError, match="^batch"):
            digits.digits(count)


class TestWriteRun:
    def test_npz(self, run: bnmc.Trajectory, tmp_path: Path) -> None:
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

    def test_npz_of_moments(self, reduced: bnmc.Trajectory, tmp_path: Path) -> None:
        export.write_run(reduced, tmp_path / "run.npz")
        with np.load(tmp_path / "run.npz") as stored:
            assert set(stored) == {"layer", "gram_mean", "gram_variance", "attributes"}
            np.testing.assert_array_equal(stored["gram_mean"], reduced.moments["gram"].mean)
            np.testing.assert_array_equal(stored["gram_variance"], reduced.moments["gram"].variance)

    @pytest.mark.parametrize("suffix", ["nc", "zarr"])
    def test_xarray(self, run: bnmc.Trajectory, tmp_path: Path, suffix: str) -> None:
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
        assert [found.name for found in tmp_path.iterdir()] == [path.name]

    def test_existing_file_stays(self, run: bnmc.Trajectory, tmp_path: Path) -> None:
        path = tmp_path / "run.npz"
        path.write_text("precious")
        with pytest.raises(ArgumentError, match="--force"):
            export.write_run(run, path)
        assert path.read_text() == "precious"
        export.write_run(run, path, force=True)
        assert np.load(path)["gram"].shape == run.gram.shape

    @pytest.mark.parametrize("name", ["run.npz", "run.zarr"])
    def test_never_replaces_a_folder_of_something_else(
        self, run: bnmc.Trajectory, tmp_path: Path, name: str
    ) -> None:
        (tmp_path / name).mkdir()
        (tmp_path / name / "thesis.tex").touch()
        with pytest.raises(ArgumentError, match="Zarr store"):
            export.write_run(run, tmp_path / name, force=True)
        assert (tmp_path / name / "thesis.tex").exists()

    def test_no_folder(self, run: bnmc.Trajectory, tmp_path: Path) -> None:
        with pytest.raises(ArgumentError, match="existing folder"):
            export.write_run(run, tmp_path / "none" / "run.npz")

    def test_other_format(self, run: bnmc.Trajectory, tmp_path: Path) -> None:
        with pytest.raises(UnknownNameError, match="'.h5'"):
            export.write_run(run, tmp_path / "run.h5")


@pytest.mark.parametrize("was_folder", [False, True])
def test_failed_write_leaves_what_was_there(tmp_path: Path, was_folder: bool) -> None:
    path = tmp_path / "run.zarr"
    if was_folder:
        path.mkdir()
        (path / "zarr.json").write_text("{}")
    else:
        path.write_text("before")

    def write() -> None:
        with files.replacing(path) as temporary:
            temporary.mkdir()
            (temporary / "half").touch()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write()
    assert list(tmp_path.iterdir()) == [path]
    assert (path / "zarr.json").read_text() == "{}" if was_folder else path.read_text() == "before"
