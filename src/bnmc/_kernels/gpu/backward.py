"""The kernels of the backward pass: gradients of one chain per row of the grid, layer by layer.

`cpu.backward` has the formulas.  As there, two matrices of order `columns` take the pass from a
layer to the layer below.  The kernel `top` makes them for the last layer.  Each layer below takes
two passes over its rows.  The kernel `begin` sums aᵀZ, and its last block solves for M in
Wᵀδ = a M + Z.  The kernel `descend` makes δ of the layer and its sums.  Each pass makes the rows h,
their normals z and the rows Z again from their counters.  So a layer keeps no rows, but for the
gradient that a skip connection needs.

As in `layers`, the rows of a chain are divided into ranges of tiles, whose sums the last block of a
chain adds in their order: results do not depend on the number of blocks.
"""

from __future__ import annotations

from typing import Any

from numba import float64

from bnmc._kernels.gpu.backward_frame import (
    Gradient,
    Parts,
    clear_function,
    leave,
    making_functions,
    registers_of,
    rows_function,
    state_functions,
    sum_function,
)
from bnmc._kernels.gpu.device import cuda, inlined, kernel
from bnmc._kernels.gpu.layers import last_function
from bnmc._kernels.gpu.shape import u32
from bnmc._kernels.gpu.stops import STEP_BITS, STOPPED_UNRESOLVED
from bnmc._kernels.scalar.codes import RESOLVED_PIVOT


def begin_kernel(parts: Parts) -> Any:
    """Return the kernel `begin`."""
    shape, room, matrices = parts.shape, parts.room, parts.matrices
    single, rows_of = shape.spec.single, rows_function(parts)
    factorise_seen, factorise_delta = matrices.factorise_seen, matrices.factorise_delta
    merge, solve, take_basis = matrices.merge, matrices.solve, matrices.take_basis
    is_last = last_function(shape)
    activate, add_cross = parts.steps.activate, parts.tiles.add_cross
    prepare, making = parts.block.begin, making_functions(parts)
    make_noise, make_rows = making.make_noise, making.make_rows
    at_first, at_second, at_delta = room.first, room.second, room.delta

    @inlined
    def add_tile(row, width, sums, rows):
        make_rows(row, width, rows)
        activate(row, width, rows.eps)
        make_noise(row, rows.draws)
        add_cross(at_second, at_delta, at_first, sums, 0)

    sum_rows = sum_function(
        parts.shape, parts.sums, clear_function(parts), add_tile, leave, activates=True
    )

    @kernel(registers_of(room))
    def begin(
        grams, scales, ratios, xs, state, basis, mixing, sums, arrived, status, width, skip, eps,
        stage, first_chain, layer, at, step, k0, k1,
    ):  # fmt: skip
        """Sum aᵀZ of a layer, and solve for M.

        grams : (chains, layers, columns, columns) float64
            Gram matrices; that of the layer before is at place `at`.
        scales, ratios : (chains, layers) float64, (chains, layers, columns) float64
            The scale of the rows h of the layer, and the units of its activations in those of the
            basis.
        xs : (chains, layers, columns, >= width), or (1, 1, 1, 1)
            With a skip connection, the representations of the layers before.
        state : (chains, 2, columns, columns) float64
            δᵀδ / width and zᵀδ / width of the layer above.
        basis : (chains, columns, columns) float64
            The factor of what the layer above saw; replaced by that of what the layer saw.
        mixing : (chains, columns, columns) float64
            Receives M.
        sums : (chains, ranges, >= columns**2) float64
            Work space.
        arrived : (chains,) int32
            Number of blocks that have finished; zeros before and after.
        status : (chains,) int64
            Notes of `stops`.
        stage : int
            READOUT, TOP or INNER.
        step : int
            Number of the launch, from 0 on.
        """
        chain = cuda.blockIdx.y
        # As in `rows`, other blocks may write this step's status now.
        if status[chain] >> STEP_BITS < step:
            return
        prepare()
        scale_of_rows = scales[chain, at]
        factorise_seen(grams[chain, at], scale_of_rows)
        scale, least = factorise_delta(state[chain, 0], stage)
        if single and least < RESOLVED_PIVOT:
            if cuda.blockIdx.x == 0 and cuda.threadIdx.x == 0:
                status[chain] = (step << STEP_BITS) + STOPPED_UNRESOLVED
            return
        rows = rows_of(xs, skip, eps, first_chain, layer, at, k0, k1)
        sum_rows(sums, status, step, width, rows)
        if not is_last(arrived, chain, cuda.gridDim.x):
            return
        merge(sums[chain], 0, width, mixing[chain])
        solve(mixing[chain], basis[chain], state[chain, 1], scale, ratios[chain, at], stage)
        take_basis(basis[chain], scale_of_rows)

    return begin


def descend_kernel(parts: Parts) -> Any:
    """Return the kernel `descend`."""
    room, matrices, skipped = parts.room, parts.matrices, parts.shape.spec.skipped
    factorise_seen, factorise_delta = matrices.factorise_seen, matrices.factorise_delta
    prepare, take_mixing, states = parts.block.begin, matrices.take_mixing, state_functions(parts)
    finish_state, close, rows_of = states.finish_state, states.close, rows_function(parts)
    is_last, sum_rows = last_function(parts.shape), descent_function(parts)

    @kernel(registers_of(room))
    def descend(
        grams, scales, xs, above, state, mixing, sums, arrived, record, factors, status, width,
        gain, skip, own_gain, own_skip, eps, stage, hidden, first_chain, layer, at, step, k0, k1,
    ):  # fmt: skip
        """Make δ of a layer, and the sums over its rows.

        Parameters are those of `begin`, and

        above : (chains, columns, >= width), or (1, 1, 1)
            With a skip connection, δ of the layer above; replaced by that of the layer.
        record : (chains, layers, 2 or 3, columns, columns) float64
            Receives the state, and hᵀδ / width if `hidden`, at place `at`.
        factors : (chains, layers) float64
            Receives the power of two by which δ of the layer above was multiplied.
        gain, skip : float
            Factors of Wᵀδ and of δ of the layer above, which are 1 and 0 for a readout.
        own_gain, own_skip : float
            The gain of the layer, and its factor of x.
        """
        chain = cuda.blockIdx.y
        if status[chain] >> STEP_BITS < step:
            return
        prepare()
        scale_of_rows = scales[chain, at]
        factorise_seen(grams[chain, at], scale_of_rows)
        scale, _ = factorise_delta(state[chain, 0], stage)
        take_mixing(mixing[chain])
        unit = scale_of_rows / own_gain
        rows = rows_of(xs, own_skip, eps, first_chain, layer, at, k0, k1)
        gradient = Gradient(above[chain if skipped else 0], skip * scale, gain, unit, hidden)
        sum_rows(sums, status, step, width, (rows, gradient))
        if not is_last(arrived, chain, cuda.gridDim.x):
            return
        finish_state(
            sums[chain], width, unit, own_skip, hidden, state[chain], record[chain, at]
        )  # fmt: skip
        close(factors, status, at, step, scale)

    return descend


def descent_function(parts: Parts) -> Any:
    """Return the device function that makes δ of a layer; it takes `Rows` and `Gradient`."""
    room, steps, multiply_onto = parts.room, parts.steps, parts.tiles.multiply_onto
    activate, differentiate = steps.activate, steps.differentiate
    _, _, make_noise, make_rows, make_rows_again = making_functions(parts)
    states = state_functions(parts)
    add_products, at_second, at_mixing, at_delta = (
        states.add_tile, room.second, room.mixing, room.delta,
    )  # fmt: skip

    @inlined
    def add_tile(row, width, sums, layer):
        rows, gradient = layer
        make_noise(row, rows.draws)
        make_rows(row, width, rows)
        activate(row, width, rows.eps)
        multiply_onto(at_second, at_mixing, at_delta)
        # The rows h again, which is faster than a further tile.
        make_rows_again(row, width, rows)
        differentiate(
            row, width, gradient.gain, gradient.skip, gradient.unit, rows.eps, gradient.above
        )
        add_products(row, width, sums, rows, gradient)

    return sum_function(
        parts.shape, parts.sums, states.clear_range, add_tile, states.end_range, activates=True
    )


def top_kernel(parts: Parts) -> Any:
    """Return the kernel `top`."""
    room, skipped, prepare = parts.room, parts.shape.spec.skipped, parts.block.begin
    factorise_seen, states = parts.matrices.factorise_seen, state_functions(parts)
    finish_state, close, rows_of = states.finish_state, states.close, rows_function(parts)
    is_last, sum_rows = last_function(parts.shape), at_top_function(parts)

    @kernel(registers_of(room))
    def top(
        grams, scales, xs, given, above, state, sums, arrived, record, factors, status, width,
        own_gain, own_skip, hidden, first_chain, layer, at, step, k0, k1,
    ):  # fmt: skip
        """Make δ of the last layer, and the sums over its rows.

        Parameters are those of `descend`, and

        given : (chains or 1, columns, width) float64, or (1, 0, 1)
            δ, or nothing if its entries are independent standard normals.
        """
        chain = cuda.blockIdx.y
        if status[chain] >> STEP_BITS < step:
            return
        prepare()
        scale_of_rows = scales[chain, at]
        factorise_seen(grams[chain, at], scale_of_rows)
        unit = scale_of_rows / own_gain
        rows = rows_of(xs, own_skip, 0.0, first_chain, layer, at, k0, k1)
        gradient = Gradient(above[chain if skipped else 0], 0.0, 1.0, unit, hidden)
        own = given[chain if given.shape[0] > 1 else 0]
        sum_rows(sums, status, step, width, (rows, gradient, own))
        if not is_last(arrived, chain, cuda.gridDim.x):
            return
        finish_state(
            sums[chain], width, unit, own_skip, hidden, state[chain], record[chain, at]
        )  # fmt: skip
        close(factors, status, at, step, 1.0)

    return top


def at_top_function(parts: Parts) -> Any:
    """Return the device function of δ of the last layer; it takes `Rows`, `Gradient` and δ."""
    shape, room, steps = parts.shape, parts.room, parts.steps
    columns, threads, at_all = shape.spec.columns, shape.threads, shape.at.diagonal
    load, clear_padding, states = steps.load, steps.clear_padding, state_functions(parts)
    draw_rows, draw_noise, *_ = making_functions(parts)
    add_products, at_first, at_delta = states.add_tile, room.first, room.delta

    @inlined
    def add_tile(row, width, sums, layer):
        rows, gradient, given = layer
        if given.shape[0] > 0:
            load(at_delta, row, width, given)
        else:
            draw_noise(at_delta, row, rows.draws)
            clear_padding(at_delta, row, width)
        draw_rows(at_first, row, rows.draws)
        add_products(row, width, sums, rows, gradient)

    sum_tiles = sum_function(
        parts.shape, parts.sums, states.clear_range, add_tile, states.end_range, activates=False
    )

    @inlined
    def sum_rows(sums, status, step, width, layer):
        doubles = cuda.shared.array(0, float64)
        for k in range(cuda.threadIdx.x, columns, threads):
            doubles[u32(at_all + k)] = 1.0
        sum_tiles(sums, status, step, width, layer)

    return sum_rows
