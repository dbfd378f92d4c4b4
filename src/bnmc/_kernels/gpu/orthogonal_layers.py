"""The kernels of layers with orthogonal weights.

`cpu.orthogonal` has the formulas.  The kernel `frame` makes the normals z of a layer orthogonal: it
sums zᵀz, and the last block of a chain writes L⁻¹.  If zᵀz is near singular, it repeats this with
the columns that it made.  The kernel `framed` then draws the rows as `layers.rows` does, with F L⁻¹
in place of the factor F.

One block can repeat the sum in one launch.  Several blocks need a launch for each sum, because each
sum needs the matrix that the last block made.  Launches after the last sum return at once.
"""

from __future__ import annotations

from numba import float64

from bnmc._kernels.gpu.backward_frame import draws_of, leave, sum_rows
from bnmc._kernels.gpu.block import STEP_BITS, begin, is_last, thread
from bnmc._kernels.gpu.constants import at_factor, at_totals, entries, skipped, threads
from bnmc._kernels.gpu.device import cuda, inlined
from bnmc._kernels.gpu.drawing import add_drawn, prepare
from bnmc._kernels.gpu.gram import store_gram
from bnmc._kernels.gpu.layers import finish_layer, has_factor
from bnmc._kernels.gpu.orthogonal import (
    invert_root, limit_seen, multiply_factor, take_lower, write_identity,
)  # fmt: skip
from bnmc._kernels.gpu.shape import u32
from bnmc._kernels.gpu.sums import finish_sums, merge_ranges
from bnmc._kernels.scalar.codes import ORTHOGONAL_PIVOT


def frame(
    grams, inverse, work, leasts, sums, arrived, status, width, gain, eps, first, last,
    first_chain, layer, step, k0, k1,
):  # fmt: skip
    """Make the normals of a layer orthogonal.

    Parameters are those of `rows`, and

    inverse : (chains, columns, columns) float64
        Receives L⁻¹.
    work : (chains, rows of a Gram matrix, columns) float64
        Work space.
    leasts : (chains,) float64
        The least pivot of the launch before, and of this one.
    first, last : int
        The numbers of the sums to make, from 0 on.  With several blocks these are one.
    """
    chain = cuda.blockIdx.y
    # As in `rows`, other blocks may write this step's status now.
    if status[chain] >> STEP_BITS < step:
        return
    least = leasts[chain] if first > 0 else 0.0
    if least >= ORTHOGONAL_PIVOT:
        return
    begin()
    if not has_factor(grams[chain], status, chain, step, gain, eps):
        return
    limit_seen(width)
    draws = draws_of(first_chain, layer, k0, k1)
    prepare(0, draws.counter, draws.rows, k0, k1)
    if first == 0:
        # Each block writes the same numbers, for itself.
        write_identity(inverse[chain])
    number = first
    while number < last and least < ORTHOGONAL_PIVOT:
        take_lower(inverse[chain], at_factor)
        sum_rows(leave, _add_bare, _end_range, False, sums, status, step, width, draws)
        if not is_last(arrived, chain, cuda.gridDim.x):
            return
        merge_ranges(sums, chain, sums.shape[1])
        finish_sums(width)
        store_gram(work[chain])
        cuda.syncthreads()
        least = invert_root(work[chain], inverse[chain])
        number += 1
    if cuda.threadIdx.x == 0:
        leasts[chain] = least


@inlined
def _add_bare(row, width, sums, draws):
    add_drawn(row, width, 0, draws.counter, draws.rows, draws.k0, draws.k1, 0.0, 0.0, sums, sums)


def framed(
    grams, xs, inverse, sums, arrived, record, values, kinds, stars, slot, status, width, skip,
    gain, eps, first_chain, layer, step, k0, k1,
):  # fmt: skip
    """Make one layer of a chain by one row of the grid; its last block merges the sums.

    Parameters are those of `rows` and of `frame`.
    """
    chain = cuda.blockIdx.y
    if status[chain] >> STEP_BITS < step:
        return
    begin()
    if not has_factor(grams[chain], status, chain, step, gain, eps):
        return
    limit_seen(width)
    multiply_factor(inverse[chain])
    draws = draws_of(first_chain, layer, k0, k1)
    prepare(0, draws.counter, draws.rows, k0, k1)
    x = xs[chain if skipped else 0]
    sum_rows(leave, _add_tile, _end_range, True, sums, status, step, width, (x, skip, eps, draws))
    if is_last(arrived, chain, cuda.gridDim.x):
        finish_layer(
            grams, sums, record, values, kinds, stars, slot, status, width, chain, step
        )  # fmt: skip


@inlined
def _add_tile(row, width, sums, layer):
    x, skip, eps, draws = layer
    add_drawn(row, width, 0, draws.counter, draws.rows, draws.k0, draws.k1, skip, eps, x, x)


@inlined
def _end_range(sums):
    """Store the sums over a range of tiles."""
    doubles = cuda.shared.array(0, float64)
    for entry in range(thread(), entries, threads):
        sums[entry] = doubles[u32(at_totals + entry)]
