"""Files appear as a whole or not at all, whoever writes them and however it ends."""

from __future__ import annotations

import errno
import io
import os
import shutil
import threading
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from bnmc._support import archives, files, machine
from bnmc.errors import ResultTooLargeError


def fill(path: Path, content: str, as_folder: bool) -> None:
    if as_folder:
        path.mkdir()
        (path / "inner").mkdir()
        (path / "inner" / "zarr.json").write_text(content)
    else:
        path.write_text(content)


def content_of(path: Path) -> str:
    return (path / "inner" / "zarr.json" if path.is_dir() else path).read_text()


@pytest.fixture(params=[False, True], ids=["in one step", "in two steps"])
def two_steps(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Without the system calls of Linux and macOS, too."""
    if request.param:
        monkeypatch.setattr(files, "_renamed", lambda one, other, flag: False)
    return bool(request.param)


@pytest.mark.parametrize("was_folder", [False, True])
def test_failed_write_leaves_what_was_there(tmp_path: Path, was_folder: bool) -> None:
    path = tmp_path / "run.zarr"
    fill(path, "before", was_folder)

    def write() -> None:
        with files.replacing(path) as temporary:
            temporary.mkdir()
            (temporary / "half").touch()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write()
    assert list(tmp_path.iterdir()) == [path]
    assert content_of(path) == "before"


@pytest.mark.parametrize("was_folder", [False, True])
@pytest.mark.parametrize("is_folder", [False, True])
def test_files_and_folders_replace_each_other(
    tmp_path: Path, was_folder: bool, is_folder: bool, two_steps: bool
) -> None:
    path = tmp_path / "run.zarr"
    fill(path, "before", was_folder)
    with files.replacing(path) as temporary:
        fill(temporary, "after", is_folder)
    assert content_of(path) == "after"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("step", range(1, 4))
def test_an_interruption_between_any_two_steps_loses_nothing(
    tmp_path: Path, step: int, two_steps: bool
) -> None:
    """Ctrl-C before or after each renaming: the former folder or the new one is there."""
    path = tmp_path / "run.zarr"
    fill(path, "before", True)
    rename = Path.rename
    count = 0

    def interrupted(self: Path, target: Path) -> Path:
        nonlocal count
        count += 1
        if count == step:
            raise KeyboardInterrupt
        return rename(self, target)

    def write() -> None:
        with (
            mock.patch.object(Path, "rename", interrupted),
            files.replacing(path) as temporary,
        ):
            fill(temporary, "after", True)
            assert content_of(path) == "before"

    if two_steps and step < 3:
        with pytest.raises(KeyboardInterrupt):
            write()
        assert content_of(path) == "before"
    else:
        write()
        assert content_of(path) == "after"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("step", ["before", "after"])
def test_a_process_that_dies_at_the_exchange_loses_nothing(tmp_path: Path, step: str) -> None:
    path = tmp_path / "run.zarr"
    fill(path, "before", True)
    original = files._renamed

    def dies(one: Path, other: Path, flag: int) -> bool:
        if step == "after":
            original(one, other, flag)
        os._exit(9)

    child = os.fork()
    if child == 0:
        try:
            files._renamed = dies
            with files.replacing(path) as temporary:
                fill(temporary, "after", True)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 9
    assert content_of(path) == step


@pytest.mark.parametrize("is_folder", [False, True])
def test_threads_that_write_one_path_each_write_a_whole(
    tmp_path: Path, is_folder: bool, two_steps: bool
) -> None:
    path = tmp_path / "run.zarr"
    together = threading.Barrier(4)
    errors: list[BaseException] = []

    def write(name: str) -> None:
        try:
            for _ in range(30):
                together.wait(30.0)
                files.require_writable("output", path, [".zarr"])
                with files.replacing(path) as temporary:
                    fill(temporary, name * 1000, is_folder)
        except BaseException as error:
            together.abort()
            errors.append(error)

    threads = [threading.Thread(target=write, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert content_of(path) in [name * 1000 for name in "abcd"]
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("is_folder", [False, True])
def test_of_threads_that_may_replace_nothing_one_wins(
    tmp_path: Path, is_folder: bool, two_steps: bool
) -> None:
    path = tmp_path / "run.zarr"
    together = threading.Barrier(4)
    ends: list[str] = []

    def write(name: str) -> None:
        try:
            with files.replacing(path, exclusive=True) as temporary:
                fill(temporary, name, is_folder)
                together.wait(30.0)
        except OSError as error:
            ends.append(type(error).__name__)
        else:
            ends.append(name)

    threads = [threading.Thread(target=write, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(ends) == ["FileExistsError"] * 3 + [content_of(path)]
    assert list(tmp_path.iterdir()) == [path]


def test_what_was_replaced_does_not_come_back(
    tmp_path: Path, two_steps: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process removes the new folder before the temporary paths are removed."""
    path = tmp_path / "run.zarr"
    fill(path, "before", True)
    move = files._move

    def move_and_remove(new: Path, target: Path, former: Path) -> None:
        move(new, target, former)
        assert content_of(target) == "after"
        shutil.rmtree(target)

    monkeypatch.setattr(files, "_move", move_and_remove)
    with files.replacing(path) as temporary:
        fill(temporary, "after", True)
    assert list(tmp_path.iterdir()) == []


def test_an_error_of_the_system_is_raised(tmp_path: Path) -> None:
    path = tmp_path / "run.zarr"
    fill(path, "before", True)

    def write() -> None:
        with files.replacing(path) as temporary:
            fill(temporary, "after", True)

    with (
        mock.patch.object(files, "_renamed", side_effect=OSError(errno.EIO, "I/O error")),
        pytest.raises(OSError, match="I/O error"),
    ):
        write()
    assert content_of(path) == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_a_block_that_writes_nothing_raises(tmp_path: Path) -> None:
    for path in (tmp_path / "new.npz", tmp_path / "old.zarr"):
        if path.suffix == ".zarr":
            fill(path, "before", True)

        def write(path: Path = path) -> None:
            with files.replacing(path):
                pass

        with pytest.raises(FileNotFoundError) as caught:
            write()
        assert str(path) in str(caught.value)
    assert content_of(tmp_path / "old.zarr") == "before"


def test_old_systems_and_file_systems_have_no_exchange(tmp_path: Path) -> None:
    library = mock.Mock(spec=[])
    with mock.patch.object(files.ctypes, "CDLL", return_value=library):
        assert not files._renamed(tmp_path / "a", tmp_path / "b", 0)
    for name in ("renameat2", "renamex_np"):
        setattr(library, name, lambda *_: -1)
    for code, kind in ((errno.ENOSYS, None), (errno.EACCES, OSError)):
        with (
            mock.patch.object(files.ctypes, "CDLL", return_value=library),
            mock.patch.object(files.ctypes, "get_errno", return_value=code),
            mock.patch.object(files.sys, "platform", "darwin"),
        ):
            if kind is None:
                assert not files._renamed(tmp_path / "a", tmp_path / "b", 0)
            else:
                with pytest.raises(kind):
                    files._renamed(tmp_path / "a", tmp_path / "b", 0)
    with mock.patch.object(files.sys, "platform", "win32"):
        assert not files._renamed(tmp_path / "a", tmp_path / "b", 0)


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
        archives.read_npy("x", io.BytesIO(content), len(content))


def test_an_array_that_ends_before_its_stated_size_is_not_read():
    file = io.BytesIO()
    np.save(file, np.eye(2))
    content = file.getvalue()
    with pytest.raises(ValueError, match="ends too early"):
        archives.read_npy("x", io.BytesIO(content[:-8]), len(content))


def test_an_array_larger_than_the_memory_is_not_read(monkeypatch):
    """The array, and a copy in float64."""
    file = io.BytesIO()
    np.save(file, np.ones((2, 2), np.float32))
    content = file.getvalue()
    for available, fits in ((48, True), (47, False)):
        monkeypatch.setattr(machine, "available_memory", lambda value=available: value)
        if fits:
            assert archives.read_npy("x", io.BytesIO(content), len(content)).sum() == 4.0
        else:
            with pytest.raises(ResultTooLargeError, match="^x: the result needs 48 B"):
                archives.read_npy("x", io.BytesIO(content), len(content))
