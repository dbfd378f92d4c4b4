"""Runs kept in a Zarr store while they go: interrupted at any instant, they resume.

A store is a directory: a group of Zarr format 3 with one array an observable, of axes chain,
layer, …, and the array ``layer``.  Its folder ``progress`` has what a resumption needs: a journal,
one line a finished tile with the checksums of its data, and the states of chains.  A tile is
entered in the journal after its data are written, and its data are compared with their checksums
when the store is opened: what is missing, torn or corrupted is made again.
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

#: Of the attributes of a store, those that say which run it holds, in the order of comparison.
_IDENTITY = (
    "bnmc_version", "cpu", "chain", "activation_digest", "weights_digest", "sampler", "dtype",
    "backend", "chains", "inputs", "start", "first_layer", "depth", "burn_in", "every",
    "observables", "key",
)  # fmt: skip


#: States of all tiles are kept where they take less than this part of what the values take.
SHARE_OF_STATES = 0.25


def as_store_path(store: object) -> Path:
    """Return what a user passes as `store` as a path, or raise."""
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
    """Return the key of the run that a store holds, None if there is no store."""
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
        How to cut the run, unless the store exists: it was cut then.
    attributes : mapping
        What says how to repeat the run, `Trajectory.attributes`.
    dims : mapping
        The axes of each observable, from "chain" and "layer" on.

    Attributes
    ----------
    grid : Grid
        How the run is cut.

    Raises
    ------
    StoreMismatchError
        If it holds another run.
    StoreInUseError
        If another run is writing it.
    StoreError
        If it cannot be read or written.
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
                #: Closes what is open, in the end or if opening fails.
                self._open = stack.pop_all()

    def __enter__(self) -> RunStore:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    @property
    def is_complete(self) -> bool:
        """Whether all tiles are there."""
        return all(self.first_missing(part, 0) is None for part in range(self.grid.parts))

    def first_missing(self, part: int, block: int) -> int | None:
        """Return the first block of a part, from one on, that is not there."""
        for at in range(block, self.grid.blocks):
            if (part, at) not in self._tiles.entries:
                return at
        return None

    def state(self, part: int, block: int) -> State | None:
        """Return the state at the end of a tile, if it is kept and sound."""
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
        """Write a tile; what is there already stays."""
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
        """Compare the run in the store with the one that is wanted; return how it was cut."""
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
        """Remove what writers left that died in the middle of a file."""
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
        """Forget the tiles whose data are not what was written."""
        grid = self.grid
        for part, block in list(self._tiles.entries):
            inside = part < grid.parts and block < grid.blocks
            # What the last state is lacking, the finished run would: its tile is made again.
            is_last = block == grid.blocks - 1
            lost = is_last and self.state(part, block) is None
            if not inside or lost or not self._is_sound(part, block):
                del self._tiles.entries[part, block]

    def _mend_layers(self) -> None:
        """Write the coordinate again, which is known, if it is not what was written."""
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
    """Make an empty store; it appears under its name when it is whole."""
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
        with contextlib.suppress(OSError):  # another run made it meanwhile, and has the lock
            building.rename(path)
    finally:
        shutil.rmtree(building, ignore_errors=True)


def _consolidate(path: Path, names: tuple[str, ...]) -> None:
    """Enter the arrays' metadata in the group's, so that a reader opens one file.

    As `zarr.consolidate_metadata` does, which warns of what the format does not promise yet.
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
    """Return what says which run it is, beside the attributes of its trajectory."""
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
    """Return a region of an array of Zarr, or None where its bytes are no chunk.

    A want of memory or of open files is no damage: it is raised, lest sound tiles be made again.
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
    """Raise errors of the operating system, and of Zarr, as what they are: errors of the store."""
    try:
        yield
    except BnmcError:
        raise
    except OSError as error:
        raise StoreError(str(path), error.strerror or str(error)) from error
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        # What Zarr raises on metadata that are damaged.
        reason = f"it is damaged: {type(error).__name__}: {error}"
        raise StoreError(str(path), reason) from error
