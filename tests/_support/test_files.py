"""Files appear as a whole or not at all."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest

from bnmc._support import array_arguments, files
from bnmc.errors import ResultTooLargeError


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


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda content: content[:-1], "its header states 32 bytes, and it has 31"),
        (lambda content: content + b"0", "its header states 32 bytes, and it has 33"),
        (lambda content: content.replace(b"(2, 2)", b"(9, 9)"), "its header states 648 bytes"),
        (lambda content: content.replace(b"<f8", b"|O8"), "objects"),
        (lambda content: content[:6] + b"\x03" + content[7:], "its version is"),
        (lambda content: b"PK" + content[2:], "magic string"),
    ],
)
def test_a_damaged_array_is_not_read(damage, reason):
    file = io.BytesIO()
    np.save(file, np.eye(2))
    content = damage(file.getvalue())
    with pytest.raises(ValueError, match=reason):
        files.read_npy("x", io.BytesIO(content), len(content))


def test_an_array_that_ends_before_its_stated_size_is_not_read():
    file = io.BytesIO()
    np.save(file, np.eye(2))
    content = file.getvalue()
    with pytest.raises(ValueError, match="ends too early"):
        files.read_npy("x", io.BytesIO(content[:-8]), len(content))


def test_an_array_larger_than_the_memory_is_not_read(monkeypatch):
    """The array, and a copy in float64."""
    file = io.BytesIO()
    np.save(file, np.ones((2, 2), np.float32))
    content = file.getvalue()
    for available, fits in ((48, True), (47, False)):
        monkeypatch.setattr(array_arguments, "available_memory", lambda value=available: value)
        if fits:
            assert files.read_npy("x", io.BytesIO(content), len(content)).sum() == 4.0
        else:
            with pytest.raises(ResultTooLargeError, match="^x: the result needs 48 B"):
                files.read_npy("x", io.BytesIO(content), len(content))
