"""Batches wider than a panel of the factor, or than a slab of a product."""

import itertools

import numpy as np
import pytest
from oracle import semidefinite_cholesky

from bnmc import Chain, simulate
from bnmc._kernels.cpu import blocks, factor, memory, numbers, sharing
from bnmc.simulation.engine import threads

EPS = np.finfo(np.float64).eps


def body_of(kernel, python):
    return kernel.py_func if python else kernel


def wishart(order, degrees, seed=0):
    rows = np.random.default_rng(seed).standard_normal((degrees, order))
    return rows.T @ rows / degrees


def factorised(matrix, twin=None, dtype=np.float64, python=False):
    """The factor of a matrix, its relative pivots, and which columns are not zero."""
    order = len(matrix)
    out, diagonal = np.zeros((order, order), dtype), np.diag(matrix).copy()
    panel, regular = np.zeros(memory.panel_shape(order)), np.zeros(order, bool)
    own = np.arange(order) if twin is None else twin
    of = factor.Factored(np.triu(matrix), diagonal, own, panel, out, regular)
    body_of(factor.cholesky, python)(of, 1.0)
    return out, diagonal, regular


# Multiples of a panel and not, of four and not; the last rows do not fill a strip.
@pytest.mark.parametrize(
    ("order", "python"), [(64, False), (65, False), (70, True), (131, False), (192, False)]
)
def test_a_regular_matrix_of_several_panels(order, python):
    matrix = wishart(order, 4 * order)
    found, pivots, regular = factorised(matrix, python=python)
    exact = np.linalg.cholesky(matrix)
    assert regular.all()
    np.testing.assert_array_equal(found, np.tril(found))
    np.testing.assert_allclose(found, exact, rtol=0, atol=100 * order * EPS)
    np.testing.assert_allclose(pivots, np.diag(exact) ** 2 / np.diag(matrix), rtol=1e-11)


def test_a_float32_factor_is_that_of_float64_rounded():
    matrix = wishart(130, 500)
    np.testing.assert_array_equal(
        factorised(matrix, dtype=np.float32)[0], factorised(matrix)[0].astype(np.float32)
    )


def test_a_singular_matrix_of_several_panels():
    """The rank is used up in the second panel; later columns are zero."""
    matrix = wishart(150, 90)
    found, _, regular = factorised(matrix)
    np.testing.assert_array_equal(regular, np.arange(150) < 90)
    assert not found[:, 90:].any()
    np.testing.assert_allclose(found, semidefinite_cholesky(matrix), rtol=0, atol=1e-10)


def test_copies_of_samples_in_other_panels():
    rows = np.random.default_rng(1).standard_normal((400, 150))
    rows[:, [70, 149]] = rows[:, [3, 66]]
    matrix = rows.T @ rows / 400
    twin = np.arange(150)
    twin[[70, 149]] = [3, 66]
    found, _, regular = factorised(matrix, twin)
    np.testing.assert_array_equal(found[[70, 149]], found[[3, 66]])
    np.testing.assert_array_equal(np.flatnonzero(~regular), [70, 149])
    np.testing.assert_allclose(found @ found.T, matrix, rtol=0, atol=1e-13)


@pytest.mark.parametrize("python", [False, True], ids=["compiled", "python"])
def test_products_are_subtracted_whatever_the_parts(python):
    order, start = 94, 64
    rng = np.random.default_rng(2)
    matrix, panel = rng.standard_normal((order, order)), np.zeros(memory.panel_shape(order))
    panel[:, :order] = rng.standard_normal((len(panel), order))
    subtract = body_of(factor.subtract_products, python)
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


@pytest.mark.parametrize("python", [False, True], ids=["compiled", "python"])
def test_a_panel_is_extended_whatever_the_parts(python):
    """The rows of a factor on the right of its first block, in several pieces; row 6 is zero."""
    order, first, panel = 340 if not python else 90, memory.PANEL, memory.PANEL
    matrix = wishart(order, 2 * order, 4)
    matrix[:, 6] = matrix[6] = 0.0
    exact = semidefinite_cholesky(matrix)[first:, :panel]
    found = []
    for cuts in ((first, order), (first, 68, 81, order)):
        own, out = np.triu(matrix), np.zeros((order, order))
        space, regular = np.zeros(memory.panel_shape(order)), np.zeros(order, bool)
        diagonal = np.maximum(np.diag(matrix), 1e-3)
        of = factor.Factored(own, diagonal, np.arange(order), space, out, regular)
        for begin, stop in ((0, panel), *itertools.pairwise(cuts)):
            body_of(factor.make_panel, python)(of, 3.0, 0, panel, begin, stop)
        np.testing.assert_array_equal(out[first:, :panel], 3.0 * space[:, first:order].T)
        found.append(space[:, first:order].T)
    np.testing.assert_allclose(found[0], exact, rtol=0, atol=100 * order * EPS)
    np.testing.assert_array_equal(found[1], found[0])
    assert not found[0][:, 6].any()


@pytest.mark.parametrize("python", [False, True], ids=["compiled", "python"])
def test_rows_of_tiles_are_merged_whatever_the_parts(python):
    """Of integers, whose sums are exact; a matrix that is not finite in its last row is told."""
    columns, panels, width = 22, 3, 8
    rng = np.random.default_rng(5)
    sums = rng.integers(-9, 9, (panels, memory.tile_sums(columns))).astype(np.float64)
    merge = body_of(sharing.merge_tiles, python)
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


def test_least_pivots_of_several_panels():
    """The least of the squared relative distances of a sample from the span of earlier ones."""
    matrices = np.array([wishart(80, 100, seed) for seed in range(3)])
    exact = [(np.diag(np.linalg.cholesky(m)) ** 2 / np.diag(m)).min() for m in matrices]
    least = np.full(3, np.inf)
    diagonals = np.einsum("kii->ki", matrices).copy()
    panel, regular = np.zeros(memory.panel_shape(80)), np.zeros(80, bool)
    factor.least_pivots(matrices, diagonals, np.arange(80), panel, regular, least)
    np.testing.assert_allclose(least, exact, rtol=1e-10)


@pytest.mark.parametrize("columns", [128, 130, 261])
def test_products_of_more_columns_than_a_slab(columns):
    """Of small integers, whose sums are exact in any order."""
    rng = np.random.default_rng(columns)
    work = memory.work(columns, 1, np.float32)
    values = rng.integers(-3, 4, (columns, 64)).astype(np.float32)
    lower = np.tril(rng.integers(-3, 4, (columns, columns))).astype(np.float32)
    view = work.block.reshape(-1, numbers.STRIDE)
    view[:columns, :64] = values
    work.factor[:columns, :columns] = lower
    apart = np.zeros_like(work.block)
    blocks.multiply_triangular(work.factor, columns, work.block, apart, 64)
    np.testing.assert_array_equal(apart.reshape(view.shape)[:columns, :64], lower @ values)
    blocks.multiply_triangular(work.factor, columns, work.block, work.block, 64)
    np.testing.assert_array_equal(view[:columns, :64], lower @ values)
    assert not view[columns:].any()

    view[:columns, :64] = values
    blocks.add_gram(work.block, columns, 64, work.partial, work.sums)
    gram = np.zeros((columns, columns))
    assert blocks.unpack_gram(work.sums, 64, gram)
    np.testing.assert_array_equal(gram, values @ values.T / 64)

    before = rng.integers(-3, 4, (columns, 64)).astype(np.float32)
    view[:columns, :64] = before
    tile = memory.aligned_zeros((numbers.TILE * numbers.STRIDE,), np.float32)
    tile.reshape(-1, numbers.STRIDE)[:, :64] = rng.integers(-3, 4, (numbers.TILE, 64))
    blocks.add_product(work.factor, 5, columns, tile, 9, work.block, 64)
    product = lower[:, 5:14] @ tile.reshape(-1, numbers.STRIDE)[:9, :64]
    np.testing.assert_array_equal(view[:columns, :64], before + product)


def test_threads_share_the_factor_and_the_sums_of_one_chain(monkeypatch):
    """A layer of three panels of rows, whose covariance has three panels of columns."""
    monkeypatch.setattr(threads, "SHARED_ROWS", 1)
    generator = np.random.default_rng(0)
    start = generator.standard_normal((1100, 150))
    runs = [
        simulate(
            Chain(1100, 150, "relu"), 2, initial=start, rng=1, threads=count,
            sampler="conditional",
        ).gram
        for count in (1, 2, 3)
    ]  # fmt: skip
    np.testing.assert_array_equal(runs[1], runs[0])
    np.testing.assert_array_equal(runs[2], runs[0])
