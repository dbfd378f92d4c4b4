"""Random numbers of a block of rows: normals, uniforms, signs, weights.

Four words of a Philox counter are the numbers of four rows, so a group of 16 neighbouring counters
fills `GROUP` rows of one column.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bnmc._kernels.compiling import by_precision, inlined, kernel
from bnmc._kernels.scalar.codes import GAUSSIAN, RADEMACHER, SECOND_WORD, SQRT3, UNIFORM
from bnmc._kernels.scalar.normal import radius32, radius64, sincos32, sincos64, uniform32, uniform64
from bnmc._kernels.scalar.philox import philox4x32

#: Rows of a block, and rows per call of the generator: four words of 16 neighbouring counters.
BLOCK = 512
GROUP = 64
LANES = GROUP // 4

#: Places of a block from one column to the next.  With `BLOCK`, a power of two, the same rows of
#: all columns would be in two sets of the first cache, which do not hold more than 16 columns.
STRIDE = BLOCK + 16

# Unsigned like offsets, so that the compiler adds no test for negative indices.
ONE, TWO, THREE = np.uintp(LANES), np.uintp(2 * LANES), np.uintp(3 * LANES)

#: Columns of a tile of weights.
TILE = 32


class Work(NamedTuple):
    """Buffers of one thread, aligned to cache lines; see `bnmc._kernels.cpu.memory`."""

    block: np.ndarray  # (columns padded to 4) * STRIDE
    tile: np.ndarray  # TILE * STRIDE
    scales: np.ndarray  # inputs * STRIDE
    partial: np.ndarray  # 16
    sums: np.ndarray  # float64, 16 for each 4 x 4 tile of the lower triangle
    covariance: np.ndarray  # float64 (columns, columns)
    group_means: np.ndarray  # float64 (inputs, columns)
    diagonal: np.ndarray  # float64 (columns,)
    panel: np.ndarray  # float64, of the shape `memory.panel_shape(columns)`
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


def signs(out, offset, element, group, layer, stream, k0, k1):
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
inlined(signs)


@kernel
def fill_normals(out, first_column, first_element, columns, first_row, rows, draw):
    """Write the normals of `columns` columns and `rows` rows to a block.

    Column `first_column` + k has element `first_element` + k.  Rows start at `first_row`; `rows`
    and `first_row` are multiples of `GROUP`.
    """
    for start in range(0, rows, GROUP):
        group = (first_row + start) // GROUP
        for k in range(columns):
            group_of_normals(
                out, np.uintp((first_column + k) * STRIDE + start), first_element + k, group,
                draw.layer, draw.stream, draw.key0, draw.key1,
            )  # fmt: skip


@kernel
def fill_uniforms(out, first_column, first_element, columns, first_row, rows, draw):
    """Write uniform numbers on (-sqrt 3, sqrt 3), like `fill_normals`."""
    for start in range(0, rows, GROUP):
        group = (first_row + start) // GROUP
        for k in range(columns):
            group_of_uniforms(
                out, np.uintp((first_column + k) * STRIDE + start), first_element + k, group,
                draw.layer, draw.stream, draw.key0, draw.key1,
            )  # fmt: skip


@kernel
def fill_signs(out, first_column, first_element, columns, first_row, rows, draw):
    """Write numbers that are -1 or 1, like `fill_normals`."""
    for start in range(0, rows, GROUP):
        group = (first_row + start) // GROUP
        for k in range(columns):
            signs(
                out, np.uintp((first_column + k) * STRIDE + start), first_element + k, group,
                draw.layer, draw.stream, draw.key0, draw.key1,
            )  # fmt: skip


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
            tile[k * STRIDE : k * STRIDE + rows] = 0.0
            for row in range(count):
                tile[k * STRIDE + row] = given[origin + row, element + k]
