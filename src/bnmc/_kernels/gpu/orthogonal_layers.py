"""The kernel `frame` of layers with orthogonal weights.

`cpu.orthogonal` has the formulas.  The kernel makes the normals z of a layer orthogonal: it sums
zᵀz, and the last block of a chain writes L⁻¹.  If zᵀz is near singular, it repeats this with the
columns that it made.  `layers.rows` then draws the rows with F L⁻¹ in place of the factor F.

One block can repeat the sum in one launch.  Several blocks need a launch for each sum, because each
sum needs the matrix that the last block made.  Launches after the last sum return at once.
"""

from __future__ import annotations

from bnmc._kernels.gpu.block import STEP_BITS, begin, is_last
from bnmc._kernels.gpu.constants import at_factor
from bnmc._kernels.gpu.device import cuda, inlined
from bnmc._kernels.gpu.drawing import add_made, prepare
from bnmc._kernels.gpu.gram import store_gram
from bnmc._kernels.gpu.layers import has_factor, row_inputs
from bnmc._kernels.gpu.orthogonal import invert_root, limit_seen, take_lower, write_identity
from bnmc._kernels.gpu.sums import finish_sums, leave, merge_ranges, store_sums, sum_rows
from bnmc._kernels.scalar.codes import ORTHOGONAL_PIVOT


def frame(state, of, first, last, law, work, address, slot, layer, step):
    """Make the normals of a layer orthogonal.

    Parameters are those of `layers.rows`, and

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
        merge_ranges(work.sums, chain, work.sums.shape[1])
        finish_sums(law.width)
        store_gram(matrix)
        cuda.syncthreads()
        least = invert_root(matrix, inverse)
        count += 1
    if cuda.threadIdx.x == 0:
        of.leasts[chain] = least


@inlined
def _add(first_row, width, sums, inputs):
    add_made(first_row, 0, inputs)
