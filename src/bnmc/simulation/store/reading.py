"""Stores that are read without the call that made them, several of them as one."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bnmc._support.arguments import Key, items
from bnmc._support.extras import import_extra
from bnmc._support.files import as_path
from bnmc._support.keywords import explains_keywords
from bnmc._support.text import loads
from bnmc.errors import ArgumentError, StoreMismatchError
from bnmc.simulation.runs import Recorded
from bnmc.simulation.store import parts, zarr_arrays
from bnmc.simulation.store.folder import read_file, reported
from bnmc.simulation.tiles import Grid

if TYPE_CHECKING:
    import xarray

#: Attributes that describe a store itself.
_OF_STORE = {"arrays", "block", "checked", "checksum", "format", "identity", "part"}

#: Attributes in which stores of one ensemble may differ, too: key, sizes and the machine.
_MAY_DIFFER = _OF_STORE | {"blas", "bnmc_version", "chains", "cpu", "depth", "key", "versions"}


@explains_keywords
def open(
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
) -> xarray.Dataset:
    """Open the store of a run, or several stores as one, without the calls that made them.

    Parameters
    ----------
    paths : path or iterable of paths
        Stores of `simulate`.  Several stores are joined along the chains.  They must come from the
        same call with other keys (``rng=``), and may have other numbers of chains and layers.

    Returns
    -------
    xarray.Dataset
        The recorded layers that all chains of all stores have finished, with the coordinates
        ``layer`` and ``chain``.  Values are read on access.  Of several stores, they are Dask
        arrays, the chains have the numbers 0, 1, …, and the coordinate ``key`` names the run of
        each chain.  Attributes are those that all stores share.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If `paths` are no paths, or two stores have one key and thus the same random numbers.
    StoreMismatchError
        If the stores hold other chains or observables; the error names a difference.
    StoreError
        If a path is no store, or a store is damaged.
    MissingExtraError
        If the extra ``xarray`` is not installed, or ``dask`` for several stores.

    Examples
    --------
    >>> import tempfile
    >>> import bnmc
    >>> chain = bnmc.Chain(100, 4, "relu")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     paths = [f"{folder}/{seed}.zarr" for seed in range(3)]
    ...     for seed, path in enumerate(paths):
    ...         run = bnmc.simulate(chain, 20, chains=8, rng=seed, store=path)
    ...     dict(bnmc.open(paths).sizes)
    {'chain': 24, 'layer': 21, 'sample_i': 4, 'sample_j': 4}
    """
    allowed, is_single = "a path, or several", isinstance(paths, (str, os.PathLike))
    places = [
        as_path("paths", each)
        for each in ([paths] if is_single else items("paths", paths, allowed))
    ]
    if not places:
        raise ArgumentError("paths", [], "at least one path")
    xr = import_extra("xarray", "xarray")
    if len(places) > 1:
        import_extra("dask.array", "dask")
    headers = [_header(path) for path in places]
    for index, header in enumerate(headers):
        for former, path in zip(headers[:index], places, strict=False):
            if header["key"] == former["key"]:
                allowed = f"stores of different keys: {path} has the same random numbers"
                raise ArgumentError("paths", str(places[index]), allowed)
        _require_same(places[index], header, headers[0])
    chunks: dict[str, int] | None = None if len(places) == 1 else {}
    datasets = [
        _dataset(path, header, chunks) for path, header in zip(places, headers, strict=True)
    ]
    if len(datasets) == 1:
        return datasets[0]
    count = min(dataset.sizes["layer"] for dataset in datasets)
    layers = np.array([dataset["layer"].to_numpy()[:count] for dataset in datasets])
    # The last layer of a run is recorded beside multiples of `every`.
    count = int((layers == layers[0]).all(axis=0).cumprod().sum())
    keys = [
        np.full(dataset.sizes["chain"], Key.of(dataset.attrs["key"]), np.uint64)
        for dataset in datasets
    ]
    joined: xarray.Dataset = xr.concat(
        [dataset.isel(layer=slice(count)) for dataset in datasets], "chain", data_vars="all",
        coords="minimal", compat="override", join="exact", combine_attrs="drop_conflicts",
    )  # fmt: skip
    numbers = np.arange(joined.sizes["chain"])
    return joined.assign_coords(chain=numbers, key=("chain", np.concatenate(keys)))


def _header(path: Path) -> dict[str, Any]:
    with reported(path):
        return parts.header_of(path, zarr_arrays.HEADER)


def _require_same(path: Path, header: Mapping[str, Any], first: Mapping[str, Any]) -> None:
    """Raise unless a store holds chains like those of the first one."""
    for name in str(first["checked"]).split():
        have, want = header.get(name), first[name]
        if name not in _MAY_DIFFER and have != want:
            raise StoreMismatchError(str(path), name, str(have), str(want))


def _dataset(path: Path, header: Mapping[str, Any], chunks: Any) -> xarray.Dataset:
    """Return the layers of a store that all of its chains have finished."""
    with reported(path):
        arrays = loads(read_file(path / zarr_arrays.HEADER))["consolidated_metadata"]["metadata"]
        names = tuple(name for name in arrays if name not in zarr_arrays.COORDINATES)
        zarr_arrays.require_layout(path, tuple(arrays), header)
        finished = _finished(path, names, header)
    dataset = zarr_arrays.StoredArrays(path, names, finished, header).to_xarray(chunks)
    dataset.attrs = {name: value for name, value in header.items() if name not in _OF_STORE}
    return dataset


def _finished(path: Path, names: tuple[str, ...], header: Mapping[str, Any]) -> int:
    """Return the number of recorded layers that all chains of a store have finished."""
    start, every = int(header["first_layer"]), int(header["every"])
    recorded = Recorded(start + int(header["burn_in"]), every, start + header["depth"])
    grid = Grid.of_slots(header["chains"], recorded, header["part"], header["block"])
    group = import_extra("zarr", "xarray").open_group(path, mode="r", zarr_format=3)

    def is_finished(part: int, block: int) -> bool:
        number, extents = f"{part}-{block}", grid.extents(part, block)
        facts = {"identity": header["identity"], "part": number, **extents}
        file = zarr_arrays.INSIDE + parts.file_of(number)
        arrays = parts.part_of(path, path, file, facts, parts.without_facts, extents)
        sums = None if arrays is None else zarr_arrays.sums_of(arrays, names)
        return sums is not None and all(
            # Zarr returns NaN in place of a missing chunk.
            zarr_arrays.chunk_of(path, group[name], part, block).is_file()
            or zarr_arrays.sound_values(path, group[name], part, block, sums[name]) is not None
            for name in names
        )

    for block in range(grid.blocks):
        if not all(is_finished(part, block) for part in range(grid.parts)):
            return grid.of_block(block).start
    return recorded.count
