"""Linear chains without a skip connection, side by side: one chain per lane of a vector.

A layer of such a chain is cheap (a Gram matrix of order 10 and 32 rows), too small for the blocks
of rows of `cpu`.  So a vector holds one number of `LANES` chains here, and every sum is a sum of
vectors.  Arrays are flat, with the lane as their last axis.

Of the Gram matrix G = L Lᵀ of a layer only the spectrum matters to the next one: a rotation of the
samples commutes with the chain.  So rows are drawn as z L, with covariance Lᵀ L, in place of z Lᵀ.
That is a step of Rutishauser's LR iteration, which sorts the directions by size and makes G graded,
G_ij of the order of sqrt(G_ii G_jj) or less.  The factor of a graded matrix is accurate relative to
each of its columns (Demmel and Veselić, 1992), so directions that come and go are followed however
small they get, where a Gram matrix in a fixed basis loses them for good at 1e-16 of the trace.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bnmc._kernels.compiling import kernel
from bnmc._kernels.cpu.scaling import copy_numbers
from bnmc._kernels.cpu.vectors import (
    WIDE_BYTES,
    fill_like,
    load_wide,
    multiply_add,
    square_root,
    store,
    zero_wide,
)
from bnmc._kernels.scalar.cholesky import PIVOT_UNITS
from bnmc._kernels.scalar.elementary import smaller
from bnmc._kernels.scalar.normal import normals as scalar_normals

_draw = scalar_normals.double

#: Chains side by side.
LANES = WIDE_BYTES // 8
_ONE, _TWO, _THREE = np.uintp(LANES), np.uintp(2 * LANES), np.uintp(3 * LANES)

#: Rows per call of the generator.
_QUAD = 4

#: The stream of the normals; the column is in the lower bits.
STREAM_LANES = np.uint32(0xE0000000)


class Shape(NamedTuple):
    """Sizes of a chain: x is (width, order), and the mean square of a row is taken over the batch.

    `shrink` is batch times eps, in units of the rows as they are drawn.
    """

    width: int
    order: int
    batch: int
    shrink: float


class _Space(NamedTuple):
    """Work space for chains of a `Shape`, float64."""

    normals: np.ndarray  # (order * _QUAD * LANES,)
    factor: np.ndarray  # (order * order * LANES,)
    x: np.ndarray  # (width rounded up to quads * order * LANES,)


def space_of(shape: Shape) -> _Space:
    """Return work space."""
    numbers, rows = shape.order * LANES, -(-shape.width // _QUAD) * _QUAD
    return _Space(
        np.empty(_QUAD * numbers), np.empty(shape.order * numbers), np.empty(rows * numbers)
    )


@kernel
def linear_layers(shape, gram, first, every, sums, grams, space):
    """Take a group of chains through layers, and measure one layer in `every`.

    Parameters
    ----------
    shape : Shape
    gram : (order * order * LANES,) float64
        The state, brought up to date; symmetric.
    first : Draw
        With the number of the first layer and, as its stream, of the group.
    every : int
        Layers from one measured layer to the next.
    sums : (slots, 3, LANES) float64
        Receives the sums of `moments`; the kernel makes slots * every layers.
    grams : (slots or 0, order * order * LANES) float64
        Receives the Gram matrices of measured layers, if it has slots.
    space : _Space
    """
    width, order = shape.width, shape.order
    row_size, x = order * LANES, space.x
    for step in range(every * sums.shape[0]):
        factorise(gram, order, space.factor)
        gram[:] = 0.0
        for quad in range((width + _QUAD - 1) // _QUAD):
            _fill_normals(order, quad, first, first.layer + step, space.normals)
            rows = x[quad * _QUAD * row_size : (quad + 1) * _QUAD * row_size]
            draw_rows(shape, space.factor, space.normals, rows)
            for row in range(smaller(_QUAD, width - quad * _QUAD)):
                add_row(rows, row, order, gram)
        _finish_gram(shape, gram)
        if (step + 1) % every == 0:
            slot = step // every
            moments(shape, gram, x, sums[slot])
            if grams.shape[0] > 0:
                copy_numbers(gram, grams[slot])


@kernel
def measure(shape, x, gram, sums):
    """Write the Gram matrix of rows x, (width * order * LANES,), and the sums of `moments`."""
    gram[:] = 0.0
    for row in range(shape.width):
        add_row(x, row, shape.order, gram)
    _finish_gram(shape, gram)
    moments(shape, gram, x, sums)


@kernel
def factorise(gram, order, factor):
    """Write the Cholesky factor of each lane; a pivot that is zero to rounding has no column."""
    size = order * LANES
    for k in range(order):
        for i in range(k, order):
            removed = zero_wide(gram)
            for j in range(k):
                removed = multiply_add(
                    load_wide(factor, i * size + j * LANES),
                    load_wide(factor, k * size + j * LANES),
                    removed,
                )
            at = i * size + k * LANES
            store(factor, at, load_wide(gram, at) - removed)
        at = k * size + k * LANES
        for lane in range(LANES):
            pivot = factor[at + lane]
            regular = pivot > PIVOT_UNITS * order * gram[at + lane]
            inverse = 1.0 / np.sqrt(pivot) if regular else 0.0
            for i in range(k, order):
                factor[i * size + k * LANES + lane] *= inverse


@kernel
def _fill_normals(order, quad, first, layer, normals):
    """Write the normals of four rows: (order, _QUAD, LANES)."""
    for column in range(order):
        stream = np.uint32(STREAM_LANES | np.uint32(column))
        offset = np.uintp(column * _QUAD * LANES)
        for lane in range(LANES):
            chain = first.stream * LANES + lane
            z0, z1, z2, z3 = _draw(quad, chain, layer, stream, first.key0, first.key1)
            at = offset + np.uintp(lane)
            normals[at], normals[at + _ONE] = z0, z1
            normals[at + _TWO], normals[at + _THREE] = z2, z3


@kernel
def draw_rows(shape, factor, normals, x):
    """Write four normalised rows z L to x, (_QUAD * order * LANES,)."""
    order = shape.order
    total = fill_like(zero_wide(x), float(shape.batch))
    shrink = fill_like(total, shape.shrink)
    for row in range(_QUAD):
        square = zero_wide(x)
        for j in range(order):
            value = zero_wide(x)
            for i in range(j, order):
                value = multiply_add(
                    load_wide(factor, (i * order + j) * LANES),
                    load_wide(normals, (i * _QUAD + row) * LANES),
                    value,
                )
            store(x, (row * order + j) * LANES, value)
            square = multiply_add(value, value, square)
        scale = square_root(total / (square + shrink))
        for j in range(order):
            at = (row * order + j) * LANES
            store(x, at, load_wide(x, at) * scale)


@kernel
def add_row(x, row, order, gram):
    """Add the products of a row of x to the lower triangle of the Gram matrix."""
    for j in range(order):
        entry = load_wide(x, (row * order + j) * LANES)
        for i in range(j + 1):
            at = (j * order + i) * LANES
            other = load_wide(x, (row * order + i) * LANES)
            store(gram, at, multiply_add(entry, other, load_wide(gram, at)))


@kernel
def _finish_gram(shape, gram):
    """Divide sums of products by the width, and fill the upper triangle."""
    order = shape.order
    inverse = fill_like(zero_wide(gram), 1.0 / shape.width)
    for j in range(order):
        for i in range(j + 1):
            value = load_wide(gram, (j * order + i) * LANES) * inverse
            store(gram, (j * order + i) * LANES, value)
            store(gram, (i * order + j) * LANES, value)


@kernel
def moments(shape, gram, x, sums):
    """Write ‖M‖², Tr M³ and Tr diag(M²)² of M = x xᵀ / batch to sums, (3, LANES).

    With S = xᵀ x = width G: (M²)_rr = x_r S x_rᵀ / batch², and Tr M³ is the sum of ‖x_r S‖² over
    rows, / batch³.
    """
    width, order = shape.width, shape.order
    norm, cubes, squares = zero_wide(gram), zero_wide(gram), zero_wide(gram)
    for row in range(width):
        first = row * order
        of_row = zero_wide(gram)
        for j in range(order):
            product = zero_wide(gram)
            for i in range(order):
                product = multiply_add(
                    load_wide(gram, (j * order + i) * LANES),
                    load_wide(x, (first + i) * LANES),
                    product,
                )
            of_row = multiply_add(product, load_wide(x, (first + j) * LANES), of_row)
            cubes = multiply_add(product, product, cubes)
        norm = norm + of_row
        squares = multiply_add(of_row, of_row, squares)
    ratio = width / shape.batch
    of_square = ratio / shape.batch
    store(sums[0], 0, norm * fill_like(norm, of_square))
    store(sums[1], 0, cubes * fill_like(norm, ratio * of_square))
    store(sums[2], 0, squares * fill_like(norm, of_square * of_square))
