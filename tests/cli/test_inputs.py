"""Inputs from files: what is read, and damaged files."""

import io
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


@pytest.mark.parametrize("dtype", ["f8", "f4", ">f8", "i2", "u1"])
def test_npy(tmp_path, dtype):
    np.save(tmp_path / "x.npy", np.abs(X).astype(dtype))
    read = inputs.read_input(tmp_path / "x.npy")
    assert read.dtype == np.float64
    np.testing.assert_array_equal(read, np.abs(X).astype(dtype))


def test_fortran_order_and_samples_first(tmp_path):
    np.save(tmp_path / "x.npy", np.asfortranarray(X))
    read = inputs.read_input(tmp_path / "x.npy", samples_first=True)
    assert read.flags.c_contiguous
    np.testing.assert_array_equal(read, X.T)


def test_npz_of_one_array_and_of_several(tmp_path):
    path = tmp_path / "x.npz"
    np.savez_compressed(path, X)
    np.testing.assert_array_equal(inputs.read_input(path), X)
    np.savez(path, first=X, second=2 * X)
    np.testing.assert_array_equal(inputs.read_input(path, array="second"), 2 * X)
    with pytest.raises(ArgumentError, match="first, second"):
        inputs.read_input(path)
    with pytest.raises(UnknownNameError, match="did you mean 'second'"):
        inputs.read_input(path, array="secnd")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1,2\n0.5,-1\n3,0.25\n", X),
        ("\ufeff# made by hand\n\n1, 2\n0.5, -1\n3, 0.25", X),
        ('left,"right, too"\n1,2\n0.5,-1\n3,2.5e-1\n', X),
        ("1,2\r\n0.5,-1\r\n3,0.25\r\n", X),
        ("1\n2\n3\n", [[1.0], [2.0], [3.0]]),
    ],
)
def test_csv(tmp_path, text, expected):
    (tmp_path / "x.csv").write_text(text, encoding="utf-8", newline="")
    np.testing.assert_array_equal(inputs.read_input(tmp_path / "x.csv"), expected)


def test_files_that_are_no_inputs(tmp_path):
    (tmp_path / "folder.npy").mkdir()
    np.save(tmp_path / "x.npy", X)
    for name, options, error, words in (
        ("none.npy", {}, FileNotFoundError, "none.npy"),
        ("x.npx", {}, UnknownNameError, "'.npx'.*did you mean '.npz'"),
        ("folder.npy", {}, ArgumentError, "regular file"),
        ("x.npy", {"array": "x"}, ArgumentError, "^array"),
    ):
        with pytest.raises(error, match=words):
            inputs.read_input(tmp_path / name, **options)


@pytest.mark.parametrize(
    ("values", "error", "words"),
    [
        *(([[1.0, 2.0], [3.0, value]], ArgumentError, r"^input: got .*first at index \(1, 1\)")
          for value in (np.nan, np.inf, -np.inf)),
        *((np.zeros(shape), ArgumentError, "^input")
          for shape in ((3,), (2, 3, 4), (0, 3), (3, 0), ())),
        *((np.zeros((2, 2), dtype), ArgumentTypeError, "^input")
          for dtype in ("c16", "U3", "?", "M8[s]")),
    ],
)  # fmt: skip
def test_arrays_that_are_no_inputs(tmp_path, values, error, words):
    np.save(tmp_path / "x.npy", values)
    with pytest.raises(error, match=words):
        inputs.read_input(tmp_path / "x.npy")


class Bomb:
    """Leaves a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def saved(save, *arguments, **named):
    """Return the bytes of a file that `numpy.save` or `numpy.savez` writes."""
    file = io.BytesIO()
    save(file, *arguments, **named)
    return file.getvalue()


def claims_more(npy):
    """Return an archive of an array whose header claims a larger one."""
    file, header = io.BytesIO(), npy[:128].replace(b"(50, 40), }  ", b"(5000000,40)}")
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("x.npy", header + npy[128:])
    return file.getvalue()


NPY = saved(np.save, np.ones((50, 40)))
NPZ = saved(np.savez_compressed, x=np.ones((50, 40)), y=np.ones(3))
#: Files that are not what they claim to be, from an array that leaves a file if it is unpickled.
DAMAGED = {
    "npy pickled": lambda bomb: saved(np.save, bomb, allow_pickle=True),
    "npy bare pickle": lambda bomb: pickle.dumps(bomb),
    "npz pickled": lambda bomb: saved(np.savez, bomb, allow_pickle=True),
    "npy huge": lambda _: NPY.replace(b"(50, 40)", b"(9999,4)"),
    "npy absurd": lambda _: NPY.replace(b"(50, 40), ", b"(1" + b"0" * 7 + b",)"),
    "npz claims": lambda _: claims_more(NPY),
    "npy empty": lambda _: b"",
    "npy truncated": lambda _: NPY[:-8],
    "npy header cut": lambda _: NPY[:40],
    "npy text": lambda _: b"1,2\n3,4\n",
    "npz empty": lambda _: b"",
    "npz truncated": lambda _: NPZ[: len(NPZ) // 2],
    "npz flipped": lambda _: NPZ[:80] + bytes(b ^ 255 for b in NPZ[80:100]) + NPZ[100:],
    "npz a npy": lambda _: NPY,
    "npz no arrays": lambda _: b"PK\x05\x06" + bytes(18),
    "csv empty": lambda _: b"",
    "csv header only": lambda _: b"a,b\n",
    "csv words": lambda _: b"1,2\nthree,4\n",
    "csv ragged": lambda _: b"1,2\n3\n",
    "csv binary": lambda _: bytes(range(256)),
    "csv nul": lambda _: b"1,2\n3,\x00\n",
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_damaged_file(tmp_path, kind):
    bomb = np.array([[Bomb(tmp_path / "unpickled")]], dtype=object)
    path = tmp_path / f"bad.{kind.split()[0]}"
    path.write_bytes(DAMAGED[kind](bomb))
    with pytest.raises(ArgumentError) as caught:
        inputs.read_input(path, array="x" if kind in ("npz flipped", "npz truncated") else None)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "unpickled").exists()


@pytest.mark.parametrize("kind", ["npz", "npz claims less", "npy", "npy sparse", "csv"])
def test_file_that_is_larger_than_the_memory(tmp_path, monkeypatch, kind):
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
def test_arrays_of_any_form_are_read(tmp_path, shape, order):
    values = np.asarray(np.random.default_rng(1).normal(size=shape), order=order)
    np.savez_compressed(tmp_path / "x.npz", values)
    np.save(tmp_path / "x.npy", values)
    for name in ("x.npz", "x.npy"):
        states = inputs.read_states(tmp_path / name)
        assert states.shape == shape
        assert np.array_equal(states, values)
