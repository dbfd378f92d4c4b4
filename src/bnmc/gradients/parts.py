"""Some chains of a backward pass, forward and back, as one task of a worker."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from bnmc._kernels.cpu import memory
from bnmc._kernels.processor import host_cpu
from bnmc._support.arguments import Float64Array
from bnmc._support.interruption import Stop
from bnmc._support.version import versions
from bnmc._support.workers import ranges
from bnmc.chain.compiled import ends_of_skips
from bnmc.chain.layers import Linear
from bnmc.chain.start import Start
from bnmc.errors import NonFiniteError
from bnmc.gradients.descent import Descent, Stretch, buffers_of
from bnmc.gradients.directions import Direction, Readout
from bnmc.gradients.observables import (
    LOG_NORMS,
    GradientObservable,
    Gradients,
    in_units,
    log_norms,
)
from bnmc.simulation.engine.rows import RowSampler, bytes_of_thread
from bnmc.simulation.engine.sampler import Sampler
from bnmc.simulation.engine.state import Frames, State, bytes_of
from bnmc.simulation.runs import Run

#: Bytes that the matrices of a stretch of layers, or its representations, may take.
STRETCH_BYTES = 1 << 24

#: Seconds that a worker should need for a part.
PART_SECONDS = 0.5

#: Number of layers between two checks whether to stop.
_BLOCK_LAYERS = 256

#: Time of a forward and a backward pass, as a multiple of that of a forward pass.
_PASSES = 4.0


#: Results of some chains by name, each with an axis of chains first; the others have the names of
#: observables, which are identifiers.
Part = dict[str, NDArray[Any]]
NORMS, SCALES, WIDE = "log norms", "log scales", "has float64 rows by need"

#: Processor and versions of the process that made a part, without an axis of chains.
CPU, VERSIONS = "made on", "made with"


def made_here() -> Part:
    """Return what parts say about the process that makes them."""
    return {CPU: np.array([host_cpu()]), VERSIONS: np.array([versions()])}


def empty_part(run: Run, observables: Sequence[GradientObservable]) -> Part:
    """Return the results of the chains of a run, of which nothing is recorded yet."""
    shape = run.chains, run.recorded.count
    return {
        NORMS: np.zeros((run.chains, run.depth)),
        SCALES: np.zeros(shape),
        WIDE: np.zeros(run.chains, np.bool_),
        **{each.name: np.zeros((*shape, *each.shape_of(run.columns))) for each in observables},
    }


def joined(parts: Sequence[Part]) -> Part:
    """Return the results of consecutive chains."""
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


class Pass(ABC):
    """The way of some chains to the last layer and back, a stretch of layers at a time.

    The states at the ends of stretches are kept, and each stretch is made again from them.

    Parameters
    ----------
    task : Task
    run : Run
        These chains.
    start : Start
        Where they start.
    stop : Stop
        Set if the pass should end early.
    """

    def __init__(self, task: Task, run: Run, start: Start, stop: Stop) -> None:
        self.task, self.run, self.start, self.stop = task, run, start, stop
        self.part = empty_part(run, task.observables)

    def result(self) -> Part | None:
        """Go forward and back; return None if told to stop."""
        run, task = self.run, self.task
        ends = [*range(0, run.depth, task.layers_of_stretch(run.chains)), run.depth]
        # A skip path is in one stretch.
        ends = sorted({run.outside_of_blocks(end) for end in ends})
        states: list[Any] = [None]
        for first, last in pairwise(ends[:-1]):
            if self.stop.is_set():
                return None
            states.append(self._state_after(states[-1], first, last))
        while states:
            if self.stop.is_set():
                return None
            first, last = ends[len(states) - 1 : len(states) + 1]
            self._take(states.pop(), first, last)
        return None if self.stop.is_set() else self.part

    def _take(self, state: Any, first: int, last: int) -> None:
        """Make a stretch of layers, go down through it and record it, unless told to stop."""
        run, matrices = self.run, 3 if self.task.wants_hidden else 2
        stretch = self._stretch(state, first, last)
        if last == run.depth:
            self.part[WIDE][:] = stretch.wide
        shape = run.chains, last - first
        products = np.zeros((*shape, matrices, run.columns, run.columns))
        gradients = Gradients(products, np.zeros(shape))
        self._descend(stretch, gradients)
        if not self.stop.is_set():
            self._record(stretch, gradients)

    @abstractmethod
    def _state_after(self, state: Any, first: int, last: int) -> Any:
        """Go from layer `first`, the last one reached, to `last`; return the state there.

        `state` is that of layer `first`, or None for layer 0.  The result does not matter if the
        pass is told to stop.
        """

    @abstractmethod
    def _stretch(self, state: Any, first: int, last: int) -> Stretch:
        """Return layers first, …, last, given the state of the first one, or None for layer 0."""

    @abstractmethod
    def _descend(self, stretch: Stretch, gradients: Gradients) -> None:
        """Write the gradients of the layers of a stretch, from its last one to its second one.

        Some are missing if the pass is told to stop.
        """

    def _record(self, stretch: Stretch, gradients: Gradients) -> None:
        """Record the gradient norms of a stretch of layers, and the observables that are due."""
        products, scales = gradients
        part, recorded = self.part, self.run.recorded
        grams, units, first, count = stretch.grams, stretch.units, stretch.first, stretch.layers
        linears = [layer.linear for layer in self.run.layers]
        numbers = np.array([self.run.place(first + 1 + layer) for layer in range(count)])
        largest = units[:, :count].max(axis=-1, keepdims=True)
        seen = in_units(grams[:, :count], units[:, :count] - largest)
        for number in set(numbers.tolist()):
            patches = linears[number].patches
            if patches.taps > 1:
                at = (numbers == number)[:, None, None]
                seen = np.where(at, patches.covariance(seen), seen)
        squares = np.einsum("clij,clij->cl", products[:, :, 0], seen)
        factors = [2.0 * _log_of_product(each) for each in linears]
        with np.errstate(divide="ignore"):
            logs = 0.5 * (np.log(np.maximum(squares, 0.0)) + np.array(factors)[numbers])
        logs += math.log(2.0) * (scales + largest[..., 0])
        part[NORMS][:, first : first + count] = logs
        slots = recorded.slots(first + 1, first + 1 + count)
        due = np.flatnonzero(slots >= 0)
        if due.size == 0:
            return
        to = slots[due] + recorded.before(first + 1)
        part[SCALES][:, to] = math.log(2.0) * scales[:, due]
        if not self.task.observables:
            return
        widths = np.array([each.width for each in linears])[numbers[due], None, None]
        matrices = {
            "gram": in_units(grams[:, due + 1], units[:, due + 1]),
            "delta_gram": widths * products[:, due, 0],
        }
        if self.task.wants_hidden:
            matrices["hidden_delta"] = widths * products[:, due, 2]
        for name in {each.name for each in self.task.observables} & {*matrices}:
            finite = np.isfinite(matrices[name]).all(axis=(2, 3))
            if not finite.all():
                chain, at = np.argwhere(~finite)[0].tolist()
                number = self.run.first + chain, first + 1 + int(due[at])
                raise NonFiniteError(*number, f"{name}, too large for float64, is")
        if any(each.name in LOG_NORMS for each in self.task.observables):
            matrices |= log_norms(products[:, due, 0], scales[:, due], widths[:, 0, 0])
            matrices["log_bias_norm"][:, self.task.hides_bias[first + due]] = -np.inf
        for each in self.task.observables:
            part[each.name][:, to] = each.evaluate(matrices)


def _log_of_product(linear: Linear) -> float:
    """Return ln(|gain| √(width · fan_in))."""
    root = math.sqrt(linear.width * linear.fan_in)
    product = abs(linear.gain) * root
    is_finite = math.isfinite(product)
    return math.log(product) if is_finite else math.log(abs(linear.gain)) + math.log(root)


class RowPass(Pass):
    """The way of chains whose backward pass makes rows again, from Gram matrices."""

    def __init__(self, task: Task, run: Run, start: Start, stop: Stop) -> None:
        super().__init__(task, run, start, stop)
        self.sampler = self._sampler()
        self.descents = [
            Descent(self.sampler, index, task.wants_hidden) for index in range(run.chains)
        ]

    def _sampler(self) -> Sampler:
        """Return what makes the forward pass."""
        return RowSampler(self.run)

    def _state_after(self, state: State | None, first: int, last: int) -> State:
        if state is None:
            self._begin_forward(self._frames(1))
        for a, b in ranges(last - first, _BLOCK_LAYERS):
            self._advance(first + a, first + b, self._frames(b - a), 0)
        arrays = {name: values.copy() for name, values in self.sampler.arrays.items()}
        return self.run.state(last, arrays)

    def _stretch(self, state: State | None, first: int, last: int) -> Stretch:
        frames = self._frames(last - first + 1)
        if state is None:
            self._begin_forward(frames)
        else:
            self.sampler.take(state)
            self.sampler.record(frames)
        wide_before = self.sampler.wide.copy()
        # With a skip connection every representation is kept, in the units of the Gram matrices.
        keeps_x = "x" in self.run.layout
        shape = (last - first, *self.sampler.arrays["x"].shape[1:]) if keeps_x else (1, 1, 1)
        xs = np.zeros((self.run.chains, *shape), self.sampler.dtype)
        for a, b in ranges(last - first, 1 if keeps_x else _BLOCK_LAYERS):
            if keeps_x:
                xs[:, a] = self.sampler.arrays["x"]
            self._advance(first + a, first + b, frames, a + 1)
        return Stretch(first, frames.gram, frames.units, xs, wide_before, self.sampler.wide.copy())

    def _frames(self, layers: int) -> Frames:
        units = np.zeros((self.run.chains, layers, self.run.columns), np.int64)
        return self.run.frames(layers)._replace(units=units)

    def _begin_forward(self, frames: Frames) -> None:
        """Go to layer 0, and write it to the first slot."""
        self.sampler.take(self.run.state(0, {}))
        self.sampler.begin(self.start, 0, self.run.chains, frames)
        self._require_scale()

    def _advance(self, first: int, last: int, frames: Frames, slot: int) -> None:
        """Go from layer `first` to `last`, and write the layers on the way from `slot` on."""
        if self.stop.is_set():
            return
        slots = np.arange(slot, slot + last - first)
        self.sampler.advance(0, self.run.chains, first + 1, slots, frames)
        self._require_scale()

    def _require_scale(self) -> None:
        """Raise if the Gram matrices are too small for the dtype of the rows."""
        self.sampler.watch_precision(self.run.frames(0))

    def _descend(self, stretch: Stretch, gradients: Gradients) -> None:
        for index, descent in enumerate(self.descents):
            if self.stop.is_set():
                return
            of_chain = gradients.chain(index)
            rest = stretch.layers - self._begin(stretch, index, of_chain.products)
            descent.through(stretch, index, of_chain.part(0, rest))

    def _begin(self, stretch: Stretch, index: int, products: Float64Array) -> int:
        """Begin at the top of a chain; return the number of layers whose products are known."""
        if stretch.first + stretch.layers < self.run.depth:
            return 0
        return self.descents[index].begin(self.task.direction, stretch, products)

    def _record(self, stretch: Stretch, gradients: Gradients) -> None:
        # Rows of h have the units of the layer before.
        layers = range(stretch.first + 1, stretch.first + 1 + stretch.layers)
        lifts = np.array([self.run.stage(number).lift for number in layers])
        by = (stretch.units[:, :-1] + lifts[:, None])[:, :, None, :, None]
        hidden = gradients.products[:, :, 2:]
        hidden[:] = np.ldexp(hidden, by.astype(np.int32))
        super()._record(stretch, gradients)


@dataclass(frozen=True)
class Task:
    """What all parts of a backward pass have in common.

    Attributes
    ----------
    run : Run
        All chains; it records layers of 1, …, depth.
    direction : Direction
    observables : tuple of GradientObservable
    uses_blas : bool
        Whether the bits of the results depend on the BLAS of NumPy.
    """

    run: Run
    direction: Direction
    observables: tuple[GradientObservable, ...]
    uses_blas: ClassVar[bool] = False

    def __call__(
        self, start: Start, first: int, last: int, stop: Stop | None = None
    ) -> Part | None:
        """Take chains first:last forward and back; return None if told to stop."""
        parts, stop = [], stop or Stop(None)
        for begin, end in ranges(last - first, min(last - first, self.chains_of_pass)):
            run = self.run.part(first + begin, first + end)
            part = self.pass_of(run, start.part(begin, end), stop).result()
            if part is None:
                return None
            parts.append(part)
        return joined(parts) | made_here()

    def pass_of(self, run: Run, start: Start, stop: Stop) -> Pass:
        """Return the pass of the chains of a run."""
        return RowPass(self, run, start, stop)

    def require_device(self) -> None:
        """Raise unless the device of the backend has room for the chains."""

    @property
    def wants_hidden(self) -> bool:
        """Whether an observable needs hᵀδ."""
        return any(each.needs_hidden for each in self.observables)

    @cached_property
    def hides_bias(self) -> NDArray[np.bool_]:
        """Whether the loss does not depend on the bias of each layer, 1, …, depth."""
        run = self.run
        layers = [run.layer(number) for number in range(run.depth + 1)]
        ends, hidden = ends_of_skips(layers), np.zeros(run.depth + 1, np.bool_)
        is_seen_by_norm = isinstance(self.direction, Readout)
        hidden[-1] = is_seen_by_norm and layers[-1].rows.hides_common_part()
        for number in reversed(range(1, run.depth)):
            hidden[number] = layers[number].hides_common_part(hidden[ends[number]])
        return hidden[1:]

    @property
    def bytes_of_x(self) -> int:
        """Bytes of the representation of a layer of one chain; 0 without a skip connection."""
        layout = self.run.layout
        return bytes_of(layout["x"]) if "x" in layout else 0

    def layers_of_stretch(self, chains: int) -> int:
        """Return the number of layers of a stretch."""
        size = chains * (24 * self.run.columns**2 + self.bytes_of_x)
        return layers_of_stretch(self.run.depth, size, STRETCH_BYTES)

    @property
    def chains_of_pass(self) -> int:
        """The largest number of chains of a pass."""
        if not self.bytes_of_x:
            return self.run.chains
        # All representations of a stretch are kept.
        return max(1, STRETCH_BYTES // (self.layers_of_stretch(1) * self.bytes_of_x))

    @property
    def most_chains(self) -> int:
        """The largest number of chains of a part, by memory."""
        return STRETCH_BYTES // (24 * self.run.columns**2 * self.run.depth)

    def chains_of_part(self, threads: int | None) -> int:
        """Return the number of chains of a part; `threads` share them all."""
        by_time = int(PART_SECONDS / self.seconds_of_chain)
        return max(1, min(by_time, self.most_chains, -(-self.run.chains // (threads or 1))))

    @property
    def seconds_of_chain(self) -> float:
        """Seconds of a chain on one thread."""
        return _PASSES * self.run.depth * self.run.seconds

    @property
    def bytes_of_results(self) -> int:
        """Bytes of the results of a chain."""
        values = sum(math.prod(each.shape_of(self.run.columns)) for each in self.observables)
        return 8 * (self.run.depth + self.run.recorded.count * (1 + values))

    def bytes_of_pass(self, chains: int) -> int:
        """Return the bytes of the arrays of a pass at its peak, about."""
        run, layers, hidden = self.run, self.layers_of_stretch(chains), self.wants_hidden
        matrix = 8 * run.columns**2
        # Chains of float32 may continue in float64, and a readout is float64.
        buffers = memory.bytes_of_arrays(
            buffers_of(run, hidden, "float64", "float64", memory.unplaced)
        )
        # The state, those at the ends of stretches, and that of the gradient.
        states = -(-run.depth // layers) * run.bytes_of_chain + 2 * matrix + self.bytes_of_x
        # The Gram matrices, the products, and what is recorded of both.
        matrices = 1 + (2 + hidden) + (3 + hidden)
        return (
            bytes_of_thread(run) + buffers
            + chains * (states + matrix + layers * (matrices * matrix + self.bytes_of_x))
        )  # fmt: skip


def layers_of_stretch(depth: int, size: int, most: int) -> int:
    """Return the layers of a stretch: as many as `most` bytes hold, or √depth if these are more.

    The layers at the ends of stretches are kept, so √depth layers need the least memory.
    """
    return max(1, min(depth, max(most // size, math.isqrt(depth))))
