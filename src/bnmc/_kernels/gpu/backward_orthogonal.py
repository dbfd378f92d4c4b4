"""The kernels of the backward pass of chains with orthogonal weights.

`cpu.backward` has the formulas.  Before the two passes of `backward`, the kernel
`orthogonalise` makes the normals z of a layer orthogonal: it sums zᵀz, and its last block writes
L⁻¹.  If zᵀz is near singular, further launches of it repeat this with the columns that it made;
others return at once.  It also factors the rest of δ.  Then rows with orthogonal weights are rows
with Gaussian weights, with F L⁻¹ in place of F, and Z (E L'⁻¹)ᵀ in place of rows N(0, δᵀδ / width).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from numba import float64

from bnmc._kernels.gpu.backward import at_top_function, descent_function
from bnmc._kernels.gpu.backward_frame import (
    Gradient,
    Parts,
    clear_function,
    draws_of,
    leave,
    making_functions,
    registers_of,
    rows_function,
    state_functions,
    sum_function,
)
from bnmc._kernels.gpu.device import cuda, inlined, kernel
from bnmc._kernels.gpu.layers import last_function
from bnmc._kernels.gpu.orthogonal import Frames
from bnmc._kernels.gpu.shape import u32
from bnmc._kernels.gpu.stops import STEP_BITS
from bnmc._kernels.scalar.codes import MOST_PASSES, ORTHOGONAL_PIVOT, READOUT


class Seeing(NamedTuple):
    """Device functions of what a layer saw, and of what δ has outside of it."""

    #: Writes F L⁻¹ to shared memory.
    take_seen: Any
    #: Writes which columns of Z are drawn.
    take_regular: Any


def seeing_functions(parts: Parts, frames: Frames) -> Seeing:
    """Return the device functions of what a layer saw."""
    shape, factorise_seen = parts.shape, parts.matrices.factorise_seen
    limit_seen, multiply_factor = frames.limit_seen, frames.multiply_factor
    columns, threads, thread = shape.spec.columns, shape.threads, parts.block.thread
    at_pivots = shape.at.diagonal

    @cuda.jit(device=True)
    def take_seen(gram, scale, width, inverse):
        factorise_seen(gram, scale)
        limit_seen(width)
        multiply_factor(inverse)

    @cuda.jit(device=True)
    def take_regular(regular):
        doubles = cuda.shared.array(0, float64)
        for k in range(thread(), columns, threads):
            doubles[u32(at_pivots + k)] = regular[k]
        cuda.syncthreads()

    return Seeing(take_seen, take_regular)


def orthogonalise_kernel(parts: Parts, frames: Frames) -> Any:
    """Return the kernel `orthogonalise`."""
    room, matrices, prepare = parts.room, parts.matrices, parts.block.begin
    factorise_seen, limit_seen, begin = matrices.factorise_seen, frames.limit_seen, frames.begin
    take_lower, invert_root, factorise_rest = (
        frames.take_lower, frames.invert_root, frames.factorise_rest,
    )  # fmt: skip
    draw_rows, multiply, clear_padding, add_gram = (
        making_functions(parts).draw_rows, parts.tiles.multiply, parts.steps.clear_padding,
        parts.sums.add_tile,
    )  # fmt: skip
    states, is_last = state_functions(parts), last_function(parts.shape)
    end_range, merge_gram, store_gram = states.end_range, states.merge_gram, parts.gram.store
    at_first, at_delta, at_mixing = room.first, room.delta, room.mixing

    @inlined
    def add_tile(row, width, sums, layer):
        draws, number = layer
        if number > 0:
            draw_rows(at_first, row, draws)
            multiply(at_first, at_mixing, at_delta)
        else:
            draw_rows(at_delta, row, draws)
        clear_padding(at_delta, row, width)
        add_gram()

    sum_rows = sum_function(parts.shape, parts.sums, leave, add_tile, end_range, activates=False)

    @kernel(registers_of(room))
    def orthogonalise(
        grams, scales, state, basis, inverse, work, root, regular, powers, leasts, sums, arrived,
        status, width, with_rest, number, stage, first_chain, layer, at, step, k0, k1,
    ):  # fmt: skip
        """Make the normals of a layer orthogonal, and factor the rest of δ.

        Parameters are those of `backward.begin`, and

        inverse : (chains, columns, columns) float64
            Receives L⁻¹.
        work : (chains, 2, columns, columns) float64
            Work space.
        root, regular : (chains, columns, columns) float64, (chains, columns) float64
            Receive E, and 1 or 0: whether a column of E has entries; if `with_rest`.
        powers : (chains,) float64
            Receives the power of two by which E is multiplied.
        leasts : (chains,) float64
            The least pivot of the launch before, and of this one.
        number : int
            Number of the launch for this layer.
        """
        chain = cuda.blockIdx.y
        if status[chain] >> STEP_BITS < step:
            return
        if number > 0 and leasts[chain] >= ORTHOGONAL_PIVOT:
            return
        prepare()
        factorise_seen(grams[chain, at], scales[chain, at])
        limit_seen(width)
        if number > 0:
            take_lower(inverse[chain], at_mixing)
        draws = draws_of(first_chain, layer, k0, k1)
        sum_rows(sums, status, step, width, (draws, number))
        if not is_last(arrived, chain, cuda.gridDim.x):
            return
        merge_gram(sums[chain], width)
        store_gram(work[chain, 0])
        cuda.syncthreads()
        if number == 0:
            begin(inverse[chain])
        least = invert_root(work[chain, 0], inverse[chain])
        if cuda.threadIdx.x == 0:
            leasts[chain] = least
        if with_rest and (least >= ORTHOGONAL_PIVOT or number == MOST_PASSES - 1):
            powers[chain] = factorise_rest(
                state[chain], basis[chain], width, stage, work[chain, 0], root[chain],
                regular[chain],
            )  # fmt: skip

    return orthogonalise


def begin_orthogonal_kernel(parts: Parts, frames: Frames) -> Any:
    """Return the kernel `begin_orthogonal`."""
    room, matrices, prepare = parts.room, parts.matrices, parts.block.begin
    take_seen, take_regular = seeing_functions(parts, frames)
    factorise_seen, take_basis, merge = (
        matrices.factorise_seen, matrices.take_basis, matrices.merge,
    )  # fmt: skip
    limit_seen, solve_with_noise = frames.limit_seen, _noise_function(parts, frames)
    is_last, rows_of, making = (
        last_function(parts.shape), rows_function(parts), making_functions(parts),
    )  # fmt: skip
    make_rows, draw_noise = making.make_rows, making.draw_noise
    activate, clear_padding = parts.steps.activate, parts.steps.clear_padding
    add_cross, add_gram = parts.tiles.add_cross, parts.sums.add_tile
    at_first, at_second, at_delta = room.first, room.second, room.delta

    @inlined
    def add_tile(row, width, sums, rows):
        make_rows(row, width, rows)
        activate(row, width, rows.eps)
        draw_noise(at_delta, row, rows.draws)
        clear_padding(at_delta, row, width)
        add_cross(at_second, at_delta, at_first, sums, 0)
        add_gram()

    end_range = state_functions(parts).end_range
    sum_rows = sum_function(
        parts.shape, parts.sums, clear_function(parts), add_tile, end_range, activates=True
    )

    @kernel(registers_of(room))
    def begin_orthogonal(
        grams, scales, ratios, xs, state, basis, mixing, inverse, work, root, regular, powers,
        sums, arrived, status, width, skip, eps, stage, first_chain, layer, at, step, k0, k1,
    ):  # fmt: skip
        """Sum aᵀZ and ZᵀZ of a layer, and solve for M; replace E by E L'⁻¹.

        Parameters are those of `backward.begin` and of `orthogonalise`.
        """
        chain = cuda.blockIdx.y
        if status[chain] >> STEP_BITS < step:
            return
        prepare()
        take_seen(grams[chain, at], scales[chain, at], width, inverse[chain])
        take_regular(regular[chain])
        rows = rows_of(xs, skip, eps, first_chain, layer, at, k0, k1)
        sum_rows(sums, status, step, width, rows)
        if not is_last(arrived, chain, cuda.gridDim.x):
            return
        merge(sums[chain], 0, width, mixing[chain])
        solve_with_noise(
            sums[chain], width, mixing[chain], basis[chain], state[chain, 1], powers[chain],
            ratios[chain, at], stage, work[chain], root[chain],
        )  # fmt: skip
        factorise_seen(grams[chain, at], scales[chain, at])
        limit_seen(width)
        take_basis(basis[chain], scales[chain, at])

    return begin_orthogonal


def _noise_function(parts: Parts, frames: Frames) -> Any:
    shape, matrices = parts.shape, parts.matrices
    columns, threads, thread = shape.spec.columns, shape.threads, parts.block.thread
    project, mix, store_gram = matrices.project, matrices.mix, parts.gram.store
    merge_gram = state_functions(parts).merge_gram
    begin, invert_root, multiply_root = frames.begin, frames.invert_root, frames.multiply_root

    @cuda.jit(device=True)
    def solve_with_noise(
        sums, width, right, basis, cross, scale, ratio, stage, work, root
    ):  # fmt: skip
        """Turn aᵀZ / width into M; replace E by E L'⁻¹, where L'L'ᵀ = ZᵀZ / width - CᵀC."""
        project(right, basis, ratio, stage)
        if stage != READOUT:
            merge_gram(sums, width)
            store_gram(work[0])
            cuda.syncthreads()
            for item in range(thread(), columns * columns, threads):
                i, j = item // columns, item % columns
                for k in range(columns):
                    if basis[k, k] != 0.0:
                        work[0, i, j] -= right[k, i] * right[k, j]
            begin(work[1])
            invert_root(work[0], work[1])
            multiply_root(root, work[1])
        for i in range(thread(), columns, threads):
            for back in range(columns):
                j = columns - 1 - back
                value = 0.0
                for k in range(j + 1):
                    value += right[i, k] * root[j, k]
                right[i, j] = value
        cuda.syncthreads()
        mix(right, basis, cross, scale, ratio, stage)

    return solve_with_noise


def descend_orthogonal_kernel(parts: Parts, frames: Frames) -> Any:
    """Return the kernel `descend_orthogonal`."""
    room, skipped, prepare = parts.room, parts.shape.spec.skipped, parts.block.begin
    take_seen, take_regular = seeing_functions(parts, frames)
    take_mixing, take_lower, turn_cross = (
        parts.matrices.take_mixing, frames.take_lower, frames.turn_cross,
    )  # fmt: skip
    states, rows_of, at_root = state_functions(parts), rows_function(parts), room.root
    finish_state, close = states.finish_state, states.close
    is_last, sum_rows = last_function(parts.shape), descent_function(parts)

    @kernel(registers_of(room))
    def descend_orthogonal(
        grams, scales, xs, above, state, mixing, inverse, root, regular, powers, sums, arrived,
        record, factors, status, width, gain, skip, own_gain, own_skip, eps, stage, hidden,
        first_chain, layer, at, step, k0, k1,
    ):  # fmt: skip
        """Make δ of a layer, and the sums over its rows.

        Parameters are those of `backward.descend` and of `orthogonalise`.
        """
        chain = cuda.blockIdx.y
        if status[chain] >> STEP_BITS < step:
            return
        prepare()
        scale_of_rows, scale = scales[chain, at], powers[chain]
        take_seen(grams[chain, at], scale_of_rows, width, inverse[chain])
        take_regular(regular[chain])
        take_lower(root[chain], at_root)
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
        cuda.syncthreads()
        turn_cross(inverse[chain], state[chain, 1])
        turn_cross(inverse[chain], record[chain, at, 1])
        close(factors, status, at, step, scale)

    return descend_orthogonal


def top_orthogonal_kernel(parts: Parts, frames: Frames) -> Any:
    """Return the kernel `top_orthogonal`."""
    room, skipped, prepare = parts.room, parts.shape.spec.skipped, parts.block.begin
    take_seen, turn_cross = seeing_functions(parts, frames).take_seen, frames.turn_cross
    states, rows_of = state_functions(parts), rows_function(parts)
    finish_state, close = states.finish_state, states.close
    is_last, sum_rows = last_function(parts.shape), at_top_function(parts)

    @kernel(registers_of(room))
    def top_orthogonal(
        grams, scales, xs, given, above, state, inverse, sums, arrived, record, factors, status,
        width, own_gain, own_skip, hidden, first_chain, layer, at, step, k0, k1,
    ):  # fmt: skip
        """Make δ of the last layer, and the sums over its rows.

        Parameters are those of `backward.top` and of `orthogonalise`.
        """
        chain = cuda.blockIdx.y
        if status[chain] >> STEP_BITS < step:
            return
        prepare()
        scale_of_rows = scales[chain, at]
        take_seen(grams[chain, at], scale_of_rows, width, inverse[chain])
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
        cuda.syncthreads()
        turn_cross(inverse[chain], state[chain, 1])
        turn_cross(inverse[chain], record[chain, at, 1])
        close(factors, status, at, step, 1.0)

    return top_orthogonal
