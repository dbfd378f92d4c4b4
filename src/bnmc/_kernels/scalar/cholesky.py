"""The covariance of a layer's rows, and a factor of it that is exact when it is singular.

Given the Gram matrix G, the rows of the next layer before normalization are N(0, G).  A centred
normalization sees their part orthogonal to the ones of each input batch, N(0, PGP), so PGP is
factored instead: it is singular by one dimension a batch, which is one normal a row less.
"""

from __future__ import annotations

import numpy as np

#: A pivot below this many units of rounding of its diagonal entry, times the order, is zero.
PIVOT_UNITS = 16.0 * 2.0**-52


def centre(gram, batch, means, out):
    """Write P G P, for P the projector orthogonal to the ones of each group, to `out`.

    Parameters
    ----------
    gram : (N, N) float64
        Symmetric; N is a multiple of `batch`.
    batch : int
        Columns of a group.
    means : (N // batch, N) float64
        Work space.
    out : (>= N, >= N) float64
    """
    order = gram.shape[0]
    groups = order // batch
    for h in range(groups):
        of_group = means[h]
        of_group[:] = 0.0
        for i in range(h * batch, (h + 1) * batch):
            row = gram[i]
            for j in range(order):
                of_group[j] += row[j]
        for j in range(order):
            of_group[j] /= batch
    for g in range(groups):
        for h in range(groups):
            grand = 0.0
            for j in range(g * batch, (g + 1) * batch):
                grand += means[h, j]
            grand /= batch
            columns = slice(h * batch, (h + 1) * batch)
            for i in range(g * batch, (g + 1) * batch):
                row, centred, others = gram[i, columns], out[i, columns], means[g, columns]
                own = means[h, i]
                for j in range(batch):
                    # The two means are added first, so that the result is symmetric to the bit.
                    centred[j] = (row[j] - (own + others[j])) + grand


def find_twins(gram, twin):
    """Write to twin[j] the first sample i <= j that sample j is a copy of.

    Equal columns of activations have equal products, to the bit, and no others have
    |a_i|^2 = a_i . a_j = |a_j|^2 beyond rounding.
    """
    for j in range(gram.shape[0]):
        twin[j] = j
        for i in range(j):
            if gram[i, j] == gram[j, j] and gram[i, i] == gram[j, j]:
                twin[j] = i
                break


def cholesky(matrix, diagonal, twin, scale, panel, factor, regular):
    """Write the lower triangular factor of a positive semidefinite matrix, times `scale`.

    A pivot that is zero to rounding gives a zero column, which is exact: in a semidefinite matrix
    the rest of that column of the Schur complement is zero too.  The order of pivots is fixed,
    so that the factor is a continuous function of the matrix where it is regular.

    Parameters
    ----------
    matrix : (N, N) float64
        Only the lower triangle is read; it is used up.
    diagonal : (N,) float64
        The scale against which a pivot counts as zero, e.g. the diagonal before centring.
        Replaced by the pivots as parts of that.
    twin : (N,) int64
        twin[j] = i < j where sample j is a copy of sample i, else j.  Their rows of the factor
        are equal to the bit, so that copies stay copies at every depth.
    scale : float64
    panel : (4, N) float64
        Work space, finite: four columns of the factor, by which the rest is brought up to date at
        once.
    factor : (>= N, >= N) floating
        Its lower triangle is written.
    regular : (N,) bool
        Set to whether each column of the factor has entries.
    """
    order = matrix.shape[0]
    for begin in range(0, order, 4):
        end = min(begin + 4, order)
        for k in range(begin, end):
            column = panel[k - begin]
            f0 = panel[0, k] if k > begin else 0.0
            f1 = panel[1, k] if k > begin + 1 else 0.0
            f2 = panel[2, k] if k > begin + 2 else 0.0
            # Unsigned, so that the compiler need not look for negative indices.
            for i in range(np.uintp(k), np.uintp(order)):
                column[i] = matrix[i, k] - (
                    f0 * panel[0, i] + (f1 * panel[1, i] + f2 * panel[2, i])
                )
            pivot = column[k]
            regular[k] = twin[k] == k and pivot > PIVOT_UNITS * order * diagonal[k]
            inverse = 1.0 / np.sqrt(pivot) if regular[k] else 0.0
            diagonal[k] = pivot / diagonal[k] if regular[k] else 0.0
            for i in range(np.uintp(k), np.uintp(order)):
                column[i] *= inverse
                factor[i, k] = scale * column[i]
        for i in range(end, order):
            f0, f1, f2, f3 = panel[0, i], panel[1, i], panel[2, i], panel[3, i]
            for j in range(np.uintp(end), np.uintp(i + 1)):
                matrix[i, j] -= (f0 * panel[0, j] + f1 * panel[1, j]) + (
                    f2 * panel[2, j] + f3 * panel[3, j]
                )
    for j in range(order):
        if twin[j] != j:
            for k in range(j + 1):
                factor[j, k] = factor[twin[j], k]


def scale_of(diagonal):
    """Return the power of two that brings the largest of `diagonal` to about 1 as a square."""
    largest = 0.0
    for value in diagonal:
        largest = max(largest, value)
    scale = 1.0
    while largest > 2.0:
        largest *= 0.25
        scale *= 0.5
    while 0.0 < largest < 0.5:
        largest *= 4.0
        scale *= 2.0
    return scale
