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
    keep_order,
    load_part,
    load_strip,
    multiply_add,
    scale_add,
    store,
    store_sums,
    zero_part,
    zero_strip,
)

#: Columns that a product goes through at once, which stay in the cache of a core.  Bits of batches
#: with more columns depend on it.
SLAB = 128

#: Tiles of four columns to which a strip of a slab is added while it is in the nearest cache.
TILES = 8


@kernel
def multiply_triangular(factor, columns, source, block, rows):
    """Write factor @ source to a block, for a lower triangular factor.

    `factor` and the two blocks are padded with zeros to a multiple of four columns.  Blocks are
    flat, (columns, STRIDE).  `source` may be the block: a column of the result depends on earlier
    columns alone, so the last ones come first.
    """
    for first in range((columns - 1) // SLAB * SLAB, -1, -SLAB):
        last = min(first + SLAB, columns)
        if last < columns:
            add_slab(factor, last, columns, first, last - first, source, first, block, rows)
        multiply_slab(factor, first, last, source, block, rows)


@kernel
def multiply_slab(factor, first, last, source, block, rows):
    """Write to columns first:last of a block what the same columns of `source` make of them."""
    strip = vectors.STRIP_BYTES // block.itemsize
    for row in range(0, rows, strip):
        for tile in range((last + 3) // 4 - 1, first // 4 - 1, -1):
            i = 4 * tile
            sum0 = zero_strip(block)
            sum1 = zero_strip(block)
            if i + 2 >= last:
                # One or two columns remain: half a tile.
                for k in range(first, i):
                    lanes = load_strip(source, k * STRIDE + row)
                    sum0 = scale_add(factor[i, k], lanes, sum0)
                    sum1 = scale_add(factor[i + 1, k], lanes, sum1)
                lanes = load_strip(source, i * STRIDE + row)
                sum0 = scale_add(factor[i, i], lanes, sum0)
                sum1 = scale_add(factor[i + 1, i], lanes, sum1)
                lanes = load_strip(source, (i + 1) * STRIDE + row)
                sum1 = scale_add(factor[i + 1, i + 1], lanes, sum1)
                store(block, i * STRIDE + row, sum0)
                store(block, (i + 1) * STRIDE + row, sum1)
                continue
            sum2 = zero_strip(block)
            sum3 = zero_strip(block)
            for k in range(first, i):
                lanes = load_strip(source, k * STRIDE + row)
                sum0 = scale_add(factor[i, k], lanes, sum0)
                sum1 = scale_add(factor[i + 1, k], lanes, sum1)
                sum2 = scale_add(factor[i + 2, k], lanes, sum2)
                sum3 = scale_add(factor[i + 3, k], lanes, sum3)
            # The tile at the diagonal is triangular itself.
            lanes = load_strip(source, i * STRIDE + row)
            sum0 = scale_add(factor[i, i], lanes, sum0)
            sum1 = scale_add(factor[i + 1, i], lanes, sum1)
            sum2 = scale_add(factor[i + 2, i], lanes, sum2)
            sum3 = scale_add(factor[i + 3, i], lanes, sum3)
            lanes = load_strip(source, (i + 1) * STRIDE + row)
            sum1 = scale_add(factor[i + 1, i + 1], lanes, sum1)
            sum2 = scale_add(factor[i + 2, i + 1], lanes, sum2)
            sum3 = scale_add(factor[i + 3, i + 1], lanes, sum3)
            lanes = load_strip(source, (i + 2) * STRIDE + row)
            sum2 = scale_add(factor[i + 2, i + 2], lanes, sum2)
            sum3 = scale_add(factor[i + 3, i + 2], lanes, sum3)
            lanes = load_strip(source, (i + 3) * STRIDE + row)
            sum3 = scale_add(factor[i + 3, i + 3], lanes, sum3)
            store(block, i * STRIDE + row, sum0)
            store(block, (i + 1) * STRIDE + row, sum1)
            store(block, (i + 2) * STRIDE + row, sum2)
            store(block, (i + 3) * STRIDE + row, sum3)


@kernel
def add_product(factor, start, columns, tile, depth, block, rows):
    """Add factor[:, start : start + depth] @ tile to the columns of a block."""
    for at in range(0, depth, SLAB):
        width = min(SLAB, depth - at)
        add_slab(factor, 0, columns, start + at, width, tile, at, block, rows)


@kernel
def add_slab(factor, first, columns, start, depth, tile, at, block, rows):
    """Add factor[first:columns, start : start + depth] @ tile[at : at + depth] to a block.

    `first` is a multiple of four.  `tile` is flat, (>= at + depth, BLOCK), and may be the block.
    """
    strip = vectors.STRIP_BYTES // block.itemsize
    tiles = (columns + 3) // 4
    for begin in range(first // 4, tiles, TILES):
        for row in range(0, rows, strip):
            for quad in range(begin, min(begin + TILES, tiles)):
                i = 4 * quad
                sum0 = load_strip(block, i * STRIDE + row)
                sum1 = load_strip(block, (i + 1) * STRIDE + row)
                sum2 = load_strip(block, (i + 2) * STRIDE + row)
                sum3 = load_strip(block, (i + 3) * STRIDE + row)
                for k in range(depth):
                    lanes = load_strip(tile, (at + k) * STRIDE + row)
                    sum0 = scale_add(factor[i, start + k], lanes, sum0)
                    sum1 = scale_add(factor[i + 1, start + k], lanes, sum1)
                    sum2 = scale_add(factor[i + 2, start + k], lanes, sum2)
                    sum3 = scale_add(factor[i + 3, start + k], lanes, sum3)
                store(block, i * STRIDE + row, sum0)
                store(block, (i + 1) * STRIDE + row, sum1)
                store(block, (i + 2) * STRIDE + row, sum2)
                store(block, (i + 3) * STRIDE + row, sum3)


@kernel
def add_gram(block, columns, rows, partial, sums):
    """Add the Gram matrix of a block to `sums`, kept as 4 x 4 tiles of the lower triangle.

    Within a block sums are in the block's dtype, one a lane; across blocks in float64.  Tiles are
    made slab by slab, whose columns are then in the cache.
    """
    tiles = (columns + 3) // 4
    for first in range(0, tiles, SLAB // 4):
        for tile_i in range(first, tiles):
            position = 16 * (tile_i * (tile_i + 1) // 2 + first)
            # The last tile of 4 k + 1 or 4 k + 2 columns has two rows.
            half = 4 * tile_i + 2 >= columns
            own = 4 * tile_i * STRIDE
            for tile_j in range(first, min(first + SLAB // 4, tile_i)):
                if half:
                    sum_two_columns(block, 4 * tile_j * STRIDE, block, own, rows, partial)
                else:
                    sum_tile(block, own, block, 4 * tile_j * STRIDE, rows, partial)
                add_partial(partial, sums, position)
                position += 16
            if tile_i < first + SLAB // 4:
                if half:
                    sum_last_tile(block, own, rows, partial)
                else:
                    sum_diagonal_tile(block, own, rows, partial)
                add_partial(partial, sums, position)


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
def add_partial(partial, sums, position):
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
        store_sums(partial, 0, sum_whole_tile(first, i, second, j, rows))
        return
    lanes = vectors.PART_BYTES // first.itemsize
    a = sum_half_tile(first, i, second, j, rows)
    b = sum_half_tile(first, i, second, j + 2 * STRIDE, rows)
    a = add_all(a, sum_half_tile(first, i + lanes, second, j + lanes, rows))
    b = add_all(b, sum_half_tile(first, i + lanes, second, j + 2 * STRIDE + lanes, rows))
    sums = (
        a[0], a[4], b[0], b[4], a[1], a[5], b[1], b[5], a[2], a[6], b[2], b[6], a[3], a[7], b[3],
        b[7],
    )  # fmt: skip
    store_sums(partial, 0, sums)


@inlined
def sum_whole_tile(first, i, second, j, rows):
    """Return the products of four columns of `first` and four of `second`, as sums of lanes."""
    strip = vectors.NARROW_BYTES // first.itemsize
    zero = zero_part(first)
    s00, s10, s20, s30 = zero, zero, zero, zero
    s01, s11, s21, s31 = zero, zero, zero, zero
    s02, s12, s22, s32 = zero, zero, zero, zero
    s03, s13, s23, s33 = zero, zero, zero, zero
    for row in range(0, rows, strip):
        keep_order()
        x = load_four(first, i + row)
        s00, s10, s20, s30 = add_column(x, second, j + row, s00, s10, s20, s30)
        s01, s11, s21, s31 = add_column(x, second, j + STRIDE + row, s01, s11, s21, s31)
        s02, s12, s22, s32 = add_column(x, second, j + 2 * STRIDE + row, s02, s12, s22, s32)
        s03, s13, s23, s33 = add_column(x, second, j + 3 * STRIDE + row, s03, s13, s23, s33)
    return (
        s00, s01, s02, s03, s10, s11, s12, s13, s20, s21, s22, s23, s30, s31, s32, s33
    )  # fmt: skip


@inlined
def sum_half_tile(first, i, second, j, rows):
    """Return the products of four columns of `first` and two of `second`, as sums of lanes.

    The sums contain one part of every narrow vector of rows.
    """
    strip = vectors.NARROW_BYTES // first.itemsize
    zero = zero_part(first)
    s00, s10, s20, s30 = zero, zero, zero, zero
    s01, s11, s21, s31 = zero, zero, zero, zero
    for row in range(0, rows, strip):
        keep_order()
        x = load_four(first, i + row)
        s00, s10, s20, s30 = add_column(x, second, j + row, s00, s10, s20, s30)
        s01, s11, s21, s31 = add_column(x, second, j + STRIDE + row, s01, s11, s21, s31)
    return s00, s10, s20, s30, s01, s11, s21, s31


@inlined
def sum_two_columns(first, i, second, j, rows, partial):
    """Write the products of two columns of `second`, from j on, and four of `first`, from i.

    These are the upper half of a tile; the lower one is zero.
    """
    a = sum_half_tile(first, i, second, j, rows)
    if vectors.PART_BYTES < vectors.NARROW_BYTES:
        lanes = vectors.PART_BYTES // first.itemsize
        a = add_all(a, sum_half_tile(first, i + lanes, second, j + lanes, rows))
    zero = zero_part(first)
    sums = (
        a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], zero, zero, zero, zero, zero, zero, zero,
        zero,
    )  # fmt: skip
    store_sums(partial, 0, sums)


@inlined
def load_four(block, i):
    """Return the same rows of four columns of a block."""
    return (
        load_part(block, i), load_part(block, i + STRIDE), load_part(block, i + 2 * STRIDE),
        load_part(block, i + 3 * STRIDE),
    )  # fmt: skip


@inlined
def add_column(x, second, j, s0, s1, s2, s3):
    """Return sums with the products of four columns and one of `second` added."""
    y = load_part(second, j)
    return (
        multiply_add(x[0], y, s0), multiply_add(x[1], y, s1), multiply_add(x[2], y, s2),
        multiply_add(x[3], y, s3),
    )  # fmt: skip


@inlined
def sum_diagonal_tile(block, i, rows, partial):
    """Write the products of four columns with themselves, from place i on, as `sum_tile` does.

    The upper half, the mirror image of the lower one, stays zero.
    """
    a = sum_lower_tile(block, i, rows)
    if vectors.PART_BYTES < vectors.NARROW_BYTES:
        a = add_all(a, sum_lower_tile(block, i + vectors.PART_BYTES // block.itemsize, rows))
    zero = zero_part(block)
    sums = (
        a[0], zero, zero, zero, a[1], a[2], zero, zero, a[3], a[4], a[5], zero, a[6], a[7], a[8],
        a[9],
    )  # fmt: skip
    store_sums(partial, 0, sums)


@inlined
def sum_last_tile(block, i, rows, partial):
    """Write the products of two columns with themselves, from place i on, as `sum_tile` does."""
    a = sum_two_squares(block, i, rows)
    if vectors.PART_BYTES < vectors.NARROW_BYTES:
        a = add_all(a, sum_two_squares(block, i + vectors.PART_BYTES // block.itemsize, rows))
    zero = zero_part(block)
    sums = (
        a[0], zero, zero, zero, a[1], a[2], zero, zero, zero, zero, zero, zero, zero, zero, zero,
        zero,
    )  # fmt: skip
    store_sums(partial, 0, sums)


@inlined
def sum_two_squares(block, i, rows):
    """Return the products of two columns with themselves like `sum_half_tile`, row by row."""
    strip = vectors.NARROW_BYTES // block.itemsize
    zero = zero_part(block)
    s00, s10, s11 = zero, zero, zero
    for row in range(0, rows, strip):
        x0, x1 = load_part(block, i + row), load_part(block, i + STRIDE + row)
        s00, s10 = multiply_add(x0, x0, s00), multiply_add(x1, x0, s10)
        s11 = multiply_add(x1, x1, s11)
    return s00, s10, s11


@inlined
def sum_lower_tile(block, i, rows):
    """Return the products of four columns with themselves like `sum_half_tile`, row by row."""
    strip = vectors.NARROW_BYTES // block.itemsize
    zero = zero_part(block)
    s00, s10, s20, s30, s11 = zero, zero, zero, zero, zero
    s21, s31, s22, s32, s33 = zero, zero, zero, zero, zero
    for row in range(0, rows, strip):
        keep_order()
        x0, x1, x2, x3 = load_four(block, i + row)
        s00, s10 = multiply_add(x0, x0, s00), multiply_add(x1, x0, s10)
        s20, s30 = multiply_add(x2, x0, s20), multiply_add(x3, x0, s30)
        s11, s21 = multiply_add(x1, x1, s11), multiply_add(x2, x1, s21)
        s31, s22 = multiply_add(x3, x1, s31), multiply_add(x2, x2, s22)
        s32, s33 = multiply_add(x3, x2, s32), multiply_add(x3, x3, s33)
    return s00, s10, s11, s20, s21, s22, s30, s31, s32, s33


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
        kept = out[i, first_row : first_row + rows]
        for row in range(rows):
            kept[row] = values[row]


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
