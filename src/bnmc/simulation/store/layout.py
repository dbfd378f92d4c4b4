"""The Zarr arrays of a store: how they are made, checks of their metadata and of their values."""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnmc._support.extras import import_extra
from bnmc._support.machine import available_memory
from bnmc._support.text import loads
from bnmc.errors import StoreError
from bnmc.simulation.runs import Run
from bnmc.simulation.store.folder import read_file
from bnmc.simulation.store.parts import digest_of_document
from bnmc.simulation.tiles import Grid

#: The attribute with the digest of the metadata of the arrays.
_ARRAYS = "arrays"

#: Codecs of the chunks, which compress nothing.
_CODECS = {"bytes", "crc32c"}

#: Bytes of the checksum of a chunk.
_CHUNK_CHECKSUM = 4

#: Metadata of a group of Zarr without attributes.
_GROUP: dict[str, Any] = {"zarr_format": 3, "node_type": "group", "attributes": {}}


def make_arrays(place: Path, run: Run, grid: Grid, attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Make the empty arrays of a store; return the document of its group, ``zarr.json``.

    The document has the metadata of the arrays, so that a reader opens one file.
    `zarr.consolidate_metadata` does the same with a warning that the format may change.
    """
    zarr = import_extra("zarr", "xarray")
    for name, shape in run.shapes.items():
        zarr.create_array(
            place / name,
            overwrite=True,  # of a writer that died here
            shape=(grid.chains, grid.recorded.count, *shape),
            chunks=(grid.part, grid.block, *(max(1, length) for length in shape)),
            dtype="float64",
            fill_value=np.nan,
            # Every reader then notices a damaged chunk.
            compressors=zarr.codecs.Crc32cCodec(),
            dimension_names=("chain", "layer", *run.axes[name]),
        )
    layers = grid.recorded.layers(0, grid.recorded.count)
    coordinate = zarr.create_array(
        place / "layer", overwrite=True, shape=layers.shape, chunks=layers.shape, dtype="int64",
        fill_value=0, compressors=None, dimension_names=("layer",),
    )  # fmt: skip
    coordinate[:] = layers
    (place / "progress" / "zarr.json").write_text(json.dumps(_GROUP), encoding="utf-8")
    metadata = {name: _document(place / name / "zarr.json") for name in (*run.shapes, "layer")}
    copies = {"kind": "inline", "must_understand": False, "metadata": metadata}
    attributes = {
        **attributes, "part": grid.part, "block": grid.block, _ARRAYS: digest_of_document(metadata)
    }  # fmt: skip
    return {**_GROUP, "attributes": attributes, "consolidated_metadata": copies}


def require_layout(
    path: Path, place: Path, names: tuple[str, ...], attributes: Mapping[str, Any]
) -> None:
    """Raise `StoreError` unless the metadata of all arrays are those that were written.

    Zarr has them twice: in a file of each array, and in that of the store.
    """
    of_arrays = {name: _document(place / name / "zarr.json") for name in names}
    try:
        copies = _document(place / "zarr.json")["consolidated_metadata"]["metadata"]
        copies = {name: copies[name] for name in names}
    except (KeyError, TypeError):
        raise StoreError(str(path), "it lacks the metadata of its arrays") from None
    for name in names:
        for key in sorted({*of_arrays[name], *copies[name]}):
            if of_arrays[name].get(key) != copies[name].get(key):
                reason = f"the {key} of {name} in zarr.json and {name}/zarr.json differ"
                raise StoreError(str(path), reason)
    if digest_of_document(of_arrays) != attributes[_ARRAYS]:
        raise StoreError(str(path), f"the metadata of {', '.join(names)} are damaged")
    for name in names:
        _require_chunks(path, name, of_arrays[name], attributes)


def _require_chunks(
    path: Path, name: str, metadata: Mapping[str, Any], attributes: Mapping[str, Any]
) -> None:
    """Raise `StoreError` unless the chunks of an array are tiles that fit in memory.

    Zarr makes a whole chunk in memory, of any size that the metadata claim.
    """
    shape, chunk = metadata["shape"], metadata["chunk_grid"]["configuration"]["chunk_shape"]
    of_tile = shape if name == "layer" else [attributes["part"], attributes["block"], *shape[2:]]
    codecs = {codec["name"] for codec in metadata["codecs"]}
    numbers = [*shape, *chunk]
    if not all(type(number) is int and number >= 0 for number in numbers) or codecs - _CODECS:
        raise StoreError(str(path), f"the metadata of {name} are not those of a run")
    if chunk != [max(1, length) for length in of_tile]:
        raise StoreError(str(path), f"the chunks of {name} are no tiles: {chunk}")
    size, available = 8 * math.prod(chunk), available_memory()
    if size > available:
        reason = f"a chunk of {name} has {size} bytes, but {available} bytes are available"
        raise StoreError(str(path), reason)


def _document(path: Path) -> dict[str, Any]:
    document = loads(read_file(path))
    if not isinstance(document, dict):
        raise ValueError(f"{path.name} is no object of JSON")
    return document


def tile_of(array: Any, part: int, block: int) -> tuple[slice, slice]:
    """Return the chains and slots of a tile, which is one chunk."""
    chains, slots = (
        slice(number * length, min((number + 1) * length, whole))
        for number, length, whole in zip((part, block), array.chunks, array.shape, strict=False)
    )
    return chains, slots


def chunk_of(place: Path, array: Any, part: int, block: int) -> Path:
    """Return the file of the values of a tile; `place` has the files of the store."""
    numbers = [part, block, *[0] * (array.ndim - 2)]
    return place.joinpath(array.basename, "c", *map(str, numbers))


def sound_values(
    place: Path, array: Any, part: int, block: int, checksum: int
) -> NDArray[np.float64] | None:
    """Return the values of a tile of an array, or None unless they have their checksum."""
    if is_too_long(chunk_of(place, array, part, block), math.prod(array.chunks)):
        return None
    values = read_values(array, tile_of(array, part, block))
    return values if values is not None and checksum_of(values) == checksum else None


def is_too_long(chunk: Path, numbers: int) -> bool:
    """Return whether the file of a chunk, which Zarr would read whole, has more numbers."""
    try:
        size = chunk.stat().st_size
    except OSError:
        return False
    return size > 8 * numbers + _CHUNK_CHECKSUM


def read_values(array: Any, where: tuple[slice, ...]) -> NDArray[Any] | None:
    """Return a region of a Zarr array, or None if its bytes are damaged.

    Errors for lack of memory or of open files are raised, as the tile is sound then.
    """
    try:
        values: NDArray[Any] = array[where]
    except ValueError:
        return None
    return values


def checksum_of(values: NDArray[np.float64]) -> int:
    """Return the checksum of the values of a tile."""
    return zlib.crc32(np.ascontiguousarray(values).data)
