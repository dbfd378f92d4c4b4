"""The CPU kernels of the backward pass: gradients through the layers of a chain.

Let a (width x columns) be the activations of a layer, of which the next layer sees the covariance
K = F Fᵀ, and z (width x columns) the normals that gave its rows, W a = z Fᵀ.  Let δ be the gradient
with respect to these rows.  Given a and z, the weights W are Gaussian, conditioned on W a.  So with
B = a F⁻ᵀ / √width, an orthonormal basis of what the layer saw,

    Wᵀ δ = B (zᵀ δ / √width - Bᵀ Z) + Z,    rows of Z: N(0, δᵀδ / width).

Of δ only δᵀδ and zᵀδ matter: two matrices of order `columns` take the pass from a layer to the
layer below.  The forward rows of a layer are made again, from its counters and the Gram matrix
before it.  A layer takes two passes over its rows, because Bᵀ Z is a sum over all of them:
`first_pass` makes the rows and Z and sums aᵀ Z, `second_pass` makes δ of the layer and its sums.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numba import types
from numba.extending import overload

from bnmc._kernels.compiling import (
    INLINED,
    Sigma,
    activate,
    calls_apart,
    compiled_apart,
    inline_module,
    kernel,
)
from bnmc._kernels.cpu import vectors
from bnmc._kernels.cpu.blocks import (
    add_columns,
    add_cross,
    add_gram,
    add_product,
    clear_rows,
    copy_matrix,
    multiply_triangular,
    repeat_first_row,
    unpack_gram,
)
from bnmc._kernels.cpu.factor import cholesky
from bnmc._kernels.cpu.numbers import BLOCK, GROUP, STRIDE, fill_normals
from bnmc._kernels.cpu.rows import draw_regular, measure_rows
from bnmc._kernels.cpu.vectors import fill_like, load_strip, multiply_add, store, zero_strip
from bnmc._kernels.scalar import activations, slopes
from bnmc._kernels.scalar.cholesky import centre, find_twins, scale_of
from bnmc._kernels.scalar.codes import (
    INNER,
    NORM_CENTRED,
    NORM_NONE,
    NOT_FINITE,
    READOUT,
    RESOLVED_PIVOT,
    UNRESOLVED,
    ZERO_VARIANCE,
    Draw,
)

for _module in (activations, slopes):
    inline_module(_module)


class Rows(NamedTuple):
    """All rows of one layer of one chain, as (blocks, padded columns * STRIDE).

    `normals` and `hidden` have the dtype of the forward pass, as has `scales`,
    (blocks, inputs * STRIDE); the others have the dtype of the backward pass.
    """

    normals: np.ndarray
    hidden: np.ndarray
    scales: np.ndarray
    delta: np.ndarray  # Z, then the gradient with respect to h
    above: np.ndarray  # the gradient of the layer above; (1, 1) without a skip connection


class Blocks(NamedTuple):
    """Buffers of one thread: blocks, and sums over rows."""

    values: np.ndarray  # dtype of the backward pass
    factors: np.ndarray  # dtype of the backward pass, BLOCK
    partial: np.ndarray  # dtype of the backward pass, 16
    gram_sums: np.ndarray  # float64, 16 for each 4 x 4 tile of the lower triangle
    cross_sums: np.ndarray  # float64, a matrix of padded order
    hidden_sums: np.ndarray  # likewise, or empty if hᵀδ is not wanted


class Solve(NamedTuple):
    """Matrices of order `columns`, float64 but for the factors that multiply rows."""

    covariance: np.ndarray
    group_means: np.ndarray
    diagonal: np.ndarray
    panel: np.ndarray
    twin: np.ndarray
    basis: np.ndarray  # float64 (padded, padded): the factor F of what the layer above saw
    in_basis: np.ndarray  # bool: columns of F that are not zero
    following: np.ndarray  # the same of what the layer saw, which is next
    in_following: np.ndarray
    root: np.ndarray  # (padded, padded), dtype of the backward pass: the factor of δᵀδ / width
    in_root: np.ndarray  # bool
    mixing: np.ndarray  # (padded, padded), dtype of the backward pass
    right: np.ndarray  # float64 (columns, columns): the right-hand side of systems with F


@kernel
def cast(source, out, columns, rows):
    """Write the columns of a block to a block of another dtype."""
    for i in range(columns):
        for at in range(np.uintp(i * STRIDE), np.uintp(i * STRIDE + rows)):
            out[at] = source[at]


@kernel
def factorise_delta(gram, law, centred, solve):
    """Write the factor of δᵀδ / width, times a power of two; return that, and the least pivot.

    If `centred`, the columns of δ of each batch have the sum zero.
    """
    columns = law.columns
    for i in range(columns):
        for j in range(columns):
            solve.covariance[i, j] = gram[i, j]
        solve.diagonal[i] = gram[i, i]
    scale = scale_of(solve.diagonal)
    if centred:
        for first in range(0, columns, law.batch):
            # The others determine the last sample of a batch, so its pivot is zero.
            solve.diagonal[first + law.batch - 1] = np.inf
    find_twins(solve.covariance, solve.twin)
    cholesky(
        solve.covariance, solve.diagonal, solve.twin, scale, solve.panel, solve.root, solve.in_root
    )
    least = 1.0
    for k in range(columns):
        is_last = centred and (k + 1) % law.batch == 0
        # Samples without a gradient need no resolution.  Twins have the pivot 0, because sums of
        # float32 numbers do not tell nearly equal gradients from equal ones.
        if not is_last and gram[k, k] > 0.0:
            least = min(least, solve.diagonal[k])
    return scale, least


@kernel
def factorise_seen(gram, centred, law, solve, basis, regular):
    """Write the factor of the covariance that a layer saw, with scale 1; return the scale of rows.

    Parameters
    ----------
    gram : (columns, columns) float64
        The Gram matrix of the layer before.
    centred : bool
        Whether the layer sees only differences within each batch.
    basis, regular : ndarray
        Receive the factor, and which of its columns are not zero.
    """
    columns = law.columns
    if centred:
        centre(gram, law.batch, solve.group_means, solve.covariance)
    else:
        copy_matrix(gram, solve.covariance)
    scale = scale_of_rows(law, solve)
    for first in range(0, columns, law.batch):
        mean = 0.0
        for i in range(first, first + law.batch):
            mean += gram[i, i]
        mean /= law.batch
        for i in range(first, first + law.batch):
            solve.diagonal[i] = max(gram[i, i], mean) if centred else gram[i, i]
        if centred:
            solve.diagonal[first + law.batch - 1] = np.inf
    find_twins(solve.covariance, solve.twin)
    cholesky(solve.covariance, solve.diagonal, solve.twin, 1.0, solve.panel, basis, regular)
    return scale


@kernel
def scale_of_rows(law, solve):
    """Return the scale that `rows.factorise` gives to rows whose covariance is `covariance`."""
    if not law.hides_scale:
        return law.gain
    for i in range(law.columns):
        solve.diagonal[i] = solve.covariance[i, i]
    return scale_of(solve.diagonal)


@kernel
def factorise_layer(law, gram_before, forward, solve):
    """Write the factor of what a layer saw, as it is and as its rows were drawn; return `unit_of`.

    The first one goes to `following`, the other one, as by `rows.factorise`, to `forward`.
    """
    scale = factorise_seen(
        gram_before, law.hides_common, law, solve, solve.following, solve.in_following
    )
    for i in range(law.columns):
        forward.regular[i] = solve.in_following[i]
        for k in range(np.uintp(i + 1)):
            forward.factor[i, k] = scale * solve.following[i, k]
    return scale / law.gain


@kernel
def take_following(law, solve):
    """Let what the layer saw be what the layer above saw."""
    copy_matrix(solve.following, solve.basis)
    for i in range(law.columns):
        solve.in_basis[i] = solve.in_following[i]


@kernel
def make_hidden(law, x, start, count, rows, draw, factor, regular, z, h):
    """Make the normals z of a block of rows again, and h = skip x + gain W a.

    Rows beyond `count` are copies of the first one.  The other arguments are those of `first_pass`.
    """
    draw_regular(z, law.columns, regular, start, rows, draw)
    multiply_triangular(factor, law.columns, z, h, rows)
    if law.skip != 0.0:
        add_columns(law.skip, x, start, law.columns, rows, h)
    repeat_first_row(h, law.columns, count, rows)


@kernel
def first_pass(
    sigma, law, x, first_row, last_row, draw, noise, factor, regular, solve, rows_of, blocks
):
    """Make rows of a layer again, and Z; sum aᵀ Z.  Returns a row without variance, or -1.

    Parameters
    ----------
    x : (columns, >= width)
        The representation of the layer before, if there is a skip connection.
    draw, noise : Draw
        The addresses of the normals of the rows and of Z.
    factor, regular : ndarray
        The factor from which the forward pass drew the rows.
    """
    blocks.cross_sums[:] = 0.0
    columns = law.columns
    centred = law.norm == NORM_CENTRED and law.skip != 0.0
    for start in range(first_row, last_row, BLOCK):
        count = min(BLOCK, last_row - start)
        rows = (count + GROUP - 1) // GROUP * GROUP
        number = start // BLOCK
        z, h = rows_of.normals[number], rows_of.hidden[number]
        scales = rows_of.scales[number]
        delta = rows_of.delta[number]
        make_hidden(law, x, start, count, rows, draw, factor, regular, z, h)
        degenerate = measure_rows(h, rows, law, centred, scales)
        if degenerate >= 0:
            return start + degenerate
        activate_rows(sigma, law, h, scales, count, rows, blocks.values)
        draw_regular(delta, columns, solve.in_root, start, rows, noise)
        multiply_triangular(solve.root, columns, delta, delta, rows)
        add_cross(blocks.values, delta, columns, rows, blocks.partial, blocks.cross_sums)
    return -1


@kernel
def activate_rows(sigma, law, h, scales, count, rows, out):
    """Write the activations of a block of rows h to `out`, and zeros to rows beyond `count`."""
    activate_block_into(sigma, h, law.columns, law.batch, rows, scales, out)
    clear_rows(out, 0, law.columns, count, rows)


@kernel
def activate_into(sigma, h, columns, batch, rows, scales, out):
    """Scale the rows of h, and write their activations to a block of this or another dtype."""
    for i in range(columns):
        # Unsigned, so that the compiler adds no test for negative indices.
        column = np.uintp(i * STRIDE)
        group = np.uintp(i // batch * STRIDE)
        for row in range(np.uintp(rows)):
            out[column + row] = activate(sigma, h[column + row] * scales[group + row])


@kernel
def multiply_slopes(slope, h, columns, batch, rows, scales, gain, x, delta):
    """Write the scaled rows of h to x, and multiply `delta` by gain times the slopes there."""
    factor = delta.dtype.type(gain)
    for i in range(columns):
        column = np.uintp(i * STRIDE)
        group = np.uintp(i // batch * STRIDE)
        for row in range(np.uintp(rows)):
            value = h[column + row] * scales[group + row]
            x[column + row] = value
            delta[column + row] *= factor * delta.dtype.type(activate(slope, value))


#: The two, called by address if the function is an `Apart`.
activate_block_into = calls_apart(activate_into)
multiply_block_slopes = calls_apart(multiply_slopes)


@cache
def activation(sigma: Sigma, forward: str, backward: str) -> Any:
    """Return the activation in the form that the kernels of two dtypes take; see `rows`."""
    first, second = (types.Array(getattr(types, one), 1, "C") for one in (forward, backward))
    number = types.int64
    return compiled_apart(activate_into, sigma, (first, number, number, number, first, second))


@cache
def derivative(slope: Sigma, forward: str, backward: str) -> Any:
    """Return the derivative of the activation in the form that the kernels of two dtypes take."""
    first, second = (types.Array(getattr(types, one), 1, "C") for one in (forward, backward))
    number = types.int64
    arguments = (first, number, number, number, first, types.float64, second, second)
    return compiled_apart(multiply_slopes, slope, arguments)


def as_dtype_of(source, buffer, columns, rows):
    """Return the columns of a block, in `buffer` unless they have its dtype."""
    if source.dtype == buffer.dtype:
        return source
    cast(source, buffer, columns, rows)
    return buffer


def _as_dtype_of(source, buffer, columns, rows):
    """Return the implementation for types: no copy if the dtypes are equal."""

    def same(source, buffer, columns, rows):
        return source

    def other(source, buffer, columns, rows):
        cast(source, buffer, columns, rows)
        return buffer

    return same if source.dtype == buffer.dtype else other


overload(as_dtype_of, jit_options=INLINED)(_as_dtype_of)


@kernel
def solve_layer(sums, law, stage, ratio, cross, solve):
    """Write to `mixing` the matrix M for which Wᵀδ = M a + Z, as columns.

    M is (P F⁻ᵀ (zᵀδ / width - F⁻¹ P aᵀZ / width))ᵀ.  P centres if the layer above does, and F⁻¹
    is the inverse on the samples of which F has a column.

    Parameters
    ----------
    sums : (>= padded * padded,) float64
        aᵀ Z, as `add_cross` sums it.
    ratio : (columns,) float64
        The units of the activations, in those of `basis`.
    cross : (columns, columns) float64
        zᵀ δ / width of the layer above.
    """
    project_noise(sums, law, stage, ratio, solve)
    mix(law, stage, ratio, cross, solve)


@kernel
def project_noise(sums, law, stage, ratio, solve):
    """Write F⁻¹ P aᵀZ / width to `right`, in the rows of samples with a column of F.

    The parameters are those of `solve_layer`.
    """
    columns, basis, right = law.columns, solve.basis, solve.right
    unpack_cross(sums, law, right)
    for i in range(columns):
        scale_row(right, i, ratio[i])
    if law.norm == NORM_CENTRED and stage != READOUT:
        subtract_means(right, law.batch, solve.diagonal)
    # A sample without a column of F plays no part: the place of that column has zeros.
    for i in range(columns):
        if solve.in_basis[i]:
            subtract_rows(right, i, basis[i], 0, i)
            scale_row(right, i, 1.0 / basis[i, i])


@kernel
def mix(law, stage, ratio, cross, solve):
    """Write M to `mixing`, given the matrix of `project_noise` in `right`.

    The parameters are those of `solve_layer`.
    """
    columns, basis, right = law.columns, solve.basis, solve.right
    for i in range(columns):
        row, above, is_in = right[i], cross[i], solve.in_basis[i]
        for j in range(np.uintp(columns)):
            row[j] = above[j] - row[j] if is_in else 0.0
    # F⁻ᵀ times that.
    for i in range(columns - 1, -1, -1):
        if solve.in_basis[i]:
            for k in range(i + 1, columns):
                solve.diagonal[k] = basis[k, i]
            subtract_rows(right, i, solve.diagonal, i + 1, columns)
            scale_row(right, i, 1.0 / basis[i, i])
    if law.norm == NORM_CENTRED and stage != READOUT:
        subtract_means(right, law.batch, solve.diagonal)
    for i in range(columns):
        for j in range(columns):
            solve.mixing[j, i] = ratio[i] * right[i, j]


@kernel
def subtract_rows(matrix, i, weights, first, last):
    """Subtract the rows `first`, …, `last` - 1 of a matrix, with weights, from row i."""
    row = matrix[i]
    k = first
    while k + 4 <= last:
        w0, w1, w2, w3 = weights[k], weights[k + 1], weights[k + 2], weights[k + 3]
        r0, r1, r2, r3 = matrix[k], matrix[k + 1], matrix[k + 2], matrix[k + 3]
        for j in range(np.uintp(row.shape[0])):
            row[j] -= (w0 * r0[j] + w1 * r1[j]) + (w2 * r2[j] + w3 * r3[j])
        k += 4
    while k < last:
        w0, r0 = weights[k], matrix[k]
        for j in range(np.uintp(row.shape[0])):
            row[j] -= w0 * r0[j]
        k += 1


@kernel
def scale_row(matrix, i, factor):
    """Multiply row i of a matrix by a number."""
    row = matrix[i]
    for j in range(np.uintp(row.shape[0])):
        row[j] *= factor


@kernel
def subtract_means(matrix, batch, means):
    """Subtract from each entry the mean over the rows of its batch; `means` is work space."""
    columns = matrix.shape[1]
    for first in range(0, columns, batch):
        means[:] = 0.0
        for i in range(first, first + batch):
            row = matrix[i]
            for j in range(np.uintp(columns)):
                means[j] += row[j]
        for j in range(np.uintp(columns)):
            means[j] /= batch
        for i in range(first, first + batch):
            row = matrix[i]
            for j in range(np.uintp(columns)):
                row[j] -= means[j]


@kernel
def second_pass(sigma, slope, law, gain, skip, unit, first_row, last_row, solve, rows_of, blocks):
    """Turn Z into δ of the layer, and sum δᵀδ and zᵀδ.

    Parameters
    ----------
    gain, skip : float
        Factors of Wᵀδ and of the gradient of the layer above, which is 0 for a readout.
    unit : float
        The rows h are in units of which the scales need this factor.
    """
    clear_sums(blocks)
    columns = law.columns
    for start in range(first_row, last_row, BLOCK):
        count = min(BLOCK, last_row - start)
        rows = (count + GROUP - 1) // GROUP * GROUP
        number = start // BLOCK
        h, delta = rows_of.hidden[number], rows_of.delta[number]
        scales = rows_of.scales[number]
        values = blocks.values
        activate_rows(sigma, law, h, scales, count, rows, values)
        add_product(solve.mixing, 0, columns, values, columns, delta, rows)
        multiply_block_slopes(slope, h, columns, law.batch, rows, scales, gain, values, delta)
        if skip != 0.0:
            above, of_skip = rows_of.above[number], delta.dtype.type(skip)
            for i in range(columns):
                for k in range(np.uintp(i * STRIDE), np.uintp(i * STRIDE + rows)):
                    delta[k] += of_skip * above[k]
        if law.norm != NORM_NONE:
            through_norm(law, rows, unit, scales, values, blocks.factors, delta)
        clear_rows(delta, 0, columns, count, rows)
        sum_block(rows_of.normals[number], h, delta, columns, rows, blocks)


@kernel
def through_norm(law, rows, unit, scales, x, factors, g):
    """Replace g, the gradient with respect to x = N(h), by that with respect to h, row by row.

    It is (g - mean g - x mean(g x)) / s, with s the standard deviation, and without mean g if the
    norm does not centre.  `factors` is work space, (BLOCK,), in the dtype of g.
    """
    batch = law.batch
    number = g.dtype.type
    if law.eps == 0.0 and batch == (2 if law.norm == NORM_CENTRED else 1):
        # N(h) is 1 or -1 in each entry, whatever h.
        clear_rows(g, 0, law.columns, 0, rows)
        return
    strip = vectors.STRIP_BYTES // g.itemsize
    zero = zero_strip(g)
    ratio = fill_like(zero, number(1.0 / batch))
    unit = number(unit)
    for group in range(law.columns // batch):
        first = group * batch
        for row in range(np.uintp(rows)):
            factors[row] = unit * number(scales[np.uintp(group * STRIDE) + row])
        for row in range(0, rows, strip):
            factor = load_strip(factors, row)
            mean = zero
            along = zero
            for i in range(first, first + batch):
                value = load_strip(g, i * STRIDE + row)
                if law.norm == NORM_CENTRED:
                    mean = mean + value
                along = multiply_add(value, load_strip(x, i * STRIDE + row), along)
            mean = mean * ratio
            along = along * ratio
            for i in range(first, first + batch):
                value = load_strip(g, i * STRIDE + row) - mean
                value = value - along * load_strip(x, i * STRIDE + row)
                store(g, i * STRIDE + row, value * factor)


@kernel
def unpack_cross(sums, law, out):
    """Write the matrix of `add_cross`, divided by the width."""
    order = (law.columns + 3) // 4 * 4
    for i in range(law.columns):
        row, of_row = out[i], sums[i * order : i * order + law.columns]
        for j in range(np.uintp(law.columns)):
            row[j] = of_row[j] / law.width


@kernel
def unit_of(gram, law, solve):
    """Return the factor of scales of rows that `rows.factorise` brought to another than gain."""
    if law.hides_common:
        centre(gram, law.batch, solve.group_means, solve.covariance)
    else:
        copy_matrix(gram, solve.covariance)
    return scale_of_rows(law, solve) / law.gain


@kernel
def top_pass(
    law, given, x, first_row, last_row, draw, noise, factor, regular, rows_of, blocks
):  # fmt: skip
    """Make δ and h of the last layer, and sum δᵀδ, zᵀδ and hᵀδ.

    Parameters
    ----------
    given : (columns, >= width) float64
        δ, or without columns if its entries are independent standard normals.
    """
    clear_sums(blocks)
    columns = law.columns
    for start in range(first_row, last_row, BLOCK):
        count = min(BLOCK, last_row - start)
        rows = (count + GROUP - 1) // GROUP * GROUP
        number = start // BLOCK
        z, h, delta = rows_of.normals[number], rows_of.hidden[number], rows_of.delta[number]
        make_hidden(law, x, start, count, rows, draw, factor, regular, z, h)
        if given.shape[0] > 0:
            for i in range(columns):
                for row in range(count):
                    delta[i * STRIDE + row] = given[i, start + row]
        else:
            fill_normals(delta, 0, 0, columns, start, rows, noise)
        clear_rows(delta, 0, columns, count, rows)
        sum_block(z, h, delta, columns, rows, blocks)


@kernel
def clear_sums(blocks):
    """Set all sums over rows to zero."""
    blocks.gram_sums[:] = 0.0
    blocks.cross_sums[:] = 0.0
    blocks.hidden_sums[:] = 0.0


@kernel
def sum_block(z, h, delta, columns, rows, blocks):
    """Add δᵀδ, zᵀδ and, if there is room for it, hᵀδ of a block."""
    add_gram(delta, columns, rows, blocks.partial, blocks.gram_sums)
    of_z = as_dtype_of(z, blocks.values, columns, rows)
    add_cross(of_z, delta, columns, rows, blocks.partial, blocks.cross_sums)
    if blocks.hidden_sums.shape[0] > 0:
        of_h = as_dtype_of(h, blocks.values, columns, rows)
        add_cross(of_h, delta, columns, rows, blocks.partial, blocks.hidden_sums)


@kernel
def add_sums(values, total):
    """Add an array to another of its size."""
    for k in range(total.shape[0]):
        total[k] += values[k]


@kernel
def backward_layers(
    sigma, slope, law, lift, stage, layer, grams, ratios, xs, state, log_scale, stream, noise,
    key0, key1, panel, record, log_scales, forward, solve, rows_of, blocks, totals, status,
):  # fmt: skip
    """Take δ of one chain down through layers.

    Parameters
    ----------
    layer : int
        The first layer to reach; the last one is `layer` - layers + 1.
    grams : (layers + 1, columns, columns) float64
        The Gram matrices of layers `layer` - layers, …, `layer`.
    lift : int
        The exponent by which `law` was divided.
    ratios : (layers, columns) float64
        See `solve_layer`, of layers `layer` - layers + 1, …, `layer`.
    xs : (layers, columns, >= width)
        With a skip connection, the representations of layers `layer` - layers, …, `layer` - 1.
    state : (2, columns, columns) float64
        δᵀδ / width and zᵀδ / width of the layer above, with δ in units of 2**`log_scale`; brought
        up to date.
    log_scale : float
    stream, noise : uint32
        Streams of the chain, for the rows and for Z.
    record : (layers, 2 or 3, columns, columns) float64
        Receives the states of all layers, in the order of `grams`; with hᵀδ / width if it has a
        third place.
    log_scales : (layers,) float64
        Receives their `log_scale`.
    totals : (4, sums) float64
        Work space.
    status : (3,) int64
        Code of an event, its layer and its row.
    """
    layers = record.shape[0]
    guarded = blocks.values.itemsize == 4
    of_gram, of_cross = blocks.gram_sums.shape[0], blocks.cross_sums.shape[0]
    is_centred = law.norm == NORM_CENTRED
    factorise_seen(
        grams[layers], is_centred and stage != READOUT, law, solve, solve.basis, solve.in_basis
    )
    for step in range(layers - 1, -1, -1):
        number = layer - (layers - 1 - step)
        scale, least = factorise_delta(state[0], law, is_centred and stage == INNER, solve)
        if guarded and least < RESOLVED_PIVOT:
            status[0], status[1] = UNRESOLVED, number
            return
        unit = factorise_layer(law, grams[step], forward, solve)
        for i in range(law.columns):
            for j in range(law.columns):
                state[1, i, j] *= scale
        # A readout has no gain and no skip connection.
        is_readout = stage == READOUT
        log_scale += (0 if is_readout else lift) - np.log2(scale)
        x = xs[step if law.skip != 0.0 else 0]
        totals[:] = 0.0
        draw = Draw(number, stream, key0, key1)
        noises = Draw(number, noise, key0, key1)
        for first_row in range(0, law.width, panel):
            last_row = min(first_row + panel, law.width)
            degenerate = first_pass(
                sigma, law, x, first_row, last_row, draw, noises, forward.factor,
                forward.regular, solve, rows_of, blocks,
            )  # fmt: skip
            if degenerate >= 0:
                status[0], status[1], status[2] = ZERO_VARIANCE, number, degenerate
                return
            add_sums(blocks.cross_sums, totals[0, :of_cross])
        solve_layer(totals[0], law, stage, ratios[step], state[1], solve)
        gain, skip = (1.0, 0.0) if is_readout else (law.gain, law.skip * scale)
        for first_row in range(0, law.width, panel):
            last_row = min(first_row + panel, law.width)
            second_pass(
                sigma, slope, law, gain, skip, unit, first_row, last_row, solve, rows_of, blocks
            )
            add_sums(blocks.gram_sums, totals[1, :of_gram])
            add_sums(blocks.cross_sums, totals[2, :of_cross])
            add_sums(blocks.hidden_sums, totals[3, : blocks.hidden_sums.shape[0]])
        finite = unpack_gram(totals[1], law.width, state[0])
        unpack_cross(totals[2], law, state[1])
        if not finite:
            status[0], status[1] = NOT_FINITE, number
            return
        copy_matrix(state[0], record[step, 0])
        copy_matrix(state[1], record[step, 1])
        if record.shape[1] == 3:
            unpack_cross(totals[3], law, record[step, 2])
            for i in range(law.columns):
                for j in range(law.columns):
                    record[step, 2, i, j] /= unit
        log_scales[step] = log_scale
        stage = INNER
        take_following(law, solve)
        if law.skip != 0.0:
            for block in range(rows_of.delta.shape[0]):
                for at in range(np.uintp(rows_of.delta.shape[1])):
                    rows_of.above[block, at] = rows_of.delta[block, at]
