"""Chains divided among several GPUs, each with a thread of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from bnmc._kernels.gpu.device import cuda as numba_cuda
from bnmc._kernels.gpu.device import devices
from bnmc._support.workers import even_ranges
from bnmc.chain.chain import Chain
from bnmc.chain.start import Covariance, Representation
from bnmc.simulation.engine.gpu.arrays import DeviceRows
from bnmc.simulation.engine.gpu.samplers import (
    GpuConditionalSampler,
    GpuSampler,
    GpuWeightsSampler,
)
from bnmc.simulation.engine.sampler import Sampler
from bnmc.simulation.engine.state import Frames, Measure, State

T = TypeVar("T")

__all__ = ["GPU_SAMPLERS", "ONE_DEVICE", "device_threads", "gpu_sampler", "on_each"]


class DividedSampler(Sampler):
    """Chains divided among devices: each device has consecutive chains and its own thread.

    The number of the chain addresses its random numbers, so no bit depends on the division.
    """

    divisible = False
    frame_factor = GpuSampler.frame_factor

    def __init__(
        self,
        kind: type[GpuSampler],
        numbers: Sequence[int],
        chain: Chain,
        chains: int,
        inputs: int | None,
        dtype: str,
        key: int,
        offset: int = 0,
    ) -> None:
        super().__init__(chain, chains, inputs, dtype, key, offset)
        self.name, self.path, self.kind = kind.name, kind.path, kind
        self.ranges = even_ranges(chains, len(numbers))
        self.threads = device_threads(numbers)
        # In turn, so that kernels are compiled once.
        self.parts = [
            thread.submit(kind, chain, b - a, inputs, dtype, key, offset + a).result()
            for thread, (a, b) in zip(self.threads, self.ranges, strict=True)
        ]
        for part, (a, b) in zip(self.parts, self.ranges, strict=True):
            part.wide = self.wide[a:b]
        self.is_scaled = self.parts[0].is_scaled

    def seconds(self, chain: Chain, columns: int, dtype: np.dtype[Any]) -> float:  # type: ignore[override]
        return self.kind.seconds(chain, columns, dtype) / len(self.parts)

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """The state of all chains, on the host, in the form of the CPU samplers."""
        parts = self._each(lambda part, a, b: part.arrays)
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def can_measure(self, wanted: tuple[Measure, ...]) -> bool:
        return self.parts[0].can_measure(wanted)

    def record_only(self, wanted: tuple[Measure, ...]) -> None:
        super().record_only(wanted)
        self._each(lambda part, a, b: part.record_only(wanted))

    def take(self, state: State) -> None:
        self.layer = state.layer

        def take(part: GpuSampler, a: int, b: int) -> None:
            own = {name: values[a:b] for name, values in state.arrays.items()}
            part.take(replace(state, arrays=own))

        self._each(take)

    def begin(
        self, start: Covariance | Representation, first: int, last: int, frames: Frames
    ) -> None:
        # Rows go from one device to another by way of the host.
        rows = start.array.copy_to_host() if isinstance(start, DeviceRows) else None

        def begin(part: GpuSampler, a: int, b: int) -> None:
            own: Any = start
            if rows is not None:
                own = DeviceRows(numba_cuda.to_device(rows[a:b] if len(rows) > 1 else rows))
            elif isinstance(start, Representation) and len(start.x) > 1:
                own = start.part(a, b)
            part.begin(own, 0, b - a, frames.part(a, b))

        self._each(begin)

    def record(self, frames: Frames) -> None:
        self._each(lambda part, a, b: part.record(frames.part(a, b)))

    def advance(
        self, first: int, last: int, layer: int, slots: NDArray[np.int64], frames: Frames
    ) -> None:
        self._each(lambda part, a, b: part.advance(0, b - a, layer, slots, frames.part(a, b)))

    def watch_precision(self, frames: Frames) -> None:
        self._each(lambda part, a, b: part.watch_precision(frames.part(a, b)))

    def _each(self, task: Callable[[GpuSampler, int, int], Any]) -> list[Any]:
        """Run a task on all devices at once."""
        return on_each(
            self.threads,
            task,
            [(part, a, b) for part, (a, b) in zip(self.parts, self.ranges, strict=True)],
        )


def device_threads(numbers: Sequence[int]) -> list[ThreadPoolExecutor]:
    """Return one thread for each device, which selects the device at its start."""
    return [
        ThreadPoolExecutor(1, "bnmc-gpu", numba_cuda.select_device, (number,)) for number in numbers
    ]


def on_each(
    threads: Sequence[ThreadPoolExecutor],
    task: Callable[..., T],
    arguments: Sequence[tuple[Any, ...]],
) -> list[T]:
    """Run a task on all devices at once, and raise the first error in the order of devices."""
    futures = [thread.submit(task, *own) for thread, own in zip(threads, arguments, strict=True)]
    wait(futures)
    return [future.result() for future in futures]


#: The samplers of one device, by path.
ONE_DEVICE: dict[str, type[GpuSampler]] = {
    sampler.path: sampler for sampler in (GpuConditionalSampler, GpuWeightsSampler)
}


def gpu_sampler(
    path: str,
    chain: Chain,
    chains: int,
    inputs: int | None,
    dtype: str,
    key: int,
    offset: int = 0,
) -> Sampler:
    """Return the sampler of a path on all devices, but at most one device per chain."""
    numbers = devices()[:chains]
    if len(numbers) > 1:
        return DividedSampler(ONE_DEVICE[path], numbers, chain, chains, inputs, dtype, key, offset)
    return ONE_DEVICE[path](chain, chains, inputs, dtype, key, offset)


GPU_SAMPLERS: dict[str, Callable[..., Sampler]] = {
    path: partial(gpu_sampler, path) for path in ONE_DEVICE
}
