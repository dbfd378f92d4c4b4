"""The journal of finished tiles, and the lock of the process that writes a store."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import threading
import zlib
from pathlib import Path
from typing import Any

from bnmc.errors import StoreInUseError

__all__ = []


class Journal:
    """The finished tiles, one line each with its own checksum; the last line of a tile counts."""

    def __init__(self, path: Path) -> None:
        self.entries: dict[tuple[int, int], dict[str, Any]] = {}
        sound = 0
        for line in path.read_bytes().splitlines(keepends=True):
            entry = self._parsed(line)
            if entry is None:  # a line that was not finished
                break
            self.entries[entry["part"], entry["block"]] = entry
            sound += len(line)
        self._file = path.open("r+b")
        self._file.truncate(sound)
        self._file.seek(sound)

    @staticmethod
    def _parsed(line: bytes) -> dict[str, Any] | None:
        checksum, _, text = line.partition(b" ")
        if not line.endswith(b"\n") or checksum != b"%08x" % zlib.crc32(text):
            return None
        entry: dict[str, Any] = json.loads(text)
        return entry

    def append(self, entry: dict[str, Any]) -> None:
        """Enter a tile."""
        text = json.dumps(entry, separators=(",", ":")).encode() + b"\n"
        self._file.write(b"%08x " % zlib.crc32(text) + text)
        self._file.flush()
        self.entries[entry["part"], entry["block"]] = entry

    def close(self) -> None:
        # On a full disk the buffer is lost, and its tile is made again.
        with contextlib.suppress(OSError):
            self._file.close()


class Lock:
    """A lock on a file that the operating system drops when the process ends in any way.

    Record locks belong to the process.  `flock`, which the package filelock uses, belongs to the
    open file, which forked workers share: they would hold the lock after their parent was killed.
    """

    _held: set[tuple[int, str]] = set()  # noqa: RUF012
    _guard = threading.Lock()

    def __init__(self, path: Path, store: Path) -> None:
        # Two threads of one process would both get a record lock.
        self._key = (os.getpid(), os.path.realpath(path))
        with self._guard:
            if self._key in self._held:
                raise StoreInUseError(str(store))
            self._file = path.open("r+b")
            try:
                _lock_file(self._file)
            except OSError:
                self._file.close()
                raise StoreInUseError(str(store)) from None
            self._held.add(self._key)

    def release(self) -> None:
        """Release the lock."""
        with self._guard:
            self._file.close()
            self._held.discard(self._key)


def _lock_file(file: io.BufferedRandom) -> None:
    if sys.platform == "win32":
        import msvcrt

        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
    else:
        import fcntl

        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
