"""A run divided into tiles, for executors and stores.

The chains form parts, and the recorded layers form blocks.  A tile is one part through one block.
It needs the state at the end of the tile before and nothing else, so any worker can make it.  Its
values depend on key, chain and layer alone, so a lost tile can be made again.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from bnmc._kernels.processor import host_cpu
from bnmc._support.interruption import Stop
from bnmc._support.version import versions
from bnmc._support.workers import Workers, received, sendable
from bnmc.chain.start import Covariance, Representation
from bnmc.simulation.engine.state import State
from bnmc.simulation.job import Job, Recorded
from bnmc.simulation.segment import Pool, Segment
from bnmc.simulation.sinks import Arrays, Values

__all__ = ["TILE_SECONDS", "Grid", "Origin", "Tile", "TileSink", "TiledRun", "grid_of"]

#: Start of a part: the law or the array of layer 0, or the state of a layer.
Origin = Covariance | Representation | State

#: Seconds that a worker should need for a tile, and bytes of its values.
TILE_SECONDS = 0.5
TILE_BYTES = 1 << 24

#: Blocks that a part may be ahead of the last part.
AHEAD = 2


@dataclass(frozen=True)
class Grid:
    """The division of a run: chains per part, and recorded layers per block."""

    chains: int
    recorded: Recorded
    part: int
    block: int

    @property
    def parts(self) -> int:
        """Number of parts."""
        return -(-self.chains // self.part)

    @property
    def blocks(self) -> int:
        """Number of blocks."""
        return -(-self.recorded.count // self.block)

    def of_part(self, part: int) -> slice:
        """Return the chains of a part."""
        return slice(part * self.part, min((part + 1) * self.part, self.chains))

    def of_block(self, block: int) -> slice:
        """Return the slots of a block."""
        return slice(block * self.block, min((block + 1) * self.block, self.recorded.count))

    def end(self, block: int) -> int:
        """Return the last layer of a block."""
        return self.recorded.layer(self.of_block(block).stop - 1)


def grid_of(
    chains: int, recorded: Recorded, parts: int, seconds: float, size: int, of_tile: float
) -> Grid:
    """Return a grid of about `parts` parts.

    Parameters
    ----------
    chains : int
    recorded : Recorded
    parts : int
        Largest number of parts.
    seconds : float
        Time of one layer of one chain.
    size : int
        Bytes of the recorded values of one layer of one chain.
    of_tile : float
        Seconds that a tile of several recorded layers should take at most.
    """
    part = -(-chains // min(parts, chains))
    by_time = of_tile / (part * recorded.every * seconds)
    by_size = TILE_BYTES / (part * max(size, 1))
    return Grid(chains, recorded, part, max(1, int(min(by_time, by_size, recorded.count))))


class Tile(NamedTuple):
    """Values of the recorded layers, the arrays of the last state, and where they were made."""

    values: Values
    arrays: dict[str, NDArray[Any]]
    cpu: str
    versions: str


class TileSink(Protocol):
    """A place for tiles, which arrive block by block, and the parts of a block in order."""

    def put(self, chains: slice, slots: slice, values: Values) -> None:
        """Take the values of a tile."""


class TiledRun:
    """A run whose tiles workers make.

    Parameters
    ----------
    job : Job
    start : Covariance, Representation or State
        Start of all chains.
    grid : Grid
    workers : Workers
    threads : int
        Threads of each worker.
    store : RunStore, optional
        Keeps tiles; its tiles are not made again.
    sink : optional
        Takes the values, in order, if there is no store.
    stop : Stop
        If set, workers that share memory stop in the middle of a tile.
    """

    def __init__(
        self,
        job: Job,
        start: Origin,
        grid: Grid,
        workers: Workers,
        threads: int,
        store: Any,
        sink: TileSink | None,
        stop: Stop,
    ) -> None:
        self.job = job
        self.grid = grid
        self.workers = workers
        self.threads = threads
        self.store = store
        self.sink = sink
        self.stop = stop
        self.first_layer = start.layer if isinstance(start, State) else 0
        self.starts = [start.part(s.start, s.stop) for s in map(grid.of_part, range(grid.parts))]
        #: Next block of each part, and the states at the ends of its last blocks.
        self.next = [0] * grid.parts
        self.states: list[dict[int, State]] = [{} for _ in range(grid.parts)]
        self.values: dict[tuple[int, int], Values] = {}
        #: Number of blocks that all parts have finished.
        self.whole = 0
        self.cpus: set[str] = set()
        self._common = job if workers.shares_memory else _pickled(job)

    def run(self, stopped: Callable[[], bool], report: Callable[[int, int], None]) -> None:
        """Make all missing tiles, until none is missing or `stopped` returns True."""
        busy: set[int] = set()
        for part in range(self.grid.parts):
            self._skip(part)
        self._hand_over()
        while self.whole < self.grid.blocks and not stopped():
            for part in self._ready(busy):
                busy.add(part)
                self._submit(part)
            for part, tile in self.workers.finished(0.1):
                busy.discard(part)
                self._take(part, tile)
            self._hand_over()
            report(self._layers_done(), self.grid.recorded.last - self.first_layer)
        if self.store is not None:
            self.store.finish(complete=self.whole == self.grid.blocks)

    def _ready(self, busy: set[int]) -> list[int]:
        """Return the parts to submit next, the last ones first, as many as workers are free."""
        parts = [
            part
            for part in range(self.grid.parts)
            if part not in busy and self.next[part] < min(self.grid.blocks, self.whole + AHEAD)
        ]
        parts.sort(key=self.next.__getitem__)
        # One task more than workers, so that no worker waits.
        return parts[: max(0, self.workers.count + 1 - len(busy))]

    def _submit(self, part: int) -> None:
        block = self.next[part]
        origin = self.states[part][block - 1] if block else self.starts[part]
        # The job holds the rest of the state; its chain may hold functions.
        sent = (origin.layer, origin.arrays) if isinstance(origin, State) else origin
        stop = self.stop if self.workers.shares_memory else None
        self.workers.submit(
            part, make_tile, self._common, self.grid, part, block, sent, self.threads, stop
        )

    def _take(self, part: int, tile: Tile | None) -> None:
        if tile is None:  # the worker was told to stop
            return
        block = self.next[part]
        self.cpus.add(tile.cpu)
        self.states[part][block] = self.job.state(self.grid.end(block), tile.arrays)
        if self.store is None:
            self.values[part, block] = tile.values
        else:
            self.store.put(part, block, tile)
        self.next[part] = block + 1
        self._skip(part)

    def _skip(self, part: int) -> None:
        """Continue at the last kept state before the first missing tile."""
        if self.store is None:
            return
        block = self.next[part]
        missing = self.store.first_missing(part, block)
        if missing is None:
            self.next[part] = self.grid.blocks
            return
        for at in range(missing, block, -1):
            state = self.store.state(part, at - 1)
            if state is not None:
                self.next[part] = at
                self.states[part][at - 1] = state
                return

    def _hand_over(self) -> None:
        """Give the sink the blocks that all parts have finished, and drop their states."""
        while self.whole < min(self.next):
            for part in range(self.grid.parts):
                if self.sink is not None:
                    values = self.values.pop((part, self.whole))
                    self.sink.put(self.grid.of_part(part), self.grid.of_block(self.whole), values)
                self.states[part].pop(self.whole - 1, None)
            self.whole += 1

    def _layers_done(self) -> int:
        layers = [self.grid.end(block - 1) if block else self.first_layer for block in self.next]
        return int(sum(layers) / len(layers)) - self.first_layer

    @property
    def slots(self) -> int:
        """Number of layers that all chains have recorded."""
        return self.grid.of_block(self.whole - 1).stop if self.whole else 0

    @property
    def cpu(self) -> str:
        """The kinds of processor of the workers."""
        return self.job.with_blas(", ".join(sorted(self.cpus)) or host_cpu())

    @property
    def widened(self) -> list[int]:
        """The chains that continued in float64."""
        return self._chains("wide")

    @property
    def unresolved(self) -> list[int]:
        """The chains with Gram matrices that float32 rows did not resolve."""
        return self._chains("unresolved")

    def _chains(self, name: str) -> list[int]:
        state = self.state
        found = None if state is None else state.arrays.get(name)
        return [] if found is None else np.flatnonzero(found).tolist()

    @property
    def state(self) -> State | None:
        """The state at the end of the last block that all parts have finished."""
        parts = [self._state(part) for part in range(self.grid.parts)]
        known = [state for state in parts if state is not None]
        return State.joined(known) if len(known) == len(parts) else None

    def _state(self, part: int) -> State | None:
        if not self.whole:
            return None
        state = self.states[part].get(self.whole - 1)
        if state is None and self.store is not None:
            state = self.store.state(part, self.whole - 1)
        return state


def make_tile(
    common: Job | bytes,
    grid: Grid,
    part: int,
    block: int,
    origin: Covariance | Representation | tuple[int, dict[str, NDArray[Any]]],
    threads: int,
    stop: Stop | None,
) -> Tile | None:
    """Make a tile from the end of the tile before; return None if told to stop.

    The origin of the first block is the start of the run.  The origin of later blocks, and of a
    continued run, is the layer and the arrays of a state.
    """
    job = common if isinstance(common, Job) else _unpickled(common)
    chains, slots = grid.of_part(part), grid.of_block(block)
    sink = _TileArrays(job, chains.stop - chains.start, slots)
    with ExitStack() as stack:
        sampler = job.sampler(chains.start, chains.stop)
        segment = Segment(job, sampler, threads, Pool(stack, threads))
        start = job.state(*origin) if isinstance(origin, tuple) else origin
        if block == 0:
            segment.begin(start, sink)
        else:
            assert isinstance(start, State)
            segment.resume(start)
        while segment.layer < grid.end(block):
            if stop is not None and stop.is_set():
                return None
            segment.advance(grid.end(block), sink)
        return Tile(sink.arrays, segment.state.arrays, host_cpu(), versions())


class _TileArrays(Arrays):
    """The arrays of one tile, whose slots do not begin at 0."""

    def __init__(self, job: Job, chains: int, slots: slice) -> None:
        self._first = slots.start
        count = slots.stop - slots.start
        super().__init__(
            {name: np.zeros((chains, count, *shape)) for name, shape in job.shapes.items()}
        )

    def room(self, first: int, last: int) -> Values:
        return super().room(first - self._first, last - self._first)


def _pickled(job: Job) -> bytes:
    """Return a job in the form for workers, with your own functions by value, or raise."""
    sendable("weights", job.chain.weights, job.chain.weights)
    for one in job.observables:
        sendable("observables", one, one)
    return sendable("chain", job.chain, job)


@lru_cache(maxsize=8)
def _unpickled(pickled: bytes) -> Job:
    job = received(pickled)
    assert isinstance(job, Job)
    return job
