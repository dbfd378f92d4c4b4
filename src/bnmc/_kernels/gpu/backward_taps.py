"""The weights of several taps in a backward pass: rows Z of each tap, and sums over the taps.

The rows of a convolution depend on patches of the activations a.  Tap t sees u_t = a P_t, with a
permutation P_t of the columns.  The weights have the variance 1 / (taps · width), so that

    Wᵀδ = Σ_t (u_t M + Z_t) P_tᵀ / taps = (a Σ_t P_t M P_tᵀ + Σ_t Z_t P_tᵀ) / taps.

Here the rows of Z_t are N(0, taps · δᵀδ / width), and M depends on Σ_t u_tᵀZ_t = Σ_t P_tᵀ aᵀZ_t.
The normals of Z_t have the elements from t · columns on.  The host divides the gain by the number
of taps.  The weights of a layer without a convolution, and those of a readout, have one tap.
"""

from __future__ import annotations

from math import sqrt
from bnmc._kernels.gpu.tiles import add_cross, multiply
from bnmc._kernels.gpu.block import thread
from bnmc._kernels.gpu.constants import (
    at_delta, at_diagonal, at_first, at_mixing, at_root, at_second, columns, entries, is_convolved,
    kind, number, padded, stride, threads, tile_rows,
)  # fmt: skip
from bnmc._kernels.gpu.device import cuda, inlined
from bnmc._kernels.gpu.drawing import draw_normals_of_tile
from bnmc._kernels.gpu.shape import u32


def add_taps(row, rows, neighbours, sums):
    """Add aᵀZ of each tap, of the activations in the tile `second`."""
    for tap in range(neighbours.shape[0] if is_convolved else 1):
        _make_tap(row, tap, at_delta, rows)
        add_cross(at_second, at_delta, at_first, sums, entries + tap * columns * columns)


def merge_taps(sums, neighbours, width, out):
    """Write Σ_t u_tᵀZ_t / (taps · width); `neighbours` are those of `passes.cover`."""
    taps = neighbours.shape[0] if is_convolved else 1
    # The sums have Z_t / √taps.
    unit = width * sqrt(float(taps))
    for item in range(thread(), columns * columns, threads):
        i, j = item // columns, item % columns
        total = 0.0
        for tap in range(taps):
            seen = neighbours[tap, i] if is_convolved else i
            entry = entries + (tap * columns + seen) * columns + j
            for index in range(sums.shape[0]):
                total += sums[index, entry]
        out[i, j] = total / unit
    cuda.syncthreads()


def take_mixing(mixing, neighbours):
    """Copy Σ_t P_t M P_tᵀ to shared memory."""
    numbers = cuda.shared.array(0, kind)
    for item in range(thread(), columns * padded, threads):
        k, c = item // padded, item % padded
        value = number(0.0)
        if c < columns and not is_convolved:
            value = number(mixing[k, c])
        numbers[u32(at_mixing + item)] = value
    cuda.syncthreads()
    if not is_convolved:
        return
    for tap in range(neighbours.shape[0]):
        for item in range(thread(), columns * columns, threads):
            i, j = item // columns, item % columns
            at = at_mixing + neighbours[tap, i] * padded + neighbours[tap, j]
            numbers[u32(at)] += number(mixing[i, j])
        cuda.syncthreads()


def make_noise_of_taps(row, rows, neighbours):
    """Write Σ_t Z_t P_tᵀ to the tile `delta`."""
    if not is_convolved:
        _make_tap(row, 0, at_delta, rows)
        return
    numbers = cuda.shared.array(0, kind)
    for item in range(thread(), columns * tile_rows, threads):
        numbers[u32(at_delta + item // tile_rows * stride + item % tile_rows)] = number(0.0)
    root = number(sqrt(float(neighbours.shape[0])))
    for tap in range(neighbours.shape[0]):
        _make_tap(row, tap, at_second, rows)
        # No two columns see the same one through a tap.
        for item in range(thread(), columns * tile_rows, threads):
            j, place = item // tile_rows, item % tile_rows
            value = root * numbers[u32(at_second + j * stride + place)]
            numbers[u32(at_delta + neighbours[tap, j] * stride + place)] += value
        cuda.syncthreads()


@inlined
def _make_tap(row, tap, at, rows):
    """Write Z_t / √taps to a tile; its normals take the tile `first`."""
    draw_normals_of_tile(thread(), at_first, at_diagonal, row, tap * columns, rows.noise)
    multiply(at_first, at_root, at)
