"""The triangular factor of a covariance, a panel of columns at a time.

The columns are made in the upper triangle of the symmetric matrix, where they are rows.  `PANEL`
rows are made at a time (`make_panel`): the block at the diagonal, and then pieces of what is on its
right.  What the rows contribute to those below is then subtracted at once
(`subtract_products`), which is most of the work at a large order.  Threads may share the pieces and
the products; an entry of the result does not depend on how.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bnmc._kernels.compiling import kernel
from bnmc._kernels.cpu import vectors
from bnmc._kernels.cpu.memory import PANEL
from bnmc._kernels.cpu.vectors import (
    add_scaled,
    flat,
    load_strip,
    load_strips,
    store_strips,
    subtract_all,
    zero_strip,
)
from bnmc._kernels.scalar.cholesky import PIVOT_UNITS
from bnmc._kernels.scalar.elementary import larger, smaller


class Factored(NamedTuple):
    """A positive semidefinite matrix of order N, and its factor."""

    #: float64 (N, N), symmetric: only the upper triangle is read; all of the matrix is used up.
    matrix: np.ndarray
    #: float64 (N,): the scale against which a pivot counts as zero, e.g. the diagonal before
    #: centring.  Replaced by the pivots as parts of that.
    diagonal: np.ndarray
    #: int64 (N,): twin[j] = i < j where sample j is a copy of sample i, else j.  Their rows of the
    #: factor are equal to the bit, so that copies stay copies at every depth.
    twin: np.ndarray
    #: float64: work space, finite, of the shape `memory.panel_shape(N)`.
    panel: np.ndarray
    #: (>= N, >= N): its lower triangle is written.
    factor: np.ndarray
    #: bool (N,): set to whether each column of the factor has entries.
    regular: np.ndarray


@kernel
def cholesky(factored, scale):
    """Write the lower triangular factor of a positive semidefinite matrix, times `scale`.

    A pivot that is zero to rounding gives a zero column, which is exact: in a semidefinite matrix
    the rest of that column of the Schur complement is zero too.  The order of pivots is fixed,
    so that the factor is a continuous function of the matrix where it is regular.

    Parameters
    ----------
    factored : Factored
    scale : float64
    """
    order = factored.matrix.shape[0]
    for first in range(0, order, PANEL):
        last = smaller(first + PANEL, order)
        make_panel(factored, scale, first, last, first, order)
        if last < order:
            subtract_products(factored.matrix, factored.panel, last, order)
    copy_twins(factored.twin, factored.factor)


@kernel
def _factor_piece(factored, scale, first, last, begin, stop):
    """Write rows begin:stop of columns first:last of the factor.

    They replace their part of the matrix too, without `scale`, as rows.  What columns to
    their left contribute has been subtracted from the matrix.  The block at the diagonal, where
    begin and stop are `first` and `last`, comes before all others; there the first row of the panel
    receives the inverses of the diagonal entries, in its places first:last.
    """
    matrix, diagonal, factor, regular = (
        factored.matrix,
        factored.diagonal,
        factored.factor,
        factored.regular,
    )
    inverses, order = factored.panel[0], matrix.shape[0]
    for start in range(first, last, 4):
        end = smaller(start + 4, last)
        row0, row1 = matrix[start], matrix[smaller(start + 1, order - 1)]
        row2, row3 = matrix[smaller(start + 2, order - 1)], matrix[smaller(start + 3, order - 1)]
        for k in range(start, end):
            row, left = matrix[k], larger(k, begin)
            f0 = row0[k] if k > start else 0.0
            f1 = row1[k] if k > start + 1 else 0.0
            f2 = row2[k] if k > start + 2 else 0.0
            # Unsigned, so that the compiler need not look for negative indices.
            if k > start:  # for the first of four, f0, f1 and f2 are 0
                for i in range(np.uintp(left), np.uintp(stop)):
                    row[i] -= f0 * row0[i] + (f1 * row1[i] + f2 * row2[i])
            if begin <= k:
                pivot = row[k]
                regular[k] = factored.twin[k] == k and pivot > PIVOT_UNITS * order * diagonal[k]
                inverses[k] = 1.0 / np.sqrt(pivot) if regular[k] else 0.0
                diagonal[k] = pivot / diagonal[k] if regular[k] else 0.0
            inverse = inverses[k]
            for i in range(np.uintp(left), np.uintp(stop)):
                row[i] *= inverse
                factor[i, k] = scale * row[i]
        for k in range(end, last):
            row = matrix[k]
            f0, f1, f2, f3 = row0[k], row1[k], row2[k], row3[k]
            for i in range(np.uintp(larger(k, begin)), np.uintp(stop)):
                row[i] -= (f0 * row0[i] + f1 * row1[i]) + (f2 * row2[i] + f3 * row3[i])


@kernel
def make_panel(factored, scale, first, last, begin, stop):
    """Make rows begin:stop of columns first:last of the factor, a piece at a time.

    Longer pieces would not stay in the cache, where rows of the factor as long as a power of two
    share few places.  What is below the block at the diagonal is copied to `panel` too, whose first
    row has the inverses of the diagonal entries.
    """
    for left in range(begin, stop, PANEL):
        right = smaller(left + PANEL, stop)
        _factor_piece(factored, scale, first, last, left, right)
        if left >= last:
            for k in range(first, last):
                row, copy = factored.matrix[k], factored.panel[k - first]
                for i in range(np.uintp(left), np.uintp(right)):
                    copy[i] = row[i]


@kernel
def subtract_products(matrix, panel, first, last):
    """Subtract panelᵀ panel from rows first:last of a matrix, from the diagonal on.

    Strips of columns end at the last column, and so may begin before the diagonal, where the matrix
    changes too.  Rows are taken in fours.
    """
    order, stride = matrix.shape[0], panel.shape[1]
    entries, products = flat(matrix), flat(panel)
    strip, zero = vectors.STRIP_BYTES // 8, zero_strip(entries)
    whole = (last - first) // 4 * 4
    for i in range(first, first + whole, 4):
        for j in range(order - (order - i + strip - 1) // strip * strip, order, strip):
            sums = zero, zero, zero, zero
            for k in range(PANEL):
                at = np.uintp(k * stride)
                lanes = load_strip(products, at + np.uintp(j))
                at += np.uintp(i)
                scalars = (
                    products[at], products[at + np.uintp(1)], products[at + np.uintp(2)],
                    products[at + np.uintp(3)],
                )  # fmt: skip
                sums = add_scaled(scalars, lanes, sums)
            at = i * order + j
            rest = subtract_all(load_strips(entries, at, order), sums)
            store_strips(entries, at, order, rest)
    for i in range(first + whole, last):
        for j in range(i, order):
            total = 0.0
            for k in range(PANEL):
                total += panel[k, i] * panel[k, j]
            matrix[i, j] -= total


@kernel
def copy_twins(twin, factor):
    """Make the rows of a factor that belong to copies equal."""
    for j in range(twin.shape[0]):
        if twin[j] != j:
            for k in range(j + 1):
                factor[j, k] = factor[twin[j], k]


@kernel
def least_pivots(matrices, diagonals, twin, panel, regular, least):
    """Write the least pivot of each matrix, as a part of its diagonal entry, to `least`.

    Parameters
    ----------
    matrices : (count, N, N) float64
        Used up.
    diagonals : (count, N) float64
        What the pivots are compared with; receives the quotients.
    twin : (N,) int64
        The numbers from 0 on: a copy of a sample has the pivot zero.
    panel, regular
        As in `Factored`.
    least : (count,) float64
    """
    for number in range(matrices.shape[0]):
        matrix, diagonal = matrices[number], diagonals[number]
        cholesky(Factored(matrix, diagonal, twin, panel, matrix, regular), 1.0)
        for k in range(matrix.shape[0]):
            least[number] = smaller(least[number], diagonal[k])
