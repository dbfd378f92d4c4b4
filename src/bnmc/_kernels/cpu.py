"""The CPU kernels: layers of an ensemble of chains.

Rows of a layer are worked on in blocks of `BLOCK`, kept as (column, row) so that neighbouring
lanes of a vector are neighbouring rows.  A block of rows is drawn given the Gram matrix
(`draw_rows`), or multiplied by weights that exist one tile at a time (`multiply_rows`); then it
is normalised and activated in place, and its Gram matrix is added to that of its panel.  Panels,
which are what threads share a wide layer by, are merged in order.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numba import types

from bnmc._kernels import simd
from bnmc._kernels.core import cholesky as factoring
from bnmc._kernels.core import elementary, gamma, normal, philox
from bnmc._kernels.core.cholesky import centre, cholesky, find_twins, scale_of
from bnmc._kernels.core.gamma import chi
from bnmc._kernels.core.normal import (
    radius32,
    radius64,
    sincos32,
    sincos64,
    uniform32,
    uniform64,
)
from bnmc._kernels.core.philox import philox4x32
from bnmc._kernels.jit import (
    Sigma,
    activate,
    by_precision,
    calls_apart,
    compiled_apart,
    inline_module,
    inlined,
    kernel,
)
from bnmc._kernels.simd import (
    all_greater,
    fill_like,
    keep_order,
    load_narrow,
    load_wide,
    multiply_add,
    scale_add,
    square_root,
    store,
    store_sums,
    zero_narrow,
    zero_wide,
)

for module in (philox, elementary, normal, gamma, factoring):
    inline_module(module)

#: Rows of a block, and of the part of it that one call of the generator fills: four words of
#: each of 16 neighbouring counters.
BLOCK = 512
GROUP = 64
LANES = GROUP // 4
# Unsigned, as offsets are, so that the compiler need not look for negative indices.
ONE, TWO, THREE = np.uintp(LANES), np.uintp(2 * LANES), np.uintp(3 * LANES)
#: Columns of the weights that exist at a time.
TILE = 32

# Norms and laws of weights as kernels know them.
NORM_NONE, NORM_UNCENTRED, NORM_CENTRED = 0, 1, 2
GAUSSIAN, UNIFORM, RADEMACHER, GIVEN = 0, 1, 2, 3
# What may happen to a chain.
RUNNING, ZERO_VARIANCE, NOT_FINITE, UNRESOLVED = 0, 1, 2, 3
# The least pivot, as a part of its diagonal entry, that sums of float32 numbers resolve: their
# rounding is about 1e-7 of the entry, so 1e-3 of such a pivot.
RESOLVED_PIVOT = 2.0**-13

# Streams: the top four bits of the counter's last word.  The second word of a float64 has the
# number of the first, plus one.
STREAM_ROWS = np.uint32(0x00000000)
STREAM_WEIGHTS = np.uint32(0x20000000)
STREAM_FACTOR = np.uint32(0x40000000)
STREAM_CHI = np.uint32(0x60000000)
SECOND_WORD = np.uint32(0x10000000)

SQRT3 = 1.7320508075688772
LOG_2 = 0.6931471805599453


class Law(NamedTuple):
    """What a kernel needs to know of a chain; `columns` is batch times the number of inputs."""

    width: int
    batch: int
    columns: int
    norm: int
    skip: float
    gain: float
    eps: float


class Draw(NamedTuple):
    """Where the random numbers of a layer of one chain are: all but element and row."""

    layer: int
    stream: np.uint32
    key0: np.uint32
    key1: np.uint32


class Work(NamedTuple):
    """Buffers of one thread, aligned to cache lines; see `bnmc._kernels.memory`."""

    block: np.ndarray  # (columns padded to 4) * BLOCK
    tile: np.ndarray  # TILE * BLOCK
    means: np.ndarray  # inputs * BLOCK
    scales: np.ndarray  # inputs * BLOCK
    partial: np.ndarray  # 16
    sums: np.ndarray  # float64, 16 for each 4 x 4 tile of the lower triangle
    covariance: np.ndarray  # float64 (columns, columns)
    group_means: np.ndarray  # float64 (inputs, columns)
    diagonal: np.ndarray  # float64 (columns,)
    panel: np.ndarray  # float64 (4, columns)
    twin: np.ndarray  # int64 (columns,)
    factor: np.ndarray  # (padded columns, padded columns)
    regular: np.ndarray  # bool (columns,)


def _normals32(out, offset, element, group, layer, stream, k0, k1):
    for lane in range(LANES):
        at = offset + np.uintp(lane)
        w0, w1, w2, w3 = philox4x32(element, group * LANES + lane, layer, stream, k0, k1)
        radius_a, radius_b = radius32(w0), radius32(w2)
        sine_a, cosine_a = sincos32(w1)
        sine_b, cosine_b = sincos32(w3)
        out[at] = radius_a * sine_a
        out[at + ONE] = radius_a * cosine_a
        out[at + TWO] = radius_b * sine_b
        out[at + THREE] = radius_b * cosine_b


def _normals64(out, offset, element, group, layer, stream, k0, k1):
    second = np.uint32(stream | SECOND_WORD)
    for lane in range(LANES):
        at = offset + np.uintp(lane)
        w0, w1, w2, w3 = philox4x32(element, group * LANES + lane, layer, stream, k0, k1)
        v0, v1, v2, v3 = philox4x32(element, group * LANES + lane, layer, second, k0, k1)
        radius_a, radius_b = radius64(w0, v0), radius64(w2, v2)
        sine_a, cosine_a = sincos64(w1, v1)
        sine_b, cosine_b = sincos64(w3, v3)
        out[at] = radius_a * sine_a
        out[at + ONE] = radius_a * cosine_a
        out[at + TWO] = radius_b * sine_b
        out[at + THREE] = radius_b * cosine_b


def _uniforms32(out, offset, element, group, layer, stream, k0, k1):
    width = np.float32(2.0 * SQRT3)
    for lane in range(LANES):
        at = offset + np.uintp(lane)
        w0, w1, w2, w3 = philox4x32(element, group * LANES + lane, layer, stream, k0, k1)
        out[at] = width * (uniform32(w0) - np.float32(0.5))
        out[at + ONE] = width * (uniform32(w1) - np.float32(0.5))
        out[at + TWO] = width * (uniform32(w2) - np.float32(0.5))
        out[at + THREE] = width * (uniform32(w3) - np.float32(0.5))


def _uniforms64(out, offset, element, group, layer, stream, k0, k1):
    width = 2.0 * SQRT3
    second = np.uint32(stream | SECOND_WORD)
    for lane in range(LANES):
        at = offset + np.uintp(lane)
        w0, w1, w2, w3 = philox4x32(element, group * LANES + lane, layer, stream, k0, k1)
        v0, v1, v2, v3 = philox4x32(element, group * LANES + lane, layer, second, k0, k1)
        out[at] = width * (uniform64(w0, v0) - 0.5)
        out[at + ONE] = width * (uniform64(w1, v1) - 0.5)
        out[at + TWO] = width * (uniform64(w2, v2) - 0.5)
        out[at + THREE] = width * (uniform64(w3, v3) - 0.5)


def _signs(out, offset, element, group, layer, stream, k0, k1):
    half = np.uint32(0x80000000)
    for lane in range(LANES):
        at = offset + np.uintp(lane)
        w0, w1, w2, w3 = philox4x32(element, group * LANES + lane, layer, stream, k0, k1)
        out[at] = 1.0 if w0 < half else -1.0
        out[at + ONE] = 1.0 if w1 < half else -1.0
        out[at + TWO] = 1.0 if w2 < half else -1.0
        out[at + THREE] = 1.0 if w3 < half else -1.0


group_of_normals = by_precision("group_of_normals", _normals32, _normals64)
group_of_uniforms = by_precision("group_of_uniforms", _uniforms32, _uniforms64)
inlined(_signs)


@kernel
def fill_normals(out, first_column, first_element, columns, first_row, rows, draw):
    """Write the normals of `columns` columns and `rows` rows to a block.

    The columns from `first_column` on have the elements from `first_element` on.  Rows start at
    `first_row`; both are multiples of `GROUP`.
    """
    for start in range(0, rows, GROUP):
        group = (first_row + start) // GROUP
        for k in range(columns):
            group_of_normals(
                out, np.uintp((first_column + k) * BLOCK + start), first_element + k, group,
                draw.layer, draw.stream, draw.key0, draw.key1,
            )  # fmt: skip


@kernel
def fill_uniforms(out, first_column, first_element, columns, first_row, rows, draw):
    """Like `fill_normals`, uniform on (-sqrt 3, sqrt 3)."""
    for start in range(0, rows, GROUP):
        group = (first_row + start) // GROUP
        for k in range(columns):
            group_of_uniforms(
                out, np.uintp((first_column + k) * BLOCK + start), first_element + k, group,
                draw.layer, draw.stream, draw.key0, draw.key1,
            )  # fmt: skip


@kernel
def fill_signs(out, first_column, first_element, columns, first_row, rows, draw):
    """Like `fill_normals`, -1 or 1."""
    for start in range(0, rows, GROUP):
        group = (first_row + start) // GROUP
        for k in range(columns):
            _signs(
                out, np.uintp((first_column + k) * BLOCK + start), first_element + k, group,
                draw.layer, draw.stream, draw.key0, draw.key1,
            )  # fmt: skip


@kernel
def multiply_triangular(factor, columns, block, rows):
    """Replace the columns of a block by factor @ block, for a lower triangular factor.

    `factor` and `block` are padded with zeros to a multiple of four columns; `block` is flat,
    (columns, BLOCK).  The result takes the place of the argument: a column of it depends on
    earlier columns alone, so the last ones come first.
    """
    strip = simd.WIDE_BYTES // block.itemsize
    for row in range(0, rows, strip):
        for tile in range((columns + 3) // 4 - 1, -1, -1):
            i = 4 * tile
            if i + 2 >= columns:
                # One or two columns are left over: half a tile.
                sum0 = zero_wide(block)
                sum1 = zero_wide(block)
                for k in range(columns):
                    lanes = load_wide(block, k * BLOCK + row)
                    sum0 = scale_add(factor[i, k], lanes, sum0)
                    sum1 = scale_add(factor[i + 1, k], lanes, sum1)
                store(block, i * BLOCK + row, sum0)
                store(block, (i + 1) * BLOCK + row, sum1)
                continue
            sum0 = zero_wide(block)
            sum1 = zero_wide(block)
            sum2 = zero_wide(block)
            sum3 = zero_wide(block)
            for k in range(min(i + 4, columns)):
                lanes = load_wide(block, k * BLOCK + row)
                sum0 = scale_add(factor[i, k], lanes, sum0)
                sum1 = scale_add(factor[i + 1, k], lanes, sum1)
                sum2 = scale_add(factor[i + 2, k], lanes, sum2)
                sum3 = scale_add(factor[i + 3, k], lanes, sum3)
            store(block, i * BLOCK + row, sum0)
            store(block, (i + 1) * BLOCK + row, sum1)
            store(block, (i + 2) * BLOCK + row, sum2)
            store(block, (i + 3) * BLOCK + row, sum3)


@kernel
def add_product(factor, start, columns, tile, depth, block, rows):
    """Add factor[:, start : start + depth] @ tile to the columns of a block."""
    strip = simd.WIDE_BYTES // block.itemsize
    tiles = (columns + 3) // 4
    for row in range(0, rows, strip):
        for quad in range(tiles):
            i = 4 * quad
            sum0 = load_wide(block, i * BLOCK + row)
            sum1 = load_wide(block, (i + 1) * BLOCK + row)
            sum2 = load_wide(block, (i + 2) * BLOCK + row)
            sum3 = load_wide(block, (i + 3) * BLOCK + row)
            for k in range(depth):
                lanes = load_wide(tile, k * BLOCK + row)
                sum0 = scale_add(factor[i, start + k], lanes, sum0)
                sum1 = scale_add(factor[i + 1, start + k], lanes, sum1)
                sum2 = scale_add(factor[i + 2, start + k], lanes, sum2)
                sum3 = scale_add(factor[i + 3, start + k], lanes, sum3)
            store(block, i * BLOCK + row, sum0)
            store(block, (i + 1) * BLOCK + row, sum1)
            store(block, (i + 2) * BLOCK + row, sum2)
            store(block, (i + 3) * BLOCK + row, sum3)


@kernel
def add_gram(block, columns, rows, partial, sums):
    """Add the Gram matrix of a block to `sums`, kept as 4 x 4 tiles of the lower triangle.

    Within a block sums are in the block's dtype, one a lane; across blocks in float64.
    """
    strip = simd.NARROW_BYTES // block.itemsize
    tiles = (columns + 3) // 4
    position = 0
    for tile_i in range(tiles):
        i = 4 * tile_i * BLOCK
        for tile_j in range(tile_i + 1):
            j = 4 * tile_j * BLOCK
            s00, s01, s02, s03 = (
                zero_narrow(block),
                zero_narrow(block),
                zero_narrow(block),
                zero_narrow(block),
            )
            s10, s11, s12, s13 = (
                zero_narrow(block),
                zero_narrow(block),
                zero_narrow(block),
                zero_narrow(block),
            )
            s20, s21, s22, s23 = (
                zero_narrow(block),
                zero_narrow(block),
                zero_narrow(block),
                zero_narrow(block),
            )
            s30, s31, s32, s33 = (
                zero_narrow(block),
                zero_narrow(block),
                zero_narrow(block),
                zero_narrow(block),
            )
            if tile_i == tile_j:
                # Half of a tile on the diagonal is the mirror image of the other half.
                for row in range(0, rows, strip):
                    keep_order()
                    x0 = load_narrow(block, i + row)
                    x1 = load_narrow(block, i + BLOCK + row)
                    x2 = load_narrow(block, i + 2 * BLOCK + row)
                    x3 = load_narrow(block, i + 3 * BLOCK + row)
                    s00, s10 = multiply_add(x0, x0, s00), multiply_add(x1, x0, s10)
                    s20, s30 = multiply_add(x2, x0, s20), multiply_add(x3, x0, s30)
                    s11, s21 = multiply_add(x1, x1, s11), multiply_add(x2, x1, s21)
                    s31, s22 = multiply_add(x3, x1, s31), multiply_add(x2, x2, s22)
                    s32, s33 = multiply_add(x3, x2, s32), multiply_add(x3, x3, s33)
            else:
                for row in range(0, rows, strip):
                    keep_order()
                    x0 = load_narrow(block, i + row)
                    x1 = load_narrow(block, i + BLOCK + row)
                    x2 = load_narrow(block, i + 2 * BLOCK + row)
                    x3 = load_narrow(block, i + 3 * BLOCK + row)
                    y = load_narrow(block, j + row)
                    s00, s10 = multiply_add(x0, y, s00), multiply_add(x1, y, s10)
                    s20, s30 = multiply_add(x2, y, s20), multiply_add(x3, y, s30)
                    y = load_narrow(block, j + BLOCK + row)
                    s01, s11 = multiply_add(x0, y, s01), multiply_add(x1, y, s11)
                    s21, s31 = multiply_add(x2, y, s21), multiply_add(x3, y, s31)
                    y = load_narrow(block, j + 2 * BLOCK + row)
                    s02, s12 = multiply_add(x0, y, s02), multiply_add(x1, y, s12)
                    s22, s32 = multiply_add(x2, y, s22), multiply_add(x3, y, s32)
                    y = load_narrow(block, j + 3 * BLOCK + row)
                    s03, s13 = multiply_add(x0, y, s03), multiply_add(x1, y, s13)
                    s23, s33 = multiply_add(x2, y, s23), multiply_add(x3, y, s33)
            store_sums(
                partial,
                0,
                (
                    s00,
                    s01,
                    s02,
                    s03,
                    s10,
                    s11,
                    s12,
                    s13,
                    s20,
                    s21,
                    s22,
                    s23,
                    s30,
                    s31,
                    s32,
                    s33,
                ),
            )
            # Unsigned, so that the compiler need not look for negative indices.
            at = np.uintp(position)
            for k in range(16):
                sums[at + np.uintp(k)] += partial[k]
            position += 16


@kernel
def measure_rows(block, rows, law, means, scales):
    """Write what the normalization subtracts from each row, and what it multiplies it by.

    means, scales : (inputs * BLOCK,), in the block's dtype
        One of each for each row of each input batch.

    Returns a row without variance, or -1.
    """
    batch = law.batch
    number = block.dtype.type
    # The mean of equal entries need not equal them: a variance within its rounding is zero.
    unit = 2.0**-23 if block.itemsize == 4 else 2.0**-52
    strip = simd.WIDE_BYTES // block.itemsize
    zero = zero_wide(block)
    one = fill_like(zero, number(1.0))
    ratio = fill_like(zero, number(1.0 / batch))
    rounding = fill_like(zero, number((batch * unit) ** 2))
    eps = fill_like(zero, number(law.eps))
    for group in range(law.columns // batch):
        first = group * batch
        for row in range(0, rows, strip):
            mean = zero
            scale = one
            if law.norm == NORM_CENTRED:
                for i in range(first, first + batch):
                    mean = mean + load_wide(block, i * BLOCK + row)
                mean = mean * ratio
            if law.norm != NORM_NONE:
                variance = zero
                for i in range(first, first + batch):
                    deviation = load_wide(block, i * BLOCK + row) - mean
                    variance = multiply_add(deviation, deviation, variance)
                variance = variance * ratio
                if law.eps == 0.0 and not all_greater(variance, rounding * (mean * mean)):
                    return row_without_variance(block, first, row, rows, law)
                scale = one / square_root(variance + eps)
            store(means, group * BLOCK + row, mean)
            store(scales, group * BLOCK + row, scale)
    return -1


@kernel
def row_without_variance(block, first, start, rows, law):
    """Return the row from `start` on with the least variance, as a part of its squared mean.

    `first` is the first column of the batch.  Called where a strip of rows has one whose variance
    is zero to rounding, or not a number.
    """
    found, least = start, np.inf
    for row in range(start, rows):
        mean = 0.0
        if law.norm == NORM_CENTRED:
            for i in range(first, first + law.batch):
                mean += block[i * BLOCK + row] / law.batch
        variance = 0.0
        for i in range(first, first + law.batch):
            variance += (block[i * BLOCK + row] - mean) ** 2 / law.batch
        relative = variance / (mean * mean) if mean != 0.0 else variance
        if least == least and not relative >= least:
            found, least = row, relative
    return found


@kernel
def activate_columns(sigma, block, columns, batch, rows, means, scales):
    """Normalise the rows of a block, and apply the activation."""
    for i in range(columns):
        # Unsigned, so that the compiler need not look for negative indices.
        column = np.uintp(i * BLOCK)
        group = np.uintp(i // batch * BLOCK)
        for row in range(np.uintp(rows)):
            value = (block[column + row] - means[group + row]) * scales[group + row]
            block[column + row] = activate(sigma, value)


#: `activate_columns`, by its address where that is what `sigma` is.
activate_block = calls_apart(activate_columns)


@cache
def activation(sigma: Sigma, dtype: str) -> Any:
    """Return the activation as the kernels of a dtype take it from Python.

    They are compiled once, and for each activation `activate_columns` alone: a tenth of the time,
    for one indirect call a block of rows.
    """
    values = types.Array(types.float32 if dtype == "float32" else types.float64, 1, "C")
    number = types.int64
    return compiled_apart(activate_columns, sigma, (values, number, number, number, values, values))


@kernel
def finish_block(sigma, law, first_row, count, x, kept, block, means, scales):
    """Turn the rows W a of a block into activations; return a row without variance, or -1.

    The block holds `count` rows from `first_row` on, and arbitrary finite numbers up to the next
    multiple of `GROUP`, which become zeros: they count for nothing in the Gram matrix.  With a
    skip connection x holds the representation, (columns, >= width), and is brought up to date.
    The activations are written to `kept`, of the same shape, unless that has no rows.
    """
    rows = (count + GROUP - 1) // GROUP * GROUP
    if law.skip != 0.0:
        add_columns(law.skip, x, first_row, law.columns, rows, block)
    # Rows of no one, which may lack variance, would end the normalization of the others.
    repeat_first_row(block, law.columns, count, rows)
    degenerate = measure_rows(block, rows, law, means, scales)
    if degenerate >= 0:
        return first_row + degenerate
    if law.skip != 0.0:
        keep_normalised(block, law, rows, means, scales, first_row, x)
    activate_block(sigma, block, law.columns, law.batch, rows, means, scales)
    clear_rows(block, 0, law.columns, count, rows)
    if kept.shape[0] > 0:
        keep_columns(block, law.columns, rows, first_row, kept)
    return -1


@kernel
def keep_normalised(block, law, rows, means, scales, first_row, out):
    """Write the normalised rows of a block to `out`, (>= columns, >= first_row + rows)."""
    for i in range(law.columns):
        column = np.uintp(i * BLOCK)
        group = np.uintp(i // law.batch * BLOCK)
        for row in range(np.uintp(rows)):
            value = (block[column + row] - means[group + row]) * scales[group + row]
            out[i, first_row + row] = value


@kernel
def clear_rows(block, first_column, last_column, first_row, last_row):
    """Write zeros to a range of rows of a range of columns of a block."""
    for i in range(first_column, last_column):
        for at in range(np.uintp(i * BLOCK + first_row), np.uintp(i * BLOCK + last_row)):
            block[at] = 0.0


@kernel
def repeat_first_row(block, columns, first_row, last_row):
    """Write the first row of a block to a range of its rows."""
    for i in range(columns):
        value = block[i * BLOCK]
        for at in range(np.uintp(i * BLOCK + first_row), np.uintp(i * BLOCK + last_row)):
            block[at] = value


@kernel
def add_columns(factor, x, first_row, columns, rows, block):
    """Add factor * x to the columns of a block whose rows begin at `first_row`."""
    factor = block.dtype.type(factor)
    for i in range(columns):
        values = block[i * BLOCK : i * BLOCK + rows]
        others = x[i, first_row : first_row + rows]
        for row in range(rows):
            values[row] += factor * others[row]


@kernel
def scale_columns(factor, columns, rows, block):
    """Multiply the columns of a block by a number of its dtype."""
    for i in range(columns):
        for at in range(np.uintp(i * BLOCK), np.uintp(i * BLOCK + rows)):
            block[at] *= factor


@kernel
def keep_columns(block, columns, rows, first_row, out):
    """Write the columns of a block to rows of `out`, (>= columns, >= first_row + rows)."""
    for i in range(columns):
        values = block[i * BLOCK : i * BLOCK + rows]
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
def factorise(gram, law, covariance, group_means, diagonal, panel, twin, factor, regular):
    """Write the factor of the covariance of the rows of W a to `factor`.

    Under a normalization that does not see the scale of a row, the scale is brought to about 1.
    Returns the least pivot as a part of its diagonal entry, of all pivots that need not be zero.
    The last arguments are fields of a `Work`.
    """
    columns = law.columns
    # With a skip connection too, since the representation that is added is centred.
    centred = law.norm == NORM_CENTRED
    if centred:
        centre(gram, law.batch, group_means, covariance)
    else:
        copy_matrix(gram, covariance)
    for i in range(columns):
        diagonal[i] = covariance[i, i]
    scale = law.gain
    if law.norm != NORM_NONE and law.skip == 0.0 and law.eps == 0.0:
        scale = scale_of(diagonal)
    for first in range(0, columns, law.batch):
        mean = 0.0
        for i in range(first, first + law.batch):
            diagonal[i] = gram[i, i]
            mean += gram[i, i]
        mean /= law.batch
        if centred:
            # Centring rounds to the precision of the means, which may exceed a sample's own.
            for i in range(first, first + law.batch):
                diagonal[i] = max(diagonal[i], mean)
            # The others determine the last sample of a batch, so its pivot is zero.
            diagonal[first + law.batch - 1] = np.inf
    # Centring tells apart copies in batches whose other samples differ.
    find_twins(covariance, twin)
    cholesky(covariance, diagonal, twin, scale, panel, factor, regular)
    least = 1.0
    for k in range(columns):
        if twin[k] == k and not (centred and (k + 1) % law.batch == 0):
            least = min(least, diagonal[k])
    return least


@kernel
def draw_rows(
    sigma, law, x, kept, first_row, last_row, draw, block, means, scales, partial, sums, factor,
    regular,
):  # fmt: skip
    """Draw rows of a layer given the factor of its covariance; sum their Gram matrix.

    Returns a row without variance, or -1.  `sums` receives the Gram matrix times width.  The last
    arguments are fields of a `Work`, one by one: a tuple of arrays would cost a reference count
    of each at every call, which a small layer feels.
    """
    sums[:] = 0.0
    # Rows drawn with the covariance P G P are centred already, but for what a skip connection
    # would let rounding add up to.
    centred = law.norm == NORM_CENTRED and law.skip == 0.0
    norm = NORM_UNCENTRED if centred else law.norm
    law = Law(law.width, law.batch, law.columns, norm, law.skip, law.gain, law.eps)
    for start in range(first_row, last_row, BLOCK):
        count = min(BLOCK, last_row - start)
        rows = (count + GROUP - 1) // GROUP * GROUP
        k = 0
        while k < law.columns:
            end = k + 1
            while end < law.columns and regular[end] == regular[k]:
                end += 1
            if regular[k]:
                fill_normals(block, k, k, end - k, start, rows, draw)
            else:
                clear_rows(block, k, end, 0, rows)
            k = end
        multiply_triangular(factor, law.columns, block, rows)
        degenerate = finish_block(sigma, law, start, count, x, kept, block, means, scales)
        if degenerate >= 0:
            return degenerate
        add_gram(block, law.columns, rows, partial, sums)
    return -1


@kernel
def fill_weights(weights, given, tile, element, columns, first_row, rows, draw):
    """Write unit-variance weights of `columns` columns and `rows` rows to `tile`."""
    if weights == GAUSSIAN:
        fill_normals(tile, 0, element, columns, first_row, rows, draw)
    elif weights == UNIFORM:
        fill_uniforms(tile, 0, element, columns, first_row, rows, draw)
    elif weights == RADEMACHER:
        fill_signs(tile, 0, element, columns, first_row, rows, draw)
    else:
        origin = first_row % given.shape[0]
        count = min(rows, given.shape[1] - first_row)
        for k in range(columns):
            tile[k * BLOCK : k * BLOCK + rows] = 0.0
            for row in range(count):
                tile[k * BLOCK + row] = given[origin + row, element + k]


@kernel
def multiply_rows(sigma, law, weights, given, a, x, following, first_row, last_row, draw, work):
    """Multiply rows of the weights, a tile at a time, by the activations a; sum the Gram matrix.

    `given` holds the weights of a panel, (panel, width), where they are not drawn here.
    `a` and `following`, which receives the next activations, are (padded columns, >= width).
    Returns a row without variance, or -1.  `work.sums` receives the Gram matrix times width.
    """
    block, tile, partial, sums = work.block, work.tile, work.partial, work.sums
    means, scales = work.means, work.scales
    sums[:] = 0.0
    scale = block.dtype.type(law.gain / np.sqrt(law.width))
    for start in range(first_row, last_row, BLOCK):
        count = min(BLOCK, last_row - start)
        rows = (count + GROUP - 1) // GROUP * GROUP
        clear_rows(block, 0, law.columns, 0, rows)
        for element in range(0, law.width, TILE):
            depth = min(TILE, law.width - element)
            fill_weights(weights, given, tile, element, depth, start, rows, draw)
            add_product(a, element, law.columns, tile, depth, block, rows)
        scale_columns(scale, law.columns, rows, block)
        degenerate = finish_block(sigma, law, start, count, x, following, block, means, scales)
        if degenerate >= 0:
            return degenerate
        add_gram(block, law.columns, rows, partial, sums)
    return -1


@kernel
def unpack_gram(sums, law, gram):
    """Write tiles of sums over rows, divided by the width, as a symmetric matrix.

    Returns whether all of it is finite.
    """
    finite = True
    position = 0
    for tile_i in range((law.columns + 3) // 4):
        for tile_j in range(tile_i + 1):
            for k in range(16):
                i, j = 4 * tile_i + k // 4, 4 * tile_j + k % 4
                if j <= i < law.columns:
                    value = sums[position + k] / law.width
                    gram[i, j] = value
                    gram[j, i] = value
                    finite = finite and np.isfinite(value)
            position += 16
    return finite


@kernel
def conditional_layers(
    sigma, law, grams, xs, activations, first_chain, first_layer, slots, record, panel, key0, key1,
    total, work, status,
):  # fmt: skip
    """Take chains through layers, each drawn given the Gram matrix of the one before.

    Parameters
    ----------
    grams : (chains, columns, columns) float64
        The state, brought up to date.
    xs : (chains, columns, >= width), or (1, 1, 1) without a skip connection
        The representations, brought up to date.
    activations : (chains, 2, padded columns, >= width), or (1, 2, 0, 0)
        Where the activations are wanted, as those of layer 0 by weights, receives them in [:, 0].
    slots : (layers,) int64
        Where in `record` each layer goes, or -1.
    record : (chains, slots, columns, columns) float64
    panel : int
        Rows of a panel.
    status : (chains, 3) int64
        What happened, in which layer, to which row; a chain stops where something happens.  One
        that stops as UNRESOLVED stops before that layer: its Gram matrix has pivots that float32
        rows would not resolve, so the layer is for float64.
    """
    block, means, scales, partial, sums = (
        work.block,
        work.means,
        work.scales,
        work.partial,
        work.sums,
    )
    covariance, group_means, diagonal = work.covariance, work.group_means, work.diagonal
    columns, twin, factor, regular = work.panel, work.twin, work.factor, work.regular
    guarded = work.block.itemsize == 4 and law.skip == 0.0 and activations.shape[3] == 0
    for chain in range(grams.shape[0]):
        gram = grams[chain]
        x = xs[chain if law.skip != 0.0 else 0]
        kept = activations[chain if activations.shape[0] > 1 else 0, 0]
        stream = np.uint32(STREAM_ROWS | np.uint32(first_chain + chain))
        for step in range(slots.shape[0]):
            draw = Draw(first_layer + step, stream, key0, key1)
            least_pivot = factorise(
                gram,
                law,
                covariance,
                group_means,
                diagonal,
                columns,
                twin,
                factor,
                regular,
            )
            if guarded and least_pivot < RESOLVED_PIVOT:
                status[chain, 0] = UNRESOLVED
                status[chain, 1] = first_layer + step
                break
            total[:] = 0.0
            degenerate = -1
            for first_row in range(0, law.width, panel):
                last_row = min(first_row + panel, law.width)
                degenerate = draw_rows(
                    sigma,
                    law,
                    x,
                    kept,
                    first_row,
                    last_row,
                    draw,
                    block,
                    means,
                    scales,
                    partial,
                    sums,
                    factor,
                    regular,
                )
                if degenerate >= 0:
                    break
                for k in range(total.shape[0]):
                    total[k] += sums[k]
            finite = unpack_gram(total, law, gram)
            if not finite or degenerate >= 0:
                status[chain, 0] = ZERO_VARIANCE if finite else NOT_FINITE
                status[chain, 1] = first_layer + step
                status[chain, 2] = degenerate
                break
            if slots[step] >= 0:
                copy_matrix(gram, record[chain, slots[step]])


@kernel
def weighted_layers(
    sigma, law, weights, given, grams, xs, activations, first_chain, first_layer, slots, record,
    panel, key0, key1, total, work, status,
):  # fmt: skip
    """Take chains through layers whose weights are drawn.

    Parameters are those of `conditional_layers`, and

    activations : (chains, 2, padded columns, >= width)
        The state: activations of even and of odd layers.
    given : (1, 1)
        Nothing.
    """
    for chain in range(activations.shape[0]):
        gram = grams[chain]
        x = xs[chain if law.skip != 0.0 else 0]
        stream = np.uint32(STREAM_WEIGHTS | np.uint32(first_chain + chain))
        for step in range(slots.shape[0]):
            layer = first_layer + step
            draw = Draw(layer, stream, key0, key1)
            a = activations[chain, (layer + 1) % 2]
            following = activations[chain, layer % 2]
            total[:] = 0.0
            degenerate = -1
            for first_row in range(0, law.width, panel):
                last_row = min(first_row + panel, law.width)
                degenerate = multiply_rows(
                    sigma,
                    law,
                    weights,
                    given,
                    a,
                    x,
                    following,
                    first_row,
                    last_row,
                    draw,
                    work,
                )
                if degenerate >= 0:
                    break
                for k in range(total.shape[0]):
                    total[k] += work.sums[k]
            finite = unpack_gram(total, law, gram)
            if not finite or degenerate >= 0:
                status[chain, 0] = ZERO_VARIANCE if finite else NOT_FINITE
                status[chain, 1] = layer
                status[chain, 2] = degenerate
                break
            if slots[step] >= 0:
                copy_matrix(gram, record[chain, slots[step]])


@kernel
def gram_of_rows(a, width, work, gram):
    """Write the Gram matrix of activations a, (columns, >= width) and zero beyond, to `gram`.

    Only the fields of `law` that the sums need are known here, so they are passed apart.
    """
    law = Law(width, gram.shape[0], gram.shape[0], NORM_NONE, 0.0, 1.0, 0.0)
    work.sums[:] = 0.0
    for start in range(0, width, BLOCK):
        rows = (min(BLOCK, width - start) + GROUP - 1) // GROUP * GROUP
        for k in range(law.columns):
            values, others = work.block[k * BLOCK : k * BLOCK + rows], a[k, start : start + rows]
            for row in range(rows):
                values[row] = others[row]
        add_gram(work.block, law.columns, rows, work.partial, work.sums)
    return unpack_gram(work.sums, law, gram)


@kernel
def factor_layers(
    law, factors, exponents, log_start, first_chain, first_layer, slots, record, log_scales,
    log_pivots, key0, key1, work,
):  # fmt: skip
    """Take linear chains without normalization through layers, by the factor of a Wishart matrix.

    With G = F^T F, F upper triangular, the next Gram matrix is (T F)^T (T F) gain^2 / width, where
    T is the upper trapezoidal factor of a Wishart matrix (Bartlett): chi variables on the
    diagonal, normals above it.  T F is triangular again, so nothing is ever factored, and the
    cost does not depend on the width.

    Parameters
    ----------
    factors : (chains, columns, columns) float64
        The state, brought up to date: row i of F is factors[i] * 2 ** exponents[i].
    exponents : (chains, columns) float64
        Whole numbers.  Each row has its own, since their ratios under- and overflow with depth.
    log_start : (chains,) float64
        What the factor of layer 0 leaves out: G_0 = exp(log_start) F^T F.
    record : (chains, slots, columns, columns) float64
        Receives G times exp(-log_scale), of trace n.
    log_scales : (chains, slots) float64
    log_pivots : (chains, slots, columns) float64
        Receives log F_ii^2, whose growth rates are twice the Lyapunov exponents; -inf where the
        rank is less.
    """
    columns = factors.shape[1]
    block = work.block
    rank = min(law.width, columns)
    for chain in range(factors.shape[0]):
        factor, exponent = factors[chain], exponents[chain]
        stream = np.uint32(STREAM_FACTOR | np.uint32(first_chain + chain))
        stream_chi = np.uint32(STREAM_CHI | np.uint32(first_chain + chain))
        for step in range(slots.shape[0]):
            layer = first_layer + step
            draw = Draw(layer, stream, key0, key1)
            for i in range(columns):
                # Row i of T F needs rows k >= i of F alone, so it can take the place of row i.
                # The row i of T: a chi variable and the normals of the elements k > i.
                if i % BLOCK == 0:
                    rows = (min(BLOCK, columns - i) + GROUP - 1) // GROUP * GROUP
                    fill_normals(block, 0, 0, columns, i, rows, draw)
                row = work.panel[0]
                row[:] = 0.0
                largest = -np.inf
                for k in range(i, columns):
                    if np.any(factor[k] != 0.0):
                        largest = max(largest, exponent[k])
                if i < rank and largest > -np.inf:
                    for k in range(i, columns):
                        if k == i:
                            entry = chi(law.width - i, i, layer, stream_chi, key0, key1)
                        else:
                            entry = block[k * BLOCK + i % BLOCK]
                        entry *= 2.0 ** max(exponent[k] - largest, -1100.0)
                        for j in range(k, columns):
                            row[j] += entry * factor[k, j]
                size = 0.0
                for j in range(columns):
                    size = max(size, abs(row[j]))
                shift = np.floor(np.log2(size)) if size > 0.0 else 0.0
                for j in range(columns):
                    factor[i, j] = row[j] * 2.0**-shift
                exponent[i] = largest + shift if size > 0.0 else 0.0
            if slots[step] >= 0:
                common = log_of_factors(law, log_start[chain], layer)
                write_factor(
                    factor, exponent, common, record[chain, slots[step]], log_scales[chain],
                    log_pivots[chain], slots[step],
                )  # fmt: skip


@kernel
def log_of_factors(law, log_start, layer):
    """Return the logarithm of what multiplies F^T F: each layer has a factor gain^2 / width."""
    return log_start + layer * (2.0 * np.log(abs(law.gain)) - np.log(law.width))


@kernel
def write_factor(factor, exponent, common, gram, log_scales, log_pivots, slot):
    """Write the scaled Gram matrix of a factor, its log-scale and its log-pivots.

    `common` is the logarithm of what multiplies F^T F.
    """
    columns = factor.shape[0]
    largest = -np.inf
    for k in range(columns):
        if np.any(factor[k] != 0.0):
            largest = max(largest, exponent[k])
    gram[:, :] = 0.0
    for k in range(columns):
        pivot = abs(factor[k, k])
        log_pivots[slot, k] = -np.inf
        if pivot > 0.0:
            log_pivots[slot, k] = common + 2.0 * (np.log(pivot) + exponent[k] * LOG_2)
        if np.any(factor[k] != 0.0):
            scale = 2.0 ** max(exponent[k] - largest, -1100.0)
            for i in range(k, columns):
                for j in range(k, columns):
                    gram[i, j] += (scale * factor[k, i]) * (scale * factor[k, j])
    trace = 0.0
    for i in range(columns):
        trace += gram[i, i] / columns
    log_scales[slot] = -np.inf
    if trace > 0.0:
        log_scales[slot] = common + 2.0 * largest * LOG_2 + np.log(trace)
        for i in range(columns):
            for j in range(columns):
                gram[i, j] /= trace


@kernel
def draw_panels(sigma, law, x, kept, first_panel, last_panel, panel, draw, work, panel_sums):
    """Draw panels of one layer, whose factor is in `work`; return a row without variance, or -1.

    panel_sums : (panels, sums) float64
        Receives the sums of each panel.
    """
    for number in range(first_panel, last_panel):
        first_row = number * panel
        last_row = min(first_row + panel, law.width)
        degenerate = draw_rows(
            sigma, law, x, kept, first_row, last_row, draw, work.block, work.means, work.scales,
            work.partial, work.sums, work.factor, work.regular,
        )  # fmt: skip
        if degenerate >= 0:
            return degenerate
        panel_sums[number] = work.sums
    return -1


@kernel
def multiply_panels(
    sigma, law, weights, given, a, x, following, first_panel, last_panel, panel, draw, work,
    panel_sums,
):  # fmt: skip
    """Like `draw_panels`, by weights."""
    for number in range(first_panel, last_panel):
        first_row = number * panel
        last_row = min(first_row + panel, law.width)
        degenerate = multiply_rows(
            sigma, law, weights, given, a, x, following, first_row, last_row, draw, work
        )
        if degenerate >= 0:
            return degenerate
        panel_sums[number] = work.sums
    return -1


@kernel
def merge_panels(panel_sums, law, total, gram):
    """Add the sums of panels in their order; return whether the Gram matrix is finite."""
    total[:] = 0.0
    for number in range(panel_sums.shape[0]):
        for k in range(total.shape[0]):
            total[k] += panel_sums[number, k]
    return unpack_gram(total, law, gram)


@kernel
def update_moments(values, count, mean, squares):
    """Add rows of `values`, one after the other, to running moments (Welford).

    values : (rows, items) float64; mean, squares : (items,) float64
        `squares` is the sum of squared deviations.  Returns the new count.
    """
    for row in range(values.shape[0]):
        count += 1
        for item in range(values.shape[1]):
            deviation = values[row, item] - mean[item]
            mean[item] += deviation / count
            squares[item] += deviation * (values[row, item] - mean[item])
    return count
