"""Runs in a Zarr store: if a run is interrupted at any instant, it can be resumed.

A store is a directory: a group of Zarr format 3 with one array per observable, of axes chain,
layer, …, and the array ``layer``.  Its folder ``progress`` serves resumption.  It holds a journal,
with one line for each finished tile and the checksums of its data, and the states of chains.  A
tile enters the journal after its data are written.  When the store is opened, the data are compared
with their checksums, and missing or damaged tiles are made again.
"""

from __future__ import annotations

import contextlib
import io
import os
import struct
import zipfile
import zlib
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnmc._kernels.processor import host_cpu
from bnmc._support.extras import import_extra
from bnmc._support.files import read_npy
from bnmc._support.version import versions
from bnmc.errors import ArgumentError, ArgumentTypeError, StoreError, StoreMismatchError
from bnmc.simulation.engine.state import State
from bnmc.simulation.identity import identity_of
from bnmc.simulation.job import Job
from bnmc.simulation.state_check import layout_of, problem_of
from bnmc.simulation.store.building import remove_abandoned
from bnmc.simulation.store.folder import Folder, read_file
from bnmc.simulation.store.journal import Journal
from bnmc.simulation.store.layout import Facts, chunk_of, create, facts_of, is_too_long, reported
from bnmc.simulation.store.lock import Lock
from bnmc.simulation.store.reading import StoredArrays, checksum, region
from bnmc.simulation.tiles import Grid, Origin, Tile

__all__ = ["RunStore", "as_store_path", "stored_key"]

#: The states of all tiles are kept if they take less than this part of the bytes of the values.
SHARE_OF_STATES = 0.25

#: Errors of the readers of archives and arrays.
_DAMAGE = (
    ArithmeticError, EOFError, LookupError, OSError, RuntimeError, TypeError, ValueError,
    struct.error, zlib.error, zipfile.BadZipFile,
)  # fmt: skip


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


class RunStore:
    """The store of one run, open for writing by this process alone.

    Parameters
    ----------
    path : Path
        As `as_store_path` returns it.
    job : Job
    start : Covariance, Representation or State
    grid : Grid
        The division of the run.  An existing store keeps its own.
    attributes : mapping
        How to repeat the run, `Trajectory.attributes`.
    dims : mapping
        Names of the axes of each observable, with "chain" and "layer".

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
    Before each write, and before results are returned, the store checks that its path still leads
    to the folder that it opened, and that this process holds the lock of that folder.

    A process that is killed loses the tiles in work, as the system has all others.  The disk
    writes a tile (``fsync``) while the next one is made, and has all tiles before the run returns.
    So a power failure costs the tiles in work and two more.  The line of a tile may be on the disk
    without its data: the checksums then show the loss, and the tile is made again.
    """

    def __init__(
        self,
        path: Path,
        job: Job,
        start: Origin,
        grid: Grid,
        attributes: Mapping[str, Any],
        dims: Mapping[str, tuple[str, ...]],
    ) -> None:
        self.path = path
        self.job = job
        zarr = import_extra("zarr", "xarray")
        self._identity = identity_of(job, start, attributes)
        #: Tiles that this process wrote.
        self._written: set[tuple[int, int]] = set()
        #: Tiles that the disk is writing.
        self._on_the_way: deque[Future[None]] = deque()
        with reported(path):
            remove_abandoned(path)
            if not os.path.lexists(path):
                create(path, job, grid, attributes, self._identity, dims)
            with contextlib.ExitStack() as stack:
                self._folder = Folder(path)
                place = self._folder.place
                self._progress = place / "progress"
                self._lock = Lock(self._folder, "progress/lock")
                stack.callback(self._lock.release)
                self._lock.require()
                self._folder.require_plain()
                facts = self._checked_facts()
                self.grid = self._stored_grid(grid, facts)
                self._group = zarr.open_group(place, mode="r+", zarr_format=3)
                self._require_shapes()
                self._tiles = Journal(self._folder, "progress/journal", facts.run)
                stack.callback(self._tiles.close)
                self._disk = ThreadPoolExecutor(1, thread_name_prefix="bnmc-disk")
                stack.callback(self._disk.shutdown)
                self._layout = layout_of(job.chain, job.path, job.inputs, job.dtype)
                self._keep_all = self._states_are_small()
                self._drop_damaged()
                self._mend_layers()
                #: Closes open files, at the end or if opening fails.
                self._open = stack.pop_all()

    def __enter__(self) -> RunStore:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    @property
    def is_complete(self) -> bool:
        """Whether the store has all tiles."""
        return all(self.first_missing(part, 0) is None for part in range(self.grid.parts))

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
            content = read_file(self._state_path(part, block))
            if zlib.crc32(content) != entry["state"]:
                return None
            state = self.job.state(self.grid.end(block), _unpacked(content))
        except _DAMAGE:
            return None
        chains = self.grid.of_part(part)
        counts = {len(array) for array in state.arrays.values() if array.ndim}
        if counts != {chains.stop - chains.start} or problem_of(state, self._layout) is not None:
            return None
        return state

    def put(self, part: int, block: int, tile: Tile) -> None:
        """Write a tile; values that the store has already are kept."""
        for name, have, want in (
            ("cpu", tile.cpu, host_cpu()), ("versions", tile.versions, versions())
        ):  # fmt: skip
            if have != want:
                raise StoreMismatchError(str(self.path), name, want, have)
        content = _packed(tile.arrays)
        entry = {
            "part": part, "block": block, "state": zlib.crc32(content),
            "sums": {name: checksum(values) for name, values in tile.values.items()},
        }  # fmt: skip
        with self._writing():
            files = self._write(part, block, tile, content)
            self._lock.require()
            self._tiles.append(entry)
            self._written.add((part, block))
            files.append(self._progress / "journal")
            self._on_the_way.append(self._disk.submit(self._folder.sync, files))
            self._wait_for_disk(1)
            if not self._keep_all:
                self._state_path(part, block - 2).unlink(missing_ok=True)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Check before and after a write that this process may write; report errors."""
        with reported(self.path):
            self._lock.require()
            try:
                yield
            except OSError:
                self._lock.require()  # to write fails in a folder that was removed
                raise
            self._lock.require()

    def _wait_for_disk(self, left: int) -> None:
        """Wait until at most so many tiles are not yet on the disk."""
        while len(self._on_the_way) > left:
            self._on_the_way.popleft().result()

    def _write(self, part: int, block: int, tile: Tile, state: bytes) -> list[Path]:
        """Write values and state of a tile; return their files."""
        files = []
        if (part, block) not in self._tiles.entries:
            where = region(self.grid, part, block)
            for name, values in tile.values.items():
                self._group[name][where] = values
                files.append(chunk_of(self._folder.place, name, part, block, values.ndim))
        path = self._state_path(part, block)
        path.with_suffix(".partial").write_bytes(state)
        path.with_suffix(".partial").replace(path)
        return [*files, path]

    def finish(self, *, complete: bool) -> None:
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
        with self._writing():
            self._wait_for_disk(0)
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
        return StoredArrays(self.path, tuple(self.job.shapes), slots, self._identity.digest)

    def _checked_facts(self) -> Facts:
        """Return the attributes of the store, or raise unless it holds this run."""
        facts = facts_of(self._folder.place, self.path)
        facts.require(self._identity)
        facts.require_sound()
        facts.require_layout(self._folder.place, (*self.job.shapes, "layer"))
        return facts

    def _require_shapes(self) -> None:
        """Raise `StoreError` unless the arrays have the shapes of the run."""
        whole = self.grid.chains, self.grid.recorded.count
        for name, shape in self.job.shapes.items():
            array = self._group[name]
            if array.shape != (*whole, *shape) or array.dtype != np.float64:
                found = f"{name} has {array.dtype} of shape {array.shape}"
                raise StoreError(str(self.path), f"{found}, not float64 of {(*whole, *shape)}")

    def _stored_grid(self, grid: Grid, facts: Facts) -> Grid:
        """Return the division of the stored run."""
        part, block = facts.cut
        if not (1 <= part <= grid.chains and 1 <= block <= grid.recorded.count):
            raise StoreError(str(self.path), "its attributes part and block are damaged")
        return replace(grid, part=part, block=block)

    def _states_are_small(self) -> bool:
        job = self.job
        each = job.columns**2 + (job.path == "factor") * job.columns
        rows = job.columns * job.chain.width
        each += rows * (2 * (job.path == "weights") + (job.chain.skip != 0.0))
        values = sum(int(np.prod(shape)) for shape in job.shapes.values()) * self.grid.block
        return bool(each <= SHARE_OF_STATES * values)

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
        chunk = self._folder.place / "layer" / "c" / "0"
        too_long = chunk.is_file() and chunk.stat().st_size > layers.nbytes
        stored = None if too_long else _read(array, (slice(None),))
        if stored is None or not np.array_equal(stored, layers):
            array[:] = layers

    def _is_sound(self, part: int, block: int) -> bool:
        sums = self._tiles.entries[part, block]["sums"]
        where = region(self.grid, part, block)
        for name in self.job.shapes:
            array = self._group[name]
            too_long = is_too_long(self._folder.place, name, part, block, array.chunks)
            values = None if too_long else _read(array, where)
            if values is None or checksum(values) != sums.get(name):
                return False
        return True

    def _state_path(self, part: int, block: int) -> Path:
        return self._progress / f"state-{part}-{block}.npz"


def _packed(arrays: dict[str, Any]) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def _unpacked(content: bytes) -> dict[str, NDArray[Any]]:
    """Return the arrays of a state, or raise `ValueError` if they are larger than the file."""
    arrays = {}
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        if sum(entry.file_size for entry in archive.infolist()) > len(content):
            raise ValueError("a state is not compressed")
        for entry in archive.infolist():
            with archive.open(entry) as file:
                array = read_npy("state", file, entry.file_size)
                arrays[entry.filename.removesuffix(".npy")] = array
    return arrays


def _read(array: Any, where: tuple[slice, ...]) -> NDArray[Any] | None:
    """Return a region of a Zarr array, or None if its bytes are damaged.

    Errors for lack of memory or of open files are raised, as the tile is sound then.
    """
    try:
        values: NDArray[Any] = array[where]
    except ValueError:
        return None
    return values
