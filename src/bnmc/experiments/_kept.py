"""Finished parts of an experiment, kept in a folder so that an interrupted one can go on."""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
from collections.abc import Mapping
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

from bnmc._kernels.compiling import host_cpu
from bnmc._support.files import replacing
from bnmc.chain.activations import Activation
from bnmc.chain.chain import Chain
from bnmc.errors import ArgumentError, ArgumentTypeError, StoreError, StoreMismatchError

__all__ = ["KeptParts", "opened"]

#: Says which experiment a folder belongs to.
_HEADER = "experiment.json"
_DIGEST_BYTES = hashlib.sha256().digest_size


def opened(
    store: str | os.PathLike[str] | None, name: str, full: bool, seed: int
) -> KeptParts | None:
    """Return the kept parts of an experiment, none of a new store; None without a store.

    Raises
    ------
    ArgumentTypeError, ArgumentError
        If the store is no path, or the path of what is no store.
    StoreMismatchError
        If it holds another experiment, or one of another version, seed or kind of processor.
    StoreError
        If it cannot be read or written.
    """
    if store is None:
        return None
    if not isinstance(store, (str, os.PathLike)):
        raise ArgumentTypeError("store", store, "the path of a folder, or None")
    from bnmc._support.version import __version__

    wanted = {
        "experiment": name, "full": str(bool(full)), "seed": str(seed), "version": __version__,
        "cpu": host_cpu(),
    }  # fmt: skip
    return KeptParts(Path(store), wanted)


#: What parts are made of, besides dataclasses of this package.
_KNOWN = {
    "builtins": {"complex", "dict", "frozenset", "list", "set", "slice", "tuple"},
    "numpy": {"dtype", "ndarray"},
    "numpy._core.multiarray": {"_reconstruct", "scalar"},
    "numpy._core.numeric": {"_frombuffer"},
    # NumPy's former names of the same.
    "numpy.core.multiarray": {"_reconstruct", "scalar"},
    "numpy.core.numeric": {"_frombuffer"},
    "bnmc.chain.activations": {"_named", "_rebuilt"},
    "bnmc.experiments.orthogonalizes.common": {"_sigmoid_half", "_sin_half", "_tanh_half"},
}


class _Unpickler(pickle.Unpickler):
    """Makes numbers, arrays and results of this package, and calls nothing else.

    A pickle may name any function to be called, and a folder may come from anywhere.
    """

    def find_class(self, module: str, name: str) -> Any:
        if name in _KNOWN.get(module, ()):
            return super().find_class(module, name)
        if (module, name) == ("bnmc.chain.chain", "_rebuilt"):
            return _chain
        if module.partition(".")[0] == "bnmc" and "." not in name:
            found = super().find_class(module, name)
            if is_dataclass(found) and found.__module__ == module:
                return found
        raise pickle.UnpicklingError(f"{module}.{name} is nothing that an experiment keeps")


def _chain(
    width: int, batch: int, activation: Activation, weights: object, options: dict[str, Any]
) -> Chain:
    """Make a chain as it is pickled, but for weights from a function, which may be any."""
    if not isinstance(weights, str):
        raise pickle.UnpicklingError("a function is nothing that an experiment keeps")
    return Chain(width, batch, activation, weights=weights, **options)


class KeptParts:
    """A folder with one file for each finished part: a digest and a pickle.

    Parameters
    ----------
    folder : Path
        Is made if it is not there.
    identity : mapping of str to str
        What all parts depend on.
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
        """Return a finished part; None of one that is not there, or is damaged."""
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
            return _Unpickler(io.BytesIO(pickled)).load()
        except pickle.UnpicklingError as error:
            raise StoreError(str(self.folder), f"{self._file(number).name}: {error}") from error

    def put(self, number: int, part: Any) -> None:
        """Keep a finished part; its file is there as a whole or not at all."""
        pickled = pickle.dumps(part, protocol=pickle.HIGHEST_PROTOCOL)
        try:
            with replacing(self._file(number)) as temporary:
                temporary.write_bytes(hashlib.sha256(pickled).digest() + pickled)
        except OSError as error:
            raise StoreError(str(self.folder), error.strerror or str(error)) from error

    def _file(self, number: int) -> Path:
        return self.folder / f"part-{number:04d}.pickle"
