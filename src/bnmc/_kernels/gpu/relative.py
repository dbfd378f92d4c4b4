"""The two factors L, L' of a coupled pair, and C = L^-1 L' relative to each other.

Factors of pairs are in global memory, as shared memory has room for one factor.  "Regular" rows and
columns have a positive pivot; all others are left out.
"""

from __future__ import annotations

from math import log, sqrt
from numba import float64, int64

from bnmc._kernels.gpu.block import thread
from bnmc._kernels.gpu.constants import (
    at_column, at_diagonal, at_factor, at_tile64, at_twin, centred, columns, kind, padded, threads,
)  # fmt: skip
from bnmc._kernels.gpu.device import cuda
from bnmc._kernels.gpu.shape import u32


def keep_factor(factor, pivots, twins):
    """Copy the factor, its pivots and its twins from shared memory."""
    doubles = cuda.shared.array(0, float64)
    whole = cuda.shared.array(0, int64)
    numbers = cuda.shared.array(0, kind)
    t = thread()
    for item in range(t, columns * columns, threads):
        i, k = item // columns, item % columns
        factor[i, k] = numbers[u32(at_factor + k * padded + i)]
    for k in range(t, columns, threads):
        pivots[k] = doubles[u32(at_diagonal + k)]
        twins[k] = whole[u32(at_twin + k)]
    cuda.syncthreads()


def take_factor(factor, pivots):
    """Copy a factor and its pivots to shared memory."""
    doubles = cuda.shared.array(0, float64)
    numbers = cuda.shared.array(0, kind)
    t = thread()
    cuda.syncthreads()
    for item in range(t, columns * columns, threads):
        i, k = item // columns, item % columns
        numbers[u32(at_factor + k * padded + i)] = factor[i, k]
    for k in range(t, columns, threads):
        doubles[u32(at_diagonal + k)] = pivots[k]
    cuda.syncthreads()


def same_range(pivots, twins):
    """Whether the two covariances have one range; see `cpu.pairs.same_range`."""
    last = -1
    for k in range(columns - 1, -1, -1):
        regular = pivots[0, k] > 0.0
        if regular != (pivots[1, k] > 0.0) or twins[0, k] != twins[1, k]:
            return False
        is_copy = twins[0, k] != k
        if centred and last < 0 and not is_copy:
            last = k
        if not regular and not is_copy and k != last:
            return False
    return True


def relative_factor(factors, pivots, hides_scale, relative):
    """Write C, and return |C C^T - I|; see `cpu.pairs.relative_factor`."""
    solve(factors[0], pivots[0], factors[1], False, relative)
    if hides_scale:
        square, size = square_of(relative, 0.0, pivots[0])
        root = sqrt(size / square)
        for item in range(thread(), columns * columns, threads):
            relative[item // columns, item % columns] *= root
        cuda.syncthreads()
    return sqrt(square_of(relative, 1.0, pivots[0])[0])


def square_of(lower, shift, pivots):
    """Return |C C^T - shift I|^2 and |C|^2."""
    doubles = cuda.shared.array(0, float64)
    for item in range(thread(), columns * columns, threads):
        i, j = item // columns, item % columns
        entry = 0.0
        for k in range(min(i, j) + 1):
            entry += lower[i, k] * lower[j, k]
        if i == j and pivots[i] > 0.0:
            entry -= shift
        doubles[u32(at_tile64 + item)] = entry * entry
    square = _sum_of_entries()
    for item in range(thread(), columns * columns, threads):
        entry = lower[item // columns, item % columns]
        doubles[u32(at_tile64 + item)] = entry * entry
    return square, _sum_of_entries()


def half_excess(lower, pivots, wishart):
    """Return half the trace of (C^T C - I) Z^T Z / width."""
    doubles = cuda.shared.array(0, float64)
    for item in range(thread(), columns * columns, threads):
        i, j = item // columns, item % columns
        entry = 0.0
        if pivots[i] > 0.0 and pivots[j] > 0.0:
            for k in range(max(i, j), columns):
                entry += lower[k, i] * lower[k, j]
            if i == j:
                entry -= 1.0
        doubles[u32(at_tile64 + item)] = 0.5 * entry * wishart[i, j]
    return _sum_of_entries()


def log_determinant(lower, pivots):
    total = 0.0
    for k in range(columns):
        if pivots[k] > 0.0:
            total += log(lower[k, k])
    return total


def _sum_of_entries():
    """Return the sum of the matrix in the place of the tile, to every thread."""
    doubles = cuda.shared.array(0, float64)
    cuda.syncthreads()
    for i in range(thread(), columns, threads):
        total = 0.0
        for j in range(columns):
            total += doubles[u32(at_tile64 + i * columns + j)]
        doubles[u32(at_column + i)] = total
    cuda.syncthreads()
    total = 0.0
    for i in range(columns):
        total += doubles[u32(at_column + i)]
    cuda.syncthreads()
    return total


def solve(lower, pivots, right, identity, out):
    """Write lower^-1 right or, if `identity`, lower^-1: regular rows and columns only."""
    for item in range(thread(), columns * columns, threads):
        out[item // columns, item % columns] = 0.0
    cuda.syncthreads()
    for j in range(thread(), columns, threads):
        if pivots[j] > 0.0:
            for i in range(j, columns):
                if pivots[i] > 0.0:
                    entry = 0.0
                    if not identity:
                        entry = right[i, j]
                    elif i == j:
                        entry = 1.0
                    for k in range(j, i):
                        entry -= lower[i, k] * out[k, j]
                    out[i, j] = entry / lower[i, i]
    cuda.syncthreads()
