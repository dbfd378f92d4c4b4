"""The kernels of coupled pairs of chains, one pair per block; see `coupling`."""

from __future__ import annotations

from math import log, sqrt
from typing import Any, NamedTuple

import numpy as np
from numba import int64

from bnmc._kernels.gpu.arguments import NOTHING, RowInputs
from bnmc._kernels.gpu.block import NOT_STOPPED, STOPPED_NOT_FINITE, begin, thread
from bnmc._kernels.gpu.constants import add_bare, at_flags, columns, covered, threads, tile_rows
from bnmc._kernels.gpu.device import cuda, inlined
from bnmc._kernels.gpu.drawing import add_made, prepare
from bnmc._kernels.gpu.factor import factorise
from bnmc._kernels.gpu.gram import load_gram, store_gram
from bnmc._kernels.gpu.orthogonal import write_identity
from bnmc._kernels.gpu.passes import sum_of_taps
from bnmc._kernels.gpu.relative import (
    half_excess, keep_factor, log_determinant, relative_factor, same_range, solve, take_factor,
)  # fmt: skip
from bnmc._kernels.gpu.shape import u32
from bnmc._kernels.gpu.sums import clear_sums, finish_sums
from bnmc._kernels.scalar.codes import (
    DEGENERATE, MOST_ELEMENTS, NOT_FINITE, PATIENCE, SECOND_WORD, STREAM_COIN, STREAM_RESIDUAL,
    ZERO_VARIANCE, Draw,
)  # fmt: skip
from bnmc._kernels.scalar.normal import uniform64
from bnmc._kernels.scalar.philox import philox4x32


class Pairs(NamedTuple):
    """The state of pairs; see `cpu.pairs.coupled_layers`."""

    grams: Any
    met: Any
    tries: Any
    status: Any


class PairWork(NamedTuple):
    """What taps see, and work space of pairs.

    neighbours : (taps, columns) int64
        The column that each tap sees from a column.
    factors, pivots, twins : (replicates, 2, columns, columns), (replicates, 2, columns) twice
    matrices : (replicates, 3, columns, columns) float64
        C = L^-1 L', its inverse, and Z^T Z / width.
    """

    neighbours: Any
    factors: Any
    pivots: Any
    twins: Any
    matrices: Any


class PairRecord(NamedTuple):
    """Where layers and distances are recorded, and of how many pairs."""

    record: Any
    recorded: Any
    trace: Any
    traced: Any


class PairSpan(NamedTuple):
    """Layers of a launch, and what decides when pairs are coupled; see `cpu.pairs`."""

    first_layer: Any
    layers: Any
    alone: Any
    until: Any
    threshold: Any


def couple(pairs, of, to, law, address, stream_of_rows, span):
    """Take one pair per block through layers; see `cpu.pairs.coupled_layers`.

    pairs, of, to, law, address, span : Pairs, PairWork, PairRecord, LayerSpec, Address, PairSpan
    """
    t, replicate = cuda.threadIdx.x, cuda.blockIdx.x
    if pairs.status[replicate, 0] != 0:
        return
    begin()
    k0, k1 = address.key0, address.key1
    pair = pairs.grams[replicate]
    factor, pivot, twin = of.factors[replicate], of.pivots[replicate], of.twins[replicate]
    relative, inverse = of.matrices[replicate, 0], of.matrices[replicate, 1]
    wishart = of.matrices[replicate, 2]
    name = np.uint32(address.first_chain + replicate)
    have_met = pairs.met[replicate] >= 0
    # Numbers of 32 bits take one register each; `range` would take four.
    waited = np.uint32(pairs.tries[replicate, 2])
    step = np.uint32(0)
    while step < span.layers:
        layer = np.uint32(span.first_layer + step)
        if have_met and layer > span.until:
            break
        together = not have_met and layer > span.alone
        tried = False
        for side in range(1, -1, -1):
            if side == 0 or together:
                _load_covariance(pair[side], of.neighbours, law, factor[side])
                least = factorise(law.gain, law.hides_scale)
                keep_factor(factor[side], pivot[side], twin[side])
                if t == 0 and replicate < to.traced:
                    to.trace[replicate, step, 1] = min(least, to.trace[replicate, step, 1])
        if together:
            distance = np.nan
            if same_range(pivot, twin):
                distance = relative_factor(factor, pivot, law.hides_scale, relative)
                take_factor(factor[0], pivot[0])
            if t == 0 and replicate < to.traced:
                to.trace[replicate, step, 0] = distance
            waited = np.uint32(0) if distance >= 0.0 else np.uint32(waited + 1)
            if t == 0:
                pairs.tries[replicate, 2] = waited
            if waited > PATIENCE:
                if t == 0:
                    pairs.status[replicate, 0] = DEGENERATE
                    pairs.status[replicate, 1] = np.int64(span.first_layer + step) - PATIENCE
                break
            tried = sqrt(0.5 * law.width) * distance <= span.threshold

        stream = np.uint32(stream_of_rows | name)
        noted = _draw(add_made, law, 0, Draw(layer, stream, k0, k1), pair[0])
        refused = False
        if tried and noted == NOT_STOPPED:
            draw_squares(law, 0, Draw(layer, stream, k0, k1), pivot[0], wishart)
            solve(relative, pivot[0], relative, True, inverse)
            ratio = -half_excess(inverse, pivot[0], wishart)
            ratio -= log_determinant(relative, pivot[0])
            refused = _log_coin(layer, name, 0, k0, k1) > law.width * ratio
            have_met = not refused
            if t == 0:
                pairs.tries[replicate, 0] += 1
                if refused:
                    pairs.tries[replicate, 1] += 1
                else:
                    pairs.met[replicate] = layer
        if together and not have_met and noted == NOT_STOPPED:
            residual = np.uint32(STREAM_RESIDUAL | name)
            attempt = 0
            searching = True
            while searching:
                if refused:
                    # Draw from the residual law of the second chain, proportional to
                    # max(p' - p, 0), by rejection: propose from p', with other normals.
                    stream = residual
                element = attempt * columns % MOST_ELEMENTS
                draw = Draw(layer, stream, k0, k1)
                take_factor(factor[1], pivot[1])
                noted = _draw(add_made, law, element, draw, pair[1])
                searching = refused and noted == NOT_STOPPED
                if searching:
                    draw_squares(law, element, draw, pivot[0], wishart)
                    attempt += 1
                    # Computed per attempt: a kept value would occupy registers while rows
                    # are drawn.
                    ratio = log_determinant(relative, pivot[0])
                    ratio -= half_excess(relative, pivot[0], wishart)
                    searching = _log_coin(layer, name, attempt, k0, k1) <= law.width * ratio
        if noted != NOT_STOPPED:
            if t == 0:
                row = noted != STOPPED_NOT_FINITE
                pairs.status[replicate, 0] = ZERO_VARIANCE if row else NOT_FINITE
                pairs.status[replicate, 1] = layer
                pairs.status[replicate, 2] = noted if row else -1
            break
        for item in range(thread(), columns * columns, threads):
            i, j = item // columns, item % columns
            if have_met:
                pair[1, i, j] = pair[0, i, j]
            if replicate < to.recorded:
                to.record[replicate, step, 0, i, j] = pair[0, i, j]
                to.record[replicate, step, 1, i, j] = pair[1, i, j]
        cuda.syncthreads()
        step = np.uint32(step + 1)


@inlined
def _load_covariance(gram, neighbours, law, out):
    """Copy the covariance of the rows of the next layer to shared memory; `out` is work space."""
    if covered:
        for item in range(thread(), columns * columns, threads):
            i, j = item // columns, item % columns
            total = sum_of_taps(gram, neighbours, i, j)
            out[i, j] = total * (1.0 / neighbours.shape[0]) + law.shared_variance
        cuda.syncthreads()
        load_gram(out)
    else:
        load_gram(gram)


@inlined
def _draw(add, law, element, draw, gram):
    """Draw rows given the factor in shared memory, and write their Gram matrix to `gram`.

    add : device function
        `drawing.add_made`, or `add_bare` for rows that are neither normalised nor activated.

    Returns the reason to stop, a note of `block`, or NOT_STOPPED.
    """
    whole = cuda.shared.array(0, int64)
    rows = RowInputs(law, draw, NOTHING, NOTHING, NOTHING, NOTHING, NOTHING, NOTHING)
    prepare(element, draw)
    clear_sums()
    for first_row in range(0, law.width, tile_rows):
        add(first_row, element, rows)
    finish_sums(law.width)
    noted = whole[u32(at_flags)]
    cuda.syncthreads()
    store_gram(gram)
    cuda.syncthreads()
    return noted


def draw_squares(law, element, draw, pivots, out):
    """Write Z^T Z / width, where Z are the normals of a layer that have a pivot.

    An identity takes the place of the factor in shared memory.
    """
    write_identity(out)
    take_factor(out, pivots)
    _draw(add_bare, law, element, draw, out)


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
