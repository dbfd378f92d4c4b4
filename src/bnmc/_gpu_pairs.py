"""Pairs of coupled chains on GPUs, a block a pair: they are divided among devices.

On a device they go in ranges that its memory has room for.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnmc._executor import ranges
from bnmc._gpu_samplers import device_memory, device_threads, on_each
from bnmc._kernels import cpu, cuda
from bnmc._kernels.target import cuda as numba_cuda
from bnmc._kernels.target import devices, free_memory, launch, shared_memory
from bnmc._pairs import Meetings, Pairs, joined, meet
from bnmc.chain import Chain
from bnmc.errors import BackendError
from bnmc.initial import Covariance, Representation

__all__ = ["GpuPairs", "meet_on_devices"]

#: Part of the free memory of a device that a range of pairs may take.
SHARE_OF_MEMORY = 0.5
#: Pairs of a range, at most, for what the host has of them to be small.
MOST_OF_RANGE = 1 << 17


class GpuPairs(Pairs):
    """`Pairs` whose layers a GPU makes; what becomes of a pair is that of the CPU to rounding."""

    def _run(
        self,
        law: cpu.Law,
        stream: np.uint32,
        grams: NDArray[np.float64],
        first_layer: int,
        layers: int,
        until: int,
        trace: NDArray[np.float64],
        record: NDArray[np.float64],
    ) -> None:
        n = self.chain.batch
        kernels = cuda.kernels(
            cuda.Spec(n, n, law.norm, False, False, "float64", self._sigma.digest)
        )
        if kernels.shape.bytes > shared_memory():
            raise BackendError(
                "cuda", f"a batch of {n} needs {kernels.shape.bytes} bytes of shared memory"
            )
        pairs = len(grams)

        def work(*shape: int, dtype: Any = np.float64) -> Any:
            return numba_cuda.device_array((pairs, *shape), dtype)

        # An array without elements has no place on a device: a trace of no pairs is one of none.
        traced = trace if trace.size else np.zeros((0, 1, 2))
        size = pairs * bytes_of_pair(n) + record.nbytes + trace.nbytes
        with device_memory("replicates", size, "let fewer pairs meet at a time, or on the CPU"):
            changed: list[tuple[NDArray[Any], Any]] = [
                (
                    values,
                    numba_cuda.to_device(np.ascontiguousarray(values)) if values.size else values,
                )
                for values in (grams, self.met, self.tries, record, traced, self.status)
            ]
            there = [array for _, array in changed]
            launch(
                kernels.couple, pairs, kernels.shape.threads, kernels.shape.bytes, 0,
                np.uint32(stream), there[0], work(2, n, n), work(2, n),
                work(2, n, dtype=np.int64), work(3, n, n), there[1], there[2], self.first,
                first_layer, layers, self.lag, until, self.threshold, there[3], there[4],
                *self._key, there[5], numba_cuda.device_array((1, 1), np.float64), law.width,
                law.gain, law.eps,
            )  # fmt: skip
            for values, array in changed:
                if values.size:
                    values[...] = array.copy_to_host()


def bytes_of_pair(batch: int) -> int:
    """Return what a pair takes of a device: matrices, pivots and twins, and where it has got."""
    return 8 * (7 * batch**2 + 4 * batch + 7)


def meet_on_devices(
    chain: Chain,
    start: Covariance | Representation,
    lag: int,
    first: int,
    last: int,
    key: int,
    most_layers: int,
) -> Meetings:
    """Let pairs meet on all devices at once; of the first there is the trace.

    Random numbers are addressed by the number of the pair, so that nothing depends on the division.
    """
    numbers = devices()[: last - first]
    bounds = [first + (last - first) * k // len(numbers) for k in range(len(numbers) + 1)]
    task = partial(_meet_on_device, chain, start, lag, first, key, most_layers)
    if len(numbers) == 1:
        return task(first, last)
    threads = device_threads(numbers)
    try:
        return joined(on_each(threads, task, list(pairwise(bounds))))
    finally:
        for thread in threads:
            thread.shutdown()


def _meet_on_device(
    chain: Chain,
    start: Covariance | Representation,
    lag: int,
    traced: int,
    key: int,
    most_layers: int,
    first: int,
    last: int,
) -> Meetings:
    """Let pairs meet on the device of this thread, of which the pair `traced` leaves a trace."""
    most = int(SHARE_OF_MEMORY * free_memory() / bytes_of_pair(chain.batch))
    size = max(1, min(most, MOST_OF_RANGE))
    return joined(
        [
            meet(
                chain, start, lag, first + a, first + b, key, most_layers,
                int(first + a == traced), GpuPairs,
            )
            for a, b in ranges(last - first, size)
        ]
    )  # fmt: skip
