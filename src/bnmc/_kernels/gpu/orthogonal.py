"""Matrices of order `columns` of chains with orthogonal weights, in global memory.

`cpu.orthogonal` and `cpu.backward` have the formulas.  The last block of a chain calls
these functions; all its threads do.  Thread i has row i of a matrix, or column i.
"""

from __future__ import annotations

from math import sqrt
from typing import Any, NamedTuple

import numpy as np
from numba import float64, int64

from bnmc._kernels.gpu.block import Block
from bnmc._kernels.gpu.device import cuda
from bnmc._kernels.gpu.scalars import scale_of
from bnmc._kernels.gpu.shape import Shape, u32
from bnmc._kernels.scalar.cholesky import PIVOT_UNITS
from bnmc._kernels.scalar.codes import INNER, READOUT


class Frames(NamedTuple):
    """Device functions of orthogonal columns."""

    #: Keeps as many columns of the factor of what the layer saw as the layer has rows.
    limit_seen: Any
    #: Writes an identity.
    begin: Any
    invert_root: Any
    factorise_rest: Any
    #: Replaces the factor F of what the layer saw by F L⁻¹, in shared memory.
    multiply_factor: Any
    #: Replaces E by E L'⁻¹.
    multiply_root: Any
    #: Copies a lower triangular matrix to where rows are multiplied by its transpose.
    take_lower: Any
    turn_cross: Any


def frame_functions(shape: Shape, block: Block, at_factor: int, at_seen: int) -> Frames:
    """Return the device functions of orthogonal columns.

    at_factor, at_seen : int
        Where in shared memory the factor of what the layer saw is, and where its pivots are.
    """
    limit_seen, multiply_factor = _seen_functions(shape, block, at_factor, at_seen)
    return Frames(
        limit_seen,
        _begin_function(shape, block),
        _invert_function(shape, block),
        _rest_function(shape, block),
        multiply_factor,
        _multiply_function(shape, block),
        _take_function(shape, block),
        _turn_function(shape, block),
    )


def _seen_functions(shape: Shape, block: Block, at_factor: int, at_seen: int) -> tuple[Any, Any]:
    columns, padded, kind, number = (
        shape.spec.columns, shape.padded, shape.spec.kind, shape.spec.number,
    )  # fmt: skip
    threads, thread = shape.threads, block.thread

    @cuda.jit(device=True)
    def limit_seen(most):
        """Keep the first `most` regular columns of the factor, and drop the others."""
        doubles = cuda.shared.array(0, float64)
        numbers = cuda.shared.array(0, kind)
        for k in range(thread(), columns, threads):
            before = 0
            for j in range(k):
                if doubles[u32(at_seen + j)] > 0.0:
                    before += 1
            if before >= most:
                for c in range(columns):
                    numbers[u32(at_factor + k * padded + c)] = number(0.0)
        cuda.syncthreads()
        if thread() == 0:
            count = 0
            for k in range(columns):
                if doubles[u32(at_seen + k)] > 0.0:
                    count += 1
                    if count > most:
                        doubles[u32(at_seen + k)] = 0.0
        cuda.syncthreads()

    @cuda.jit(device=True)
    def multiply_factor(inverse):
        """Replace F by F L⁻¹."""
        numbers = cuda.shared.array(0, kind)
        for i in range(thread(), columns, threads):
            for k in range(i + 1):
                value = 0.0
                for j in range(k, i + 1):
                    value += float(numbers[u32(at_factor + j * padded + i)]) * inverse[j, k]
                numbers[u32(at_factor + k * padded + i)] = number(value)
        cuda.syncthreads()

    return limit_seen, multiply_factor


def _begin_function(shape: Shape, block: Block) -> Any:
    columns, threads, thread = shape.spec.columns, shape.threads, block.thread

    @cuda.jit(device=True)
    def begin(inverse):
        for item in range(thread(), columns * columns, threads):
            i, j = item // columns, item % columns
            inverse[i, j] = 1.0 if i == j else 0.0
        cuda.syncthreads()

    return begin


def _invert_function(shape: Shape, block: Block) -> Any:
    columns, threads, thread = shape.spec.columns, shape.threads, block.thread
    rounding = columns * 2.0**-52

    @cuda.jit(device=True)
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
                pivot = max(pivot / diagonal, rounding)
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

    return invert_root


def _rest_function(shape: Shape, block: Block) -> Any:
    columns, batch, centred = shape.spec.columns, shape.spec.batch, shape.spec.centred
    threads, thread, at_column = shape.threads, block.thread, shape.at.column
    eliminate = _eliminate_function(shape, block)

    @cuda.jit(device=True)
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
        eliminate(matrix, scale, width - rank if stage != READOUT else columns, root, regular)
        return scale

    return factorise_rest


def _eliminate_function(shape: Shape, block: Block) -> Any:
    columns, threads, thread = shape.spec.columns, shape.threads, block.thread
    at_column, at_twin, units = shape.at.column, shape.at.twin, PIVOT_UNITS * shape.spec.columns

    @cuda.jit(device=True)
    def eliminate(matrix, scale, most, root, regular):
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
            is_regular = is_regular and pivot > units * doubles[u32(at_column + k)]
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

    return eliminate


def _multiply_function(shape: Shape, block: Block) -> Any:
    columns, threads, thread = shape.spec.columns, shape.threads, block.thread

    @cuda.jit(device=True)
    def multiply_root(root, inverse):
        for i in range(thread(), columns, threads):
            for k in range(i + 1):
                value = 0.0
                for j in range(k, i + 1):
                    value += root[i, j] * inverse[j, k]
                root[i, k] = value
        cuda.syncthreads()

    return multiply_root


def _take_function(shape: Shape, block: Block) -> Any:
    columns, padded, kind, number = (
        shape.spec.columns, shape.padded, shape.spec.kind, shape.spec.number,
    )  # fmt: skip
    threads, thread = shape.threads, block.thread

    @cuda.jit(device=True)
    def take_lower(matrix, at_matrix):
        numbers = cuda.shared.array(0, kind)
        for item in range(thread(), columns * padded, threads):
            k, c = item // padded, item % padded
            value = number(0.0)
            if k <= c < columns:
                value = number(matrix[c, k])
            numbers[u32(at_matrix + item)] = value
        cuda.syncthreads()

    return take_lower


def _turn_function(shape: Shape, block: Block) -> Any:
    columns, threads, thread = shape.spec.columns, shape.threads, block.thread

    @cuda.jit(device=True)
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

    return turn_cross
