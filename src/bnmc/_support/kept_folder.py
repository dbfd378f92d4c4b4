"""A folder of finished parts of a computation: a header that identifies it, and a file per part."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from bnmc._support.archives import Damaged, TooLarge
from bnmc._support.files import replacing
from bnmc._support.text import loads
from bnmc.errors import ArgumentError, ArgumentTypeError, StoreError, StoreMismatchError

_T = TypeVar("_T")


class Foreign(ValueError):
    """The content of a file is nothing that such a folder keeps."""


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


def header_of(folder: Path, header: str) -> dict[str, str] | None:
    """Return what identifies the computation of a folder, or None if there is no header.

    Raises
    ------
    StoreError
        If the header is damaged, or cannot be read.
    """
    file = folder / header
    try:
        if not file.exists():
            return None
        facts = dict(loads(file.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise StoreError(str(folder), f"{header} is damaged") from error
    except OSError as error:
        raise StoreError(str(folder), error.strerror or str(error)) from error
    return {str(name): str(value) for name, value in facts.items()}


class KeptFolder:
    """A folder with one file for each finished part.

    Each file repeats the identity of the computation and the number of its part, so a file from
    another folder, or under another number, raises.

    Parameters
    ----------
    folder : Path
        Made if it does not exist.
    header : str
        Name of the file that identifies the computation.
    identity : mapping of str to str
        Everything that the parts depend on.
    what : str
        What the folder may contain, for messages: "an earlier run of the experiment".
    settings : mapping of str to str, optional
        What a new folder notes besides; an existing folder keeps its own.

    Attributes
    ----------
    folder : Path
    stored : dict of str to str
        Identity and settings.

    Raises
    ------
    ArgumentError
        If the folder holds other files.
    StoreMismatchError
        If it holds another computation; the error names a difference.
    StoreError
        If it cannot be read or written.
    """

    def __init__(
        self,
        folder: Path,
        header: str,
        identity: Mapping[str, str],
        what: str,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = folder
        self._identity = dict(identity)
        try:
            stored = header_of(folder, header)
            if stored is None:
                self._make(header, {**identity, **(settings or {})}, what)
                stored = header_of(folder, header)
        except OSError as error:
            if isinstance(error, StoreError):
                raise
            raise StoreError(str(folder), error.strerror or str(error)) from error
        self.stored = stored or {}
        self._require(self.stored, identity)

    def _make(self, header: str, content: Mapping[str, str], what: str) -> None:
        if self.folder.exists() and (not self.folder.is_dir() or any(self.folder.iterdir())):
            allowed = f"a new or empty folder, or what {what} left"
            raise ArgumentError("store", str(self.folder), allowed)
        self.folder.mkdir(parents=True, exist_ok=True)
        with replacing(self.folder / header) as temporary:
            temporary.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")

    def _require(self, stored: Mapping[str, str], identity: Mapping[str, str]) -> None:
        """Raise if a stored identity is another one."""
        for name, wanted in identity.items():
            if stored.get(name) != wanted:
                raise StoreMismatchError(
                    str(self.folder), name, str(stored.get(name, "unknown")), wanted
                )

    def __len__(self) -> int:
        """Number of finished parts."""
        return sum(1 for _ in self.folder.glob("part-*.npz"))

    def content(
        self, number: int, unpacked: Callable[[bytes], tuple[_T, Mapping[str, str]]]
    ) -> _T | None:
        """Return the content of a finished part, or None if its file is missing or damaged.

        Parameters
        ----------
        number : int
            Number of the part.
        unpacked : callable
            Takes the bytes of the file and returns their content and the identity in them.  It may
            raise `Damaged`, `Foreign` or `TooLarge`.

        Raises
        ------
        StoreMismatchError
            If the file is that of another computation or part.
        StoreError
            If the file cannot be read, contains something else, or does not fit in memory.
        """
        file = self.file(number)
        try:
            arrays, identity = unpacked(file.read_bytes())
        except (FileNotFoundError, Damaged):
            return None
        except OSError as error:
            raise StoreError(str(self.folder), error.strerror or str(error)) from error
        except (Foreign, TooLarge) as error:
            raise StoreError(str(self.folder), f"{file.name}: {error}") from error
        self._require(identity, self.identity_of(number))
        return arrays

    def write(self, number: int, content: bytes) -> None:
        """Write the file of a part.  It appears complete or not at all.

        Raises
        ------
        StoreError
            If it cannot be written.
        """
        try:
            with replacing(self.file(number)) as temporary:
                temporary.write_bytes(content)
        except OSError as error:
            raise StoreError(str(self.folder), error.strerror or str(error)) from error

    def identity_of(self, number: int) -> dict[str, str]:
        """Return what the file of a part contains of the computation."""
        return {**self._identity, "part": str(number)}

    def file(self, number: int) -> Path:
        """Return the path of a part."""
        return self.folder / f"part-{number:04d}.npz"
