"""Parts of a factor and of products; `test_cholesky.py` has whole factors."""

import itertools

import numpy as np
import pytest
from oracle import semidefinite_cholesky
from slow_cases import some

from bnmc._kernels.cpu import blocks, factor, memory, numbers, sharing

EPS = np.finfo(np.float64).eps


def test_products_are_subtracted_whatever_the_parts():
    order, start = 94, 64
    rng = np.random.default_rng(2)
    matrix, panel = rng.standard_normal((order, order)), np.zeros(memory.panel_shape(order))
    panel[:, :order] = rng.standard_normal((len(panel), order))
    subtract = factor.subtract_products
    whole, parts = matrix.copy(), matrix.copy()
    subtract(whole, panel, start, order)
    for first, last in ((start, 72), (72, 76), (76, 92), (92, order)):
        subtract(parts, panel, first, last)
    np.testing.assert_array_equal(np.triu(parts), np.triu(whole))
    exact = matrix[start:, start:] - (panel.T @ panel)[start:order, start:order]
    np.testing.assert_allclose(
        np.triu(whole[start:, start:]), np.triu(exact), rtol=0, atol=64 * 64 * EPS
    )
    np.testing.assert_array_equal(whole[:start], matrix[:start])


def test_a_panel_is_extended_whatever_the_parts():
    """The rows of a factor on the right of its first block, in several pieces; row 6 is zero."""
    order, first, panel = 340, memory.PANEL, memory.PANEL
    rows = np.random.default_rng(4).standard_normal((2 * order, order))
    matrix = rows.T @ rows / (2 * order)
    matrix[:, 6] = matrix[6] = 0.0
    exact = semidefinite_cholesky(matrix)[first:, :panel]
    panels = []
    for cuts in ((first, order), (first, 68, 81, order)):
        upper, out = np.triu(matrix), np.zeros((order, order))
        space, regular = np.zeros(memory.panel_shape(order)), np.zeros(order, bool)
        diagonal = np.maximum(np.diag(matrix), 1e-3)
        of = factor.Factored(upper, diagonal, np.arange(order), space, out, regular)
        for begin, stop in ((0, panel), *itertools.pairwise(cuts)):
            factor.make_panel(of, 3.0, 0, panel, begin, stop)
        np.testing.assert_array_equal(out[first:, :panel], 3.0 * space[:, first:order].T)
        panels.append(space[:, first:order].T)
    np.testing.assert_allclose(panels[0], exact, rtol=0, atol=100 * order * EPS)
    np.testing.assert_array_equal(panels[1], panels[0])
    assert not panels[0][:, 6].any()


def test_rows_of_tiles_are_merged_whatever_the_parts():
    """Of integers, whose sums are exact; a matrix that is not finite in its last row is told."""
    columns, panels, width = 22, 3, 8
    rng = np.random.default_rng(5)
    sums = rng.integers(-9, 9, (panels, memory.tile_sums(columns))).astype(np.float64)
    merge = sharing.merge_tiles
    exact = np.full((columns, columns), np.nan)
    position = 0
    for i in range(0, memory.padded(columns), 4):
        for j in range(0, i + 1, 4):
            tile = sums[:, position : position + 16].sum(axis=0).reshape(4, 4) / width
            position += 16
            for row, column in itertools.product(range(i, i + 4), range(j, j + 4)):
                if column <= row < columns:
                    exact[row, column] = exact[column, row] = tile[row - i, column - j]
    gram = np.zeros((columns, columns))
    parts = (2, 6), (0, 1), (1, 2)
    assert all(merge(sums, width, gram, *part) for part in parts)
    np.testing.assert_array_equal(gram, exact)
    # The sums of all panels are in the first one now.
    sums[1:] = 0.0
    sums[1, -16] = np.inf
    assert merge(sums.copy(), width, gram, 0, 5)
    assert not merge(sums.copy(), width, gram, 0, 6)
    sums[1, -16], sums[2, 0] = 0.0, np.nan
    assert not merge(sums, width, gram, 0, 6)


@pytest.mark.parametrize("dtype", some([np.float32, np.float64], np.float64))
@pytest.mark.parametrize("columns", [1, 2, 3, 4, 5, 7, 8, 9, 12, 31, 32, 33, 40, 128, 130, 261])
def test_products_of_any_number_of_columns(columns, dtype):
    """Of small integers, whose sums are exact in any order; nothing beyond the rows is touched."""
    rng, rows = np.random.default_rng(columns), 192 if columns < 100 else 64
    work = memory.work(columns, 1, dtype)
    values = rng.integers(-3, 4, (columns, rows)).astype(dtype)
    lower = np.tril(rng.integers(-3, 4, (columns, columns))).astype(dtype)
    work.factor[:columns, :columns] = lower
    view, apart = work.block.reshape(-1, numbers.STRIDE), np.zeros_like(work.block)
    view[:columns, :rows], view[:columns, rows:] = values, 55.0
    for out in (apart, work.block):
        blocks.multiply_triangular(work.factor, columns, work.block, out, rows)
        np.testing.assert_array_equal(out.reshape(view.shape)[:columns, :rows], lower @ values)
    assert not view[columns:].any()

    view[:columns, :rows] = values
    blocks.add_gram(work.block, columns, rows, work.partial, work.sums)
    gram = np.zeros((columns, columns))
    assert blocks.unpack_gram(work.sums, rows, gram)
    exact = values.astype(np.float64)
    np.testing.assert_array_equal(gram, exact @ exact.T / rows)

    depth = min(9, columns)
    start = min(5, columns - depth)
    tile = memory.aligned_zeros((numbers.TILE * numbers.STRIDE,), dtype)
    tile_rows = tile.reshape(-1, numbers.STRIDE)[:, :rows]
    tile_rows[:] = rng.integers(-3, 4, tile_rows.shape)
    blocks.add_product(work.factor, start, columns, tile, depth, work.block, rows)
    product = lower[:, start : start + depth] @ tile_rows[:depth]
    np.testing.assert_array_equal(view[:columns, :rows], values + product)
    assert (view[:columns, rows:] == 55.0).all()
