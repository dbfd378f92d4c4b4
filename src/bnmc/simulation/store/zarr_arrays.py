"""The Zarr arrays of a store: made, checked, and read when their values are asked for."""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bnmc._support.extras import import_extra
from bnmc._support.machine import available_memory
from bnmc._support.text import loads
from bnmc.errors import ResultTooLargeError, StoreError
from bnmc.simulation.runs import Run
from bnmc.simulation.store.folder import read_file, reported
from bnmc.simulation.store.parts import (
    digest_of_document,
    file_of,
    header_of,
    part_of,
    require_facts,
    without_facts,
)
from bnmc.simulation.tiles import Grid

if TYPE_CHECKING:
    import xarray

#: The header of a store, and the folder of its tiles.
HEADER, INSIDE = "zarr.json", "progress/"

#: The array of a tile with the checksums of its values, in the order of the observables.
SUMS = "sums"

#: The arrays with the numbers of chains and layers, of one chunk each.
COORDINATES = ("layer", "chain")

#: What a reader says of damage that a writer mends.
_AGAIN = "; the same call of simulate makes it again"

#: The attribute with the digest of the metadata of the arrays.
_ARRAYS = "arrays"

#: Codecs of the chunks, which compress nothing.
_CODECS = {"bytes", "crc32c"}

#: Bytes of the checksum of a chunk.
_CHUNK_CHECKSUM = 4

#: Metadata of a group of Zarr without attributes.
_GROUP: dict[str, Any] = {"zarr_format": 3, "node_type": "group", "attributes": {}}


def with_arrays(document: Mapping[str, Any], run: Run, grid: Grid) -> dict[str, Any]:
    """Return the document of a store, ``zarr.json``, with the metadata of its arrays.

    A reader then opens one file.  `zarr.consolidate_metadata` does the same with a warning that the
    format may change.
    """
    metadata = metadata_of(run, grid)
    attributes = {**document["attributes"], _ARRAYS: digest_of_document(metadata)}
    copies = {"kind": "inline", "must_understand": False, "metadata": metadata}
    return {**_GROUP, "attributes": attributes, "consolidated_metadata": copies}


def metadata_of(run: Run, grid: Grid) -> dict[str, dict[str, Any]]:
    """Return the metadata of the arrays of a store by name, as Zarr's specification has them."""
    slots = grid.recorded.count
    values = {
        name: _metadata(
            (grid.chains, slots, *shape), (grid.part, grid.block, *shape),
            ("chain", "layer", *run.axes[name]), "float64", "NaN",
        )
        for name, shape in run.shapes.items()
    }  # fmt: skip
    numbers = {
        name: _metadata(array.shape, array.shape, (name,), "int64", 0)
        for name, array in coordinates_of(grid).items()
    }
    return values | numbers


def _metadata(
    shape: Sequence[int], chunk: Sequence[int], axes: Sequence[str], dtype: str, missing: str | int
) -> dict[str, Any]:
    return {
        "shape": list(shape),
        "data_type": dtype,
        "chunk_grid": {
            "name": "regular",
            "configuration": {"chunk_shape": [max(1, length) for length in chunk]},
        },
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": missing,
        # Nothing is compressed, and every reader notices a damaged chunk.
        "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}],
        "attributes": {},
        "dimension_names": list(axes),
        "zarr_format": 3,
        "node_type": "array",
        "storage_transformers": [],
    }


def coordinates_of(grid: Grid) -> dict[str, NDArray[np.int64]]:
    """Return the numbers of the chains and of the recorded layers."""
    layers = grid.recorded.layers(0, grid.recorded.count)
    return {"layer": layers, "chain": np.arange(grid.chains)}


def files_of(metadata: Mapping[str, Mapping[str, Any]]) -> dict[str, bytes]:
    """Return the files that a store has besides its header, by name, but those of values."""
    documents = {**metadata, "progress": _GROUP}
    return {
        f"{name}/zarr.json": json.dumps(document, indent=2).encode()
        for name, document in documents.items()
    }


def has_content(path: Path, content: bytes) -> bool:
    """Return whether a file has a content."""
    try:
        return path.stat().st_size == len(content) and read_file(path) == content
    except FileNotFoundError:
        return False


def mended(array: Any, chunk: Path, values: NDArray[np.int64]) -> list[Path]:
    """Write a coordinate, of one chunk, unless it has its values; return the files written."""
    too_long = is_too_long(chunk, len(values))
    stored = None if too_long else _read_values(array, (slice(None),))
    if stored is not None and np.array_equal(stored, values):
        return []
    array[:] = values
    return [chunk]


def require_layout(path: Path, names: tuple[str, ...], attributes: Mapping[str, Any]) -> None:
    """Raise `StoreError` unless the metadata of all arrays are those that were written.

    Zarr has them twice: in a file of each array, and in that of the store.
    """
    of_arrays = {name: _document(path / name / "zarr.json") for name in names}
    try:
        copies = _document(path / HEADER)["consolidated_metadata"]["metadata"]
        copies = {name: copies[name] for name in names}
    except (KeyError, TypeError):
        raise StoreError(str(path), "it lacks the metadata of its arrays") from None
    for name in names:
        for key in sorted({*of_arrays[name], *copies[name]}):
            if of_arrays[name].get(key) != copies[name].get(key):
                reason = f"the {key} of {name} in {HEADER} and {name}/{HEADER} differ{_AGAIN}"
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
    of_tile = (
        shape if name in COORDINATES else [attributes["part"], attributes["block"], *shape[2:]]
    )
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
    values = _read_values(array, tile_of(array, part, block))
    return values if values is not None and checksum_of(values) == checksum else None


def is_too_long(chunk: Path, numbers: int) -> bool:
    """Return whether the file of a chunk, which Zarr would read whole, has more numbers."""
    try:
        size = chunk.stat().st_size
    except OSError:
        return False
    return size > 8 * numbers + _CHUNK_CHECKSUM


def _read_values(array: Any, where: tuple[slice, ...]) -> NDArray[Any] | None:
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
    header : mapping
        The attributes of the header of the store.
    """

    path: Path
    names: tuple[str, ...]
    layers: int
    header: Mapping[str, Any]

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
        facts = {"identity": self.header["identity"], "part": number}
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
                f"layer {slots.start} on{_AGAIN}",
            )
        return values

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def to_xarray(self, chunks: Any = None) -> xarray.Dataset:
        """Return the store as a dataset that reads values on access, as Dask arrays with `chunks`.

        Zarr then checks each chunk that it reads, but not whether the store still holds the run.
        """
        xr = import_extra("xarray", "xarray")
        with reported(self.path):
            self._require_run()
            dataset: xarray.Dataset = xr.open_zarr(self.path, chunks=chunks, consolidated=True)
        return dataset.isel(layer=slice(self.layers))

    def _require_run(self) -> None:
        """Raise unless the store holds the run."""
        attributes = header_of(self.path, HEADER)
        # The store may have grown since.
        same = {name: str(self.header[name]) for name in ("identity", "chains", "depth", _ARRAYS)}
        require_facts(self.path, attributes, same)
        require_layout(self.path, (*self.names, *COORDINATES), attributes)


def sums_of(arrays: Mapping[str, NDArray[Any]], names: tuple[str, ...]) -> dict[str, int] | None:
    """Return the checksums of the values of a tile by name, or None if its file lacks them."""
    sums = arrays.get(SUMS)
    if sums is None or sums.shape != (len(names),):
        return None
    return dict(zip(names, sums.tolist(), strict=True))
