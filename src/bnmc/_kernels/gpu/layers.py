"""The kernels of layers: one block per chain for all layers, or several blocks for one layer.

Layers whose rows take several passes, see `passes`, and layers with orthogonal weights, which begin
with the kernel `frame`, end with the kernel `rows` of plain layers.
"""

from __future__ import annotations

import numpy as np
from numba import int64

from bnmc._kernels.gpu.arguments import NOTHING, RowInputs
from bnmc._kernels.gpu.block import (
    NOT_STOPPED, STEP_BITS, STOPPED_UNRESOLVED, begin, is_last,
)  # fmt: skip
from bnmc._kernels.gpu.constants import (
    at_factor, at_flags, in_passes, is_convolved, is_orthogonal, keeps_rows, over_features, scaled,
    single, skipped, source, tile_rows,
)  # fmt: skip
from bnmc._kernels.gpu.device import cuda, inlined
from bnmc._kernels.gpu.drawing import add_made, prepare
from bnmc._kernels.gpu.factor import factorise
from bnmc._kernels.gpu.gram import (
    apply_units, choose_units, load_gram, record_layer, store_gram,
)  # fmt: skip
from bnmc._kernels.gpu.orthogonal import (
    invert_root, limit_seen, multiply_factor, take_lower, write_identity,
)  # fmt: skip
from bnmc._kernels.gpu.shape import DRAWN, GIVEN, KEPT, MULTIPLIED, u32
from bnmc._kernels.gpu.sums import (
    clear_sums, finish_sums, leave, merge_ranges, note_small, store_sums, sum_rows,
)  # fmt: skip
from bnmc._kernels.scalar.codes import (
    ORTHOGONAL_PIVOT, RESOLVED_PIVOT, STREAM_ROWS, STREAM_WEIGHTS, Draw,
)  # fmt: skip


def layers(state, law, target, slots, status, address, layer, step):
    """Take one chain per block through layers.

    state, law, target, address : State, LayerSpec, Target, Address
    slots : (layers,) int64
        Where each layer is recorded, or -1.
    status : (chains,) int64
        Notes of `block`.
    layer, step : int
        The number of the first layer, and that of the launch, which is 0.
    """
    whole = cuda.shared.array(0, int64)
    chain = u32(cuda.blockIdx.x)  # signed, it would take one more register
    x = state.xs[chain] if skipped else NOTHING
    stream = np.uint32(STREAM_ROWS | (address.first_chain + chain))
    begin()
    load_gram(state.grams[chain])
    # `range` would keep the number of steps left in two more registers, and so would `step`.
    done = 0
    while done < slots.size:
        # Without a skip connection this is `hides_scale`, which would take one more register.
        unresolved = factorise(law.gain, law.eps == 0.0) < RESOLVED_PIVOT
        unresolved = unresolved and single and not skipped
        if unresolved:
            if cuda.threadIdx.x == 0:
                status[chain] = (done << STEP_BITS) + STOPPED_UNRESOLVED
            break
        draw = Draw(np.uint32(layer + done), stream, address.key0, address.key1)
        rows = RowInputs(law, draw, x, NOTHING, NOTHING, NOTHING, NOTHING, NOTHING)
        prepare(0, draw)
        clear_sums()
        first_row = 0
        while first_row < law.width:
            add_made(first_row, 0, rows)
            first_row += tile_rows
        finish_sums(law.width)
        note_small()
        if whole[u32(at_flags)] != NOT_STOPPED:
            if cuda.threadIdx.x == 0:
                status[chain] = (done << STEP_BITS) + whole[u32(at_flags)]
            break
        if scaled:
            choose_units()
            apply_units()
        if slots[done] >= 0:
            record_layer(target, chain, slots[done])
        done += 1
    store_gram(state.grams[chain])


def rows(state, of, law, target, work, address, slot, layer, step):
    """Make one layer of a chain by one row of the grid; its last block merges the sums.

    of : (chains or 1, width, columns) array, Passes or Frames
        The rows of layer 0, if they are given, or what the kernels before have made.
    slot : int
        Where the layer is recorded, or -1.
    step : int
        The number of the launch, from 0 on.
    """
    chain = cuda.blockIdx.y
    # Other blocks may write this step's status now, so test earlier steps only: if some threads of
    # a block returned, the others would wait for them forever.
    if work.status[chain] >> STEP_BITS < step:
        return
    begin()
    if not has_factor(state, of, law, work.status, step):
        return
    if is_orthogonal:
        limit_seen(law.width)
        multiply_factor(of.inverse[chain])
    inputs = row_inputs(state, of, law, address, layer)
    prepare(0, inputs.draw)
    sum_rows(leave, _add, store_sums, True, work, step, law.width, inputs)
    if is_last(work.arrived, chain, cuda.gridDim.x):
        _finish_layer(state, target, work, law.width, slot, step)


@inlined
def _add(first_row, width, sums, inputs):
    add_made(first_row, 0, inputs)


def frame(state, of, first, last, law, work, address, slot, layer, step):
    """Make the normals z of a layer orthogonal; `rows` draws with F L⁻¹ in place of the factor F.

    Sums zᵀz; the last block of a chain writes L⁻¹.  If zᵀz is near singular, this is repeated with
    the columns that it made; see `cpu.orthogonal`.  One block repeats it in one launch.  Several
    blocks need a launch for each sum, because each sum needs the matrix that the last block made.
    Launches after the last sum return at once.

    Parameters are those of `rows`, and

    of : Frames
    first, last : int
        The numbers of the sums to make, from 0 on.  With several blocks these are one.
    """
    chain = cuda.blockIdx.y
    # As in `rows`, other blocks may write this step's status now.
    if work.status[chain] >> STEP_BITS < step:
        return
    least = of.leasts[chain] if first > 0 else 0.0
    if least >= ORTHOGONAL_PIVOT:
        return
    begin()
    if not has_factor(state, of, law, work.status, step):
        return
    limit_seen(law.width)
    inputs = row_inputs(state, of, law, address, layer)
    prepare(0, inputs.draw)
    inverse, matrix = of.inverse[chain], of.matrices[chain]
    if first == 0:
        # Each block writes the same numbers, for itself.
        write_identity(inverse)
    count = first
    while count < last and least < ORTHOGONAL_PIVOT:
        take_lower(inverse, at_factor)
        sum_rows(leave, _add, store_sums, False, work, step, law.width, inputs)
        if not is_last(work.arrived, chain, cuda.gridDim.x):
            return
        merge_ranges(work.sums[chain])
        finish_sums(law.width)
        store_gram(matrix)
        cuda.syncthreads()
        least = invert_root(matrix, inverse)
        count += 1
    if cuda.threadIdx.x == 0:
        of.leasts[chain] = least


@inlined
def row_inputs(state, of, law, address, layer):
    """Return the `RowInputs` of the chain of this block."""
    chain = cuda.blockIdx.y
    tag = STREAM_WEIGHTS if source == MULTIPLIED else STREAM_ROWS
    stream = np.uint32(tag | (address.first_chain + chain))
    draw = Draw(np.uint32(layer), stream, address.key0, address.key1)
    x = state.xs[chain] if skipped else NOTHING
    stored = state.activations[chain, layer % 2] if keeps_rows else NOTHING
    a = given = shifts = scales = NOTHING
    if source == MULTIPLIED:
        a = of.factors[chain] if is_convolved else state.activations[chain, (layer + 1) % 2]
    if source == KEPT:
        given = stored
    if source == GIVEN:
        given = of[chain if of.shape[0] > 1 else 0]
    if over_features:
        shifts, scales = of.shifts[chain], of.scales[chain]
    return RowInputs(law, draw, x, a, stored, given, shifts, scales)


def has_factor(state, of, law, status, step):
    """Factor the covariance of the rows if they are drawn given it.

    Returns False if float32 does not resolve the covariance, which stops the chain.
    """
    chain = cuda.blockIdx.y
    if source == DRAWN or scaled:
        load_gram(of.covariances[chain] if in_passes else state.grams[chain])
    if source == DRAWN:
        may_stop = single and not skipped and not keeps_rows
        if factorise(law.gain, law.hides_scale) < RESOLVED_PIVOT and may_stop:
            if cuda.blockIdx.x == 0 and cuda.threadIdx.x == 0:
                status[chain] = (step << STEP_BITS) + STOPPED_UNRESOLVED
            return False
    return True


def _finish_layer(state, target, work, width, slot, step):
    """Add the sums of all ranges; store the Gram matrix of the layer, and record it."""
    whole = cuda.shared.array(0, int64)
    chain = cuda.blockIdx.y
    merge_ranges(work.sums[chain])
    finish_sums(width)
    note_small()
    store_gram(state.grams[chain])
    if cuda.threadIdx.x == 0 and whole[u32(at_flags)] != NOT_STOPPED:
        cuda.atomic.min(work.status, chain, (step << STEP_BITS) + whole[u32(at_flags)])
    if slot >= 0:
        record_layer(target, chain, slot)
