"""The samplers on a GPU: their state is on the device, and only what is recorded leaves it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnmc._kernels import cpu, cuda, memory
from bnmc._kernels.target import (
    cuda as numba_cuda,
)
from bnmc._kernels.target import (
    free_memory,
    is_out_of_memory,
    launch,
    processors,
    shared_memory,
)
from bnmc._samplers import (
    ConditionalSampler,
    FloatArray,
    Frames,
    Sampler,
    State,
    WeightsSampler,
    weight_code,
)
from bnmc.chain import Chain
from bnmc.errors import (
    ArgumentError,
    ArgumentTypeError,
    BackendError,
    NonFiniteError,
    ResultTooLargeError,
    ZeroVarianceError,
)
from bnmc.initial import Covariance, Representation

__all__ = ["GPU_SAMPLERS", "DeviceRows"]

#: Parts of the free memory that the frames of a block of layers may take.
SHARE_OF_MEMORY = 0.25
#: Chains of one launch, at most: they are an axis of the grid.
MOST_OF_GRID = 65_535
#: Blocks of a multiprocessor that a layer of few chains is split over.
BLOCKS_OF_PROCESSOR = 2


class DeviceRows:
    """Layer 0 before its normalization, in the memory of a GPU.

    Attributes
    ----------
    array : (chains or 1, width, batch) array of the device
        Not a copy.
    """

    def __init__(self, array: Any) -> None:
        self.array = array

    @classmethod
    def of(cls, initial: Any, chain: Chain, chains: int, inputs: int | None) -> DeviceRows:
        """Take any array with `__cuda_array_interface__`, or raise a typed error."""
        array = numba_cuda.as_cuda_array(initial)
        lengths = (chain.width, chain.batch)
        if inputs is not None:
            raise ArgumentError("inputs", inputs, "None for an initial array of a device")
        if array.shape not in (lengths, (chains, *lengths)):
            wanted = f"{lengths} or {(chains, *lengths)}, that is (chains, width, batch)"
            raise ArgumentError("initial", array.shape, wanted)
        if array.dtype not in (np.float32, np.float64):
            raise ArgumentTypeError("initial", str(array.dtype), "float32 or float64")
        if not array.is_c_contiguous():
            raise ArgumentError("initial", "strides", "a C-contiguous array of a device")
        return cls(array.reshape(chains if array.ndim == 3 else 1, *lengths))


class _GpuSampler(Sampler):
    """What the samplers share that make a layer row by row."""

    divisible = False
    frame_factor = 16
    source = cuda.DRAWN

    def __init__(self, chain: Chain, chains: int, inputs: int | None, dtype: str, key: int) -> None:
        super().__init__(chain, chains, inputs, dtype, key)
        if callable(chain.weights):
            raise BackendError("cuda", "a sampler of weights is a function of the CPU")
        self.kernels = self._kernels(self.source, self.dtype.name)
        stride = memory.stride(chain.width)
        itemsize = self.dtype.itemsize
        of_x = (chains, self.columns, stride) if self.skipped else (1, 1, 1)
        of_a = (chains, 2, stride, self.columns) if self.keeps_a else (1, 2, 1, 1)
        size = 8 * chains * self.columns**2 + itemsize * int(np.prod(of_x) + np.prod(of_a))
        with self._memory(size):
            self.stream = numba_cuda.stream()
            self.grams = self._zeros((chains, self.columns, self.columns), np.float64)
            self.xs = self._zeros(of_x, self.dtype)
            self.activations = self._zeros(of_a, self.dtype)

    @property
    def skipped(self) -> bool:
        """Whether the representation is part of the state."""
        return self.chain.skip != 0.0

    @property
    def keeps_a(self) -> bool:
        """Whether the activations of all rows are part of the state."""
        return self.source == cuda.MULTIPLIED

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """The state, on the host and as the CPU has it."""
        arrays: dict[str, NDArray[Any]] = {"gram": self.grams.copy_to_host()}
        if self.keeps_a:
            rows = self.activations.copy_to_host().transpose(0, 1, 3, 2)
            shape = (*rows.shape[:2], memory.padded(self.columns), rows.shape[3])
            arrays["activations"] = memory.aligned_zeros(shape, self.dtype)
            arrays["activations"][:, :, : self.columns] = rows
        else:
            arrays["wide"] = self.wide
        if self.skipped:
            arrays["x"] = self.xs.copy_to_host()
        return arrays

    def take(self, state: State) -> None:
        self.layer = state.layer
        self.grams.copy_to_device(state.arrays["gram"])
        if self.keeps_a:
            rows = state.arrays["activations"][:, :, : self.columns]
            self.activations.copy_to_device(np.ascontiguousarray(rows.transpose(0, 1, 3, 2)))
        else:
            self.wide[:] = state.arrays["wide"]
        if self.skipped:
            self.xs.copy_to_device(np.ascontiguousarray(state.arrays["x"]))

    def begin(
        self, start: Covariance | Representation, first: int, last: int, frames: Frames
    ) -> None:
        if isinstance(start, Covariance):
            self.grams.copy_to_device(
                np.broadcast_to(start.matrix, self.grams.shape).astype(np.float64)
            )
            # Neither the gain nor what x was before has a part in layer 0: x is zero.
            law = self.law._replace(gain=1.0)
            self._draw(law, 0, self.chains, 0, np.full(1, -1), None, self.keeps_a)
        elif isinstance(start, DeviceRows):
            self._rows(cuda.GIVEN, self.law, 0, self.chains, 0, start.array)
        else:
            self._copy_start(start)
        self.record(frames)

    def record(self, frames: Frames) -> None:
        frames.gram[:, 0] = self.grams.copy_to_host()

    def _copy_start(self, start: Representation) -> None:
        """Bring a known layer 0 to the device."""
        width, shared = self.chain.width, len(start.x) == 1
        work = memory.work(self.chain.batch, self.inputs or 1, np.dtype(np.float64))
        rows = memory.aligned_zeros((self.columns, memory.stride(width)), np.float64)
        grams = np.zeros(self.grams.shape)
        for index in range(1 if shared else self.chains):
            rows[:, :width] = start.a[index].T
            if not cpu.gram_of_rows(rows, width, work, grams[index]):
                raise NonFiniteError(None if shared else index, 0, "Gram matrix")
        if shared:
            grams[1:] = grams[0]
        self.grams.copy_to_device(grams)
        with np.errstate(over="ignore"):
            if self.skipped:
                xs = np.zeros(self.xs.shape, self.dtype)
                xs[:, :, :width] = start.x.transpose(0, 2, 1)
                self._send(xs, self.xs, shared)
            if self.keeps_a:
                activations = np.zeros(self.activations.shape, self.dtype)
                activations[:, 0, :width] = start.a
                self._send(activations, self.activations, shared)

    def _send(self, values: FloatArray, to: Any, shared: bool) -> None:
        finite = np.isfinite(values).reshape(len(values), -1).all(axis=1)
        if not finite.all():
            index = int(np.flatnonzero(~finite)[0])
            raise NonFiniteError(None if shared else index, 0, f"{self.dtype} representation")
        to.copy_to_device(values)

    def _kernels(self, source: int, dtype: str, kept: bool = False) -> cuda.Kernels:
        spec = cuda.Spec(
            self.columns, self.chain.batch, self.law.norm, self.skipped,
            kept or self.keeps_a, dtype, self.sigma.digest, source,
            weight_code(self.chain) if source == cuda.MULTIPLIED else 0,
        )  # fmt: skip
        kernels = cuda.kernels(spec)
        if kernels.shape.bytes > shared_memory():
            raise BackendError(
                "cuda",
                f"{self.columns} columns in {dtype} need {kernels.shape.bytes} bytes of shared "
                f"memory, the device has {shared_memory()}",
            )
        return kernels

    def _zeros(self, shape: tuple[int, ...], dtype: Any) -> Any:
        array = numba_cuda.device_array(shape, dtype)
        array.copy_to_device(np.zeros(shape, dtype))
        return array

    @contextmanager
    def _memory(self, size: int) -> Iterator[None]:
        """Turn a want of device memory, of `size` bytes, into a typed error."""
        free = free_memory()
        hint = "simulate fewer chains at a time, or on the CPU"
        if size > free:
            raise ResultTooLargeError("chains", size, free, hint)
        try:
            yield
        except Exception as error:
            if is_out_of_memory(error):
                raise ResultTooLargeError("chains", size, free_memory(), hint) from error
            raise

    def _draw(
        self,
        law: cpu.Law,
        first: int,
        last: int,
        layer: int,
        slots: NDArray[np.int64],
        record: NDArray[np.float64] | None,
        kept: bool = False,
    ) -> None:
        """Take chains first:last through layers, each drawn given the one before.

        As on the CPU, a float32 chain that float32 rows do not resolve goes on in float64.
        """
        narrow = np.flatnonzero(~self.wide[first:last]) + first
        for a, b in _ranges(narrow):
            status = self._go(law, a, b, layer, slots, record, self.dtype.name, kept)
            stopped = (status & ((1 << cuda.STEP_BITS) - 1)) == cuda.UNRESOLVED
            for index in (a + np.flatnonzero(stopped & (status != cuda.RUNNING))).tolist():
                done = int(status[index - a] >> cuda.STEP_BITS)
                self.wide[index] = True
                status[index - a] = cuda.RUNNING
                self._go_wide(law, index, layer + done, slots[done:], record)
            self._check(status, a, layer)
        wide = np.setdiff1d(np.arange(first, last), narrow)
        for index in wide.tolist():
            self._go_wide(law, index, layer, slots, record)

    def _go_wide(
        self, law: cpu.Law, index: int, layer: int, slots: NDArray[np.int64], record: Any
    ) -> None:
        status = self._go(law, index, index + 1, layer, slots, record, "float64", False)
        self._check(status, index, layer)

    def _go(
        self,
        law: cpu.Law,
        first: int,
        last: int,
        layer: int,
        slots: NDArray[np.int64],
        record: NDArray[np.float64] | None,
        dtype: str,
        kept: bool,
    ) -> NDArray[np.int64]:
        """Take chains through layers, as many at a time as their frames leave memory for."""
        recorded = int(np.count_nonzero(slots >= 0))
        size = 8 * max(1, recorded) * self.columns**2
        most = int(SHARE_OF_MEMORY * free_memory() / size)
        most = max(1, min(most, MOST_OF_GRID))
        statuses = []
        for a in range(first, last, most):
            b = min(last, a + most)
            with self._memory(size * (b - a)):
                statuses.append(self._chunk(law, a, b, layer, slots, recorded, record, dtype, kept))
        return np.concatenate(statuses)

    def _chunk(
        self, law: cpu.Law, first: int, last: int, layer: int, slots: NDArray[np.int64],
        recorded: int, record: NDArray[np.float64] | None, dtype: str, kept: bool,
    ) -> NDArray[np.int64]:  # fmt: skip
        frames = numba_cuda.device_array(
            (last - first, max(1, recorded), self.columns, self.columns), np.float64
        )
        kernels = self._kernels(self.source if not kept else cuda.DRAWN, dtype, kept)
        tiles = -(-self.chain.width // 64) * 64 // (4 * kernels.shape.quads) or 1
        parts = -(-BLOCKS_OF_PROCESSOR * processors() // (last - first))
        parts = min(parts, tiles) if kernels.layers is not None else tiles
        if parts > 1 or kernels.layers is None:
            status = self._by_rows(kernels, law, first, last, layer, slots, frames, parts, dtype)
        else:
            status = self._by_chain(kernels, law, first, last, layer, slots, frames, dtype)
        if recorded and record is not None:
            staging = numba_cuda.pinned_array(frames.shape, np.float64)
            frames.copy_to_host(staging, stream=self.stream)
            self.stream.synchronize()
            record[first:last] = staging
        else:
            self.stream.synchronize()
        result: NDArray[np.int64] = status.copy_to_host()
        return result

    def _by_chain(
        self, kernels: cuda.Kernels, law: cpu.Law, first: int, last: int, layer: int,
        slots: NDArray[np.int64], frames: Any, dtype: str,
    ) -> Any:  # fmt: skip
        """Give each chain a block."""
        status = numba_cuda.to_device(np.full(last - first, cuda.RUNNING), stream=self.stream)
        launch(
            kernels.layers, last - first, kernels.shape.threads, kernels.shape.bytes, self.stream,
            self.grams[first:last], self._x(first, last, dtype), frames,
            numba_cuda.to_device(slots, stream=self.stream), status, law.width, law.skip, law.gain,
            law.eps, first, layer, *self.key_words,
        )  # fmt: skip
        return status

    def _by_rows(
        self, kernels: cuda.Kernels, law: cpu.Law, first: int, last: int, layer: int,
        slots: NDArray[np.int64], frames: Any, parts: int, dtype: str, given: Any = None,
    ) -> Any:  # fmt: skip
        """Split the rows of each layer over blocks."""
        count = last - first
        status = numba_cuda.to_device(np.full(count, cuda.RUNNING), stream=self.stream)
        sums = numba_cuda.device_array((count, parts, kernels.shape.entries), np.float64)
        arrived = numba_cuda.to_device(np.zeros(count, np.int32), stream=self.stream)
        kept = self.activations[first:last] if self.keeps_a else self._nothing(4, dtype)
        given = self._nothing(3, dtype) if given is None else given
        for step, slot in enumerate(slots.tolist()):
            launch(
                kernels.rows, (parts, count), kernels.shape.threads, kernels.shape.bytes,
                self.stream, self.grams[first:last], self._x(first, last, dtype), kept, given, sums,
                arrived, frames, slot, status, law.width, law.skip, law.gain, law.eps, first,
                layer + step, step, *self.key_words,
            )  # fmt: skip
        return status

    def _rows(
        self, source: int, law: cpu.Law, first: int, last: int, layer: int, given: Any
    ) -> None:
        """Make layer 0 of rows that are given."""
        kernels = self._kernels(source, self.dtype.name)
        tiles = -(-self.chain.width // 64) * 64 // (4 * kernels.shape.quads) or 1
        status = self._by_rows(
            kernels, law, first, last, layer, np.full(1, -1), self._nothing(4, "float64"), tiles,
            self.dtype.name, given,
        )  # fmt: skip
        self._check(status.copy_to_host(), first, layer)

    def _x(self, first: int, last: int, dtype: str) -> Any:
        return self.xs[first:last] if self.skipped else self._nothing(3, dtype)

    def _nothing(self, axes: int, dtype: str) -> Any:
        shape = (1, 2, 1, 1) if axes == 4 else (1, 1, 1)
        return numba_cuda.device_array(shape, dtype)

    def _check(self, status: NDArray[np.int64], first: int, layer: int) -> None:
        """Raise what a kernel noted of the first chain that stopped."""
        stopped = np.flatnonzero(status != cuda.RUNNING)
        if stopped.size:
            noted = int(status[stopped[0]])
            at, row = layer + (noted >> cuda.STEP_BITS), noted & ((1 << cuda.STEP_BITS) - 1)
            chain = first + int(stopped[0])
            if row == cuda.NOT_FINITE:
                raise NonFiniteError(chain, at, "Gram matrix")
            raise ZeroVarianceError(chain, at, row)


class GpuConditionalSampler(_GpuSampler):
    """`ConditionalSampler` on a GPU."""

    name = path = ConditionalSampler.path

    @staticmethod
    def seconds(chain: Chain, columns: int, dtype: np.dtype[Any]) -> float:
        return 1e-9 + chain.width * columns * (2 + 0.05 * columns) * 1e-12 * dtype.itemsize / 4

    def advance(
        self, first: int, last: int, layer: int, slots: NDArray[np.int64], frames: Frames
    ) -> None:
        self._draw(self.law, first, last, layer, slots, frames.gram)


class GpuWeightsSampler(_GpuSampler):
    """`WeightsSampler` on a GPU."""

    name = path = WeightsSampler.path
    source = cuda.MULTIPLIED

    @staticmethod
    def seconds(chain: Chain, columns: int, dtype: np.dtype[Any]) -> float:
        return 1e-9 + chain.width**2 * (2 + 0.05 * columns) * 1e-12 * dtype.itemsize / 4

    def advance(
        self, first: int, last: int, layer: int, slots: NDArray[np.int64], frames: Frames
    ) -> None:
        status = self._go(self.law, first, last, layer, slots, frames.gram, self.dtype.name, False)
        self._check(status, first, layer)


def _ranges(numbers: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Return the ranges of neighbours that increasing numbers make up."""
    breaks = np.flatnonzero(np.diff(numbers) > 1) + 1
    return [(int(part[0]), int(part[-1]) + 1) for part in np.split(numbers, breaks) if part.size]


GPU_SAMPLERS: dict[str, type[_GpuSampler]] = {
    sampler.path: sampler for sampler in (GpuConditionalSampler, GpuWeightsSampler)
}
