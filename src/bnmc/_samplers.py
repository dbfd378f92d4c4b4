"""The ways to take an ensemble of chains through layers, all with one law.

A sampler owns the state of every chain of an ensemble.  `begin` brings a range of chains to layer
0, `advance` takes a range on; both write the Gram matrices of the layers that are recorded.  What
they write depends on key, chain and layer alone, never on how chains and layers were grouped.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bnmc._kernels import cpu, memory
from bnmc._kernels.jit import Sigma
from bnmc._precision import (
    exponents_of,
    in_range,
    is_homogeneous,
    layers_of_scale,
    least_pivots,
    rescale,
)
from bnmc.activations import Activation
from bnmc.chain import Chain
from bnmc.errors import ArgumentError, NonFiniteError, ZeroVarianceError
from bnmc.initial import Covariance, Representation

__all__ = ["SAMPLERS", "Frames", "Sampler", "ScaledSampler", "State", "choose_sampler"]

FloatArray = NDArray[np.floating[Any]]

#: The largest number of chains: the chain shares a counter word with the stream.
MOST_CHAINS = 1 << 28
#: The largest width of layers that are made row by row: four rows share a 32-bit counter word.
MOST_ROWS = 1 << 33

#: The relative pivot of a Gram matrix below which float32 rows have lost what tells samples apart:
#: rounding moves a sample by 2**-24 and more of its size, which is 0.05 % and more of its distance
#: from the span of the others there, layer after layer.
LOST_PIVOT = 2.0**-26

_NORM_CODES = {
    "none": cpu.NORM_NONE,
    "batch-uncentred": cpu.NORM_UNCENTRED,
    "batch": cpu.NORM_CENTRED,
}
_WEIGHT_CODES = {
    "gaussian": cpu.GAUSSIAN,
    "uniform": cpu.UNIFORM,
    "rademacher": cpu.RADEMACHER,
}


class Measure(NamedTuple):
    """A number that kernels can take of a Gram matrix; see `_kernels.core.measures`."""

    kind: int
    star: NDArray[np.float64] | None = None


class Frames(NamedTuple):
    """What is recorded of a block of layers; G is `gram` times exp(`log_scale`).

    gram : (chains, layers, columns, columns) float64
    log_scale : (chains, layers) float64
    log_pivots : (chains, layers, columns) float64, or no columns where the sampler has none
    values : (chains, layers, measures, inputs) float64
        In place of all others where the sampler measures.
    """

    gram: NDArray[np.float64]
    log_scale: NDArray[np.float64]
    log_pivots: NDArray[np.float64]
    values: NDArray[np.float64] = np.zeros((0, 0, 0, 0))


@dataclass(frozen=True)
class State:
    """Where an ensemble of chains has got to: all that is needed to go on.

    Attributes
    ----------
    chain : Chain
    path : str
        "conditional", "weights" or "factor": which sampler's arrays these are.
    key : int
        Of 64 bits.
    layer : int
        The layer of the arrays.
    inputs : int or None
    dtype : str
    arrays : dict of ndarray
        By name; the first axis is the chain.
    """

    chain: Chain
    path: str
    key: int
    layer: int
    inputs: int | None
    dtype: str
    arrays: dict[str, NDArray[Any]]

    @property
    def chains(self) -> int:
        """Number of chains."""
        return len(next(iter(self.arrays.values())))

    def part(self, first: int, last: int) -> State:
        """Return the state of some chains, as a view."""
        return replace(
            self, arrays={name: values[first:last] for name, values in self.arrays.items()}
        )

    @staticmethod
    def joined(parts: Sequence[State]) -> State:
        """Return the state of the chains of several parts, one after the other."""
        names = parts[0].arrays
        arrays = {name: np.concatenate([one.arrays[name] for one in parts]) for name in names}
        return replace(parts[0], arrays=arrays)


def sigma_of(activation: Activation) -> Sigma:
    """Return the activation as kernels take it."""
    known = Sigma.known.get(activation.digest)
    if known is None:
        functions = {name: activation.scalar(name) for name in ("float32", "float64")}
        known = Sigma(activation.digest, functions)
    return known


def weight_code(chain: Chain) -> int:
    """Return how kernels call the law of the weights."""
    return _WEIGHT_CODES[chain.weights] if isinstance(chain.weights, str) else cpu.GIVEN


def law_of(chain: Chain, inputs: int = 1) -> cpu.Law:
    """Return the chain as kernels take it, with so many batches side by side."""
    return cpu.Law(
        chain.width,
        chain.batch,
        chain.batch * inputs,
        _NORM_CODES[chain.norm],
        chain.skip,
        chain.gain,
        chain.eps,
    )


class Sampler:
    """What the samplers share: the law, the key, the threads' buffers, and how they fail."""

    #: What a user calls it, and which of the ways it is.
    name: str
    path: str
    #: Whether threads may each advance a part of the chains.
    divisible = True
    #: How much larger than usual the frames of a block of layers may be.
    frame_factor = 1

    def __init__(
        self,
        chain: Chain,
        chains: int,
        inputs: int | None,
        dtype: str,
        key: int,
        offset: int = 0,
    ) -> None:
        self.chain = chain
        self.chains = chains
        #: The number of the first chain, where these are a part of an ensemble.
        self.offset = offset
        self.inputs = inputs
        self.dtype = np.dtype(dtype)
        self.key = key
        self.columns = chain.batch * (inputs or 1)
        self.sigma = sigma_of(chain.activation)
        self.law = law_of(chain, inputs or 1)
        self.key_words = np.uint32(key & 0xFFFFFFFF), np.uint32(key >> 32)
        #: Which float32 chains have gone on in float64.
        self.wide = np.zeros(chains, np.bool_)
        #: Which chains have, or had, recorded Gram matrices that float32 rows do not resolve.
        self.unresolved = np.zeros(chains, np.bool_)
        #: Where a state was taken up; 0 otherwise.
        self.layer = 0
        #: What it records in place of Gram matrices.
        self.measures: tuple[Measure, ...] = ()
        self._buffers = threading.local()
        self._allocate()

    def _allocate(self) -> None:
        """Make the arrays of all chains: the last step of making a sampler."""

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """The state of all chains, by name."""
        raise NotImplementedError

    @staticmethod
    def seconds(chain: Chain, columns: int, dtype: np.dtype[Any]) -> float:
        """Return a guess of what a layer of one chain takes one thread."""
        raise NotImplementedError

    def take(self, state: State) -> None:
        """Go on from a state, which is not changed."""
        for name, values in self.arrays.items():
            values[...] = state.arrays.get(name, 0)  # a GPU has less to say
        self.layer = state.layer

    def can_measure(self, wanted: tuple[Measure, ...]) -> bool:
        """Return whether its kernels can record these numbers in place of Gram matrices."""
        return False

    def measure(self, wanted: tuple[Measure, ...]) -> None:
        """Record numbers in place of Gram matrices, if there are any; it has to be able to."""
        self.measures = wanted

    @property
    def panels(self) -> int:
        """In how many parts a layer of one chain can be shared among threads."""
        return 1

    def begin(
        self, start: Covariance | Representation, first: int, last: int, frames: Frames
    ) -> None:
        """Bring chains first:last to layer 0 and record it in slot 0."""
        raise NotImplementedError

    def record(self, frames: Frames) -> None:
        """Record the layer that the state has got to, of all chains, in slot 0."""
        raise NotImplementedError

    def advance(
        self, first: int, last: int, layer: int, slots: NDArray[np.int64], frames: Frames
    ) -> None:
        """Take chains first:last from `layer` - 1 through len(slots) layers."""
        raise NotImplementedError

    def advance_together(
        self,
        executor: Executor,
        threads: int,
        layer: int,
        slots: NDArray[np.int64],
        frames: Frames,
    ) -> None:
        """Like `advance`, for all chains, with all threads on each layer."""
        raise NotImplementedError

    @property
    def most_layers(self) -> int:
        """How many layers it may advance before it is to `settle`."""
        return 1 << 62

    def settle(self, frames: Frames) -> None:
        """See to the precision of all chains, after each block and of what it recorded."""

    def work(self, dtype: np.dtype[Any] | None = None) -> cpu.Work:
        """Return the buffers of the calling thread, for rows of a dtype."""
        name = (dtype or self.dtype).name
        if not hasattr(self._buffers, name):
            setattr(self._buffers, name, memory.work(self.chain.batch, self.inputs or 1, name))
        buffers: cpu.Work = getattr(self._buffers, name)
        return buffers

    def activation(self, dtype: np.dtype[Any] | None = None) -> Any:
        """Return the activation as the kernels take it, for rows of a dtype."""
        return cpu.activation(self.sigma, (dtype or self.dtype).name)

    def _addressed(self, layer: int, stream: np.uint32, index: int) -> cpu.Draw:
        """Return where the random numbers of a layer of a chain begin."""
        return cpu.Draw(layer, stream | np.uint32(self.offset + index), *self.key_words)

    def check(self, status: NDArray[np.int64], first: int) -> None:
        """Raise what a kernel reported of the first chain that stopped."""
        stopped = np.flatnonzero(status[:, 0])
        if stopped.size:
            what, layer, row = (int(v) for v in status[stopped[0]])
            chain = self.offset + first + int(stopped[0])
            if what == cpu.ZERO_VARIANCE:
                raise ZeroVarianceError(chain, layer, row)
            raise NonFiniteError(chain, layer, "Gram matrix")


class ScaledSampler(Sampler):
    """A sampler of Gram matrices, whose scale is split off where the chain may have any."""

    def _allocate(self) -> None:
        #: The state is in units of 2**exponents, where a chain may have any scale.
        self.exponents = np.zeros(self.chains, np.int64)
        self.is_scaled = is_homogeneous(self.chain)

    @property
    def most_layers(self) -> int:
        if not self.is_scaled:
            return super().most_layers
        return layers_of_scale(self.chain, self.dtype.name)

    def require_scale(self, grams: NDArray[np.float64]) -> None:
        """Refuse Gram matrices so small that float64 rounds them, or makes them zero."""
        # Of the activations of the library none but those whose scale is split off are ever zero.
        zero = self.chain.activation.builtin & ~grams.any(axis=(1, 2))
        small = np.flatnonzero(zero | (exponents_of(grams) < -960))
        if small.size:
            chain = self.offset + int(small[0])
            raise NonFiniteError(chain, None, "Gram matrix, too small for float64, is")


class _RowSampler(ScaledSampler):
    """A sampler whose layers are made row by row."""

    def _allocate(self) -> None:
        super()._allocate()
        chain, chains = self.chain, self.chains
        self.panel = memory.panel_rows(chain.width, self.rows_are_worth)
        self.grams = np.zeros((chains, self.columns, self.columns))
        stride = memory.stride(chain.width)
        keeps_x = chain.skip != 0.0
        of_x = (chains, self.columns, stride) if keeps_x else (1, 1, 1)
        self.xs = memory.aligned_zeros(of_x, self.dtype)
        of_a = (chains, 2, memory.padded(self.columns), stride) if self.keeps_a else (1, 2, 0, 0)
        self.activations = memory.aligned_zeros(of_a, self.dtype)
        self.is_watched = self.dtype == np.float32 and (keeps_x or self.keeps_a)

    @property
    def precision_arrays(self) -> dict[str, NDArray[Any]]:
        """The part of the state that says how precise it is."""
        arrays: dict[str, NDArray[Any]] = {}
        if self.is_scaled:
            arrays["exponent"] = self.exponents
        if self.is_watched:
            arrays["unresolved"] = self.unresolved
        return arrays

    def settle(self, frames: Frames) -> None:
        if self.is_scaled:
            in_range(frames.gram, frames.log_scale, self.exponents)
            rows = [self.xs] if self.chain.skip != 0.0 else []
            rescale(self.grams, rows + [self.activations] * self.keeps_a, self.exponents)
        elif self.chain.norm == "none":
            self.require_scale(self.grams)
        if self.is_watched:
            n, centred = self.chain.batch, self.chain.norm == "batch"
            for first in range(0, self.columns, n):
                own = frames.gram[..., first : first + n, first : first + n]
                least = least_pivots(own, centred, self.chain.width)
                self.unresolved |= (least < LOST_PIVOT).any(axis=1)

    @property
    def keeps_a(self) -> bool:
        """Whether the activations of all rows are part of the state."""
        return False

    @property
    def rows_are_worth(self) -> int:
        """Numbers that a row costs."""
        return self.columns

    @property
    def panels(self) -> int:
        return -(-self.chain.width // self.panel)

    def begin(
        self, start: Covariance | Representation, first: int, last: int, frames: Frames
    ) -> None:
        if isinstance(start, Covariance):
            self._draw_start(start, first, last)
        else:
            self._copy_start(start, first, last)
        frames.gram[first:last, 0] = self.grams[first:last]

    def record(self, frames: Frames) -> None:
        frames.gram[:, 0] = self.grams

    def _draw_start(self, start: Covariance, first: int, last: int) -> None:
        """Draw rows with a covariance, as if it were the Gram matrix of a layer -1."""
        self.grams[first:last] = start.matrix
        # Neither the gain nor what x was before has a part in layer 0: x is zero.
        law = self.law._replace(gain=1.0)
        self._draw(law, first, last, 0, np.full(1, -1), np.zeros((last - first, 0, 1, 1)))

    def _draw(
        self,
        law: cpu.Law,
        first: int,
        last: int,
        layer: int,
        slots: NDArray[np.int64],
        record: NDArray[np.float64],
    ) -> None:
        """Take chains first:last through layers, each drawn given the one before.

        A float32 chain whose Gram matrix float32 rows do not resolve goes on in float64, for good:
        its small eigenvalues are then neither lost in rounding nor made of it.
        """
        if last - first > 1 and self.wide[first:last].any():
            for index in range(first, last):
                one = slice(index - first, index - first + 1)
                self._draw(law, index, index + 1, layer, slots, record[one])
            return
        dtype = np.dtype(np.float64) if self.wide[first] else self.dtype
        status = np.zeros((last - first, 3), np.int64)
        work = self.work(dtype)
        cpu.conditional_layers(
            self.activation(dtype), law, self.grams[first:last], self._xs(first, last, dtype),
            self._activations(first, last, dtype), self.offset + first, layer, slots, record,
            self.panel,
            *self.key_words, np.zeros_like(work.sums), work, status,
        )  # fmt: skip
        for index in (first + np.flatnonzero(status[:, 0] == cpu.UNRESOLVED)).tolist():
            self.wide[index] = True
            one = slice(index - first, index - first + 1)
            done = int(status[index - first, 1]) - layer
            status[one] = 0
            self._draw(law, index, index + 1, layer + done, slots[done:], record[one])
        self.check(status, first)

    def _copy_start(self, start: Representation, first: int, last: int) -> None:
        width, shared = self.chain.width, len(start.x) == 1
        work = memory.work(self.chain.batch, self.inputs or 1, np.dtype(np.float64))
        rows = memory.aligned_zeros((self.columns, memory.stride(width)), np.float64)
        for index in range(first, first + 1 if shared else last):
            rows[:, :width] = start.a[0 if shared else index].T
            if not cpu.gram_of_rows(rows, width, work, self.grams[index]):
                chain = None if shared else self.offset + index
                raise NonFiniteError(chain, 0, "Gram matrix")
        if shared:
            self.grams[first + 1 : last] = self.grams[first]

        some = slice(1) if shared else slice(first, last)
        kept = []
        with np.errstate(over="ignore"):
            if self.chain.skip != 0.0:
                kept.append(self.xs[first:last, :, :width])
                kept[-1][...] = start.x[some].swapaxes(1, 2)
            if self.keeps_a:
                kept.append(self.activations[first:last, 0, : self.columns, :width])
                kept[-1][...] = start.a[some].swapaxes(1, 2)
        for values in kept:
            finite = np.isfinite(values).all(axis=(1, 2))
            if not finite.all():
                chain = None if shared else self.offset + first + int(finite.argmin())
                raise NonFiniteError(chain, 0, f"{self.dtype} representation")

    def _xs(self, first: int, last: int, dtype: np.dtype[Any]) -> FloatArray:
        if self.chain.skip != 0.0:
            return self.xs[first:last]
        return self.xs.astype(dtype, copy=False)

    def _activations(self, first: int, last: int, dtype: np.dtype[Any]) -> FloatArray:
        if self.keeps_a:
            return self.activations[first:last]
        return self.activations.astype(dtype, copy=False)

    def advance_together(
        self,
        executor: Executor,
        threads: int,
        layer: int,
        slots: NDArray[np.int64],
        frames: Frames,
    ) -> None:
        parts = min(threads, self.panels)
        bounds = [self.panels * k // parts for k in range(parts + 1)]

        def share(make: Callable[[int, int], int]) -> list[int]:
            others = pairwise(bounds[1:])
            tasks = [executor.submit(make, *part) for part in others]
            return [make(bounds[0], bounds[1]), *(task.result() for task in tasks)]

        for index in range(self.chains):
            for step, slot in enumerate(slots):
                self._one_layer(index, layer + step, share)
                if slot >= 0:
                    frames.gram[index, slot] = self.grams[index]

    def _one_layer(
        self, index: int, layer: int, share: Callable[[Callable[[int, int], int]], list[int]]
    ) -> None:
        """Make one layer of one chain; `share` runs a task on ranges that make up all panels."""
        sums = self.work().sums.size
        panel_sums = np.zeros((self.panels, sums))
        x = self.xs[index if self.chain.skip != 0.0 else 0]
        degenerate = share(self._layer_task(index, layer, x, panel_sums))
        finite = cpu.merge_panels(panel_sums, self.law, np.zeros(sums), self.grams[index])
        rows = [row for row in degenerate if row >= 0]
        if not finite:
            raise NonFiniteError(self.offset + index, layer, "Gram matrix")
        if rows:
            raise ZeroVarianceError(self.offset + index, layer, min(rows))

    def _layer_task(
        self, index: int, layer: int, x: FloatArray, panel_sums: FloatArray
    ) -> Callable[[int, int], int]:
        """Return a function of a range of panels that makes them, for one layer of one chain."""
        raise NotImplementedError


class ConditionalSampler(_RowSampler):
    """Draws each layer given the Gram matrix of the one before; no weights exist."""

    name = path = "conditional"

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        arrays = {"gram": self.grams, "wide": self.wide, **self.precision_arrays}
        return {**arrays, "x": self.xs} if self.chain.skip != 0.0 else arrays

    @staticmethod
    def seconds(chain: Chain, columns: int, dtype: np.dtype[Any]) -> float:
        each = (0.6e-9 + 1e-11 * columns) * dtype.itemsize / 4
        return 1e-6 + chain.width * columns * each + 1e-10 * columns**3

    def advance(
        self, first: int, last: int, layer: int, slots: NDArray[np.int64], frames: Frames
    ) -> None:
        self._draw(self.law, first, last, layer, slots, frames.gram[first:last])

    def _layer_task(
        self, index: int, layer: int, x: FloatArray, panel_sums: FloatArray
    ) -> Callable[[int, int], int]:
        dtype = np.dtype(np.float64) if self.wide[index] else self.dtype
        own = self.work(dtype)
        least_pivot = cpu.factorise(
            self.grams[index], self.law, own.covariance, own.group_means, own.diagonal, own.panel,
            own.twin, own.factor, own.regular,
        )  # fmt: skip
        if dtype == np.float32 and self.chain.skip == 0.0 and least_pivot < cpu.RESOLVED_PIVOT:
            self.wide[index] = True
            return self._layer_task(index, layer, x, panel_sums)
        draw = self._addressed(layer, cpu.STREAM_ROWS, index)
        x = x.astype(dtype, copy=False)
        kept = self._activations(index, index + 1, dtype)[0, 0]
        sigma = self.activation(dtype)

        def make(first: int, last: int) -> int:
            work = self.work(dtype)._replace(factor=own.factor, regular=own.regular)
            degenerate: int = cpu.draw_panels(
                sigma, self.law, x, kept, first, last, self.panel, draw, work, panel_sums
            )
            return degenerate

        return make


class WeightsSampler(_RowSampler):
    """Draws the weights, a tile at a time, and multiplies: for every law of weights."""

    name = path = "weights"

    @property
    def keeps_a(self) -> bool:
        return True

    @property
    def rows_are_worth(self) -> int:
        return max(self.columns, self.chain.width)

    @property
    def weight_code(self) -> int:
        """How kernels call the law of the weights."""
        return weight_code(self.chain)

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        arrays = {
            "gram": self.grams, "activations": self.activations, **self.precision_arrays
        }  # fmt: skip
        return {**arrays, "x": self.xs} if self.chain.skip != 0.0 else arrays

    @staticmethod
    def seconds(chain: Chain, columns: int, dtype: np.dtype[Any]) -> float:
        return 1e-6 + chain.width**2 * (0.5e-9 + 1e-11 * columns) * dtype.itemsize / 4

    def advance(
        self, first: int, last: int, layer: int, slots: NDArray[np.int64], frames: Frames
    ) -> None:
        if self.weight_code == cpu.GIVEN:
            self._advance_given(first, last, layer, slots, frames)
            return
        status = np.zeros((last - first, 3), np.int64)
        work = self.work()
        cpu.weighted_layers(
            self.activation(), self.law, self.weight_code, np.zeros((1, 1), self.dtype),
            self.grams[first:last], self._xs(first, last, self.dtype),
            self.activations[first:last], self.offset + first, layer, slots,
            frames.gram[first:last], self.panel, *self.key_words, np.zeros_like(work.sums), work,
            status,
        )  # fmt: skip
        self.check(status, first)

    def _advance_given(
        self, first: int, last: int, layer: int, slots: NDArray[np.int64], frames: Frames
    ) -> None:
        """Let the user's sampler draw the weights, one panel at a time."""
        for index in range(first, last):
            for step, slot in enumerate(slots):
                self._one_layer(index, layer + step, lambda make: [make(0, self.panels)])
                if slot >= 0:
                    frames.gram[index, slot] = self.grams[index]

    def _layer_task(
        self, index: int, layer: int, x: FloatArray, panel_sums: FloatArray
    ) -> Callable[[int, int], int]:
        a = self.activations[index, (layer + 1) % 2]
        following = self.activations[index, layer % 2]
        draw = self._addressed(layer, cpu.STREAM_WEIGHTS, index)

        def multiply(given: FloatArray, first: int, last: int) -> int:
            degenerate: int = cpu.multiply_panels(
                self.activation(), self.law, self.weight_code, given, a, x, following, first,
                last, self.panel, draw, self.work(), panel_sums,
            )  # fmt: skip
            return degenerate

        def make(first: int, last: int) -> int:
            if self.weight_code != cpu.GIVEN:
                return multiply(np.zeros((1, 1), self.dtype), first, last)
            for panel in range(first, last):
                degenerate = multiply(self._given(index, layer, panel), panel, panel + 1)
                if degenerate >= 0:
                    return degenerate
            return -1

        return make

    def drawn(self, layer: int) -> FloatArray:
        """Return the weights W of a layer of the first chain, (width, width)."""
        width = self.chain.width
        weights = np.zeros((width, width), self.dtype)
        if self.weight_code == cpu.GIVEN:
            for panel in range(self.panels):
                rows = slice(panel * self.panel, min(width, (panel + 1) * self.panel))
                weights[rows] = self._given(0, layer, panel)[: rows.stop - rows.start]
        else:
            self._fill(weights, layer)
        weights /= np.sqrt(self.dtype.type(width))
        return weights

    def _fill(self, weights: FloatArray, layer: int) -> None:
        """Write unit-variance weights as the kernels draw them, tile by tile."""
        width = self.chain.width
        draw = self._addressed(layer, cpu.STREAM_WEIGHTS, 0)
        none = np.zeros((1, 1), self.dtype)
        tile = self.work().tile
        for row in range(0, width, cpu.BLOCK):
            for column in range(0, width, cpu.TILE):
                part = weights[row : row + cpu.BLOCK, column : column + cpu.TILE]
                rows, columns = part.shape
                cpu.fill_weights(
                    self.weight_code, none, tile, column, columns, row, cpu.BLOCK, draw
                )
                part[:] = tile.reshape(cpu.TILE, cpu.BLOCK)[:columns, :rows].T

    def _given(self, index: int, layer: int, panel: int) -> FloatArray:
        """Draw a panel of unit-variance weights by the user's sampler.

        The generator depends on key, chain, layer and panel alone.
        """
        assert callable(self.chain.weights)
        width = self.chain.width
        rows = min(self.panel, width - panel * self.panel)
        counter = [0, panel, layer, self.offset + index]
        generator = np.random.Generator(np.random.Philox(key=self.key, counter=counter))
        returned = self.chain.weights(generator, (rows, width))
        try:
            drawn = np.asarray(returned)
        except ValueError:  # a ragged sequence
            allowed = f"a sampler of real numbers of shape {(rows, width)}"
            raise ArgumentError("weights", returned, allowed) from None
        if drawn.shape != (rows, width) or drawn.dtype.kind not in "fiu":
            got = f"{drawn.dtype} of shape {drawn.shape}"
            raise ArgumentError("weights", got, f"real numbers of shape {(rows, width)}")
        if not np.isfinite(drawn).all():
            raise ArgumentError("weights", "a sample that is not finite", "finite real numbers")
        weights = np.zeros((self.panel, width), self.dtype)
        weights[:rows] = drawn
        return weights


class FactorSampler(Sampler):
    """Multiplies triangular Wishart factors: linear chains without normalization, any width."""

    name, path = "conditional", "factor"

    def _allocate(self) -> None:
        # Whole matrices are a few numbers: they are always float64.
        self.dtype = np.dtype(np.float64)
        self.factors = np.zeros((self.chains, self.columns, self.columns))
        self.exponents = np.zeros((self.chains, self.columns))
        self.log_starts = np.zeros(self.chains)

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        return {
            "factor": self.factors,
            "exponent": self.exponents,
            "log_start": self.log_starts,
        }

    @staticmethod
    def seconds(chain: Chain, columns: int, dtype: np.dtype[Any]) -> float:
        return 1e-6 + 1e-7 * columns**2 + 1e-9 * columns**3

    def begin(
        self, start: Covariance | Representation, first: int, last: int, frames: Frames
    ) -> None:
        if isinstance(start, Representation):
            for index in range(first, last):
                a = start.a[0 if len(start.a) == 1 else index]
                self.factors[index] = triangular_factor(a / np.sqrt(self.chain.width))
            slots = np.zeros(0, np.int64)
        else:
            self.factors[first:last] = triangular_factor(semidefinite_root(start.matrix))
            # The rows of layer 0 are drawn: its Gram matrix is W^T W / width for W of a Wishart
            # factor, without a gain.
            self.log_starts[first:last] = -np.log(self.chain.width)
            slots = np.full(1, -1)
        self._run(first, last, 0, slots, frames)
        self._record(first, last, 0, frames)

    def record(self, frames: Frames) -> None:
        self._record(0, self.chains, self.layer, frames)

    def _record(self, first: int, last: int, layer: int, frames: Frames) -> None:
        for index in range(first, last):
            common = cpu.log_of_factors(self.law, self.log_starts[index], layer)
            cpu.write_factor(
                self.factors[index], self.exponents[index], common, frames.gram[index, 0],
                frames.log_scale[index], frames.log_pivots[index], 0,
            )  # fmt: skip

    def advance(
        self, first: int, last: int, layer: int, slots: NDArray[np.int64], frames: Frames
    ) -> None:
        self._run(first, last, layer, slots, frames)

    def _run(
        self, first: int, last: int, layer: int, slots: NDArray[np.int64], frames: Frames
    ) -> None:
        cpu.factor_layers(
            self.law, self.factors[first:last], self.exponents[first:last],
            self.log_starts[first:last], self.offset + first, layer, slots, frames.gram[first:last],
            frames.log_scale[first:last], frames.log_pivots[first:last], *self.key_words,
            self.work(),
        )  # fmt: skip


def triangular_factor(a: FloatArray) -> NDArray[np.float64]:
    """Return the square upper triangular R with RᵀR = aᵀa and a diagonal that is not negative."""
    columns = a.shape[1]
    r = np.zeros((columns, columns))
    reduced: FloatArray = np.linalg.qr(np.asarray(a, dtype=np.float64), mode="r")  # type: ignore[assignment]
    r[: reduced.shape[0]] = reduced
    return r * np.where(np.diag(r) < 0.0, -1.0, 1.0)[:, None]


def semidefinite_root(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return R with RᵀR = matrix, for a positive semidefinite matrix."""
    values, vectors = np.linalg.eigh(matrix)
    root: NDArray[np.float64] = np.sqrt(np.maximum(values, 0.0))[:, None] * vectors.T
    return root


SAMPLERS: dict[str, type[Sampler]] = {
    sampler.path: sampler for sampler in (ConditionalSampler, WeightsSampler, FactorSampler)
}


def choose_sampler(chain: Chain, inputs: int | None, wanted: str, dtype: str) -> type[Sampler]:
    """Return the cheapest valid sampler, or the wanted one; raise if that is not valid."""
    if wanted == "weights":
        return WeightsSampler
    if not chain.is_gaussian:
        if wanted == "conditional":
            raise ArgumentError(
                "sampler", wanted, "'weights' or 'auto' unless the weights are Gaussian"
            )
        return WeightsSampler
    if chain.is_vanilla_linear:
        return FactorSampler
    if wanted == "conditional":
        return ConditionalSampler
    columns = chain.batch * (inputs or 1)
    candidates: list[type[Sampler]] = [ConditionalSampler, WeightsSampler]
    return min(candidates, key=lambda sampler: sampler.seconds(chain, columns, np.dtype(dtype)))
