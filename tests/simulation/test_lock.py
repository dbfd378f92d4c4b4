"""The lock of a store."""

import errno
import os
import subprocess
import sys
import threading

import pytest

import bnmc
from bnmc.errors import StoreError, StoreInUseError, StoreLockError, StoreReplacedError
from bnmc.simulation.store import folder as folder_module
from bnmc.simulation.store.folder import Folder


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "lock").touch()
    return Folder(tmp_path)


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL])
def test_a_file_system_without_locks_is_an_error_of_its_own(code, tmp_path, monkeypatch):
    def refuse(file):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(folder_module, "_lock_file", refuse)
    with pytest.raises(StoreLockError, match="cannot lock files") as caught:
        bnmc.simulate(bnmc.Chain(30, 4), 3, rng=0, store=tmp_path / "run.zarr")
    assert isinstance(caught.value, StoreError)
    assert not isinstance(caught.value, StoreInUseError)


@pytest.mark.parametrize("code", [errno.EACCES, errno.EAGAIN])
def test_a_lock_that_another_process_holds(code, folder, monkeypatch):
    def refuse(file):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(folder_module, "_lock_file", refuse)
    with pytest.raises(StoreInUseError):
        folder.lock("lock")


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
    errors = []

    def take():
        try:
            Folder(tmp_path / "name").lock("lock")
        except StoreInUseError as error:
            errors.append(error)

    thread = threading.Thread(target=take)
    thread.start()
    thread.join()
    assert len(errors) == 1
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
    ends = []

    def write():
        together.wait(30.0)
        try:
            ends.append(bnmc.simulate(chain, 50, chains=4, rng=0, store=path).gram)
        except StoreInUseError:
            ends.append(None)

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    written = [one for one in ends if one is not None]
    assert len(ends) == 4
    assert written
    assert all((one == expected).all() for one in written)
    assert [one.name for one in tmp_path.iterdir()] == ["run.zarr"]
