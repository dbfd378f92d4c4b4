"""The covariance of a layer's rows, and when a pivot of its factor counts as zero.

Given the Gram matrix G, the rows of the next layer before normalization are N(0, G).  A centred
normalization sees their part orthogonal to the ones of each input batch, N(0, PGP), so PGP is
factored instead: it is singular by one dimension a batch, which is one normal a row less.
"""

from __future__ import annotations

import numpy as np

from bnmc._kernels.scalar.elementary import larger

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
            begin, end = np.uintp(h * batch), np.uintp((h + 1) * batch)
            for i in range(g * batch, (g + 1) * batch):
                row, centred, others = gram[i], out[i], means[g]
                mean = means[h, i]
                # Unsigned, so that the compiler adds no test for negative indices.
                for j in range(begin, end):
                    # The two means are added first, so that the result is symmetric to the bit.
                    centred[j] = (row[j] - (mean + others[j])) + grand


def find_twins(gram, twin):
    """Write to twin[j] the first sample i <= j that sample j is a copy of.

    Equal columns of activations have equal products, to the bit, and no others have
    |a_i|^2 = a_i . a_j = |a_j|^2 beyond rounding.
    """
    for j in range(gram.shape[0]):
        twin[j] = j
        for i in range(j):
            if gram[j, i] == gram[j, j] and gram[i, i] == gram[j, j]:
                twin[j] = i
                break


def scale_of(diagonal):
    """Return the power of two that brings the largest of `diagonal` to about 1 as a square.

    None does if it is infinite: the scale is then 1, and the factor is not finite.
    """
    largest = 0.0
    for value in diagonal:
        largest = larger(largest, value)
    scale = 1.0
    while 2.0 < largest < np.inf:
        largest *= 0.25
        scale *= 0.5
    while 0.0 < largest < 0.5:
        largest *= 4.0
        scale *= 2.0
    return scale
