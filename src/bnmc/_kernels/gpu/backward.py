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

from numba import float64

from bnmc._kernels.gpu.backward_frame import (
    Gradient, add_delta, clear_cross, clear_range, close, draw_noise, draw_rows, end_range,
    finish_state, leave, make_noise, make_rows, make_rows_again, rows_of, sum_rows,
)  # fmt: skip
from bnmc._kernels.gpu.backward_matrices import (
    factorise_delta, factorise_seen, merge, solve, take_basis, take_mixing,
)  # fmt: skip
from bnmc._kernels.gpu.backward_rows import activate, differentiate
from bnmc._kernels.gpu.backward_tiles import add_cross, multiply_onto
from bnmc._kernels.gpu.block import STEP_BITS, STOPPED_UNRESOLVED, is_last
from bnmc._kernels.gpu.block import begin as begin_block
from bnmc._kernels.gpu.constants import (
    at_delta, at_diagonal, at_first, at_mixing, at_second, columns, single, skipped, threads,
)  # fmt: skip
from bnmc._kernels.gpu.device import cuda, inlined
from bnmc._kernels.gpu.rows import clear_padding, load
from bnmc._kernels.gpu.shape import u32
from bnmc._kernels.scalar.codes import RESOLVED_PIVOT


@inlined
def _add_noise(row, width, sums, rows):
    make_rows(row, width, rows)
    activate(row, width, rows.eps)
    make_noise(row, rows.draws)
    add_cross(at_second, at_delta, at_first, sums, 0)


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
    begin_block()
    scale_of_rows = scales[chain, at]
    factorise_seen(grams[chain, at], scale_of_rows)
    scale, least = factorise_delta(state[chain, 0], stage)
    if single and least < RESOLVED_PIVOT:
        if cuda.blockIdx.x == 0 and cuda.threadIdx.x == 0:
            status[chain] = (step << STEP_BITS) + STOPPED_UNRESOLVED
        return
    rows = rows_of(xs, skip, eps, first_chain, layer, at, k0, k1)
    sum_rows(clear_cross, _add_noise, leave, True, sums, status, step, width, rows)
    if not is_last(arrived, chain, cuda.gridDim.x):
        return
    merge(sums[chain], 0, width, mixing[chain])
    solve(mixing[chain], basis[chain], state[chain, 1], scale, ratios[chain, at], stage)
    take_basis(basis[chain], scale_of_rows)


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
    begin_block()
    scale_of_rows = scales[chain, at]
    factorise_seen(grams[chain, at], scale_of_rows)
    scale, _ = factorise_delta(state[chain, 0], stage)
    take_mixing(mixing[chain])
    unit = scale_of_rows / own_gain
    rows = rows_of(xs, own_skip, eps, first_chain, layer, at, k0, k1)
    gradient = Gradient(above[chain if skipped else 0], skip * scale, gain, unit, hidden)
    layer_of = rows, gradient
    sum_rows(clear_range, descend_tile, end_range, True, sums, status, step, width, layer_of)
    if not is_last(arrived, chain, cuda.gridDim.x):
        return
    finish_state(
        sums[chain], width, unit, own_skip, hidden, state[chain], record[chain, at]
    )  # fmt: skip
    close(factors, status, at, step, scale)


@inlined
def descend_tile(row, width, sums, layer):
    """Make δ of the rows of a tile, and add its products."""
    rows, gradient = layer
    make_noise(row, rows.draws)
    make_rows(row, width, rows)
    activate(row, width, rows.eps)
    multiply_onto(at_second, at_mixing, at_delta)
    # The rows h again, which is faster than a further tile.
    make_rows_again(row, width, rows)
    differentiate(row, width, gradient.gain, gradient.skip, gradient.unit, rows.eps, gradient.above)
    add_delta(row, width, sums, rows, gradient)


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
    begin_block()
    scale_of_rows = scales[chain, at]
    factorise_seen(grams[chain, at], scale_of_rows)
    unit = scale_of_rows / own_gain
    rows = rows_of(xs, own_skip, 0.0, first_chain, layer, at, k0, k1)
    gradient = Gradient(above[chain if skipped else 0], 0.0, 1.0, unit, hidden)
    own = given[chain if given.shape[0] > 1 else 0]
    begin_top()
    layer_of = rows, gradient, own
    sum_rows(clear_range, top_tile, end_range, False, sums, status, step, width, layer_of)
    if not is_last(arrived, chain, cuda.gridDim.x):
        return
    finish_state(
        sums[chain], width, unit, own_skip, hidden, state[chain], record[chain, at]
    )  # fmt: skip
    close(factors, status, at, step, 1.0)


@inlined
def top_tile(row, width, sums, layer):
    """Make δ of the rows of a tile of the last layer, and add its products."""
    rows, gradient, given = layer
    if given.shape[0] > 0:
        load(at_delta, row, width, given)
    else:
        draw_noise(at_delta, row, rows.draws)
        clear_padding(at_delta, row, width)
    draw_rows(at_first, row, rows.draws)
    add_delta(row, width, sums, rows, gradient)


@inlined
def begin_top():
    """Let all columns of normals be drawn."""
    doubles = cuda.shared.array(0, float64)
    for k in range(cuda.threadIdx.x, columns, threads):
        doubles[u32(at_diagonal + k)] = 1.0
