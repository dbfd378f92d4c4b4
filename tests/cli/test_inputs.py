"""Inputs from files: what is read, and damaged files."""

from __future__ import annotations

import os
import pickle
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest

from bnmc._support import machine
from bnmc.cli import inputs
from bnmc.errors import ArgumentError, ArgumentTypeError, ResultTooLargeError, UnknownNameError

X = np.array([[1.0, 2.0], [0.5, -1.0], [3.0, 0.25]])


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


@pytest.mark.parametrize("kind", ["npz", "npz claims less", "npy", "npy sparse", "csv"])
def test_file_that_is_larger_than_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Its size is known from the directory of the archive and the header, before it is read."""
    zeros = np.zeros((1000, 500))
    path = tmp_path / f"x.{kind.split()[0]}"
    if kind == "npz":
        np.savez_compressed(path, zeros)
        assert path.stat().st_size < 10_000
    elif kind == "npz claims less":
        # The directory states the size of a small array, the header and the content a large one.
        np.savez_compressed(path, zeros)
        size = (zeros.nbytes + 128).to_bytes(4, "little")
        path.write_bytes(path.read_bytes().replace(size, (928).to_bytes(4, "little")))
    elif kind == "csv":
        np.savetxt(path, zeros[:, :100], delimiter=",", fmt="%d")
    else:
        np.save(path, zeros if kind == "npy" else zeros[:1, :1])
        if kind == "npy sparse":
            content = path.read_bytes()
            path.write_bytes(content[:-8].replace(b"(1, 1), }     ", b"(1000, 500), }"))
            os.truncate(path, len(content) - 8 + zeros.nbytes)
    monkeypatch.setattr(machine, "available_memory", lambda: 1_000_000)
    tracemalloc.start()
    try:
        with pytest.raises(MemoryError if kind != "npz claims less" else ArgumentError) as caught:
            inputs.read_input(path)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()
    if kind != "npz claims less":
        assert isinstance(caught.value, ResultTooLargeError)
        assert (caught.value.argument, caught.value.available) == ("input", 1_000_000)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("shape", [(3, 4), (3, 0), (), (2, 3, 4)])
def test_arrays_of_any_form_are_read(tmp_path: Path, shape: tuple[int, ...], order: str) -> None:
    values = np.asarray(np.random.default_rng(1).normal(size=shape), order=order)
    np.savez_compressed(tmp_path / "x.npz", values)
    np.save(tmp_path / "x.npy", values)
    for name in ("x.npz", "x.npy"):
        found = inputs.read_states(tmp_path / name)
        assert found.shape == shape
        assert np.array_equal(found, values)
