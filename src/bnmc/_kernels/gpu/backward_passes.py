"""The kernels of the backward pass of layers that are not row by row: any order, norm and bias.

They differ from those of `backward` between the products with weights.  A norm over the features
needs the means of gradients over all rows, or over a group of rows.  So a layer takes up to three
passes over the same counters.  The kernel `mix` sums aᵀZ, and solves for M in Wᵀδ = a M + Z.  The
kernel `average` sums the gradients with respect to N(u), and their products with N(u); it is absent
unless a norm is over the features.  The kernel `lower` makes δ of the layer and its sums.  The last
layer has its gradient from the kernel `top` of `backward`.

A bias is the weight of one more row of a, all of whose entries are `constant`.  So Z has one more
row, too.  Convolutions have several taps, see `backward_taps`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from bnmc._kernels.gpu.backward_frame import (
    Gradient, add_delta, clear_range, close, end_range, finish_state, leave, make_noise, make_rows,
    make_rows_again, rows_of, sum_rows,
)  # fmt: skip
from bnmc._kernels.gpu.backward_matrices import factorise_delta, factorise_seen, solve, take_basis
from bnmc._kernels.gpu.backward_orders import (
    activate, apply, differentiate, finish, lead_through, weigh,
)  # fmt: skip
from bnmc._kernels.gpu.backward_taps import (
    add_taps, clear_taps, make_noise_of_taps, merge_taps, take_mixing_of_taps,
)  # fmt: skip
from bnmc._kernels.gpu.backward_tiles import multiply_onto
from bnmc._kernels.gpu.block import STEP_BITS, begin, is_last, thread
from bnmc._kernels.gpu.constants import (
    activates_first, at_delta, at_mixing, at_second, columns, kind, quads, skipped, stride, threads,
    tile_rows,
)  # fmt: skip
from bnmc._kernels.gpu.device import cuda, inlined
from bnmc._kernels.gpu.passes import add_moments, merge_means
from bnmc._kernels.gpu.shape import u32


class Standard(NamedTuple):
    """What a norm over the features subtracts, and its inverse scale."""

    #: Rows of a group of features.
    size: Any
    #: (groups, columns) float64
    shifts: Any
    inverses: Any


@inlined
def _add_noise(row, width, sums, layer):
    rows, norm, neighbours = layer
    make_rows(row, width, rows)
    activate(row, width, norm.size, rows.eps, norm.shifts, norm.inverses)
    add_taps(row, rows.draws, neighbours, sums)


def mix(
    covariances, scales, ratios, xs, shifts, inverses, state, basis, mixing, sums, arrived,
    status, width, skip, constant, eps, stage, first_chain, layer, at, step, k0, k1,
    neighbours,
):  # fmt: skip
    """Sum aᵀZ of a layer, and solve for M.

    Parameters are those of `backward.begin`, and

    covariances : (chains, layers, columns, columns) float64
        Of the rows of W a of the layer, but for their scale, at place `at`.
    shifts, inverses : (chains, groups, columns) float64
        What a norm over the features subtracts, and its inverse scale.
    constant : float
        The entries of the row of a that a bias multiplies, divided by the square root of the
        number of taps; 0 without a bias.
    neighbours : (taps, columns) int64
        The column that each tap sees from a column, if the chain is convolutional.
    """
    chain = cuda.blockIdx.y
    # As in `rows`, other blocks may write this step's status now.
    if status[chain] >> STEP_BITS < step:
        return
    begin()
    scale_of_rows = scales[chain, at]
    factorise_seen(covariances[chain, at], scale_of_rows)
    scale, _ = factorise_delta(state[chain, 0], stage)
    rows = rows_of(xs, skip, eps, first_chain, layer, at, k0, k1)
    norm = Standard(width // shifts.shape[1], shifts[chain], inverses[chain])
    layer_of = rows, norm, neighbours
    sum_rows(clear_taps, _add_noise, leave, True, sums, status, step, width, layer_of)
    if not is_last(arrived, chain, cuda.gridDim.x):
        return
    merge_taps(sums[chain], neighbours, width, mixing[chain])
    if constant != 0.0:
        make_noise(width // tile_rows * tile_rows, rows.draws)
        _add_bias(width, constant, mixing[chain])
    solve(mixing[chain], basis[chain], state[chain, 1], scale, ratios[chain, at], stage)
    take_basis(basis[chain], scale_of_rows)


def _add_bias(width, constant, out):
    """Add to aᵀZ / width the part of the row after the last one, which is in the tile."""
    numbers = cuda.shared.array(0, kind)
    quad = width // 64 * 16 + width % 16 - width // tile_rows * quads
    at = at_delta + width % 64 // 16 * quads + quad
    for item in range(thread(), columns * columns, threads):
        i, j = item // columns, item % columns
        out[i, j] += constant * float(numbers[u32(at + j * stride)]) / width
    cuda.syncthreads()


@inlined
def _make_gradient(row, width, rows, gradient, norm, neighbours):
    """Write the gradient with respect to N(u) to the tile `delta`, and u to `second`."""
    make_noise_of_taps(row, rows.draws, neighbours)
    make_rows(row, width, rows)
    activate(row, width, norm.size, rows.eps, norm.shifts, norm.inverses)
    multiply_onto(at_second, at_mixing, at_delta)
    # The rows h again, which is faster than a further tile.
    make_rows_again(row, width, rows)
    differentiate(
        row, width, norm.size, gradient.gain, gradient.skip, rows.eps, norm.shifts,
        norm.inverses, gradient.above,
    )  # fmt: skip
    apply(row, width)


def average(
    covariances, scales, xs, shifts, inverses, above, state, mixing, segments, means, arrived,
    status, width, gain, skip, own_skip, eps, stage, first_chain, layer, at, step, k0, k1,
    neighbours,
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
    begin()
    groups = shifts.shape[1]
    factorise_seen(covariances[chain, at], scales[chain, at])
    scale, _ = factorise_delta(state[chain, 0], stage)
    take_mixing_of_taps(mixing[chain], neighbours)
    rows = rows_of(xs, own_skip, eps, first_chain, layer, at, k0, k1)
    gradient = Gradient(above[chain if skipped else 0], skip * scale, gain, 1.0, False)
    norm = Standard(width // groups, shifts[chain], inverses[chain])
    for row in range(part * tile_rows, (width + 63) // 64 * 64, blocks * tile_rows):
        _make_gradient(row, width, rows, gradient, norm, neighbours)
        add_moments(row, width, groups, segments[chain, 0])
        weigh(row, width, norm.size, norm.shifts, norm.inverses)
        add_moments(row, width, groups, segments[chain, 1])
    if not is_last(arrived, chain, blocks):
        return
    for which in range(2):
        merge_means(width, groups, segments[chain, which], means[chain, which])


@inlined
def _add_delta(row, width, sums, layer):
    rows, gradient, norm, means, neighbours = layer
    _make_gradient(row, width, rows, gradient, norm, neighbours)
    lead_through(
        row, width, norm.size, gradient.skip, gradient.unit, rows.eps, norm.shifts,
        norm.inverses, means, gradient.above,
    )  # fmt: skip
    if activates_first:
        make_rows_again(row, width, rows)
        finish(row, width, gradient.skip, gradient.above)
    add_delta(row, width, sums, rows, gradient)


def lower(
    covariances, scales, xs, shifts, inverses, means, above, state, mixing, sums, arrived,
    record, factors, status, width, gain, skip, own_gain, own_skip, eps, stage, hidden,
    first_chain, layer, at, step, k0, k1, neighbours,
):  # fmt: skip
    """Make δ of a layer, and the sums over its rows.

    Parameters are those of `average` and of `backward.descend`.
    """
    chain = cuda.blockIdx.y
    if status[chain] >> STEP_BITS < step:
        return
    begin()
    scale_of_rows = scales[chain, at]
    factorise_seen(covariances[chain, at], scale_of_rows)
    scale, _ = factorise_delta(state[chain, 0], stage)
    take_mixing_of_taps(mixing[chain], neighbours)
    unit = scale_of_rows / own_gain
    rows = rows_of(xs, own_skip, eps, first_chain, layer, at, k0, k1)
    gradient = Gradient(above[chain if skipped else 0], skip * scale, gain, unit, hidden)
    norm = Standard(width // shifts.shape[1], shifts[chain], inverses[chain])
    layer_of = rows, gradient, norm, means[chain], neighbours
    sum_rows(clear_range, _add_delta, end_range, True, sums, status, step, width, layer_of)
    if not is_last(arrived, chain, cuda.gridDim.x):
        return
    finish_state(
        sums[chain], width, unit, own_skip, hidden, state[chain], record[chain, at]
    )  # fmt: skip
    close(factors, status, at, step, scale)
