"""Runs in a Zarr store: if a run is interrupted at any instant, it can be resumed.

A store is a directory: a group of Zarr format 3 with one array per observable, of axes chain,
layer, …, and the array ``layer``.  Its folder ``progress`` serves resumption.  It holds a journal,
with one line for each finished tile and the checksums of its data, and the states of chains.  A
tile enters the journal after its data are written.  When the store is opened, the data are compared
with their checksums, and missing or damaged tiles are made again.
"""

from __future__ import annotations

import math
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bnmc._kernels.processor import host_cpu
from bnmc._support.archives import Damaged, packed, unpacked
from bnmc._support.extras import import_extra
from bnmc._support.version import versions
from bnmc.errors import ArgumentError, ArgumentTypeError, StoreError, StoreMismatchError
from bnmc.simulation.engine.state import State
from bnmc.simulation.identity import digest_of_facts, run_facts
from bnmc.simulation.runs import Run
from bnmc.simulation.state_check import problem_of
from bnmc.simulation.store.folder import read_file, remove_abandoned, reported
from bnmc.simulation.store.journal import Journal
from bnmc.simulation.store.layout import Facts, chunk_of, create, facts_of
from bnmc.simulation.store.parts import Guarded
from bnmc.simulation.store.reading import StoredArrays, checksum, read_values, values_of_tile
from bnmc.simulation.tiles import Grid, Origin, Tile

#: The states of all tiles are kept if they take less than this part of the bytes of the values.
SHARE_OF_STATES = 0.25


def as_store_path(store: object) -> Path:
    """Return an argument `store` as a path, or raise."""
    if not isinstance(store, (str, os.PathLike)):
        raise ArgumentTypeError("store", store, "a path that ends with .zarr")
    text = os.fspath(store)
    if not isinstance(text, str) or "\0" in text:
        raise ArgumentTypeError("store", store, "a path of characters that ends with .zarr")
    path = Path(text)
    exists = os.path.lexists(path)
    if path.suffix.lower() != ".zarr":
        raise ArgumentError("store", str(path), "a path that ends with .zarr")
    if not path.parent.is_dir():
        raise ArgumentError("store", str(path), "a path in an existing folder")
    if exists and not (path / "progress" / "journal").is_file():
        raise ArgumentError("store", str(path), "a path that is free, or a store that a run made")
    if not os.access(path if exists else path.parent, os.W_OK):
        raise ArgumentError("store", str(path), "a path that you may write to")
    return path


def stored_key(path: Path) -> int | None:
    """Return the key of the run in a store, or None if there is no store.

    Raises
    ------
    StoreError
        If the attributes of the store are damaged.
    """
    if not os.path.lexists(path):
        return None
    facts = facts_of(path, path)
    facts.require_sound()
    return int(facts.attributes["key"])


class RunStore(Guarded):
    """The store of one run, open for writing by this process alone.

    Parameters
    ----------
    path : Path
        As `as_store_path` returns it.
    run : Run
    start : Covariance, Representation or State
    grid : Grid
        The division of the run.  An existing store keeps its own.
    attributes : mapping
        How to repeat the run, `Trajectory.attributes`.

    Attributes
    ----------
    grid : Grid
        The division of the run.

    Raises
    ------
    StoreMismatchError
        If the store holds another run, or has the journal of another run.
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
    So a power failure costs the tiles in work and two more.  The line of a tile may be on the disk
    without its data: the checksums then show the loss, and the tile is made again.
    """

    def __init__(
        self,
        path: Path,
        run: Run,
        start: Origin,
        grid: Grid,
        attributes: Mapping[str, Any],
    ) -> None:
        self.run = run
        self._zarr = import_extra("zarr", "xarray")
        self._facts = run_facts(run, start, attributes)
        #: Tiles that this process wrote.
        self._written: set[tuple[int, int]] = set()
        with reported(path):
            remove_abandoned(path)
            if not os.path.lexists(path):
                create(path, run, grid, attributes, self._facts)
        super().__init__(path, "progress/lock")
        try:
            with reported(path):
                self._begin(grid)
        except BaseException:
            self.opened.close()
            raise

    def _begin(self, grid: Grid) -> None:
        """Check the metadata and the tiles of the store, and make what is damaged free."""
        facts = self._checked_facts()
        self.grid = self._stored_grid(grid, facts)
        self._group = self._zarr.open_group(self.folder.place, mode="r+", zarr_format=3)
        self._require_shapes()
        self._tiles = Journal(self.folder, "progress/journal", facts.run)
        self.opened.callback(self._tiles.close)
        self._keep_all = self._states_are_small()
        self._drop_damaged()
        self._mend_layers()

    def first_missing(self, part: int, block: int) -> int | None:
        """Return the first missing block of a part, from `block` on, or None."""
        for at in range(block, self.grid.blocks):
            if (part, at) not in self._tiles.entries:
                return at
        return None

    def state(self, part: int, block: int) -> State | None:
        """Return the state at the end of a tile if it is kept and sound, else None."""
        entry = self._tiles.entries.get((part, block))
        if entry is None:
            return None
        try:
            content = read_file(self.folder.place / _state_file(part, block))
            if zlib.crc32(content) != entry["state"]:
                return None
            state = self.run.state(self.grid.end(block), unpacked(content))
        except (OSError, Damaged):
            return None
        chains = self.grid.of_part(part)
        counts = {len(array) for array in state.arrays.values() if array.ndim}
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
        content = packed(tile.arrays)
        entry = {
            "part": part, "block": block, "state": zlib.crc32(content),
            "sums": {name: checksum(values) for name, values in tile.values.items()},
        }  # fmt: skip
        with self.writing():
            files = []
            if (part, block) not in self._tiles.entries:
                where = self.grid.of_part(part), self.grid.of_block(block)
                for name, values in tile.values.items():
                    self._group[name][where] = values
                    files.append(chunk_of(self.folder.place, name, part, block, values.ndim))
            files.append(self.replace(_state_file(part, block), content))
            self._lock.require()
            self._tiles.append(entry)
            self._written.add((part, block))
            self.sync([*files, self.folder.place / "progress" / "journal"])
            if not self._keep_all:
                (self.folder.place / _state_file(part, block - 2)).unlink(missing_ok=True)

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
            self._checked_facts()
            for part, block in sorted(self._written) if complete else ():
                if not self._is_sound(part, block):
                    reason = (
                        f"chains {self.grid.of_part(part)} of block {block} changed after they "
                        "were written; the same call makes them again"
                    )
                    raise StoreError(str(self.path), reason)

    def arrays(self, slots: int) -> StoredArrays:
        """Return the values of so many recorded layers, which are read on access."""
        return StoredArrays(self.path, tuple(self.run.shapes), slots, digest_of_facts(self._facts))

    def _checked_facts(self) -> Facts:
        """Return the attributes of the store, or raise unless it holds this run."""
        facts = facts_of(self.folder.place, self.path)
        facts.require(self._facts)
        facts.require_sound()
        facts.require_layout(self.folder.place, (*self.run.shapes, "layer"))
        return facts

    def _require_shapes(self) -> None:
        """Raise `StoreError` unless the arrays have the shapes of the run."""
        whole = self.grid.chains, self.grid.recorded.count
        for name, shape in self.run.shapes.items():
            array = self._group[name]
            if array.shape != (*whole, *shape) or array.dtype != np.float64:
                found = f"{name} has {array.dtype} of shape {array.shape}"
                raise StoreError(str(self.path), f"{found}, not float64 of {(*whole, *shape)}")

    def _stored_grid(self, grid: Grid, facts: Facts) -> Grid:
        """Return the division of the stored run."""
        part, block = facts.cut
        if not (1 <= part <= grid.chains and 1 <= block <= grid.recorded.count):
            raise StoreError(str(self.path), "its attributes part and block are damaged")
        return Grid.of_slots(grid.chains, grid.recorded, part, block)

    def _states_are_small(self) -> bool:
        run = self.run
        numbers = sum(math.prod(shape) for shape in run.shapes.values())
        return run.bytes_of_chain <= SHARE_OF_STATES * 8 * numbers * self.grid.block

    def _drop_damaged(self) -> None:
        """Forget the tiles whose data differ from their checksums."""
        grid = self.grid
        for part, block in list(self._tiles.entries):
            inside = part < grid.parts and block < grid.blocks
            # The last tile needs its state: without it the tile is made again.
            is_last = block == grid.blocks - 1
            lost = is_last and self.state(part, block) is None
            if not inside or lost or not self._is_sound(part, block):
                del self._tiles.entries[part, block]

    def _mend_layers(self) -> None:
        """Write the coordinate ``layer`` again if it is damaged."""
        layers = self.grid.recorded.layers(0, self.grid.recorded.count)
        array = self._group["layer"]
        chunk = self.folder.place / "layer" / "c" / "0"
        too_long = chunk.is_file() and chunk.stat().st_size > layers.nbytes
        stored = None if too_long else read_values(array, (slice(None),))
        if stored is None or not np.array_equal(stored, layers):
            array[:] = layers

    def _is_sound(self, part: int, block: int) -> bool:
        entry, where = self._tiles.entries[part, block], (part, block)
        cut = self.grid.of_part(part), self.grid.of_block(block)
        return all(
            values_of_tile(self.folder.place, self._group[name], name, where, cut, entry)
            is not None
            for name in self.run.shapes
        )


def _state_file(part: int, block: int) -> str:
    return f"progress/state-{part}-{block}.npz"
