"""The kernels of the backward pass of layers that are not row by row: any order, norm and bias.

They differ from those of `backward` between the products with weights.  A norm over the features
needs the means of gradients over all rows, or over a group of rows.  So a layer takes up to three
passes over the same counters.  The kernel `mix` sums aᵀZ, and solves for M in Wᵀδ = a M + Z.  The
kernel `average` sums the gradients with respect to N(u), and their products with N(u); it is absent
unless a norm is over the features.  The kernel `lower` makes δ of the layer and its sums.  The last
layer has its gradient from the kernel `top` of `backward`.

A bias is the weight of one more row of a, all of whose entries are `constant`.  So Z has one more
row, too.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import int64

from bnmc._kernels.gpu.backward import Parts, registers_of, state_functions
from bnmc._kernels.gpu.backward_orders import Orders
from bnmc._kernels.gpu.device import cuda, kernel
from bnmc._kernels.gpu.layers import last_function
from bnmc._kernels.gpu.passes import moment_functions
from bnmc._kernels.gpu.shape import u32
from bnmc._kernels.gpu.stops import NOT_STOPPED, STEP_BITS, STOPPED_NOT_FINITE
from bnmc._kernels.scalar.codes import ACTIVATION_FIRST, STREAM_BACKWARD, STREAM_ROWS


class Making(NamedTuple):
    """Device functions that make the tiles of a layer again."""

    #: Writes Z to the tile `delta`.
    make_noise: Any
    #: Writes the normals of the rows h to the tile `first`, and h to the tile `second`.
    make_rows: Any
    #: Writes h to the tile `second`, given its normals.
    make_rows_again: Any


def making_functions(parts: Parts) -> Making:
    """Return the device functions that make the tiles of a layer again."""
    shape, room, tiles = parts.shape, parts.room, parts.tiles
    draw, multiply, add_skip = tiles.draw, tiles.multiply, parts.steps.add_skip
    at_seen, at_root, at_factor = room.seen, room.root, room.factor
    at_first, at_second, at_delta, at_pivots = (
        room.first, room.second, room.delta, shape.at.diagonal,
    )  # fmt: skip

    @cuda.jit(device=True)
    def make_noise(row, counter, noise, k0, k1):
        draw(at_first, at_pivots, row, counter, noise, k0, k1)
        multiply(at_first, at_root, at_delta)

    @cuda.jit(device=True)
    def make_rows(row, width, skip, x, counter, stream, k0, k1):
        draw(at_first, at_seen, row, counter, stream, k0, k1)
        make_rows_again(row, width, skip, x)

    @cuda.jit(device=True)
    def make_rows_again(row, width, skip, x):
        multiply(at_first, at_factor, at_second)
        add_skip(row, width, skip, x)

    return Making(make_noise, make_rows, make_rows_again)


def mix_kernel(parts: Parts, orders: Orders) -> Any:
    """Return the kernel `mix`."""
    shape, room, matrices = parts.shape, parts.room, parts.matrices
    skipped, squares = shape.spec.skipped, shape.spec.columns**2
    tile_rows, threads, at_flags = shape.tile_rows, shape.threads, shape.at.flags
    prepare, clear_sums, is_last = parts.block.begin, parts.sums.clear, last_function(shape)
    factorise_seen, factorise_delta = matrices.factorise_seen, matrices.factorise_delta
    merge, solve, take_basis = matrices.merge, matrices.solve, matrices.take_basis
    add_cross, activate, add_bias = parts.tiles.add_cross, orders.activate, _bias_function(parts)
    make_noise, make_rows, _ = making_functions(parts)
    at_first, at_second, at_delta = room.first, room.second, room.delta

    @kernel(registers_of(room))
    def mix(
        covariances, scales, ratios, xs, shifts, inverses, state, basis, mixing, sums, arrived,
        status, width, skip, constant, eps, stage, first_chain, layer, at, step, k0, k1,
    ):  # fmt: skip
        """Sum aᵀZ of a layer, and solve for M.

        Parameters are those of `backward.begin`, and

        covariances : (chains, layers, columns, columns) float64
            Of the rows of W a of the layer, but for their scale, at place `at`.
        shifts, inverses : (chains, groups, columns) float64
            What a norm over the features subtracts, and its inverse scale.
        constant : float
            The entries of the row of a that a bias multiplies; 0 without a bias.
        """
        whole = cuda.shared.array(0, int64)
        t, part, chain, blocks = cuda.threadIdx.x, cuda.blockIdx.x, cuda.blockIdx.y, cuda.gridDim.x
        # As in `rows`, other blocks may write this step's status now.
        if status[chain] >> STEP_BITS < step:
            return
        prepare()
        x = xs[chain if skipped else 0, at if skipped else 0]
        own = np.uint32(first_chain + chain)
        stream, noise = np.uint32(STREAM_ROWS | own), np.uint32(STREAM_BACKWARD | own)
        counter, scale_of_rows = np.uint32(layer), scales[chain, at]
        factorise_seen(covariances[chain, at], scale_of_rows)
        scale, _ = factorise_delta(state[chain, 0], stage)
        size = width // shifts.shape[1]
        for index in range(part, sums.shape[1], blocks):
            clear_sums()
            for entry in range(t, squares, threads):
                sums[chain, index, entry] = 0.0
            cuda.syncthreads()
            # The rows of a quad are 16 apart, so rows come in whole groups of 64.
            for row in range(index * tile_rows, (width + 63) // 64 * 64, sums.shape[1] * tile_rows):
                make_rows(row, width, skip, x, counter, stream, k0, k1)
                activate(row, width, size, eps, shifts[chain], inverses[chain])
                make_noise(row, counter, noise, k0, k1)
                add_cross(at_second, at_delta, at_first, sums[chain, index], 0)
            if t == 0 and whole[u32(at_flags)] != NOT_STOPPED:
                cuda.atomic.min(status, chain, (step << STEP_BITS) + whole[u32(at_flags)])
        if not is_last(arrived, chain, blocks):
            return
        merge(sums[chain], 0, width, mixing[chain])
        if constant != 0.0:
            make_noise(width // tile_rows * tile_rows, counter, noise, k0, k1)
            add_bias(width, constant, mixing[chain])
        solve(mixing[chain], basis[chain], state[chain, 1], scale, ratios[chain, at], stage)
        take_basis(basis[chain], scale_of_rows)

    return mix


def _bias_function(parts: Parts) -> Any:
    shape, at_delta = parts.shape, parts.room.delta
    columns, kind, quads, stride = shape.spec.columns, shape.spec.kind, shape.quads, shape.stride
    threads, thread, tile_rows = shape.threads, parts.block.thread, shape.tile_rows

    @cuda.jit(device=True)
    def add_bias(width, constant, out):
        """Add to aᵀZ / width the part of the row after the last one, which is in the tile."""
        numbers = cuda.shared.array(0, kind)
        quad = width // 64 * 16 + width % 16 - width // tile_rows * quads
        at = at_delta + width % 64 // 16 * quads + quad
        for item in range(thread(), columns * columns, threads):
            i, j = item // columns, item % columns
            out[i, j] += constant * float(numbers[u32(at + j * stride)]) / width
        cuda.syncthreads()

    return add_bias


def _gradient_function(parts: Parts, orders: Orders) -> Any:
    """Return the device function of what `average` and `lower` have in common."""
    room, making = parts.room, making_functions(parts)
    make_noise, make_rows, make_rows_again = making
    activate, differentiate, apply = orders.activate, orders.differentiate, orders.apply
    multiply_onto = parts.tiles.multiply_onto
    at_second, at_mixing, at_delta = room.second, room.mixing, room.delta

    @cuda.jit(device=True)
    def make_gradient(
        row, width, size, gain, skip, own_skip, eps, shifts, inverses, x, above, counter, stream,
        noise, k0, k1,
    ):  # fmt: skip
        """Write the gradient with respect to N(u) to the tile `delta`, and u to `second`."""
        make_noise(row, counter, noise, k0, k1)
        make_rows(row, width, own_skip, x, counter, stream, k0, k1)
        activate(row, width, size, eps, shifts, inverses)
        multiply_onto(at_second, at_mixing, at_delta)
        # The rows h again, which is faster than a further tile.
        make_rows_again(row, width, own_skip, x)
        differentiate(row, width, size, gain, skip, eps, shifts, inverses, above)
        apply(row, width)

    return make_gradient


def average_kernel(parts: Parts, orders: Orders) -> Any:
    """Return the kernel `average`."""
    shape, room, matrices = parts.shape, parts.room, parts.matrices
    skipped, tile_rows = shape.spec.skipped, shape.tile_rows
    prepare, is_last, weigh = parts.block.begin, last_function(shape), orders.weigh
    factorise_seen, factorise_delta = matrices.factorise_seen, matrices.factorise_delta
    take_mixing, make_gradient = matrices.take_mixing, _gradient_function(parts, orders)
    moments = moment_functions(shape, parts.block)
    add_moments, merge_means = moments.add_moments, moments.merge_means

    @kernel(registers_of(room))
    def average(
        covariances, scales, xs, shifts, inverses, above, state, mixing, segments, means, arrived,
        status, width, gain, skip, own_skip, eps, stage, first_chain, layer, at, step, k0, k1,
    ):  # fmt: skip
        """Sum the gradients with respect to N(u), and their products with N(u), over the features.

        Parameters are those of `mix` and of `backward.descend`, and

        segments : (chains, 2, places, 2, columns) float64
            Work space; see `passes.segments_of`.
        means : (chains, 2, groups, columns) float64
            Receives the means of both.
        """
        part, chain, blocks = cuda.blockIdx.x, cuda.blockIdx.y, cuda.gridDim.x
        if status[chain] >> STEP_BITS < step:
            return
        prepare()
        x = xs[chain if skipped else 0, at if skipped else 0]
        of_above = above[chain if skipped else 0]
        own = np.uint32(first_chain + chain)
        stream, noise = np.uint32(STREAM_ROWS | own), np.uint32(STREAM_BACKWARD | own)
        counter, groups = np.uint32(layer), shifts.shape[1]
        factorise_seen(covariances[chain, at], scales[chain, at])
        scale, _ = factorise_delta(state[chain, 0], stage)
        take_mixing(mixing[chain])
        size = width // groups
        for row in range(part * tile_rows, (width + 63) // 64 * 64, blocks * tile_rows):
            make_gradient(
                row, width, size, gain, skip * scale, own_skip, eps, shifts[chain],
                inverses[chain], x, of_above, counter, stream, noise, k0, k1,
            )  # fmt: skip
            add_moments(row, width, groups, segments[chain, 0])
            weigh(row, width, size, shifts[chain], inverses[chain])
            add_moments(row, width, groups, segments[chain, 1])
        if not is_last(arrived, chain, blocks):
            return
        for which in range(2):
            merge_means(width, groups, segments[chain, which], means[chain, which])

    return average


def lower_kernel(parts: Parts, orders: Orders) -> Any:
    """Return the kernel `lower`."""
    shape, room, matrices = parts.shape, parts.room, parts.matrices
    skipped, tile_rows, at_flags = shape.spec.skipped, shape.tile_rows, shape.at.flags
    prepare, clear_sums, is_last = parts.block.begin, parts.sums.clear, last_function(shape)
    factorise_seen, factorise_delta = matrices.factorise_seen, matrices.factorise_delta
    take_mixing, store = matrices.take_mixing, parts.steps.store
    make_gradient = _gradient_function(parts, orders)
    make_rows_again = making_functions(parts).make_rows_again
    lead_through, finish = orders.lead_through, orders.finish
    clear_range, add_tile, end_range, finish_state, _ = state_functions(parts)
    assert shape.spec.passing is not None
    activated, at_delta = shape.spec.passing.order == ACTIVATION_FIRST, room.delta

    @kernel(registers_of(room))
    def lower(
        covariances, scales, xs, shifts, inverses, means, above, state, mixing, sums, arrived,
        record, factors, status, width, gain, skip, own_gain, own_skip, eps, stage, hidden,
        first_chain, layer, at, step, k0, k1,
    ):  # fmt: skip
        """Make δ of a layer, and the sums over its rows.

        Parameters are those of `average` and of `backward.descend`.
        """
        whole = cuda.shared.array(0, int64)
        t, part, chain, blocks = cuda.threadIdx.x, cuda.blockIdx.x, cuda.blockIdx.y, cuda.gridDim.x
        if status[chain] >> STEP_BITS < step:
            return
        prepare()
        x = xs[chain if skipped else 0, at if skipped else 0]
        of_above = above[chain if skipped else 0]
        own = np.uint32(first_chain + chain)
        stream, noise = np.uint32(STREAM_ROWS | own), np.uint32(STREAM_BACKWARD | own)
        counter, scale_of_rows = np.uint32(layer), scales[chain, at]
        factorise_seen(covariances[chain, at], scale_of_rows)
        scale, _ = factorise_delta(state[chain, 0], stage)
        take_mixing(mixing[chain])
        unit, size = scale_of_rows / own_gain, width // shifts.shape[1]
        for index in range(part, sums.shape[1], blocks):
            clear_sums()
            clear_range(sums[chain, index])
            for row in range(index * tile_rows, (width + 63) // 64 * 64, sums.shape[1] * tile_rows):
                make_gradient(
                    row, width, size, gain, skip * scale, own_skip, eps, shifts[chain],
                    inverses[chain], x, of_above, counter, stream, noise, k0, k1,
                )  # fmt: skip
                lead_through(
                    row, width, size, skip * scale, unit, eps, shifts[chain], inverses[chain],
                    means[chain], of_above,
                )  # fmt: skip
                if activated:
                    make_rows_again(row, width, own_skip, x)
                    finish(row, width, skip * scale, of_above)
                if skipped:
                    store(at_delta, row, width, of_above)
                add_tile(row, width, hidden, x, sums[chain, index])
            end_range(sums[chain, index])
            if t == 0 and whole[u32(at_flags)] != NOT_STOPPED:
                cuda.atomic.min(status, chain, (step << STEP_BITS) + whole[u32(at_flags)])
        if not is_last(arrived, chain, blocks):
            return
        finish_state(
            sums[chain], width, unit, own_skip, hidden, state[chain], record[chain, at]
        )  # fmt: skip
        if t == 0:
            factors[chain, at] = scale
            if whole[u32(at_flags)] != NOT_STOPPED:
                cuda.atomic.min(status, chain, (step << STEP_BITS) + STOPPED_NOT_FINITE)

    return lower
