"""The folder of a store: the same one whatever happens to its path, without links, on the disk.

Its lock is that of the process that writes it.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import stat
import sys
import threading
import weakref
from collections.abc import Iterable, Iterator
from pathlib import Path

from bnmc._support.files import synced
from bnmc._support.machine import available_memory
from bnmc.errors import BnmcError, StoreError, StoreInUseError, StoreLockError, StoreReplacedError

#: Bytes of a file from which on its size is compared with the memory, and copies that readers make.
_MUCH, _COPIES = 1 << 24, 4

#: The suffix of files that are not complete; Zarr has the same.
PARTIAL = ".partial"

#: Errors of the operating system for a lock that somebody else holds.
_HELD = {errno.EACCES, errno.EAGAIN, errno.EDEADLK}

#: The locked files, each with its process, and what guards them against other threads.
_LOCKED: set[tuple[int, tuple[int, int]]] = set()
_GUARD = threading.Lock()


class Folder:
    """A folder that is open, so that it stays the same one.

    On Linux `place` leads to the folder itself, not to its path.  If somebody removes the folder
    and makes another one at the path, nothing is written to the other one.

    Parameters
    ----------
    path : Path

    Attributes
    ----------
    path : Path
    place : Path
        Where to read and write.

    Raises
    ------
    OSError
        If it cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.place = path
        if os.name == "posix":
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            # The number of a closed folder could become that of another one, so it stays open as
            # long as a thread may write.
            weakref.finalize(self, os.close, descriptor)
            self._inode = _inode(os.fstat(descriptor))
            anchored = Path(f"/proc/self/fd/{descriptor}")
            if sys.platform == "linux" and anchored.is_dir():
                self.place = anchored
        else:
            self._inode = _inode(os.stat(path))
        self._linked: set[Path] = set()

    # --- the lock

    def lock(self, name: str) -> None:
        """Lock a file in the folder until `unlock`, or until the process ends in any way.

        Record locks belong to the process.  `flock`, which the package filelock uses, belongs to
        the open file, which forked workers share: they would hold the lock after their parent was
        killed.  If the process closes the file elsewhere, as in a copy of the store, the system
        drops the lock; so `require_lock` takes the lock again.

        Raises
        ------
        StoreInUseError
            If another run holds the lock.
        StoreLockError
            If the file system has no locks.
        """
        with _GUARD:
            inode = _inode(os.stat(self.place / name, follow_symlinks=False))
            # Two threads of one process would both get a record lock, and the first thread would
            # lose it as the second one closes the file.
            if (os.getpid(), inode) in _LOCKED:
                raise StoreInUseError(str(self.path))
            self._locked = self.open(name), inode
            try:
                self._take()
            except BaseException:
                self._locked[0].close()
                raise
            _LOCKED.add((os.getpid(), inode))
        self._lock = self.place / name

    def require_lock(self) -> None:
        """Raise unless this process has locked the folder that its path leads to.

        Raises
        ------
        StoreInUseError, StoreLockError
            If the lock was lost, and cannot be taken again.
        StoreReplacedError
            If the file was removed or replaced, or the folder was.
        """
        self._require(self.path, self._inode)
        file, inode = self._locked
        if file.closed:
            raise StoreInUseError(str(self.path))
        self._require(self._lock, inode, follow_symlinks=False)
        self._take()

    def unlock(self) -> None:
        """Release the lock."""
        file, inode = self._locked
        with _GUARD:
            file.close()
            _LOCKED.discard((os.getpid(), inode))

    def _take(self) -> None:
        try:
            _lock_file(self._locked[0])
        except OSError as error:
            if error.errno in _HELD:
                raise StoreInUseError(str(self.path)) from None
            raise StoreLockError(str(self.path), error.strerror or str(error)) from error

    def _require(
        self, place: Path, inode: tuple[int, int], *, follow_symlinks: bool = True
    ) -> None:
        """Raise `StoreReplacedError` unless a path leads to the file or folder of a number."""
        try:
            there = _inode(os.stat(place, follow_symlinks=follow_symlinks))
        except FileNotFoundError:
            there = None
        if there != inode:
            raise StoreReplacedError(str(self.path))

    # --- files

    def require_plain(self) -> None:
        """Remove files that a dead writer left unfinished; raise if there is a link in the folder.

        Raises
        ------
        StoreError
            If the folder contains anything but files and folders.
        """
        for entry in _entries(self.place):
            if entry.name.endswith(PARTIAL):
                Path(entry.path).unlink(missing_ok=True)
            elif not entry.is_dir(follow_symlinks=False) and not entry.is_file(
                follow_symlinks=False
            ):
                name = Path(entry.path).relative_to(self.place)
                what = "a link" if entry.is_symlink() else "no regular file"
                raise StoreError(
                    str(self.path), f"{name} is {what}; a store contains files and folders only"
                )

    def files(self) -> list[Path]:
        """Return all files in the folder and in the folders in it."""
        return [Path(entry.path) for entry in _entries(self.place) if entry.is_file()]

    def open(self, name: str) -> io.BufferedRandom:
        """Open a file for reading and writing.

        Raises
        ------
        StoreError
            If it is a link or no regular file, or has another name elsewhere.
        """
        flags = os.O_RDWR | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
        flags |= getattr(os, "O_BINARY", 0)
        place = self.place / name
        if place.is_symlink():
            raise StoreError(str(self.path), f"{name} is a link")
        file = os.fdopen(os.open(place, flags), "r+b")
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
            file.close()
            reason = f"{name} has another name elsewhere, or is no regular file: copy the store"
            raise StoreError(str(self.path), reason)
        return file

    def sync(self, files: Iterable[Path]) -> None:
        """Wait until files and the entries of their folders are on the disk.

        Parameters
        ----------
        files : iterable of Path
            Files below `place`.  Those that do not exist are left out.
        """
        for file in files:
            if not file.exists():  # Zarr writes no chunk that is empty
                continue
            synced(file)
            synced(file.parent)
            inner = file.parent
            while inner != self.place and inner not in self._linked:
                synced(inner.parent)
                self._linked.add(inner)
                inner = inner.parent


def read_file(path: Path) -> bytes:
    """Return the content of a regular file.

    Raises
    ------
    OSError
        If it cannot be read, does not fit in memory, or is something else, such as a pipe, which
        would never end.
    """
    descriptor = os.open(
        path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    )
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(f"{path.name} is no regular file")
        if status.st_size > _MUCH and status.st_size > available_memory() // _COPIES:
            raise OSError(f"{path.name} has {status.st_size} bytes, which do not fit in memory")
        return file.read()


def _entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    """Yield all entries of a folder and of the folders in it, without following links."""
    waiting = [folder]
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            for entry in entries:
                yield entry
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(Path(entry.path))


def _inode(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _lock_file(file: io.BufferedRandom) -> None:
    if sys.platform == "win32":
        import msvcrt

        file.seek(0)
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
    else:
        import fcntl

        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


# --- errors


@contextlib.contextmanager
def reported(path: Path) -> Iterator[None]:
    """Turn errors of the operating system and of Zarr into a `StoreError`."""
    try:
        yield
    except BnmcError:
        raise
    except OSError as error:
        raise StoreError(str(path), error.strerror or str(error)) from error
    except (
        ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError
    ) as error:  # fmt: skip
        # Zarr raises these for damaged metadata.
        reason = f"it is damaged: {type(error).__name__}: {error}"
        raise StoreError(str(path), reason) from error
