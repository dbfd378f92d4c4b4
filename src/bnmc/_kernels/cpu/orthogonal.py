"""The CPU kernels of chains with orthogonal weights W, uniformly distributed (Haar measure).

Let K = F Fᵀ be the covariance that the next layer sees, and z (width x columns) normals.  With
S = zᵀ z / width = L Lᵀ, the columns of z L⁻ᵀ are orthogonal, each with the mean square 1, and
uniformly distributed.  So W a has the law of z (F L⁻¹)ᵀ: rows with orthogonal weights are rows with
Gaussian weights, with F L⁻¹ in place of F.

S is a sum over all rows, so a layer takes two passes over the same counters: `sum_panels` sums S,
and `layers.sum_rows` draws the rows.  If S is near singular, as it is where the width is near
the rank of K, the columns of z L⁻ᵀ are orthogonal up to rounding over the least pivot.  Then their
own products are summed, and correct the factor (Cholesky-QR, repeated), up to rounding over the
root of the least pivot.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from bnmc._kernels.compiling import inlined, kernel, part
from bnmc._kernels.cpu.blocks import add_gram, clear_rows, multiply_triangular
from bnmc._kernels.cpu.memory import Zeros, aligned_zeros, padded, tile_sums
from bnmc._kernels.cpu.numbers import BLOCK, GROUP
from bnmc._kernels.cpu.rows import draw_regular
from bnmc._kernels.cpu.sharing import keep_sums, merge, shared
from bnmc._kernels.scalar.codes import MOST_PASSES, ORTHOGONAL_PIVOT
from bnmc._kernels.scalar.elementary import larger, smaller


class Frame(NamedTuple):
    """The orthogonal columns of a layer, as a lower triangular factor of its normals."""

    inverse: np.ndarray  # float64 (columns, columns): L⁻¹
    mixing: np.ndarray  # the same, (padded, padded), in the dtype of the rows
    sums: np.ndarray  # float64 (1, sums), or (panels, sums) if threads share a layer


def frame(columns: int, dtype: DTypeLike, panels: int = 1, zeros: Zeros = aligned_zeros) -> Frame:
    """Return the buffers of one thread, for rows of a dtype, or of threads that share panels."""
    whole = padded(columns)
    return Frame(
        zeros((columns, columns), np.float64),
        zeros((whole, whole), dtype),
        zeros((panels, tile_sums(columns)), np.float64),
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
def _begin_frame(frame):
    """Let the columns be the normals themselves."""
    for i in range(frame.inverse.shape[0]):
        for j in range(frame.inverse.shape[1]):
            frame.inverse[i, j] = 1.0 if i == j else 0.0


@part
def sum_panels(first_panel, last_panel, work, spec, is_first, draw, frame):
    """Sum the products of the columns of `frame` over panels of rows."""
    block = work.block
    for number in range(first_panel, last_panel):
        work.sums[:] = 0.0
        last_row = smaller((number + 1) * spec.panel, spec.width)
        for start in range(number * spec.panel, last_row, BLOCK):
            count = smaller(BLOCK, last_row - start)
            rows = (count + GROUP - 1) // GROUP * GROUP
            draw_regular(block, spec.columns, work.regular, start, rows, draw)
            if not is_first:
                multiply_triangular(frame.mixing, spec.columns, block, block, rows)
            clear_rows(block, 0, spec.columns, count, rows)
            add_gram(block, spec.columns, rows, work.partial, work.sums)
        keep_sums(number, work.sums, frame.sums)
    return -1


_share_panels = shared(sum_panels)


@kernel
def orthogonalise(products, frame):
    """Make the columns of `frame` orthogonal, given their products; return the least pivot."""
    least = invert_root(products, frame.inverse)
    for i in range(frame.inverse.shape[0]):
        for j in range(i + 1):
            frame.mixing[i, j] = frame.inverse[i, j]
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
        pivot = larger(pivot / diagonal, order * 2.0**-52)
        least = smaller(least, pivot)
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


@inlined
def orthogonal_factor(threads, spec, draw, work, frame):
    """Replace the factor F in `work` by F L⁻¹."""
    limit_rank(spec.width, work.regular, work.factor)
    _begin_frame(frame)
    panels = (spec.width - 1) // spec.panel + 1
    for number in range(MOST_PASSES):
        _share_panels(threads, 0, panels, work, spec, number == 0, draw, frame)
        merge(threads, frame.sums, spec.width, work.covariance, 0, (spec.columns + 3) // 4)
        if orthogonalise(work.covariance, frame) >= ORTHOGONAL_PIVOT:
            break
    multiply_lower(work.factor, frame.inverse)
