"""Pairs of coupled chains on a GPU, a block a pair."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnmc._kernels import cpu, cuda
from bnmc._kernels.target import cuda as numba_cuda
from bnmc._kernels.target import launch, shared_memory
from bnmc._pairs import Pairs
from bnmc.errors import BackendError

__all__ = ["GpuPairs"]


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
        changed: list[tuple[NDArray[Any], Any]] = [
            (values, numba_cuda.to_device(np.ascontiguousarray(values)) if values.size else values)
            for values in (grams, self.met, self.tries, record, traced, self.status)
        ]
        there = [array for _, array in changed]
        launch(
            kernels.couple, pairs, kernels.shape.threads, kernels.shape.bytes, 0,
            np.uint32(stream), there[0], work(2, n, n), work(2, n), work(2, n, dtype=np.int64),
            work(3, n, n), there[1], there[2], self.first, first_layer, layers, self.lag, until,
            self.threshold, there[3], there[4], *self._key, there[5],
            numba_cuda.device_array((1, 1), np.float64), law.width, law.gain, law.eps,
        )  # fmt: skip
        for values, array in changed:
            if values.size:
                values[...] = array.copy_to_host()
