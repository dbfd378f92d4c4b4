"""Stores that are removed, replaced or linked while a run writes them, and what is on the disk."""

import errno
import os
import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import numpy as np
import pytest
from small_stores import run

import bnmc
from bnmc.errors import StoreError, StoreInUseError, StoreLockError, StoreReplacedError
from bnmc.simulation import tiles as simulation_tiles
from bnmc.simulation.store import folder as folder_module
from bnmc.simulation.store import parts, store
from bnmc.simulation.store.folder import Folder, read_file

pytestmark = pytest.mark.usefixtures("small_tiles")
posix = pytest.mark.skipif(os.name != "posix", reason="of POSIX")


def after(entries, action):
    """Act once, when so many tiles have their files."""
    count = 0
    original = store.RunStore.replace

    def replace(self, name, content):
        nonlocal count
        count += "part-" in name
        file = original(self, name, content)
        if count == entries and "part-" in name:
            action()
        return file

    return mock.patch.object(store.RunStore, "replace", replace)


# --- a store that is removed and begun again by another process

PROGRAM = """
import sys, bnmc
from bnmc.errors import StoreError
from bnmc.simulation import run as simulating, tiles

simulating.grid_of = lambda run, *rest: tiles.Grid.of_slots(run.chains, run.recorded, 2, 3)

def report(done, total):
    print("at", done, flush=True)
    sys.stdin.readline()
try:
    run = bnmc.simulate(
        bnmc.Chain(30, 4, "relu"), 60, chains=4, every=5, rng=1, threads=1,
        store=sys.argv[1], progress=report,
    )
except StoreError as error:
    print("end", type(error).__name__, flush=True)
else:
    print("end complete" if run.complete else "end partial", flush=True)
"""


def wait_for(process, word):
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(word):
            return line.split()[1]
    raise AssertionError("the process ended")


@posix
def test_two_writers_of_one_path_never_mix(path):
    """The first one waits in its work, and goes on while the second one writes."""
    settings = {"depth": 60, "every": 5, "rng": 2}
    expected = run(**settings)
    first = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(path)], text=True, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )  # fmt: skip
    with first:
        try:
            wait_for(first, "at")
            shutil.rmtree(path)
            ends = []

            def go_on(done, total):
                if not ends:
                    first.stdin.close()
                    ends.append(wait_for(first, "end"))

            second = run(path, progress=go_on, **settings)
        finally:
            first.kill()
    assert ends == ["StoreReplacedError"]
    assert second.complete
    np.testing.assert_array_equal(second.gram, expected.gram)
    np.testing.assert_array_equal(run(path, **settings).gram, expected.gram)


@posix
@pytest.mark.parametrize("entries", [1, 3, 6])
def test_a_removed_store_ends_its_run(entries, path):
    with after(entries, lambda: shutil.rmtree(path)), pytest.raises(StoreReplacedError):
        run(path)
    assert not path.exists()
    assert run(path).complete


@posix
@pytest.mark.parametrize("entries", [1, 6])
def test_a_store_that_another_one_replaces_keeps_its_values(entries, path):
    other = path.with_name("other.zarr")
    values = run(other, rng=4).gram

    def replace():
        path.rename(path.with_name("moved.zarr"))
        other.rename(path)

    with after(entries, replace), pytest.raises(StoreReplacedError):
        run(path)
    np.testing.assert_array_equal(run(path, rng=4).gram, values)
    # The first run goes on where it was moved to.
    np.testing.assert_array_equal(run(path.with_name("moved.zarr")).gram, run().gram)


@posix
def test_a_lock_that_was_removed_ends_the_run(path):
    with after(2, lambda: (path / "progress" / "lock").unlink()), pytest.raises(StoreReplacedError):
        run(path)


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_writes_go_to_the_folder_that_was_opened(tmp_path):
    """Even in the instant after a check, nothing is written to another folder."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "lock").touch()
    opened = Folder(tmp_path / "a")
    opened.lock("lock")
    opened.require_lock()
    (tmp_path / "a").rename(tmp_path / "b")
    (tmp_path / "a").mkdir()
    (opened.place / "file").write_text("mine")
    assert [file.name for file in tmp_path.rglob("file")] == ["file"]
    assert (tmp_path / "b" / "file").exists()
    with pytest.raises(StoreReplacedError):
        opened.require_lock()
    opened.unlock()


def test_values_that_change_before_the_end_are_noticed(path):
    def damage():
        chunk = path / "gram" / "c" / "0" / "0" / "0" / "0"
        chunk.write_bytes(chunk.read_bytes()[::-1])

    with after(6, damage), pytest.raises(StoreError, match="changed after they were written"):
        run(path)
    np.testing.assert_array_equal(run(path).gram, run().gram)


def test_another_run_at_the_same_inode_is_noticed(path):
    other = path.with_name("other.zarr")
    run(other, rng=4)

    def copy_over():
        shutil.copy(other / "zarr.json", path / "zarr.json")

    with after(6, copy_over), pytest.raises(bnmc.errors.StoreMismatchError, match="key"):
        run(path)


# --- links


@posix
def test_a_link_to_a_store_is_the_store(path):
    other = path.with_name("other.zarr")
    run(path)
    other.symlink_to(path)
    with mock.patch.object(simulation_tiles, "make_tile", side_effect=AssertionError("work")):
        np.testing.assert_array_equal(run(other).gram, run().gram)


def test_a_file_that_its_writer_removes_is_no_error(tmp_path):
    """A writer that ends removes its unfinished files, between the listing and the removal."""
    (tmp_path / "gone.partial").touch()
    (gone,) = folder_module._entries(tmp_path)
    (tmp_path / "gone.partial").unlink()
    with mock.patch.object(folder_module, "_entries", return_value=[gone]):
        Folder(tmp_path).require_plain()


# --- durability


def test_all_files_of_a_run_that_is_returned_are_on_the_disk(path):
    """Each is synchronised after it was written, and so are the folders that lead to it."""
    order = []
    synced, enter = folder_module.synced, store.RunStore._enter
    put = store.RunStore.put
    waiting = []

    def note_synced(file):
        order.append(os.path.relpath(os.path.realpath(file), path))
        synced(file)

    def note_enter(self, part, block, *arguments):
        order.append((part, block))
        enter(self, part, block, *arguments)

    def note_put(self, *arguments):
        put(self, *arguments)
        waiting.append(self._on_the_way is not None)

    with (
        mock.patch.object(folder_module, "synced", note_synced),
        mock.patch.object(store.RunStore, "_enter", note_enter),
        mock.patch.object(store.RunStore, "put", note_put),
    ):
        run(path)
    assert waiting == [True] * 6
    for part in range(2):
        for block in range(3):
            after_it = order[order.index((part, block)) :]
            chunk = f"gram/c/{part}/{block}/0/0"
            files = {chunk, f"progress/part-{part}-{block}.npz"}
            folders = {os.path.dirname(chunk), f"gram/c/{part}/{block}", "progress"}
            assert files | folders <= set(after_it)
    assert {"gram/c", "gram", "."} <= set(order)


def test_an_error_of_the_disk_ends_the_run(path):
    count = 0

    def fail(self, files):
        nonlocal count
        count += 1
        if count == 3:
            raise OSError(5, "Input/output error")

    with (
        mock.patch.object(Folder, "sync", fail),
        pytest.raises(StoreError, match="Input/output error"),
    ):
        run(path)
    np.testing.assert_array_equal(run(path).gram, run().gram)


@pytest.mark.parametrize("depth", [None, 12], ids=["new", "grown"])
def test_the_header_of_a_store_is_on_the_disk_before_what_follows_from_it(depth, path):
    if depth:
        run(path, depth=depth)
    order = []
    synced, replace = folder_module.synced, store.RunStore.replace

    def note(file):
        order.append(os.path.relpath(os.path.realpath(file), path))
        synced(file)

    def replaced(self, name, content):
        order.append(f"written {name}")
        return replace(self, name, content)

    with (
        mock.patch.object(folder_module, "synced", note),
        mock.patch.object(parts, "synced", note),
        mock.patch.object(store.RunStore, "replace", replaced),
    ):
        run(path)
    header, later = order.index("written zarr.json"), order.index("written layer/zarr.json")
    assert order[header : header + 4] == ["written zarr.json", "zarr.partial", "zarr.json", "."]
    assert header + 4 <= later
    after = {"gram/zarr.json", "layer/zarr.json", "layer/c/0", "gram", "layer/c"}
    assert after <= set(order[later:])


def test_what_is_no_regular_file_is_not_read(tmp_path):
    with pytest.raises(OSError, match=r"regular|directory"):
        read_file(tmp_path)
    (tmp_path / "a").write_bytes(b"1")
    assert read_file(tmp_path / "a") == b"1"


# --- the lock of a store


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "lock").touch()
    return Folder(tmp_path)


@pytest.mark.parametrize(
    ("code", "error", "match"),
    [
        *((code, StoreLockError, "cannot lock files")
          for code in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL)),
        *((code, StoreInUseError, "another run") for code in (errno.EACCES, errno.EAGAIN)),
    ],
)  # fmt: skip
def test_a_lock_that_the_system_refuses(code, error, match, tmp_path, monkeypatch):
    """A file system without locks is an error of its own."""

    def refuse(file):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(folder_module, "_lock_file", refuse)
    with pytest.raises(StoreError, match=match) as caught:
        bnmc.simulate(bnmc.Chain(30, 4), 3, rng=0, store=tmp_path / "run.zarr")
    assert type(caught.value) is error


def taken_elsewhere(path):
    """Whether another process can take the lock."""
    program = (
        "import fcntl, sys\nfcntl.lockf(open(sys.argv[1], 'r+b'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    )
    done = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True)
    return done.returncode == 0


@pytest.mark.skipif(os.name != "posix", reason="of POSIX")
def test_a_lock_that_a_copy_of_the_store_dropped_is_taken_again(folder, tmp_path):
    folder.lock("lock")
    assert not taken_elsewhere(tmp_path / "lock")
    (tmp_path / "lock").read_bytes()  # as a copy does: the system drops the lock of the process
    assert taken_elsewhere(tmp_path / "lock")
    folder.require_lock()
    assert not taken_elsewhere(tmp_path / "lock")
    folder.unlock()
    assert taken_elsewhere(tmp_path / "lock")
    with pytest.raises(StoreInUseError):
        folder.require_lock()


def test_threads_of_one_process_exclude_each_other(folder, tmp_path):
    """Under any name of the folder."""
    (tmp_path / "name").symlink_to(tmp_path)
    folder.lock("lock")

    with ThreadPoolExecutor(1) as pool, pytest.raises(StoreInUseError):
        pool.submit(Folder(tmp_path / "name").lock, "lock").result()
    # The attempt of the second thread does not drop the lock of the first one.
    assert not taken_elsewhere(tmp_path / "lock")
    folder.unlock()
    folder.lock("lock")
    folder.unlock()


def test_a_lock_of_another_file_is_none(folder, tmp_path):
    folder.lock("lock")
    (tmp_path / "lock").unlink()
    with pytest.raises(StoreReplacedError):
        folder.require_lock()
    (tmp_path / "other").touch()
    (tmp_path / "other").rename(tmp_path / "lock")
    with pytest.raises(StoreReplacedError):
        folder.require_lock()
    folder.unlock()


def test_of_threads_that_write_one_store_one_does(tmp_path):
    path = tmp_path / "run.zarr"
    chain = bnmc.Chain(30, 4, "relu")
    expected = bnmc.simulate(chain, 50, chains=4, rng=0).gram
    together = threading.Barrier(4)

    def write(_):
        together.wait(30.0)
        try:
            return bnmc.simulate(chain, 50, chains=4, rng=0, store=path).gram
        except StoreInUseError:
            return None

    with ThreadPoolExecutor(4) as pool:
        written = [grams for grams in pool.map(write, range(4)) if grams is not None]
    assert written
    assert all((grams == expected).all() for grams in written)
    assert [file.name for file in tmp_path.iterdir()] == ["run.zarr"]
