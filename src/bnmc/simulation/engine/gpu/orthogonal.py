"""Layers with orthogonal weights on a GPU.

The kernels are those of `_kernels.gpu.orthogonal_layers`.  A layer takes one launch that makes its
normals orthogonal, or several if several blocks share its rows, and one that makes the rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnmc._kernels.gpu.block import NOT_STOPPED
from bnmc._kernels.gpu.build import OrthogonalKernels
from bnmc._kernels.gpu.device import cuda as numba_cuda
from bnmc._kernels.gpu.device import ready
from bnmc._kernels.gpu.shape import MOST_RANGES, Spec
from bnmc._kernels.scalar import codes
from bnmc.simulation.engine.gpu.passing import Address, Arrays

__all__ = ["bytes_of_chain", "start_orthogonal"]


def bytes_of_chain(spec: Spec) -> int:
    """Return the bytes that one chain needs on the device beside state and sums."""
    return 8 * (spec.columns * (spec.columns + spec.rows_of_gram) + 1)


def start_orthogonal(
    kernels: OrthogonalKernels,
    arrays: Arrays,
    law: codes.LayerSpec,
    address: Address,
    slots: NDArray[np.int64],
    blocks: int,
    stream: Any,
) -> tuple[Any, Any]:
    """Start the kernels of layers; return their status array, and arrays that must live on.

    Parameters are those of `GpuPasses.start`.
    """
    shape, count, n = kernels.shape, arrays.grams.shape[0], kernels.shape.spec.columns
    ranges = min(shape.tiles(law.width), MOST_RANGES)
    parts = min(blocks, ranges)

    def doubles(*lengths: int) -> Any:
        return numba_cuda.device_array((count, *lengths), np.float64)

    inverse, work, leasts = doubles(n, n), doubles(shape.spec.rows_of_gram, n), doubles()
    sums = doubles(ranges, shape.entries)
    status = numba_cuda.to_device(np.full(count, NOT_STOPPED), stream=stream)
    arrived = numba_cuda.to_device(np.zeros(count, np.int32), stream=stream)
    of_sums, keys = (sums, arrived), (address.key0, address.key1)

    def of_frame(step: int, first: int, last: int) -> tuple[Any, ...]:
        return (
            arrays.grams, inverse, work, leasts, *of_sums, status, law.width, law.gain, law.eps,
            first, last, address.first_chain, address.layer + step, step, *keys,
        )  # fmt: skip

    def of_rows(step: int, slot: int) -> tuple[Any, ...]:
        return (
            arrays.grams, arrays.xs, inverse, *of_sums, *arrays.target, slot, status, law.width,
            law.skip, law.gain, law.eps, address.first_chain, address.layer + step, step, *keys,
        )  # fmt: skip

    def of_units(step: int) -> tuple[Any, ...]:
        return arrays.grams, arrays.xs, arrays.kept, status, address.layer + step, step

    def prepared(kernel: Any, grid: tuple[int, int], arguments: tuple[Any, ...]) -> Any:
        # Prepared once, since a layer may be as short as the launch of a kernel by Python.
        return ready(kernel, grid, shape.threads, shape.bytes, stream, arguments)

    frame = prepared(kernels.frame, (parts, count), of_frame(0, 0, 1))
    framed = prepared(kernels.framed, (parts, count), of_rows(0, 0))
    # One block makes all sums of zᵀz that a layer needs.
    each = codes.MOST_PASSES if parts == 1 else 1
    numbers = range(0, codes.MOST_PASSES, each)
    if kernels.rescale is not None:
        rescale = prepared(kernels.rescale, (count, 1), of_units(0))
    for step, slot in enumerate(slots.tolist()):
        for first in numbers:
            frame(*of_frame(step, first, first + each))
        framed(*of_rows(step, slot))
        if kernels.rescale is not None:
            rescale(*of_units(step))
    return status, (inverse, work, leasts, sums, arrived, arrays)
