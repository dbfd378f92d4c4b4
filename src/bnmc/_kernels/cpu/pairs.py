"""Pairs of chains that are coupled to meet, and are one chain afterwards.

Each of the two has the law of the chain, given the Gram matrix of the one before rows N(0, S).  As
long as they are apart both are driven by the same normals, which contracts them where the chain
forgets its start.  Once a maximal coupling is likely to succeed it is tried: the rows of the first
are kept for the second with probability min(1, p'/p), and otherwise the second is drawn from what
its law has left, by rejection.  So they meet exactly, in finite time.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bnmc._kernels.compiling import kernel
from bnmc._kernels.cpu.blocks import (
    add_gram,
    clear_rows,
    copy_matrix,
    multiply_triangular,
    unpack_gram,
)
from bnmc._kernels.cpu.numbers import BLOCK, GROUP, fill_normals
from bnmc._kernels.cpu.passes import (
    Room,
    add_variance,
    begin_block,
    finish_hidden,
    merge_moments,
)
from bnmc._kernels.cpu.rows import factorise, finish_block
from bnmc._kernels.scalar.codes import (
    DEGENERATE,
    NOT_FINITE,
    PATIENCE,
    RUNNING,
    SECOND_WORD,
    STREAM_COIN,
    STREAM_RESIDUAL,
    ZERO_VARIANCE,
    Draw,
)
from bnmc._kernels.scalar.normal import uniform64
from bnmc._kernels.scalar.philox import element_of_attempt, key_of_attempt, philox4x32

# The side of a pair whose rows are drawn.
AHEAD, BEHIND, BOTH = 1, 2, 3


class Pair(NamedTuple):
    """Buffers of one thread for coupling, which belong to neither of the two chains."""

    relative: np.ndarray  # float64 (columns, columns): C = L^-1 L'
    inverse: np.ndarray  # float64 (columns, columns)
    wishart: np.ndarray  # float64 (columns, columns): Z^T Z / width
    normals: np.ndarray  # as `Work.block`: Z
    sums: np.ndarray  # as `Work.sums`: those of Z^T Z


class Over(NamedTuple):
    """What pairs of chains need whose layers take passes over the rows (`cpu.passes`)."""

    first: Room  # of the chain ahead, whose layer has one panel
    second: Room  # of the one behind


@kernel
def coupled_layers(
    over, variance, sigma, spec, stream, grams, met, tries, first_replicate, first_layer, layers,
    alone, until, threshold, record, trace, key0, key1, works, pair, status,
):  # fmt: skip
    """Take pairs of chains through layers, until they meet.

    Parameters
    ----------
    over : Over or None
        None if the layers are row by row.
    variance : float64
        That of the bias over the square of the gain, which is added to Gram matrices.
    stream : uint32
        The stream of the rows.
    grams : (replicates, 2, columns, columns) float64
        The state: Gram matrices of the chain ahead, and of the one behind.
    met : (replicates,) int64
        The layer of the chain ahead at which a pair met; -1 of a pair that has not.
    tries : (replicates, 3) int64
        How many maximal couplings were tried, how many of them refused, and for how many layers the
        two Gram matrices have had different ranges.
    first_layer, layers : int
        The chain ahead goes to `first_layer` first, and through so many layers.
    alone : int
        Up to this layer, the lag, the chain ahead moves alone.
    until : int
        Pairs that have met continue as one chain up to this layer.
    threshold : float64
        A maximal coupling is tried where the logarithm of p'/p has at most this standard deviation.
    record : (replicates, layers or 0, 2, columns, columns) float64
        Receives the state after each layer, unless it has no layers.
    trace : (traced replicates, layers, 2) float64
        Of the first replicates, receives the distance |L^-1 S' L^-T - I| before each layer (of the
        regular part, at the best scale) and the least relative pivot of the two.
    works : (Work, Work)
        Buffers of the chain ahead, and of the one behind.
    pair : Pair
    status : (replicates, 3) int64
        What ended a pair, in which layer, at which row.
    """
    first, second = works
    nothing = pair.sums[:0]
    for replicate in range(grams.shape[0]):
        if status[replicate, 0] != 0:
            continue
        number = np.uint32(first_replicate + replicate)
        ahead, behind = grams[replicate, 0], grams[replicate, 1]
        for step in range(layers):
            layer = first_layer + step
            apart = met[replicate] < 0
            if not apart and layer > until:
                break
            sides, squares = AHEAD, nothing
            for side in range(2 if apart and layer > alone else 1):
                work = works[side]
                source = grams[replicate, side]
                if variance > 0.0:
                    add_variance(source, variance, work.covariance)
                    source = work.covariance  # `factorise` may overwrite its argument
                least = factorise(source, spec, work)
                if replicate < trace.shape[0]:
                    trace[replicate, step, 1] = min(least, trace[replicate, step, 1])
            if apart and layer > alone:
                distance = np.nan
                if same_range(spec, first, second):
                    distance = relative_factor(spec, first, second, pair.relative)
                if replicate < trace.shape[0]:
                    trace[replicate, step, 0] = distance
                tries[replicate, 2] = 0 if distance >= 0.0 else tries[replicate, 2] + 1
                if tries[replicate, 2] > PATIENCE:
                    status[replicate, 0] = DEGENERATE
                    status[replicate, 1] = layer - PATIENCE
                    break
                sides = BOTH
                if np.sqrt(0.5 * spec.width) * distance <= threshold:
                    sides, squares = AHEAD, pair.sums
                    tries[replicate, 0] += 1

            draw = Draw(layer, np.uint32(stream | number), key0, key1)
            attempt = 0
            while True:
                element = element_of_attempt(attempt, spec.columns)
                key = key_of_attempt(key1, attempt, spec.columns)
                draw = Draw(layer, draw.stream, key0, key)
                event, row = draw_sides(
                    over, sigma, spec, element, draw, sides, works, pair.normals, squares
                )
                finite = True
                if sides & AHEAD:
                    finite = unpack_gram(first.sums, spec.width, ahead)
                if sides & BEHIND:
                    finite = unpack_gram(second.sums, spec.width, behind) and finite
                if event != RUNNING or not finite or squares.size == 0:
                    break
                unpack_gram(squares, spec.width, pair.wishart)
                if sides == AHEAD:
                    if _is_kept(spec, draw, number, first.regular, pair):
                        met[replicate] = layer
                        break
                    # The residual law, proportional to max(p' - p, 0), is drawn by rejection from
                    # p', with other normals.
                    tries[replicate, 1] += 1
                    sides = BEHIND
                    draw = Draw(layer, np.uint32(STREAM_RESIDUAL | number), key0, key1)
                else:
                    attempt += 1
                    if _is_residual(spec, draw, number, attempt, first.regular, pair):
                        break
            if event != RUNNING or not finite:
                status[replicate, 0] = event if finite else NOT_FINITE
                status[replicate, 1] = layer
                status[replicate, 2] = row
                break
            if met[replicate] >= 0:
                copy_matrix(ahead, behind)
            if record.shape[1] > 0:
                copy_matrix(ahead, record[replicate, step, 0])
                copy_matrix(behind, record[replicate, step, 1])


@kernel
def draw_sides(over, sigma, spec, element, draw, sides, works, normals, squares):
    """Draw a layer of one chain or both with the same normals, whose elements begin at `element`.

    The sums of each work receive the Gram matrix of the activations, times the width, and
    `squares`, unless it has no length, that of the normals.  Returns the code of an event, and its
    row or the column of a sample.
    """
    works[0].sums[:] = 0.0
    works[1].sums[:] = 0.0
    squares[:] = 0.0
    # The compiler leaves out one of the two, by the type of `over`.
    if over is None:
        return draw_rows(sigma, spec, element, draw, sides, works, normals, squares)
    return draw_passes(over, sigma, spec, element, draw, sides, works, normals, squares)


@kernel
def draw_seen(normals, spec, element, sides, works, start, rows, draw):
    """Draw the normals of a block that a factor multiplies; the other columns keep what they have.

    A factor has zeros in the columns of samples that others determine, such as the last one of a
    centred batch, and entries of Z^T Z of such samples are not used.
    """
    first, second = works[0].regular, works[1].regular
    k = 0
    while k < spec.columns:
        end = k
        while end < spec.columns and (
            (sides & AHEAD != 0 and first[end]) or (sides & BEHIND != 0 and second[end])
        ):
            end += 1
        if end > k:
            fill_normals(normals, k, element + k, end - k, start, rows, draw)
        k = end + 1


@kernel
def add_squares(spec, count, rows, normals, partial, squares):
    """Add the Gram matrix of a block of normals to `squares`, unless that has no length."""
    if squares.size > 0:
        clear_rows(normals, 0, spec.columns, count, rows)
        add_gram(normals, spec.columns, rows, partial, squares)


@kernel
def draw_rows(sigma, spec, element, draw, sides, works, normals, squares):
    """Draw a layer row by row, like `draw_sides`."""
    nowhere = normals[:0].reshape((0, 1))
    for start in range(0, spec.width, BLOCK):
        count = min(BLOCK, spec.width - start)
        rows = (count + GROUP - 1) // GROUP * GROUP
        draw_seen(normals, spec, element, sides, works, start, rows, draw)
        for side in range(2):
            if not sides & (1 << side):
                continue
            work = works[side]
            block = work.block
            multiply_triangular(work.factor, spec.columns, normals, work.block, rows)
            degenerate = finish_block(
                sigma, spec, False, start, count, nowhere, nowhere, block, work.scales
            )
            if degenerate >= 0:
                return ZERO_VARIANCE, degenerate
            add_gram(block, spec.columns, rows, work.partial, work.sums)
        add_squares(spec, count, rows, normals, works[0].partial, squares)
    return RUNNING, -1


@kernel
def draw_passes(over, sigma, spec, element, draw, sides, works, normals, squares):
    """Draw a layer that is not row by row, like `draw_sides`: see `cpu.passes`."""
    rooms = over.first, over.second
    nowhere = normals[:0].reshape((0, 1))
    if spec.groups > 0:
        for start in range(0, spec.width, BLOCK):
            count = min(BLOCK, spec.width - start)
            rows = (count + GROUP - 1) // GROUP * GROUP
            draw_seen(normals, spec, element, sides, works, start, rows, draw)
            for side in range(2):
                if sides & (1 << side):
                    work = works[side]
                    multiply_triangular(work.factor, spec.columns, normals, work.block, rows)
                    begin_block(
                        sigma, spec, spec.width, 0, start, count, nowhere, works[side],
                        rooms[side],
                    )  # fmt: skip
        for side in range(2):
            if sides & (1 << side):
                event, place = merge_moments(spec, spec.width, works[side].block, rooms[side])
                if event != RUNNING:
                    return event, place
                # The first pass has used them.
                works[side].sums[:] = 0.0
    for start in range(0, spec.width, BLOCK):
        count = min(BLOCK, spec.width - start)
        rows = (count + GROUP - 1) // GROUP * GROUP
        draw_seen(normals, spec, element, sides, works, start, rows, draw)
        for side in range(2):
            if not sides & (1 << side):
                continue
            work = works[side]
            multiply_triangular(work.factor, spec.columns, normals, work.block, rows)
            degenerate = finish_hidden(
                sigma, spec, start, count, nowhere, nowhere, work, rooms[side]
            )
            if degenerate >= 0:
                return ZERO_VARIANCE, degenerate
            add_gram(work.block, spec.columns, rows, work.partial, work.sums)
        add_squares(spec, count, rows, normals, works[0].partial, squares)
    return RUNNING, -1


@kernel
def same_range(spec, first, second):
    """Return whether the covariances of two factors have the same range.

    They have if nothing is missing but what copies of samples leave out in both, and, of a centred
    batch, the last sample that is no copy: the others determine it.
    """
    last = -1
    for k in range(spec.columns - 1, -1, -1):
        if first.regular[k] != second.regular[k] or first.twin[k] != second.twin[k]:
            return False
        if (k + 1) % spec.batch == 0:
            last = -1
        is_copy = first.twin[k] != k
        if spec.hides_common and last < 0 and not is_copy:
            last = k
        if not first.regular[k] and not is_copy and k != last:
            return False
    return True


@kernel
def relative_factor(spec, first, second, relative):
    """Write C = L^-1 L', in the rows and columns that are regular; return |C C^T - I|.

    A normalization does not see the scale of L', which is then chosen to make that least.
    """
    columns, regular = spec.columns, first.regular
    relative[:, :] = 0.0
    size = 0.0
    order = 0
    for i in range(columns):
        if not regular[i]:
            continue
        order += 1
        for j in range(i + 1):
            if not regular[j]:
                continue
            entry = second.factor[i, j]
            for k in range(j, i):
                entry -= first.factor[i, k] * relative[k, j]
            relative[i, j] = entry / first.factor[i, i]
            size += relative[i, j] * relative[i, j]
    if spec.hides_scale:
        square = 0.0
        for i in range(columns):
            for j in range(i + 1):
                entry = _product(relative, i, j)
                square += entry * entry if i == j else 2.0 * entry * entry
        # The least of |s C C^T - I| is at s = tr(C C^T) / |C C^T|^2.
        root = np.sqrt(size / square)
        for i in range(columns):
            for j in range(i + 1):
                relative[i, j] *= root
    deviation = 0.0
    for i in range(columns):
        if regular[i]:
            for j in range(i + 1):
                entry = _product(relative, i, j) - (1.0 if i == j else 0.0)
                deviation += entry * entry if i == j else 2.0 * entry * entry
    return np.sqrt(deviation)


@kernel
def _product(lower, i, j):
    """Return entry (i, j), j <= i, of C C^T."""
    entry = 0.0
    for k in range(j + 1):
        entry += lower[i, k] * lower[j, k]
    return entry


@kernel
def _is_kept(spec, draw, number, regular, pair):
    """Return whether the second chain takes the rows of the first, at random: min(1, p'/p)."""
    _invert(spec, regular, pair.relative, pair.inverse)
    log_ratio = -_half_excess(spec, regular, pair.inverse, pair.wishart)
    log_ratio -= _log_determinant(spec, regular, pair.relative)
    return np.log(_coin(draw, number, 0)) <= spec.width * log_ratio


@kernel
def _is_residual(spec, draw, number, attempt, regular, pair):
    """Return whether rows from p' are kept as residual: with probability 1 - min(1, p/p')."""
    log_ratio = _log_determinant(spec, regular, pair.relative)
    log_ratio -= _half_excess(spec, regular, pair.relative, pair.wishart)
    return np.log(_coin(draw, number, attempt)) > spec.width * log_ratio


@kernel
def _coin(draw, number, attempt):
    """Return the uniform that decides an attempt of a layer."""
    stream = np.uint32(STREAM_COIN | number)
    high = philox4x32(np.uint32(attempt), 0, draw.layer, stream, draw.key0, draw.key1)[0]
    again = np.uint32(stream | SECOND_WORD)
    low = philox4x32(np.uint32(attempt), 0, draw.layer, again, draw.key0, draw.key1)[0]
    return uniform64(high, low)


@kernel
def _invert(spec, regular, lower, out):
    """Write the inverse of a lower triangular matrix, in the rows and columns that are regular."""
    out[:, :] = 0.0
    for i in range(spec.columns):
        if not regular[i]:
            continue
        for j in range(i + 1):
            if not regular[j]:
                continue
            entry = 1.0 if i == j else 0.0
            for k in range(j, i):
                entry -= lower[i, k] * out[k, j]
            out[i, j] = entry / lower[i, i]


@kernel
def _half_excess(spec, regular, lower, wishart):
    """Return half the trace of (C^T C - I) Z^T Z, divided by the width as the last factor is."""
    total = 0.0
    for i in range(spec.columns):
        if regular[i]:
            for j in range(i + 1):
                if regular[j]:
                    entry = -1.0 if i == j else 0.0
                    for k in range(i, spec.columns):
                        entry += lower[k, i] * lower[k, j]
                    total += entry * wishart[i, j] * (0.5 if i == j else 1.0)
    return total


@kernel
def _log_determinant(spec, regular, lower):
    total = 0.0
    for k in range(spec.columns):
        if regular[k]:
            total += np.log(lower[k, k])
    return total
