"""The memory that a run needs, estimated before any of it is taken.

The estimate is a sum over the arrays of a run at its peak.  It follows the code: start, state,
frames of a block of layers, temporary arrays of observables, results, buffers of threads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bnmc._kernels.cpu import memory
from bnmc._kernels.cpu.layers import panels_of
from bnmc._support.machine import available_memory
from bnmc.chain.start import FirstLayer, shape_of
from bnmc.errors import ResultTooLargeError
from bnmc.simulation.engine.rows import bytes_of_given_weights, bytes_of_thread
from bnmc.simulation.engine.state import State, bytes_of
from bnmc.simulation.runs import Run
from bnmc.simulation.segment import layers_of_step
from bnmc.simulation.tiles import grid_of

#: Arrays for the pivots that tell whether float32 rows resolve a Gram matrix, and for the exponents
#: of entries whose scale was split off, in multiples of the Gram matrices of a block.
_PIVOT_TEMPORARIES, SCALE_TEMPORARIES = 3, 2.5

#: Bytes per recorded layer for the numbers of layers: the result and temporary arrays.
_LAYER_NUMBERS = 32

#: Bytes that Python objects and small arrays take in every run.
_SMALL = 200_000


@dataclass(frozen=True)
class Request:
    """A run whose memory is estimated.

    Attributes
    ----------
    run : Run
    initial : object
        As `simulate` takes it.
    threads : int
    tile_seconds : float or None
        Seconds of a tile, if the run is divided into tiles, for an executor or a store.
    stored : bool
        Whether values go to a store.
    reduce : frozenset of {"chain", "layer"}
        Axes over which moments replace values.
    out : object
        As `simulate` takes it; checked later.
    """

    run: Run
    initial: Any
    threads: int
    tile_seconds: float | None = None
    stored: bool = False
    reduce: frozenset[str] = frozenset()
    out: Any = None

    def bytes(self) -> int:
        """Return the estimated peak in bytes."""
        starting, start = self.start()
        if self.tile_seconds is None:
            # The start has frames of its own.
            layers = -(-(self.run.recorded.last - self.run.start_layer) // self.run.recorded.every)
            reduced = bool(self.reduce)
            during = self._of_chains(self.run.chains, self.threads, layers, reduced=reduced)
        else:
            during = self._tiles(self.tile_seconds)
        if start > 8 * self.run.columns**2:
            during = max(during, self._copying())
        values, joining = self._values()
        return _SMALL + max(starting, start + values + during, start + self._state() + joining)

    # --- start

    def start(self) -> tuple[int, int]:
        """Return the bytes at the peak of the preparation of layer 0, and those that stay."""
        run = self.run
        matrix = 8 * run.columns**2
        if isinstance(self.initial, State):
            return 0, 0
        if isinstance(self.initial, FirstLayer):
            copied = 0 if run.inputs is None else self.initial.x.nbytes
            # The kernel that sums the Gram matrix takes the features as columns, in whole blocks.
            rows = 8 * run.columns * memory.stride(self.initial.x.shape[-2])
            return 2 * matrix + copied + rows, matrix
        if isinstance(self.initial, str):
            return 3 * matrix, matrix
        shape = shape_of(self.initial)
        axes = 2 if run.inputs is None else 3
        arrays = run.chains if len(shape) > axes else 1
        of_layer = run.layers[0]
        rows = 8 * arrays * of_layer.linear.width * run.columns
        copies = 2.4 if run.inputs is None else 3.1
        if (
            not of_layer.rows.norm.acts_on_rows
            or getattr(self.initial, "dtype", None) != np.float64
        ):
            copies = 3.4
        if not of_layer.is_row_by_row:
            copies = 4.4
        return int(copies * rows), 2 * rows

    def _copying(self) -> int:
        """Return the bytes of the state while threads copy given rows into it."""
        run = self.run
        rows = 8 * run.columns * memory.stride(run.layers[0].linear.width)
        busy = min(self.threads, run.chains)
        # A triangular factor needs a copy of the rows, and another one to work in.
        return self._state() + busy * rows * (2 if run.path == "factor" else 1)

    def _state(self) -> int:
        return self.run.chains * self.run.bytes_of_chain

    # --- layers

    def _of_chains(self, chains: int, threads: int, most: int, *, reduced: bool) -> int:
        """Return the bytes of some chains: their state, frames, temporary arrays and buffers."""
        run = self.run
        block = layers_of_step(run.part(0, chains), threads)
        layers = max(1, min(most, -(-block // run.recorded.every)))
        if run.stays:  # kernels write the Gram matrices to their place
            layers = 0
        frames = chains * layers * (1 + run.shows_state) * bytes_of(*run.frame.values())
        grams = 8 * chains * layers * (run.inputs or 1) * run.batch**2
        evaluated = grams * self._temporaries()
        room = 0
        if reduced:
            room = 8 * chains * layers * run.numbers
            # A reduction over layers orders the values of a block anew.
            evaluated = max(evaluated, room if "layer" in self.reduce else 0)
        slots = 8 * 6 * min(block, max(1, run.recorded.last - run.start_layer))
        return (
            chains * run.bytes_of_chain + int(frames + room + evaluated) + slots
            + self._buffers(chains, threads)
        )  # fmt: skip

    def _temporaries(self) -> float:
        """Return the temporary arrays of the greediest observable, or of the checks."""
        run = self.run
        in_units = run.path == "factor"
        least: float = _PIVOT_TEMPORARIES * ("unresolved" in run.layout)
        if run.splits_scale:  # see `in_range` of `engine/state.py`
            least = max(least, SCALE_TEMPORARIES)
            # Beyond an exponent of 900 matrices are recorded in other units.
            growth = 1.0 + 2.0 * max(
                abs(math.log2(abs(layer.rows.skip) + abs(layer.linear.gain)))
                for layer in run.layers[1:]
            )
            in_units = in_units or run.recorded.last * growth > 800.0
        copied = (run.inputs or 1) > 1
        return max([least, *(copied + each.temporaries[in_units] for each in run.observables)])

    def _buffers(self, chains: int, threads: int) -> int:
        """Return the bytes of the buffers of all threads."""
        run = self.run
        panels = max(map(panels_of, run.specs[1:]))
        # Threads share the panels of a layer if there are fewer chains than threads.
        shared = chains < threads and panels > 1
        used = threads if shared else min(threads, chains)
        sums = 8 * panels * memory.tile_sums(run.columns)
        return used * (bytes_of_thread(run) + bytes_of_given_weights(run)) + shared * sums

    # --- tiles

    def _tiles(self, seconds: float) -> int:
        """Return the bytes of states, tiles and frames if workers of this process make tiles."""
        run = self.run
        # About the division that `simulate` makes for as many workers as threads.
        grid = grid_of(run, 2 * self.threads, seconds)
        busy = min(grid.parts, self.threads)
        threads = max(1, self.threads // grid.parts)
        values = 8 * grid.part * grid.block * run.numbers
        tile = self._of_chains(grid.part, threads, grid.block, reduced=False) + values
        # States of this block and of the one before.
        states = 2 * run.chains * run.bytes_of_chain
        several = grid.blocks > 1
        if self.stored:
            # The store packs the state of a tile.  Later tiles are made while it writes.
            packed = 2 * grid.part * run.bytes_of_chain
            written = (busy + 1) * values if grid.parts * grid.blocks > busy else 0
            return busy * tile + states + packed + written
        # Finished tiles wait for those of other parts, and then enter the moments together.
        total = 8 * run.chains * run.recorded.count * run.numbers
        whole = min(grid.parts * values, total)
        waiting = whole if several else (grid.parts - busy) * values
        joined = (3 if "layer" in self.reduce else 2 if self.reduce else 1) * whole
        return states + max(busy * tile + waiting, joined)

    # --- results

    def _values(self) -> tuple[int, int]:
        """Return the bytes of the results during the run, and at its end, when they are joined."""
        run = self.run
        layers, chains = run.recorded.count, run.chains
        numbers = _LAYER_NUMBERS * layers
        if run.stays or self.stored:
            return numbers, numbers
        size = 8 * run.numbers
        size *= 1 if "layer" in self.reduce else layers
        size *= 1 if "chain" in self.reduce else chains
        if not self.reduce:
            # `out` is checked later.
            size = 0 if isinstance(self.out, Mapping) and len(self.out) else size
            return numbers + size, numbers + size
        # Mean and squares, and at the end the variance.
        return numbers + 2 * size, numbers + 3 * size


def require_memory(request: Request) -> None:
    """Raise unless a run fits in the memory that is available.

    Raises
    ------
    ResultTooLargeError
        With the estimated size, the available memory, and chains or layers that would fit.
    """
    needed = request.bytes()
    available = available_memory()
    if needed <= available:
        return
    raise ResultTooLargeError("depth, chains", needed, available, _remedy(request, available))


def _remedy(request: Request, available: int) -> str:
    """Return how many chains or layers would fit, or other ways to need less memory."""
    run = request.run
    ways = []
    if not isinstance(request.initial, State) and run.chains > 1:

        def of_chains(chains: int) -> int:
            return replace(request, run=run.part(0, chains)).bytes()

        ways.append(("chains", _most(of_chains, run.chains, available)))
    if run.recorded.last > run.recorded.first:

        def of_depth(depth: int) -> int:
            last = max(run.recorded.first, run.start_layer + depth)
            fewer = replace(run, recorded=replace(run.recorded, last=last))
            return replace(request, run=fewer).bytes()

        ways.append(("depth", _most(of_depth, run.depth, available)))
    fitting = [f"{name}={count}" for name, count in ways if count]
    less = "record fewer layers with every=, moments with reduce=, or to a store="
    return f"{' or '.join(fitting)} would fit; {less}" if fitting else less


def _most(size: Callable[[int], int], most: int, available: int) -> int:
    """Return the largest number from 1 to `most` whose size is available, or 0."""
    low, high = 0, most
    while high - low > max(1, low // 1000):
        middle = (low + high) // 2
        low, high = (middle, high) if size(middle) <= available else (low, middle)
    return int(low)
