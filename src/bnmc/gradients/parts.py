"""Some chains of a backward pass, forward and back, as one task of a worker."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Event
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bnmc._kernels.cpu import memory
from bnmc._support.workers import ranges
from bnmc.chain.chain import Chain
from bnmc.chain.start import Covariance, Representation
from bnmc.gradients.descent import BuffersOfThread, Descent
from bnmc.gradients.directions import Direction, GivenRows, Readout
from bnmc.gradients.forward import Forward, Stretch
from bnmc.gradients.observables import GradientObservable, GradientView, in_units
from bnmc.simulation.engine.conditional import ConditionalSampler
from bnmc.simulation.engine.sampler import ScaledSampler
from bnmc.simulation.runs import Recorded

#: Bytes that the matrices of a stretch of layers, or its representations, may take.
STRETCH_BYTES = 1 << 24


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
    def empty(task: Task, first: int, last: int) -> Part:
        """Return the results of chains first:last, of which nothing is recorded yet."""
        count, slots = last - first, task.recorded.count
        shapes = {each.name: each.shape_of(task.columns) for each in task.observables}
        values = {name: np.zeros((count, slots, *shape)) for name, shape in shapes.items()}
        return Part(first, np.zeros((count, task.depth)), values, np.zeros((count, slots)), [])

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

    def record(
        self,
        task: Task,
        first: int,
        grams: NDArray[np.float64],
        units: NDArray[np.int64],
        states: NDArray[np.float64],
        scales: NDArray[np.float64],
    ) -> None:
        """Record the gradient norms of a stretch of layers, and the observables that are due.

        Parameters
        ----------
        task : Task
        first : int
            The layer before the first one.
        grams : (chains, layers + 1, columns, columns) ndarray
            Of layers `first`, ….
        units : (chains, layers + 1, columns) ndarray
            Their units; see `Stretch`.
        states : (chains, layers, 2 or 3, columns, columns) ndarray
            δᵀδ / width and so on of the layers after `first`.
        scales : (chains, layers) ndarray
            δ is in units of 2**scales.
        """
        chain, begin, count = task.chain, first + 1, scales.shape[1]
        largest = units[:, :count].max(axis=-1, keepdims=True)
        seen = in_units(grams[:, :count], units[:, :count] - largest)
        if chain.convolution is not None:  # weights multiply patches
            seen = chain.convolution.covariance(seen)
        products = np.einsum("clij,clij->cl", states[:, :, 0], seen)
        factor = 2.0 * math.log(abs(chain.gain) * math.sqrt(chain.width * chain.fan_in))
        with np.errstate(divide="ignore"):
            logs = 0.5 * (np.log(np.maximum(products, 0.0)) + factor)
        logs += math.log(2.0) * (scales + largest[..., 0])
        self.log_norms[:, first : first + count] = logs
        slots = task.recorded.slots(begin, begin + count)
        due = np.flatnonzero(slots >= 0)
        if due.size == 0:
            return
        to = slots[due] + task.recorded.before(begin)
        self.log_scale[:, to] = math.log(2.0) * scales[:, due]
        view = GradientView(chain, in_units(grams[:, due + 1], units[:, due + 1]), states[:, due])
        for each in task.observables:
            self.values[each.name][:, to] = each.evaluate(view)


@dataclass(frozen=True)
class Task:
    """What all parts of a backward pass have in common.

    Attributes
    ----------
    chain : Chain
    depth : int
    inputs : int or None
    dtype : str
    key : int
    direction : Direction
    observables : tuple of GradientObservable
    recorded : Recorded
        The layers, of 1, …, depth.
    """

    chain: Chain
    depth: int
    inputs: int | None
    dtype: str
    key: int
    direction: Direction
    observables: tuple[GradientObservable, ...]
    recorded: Recorded

    def __call__(
        self, start: Covariance | Representation, first: int, last: int, stop: Event | None = None
    ) -> Part | None:
        """Take chains first:last forward and back; return None if told to stop."""
        buffers: dict[tuple[str, str], BuffersOfThread] = {}
        size = last - first
        if self.chain.skip != 0.0:
            # All representations of a stretch are kept: few chains at a time.
            itemsize = np.dtype(self.dtype).itemsize
            layers = stretch_layers(self.chain, self.columns, 1, itemsize, self.depth)
            rows = itemsize * self.columns * memory.stride(self.chain.width)
            size = max(1, min(size, STRETCH_BYTES // (layers * rows)))
        done = []
        for begin, end in ranges(last - first, size):
            part = Pass(
                self, start.part(begin, end), first + begin, first + end, stop or Event(), buffers
            ).run()
            if part is None:
                return None
            done.append(part)
        return Part.joined(done)

    @property
    def chains_of_part(self) -> int | None:
        """The number of chains of a part; None if it depends on the time that a chain takes."""
        return None

    @property
    def backend(self) -> str:
        """Where the chains are: "cpu" or "cuda"."""
        return "cpu"

    def require_device(self) -> None:
        """Raise unless the device of the backend has room for the chains."""

    @property
    def sampler(self) -> str:
        """What `backpropagate` calls the sampler."""
        return "conditional"

    @property
    def columns(self) -> int:
        """Number of samples in all input batches."""
        return self.chain.batch * (self.inputs or 1)

    @property
    def wants_hidden(self) -> bool:
        """Whether an observable needs hᵀδ."""
        return any(each.needs_hidden for each in self.observables)


def layers_of_stretch(depth: int, size: int, most: int) -> int:
    """Return the layers of a stretch: as many as `most` bytes hold, or √depth if these are more.

    The layers at the ends of stretches are kept, so √depth layers need the least memory.
    """
    return max(1, min(depth, max(most // size, math.isqrt(depth))))


def stretch_layers(chain: Chain, columns: int, chains: int, itemsize: int, depth: int) -> int:
    """Return the layers of a stretch of chains that keep Gram matrices."""
    size = 24 * columns**2 * chains
    if chain.skip != 0.0:
        size += chains * itemsize * columns * memory.stride(chain.width)
    return layers_of_stretch(depth, size, STRETCH_BYTES)


class Pass:
    """The work of one task."""

    def __init__(
        self,
        task: Task,
        start: Covariance | Representation,
        first: int,
        last: int,
        stop: Event,
        buffers: dict[tuple[str, str], BuffersOfThread],
    ) -> None:
        self.task, self.first, self.count, self.stop = task, first, last - first, stop
        self.forward = Forward(start, self._sampler())
        self.descents = [
            Descent(
                task.chain,
                task.inputs or 1,
                task.key,
                number,
                task.dtype,
                task.wants_hidden,
                buffers,
            )
            for number in range(first, last)
        ]
        self.part = Part.empty(task, first, last)

    def _sampler(self) -> ScaledSampler:
        """Return what makes the forward pass."""
        task = self.task
        return ConditionalSampler(
            task.chain, self.count, task.inputs, task.dtype, task.key, self.first
        )

    def run(self) -> Part | None:
        """Go forward to the last layer and back to the first."""
        task = self.task
        size = stretch_layers(
            task.chain, task.columns, self.count, np.dtype(task.dtype).itemsize, task.depth
        )
        ends = list(range(0, task.depth, size))[1:]
        states = self.forward.checkpoints(ends, self.stop.is_set) if ends else []
        if len(states) < len(ends):
            return None
        last = task.depth
        for state in [*reversed(states), None]:
            stretch = self.forward.stretch(state, last, self.stop.is_set)
            if last == task.depth:
                self.part.widened.extend((self.first + np.flatnonzero(stretch.wide)).tolist())
            layers = last - stretch.first
            matrices = 3 if task.wants_hidden else 2
            products = np.empty((self.count, layers, matrices, task.columns, task.columns))
            scales = np.zeros((self.count, layers))
            self._descend(stretch, last, products, scales)
            if self.stop.is_set():
                return None
            self._record(stretch, products, scales)
            last = stretch.first
        return self.part

    def _descend(
        self,
        stretch: Stretch,
        last: int,
        states: NDArray[np.float64],
        scales: NDArray[np.float64],
    ) -> None:
        """Take all chains down through a stretch; write states and log-scales of its layers.

        Some are missing if the task is told to stop.
        """
        for index, descent in enumerate(self.descents):
            if self.stop.is_set():
                return
            done = self._begin(stretch, index, last, states[index])
            count = states.shape[1] - done
            descent.through(
                stretch, index, last - done, states[index, :count], scales[index, :count]
            )

    def _begin(self, stretch: Stretch, index: int, last: int, states: NDArray[np.float64]) -> int:
        """Begin at the top of a chain; return the number of layers whose states are known."""
        if last < self.task.depth:
            return 0
        if isinstance(self.task.direction, Readout):
            self._begin_with_readout(stretch, index)
            return 0
        # The layer at the top has its gradient already.
        states[-1] = self._begin_with_rows(stretch, index)
        return 1

    def _begin_with_rows(self, stretch: Stretch, index: int) -> NDArray[np.float64]:
        task = self.task
        direction = task.direction
        given = direction.of(self.first + index) if isinstance(direction, GivenRows) else None
        return self.descents[index].begin_with_rows(
            given, task.depth, stretch.grams[index, -2], stretch.xs[index, -1],
            bool(stretch.wide[index]),
        )  # fmt: skip

    def _begin_with_readout(self, stretch: Stretch, index: int) -> None:
        descent, direction = self.descents[index], self.task.direction
        assert isinstance(direction, Readout)
        outputs, normals = descent.readout(
            direction.classes, self.task.depth, stretch.grams[index, -1],
            stretch.units[index, -1],
        )  # fmt: skip
        gradient = direction.of_columns(outputs, self.first + index, self.task.depth)
        descent.begin_with_readout(gradient, normals)

    def _record(
        self, stretch: Stretch, states: NDArray[np.float64], scales: NDArray[np.float64]
    ) -> None:
        """Record a stretch of layers, whose states are (chains, layers, 2 or 3, ...)."""
        if self.task.wants_hidden:
            # Rows of h have the units of the layer before.
            by = (stretch.units[:, :-1] + self.descents[0].lift)[:, :, None, :, None]
            states[:, :, 2:] = np.ldexp(states[:, :, 2:], by.astype(np.int32))
        self.part.record(self.task, stretch.first, stretch.grams, stretch.units, states, scales)
