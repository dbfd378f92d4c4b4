"""The CPU kernels against NumPy oracles, as machine code and as the Python that it is made from.

Matrix kernels are exact on integers; elsewhere errors are counted in units of rounding of the
dtype, times the length of the sums.
"""

import functools
import math

import numpy as np
import pytest
from numba import njit
from oracle import (
    FORMULAS,
    gram,
    layer_spec,
    normalise,
    normals,
    projector,
    semidefinite_cholesky,
    weights,
)
from slow_cases import some

from bnmc._kernels.compiling import OPTIONS, Apart, kernel
from bnmc._kernels.cpu import blocks as cpu_blocks
from bnmc._kernels.cpu import layers as cpu_layers
from bnmc._kernels.cpu import memory, moments, numbers, sharing, wishart
from bnmc._kernels.cpu import rows as cpu_rows
from bnmc._kernels.cpu.sources import Drawn, Layer, Multiplied
from bnmc._kernels.cpu.vectors import (
    PART_BYTES,
    STRIP_BYTES,
    add_all,
    add_scaled,
    all_greater,
    fill_like,
    keep_order,
    load_across,
    load_part,
    load_strip,
    load_wide,
    multiply_add,
    square_root,
    store,
    store_sums,
    sum_lanes,
    zero_part,
    zero_strip,
    zero_wide,
)
from bnmc._kernels.scalar import codes
from bnmc._kernels.scalar.normal import chi
from bnmc.chain.activations import Activation, sigma_of

DTYPES = pytest.mark.parametrize("dtype", [np.float32, np.float64])
FLOAT64 = pytest.mark.parametrize("dtype", some([np.float32, np.float64], np.float64))
BODIES = pytest.mark.parametrize("body", ["compiled", "python"])
NORMS = pytest.mark.parametrize("norm", [codes.NORM_NONE, codes.NORM_UNCENTRED, codes.NORM_CENTRED])
KEY = np.uint32(123456789), np.uint32(987654321)

#: `finish_rows` on its own, as machine code and as Python.
FINISH_ROWS = kernel(cpu_layers.finish_rows)
NO_MOMENTS = moments.moments_of(1, 1, 0)


def finish(body, sigma, spec, first_row, count, x, kept, work):
    """Finish a block of rows in place; return a row without variance, or -1."""
    layer = Layer(work.covariance, x, x[:0], kept)
    return body_of(FINISH_ROWS, body)(spec, sigma, layer, first_row, count, work, NO_MOMENTS)


CHAIN = 77


def body_of(kernel, body):
    return kernel if body == "compiled" else kernel.py_func


def activation_of(name, dtype, body="compiled"):
    """An activation as samplers give it to kernels, or for Python that applies it itself."""
    sigma = sigma_of(Activation.named(name))
    return sigma if body == "python" else cpu_rows.activation(sigma, np.dtype(dtype).name)


def columns_of(body):
    """Column counts to test: all of interest, or a few where Python is slow."""
    return range(1, 41) if body == "compiled" else (1, 2, 4, 5, 9)


def blocked(rows, columns, dtype, seed, integers=False):
    """A flat block whose rows beyond `rows` are a mark, and its values (columns, rows)."""
    generator = np.random.default_rng(seed)
    block = memory.aligned_zeros((memory.padded(columns) * numbers.STRIDE,), dtype)
    view = block.reshape(-1, numbers.STRIDE)
    shape = (columns, rows)
    values = generator.integers(-9, 10, shape) if integers else generator.standard_normal(shape)
    view[:columns, :rows] = values
    view[:columns, rows:] = 55.0
    return block, view[:columns, :rows].astype(np.float64)


def padded_factor(columns, dtype, seed, width=None, integers=False):
    """A factor padded with zeros, and its values: lower triangular unless it has a width."""
    generator = np.random.default_rng(seed)
    shape = (columns, width or columns)
    values = generator.integers(-9, 10, shape) if integers else generator.standard_normal(shape)
    values = values if width else np.tril(values)
    n = memory.padded(columns)
    factor = memory.aligned_zeros((n, width or n), dtype)
    factor[:columns, : shape[1]] = values
    return factor, factor[:columns, : shape[1]].astype(np.float64)


def assert_close(actual, exact, sizes, terms, dtype):
    """Errors of sums of `terms` products, whose absolute values add up to `sizes`."""
    assert np.all(np.abs(actual - exact) <= terms * np.finfo(dtype).eps * (sizes + 1e-300))


# --- vectors


def wide_program(array, out, scalar):
    """Every operation on wide vectors, whose results go to `out` one after the other."""
    lanes = 256 // array.itemsize
    x, y = load_wide(array, 1), load_wide(array, lanes + 3)
    store(out, 0, multiply_add(x, y, x))
    unchanged, scaled = add_scaled((scalar,), x, (x, y))
    store(out, lanes, scaled + (unchanged - x))
    store(out, 2 * lanes, fill_like(zero_wide(array), scalar) + x)
    keep_order()
    store(out, 3 * lanes, square_root(x * x) - y)
    store(out, 4 * lanes, x / y)
    # Where an entry is equal or not a number, not all are greater.
    nan = fill_like(x, scalar) / zero_wide(array) * zero_wide(array)
    ones = fill_like(x, scalar) / fill_like(x, scalar)
    return all_greater(x + ones, x), all_greater(x, x), all_greater(nan, x), all_greater(x, nan)


def narrow_program(array, out):
    """Sums over the lanes of 16 vectors."""
    lanes = PART_BYTES // array.itemsize
    v = load_part(array, 2)
    z = zero_part(array)
    w = multiply_add(v, v, z)
    u = load_part(array, lanes + 5)
    sums = (v, w, z, u, u, v, w, z, v * u, v + u, v - u, w, w, u, z, v)
    store_sums(out, 4, add_all(sums, (u, u, u, u, v, v, v, v, u, u, u, u, v, v, v, v)))


def across_program(array, out):
    """Four numbers that are apart, in float64, and the sum of all lanes of a wide vector."""
    store(out, 1, load_across(array, 5, 60))
    out[5] = sum_lanes(load_wide(array, 3))


def strip_program(array, out):
    """A strip of rows and zeros, one after the other."""
    lanes = STRIP_BYTES // array.itemsize
    store(out, 1, load_strip(array, 3) + zero_strip(array))
    store(out, lanes + 1, zero_strip(array))


@DTYPES
def test_vectors_in_machine_code_do_what_their_python_bodies_say(dtype):
    """On integers, where no operation but the quotient rounds."""
    array = np.random.default_rng(1).integers(1, 9, 400).astype(dtype)
    results, sums = np.full((2, 6 * 64), 7, dtype), np.full((2, 24), 7, dtype)
    with np.errstate(divide="ignore", invalid="ignore"):
        flags = wide_program(array, results[0], dtype(3))
    assert flags == (True, False, False, False)
    assert njit(error_model="numpy")(wide_program)(array, results[1], dtype(3)) == flags
    np.testing.assert_array_equal(results[0], results[1])
    lanes = 256 // array.itemsize
    x, y = array[1 : 1 + lanes], array[lanes + 3 : 2 * lanes + 3]
    exact = np.concatenate([x * y + x, 3 * x + y, 3 + x, x - y, x / y])
    np.testing.assert_array_equal(results[0, : exact.size], exact)
    assert np.all(results[:, 5 * lanes :] == 7)
    narrow_program(array, sums[0])
    njit(narrow_program)(array, sums[1])
    np.testing.assert_array_equal(sums[0], sums[1])
    n = PART_BYTES // array.itemsize
    v, u = array[2 : 2 + n].sum(), array[n + 5 : 2 * n + 5].sum()
    assert sums[0, [4, 7, 13]].tolist() == [v + u, 2 * u, v + 2 * u]
    assert np.all(sums[:, :4] == 7)
    assert np.all(sums[:, 20:] == 7)
    n = STRIP_BYTES // array.itemsize
    strips = np.full((2, 2 * n + 2), 7, dtype)
    strip_program(array, strips[0])
    njit(strip_program)(array, strips[1])
    np.testing.assert_array_equal(strips, np.stack([[7, *array[3 : 3 + n], *[0] * n, 7]] * 2))
    # Roots of integers: the order of additions shows in the last bits.
    array = np.sqrt(array)
    across = np.full((2, 7), 0.5)
    across_program(array, across[0])
    njit(across_program)(array, across[1])
    halves = array[3 : 3 + lanes]
    while halves.size > 1:
        halves = halves[: halves.size // 2] + halves[halves.size // 2 :]
    exact = [0.5, *array[5:186:60], halves[0], 0.5]
    np.testing.assert_array_equal(across, [exact] * 2)


def sum_tile(first, second, rows, partial):
    """`sum_tile`, which only compiled code calls, as a function."""
    store_sums(partial, 0, cpu_blocks.sum_tile(first, 0, second, 0, rows))


@DTYPES
def test_sums_of_lanes_have_a_fixed_order(dtype):
    """Whatever the processor: a sum for each lane of 64 bytes, then halves to halves."""
    rng = np.random.default_rng(3)
    first, second = rng.standard_normal((2, 4, numbers.STRIDE)).astype(dtype)
    lanes = 64 // first.itemsize
    # Each product is rounded once, with the sum; in float64 these are not exact, so powers of 2.
    first = np.exp2(np.round(first)).astype(dtype)
    sums = np.zeros((lanes, 4, 4), dtype)
    for row in range(0, 192, lanes):
        for lane in range(lanes):
            sums[lane] += np.outer(first[:, row + lane], second[:, row + lane])
    while len(sums) > 1:
        sums = sums[: len(sums) // 2] + sums[len(sums) // 2 :]
    found = np.zeros(16, dtype)
    njit(sum_tile)(first.reshape(-1), second.reshape(-1), 192, found)
    np.testing.assert_array_equal(found.reshape(4, 4), sums[0])


@DTYPES
def test_a_whole_tile_is_two_halves(dtype):
    """Processors with many registers make the one, others the other."""
    rng = np.random.default_rng(4)
    first, second = rng.standard_normal((2, 4 * numbers.STRIDE)).astype(dtype)
    whole = np.array(cpu_blocks.sum_whole_tile(first, 0, second, 0, 192)).reshape(4, 4, -1)
    for half in range(2):
        found = cpu_blocks.sum_half_tile(first, 2 * half * numbers.STRIDE, second, 0, 192)
        np.testing.assert_array_equal(whole[2 * half : 2 * half + 2].reshape(8, -1), found)


# --- matrix products of a block


@BODIES
@DTYPES
@pytest.mark.parametrize("integers", [True, False])
def test_multiply_triangular(dtype, body, integers):
    kernel = body_of(cpu_blocks.multiply_triangular, body)
    for columns in columns_of(body):
        for rows in (64, 192, numbers.BLOCK):
            block, values = blocked(rows, columns, dtype, columns, integers)
            factor, exact_factor = padded_factor(columns, dtype, rows, None, integers)
            kernel(factor, columns, block, block, rows)
            view = block.reshape(-1, numbers.STRIDE)
            exact = exact_factor @ values
            if integers:
                np.testing.assert_array_equal(view[:columns, :rows], exact)
            else:
                sizes = np.abs(exact_factor) @ np.abs(values)
                assert_close(view[:columns, :rows], exact, sizes, columns, dtype)
            assert np.all(view[:columns, rows:] == 55.0)
            assert not view[columns:].any()


@BODIES
@DTYPES
@pytest.mark.parametrize("integers", [True, False])
def test_add_product(dtype, body, integers):
    kernel = body_of(cpu_blocks.add_product, body)
    start = 3
    for columns in columns_of(body):
        for rows, depth in ((64, 1), (128, 32), (192, 7), (numbers.BLOCK, 31)):
            block, before = blocked(rows, columns, dtype, columns, integers)
            tile, values = blocked(rows, numbers.TILE, dtype, columns + 1, integers)
            factor, exact_factor = padded_factor(columns, dtype, rows, 40, integers)
            kernel(factor, start, columns, tile, depth, block, rows)
            view = block.reshape(-1, numbers.STRIDE)
            part = exact_factor[:, start : start + depth]
            exact = before + part @ values[:depth]
            if integers:
                np.testing.assert_array_equal(view[:columns, :rows], exact)
            else:
                sizes = np.abs(before) + np.abs(part) @ np.abs(values[:depth])
                assert_close(view[:columns, :rows], exact, sizes, depth + 1, dtype)
            assert np.all(view[:columns, rows:] == 55.0)


def symmetric(sums, columns):
    """The lower tiles of a symmetric matrix, put together."""
    n = memory.padded(columns)
    out = np.zeros((n, n))
    tiles = iter(sums.reshape(-1, 4, 4))
    for i in range(0, n, 4):
        for j in range(0, i + 1, 4):
            out[i : i + 4, j : j + 4] = next(tiles)
    return np.tril(out)[:columns, :columns] + np.tril(out, -1)[:columns, :columns].T


@BODIES
@DTYPES
@pytest.mark.parametrize("integers", [True, False])
def test_add_gram(dtype, body, integers):
    kernel = body_of(cpu_blocks.add_gram, body)
    for columns in columns_of(body):
        for rows in (64, 192, numbers.BLOCK):
            block, values = blocked(rows, columns, dtype, columns, integers)
            sums = np.zeros_like(memory.work(columns, 1, dtype).sums)
            partial = memory.aligned_zeros((16,), dtype)
            kernel(block, columns, rows, partial, sums)
            if integers:
                np.testing.assert_array_equal(symmetric(sums, columns), values @ values.T)
                kernel(block, columns, rows, partial, sums)
                np.testing.assert_array_equal(symmetric(sums, columns), 2 * values @ values.T)
            else:
                sizes = np.abs(values) @ np.abs(values).T
                exact = values @ values.T
                # Each lane adds few of the rows, so errors stay far below rows units.
                assert_close(symmetric(sums, columns), exact, sizes, rows / 4, dtype)


@BODIES
@DTYPES
def test_products_do_not_depend_on_how_many_columns_or_rows_go_along(dtype, body):
    """Columns and rows computed together or apart have the same bits."""
    block, _ = blocked(256, 7, dtype, 1)
    factor, _ = padded_factor(7, dtype, 2)
    parts = block.copy()
    body_of(cpu_blocks.multiply_triangular, body)(factor, 7, block, block, 256)
    narrow = factor[:4].copy()
    body_of(cpu_blocks.multiply_triangular, body)(narrow, 4, parts, parts, 64)
    whole = block.reshape(-1, numbers.STRIDE)[:4, :64]
    np.testing.assert_array_equal(parts.reshape(-1, numbers.STRIDE)[:4, :64], whole)


# --- normalization


def normalise_block(body, block, rows, spec):
    """Normalise the rows of a block in place; return a row without variance, or -1.

    The kernels measure the rows, and normalise where they activate: here with no activation.
    """
    work = memory.work(spec.batch, spec.columns // spec.batch, block.dtype)
    degenerate = body_of(cpu_rows.measure_rows, body)(
        block, rows, spec, spec.norm == codes.NORM_CENTRED, work.scales
    )
    if degenerate < 0:
        linear = sigma_of(Activation.named("linear"))
        body_of(cpu_rows.activate_columns, body)(
            linear, block, spec.columns, spec.batch, rows, work.scales
        )
    return degenerate


@BODIES
@DTYPES
@pytest.mark.parametrize("norm", [codes.NORM_UNCENTRED, codes.NORM_CENTRED])
@pytest.mark.parametrize("eps", [0.0, 1e-5, 0.5])
def test_normalise(dtype, body, norm, eps):
    shapes = [(2, 1), (3, 1), (5, 2), (8, 1), (4, 3), (40, 1)]
    for batch, inputs in shapes if body == "compiled" else shapes[:3]:
        for rows in (64, 192):
            block, values = blocked(rows, batch * inputs, dtype, batch)
            spec = layer_spec(256, batch, inputs, norm, eps=eps)
            assert normalise_block(body, block, rows, spec) == -1
            # The kernel knows eps in the dtype of its rows.
            exact = normalise(values.T, norm, batch, float(dtype(eps))).T
            view = block.reshape(-1, numbers.STRIDE)
            # A centred row loses digits where its variance is small beside its mean.
            of_groups = values.reshape(inputs, batch, rows)
            condition = np.sqrt((of_groups**2).mean(axis=1)) / of_groups.std(axis=1)
            units = (8 + batch) * np.repeat(condition, batch, axis=0)
            error = np.abs(view[: batch * inputs, :rows] - exact)
            assert np.all(error <= units * np.finfo(dtype).eps * math.sqrt(batch))
            assert np.all(view[: batch * inputs, rows:] == 55.0)


@BODIES
@DTYPES
@pytest.mark.parametrize("power", [-40, 40])
def test_a_row_may_have_any_scale(dtype, body, power):
    """Powers of two change no bit."""
    spec = layer_spec(256, 5, norm=codes.NORM_CENTRED)
    block, _ = blocked(64, 5, dtype, 3)
    scaled = block * dtype(2.0**power)
    for one in (block, scaled):
        assert normalise_block(body, one, 64, spec) == -1
    rows = np.s_[:5, :64]
    np.testing.assert_array_equal(
        block.reshape(-1, numbers.STRIDE)[rows], scaled.reshape(-1, numbers.STRIDE)[rows]
    )


@BODIES
@DTYPES
@pytest.mark.parametrize("row", [0, 63, 64, 130])
def test_a_row_without_variance_is_named(dtype, body, row):
    for norm, values in (
        (codes.NORM_CENTRED, [1 / 3] * 5),
        (codes.NORM_CENTRED, [0.0] * 5),
        (codes.NORM_UNCENTRED, [0.0] * 5),
        (codes.NORM_UNCENTRED, [1.0, np.nan, 0.0, 0.0, 0.0]),
        (codes.NORM_CENTRED, [1.0, 2.0, np.inf, 0.0, 0.0]),
    ):
        block, _ = blocked(192, 5, dtype, 3)
        block.reshape(-1, numbers.STRIDE)[:5, row] = values
        with np.errstate(invalid="ignore"):
            assert normalise_block(body, block, 192, layer_spec(256, 5, norm=norm)) == row


@BODIES
@DTYPES
def test_the_second_batch_may_lack_variance_too(dtype, body):
    block, _ = blocked(128, 6, dtype, 3)
    block.reshape(-1, numbers.STRIDE)[3:6, 100] = 7.0
    assert normalise_block(body, block, 128, layer_spec(256, 3, 2, codes.NORM_CENTRED)) == 100


@BODIES
@DTYPES
def test_eps_makes_a_constant_row_zero(dtype, body):
    block, _ = blocked(64, 4, dtype, 3)
    view = block.reshape(-1, numbers.STRIDE)
    view[:4, 9] = 0.25
    spec = layer_spec(256, 4, norm=codes.NORM_CENTRED, eps=1e-5)
    assert normalise_block(body, block, 64, spec) == -1
    assert not view[:4, 9].any()


@DTYPES
@pytest.mark.parametrize("batch", [2, 5, 40])
def test_a_batch_of_tiny_but_real_variance_is_no_error(dtype, batch):
    """What is more than rounding of the mean counts as variance."""
    block, values = blocked(64, batch, dtype, 8)
    view = block.reshape(-1, numbers.STRIDE)
    size = 1000 * batch * np.finfo(dtype).eps
    view[:batch, :64] = 1 + size * values
    assert normalise_block("compiled", block, 64, layer_spec(256, batch)) == -1
    assert np.abs((view[:batch, :64] ** 2).mean(axis=0) - 1).max() < 0.01


@BODIES
@DTYPES
@pytest.mark.parametrize("batch", [3, 40, 200])
def test_equal_entries_have_no_variance_however_many_are_added(dtype, body, batch):
    """The mean of n equal entries may be n units of rounding off: so may their variance."""
    spec, seen = layer_spec(256, batch), 0.0
    for value in np.random.default_rng(batch).uniform(0.5, 2.0, 40 if body == "compiled" else 3):
        block, _ = blocked(64, batch, dtype, 3)
        view = block.reshape(-1, numbers.STRIDE)
        view[:batch, 9] = value
        mean = dtype(0.0)
        for entry in view[:batch, 9]:
            mean += entry
        seen = max(seen, abs(mean * dtype(1.0 / batch) / view[0, 9] - 1) / np.finfo(dtype).eps)
        assert normalise_block(body, block, 64, spec) == 9
    # Of many entries the mean is off by more than one unit, which is what the threshold is for.
    assert seen > 1.5 or batch == 3


@BODIES
@DTYPES
@pytest.mark.parametrize("batch", [3, 40])
def test_a_variance_just_above_the_rounding_of_the_mean_counts(dtype, body, batch):
    """One entry of n differs by δ: the variance is δ² (n−1)/n², here 3² times the threshold."""
    unit = np.finfo(dtype).eps
    block, _ = blocked(64, batch, dtype, 3)
    view = block.reshape(-1, numbers.STRIDE)
    view[:batch, :64] = 1.0
    view[0, :64] += 3.0 * batch**2 * unit / math.sqrt(batch - 1)
    assert normalise_block(body, block, 64, layer_spec(256, batch)) == -1


@BODIES
@DTYPES
@NORMS
@pytest.mark.parametrize("skip", [0.0, 1.0, -0.5])
@pytest.mark.parametrize("keeps", [True, False])
def test_finish_rows(dtype, body, norm, skip, keeps):
    """x = N(h), then activations, and zeros from the last row on."""
    width, first_row, count = 600, 512, 88
    batch, inputs = 3, 2
    spec = layer_spec(width, batch, inputs, norm, skip, hides_common=False)
    work = memory.work(batch, inputs, dtype)
    block, values = blocked(128, 6, dtype, 5)
    work.block[:] = block
    stride = memory.stride(width)
    x = memory.aligned_zeros((6, stride) if skip else (0, 0), dtype)
    x[:] = np.random.default_rng(6).standard_normal(x.shape)
    before = x.copy()
    kept = memory.aligned_zeros((8, stride) if keeps else (0, 0), dtype)
    sigma = activation_of("tanh", dtype, body)
    assert finish(body, sigma, spec, first_row, count, x, kept, work) == -1
    here = np.s_[:, first_row : first_row + count]
    exact_x = normalise(values[:, :count].T, norm, batch).T
    tolerance = 3000 * np.finfo(dtype).eps
    view = work.block.reshape(-1, numbers.STRIDE)
    np.testing.assert_allclose(view[:6, :count], np.tanh(exact_x), rtol=0, atol=tolerance)
    assert not view[:6, count:128].any()
    if skip:
        np.testing.assert_allclose(x[here], exact_x, rtol=0, atol=tolerance)
        np.testing.assert_array_equal(x[:, :first_row], before[:, :first_row])
    if keeps:
        np.testing.assert_array_equal(kept[:6, first_row : first_row + 128], view[:6, :128])
        assert not kept[:, :first_row].any()
        assert not kept[:, first_row + 128 :].any()


@BODIES
@DTYPES
@pytest.mark.parametrize("norm", [codes.NORM_UNCENTRED, codes.NORM_CENTRED])
@pytest.mark.parametrize("count", [1, 20, 63, 65, 88])
def test_rows_beyond_the_width_need_no_variance(dtype, body, norm, count):
    """They fill up a block, and all-zero ones must not end the normalization of those before."""
    spec = layer_spec(600, 3, 2, norm, hides_common=False)
    work = memory.work(3, 2, dtype)
    block, values = blocked(128, 6, dtype, 5)
    work.block[:] = block
    work.block.reshape(-1, numbers.STRIDE)[:, count:] = 0.0
    sigma, nothing = activation_of("tanh", dtype, body), np.zeros((0, 0), dtype)
    assert finish(body, sigma, spec, 0, count, nothing, nothing, work) == -1
    view = work.block.reshape(-1, numbers.STRIDE)
    exact = np.tanh(normalise(values[:, :count].T, norm, 3).T)
    np.testing.assert_allclose(view[:6, :count], exact, rtol=0, atol=3000 * np.finfo(dtype).eps)


@BODIES
@DTYPES
@pytest.mark.parametrize("norm", [codes.NORM_UNCENTRED, codes.NORM_CENTRED])
def test_finish_rows_names_a_row_of_the_layer(dtype, body, norm):
    spec = layer_spec(600, 5, 1, norm, hides_common=False)
    work = memory.work(5, 1, dtype)
    sigma, nothing = activation_of("tanh", dtype, body), np.zeros((0, 0), dtype)
    # Equal entries, and entries that are equal to rounding: without a mean, they have to be 0.
    rows = [np.full(5, 0.25), 0.25 * (1 + np.finfo(dtype).eps * np.array([0, 1, 0, 1, 0]))]
    for row in rows if norm == codes.NORM_CENTRED else [np.zeros(5)]:
        for count in (80, 70):  # the same row beyond the width is no one's
            work.block[:], _ = blocked(128, 5, dtype, 5)
            work.block.reshape(-1, numbers.STRIDE)[:5, 70] = row
            degenerate = finish(body, sigma, spec, 512, count, nothing, nothing, work)
            assert degenerate == (512 + 70 if count == 80 else -1)


# --- layers


def start_of(spec, chains, dtype, seed=0):
    """Well-conditioned representations of random networks: x, a and G, and the kernels' arrays."""
    generator = np.random.default_rng(seed)
    x = generator.standard_normal((chains, spec.width, spec.columns)) + 0.3
    x = normalise(x, spec.norm, spec.batch).astype(dtype).astype(np.float64)
    a = np.tanh(x).astype(dtype).astype(np.float64)
    return x, a, gram(a)


class Layers:
    """Arrays of a few chains, as kernels take them, and a run through layers."""

    def __init__(self, spec, x, a, grams, dtype, keeps):
        chains, stride = len(x), memory.stride(spec.width)
        self.spec, self.dtype = spec, np.dtype(dtype)
        self.grams = grams.copy()
        shape = (chains, spec.columns, stride) if spec.skip else (chains, 0, 0)
        self.xs = memory.aligned_zeros(shape, dtype)
        if spec.skip:
            self.xs[:, :, : spec.width] = x.swapaxes(1, 2)
        shape = (chains, 2, memory.padded(spec.columns), stride) if keeps else (chains, 2, 0, 0)
        self.activations = memory.aligned_zeros(shape, dtype)
        if keeps:
            self.activations[:, 0, : spec.columns, : spec.width] = a.swapaxes(1, 2)
            self.spec = spec._replace(hides_common=False)
        self.work = memory.work(spec.batch, spec.columns // spec.batch, dtype)
        self.sums = cpu_layers.sums_of(spec, dtype, shared=True)
        self.status = np.zeros((chains, 3), np.int64)

    def source(self, given=None):
        """Rows drawn given the Gram matrix, or multiplied if activations are kept."""
        if self.activations.size:
            given = np.zeros((0, 0), self.dtype) if given is None else given
            return Multiplied(codes.STREAM_WEIGHTS, given)
        return Drawn(codes.STREAM_ROWS)

    def layer(self, number):
        """The arrays of a layer of the first chain."""
        both = self.activations[0]
        return Layer(self.grams[0], self.xs[0], both[(number + 1) % 2], both[number % 2])

    def run(self, slots, first_layer=1, sigma="tanh", body="compiled"):
        columns, chains = self.spec.columns, len(self.grams)
        slots = np.array(slots)
        record = np.full((chains, np.count_nonzero(slots >= 0), columns, columns), np.nan)
        state = cpu_layers.State(self.grams, self.xs, self.activations)
        course = cpu_layers.Course(
            CHAIN, first_layer, *KEY, slots, record, np.zeros((chains, 0, 0), np.int64),
            self.status,
        )  # fmt: skip
        advance = cpu_layers.layers if body == "compiled" else cpu_layers.advance
        sigma, specs = activation_of(sigma, self.dtype), cpu_layers.records(self.spec)
        sums = self.sums._replace(panels=self.sums.panels[:1])
        advance(None, self.source(), sigma, specs, state, course, self.work, sums)
        return record

    def panels(self, task, first, last, given=None, body="compiled", sigma="tanh"):
        """Call a task with a range of panels of layer 1, whose factor is in `work`."""
        sigma = activation_of(sigma, self.dtype, body)
        source = self.source(given)
        return body_of(task, body)(
            first, last, self.work, source, sigma, self.spec, self.layer(1),
            draw_of(1, 0, source.stream), self.sums,
        )  # fmt: skip

    def merged(self, body="compiled"):
        """The Gram matrix of the sums of all panels."""
        gram = np.zeros_like(self.grams[0])
        tiles = memory.padded(len(gram)) // 4
        merge = body_of(sharing.merge_tiles, body)
        assert merge(self.sums.panels.copy(), self.spec.width, gram, 0, tiles)
        return gram


def draw_of(layer, chain, stream):
    return codes.Draw(layer, np.uint32(stream | np.uint32(CHAIN + chain)), *KEY)


def conditional_layer(spec, x, g, draw, dtype, sigma=np.tanh):
    """x and G of the next layer: rows L z, z the normals of the row's address."""
    centred = spec.norm == codes.NORM_CENTRED
    p = projector(spec.batch, spec.columns // spec.batch) if centred else np.eye(spec.columns)
    factor = semidefinite_cholesky(p @ g @ p)
    z = normals(np.arange(spec.columns), np.arange(spec.width), draw, dtype).astype(np.float64)
    h = spec.skip * x + spec.gain * (factor @ z).T
    x = normalise(h, spec.norm, spec.batch, spec.eps)
    return x, gram(sigma(x))


def weighted_layer(spec, x, a, w, sigma=np.tanh):
    """x, activations and G of the next layer, for unit-variance weights w (width, width)."""
    h = spec.skip * x + spec.gain / math.sqrt(spec.width) * w @ a
    x = normalise(h, spec.norm, spec.batch, spec.eps)
    return x, sigma(x), gram(sigma(x))


LAYER_CASES = pytest.mark.parametrize(
    ("width", "batch", "inputs", "skip", "gain", "eps"),
    [
        (300, 5, 1, 0.0, 1.0, 0.0),
        (300, 5, 1, 0.7, -0.4, 0.0),
        (64, 3, 2, 0.0, 1.5, 1e-3),
        (530, 4, 2, 1.0, 0.5, 0.0),
        # An odd width: with two samples and signs for weights, rows of even ones may be zero.
        (21, 2, 1, 0.0, 1.0, 0.0),
    ],
)


@DTYPES
@NORMS
@LAYER_CASES
def test_conditional_layers(dtype, norm, width, batch, inputs, skip, gain, eps):
    """One layer, of two chains, to a few units of rounding, and the next ones from there."""
    spec = layer_spec(width, batch, inputs, norm, skip, gain, eps)
    x, a, g = start_of(spec, 2, dtype)
    layers = Layers(spec, x, a, g, dtype, keeps=False)
    record = layers.run([0, -1, 1], first_layer=4)
    assert not layers.status.any()
    for chain in range(2):
        xc, gc = x[chain], g[chain]
        for layer, slot in ((4, 0), (5, None), (6, 1)):
            draw = draw_of(layer, chain, codes.STREAM_ROWS)
            xc, gc = conditional_layer(spec, xc, gc, draw, dtype)
            if slot is not None:
                units = 60 if layer == 4 else 2000
                np.testing.assert_allclose(
                    record[chain, slot], gc, rtol=0, atol=units * np.finfo(dtype).eps * gc.max()
                )
        np.testing.assert_array_equal(layers.grams[chain], record[chain, 1])
        np.testing.assert_array_equal(layers.grams[chain], layers.grams[chain].T)
        if skip:
            kept = layers.xs[chain, :, :width].T
            np.testing.assert_allclose(kept, xc, rtol=0, atol=5000 * np.finfo(dtype).eps)


@functools.lru_cache(maxsize=16)
def square_weights(law_of_weights, width, draw, dtype):
    """Weights of a layer, which no test changes: the norms have the same ones."""
    everything = np.arange(width)
    return weights(law_of_weights, everything, everything, draw, dtype).T.astype(np.float64)


WEIGHT_LAWS = pytest.mark.parametrize(
    "law_of_weights", [codes.GAUSSIAN, codes.UNIFORM, codes.RADEMACHER]
)


@DTYPES
@NORMS
@WEIGHT_LAWS
@LAYER_CASES
def test_weighted_layers(dtype, norm, law_of_weights, width, batch, inputs, skip, gain, eps):
    spec = layer_spec(width, batch, inputs, norm, skip, gain, eps, weights=law_of_weights)
    x, a, g = start_of(spec, 2, dtype)
    layers = Layers(spec, x, a, g, dtype, keeps=True)
    record = layers.run([0, 1])
    assert not layers.status.any()
    for chain in range(2):
        xc, ac = x[chain], a[chain]
        for layer in (1, 2):
            draw = draw_of(layer, chain, codes.STREAM_WEIGHTS)
            w = square_weights(law_of_weights, width, draw, dtype)
            xc, ac, gc = weighted_layer(spec, xc, ac, w)
            tolerance = (60 if layer == 1 else 2000) * np.finfo(dtype).eps
            np.testing.assert_allclose(
                record[chain, layer - 1], gc, rtol=0, atol=tolerance * gc.max()
            )
            kept = layers.activations[chain, layer % 2, : spec.columns, :width].T
            np.testing.assert_allclose(kept, ac, rtol=0, atol=100 * tolerance)
            # Padding stays zero, or the next product would see it.
            assert not layers.activations[chain, :, spec.columns :].any()
            assert not layers.activations[chain, :, :, width:].any()


@FLOAT64
def test_weights_that_are_given(dtype):
    """A panel at a time; rows of the last panel are missing."""
    width = 2 * numbers.BLOCK + 88
    spec = layer_spec(width, 4, 1, codes.NORM_CENTRED, 0.5, 0.8, weights=codes.GIVEN)
    x, a, g = start_of(spec, 1, dtype)
    layers = Layers(spec, x, a, g, dtype, keeps=True)
    w = np.random.default_rng(3).standard_normal((width, width)).astype(dtype)
    for panel in range(3):
        given = np.zeros((spec.panel, width), dtype)
        rows = w[panel * spec.panel : (panel + 1) * spec.panel]
        given[: len(rows)] = rows
        assert layers.panels(cpu_layers.sum_rows, panel, panel + 1, given) == -1
    _, following, exact = weighted_layer(spec, x[0], a[0], w.astype(np.float64))
    eps = np.finfo(dtype).eps
    np.testing.assert_allclose(layers.merged(), exact, rtol=0, atol=60 * eps)
    kept = layers.activations[0, 1, :4, :width].T
    np.testing.assert_allclose(kept, following, rtol=0, atol=2000 * eps)


@DTYPES
@pytest.mark.parametrize("panel", [numbers.BLOCK, 2 * numbers.BLOCK])
def test_panels_in_any_ranges_have_the_bits_of_the_layer(dtype, panel):
    """Rows are shared among threads by panels, and what panels there are is part of the spec."""
    spec = layer_spec(2 * numbers.BLOCK + 200, 3, panel=panel)
    x, a, g = start_of(spec, 1, dtype)
    panels = cpu_layers.panels_of(spec)
    for keeps in (False, True):
        whole, again = (Layers(spec, x, a, g, dtype, keeps=keeps) for _ in range(2))
        exact = whole.run([0])[0, 0]
        cpu_rows.factorise(g[0], spec, again.work)
        for first, last in ((1, panels), (0, 1)):
            assert again.panels(cpu_layers.sum_rows, first, last) == -1
        np.testing.assert_array_equal(again.merged(), exact)
        np.testing.assert_array_equal(again.activations, whole.activations)


@pytest.mark.parametrize(
    ("dtype", "body"),
    [
        (np.float64, "compiled"),
        (np.float32, "compiled"),
        (np.float64, "python"),
        pytest.param(np.float32, "python", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("norm", [codes.NORM_UNCENTRED, codes.NORM_CENTRED])
def test_where_a_chain_stops(dtype, norm, body):
    """The second of three chains has equal (or no) samples: its rows have no variance."""
    spec = layer_spec(100, 4, 1, norm)
    x, a, g = start_of(spec, 3, dtype)
    a[1] = 1 / 3 if norm == codes.NORM_CENTRED else 0.0
    g[1] = gram(a[1])
    layers = Layers(spec, x, a, g, dtype, keeps=True)
    record = layers.run([0, 1], body=body)
    np.testing.assert_array_equal(
        layers.status, [[0, 0, 0], [codes.ZERO_VARIANCE, 1, 0], [0, 0, 0]]
    )
    assert np.isfinite(record[[0, 2]]).all()
    # Two panels: the first one names the row.
    wide = layer_spec(600, 4, 1, norm)
    conditional = Layers(wide, start_of(wide, 3, dtype)[0], a, g, np.float64, keeps=False)
    record = conditional.run([0, 1], body=body)
    np.testing.assert_array_equal(conditional.status, layers.status)
    assert np.isfinite(record[[0, 2]]).all()


@BODIES
@pytest.mark.parametrize("conditional", [True, False])
def test_where_a_chain_leaves_the_range(conditional, body):
    spec = layer_spec(10, 2, 1, codes.NORM_NONE, 0.0, 1e60)
    x, a, g = start_of(spec, 1, np.float64)
    layers = Layers(spec, x, a, g, np.float64, keeps=not conditional)
    layers.run([-1] * 9, sigma="relu", body=body)
    # 1e60 each layer: the squares of layer 3 are beyond 1e308.
    assert layers.status[0, :2].tolist() == [codes.NOT_FINITE, 3]


@BODIES
@DTYPES
def test_what_float32_does_not_resolve_stops_before_the_layer(dtype, body):
    """A pivot below 2^-13 of its entry is for float64 rows; a chain that has none goes on."""
    spec = layer_spec(100, 3, 1, codes.NORM_UNCENTRED)
    x, a, g = start_of(spec, 2, dtype)
    g[1] = 1.0 + np.diag([0.0, 1e-5, 1.0])
    layers = Layers(spec, x, a, g, dtype, keeps=False)
    before = layers.grams[1].copy()
    layers.run([0, 1], first_layer=8, body=body)
    assert not layers.status[0].any()
    if dtype == np.float32:
        assert layers.status[1, :2].tolist() == [codes.UNRESOLVED, 8]
        np.testing.assert_array_equal(layers.grams[1], before)
    else:
        assert not layers.status[1].any()


@BODIES
@DTYPES
def test_rows_without_variance_end_panels(dtype, body):
    """The sixth row of the weights is zero: row 5 of the block, 5 or more of the layer."""
    spec = layer_spec(2 * numbers.BLOCK, 3)
    x, a, g = start_of(spec, 1, dtype)
    w = np.ones((numbers.BLOCK, spec.width), dtype)
    w[5] = 0.0
    given = Layers(spec._replace(weights=codes.GIVEN), x, a, g, dtype, keeps=True)
    for first, row in ((0, 5), (1, numbers.BLOCK + 5)):
        assert given.panels(cpu_layers.sum_rows, first, 2, w, body) == row
    # Equal samples, centred: no row has any.
    layers = Layers(spec, x, a, g, dtype, keeps=False)
    cpu_rows.factorise(np.ones((3, 3)), spec, layers.work)
    assert layers.panels(cpu_layers.sum_rows, 1, 2, body=body) == numbers.BLOCK


@BODIES
@DTYPES
def test_helpers_of_a_block(dtype, body):
    """Each against the line of NumPy that it stands for, and nothing beyond its range touched."""
    rows, columns, first = 128, 5, 64
    block, values = blocked(rows, columns, dtype, 4, integers=True)
    x = np.random.default_rng(5).integers(-9, 10, (columns, 300)).astype(dtype)

    def after(kernel, *arguments):
        """The block that a kernel leaves, as (columns, rows), and its arguments after it."""
        mine = block.copy()
        body_of(kernel, body)(*(mine if one is block else one for one in arguments))
        view = mine.reshape(-1, numbers.STRIDE)
        assert np.all(view[:columns, rows:] == 55.0)
        assert not view[columns:].any()
        return view[:columns, :rows]

    cleared = values.copy()
    cleared[1:4, 30:100] = 0.0
    np.testing.assert_array_equal(after(cpu_blocks.clear_rows, block, 1, 4, 30, 100), cleared)
    repeated = values.copy()
    repeated[:, 100:] = repeated[:, :1]
    np.testing.assert_array_equal(after(cpu_blocks.repeat_first_row, block, 5, 100, 128), repeated)
    added = values + 2.0 * x[:, first : first + rows]
    np.testing.assert_array_equal(
        after(cpu_blocks.add_columns, 2.0, x, first, columns, rows, block), added
    )
    np.testing.assert_array_equal(
        after(cpu_blocks.scale_columns, dtype(0.5), columns, rows, block), values / 2
    )
    out = x.copy()
    after(cpu_blocks.keep_columns, block, columns, rows, first, out)
    np.testing.assert_array_equal(out[:, first : first + rows], values)
    np.testing.assert_array_equal(out[:, :first], x[:, :first])
    spec = layer_spec(300, 5)
    scales = np.arange(numbers.BLOCK).astype(dtype)
    np.testing.assert_array_equal(
        after(cpu_rows.scale_rows, block, spec, rows, scales), values * scales[:rows]
    )


@BODIES
def test_the_row_that_is_named_has_the_least_variance_beside_its_mean(body):
    block, _ = blocked(64, 4, np.float64, 4)
    view = block.reshape(-1, numbers.STRIDE)
    view[:4, 20] = [1.0, 1.0, 1.0, 1.0 + 1e-12]
    view[:4, 40] = [1e6, 1e6, 1e6, 1e6 + 1e-9]
    named = body_of(cpu_rows.row_without_variance, body)
    spec = layer_spec(64, 4)
    assert named(block, 0, 0, 64, spec, True) == 40
    assert named(block, 0, 0, 32, spec, True) == 20
    view[2, 50] = np.nan
    assert named(block, 0, 0, 64, spec, True) == 50
    assert named(block, 0, 0, 64, spec, False) == 50


@BODIES
def test_unpack_gram(body):
    """Tiles of the lower triangle become a symmetric matrix, divided by the width."""
    full = np.random.default_rng(1).integers(-9, 10, (8, 8)).astype(float)
    tiles = [full[i : i + 4, j : j + 4] for i in (0, 4) for j in range(0, i + 1, 4)]
    sums, out = np.concatenate(tiles).ravel(), np.zeros((6, 6))
    assert body_of(cpu_blocks.unpack_gram, body)(sums, 8, out)
    np.testing.assert_array_equal(out, symmetric(sums, 6) / 8)
    # What belongs to padding does not count; what belongs to a column does.
    sums[47] = np.nan
    assert body_of(cpu_blocks.unpack_gram, body)(sums, 8, out)
    sums[32] = np.inf
    assert not body_of(cpu_blocks.unpack_gram, body)(sums, 8, out)


@BODIES
@DTYPES
@pytest.mark.parametrize("width", [1, 63, 64, 300, 700])
def test_gram_of_rows(dtype, body, width):
    for columns in (1, 4, 5, 11):
        a = memory.aligned_zeros((columns, memory.stride(width)), dtype)
        values = np.random.default_rng(width).integers(-9, 10, (columns, width))
        a[:, :width] = values
        out = np.full((columns, columns), np.nan)
        work = memory.work(columns, 1, dtype)
        assert body_of(cpu_layers.gram_of_rows, body)(a, width, work, out)
        np.testing.assert_array_equal(out, values @ values.T / width)
    a[0, 0] = np.inf
    with np.errstate(invalid="ignore"):
        assert not body_of(cpu_layers.gram_of_rows, body)(a, width, work, out)


@BODIES
def test_gram_of_rows_reads_whole_groups_only(body):
    """700 numbers are padded with zeros to 11 groups of 64, not to 2 blocks of 512."""
    whole = np.full((2, 1024), np.nan)
    whole[:, 700:704] = 0.0
    whole[:, :700] = np.random.default_rng(0).integers(-9, 10, (2, 700))
    out = np.full((2, 2), np.nan)
    assert body_of(cpu_layers.gram_of_rows, body)(whole, 700, memory.work(2, 1, "float64"), out)
    np.testing.assert_array_equal(out, whole[:, :700] @ whole[:, :700].T / 700)


# --- the factors of linear chains without normalization


def bartlett(spec, layer, chain):
    """The upper trapezoidal factor T of a Wishart matrix, from its addresses."""
    columns = spec.columns
    every = np.arange(columns)
    draw = draw_of(layer, chain, codes.STREAM_FACTOR)
    t = np.triu(normals(every, every, draw, np.float64).T.astype(np.float64), 1)
    stream = np.uint32(codes.STREAM_CHI | np.uint32(CHAIN + chain))
    for i in range(min(spec.width, columns)):
        t[i, i] = chi(spec.width - i, i, layer, stream, *KEY)
    t[spec.width :] = 0.0
    return t


def run_factors(body, spec, factors, layers, log_start=0.25, exponents=None):
    chains, columns = factors.shape[:2]
    exponents = np.zeros((chains, columns)) if exponents is None else exponents
    slots = np.arange(layers)
    record = np.full((chains, layers, columns, columns), np.nan)
    log_scales, log_pivots = np.zeros((chains, layers)), np.zeros((chains, layers, columns))
    body_of(wishart.factor_layers, body)(
        spec,
        wishart.Factors(factors, exponents, np.full(chains, log_start)),
        codes.Draw(1, CHAIN, *KEY),
        slots,
        wishart.Record(record, log_scales, log_pivots),
        memory.work(columns, 1, np.float64),
    )
    return record, log_scales, log_pivots


@BODIES
@pytest.mark.parametrize(
    ("width", "columns", "gain"), [(1, 1, 1.0), (50, 4, 1.0), (3, 6, -0.5), (1, 3, 2.0), (9, 9, 1)]
)
def test_factor_layers(body, width, columns, gain):
    """G = e^log_start (gain² / width)^l Fᵀ F, F = T_l ... T_1 F_0, of trace n and a log-scale."""
    spec = layer_spec(width, columns, norm=codes.NORM_NONE, gain=float(gain))
    start = np.triu(np.random.default_rng(1).standard_normal((2, columns, columns)))
    start[0] *= 2.0**-100
    record, log_scales, log_pivots = run_factors(body, spec, start.copy(), 3)
    for chain in range(2):
        f = start[chain]
        for layer in range(3):
            f = bartlett(spec, layer + 1, chain) @ f
            common = math.exp(0.25) * (gain**2 / width) ** (layer + 1)
            exact = common * f.T @ f
            scaled = record[chain, layer]
            assert np.trace(scaled) == pytest.approx(columns, rel=1e-14)
            np.testing.assert_allclose(
                scaled * np.exp(log_scales[chain, layer]),
                exact,
                rtol=1e-9,
                atol=1e-13 * exact.max(),
            )
            pivots = np.full(columns, -np.inf)
            rank = min(width, columns)
            pivots[:rank] = np.log(common * np.diag(f)[:rank] ** 2)
            np.testing.assert_allclose(log_pivots[chain, layer], pivots, rtol=1e-11, atol=1e-11)


def test_factors_of_more_columns_than_a_block_has_rows():
    spec = layer_spec(400, 260, norm=codes.NORM_NONE)
    record, log_scales, _ = run_factors("compiled", spec, np.eye(260)[None].copy(), 1)
    t = bartlett(spec, 1, 0)
    exact = math.exp(0.25) / 400 * t.T @ t
    np.testing.assert_allclose(record[0, 0] * np.exp(log_scales[0, 0]), exact, rtol=0, atol=1e-12)


def test_factors_neither_over_nor_underflow():
    """Depth 20,000 of width 2: log-pivots fall by thousands, and add up as logarithms do."""
    spec = layer_spec(2, 2, norm=codes.NORM_NONE)
    depth = 20_000
    record, log_scales, log_pivots = run_factors(
        "compiled", spec, np.eye(2)[None].copy(), depth, 0.0
    )
    assert np.isfinite(record).all()
    steps = np.array([np.diag(bartlett(spec, layer, 0)) for layer in range(1, 201)])
    exact = np.cumsum(2 * np.log(steps) - math.log(2), axis=0)
    np.testing.assert_allclose(log_pivots[0, :200], exact, rtol=0, atol=1e-10)
    assert log_pivots[0, -1].max() < -5000
    assert np.all(np.diff(log_pivots[0], axis=0)[-100:] != 0)
    # The larger row dominates the trace, up to the element beside it.
    assert np.all(log_scales[0] >= log_pivots[0].max(axis=1) - math.log(2) - 1e-9)


@BODIES
def test_a_factor_of_zero_stays_zero(body):
    spec = layer_spec(5, 2, norm=codes.NORM_NONE)
    record, log_scales, log_pivots = run_factors(body, spec, np.zeros((1, 2, 2)), 2)
    assert not record.any()
    assert np.all(log_scales == -np.inf)
    assert np.all(log_pivots == -np.inf)


@BODIES
def test_write_factor(body):
    """Rows with exponents of their own, some so small beside others that they vanish."""
    factor = np.triu(np.random.default_rng(2).standard_normal((3, 3)))
    exponent = np.array([3.0, -5.0, -2000.0])
    record = wishart.Record(np.zeros((1, 2, 3, 3)), np.zeros((1, 2)), np.zeros((1, 2, 3)))
    body_of(wishart.write_factor, body)(factor, exponent, 0.7, record, 0, 1)
    (gram_,), log_scales, log_pivots = (
        record.grams[:, 1],
        record.log_scales[0],
        record.log_pivots[0],
    )
    rows = factor[:2] * 2.0 ** exponent[:2, None]
    exact = math.exp(0.7) * rows.T @ rows
    assert np.trace(gram_) == pytest.approx(3)
    np.testing.assert_allclose(gram_ * np.exp(log_scales[1]), exact, rtol=1e-12)
    expected = 0.7 + 2 * (np.log(np.abs(np.diag(factor))) + exponent * math.log(2))
    np.testing.assert_allclose(log_pivots[1], expected, rtol=1e-13)
    assert not log_pivots[0].any()
    assert log_scales[0] == 0.0


@BODIES
def test_log_of_factors(body):
    spec = layer_spec(50, 4, gain=-3.0)
    expected = 0.5 + 7 * math.log(9 / 50)
    assert body_of(wishart.log_of_factors, body)(spec, 0.5, 7) == pytest.approx(expected, rel=1e-14)


# --- moments


@BODIES
def test_update_moments(body):
    """Welford's update in two parts, of values whose mean is large beside their deviation."""
    values = 1e6 + np.random.default_rng(3).standard_normal((500, 4))
    count, mean, squares = 0, np.zeros(4), np.zeros(4)
    for part in (values[:1], values[1:200], values[200:]):
        count = body_of(cpu_layers.update_moments, body)(part, count, mean, squares)
    assert count == 500
    np.testing.assert_allclose(mean, values.mean(axis=0), rtol=1e-14)
    np.testing.assert_allclose(squares / 499, values.var(axis=0, ddof=1), rtol=1e-8)


def test_rows_are_kept_between_passes_if_they_fit():
    assert cpu_layers.rows_fit(1000, 10, np.float64)
    assert not cpu_layers.rows_fit(10**6, 10, np.float32)
    spec = layer_spec(1000, 3, groups=1)
    sums = cpu_layers.sums_of(spec, np.float32, keeps_rows=True)
    assert sums.hidden.shape == (3, 1024)
    for groups, keeps in ((0, True), (1, False)):
        sums = cpu_layers.sums_of(spec._replace(groups=groups), np.float32, keeps_rows=keeps)
        assert sums.hidden.shape == (0, 0)


# --- the Python that layers are compiled from


@DTYPES
@pytest.mark.parametrize("skip", [0.0, 0.5])
@pytest.mark.parametrize("panel", [256, 512])
def test_layers_in_python_have_the_bits_of_their_machine_code(dtype, skip, panel):
    for law_of_weights in (None, codes.GAUSSIAN, codes.UNIFORM, codes.RADEMACHER):
        keeps = law_of_weights is not None
        law = law_of_weights if keeps else codes.GAUSSIAN
        spec = layer_spec(300, 3, 1, codes.NORM_CENTRED, skip, panel=panel, weights=law)
        x, a, g = start_of(spec, 2, dtype)
        runs = [
            Layers(spec, x, a, g, dtype, keeps=keeps).run([0, 1], body=body)
            for body in ("compiled", "python")
        ]
        np.testing.assert_array_equal(*runs)


@DTYPES
@pytest.mark.parametrize("law_of_weights", [None, codes.GAUSSIAN, codes.GIVEN])
def test_python_bodies_of_panels_agree_with_their_machine_code(dtype, law_of_weights):
    keeps = law_of_weights is not None
    law = law_of_weights if keeps else codes.GAUSSIAN
    spec = layer_spec(300, 3, panel=256, weights=law)
    x, a, g = start_of(spec, 1, dtype)
    w = np.zeros((512, 300), dtype)
    w[:300] = np.random.default_rng(3).standard_normal((300, 300))
    given = w if law == codes.GIVEN else None
    results = []
    for body in ("compiled", "python"):
        layers = Layers(spec, x, a, g, dtype, keeps=keeps)
        cpu_rows.factorise(g[0], spec, layers.work)
        assert layers.panels(cpu_layers.sum_rows, 0, 2, given, body) == -1
        results.append(layers.merged(body))
    np.testing.assert_allclose(*results, rtol=0, atol=200 * np.finfo(dtype).eps)


@DTYPES
@pytest.mark.parametrize("order", [codes.NORM_FIRST, codes.ACTIVATION_FIRST])
def test_python_bodies_of_two_passes_agree_with_their_machine_code(dtype, order):
    spec = layer_spec(
        300, 3, norm=codes.NORM_NONE, panel=256, groups=2, centred=True, eps=1e-3, order=order
    )
    x, a, g = start_of(spec, 1, dtype)
    results = []
    for body in ("compiled", "python"):
        layers = Layers(spec, x, a, g, dtype, keeps=False)
        cpu_rows.factorise(g[0], spec, layers.work)
        assert layers.panels(cpu_layers.sum_moments, 0, 2, body=body) == -1
        event, place = moments.merge_moments(spec, layers.work.block, layers.sums.moments)
        assert (event, place) == (codes.RUNNING, -1)
        assert layers.panels(cpu_layers.sum_rows, 0, 2, body=body) == -1
        results.append(layers.merged(body))
    np.testing.assert_allclose(*results, rtol=0, atol=200 * np.finfo(dtype).eps)


@FLOAT64
def test_python_bodies_of_weights_agree_with_their_machine_code(dtype):
    w = np.random.default_rng(3).standard_normal((512, 300)).astype(dtype)
    for law in (codes.GAUSSIAN, codes.UNIFORM, codes.RADEMACHER, codes.GIVEN):
        tile = np.zeros((2, numbers.TILE * numbers.STRIDE), dtype)
        for body, out in zip(("compiled", "python"), tile, strict=True):
            body_of(numbers.fill_weights, body)(law, w, out, 5, 7, 256, 64, draw_of(1, 0, 0))
        np.testing.assert_array_equal(tile[0], tile[1])


@pytest.mark.parametrize(
    ("name", "dtype"),
    [(name, np.float64) for name in sorted(FORMULAS)]
    + [
        # The scalar functions of float32 have tests of their own.
        pytest.param(
            name,
            np.float32,
            marks=[] if name in ("gelu", "linear", "relu", "tanh") else pytest.mark.slow,
        )
        for name in sorted(FORMULAS)
    ],
)
def test_activations_inside_a_layer(name, dtype):
    """Every activation as layers call it, on one block."""
    spec = layer_spec(128, 4, norm=codes.NORM_UNCENTRED)
    work = memory.work(4, 1, dtype)
    block, values = blocked(128, 4, dtype, 9)
    work.block[:] = block
    nothing = np.zeros((0, 0), dtype)
    sigma = activation_of(name, dtype)
    assert finish("compiled", sigma, spec, 0, 128, nothing, nothing, work) == -1
    exact = FORMULAS[name](normalise(values.T, codes.NORM_UNCENTRED, 4).T)
    actual = work.block.reshape(-1, numbers.STRIDE)[:4, :128]
    np.testing.assert_allclose(actual, exact, rtol=0, atol=20 * np.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", [np.float32, pytest.param(np.float64, marks=pytest.mark.slow)])
def test_an_activation_by_its_address_is_the_activation(dtype):
    """Kernels compiled for one activation, and for all, have the same bits."""
    spec, nowhere = layer_spec(128, 4), np.zeros((0, 0), dtype)
    blocks = []
    for sigma in (sigma_of(Activation.named("gelu")), activation_of("gelu", dtype)):
        work = memory.work(4, 1, dtype)
        work.block[:], _ = blocked(128, 4, dtype, 9)
        assert finish("compiled", sigma, spec, 0, 128, nowhere, nowhere, work) == -1
        blocks.append(work.block)
    np.testing.assert_array_equal(*blocks)
    assert isinstance(sigma, Apart)


def test_what_an_activation_raises_comes_through():
    def picky(x):
        if x > 1.0:
            raise ValueError("too large")
        return x

    spec, nowhere, work = layer_spec(128, 4), np.zeros((0, 0)), memory.work(4, 1, np.float64)
    work.block[:], _ = blocked(128, 4, np.float64, 9)
    sigma = cpu_rows.activation(sigma_of(Activation(picky)), "float64")
    with pytest.raises(ValueError, match="too large"):
        finish("compiled", sigma, spec, 0, 128, nowhere, nowhere, work)


def test_loops_are_compiled_for_the_widest_vectors_and_a_stack_of_whole_lines():
    # LLVM takes half the width on Intel's processors unless told: 1.4 to 2.8 times the time.
    def scale(x):
        for i in range(len(x)):
            x[i] *= 2.0

    compiled = njit(**OPTIONS)(scale)
    compiled(np.ones(4))
    (text,) = compiled.inspect_llvm().values()
    assert '"prefer-vector-width"="512"' in text
    (text,) = compiled.inspect_asm().values()
    if "%rsp" in text:
        assert "andq\t$-64, %rsp" in text
