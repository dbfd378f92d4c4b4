"""The CPU kernels of chains with orthogonal weights W, uniformly distributed (Haar measure).

Let K = F Fᵀ be the covariance that the next layer sees, and z (width x columns) normals.  With
S = zᵀ z / width = L Lᵀ, the columns of z L⁻ᵀ are orthogonal, each with the mean square 1, and
uniformly distributed.  So W a has the law of z (F L⁻¹)ᵀ: rows with orthogonal weights are rows with
Gaussian weights, with F L⁻¹ in place of F.

S is a sum over all rows, so a layer takes two passes over the same counters: `sum_panels` sums S,
and `layers.draw_panels` draws the rows.  If S is near singular, as it is where the width is near
the rank of K, the columns of z L⁻ᵀ are orthogonal up to rounding over the least pivot.  Then their
own products are summed, and correct the factor (Cholesky-QR, repeated), up to rounding over the
root of the least pivot.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from bnmc._kernels.compiling import kernel
from bnmc._kernels.cpu.blocks import (
    add_gram,
    clear_rows,
    copy_matrix,
    multiply_triangular,
)
from bnmc._kernels.cpu.layers import draw_panels, merge_panels
from bnmc._kernels.cpu.memory import aligned_zeros, padded
from bnmc._kernels.cpu.numbers import BLOCK, GROUP
from bnmc._kernels.cpu.rows import draw_regular, factorise
from bnmc._kernels.cpu.scaling import copy_numbers, rescale
from bnmc._kernels.scalar.codes import (
    MOST_PASSES,
    NOT_FINITE,
    ORTHOGONAL_PIVOT,
    RESOLVED_PIVOT,
    STREAM_ROWS,
    UNRESOLVED,
    ZERO_VARIANCE,
    Draw,
)


class Frame(NamedTuple):
    """The orthogonal columns of a layer, as a lower triangular factor of its normals."""

    inverse: np.ndarray  # float64 (columns, columns): L⁻¹
    mixing: np.ndarray  # the same, (padded, padded), in the dtype of the rows
    panel_sums: np.ndarray  # float64 (panels, sums)
    total: np.ndarray  # float64 (sums,)


def frame(columns: int, panels: int, dtype: DTypeLike) -> Frame:
    """Return the buffers of one thread, for rows of a dtype."""
    whole = padded(columns)
    tiles = whole // 4
    sums = tiles * (tiles + 1) // 2 * 16
    return Frame(
        aligned_zeros((columns, columns), np.float64),
        aligned_zeros((whole, whole), dtype),
        aligned_zeros((panels, sums), np.float64),
        aligned_zeros((sums,), np.float64),
    )


@kernel
def limit_rank(most, regular, factor):
    """Keep the first `most` regular columns of a factor, and drop the others; return the rank.

    A Gram matrix of vectors in a space of `most` dimensions has no larger rank.  The pivots of the
    others are rounding, which a small pivot before them may have made larger than itself.
    """
    count = 0
    for k in range(regular.shape[0]):
        if regular[k] and count == most:
            regular[k] = False
            for i in range(regular.shape[0]):
                factor[i, k] = 0.0
        count += regular[k]
    return count


@kernel
def begin_frame(frame):
    """Let the columns be the normals themselves."""
    for i in range(frame.inverse.shape[0]):
        for j in range(frame.inverse.shape[1]):
            frame.inverse[i, j] = 1.0 if i == j else 0.0


@kernel
def sum_panels(spec, is_first, first_panel, last_panel, panel, draw, work, frame):
    """Sum the products of the columns of `frame` over panels of rows."""
    block, sums = work.block, work.sums
    for number in range(first_panel, last_panel):
        sums[:] = 0.0
        last_row = min((number + 1) * panel, spec.width)
        for start in range(number * panel, last_row, BLOCK):
            count = min(BLOCK, last_row - start)
            rows = (count + GROUP - 1) // GROUP * GROUP
            draw_regular(block, spec.columns, work.regular, start, rows, draw)
            if not is_first:
                multiply_triangular(frame.mixing, spec.columns, block, block, rows)
            clear_rows(block, 0, spec.columns, count, rows)
            add_gram(block, spec.columns, rows, work.partial, sums)
        copy_sums(sums, frame.panel_sums[number])


@kernel
def copy_sums(sums, out):
    """Write an array to another of its size."""
    for k in range(sums.shape[0]):
        out[k] = sums[k]


@kernel
def orthogonalise(spec, work, frame):
    """Make the columns of `frame` orthogonal, given their products; return the least pivot."""
    root, inverse = work.covariance, frame.inverse
    merge_panels(frame.panel_sums, spec.width, frame.total, root)
    least = invert_root(root, inverse)
    for i in range(spec.columns):
        for j in range(i + 1):
            frame.mixing[i, j] = inverse[i, j]
    return least


@kernel
def invert_root(matrix, inverse):
    """Multiply `inverse` by L⁻¹ from the left, for matrix = L Lᵀ; return the least relative pivot.

    A zero on the diagonal is that of a column of zeros, which stays as it is.  A pivot below
    rounding is replaced by rounding.
    """
    order = matrix.shape[0]
    least = 1.0
    for k in range(order):
        diagonal = matrix[k, k]
        if diagonal == 0.0:
            matrix[k, k] = 1.0
            continue
        pivot = diagonal
        for j in range(k):
            pivot -= matrix[k, j] * matrix[k, j]
        pivot = max(pivot / diagonal, order * 2.0**-52)
        least = min(least, pivot)
        matrix[k, k] = np.sqrt(pivot * diagonal)
        for i in range(k + 1, order):
            value = matrix[i, k]
            for j in range(k):
                value -= matrix[i, j] * matrix[k, j]
            matrix[i, k] = value / matrix[k, k]
    for i in range(order):
        for j in range(i):
            for k in range(j + 1):
                inverse[i, k] -= matrix[i, j] * inverse[j, k]
        for k in range(i + 1):
            inverse[i, k] /= matrix[i, i]
    return least


@kernel
def multiply_lower(factor, inverse):
    """Replace a lower triangular factor F by F L⁻¹."""
    order = inverse.shape[0]
    for i in range(order):
        for k in range(i + 1):
            value = 0.0
            for j in range(k, i + 1):
                value += factor[i, j] * inverse[j, k]
            factor[i, k] = value


@kernel
def orthogonal_factor(spec, panel, draw, work, frame):
    """Replace the factor F in `work` by F L⁻¹."""
    limit_rank(spec.width, work.regular, work.factor)
    begin_frame(frame)
    for number in range(MOST_PASSES):
        sum_panels(spec, number == 0, 0, frame.panel_sums.shape[0], panel, draw, work, frame)
        if orthogonalise(spec, work, frame) >= ORTHOGONAL_PIVOT:
            break
    multiply_lower(work.factor, frame.inverse)


@kernel
def orthogonal_layers(
    frame, sigma, spec, grams, xs, activations, first_chain, first_layer, slots, record, panel,
    key0, key1, total, work, status, exponents, units, lift,
):  # fmt: skip
    """Take chains with orthogonal weights through layers.

    Parameters are `frame`, and those of `layers.conditional_layers`.
    """
    scaled = exponents.shape[1] > 0
    guarded = work.block.itemsize == 4 and spec.skip == 0.0 and activations.shape[3] == 0
    panels = frame.panel_sums.shape[0]
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
            orthogonal_factor(spec, panel, draw, work, frame)
            degenerate = draw_panels(
                sigma, spec, x, kept, 0, panels, panel, draw, work, frame.panel_sums
            )
            finite = merge_panels(frame.panel_sums, spec.width, total, gram)
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
