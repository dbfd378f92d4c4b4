"""Buffers for the kernels, aligned to cache lines: a vector across two lines loads slowly."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from bnmc._kernels.cpu.numbers import BLOCK, STRIDE, TILE, Work
from bnmc._kernels.processor import LINE_BYTES

#: A function of shape and dtype that makes the arrays of a buffer: `aligned_zeros` or `unplaced`.
Zeros = Callable[[tuple[int, ...], DTypeLike], NDArray[Any]]

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
    raw: Any = np.zeros(prod(shape) * np.dtype(dtype).itemsize + LINE_BYTES, np.uint8)
    # `raw.ctypes` and `raw.__array_interface__` take longer.
    offset = -ctypes.addressof(ctypes.c_char.from_buffer(raw)) % LINE_BYTES
    return np.ndarray(shape, dtype, raw, offset)


def unplaced(shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """Return an array that takes no memory, whose bytes count as those of zeros."""
    return np.broadcast_to(np.zeros((), dtype), shape)


def bytes_of_arrays(buffer: Any) -> int:
    """Return the bytes of the arrays in a tuple of arrays, of tuples or of None."""
    if isinstance(buffer, np.ndarray):
        return buffer.nbytes
    return sum(map(bytes_of_arrays, buffer or ()))


def carve(piece: Any, store: Any, batch: int, columns: int, rows: Any, tile: int) -> Any:
    """Return the buffers of one thread as pieces of a store, and the bytes that they take.

    ``piece(store, place, shape, dtype)`` returns the array from a byte of the store on.  `rows` is
    the dtype of rows, and `tile` the columns of the tile.  Each buffer begins a cache line.
    """
    inputs, whole, double = columns // batch, padded(columns), np.float64
    block, at = cut(piece, store, 0, (whole * STRIDE,), rows)
    weights, at = cut(piece, store, at, (tile * STRIDE,), rows)
    scales, at = cut(piece, store, at, (inputs * STRIDE,), rows)
    partial, at = cut(piece, store, at, (16,), rows)
    sums, at = cut(piece, store, at, (tile_sums(columns),), double)
    covariance, at = cut(piece, store, at, (columns, columns), double)
    means, at = cut(piece, store, at, (inputs, columns), double)
    diagonal, at = cut(piece, store, at, (columns,), double)
    panel, at = cut(piece, store, at, panel_shape(columns), double)
    twin, at = cut(piece, store, at, (columns,), np.int64)
    factor, at = cut(piece, store, at, (whole, whole), rows)
    regular, at = cut(piece, store, at, (columns,), np.bool_)
    work = Work(
        block, weights, scales, partial, sums, covariance, means, diagonal, panel, twin, factor,
        regular,
    )  # fmt: skip
    return work, at


def cut(piece: Any, store: Any, place: int, shape: tuple[int, ...], dtype: Any) -> Any:
    """Return a piece of a store, and the first cache line after it."""
    array = piece(store, place, shape, dtype)
    return array, place + lines(array.nbytes)


def lines(size: int) -> int:
    """Return a number of bytes rounded up to cache lines."""
    return (size + LINE_BYTES - 1) // LINE_BYTES * LINE_BYTES


@lru_cache(maxsize=64)
def _places(
    batch: int, inputs: int, dtype: np.dtype[Any], tile: int
) -> tuple[list[tuple[tuple[int, ...], Any, int]], int]:
    """Return shape, dtype and first byte of each buffer of one thread, and the bytes of all."""
    places: list[tuple[tuple[int, ...], Any, int]] = []

    def note(_: Any, place: int, shape: tuple[int, ...], kind: Any) -> NDArray[Any]:
        places.append((shape, kind, place))
        return unplaced(shape, kind)

    size = carve(note, None, batch, batch * inputs, dtype, tile)[1]
    return places, int(size)


def work_bytes(batch: int, inputs: int, dtype: DTypeLike, tile: int = TILE) -> int:
    """Return the bytes of the buffers of one thread."""
    return _places(batch, inputs, np.dtype(dtype), tile)[1]


def work(
    batch: int, inputs: int, dtype: DTypeLike, tile: int = TILE, zeros: Zeros = aligned_zeros
) -> Work:
    """Return the buffers of one thread; a `tile` of 0 columns suffices without weights."""
    places, size = _places(batch, inputs, np.dtype(dtype), tile)
    if zeros is unplaced:
        return Work(*[zeros(shape, kind) for shape, kind, _ in places])
    raw = aligned_zeros((size,), np.uint8)
    return Work(*[np.ndarray(shape, kind, raw, place) for shape, kind, place in places])
