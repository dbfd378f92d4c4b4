"""The division of a run into tiles.

The chains form parts, and the layers form blocks.  A tile is one part through one block.  It needs
the state at the end of the tile before and nothing else, so any worker can make it.  Its values
depend on key, chain and layer alone, so a lost tile can be made again.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import InitVar, dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bnmc._kernels.processor import host_cpu
from bnmc._support.environment import with_blas
from bnmc._support.interruption import Stop
from bnmc._support.version import versions
from bnmc._support.workers import Shared, Workers, sendable
from bnmc.chain.start import Start
from bnmc.simulation.engine.state import State
from bnmc.simulation.runs import Recorded, Run
from bnmc.simulation.segment import Segment, layers_of_step
from bnmc.simulation.sinks import RunningMoments, Values

#: Start of a part: the law or the array of layer 0, or the state of a layer.
Origin = Start | State

#: Seconds that a worker should need for a tile, and bytes of its values.
TILE_SECONDS = 0.5
TILE_BYTES = 1 << 24

#: Blocks that a part may be ahead of the last part.
_AHEAD = 2


class Grid(NamedTuple):
    """The division of a run: chains of a part, and the last layers of the blocks."""

    chains: int
    recorded: Recorded
    part: int
    ends: Recorded

    @classmethod
    def of_slots(cls, chains: int, recorded: Recorded, part: int, block: int) -> Grid:
        """Return the division into blocks of so many recorded layers."""
        ends = Recorded(recorded.layer(block - 1), block * recorded.every, recorded.last)
        return cls(chains, recorded, part, ends)

    @property
    def parts(self) -> int:
        """Number of parts."""
        return -(-self.chains // self.part)

    @property
    def blocks(self) -> int:
        """Number of blocks."""
        return self.ends.count

    @property
    def block(self) -> int:
        """Number of recorded layers of the first block."""
        return self.recorded.before(self.end(0) + 1)

    def of_part(self, part: int) -> slice:
        """Return the chains of a part."""
        return slice(part * self.part, min((part + 1) * self.part, self.chains))

    def of_block(self, block: int) -> slice:
        """Return the slots of a block."""
        first = self.recorded.before(self.end(block - 1) + 1) if block else 0
        return slice(first, self.recorded.before(self.end(block) + 1))

    def end(self, block: int) -> int:
        """Return the last layer of a block."""
        return self.ends.layer(block)

    def extents(self, part: int, block: int) -> dict[str, str]:
        """Return the chains, the slots and the last layer of a tile, for its file."""
        chains, slots = self.of_part(part), self.of_block(block)
        return {
            "of_chains": f"{chains.start} to {chains.stop - 1}",
            "of_slots": f"{slots.start} to {slots.stop - 1}",
            "to_layer": str(self.end(block)),
        }


def grid_of(run: Run, parts: int, of_tile: float) -> Grid:
    """Return a grid of at most so many parts, whose tiles take about `of_tile` seconds at most."""
    part = -(-run.chains // min(parts, run.chains))
    recorded = run.recorded
    by_time = of_tile / (part * recorded.every * run.seconds)
    by_size = TILE_BYTES / (part * max(8 * run.numbers, 1))
    block = max(1, int(min(by_time, by_size, recorded.count)))
    return Grid.of_slots(run.chains, recorded, part, block)


def grid_in_process(run: Run, parts: int, threads: int) -> Grid:
    """Return the grid of parts that stay open: a block is a step, the first one with the start."""
    part, last = -(-run.chains // parts), run.recorded.last
    step = layers_of_step(run.part(0, part), threads)
    return Grid(
        run.chains, run.recorded, part, Recorded(min(run.start_layer + step, last), step, last)
    )


class Tile(NamedTuple):
    """Values of the recorded layers, the arrays of the last state, and where they were made."""

    values: Values
    arrays: dict[str, NDArray[Any]]
    cpu: str
    versions: str


@dataclass(eq=False)
class Tiles:
    """The tiles of a run, as work of `run_work`.

    Without a store and an executor of the user, parts stay open: they are samplers with their
    chains, which all make a block before any makes the next one.  Otherwise a part is the state at
    the end of its last tile.

    Parameters
    ----------
    run : Run
    start : Covariance, Representation or State
        Start of all chains.
    grid : Grid
    workers : Workers
    stop : Stop
        If set, workers that share memory stop in the middle of a tile.
    sink : dict of arrays or RunningMoments, optional
        Takes the values if there is no store.
    store : RunStore, optional
        Keeps tiles; its tiles are not made again.
    results : array of a device, optional
        Where the Gram matrices of the run stay.
    """

    run: Run
    start: InitVar[Origin]
    grid: Grid
    workers: Workers
    stop: Stop
    sink: Values | RunningMoments | None
    store: Any = None
    results: Any = None

    def __post_init__(self, start: Origin) -> None:
        grid, workers, store = self.grid, self.workers, self.store
        self.parts, self.blocks = grid.parts, grid.blocks
        self.together = store is None and workers.are_threads
        self.ahead = 1 if self.together else _AHEAD
        self.here = workers.are_threads and self.parts == 1
        #: Threads of each part.
        self.threads = max(1, workers.count // grid.parts) if workers.are_threads else 1
        #: The starts of parts and blocks: the ends of the blocks before, or those of the run.
        self._starts: dict[tuple[int, int], Origin] = {(0, 0): start}
        if self.parts > 1:
            for part, chains in enumerate(map(grid.of_part, range(self.parts))):
                self._starts[part, 0] = start.part(chains.start, chains.stop)
        #: The open parts.
        self._segments: dict[int, Segment] = {}
        #: Number of blocks that all parts have finished, and of recorded layers in them.
        self._whole = self.slots = 0
        self._cpus: set[str] = set()
        is_of_all = start.part(0, 1) is start
        #: The run, and the start if it is that of every chain; what other processes get once.
        self._common = Shared("chain", self.run.network, (self.run, start if is_of_all else None))
        if not workers.shares_memory:
            _require_sendable(self.run)

    def skip(self, part: int, block: int) -> int:
        """Return the block after the last state of the store before the first missing tile."""
        if self.store is None:
            return block
        missing = self.store.first_missing(part, block)
        if missing is None:
            return self.blocks
        for at in range(missing, block, -1):
            state = self.store.state(part, at - 1)
            if state is not None:
                self._starts[part, at] = state
                return at
        return block

    def call(self, part: int, block: int) -> tuple[Any, ...]:
        """Return the call that makes a tile."""
        room = None
        if self.store is None and self.workers.shares_memory:
            room = self._room(part, block)
        if self.together:
            return self._advance, part, block, room
        origin = self._starts[part, block]
        sent: Start | tuple[int, dict[str, NDArray[Any]]] | None = None
        if isinstance(origin, State):
            # The run holds the rest of the state; its chain may hold functions.
            sent = origin.layer, origin.arrays
        elif origin is not self._common.what[1]:
            sent = origin
        stop = self.stop if self.workers.shares_memory else None
        workers = self.workers if self.workers.are_threads else None
        return (
            make_tile, self._common, self.grid, part, block, sent, self.threads, workers, stop, room
        )  # fmt: skip

    def _room(self, part: int, block: int) -> Values:
        """Return the arrays for the values of a tile."""
        slots = self.grid.of_block(block)
        if self.sink is None or self.run.stays or slots.start == slots.stop:
            return {}
        chains = self.grid.of_part(part)
        if isinstance(self.sink, RunningMoments):
            return self.sink.room(chains, slots)
        return {name: array[chains, slots] for name, array in self.sink.items()}

    def _advance(self, part: int, block: int, room: Values) -> bool:
        """Take an open part through a block."""
        with _device_of(self.run, part, self.parts):
            if block == 0:
                chains = self.grid.of_part(part)
                run = self.run.part(chains.start, chains.stop)
                segment = self._segments[part] = Segment(run, self.threads, self.workers)
                if self.results is not None:
                    sampler: Any = segment.sampler
                    sampler.results = self.results
                segment.begin(self._starts[part, 0], room)
            return self._segments[part].advance(self.grid.end(block), room, self.slots)

    def take(self, part: int, block: int, result: Any) -> bool:
        """Take a tile; return False for None, of a worker that was told to stop."""
        if self.together:
            return True
        if result is None:
            return False
        self._cpus.add(result.cpu)
        state = self.run.state(self.grid.end(block), result.arrays)
        self._starts[part, block + 1] = state
        if self.store is not None:
            self.store.put(part, block, result)
        elif not self.workers.shares_memory:
            for name, values in self._room(part, block).items():
                values[...] = result.values[name]
        return True

    def hand_over(self, block: int) -> None:
        """Tell the sink that all parts have finished a block; drop the states before it."""
        slots = self.grid.of_block(block)
        if isinstance(self.sink, RunningMoments) and slots.start < slots.stop:
            self.sink.filled(slots)
        for part in range(self.parts):
            self._starts.pop((part, block), None)
        self._whole, self.slots = block + 1, slots.stop

    def progress(self, following: Sequence[int]) -> tuple[int, int]:
        """Return the layers that are done, in the mean over parts, and all layers."""
        first = self.run.start_layer
        layers = [self.grid.end(block - 1) if block else first for block in following]
        return sum(layers) // len(layers) - first, self.run.depth

    def finish(self, complete: bool) -> None:
        """Let the store check what this process wrote."""
        if self.store is not None:
            self.store.check(complete=complete)

    @property
    def cpu(self) -> str:
        """The kinds of processor of the workers."""
        cpu = ", ".join(sorted(self._cpus)) or host_cpu()
        return with_blas(cpu, blas=self.run.uses_blas)

    def marked(self, name: str) -> tuple[int, ...]:
        """Return the chains with a mark: "wide" or "unresolved", as samplers have them."""
        if self.run.dtype == "float64":
            return ()
        if self.together:
            marks = [getattr(self._segments[part].sampler, name) for part in sorted(self._segments)]
        else:
            state = self.state
            marks = [] if state is None else [state.arrays.get(name, ())]
        return tuple(
            part * self.grid.part + chain
            for part, marked in enumerate(marks)
            if np.count_nonzero(marked)
            for chain in np.flatnonzero(marked).tolist()
        )

    @property
    def state(self) -> State | None:
        """The state at the end of the last block that all parts have finished, if it is known."""
        parts = [self._state(part) for part in range(self.parts)]
        states = [state for state in parts if state is not None]
        if len(states) < len(parts):
            return None
        return states[0] if len(states) == 1 else State.joined(states)

    def _state(self, part: int) -> State | None:
        if not self._whole:
            return None
        if self.together:
            segment = self._segments[part]
            with _device_of(self.run, part, self.parts):
                return segment.state if segment.is_between else None
        state = self._starts.get((part, self._whole))
        if state is None and self.store is not None:
            state = self.store.state(part, self._whole - 1)
        return state if isinstance(state, State) else None


def make_tile(
    common: tuple[Run, Start | None],
    grid: Grid,
    part: int,
    block: int,
    origin: Start | tuple[int, dict[str, NDArray[Any]]] | None,
    threads: int,
    workers: Workers | None,
    stop: Stop | None,
    room: Values | None,
) -> Tile | None:
    """Make a tile from the end of the tile before; return None if told to stop.

    The origin of the first block is the start of the run, or None for that of all chains, which is
    shared with the run.  The origin of later blocks, and of a continued run, is the layer and the
    arrays of a state.  The values go to `room` if it is given.
    """
    run, start_of_all = common
    chains, slots = grid.of_part(part), grid.of_block(block)
    values = room
    if values is None:
        count = chains.stop - chains.start, slots.stop - slots.start
        values = {name: np.zeros((*count, *shape)) for name, shape in run.shapes.items()}
    start = run.state(*origin) if isinstance(origin, tuple) else origin or start_of_all
    assert start is not None
    with _device_of(run, part, grid.parts):
        segment = Segment(run.part(chains.start, chains.stop), threads, workers)
        if block == 0:
            segment.begin(start, values)
        else:
            assert isinstance(start, State)
            segment.resume(start)
        if not segment.advance(grid.end(block), values, slots.start, stop):
            return None
        return Tile(values, segment.state.arrays, host_cpu(), versions())


def _device_of(run: Run, part: int, parts: int) -> AbstractContextManager[Any]:
    """Return the context of the GPU of a part; that of a single part is the current one."""
    if run.backend == "cpu" or parts == 1:
        return nullcontext()
    from bnmc._kernels.gpu.device import cuda, devices

    numbers = devices()
    return cuda.gpus[numbers[part % len(numbers)]]


def _require_sendable(run: Run) -> None:
    """Raise an error that names what cannot be pickled; your own functions go by value."""
    for chain in run.network.chains:
        sendable("weights", chain.weights, chain.weights)
    for each in run.observables:
        sendable("observables", each, each)
    sendable("chain", run.network, run.network)
