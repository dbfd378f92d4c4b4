"""Finished parts of an experiment, kept in a folder, so that an interrupted run can continue.

The folder has a header, which identifies the experiment, and one file per finished part.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bnmc._kernels.compiling import host_cpu
from bnmc._support.files import replacing
from bnmc._support.version import __version__
from bnmc.errors import ArgumentError, ArgumentTypeError, StoreError, StoreMismatchError
from bnmc.experiments.unpickling import unpickled

__all__ = ["KeptParts", "opened"]

#: File that identifies the experiment.
_HEADER = "experiment.json"
_DIGEST_BYTES = hashlib.sha256().digest_size


def opened(
    store: str | os.PathLike[str] | None, name: str, full: bool, seed: int
) -> KeptParts | None:
    """Open or make the folder of an experiment.

    Parameters
    ----------
    store : path or None
    name : str
        Name of the experiment.
    full : bool
    seed : int

    Returns
    -------
    KeptParts or None
        None if `store` is None.

    Raises
    ------
    ArgumentTypeError, ArgumentError
        If `store` is no path, or holds other files.
    StoreMismatchError
        If it holds another experiment, or the same with another seed, version of bnmc or kind of
        processor.
    StoreError
        If it cannot be read or written.
    """
    if store is None:
        return None
    if not isinstance(store, (str, os.PathLike)):
        raise ArgumentTypeError("store", store, "the path of a folder, or None")
    wanted = {
        "experiment": name, "full": str(bool(full)), "seed": str(seed), "version": __version__,
        "cpu": host_cpu(),
    }  # fmt: skip
    return KeptParts(Path(store), wanted)


class KeptParts:
    """A folder with one file for each finished part: a digest and a pickle.

    Parameters
    ----------
    folder : Path
        Made if it does not exist.
    identity : mapping of str to str
        Everything that the parts depend on.

    Raises
    ------
    ArgumentError, StoreMismatchError, StoreError
        As for `opened`.
    """

    def __init__(self, folder: Path, identity: Mapping[str, str]) -> None:
        self.folder = folder
        try:
            self._open(identity)
        except OSError as error:
            raise StoreError(str(folder), error.strerror or str(error)) from error

    def _open(self, identity: Mapping[str, str]) -> None:
        header = self.folder / _HEADER
        if not header.exists():
            if self.folder.exists() and (not self.folder.is_dir() or any(self.folder.iterdir())):
                allowed = "a new or empty folder, or what an earlier run of the experiment left"
                raise ArgumentError("store", str(self.folder), allowed)
            self.folder.mkdir(parents=True, exist_ok=True)
            with replacing(header) as temporary:
                temporary.write_text(json.dumps(dict(identity), indent=2) + "\n", encoding="utf-8")
        try:
            stored = dict(json.loads(header.read_text(encoding="utf-8")))
        except ValueError as error:
            raise StoreError(str(self.folder), f"{_HEADER} is damaged") from error
        for name, wanted in identity.items():
            if stored.get(name) != wanted:
                raise StoreMismatchError(
                    str(self.folder), name, str(stored.get(name, "unknown")), wanted
                )

    def __len__(self) -> int:
        """Number of finished parts."""
        return sum(1 for _ in self.folder.glob("part-*.pickle"))

    def get(self, number: int) -> Any:
        """Return a finished part, or None if its file is missing or damaged."""
        try:
            content = self._file(number).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreError(str(self.folder), error.strerror or str(error)) from error
        digest, pickled = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
        if hashlib.sha256(pickled).digest() != digest:
            return None
        try:
            return unpickled(pickled)
        except pickle.UnpicklingError as error:
            raise StoreError(str(self.folder), f"{self._file(number).name}: {error}") from error

    def put(self, number: int, part: Any) -> None:
        """Write a finished part.  Its file appears complete or not at all."""
        pickled = pickle.dumps(part, protocol=pickle.HIGHEST_PROTOCOL)
        try:
            with replacing(self._file(number)) as temporary:
                temporary.write_bytes(hashlib.sha256(pickled).digest() + pickled)
        except OSError as error:
            raise StoreError(str(self.folder), error.strerror or str(error)) from error

    def _file(self, number: int) -> Path:
        return self.folder / f"part-{number:04d}.pickle"
