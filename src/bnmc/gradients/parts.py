"""Some chains of a backward pass, forward and back, as one task of a worker."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from threading import Event
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bnmc._kernels.cpu.backward_rows import bytes_of_rows
from bnmc._support.workers import ranges
from bnmc.chain.start import Covariance, Representation
from bnmc.gradients.descent import Descent
from bnmc.gradients.directions import Direction, GivenRows, Readout
from bnmc.gradients.forward import Forward, Stretch
from bnmc.gradients.observables import GradientObservable, Gradients, GradientView, in_units
from bnmc.simulation.engine.rows import RowSampler
from bnmc.simulation.engine.sampler import Sampler
from bnmc.simulation.engine.state import State, bytes_of
from bnmc.simulation.runs import Run

#: Bytes that the matrices of a stretch of layers, or its representations, may take.
STRETCH_BYTES = 1 << 24

#: Seconds that a worker should need for a part.
PART_SECONDS = 0.5

#: Time of a forward and a backward pass, as a multiple of that of a forward pass.
_PASSES = 4.0


class Part(NamedTuple):
    """Results of chains first, …, first + len(log_norms) - 1.

    log_norms : (chains, depth) ndarray of float64
    values : dict of (chains, recorded, ...) ndarray
    log_scale : (chains, recorded) ndarray of float64
    widened : list of int
        Numbers of the chains with float64 rows by need.
    """

    first: int
    log_norms: NDArray[np.float64]
    values: dict[str, NDArray[np.float64]]
    log_scale: NDArray[np.float64]
    widened: list[int]

    @staticmethod
    def empty(run: Run, observables: Sequence[GradientObservable]) -> Part:
        """Return the results of the chains of a run, of which nothing is recorded yet."""
        shape = run.chains, run.recorded.count
        values = {
            each.name: np.zeros((*shape, *each.shape_of(run.columns))) for each in observables
        }
        return Part(run.first, np.zeros((run.chains, run.depth)), values, np.zeros(shape), [])

    @staticmethod
    def joined(parts: Sequence[Part]) -> Part:
        """Return the results of consecutive chains."""
        values = {
            name: np.concatenate([part.values[name] for part in parts]) for name in parts[0].values
        }
        return Part(
            parts[0].first,
            np.concatenate([part.log_norms for part in parts]),
            values,
            np.concatenate([part.log_scale for part in parts]),
            [number for part in parts for number in part.widened],
        )


class Pass(ABC):
    """The way of some chains to the last layer and back, a stretch of layers at a time.

    The states at the ends of stretches are kept, and each stretch is made again from them.

    Parameters
    ----------
    task : Task
    run : Run
        These chains.
    start : Covariance or Representation
        Where they start.
    stop : Event
        Set if the pass should end early.
    """

    def __init__(
        self, task: Task, run: Run, start: Covariance | Representation, stop: Event
    ) -> None:
        self.task, self.run, self.start, self.stop = task, run, start, stop
        self.part = Part.empty(run, task.observables)

    def result(self) -> Part | None:
        """Go forward and back; return None if told to stop."""
        run, task = self.run, self.task
        ends = [*range(0, run.depth, task.layers_of_stretch(run.chains)), run.depth]
        states: list[Any] = [None, *self._checkpoints(ends[1:-1])]
        while states:
            if self.stop.is_set():
                return None
            first, last = ends[len(states) - 1 : len(states) + 1]
            stretch = self._stretch(states.pop(), first, last)
            if last == run.depth:
                self.part.widened.extend((run.first + np.flatnonzero(stretch.wide)).tolist())
            shape, matrices = (run.chains, last - first), 3 if task.wants_hidden else 2
            products = np.zeros((*shape, matrices, run.columns, run.columns))
            gradients = Gradients(products, np.zeros(shape))
            self._descend(stretch, gradients)
            if self.stop.is_set():
                return None
            self._record(stretch, gradients)
        return self.part

    @abstractmethod
    def _checkpoints(self, layers: list[int]) -> list[Any]:
        """Return states of ascending layers; fewer if told to stop."""

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
        chain, part, recorded = self.run.chain, self.part, self.run.recorded
        grams, units, first, count = stretch.grams, stretch.units, stretch.first, stretch.layers
        largest = units[:, :count].max(axis=-1, keepdims=True)
        seen = in_units(grams[:, :count], units[:, :count] - largest)
        if chain.convolution is not None:  # weights multiply patches
            seen = chain.convolution.covariance(seen)
        squares = np.einsum("clij,clij->cl", products[:, :, 0], seen)
        factor = 2.0 * math.log(abs(chain.gain) * math.sqrt(chain.width * chain.fan_in))
        with np.errstate(divide="ignore"):
            logs = 0.5 * (np.log(np.maximum(squares, 0.0)) + factor)
        logs += math.log(2.0) * (scales + largest[..., 0])
        part.log_norms[:, first : first + count] = logs
        slots = recorded.slots(first + 1, first + 1 + count)
        due = np.flatnonzero(slots >= 0)
        if due.size == 0:
            return
        to = slots[due] + recorded.before(first + 1)
        part.log_scale[:, to] = math.log(2.0) * scales[:, due]
        view = GradientView(chain, in_units(grams[:, due + 1], units[:, due + 1]), products[:, due])
        for each in self.task.observables:
            part.values[each.name][:, to] = each.evaluate(view)


class RowPass(Pass):
    """The way of chains whose backward pass makes rows again, from Gram matrices."""

    def __init__(
        self, task: Task, run: Run, start: Covariance | Representation, stop: Event
    ) -> None:
        super().__init__(task, run, start, stop)
        sampler = self._sampler()
        self.forward = Forward(run, start, sampler)
        self.descents = [Descent(sampler, index, task.wants_hidden) for index in range(run.chains)]

    def _sampler(self) -> Sampler:
        """Return what makes the forward pass."""
        return RowSampler(replace(self.run, path="conditional"))

    def _checkpoints(self, layers: list[int]) -> list[State]:
        return self.forward.checkpoints(layers, self.stop.is_set)

    def _stretch(self, state: State | None, first: int, last: int) -> Stretch:
        return self.forward.stretch(state, last, self.stop.is_set)

    def _descend(self, stretch: Stretch, gradients: Gradients) -> None:
        for index, descent in enumerate(self.descents):
            if self.stop.is_set():
                return
            of_chain = gradients.chain(index)
            rest = stretch.layers - self._begin(stretch, index, of_chain.products)
            descent.through(stretch, index, of_chain.part(0, rest))

    def _begin(self, stretch: Stretch, index: int, products: NDArray[np.float64]) -> int:
        """Begin at the top of a chain; return the number of layers whose products are known."""
        run, direction, descent = self.run, self.task.direction, self.descents[index]
        number, last = run.first + index, stretch.first + stretch.layers
        if last < run.depth:
            return 0
        if isinstance(direction, Readout):
            outputs, normals = descent.readout(
                direction.classes, last, stretch.grams[index, -1], stretch.units[index, -1]
            )
            gradient = direction.of_columns(outputs, number, last)
            descent.begin_with_readout(gradient, normals)
            return 0
        # The layer at the top has its gradient already.
        products[-1] = descent.begin_with_rows(
            direction.of(number) if isinstance(direction, GivenRows) else None,
            last, stretch.grams[index, -2], stretch.xs[index, -1], bool(stretch.wide[index]),
        )  # fmt: skip
        return 1

    def _record(self, stretch: Stretch, gradients: Gradients) -> None:
        # Rows of h have the units of the layer before.
        by = (stretch.units[:, :-1] + self.descents[0].lift)[:, :, None, :, None]
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
    """

    run: Run
    direction: Direction
    observables: tuple[GradientObservable, ...]

    def __call__(
        self, start: Covariance | Representation, first: int, last: int, stop: Event | None = None
    ) -> Part | None:
        """Take chains first:last forward and back; return None if told to stop."""
        parts, stop = [], stop or Event()
        for begin, end in ranges(last - first, min(last - first, self.chains_of_pass)):
            run = self.run.part(first + begin, first + end)
            part = self.pass_of(run, start.part(begin, end), stop).result()
            if part is None:
                return None
            parts.append(part)
        return Part.joined(parts)

    def pass_of(self, run: Run, start: Covariance | Representation, stop: Event) -> Pass:
        """Return the pass of the chains of a run."""
        return RowPass(self, run, start, stop)

    def require_device(self) -> None:
        """Raise unless the device of the backend has room for the chains."""

    @property
    def wants_hidden(self) -> bool:
        """Whether an observable needs hᵀδ."""
        return any(each.needs_hidden for each in self.observables)

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
        by_time = int(PART_SECONDS / (_PASSES * self.run.depth * self.run.seconds))
        return max(1, min(by_time, self.most_chains, -(-self.run.chains // (threads or 1))))

    def bytes_of_pass(self, chains: int) -> int:
        """Return the bytes of the arrays of a pass, about."""
        run, layers = self.run, self.layers_of_stretch(chains)
        itemsize = np.dtype(run.dtype).itemsize
        size = bytes_of_rows(run.chain.width, run.columns, itemsize, self.bytes_of_x > 0)
        # Representations within a stretch, and of the states between stretches.
        each = (layers + run.depth // layers) * self.bytes_of_x
        return size + chains * (layers * 40 * run.columns**2 + each)


def layers_of_stretch(depth: int, size: int, most: int) -> int:
    """Return the layers of a stretch: as many as `most` bytes hold, or √depth if these are more.

    The layers at the ends of stretches are kept, so √depth layers need the least memory.
    """
    return max(1, min(depth, max(most // size, math.isqrt(depth))))
