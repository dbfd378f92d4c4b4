"""Matrices of order `columns` in a backward pass: factors, merged sums, systems of equations."""

from __future__ import annotations

from typing import Any, NamedTuple

from numba import float64

from bnmc._kernels.gpu.backward_tiles import Room
from bnmc._kernels.gpu.block import Block
from bnmc._kernels.gpu.device import cuda
from bnmc._kernels.gpu.factor import factor_function
from bnmc._kernels.gpu.gram import Gram
from bnmc._kernels.gpu.scalars import scale_of
from bnmc._kernels.gpu.shape import Shape, shape_of, u32
from bnmc._kernels.scalar.codes import INNER, NORM_NONE, READOUT


class Matrices(NamedTuple):
    """Device functions of matrices."""

    factorise_seen: Any
    factorise_delta: Any
    merge: Any
    solve: Any
    #: The two halves of `solve`.
    project: Any
    mix: Any
    take_basis: Any
    take_mixing: Any


def matrix_functions(shape: Shape, block: Block, gram: Gram, room: Room) -> Matrices:
    """Return the device functions of matrices."""
    take_basis, take_mixing = _copy_functions(shape, block, room)
    return Matrices(
        _factorise_seen_function(shape, block, gram, room),
        _factorise_delta_function(shape, block, gram),
        _merge_function(shape, block),
        *_solve_functions(shape, block),
        take_basis,
        take_mixing,
    )


def _factorise_seen_function(shape: Shape, block: Block, gram: Gram, room: Room) -> Any:
    columns, padded, threads, thread = (
        shape.spec.columns, shape.padded, shape.threads, block.thread,
    )  # fmt: skip
    kind, load_gram = shape.spec.kind, gram.load
    factorise = factor_function(shape, block, gram)
    at_diagonal, at_factor, at_kept, at_seen = (
        shape.at.diagonal, shape.at.factor, room.factor, room.seen,
    )  # fmt: skip

    @cuda.jit(device=True)
    def factorise_seen(before, scale):
        """Write the factor of the covariance that a layer saw, times `scale`, and its pivots."""
        doubles = cuda.shared.array(0, float64)
        numbers = cuda.shared.array(0, kind)
        load_gram(before)
        # With an eps the factor has the scale that it is given.
        factorise(scale, 1.0)
        for item in range(thread(), columns * padded, threads):
            numbers[u32(at_kept + item)] = numbers[u32(at_factor + item)]
        for k in range(thread(), columns, threads):
            doubles[u32(at_seen + k)] = doubles[u32(at_diagonal + k)]
        cuda.syncthreads()

    return factorise_seen


def _factorise_delta_function(shape: Shape, block: Block, gram: Gram) -> Any:
    spec, columns, batch = shape.spec, shape.spec.columns, shape.spec.batch
    threads, thread, entry_of = shape.threads, block.thread, gram.entry_of
    centred, at_totals, at_diagonal = spec.centred, shape.at.totals, shape.at.diagonal
    # δ has been led through the norm, so that nothing is left to centre.
    plain = shape_of(spec._replace(norm=NORM_NONE))
    assert plain.at == shape.at
    factorise = factor_function(plain, block, gram)

    @cuda.jit(device=True)
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
        factorise(scale, 0.0)
        least = 1.0
        for k in range(columns):
            is_last = centred and stage == INNER and (k + 1) % batch == 0
            if not is_last and delta_gram[k, k] > 0.0:
                least = min(least, doubles[u32(at_diagonal + k)])
        return scale, least

    return factorise_delta


def _merge_function(shape: Shape, block: Block) -> Any:
    columns, threads, thread = shape.spec.columns, shape.threads, block.thread

    @cuda.jit(device=True)
    def merge(sums, first, width, out):
        """Write the mean over rows, given the sums over ranges of tiles, in their order."""
        for entry in range(thread(), columns * columns, threads):
            total = 0.0
            for index in range(sums.shape[0]):
                total += sums[index, first + entry]
            out[entry // columns, entry % columns] = total / width
        cuda.syncthreads()

    return merge


def _solve_functions(shape: Shape, block: Block) -> tuple[Any, Any, Any]:
    columns, batch, threads, thread = (
        shape.spec.columns, shape.spec.batch, shape.threads, block.thread,
    )  # fmt: skip
    centred = shape.spec.centred

    @cuda.jit(device=True)
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
            solve_column(right, basis, cross, scale, ratio, stage, j)
        cuda.syncthreads()

    @cuda.jit(device=True)
    def solve_column(right, basis, cross, scale, ratio, stage, j):
        project_column(right, basis, ratio, stage, j)
        mix_column(right, basis, cross, scale, ratio, stage, j)

    @cuda.jit(device=True)
    def project(right, basis, ratio, stage):
        """Turn aᵀZ / width into F⁻¹ P aᵀZ / width, in the rows of samples with a column of F."""
        for j in range(thread(), columns, threads):
            project_column(right, basis, ratio, stage, j)
        cuda.syncthreads()

    @cuda.jit(device=True)
    def mix(right, basis, cross, scale, ratio, stage):
        """Turn the matrix of `project` into M."""
        for j in range(thread(), columns, threads):
            mix_column(right, basis, cross, scale, ratio, stage, j)
        cuda.syncthreads()

    @cuda.jit(device=True)
    def project_column(right, basis, ratio, stage, j):
        for i in range(columns):
            right[i, j] *= ratio[i]
        if centred and stage != READOUT:
            subtract_means(right, j)
        for i in range(columns):
            if basis[i, i] != 0.0:
                value = right[i, j]
                for k in range(i):
                    value -= basis[i, k] * right[k, j]
                right[i, j] = value / basis[i, i]

    @cuda.jit(device=True)
    def mix_column(right, basis, cross, scale, ratio, stage, j):
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
            subtract_means(right, j)
        for i in range(columns):
            right[i, j] *= ratio[i]

    @cuda.jit(device=True)
    def subtract_means(right, j):
        """Subtract from entries of a column the means over their batches."""
        for first in range(0, columns, batch):
            mean = 0.0
            for i in range(first, first + batch):
                mean += right[i, j]
            mean /= batch
            for i in range(first, first + batch):
                right[i, j] -= mean

    return solve, project, mix


def _copy_functions(shape: Shape, block: Block, room: Room) -> tuple[Any, Any]:
    columns, padded, threads, thread = (
        shape.spec.columns, shape.padded, shape.threads, block.thread,
    )  # fmt: skip
    kind, number = shape.spec.kind, shape.spec.number
    at_factor, at_mixing = room.factor, room.mixing

    @cuda.jit(device=True)
    def take_basis(basis, scale):
        """Let what the layer saw be what the layer above saw."""
        numbers = cuda.shared.array(0, kind)
        for item in range(thread(), columns * columns, threads):
            i, k = item // columns, item % columns
            entry = 0.0
            if k <= i:
                entry = float(numbers[u32(at_factor + k * padded + i)]) / scale
            basis[i, k] = entry

    @cuda.jit(device=True)
    def take_mixing(mixing):
        """Copy M to shared memory."""
        numbers = cuda.shared.array(0, kind)
        for item in range(thread(), columns * padded, threads):
            k, c = item // padded, item % padded
            value = number(0.0)
            if c < columns:
                value = number(mixing[k, c])
            numbers[u32(at_mixing + item)] = value
        cuda.syncthreads()

    return take_basis, take_mixing
