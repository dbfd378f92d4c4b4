"""The number of a thread, hidden from the compiler."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import int64

from bnmc._kernels.gpu.device import cuda
from bnmc._kernels.gpu.shape import Shape, u32


class Block(NamedTuple):
    """Device functions of a block."""

    begin: Any
    thread: Any


def block_functions(shape: Shape) -> Block:
    """Return the device functions of a block of this shape."""
    at_zero = shape.at.zero

    @cuda.jit(device=True)
    def begin():
        """Prepare `thread`; every kernel that uses `thread` calls this first."""
        whole = cuda.shared.array(0, int64)
        if cuda.threadIdx.x == 0:
            whole[u32(at_zero)] = 0
        cuda.syncthreads()

    @cuda.jit(device=True)
    def thread():
        """Return the number of the thread.

        Adds a runtime zero, so that the compiler cannot hoist per-layer values into registers.
        """
        whole = cuda.shared.array(0, int64)
        return np.uint32(cuda.threadIdx.x + whole[u32(at_zero)])

    return Block(begin, thread)
