"""The factor of the covariance of a layer's rows, given the Gram matrix in shared memory.

A *team* of threads factors the matrix, and each thread owns one row.  If the matrix has at most
`MOST_OF_WARP` columns, the team is one warp, because the threads of a warp wait for each other
faster than those of a block.  Otherwise the team is the block.  If the matrix has at most
`MOST_OF_REGISTERS` columns, threads keep their rows in registers.  Otherwise rows are in shared
memory, and several threads update one row.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
from numba import float64, int64

from bnmc._kernels.gpu.block import thread
from bnmc._kernels.gpu.constants import (
    at_column, at_diagonal, at_factor, at_grand, at_means, at_tile64, at_totals, at_twin, batch,
    centred, columns, eliminate_first, in_registers, inputs, kind, norm, number, padded, single,
    skipped, team, threads,
)  # fmt: skip
from bnmc._kernels.gpu.device import cuda, inverse_root64
from bnmc._kernels.gpu.gram import entry_of
from bnmc._kernels.gpu.shape import u32
from bnmc._kernels.scalar.cholesky import PIVOT_UNITS, scale_of
from bnmc._kernels.scalar.codes import NORM_NONE, RESOLVED_DEVIATION


def factorise(gain, hides_scale):
    """Write the factor to shared memory; return the least relative pivot.

    See `factorise` of `_kernels.cpu.rows`.
    """
    doubles = cuda.shared.array(0, float64)
    row = cuda.local.array(columns if in_registers else 1, float64)
    t = thread()
    if t < team:
        if t < columns:
            doubles[u32(at_diagonal + t)] = doubles[u32(at_totals + entry_of(t, t))]
        for j in range(columns):
            entry = 0.0
            if t < columns:
                entry = doubles[u32(at_totals + entry_of(t, j))]
            if in_registers:
                row[j] = entry
            elif t < columns:
                doubles[u32(at_tile64 + t * (columns | 1) + j)] = entry
        if in_registers:
            _factorise_in_team(row, 0, t, gain, hides_scale)
        else:
            _factorise_in_team(doubles, at_tile64 + t * (columns | 1), t, gain, hides_scale)
    cuda.syncthreads()
    return doubles[u32(at_column)]


def _factorise_in_team(row, at, t, gain, hides_scale):
    """Write the factor of the covariance whose rows the threads own, and the least pivot."""
    doubles = cuda.shared.array(0, float64)
    whole = cuda.shared.array(0, int64)
    numbers = cuda.shared.array(0, kind)
    entry = 0.0
    if t < columns:
        entry = doubles[u32(at_diagonal + t)]
    if centred:
        entry = centre(row, at, t)
    _meet_team()
    allowed = allow(row, at, t, entry)
    scale = gain
    if norm != NORM_NONE and not skipped and hides_scale:
        largest = 0.0
        for i in range(columns):
            entry = doubles[u32(at_column + i)]
            largest = entry if entry > largest else largest
        scale = scale_of((largest,))
    _meet_team()
    of_row = eliminate_first(row, t, scale, 0.0) if in_registers else _eliminate(row, at, t, scale)
    # Copy rows of the factor for copies of samples, so that copies stay copies at every depth.
    _meet_team()
    if t < columns:
        relative = of_row / allowed if of_row > 0.0 else 0.0
        doubles[u32(at_diagonal + t)] = relative
        twin = np.uint32(whole[u32(at_twin + t)])
        # Neither a copy nor the last sample of a centred batch has a pivot.
        if twin != t or (centred and (t + 1) % batch == 0):
            relative = 1.0
        if single and 0.0 < scale * (scale * allowed) < RESOLVED_DEVIATION**2:
            relative = 0.0
        doubles[u32(at_column + t)] = relative
        if twin != t:
            for k in range(t + 1):
                numbers[u32(at_factor + k * padded + t)] = (
                    numbers[u32(at_factor + k * padded + twin)] if k <= twin else number(0.0)
                )
    _meet_team()
    if t == 0:
        least = 1.0
        for k in range(columns):
            relative = doubles[u32(at_column + k)]
            least = relative if relative < least else least
        doubles[u32(at_column)] = least


def _eliminate(row, at, t, scale):
    """Write the factor; return the pivot of the thread's row, or 0 if it is singular."""
    of_row = 0.0
    doubles = cuda.shared.array(0, float64)
    numbers = cuda.shared.array(0, kind)
    for k in range(columns):
        # Steps use two places in turns, so that no thread overwrites a value before another
        # has read it.
        at_step = at_column + k % 2 * columns
        entry = 0.0
        if k <= t < columns:
            entry = row[u32(at + k)]
        if t < columns:
            doubles[u32(at_step + t)] = entry
        _meet_team()
        pivot = doubles[u32(at_step + k)]
        regular = pivot > doubles[u32(at_diagonal + k)]
        inverse = inverse_root64(pivot) if regular else 0.0
        of_row = pivot if t == k and regular else of_row
        if t < padded:
            numbers[u32(at_factor + k * padded + t)] = number(scale * (entry * inverse))
        if t < team // columns * columns:
            # All threads of the team update rows, several of them per row.  The thread
            # that updates the next entry of a row is its owner, who reads it before the
            # next wait.
            i = t % columns
            other, at_row = doubles[u32(at_step + i)] * inverse, at_tile64 + i * (columns | 1)
            other *= inverse
            for j in range(k + 1 + t // columns, i + 1, team // columns):
                row[u32(at_row + j)] -= other * doubles[u32(at_step + j)]
    return of_row


@cache
def steps_of(order: int) -> Callable[..., float]:
    """Return the function `eliminate_first`, which factors a matrix of an order in registers.

    It calls a function for each step.  So the number of a step is a constant, as indices of arrays
    in registers have to be.
    """
    _eliminate = _leave
    for k in reversed(range(order)):
        _eliminate = _step(k, _eliminate)
    return _eliminate


def _leave(row, t, scale, of_row):
    """Return the pivot that the steps before have found."""
    return of_row


def _step(k: int, eliminate_others: Callable[..., float]) -> Callable[..., float]:
    following = k + 1

    def _eliminate(row, t, scale, of_row):
        """Write the factor; return the pivot of the thread's row, or `of_row` if it is singular."""
        doubles = cuda.shared.array(0, float64)
        numbers = cuda.shared.array(0, kind)
        # As in `_eliminate`, steps use two places in turns.
        at_step = at_column + k % 2 * columns
        entry = row[k] if k <= t < columns else 0.0
        if t < columns:
            doubles[u32(at_step + t)] = entry
        _meet_team()
        pivot = doubles[u32(at_step + k)]
        regular = pivot > doubles[u32(at_diagonal + k)]
        of_row = pivot if t == k and regular else of_row
        inverse = inverse_root64(pivot) if regular else 0.0
        entry *= inverse
        if t < padded:
            numbers[u32(at_factor + k * padded + t)] = number(scale * entry)
        entry *= inverse
        for j in range(following, columns):
            row[j] -= entry * doubles[u32(at_step + j)]
        return eliminate_others(row, t, scale, of_row)

    return _eliminate


def _meet_team():
    """Wait for the team."""
    if team < threads:
        cuda.syncwarp()
    else:
        cuda.syncthreads()


def centre(row, at, t):
    """Centre the Gram matrix like `scalar.centre`; return the thread's diagonal entry.

    By symmetry, a row is a column.
    """
    doubles = cuda.shared.array(0, float64)
    if t < columns:
        for h in range(inputs):
            mean = 0.0
            for i in range(h * batch, (h + 1) * batch):
                mean += row[u32(at + i)]
            doubles[u32(at_means + h * columns + t)] = mean / batch
    _meet_team()
    item = t
    while item < inputs * inputs:
        g, h = item // inputs, item % inputs
        mean = 0.0
        for j in range(g * batch, (g + 1) * batch):
            mean += doubles[u32(at_means + h * columns + j)]
        doubles[u32(at_grand + item)] = mean / batch
        item = np.uint32(item + team)
    _meet_team()
    entry = 0.0
    if t < columns:
        g = t // batch
        mean = doubles[u32(at_means + g * columns + t)]
        grand = doubles[u32(at_grand + g * inputs + g)]
        entry = (doubles[u32(at_diagonal + t)] - (mean + mean)) + grand
        for h in range(inputs):
            mean_of_t = doubles[u32(at_means + h * columns + t)]
            grand = doubles[u32(at_grand + g * inputs + h)]
            for j in range(h * batch, (h + 1) * batch):
                # Add the two means first, so that the result is symmetric to the bit.
                means = mean_of_t + doubles[u32(at_means + g * columns + j)]
                row[u32(at + j)] = (row[u32(at + j)] - means) + grand
    return entry


def allow(row, at, t, of_own):
    """Return the scale against which a pivot counts as zero; note copies of samples.

    `of_own` is the thread's diagonal entry of the covariance.
    """
    doubles = cuda.shared.array(0, float64)
    whole = cuda.shared.array(0, int64)
    allowed = 0.0
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
        doubles[u32(at_column + t)] = of_own
    _meet_team()
    if t < columns:
        twin = t
        for i in range(columns):
            j = columns - 1 - i
            same = row[u32(at + j)] == of_own and doubles[u32(at_column + j)] == of_own
            twin = np.uint32(j) if same and j < t else twin
        whole[u32(at_twin + t)] = twin
        # A pivot up to this counts as zero.
        doubles[u32(at_diagonal + t)] = PIVOT_UNITS * columns * allowed if twin == t else np.inf
    _meet_team()
    return allowed
