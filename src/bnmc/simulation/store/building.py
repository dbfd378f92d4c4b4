"""The hidden folder in which a store is made, before it gets its name."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

__all__ = ["building_folder", "remove_abandoned"]


@contextlib.contextmanager
def building_folder(path: Path) -> Iterator[Path]:
    """Make a hidden folder beside a path, which this process holds and removes in the end.

    Parameters
    ----------
    path : Path
        Path of the store.

    Yields
    ------
    Path
        An empty folder, which may be renamed.
    """
    folder = path.with_name(f".{path.stem}.{os.getpid()}.{threading.get_ident()}.building")
    while True:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        held = _hold(folder)
        # Until it was held, another process could take the folder for an abandoned one.
        if folder.is_dir() and (held is None or _is_at(held, folder)):
            break
        if held is not None:
            os.close(held)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if held is not None:
            os.close(held)


def remove_abandoned(path: Path) -> None:
    """Remove the hidden folders of processes that died while they made the store of a path."""
    if sys.platform == "win32":  # there a folder cannot be held
        return
    pattern = re.compile(rf"\.{re.escape(path.stem)}\.\d+\.\d+\.building")
    with contextlib.suppress(OSError):
        for entry in os.scandir(path.parent):
            if pattern.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False):
                held = _hold(Path(entry.path))
                if held is not None:
                    shutil.rmtree(entry.path, ignore_errors=True)
                    os.close(held)


def _hold(folder: Path) -> int | None:
    """Return a descriptor that holds a folder until it is closed, or None if that is impossible.

    The system drops the hold when the process dies, and its forks with it.
    """
    if sys.platform == "win32":
        return None
    import fcntl

    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:  # removed meanwhile
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # held by its maker, or the file system has no locks
        os.close(descriptor)
        return None
    return descriptor


def _is_at(descriptor: int, folder: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(folder, follow_symlinks=False))
    except FileNotFoundError:
        return False
