"""The factor of the covariance of a layer's rows, given the Gram matrix in shared memory.

A *team* of threads factors the matrix, and each thread owns one row.  If the matrix has at most
`MOST_OF_WARP` columns, the team is one warp, because the threads of a warp wait for each other
faster than those of a block.  Otherwise the team is the block.  If the matrix has at most
`MOST_OF_REGISTERS` columns, threads keep their rows in registers.  Otherwise rows are in shared
memory, and several threads update one row.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import float64, int64

from bnmc._kernels.gpu.block import Block
from bnmc._kernels.gpu.device import SIMULATED, cuda, inverse_root64
from bnmc._kernels.gpu.gram import Gram
from bnmc._kernels.gpu.scalars import scale_of
from bnmc._kernels.gpu.shape import WARP, Shape, u32
from bnmc._kernels.scalar.cholesky import PIVOT_UNITS
from bnmc._kernels.scalar.codes import NORM_NONE

#: Columns of the largest matrix that one warp factors.
MOST_OF_WARP = 32
#: Columns of the largest matrix whose rows are in registers meanwhile.
MOST_OF_REGISTERS = 16


def factor_function(shape: Shape, block: Block, gram: Gram) -> Any:
    """Return the device function `factorise`."""
    columns, thread, entry_of = shape.spec.columns, block.thread, gram.entry_of
    at_totals, at_column, at_tile64 = shape.at.totals, shape.at.column, shape.at.tile64
    team, in_registers, odd = _team_of(shape), _in_registers(shape), columns | 1
    factorise_in_team = _factor_in_team_function(shape)

    @cuda.jit(device=True)
    def factorise(gain, eps):
        """Write the factor to shared memory; return the least relative pivot.

        See `factorise` of `_kernels.cpu.rows`.
        """
        doubles = cuda.shared.array(0, float64)
        row = cuda.local.array(columns if in_registers else 1, float64)
        t = thread()
        if t < team:
            for j in range(columns):
                entry = 0.0
                if t < columns:
                    entry = doubles[u32(at_totals + entry_of(t, j))]
                if in_registers:
                    row[j] = entry
                elif t < columns:
                    doubles[u32(at_tile64 + t * odd + j)] = entry
            if in_registers:
                factorise_in_team(row, 0, t, gain, eps)
            else:
                factorise_in_team(doubles, at_tile64 + t * odd, t, gain, eps)
        cuda.syncthreads()
        return doubles[u32(at_column)]

    return factorise


def _factor_in_team_function(shape: Shape) -> Any:
    spec, columns, batch, padded = shape.spec, shape.spec.columns, shape.spec.batch, shape.padded
    norm, skipped, centred = spec.norm, spec.skipped, spec.centred
    kind, number = spec.kind, spec.number
    units, odd = PIVOT_UNITS, columns | 1
    team, in_registers = _team_of(shape), _in_registers(shape)
    helpers = team // columns
    at_diagonal, at_column, at_twin = shape.at.diagonal, shape.at.column, shape.at.twin
    at_factor, at_tile64 = shape.at.factor, shape.at.tile64
    meet_team, element_of, centre, allow = _team_functions(shape)

    @cuda.jit(device=True)
    def factorise_in_team(row, at, t, gain, eps):
        """Write the factor of the covariance whose rows the threads own, and the least pivot."""
        doubles = cuda.shared.array(0, float64)
        whole = cuda.shared.array(0, int64)
        numbers = cuda.shared.array(0, kind)
        if t < columns:
            doubles[u32(at_diagonal + t)] = element_of(row, at, t)
        if centred:
            centre(row, at, t)
        meet_team()
        allowed = allow(row, at, t)
        scale = gain
        if norm != NORM_NONE and not skipped and eps == 0.0:
            largest = 0.0
            for i in range(columns):
                largest = max(largest, doubles[u32(at_column + i)])
            scale = scale_of((largest,))
        meet_team()
        own = 0.0
        for k in range(columns):
            # Steps use two places in turns, so that no thread overwrites a value before another
            # has read it.
            at_step = at_column + k % 2 * columns
            entry = 0.0
            if k <= t < columns:
                entry = element_of(row, at, k)
            if t < columns:
                doubles[u32(at_step + t)] = entry
            meet_team()
            pivot = doubles[u32(at_step + k)]
            regular = whole[u32(at_twin + k)] == k
            regular = regular and pivot > units * columns * doubles[u32(at_diagonal + k)]
            inverse = inverse_root64(pivot) if regular else 0.0
            own = pivot if t == k and regular else own
            entry *= inverse
            if t < padded:
                numbers[u32(at_factor + k * padded + t)] = number(scale * entry)
            if in_registers:
                if t < columns:
                    entry *= inverse
                    for j in range(columns):
                        row[u32(at + j)] -= entry * doubles[u32(at_step + j)]
            elif t < helpers * columns:
                # All threads of the team update rows, several of them per row.  The thread
                # that updates the next entry of a row is its owner, who reads it before the
                # next wait.
                i = t % columns
                other, at_row = doubles[u32(at_step + i)] * inverse, at_tile64 + i * odd
                other *= inverse
                for j in range(k + 1 + t // columns, i + 1, helpers):
                    row[u32(at_row + j)] -= other * doubles[u32(at_step + j)]
        # Copy rows of the factor for copies of samples, so that copies stay copies at every depth.
        meet_team()
        if t < columns:
            doubles[u32(at_diagonal + t)] = own / allowed if own > 0.0 else 0.0
            twin = whole[u32(at_twin + t)]
            if twin != t:
                for k in range(t + 1):
                    numbers[u32(at_factor + k * padded + t)] = (
                        numbers[u32(at_factor + k * padded + twin)] if k <= twin else number(0.0)
                    )
        meet_team()
        if t == 0:
            least = 1.0
            for k in range(columns):
                if whole[u32(at_twin + k)] == k and not (centred and (k + 1) % batch == 0):
                    least = min(least, doubles[u32(at_diagonal + k)])
            doubles[u32(at_column)] = least

    return factorise_in_team


class _Team(NamedTuple):
    """Device functions of the threads that factor a matrix together."""

    meet: Any
    element_of: Any
    centre: Any
    allow: Any


def _team_functions(shape: Shape) -> _Team:
    columns, batch, inputs = shape.spec.columns, shape.spec.batch, shape.spec.inputs
    threads, centred = shape.threads, shape.spec.centred
    team, in_registers = _team_of(shape), _in_registers(shape)
    at_diagonal, at_column, at_twin = shape.at.diagonal, shape.at.column, shape.at.twin
    at_means, at_grand = shape.at.means, shape.at.grand

    @cuda.jit(device=True)
    def meet_team():
        """Wait for the team."""
        if team < threads:
            cuda.syncwarp()
        else:
            cuda.syncthreads()

    @cuda.jit(device=True)
    def element_of(row, at, k):
        """Return entry k of a row.

        An array in registers allows only constant indices, so this selects from all entries.
        """
        entry = 0.0
        for j in range(0 if in_registers else k, columns if in_registers else k + 1):
            # Read unconditionally: otherwise the compiler turns this into a read of element k.
            other = row[u32(at + j)]
            entry = other if j == k else entry
        return entry

    @cuda.jit(device=True)
    def centre(row, at, t):
        """Centre the Gram matrix like `scalar.centre`; by symmetry a row is a column."""
        doubles = cuda.shared.array(0, float64)
        if t < columns:
            for h in range(inputs):
                mean = 0.0
                for i in range(h * batch, (h + 1) * batch):
                    mean += row[u32(at + i)]
                doubles[u32(at_means + h * columns + t)] = mean / batch
        meet_team()
        for item in range(t, inputs * inputs, team):
            g, h = item // inputs, item % inputs
            mean = 0.0
            for j in range(g * batch, (g + 1) * batch):
                mean += doubles[u32(at_means + h * columns + j)]
            doubles[u32(at_grand + item)] = mean / batch
        meet_team()
        if t < columns:
            g = t // batch
            for h in range(inputs):
                own = doubles[u32(at_means + h * columns + t)]
                grand = doubles[u32(at_grand + g * inputs + h)]
                for j in range(h * batch, (h + 1) * batch):
                    # Add the two means first, so that the result is symmetric to the bit.
                    means = own + doubles[u32(at_means + g * columns + j)]
                    row[u32(at + j)] = (row[u32(at + j)] - means) + grand

    @cuda.jit(device=True)
    def allow(row, at, t):
        """Return the scale against which a pivot counts as zero; note copies of samples."""
        doubles = cuda.shared.array(0, float64)
        whole = cuda.shared.array(0, int64)
        allowed, of_own = 0.0, 0.0
        if t < columns:
            allowed = doubles[u32(at_diagonal + t)]
            if centred:
                first = t // batch * batch
                mean = 0.0
                for j in range(batch):
                    mean += doubles[u32(at_diagonal + first + j)]
                allowed = max(allowed, mean / batch)
                # The other samples determine the last one of a batch, so its pivot is zero.
                if t == first + batch - 1:
                    allowed = np.inf
            of_own = element_of(row, at, t)
            doubles[u32(at_column + t)] = of_own
        meet_team()
        if t < columns:
            twin = t
            for j in range(columns):
                shared, other = row[u32(at + j)], doubles[u32(at_column + j)]
                if j < twin and shared == of_own and other == of_own:
                    twin = j
            whole[u32(at_twin + t)] = twin
            doubles[u32(at_diagonal + t)] = allowed
        meet_team()
        return allowed

    return _Team(meet_team, element_of, centre, allow)


def _team_of(shape: Shape) -> int:
    """Return the number of threads that factor a matrix together."""
    return WARP if shape.spec.columns <= MOST_OF_WARP and not SIMULATED else shape.threads


def _in_registers(shape: Shape) -> bool:
    """Whether each thread keeps its row of the matrix in registers."""
    return shape.spec.columns <= MOST_OF_REGISTERS
