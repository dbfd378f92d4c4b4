"""The kernels of the backward pass of chains with orthogonal weights.

`cpu.backward` has the formulas.  Before the two passes of `backward`, the kernel
`orthogonalise` makes the normals z of a layer orthogonal: it sums zᵀz, and its last block writes
L⁻¹.  If zᵀz is near singular, further launches of it repeat this with the columns that it made;
others return at once.  It also factors the rest of δ.  Then rows with orthogonal weights are rows
with Gaussian weights, with F L⁻¹ in place of F, and Z (E L'⁻¹)ᵀ in place of rows N(0, δᵀδ / width).
"""

from __future__ import annotations

from numba import float64

from bnmc._kernels.gpu.backward import begin_top, descend_tile, top_tile
from bnmc._kernels.gpu.backward_frame import (
    Gradient, clear_cross, clear_range, close, draw_noise, draw_rows, draws_of, end_range,
    finish_state, leave, make_rows, merge_gram, rows_of, sum_rows,
)  # fmt: skip
from bnmc._kernels.gpu.backward_matrices import (
    factorise_seen, merge, mix, project, take_basis, take_mixing,
)  # fmt: skip
from bnmc._kernels.gpu.backward_rows import activate
from bnmc._kernels.gpu.backward_tiles import add_cross, multiply
from bnmc._kernels.gpu.block import STEP_BITS, begin, is_last, thread
from bnmc._kernels.gpu.constants import (
    at_delta, at_diagonal, at_first, at_mixing, at_root, at_second, columns, skipped, threads,
)  # fmt: skip
from bnmc._kernels.gpu.device import cuda, inlined
from bnmc._kernels.gpu.gram import store_gram
from bnmc._kernels.gpu.orthogonal import (
    factorise_rest, invert_root, limit_seen, multiply_factor, multiply_root, take_lower, turn_cross,
    write_identity,
)  # fmt: skip
from bnmc._kernels.gpu.rows import clear_padding
from bnmc._kernels.gpu.shape import u32
from bnmc._kernels.gpu.sums import add_tile
from bnmc._kernels.scalar.codes import MOST_PASSES, ORTHOGONAL_PIVOT, READOUT


def _take_seen(gram, scale, width, inverse):
    """Write F L⁻¹ to shared memory."""
    factorise_seen(gram, scale)
    limit_seen(width)
    multiply_factor(inverse)


def _take_regular(regular):
    """Write which columns of Z are drawn."""
    doubles = cuda.shared.array(0, float64)
    for k in range(thread(), columns, threads):
        doubles[u32(at_diagonal + k)] = regular[k]
    cuda.syncthreads()


@inlined
def _add_normals(row, width, sums, layer):
    draws, number = layer
    if number > 0:
        draw_rows(at_first, row, draws)
        multiply(at_first, at_mixing, at_delta)
    else:
        draw_rows(at_delta, row, draws)
    clear_padding(at_delta, row, width)
    add_tile()


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
    begin()
    factorise_seen(grams[chain, at], scales[chain, at])
    limit_seen(width)
    if number > 0:
        take_lower(inverse[chain], at_mixing)
    draws = draws_of(first_chain, layer, k0, k1)
    layer_of = draws, number
    sum_rows(leave, _add_normals, end_range, False, sums, status, step, width, layer_of)
    if not is_last(arrived, chain, cuda.gridDim.x):
        return
    merge_gram(sums[chain], width)
    store_gram(work[chain, 0])
    cuda.syncthreads()
    if number == 0:
        write_identity(inverse[chain])
    least = invert_root(work[chain, 0], inverse[chain])
    if cuda.threadIdx.x == 0:
        leasts[chain] = least
    if with_rest and (least >= ORTHOGONAL_PIVOT or number == MOST_PASSES - 1):
        powers[chain] = factorise_rest(
            state[chain], basis[chain], width, stage, work[chain, 0], root[chain],
            regular[chain],
        )  # fmt: skip


@inlined
def _add_noise(row, width, sums, rows):
    make_rows(row, width, rows)
    activate(row, width, rows.eps)
    draw_noise(at_delta, row, rows.draws)
    clear_padding(at_delta, row, width)
    add_cross(at_second, at_delta, at_first, sums, 0)
    add_tile()


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
    begin()
    _take_seen(grams[chain, at], scales[chain, at], width, inverse[chain])
    _take_regular(regular[chain])
    rows = rows_of(xs, skip, eps, first_chain, layer, at, k0, k1)
    sum_rows(clear_cross, _add_noise, end_range, True, sums, status, step, width, rows)
    if not is_last(arrived, chain, cuda.gridDim.x):
        return
    merge(sums[chain], 0, width, mixing[chain])
    _solve_with_noise(
        sums[chain], width, mixing[chain], basis[chain], state[chain, 1], powers[chain],
        ratios[chain, at], stage, work[chain], root[chain],
    )  # fmt: skip
    factorise_seen(grams[chain, at], scales[chain, at])
    limit_seen(width)
    take_basis(basis[chain], scales[chain, at])


def _solve_with_noise(
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
        write_identity(work[1])
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
    begin()
    scale_of_rows, scale = scales[chain, at], powers[chain]
    _take_seen(grams[chain, at], scale_of_rows, width, inverse[chain])
    _take_regular(regular[chain])
    take_lower(root[chain], at_root)
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
    cuda.syncthreads()
    turn_cross(inverse[chain], state[chain, 1])
    turn_cross(inverse[chain], record[chain, at, 1])
    close(factors, status, at, step, scale)


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
    begin()
    scale_of_rows = scales[chain, at]
    _take_seen(grams[chain, at], scale_of_rows, width, inverse[chain])
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
    cuda.syncthreads()
    turn_cross(inverse[chain], state[chain, 1])
    turn_cross(inverse[chain], record[chain, at, 1])
    close(factors, status, at, step, 1.0)
