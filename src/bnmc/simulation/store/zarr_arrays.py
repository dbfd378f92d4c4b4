"""The Zarr arrays of a store: made, checked, and read when their values are asked for."""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bnmc._support.extras import import_extra
from bnmc._support.machine import available_memory
from bnmc._support.text import loads
from bnmc.errors import ResultTooLargeError, StoreError, StoreMismatchError
from bnmc.simulation.runs import Run
from bnmc.simulation.store.folder import read_file, reported
from bnmc.simulation.store.parts import (
    digest_of_document,
    file_of,
    header_of,
    part_of,
    without_facts,
)
from bnmc.simulation.tiles import Grid

if TYPE_CHECKING:
    import xarray

#: The header of a store, and the folder of its tiles.
HEADER, INSIDE = "zarr.json", "progress/"

#: The array of a tile with the checksums of its values, in the order of the observables.
SUMS = "sums"

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
        return array[where]
    except ValueError:
        return None


def checksum_of(values: NDArray[np.float64]) -> int:
    """Return the checksum of the values of a tile."""
    return zlib.crc32(np.ascontiguousarray(values).data)


@dataclass(frozen=True)
class StoredArrays(Mapping[str, NDArray[np.float64]]):
    """The recorded values of a stored run, each read on access.

    On each access the store must still hold the run, and the values of each tile must have the
    checksums that its file has.

    Attributes
    ----------
    path : Path
    names : tuple of str
    layers : int
        Number of layers that all chains have recorded.
    identity : str
        The identity of the store, which its header has.
    """

    path: Path
    names: tuple[str, ...]
    layers: int
    identity: str

    def __getitem__(self, name: str) -> NDArray[np.float64]:
        """Return all values of an observable.

        Raises
        ------
        StoreMismatchError
            If the store holds another run by now.
        StoreError
            If the store cannot be read, or values are damaged.
        ResultTooLargeError
            If they do not fit in memory.
        """
        if name not in self.names:
            raise KeyError(name)
        with reported(self.path):
            self._require_run()
            group = import_extra("zarr", "xarray").open_group(self.path, mode="r", zarr_format=3)
            array = group[name]
            shape = array.shape[0], self.layers, *array.shape[2:]
            size = 8 * math.prod(shape)
            if size > (available := available_memory()):
                hint = "read parts of it through run.to_xarray()"
                raise ResultTooLargeError(name, size, available, hint)
            values = np.empty(shape)
            for part, block in np.ndindex(array.cdata_shape[:2]):
                chains, slots = tile_of(array, part, block)
                if slots.start < self.layers:
                    values[chains, slots] = self._tile(name, array, part, block)
            return values

    def _tile(self, name: str, array: Any, part: int, block: int) -> NDArray[np.float64]:
        """Return the values of a tile, or raise if they are missing or damaged."""
        number = f"{part}-{block}"
        facts = {"identity": self.identity, "part": number}
        arrays = part_of(self.path, self.path, INSIDE + file_of(number), facts, without_facts)
        sums = None if arrays is None else sums_of(arrays, self.names)
        values = None
        if sums is not None:
            values = sound_values(self.path, array, part, block, sums[name])
        if values is None:
            chains, slots = tile_of(array, part, block)
            raise StoreError(
                str(self.path),
                f"{name} of chains {chains.start} to {chains.stop - 1} is damaged from recorded "
                f"layer {slots.start} on; the same call of simulate makes it again",
            )
        return values

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def to_xarray(self) -> xarray.Dataset:
        """Return the store as a dataset that reads values on access.

        Zarr then checks each chunk that it reads, but not whether the store still holds the run.
        """
        xr = import_extra("xarray", "xarray")
        with reported(self.path):
            self._require_run()
            dataset: xarray.Dataset = xr.open_zarr(self.path, chunks=None, consolidated=True)
        return dataset.isel(layer=slice(self.layers))

    def _require_run(self) -> None:
        """Raise unless the store holds the run."""
        attributes = header_of(self.path, HEADER)
        if attributes["identity"] != self.identity:
            have = str(attributes["identity"])
            raise StoreMismatchError(str(self.path), "identity", have, self.identity)
        require_layout(self.path, self.path, (*self.names, "layer"), attributes)


def sums_of(arrays: Mapping[str, NDArray[Any]], names: tuple[str, ...]) -> dict[str, int] | None:
    """Return the checksums of the values of a tile by name, or None if its file lacks them."""
    sums = arrays.get(SUMS)
    if sums is None or sums.shape != (len(names),):
        return None
    return dict(zip(names, sums.tolist(), strict=True))
