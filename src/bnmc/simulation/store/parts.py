"""A folder of finished parts: one process writes it, and the disk has what was written."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from bnmc._support.archives import Damaged, Foreign, TooLarge, archived, arrays_of
from bnmc._support.arguments import Key
from bnmc._support.files import as_path, move_new, synced
from bnmc._support.text import loads
from bnmc.chain.chain import Chain, Network
from bnmc.chain.code_digest import digest_of
from bnmc.errors import ArgumentError, ArgumentTypeError, StoreError, StoreMismatchError
from bnmc.simulation.engine.state import State
from bnmc.simulation.store.folder import PARTIAL, Folder, read_file, reported
from bnmc.simulation.tiles import Origin

_T = TypeVar("_T")

#: Takes the bytes of a file and returns their content and the facts in them.
_Unpacked = Callable[[bytes], tuple[_T, Mapping[str, str]]]

#: The file that the process locks that writes a folder of parts.
_LOCK = "lock"

#: The format of folders; bnmc 0.2.0 wrote others, which have no such number.
_FORMAT = 1

#: What to do about sizes that are smaller than those of a folder.
_GROWS = (
    "finished parts grow and do not shrink; bnmc.open(path) reads some chains or layers of a run"
)

#: The entry of the archive of a part with its facts.
_FACTS = "facts"


class PartStore:
    """A folder with one file for each finished part, and a header that identifies the computation.

    This process alone writes it.  Before and after each write, the path must still lead to the
    folder that was opened, and this process must hold the lock of that folder.  The disk writes
    files (``fsync``) in the background, and has all of them when `finish` returns.

    A part is finished when its file is there: each file appears complete or not at all.  It repeats
    the facts of the computation, the identity of the header and the number of its part, so a file
    from another folder, or under another number, raises.  If two processes begin a folder, the
    first header stays.

    A folder grows if its sizes are smaller than those of the computation: the header is written
    again, in one step.  A part of other extents is that of the smaller computation, and missing.

    Parameters
    ----------
    path : Path
        Made if it does not exist.
    facts : mapping of str to str
        Everything that the parts depend on.
    settings : mapping, optional
        What a new folder notes besides; an existing folder keeps its own.
    sizes : mapping of str to int, optional
        What may grow, by the names of arguments: the parts do not depend on it.

    Attributes
    ----------
    header : str
        Name of the file with the facts: a document of JSON with ``attributes``.
    what : str
        What the folder may contain, for messages: "an earlier run of the experiment".
    inside : str
        Folder of the lock and of the parts in this one, with a slash, or "".
    stored : dict
        The attributes of the header: facts, settings and their digest, the identity; and sizes.

    Raises
    ------
    ArgumentError
        If the folder holds other files.
    StoreMismatchError
        If it holds another computation, or a larger one; the error names a difference.
    StoreInUseError
        If another process writes the folder.
    StoreLockError
        If the file system has no locks.
    StoreError
        If the folder cannot be read or written, contains a link, or has another format.
    """

    header: ClassVar[str]
    what: ClassVar[str]
    inside: ClassVar[str] = ""

    @classmethod
    def stored_key(cls, folder: Path) -> Key | None:
        """Return the key of the run in a folder, or None if there is none.

        Raises
        ------
        StoreError
            If the header is damaged, or cannot be read.
        """
        if not (folder / cls.header).exists():
            return None
        try:
            return Key.of(header_of(folder, cls.header)["key"])
        except (KeyError, ValueError):
            raise StoreError(str(folder), f"{cls.header} is damaged") from None

    def __init__(
        self,
        path: Path,
        facts: Mapping[str, str],
        settings: Mapping[str, Any] | None = None,
        sizes: Mapping[str, int] | None = None,
    ) -> None:
        self.path = path
        self._facts, self._settings = dict(facts), dict(settings or {})
        self._sizes = dict(sizes or {})
        self.stored: dict[str, Any] = {}
        #: What the disk is writing.
        self._on_the_way: Future[None] | None = None
        lock = path / self.inside / _LOCK
        with reported(path), contextlib.ExitStack() as stack:
            if (path / self.header).exists():
                self._stored(path)
            else:
                self._require_free()
                lock.parent.mkdir(parents=True, exist_ok=True)
            if not os.path.lexists(lock):
                lock.touch()
            self.folder = Folder(path)
            self.folder.lock(f"{self.inside}{_LOCK}")
            stack.callback(self.folder.unlock)
            self.folder.require_lock()
            self.folder.require_plain()
            self._disk = ThreadPoolExecutor(1, thread_name_prefix="bnmc-disk")
            stack.callback(self._disk.shutdown)
            if not (self.folder.place / self.header).exists():
                self._write_header()
            self._check()
            #: Closes open files.
            self.opened = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.opened.close()

    # --- the header

    def _names(self) -> set[str]:
        """Return the files and folders that a writer makes first, up to the header."""
        header = Path(self.header)
        return {self.inside.rstrip("/") or _LOCK, self.header, str(header.with_suffix(PARTIAL))}

    def _require_free(self) -> None:
        """Raise unless the folder is new or empty, or its writer died before the header."""
        path = self.path
        is_free = not path.exists() or (
            path.is_dir() and {entry.name for entry in path.iterdir()} <= self._names()
        )
        # Another process may have written the header, and parts, since it was looked for.
        if not is_free and not (path / self.header).exists():
            allowed = f"a new or empty folder, or what {self.what} left"
            raise ArgumentError("store", str(path), allowed)

    def _document(self, document: dict[str, Any]) -> dict[str, Any]:
        """Return the document of a header with what depends on sizes."""
        return document

    def _write_header(self, former: Mapping[str, Any] | None = None) -> None:
        """Write the header of a new folder, or that of one that grows in place of its former one.

        It alone says what the folder holds: whatever follows from it is made later.
        """
        if former is None:
            attributes = {**self._facts, **self._settings, "format": _FORMAT}
            same = {name: each for name, each in attributes.items() if name not in self._sizes}
            former = {"attributes": {**attributes, "identity": digest_of_document(same)}}
        document = self._document({**former, "attributes": {**former["attributes"], **self._sizes}})
        attributes = document["attributes"]
        attributes.setdefault("checked", " ".join(sorted([*attributes, "checked"])))
        attributes["checksum"] = _checksum(attributes)
        content = json.dumps(document, indent=2) + "\n"
        with self.writing():
            # Where locks have no effect, the header of another process stays; `_check` reads it.
            with contextlib.suppress(FileExistsError):
                self.replace(self.header, content.encode())
            self.sync([self.folder.place / self.header])
            self._wait_for_disk()
            synced(self.path.parent)

    def _check(self) -> None:
        """Check the header of the folder that was opened; write it again if the folder grows."""
        self.stored = self._stored(self.folder.place)
        if any(self.stored[name] < size for name, size in self._sizes.items()):
            self._write_header(loads(read_file(self.folder.place / self.header)))
            self.stored = self._stored(self.folder.place)

    def _stored(self, place: Path) -> dict[str, Any]:
        """Return the attributes of the header, or raise if the folder does not go with this run."""
        stored = header_of(self.path, self.header, self._facts, place)
        for name, size in self._sizes.items():
            if stored[name] > size:
                raise StoreMismatchError(str(self.path), name, str(stored[name]), str(size), _GROWS)
        return stored

    # --- files

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Check before and after a write that this process may write; report errors."""
        with reported(self.path):
            self.folder.require_lock()
            try:
                yield
            except OSError:
                self.folder.require_lock()  # to write fails in a folder that was removed
                raise
            self.folder.require_lock()

    def replace(self, name: str, content: bytes) -> Path:
        """Write a file, which appears complete or not at all, and return it.

        Raises
        ------
        FileExistsError
            If it is the header of a new folder, and there is one.
        """
        file = self.folder.place / name
        partial = file.with_suffix(PARTIAL)
        partial.write_bytes(content)
        if name == self.header:
            synced(partial)  # a header is never on the disk without its content
        if name != self.header or self.stored:
            partial.replace(file)
            return file
        try:
            move_new(partial, file)
        finally:
            partial.unlink(missing_ok=True)
        return file

    def sync(self, files: Iterable[Path]) -> None:
        """Let the disk write files, after those of all earlier calls, for which it waits."""
        self._wait_for_disk()
        self._on_the_way = self._disk.submit(self.folder.sync, files)

    def finish(self) -> None:
        """Wait until the disk has all files."""
        with self.writing():
            self._wait_for_disk()

    def _wait_for_disk(self) -> None:
        writing, self._on_the_way = self._on_the_way, None
        if writing is not None:
            writing.result()

    # --- parts

    def content(self, part: int | str, unpacked: _Unpacked[_T]) -> _T | None:
        """Return the content of a finished part, or None if its file is missing or damaged.

        Parameters
        ----------
        part : int or str
            Number of the part, or its numbers as text.
        unpacked : callable
            As `part_of` takes it.

        Raises
        ------
        StoreMismatchError, StoreError
            As `part_of`.
        """
        name = self.inside + file_of(part)
        facts, extents = self.facts_of(part), self.extents_of(part)
        return part_of(self.path, self.folder.place, name, facts, unpacked, extents)

    def write(self, part: int | str, content: bytes, files: Iterable[Path] = ()) -> None:
        """Write the file of a part, which appears complete or not at all, after other files.

        Raises
        ------
        StoreError
            If it cannot be written.
        """
        with self.writing():
            self.sync([*files, self.replace(self.inside + file_of(part), content)])

    def facts_of(self, part: int | str) -> dict[str, str]:
        """Return the facts that the file of a part contains."""
        identity = self.stored["identity"]
        return {**self._facts, "identity": identity, "part": str(part), **self.extents_of(part)}

    def extents_of(self, part: int | str) -> dict[str, str]:
        """Return what sizes determine of a part, such as its last chain, each by its name."""
        return {}


def file_of(part: int | str) -> str:
    """Return the name of the file of a part."""
    return f"part-{part:04d}.npz" if isinstance(part, int) else f"part-{part}.npz"


def part_of(
    path: Path,
    place: Path,
    name: str,
    facts: Mapping[str, str],
    unpacked: _Unpacked[_T],
    extents: Collection[str] = (),
) -> _T | None:
    """Return the content of the file of a part, or None if it is missing or damaged.

    Parameters
    ----------
    path : Path
        Path of the folder, for messages.
    place : Path
        Where its files are.
    name : str
    facts : mapping of str to str
        What the file must contain.
    unpacked : callable
        Takes the bytes of the file and returns their content and the facts in them.  It may raise
        `Damaged`, `Foreign` or `TooLarge`.
    extents : collection of str
        The last facts, in which the file of a part of a smaller computation differs: it is missing.

    Raises
    ------
    StoreMismatchError
        If the file is that of another computation or part.
    StoreError
        If the file cannot be read, contains something else, or does not fit in memory.
    """
    with reported(path):
        try:
            content, stored = unpacked(read_file(place / name))
        except (FileNotFoundError, Damaged):
            return None
        except (Foreign, TooLarge) as error:
            raise StoreError(str(path), f"{name}: {error}") from error
    try:
        require_facts(path, stored, facts)
    except StoreMismatchError as error:
        if error.name in extents:
            return None
        raise
    return content


def with_facts(arrays: Mapping[str, NDArray[Any]], facts: Mapping[str, str]) -> bytes:
    """Return arrays and facts as the content of a part."""
    return archived({**arrays, _FACTS: np.frombuffer(json.dumps(facts).encode(), np.uint8)})


def without_facts(content: bytes) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """Return the arrays of a part and its facts, or raise `Damaged` or `TooLarge`."""
    arrays = arrays_of(content)
    try:
        return arrays, dict(loads(arrays.pop(_FACTS).tobytes()))
    except (KeyError, TypeError, ValueError) as error:
        raise Damaged(str(error)) from error


def as_folder(store: object) -> Path | None:
    """Return an argument `store` as a path, or None.

    Raises
    ------
    ArgumentTypeError
        If it is neither a path nor None.
    """
    return None if store is None else as_path("store", store)


def header_of(
    path: Path, header: str, facts: Mapping[str, str] | None = None, place: Path | None = None
) -> dict[str, Any]:
    """Return the attributes of the header of a folder.

    Parameters
    ----------
    path : Path
        Path of the folder.
    header : str
    facts : mapping of str to str, optional
        What it must contain.
    place : Path, optional
        Where its files are.

    Raises
    ------
    StoreMismatchError
        If it has other facts; the error names a difference.
    StoreError
        If the header is missing or damaged, has another format, or cannot be read.
    """
    with reported(path):
        content = read_file((place or path) / header)
    try:
        document = dict(loads(content))
        attributes = dict(document.get("attributes", document))
    except (ValueError, TypeError) as error:
        raise StoreError(str(path), f"{header} is damaged: {error}") from error
    version = attributes.get("bnmc_version", attributes.get("version"))
    if version is None:
        raise StoreError(str(path), f"{header} is damaged: it names no version")
    if attributes.get("format") != _FORMAT:
        reason = f"bnmc {version} made it, in a format that this version does not read"
        raise StoreError(str(path), f"{reason}: use a new path")
    require_facts(path, attributes, facts or {})
    if attributes.get("checksum") != _checksum(attributes):
        raise StoreError(str(path), "its attributes are damaged: they lack their checksum")
    return attributes


def _checksum(attributes: Mapping[str, Any]) -> str:
    """Return the digest of the attributes of a header; a user may add others."""
    names = str(attributes.get("checked")).split()
    return digest_of_document({name: attributes.get(name) for name in names})


def digest_of_document(document: object) -> str:
    """Return the SHA-256 of what JSON can write."""
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def require_facts(path: Path, stored: Mapping[str, object], facts: Mapping[str, str]) -> None:
    """Raise `StoreMismatchError` about the first fact that is not stored."""
    for name, want in facts.items():
        have = str(stored.get(name, "nothing"))
        if have != want:
            raise StoreMismatchError(str(path), name, have, want)


# --- facts: functions by their code and objects by their state, never by an address


def _chain_facts(chain: Chain) -> dict[str, str]:
    """Return the facts about a chain that its `repr` does not have.

    Raises
    ------
    ArgumentTypeError
        If a function of the chain refers to something that other processes cannot compare.
    """
    return {
        "activation_digest": chain.activation.digest,
        "weights_digest": argument_digest("weights", chain.weights, chain.weights),
        "chain_digest": argument_digest(
            "chain", chain, (type(chain), chain.normalization, chain.covariance)
        ),
    }


def network_facts(network: Network) -> dict[str, str]:
    """Return the facts about the chains of a network that its `repr` does not have."""
    facts = [_chain_facts(chain) for chain in network.chains]
    return {name: ", ".join(each[name] for each in facts) for name in facts[0]}


def argument_digest(name: str, argument: object, value: object) -> str:
    """Return the digest of a value that belongs to an argument, or raise about the argument."""
    if isinstance(value, str):
        return value
    try:
        return digest_of(value)
    except TypeError as error:
        allowed = "what another process can compare, as a store needs"
        hint = (
            f"{error}; refer to numbers, arrays and functions, "
            "or leave other objects out in __getstate__"
        )
        raise ArgumentTypeError(name, argument, allowed, hint) from error


def start_digest(start: Origin, chains: int) -> str:
    """Return the digest of a start, with the number of chains if each has a start of its own."""
    named = start.arrays if isinstance(start, State) else vars(start)
    digest = digest_of((type(start).__name__, sorted(named.items())))
    return digest if start.part(0, 1) is start else f"{digest} of {chains} chains"
