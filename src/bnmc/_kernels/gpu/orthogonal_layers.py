"""The kernels of layers with orthogonal weights.

`cpu.orthogonal` has the formulas.  The kernel `frame` makes the normals z of a layer orthogonal: it
sums zᵀz, and the last block of a chain writes L⁻¹.  If zᵀz is near singular, it repeats this with
the columns that it made.  The kernel `framed` then draws the rows as `layers.rows_kernel` does,
with F L⁻¹ in place of the factor F.

One block can repeat the sum in one launch.  Several blocks need a launch for each sum, because each
sum needs the matrix that the last block made.  Launches after the last sum return at once.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from numba import float64

from bnmc._kernels.gpu.backward_frame import draws_of, leave, sum_function
from bnmc._kernels.gpu.backward_rows import copy_functions
from bnmc._kernels.gpu.block import Block
from bnmc._kernels.gpu.device import cuda, inlined, kernel
from bnmc._kernels.gpu.drawing import Drawing, drawing_functions
from bnmc._kernels.gpu.gram import Gram
from bnmc._kernels.gpu.layers import close_function, last_function
from bnmc._kernels.gpu.orthogonal import Frames
from bnmc._kernels.gpu.passes import resolving_function
from bnmc._kernels.gpu.registers import most_registers
from bnmc._kernels.gpu.rows import Rows, row_functions
from bnmc._kernels.gpu.shape import Shape, u32
from bnmc._kernels.gpu.stops import STEP_BITS
from bnmc._kernels.gpu.sums import Sums
from bnmc._kernels.scalar.codes import ORTHOGONAL_PIVOT


class Layers(NamedTuple):
    """What the kernels of a layer are made of."""

    shape: Shape
    block: Block
    gram: Gram
    sums: Sums
    frames: Frames
    factorise: Any


def frame_kernel(layers: Layers) -> Any:
    """Return the kernel `frame`."""
    shape, frames, prepare = layers.shape, layers.frames, layers.block.begin
    limit_seen, begin_frame, take_lower, invert_root = (
        frames.limit_seen, frames.begin, frames.take_lower, frames.invert_root,
    )  # fmt: skip
    at_factor, sums_of = shape.at.factor, layers.sums
    merge_ranges, finish_sums, store_gram = sums_of.merge_ranges, sums_of.finish, layers.gram.store
    has_factor = resolving_function(shape, layers.gram, layers.factorise)
    prepare_draws, add_drawn = drawing_functions(
        shape, layers.block, _bare_rows(shape, layers.block), sums_of
    )
    is_last = last_function(shape)

    @inlined
    def add_tile(row, width, sums, draws):
        add_drawn(
            row, width, 0, draws.counter, draws.rows, draws.k0, draws.k1, 0.0, 0.0, sums, sums
        )

    end_range = _end_function(layers)
    sum_rows = sum_function(shape, sums_of, leave, add_tile, end_range, activates=False)

    @kernel(most_registers(shape))
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
        prepare()
        if not has_factor(grams[chain], status, chain, step, gain, eps):
            return
        limit_seen(width)
        draws = draws_of(first_chain, layer, k0, k1)
        prepare_draws(0, draws.counter, draws.rows, k0, k1)
        if first == 0:
            # Each block writes the same numbers, for itself.
            begin_frame(inverse[chain])
        number = first
        while number < last and least < ORTHOGONAL_PIVOT:
            take_lower(inverse[chain], at_factor)
            sum_rows(sums, status, step, width, draws)
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

    return frame


def framed_kernel(layers: Layers, record_layer: Any) -> Any:
    """Return the kernel `framed`."""
    shape, frames, prepare = layers.shape, layers.frames, layers.block.begin
    skipped, limit_seen, multiply_factor = (
        shape.spec.skipped, frames.limit_seen, frames.multiply_factor,
    )  # fmt: skip
    has_factor = resolving_function(shape, layers.gram, layers.factorise)
    prepare_draws, add_drawn = _drawing(layers)
    is_last = last_function(shape)
    finish_layer = close_function(shape, layers.gram, layers.sums, record_layer)

    @inlined
    def add_tile(row, width, sums, of_rows):
        x, skip, eps, draws = of_rows
        add_drawn(row, width, 0, draws.counter, draws.rows, draws.k0, draws.k1, skip, eps, x, x)

    end_range = _end_function(layers)
    sum_rows = sum_function(shape, layers.sums, leave, add_tile, end_range, activates=True)

    @kernel(most_registers(shape))
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
        prepare()
        if not has_factor(grams[chain], status, chain, step, gain, eps):
            return
        limit_seen(width)
        multiply_factor(inverse[chain])
        draws = draws_of(first_chain, layer, k0, k1)
        prepare_draws(0, draws.counter, draws.rows, k0, k1)
        x = xs[chain if skipped else 0]
        sum_rows(sums, status, step, width, (x, skip, eps, draws))
        if is_last(arrived, chain, cuda.gridDim.x):
            finish_layer(
                grams, sums, record, values, kinds, stars, slot, status, width, chain, step
            )  # fmt: skip

    return framed


def _drawing(layers: Layers) -> Drawing:
    rows = row_functions(layers.shape, layers.block)
    return drawing_functions(layers.shape, layers.block, rows, layers.sums)


def _bare_rows(shape: Shape, block: Block) -> Rows:
    """Return the device functions of rows that are summed as they are drawn."""
    _, _, clear_padding = copy_functions(shape, block)
    row_of, copy_tile, _, _ = row_functions(shape, block)
    at_tile = shape.at.tile

    @inlined
    def leave_row(values, at, step, h, row, width, skip, eps, x, kept):
        """Do nothing."""

    @inlined
    def clear_tile(first_row, width, skip, eps, x, kept):
        """Set the padding rows of the tile to zero."""
        clear_padding(at_tile, first_row, width)

    return Rows(row_of, copy_tile, leave_row, clear_tile)


def _end_function(layers: Layers) -> Any:
    """Return the device function that stores the sums over a range of tiles."""
    shape, thread = layers.shape, layers.block.thread
    threads, entries, at_totals = shape.threads, shape.entries, shape.at.totals

    @inlined
    def end_range(sums):
        doubles = cuda.shared.array(0, float64)
        for entry in range(thread(), entries, threads):
            sums[entry] = doubles[u32(at_totals + entry)]

    return end_range
