"""Matrices of order `columns` in a backward pass: factors, merged sums, systems of equations."""

from __future__ import annotations

from numba import float64

from bnmc._kernels.gpu.block import thread
from bnmc._kernels.gpu.constants import (
    at_diagonal, at_factor, at_seen, at_seen_factor, at_totals, batch, centred, columns,
    factorise_plain, kind, padded, threads,
)  # fmt: skip
from bnmc._kernels.gpu.device import cuda
from bnmc._kernels.gpu.factor import factorise
from bnmc._kernels.gpu.gram import entry_of, load_gram
from bnmc._kernels.gpu.shape import u32
from bnmc._kernels.scalar.cholesky import scale_of
from bnmc._kernels.scalar.codes import INNER, READOUT


def factorise_seen(before, scale):
    """Write the factor of the covariance that a layer saw, times `scale`, and its pivots."""
    doubles = cuda.shared.array(0, float64)
    numbers = cuda.shared.array(0, kind)
    load_gram(before)
    factorise(scale, False)
    for item in range(thread(), columns * padded, threads):
        numbers[u32(at_seen_factor + item)] = numbers[u32(at_factor + item)]
    for k in range(thread(), columns, threads):
        doubles[u32(at_seen + k)] = doubles[u32(at_diagonal + k)]
    cuda.syncthreads()


def factorise_delta(delta_gram, stage):
    """Write the factor of δᵀδ / width, times a power of two; return that and the least pivot.

    See `cpu.backward.factorise_delta`.
    """
    doubles = cuda.shared.array(0, float64)
    largest = 0.0
    for i in range(columns):
        largest = max(largest, delta_gram[i, i])
    for item in range(thread(), columns * columns, threads):
        i, j = item // columns, item % columns
        entry = delta_gram[i, j]
        if centred and stage == INNER and i == j and (i + 1) % batch == 0:
            # The others determine the last sample of a batch: it gets no pivot.  Its entry
            # equals no other one, so that it is no copy.
            entry = -4.0 * (i + 1) * largest
        doubles[u32(at_totals + entry_of(i, j))] = entry
    cuda.syncthreads()
    scale = scale_of((largest,))
    # δ has been led through the norm, so that nothing is left to centre.
    factorise_plain(scale, False)
    least = 1.0
    for k in range(columns):
        is_last = centred and stage == INNER and (k + 1) % batch == 0
        if not is_last and delta_gram[k, k] > 0.0:
            least = min(least, doubles[u32(at_diagonal + k)])
    return scale, least


def merge(sums, first, width, out):
    """Write the mean over rows, given the sums over ranges of tiles, in their order."""
    for entry in range(thread(), columns * columns, threads):
        total = 0.0
        for index in range(sums.shape[0]):
            total += sums[index, first + entry]
        out[entry // columns, entry % columns] = total / width
    cuda.syncthreads()


def solve(right, basis, cross, scale, ratio, stage):
    """Turn aᵀZ / width into M, for which Wᵀδ = a M + Z; see `cpu.backward.solve_layer`.

    right : (columns, columns) float64
        aᵀZ / width, replaced by M.
    basis : (columns, columns) float64
        The factor of what the layer above saw.
    cross : (columns, columns) float64
        zᵀδ / width of the layer above, to be multiplied by `scale`.
    ratio : (columns,) float64
    """
    # The systems of the columns of M do not depend on each other: a thread solves its own.
    for j in range(thread(), columns, threads):
        _solve_column(right, basis, cross, scale, ratio, stage, j)
    cuda.syncthreads()


def _solve_column(right, basis, cross, scale, ratio, stage, j):
    _project_column(right, basis, ratio, stage, j)
    _mix_column(right, basis, cross, scale, ratio, stage, j)


def project(right, basis, ratio, stage):
    """Turn aᵀZ / width into F⁻¹ P aᵀZ / width, in the rows of samples with a column of F."""
    for j in range(thread(), columns, threads):
        _project_column(right, basis, ratio, stage, j)
    cuda.syncthreads()


def mix(right, basis, cross, scale, ratio, stage):
    """Turn the matrix of `project` into M."""
    for j in range(thread(), columns, threads):
        _mix_column(right, basis, cross, scale, ratio, stage, j)
    cuda.syncthreads()


def _project_column(right, basis, ratio, stage, j):
    for i in range(columns):
        right[i, j] *= ratio[i]
    if centred and stage != READOUT:
        _subtract_means(right, j)
    for i in range(columns):
        if basis[i, i] != 0.0:
            value = right[i, j]
            for k in range(i):
                value -= basis[i, k] * right[k, j]
            right[i, j] = value / basis[i, i]


def _mix_column(right, basis, cross, scale, ratio, stage, j):
    for i in range(columns):
        is_in = basis[i, i] != 0.0
        right[i, j] = scale * cross[i, j] - right[i, j] if is_in else 0.0
    for step in range(columns):
        i = columns - 1 - step
        if basis[i, i] != 0.0:
            value = right[i, j]
            for k in range(i + 1, columns):
                value -= basis[k, i] * right[k, j]
            right[i, j] = value / basis[i, i]
    if centred and stage != READOUT:
        _subtract_means(right, j)
    for i in range(columns):
        right[i, j] *= ratio[i]


def _subtract_means(right, j):
    """Subtract from entries of a column the means over their batches."""
    for first in range(0, columns, batch):
        mean = 0.0
        for i in range(first, first + batch):
            mean += right[i, j]
        mean /= batch
        for i in range(first, first + batch):
            right[i, j] -= mean


def take_basis(basis, scale):
    """Let what the layer saw be what the layer above saw."""
    numbers = cuda.shared.array(0, kind)
    for item in range(thread(), columns * columns, threads):
        i, k = item // columns, item % columns
        entry = 0.0
        if k <= i:
            entry = float(numbers[u32(at_seen_factor + k * padded + i)]) / scale
        basis[i, k] = entry
