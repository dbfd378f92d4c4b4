"""A folder of finished parts: one process writes it, and the disk has what was written."""

from __future__ import annotations

import contextlib
import json
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Self, TypeVar

from bnmc._support.archives import Damaged, TooLarge
from bnmc._support.text import loads
from bnmc.errors import ArgumentError, ArgumentTypeError, StoreError, StoreMismatchError
from bnmc.simulation.store.folder import Folder, read_file, reported
from bnmc.simulation.store.lock import Lock

_T = TypeVar("_T")

#: The file that the process locks that writes a folder of parts.
_LOCK = "lock"


class Foreign(ValueError):
    """The content of a file is nothing that a folder of parts has."""


class Guarded:
    """A folder that this process alone writes.

    Before and after each write, the path must still lead to the folder that was opened, and this
    process must hold the lock of that folder.  The disk writes files (``fsync``) in the background,
    and has all of them when `settle` returns.

    Parameters
    ----------
    path : Path
        An existing folder.
    lock : str
        File in the folder.

    Raises
    ------
    StoreInUseError
        If another process writes the folder.
    StoreLockError
        If the file system has no locks.
    StoreError
        If the folder cannot be read or written, or contains a link.
    """

    def __init__(self, path: Path, lock: str) -> None:
        self.path = path
        #: What the disk is writing.
        self._on_the_way: deque[Future[None]] = deque()
        with reported(path), contextlib.ExitStack() as stack:
            self.folder = Folder(path)
            self._lock = Lock(self.folder, lock)
            stack.callback(self._lock.release)
            self._lock.require()
            self.folder.require_plain()
            self._disk = ThreadPoolExecutor(1, thread_name_prefix="bnmc-disk")
            stack.callback(self._disk.shutdown)
            #: Closes open files.
            self.opened = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.opened.close()

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Check before and after a write that this process may write; report errors."""
        with reported(self.path):
            self._lock.require()
            try:
                yield
            except OSError:
                self._lock.require()  # to write fails in a folder that was removed
                raise
            self._lock.require()

    def replace(self, name: str, content: bytes) -> Path:
        """Write a file, which appears complete or not at all, and return it."""
        file = self.folder.place / name
        partial = file.with_suffix(".partial")
        partial.write_bytes(content)
        partial.replace(file)
        return file

    def sync(self, files: Iterable[Path]) -> None:
        """Let the disk write files, and wait for the files of all earlier calls."""
        self._on_the_way.append(self._disk.submit(self.folder.sync, files))
        self._wait_for_disk(1)

    def finish(self) -> None:
        """Wait until the disk has all files."""
        with self.writing():
            self._wait_for_disk(0)

    def _wait_for_disk(self, left: int) -> None:
        while len(self._on_the_way) > left:
            self._on_the_way.popleft().result()


class PartStore(Guarded):
    """A folder with one file for each finished part, and a header that identifies the computation.

    Each file repeats the facts of the computation and the number of its part, so a file from
    another folder, or under another number, raises.

    Parameters
    ----------
    path : Path
        Made if it does not exist.
    header : str
        Name of the file with the facts.
    facts : mapping of str to str
        Everything that the parts depend on.
    what : str
        What the folder may contain, for messages: "an earlier run of the experiment".
    settings : mapping of str to str, optional
        What a new folder notes besides; an existing folder keeps its own.

    Attributes
    ----------
    stored : dict of str to str
        Facts and settings.

    Raises
    ------
    ArgumentError
        If the folder holds other files.
    StoreMismatchError
        If it holds another computation; the error names a difference.
    StoreInUseError, StoreLockError, StoreError
        As for `Guarded`.
    """

    def __init__(
        self,
        path: Path,
        header: str,
        facts: Mapping[str, str],
        what: str,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self._facts = dict(facts)
        with reported(path):
            stored = header_of(path, header)
            if stored is None:
                _require_empty(path, what)
                path.mkdir(parents=True, exist_ok=True)
            else:
                require_facts(path, stored, facts)
            (path / _LOCK).touch()
        super().__init__(path, _LOCK)
        try:
            if header_of(path, header) is None:
                content = json.dumps({**facts, **(settings or {})}, indent=2) + "\n"
                with self.writing():
                    self.sync([self.replace(header, content.encode())])
            self.stored = header_of(path, header) or {}
            require_facts(path, self.stored, facts)
        except BaseException:
            self.opened.close()
            raise

    def content(
        self, number: int, unpacked: Callable[[bytes], tuple[_T, Mapping[str, str]]]
    ) -> _T | None:
        """Return the content of a finished part, or None if its file is missing or damaged.

        Parameters
        ----------
        number : int
            Number of the part.
        unpacked : callable
            Takes the bytes of the file and returns their content and the facts in them.  It may
            raise `Damaged`, `Foreign` or `TooLarge`.

        Raises
        ------
        StoreMismatchError
            If the file is that of another computation or part.
        StoreError
            If the file cannot be read, contains something else, or does not fit in memory.
        """
        name = _file_of(number)
        with reported(self.path):
            try:
                content, facts = unpacked(read_file(self.folder.place / name))
            except (FileNotFoundError, Damaged):
                return None
            except (Foreign, TooLarge) as error:
                raise StoreError(str(self.path), f"{name}: {error}") from error
        require_facts(self.path, facts, self.facts_of(number))
        return content

    def write(self, number: int, content: bytes) -> None:
        """Write the file of a part.  It appears complete or not at all.

        Raises
        ------
        StoreError
            If it cannot be written.
        """
        with self.writing():
            self.sync([self.replace(_file_of(number), content)])

    def facts_of(self, number: int) -> dict[str, str]:
        """Return the facts that the file of a part contains."""
        return {**self._facts, "part": str(number)}


def _file_of(number: int) -> str:
    return f"part-{number:04d}.npz"


def as_folder(store: object) -> Path | None:
    """Return an argument `store` as a path, or None.

    Raises
    ------
    ArgumentTypeError
        If it is neither a path nor None.
    """
    if store is None:
        return None
    if not isinstance(store, (str, os.PathLike)):
        raise ArgumentTypeError("store", store, "the path of a folder, or None")
    return Path(store)


def header_of(path: Path, header: str) -> dict[str, str] | None:
    """Return the facts and settings of a folder, or None if there is no header.

    Raises
    ------
    StoreError
        If the header is damaged, or cannot be read.
    """
    file = path / header
    with reported(path):
        if not file.exists():
            return None
        content = read_file(file)
    try:
        return {str(name): str(value) for name, value in dict(loads(content)).items()}
    except (ValueError, TypeError) as error:
        raise StoreError(str(path), f"{header} is damaged") from error


def require_facts(path: Path, stored: Mapping[str, object], facts: Mapping[str, str]) -> None:
    """Raise `StoreMismatchError` about the first fact that is not stored."""
    for name, want in facts.items():
        have = str(stored.get(name, "nothing"))
        if have != want:
            raise StoreMismatchError(str(path), name, have, want)


def _require_empty(path: Path, what: str) -> None:
    """Raise unless a folder is new or empty, or has a lock only."""
    if path.exists() and (not path.is_dir() or {entry.name for entry in path.iterdir()} - {_LOCK}):
        raise ArgumentError("store", str(path), f"a new or empty folder, or what {what} left")
