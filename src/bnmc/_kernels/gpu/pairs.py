"""The kernels of coupled pairs of chains, one pair per block; see `coupling`."""

from __future__ import annotations

from math import log, sqrt

import numpy as np
from numba import int64

from bnmc._kernels.gpu.block import NOT_STOPPED, STOPPED_NOT_FINITE, begin, thread
from bnmc._kernels.gpu.constants import (
    accumulators, at_flags, at_tile, columns, draw_normals, groups, kind, number, quads, stride,
    threads, tile_rows, whole_rows,
)  # fmt: skip
from bnmc._kernels.gpu.device import cuda, kernel
from bnmc._kernels.gpu.drawing import add_drawn, prepare
from bnmc._kernels.gpu.factor import factorise
from bnmc._kernels.gpu.gram import load_gram, store_gram
from bnmc._kernels.gpu.relative import (
    half_excess, keep_factor, log_determinant, relative_factor, same_range, solve, take_factor,
)  # fmt: skip
from bnmc._kernels.gpu.rows import row_of
from bnmc._kernels.gpu.shape import MOST_REGISTERS, u32
from bnmc._kernels.gpu.sums import add_quads, add_tile, clear_sums, finish_sums
from bnmc._kernels.scalar.codes import (
    DEGENERATE, MOST_ELEMENTS, NOT_FINITE, PATIENCE, SECOND_WORD, STREAM_COIN, STREAM_RESIDUAL,
    ZERO_VARIANCE,
)  # fmt: skip
from bnmc._kernels.scalar.normal import uniform64
from bnmc._kernels.scalar.philox import philox4x32


def couple(
    stream_of_rows, grams, factors, pivots, twins, matrices, met, tries, first_replicate,
    first_layer, layers, alone, until, threshold, record, recorded, trace, traced, k0, k1,
    status, nothing, width, gain, eps,
):  # fmt: skip
    """Take one pair per block through layers; see `cpu.pairs.coupled_layers`.

    factors, pivots, twins : (replicates, 2, columns, columns), (replicates, 2, columns) twice
        Work space.
    matrices : (replicates, 3, columns, columns) float64
        Work space for C = L^-1 L', its inverse, and Z^T Z / width.
    recorded, traced : int
        Numbers of pairs for which `record` and `trace` have places.
    nothing : array with two axes
        Stands for the representation and for kept rows, which pairs do not have.
    """
    t, replicate = cuda.threadIdx.x, cuda.blockIdx.x
    if status[replicate, 0] != 0:
        return
    begin()
    pair = grams[replicate]
    factor, pivot, twin = factors[replicate], pivots[replicate], twins[replicate]
    relative, inverse = matrices[replicate, 0], matrices[replicate, 1]
    wishart = matrices[replicate, 2]
    name = np.uint32(first_replicate + replicate)
    have_met = met[replicate] >= 0
    # Numbers of 32 bits take one register each; `range` would take four.
    waited = np.uint32(tries[replicate, 2])
    step = np.uint32(0)
    while step < layers:
        layer = np.uint32(first_layer + step)
        if have_met and layer > until:
            break
        together = not have_met and layer > alone
        tried = False
        for side in range(1, -1, -1):
            if side == 0 or together:
                load_gram(pair[side])
                least = factorise(gain, eps)
                keep_factor(factor[side], pivot[side], twin[side])
                if t == 0 and replicate < traced:
                    trace[replicate, step, 1] = min(least, trace[replicate, step, 1])
        if together:
            distance = np.nan
            if same_range(pivot, twin):
                distance = relative_factor(factor, pivot, eps, relative)
                take_factor(factor[0], pivot[0])
            if t == 0 and replicate < traced:
                trace[replicate, step, 0] = distance
            waited = np.uint32(0) if distance >= 0.0 else np.uint32(waited + 1)
            if t == 0:
                tries[replicate, 2] = waited
            if waited > PATIENCE:
                if t == 0:
                    status[replicate, 0] = DEGENERATE
                    status[replicate, 1] = np.int64(first_layer + step) - PATIENCE
                break
            tried = sqrt(0.5 * width) * distance <= threshold

        stream = np.uint32(stream_of_rows | name)
        noted = _draw_side(width, eps, 0, layer, stream, k0, k1, pair[0], nothing)
        refused = False
        if tried and noted == NOT_STOPPED:
            draw_squares(width, 0, layer, stream, k0, k1, wishart)
            solve(relative, pivot[0], relative, True, inverse)
            ratio = -half_excess(inverse, pivot[0], wishart)
            ratio -= log_determinant(relative, pivot[0])
            refused = _log_coin(layer, name, 0, k0, k1) > width * ratio
            have_met = not refused
            if t == 0:
                tries[replicate, 0] += 1
                if refused:
                    tries[replicate, 1] += 1
                else:
                    met[replicate] = layer
        if together and not have_met and noted == NOT_STOPPED:
            take_factor(factor[1], pivot[1])
            residual = np.uint32(STREAM_RESIDUAL | name)
            attempt = 0
            searching = True
            while searching:
                if refused:
                    # Draw from the residual law of the second chain, proportional to
                    # max(p' - p, 0), by rejection: propose from p', with other normals.
                    stream = residual
                element = attempt * columns % MOST_ELEMENTS
                noted = _draw_side(width, eps, element, layer, stream, k0, k1, pair[1], nothing)
                searching = refused and noted == NOT_STOPPED
                if searching:
                    draw_squares(width, element, layer, stream, k0, k1, wishart)
                    attempt += 1
                    # Computed per attempt: a kept value would occupy registers while rows
                    # are drawn.
                    ratio = log_determinant(relative, pivot[0])
                    ratio -= half_excess(relative, pivot[0], wishart)
                    searching = _log_coin(layer, name, attempt, k0, k1) <= width * ratio
        if noted != NOT_STOPPED:
            if t == 0:
                row = noted != STOPPED_NOT_FINITE
                status[replicate, 0] = ZERO_VARIANCE if row else NOT_FINITE
                status[replicate, 1] = layer
                status[replicate, 2] = noted if row else -1
            break
        for item in range(thread(), columns * columns, threads):
            i, j = item // columns, item % columns
            if have_met:
                pair[1, i, j] = pair[0, i, j]
            if replicate < recorded:
                record[replicate, step, 0, i, j] = pair[0, i, j]
                record[replicate, step, 1, i, j] = pair[1, i, j]
        cuda.syncthreads()
        step = np.uint32(step + 1)


def _draw_side(width, eps, element, layer, stream, k0, k1, gram, nothing):
    """Draw rows given the factor in shared memory, and write their Gram matrix to `gram`.

    Returns the reason to stop, as `stops` defines it, or NOT_STOPPED.
    """
    whole = cuda.shared.array(0, int64)
    prepare(element, layer, stream, k0, k1)
    clear_sums()
    for first_row in range(0, width, tile_rows):
        add_drawn(first_row, width, element, layer, stream, k0, k1, 0.0, eps, nothing, nothing)
    finish_sums(width)
    noted = whole[u32(at_flags)]
    cuda.syncthreads()
    store_gram(gram)
    cuda.syncthreads()
    return noted


def draw_squares(width, element, layer, stream, k0, k1, out):
    """Write Z^T Z / width, where Z are the normals of a layer."""
    clear_sums()
    for first_row in range(0, width, tile_rows):
        add_normals(first_row, width, element, layer, stream, k0, k1)
    finish_sums(width)
    store_gram(out)
    cuda.syncthreads()


def add_normals(first_row, width, element, layer, stream, k0, k1):
    """Add Z^T Z of the normals Z of a tile to the sums."""
    if whole_rows:
        _add_from_registers(first_row, width, element, layer, stream, k0, k1)
    else:
        _add_from_tile(first_row, width, element, layer, stream, k0, k1)


def _add_from_tile(first_row, width, element, layer, stream, k0, k1):
    numbers = cuda.shared.array(0, kind)
    t = thread()
    q, g = t % quads, t // quads
    quad = np.uint32(first_row // 4 + q)
    row = row_of(first_row, q)
    for k in range(g, columns, groups):
        at = at_tile + k * stride + q
        z0, z1, z2, z3 = draw_normals(np.uint32(element + k), quad, layer, stream, k0, k1)
        numbers[u32(at)] = z0 if row < width else number(0.0)
        numbers[u32(at + quads)] = z1 if row + 16 < width else number(0.0)
        numbers[u32(at + 2 * quads)] = z2 if row + 32 < width else number(0.0)
        numbers[u32(at + 3 * quads)] = z3 if row + 48 < width else number(0.0)
    cuda.syncthreads()
    add_tile()


def _add_from_registers(first_row, width, element, layer, stream, k0, k1):
    acc = cuda.local.array(accumulators, kind)
    quad = np.uint32(first_row // 4 + thread())
    row = row_of(first_row, thread())
    for c in range(accumulators):
        acc[c] = number(0.0)
    for k in range(columns):
        z0, z1, z2, z3 = draw_normals(np.uint32(element + k), quad, layer, stream, k0, k1)
        # Constant indices keep the normals in registers, also if this loop is not unrolled.
        for c in range(columns):
            acc[4 * c] = z0 if c == k and row < width else acc[4 * c]
            acc[4 * c + 1] = z1 if c == k and row + 16 < width else acc[4 * c + 1]
            acc[4 * c + 2] = z2 if c == k and row + 32 < width else acc[4 * c + 2]
            acc[4 * c + 3] = z3 if c == k and row + 48 < width else acc[4 * c + 3]
    add_quads(acc)


def _log_coin(layer, number_of_pair, attempt, k0, k1):
    """Return the logarithm of the uniform that accepts or rejects an attempt."""
    stream = np.uint32(STREAM_COIN | number_of_pair)
    high = philox4x32(np.uint32(attempt), 0, layer, stream, k0, k1)[0]
    again = np.uint32(stream | SECOND_WORD)
    low = philox4x32(np.uint32(attempt), 0, layer, again, k0, k1)[0]
    return log(uniform64(high, low))


def renew(grams, matrix):
    """Copy a pair's first Gram matrix to its second, and `matrix` to the first."""
    pair = grams[cuda.blockIdx.x]
    for item in range(cuda.threadIdx.x, columns * columns, threads):
        i, j = item // columns, item % columns
        pair[1, i, j] = pair[0, i, j]
        pair[0, i, j] = matrix[i, j]


@kernel(MOST_REGISTERS)
def select(source, chosen, out):
    """Copy the chosen matrices: a matrix per block."""
    matrix = cuda.blockIdx.x
    if chosen[matrix] != 0:
        columns = out.shape[1]
        for item in range(cuda.threadIdx.x, columns * columns, cuda.blockDim.x):
            i, j = item // columns, item % columns
            out[matrix, i, j] = source[matrix, i, j]
