"""Paths that a user passes, and files that appear as a whole or not at all."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
import shutil
import sys
import uuid
from collections.abc import Collection, Iterator
from pathlib import Path
from urllib.request import url2pathname

from bnmc._support.arguments import choice
from bnmc.errors import ArgumentError, ArgumentTypeError

#: An address: scheme, host and path.
_ADDRESS = re.compile(r"([a-z][a-z0-9+.-]+)://([^/]*)(.*)", re.DOTALL | re.IGNORECASE)

#: Kinds of renaming for `_renamed`.
_EXCHANGE, _NO_REPLACE = 0, 1

#: Errors that mean that a path came or went since it was looked at, and how often that may happen.
_BY_OTHERS = {errno.EEXIST, errno.ENOTEMPTY, errno.ENOENT, errno.ENOTDIR, errno.EISDIR}
_MOST_TRIALS = 100


def as_path(name: str, path: object) -> Path:
    """Return an argument as a path.

    Raises
    ------
    ArgumentTypeError
        If `path` is no path, or contains a null character.
    ArgumentError
        If `path` is too long for the file system, or an address that is not that of a local file.

    Examples
    --------
    >>> from bnmc._support.files import as_path
    >>> as_path("store", "file:///scratch/run%201.zarr").as_posix()
    '/scratch/run 1.zarr'
    """
    if isinstance(path, str) and (address := _ADDRESS.fullmatch(path)):
        scheme, host, rest = address.groups()
        if scheme.lower() != "file" or host not in ("", "localhost"):
            hint = "write to a disk of this machine, and copy what is finished"
            raise ArgumentError(name, path, "a local path", hint)
        path = url2pathname(rest)
    try:
        converted = Path(path)  # type: ignore[arg-type]
        if "\0" in os.fspath(converted):
            raise ValueError
    except (TypeError, ValueError):
        raise ArgumentTypeError(name, path, "a path") from None
    try:
        os.lstat(converted)
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            allowed = "a path that the file system can have"
            raise ArgumentError(name, str(path), allowed, os.strerror(error.errno)) from None
    return converted


def require_writable(name: str, path: Path, formats: Collection[str]) -> None:
    """Raise an error if a file cannot be written; called before the work that fills the file.

    Parameters
    ----------
    name : str
        Name of the argument, for the message.
    path : Path
    formats : collection of str
        Allowed suffixes, with the dot.

    Raises
    ------
    ArgumentError
        If the suffix is not allowed, the folder does not exist, or no file can be made there.
    """
    choice(f"{name} (by its suffix)", path.suffix.lower(), formats)
    if not path.parent.is_dir():
        raise ArgumentError(name, str(path), "a path in an existing folder")
    temporary = _beside(path)
    try:
        temporary.touch()
        temporary.unlink()
    except OSError as error:
        allowed = "a path in a folder that you may write to"
        raise ArgumentError(name, str(path), allowed, error.strerror or str(error)) from error


@contextlib.contextmanager
def replacing(path: Path, *, exclusive: bool = False) -> Iterator[Path]:
    """Yield a temporary path in the same folder, which becomes `path` if no error is raised.

    The block makes a file or a folder of the temporary path. At every instant an existing file or
    folder at `path` is there as a whole, or the new one is: an error, Ctrl-C, the end of the
    process or a power failure loses neither. Several threads and processes may write one path;
    each has its own temporary path, and the last one to finish wins.

    Parameters
    ----------
    path : Path
    exclusive : bool, default False
        Whether to raise `FileExistsError` if something is at `path` by the end of the block.

    Notes
    -----
    Linux and macOS exchange two folders in one step. Elsewhere a folder at `path` first gets the
    temporary name that ends in ``.former`` and the suffix; if the process is killed in the next
    instant, the folder has that name.

    Examples
    --------
    >>> from pathlib import Path
    >>> from bnmc._support.files import replacing
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "answer.txt")
    ...     with replacing(path) as temporary:
    ...         written = temporary.write_text("42")
    ...     path.read_text()
    '42'
    """
    temporary = _beside(path)
    former = temporary.with_name(f"{temporary.stem}.former{path.suffix}")
    moved = False
    try:
        yield temporary
        # The disk may write the new name before the content.
        for inner in (*temporary.rglob("*"), temporary):
            synced(inner)
        if exclusive:
            move_new(temporary, path)
        else:
            _move(temporary, path, former)
        moved = True
        synced(path.parent)
    except OSError as error:
        if error.filename is not None and Path(os.fsdecode(error.filename)) == temporary:
            error.filename = str(path)  # the name that the user passed
        raise
    finally:
        if not moved:
            _put_back(former, path)
        for leftover in (temporary, former):
            if leftover.is_dir() and not leftover.is_symlink():
                shutil.rmtree(leftover)
            else:
                leftover.unlink(missing_ok=True)


def synced(path: Path) -> None:
    """Wait until a file, or the entries of a folder, are on the disk."""
    is_folder = path.is_dir()
    if is_folder and os.name != "posix":  # Windows writes entries with their files
        return
    descriptor = os.open(path, os.O_RDONLY if is_folder else os.O_RDWR)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems write entries at once, and do not sync folders.
        if not is_folder or error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def _beside(path: Path) -> Path:
    """Return a temporary path that no other thread or process uses."""
    return path.with_name(f".{path.stem}.{os.getpid()}.{uuid.uuid4().hex[:12]}{path.suffix}")


def _move(new: Path, path: Path, former: Path) -> None:
    """Move a file or a folder to a path; a former one moves to `new` or `former`, or is removed."""
    for trial in range(_MOST_TRIALS):
        try:
            if not (_is_folder(new) or _is_folder(path)):
                new.replace(path)
            elif not os.path.lexists(path):
                new.rename(path)
            elif not _renamed(new, path, _EXCHANGE):
                path.rename(former)
                new.rename(path)
        except OSError as error:
            others = error.errno in _BY_OTHERS and os.path.lexists(new)
            if not others or trial == _MOST_TRIALS - 1:
                raise
            # Another thread or process wrote the path in this instant.
            if os.path.lexists(path) and _is_folder(former):
                shutil.rmtree(former)
        else:
            return


def _put_back(former: Path, path: Path) -> None:
    """Move what was at a path back, unless another thread or process wrote the path meanwhile."""
    if not os.path.lexists(former) or os.path.lexists(path):
        return
    try:
        former.rename(path)
    except OSError:
        if not os.path.lexists(path):
            raise


def move_new(new: Path, path: Path) -> None:
    """Move a file or a folder to a path, or raise `FileExistsError` if something is there."""
    try:
        if _renamed(new, path, _NO_REPLACE):
            return
        if os.path.lexists(path):
            raise OSError(errno.EEXIST, os.strerror(errno.EEXIST))
        if _is_folder(new) or os.name != "posix":
            new.rename(path)  # fails if there is a file, or a folder that is not empty
        else:
            os.link(new, path)
    except OSError as error:
        if error.errno in (errno.EEXIST, errno.ENOTEMPTY):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path)) from None
        raise


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _renamed(first: Path, second: Path, flag: int) -> bool:
    """Rename in a way that Python does not offer; return False if the system does not either.

    Parameters
    ----------
    first, second : Path
    flag : int
        Index of the kind: to exchange two paths, or not to replace the second one.

    Raises
    ------
    OSError
    """
    named = {"linux": ("renameat2", (2, 1)), "darwin": ("renamex_np", (2, 4))}
    if sys.platform not in named:
        return False
    name, flags = named[sys.platform]
    function = getattr(ctypes.CDLL(None, use_errno=True), name, None)
    if function is None:
        return False
    paths = os.fsencode(first), os.fsencode(second)
    here = -100  # AT_FDCWD
    if sys.platform == "linux":
        status = function(here, paths[0], here, paths[1], ctypes.c_uint(flags[flag]))
    else:
        status = function(*paths, ctypes.c_uint(flags[flag]))
    if status == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP):  # an old kernel or file system
        return False
    raise OSError(code, os.strerror(code), str(first), None, str(second))
