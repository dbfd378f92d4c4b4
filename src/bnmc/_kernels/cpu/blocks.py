"""Arithmetic on blocks of rows: products with a factor or with weights, and Gram matrices.

A block is flat and holds (columns, STRIDE) numbers; its dtype is that of the rows.
"""

from __future__ import annotations

import numpy as np

from bnmc._kernels.compiling import inlined, kernel
from bnmc._kernels.cpu import vectors
from bnmc._kernels.cpu.numbers import STRIDE
from bnmc._kernels.cpu.vectors import (
    add_all,
    add_products,
    add_scaled,
    add_squares,
    keep_order,
    load_column,
    load_parts,
    load_strip,
    load_strips,
    load_two_parts,
    store,
    store_strips,
    store_sums,
    zero_part,
    zero_strip,
)
from bnmc._kernels.scalar.elementary import smaller

#: Columns that a product goes through at once, which stay in the cache of a core.  Bits of batches
#: with more columns depend on it.
_SLAB = 128

#: Tiles of four columns to which a strip of a slab is added while it is in the nearest cache.
_TILES = 8


@kernel
def multiply_triangular(factor, columns, source, block, rows):
    """Write factor @ source to a block, for a lower triangular factor.

    `factor` and the two blocks are padded with zeros to a multiple of four columns.  Blocks are
    flat, (columns, STRIDE).  `source` may be the block: a column of the result depends on earlier
    columns alone, so the last ones come first.
    """
    for first in range((columns - 1) // _SLAB * _SLAB, -1, -_SLAB):
        last = smaller(first + _SLAB, columns)
        if last < columns:
            _add_slab(factor, last, columns, first, last - first, source, first, block, rows)
        _multiply_slab(factor, first, last, source, block, rows)


@kernel
def _multiply_slab(factor, first, last, source, block, rows):
    """Write to columns first:last of a block what the same columns of `source` make of them."""
    zero = zero_strip(block)
    for row in range(0, rows, vectors.STRIP_BYTES // block.itemsize):
        for tile in range((last + 3) // 4 - 1, first // 4 - 1, -1):
            i = 4 * tile
            if i + 2 >= last:
                # One or two columns remain: half a tile.
                half = zero, zero
                for k in range(first, i + 1):
                    lanes = load_strip(source, k * STRIDE + row)
                    half = add_scaled((factor[i, k], factor[i + 1, k]), lanes, half)
                lanes = load_strip(source, (i + 1) * STRIDE + row)
                half = add_scaled((factor[i + 1, i + 1],), lanes, half)
                store(block, i * STRIDE + row, half[0])
                store(block, (i + 1) * STRIDE + row, half[1])
                continue
            sums = zero, zero, zero, zero
            for k in range(first, i + 1):
                lanes = load_strip(source, k * STRIDE + row)
                sums = add_scaled(load_column(factor, i, k), lanes, sums)
            # The tile at the diagonal is triangular itself.
            lanes = load_strip(source, (i + 1) * STRIDE + row)
            sums = add_scaled(load_column(factor, i, i + 1)[1:], lanes, sums)
            lanes = load_strip(source, (i + 2) * STRIDE + row)
            sums = add_scaled(load_column(factor, i, i + 2)[2:], lanes, sums)
            lanes = load_strip(source, (i + 3) * STRIDE + row)
            sums = add_scaled(load_column(factor, i, i + 3)[3:], lanes, sums)
            store_strips(block, i * STRIDE + row, STRIDE, sums)


@kernel
def add_product(factor, start, columns, tile, depth, block, rows):
    """Add factor[:, start : start + depth] @ tile to the columns of a block."""
    for at in range(0, depth, _SLAB):
        width = smaller(_SLAB, depth - at)
        _add_slab(factor, 0, columns, start + at, width, tile, at, block, rows)


@kernel
def _add_slab(factor, first, columns, start, depth, tile, at, block, rows):
    """Add factor[first:columns, start : start + depth] @ tile[at : at + depth] to a block.

    `first` is a multiple of four.  `tile` is flat, (>= at + depth, BLOCK), and may be the block.
    """
    strip = vectors.STRIP_BYTES // block.itemsize
    tiles = (columns + 3) // 4
    for begin in range(first // 4, tiles, _TILES):
        for row in range(0, rows, strip):
            for quad in range(begin, smaller(begin + _TILES, tiles)):
                i = 4 * quad
                sums = load_strips(block, i * STRIDE + row, STRIDE)
                for k in range(depth):
                    lanes = load_strip(tile, (at + k) * STRIDE + row)
                    sums = add_scaled(load_column(factor, i, start + k), lanes, sums)
                store_strips(block, i * STRIDE + row, STRIDE, sums)


# Sums of products of columns, one a lane: `first` from place i on, and `second` from place j on.


@inlined
def sum_whole_tile(first, i, second, j, rows):
    """Return the products of four columns of `first` and four of `second`, as sums of lanes."""
    zero = zero_part(first)
    four = zero, zero, zero, zero
    sums = four + four + four + four
    for row in range(0, rows, vectors.NARROW_BYTES // first.itemsize):
        keep_order()
        left, right = load_parts(first, i + row, STRIDE), load_parts(second, j + row, STRIDE)
        sums = add_products(left, right, sums)
    return sums


def _in_parts(sum_part):
    """Return `sum_part` for all parts of narrow vectors."""
    if vectors.PART_BYTES == vectors.NARROW_BYTES:
        return inlined(sum_part)

    @inlined
    def sum_parts(first, i, second, j, rows):
        lanes = vectors.PART_BYTES // first.itemsize
        return add_all(
            sum_part(first, i, second, j, rows),
            sum_part(first, i + lanes, second, j + lanes, rows),
        )

    inlined(sum_part)
    return sum_parts


def sum_half_tile(first, i, second, j, rows):
    """Return the products of two columns of `first` and four of `second`, as sums of lanes.

    The sums contain one part of every narrow vector of rows.
    """
    zero = zero_part(first)
    four = zero, zero, zero, zero
    sums = four + four
    for row in range(0, rows, vectors.NARROW_BYTES // first.itemsize):
        keep_order()
        left, right = load_two_parts(first, i + row, STRIDE), load_parts(second, j + row, STRIDE)
        sums = add_products(left, right, sums)
    return sums


def _sum_triangle(block, i, _, _i, rows):
    """Return the products of four columns with themselves like `sum_half_tile`, row by row."""
    zero = zero_part(block)
    four = zero, zero, zero, zero
    sums = four + four + (zero, zero)
    for row in range(0, rows, vectors.NARROW_BYTES // block.itemsize):
        keep_order()
        sums = add_squares(load_parts(block, i + row, STRIDE), sums)
    return sums


def _sum_two_squares(block, i, _, _i, rows):
    """Return the products of two columns with themselves like `sum_half_tile`, row by row."""
    zero = zero_part(block)
    sums = (zero, zero, zero)
    for row in range(0, rows, vectors.NARROW_BYTES // block.itemsize):
        sums = add_squares(load_two_parts(block, i + row, STRIDE), sums)
    return sums


_sum_half, _sum_last = _in_parts(sum_half_tile), _in_parts(_sum_two_squares)
_sum_diagonal = _in_parts(_sum_triangle)


@inlined
def _sum_two_halves(first, i, second, j, rows):
    upper = _sum_half(first, i, second, j, rows)
    return upper + _sum_half(first, i + 2 * STRIDE, second, j, rows)


#: All 16 sums at once if there are registers: eight are too few to hide the latency of a
#: multiply-add.
sum_tile = sum_whole_tile if vectors.WIDE_REGISTERS else _sum_two_halves


@kernel
def add_gram(block, columns, rows, partial, sums):
    """Add the Gram matrix of a block to `sums`, kept as 4 x 4 tiles of the lower triangle.

    Within a block sums are in the block's dtype, one a lane; across blocks in float64.  Tiles are
    made slab by slab, whose columns are then in the cache.
    """
    tiles = (columns + 3) // 4
    for first in range(0, tiles, _SLAB // 4):
        for tile_i in range(first, tiles):
            position = 16 * (tile_i * (tile_i + 1) // 2 + first)
            # The last tile of 4 k + 1 or 4 k + 2 columns has two rows.
            half = 4 * tile_i + 2 >= columns
            i = 4 * tile_i * STRIDE
            for tile_j in range(first, smaller(first + _SLAB // 4, tile_i)):
                j = 4 * tile_j * STRIDE
                if half:
                    store_sums(partial, 0, _sum_half(block, i, block, j, rows))
                else:
                    store_sums(partial, 0, sum_tile(block, i, block, j, rows))
                _add_partial(partial, sums, position)
                position += 16
            if tile_i < first + _SLAB // 4:
                if half:
                    store_sums(partial, 0, _sum_last(block, i, block, i, rows))
                else:
                    store_sums(partial, 0, _sum_diagonal(block, i, block, i, rows))
                _add_partial(partial, sums, position)


@inlined
def _add_partial(partial, sums, position):
    """Add the 16 sums of a tile to `sums`, from `position` on."""
    # Unsigned, so that the compiler adds no test for negative indices.
    at = np.uintp(position)
    for k in range(16):
        sums[at + np.uintp(k)] += partial[k]


@kernel
def add_cross(first, second, columns, rows, partial, sums):
    """Add firstᵀ second of two blocks to `sums`, kept as a matrix of order `padded(columns)`.

    Sums are made like those of `add_gram`.
    """
    tiles = (columns + 3) // 4
    for tile_i in range(tiles):
        for tile_j in range(tiles):
            i, j = 4 * tile_i * STRIDE, 4 * tile_j * STRIDE
            store_sums(partial, 0, sum_tile(first, i, second, j, rows))
            for row in range(4):
                at = np.uintp(4 * ((4 * tile_i + row) * tiles + tile_j))
                for k in range(4):
                    sums[at + np.uintp(k)] += partial[np.uintp(4 * row + k)]


@kernel
def clear_rows(block, first_column, last_column, first_row, last_row):
    """Write zeros to a range of rows of a range of columns of a block."""
    for i in range(first_column, last_column):
        for at in range(np.uintp(i * STRIDE + first_row), np.uintp(i * STRIDE + last_row)):
            block[at] = 0.0


@kernel
def repeat_first_row(block, columns, first_row, last_row):
    """Write the first row of a block to a range of its rows."""
    for i in range(columns):
        value = block[i * STRIDE]
        for at in range(np.uintp(i * STRIDE + first_row), np.uintp(i * STRIDE + last_row)):
            block[at] = value


@kernel
def add_columns(factor, x, first_row, columns, rows, block):
    """Add factor * x to the columns of a block whose rows begin at `first_row`."""
    factor = block.dtype.type(factor)
    for i in range(columns):
        values = block[i * STRIDE : i * STRIDE + rows]
        others = x[i, first_row : first_row + rows]
        for row in range(rows):
            values[row] += factor * others[row]


@kernel
def scale_columns(factor, columns, rows, block):
    """Multiply the columns of a block by a number of its dtype."""
    for i in range(columns):
        for at in range(np.uintp(i * STRIDE), np.uintp(i * STRIDE + rows)):
            block[at] *= factor


@kernel
def keep_columns(block, columns, rows, first_row, out):
    """Write the columns of a block to rows of `out`, (>= columns, >= first_row + rows)."""
    for i in range(columns):
        values = block[i * STRIDE : i * STRIDE + rows]
        target = out[i, first_row : first_row + rows]
        for row in range(rows):
            target[row] = values[row]


@kernel
def copy_matrix(matrix, out):
    """Write a matrix to another of its shape.

    An assignment of arrays would compile for seconds what it has to say of unequal shapes.
    """
    for i in range(matrix.shape[0]):
        for j in range(matrix.shape[1]):
            out[i, j] = matrix[i, j]


@kernel
def unpack_gram(sums, width, gram):
    """Write tiles of sums over rows, divided by the width, as a symmetric matrix.

    Returns whether all of it is finite.
    """
    return unpack_tiles(sums, width, gram, 0, (gram.shape[0] + 3) // 4)


@kernel
def unpack_tiles(sums, width, gram, first, last):
    """Write rows first:last of tiles, as `unpack_gram` does."""
    finite = True
    position = 8 * first * (first + 1)
    for tile_i in range(first, last):
        for tile_j in range(tile_i + 1):
            for k in range(16):
                i, j = 4 * tile_i + k // 4, 4 * tile_j + k % 4
                if j <= i < gram.shape[0]:
                    value = sums[position + k] / width
                    gram[i, j] = value
                    gram[j, i] = value
                    finite = finite and np.isfinite(value)
            position += 16
    return finite
