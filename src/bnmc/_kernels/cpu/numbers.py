"""Random numbers of a block of rows: normals, uniforms, signs, weights.

Four words of a Philox counter are the numbers of four rows, so a group of 16 neighbouring counters
fills `GROUP` rows of one column.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bnmc._kernels.compiling import by_precision, inlined, kernel
from bnmc._kernels.scalar.codes import GAUSSIAN, RADEMACHER, UNIFORM
from bnmc._kernels.scalar.elementary import smaller
from bnmc._kernels.scalar.normal import centred_uniforms, normals, signs

#: Rows of a block, and rows per call of the generator: four words of 16 neighbouring counters.
BLOCK = 512
GROUP = 64
LANES = GROUP // 4

#: Places of a block from one column to the next.  With `BLOCK`, a power of two, the same rows of
#: all columns would be in two sets of the first cache, which do not hold more than 16 columns.
STRIDE = BLOCK + 16

# Unsigned like offsets, so that the compiler adds no test for negative indices.
_ONE, _TWO, _THREE = np.uintp(LANES), np.uintp(2 * LANES), np.uintp(3 * LANES)

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


_normals = by_precision(normals)
_uniforms = by_precision(centred_uniforms)
_signs = by_precision(signs)


@inlined
def fill(four, out, first_column, first_element, columns, first_row, rows, draw):
    """Write the numbers of `four`, a function by the dtype of `out`, like `fill_normals`."""
    for start in range(0, rows, GROUP):
        quad = (first_row + start) // GROUP * LANES
        for k in range(columns):
            offset = np.uintp((first_column + k) * STRIDE + start)
            for lane in range(LANES):
                at = offset + np.uintp(lane)
                out[at], out[at + _ONE], out[at + _TWO], out[at + _THREE] = four(
                    out, first_element + k, quad + lane,
                    draw.layer, draw.stream, draw.key0, draw.key1,
                )  # fmt: skip


@kernel
def fill_normals(out, first_column, first_element, columns, first_row, rows, draw):
    """Write the normals of `columns` columns and `rows` rows to a block.

    Column `first_column` + k has element `first_element` + k.  Rows start at `first_row`; `rows`
    and `first_row` are multiples of `GROUP`.
    """
    fill(_normals, out, first_column, first_element, columns, first_row, rows, draw)


@kernel
def fill_uniforms(out, first_column, first_element, columns, first_row, rows, draw):
    """Write uniform numbers on (-sqrt 3, sqrt 3), like `fill_normals`."""
    fill(_uniforms, out, first_column, first_element, columns, first_row, rows, draw)


@kernel
def fill_signs(out, first_column, first_element, columns, first_row, rows, draw):
    """Write numbers that are -1 or 1, like `fill_normals`."""
    fill(_signs, out, first_column, first_element, columns, first_row, rows, draw)


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
        count = smaller(rows, given.shape[0] - origin)
        for k in range(columns):
            tile[k * STRIDE : k * STRIDE + rows] = 0.0
            for row in range(count):
                tile[k * STRIDE + row] = given[origin + row, element + k]
