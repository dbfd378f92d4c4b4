"""Reading a batch of inputs from a file, and writing runs to files.

Nothing here ever unpickles: a file can be wrong, but it cannot run code.  Output appears under its
name when it is complete, or not at all.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Collection, Iterator
from pathlib import Path

from bnmc._support.arguments import choice
from bnmc.errors import ArgumentError, ArgumentTypeError

__all__ = ["as_path", "replacing", "require_free", "require_writable"]


def as_path(name: str, path: object) -> Path:
    """Return what a user passes as a path, or raise."""
    try:
        found = Path(path)  # type: ignore[arg-type]
        if "\0" in os.fspath(found):
            raise ValueError
    except (TypeError, ValueError):
        raise ArgumentTypeError(name, path, "a path") from None
    return found


def require_writable(name: str, path: Path, formats: Collection[str]) -> None:
    """Refuse a destination that cannot be written to, before the work whose result it is to hold.

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


def _beside(path: Path) -> Path:
    """Return where a file is written before it is moved to its path."""
    return path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")


def require_free(name: str, path: Path, *, force: bool) -> None:
    """Refuse a destination that exists, or with `force` one that is not what would replace it.

    Raises
    ------
    ArgumentError
    """
    if not os.path.lexists(path):
        return
    if not force:
        raise ArgumentError(name, str(path), "a path that does not exist", "--force replaces it")
    is_store = any((path / mark).is_file() for mark in ("zarr.json", ".zgroup"))
    if path.is_dir() and not (path.suffix.lower() == ".zarr" and is_store):
        raise ArgumentError(name, str(path), "a file or a Zarr store, to be replaced")


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path in the same folder, which becomes `path` if no error is raised.

    What was at `path` stays there until then.  The block makes a file or a folder of the
    temporary path.

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
            error.filename = str(path)  # which is the name that the user knows
        raise
    finally:
        for leftover in (temporary, former):
            if leftover.is_dir():
                shutil.rmtree(leftover)
            else:
                leftover.unlink(missing_ok=True)
