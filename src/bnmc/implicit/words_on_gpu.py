"""The normals of `words.normals`, made on a GPU."""

from __future__ import annotations

from contextlib import nullcontext
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnmc._kernels.gpu.device import SIMULATED, cuda
from bnmc.implicit.products import precision_of
from bnmc.kernels.checks import Stream
from bnmc.kernels.cuda import normals

#: Threads of a block, each with the four rows of a quad.
_THREADS = 128


def fill(out: Any, key: int, call: int, columns: NDArray[np.intp]) -> None:
    """Write normals to a tensor of a GPU whose rows are whole groups, row i for columns[i].

    The simulator takes a NumPy array.
    """
    blocks = -(-out.shape[1] // (4 * _THREADS)), len(columns)
    words = np.uint32(call), Stream.WEIGHTS.value, np.uint32(key & 0xFFFFFFFF), np.uint32(key >> 32)
    with nullcontext() if SIMULATED else cuda.gpus[out.device.index]:
        array = cuda.to_device(out) if SIMULATED else cuda.as_cuda_array(out)
        elements = cuda.to_device(columns.astype(np.uint32))
        _kernel(precision_of(out))[blocks, _THREADS](array, elements, *words)
        cuda.synchronize()  # PyTorch may have another stream
        if SIMULATED:
            array.copy_to_host(out)


@cache
def _kernel(dtype: str) -> Any:
    four = normals(dtype)

    @cuda.jit
    def write(out, elements, call, stream, key0, key1):  # type: ignore[no-untyped-def]
        quad, row = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x, cuda.blockIdx.y
        if 4 * quad < out.shape[1]:
            numbers = four(elements[row], quad, call, stream, key0, key1)
            for j in range(4):
                out[row, 64 * (quad // 16) + quad % 16 + 16 * j] = numbers[j]

    return write
