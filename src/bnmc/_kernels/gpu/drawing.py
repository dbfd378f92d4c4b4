"""Rows of a tile: drawn given the factor of their covariance, multiplied, or given.

If a thread has all columns of drawn rows, it keeps them in registers until their products are
summed (`_draw_alone`).  Otherwise threads share normals and rows in shared memory (`make_tile`).  A
layer calls `prepare`, and after the next barrier of the block `add_made` for each tile.  The
normals of a row are the elements of the counter from `element` on.
"""

from __future__ import annotations

import numpy as np
from numba import float64, uint32

from bnmc._kernels.gpu.block import thread
from bnmc._kernels.gpu.constants import (
    accumulators, at_diagonal, at_factor, at_tile, at_words, batch, columns, draw_biases,
    draw_normals, element_words, groups, has_bias, in_passes, inputs, keeps_rows, kind, number,
    padded, quads, single, skipped, source, stride, threads, vector, whole_rows,
)  # fmt: skip
from bnmc._kernels.gpu.device import cuda, inlined
from bnmc._kernels.gpu.multiplying import multiply_tile
from bnmc._kernels.gpu.rows import copy_tile, finish_row, finish_tile, row_of
from bnmc._kernels.gpu.shape import DRAWN, KEPT, MULTIPLIED, u32
from bnmc._kernels.gpu.sums import add_quads, add_tile
from bnmc._kernels.gpu.tiles import add_quad, drawn_quad, multiply, write_quad
from bnmc._kernels.gpu.words import finish_words, words_of_element, words_of_quad
from bnmc._kernels.scalar.codes import SECOND_WORD
from bnmc._kernels.scalar.normal import joined, normals_of

_normals32_of, _normals64_of = normals_of


def prepare(element, draw):
    """Write the words of the elements of a layer; float64 normals take those of two streams."""
    words = cuda.shared.array(0, uint32)
    if whole_rows:
        t, draws = thread(), element_words // 4
        if t < columns * draws:
            stream = draw.stream
            if not single and t % 2 == 1:
                stream = np.uint32(stream | SECOND_WORD)
            e0, e1, e2, e3 = words_of_element(
                np.uint32(element + t // draws), draw.layer, stream, draw.key0, draw.key1
            )
            at = at_words + t // draws * element_words + t % draws * 4
            words[u32(at)] = e0
            words[u32(at + 1)] = e1
            words[u32(at + 2)] = e2
            words[u32(at + 3)] = e3


def _words_at(at, q0, q1, k0, k1):
    words = cuda.shared.array(0, uint32)
    e0, e1 = words[u32(at)], words[u32(at + 1)]
    e2, e3 = words[u32(at + 2)], words[u32(at + 3)]
    return finish_words(e0, e1, e2, e3, q0, q1, k0, k1)


def _normals_of_words(k, q0, q1, k0, k1):
    """Return the normals of column k of the quad whose words are q0 and q1."""
    at = at_words + k * element_words
    w0, w1, w2, w3 = _words_at(at, q0, q1, k0, k1)
    if single:
        return _normals32_of(w0, w1, w2, w3)
    v0, v1, v2, v3 = _words_at(at + 4, q0, q1, k0, k1)
    return _normals64_of(joined(w0, v0), joined(w1, v1), joined(w2, v2), joined(w3, v3))


def add_made(first_row, element, rows):
    """Make the tile that begins at `first_row`, and add its Gram matrix to the sums."""
    if whole_rows:
        _draw_alone(first_row, rows)
    else:
        make_tile(first_row, element, rows)
        finish_tile(first_row, rows)
        add_tile()


def make_tile(first_row, element, rows):
    """Write rows W a to the tile or, in layers in passes, h = skip x + gain W a + b."""
    if source == DRAWN:
        draw_normals_of_tile(thread(), at_tile, at_diagonal, first_row, element, rows.draw)
        multiply(at_tile, at_factor, at_tile)
    elif source == MULTIPLIED:
        multiply_tile(first_row, rows.law.fan_in, rows.law.gain, rows.draw, rows.a)
    else:
        copy_tile(first_row, rows.law.width, rows.given)
    if in_passes and source != KEPT and (has_bias or skipped):
        _add_rest(first_row, rows)


def _add_rest(first_row, rows):
    """Add bias and skip connection; the bias is a weight after the last ones."""
    for item in range(thread(), quads, threads):
        quad, zero = np.uint32(first_row // 4 + item), number(0.0)
        z0, z1, z2, z3 = zero, zero, zero, zero
        if has_bias:
            z0, z1, z2, z3 = drawn_quad(draw_biases, rows.law.fan_in, quad, rows.draw)
        _add_to_row(first_row, item, number(rows.law.bias) * number(z0), rows)
        _add_to_row(first_row, item + quads, number(rows.law.bias) * number(z1), rows)
        _add_to_row(first_row, item + 2 * quads, number(rows.law.bias) * number(z2), rows)
        _add_to_row(first_row, item + 3 * quads, number(rows.law.bias) * number(z3), rows)
    cuda.syncthreads()


def _add_to_row(first_row, place, bias, rows):
    numbers = cuda.shared.array(0, kind)
    row = row_of(first_row, place)
    if row < rows.law.width:
        for i in range(columns):
            at = at_tile + i * stride + place
            if has_bias:
                numbers[u32(at)] += bias
            if skipped:
                numbers[u32(at)] += number(rows.law.skip) * rows.x[i, row]


def _draw_alone(first_row, rows):
    """Do so in registers."""
    width, k0, k1 = rows.law.width, rows.draw.key0, rows.draw.key1
    acc = cuda.local.array(accumulators, kind)
    for c in range(accumulators):
        acc[c] = number(0.0)
    q0, q1 = words_of_quad(np.uint32(first_row // 4 + thread()), rows.draw.layer, k0)
    # The factor is triangular, so the first half of the columns needs only the first half of the
    # normals.  Whole vectors of the factor are read at once.
    half = columns // 2 // vector * vector
    _draw_columns(acc, 0, half, q0, q1, k0, k1)
    _draw_columns(acc, half, columns, q0, q1, k0, k1)
    row = row_of(first_row, thread())
    # Constant indices keep the rows in registers.
    _finish_column(acc, 0, row, rows)
    _finish_column(acc, 1, row + 16, rows)
    _finish_column(acc, 2, row + 32, rows)
    _finish_column(acc, 3, row + 48, rows)
    if row + 48 >= width:
        clear_padding(acc, 0, row, width)
        clear_padding(acc, 1, row + 16, width)
        clear_padding(acc, 2, row + 32, width)
        clear_padding(acc, 3, row + 48, width)
    add_quads(acc)


def _draw_columns(acc, first, last, q0, q1, k0, k1):
    """Add to rows W a the contributions of their normals first:last."""
    doubles = cuda.shared.array(0, float64)
    k = np.uint32(first)
    while k < last:
        if doubles[u32(at_diagonal + k)] > 0.0:
            _draw_column(acc, k, first, q0, q1, k0, k1)
            k = np.uint32(k + 1)
            # Two normals at a time share the keys of Philox' rounds.
            if k < last and doubles[u32(at_diagonal + k)] > 0.0:
                _draw_column(acc, k, first, q0, q1, k0, k1)
        k = np.uint32(k + 1)


def _draw_column(acc, k, first, q0, q1, k0, k1):
    """Add to rows W a the contribution of their normal k, from column `first` on."""
    numbers = cuda.shared.array(0, kind)
    quad = _normals_of_words(k, q0, q1, k0, k1)
    for c in range(first, columns):
        add_quad(acc, c, numbers[u32(at_factor + k * padded + c)], quad)


def _finish_column(acc, j, row, rows):
    """Activate row j of the quad in registers."""
    # Padding rows are activated as well, which is faster, unless there is no place for them.
    if not (skipped or keeps_rows) or row < rows.law.width:
        for h in range(inputs):
            finish_row(acc, 4 * h * batch + j, 4, h, row, rows)


def clear_padding(acc, j, row, width):
    """Set row j of the quad to zero if it is a padding row."""
    if row >= width:
        for c in range(columns):
            acc[4 * c + j] = number(0.0)


@inlined
def draw_normals_of_tile(t, at_to, at_pivots, first_row, element, draw):
    """Write normals to a tile, as thread t; a column without a pivot gets zeros."""
    doubles = cuda.shared.array(0, float64)
    q, g, zero = t % quads, t // quads, number(0.0)
    quad = np.uint32(first_row // 4 + q)
    for k in range(g, columns, groups):
        if doubles[u32(at_pivots + k)] > 0.0:
            write_quad(at_to + k * stride + q, drawn_quad(draw_normals, element + k, quad, draw))
        else:
            write_quad(at_to + k * stride + q, (zero, zero, zero, zero))
    cuda.syncthreads()
