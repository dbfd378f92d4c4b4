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
    load_part,
    load_strip,
    store,
    store_sums,
    zero_part,
    zero_strip,
)

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
        last = min(first + _SLAB, columns)
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
                sums = add_scaled(_entries(factor, i, k), lanes, sums)
            # The tile at the diagonal is triangular itself.
            lanes = load_strip(source, (i + 1) * STRIDE + row)
            sums = add_scaled(_entries(factor, i, i + 1)[1:], lanes, sums)
            lanes = load_strip(source, (i + 2) * STRIDE + row)
            sums = add_scaled(_entries(factor, i, i + 2)[2:], lanes, sums)
            lanes = load_strip(source, (i + 3) * STRIDE + row)
            sums = add_scaled(_entries(factor, i, i + 3)[3:], lanes, sums)
            _store_four(block, i * STRIDE + row, sums)


@kernel
def add_product(factor, start, columns, tile, depth, block, rows):
    """Add factor[:, start : start + depth] @ tile to the columns of a block."""
    for at in range(0, depth, _SLAB):
        width = min(_SLAB, depth - at)
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
            for quad in range(begin, min(begin + _TILES, tiles)):
                i = 4 * quad
                sums = _four(load_strip, block, i * STRIDE + row)
                for k in range(depth):
                    lanes = load_strip(tile, (at + k) * STRIDE + row)
                    sums = add_scaled(_entries(factor, i, start + k), lanes, sums)
                _store_four(block, i * STRIDE + row, sums)


@inlined
def _two(load, block, i):
    """Load the same rows of two columns of a block."""
    return load(block, i), load(block, i + STRIDE)


@inlined
def _four(load, block, i):
    """Load the same rows of four columns of a block."""
    return _two(load, block, i) + _two(load, block, i + 2 * STRIDE)


@inlined
def _entries(factor, i, k):
    """Return four entries of column k of a factor."""
    return factor[i, k], factor[i + 1, k], factor[i + 2, k], factor[i + 3, k]


@inlined
def _store_four(block, i, columns):
    """Write the same rows of four columns of a block."""
    store(block, i, columns[0])
    store(block, i + STRIDE, columns[1])
    store(block, i + 2 * STRIDE, columns[2])
    store(block, i + 3 * STRIDE, columns[3])


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
            place = 4 * tile_i * STRIDE
            for tile_j in range(first, min(first + _SLAB // 4, tile_i)):
                if half:
                    _sum_upper_half(block, place, block, 4 * tile_j * STRIDE, rows, partial)
                else:
                    sum_tile(block, place, block, 4 * tile_j * STRIDE, rows, partial)
                _add_partial(partial, sums, position)
                position += 16
            if tile_i < first + _SLAB // 4:
                if half:
                    _sum_last_tile(block, place, rows, partial)
                else:
                    _sum_diagonal_tile(block, place, rows, partial)
                _add_partial(partial, sums, position)


@kernel
def add_cross(first, second, columns, rows, partial, sums):
    """Add firstᵀ second of two blocks to `sums`, kept as a matrix of order `padded(columns)`.

    Sums are made like those of `add_gram`.
    """
    tiles = (columns + 3) // 4
    for tile_i in range(tiles):
        for tile_j in range(tiles):
            sum_tile(first, 4 * tile_i * STRIDE, second, 4 * tile_j * STRIDE, rows, partial)
            for row in range(4):
                at = np.uintp(4 * ((4 * tile_i + row) * tiles + tile_j))
                for k in range(4):
                    sums[at + np.uintp(k)] += partial[np.uintp(4 * row + k)]


@inlined
def _add_partial(partial, sums, position):
    """Add the 16 sums of a tile to `sums`, from `position` on."""
    # Unsigned, so that the compiler adds no test for negative indices.
    at = np.uintp(position)
    for k in range(16):
        sums[at + np.uintp(k)] += partial[k]


@inlined
def sum_tile(first, i, second, j, rows, partial):
    """Write the products of four columns of `first`, from place i on, and four of `second`, from j.

    partial : (16,)
        Receives the sums over the rows, in the dtype of the blocks.
    """
    if vectors.WIDE_REGISTERS:
        # All 16 sums at once: eight are too few to hide the latency of a multiply-add.
        sums = sum_whole_tile(first, i, second, j, rows)
    else:
        upper = _all_parts(sum_half_tile, first, i, second, j, rows)
        sums = upper + _all_parts(sum_half_tile, first, i + 2 * STRIDE, second, j, rows)
    store_sums(partial, 0, sums)


@inlined
def _all_parts(sum_tile_of, first, i, second, j, rows):
    """Return sums of lanes over all parts of narrow vectors."""
    sums = sum_tile_of(first, i, second, j, rows)
    if vectors.PART_BYTES < vectors.NARROW_BYTES:
        lanes = vectors.PART_BYTES // first.itemsize
        sums = add_all(sums, sum_tile_of(first, i + lanes, second, j + lanes, rows))
    return sums


@inlined
def _four_zeros(block):
    zero = zero_part(block)
    return zero, zero, zero, zero


@inlined
def sum_whole_tile(first, i, second, j, rows):
    """Return the products of four columns of `first` and four of `second`, as sums of lanes."""
    four = _four_zeros(first)
    sums = four + four + four + four
    for row in range(0, rows, vectors.NARROW_BYTES // first.itemsize):
        keep_order()
        left, right = _four(load_part, first, i + row), _four(load_part, second, j + row)
        sums = add_products(left, right, sums)
    return sums


@inlined
def sum_half_tile(first, i, second, j, rows):
    """Return the products of two columns of `first` and four of `second`, as sums of lanes.

    The sums contain one part of every narrow vector of rows.
    """
    sums = _four_zeros(first) + _four_zeros(first)
    for row in range(0, rows, vectors.NARROW_BYTES // first.itemsize):
        keep_order()
        left, right = _two(load_part, first, i + row), _four(load_part, second, j + row)
        sums = add_products(left, right, sums)
    return sums


@inlined
def _sum_upper_half(first, i, second, j, rows, partial):
    """Write the products of two columns of `first` and four of `second`, as `sum_tile` does."""
    four = _four_zeros(first)
    store_sums(partial, 0, _all_parts(sum_half_tile, first, i, second, j, rows) + four + four)


@inlined
def _sum_diagonal_tile(block, i, rows, partial):
    """Write the products of four columns with themselves, from place i on, as `sum_tile` does.

    The upper half, the mirror image of the lower one, stays zero.
    """
    a, zero = _all_parts(_sum_lower_tile, block, i, block, i, rows), zero_part(block)
    sums = (
        a[0], zero, zero, zero, a[1], a[2], zero, zero, a[3], a[4], a[5], zero, a[6], a[7], a[8],
        a[9],
    )  # fmt: skip
    store_sums(partial, 0, sums)


@inlined
def _sum_last_tile(block, i, rows, partial):
    """Write the products of two columns with themselves, from place i on, as `sum_tile` does."""
    a, zero = _all_parts(_sum_two_squares, block, i, block, i, rows), zero_part(block)
    four = _four_zeros(block)
    store_sums(partial, 0, (a[0], zero, zero, zero, a[1], a[2], zero, zero, *four, *four))


@inlined
def _sum_lower_tile(block, i, _, _i, rows):
    """Return the products of four columns with themselves like `sum_half_tile`, row by row."""
    four = _four_zeros(block)
    sums = four + four + four[:2]
    for row in range(0, rows, vectors.NARROW_BYTES // block.itemsize):
        keep_order()
        sums = add_squares(_four(load_part, block, i + row), sums)
    return sums


@inlined
def _sum_two_squares(block, i, _, _i, rows):
    """Return the products of two columns with themselves like `sum_half_tile`, row by row."""
    sums = _four_zeros(block)[:3]
    for row in range(0, rows, vectors.NARROW_BYTES // block.itemsize):
        sums = add_squares(_two(load_part, block, i + row), sums)
    return sums


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
