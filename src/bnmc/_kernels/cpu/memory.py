"""Buffers for the kernels, aligned to cache lines: a vector across two lines loads slowly."""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from bnmc._kernels.cpu.numbers import BLOCK, STRIDE, TILE, Work
from bnmc._kernels.processor import LINE_BYTES

#: Columns of a factor that are made before the ones on their right are brought up to date.
PANEL = 64


def padded(columns: int) -> int:
    """Return `columns` rounded up to a multiple of four."""
    return (columns + 3) // 4 * 4


def stride(width: int) -> int:
    """Return `width` rounded up to whole blocks."""
    return (width + BLOCK - 1) // BLOCK * BLOCK


def tile_sums(columns: int) -> int:
    """Return how many numbers the sums of a Gram matrix are: 16 for each tile of one triangle."""
    tiles = padded(columns) // 4
    return tiles * (tiles + 1) // 2 * 16


def panel_rows(width: int, columns: int) -> int:
    """Return the rows of a panel.

    A panel has whole blocks with about 20,000 numbers, enough work for a task of a thread, and a
    layer has at most 256 panels.
    """
    blocks = max(1, min(8, 20_480 // (BLOCK * columns)))
    return max(blocks * BLOCK, stride((width + 255) // 256))


def panel_shape(columns: int) -> tuple[int, int]:
    """Return the shape of the work space of a factor: a row, or columns of the factor as rows.

    These are as long as an odd number of cache lines, so that entries of one column are in
    different sets of a cache.
    """
    if columns <= PANEL:
        return 1, columns
    whole = (columns + 7) // 8
    return PANEL, 8 * (whole + 1 - whole % 2)


def aligned_zeros(shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """Return zeros whose first element begins a cache line."""
    size = prod(shape) * np.dtype(dtype).itemsize
    raw = np.zeros(size + LINE_BYTES, np.uint8)
    offset = -raw.__array_interface__["data"][0] % LINE_BYTES  # `raw.ctypes` takes longer
    return raw[offset : offset + size].view(dtype).reshape(shape)


def shapes(batch: int, columns: int) -> tuple[Any, ...]:
    """Return the shapes of the fields of a `Work`."""
    inputs, whole = columns // batch, padded(columns)
    tiles = whole // 4
    return (
        (whole * STRIDE,),
        (TILE * STRIDE,),
        (inputs * STRIDE,),
        (16,),
        (tiles * (tiles + 1) // 2 * 16,),
        (columns, columns),
        (inputs, columns),
        (columns,),
        panel_shape(columns),
        (columns,),
        (whole, whole),
        (columns,),
    )


def work(batch: int, inputs: int, dtype: DTypeLike) -> Work:
    """Return the buffers of one thread."""
    size, fields = _layout(batch, batch * inputs, np.dtype(dtype))
    raw = aligned_zeros((size,), np.uint8)
    return Work(*(np.ndarray(shape, kind, raw, offset) for shape, kind, offset in fields))


@lru_cache(maxsize=64)
def _layout(
    batch: int, columns: int, rows: np.dtype[Any]
) -> tuple[int, tuple[tuple[Any, np.dtype[Any], int], ...]]:
    """Return the bytes of a `Work`, and shape, dtype and offset of each of its fields."""
    double = np.float64
    dtypes: list[Any] = [*[rows] * 4, *[double] * 5, np.int64, rows, np.bool_]
    size, fields = 0, []
    for shape, dtype in zip(shapes(batch, columns), dtypes, strict=True):
        kind: np.dtype[Any] = np.dtype(dtype)
        fields.append((shape, kind, size))
        size += -(-prod(shape) * kind.itemsize // LINE_BYTES) * LINE_BYTES
    return size, tuple(fields)
