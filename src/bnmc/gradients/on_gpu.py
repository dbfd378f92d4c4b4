"""A backward pass on a GPU: many chains at a time, one launch of two kernels per layer.

The kernels are those of `_kernels.gpu.backward`, the forward pass is that of the sampler on GPUs.
Random numbers are those of the CPU, so results agree up to rounding.  A chain that float32 does not
resolve goes on with the kernels of the CPU.  Layers in passes have other kernels and arrays, see
`on_gpu_passes.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from threading import Event
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bnmc._kernels.gpu.backward_frame import sums_of
from bnmc._kernels.gpu.block import (
    NOT_STOPPED,
    STEP_BITS,
    STOPPED_NOT_FINITE,
    STOPPED_UNRESOLVED,
)
from bnmc._kernels.gpu.build import BackwardKernels, backward_kernels_of
from bnmc._kernels.gpu.device import cuda as numba_cuda
from bnmc._kernels.gpu.device import processors, ready, shared_memory
from bnmc._kernels.gpu.shape import MOST_RANGES, Shape, Spec
from bnmc._kernels.scalar import codes
from bnmc.chain.chain import Chain
from bnmc.chain.compiled import norm_of_factor, raise_stopped, sigma_of, spec_of
from bnmc.chain.slopes import slope_of
from bnmc.chain.start import Covariance, Representation
from bnmc.errors import BackendError
from bnmc.gradients.descent import Descent
from bnmc.gradients.directions import GivenRows, Readout
from bnmc.gradients.forward import Stretch
from bnmc.gradients.parts import Part, Pass, Task
from bnmc.simulation.engine.gpu.arrays import device_memory
from bnmc.simulation.engine.gpu.samplers import GpuConditionalSampler
from bnmc.simulation.engine.sampler import ScaledSampler

__all__ = [
    "BLOCKS_OF_PROCESSOR",
    "MOST_OF_GRID",
    "PART_BYTES",
    "Arrays",
    "GpuLaunch",
    "GpuPass",
    "GpuTask",
]

#: Bytes that the matrices of a stretch of layers of all chains of a part, or its representations,
#: may take.
PART_BYTES = 1 << 28

#: Most chains of a part: they are an axis of the grid.
MOST_OF_GRID = 65_535

FEWER_CHAINS = "backpropagate fewer chains at a time, or on the CPU"

#: Blocks per multiprocessor among which the rows of few chains are divided.
BLOCKS_OF_PROCESSOR = 2


def _kernels(chain: Chain, inputs: int, dtype: str) -> BackwardKernels:
    """Return the kernels of a chain."""
    spec = Spec(
        chain.batch * inputs, chain.batch, norm_of_factor(spec_of(chain, inputs)),
        chain.skip != 0.0, False, dtype,
        sigma_of(chain.activation).digest, slope=slope_of(chain.activation).digest,
    )  # fmt: skip
    return backward_kernels_of(spec)


class GpuTask(Task):
    """A `Task` whose chains are on a GPU."""

    def __call__(
        self, start: Covariance | Representation, first: int, last: int, stop: Event | None = None
    ) -> Part | None:
        """Take chains first:last forward and back; return None if told to stop."""
        return self._pass()(self, start, first, last, stop or Event(), {}).run()

    def _pass(self) -> type[GpuPass]:
        return GpuPass

    @property
    def backend(self) -> str:
        """Where the chains are."""
        return "cuda"

    def require_device(self) -> None:
        """Raise unless the shared memory of a block suffices.

        Raises
        ------
        BackendError
        """
        needed = self._bytes_of_block()
        if needed > shared_memory():
            raise BackendError(
                "cuda",
                f"gradients of {self.columns} columns in {self.dtype} need {needed} bytes of "
                f"shared memory, the device has {shared_memory()}: backend='cpu'",
            )

    def _bytes_of_block(self) -> int:
        """Return the bytes of shared memory that a block needs."""
        return _kernels(self.chain, self.inputs or 1, self.dtype).room.bytes

    @property
    def chains_of_part(self) -> int:
        """The largest number of chains of a part."""
        size = 24 * self.columns**2
        if self.chain.skip != 0.0:
            size += np.dtype(self.dtype).itemsize * self.columns * self.chain.width
        layers = 2 * math.isqrt(self.depth) + 2
        return max(1, min(MOST_OF_GRID, PART_BYTES // (size * layers)))


class GpuPass(Pass):
    """The work of one task."""

    _bases: NDArray[np.float64] | None = None
    _wide: NDArray[np.bool_]

    def _launch(self) -> type[GpuLaunch]:
        return GpuLaunch

    def _sampler(self) -> ScaledSampler:
        task = self.task
        return GpuConditionalSampler(
            task.chain, self.count, task.inputs, task.dtype, task.key, self.first
        )

    def _descend(
        self,
        stretch: Stretch,
        last: int,
        states: NDArray[np.float64],
        scales: NDArray[np.float64],
    ) -> None:
        if self.stop.is_set():
            return  # the stretch may lack layers
        task = self.task
        if last == task.depth:
            # For the whole descent, so that bits do not depend on how it is cut into stretches.
            self._wide = stretch.wide
        one = self._launch()(
            task, self.descents, stretch, last, self.first, self._wide, self._bases
        )
        one.has_top = last == task.depth and not isinstance(task.direction, Readout)
        for index in range(self.count):
            # Kernels of the CPU begin with the rows of chains with which they go on.
            if one.wide[index] or not one.has_top:
                self._begin(stretch, index, last, states[index])
        one.run(states, scales, self.stop)
        self._bases = one.bases


class Arrays(NamedTuple):
    """Arrays on the device; see the kernels."""

    grams: Any
    scales: Any
    ratios: Any
    xs: Any
    above: Any
    state: Any
    basis: Any
    mixing: Any
    sums: Any
    arrived: Any
    record: Any
    factors: Any
    status: Any


class GpuLaunch:
    """The way of all chains of a part down through a stretch of layers.

    Parameters
    ----------
    task : Task
    descents : list of Descent
        Of the chains.
    stretch : Stretch
    last : int
        The layer to reach first.
    first_chain : int
    wide : (chains,) bool
        The float32 chains whose last layer has float64 rows.
    bases : (chains, columns, columns) ndarray or None
        See the attribute; None for the first stretch.
    """

    #: Steps of a layer, and of the top.
    launches, of_top = 2, 1

    def __init__(
        self, task: Task, descents: list[Descent], stretch: Stretch, last: int, first_chain: int,
        wide: NDArray[np.bool_], bases: NDArray[np.float64] | None,
    ) -> None:  # fmt: skip
        self.task, self.descents, self.stretch = task, descents, stretch
        self.last, self.layers, self.first_chain = last, last - stretch.first, first_chain
        self.spec, self.lift = descents[0].spec, descents[0].lift
        #: Precision of the rows.
        self.dtype = self._dtype()
        self.kernels = self._kernels()
        #: Chains that the kernels of the CPU take.
        self.wide = wide | np.array([one.backward_dtype != task.dtype for one in descents])
        #: The factors of what the layer above the stretch saw, as the stretch above has left them.
        self.bases = bases
        #: Whether layer `last` has its gradient already; else the descents have the state above it.
        self.has_top = False

    def _dtype(self) -> str:
        return self.task.dtype

    def _kernels(self) -> Any:
        return _kernels(self.task.chain, self.task.inputs or 1, self.dtype)

    def run(
        self, states: NDArray[np.float64], log_scales: NDArray[np.float64], stop: Event
    ) -> None:
        """Write states and log-scales of the layers, in ascending order."""
        size = 8 * states.size + self.stretch.xs.nbytes + self.stretch.grams.nbytes
        with device_memory("chains", size, FEWER_CHAINS):
            arrays = self._arrays(states.shape[2])
            self._start(arrays, states.shape[2] == 3)
            record, factors = arrays.record.copy_to_host(), arrays.factors.copy_to_host()
            status, last_states = arrays.status.copy_to_host(), arrays.state.copy_to_host()
            above, self.bases = arrays.above.copy_to_host(), arrays.basis.copy_to_host()
        for index, descent in enumerate(self.descents):
            if stop.is_set():
                return
            done = self._finished(index, int(status[index]))
            rest = self.layers - done
            states[index, rest:] = record[index, rest:]
            if self.wide[index]:
                rest -= self.has_top
            else:
                self._take(descent, factors[index], log_scales[index], done)
                descent.state = last_states[index]
                if self.task.chain.skip != 0.0:
                    descent.above = descent.blocks_of(above[index])
            if rest:
                descent.through(
                    self.stretch, index, self.stretch.first + rest, states[index, :rest],
                    log_scales[index, :rest],
                )  # fmt: skip

    def _finished(self, index: int, noted: int) -> int:
        """Return the number of layers that a chain has reached, or raise its error."""
        if self.wide[index]:
            return 0
        if noted == NOT_STOPPED:
            return self.layers
        step, reason = int(noted >> STEP_BITS), noted & (1 << STEP_BITS) - 1
        done = (step + self.has_top * (self.launches - self.of_top)) // self.launches
        if reason == STOPPED_UNRESOLVED:
            self.descents[index].backward_dtype = "float64"
            return done
        self._raise(self.first_chain + index, self.last - done, reason)
        raise AssertionError

    def _raise(self, chain: int, layer: int, reason: int) -> None:
        """Raise the error that a kernel noted."""
        code = codes.NOT_FINITE if reason == STOPPED_NOT_FINITE else codes.ZERO_VARIANCE
        raise_stopped(code, chain, layer, reason)

    def _take(
        self,
        descent: Descent,
        factors: NDArray[np.float64],
        log_scales: NDArray[np.float64],
        done: int,
    ) -> None:
        """Write the log-scales of the layers that a chain has reached, and its stage."""
        for step in range(done):
            at, is_top = self.layers - 1 - step, step == 0 and self.has_top
            if not is_top:
                # A readout has no gain.
                lift = 0 if descent.stage == codes.READOUT else self.lift
                descent.log_scale += lift - math.log2(factors[at])
            log_scales[at] = descent.log_scale
            descent.stage = codes.TOP if is_top else codes.INNER

    def _arrays(self, matrices: int) -> Arrays:
        """Copy the layers, and the states of the chains, to the device."""
        law, stretch, layers, dtype = self.spec, self.stretch, self.layers, self.dtype
        count, n, shape = len(self.descents), law.columns, self.kernels.shape
        grams = np.ascontiguousarray(stretch.grams[:, : layers + 1])
        units = stretch.units[:, : layers + 1]
        ratios = np.exp2(units[:, :-1] - units[:, 1:] + float(self.lift))
        seen = self._seen(grams[:, :-1])
        if self.bases is None:
            # What the layer saw that is above the first one to reach from above.
            above_it = seen[:, -1] if self.has_top else grams[:, -1]
            self.bases = self._bases_of(above_it)
        above = np.zeros((1, 1, 1), dtype)
        if self.task.chain.skip != 0.0:
            above = np.zeros((count, n, stretch.xs.shape[-1]), dtype)
            for own, descent, wide in zip(above, self.descents, self.wide, strict=True):
                if descent.above is not None and not wide:
                    descent.copy_above(own)
        status = np.where(self.wide, np.int64(-1), np.int64(NOT_STOPPED))
        tiles = min(shape.tiles(law.width), MOST_RANGES)

        def empty(*lengths: int) -> Any:
            return numba_cuda.device_array((count, *lengths), np.float64)

        send = numba_cuda.to_device
        return Arrays(
            grams=send(np.ascontiguousarray(seen)),
            scales=send(self._scales(grams[:, :-1])),
            ratios=send(np.ascontiguousarray(ratios)),
            xs=send(np.ascontiguousarray(stretch.xs, dtype)),
            above=send(above),
            state=send(np.stack([one.state for one in self.descents])),
            basis=send(self.bases),
            mixing=empty(n, n),
            sums=empty(tiles, self._sums_of(shape)),
            arrived=send(np.zeros(count, np.int32)),
            record=empty(layers, matrices, n, n),
            factors=empty(layers),
            status=send(status),
        )

    def _sums_of(self, shape: Shape) -> int:
        """Return how many sums over rows a range of tiles has."""
        return sums_of(shape)

    def _bases_of(self, seen: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the factors of what a layer of each chain saw."""
        return np.stack([one.basis_of(gram) for one, gram in zip(self.descents, seen, strict=True)])

    def _seen(self, grams: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the covariances of the rows of W a, given the Gram matrices of the layers."""
        return grams

    def _scales(self, grams: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the scale of the rows h of each layer, in place of the gain if N ignores it."""
        law = self.spec
        if not law.hides_scale:
            return np.full(grams.shape[:2], law.gain)
        largest = np.diagonal(grams, axis1=-2, axis2=-1).max(axis=-1)
        scales: NDArray[np.float64] = np.ldexp(1.0, -(np.frexp(largest)[1] // 2))
        return scales

    def _start(self, arrays: Arrays, hidden: bool) -> None:
        """Launch the kernels of all layers."""
        step, stage, at = 0, self.descents[0].stage, self.layers - 1
        if self.has_top:
            for task in self._at_top(arrays, hidden):
                task(codes.TOP, self.last, at, step)
                step += 1
            stage, at = codes.TOP, at - 1
        tasks = self._tasks(arrays, hidden)
        while at >= 0:
            for task in tasks:
                task(stage, self.stretch.first + 1 + at, at, step)
                step += 1
            at, stage = at - 1, codes.INNER

    def _at_top(self, arrays: Arrays, hidden: bool) -> list[Callable[[int, int, int, int], None]]:
        """Return what launches the kernels of the last layer."""
        law, results = self.spec, (arrays.record, arrays.factors, arrays.status)

        def top(stage: int, *address: int) -> tuple[Any, ...]:
            return (
                arrays.grams, arrays.scales, arrays.xs, self._given(), arrays.above, arrays.state,
                arrays.sums, arrays.arrived, *results, law.width, self._gain, law.skip,
                hidden, self.first_chain, *address, *self._keys,
            )  # fmt: skip

        return [self._prepared(self.kernels.top, top)]

    def _tasks(self, arrays: Arrays, hidden: bool) -> list[Callable[[int, int, int, int], None]]:
        """Return what launches the kernels of a layer, given its stage, number, place and step."""
        law, of_layers = self.spec, (arrays.grams, arrays.scales)
        of_sums = arrays.sums, arrays.arrived
        results = arrays.record, arrays.factors, arrays.status

        def begin(stage: int, *address: int) -> tuple[Any, ...]:
            return (
                *of_layers, arrays.ratios, arrays.xs, arrays.state, arrays.basis, arrays.mixing,
                *of_sums, arrays.status, law.width, law.skip, law.eps, stage, self.first_chain,
                *address, *self._keys,
            )  # fmt: skip

        def descend(stage: int, *address: int) -> tuple[Any, ...]:
            # A readout has no gain and no skip connection.
            gain, skip = (1.0, 0.0) if stage == codes.READOUT else (law.gain, law.skip)
            return (
                *of_layers, arrays.xs, arrays.above, arrays.state, arrays.mixing, *of_sums,
                *results, law.width, gain, skip, law.gain, law.skip, law.eps, stage, hidden,
                self.first_chain, *address, *self._keys,
            )  # fmt: skip

        return [
            self._prepared(self.kernels.begin, begin),
            self._prepared(self.kernels.descend, descend),
        ]

    @property
    def _gain(self) -> float:
        """The factor of W in the units of the rows."""
        return self.spec.gain

    @property
    def _keys(self) -> tuple[np.uint32, np.uint32]:
        return np.uint32(self.task.key & 0xFFFFFFFF), np.uint32(self.task.key >> 32)

    def _prepared(
        self, kernel: Any, arguments: Callable[..., tuple[Any, ...]]
    ) -> Callable[[int, int, int, int], None]:
        """Return a function that launches a kernel, given what `arguments` takes."""
        count, shape = len(self.descents), self.kernels.shape
        blocks = -(-BLOCKS_OF_PROCESSOR * processors() // count)
        parts = min(shape.tiles(self.spec.width), MOST_RANGES, blocks)
        # Prepared once: a layer may be as short as the launch of a kernel by Python.
        start = ready(
            kernel, (parts, count), shape.threads, self.kernels.room.bytes, 0,
            arguments(0, 0, 0, 0),
        )  # fmt: skip
        return lambda *own: start(*arguments(*own))

    def _given(self) -> Any:
        """Return δ at the top on the device; an array without columns if it is normal."""
        direction, count = self.task.direction, len(self.descents)
        rows = np.zeros((1, 0, 1))
        if isinstance(direction, GivenRows):
            rows = direction.rows
            if len(rows) > 1:
                rows = rows[self.first_chain : self.first_chain + count]
        return numba_cuda.to_device(np.ascontiguousarray(rows))
