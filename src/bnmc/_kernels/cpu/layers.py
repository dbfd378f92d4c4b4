"""The CPU kernels: layers of an ensemble of chains.

Rows of a layer are worked on in blocks of `BLOCK`, kept as (column, row) so that neighbouring
lanes of a vector are neighbouring rows.  A block of rows is drawn given the Gram matrix
(`draw_rows`), or multiplied by weights that exist one tile at a time (`multiply_rows`); then it
is normalised and activated in place, and its Gram matrix is added to that of its panel.  Threads
share a wide layer by panels, whose sums are merged in order.
"""

from __future__ import annotations

import numpy as np

from bnmc._kernels.compiling import kernel
from bnmc._kernels.cpu.blocks import add_gram, copy_matrix, unpack_gram, unpack_tiles
from bnmc._kernels.cpu.numbers import BLOCK, GROUP, STRIDE
from bnmc._kernels.cpu.rows import draw_rows, factorise, multiply_rows
from bnmc._kernels.cpu.scaling import copy_numbers, rescale
from bnmc._kernels.scalar.codes import (
    NOT_FINITE,
    RESOLVED_PIVOT,
    STREAM_ROWS,
    STREAM_WEIGHTS,
    UNRESOLVED,
    ZERO_VARIANCE,
    Draw,
)


@kernel
def conditional_layers(
    sigma, spec, grams, xs, activations, first_chain, first_layer, slots, record, panel, key0, key1,
    total, work, status, exponents, units, lift,
):  # fmt: skip
    """Take chains through layers, each drawn given the Gram matrix of the one before.

    Parameters
    ----------
    grams : (chains, columns, columns) float64
        The state, brought up to date.
    xs : (chains, columns, >= width), or (1, 1, 1) without a skip connection
        The representations, brought up to date.
    activations : (chains, 2, padded columns, >= width), or (1, 2, 0, 0)
        Receives the activations in [:, 0] if they are needed, as for layer 0 by weights.
    slots : (layers,) int64
        Index of each layer in `record`, or -1.
    record : (chains, slots, columns, columns) float64
    panel : int
        Rows of a panel.
    status : (chains, 3) int64
        Code of an event, its layer and its row; a chain stops at its first event.  A chain with the
        code UNRESOLVED stops before the layer: its Gram matrix has pivots that float32 rows would
        not resolve, so float64 rows must make the layer.
    exponents : (chains, columns) int64, or (chains, 0) if the scale is not split off
        The units of the state, brought up to date; see `scalar.scaling`.
    units : (chains, slots, columns) int64
        Receives the units of recorded matrices.
    lift : int
        The exponent by which `spec` was divided.
    """
    scaled = exponents.shape[1] > 0
    block, scales, partial, sums = work.block, work.scales, work.partial, work.sums
    factor, regular = work.factor, work.regular
    guarded = work.block.itemsize == 4 and spec.skip == 0.0 and activations.shape[3] == 0
    for chain in range(grams.shape[0]):
        gram = grams[chain]
        x = xs[chain if spec.skip != 0.0 else 0]
        kept = activations[chain if activations.shape[0] > 1 else 0, 0]
        stream = np.uint32(STREAM_ROWS | np.uint32(first_chain + chain))
        for step in range(slots.shape[0]):
            draw = Draw(first_layer + step, stream, key0, key1)
            least_pivot = factorise(gram, spec, work)
            if guarded and least_pivot < RESOLVED_PIVOT:
                status[chain, 0] = UNRESOLVED
                status[chain, 1] = first_layer + step
                break
            total[:] = 0.0
            degenerate = -1
            for first_row in range(0, spec.width, panel):
                last_row = min(first_row + panel, spec.width)
                degenerate = draw_rows(
                    sigma,
                    spec,
                    x,
                    kept,
                    first_row,
                    last_row,
                    draw,
                    block,
                    scales,
                    partial,
                    sums,
                    factor,
                    regular,
                )
                if degenerate >= 0:
                    break
                for k in range(total.shape[0]):
                    total[k] += sums[k]
            finite = unpack_gram(total, spec.width, gram)
            if scaled and finite:
                finite = rescale(gram, x, kept, exponents[chain], lift)
            if not finite or degenerate >= 0:
                status[chain, 0] = ZERO_VARIANCE if finite else NOT_FINITE
                status[chain, 1] = first_layer + step
                status[chain, 2] = degenerate
                break
            if slots[step] >= 0:
                copy_matrix(gram, record[chain, slots[step]])
                if scaled:
                    copy_numbers(exponents[chain], units[chain, slots[step]])


@kernel
def weighted_layers(
    sigma, spec, weights, given, grams, xs, activations, first_chain, first_layer, slots, record,
    panel, key0, key1, total, work, status, exponents, units, lift,
):  # fmt: skip
    """Take chains through layers whose weights are drawn.

    Parameters are those of `conditional_layers`, and

    activations : (chains, 2, padded columns, >= width)
        The state: activations of even and of odd layers.
    given : (1, 1) or wider
        See `multiply_rows`; the weights themselves are drawn.
    """
    scaled = exponents.shape[1] > 0
    for chain in range(activations.shape[0]):
        gram = grams[chain]
        x = xs[chain if spec.skip != 0.0 else 0]
        stream = np.uint32(STREAM_WEIGHTS | np.uint32(first_chain + chain))
        for step in range(slots.shape[0]):
            layer = first_layer + step
            draw = Draw(layer, stream, key0, key1)
            a = activations[chain, (layer + 1) % 2]
            following = activations[chain, layer % 2]
            total[:] = 0.0
            degenerate = -1
            for first_row in range(0, spec.width, panel):
                last_row = min(first_row + panel, spec.width)
                degenerate = multiply_rows(
                    sigma,
                    spec,
                    weights,
                    given,
                    a,
                    x,
                    following,
                    first_row,
                    last_row,
                    draw,
                    work,
                )
                if degenerate >= 0:
                    break
                for k in range(total.shape[0]):
                    total[k] += work.sums[k]
            finite = unpack_gram(total, spec.width, gram)
            if scaled and finite:
                finite = rescale(gram, x, following, exponents[chain], lift)
            if not finite or degenerate >= 0:
                status[chain, 0] = ZERO_VARIANCE if finite else NOT_FINITE
                status[chain, 1] = layer
                status[chain, 2] = degenerate
                break
            if slots[step] >= 0:
                copy_matrix(gram, record[chain, slots[step]])
                if scaled:
                    copy_numbers(exponents[chain], units[chain, slots[step]])


@kernel
def gram_of_rows(a, width, work, gram):
    """Write the Gram matrix of activations a, (columns, >= width) and zero beyond, to `gram`.

    Returns whether the Gram matrix is finite.
    """
    work.sums[:] = 0.0
    columns = gram.shape[0]
    for start in range(0, width, BLOCK):
        rows = (min(BLOCK, width - start) + GROUP - 1) // GROUP * GROUP
        for k in range(columns):
            values, others = work.block[k * STRIDE : k * STRIDE + rows], a[k, start : start + rows]
            for row in range(rows):
                values[row] = others[row]
        add_gram(work.block, columns, rows, work.partial, work.sums)
    return unpack_gram(work.sums, width, gram)


@kernel
def draw_panels(sigma, spec, x, kept, first_panel, last_panel, panel, draw, work, panel_sums):
    """Draw panels of one layer given its factor in `work`; return a row without variance, or -1.

    panel_sums : (panels, sums) float64
        Receives the sums of each panel.
    """
    for number in range(first_panel, last_panel):
        first_row = number * panel
        last_row = min(first_row + panel, spec.width)
        degenerate = draw_rows(
            sigma, spec, x, kept, first_row, last_row, draw, work.block, work.scales, work.partial,
            panel_sums[number], work.factor, work.regular,
        )  # fmt: skip
        if degenerate >= 0:
            return degenerate
    return -1


@kernel
def multiply_panels(
    sigma, spec, weights, given, a, x, following, first_panel, last_panel, panel, draw, work,
    panel_sums,
):  # fmt: skip
    """Multiply panels of one layer by weights, like `draw_panels`."""
    for number in range(first_panel, last_panel):
        first_row = number * panel
        last_row = min(first_row + panel, spec.width)
        degenerate = multiply_rows(
            sigma, spec, weights, given, a, x, following, first_row, last_row, draw, work
        )
        if degenerate >= 0:
            return degenerate
        copy_numbers(work.sums, panel_sums[number])
    return -1


@kernel
def merge_panels(panel_sums, width, total, gram):
    """Add the sums of panels in their order; return whether the Gram matrix is finite."""
    return merge_tiles(panel_sums, width, total, gram, 0, (gram.shape[0] + 3) // 4)


@kernel
def merge_tiles(panel_sums, width, total, gram, first, last):
    """Merge rows first:last of tiles, as `merge_panels` does, a row of tiles at a time."""
    finite = True
    for row in range(first, last):
        begin, end = 8 * row * (row + 1), 8 * (row + 1) * (row + 2)
        total[begin:end] = 0.0
        for number in range(panel_sums.shape[0]):
            for k in range(np.uintp(begin), np.uintp(end)):
                total[k] += panel_sums[number, k]
        finite = unpack_tiles(total, width, gram, row, row + 1) and finite
    return finite


@kernel
def update_moments(values, count, mean, squares):
    """Add rows of `values`, one after the other, to running moments (Welford).

    values : (rows, items) float64; mean, squares : (items,) float64
        `squares` is the sum of squared deviations.  Returns the new count.
    """
    for row in range(values.shape[0]):
        count += 1
        for item in range(values.shape[1]):
            deviation = values[row, item] - mean[item]
            mean[item] += deviation / count
            squares[item] += deviation * (values[row, item] - mean[item])
    return count
