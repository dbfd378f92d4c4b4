"""Finished parts of an experiment, kept in a folder, so that an interrupted run can continue.

The folder has a header, which identifies the experiment, and one file per finished part.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from bnmc._kernels.compiling import host_cpu
from bnmc._support.files import replacing
from bnmc._support.json import loads
from bnmc._support.version import __version__
from bnmc.chain.activations import Activation
from bnmc.errors import ArgumentError, ArgumentTypeError, StoreError, StoreMismatchError
from bnmc.experiments.part_files import Damaged, Foreign, packed, unpacked

__all__ = ["KeptParts", "opened"]

#: File that identifies the experiment.
_HEADER = "experiment.json"


def opened(
    store: str | os.PathLike[str] | None,
    name: str,
    full: bool,
    seed: int,
    further: Mapping[str, str] | None = None,
) -> KeptParts | None:
    """Open or make the folder of an experiment.

    Parameters
    ----------
    store : path or None
    name : str
        Name of the experiment.
    full : bool
    seed : int
    further : mapping of str to str, optional
        Everything else that the parts depend on, such as a digest of the images.

    Returns
    -------
    KeptParts or None
        None if `store` is None.

    Raises
    ------
    ArgumentTypeError, ArgumentError
        If `store` is no path, or holds other files.
    StoreMismatchError
        If it holds another experiment, or the same with another seed, version of bnmc, kind of
        processor or further property.
    StoreError
        If it cannot be read or written.
    """
    if store is None:
        return None
    if not isinstance(store, (str, os.PathLike)):
        raise ArgumentTypeError("store", store, "the path of a folder, or None")
    wanted = {
        "experiment": name, "full": str(bool(full)), "seed": str(seed), "version": __version__,
        "cpu": host_cpu(), **(further or {}),
    }  # fmt: skip
    return KeptParts(Path(store), wanted)


class KeptParts:
    """A folder with one file for each finished part; see `part_files.py`.

    Each file repeats the identity of the experiment and the number of its part, so a file from
    another folder, or under another number, raises.

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
        self._identity = dict(identity)
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
            stored = dict(loads(header.read_text(encoding="utf-8")))
        except (ValueError, TypeError) as error:
            raise StoreError(str(self.folder), f"{_HEADER} is damaged") from error
        self._require(stored, identity)

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

    def get(self, number: int, activations: Iterable[Activation] = ()) -> Any:
        """Return a finished part, or None if its file is missing or damaged.

        Parameters
        ----------
        number : int
            Number of the part.
        activations : iterable of Activation
            Activations that the part may use, besides the named ones.

        Raises
        ------
        StoreMismatchError
            If the file is that of another experiment, seed or part.
        StoreError
            If the file cannot be read, or contains anything else than results.
        """
        try:
            content = self._file(number).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreError(str(self.folder), error.strerror or str(error)) from error
        try:
            part, identity = unpacked(content, activations)
        except Damaged:
            return None
        except Foreign as error:
            raise StoreError(str(self.folder), f"{self._file(number).name}: {error}") from error
        self._require(identity, self._identity_of(number))
        return part

    def put(self, number: int, part: Any) -> None:
        """Write a finished part.  Its file appears complete or not at all."""
        content = packed(part, self._identity_of(number))
        try:
            with replacing(self._file(number)) as temporary:
                temporary.write_bytes(content)
        except OSError as error:
            raise StoreError(str(self.folder), error.strerror or str(error)) from error

    def _identity_of(self, number: int) -> dict[str, str]:
        return {**self._identity, "part": str(number)}

    def _file(self, number: int) -> Path:
        return self.folder / f"part-{number:04d}.npz"
