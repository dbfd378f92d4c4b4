"""The lock of the process that writes a store."""

from __future__ import annotations

import errno
import io
import os
import sys
import threading

from bnmc.errors import StoreInUseError, StoreLockError, StoreReplacedError
from bnmc.simulation.store.folder import Folder

#: Errors of the operating system for a lock that somebody else holds.
_HELD = {errno.EACCES, errno.EAGAIN, errno.EDEADLK}


class Lock:
    """A lock on a file that the operating system drops when the process ends in any way.

    Record locks belong to the process.  `flock`, which the package filelock uses, belongs to the
    open file, which forked workers share: they would hold the lock after their parent was killed.
    If the process closes the file elsewhere, as in a copy of the store, the system drops the lock;
    so `require` takes the lock again.

    Parameters
    ----------
    folder : Folder
        Folder of the store.
    name : str
        File in the folder.

    Raises
    ------
    StoreInUseError
        If another run holds the lock.
    StoreLockError
        If the file system has no locks.
    """

    _held: set[tuple[int, int, int]] = set()  # noqa: RUF012
    _guard = threading.Lock()

    def __init__(self, folder: Folder, name: str) -> None:
        self._folder = folder
        self._name = name
        with self._guard:
            status = os.stat(folder.place / name, follow_symlinks=False)
            # Two threads of one process would both get a record lock, and the first thread would
            # lose it as the second one closes the file.
            self._key = (os.getpid(), status.st_dev, status.st_ino)
            if self._key in self._held:
                raise StoreInUseError(str(folder.path))
            self._file = folder.open(name)
            try:
                self._take()
            except BaseException:
                self._file.close()
                raise
            self._held.add(self._key)

    def require(self) -> None:
        """Raise unless this process holds the lock, and the lock is that of the folder.

        Raises
        ------
        StoreInUseError, StoreLockError
            If the lock was lost, and cannot be taken again.
        StoreReplacedError
            If the file was removed or replaced, or the folder was.
        """
        self._folder.require_same()
        path = str(self._folder.path)
        if self._file.closed:
            raise StoreInUseError(path)
        try:
            status = os.stat(self._folder.place / self._name, follow_symlinks=False)
        except FileNotFoundError:
            raise StoreReplacedError(path) from None
        if (status.st_dev, status.st_ino) != self._key[1:]:
            raise StoreReplacedError(path)
        self._take()

    def release(self) -> None:
        """Release the lock."""
        with self._guard:
            self._file.close()
            self._held.discard(self._key)

    def _take(self) -> None:
        path = str(self._folder.path)
        try:
            _lock_file(self._file)
        except OSError as error:
            if error.errno in _HELD:
                raise StoreInUseError(path) from None
            raise StoreLockError(path, error.strerror or str(error)) from error


def _lock_file(file: io.BufferedRandom) -> None:
    if sys.platform == "win32":
        import msvcrt

        file.seek(0)
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
    else:
        import fcntl

        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
