"""Buffers for the kernels, aligned to cache lines: vectors that straddle two load slowly."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from bnmc._kernels.cpu import BLOCK, TILE, Work

ALIGNMENT = 64


def padded(columns: int) -> int:
    """Return `columns` rounded up to a multiple of four."""
    return (columns + 3) // 4 * 4


def stride(width: int) -> int:
    """Return `width` rounded up to whole blocks."""
    return (width + BLOCK - 1) // BLOCK * BLOCK


def panel_rows(width: int, columns: int) -> int:
    """Return the rows of a panel, for a panel's work to be worth a thread's attention.

    Whole blocks of about 20,000 numbers in all, and at most 256 panels in a layer.
    """
    blocks = max(1, min(8, 20_480 // (BLOCK * columns)))
    return max(blocks * BLOCK, stride((width + 255) // 256))


def aligned_zeros(shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """Return zeros whose first element begins a cache line."""
    size = prod(shape) * np.dtype(dtype).itemsize
    raw = np.zeros(size + ALIGNMENT, np.uint8)
    offset = -raw.ctypes.data % ALIGNMENT
    return raw[offset : offset + size].view(dtype).reshape(shape)


def work(batch: int, inputs: int, dtype: DTypeLike) -> Work:
    """Return the buffers of one thread."""
    columns = batch * inputs
    tiles = padded(columns) // 4
    return Work(
        block=aligned_zeros((padded(columns) * BLOCK,), dtype),
        tile=aligned_zeros((TILE * BLOCK,), dtype),
        means=aligned_zeros((inputs * BLOCK,), dtype),
        scales=aligned_zeros((inputs * BLOCK,), dtype),
        partial=aligned_zeros((16,), dtype),
        sums=aligned_zeros((tiles * (tiles + 1) // 2 * 16,), np.float64),
        covariance=aligned_zeros((columns, columns), np.float64),
        group_means=aligned_zeros((inputs, columns), np.float64),
        diagonal=aligned_zeros((columns,), np.float64),
        panel=aligned_zeros((4, columns), np.float64),
        twin=np.zeros(columns, np.int64),
        factor=aligned_zeros((padded(columns), padded(columns)), dtype),
        regular=np.zeros(columns, np.bool_),
    )
