"""Runs in a Zarr store: if a run is interrupted at any instant, it can be resumed.

A store is a folder of parts that is a group of Zarr format 3, with one array per observable, of
axes chain, layer, …, and the array ``layer``.  Its header is the metadata of the group.  A part is
a tile: its values are chunks of the arrays, and its file, in the folder ``progress``, has their
checksums and the states of the chains.  The file is written after the values.  When the store is
opened, the values are compared with their checksums, and missing or damaged tiles are made again.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnmc._kernels.processor import host_cpu
from bnmc._support.arguments import Key
from bnmc._support.environment import environment
from bnmc._support.extras import import_extra
from bnmc._support.files import as_path
from bnmc._support.text import loads
from bnmc._support.version import versions
from bnmc.chain.chain import Network, Residual, shown_of
from bnmc.errors import ArgumentError, StoreError, StoreMismatchError
from bnmc.simulation.engine.state import State
from bnmc.simulation.runs import Run
from bnmc.simulation.state_check import problem_of
from bnmc.simulation.store import parts, zarr_arrays
from bnmc.simulation.store.folder import read_file
from bnmc.simulation.store.zarr_arrays import HEADER, INSIDE, SUMS
from bnmc.simulation.tiles import Grid, Origin, Tile

#: The states of all tiles are kept if they take less than this part of the bytes of the values.
_SHARE_OF_STATES = 0.25

#: What the names of arrays of a state begin with in the file of a tile.
_STATE = "state_"


#: Facts about a run that its `Trajectory.attributes` contain.
_FROM_ATTRIBUTES = ("chain", "sampler", "dtype", "backend", "inputs", "key")


def as_store_path(store: object) -> Path:
    """Return an argument `store` as a path, or raise."""
    path = as_path("store", store)
    exists = os.path.lexists(path)
    if path.suffix.lower() != ".zarr":
        raise ArgumentError("store", str(path), "a path that ends with .zarr")
    if not path.parent.is_dir():
        raise ArgumentError("store", str(path), "a path in an existing folder")
    # The lock second: another process may make it now.
    if exists and not (_is_empty(path) or (path / INSIDE / "lock").is_file()):
        raise ArgumentError("store", str(path), "a path that is free, or a store that a run made")
    if not os.access(path if exists else path.parent, os.W_OK):
        raise ArgumentError("store", str(path), "a path that you may write to")
    return path


def _is_empty(path: Path) -> bool:
    """Whether a folder has no more than that of a lock, as if its writer died before the lock."""
    try:
        return {*path.iterdir()} <= {path / INSIDE} and not any(path.glob("*/*"))
    except FileNotFoundError:  # another process removes the folder, or that of its lock, now
        return True
    except OSError:  # no folder, or one that cannot be read
        return False


def stored_key(path: Path) -> Key | None:
    """Return the key of the run in a store, or None if there is no store.

    Raises
    ------
    StoreError
        If the attributes of the store are damaged, or it has another format.
    """
    return Key.of(parts.header_of(path, HEADER)["key"]) if (path / HEADER).exists() else None


class RunStore(parts.PartStore):
    """The store of one run, open for writing by this process alone.

    Parameters
    ----------
    path : Path
        As `as_store_path` returns it.
    run : Run
    start : Covariance, Representation or State
    grid : Grid
        The division of the run.  An existing store keeps the sizes of its tiles.
    attributes : mapping
        How to repeat the run, `Trajectory.attributes`.

    Attributes
    ----------
    grid : Grid
        The division of the run.

    Raises
    ------
    StoreMismatchError
        If the store holds another run, or one of more chains or layers, or has a tile of another.
    StoreInUseError
        If another run is writing the store.
    StoreLockError
        If the file system has no locks.
    StoreReplacedError
        If the store is removed or replaced meanwhile.
    StoreError
        If the store cannot be read or written.
    ArgumentTypeError
        If a function of the run cannot be compared with that of another process.

    Notes
    -----
    A process that is killed loses the tiles in work, as the system has all others.  The disk
    writes a tile (``fsync``) while the next one is made, and has all tiles before the run returns.
    So a power failure costs the tiles in work and two more.  The file of a tile may be on the disk
    without its values: the checksums then show the loss, and the tile is made again.

    A store of fewer chains or layers grows.  The header says so in one step; the metadata and the
    coordinates of the arrays follow from it, and are made again wherever they differ.  Tiles that
    the former end cut short are made again.
    """

    header, inside, what = HEADER, INSIDE, "an earlier run"

    def __init__(
        self, path: Path, run: Run, start: Origin, grid: Grid, attributes: Mapping[str, Any]
    ) -> None:
        self.run, self.grid = run, grid
        self._zarr = import_extra("zarr", "xarray")
        self._observed = tuple(run.shapes)
        #: The checksums of the values of each finished tile, and the tiles of this process.
        self._sums: dict[tuple[int, int], dict[str, int]] = {}
        self._written: set[tuple[int, int]] = set()
        # The depth is a size.
        attributes = {**attributes, "chain": _beginning(run.network)}
        settings = {**attributes, "part": grid.part, "block": grid.block}
        super().__init__(
            path,
            _run_facts(run, start, attributes),
            settings,
            {"chains": run.chains, "depth": run.depth},
        )

    def _document(self, document: dict[str, Any]) -> dict[str, Any]:
        return zarr_arrays.with_arrays(document, self.run, self._grid_of(document["attributes"]))

    def _grid_of(self, attributes: Mapping[str, Any]) -> Grid:
        """Return the division of this run into tiles of the size of those of the store."""
        part, block, grid = attributes["part"], attributes["block"], self.grid
        if not (1 <= part <= grid.chains and 1 <= block <= grid.recorded.count):
            raise StoreError(str(self.path), "its attributes part and block are damaged")
        return Grid.of_slots(grid.chains, grid.recorded, part, block)

    def _check(self) -> None:
        """Check the header and the tiles of the store, and make what is damaged free."""
        super()._check()
        self.grid = self._grid_of(self.stored)
        self._check_arrays()
        self._keep_all = self._states_are_small()
        files = {entry.name for entry in (self.folder.place / INSIDE).iterdir()}
        for part in range(self.grid.parts):
            for block in range(self.grid.blocks):
                if f"part-{part}-{block}.npz" in files:
                    self._look_at(part, block)

    def _check_arrays(self) -> None:
        """Require the arrays of this run in the header; make their metadata where they differ."""
        place, metadata = self.folder.place, zarr_arrays.metadata_of(self.run, self.grid)
        document = loads(read_file(place / HEADER))
        if document.get("consolidated_metadata", {}).get("metadata") != metadata:
            raise StoreError(str(self.path), f"the metadata in {HEADER} are not those of this run")
        changed = []
        with self.writing():
            for name, content in zarr_arrays.files_of(metadata).items():
                if not zarr_arrays.has_content(place / name, content):
                    (place / name).parent.mkdir(exist_ok=True)
                    changed.append(self.replace(name, content))
            self._group = self._zarr.open_group(place, mode="r+", zarr_format=3)
            for name, values in zarr_arrays.coordinates_of(self.grid).items():
                chunk = place / name / "c" / "0"
                changed += zarr_arrays.mended(self._group[name], chunk, values)
            self.sync(changed)

    def extents_of(self, part: int | str) -> dict[str, str]:
        """Return the first and the last chain and layer of a tile."""
        return self.grid.extents(*map(int, str(part).split("-")))

    def first_missing(self, part: int, block: int) -> int | None:
        """Return the first missing block of a part, from `block` on, or None."""
        blocks = range(block, self.grid.blocks)
        return next((at for at in blocks if (part, at) not in self._sums), None)

    def state(self, part: int, block: int) -> State | None:
        """Return the state at the end of a tile if it is kept and sound, else None."""
        arrays = self._arrays_of(part, block) if (part, block) in self._sums else {}
        arrays = {
            name.removeprefix(_STATE): array
            for name, array in arrays.items()
            if name.startswith(_STATE)
        }
        state = self.run.state(self.grid.end(block), arrays)
        chains = self.grid.of_part(part)
        counts = {len(array) for array in arrays.values() if array.ndim}
        if counts != {chains.stop - chains.start} or problem_of(state, self.run.layout) is not None:
            return None
        return state

    def put(self, part: int, block: int, tile: Tile) -> None:
        """Write a tile; values that the store has already are kept."""
        for name, have, want in (
            ("cpu", tile.cpu, host_cpu()), ("versions", tile.versions, versions())
        ):  # fmt: skip
            if have != want:
                raise StoreMismatchError(str(self.path), name, want, have)
        sums = {name: zarr_arrays.checksum_of(values) for name, values in tile.values.items()}
        files = []
        with self.writing():
            if (part, block) not in self._sums:
                for name, values in tile.values.items():
                    array = self._group[name]
                    array[zarr_arrays.tile_of(array, part, block)] = values
                    files.append(zarr_arrays.chunk_of(self.folder.place, array, part, block))
        self._enter(part, block, sums, tile.arrays, files)
        self._written.add((part, block))
        if not self._keep_all and (part, block - 2) in self._sums:
            self._enter(part, block - 2, self._sums[part, block - 2])

    def _enter(
        self,
        part: int,
        block: int,
        sums: dict[str, int],
        state: Mapping[str, NDArray[Any]] | None = None,
        files: Iterable[Path] = (),
    ) -> None:
        """Write the file of a tile, after its chunks."""
        number = f"{part}-{block}"
        arrays = {_STATE + name: array for name, array in (state or {}).items()}
        arrays[SUMS] = np.array([sums[name] for name in self._observed])
        self.write(number, parts.with_facts(arrays, self.facts_of(number)), files)
        self._sums[part, block] = sums

    def check(self, *, complete: bool) -> None:
        """Check, before the run is returned, that the store is what this process wrote.

        Parameters
        ----------
        complete : bool
            Whether to read all tiles that this process wrote, and compare their checksums.

        Raises
        ------
        StoreError
            If it is not.
        """
        self.finish()
        with self.writing():
            super()._check()
            self._check_arrays()
            for part, block in sorted(self._written) if complete else ():
                if not self._is_sound(part, block):
                    reason = (
                        f"chains {self.grid.of_part(part)} of block {block} changed after they "
                        "were written; the same call makes them again"
                    )
                    raise StoreError(str(self.path), reason)

    def arrays(self, slots: int) -> zarr_arrays.StoredArrays:
        """Return the values of so many recorded layers, which are read on access."""
        return zarr_arrays.StoredArrays(self.path, self._observed, slots, self.stored)

    def _states_are_small(self) -> bool:
        numbers = sum(math.prod(shape) for shape in self.run.shapes.values())
        return self.run.bytes_of_chain <= _SHARE_OF_STATES * 8 * numbers * self.grid.block

    def _arrays_of(self, part: int, block: int) -> dict[str, NDArray[Any]]:
        """Return the arrays in the file of a tile, or none if it is damaged."""
        return self.content(f"{part}-{block}", parts.without_facts) or {}

    def _look_at(self, part: int, block: int) -> None:
        """Note the checksums of a tile, unless its values or its file are damaged."""
        sums = zarr_arrays.sums_of(self._arrays_of(part, block), self._observed)
        if sums is None:
            return
        self._sums[part, block] = sums
        # The last tile needs its state: without it the tile is made again.
        lost = block == self.grid.blocks - 1 and self.state(part, block) is None
        if lost or not self._is_sound(part, block):
            del self._sums[part, block]

    def _is_sound(self, part: int, block: int) -> bool:
        place, sums = self.folder.place, self._sums[part, block]
        return all(
            zarr_arrays.sound_values(place, self._group[name], part, block, sums[name]) is not None
            for name in self._observed
        )


def _beginning(network: Network) -> str:
    """Return the text of a network without the number of layers of its last chain."""
    last = network.stages[-1]
    if network.is_repeated or isinstance(last, Residual):
        return repr(shown_of(network))
    return f"Network({', '.join(map(repr, network.stages[:-1]))}, ({last[0]!r}, …))"


def _run_facts(run: Run, start: Origin, attributes: Mapping[str, Any]) -> dict[str, str]:
    """Return everything that determines the values of a run but its sizes, each by its name.

    Functions and arrays enter by digests.

    Parameters
    ----------
    run : Run
    start : Covariance, Representation or State
    attributes : mapping
        `Trajectory.attributes` of the run.

    Raises
    ------
    ArgumentTypeError
        If a function of the user refers to something that other processes cannot compare.
    """
    facts = {name: str(attributes[name]) for name in _FROM_ATTRIBUTES}
    return facts | parts.network_facts(run.network) | {
        "start": parts.start_digest(start, run.chains),
        "first_layer": str(run.start_layer),
        "burn_in": str(run.recorded.first - run.start_layer),
        "every": str(run.recorded.every),
        "observables": ", ".join(
            f"{each.name} ({parts.argument_digest('observables', each, each.content)[:32]})"
            for each in run.observables
        ),
        **environment(blas=run.uses_blas),
    }  # fmt: skip
