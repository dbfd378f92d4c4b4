"""The recorded values of a store, read when they are asked for."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bnmc._support.extras import import_extra
from bnmc._support.machine import available_memory
from bnmc.errors import ResultTooLargeError, StoreError, StoreMismatchError
from bnmc.simulation.store.folder import reported
from bnmc.simulation.store.layout import require_layout, sound_values, tile_of
from bnmc.simulation.store.parts import file_of, header_of, part_of, without_facts

if TYPE_CHECKING:
    import xarray

#: The header of a store, and the folder of its tiles.
HEADER, INSIDE = "zarr.json", "progress/"

#: The array of a tile with the checksums of its values, in the order of the observables.
SUMS = "sums"


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
