"""The kernels of the backward pass: gradients of one chain per row of the grid, layer by layer.

`cpu.backward` has the formulas.  As there, two matrices of order `columns` take the pass from a
layer to the layer below.  The kernel `top` makes them for the last layer.  Each layer below takes
two passes over its rows.  The kernel `begin` sums aᵀZ, and its last block solves for M in
Wᵀδ = a M + Z.  The kernel `descend` makes δ of the layer and its sums.  Each pass makes the rows h,
their normals z and the rows Z again from their counters.  So a layer keeps no rows, but for the
gradient that a skip connection needs.

Layers in passes, of any order, norm and bias, differ between the products with weights; see
`backward_orders`.  A norm over the features needs the means of gradients over all rows, or over a
group of rows.  So the kernel `average`, between the other two, sums the gradients with respect to
N(u), and their products with N(u).  A bias is the weight of one more row of a, all of whose entries
are `constant`.  So Z has one more row, too.  Convolutions have several taps, see `backward_taps`.

Orthogonal weights need the kernel `orthogonalise` before each layer: it makes the normals z of the
layer orthogonal.  It sums zᵀz, and its last block writes L⁻¹.  If zᵀz is near singular, further
launches repeat this with the columns that it made; others return at once.  It also factors the rest
of δ.  Then rows with orthogonal weights are rows with Gaussian weights, with F L⁻¹ in place of F,
and Z (E L'⁻¹)ᵀ in place of rows N(0, δᵀδ / width).

As in `layers`, the rows of a chain are divided into ranges of tiles, whose sums the last block of a
chain adds in their order: results do not depend on the number of blocks.  Kernels take `Layers`,
`Descents`, `Standards` of layers in passes or `Noise` of orthogonal weights, `Numbers`, `Work` and
`Address`; then the stage of a layer (READOUT, TOP or INNER), its number, its place and the number
of the launch.
"""

from __future__ import annotations

from numba import float64

from bnmc._kernels.gpu.arguments import NOTHING
from bnmc._kernels.gpu.backward_frame import (
    add_delta, clear_range, close, draw_noise, draw_rows, finish_state, make_noise, make_rows,
    make_rows_again, rows_of,
)  # fmt: skip
from bnmc._kernels.gpu.backward_matrices import (
    factorise_delta, factorise_seen, mix, project, solve, take_basis,
)  # fmt: skip
from bnmc._kernels.gpu.backward_orders import (
    Gradient, Standard, activate, apply, differentiate, differentiate_at_once, finish,
    lead_through, weigh,
)  # fmt: skip
from bnmc._kernels.gpu.backward_taps import (
    add_taps, make_noise_of_taps, merge_taps, take_mixing,
)  # fmt: skip
from bnmc._kernels.gpu.tiles import add_cross, multiply, multiply_onto
from bnmc._kernels.gpu.block import STEP_BITS, STOPPED_UNRESOLVED, is_last, thread
from bnmc._kernels.gpu.block import begin as begin_block
from bnmc._kernels.gpu.constants import (
    activates_first, at_delta, at_diagonal, at_first, at_mixing, at_root, at_second, columns,
    entries, in_passes, is_convolved, is_orthogonal, kind, norm_first, over_features, quads, single,
    skipped, stride, threads, tile_rows,
)  # fmt: skip
from bnmc._kernels.gpu.device import cuda, inlined
from bnmc._kernels.gpu.gram import store_gram
from bnmc._kernels.gpu.orthogonal import (
    factorise_rest, invert_root, limit_seen, multiply_factor, multiply_root, take_lower, turn_cross,
    write_identity,
)  # fmt: skip
from bnmc._kernels.gpu.passes import add_moments, merge_means
from bnmc._kernels.gpu.rows import clear_padding, load
from bnmc._kernels.gpu.shape import u32
from bnmc._kernels.gpu.sums import (
    add_tile, finish_sums, leave, merge_ranges, store_sums, sum_rows,
)  # fmt: skip
from bnmc._kernels.scalar.codes import (
    INNER, MOST_PASSES, ORTHOGONAL_PIVOT, READOUT, RESOLVED_PIVOT, TOP,
)  # fmt: skip


# --- the last layer


def top(layers, of, extra, numbers, work, address, stage, layer, at, step):
    """Make δ of the last layer, and the sums over its rows."""
    chain = cuda.blockIdx.y
    # As in `layers.rows`, other blocks may write this step's status now.
    if work.status[chain] >> STEP_BITS < step:
        return
    begin_block()
    law = numbers.law
    _take_seen(layers, extra, law.width, at)
    doubles = cuda.shared.array(0, float64)
    for k in range(cuda.threadIdx.x, columns, threads):
        doubles[u32(at_diagonal + k)] = 1.0
    above = of.above[chain] if skipped else NOTHING
    unit = layers.scales[chain, at] / numbers.gain
    gradient = Gradient(above, 0.0, 1.0, unit, numbers.hidden)
    given = of.given[chain if of.given.shape[0] > 1 else 0]
    inputs = rows_of(layers, law, address, layer, at), gradient, given
    sum_rows(clear_range, _add_top, store_sums, False, work, step, law.width, inputs)
    if is_last(work.arrived, chain, cuda.gridDim.x):
        _finish(of, extra, numbers, work, unit, 1.0, at, step)


@inlined
def _add_top(row, width, sums, inputs):
    rows, gradient, given = inputs
    if given.shape[0] > 0:
        load(at_delta, row, width, given)
    else:
        draw_noise(at_delta, row, rows)
        clear_padding(at_delta, row, width)
    draw_rows(at_first, row, rows)
    add_delta(row, width, sums, rows, gradient)


# --- what the kernels of a layer have in common


@inlined
def _stage_of(stage):
    """Return the stage whose sums of gradients a layer has.

    Only the gradient through a norm at the state's own place has sums of zero.
    """
    if in_passes and not norm_first and stage == INNER:
        return TOP
    return stage


@inlined
def _standard_of(extra, law, stage):
    """Return the `Standard` of the chain of this block."""
    chain, taps = cuda.blockIdx.y, NOTHING
    if is_convolved:
        taps = extra.one_tap if stage == READOUT else extra.taps
    if over_features:
        size, shifts, inverses = law.width // law.groups, extra.shifts[chain], extra.inverses[chain]
        return Standard(law.eps, size, shifts, inverses, extra.means[chain], taps)
    return Standard(law.eps, law.width, NOTHING, NOTHING, NOTHING, taps)


@inlined
def _take_seen(layers, extra, width, at):
    """Write the factor F of what a layer saw to shared memory, or F L⁻¹."""
    chain = cuda.blockIdx.y
    factorise_seen(layers.covariances[chain, at], layers.scales[chain, at])
    if is_orthogonal:
        limit_seen(width)
        multiply_factor(extra.inverse[chain])


def _take_regular(regular):
    """Write which columns of Z are drawn."""
    doubles = cuda.shared.array(0, float64)
    for k in range(thread(), columns, threads):
        doubles[u32(at_diagonal + k)] = regular[k]
    cuda.syncthreads()


@inlined
def _gradient_of(of, extra, numbers, stage, scale, unit):
    """Return the `Gradient` of a layer; a readout has no gain and no skip connection."""
    above = of.above[cuda.blockIdx.y] if skipped else NOTHING
    taps = extra.taps.shape[0] if is_convolved else 1
    gain, skip = numbers.gain / taps, numbers.law.skip
    if stage == READOUT:
        gain, skip = 1.0, 0.0
    return Gradient(above, skip * scale, gain, unit, numbers.hidden)


@inlined
def _make_gradient(row, width, rows, gradient, norm):
    """Write the gradient with respect to N(u) to the tile `delta`, and u to `second`.

    Of layers that are not in passes, write that with respect to h.
    """
    make_noise_of_taps(row, rows, norm.taps)
    make_rows(row, width, rows)
    activate(row, width, norm)
    multiply_onto(at_second, at_mixing, at_delta)
    # The rows h again, which is faster than a further tile.
    make_rows_again(row, width, rows)
    if in_passes:
        differentiate(row, width, gradient, norm)
        apply(row, width)
    else:
        differentiate_at_once(row, width, gradient, norm.eps)


@inlined
def _finish(of, extra, numbers, work, unit, scale, at, step):
    """Merge the sums of all ranges to the state of the layer, and record it."""
    chain, law = cuda.blockIdx.y, numbers.law
    state, record = of.state[chain], of.record[chain, at]
    finish_state(work.sums[chain], law.width, unit, law.skip, numbers.hidden, state, record)
    if is_orthogonal:
        cuda.syncthreads()
        turn_cross(extra.inverse[chain], state[1])
        turn_cross(extra.inverse[chain], record[1])
    close(of.factors, work.status, at, step, scale)


# --- the first pass over the rows of a layer


def begin(layers, of, extra, numbers, work, address, stage, layer, at, step):
    """Sum aᵀZ of a layer, and solve for M; with orthogonal weights, replace E by E L'⁻¹."""
    chain = cuda.blockIdx.y
    if work.status[chain] >> STEP_BITS < step:
        return
    begin_block()
    law, scale_of_rows = numbers.law, layers.scales[chain, at]
    _take_seen(layers, extra, law.width, at)
    if is_orthogonal:
        scale = extra.powers[chain]
        _take_regular(extra.regular[chain])
    else:
        scale, least = factorise_delta(of.state[chain, 0], _stage_of(stage))
        if single and least < RESOLVED_PIVOT:
            if cuda.blockIdx.x == 0 and cuda.threadIdx.x == 0:
                work.status[chain] = (step << STEP_BITS) + STOPPED_UNRESOLVED
            return
    rows = rows_of(layers, law, address, layer, at)
    norm = _standard_of(extra, law, stage)
    inputs = rows, norm
    sum_rows(clear_range, _add_noise, store_sums, True, work, step, law.width, inputs)
    if not is_last(work.arrived, chain, cuda.gridDim.x):
        return
    right, basis, cross = of.mixing[chain], of.basis[chain], of.state[chain, 1]
    ratio = layers.ratios[chain, at]
    merge_taps(work.sums[chain], norm.taps, law.width, right)
    if is_orthogonal:
        _solve_with_noise(
            work.sums[chain], law.width, right, basis, cross, scale, ratio, stage,
            extra.work[chain], extra.root[chain],
        )  # fmt: skip
        factorise_seen(layers.covariances[chain, at], scale_of_rows)
        limit_seen(law.width)
    else:
        if in_passes and numbers.constant != 0.0 and stage != READOUT:
            make_noise(law.width // tile_rows * tile_rows, rows)
            _add_bias(law.width, numbers.constant, right)
        solve(right, basis, cross, scale, ratio, _stage_of(stage))
    take_basis(basis, scale_of_rows)


@inlined
def _add_noise(row, width, sums, inputs):
    rows, norm = inputs
    make_rows(row, width, rows)
    activate(row, width, norm)
    if is_orthogonal:
        draw_noise(at_delta, row, rows)
        clear_padding(at_delta, row, width)
        add_cross(at_second, at_delta, at_first, sums, entries)
        add_tile()
    else:
        add_taps(row, rows, norm.taps, sums)


def _add_bias(width, constant, out):
    """Add to aᵀZ / width the part of the row after the last one, which is in the tile."""
    numbers = cuda.shared.array(0, kind)
    quad = width // 64 * 16 + width % 16 - width // tile_rows * quads
    at = at_delta + width % 64 // 16 * quads + quad
    for item in range(thread(), columns * columns, threads):
        i, j = item // columns, item % columns
        out[i, j] += constant * float(numbers[u32(at + j * stride)]) / width
    cuda.syncthreads()


def _solve_with_noise(sums, width, right, basis, cross, scale, ratio, stage, work, root):
    """Turn aᵀZ / width into M; replace E by E L'⁻¹, where L'L'ᵀ = ZᵀZ / width - CᵀC."""
    project(right, basis, ratio, stage)
    if stage != READOUT:
        merge_ranges(sums)
        finish_sums(width)
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


# --- the means over the features


def average(layers, of, extra, numbers, work, address, stage, layer, at, step):
    """Sum the gradients with respect to N(u), and their products with N(u), over the features."""
    part, chain, blocks = cuda.blockIdx.x, cuda.blockIdx.y, cuda.gridDim.x
    if work.status[chain] >> STEP_BITS < step:
        return
    begin_block()
    law, norm = numbers.law, _standard_of(extra, numbers.law, stage)
    _take_seen(layers, extra, law.width, at)
    scale, _ = factorise_delta(of.state[chain, 0], _stage_of(stage))
    take_mixing(of.mixing[chain], norm.taps)
    rows = rows_of(layers, law, address, layer, at)
    gradient = _gradient_of(of, extra, numbers, stage, scale, 1.0)
    for row in range(part * tile_rows, (law.width + 63) // 64 * 64, blocks * tile_rows):
        _make_gradient(row, law.width, rows, gradient, norm)
        add_moments(row, law.width, law.groups, extra.segments[chain, 0])
        weigh(row, law.width, norm)
        add_moments(row, law.width, law.groups, extra.segments[chain, 1])
    if not is_last(work.arrived, chain, blocks):
        return
    for which in range(2):
        merge_means(law.width, law.groups, extra.segments[chain, which], norm.means[which])


# --- the last pass over the rows of a layer


def descend(layers, of, extra, numbers, work, address, stage, layer, at, step):
    """Make δ of a layer, and the sums over its rows."""
    chain = cuda.blockIdx.y
    if work.status[chain] >> STEP_BITS < step:
        return
    begin_block()
    law, norm = numbers.law, _standard_of(extra, numbers.law, stage)
    _take_seen(layers, extra, law.width, at)
    if is_orthogonal:
        scale = extra.powers[chain]
        _take_regular(extra.regular[chain])
        take_lower(extra.root[chain], at_root)
    else:
        scale, _ = factorise_delta(of.state[chain, 0], _stage_of(stage))
    take_mixing(of.mixing[chain], norm.taps)
    unit = layers.scales[chain, at] / numbers.gain
    gradient = _gradient_of(of, extra, numbers, stage, scale, unit)
    inputs = rows_of(layers, law, address, layer, at), gradient, norm
    sum_rows(clear_range, _add_layer, store_sums, True, work, step, law.width, inputs)
    if is_last(work.arrived, chain, cuda.gridDim.x):
        _finish(of, extra, numbers, work, unit, scale, at, step)


@inlined
def _add_layer(row, width, sums, inputs):
    rows, gradient, norm = inputs
    _make_gradient(row, width, rows, gradient, norm)
    if in_passes:
        lead_through(row, width, gradient, norm)
    if activates_first:
        make_rows_again(row, width, rows)
        finish(row, width, gradient)
    add_delta(row, width, sums, rows, gradient)


# --- orthogonal weights


def orthogonalise(layers, of, extra, numbers, work, address, stage, layer, at, step):
    """Make the normals of a layer orthogonal, and factor the rest of δ."""
    chain, number, law = cuda.blockIdx.y, extra.number, numbers.law
    if work.status[chain] >> STEP_BITS < step:
        return
    if number > 0 and extra.leasts[chain] >= ORTHOGONAL_PIVOT:
        return
    begin_block()
    factorise_seen(layers.covariances[chain, at], layers.scales[chain, at])
    limit_seen(law.width)
    inverse, matrix = extra.inverse[chain], extra.work[chain, 0]
    if number > 0:
        take_lower(inverse, at_mixing)
    inputs = rows_of(layers, law, address, layer, at), number
    sum_rows(leave, _add_normals, store_sums, False, work, step, law.width, inputs)
    if not is_last(work.arrived, chain, cuda.gridDim.x):
        return
    merge_ranges(work.sums[chain])
    finish_sums(law.width)
    store_gram(matrix)
    cuda.syncthreads()
    if number == 0:
        write_identity(inverse)
    least = invert_root(matrix, inverse)
    if cuda.threadIdx.x == 0:
        extra.leasts[chain] = least
    if extra.with_rest and (least >= ORTHOGONAL_PIVOT or number == MOST_PASSES - 1):
        extra.powers[chain] = factorise_rest(
            of.state[chain], of.basis[chain], law.width, stage, matrix, extra.root[chain],
            extra.regular[chain],
        )  # fmt: skip


@inlined
def _add_normals(row, width, sums, inputs):
    rows, number = inputs
    if number > 0:
        draw_rows(at_first, row, rows)
        multiply(at_first, at_mixing, at_delta)
    else:
        draw_rows(at_delta, row, rows)
    clear_padding(at_delta, row, width)
    add_tile()
