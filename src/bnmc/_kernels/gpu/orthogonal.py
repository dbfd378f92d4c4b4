"""Matrices of order `columns` of chains with orthogonal weights, in global memory.

`cpu.orthogonal` and `cpu.backward` have the formulas.  The last block of a chain calls
these functions; all its threads do.  Thread i has row i of a matrix, or column i.
"""

from __future__ import annotations

from math import sqrt
import numpy as np
from numba import float64, int64

from bnmc._kernels.gpu.block import thread
from bnmc._kernels.gpu.constants import (
    at_column, at_seen, at_seen_factor, at_twin, batch, centred, columns, kind, number, padded,
    threads,
)  # fmt: skip
from bnmc._kernels.gpu.device import cuda
from bnmc._kernels.gpu.shape import u32
from bnmc._kernels.scalar.cholesky import PIVOT_UNITS, scale_of
from bnmc._kernels.scalar.codes import INNER, READOUT


def limit_seen(most):
    """Keep the first `most` regular columns of the factor of what a layer saw; drop the others.

    A layer has as many as it has rows.
    """
    doubles = cuda.shared.array(0, float64)
    numbers = cuda.shared.array(0, kind)
    for k in range(thread(), columns, threads):
        before = 0
        for j in range(k):
            if doubles[u32(at_seen + j)] > 0.0:
                before += 1
        if before >= most:
            for c in range(columns):
                numbers[u32(at_seen_factor + k * padded + c)] = number(0.0)
    cuda.syncthreads()
    if thread() == 0:
        count = 0
        for k in range(columns):
            if doubles[u32(at_seen + k)] > 0.0:
                count += 1
                if count > most:
                    doubles[u32(at_seen + k)] = 0.0
    cuda.syncthreads()


def multiply_factor(inverse):
    """Replace the factor F of what the layer saw by F L⁻¹, in shared memory."""
    numbers = cuda.shared.array(0, kind)
    for i in range(thread(), columns, threads):
        for k in range(i + 1):
            value = 0.0
            for j in range(k, i + 1):
                value += float(numbers[u32(at_seen_factor + j * padded + i)]) * inverse[j, k]
            numbers[u32(at_seen_factor + k * padded + i)] = number(value)
    cuda.syncthreads()


def write_identity(inverse):
    """Write an identity."""
    for item in range(thread(), columns * columns, threads):
        i, j = item // columns, item % columns
        inverse[i, j] = 1.0 if i == j else 0.0
    cuda.syncthreads()


def invert_root(matrix, inverse):
    """Multiply `inverse` by L⁻¹ from the left, for matrix = L Lᵀ; return the least pivot.

    See `cpu.orthogonal.invert_root`.
    """
    least = 1.0
    for k in range(columns):
        diagonal = matrix[k, k]
        pivot = diagonal
        for j in range(k):
            pivot -= matrix[k, j] * matrix[k, j]
        root = 1.0
        if diagonal != 0.0:
            pivot = max(pivot / diagonal, columns * 2.0**-52)
            least = min(least, pivot)
            root = sqrt(pivot * diagonal)
        cuda.syncthreads()
        for i in range(k + thread(), columns, threads):
            if i == k:
                matrix[k, k] = root
            elif diagonal != 0.0:
                value = matrix[i, k]
                for j in range(k):
                    value -= matrix[i, j] * matrix[k, j]
                matrix[i, k] = value / root
        cuda.syncthreads()
    for k in range(thread(), columns, threads):
        for i in range(k, columns):
            value = inverse[i, k]
            for j in range(k, i):
                value -= matrix[i, j] * inverse[j, k]
            inverse[i, k] = value / matrix[i, i]
    cuda.syncthreads()
    return least


def factorise_rest(state, basis, width, stage, matrix, root, regular):
    """Write the factor E of what δ has outside the range of u, times a power of two.

    A readout has Gaussian weights, so E is the factor of δᵀδ.  See
    `cpu.backward_matrices.factorise_noise`.

    matrix : (columns, columns) float64
        Work space.
    root : (columns, columns) float64
        Receives E, lower triangular.
    regular : (columns,) float64
        Receives 1 or 0: whether a column of E has entries.

    Returns the power of two.
    """
    doubles = cuda.shared.array(0, float64)
    rank = 0
    for k in range(columns):
        if basis[k, k] != 0.0:
            rank += 1
    if stage == READOUT:
        rank = 0
    for item in range(thread(), columns * columns, threads):
        i, j = item // columns, item % columns
        value = state[0, i, j]
        for k in range(columns if stage != READOUT else 0):
            if basis[k, k] != 0.0:
                value -= state[1, k, i] * state[1, k, j]
        matrix[i, j] = value
        root[i, j] = 0.0
    largest = 0.0
    for i in range(columns):
        largest = max(largest, state[0, i, i])
    scale = scale_of((largest,))
    for i in range(thread(), columns, threads):
        # What a pivot is compared with; the others determine the last sample of a batch.
        is_last = centred and stage == INNER and (i + 1) % batch == 0
        doubles[u32(at_column + i)] = np.inf if is_last else state[0, i, i]
    cuda.syncthreads()
    _eliminate(matrix, scale, width - rank if stage != READOUT else columns, root, regular)
    return scale


def _eliminate(matrix, scale, most, root, regular):
    """Write the factor of a matrix, of at most `most` columns; see `cpu.factor.cholesky`."""
    doubles = cuda.shared.array(0, float64)
    whole = cuda.shared.array(0, int64)
    for j in range(thread(), columns, threads):
        twin = j
        for back in range(j):
            i = j - 1 - back
            if matrix[j, i] == matrix[j, j] and matrix[i, i] == matrix[j, j]:
                twin = i
        whole[u32(at_twin + j)] = twin
    cuda.syncthreads()
    count = 0
    for k in range(columns):
        pivot = matrix[k, k]
        is_regular = whole[u32(at_twin + k)] == k
        is_regular = is_regular and pivot > PIVOT_UNITS * columns * doubles[u32(at_column + k)]
        is_regular = is_regular and count < most
        cuda.syncthreads()
        if thread() == 0:
            regular[k] = 1.0 if is_regular else 0.0
        if is_regular:
            count += 1
            inverse = 1.0 / sqrt(pivot)
            for i in range(k + thread(), columns, threads):
                root[i, k] = matrix[i, k] * inverse
        cuda.syncthreads()
        if is_regular:
            for i in range(k + 1 + thread(), columns, threads):
                for j in range(k + 1, i + 1):
                    matrix[i, j] -= root[i, k] * root[j, k]
        cuda.syncthreads()
    for j in range(thread(), columns, threads):
        twin = whole[u32(at_twin + j)]
        for k in range(j + 1 if twin == j else 0):
            root[j, k] *= scale
    cuda.syncthreads()
    for j in range(thread(), columns, threads):
        twin = whole[u32(at_twin + j)]
        for k in range(j + 1 if twin != j else 0):
            root[j, k] = root[twin, k]
    cuda.syncthreads()


def multiply_root(root, inverse):
    """Replace E by E L'⁻¹."""
    for i in range(thread(), columns, threads):
        for k in range(i + 1):
            value = 0.0
            for j in range(k, i + 1):
                value += root[i, j] * inverse[j, k]
            root[i, k] = value
    cuda.syncthreads()


def take_lower(matrix, at_matrix):
    """Copy a lower triangular matrix to where rows are multiplied by its transpose."""
    numbers = cuda.shared.array(0, kind)
    for item in range(thread(), columns * padded, threads):
        k, c = item // padded, item % padded
        value = number(0.0)
        if k <= c < columns:
            value = number(matrix[c, k])
        numbers[u32(at_matrix + item)] = value
    cuda.syncthreads()


def turn_cross(inverse, cross):
    """Replace zᵀδ by uᵀδ = L⁻¹ zᵀδ."""
    for j in range(thread(), columns, threads):
        for back in range(columns):
            i = columns - 1 - back
            value = 0.0
            for k in range(i + 1):
                value += inverse[i, k] * cross[k, j]
            cross[i, j] = value
    cuda.syncthreads()
