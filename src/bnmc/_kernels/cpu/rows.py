"""Rows of one layer: drawn or multiplied, normalized, activated, a block at a time."""

from __future__ import annotations

from functools import cache
from math import sqrt
from typing import Any

import numpy as np
from numba import types

from bnmc._kernels.compiling import (
    Sigma,
    activate,
    calls_apart,
    compiled_apart,
    inlined,
    kernel,
    part,
)
from bnmc._kernels.cpu import vectors
from bnmc._kernels.cpu.blocks import (
    add_product,
    clear_rows,
    scale_columns,
)
from bnmc._kernels.cpu.factor import Factored, cholesky
from bnmc._kernels.cpu.numbers import STRIDE, TILE, fill_normals, fill_uniforms, fill_weights
from bnmc._kernels.cpu.vectors import (
    all_greater,
    fill_like,
    load_strip,
    multiply_add,
    square_root,
    store,
    zero_strip,
)
from bnmc._kernels.scalar.cholesky import centre, find_twins, scale_of
from bnmc._kernels.scalar.codes import (
    LEAST_VARIANCE,
    MOST_VARIANCE,
    NORM_NONE,
    NOT_FINITE,
    RESOLVED_DEVIATION,
    ROW_OUT_OF_RANGE,
    ZERO_VARIANCE,
)
from bnmc._kernels.scalar.elementary import larger, smaller


@kernel
def measure_rows(block, rows, spec, centred, scales):
    """Subtract their means from the rows of a block, if `centred`; write their scale factors.

    scales : (inputs * STRIDE,), in the block's dtype
        One for each row of each input batch.

    Returns a row without variance, or -1; `ROW_OUT_OF_RANGE` or more if the squares of a row leave
    the range of its dtype.  Rows from its strip on have their means then, to rounding.
    """
    batch = spec.batch
    number = block.dtype.type
    # The mean of equal entries need not equal them: a variance within its rounding is zero.
    unit = 2.0**-23 if block.itemsize == 4 else 2.0**-52
    strip = vectors.STRIP_BYTES // block.itemsize
    zero = zero_strip(block)
    ones = fill_like(zero, number(1.0))
    ratio = fill_like(zero, number(1.0 / batch))
    resolved = batch * unit
    rounding = fill_like(zero, number(resolved * resolved))
    is_double = int(block.itemsize == 8)
    least = fill_like(zero, number(LEAST_VARIANCE[is_double]))
    most = fill_like(zero, number(MOST_VARIANCE[is_double]))
    eps = fill_like(zero, number(spec.eps))
    if spec.norm == NORM_NONE:
        for group in range(spec.columns // batch):
            for row in range(0, rows, strip):
                store(scales, group * STRIDE + row, ones)
        return -1
    for group in range(spec.columns // batch):
        first = group * batch
        for row in range(0, rows, strip):
            mean = zero
            if centred:
                for i in range(first, first + batch):
                    mean = mean + load_strip(block, i * STRIDE + row)
                mean = mean * ratio
                for i in range(first, first + batch):
                    at = i * STRIDE + row
                    store(block, at, load_strip(block, at) - mean)
            variance = zero
            for i in range(first, first + batch):
                deviation = load_strip(block, i * STRIDE + row)
                variance = multiply_add(deviation, deviation, variance)
            variance = variance * ratio
            is_resolved = spec.eps > 0.0 or all_greater(
                variance, multiply_add(rounding, mean * mean, least)
            )
            if not (is_resolved and all_greater(most, variance)):
                for i in range(first, first + batch):
                    at = i * STRIDE + row
                    store(block, at, load_strip(block, at) + mean)
                return row_without_variance(block, first, row, rows, spec, centred)
            store(scales, group * STRIDE + row, ones / square_root(variance + eps))
    return -1


@kernel
def row_without_variance(block, first, start, rows, spec, centred):
    """Return the row from `start` on with the least deviation, as a part of its mean.

    `first` is the first column of the batch.  Called where a strip of rows has one whose variance
    is zero to rounding, or out of range.  If no deviation is zero to rounding, `ROW_OUT_OF_RANGE`
    is added to the row.
    """
    resolved = spec.batch * (2.0**-23 if block.itemsize == 4 else 2.0**-52)
    flattest, least, is_flat = start, np.inf, False
    for row in range(start, rows):
        mean = 0.0
        if centred:
            for i in range(first, first + spec.batch):
                mean += block[i * STRIDE + row] / spec.batch
        # Unlike squares, absolute values stay in range.
        deviation = 0.0
        for i in range(first, first + spec.batch):
            deviation += abs(block[i * STRIDE + row] - mean) / spec.batch
        relative = deviation / abs(mean) if mean != 0.0 else deviation
        if least == least and not relative >= least:
            flattest, least = row, relative
            is_flat = relative <= (resolved if mean != 0.0 else 0.0)
    return flattest if is_flat else ROW_OUT_OF_RANGE + flattest


@kernel
def activate_columns(sigma, block, columns, batch, rows, scales):
    """Scale the rows of a block, and apply the activation."""
    for i in range(columns):
        # Unsigned, so that the compiler adds no test for negative indices.
        column = np.uintp(i * STRIDE)
        group = np.uintp(i // batch * STRIDE)
        for row in range(np.uintp(rows)):
            block[column + row] = activate(sigma, block[column + row] * scales[group + row])


#: `activate_columns`, called by its address if `sigma` is an `Apart`.
activate_block = calls_apart(activate_columns)


@cache
def activation(sigma: Sigma, dtype: str) -> Any:
    """Return the activation in the form that the kernels of a dtype take from Python.

    The kernels are compiled once, and `activate_columns` for each activation.  That takes a tenth
    of the time of compiling all kernels, and costs one indirect call per block of rows.
    """
    values = types.Array(types.float32 if dtype == "float32" else types.float64, 1, "C")
    number = types.int64
    return compiled_apart(activate_columns, sigma, (values, number, number, number, values))


@part
def factorise(gram, spec, work):
    """Write the factor of the covariance of the rows of W a to a `Work`.

    Under a normalization that does not see the scale of a row, the scale is brought to about 1.
    Returns the least pivot as a part of its diagonal entry, of all pivots that need not be zero;
    or 0 if a sample of the rows is too small for float32.
    """
    # This holds with a skip connection too, as the added representation is centred.
    scale = prepare_factor(gram, spec, spec.hides_common, work)
    factored = Factored(
        work.covariance, work.diagonal, work.twin, work.panel, work.factor, work.regular
    )
    cholesky(factored, scale)
    return least_pivot(spec, gram, scale, work)


@part
def prepare_factor(gram, spec, centred, work):
    """Write what `cholesky` takes for the covariance of the rows of W a, and return the scale.

    `gram` is that covariance without what the bias adds, the `shared_variance` of `spec`.

    If `centred`, the rows are drawn without their means over each batch.
    """
    columns, covariance, diagonal = spec.columns, work.covariance, work.diagonal
    if centred:
        # No norm centres rows with a bias that it shows.
        centre(gram, spec.batch, work.group_means, covariance)
    else:
        for i in range(columns):
            for j in range(columns):
                covariance[i, j] = gram[i, j] + spec.shared_variance
    for i in range(columns):
        diagonal[i] = covariance[i, i]
    scale = spec.gain
    if spec.hides_scale:
        scale = scale_of(diagonal)
    if centred:
        for first in range(0, columns, spec.batch):
            mean = 0.0
            for i in range(first, first + spec.batch):
                mean += gram[i, i]
            mean /= spec.batch
            # Centring rounds to the precision of the means, which may exceed the sample.
            for i in range(first, first + spec.batch):
                diagonal[i] = larger(gram[i, i], mean)
            # The others determine the last sample of a batch, so its pivot is zero.
            diagonal[first + spec.batch - 1] = np.inf
    # After centring, copies differ if they are in batches with different other samples.
    find_twins(covariance, work.twin)
    return scale


@kernel
def least_pivot(spec, gram, scale, work):
    """Return the least of all relative pivots that need not be zero; see `factorise`."""
    centred = spec.hides_common
    least, deviation = 1.0, 0.0
    for k in range(spec.columns):
        if work.twin[k] == k and not (centred and (k + 1) % spec.batch == 0):
            least = smaller(least, work.diagonal[k])
        # Centring adds the mean of the other samples of a batch.
        others = deviation if centred and k % spec.batch > 0 else 0.0
        deviation = larger(others, abs(scale) * sqrt(gram[k, k] + spec.shared_variance))
        is_whole = not centred or (k + 1) % spec.batch == 0
        if is_whole and 0.0 < deviation < RESOLVED_DEVIATION:
            least = 0.0
    return least


@inlined
def event_of(row):
    """Return the code of the event that a row of `measure_rows` is."""
    return ZERO_VARIANCE if row < ROW_OUT_OF_RANGE else NOT_FINITE


@inlined
def row_of(row):
    """Return the number of a row of `measure_rows`."""
    return row if row < ROW_OUT_OF_RANGE else row - ROW_OUT_OF_RANGE


@kernel
def draw_regular(block, columns, regular, first_row, rows, draw):
    """Fill the regular columns of a block with normals, and the others with zeros."""
    k = 0
    while k < columns:
        end = k + 1
        while end < columns and regular[end] == regular[k]:
            end += 1
        if regular[k]:
            fill_normals(block, k, k, end - k, first_row, rows, draw)
        else:
            clear_rows(block, k, end, 0, rows)
        k = end


@kernel
def multiply_block(spec, given, a, start, rows, draw, tile, block):
    """Write gain times rows of the weights times the activations a to a block of rows.

    The rows begin at `start`.

    given : (panel, fan_in)
        The weights of a panel, if they are not drawn here.
    a : (padded columns, >= fan_in)
    """
    clear_rows(block, 0, spec.columns, 0, rows)
    length = spec.fan_in
    for element in range(0, length, TILE):
        depth = smaller(TILE, length - element)
        fill_weights(spec.weights, given, tile, element, depth, start, rows, draw)
        add_product(a, element, spec.columns, tile, depth, block, rows)
    scale = block.dtype.type(spec.gain / np.sqrt(length))
    scale_columns(scale, spec.columns, rows, block)


@kernel
def add_bias(spec, start, rows, draw, tile, block):
    """Add the bias to rows; its numbers are those of one more weight of each row."""
    if spec.uniform_bias:
        fill_uniforms(tile, 0, spec.fan_in, 1, start, rows, draw)
    else:
        fill_normals(tile, 0, spec.fan_in, 1, start, rows, draw)
    factor = block.dtype.type(spec.bias)
    for i in range(spec.columns):
        for row in range(np.uintp(rows)):
            block[np.uintp(i * STRIDE) + row] += factor * tile[row]


@kernel
def scale_rows(block, spec, rows, scales):
    """Multiply the rows of a block by their scale factors."""
    for i in range(spec.columns):
        column = np.uintp(i * STRIDE)
        group = np.uintp(i // spec.batch * STRIDE)
        for row in range(np.uintp(rows)):
            block[column + row] *= scales[group + row]


@kernel
def load_columns(hidden, columns, rows, first_row, block):
    """Write kept rows, from `first_row` on, to the columns of a block."""
    for i in range(columns):
        values = block[i * STRIDE : i * STRIDE + rows]
        others = hidden[i, first_row : first_row + rows]
        for row in range(rows):
            values[row] = others[row]
