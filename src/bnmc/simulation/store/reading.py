"""The recorded values of a store, read when they are asked for."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bnmc._support.extras import import_extra
from bnmc._support.machine import available_memory
from bnmc.errors import ResultTooLargeError, StoreError, StoreMismatchError
from bnmc.simulation.store.folder import read_file, reported
from bnmc.simulation.store.journal import Entries, entries_of
from bnmc.simulation.store.layout import Facts, facts_of, is_too_long

if TYPE_CHECKING:
    import xarray


@dataclass(frozen=True)
class StoredArrays(Mapping[str, NDArray[np.float64]]):
    """The recorded values of a stored run, each read on access.

    On each access the store must still hold the run, and values must have the checksums of the
    journal.

    Attributes
    ----------
    path : Path
    names : tuple of str
    layers : int
        Number of layers that all chains have recorded.
    identity : str
        Digest of the identity of the run.
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
            facts = self._checked_facts()
            group = import_extra("zarr", "xarray").open_group(self.path, mode="r", zarr_format=3)
            array = group[name]
            size = 8 * int(np.prod((array.shape[0], self.layers, *array.shape[2:])))
            if size > (available := available_memory()):
                hint = "read parts of it through run.to_xarray()"
                raise ResultTooLargeError(name, size, available, hint)
            journal = read_file(self.path / "progress" / "journal")
            entries, _ = entries_of(journal, facts.run, str(self.path))
            return self._sound_values(name, array, facts.cut, entries)

    def _sound_values(
        self, name: str, array: Any, cut: tuple[int, int], entries: Entries
    ) -> NDArray[np.float64]:
        """Return the values of all tiles, or raise if one is missing or damaged."""
        chains = array.shape[0]
        parts, blocks = -(-chains // cut[0]), -(-self.layers // cut[1])
        values = np.empty((chains, self.layers, *array.shape[2:]))
        for number in itertools.product(range(parts), range(blocks)):
            where = tuple(
                slice(at * of_tile, min((at + 1) * of_tile, count))
                for at, of_tile, count in zip(number, cut, values.shape, strict=False)
            )
            if number not in entries:
                raise self._damaged(name, chains, cut, number)
            tile = values_of_tile(self.path, array, name, number, where, entries[number])
            if tile is None:
                raise self._damaged(name, chains, cut, number)
            values[where] = tile
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
            self._checked_facts()
            dataset: xarray.Dataset = xr.open_zarr(self.path, chunks=None, consolidated=True)
        return dataset.isel(layer=slice(self.layers))

    def _checked_facts(self) -> Facts:
        """Return the attributes of the store, or raise unless it holds the run."""
        facts = facts_of(self.path, self.path)
        facts.require_sound()
        if facts.identity != self.identity:
            raise StoreMismatchError(str(self.path), "identity", facts.identity, self.identity)
        facts.require_layout(self.path, (*self.names, "layer"))
        return facts

    def _damaged(
        self, name: str, chains: int, cut: tuple[int, int], number: tuple[int, int]
    ) -> StoreError:
        first = number[0] * cut[0]
        last = min(first + cut[0], chains) - 1
        reason = (
            f"{name} of chains {first} to {last} is damaged from recorded layer "
            f"{number[1] * cut[1]} on; the same call of simulate makes it again"
        )
        return StoreError(str(self.path), reason)


def values_of_tile(
    place: Path,
    array: Any,
    name: str,
    number: tuple[int, int],
    where: tuple[slice, ...],
    entry: Mapping[str, Any],
) -> NDArray[np.float64] | None:
    """Return the values of a tile, or None unless they have the checksum of the journal.

    Parameters
    ----------
    place : Path
        Where the files of the store are.
    array : zarr.Array
        All values of the observable.
    name : str
        The observable.
    number : (int, int)
        Part and block.
    where : tuple of slice
        Chains and slots.
    entry : mapping
        The line of the journal.
    """
    if is_too_long(place, name, *number, array.chunks):
        return None
    values = read_values(array, where)
    return values if values is not None and checksum(values) == entry["sums"].get(name) else None


def read_values(array: Any, where: tuple[slice, ...]) -> NDArray[Any] | None:
    """Return a region of a Zarr array, or None if its bytes are damaged.

    Errors for lack of memory or of open files are raised, as the tile is sound then.
    """
    try:
        values: NDArray[Any] = array[where]
    except ValueError:
        return None
    return values


def checksum(values: NDArray[np.float64]) -> int:
    """Return the checksum of the values of a tile."""
    return zlib.crc32(np.ascontiguousarray(values).data)
