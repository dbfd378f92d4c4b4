"""The kernels of the backward pass of chains with orthogonal weights.

`cpu.orthogonal_backward` has the formulas.  Before the two passes of `backward`, the kernel
`orthogonalise` makes the normals z of a layer orthogonal: it sums zᵀz, and its last block writes
L⁻¹.  If zᵀz is near singular, further launches of it repeat this with the columns that it made;
others return at once.  It also factors the rest of δ.  Then rows with orthogonal weights are rows
with Gaussian weights, with F L⁻¹ in place of F, and Z (E L'⁻¹)ᵀ in place of rows N(0, δᵀδ / width).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import float64, int64

from bnmc._kernels.gpu.backward import Parts, registers_of, state_functions
from bnmc._kernels.gpu.device import cuda, kernel
from bnmc._kernels.gpu.layers import last_function
from bnmc._kernels.gpu.orthogonal import Frames
from bnmc._kernels.gpu.shape import u32
from bnmc._kernels.gpu.stops import NOT_STOPPED, STEP_BITS, STOPPED_NOT_FINITE
from bnmc._kernels.scalar.codes import (
    MOST_PASSES,
    ORTHOGONAL_PIVOT,
    READOUT,
    STREAM_BACKWARD,
    STREAM_ROWS,
)


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
    shape, room, tiles = parts.shape, parts.room, parts.tiles
    tile_rows, prepare, is_last = shape.tile_rows, parts.block.begin, last_function(shape)
    clear_sums, add_gram, clear_padding = (
        parts.sums.clear, parts.sums.add_tile, parts.steps.clear_padding,
    )  # fmt: skip
    factorise_seen, limit_seen, begin = (
        parts.matrices.factorise_seen, frames.limit_seen, frames.begin,
    )  # fmt: skip
    draw, multiply, take_lower = tiles.draw, tiles.multiply, frames.take_lower
    invert_root, factorise_rest = frames.invert_root, frames.factorise_rest
    states = state_functions(parts)
    end_range, merge_gram, store_gram = states.end_range, states.merge_gram, parts.gram.store
    at_seen, at_first, at_delta, at_mixing = room.seen, room.first, room.delta, room.mixing

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
        part, chain, blocks = cuda.blockIdx.x, cuda.blockIdx.y, cuda.gridDim.x
        if status[chain] >> STEP_BITS < step:
            return
        if number > 0 and leasts[chain] >= ORTHOGONAL_PIVOT:
            return
        prepare()
        stream, counter = np.uint32(STREAM_ROWS | np.uint32(first_chain + chain)), np.uint32(layer)
        factorise_seen(grams[chain, at], scales[chain, at])
        limit_seen(width)
        if number > 0:
            take_lower(inverse[chain], at_mixing)
        for index in range(part, sums.shape[1], blocks):
            clear_sums()
            # The rows of a quad are 16 apart, so rows come in whole groups of 64.
            for row in range(index * tile_rows, (width + 63) // 64 * 64, sums.shape[1] * tile_rows):
                if number > 0:
                    draw(at_first, at_seen, row, counter, stream, k0, k1)
                    multiply(at_first, at_mixing, at_delta)
                else:
                    draw(at_delta, at_seen, row, counter, stream, k0, k1)
                clear_padding(at_delta, row, width)
                add_gram()
            end_range(sums[chain, index])
        if not is_last(arrived, chain, blocks):
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
    shape, room, tiles, steps = parts.shape, parts.room, parts.tiles, parts.steps
    skipped, squares = shape.spec.skipped, shape.spec.columns**2
    tile_rows, threads, at_flags = shape.tile_rows, shape.threads, shape.at.flags
    prepare, clear_sums, is_last = parts.block.begin, parts.sums.clear, last_function(shape)
    take_seen, take_regular = seeing_functions(parts, frames)
    factorise_seen, take_basis = parts.matrices.factorise_seen, parts.matrices.take_basis
    limit_seen, merge = frames.limit_seen, parts.matrices.merge
    draw, multiply, add_cross = tiles.draw, tiles.multiply, tiles.add_cross
    add_skip, activate, clear_padding = steps.add_skip, steps.activate, steps.clear_padding
    add_gram, end_range = parts.sums.add_tile, state_functions(parts).end_range
    solve_with_noise = _noise_function(parts, frames)
    at_seen, at_factor, at_pivots = room.seen, room.factor, shape.at.diagonal
    at_first, at_second, at_delta = room.first, room.second, room.delta

    @kernel(registers_of(room))
    def begin_orthogonal(
        grams, scales, ratios, xs, state, basis, mixing, inverse, work, root, regular, powers,
        sums, arrived, status, width, skip, eps, stage, first_chain, layer, at, step, k0, k1,
    ):  # fmt: skip
        """Sum aᵀZ and ZᵀZ of a layer, and solve for M; replace E by E L'⁻¹.

        Parameters are those of `backward.begin` and of `orthogonalise`.
        """
        whole = cuda.shared.array(0, int64)
        t, part, chain, blocks = cuda.threadIdx.x, cuda.blockIdx.x, cuda.blockIdx.y, cuda.gridDim.x
        if status[chain] >> STEP_BITS < step:
            return
        prepare()
        x = xs[chain if skipped else 0, at if skipped else 0]
        own = np.uint32(first_chain + chain)
        stream, noise = np.uint32(STREAM_ROWS | own), np.uint32(STREAM_BACKWARD | own)
        counter = np.uint32(layer)
        take_seen(grams[chain, at], scales[chain, at], width, inverse[chain])
        take_regular(regular[chain])
        for index in range(part, sums.shape[1], blocks):
            clear_sums()
            for entry in range(t, squares, threads):
                sums[chain, index, entry] = 0.0
            cuda.syncthreads()
            for row in range(index * tile_rows, (width + 63) // 64 * 64, sums.shape[1] * tile_rows):
                draw(at_first, at_seen, row, counter, stream, k0, k1)
                multiply(at_first, at_factor, at_second)
                add_skip(row, width, skip, x)
                activate(row, width, eps)
                draw(at_delta, at_pivots, row, counter, noise, k0, k1)
                clear_padding(at_delta, row, width)
                add_cross(at_second, at_delta, at_first, sums[chain, index], 0)
                add_gram()
            end_range(sums[chain, index])
            if t == 0 and whole[u32(at_flags)] != NOT_STOPPED:
                cuda.atomic.min(status, chain, (step << STEP_BITS) + whole[u32(at_flags)])
        if not is_last(arrived, chain, blocks):
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
    shape, room, tiles, steps = parts.shape, parts.room, parts.tiles, parts.steps
    skipped, tile_rows, at_flags = shape.spec.skipped, shape.tile_rows, shape.at.flags
    prepare, clear_sums, is_last = parts.block.begin, parts.sums.clear, last_function(shape)
    take_seen, take_regular = seeing_functions(parts, frames)
    take_mixing, take_lower, turn_cross = (
        parts.matrices.take_mixing, frames.take_lower, frames.turn_cross,
    )  # fmt: skip
    draw, multiply, multiply_onto = tiles.draw, tiles.multiply, tiles.multiply_onto
    add_skip, activate, differentiate = steps.add_skip, steps.activate, steps.differentiate
    store, states = steps.store, state_functions(parts)
    clear_range, add_tile, end_range = states.clear_range, states.add_tile, states.end_range
    finish_state = states.finish_state
    at_seen, at_root, at_factor, at_mixing = room.seen, room.root, room.factor, room.mixing
    at_first, at_second, at_delta, at_pivots = (
        room.first, room.second, room.delta, shape.at.diagonal,
    )  # fmt: skip

    @kernel(registers_of(room))
    def descend_orthogonal(
        grams, scales, xs, above, state, mixing, inverse, root, regular, powers, sums, arrived,
        record, factors, status, width, gain, skip, own_gain, own_skip, eps, stage, hidden,
        first_chain, layer, at, step, k0, k1,
    ):  # fmt: skip
        """Make δ of a layer, and the sums over its rows.

        Parameters are those of `backward.descend` and of `orthogonalise`.
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
        counter, scale_of_rows, scale = np.uint32(layer), scales[chain, at], powers[chain]
        take_seen(grams[chain, at], scale_of_rows, width, inverse[chain])
        take_regular(regular[chain])
        take_lower(root[chain], at_root)
        take_mixing(mixing[chain])
        for index in range(part, sums.shape[1], blocks):
            clear_sums()
            clear_range(sums[chain, index])
            for row in range(index * tile_rows, (width + 63) // 64 * 64, sums.shape[1] * tile_rows):
                draw(at_first, at_pivots, row, counter, noise, k0, k1)
                multiply(at_first, at_root, at_delta)
                draw(at_first, at_seen, row, counter, stream, k0, k1)
                multiply(at_first, at_factor, at_second)
                add_skip(row, width, own_skip, x)
                activate(row, width, eps)
                multiply_onto(at_second, at_mixing, at_delta)
                # The rows h again, which is faster than a further tile.
                multiply(at_first, at_factor, at_second)
                add_skip(row, width, own_skip, x)
                differentiate(
                    row, width, gain, skip * scale, scale_of_rows / own_gain, eps, of_above
                )
                if skipped:
                    store(at_delta, row, width, of_above)
                add_tile(row, width, hidden, x, sums[chain, index])
            end_range(sums[chain, index])
            if t == 0 and whole[u32(at_flags)] != NOT_STOPPED:
                cuda.atomic.min(status, chain, (step << STEP_BITS) + whole[u32(at_flags)])
        if not is_last(arrived, chain, blocks):
            return
        finish_state(
            sums[chain], width, scale_of_rows / own_gain, own_skip, hidden, state[chain],
            record[chain, at],
        )  # fmt: skip
        cuda.syncthreads()
        turn_cross(inverse[chain], state[chain, 1])
        turn_cross(inverse[chain], record[chain, at, 1])
        if t == 0:
            factors[chain, at] = scale
            if whole[u32(at_flags)] != NOT_STOPPED:
                cuda.atomic.min(status, chain, (step << STEP_BITS) + STOPPED_NOT_FINITE)

    return descend_orthogonal


def top_orthogonal_kernel(parts: Parts, frames: Frames) -> Any:
    """Return the kernel `top_orthogonal`."""
    shape, room, steps = parts.shape, parts.room, parts.steps
    columns, skipped = shape.spec.columns, shape.spec.skipped
    tile_rows, threads, at_flags = shape.tile_rows, shape.threads, shape.at.flags
    prepare, clear_sums, is_last = parts.block.begin, parts.sums.clear, last_function(shape)
    take_seen, turn_cross = seeing_functions(parts, frames).take_seen, frames.turn_cross
    draw, load, store, clear_padding = (
        parts.tiles.draw, steps.load, steps.store, steps.clear_padding,
    )  # fmt: skip
    states = state_functions(parts)
    clear_range, add_tile, end_range = states.clear_range, states.add_tile, states.end_range
    finish_state = states.finish_state
    at_seen, at_all = room.seen, shape.at.diagonal
    at_first, at_delta = room.first, room.delta

    @kernel(registers_of(room))
    def top_orthogonal(
        grams, scales, xs, given, above, state, inverse, sums, arrived, record, factors, status,
        width, own_gain, own_skip, hidden, first_chain, layer, at, step, k0, k1,
    ):  # fmt: skip
        """Make δ of the last layer, and the sums over its rows.

        Parameters are those of `backward.top` and of `orthogonalise`.
        """
        doubles = cuda.shared.array(0, float64)
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
        take_seen(grams[chain, at], scale_of_rows, width, inverse[chain])
        for k in range(t, columns, threads):
            doubles[u32(at_all + k)] = 1.0
        for index in range(part, sums.shape[1], blocks):
            clear_sums()
            clear_range(sums[chain, index])
            for row in range(index * tile_rows, (width + 63) // 64 * 64, sums.shape[1] * tile_rows):
                if given.shape[1] > 0:
                    load(at_delta, row, width, given[chain if given.shape[0] > 1 else 0])
                else:
                    draw(at_delta, at_all, row, counter, noise, k0, k1)
                    clear_padding(at_delta, row, width)
                draw(at_first, at_seen, row, counter, stream, k0, k1)
                if skipped:
                    store(at_delta, row, width, of_above)
                add_tile(row, width, hidden, x, sums[chain, index])
            end_range(sums[chain, index])
        if not is_last(arrived, chain, blocks):
            return
        finish_state(
            sums[chain], width, scale_of_rows / own_gain, own_skip, hidden, state[chain],
            record[chain, at],
        )  # fmt: skip
        cuda.syncthreads()
        turn_cross(inverse[chain], state[chain, 1])
        turn_cross(inverse[chain], record[chain, at, 1])
        if t == 0:
            factors[chain, at] = 1.0
            if whole[u32(at_flags)] != NOT_STOPPED:
                cuda.atomic.min(status, chain, (step << STEP_BITS) + STOPPED_NOT_FINITE)

    return top_orthogonal
