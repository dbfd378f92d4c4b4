"""The recorded values of a store, read when they are asked for."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from bnmc._support.extras import import_extra
from bnmc._support.machine import available_memory
from bnmc.errors import ResultTooLargeError, StoreError, StoreMismatchError
from bnmc.simulation.store.folder import read_file
from bnmc.simulation.store.journal import Entries, entries_of
from bnmc.simulation.store.layout import Facts, facts_of, is_too_long, reported
from bnmc.simulation.tiles import Grid

if TYPE_CHECKING:
    import xarray

__all__ = ["StoredArrays", "checksum", "region"]


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
            self._require_tiles(name, facts, entries, array.shape[0], array.chunks)
            values: NDArray[np.float64] = array[:, : self.layers]
            self._require_sums(name, values, facts, entries)
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

    def _require_tiles(
        self, name: str, facts: Facts, entries: Entries, chains: int, chunk: tuple[int, ...]
    ) -> None:
        """Raise unless all tiles are finished, and their files as long as a chunk at most.

        The shapes of damaged metadata may be huge, so the first tile that is missing ends this.
        """
        part, block = facts.cut
        for at in range(-(-chains // part)):
            for slot in range(-(-self.layers // block)):
                if (at, slot) not in entries:
                    raise self._damaged(
                        name, at * part, min(part, chains - at * part), slot * block
                    )
                if is_too_long(self.path, name, at, slot, chunk):
                    reason = f"the file of chains {at * part} of {name} is longer than its values"
                    raise StoreError(str(self.path), reason)

    def _require_sums(
        self, name: str, values: NDArray[np.float64], facts: Facts, entries: Entries
    ) -> None:
        """Raise unless values of an observable have the checksums of the journal."""
        part, block = facts.cut
        for first in range(0, values.shape[0], part):
            for slot in range(0, self.layers, block):
                tile = values[first : first + part, slot : slot + block]
                if checksum(tile) != entries[first // part, slot // block]["sums"].get(name):
                    raise self._damaged(name, first, len(tile), slot)

    def _damaged(self, name: str, first: int, count: int, slot: int) -> StoreError:
        reason = (
            f"{name} of chains {first} to {first + count - 1} is damaged from recorded layer "
            f"{slot} on; the same call of simulate makes it again"
        )
        return StoreError(str(self.path), reason)


def region(grid: Grid, part: int, block: int) -> tuple[slice, slice]:
    """Return the chains and the slots of a tile."""
    return grid.of_part(part), grid.of_block(block)


def checksum(values: NDArray[np.float64]) -> int:
    """Return the checksum of the values of a tile."""
    return zlib.crc32(np.ascontiguousarray(values).data)
