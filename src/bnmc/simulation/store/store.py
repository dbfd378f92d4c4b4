"""Runs in a Zarr store: if a run is interrupted at any instant, it can be resumed.

A store is a directory: a group of Zarr format 3 with one array per observable, of axes chain,
layer, …, and the array ``layer``.  Its folder ``progress`` serves resumption.  It holds a journal,
with one line for each finished tile and the checksums of its data, and the states of chains.  A
tile enters the journal after its data are written.  When the store is opened, the data are compared
with their checksums, and missing or damaged tiles are made again.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import shutil
import threading
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnmc._kernels.compiling import host_cpu
from bnmc._support.extras import import_extra
from bnmc.chain.code_digest import digest_of
from bnmc.errors import ArgumentError, ArgumentTypeError, BnmcError, StoreError, StoreMismatchError
from bnmc.simulation.engine.state import State
from bnmc.simulation.job import Job
from bnmc.simulation.store.journal import Journal, Lock
from bnmc.simulation.tiles import Grid, Origin, Tile

__all__ = ["RunStore", "as_store_path", "stored_key"]

#: The attributes of a store that identify its run, in the order of comparison.
_IDENTITY = (
    "bnmc_version", "cpu", "chain", "activation_digest", "weights_digest", "sampler", "dtype",
    "backend", "chains", "inputs", "start", "first_layer", "depth", "burn_in", "every",
    "observables", "key",
)  # fmt: skip


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
    """Return the key of the run in a store, or None if there is no store."""
    return int(_attributes(path)["key"]) if os.path.lexists(path) else None


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
        If the store holds another run.
    StoreInUseError
        If another run is writing the store.
    StoreError
        If the store cannot be read or written.
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
        self._progress = path / "progress"
        zarr = import_extra("zarr", "xarray")
        identity = {**attributes, **_identity(job, start, grid)}
        with reported(path):
            if not os.path.lexists(path):
                _create(zarr, path, job, grid, identity, dims)
            with contextlib.ExitStack() as stack:
                stack.callback(Lock(self._progress / "lock", path).release)
                self.grid = self._checked_grid(grid, identity)
                self._group = zarr.open_group(path, mode="r+", zarr_format=3)
                self._clear_leftovers()
                self._tiles = Journal(self._progress / "journal")
                stack.callback(self._tiles.close)
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
            content = self._state_path(part, block).read_bytes()
            if zlib.crc32(content) != entry["state"]:
                return None
            with np.load(io.BytesIO(content), allow_pickle=False) as archive:
                arrays = {name: archive[name] for name in archive.files}
        except (OSError, ValueError):
            return None
        return self.job.state(self.grid.end(block), arrays)

    def put(self, part: int, block: int, tile: Tile) -> None:
        """Write a tile; values that the store has already are kept."""
        if tile.cpu != host_cpu():
            raise StoreMismatchError(str(self.path), "cpu", host_cpu(), tile.cpu)
        content = _packed(tile.arrays)
        sums = {name: _checksum(values) for name, values in tile.values.items()}
        with reported(self.path):
            if (part, block) not in self._tiles.entries:
                where = self._region(part, block)
                for name, values in tile.values.items():
                    self._group[name][where] = values
            path = self._state_path(part, block)
            path.with_suffix(".partial").write_bytes(content)
            path.with_suffix(".partial").replace(path)
            entry = {"part": part, "block": block, "sums": sums, "state": zlib.crc32(content)}
            self._tiles.append(entry)
            if not self._keep_all:
                self._state_path(part, block - 2).unlink(missing_ok=True)

    def _checked_grid(self, grid: Grid, identity: Mapping[str, Any]) -> Grid:
        """Raise unless the store holds this run; return the division of the stored run."""
        stored = _attributes(self.path)
        for name in _IDENTITY:
            have, want = (str(values.get(name, "nothing")) for values in (stored, identity))
            if have != want:
                raise StoreMismatchError(str(self.path), name, have, want)
        part, block = int(stored["part"]), int(stored["block"])
        if not (1 <= part <= grid.chains and 1 <= block <= grid.recorded.count):
            raise StoreError(str(self.path), "its attributes part and block are damaged")
        return replace(grid, part=part, block=block)

    def _clear_leftovers(self) -> None:
        """Remove files that a dead writer left unfinished."""
        for leftover in self.path.rglob("*.partial"):
            leftover.unlink(missing_ok=True)

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
        stored = _read(self._group["layer"], (slice(None),))
        if stored is None or not np.array_equal(stored, layers):
            self._group["layer"][:] = layers

    def _is_sound(self, part: int, block: int) -> bool:
        sums = self._tiles.entries[part, block]["sums"]
        where = self._region(part, block)
        for name in self.job.shapes:
            values = _read(self._group[name], where)
            if values is None or _checksum(values) != sums.get(name):
                return False
        return True

    def _region(self, part: int, block: int) -> tuple[slice, slice]:
        return self.grid.of_part(part), self.grid.of_block(block)

    def _state_path(self, part: int, block: int) -> Path:
        return self._progress / f"state-{part}-{block}.npz"


def _create(
    zarr: Any,
    path: Path,
    job: Job,
    grid: Grid,
    identity: Mapping[str, Any],
    dims: Mapping[str, tuple[str, ...]],
) -> None:
    """Make an empty store, which gets its name when it is complete."""
    building = path.with_name(f".{path.stem}.{os.getpid()}.{threading.get_ident()}.building")
    shutil.rmtree(building, ignore_errors=True)
    try:
        attributes = {**identity, "part": grid.part, "block": grid.block}
        group = zarr.create_group(building, zarr_format=3, attributes=attributes)
        for name, shape in job.shapes.items():
            group.create_array(
                name,
                shape=(grid.chains, grid.recorded.count, *shape),
                chunks=(grid.part, grid.block, *(max(1, length) for length in shape)),
                dtype="float64",
                fill_value=np.nan,
                compressors=None,
                dimension_names=dims[name],
            )
        layers = grid.recorded.layers(0, grid.recorded.count)
        coordinate = group.create_array(
            "layer", shape=layers.shape, chunks=layers.shape, dtype="int64", fill_value=0,
            compressors=None, dimension_names=("layer",),
        )  # fmt: skip
        coordinate[:] = layers
        _consolidate(building, (*job.shapes, "layer"))
        zarr.create_group(building / "progress", zarr_format=3)
        for name in ("journal", "lock"):
            (building / "progress" / name).touch()
        with contextlib.suppress(OSError):  # another run made it meanwhile and holds the lock
            building.rename(path)
    finally:
        shutil.rmtree(building, ignore_errors=True)


def _consolidate(path: Path, names: tuple[str, ...]) -> None:
    """Enter the metadata of the arrays in those of the group, so that a reader opens one file.

    `zarr.consolidate_metadata` does the same with a warning that the format may change.
    """
    root = json.loads((path / "zarr.json").read_text())
    metadata = {name: json.loads((path / name / "zarr.json").read_text()) for name in names}
    root["consolidated_metadata"] = {
        "kind": "inline", "must_understand": False, "metadata": metadata
    }  # fmt: skip
    (path / "zarr.json").write_text(json.dumps(root, indent=2))


def _attributes(path: Path) -> dict[str, Any]:
    try:
        attributes: dict[str, Any] = json.loads((path / "zarr.json").read_text())["attributes"]
        int(attributes["key"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StoreError(str(path), f"its metadata cannot be read: {error}") from None
    return attributes


def _identity(job: Job, start: Origin, grid: Grid) -> dict[str, Any]:
    """Return the attributes that identify a run, besides those of its trajectory."""
    recorded = grid.recorded
    first = start.layer if isinstance(start, State) else 0
    weights = job.chain.weights
    return {
        "activation_digest": job.chain.activation.digest,
        "weights_digest": weights if isinstance(weights, str) else digest_of(weights),
        "start": _start_digest(start),
        "first_layer": first,
        "depth": recorded.last - first,
        "burn_in": recorded.first - first,
        "every": recorded.every,
        "observables": ", ".join(f"{one.name} ({one.digest[:16]})" for one in job.observables),
    }


def _start_digest(start: Origin) -> str:
    digest = hashlib.sha256(type(start).__name__.encode())
    named = start.arrays if isinstance(start, State) else vars(start)
    for name, values in sorted(named.items()):
        digest.update(f"{name}{values.dtype.str}{values.shape}".encode())
        digest.update(values.tobytes())
    return digest.hexdigest()


def _packed(arrays: dict[str, Any]) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def _read(array: Any, where: tuple[slice, ...]) -> NDArray[Any] | None:
    """Return a region of a Zarr array, or None if its bytes are damaged.

    Errors for lack of memory or of open files are raised, as the tile is sound then.
    """
    try:
        values: NDArray[Any] = array[where]
    except ValueError:
        return None
    return values


def _checksum(values: NDArray[np.float64]) -> int:
    return zlib.crc32(np.ascontiguousarray(values).data)


@contextlib.contextmanager
def reported(path: Path) -> Iterator[None]:
    """Turn errors of the operating system and of Zarr into a `StoreError`."""
    try:
        yield
    except BnmcError:
        raise
    except OSError as error:
        raise StoreError(str(path), error.strerror or str(error)) from error
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        # Zarr raises these for damaged metadata.
        reason = f"it is damaged: {type(error).__name__}: {error}"
        raise StoreError(str(path), reason) from error
