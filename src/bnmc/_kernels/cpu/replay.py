"""Rows of a layer before the activation, made again from the counters of their random numbers.

The kernels of `layers` keep no rows.  These write them out, block by block with the same
functions, so a row has the bits that it had in the run.
"""

from __future__ import annotations

from bnmc._kernels.compiling import kernel
from bnmc._kernels.cpu.blocks import add_columns, keep_columns
from bnmc._kernels.cpu.numbers import BLOCK, GROUP
from bnmc._kernels.cpu.rows import (
    draw_block,
    drawn_law,
    keep_normalised,
    measure_block,
    multiply_block,
)


@kernel
def drawn_rows(law, x, first_row, last_row, draw, work, out):
    """Write rows of h = skip x + gain W a, drawn given the factor in `work`.

    out : (columns, >= last_row - first_row up to a multiple of GROUP), in the dtype of the rows
    """
    for start in range(first_row, last_row, BLOCK):
        rows = (min(BLOCK, last_row - start) + GROUP - 1) // GROUP * GROUP
        draw_block(law, start, rows, draw, work.block, work.factor, work.regular)
        if law.skip != 0.0:
            add_columns(law.skip, x, start, law.columns, rows, work.block)
        keep_columns(work.block, law.columns, rows, start - first_row, out)


@kernel
def drawn_representation(law, x, draw, work, out):
    """Write all rows of N(h), h drawn given the factor in `work`, to out (columns, >= width).

    Returns a row without variance, or -1.
    """
    law = drawn_law(law)
    for start in range(0, law.width, BLOCK):
        count = min(BLOCK, law.width - start)
        rows = (count + GROUP - 1) // GROUP * GROUP
        draw_block(law, start, rows, draw, work.block, work.factor, work.regular)
        degenerate = measure_block(law, start, count, x, work.block, work.means, work.scales)
        if degenerate >= 0:
            return start + degenerate
        keep_normalised(work.block, law, rows, work.means, work.scales, start, out)
    return -1


@kernel
def multiplied_representation(law, weights, given, first_row, last_row, a, x, draw, work, out):
    """Like `drawn_representation`, for rows first_row:last_row whose weights are drawn or given.

    given : (rows, width)
        The weights of these rows if no kernel draws them, else of shape (1, 1).
    """
    for start in range(first_row, last_row, BLOCK):
        count = min(BLOCK, last_row - start)
        rows = (count + GROUP - 1) // GROUP * GROUP
        multiply_block(law, weights, given, a, start, rows, draw, work.block, work.tile)
        degenerate = measure_block(law, start, count, x, work.block, work.means, work.scales)
        if degenerate >= 0:
            return start + degenerate
        keep_normalised(work.block, law, rows, work.means, work.scales, start, out)
    return -1
