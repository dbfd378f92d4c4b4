"""The files of a store: how they are made, and the checks of their metadata."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bnmc._support.extras import import_extra
from bnmc._support.machine import available_memory
from bnmc._support.text import loads
from bnmc.errors import StoreError
from bnmc.simulation.identity import digest_of_facts
from bnmc.simulation.runs import Run
from bnmc.simulation.store.folder import building_folder, read_file, synced
from bnmc.simulation.store.parts import require_facts
from bnmc.simulation.tiles import Grid

#: The attribute with the digest of the other ones, and that with the digest of the metadata of the
#: arrays.
_CHECKSUM, _ARRAYS = "checksum", "arrays"

#: Codecs of the chunks, which compress nothing.
_CODECS = {"bytes", "crc32c"}

#: Bytes of the checksum of a chunk.
_CHUNK_CHECKSUM = 4


class Facts:
    """The attributes of a store.

    Parameters
    ----------
    path : Path
        Path of the store, for messages.
    document : dict
        The content of its ``zarr.json``.

    Attributes
    ----------
    attributes : dict
    """

    def __init__(self, path: Path, document: dict[str, Any]) -> None:
        self.path = path
        self._document = document
        self.attributes: dict[str, Any] = dict(document["attributes"])

    def require(self, facts: Mapping[str, str]) -> None:
        """Raise `StoreMismatchError` unless the store holds a run; the error names a difference."""
        require_facts(self.path, self.attributes, {**facts, "identity": digest_of_facts(facts)})

    def require_sound(self) -> None:
        """Raise `StoreError` unless the attributes have their checksum."""
        names = self.attributes.get("checked")
        stored = self.attributes.get(_CHECKSUM)
        if stored != _checksum(self.attributes, str(names)):
            raise StoreError(str(self.path), "its attributes are damaged: they lack their checksum")

    def require_layout(self, place: Path, names: tuple[str, ...]) -> None:
        """Raise `StoreError` unless the metadata of all arrays are those that were written.

        Zarr has them twice: in a file of each array, and in that of the store.
        """
        own = {name: _document(place / name / "zarr.json") for name in names}
        try:
            copies = self._document["consolidated_metadata"]["metadata"]
            copies = {name: copies[name] for name in names}
        except (KeyError, TypeError):
            raise StoreError(str(self.path), "it lacks the metadata of its arrays") from None
        for name in names:
            for key in sorted({*own[name], *copies[name]}):
                if own[name].get(key) != copies[name].get(key):
                    reason = f"the {key} of {name} in zarr.json and {name}/zarr.json differ"
                    raise StoreError(str(self.path), reason)
        if _digest(own) != self.attributes.get(_ARRAYS):
            raise StoreError(str(self.path), f"the metadata of {', '.join(names)} are damaged")
        for name in names:
            self._require_chunks(name, own[name])

    def _require_chunks(self, name: str, metadata: dict[str, Any]) -> None:
        """Raise `StoreError` unless the chunks of an array are tiles that fit in memory.

        Zarr makes a whole chunk in memory, of any size that the metadata claim.
        """
        shape, chunk = metadata["shape"], metadata["chunk_grid"]["configuration"]["chunk_shape"]
        numbers = [*shape, *chunk]
        of_tile = shape if name == "layer" else [*self.cut, *shape[2:]]
        codecs = {codec["name"] for codec in metadata["codecs"]}
        if not all(type(one) is int and one >= 0 for one in numbers) or codecs - _CODECS:
            raise StoreError(str(self.path), f"the metadata of {name} are not those of a run")
        if chunk != [max(1, length) for length in of_tile]:
            raise StoreError(str(self.path), f"the chunks of {name} are no tiles: {chunk}")
        size, available = 8 * math.prod(chunk), available_memory()
        if size > available:
            reason = f"a chunk of {name} has {size} bytes, but {available} bytes are available"
            raise StoreError(str(self.path), reason)

    @property
    def identity(self) -> str:
        """The digest of the identity of the run."""
        return str(self.attributes["identity"])

    @property
    def run(self) -> str:
        """What each line of the journal contains: the identity, and the division into tiles."""
        return f"{self.identity}-{str(self.attributes[_CHECKSUM])[:16]}"

    @property
    def cut(self) -> tuple[int, int]:
        """Chains of a part, and recorded layers of a block."""
        return int(self.attributes["part"]), int(self.attributes["block"])


def facts_of(place: Path, path: Path) -> Facts:
    """Read the attributes of a store.

    Parameters
    ----------
    place : Path
        Where its files are.
    path : Path
        Its path, for messages.

    Raises
    ------
    StoreError
        If they cannot be read.
    """
    try:
        facts = Facts(path, _document(place / "zarr.json"))
        int(facts.attributes["key"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StoreError(str(path), f"its metadata cannot be read: {error}") from None
    return facts


def create(
    path: Path,
    run: Run,
    grid: Grid,
    attributes: Mapping[str, Any],
    facts: Mapping[str, str],
) -> None:
    """Make an empty store, which gets its name when it is complete and on the disk."""
    zarr = import_extra("zarr", "xarray")
    with building_folder(path) as building:
        group = zarr.create_group(building, zarr_format=3)
        for name, shape in run.shapes.items():
            group.create_array(
                name,
                shape=(grid.chains, grid.recorded.count, *shape),
                chunks=(grid.part, grid.block, *(max(1, length) for length in shape)),
                dtype="float64",
                fill_value=np.nan,
                # Every reader then notices a damaged chunk.
                compressors=zarr.codecs.Crc32cCodec(),
                dimension_names=("chain", "layer", *run.axes[name]),
            )
        layers = grid.recorded.layers(0, grid.recorded.count)
        coordinate = group.create_array(
            "layer", shape=layers.shape, chunks=layers.shape, dtype="int64", fill_value=0,
            compressors=None, dimension_names=("layer",),
        )  # fmt: skip
        coordinate[:] = layers
        described = {**facts, **attributes, "part": grid.part, "block": grid.block}
        described["identity"] = digest_of_facts(facts)
        _describe(building, (*run.shapes, "layer"), described)
        zarr.create_group(building / "progress", zarr_format=3)
        for name in ("journal", "lock"):
            (building / "progress" / name).touch()
        for inside in sorted(building.rglob("*"), reverse=True):
            synced(inside)
        synced(building)
        with contextlib.suppress(OSError):  # another run made it meanwhile and holds the lock
            building.rename(path)
        synced(path.parent)


def _describe(path: Path, names: tuple[str, ...], facts: dict[str, Any]) -> None:
    """Enter the attributes and the metadata of the arrays in those of the group.

    So a reader opens one file.  `zarr.consolidate_metadata` does the same with a warning that the
    format may change.
    """
    root = _document(path / "zarr.json")
    metadata = {name: _document(path / name / "zarr.json") for name in names}
    facts = {**facts, _ARRAYS: _digest(metadata)}
    facts["checked"] = " ".join(sorted([*facts, "checked"]))
    root["attributes"] = {**facts, _CHECKSUM: _checksum(facts, facts["checked"])}
    root["consolidated_metadata"] = {
        "kind": "inline", "must_understand": False, "metadata": metadata
    }  # fmt: skip
    (path / "zarr.json").write_text(json.dumps(root, indent=2), encoding="utf-8")


def _checksum(attributes: Mapping[str, Any], names: str) -> str:
    """Return a digest of the attributes of some names; others may be added to a store."""
    return _digest({name: attributes.get(name) for name in names.split()})


def _digest(document: object) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def _document(path: Path) -> dict[str, Any]:
    document = loads(read_file(path))
    if not isinstance(document, dict):
        raise ValueError(f"{path.name} is no object of JSON")
    return document


def chunk_of(place: Path, name: str, part: int, block: int, axes: int) -> Path:
    """Return the file of the values of one tile, which are one chunk."""
    numbers = [part, block, *[0] * (axes - 2)]
    return place.joinpath(name, "c", *map(str, numbers))


def is_too_long(place: Path, name: str, part: int, block: int, chunk: tuple[int, ...]) -> bool:
    """Return whether the file of a chunk, which Zarr would read whole, is longer than the chunk."""
    try:
        size = chunk_of(place, name, part, block, len(chunk)).stat().st_size
    except OSError:
        return False
    return size > 8 * math.prod(chunk) + _CHUNK_CHECKSUM
