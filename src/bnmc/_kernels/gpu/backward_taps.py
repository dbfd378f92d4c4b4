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
from typing import Any, NamedTuple

from bnmc._kernels.gpu.backward_frame import Parts, clear_function, making_functions
from bnmc._kernels.gpu.device import cuda, inlined
from bnmc._kernels.gpu.shape import u32


class Taps(NamedTuple):
    """Device functions of all taps; `neighbours` are those of `passes.cover`."""

    #: Begins the sums over a range of tiles.
    clear: Any
    #: Adds aᵀZ, of the activations in the tile `second`.
    add_cross: Any
    #: Writes Σ_t u_tᵀZ_t / (taps · width).
    merge: Any
    #: Copies Σ_t P_t M P_tᵀ to shared memory.
    take_mixing: Any
    #: Writes Σ_t Z_t P_tᵀ to the tile `delta`.
    make_noise: Any


def taps_functions(parts: Parts) -> Taps:
    """Return the device functions of all taps."""
    passing = parts.shape.spec.passing
    if passing is None or not passing.is_convolved:
        return _one_tap(parts)
    add_cross, make_noise = _noise_functions(parts)
    return Taps(
        _clear_function(parts), add_cross, _merge_function(parts), _mixing_function(parts),
        make_noise,
    )  # fmt: skip


def _one_tap(parts: Parts) -> Taps:
    room, making = parts.room, making_functions(parts)
    at_first, at_second, at_delta = room.first, room.second, room.delta
    add_product, merge_product = parts.tiles.add_cross, parts.matrices.merge
    copy_mixing, make_own = parts.matrices.take_mixing, making.make_noise

    @inlined
    def add_cross(row, draws, neighbours, sums):
        make_own(row, draws)
        add_product(at_second, at_delta, at_first, sums, 0)

    @inlined
    def merge(sums, neighbours, width, out):
        merge_product(sums, 0, width, out)

    @inlined
    def take_mixing(mixing, neighbours):
        copy_mixing(mixing)

    @inlined
    def make_noise(row, draws, neighbours):
        make_own(row, draws)

    return Taps(clear_function(parts), add_cross, merge, take_mixing, make_noise)


def _clear_function(parts: Parts) -> Any:
    threads, squares = parts.shape.threads, parts.shape.spec.columns**2

    @inlined
    def clear(sums):
        for entry in range(cuda.threadIdx.x, sums.shape[0] // squares * squares, threads):
            sums[entry] = 0.0
        cuda.syncthreads()

    return clear


def _noise_functions(parts: Parts) -> tuple[Any, Any]:
    shape, room, tiles = parts.shape, parts.room, parts.tiles
    columns, kind, number = shape.spec.columns, shape.spec.kind, shape.spec.number
    threads, thread, tile_rows, stride = (
        shape.threads, parts.block.thread, shape.tile_rows, shape.stride,
    )  # fmt: skip
    squares, at_pivots, at_root = columns**2, shape.at.diagonal, room.root
    at_first, at_second, at_delta = room.first, room.second, room.delta
    draw, multiply, add_product = tiles.draw, tiles.multiply, tiles.add_cross

    @cuda.jit(device=True)
    def make_tap(row, tap, at_tile, draws):
        """Write Z_t / √taps to a tile; its normals take the tile `first`."""
        draw(
            thread(), at_first, at_pivots, row, tap * columns, draws.counter, draws.noise,
            draws.k0, draws.k1,
        )  # fmt: skip
        multiply(at_first, at_root, at_tile)

    @cuda.jit(device=True)
    def add_cross(row, draws, neighbours, sums):
        for tap in range(neighbours.shape[0]):
            make_tap(row, tap, at_delta, draws)
            add_product(at_second, at_delta, at_first, sums, tap * squares)

    @cuda.jit(device=True)
    def make_noise(row, draws, neighbours):
        numbers = cuda.shared.array(0, kind)
        for item in range(thread(), columns * tile_rows, threads):
            numbers[u32(at_delta + item // tile_rows * stride + item % tile_rows)] = number(0.0)
        root = number(sqrt(float(neighbours.shape[0])))
        for tap in range(neighbours.shape[0]):
            make_tap(row, tap, at_second, draws)
            # No two columns see the same one through a tap.
            for item in range(thread(), columns * tile_rows, threads):
                j, place = item // tile_rows, item % tile_rows
                value = root * numbers[u32(at_second + j * stride + place)]
                numbers[u32(at_delta + neighbours[tap, j] * stride + place)] += value
            cuda.syncthreads()

    return add_cross, make_noise


def _merge_function(parts: Parts) -> Any:
    columns, threads, thread = parts.shape.spec.columns, parts.shape.threads, parts.block.thread

    @cuda.jit(device=True)
    def merge(sums, neighbours, width, out):
        taps = neighbours.shape[0]
        # The sums have Z_t / √taps.
        unit = width * sqrt(float(taps))
        for item in range(thread(), columns * columns, threads):
            i, j = item // columns, item % columns
            total = 0.0
            for tap in range(taps):
                entry = (tap * columns + neighbours[tap, i]) * columns + j
                for index in range(sums.shape[0]):
                    total += sums[index, entry]
            out[i, j] = total / unit
        cuda.syncthreads()

    return merge


def _mixing_function(parts: Parts) -> Any:
    shape, at_mixing = parts.shape, parts.room.mixing
    columns, padded, kind, number = (
        shape.spec.columns, shape.padded, shape.spec.kind, shape.spec.number,
    )  # fmt: skip
    threads, thread = shape.threads, parts.block.thread

    @cuda.jit(device=True)
    def take_mixing(mixing, neighbours):
        numbers = cuda.shared.array(0, kind)
        for item in range(thread(), columns * padded, threads):
            numbers[u32(at_mixing + item)] = number(0.0)
        cuda.syncthreads()
        for tap in range(neighbours.shape[0]):
            for item in range(thread(), columns * columns, threads):
                i, j = item // columns, item % columns
                at = at_mixing + neighbours[tap, i] * padded + neighbours[tap, j]
                numbers[u32(at)] += number(mixing[i, j])
            cuda.syncthreads()

    return take_mixing
