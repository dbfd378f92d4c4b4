"""Files appear as a whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from bnmc._support import files


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
