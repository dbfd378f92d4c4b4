"""Pairs of coupled chains on GPUs, one block per pair, divided among devices.

A device takes the pairs in ranges that fit in its memory.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnmc._kernels.gpu import pairs
from bnmc._kernels.gpu.arguments import Address
from bnmc._kernels.gpu.build import kernels_of
from bnmc._kernels.gpu.device import cuda as numba_cuda
from bnmc._kernels.gpu.device import devices, free_memory, launch, shared_memory
from bnmc._kernels.gpu.shape import Spec
from bnmc._kernels.scalar import codes
from bnmc._support.workers import even_ranges, ranges
from bnmc.chain.activations import sigma_of
from bnmc.chain.chain import Chain
from bnmc.chain.start import Covariance, Representation
from bnmc.errors import BackendError
from bnmc.simulation.engine.gpu.arrays import device_memory
from bnmc.simulation.engine.gpu.launches import is_covered, neighbours
from bnmc.simulation.engine.pairs import Meetings, Pairs, joined, meet

#: Part of the free memory of a device that a range of pairs may take.
_SHARE_OF_MEMORY = 0.5

#: Most pairs of a range, which bounds the memory of the host.
MOST_OF_RANGE = 1 << 17


class GpuPairs(Pairs):
    """`Pairs` whose layers a GPU makes; a pair agrees with that of the CPU to rounding.

    Gram matrices stay on the device; meeting times and the status of each pair come back.
    """

    def _allocate(self) -> None:
        (linear, rows, *_), n, count = self._layer, self._spec.columns, len(self.met)
        sigma = sigma_of(rows.activation)
        spec = Spec(n, n, self._spec.norm, False, False, "float64", sigma.digest)
        covered = is_covered(self._layer, self._spec)
        self._kernels = kernels_of(spec._replace(covered=covered, centred=self._spec.hides_common))
        if self._kernels.shape.bytes > shared_memory():
            raise BackendError(
                "cuda", f"a batch of {n} needs {self._kernels.bytes} bytes of shared memory"
            )
        with _room(count * bytes_of_pair(n)):
            self._grams = numba_cuda.device_array((count, 2, n, n), np.float64)
            self._work = pairs.PairWork(
                neighbours(linear.convolution, n),
                numba_cuda.device_array((count, 2, n, n), np.float64),
                numba_cuda.device_array((count, 2, n), np.float64),
                numba_cuda.device_array((count, 2, n), np.int64),
                numba_cuda.device_array((count, 3, n, n), np.float64),
            )
            self._grams.copy_to_device(np.zeros(self._grams.shape))

    @property
    def grams(self) -> NDArray[np.float64]:
        """The Gram matrices of all pairs, (pairs, 2, n, n): a copy."""
        copy: NDArray[np.float64] = self._grams.copy_to_host()
        return copy

    @grams.setter
    def grams(self, matrices: NDArray[np.float64]) -> None:
        self._grams.copy_to_device(np.ascontiguousarray(matrices))

    def _renew(self, matrix: NDArray[np.float64]) -> None:
        with _room(matrix.nbytes):
            launch(
                self._kernels.of(pairs.renew), len(self.met), self._kernels.shape.threads, 0, 0,
                self._grams, numba_cuda.to_device(np.ascontiguousarray(matrix)),
            )  # fmt: skip

    def _run(
        self,
        law: codes.LayerSpec,
        stream: np.uint32,
        first_layer: int,
        layers: int,
        until: int,
        trace: NDArray[np.float64],
        record: NDArray[np.float64],
    ) -> None:
        kernels, count = self._kernels, len(self.met)
        small = [self.met, self.tries, self.status, record, trace]
        with _room(sum(values.nbytes for values in small)):
            # An empty array has no pointer.
            there = [
                numba_cuda.to_device(values if values.size else np.zeros((1,) * values.ndim))
                for values in small
            ]
            recorded = pairs.PairRecord(there[3], count if record.size else 0, there[4], len(trace))
            work = self._work
            if first_layer == 0:  # given its covariance
                itself = numba_cuda.to_device(np.arange(law.columns, dtype=np.int64)[None])
                work = work._replace(neighbours=itself)
            launch(
                kernels.of(pairs.couple), count, kernels.shape.threads, kernels.bytes, 0,
                pairs.Pairs(self._grams, *there[:3]), work, recorded, law,
                Address(self.first, *self._key), np.uint32(stream),
                pairs.PairSpan(first_layer, layers, self.lag, until, self.threshold),
            )  # fmt: skip
            for values, array in zip(small, there, strict=True):
                if values.size:
                    values[...] = array.copy_to_host()


def _room(size: int) -> AbstractContextManager[None]:
    return device_memory("chains", size, "let fewer pairs meet at a time, or on the CPU")


def bytes_of_pair(batch: int) -> int:
    """Return the bytes of a pair on a device: matrices, pivots, twins and its status."""
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
    """Let pairs meet on all devices at once, with the trace of the first pair.

    The number of the pair addresses its random numbers, so results do not depend on the division.
    """

    def on_device(device: AbstractContextManager[Any], begin: int, end: int) -> Meetings:
        with device:
            most = int(_SHARE_OF_MEMORY * free_memory() / bytes_of_pair(chain.batch))
            size = max(1, min(most, MOST_OF_RANGE))
            return joined(
                [
                    meet(
                        chain, start, key, begin + a, begin + b, lag, most_layers,
                        int(begin + a == first), GpuPairs,
                    )
                    for a, b in ranges(end - begin, size)
                ]
            )  # fmt: skip

    numbers = devices()[: last - first]
    if len(numbers) == 1:
        return on_device(nullcontext(), first, last)
    ranges_of_pairs = even_ranges(last - first, len(numbers), first=first)
    with ThreadPoolExecutor(len(numbers), "bnmc-gpu") as threads:
        futures = [
            threads.submit(on_device, numba_cuda.gpus[number], *pairs)
            for number, pairs in zip(numbers, ranges_of_pairs, strict=True)
        ]
        return joined([future.result() for future in futures])
