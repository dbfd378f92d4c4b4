"""Rows of a layer in a backward pass on the CPU: made again, and their gradients.

`backward` has the formulas.  Both passes over the rows of a layer take a block at a time, and add
up sums over rows panel by panel, as the forward pass does.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numba import types
from numba.extending import overload
from numpy.typing import DTypeLike

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
    multiply_triangular,
    repeat_first_row,
)
from bnmc._kernels.cpu.memory import Zeros, aligned_zeros, padded, stride, tile_sums
from bnmc._kernels.cpu.numbers import BLOCK, GROUP, STRIDE, fill_normals
from bnmc._kernels.cpu.rows import draw_regular, measure_rows
from bnmc._kernels.cpu.vectors import fill_like, load_strip, multiply_add, store, zero_strip
from bnmc._kernels.scalar import activations, slopes
from bnmc._kernels.scalar.codes import (
    NORM_CENTRED,
    NORM_NONE,
    STREAM_BACKWARD,
    Draw,
)
from bnmc._kernels.scalar.elementary import smaller

for _module in (activations, slopes):
    inline_module(_module)


class Rows(NamedTuple):
    """Buffers of one thread: all rows of one layer, as (blocks, padded columns * STRIDE).

    `normals`, `hidden` and `scales` have the dtype of the forward pass, the others that of the
    backward pass.
    """

    normals: np.ndarray
    hidden: np.ndarray
    scales: np.ndarray  # (blocks, inputs * STRIDE)
    delta: np.ndarray  # Z, then the gradient with respect to h
    above: np.ndarray  # the gradient of the layer above; (1, 1) without a skip connection
    values: np.ndarray  # one block
    factors: np.ndarray  # (BLOCK,)
    partial: np.ndarray  # (16,)


class Sums(NamedTuple):
    """Sums over the rows of a panel ([0]) and of a layer ([1]), float64."""

    gram: np.ndarray  # (2, sums): δᵀδ or ZᵀZ, 16 for each 4 x 4 tile of the lower triangle
    cross: np.ndarray  # (2, padded * padded): aᵀZ or zᵀδ
    hidden: np.ndarray  # hᵀδ likewise, or (2, 0) if that is not wanted


def rows(
    width: int,
    batch: int,
    inputs: int,
    forward: DTypeLike,
    backward: DTypeLike,
    skips: bool,
    zeros: Zeros = aligned_zeros,
) -> Rows:
    """Return the rows of a layer; `skips` if it has a skip connection."""
    blocks, numbers = stride(width) // BLOCK, padded(batch * inputs) * STRIDE
    return Rows(
        zeros((blocks, numbers), forward),
        zeros((blocks, numbers), forward),
        zeros((blocks, inputs * STRIDE), forward),
        zeros((blocks, numbers), backward),
        zeros((blocks, numbers) if skips else (1, 1), backward),
        zeros((numbers,), backward),
        zeros((BLOCK,), backward),
        zeros((16,), backward),
    )


def normals_of(count: int, regular: np.ndarray, draw: Draw, block: np.ndarray) -> np.ndarray:
    """Return normals of `count` rows, (count, columns), without those of columns of zeros.

    `block` is work space for a block of rows, in the dtype of the normals.
    """
    columns = len(regular)
    normals = np.empty((stride(count), columns))
    for start in range(0, count, BLOCK):
        draw_regular(block, columns, regular, start, BLOCK, draw)
        normals[start : start + BLOCK] = block.reshape(-1, STRIDE)[:columns, :BLOCK].T
    return normals[:count]


def sums(columns: int, hidden: bool, zeros: Zeros = aligned_zeros) -> Sums:
    """Return the sums over rows; `hidden` if hᵀδ is wanted."""
    square = padded(columns) ** 2
    return Sums(
        zeros((2, tile_sums(columns)), np.float64),
        zeros((2, square), np.float64),
        zeros((2, square if hidden else 0), np.float64),
    )


@kernel
def clear_sums(sums):
    """Set all sums to zero."""
    for k in range(2):
        sums.gram[k] = 0.0
        sums.cross[k] = 0.0
        sums.hidden[k] = 0.0


@kernel
def _end_panel(sums):
    """Add the sums of a panel to those of the layer, and set them to zero."""
    of_panel, of_layer = sums[0], sums[1]
    for k in range(np.uintp(of_panel.shape[0])):
        of_layer[k] += of_panel[k]
        of_panel[k] = 0.0


@kernel
def _is_last(start, spec):
    """Return whether the block of rows from `start` on is the last one of a panel."""
    return (start + BLOCK) % spec.panel == 0 or start + BLOCK >= spec.width


@kernel
def _make_hidden(spec, x, start, rows, draw, work, z, h):
    """Make the normals z of a block of rows again, and h = skip x + gain W a.

    Rows beyond the width are copies of the first one.  The other arguments are those of
    `first_pass`.
    """
    draw_regular(z, spec.columns, work.regular, start, rows, draw)
    multiply_triangular(work.factor, spec.columns, z, h, rows)
    if spec.skip != 0.0:
        add_columns(spec.skip, x, start, spec.columns, rows, h)
    repeat_first_row(h, spec.columns, smaller(BLOCK, spec.width - start), rows)


@kernel
def first_pass(sigma, spec, x, draw, work, matrices, rows_of, sums):
    """Make the rows of a layer again, and Z; sum aᵀ Z.  Returns a row without variance, or -1.

    Parameters
    ----------
    x : (columns, >= width)
        The representation of the layer before, if there is a skip connection.
    draw : Draw
        The address of the normals of the rows.
    work : Work
        Holds the factor from which the forward pass drew the rows.
    """
    # Rows without a skip connection are drawn without their means.
    centred = spec.norm == NORM_CENTRED and spec.skip != 0.0
    noise = _noise_of(draw)
    for start in range(0, spec.width, BLOCK):
        count, number = smaller(BLOCK, spec.width - start), start // BLOCK
        rows = (count + GROUP - 1) // GROUP * GROUP
        h, delta, scales = rows_of.hidden[number], rows_of.delta[number], rows_of.scales[number]
        _make_hidden(spec, x, start, rows, draw, work, rows_of.normals[number], h)
        degenerate = measure_rows(h, rows, spec, centred, scales)
        if degenerate >= 0:
            return start + degenerate
        _activate_rows(sigma, spec, h, scales, count, rows, rows_of.values)
        draw_regular(delta, spec.columns, matrices.in_root, start, rows, noise)
        multiply_triangular(matrices.root, spec.columns, delta, delta, rows)
        add_cross(rows_of.values, delta, spec.columns, rows, rows_of.partial, sums.cross[0])
        if _is_last(start, spec):
            _end_panel(sums.cross)
    return -1


@kernel
def add_bias(spec, variance, draw, matrices, rows_of, sums):
    """Add the bias to aᵀ Z: it acts like the weight of one more row of a, which is constant.

    That row of Z is drawn here.

    Parameters
    ----------
    variance : float
        What the bias adds to the covariance that the layer above saw.
    draw : Draw
        That of `first_pass`; the row has the number of the block after the last one.
    """
    columns, z = spec.columns, rows_of.values
    start, order = (spec.width + BLOCK - 1) // BLOCK * BLOCK, (columns + 3) // 4 * 4
    draw_regular(z, columns, matrices.in_root, start, GROUP, _noise_of(draw))
    multiply_triangular(matrices.root, columns, z, z, GROUP)
    entry = np.sqrt(variance * spec.width)
    for i in range(columns):
        for j in range(columns):
            sums.cross[1, i * order + j] += entry * z[j * STRIDE]


@kernel
def _noise_of(draw):
    """Return the address of the normals of Z, or of the direction at the top."""
    return Draw(draw.layer, np.uint32(draw.stream | STREAM_BACKWARD), draw.key0, draw.key1)


@kernel
def _activate_rows(sigma, spec, h, scales, count, rows, out):
    """Write the activations of a block of rows h to `out`, and zeros to rows beyond `count`."""
    _activate_block_into(sigma, h, spec.columns, spec.batch, rows, scales, out)
    clear_rows(out, 0, spec.columns, count, rows)


@kernel
def _activate_into(sigma, h, columns, batch, rows, scales, out):
    """Scale the rows of h, and write their activations to a block of this or another dtype."""
    for i in range(columns):
        # Unsigned, so that the compiler adds no test for negative indices.
        column = np.uintp(i * STRIDE)
        group = np.uintp(i // batch * STRIDE)
        for row in range(np.uintp(rows)):
            out[column + row] = activate(sigma, h[column + row] * scales[group + row])


@kernel
def _multiply_slopes(slope, h, columns, batch, rows, scales, gain, x, delta):
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
_activate_block_into = calls_apart(_activate_into)
_multiply_block_slopes = calls_apart(_multiply_slopes)


@cache
def activation(sigma: Sigma, forward: str, backward: str) -> Any:
    """Return the activation in the form that the kernels of two dtypes take; see `rows`."""
    first, second = (types.Array(getattr(types, name), 1, "C") for name in (forward, backward))
    number = types.int64
    return compiled_apart(_activate_into, sigma, (first, number, number, number, first, second))


@cache
def derivative(slope: Sigma, forward: str, backward: str) -> Any:
    """Return the derivative of the activation in the form that the kernels of two dtypes take."""
    first, second = (types.Array(getattr(types, name), 1, "C") for name in (forward, backward))
    number = types.int64
    arguments = (first, number, number, number, first, types.float64, second, second)
    return compiled_apart(_multiply_slopes, slope, arguments)


def _as_dtype_of(source, buffer, columns, rows):
    """Return the columns of a block, in `buffer` unless they have its dtype."""
    if source.dtype == buffer.dtype:
        return source
    _cast(source, buffer, columns, rows)
    return buffer


def _typed_as_dtype_of(source, buffer, columns, rows):
    """Return the implementation for types: no copy if the dtypes are equal."""

    def same(source, buffer, columns, rows):
        return source

    def other(source, buffer, columns, rows):
        _cast(source, buffer, columns, rows)
        return buffer

    return same if source.dtype == buffer.dtype else other


overload(_as_dtype_of, jit_options=INLINED)(_typed_as_dtype_of)


@kernel
def _cast(source, out, columns, rows):
    """Write the columns of a block to a block of another dtype."""
    for i in range(columns):
        for at in range(np.uintp(i * STRIDE), np.uintp(i * STRIDE + rows)):
            out[at] = source[at]


@kernel
def second_pass(sigma, slope, spec, gain, skip, unit, matrices, rows_of, sums):
    """Turn Z into δ of the layer, and sum δᵀδ, zᵀδ and hᵀδ.

    Parameters
    ----------
    gain, skip : float
        Factors of Wᵀδ and of the gradient of the layer above, which is 0 for a readout.
    unit : float
        The rows h are in units of which the scales need this factor.
    """
    columns, values = spec.columns, rows_of.values
    for start in range(0, spec.width, BLOCK):
        count, number = smaller(BLOCK, spec.width - start), start // BLOCK
        rows = (count + GROUP - 1) // GROUP * GROUP
        h, delta, scales = rows_of.hidden[number], rows_of.delta[number], rows_of.scales[number]
        _activate_rows(sigma, spec, h, scales, count, rows, values)
        add_product(matrices.mixing, 0, columns, values, columns, delta, rows)
        _multiply_block_slopes(slope, h, columns, spec.batch, rows, scales, gain, values, delta)
        if skip != 0.0:
            above, of_skip = rows_of.above[number], delta.dtype.type(skip)
            for i in range(columns):
                for k in range(np.uintp(i * STRIDE), np.uintp(i * STRIDE + rows)):
                    delta[k] += of_skip * above[k]
        if spec.norm != NORM_NONE:
            _through_norm(spec, rows, unit, scales, values, rows_of.factors, delta)
        clear_rows(delta, 0, columns, count, rows)
        _sum_block(spec, start, rows, rows_of, sums)


@kernel
def top_pass(spec, given, x, draw, work, rows_of, sums):
    """Make δ and h of the last layer, and sum δᵀδ, zᵀδ and hᵀδ.

    Parameters
    ----------
    given : (columns, >= width) float64
        δ, or without columns if its entries are independent standard normals.
    """
    noise = _noise_of(draw)
    for start in range(0, spec.width, BLOCK):
        count, number = smaller(BLOCK, spec.width - start), start // BLOCK
        rows = (count + GROUP - 1) // GROUP * GROUP
        delta = rows_of.delta[number]
        _make_hidden(
            spec, x, start, rows, draw, work, rows_of.normals[number], rows_of.hidden[number]
        )
        if given.shape[0] > 0:
            for i in range(spec.columns):
                for row in range(count):
                    delta[i * STRIDE + row] = given[i, start + row]
        else:
            fill_normals(delta, 0, 0, spec.columns, start, rows, noise)
        clear_rows(delta, 0, spec.columns, count, rows)
        _sum_block(spec, start, rows, rows_of, sums)


@kernel
def _sum_block(spec, start, rows, rows_of, sums):
    """Add δᵀδ, zᵀδ and, if there is room for it, hᵀδ of the block of rows from `start` on."""
    number, columns, partial = start // BLOCK, spec.columns, rows_of.partial
    delta = rows_of.delta[number]
    add_gram(delta, columns, rows, partial, sums.gram[0])
    of_z = _as_dtype_of(rows_of.normals[number], rows_of.values, columns, rows)
    add_cross(of_z, delta, columns, rows, partial, sums.cross[0])
    if sums.hidden.shape[1] > 0:
        of_h = _as_dtype_of(rows_of.hidden[number], rows_of.values, columns, rows)
        add_cross(of_h, delta, columns, rows, partial, sums.hidden[0])
    if _is_last(start, spec):
        _end_panel(sums.gram)
        _end_panel(sums.cross)
        _end_panel(sums.hidden)


@kernel
def _through_norm(spec, rows, unit, scales, x, factors, g):
    """Replace g, the gradient with respect to x = N(h), by that with respect to h, row by row.

    It is (g - mean g - x mean(g x)) / s, with s the standard deviation, and without mean g if the
    norm does not centre.  `factors` is work space, (BLOCK,), in the dtype of g.
    """
    batch = spec.batch
    number = g.dtype.type
    if spec.eps == 0.0 and batch == (2 if spec.norm == NORM_CENTRED else 1):
        # N(h) is 1 or -1 in each entry, whatever h.
        clear_rows(g, 0, spec.columns, 0, rows)
        return
    strip = vectors.STRIP_BYTES // g.itemsize
    zero = zero_strip(g)
    ratio = fill_like(zero, number(1.0 / batch))
    unit = number(unit)
    for group in range(spec.columns // batch):
        first = group * batch
        for row in range(np.uintp(rows)):
            factors[row] = unit * number(scales[np.uintp(group * STRIDE) + row])
        for row in range(0, rows, strip):
            factor = load_strip(factors, row)
            mean = zero
            along = zero
            for i in range(first, first + batch):
                value = load_strip(g, i * STRIDE + row)
                if spec.norm == NORM_CENTRED:
                    mean = mean + value
                along = multiply_add(value, load_strip(x, i * STRIDE + row), along)
            mean = mean * ratio
            along = along * ratio
            for i in range(first, first + batch):
                value = load_strip(g, i * STRIDE + row) - mean
                value = value - along * load_strip(x, i * STRIDE + row)
                store(g, i * STRIDE + row, value * factor)


@kernel
def sum_noise(spec, rows_of, sums):
    """Sum ZᵀZ over all rows."""
    for start in range(0, spec.width, BLOCK):
        count = smaller(BLOCK, spec.width - start)
        rows = (count + GROUP - 1) // GROUP * GROUP
        delta = rows_of.delta[start // BLOCK]
        clear_rows(delta, 0, spec.columns, count, rows)
        add_gram(delta, spec.columns, rows, rows_of.partial, sums.gram[0])
        if _is_last(start, spec):
            _end_panel(sums.gram)


@kernel
def multiply_noise(spec, root, rows_of):
    """Multiply the rows Z by a triangular factor."""
    for start in range(0, spec.width, BLOCK):
        rows = (smaller(BLOCK, spec.width - start) + GROUP - 1) // GROUP * GROUP
        delta = rows_of.delta[start // BLOCK]
        multiply_triangular(root, spec.columns, delta, delta, rows)


@kernel
def keep_delta(rows_of):
    """Move δ of the layer to that of the layer above, for its skip connection."""
    for block in range(rows_of.delta.shape[0]):
        for at in range(np.uintp(rows_of.delta.shape[1])):
            rows_of.above[block, at] = rows_of.delta[block, at]
