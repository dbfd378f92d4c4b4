"""Paths that a user passes, and files that appear as a whole or not at all."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from bnmc._support.arguments import choice
from bnmc._support.array_arguments import require_memory
from bnmc.errors import ArgumentError, ArgumentTypeError

__all__ = ["as_path", "read_npy", "replacing", "require_writable"]


#: Bytes that are read at a time.
PART_BYTES = 1 << 22


def as_path(name: str, path: object) -> Path:
    """Return an argument as a path.

    Raises
    ------
    ArgumentTypeError
        If `path` is no path, or contains a null character.
    """
    try:
        found = Path(path)  # type: ignore[arg-type]
        if "\0" in os.fspath(found):
            raise ValueError
    except (TypeError, ValueError):
        raise ArgumentTypeError(name, path, "a path") from None
    return found


def read_npy(name: str, file: IO[bytes], size: int) -> NDArray[Any]:
    """Read an array in NumPy's format ``npy``, after a comparison of its size with the memory.

    Parameters
    ----------
    name : str
        Name of the argument, for the message.
    file : binary file
        At the beginning of the array: a file, or a member of an archive.
    size : int
        Bytes of the array with its header, unpacked.  A sparse file and a member of an archive may
        take much less on disk.

    Returns
    -------
    ndarray
        Of any dtype but objects.

    Raises
    ------
    ResultTooLargeError
        If the array and a copy in float64 do not fit in memory.
    ValueError
        If the file is damaged, or contains objects.

    Examples
    --------
    >>> import io
    >>> file = io.BytesIO()
    >>> np.save(file, np.eye(2))
    >>> size = file.tell()
    >>> file.seek(0)
    0
    >>> read_npy("x", file, size).shape
    (2, 2)
    """
    version = np.lib.format.read_magic(file)
    read = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }.get(version)
    if read is None:
        raise ValueError(f"its version is {version}")
    shape, by_columns, dtype = read(file)
    if dtype.hasobject:
        raise ValueError("it contains objects, which only unpickling could read")
    count = math.prod(shape)
    wanted = count * dtype.itemsize
    if file.tell() + wanted != size:
        raise ValueError(f"its header states {wanted} bytes, and it has {size - file.tell()}")
    require_memory(name, wanted + 8 * count)
    content = np.empty(wanted, np.uint8)
    left = content.data
    while left.nbytes:
        part = file.read(min(left.nbytes, PART_BYTES))
        if not part:
            raise ValueError("it ends too early")
        left[: len(part)] = part
        left = left[len(part) :]
    return content.view(dtype).reshape(shape, order="F" if by_columns else "C")


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
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path in the same folder, which becomes `path` if no error is raised.

    The block makes a file or a folder of the temporary path. Until the block ends, an existing
    file or folder stays at `path`; after an error it stays there for good.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "answer.txt")
    ...     with replacing(path) as temporary:
    ...         written = temporary.write_text("42")
    ...     path.read_text()
    '42'
    """
    temporary = _beside(path)
    former = path.with_name(f".{path.stem}.{os.getpid()}.former{path.suffix}")
    try:
        yield temporary
        if path.is_dir() and not path.is_symlink():  # a folder cannot be replaced in one step
            path.rename(former)
        temporary.replace(path)
    except OSError as error:
        if error.filename is not None and Path(os.fsdecode(error.filename)) == temporary:
            error.filename = str(path)  # the name that the user passed
        raise
    finally:
        for leftover in (temporary, former):
            if leftover.is_dir():
                shutil.rmtree(leftover)
            else:
                leftover.unlink(missing_ok=True)


def _beside(path: Path) -> Path:
    """Return the temporary path of a file."""
    return path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")
