"""The recorded values of a store, read when they are asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from bnmc._support.extras import import_extra
from bnmc._support.machine import available_memory
from bnmc.errors import ResultTooLargeError
from bnmc.simulation.store.store import reported

if TYPE_CHECKING:
    import xarray

__all__ = ["StoredArrays"]


@dataclass(frozen=True)
class StoredArrays(Mapping[str, NDArray[np.float64]]):
    """The recorded values of a stored run, each read on access.

    Attributes
    ----------
    path : Path
    names : tuple of str
    layers : int
        Number of layers that all chains have recorded.
    """

    path: Path
    names: tuple[str, ...]
    layers: int

    def __getitem__(self, name: str) -> NDArray[np.float64]:
        if name not in self.names:
            raise KeyError(name)
        with reported(self.path):
            group = import_extra("zarr", "xarray").open_group(self.path, mode="r", zarr_format=3)
            array = group[name]
            size = 8 * int(np.prod((array.shape[0], self.layers, *array.shape[2:])))
            if size > (available := available_memory()):
                hint = "read parts of it through run.to_xarray()"
                raise ResultTooLargeError(name, size, available, hint)
            values: NDArray[np.float64] = array[:, : self.layers]
            return values

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def to_xarray(self) -> xarray.Dataset:
        """Return the store as a dataset that reads values on access."""
        xr = import_extra("xarray", "xarray")
        dataset: xarray.Dataset = xr.open_zarr(self.path, chunks=None, consolidated=True)
        return dataset.isel(layer=slice(self.layers))
