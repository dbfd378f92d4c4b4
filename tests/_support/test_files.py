"""Files appear as a whole or not at all, whoever writes them and however it ends."""

from __future__ import annotations

import errno
import io
import os
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

import bnmc
from bnmc import experiments
from bnmc._support import archives, files, machine
from bnmc.cli import inputs
from bnmc.errors import ArgumentError, ArgumentTypeError, ResultTooLargeError
from bnmc.experiments.training import images
from bnmc.kernels.c import write_header
from bnmc.simulation.export import write_run


def fill(path: Path, content: str, as_folder: bool) -> None:
    if as_folder:
        path.mkdir()
        (path / "inner").mkdir()
        (path / "inner" / "zarr.json").write_text(content)
    else:
        path.write_text(content)


def content_of(path: Path) -> str:
    return (path / "inner" / "zarr.json" if path.is_dir() else path).read_text()


def replace(path: Path, as_folder: bool = True) -> None:
    with files.replacing(path) as temporary:
        fill(temporary, "after", as_folder)
        assert content_of(path) == "before"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return a folder that is there before."""
    fill(tmp_path / "run.zarr", "before", True)
    return tmp_path / "run.zarr"


@pytest.fixture(params=[False, True], ids=["in one step", "in two steps"])
def two_steps(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Without the system calls of Linux and macOS, too."""
    if request.param:
        monkeypatch.setattr(files, "_renamed", lambda first, other, flag: False)
    return bool(request.param)


def test_a_failed_write_leaves_what_was_there(tmp_path: Path, path: Path) -> None:
    fill(tmp_path / "run.npz", "before", False)

    def write(path: Path) -> None:
        with files.replacing(path) as temporary:
            temporary.mkdir()
            (temporary / "half").touch()
            raise KeyboardInterrupt

    for former in (path, tmp_path / "run.npz"):
        with pytest.raises(KeyboardInterrupt):
            write(former)
        assert content_of(former) == "before"
    assert {*tmp_path.iterdir()} == {path, tmp_path / "run.npz"}


@pytest.mark.parametrize("was_folder", [False, True])
@pytest.mark.parametrize("is_folder", [False, True])
def test_files_and_folders_replace_each_other(
    tmp_path: Path, was_folder: bool, is_folder: bool, two_steps: bool
) -> None:
    path = tmp_path / "run.zarr"
    fill(path, "before", was_folder)
    replace(path, is_folder)
    assert content_of(path) == "after"
    assert list(tmp_path.iterdir()) == [path]


def test_the_disk_has_the_content_before_the_name(path: Path, monkeypatch: Any) -> None:
    """Else a power failure could leave an empty file in place of the former one."""
    synced: list[list[str]] = []

    def noted(file: Path) -> None:
        synced.append([file.name, content_of(path)])

    monkeypatch.setattr(files, "synced", noted)
    for as_folder in (True, False):
        with files.replacing(path) as temporary:
            fill(temporary, "after", as_folder)
        made = ["inner", "zarr.json", temporary.name] if as_folder else [temporary.name]
        assert synced == [*([name, "before"] for name in made), [path.parent.name, "after"]]
        (path / "inner" / "zarr.json" if as_folder else path).write_text("before")
        synced.clear()


@pytest.mark.parametrize("step", range(1, 4))
def test_an_interruption_between_any_two_steps_loses_nothing(
    path: Path, step: int, two_steps: bool
) -> None:
    """Ctrl-C before or after each renaming: the former folder or the new one is there."""
    rename, count = Path.rename, 0

    def interrupted(self: Path, target: Path) -> Path:
        nonlocal count
        count += 1
        if count == step:
            raise KeyboardInterrupt
        return rename(self, target)

    is_early = two_steps and step < 3
    with (
        pytest.raises(KeyboardInterrupt) if is_early else nullcontext(),
        mock.patch.object(Path, "rename", interrupted),
    ):
        replace(path)
    assert content_of(path) == ("before" if is_early else "after")
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("step", ["before", "after"])
def test_a_process_that_dies_at_the_exchange_loses_nothing(path: Path, step: str) -> None:
    original = files._renamed

    def dies(first: Path, other: Path, flag: int) -> bool:
        if step == "after":
            original(first, other, flag)
        os._exit(9)

    child = os.fork()
    if child == 0:
        try:
            files._renamed = dies
            replace(path)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 9
    assert content_of(path) == step


@pytest.mark.parametrize("is_folder", [False, True])
def test_threads_that_write_one_path_each_write_a_whole(
    tmp_path: Path, is_folder: bool, two_steps: bool
) -> None:
    path, together = tmp_path / "run.zarr", threading.Barrier(4)

    def write(name: str) -> None:
        for _ in range(30):
            together.wait(30.0)
            files.require_writable("output", path, [".zarr"])
            with files.replacing(path) as temporary:
                fill(temporary, name * 1000, is_folder)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, "abcd"))
    assert content_of(path) in [name * 1000 for name in "abcd"]
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("is_folder", [False, True])
def test_of_threads_that_may_replace_nothing_one_wins(
    tmp_path: Path, is_folder: bool, two_steps: bool
) -> None:
    path, together = tmp_path / "run.zarr", threading.Barrier(4)

    def write(name: str) -> str:
        try:
            with files.replacing(path, exclusive=True) as temporary:
                fill(temporary, name, is_folder)
                together.wait(30.0)
        except OSError as error:
            return type(error).__name__
        return name

    with ThreadPoolExecutor(4) as pool:
        ends = sorted(pool.map(write, "abcd"))
    assert ends == ["FileExistsError"] * 3 + [content_of(path)]
    assert list(tmp_path.iterdir()) == [path]


def test_what_was_replaced_does_not_come_back(
    path: Path, two_steps: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process removes the new folder before the temporary paths are removed."""
    move = files._move

    def move_and_remove(new: Path, target: Path, former: Path) -> None:
        move(new, target, former)
        assert content_of(target) == "after"
        shutil.rmtree(target)

    monkeypatch.setattr(files, "_move", move_and_remove)
    replace(path)
    assert list(path.parent.iterdir()) == []


def test_an_error_of_the_system_is_raised(path: Path) -> None:
    with (
        mock.patch.object(files, "_renamed", side_effect=OSError(errno.EIO, "I/O error")),
        pytest.raises(OSError, match="I/O error"),
    ):
        replace(path)
    assert content_of(path) == "before"
    assert list(path.parent.iterdir()) == [path]


def test_a_block_that_writes_nothing_raises(path: Path) -> None:
    for target in (path.with_name("new.npz"), path):
        with pytest.raises(FileNotFoundError) as caught, files.replacing(target):
            pass
        assert str(target) in str(caught.value)
    assert content_of(path) == "before"


def test_old_systems_and_file_systems_have_no_exchange(tmp_path: Path) -> None:
    library = mock.Mock(spec=[])
    with mock.patch.object(files.ctypes, "CDLL", return_value=library):
        assert not files._renamed(tmp_path / "a", tmp_path / "b", 0)
    for name in ("renameat2", "renamex_np"):
        setattr(library, name, lambda *_: -1)
    for code, fails in ((errno.ENOSYS, False), (errno.EACCES, True)):
        with (
            mock.patch.object(files.ctypes, "CDLL", return_value=library),
            mock.patch.object(files.ctypes, "get_errno", return_value=code),
            mock.patch.object(files.sys, "platform", "darwin"),
            pytest.raises(OSError, match="denied") if fails else nullcontext(),
        ):
            assert not files._renamed(tmp_path / "a", tmp_path / "b", 0)
    with mock.patch.object(files.sys, "platform", "win32"):
        assert not files._renamed(tmp_path / "a", tmp_path / "b", 0)


def npy(array) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


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
    content = damage(npy(np.eye(2)))
    with pytest.raises(ValueError, match=reason):
        archives.read_npy("x", io.BytesIO(content), len(content))


def test_an_array_that_ends_before_its_stated_size_is_not_read():
    content = npy(np.eye(2))
    with pytest.raises(ValueError, match="ends too early"):
        archives.read_npy("x", io.BytesIO(content[:-8]), len(content))


def test_an_array_larger_than_the_memory_is_not_read(monkeypatch):
    """The array, and a copy in float64."""
    content = npy(np.ones((2, 2), np.float32))
    monkeypatch.setattr(machine, "available_memory", lambda: 48)
    assert archives.read_npy("x", io.BytesIO(content), len(content)).sum() == 4.0
    monkeypatch.setattr(machine, "available_memory", lambda: 47)
    with pytest.raises(ResultTooLargeError, match="^x: the result needs 48 B"):
        archives.read_npy("x", io.BytesIO(content), len(content))


@pytest.mark.parametrize("use", [
    lambda path: inputs.read_input(f"{path}.npy"),
    lambda path: inputs.read_states(f"{path}.npy"),
    lambda path: bnmc.simulate(bnmc.Chain(4, 3), 1, store=path),
    lambda path: bnmc.backpropagate(bnmc.Chain(4, 3), 1, store=path),
    lambda path: write_run(bnmc.simulate(bnmc.Chain(4, 3), 1), path=f"{path}.npz"),
    lambda path: write_header(path),
    lambda path: images.images(path, 10, 2),
    lambda path: experiments.run("gap", store=path),
])  # fmt: skip
def test_paths_that_no_file_can_have_raise(use):
    for address in ("s3://bucket/run.zarr", "file://host/run.zarr"):
        with pytest.raises(ArgumentError, match=rf"{address}.*a local path.*copy what is finished"):
            use(address)
    with pytest.raises(ArgumentTypeError, match="allowed: a path"):
        use("a\0b")
    with pytest.raises(ArgumentError, match="File name too long"):
        use("a" * 300)


def test_the_address_of_a_local_file_is_its_path(tmp_path):
    path = tmp_path / "ä run%20.zarr"
    assert files.as_path("store", path.as_uri()) == path
    assert files.as_path("store", f"FILE://localhost{path.as_uri()[7:]}") == path
    assert files.as_path("store", "a:b//c") == Path("a:b//c")
