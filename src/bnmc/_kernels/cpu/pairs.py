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

from bnmc._kernels.compiling import by_type, inlined, kernel
from bnmc._kernels.cpu.blocks import (
    add_gram,
    clear_rows,
    copy_matrix,
    multiply_triangular,
    unpack_gram,
)
from bnmc._kernels.cpu.layers import finish_rows, measure_samples
from bnmc._kernels.cpu.moments import Moments, merge_moments
from bnmc._kernels.cpu.numbers import BLOCK, GROUP, Work, fill_normals
from bnmc._kernels.cpu.rows import event_of
from bnmc._kernels.cpu.sources import Layer, factorise_covariance
from bnmc._kernels.scalar.codes import (
    DEGENERATE,
    NOT_FINITE,
    PATIENCE,
    RUNNING,
    SECOND_WORD,
    STREAM_COIN,
    STREAM_RESIDUAL,
    Draw,
)
from bnmc._kernels.scalar.elementary import smaller
from bnmc._kernels.scalar.normal import uniform64
from bnmc._kernels.scalar.philox import element_of_attempt, key_of_attempt, philox4x32

# The side of a pair whose rows are drawn.
_AHEAD, _BEHIND, _BOTH = 1, 2, 3


class PairState(NamedTuple):
    """The state of pairs of chains, brought up to date."""

    grams: np.ndarray  # float64 (pairs, 2, columns, columns): of the chain ahead, and behind
    #: int64 (pairs,): the layer of the chain ahead at which a pair met; -1 of one that has not.
    met: np.ndarray
    #: int64 (pairs, 3): how many maximal couplings were tried, how many of them refused, and for
    #: how many layers the two Gram matrices have had different ranges.
    tries: np.ndarray
    status: np.ndarray  # int64 (pairs, 3): what ended a pair, in which layer, at which row


class PairCourse(NamedTuple):
    """Through which layers pairs go, and what is recorded of them."""

    first_pair: int
    first_layer: int  # to which the chain ahead goes first
    layers: int
    alone: int  # up to this layer, the lag, the chain ahead moves alone
    until: int  # pairs that have met continue as one chain up to this layer
    #: A maximal coupling is tried where the logarithm of p'/p has at most this standard deviation.
    threshold: float
    key0: np.uint32
    key1: np.uint32
    #: float64 (pairs, layers or 0, 2, columns, columns): receives the state after each layer.
    record: np.ndarray
    #: float64 (traced pairs, layers, 2): of the first pairs, receives the distance
    #: |L^-1 S' L^-T - I| before each layer (of the regular part, at the best scale) and the least
    #: relative pivot of the two.
    trace: np.ndarray


class Pair(NamedTuple):
    """Buffers of one thread for coupling, which belong to neither of the two chains."""

    relative: np.ndarray  # float64 (columns, columns): C = L^-1 L'
    inverse: np.ndarray  # float64 (columns, columns)
    wishart: np.ndarray  # float64 (columns, columns): Z^T Z / width
    normals: np.ndarray  # as `Work.block`: Z
    sums: np.ndarray  # as `Work.sums`: those of Z^T Z


class Side(NamedTuple):
    """Buffers of one thread for one of the two chains, whose layers have one panel."""

    work: Work
    moments: Moments | None  # as in `Sums`


@kernel
def coupled_layers(source, sigma, spec, state, course, sides, pair):
    """Take pairs of chains through layers, until they meet.

    Parameters
    ----------
    source : Drawn
    sigma : Sigma or Apart
    spec : LayerSpec
    state : PairState
    course : PairCourse
    sides : (Side, Side)
        Of the chain ahead, and of the one behind.
    pair : Pair
    """
    first, second = sides[0].work, sides[1].work
    nothing = pair.sums[:0]
    for number in range(state.grams.shape[0]):
        met, tries, status = state.met[number:], state.tries[number], state.status[number]
        if status[0] != 0:
            continue
        trace = course.trace[number : smaller(number + 1, course.trace.shape[0])]
        chain = np.uint32(course.first_pair + number)
        ahead, behind = state.grams[number, 0], state.grams[number, 1]
        for step in range(course.layers):
            layer = course.first_layer + step
            apart = met[0] < 0
            if not apart and layer > course.until:
                break
            which, squares = _AHEAD, nothing
            for side in range(2 if apart and layer > course.alone else 1):
                work = sides[side].work
                gram = state.grams[number, side]
                least = factorise_covariance(source.taps, None, gram, spec, work)
                if trace.shape[0] > 0:
                    trace[0, step, 1] = smaller(least, trace[0, step, 1])
            if apart and layer > course.alone:
                distance = np.nan
                if same_range(spec, first, second):
                    distance = relative_factor(spec, first, second, pair.relative)
                if trace.shape[0] > 0:
                    trace[0, step, 0] = distance
                tries[2] = 0 if distance >= 0.0 else tries[2] + 1
                if tries[2] > PATIENCE:
                    status[0], status[1] = DEGENERATE, layer - PATIENCE
                    break
                which = _BOTH
                if np.sqrt(0.5 * spec.width) * distance <= course.threshold:
                    which, squares = _AHEAD, pair.sums
                    tries[0] += 1

            draw = Draw(layer, np.uint32(source.stream | chain), course.key0, course.key1)
            attempt = 0
            while True:
                element = element_of_attempt(attempt, spec.columns)
                key = key_of_attempt(course.key1, attempt, spec.columns)
                draw = Draw(layer, draw.stream, course.key0, key)
                event, row = _draw_sides(
                    sigma, spec, element, draw, which, sides, pair.normals, squares
                )
                finite = True
                if which & _AHEAD:
                    finite = unpack_gram(first.sums, spec.width, ahead)
                if which & _BEHIND:
                    finite = unpack_gram(second.sums, spec.width, behind) and finite
                if event != RUNNING or not finite or squares.size == 0:
                    break
                unpack_gram(squares, spec.width, pair.wishart)
                if which == _AHEAD:
                    if _is_kept(spec, draw, chain, first.regular, pair):
                        met[0] = layer
                        break
                    # The residual law, proportional to max(p' - p, 0), is drawn by rejection from
                    # p', with other normals.
                    tries[1] += 1
                    which = _BEHIND
                    stream = np.uint32(STREAM_RESIDUAL | chain)
                    draw = Draw(layer, stream, course.key0, course.key1)
                else:
                    attempt += 1
                    if _is_residual(spec, draw, chain, attempt, first.regular, pair):
                        break
            if event != RUNNING or not finite:
                status[0] = event if finite else NOT_FINITE
                status[1], status[2] = layer, row
                break
            if met[0] >= 0:
                copy_matrix(ahead, behind)
            if course.record.shape[1] > 0:
                copy_matrix(ahead, course.record[number, step, 0])
                copy_matrix(behind, course.record[number, step, 1])


@kernel
def _take_moments(moments, sigma, spec, element, draw, which, sides, normals):
    for start in range(0, spec.width, BLOCK):
        count = smaller(BLOCK, spec.width - start)
        rows = (count + GROUP - 1) // GROUP * GROUP
        _draw_seen(normals, spec, element, which, sides, start, rows, draw)
        for side in range(2):
            if which & (1 << side):
                work = sides[side].work
                multiply_triangular(work.factor, spec.columns, normals, work.block, rows)
                measure_samples(spec, sigma, 0, start, count, work, sides[side].moments)
    for side in range(2):
        if which & (1 << side):
            event, place = merge_moments(spec, sides[side].work.block, sides[side].moments)
            if event != RUNNING:
                return event, place
    return RUNNING, -1


@inlined
def _take_none(moments, sigma, spec, element, draw, which, sides, normals):
    return RUNNING, -1


#: The first of two passes over the rows of both chains, of norms over the features.
_first_pass = by_type(Moments=_take_moments, NoneType=_take_none)


@kernel
def _draw_sides(sigma, spec, element, draw, which, sides, normals, squares):
    """Draw a layer of one chain or both with the same normals, whose elements begin at `element`.

    The sums of each `Work` receive the Gram matrix of the activations, times the width, and
    `squares`, unless it has no length, that of the normals.  Returns the code of an event, and its
    row or the column of a sample.
    """
    nowhere = normals[:0].reshape((0, 1))
    layer = Layer(sides[0].work.covariance, nowhere, nowhere, nowhere)
    event, place = _first_pass(sides[0].moments, sigma, spec, element, draw, which, sides, normals)
    if event != RUNNING:
        return event, place
    for side in range(2):
        sides[side].work.sums[:] = 0.0
    squares[:] = 0.0
    for start in range(0, spec.width, BLOCK):
        count = smaller(BLOCK, spec.width - start)
        rows = (count + GROUP - 1) // GROUP * GROUP
        _draw_seen(normals, spec, element, which, sides, start, rows, draw)
        for side in range(2):
            if not which & (1 << side):
                continue
            work = sides[side].work
            multiply_triangular(work.factor, spec.columns, normals, work.block, rows)
            degenerate = finish_rows(spec, sigma, layer, start, count, work, sides[side].moments)
            if degenerate >= 0:
                return event_of(degenerate), degenerate
            add_gram(work.block, spec.columns, rows, work.partial, work.sums)
        if squares.size > 0:
            clear_rows(normals, 0, spec.columns, count, rows)
            add_gram(normals, spec.columns, rows, sides[0].work.partial, squares)
    return RUNNING, -1


@kernel
def _draw_seen(normals, spec, element, which, sides, start, rows, draw):
    """Draw the normals of a block that a factor multiplies; the other columns keep what they have.

    A factor has zeros in the columns of samples that others determine, such as the last one of a
    centred batch, and entries of Z^T Z of such samples are not used.
    """
    first, second = sides[0].work.regular, sides[1].work.regular
    k = 0
    while k < spec.columns:
        end = k
        while end < spec.columns and (
            (which & _AHEAD != 0 and first[end]) or (which & _BEHIND != 0 and second[end])
        ):
            end += 1
        if end > k:
            fill_normals(normals, k, element + k, end - k, start, rows, draw)
        k = end + 1


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
