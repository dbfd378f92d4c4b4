"""The journal of finished tiles."""

from __future__ import annotations

import contextlib
import json
import zlib
from typing import Any

from bnmc._support.text import loads
from bnmc.errors import StoreMismatchError
from bnmc.simulation.store.folder import Folder

#: Tiles by part and block.
Entries = dict[tuple[int, int], dict[str, Any]]


class Journal:
    """The finished tiles, one line each with its own checksum; the last line of a tile counts.

    Every line contains the digest of the attributes of the store, and with them the identity of
    the run and its division into tiles.  So no line of another store counts.

    Parameters
    ----------
    folder : Folder
    name : str
        File in the folder.
    run : str
        What the lines contain of the run; see `entries_of`.

    Raises
    ------
    StoreMismatchError
        If a line is that of another run.
    """

    def __init__(self, folder: Folder, name: str, run: str) -> None:
        self._run = run
        self._file = folder.open(name)
        try:
            self.entries, sound = entries_of(self._file.read(), run, str(folder.path))
            self._file.truncate(sound)
            self._file.seek(sound)
        except BaseException:
            self._file.close()
            raise

    def append(self, entry: dict[str, Any]) -> None:
        """Enter a tile.  Whoever reads the file finds the line, also if this process dies now."""
        text = json.dumps({"run": self._run, **entry}, separators=(",", ":")).encode() + b"\n"
        self._file.write(b"%08x " % zlib.crc32(text) + text)
        self._file.flush()
        self.entries[entry["part"], entry["block"]] = entry

    def close(self) -> None:
        """Close the file."""
        # On a full disk the buffer is lost, and its tile is made again.
        with contextlib.suppress(OSError):
            self._file.close()


def entries_of(content: bytes, run: str, path: str) -> tuple[Entries, int]:
    """Return the tiles of a journal, and the length of its sound lines.

    Parameters
    ----------
    content : bytes
    run : str
        Digest of the attributes of the store, which every line must contain.
    path : str
        Path of the store, for messages.

    Raises
    ------
    StoreMismatchError
        If a line is that of another run.
    """
    entries: Entries = {}
    sound = 0
    for line in content.splitlines(keepends=True):
        entry = _parsed(line)
        if entry is None:  # a line that was not finished
            break
        if entry["run"] != run:
            raise StoreMismatchError(path, "run of the journal", str(entry["run"]), run)
        entries[entry["part"], entry["block"]] = entry
        sound += len(line)
    return entries, sound


def _parsed(line: bytes) -> dict[str, Any] | None:
    checksum, _, text = line.partition(b" ")
    if not line.endswith(b"\n") or checksum != b"%08x" % zlib.crc32(text):
        return None
    with contextlib.suppress(ValueError):
        entry = loads(text)
        if isinstance(entry, dict) and _is_complete(entry):
            return entry
    return None


def _is_complete(entry: dict[str, Any]) -> bool:
    numbers = (entry.get("part"), entry.get("block"), entry.get("state"))
    sums = entry.get("sums")
    return (
        all(type(one) is int and one >= 0 for one in numbers)
        and isinstance(sums, dict)
        and "run" in entry
    )
