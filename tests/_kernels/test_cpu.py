"""The CPU kernels against NumPy oracles, as machine code and as the Python that it is made from.

Matrix kernels are exact on integers; elsewhere errors are counted in units of rounding of the
dtype, times the length of the sums.
"""

import math

import numpy as np
import pytest
from laws import haar
from numba import njit
from oracle import layer_spec, normalise, normals
from plain_python import run_plainly
from slow_cases import some

from bnmc import Chain, simulate
from bnmc._kernels.compiling import OPTIONS, Apart, kernel
from bnmc._kernels.cpu import blocks as cpu_blocks
from bnmc._kernels.cpu import (
    factor,
    memory,
    moments,
    numbers,
    orthogonal,
    scaling,
    sharing,
    sources,
    vectors,
    wishart,
)  # fmt: skip
from bnmc._kernels.cpu import layers as cpu_layers
from bnmc._kernels.cpu import rows as cpu_rows
from bnmc._kernels.cpu.sources import Layer
from bnmc._kernels.scalar import codes
from bnmc._kernels.scalar.normal import chi
from bnmc.chain.activations import Activation, sigma_of
from bnmc.errors import NonFiniteError, ZeroVarianceError

DTYPES = pytest.mark.parametrize("dtype", [np.float32, np.float64])
FLOAT64 = pytest.mark.parametrize("dtype", some([np.float32, np.float64], np.float64))
NORMS = pytest.mark.parametrize("norm", [codes.NORM_NONE, codes.NORM_UNCENTRED, codes.NORM_CENTRED])
KEY = np.uint32(123456789), np.uint32(987654321)

#: `finish_rows` on its own, as machine code and as Python.
FINISH_ROWS = kernel(cpu_layers.finish_rows)
NO_MOMENTS = moments.moments_of(1, 1, 0)


def finish(sigma, spec, first_row, count, x, following, work):
    """Finish a block of rows in place; return a row without variance, or -1."""
    layer = Layer(work.covariance, x, x[:0], following)
    return FINISH_ROWS(spec, sigma, layer, first_row, count, work, NO_MOMENTS)


def activation_of(name, dtype):
    """An activation as samplers give it to kernels, or for Python that applies it itself."""
    sigma = sigma_of(Activation.named(name))
    return cpu_rows.activation(sigma, np.dtype(dtype).name)


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


# --- vectors


def wide_program(array, out, scalar):
    """Every operation on wide vectors, whose results go to `out` one after the other."""
    lanes = 256 // array.itemsize
    x, y = vectors.load_wide(array, 1), vectors.load_wide(array, lanes + 3)
    vectors.store(out, 0, vectors.multiply_add(x, y, x))
    unchanged, scaled = vectors.add_scaled((scalar,), x, (x, y))
    vectors.store(out, lanes, scaled + (unchanged - x))
    vectors.store(out, 2 * lanes, vectors.fill_like(vectors.zero_wide(array), scalar) + x)
    vectors.keep_order()
    vectors.store(out, 3 * lanes, vectors.square_root(x * x) - y)
    vectors.store(out, 4 * lanes, x / y)
    # Where an entry is equal or not a number, not all are greater.
    nan = vectors.fill_like(x, scalar) / vectors.zero_wide(array) * vectors.zero_wide(array)
    ones = vectors.fill_like(x, scalar) / vectors.fill_like(x, scalar)
    return (
        vectors.all_greater(x + ones, x),
        vectors.all_greater(x, x),
        vectors.all_greater(nan, x),
        vectors.all_greater(x, nan),
    )


def narrow_program(array, out):
    """Sums over the lanes of 16 vectors."""
    lanes = vectors.PART_BYTES // array.itemsize
    v = vectors.load_part(array, 2)
    z = vectors.zero_part(array)
    w = vectors.multiply_add(v, v, z)
    u = vectors.load_part(array, lanes + 5)
    sums = (v, w, z, u, u, v, w, z, v * u, v + u, v - u, w, w, u, z, v)
    vectors.store_sums(
        out, 4, vectors.add_all(sums, (u, u, u, u, v, v, v, v, u, u, u, u, v, v, v, v))
    )


def across_program(array, out):
    """Four numbers that are apart, in float64, and the sum of all lanes of a wide vector."""
    vectors.store(out, 1, vectors.load_across(array, 5, 60))
    out[5] = vectors.sum_lanes(vectors.load_wide(array, 3))


def strip_program(array, out):
    """A strip of rows and zeros, one after the other."""
    lanes = vectors.STRIP_BYTES // array.itemsize
    vectors.store(out, 1, vectors.load_strip(array, 3) + vectors.zero_strip(array))
    vectors.store(out, lanes + 1, vectors.zero_strip(array))


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
    n = vectors.PART_BYTES // array.itemsize
    v, u = array[2 : 2 + n].sum(), array[n + 5 : 2 * n + 5].sum()
    assert sums[0, [4, 7, 13]].tolist() == [v + u, 2 * u, v + 2 * u]
    assert np.all(sums[:, :4] == 7)
    assert np.all(sums[:, 20:] == 7)
    n = vectors.STRIP_BYTES // array.itemsize
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
    vectors.store_sums(partial, 0, cpu_blocks.sum_tile(first, 0, second, 0, rows))


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
    partial = np.zeros(16, dtype)
    njit(sum_tile)(first.reshape(-1), second.reshape(-1), 192, partial)
    np.testing.assert_array_equal(partial.reshape(4, 4), sums[0])


@DTYPES
def test_a_whole_tile_is_two_halves(dtype):
    """Processors with many registers make the one, others the other."""
    rng = np.random.default_rng(4)
    first, second = rng.standard_normal((2, 4 * numbers.STRIDE)).astype(dtype)
    whole = np.array(cpu_blocks.sum_whole_tile(first, 0, second, 0, 192)).reshape(4, 4, -1)
    for half in range(2):
        part = cpu_blocks.sum_half_tile(first, 2 * half * numbers.STRIDE, second, 0, 192)
        np.testing.assert_array_equal(whole[2 * half : 2 * half + 2].reshape(8, -1), part)


# --- matrix products of a block


@DTYPES
def test_products_do_not_depend_on_how_many_columns_or_rows_go_along(dtype):
    """Columns and rows computed together or apart have the same bits."""
    block, _ = blocked(256, 7, dtype, 1)
    factor = memory.aligned_zeros((8, 8), dtype)
    factor[:7, :7] = np.tril(np.random.default_rng(2).standard_normal((7, 7)))
    parts = block.copy()
    cpu_blocks.multiply_triangular(factor, 7, block, block, 256)
    narrow = factor[:4].copy()
    cpu_blocks.multiply_triangular(narrow, 4, parts, parts, 64)
    whole = block.reshape(-1, numbers.STRIDE)[:4, :64]
    np.testing.assert_array_equal(parts.reshape(-1, numbers.STRIDE)[:4, :64], whole)


# --- normalization


def normalise_block(block, rows, spec):
    """Normalise the rows of a block in place; return a row without variance, or -1.

    The kernels measure the rows, and normalise where they activate: here with no activation.
    """
    work = memory.work(spec.batch, spec.columns // spec.batch, block.dtype)
    degenerate = cpu_rows.measure_rows(
        block, rows, spec, spec.norm == codes.NORM_CENTRED, work.scales
    )
    if degenerate < 0:
        linear = sigma_of(Activation.named("linear"))
        cpu_rows.activate_columns(linear, block, spec.columns, spec.batch, rows, work.scales)
    return degenerate


@DTYPES
@pytest.mark.parametrize("norm", [codes.NORM_UNCENTRED, codes.NORM_CENTRED])
@pytest.mark.parametrize("eps", [0.0, 1e-5, 0.5])
def test_normalise(dtype, norm, eps):
    shapes = [(2, 1), (3, 1), (5, 2), (8, 1), (4, 3), (40, 1)]
    for batch, inputs in shapes:
        for rows in (64, 192):
            block, values = blocked(rows, batch * inputs, dtype, batch)
            spec = layer_spec(256, batch, inputs, norm, eps=eps)
            assert normalise_block(block, rows, spec) == -1
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


@DTYPES
@pytest.mark.parametrize("power", [-40, 40])
def test_a_row_may_have_any_scale(dtype, power):
    """Powers of two change no bit."""
    spec = layer_spec(256, 5, norm=codes.NORM_CENTRED)
    block, _ = blocked(64, 5, dtype, 3)
    scaled = block * dtype(2.0**power)
    for each in (block, scaled):
        assert normalise_block(each, 64, spec) == -1
    rows = np.s_[:5, :64]
    np.testing.assert_array_equal(
        block.reshape(-1, numbers.STRIDE)[rows], scaled.reshape(-1, numbers.STRIDE)[rows]
    )


@DTYPES
@pytest.mark.parametrize("row", [0, 63, 64, 130])
def test_a_row_without_variance_is_named(dtype, row):
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
            is_finite = np.isfinite(values).all()
            expected = row if is_finite else codes.ROW_OUT_OF_RANGE + row
            assert normalise_block(block, 192, layer_spec(256, 5, norm=norm)) == expected


@DTYPES
def test_the_second_batch_may_lack_variance_too(dtype):
    block, _ = blocked(128, 6, dtype, 3)
    block.reshape(-1, numbers.STRIDE)[3:6, 100] = 7.0
    assert normalise_block(block, 128, layer_spec(256, 3, 2, codes.NORM_CENTRED)) == 100


@DTYPES
def test_eps_makes_a_constant_row_zero(dtype):
    block, _ = blocked(64, 4, dtype, 3)
    view = block.reshape(-1, numbers.STRIDE)
    view[:4, 9] = 0.25
    spec = layer_spec(256, 4, norm=codes.NORM_CENTRED, eps=1e-5)
    assert normalise_block(block, 64, spec) == -1
    assert not view[:4, 9].any()


@DTYPES
@pytest.mark.parametrize("batch", [2, 5, 40])
def test_a_batch_of_tiny_but_real_variance_is_no_error(dtype, batch):
    """What is more than rounding of the mean counts as variance."""
    block, values = blocked(64, batch, dtype, 8)
    view = block.reshape(-1, numbers.STRIDE)
    size = 1000 * batch * np.finfo(dtype).eps
    view[:batch, :64] = 1 + size * values
    assert normalise_block(block, 64, layer_spec(256, batch)) == -1
    assert np.abs((view[:batch, :64] ** 2).mean(axis=0) - 1).max() < 0.01


@DTYPES
@pytest.mark.parametrize("batch", [3, 40, 200])
def test_equal_entries_have_no_variance_however_many_are_added(dtype, batch):
    """The mean of n equal entries may be n units of rounding off: so may their variance."""
    spec, seen = layer_spec(256, batch), 0.0
    for value in np.random.default_rng(batch).uniform(0.5, 2.0, 40):
        block, _ = blocked(64, batch, dtype, 3)
        view = block.reshape(-1, numbers.STRIDE)
        view[:batch, 9] = value
        mean = dtype(0.0)
        for entry in view[:batch, 9]:
            mean += entry
        seen = max(seen, abs(mean * dtype(1.0 / batch) / view[0, 9] - 1) / np.finfo(dtype).eps)
        assert normalise_block(block, 64, spec) == 9
    # Of many entries the mean is off by more than one unit, which is what the threshold is for.
    assert seen > 1.5 or batch == 3


@DTYPES
@pytest.mark.parametrize("batch", [3, 40])
def test_a_variance_just_above_the_rounding_of_the_mean_counts(dtype, batch):
    """One entry of n differs by δ: the variance is δ² (n−1)/n², here 3² times the threshold."""
    unit = np.finfo(dtype).eps
    block, _ = blocked(64, batch, dtype, 3)
    view = block.reshape(-1, numbers.STRIDE)
    view[:batch, :64] = 1.0
    view[0, :64] += 3.0 * batch**2 * unit / math.sqrt(batch - 1)
    assert normalise_block(block, 64, layer_spec(256, batch)) == -1


# --- layers


CHAIN = 77


def draw_of(layer, chain, stream):
    return codes.Draw(layer, np.uint32(stream | np.uint32(CHAIN + chain)), *KEY)


def test_the_row_that_is_named_has_the_least_variance_beside_its_mean():
    block, _ = blocked(64, 4, np.float64, 4)
    view = block.reshape(-1, numbers.STRIDE)
    view[:4, 20] = [1.0, 1.0, 1.0, 1.0 + 1e-12]
    view[:4, 40] = [1e6, 1e6, 1e6, 1e6 + 1e-9]
    spec = layer_spec(64, 4)

    def named(*arguments):
        """Return the row, and whether its deviation is not zero to rounding."""
        row = cpu_rows.row_without_variance(block, 0, 0, *arguments)
        return row % cpu_rows.ROW_OUT_OF_RANGE, row >= cpu_rows.ROW_OUT_OF_RANGE

    assert named(64, spec, True) == (40, False)
    assert named(32, spec, True) == (20, True)
    view[2, 50] = np.nan
    assert named(64, spec, True) == named(64, spec, False) == (50, True)


def test_unpack_gram():
    """Tiles of the lower triangle become a symmetric matrix, divided by the width."""
    full = np.random.default_rng(1).integers(-9, 10, (8, 8)).astype(float)
    tiles = [full[i : i + 4, j : j + 4] for i in (0, 4) for j in range(0, i + 1, 4)]
    sums, out = np.concatenate(tiles).ravel(), np.zeros((6, 6))
    assert cpu_blocks.unpack_gram(sums, 8, out)
    lower = np.tril(full)[:6, :6]
    np.testing.assert_array_equal(out, (lower + np.tril(lower, -1).T) / 8)
    # What belongs to padding does not count; what belongs to a column does.
    sums[47] = np.nan
    assert cpu_blocks.unpack_gram(sums, 8, out)
    sums[32] = np.inf
    assert not cpu_blocks.unpack_gram(sums, 8, out)


def test_gram_of_rows_reads_whole_groups_only():
    """700 numbers are padded with zeros to 11 groups of 64, not to 2 blocks of 512."""
    whole = np.full((2, 1024), np.nan)
    whole[:, 700:704] = 0.0
    whole[:, :700] = np.random.default_rng(0).integers(-9, 10, (2, 700))
    out = np.full((2, 2), np.nan)
    assert cpu_layers.gram_of_rows(whole, 700, memory.work(2, 1, "float64"), out)
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


def run_factors(spec, factors, layers, log_start=0.25, exponents=None):
    chains, columns = factors.shape[:2]
    exponents = np.zeros((chains, columns)) if exponents is None else exponents
    slots = np.arange(layers)
    record = np.full((chains, layers, columns, columns), np.nan)
    log_scales, log_pivots = np.zeros((chains, layers)), np.zeros((chains, layers, columns))
    wishart.factor_layers(
        spec,
        wishart.Factors(factors, exponents, np.full(chains, log_start)),
        codes.Draw(1, np.uint32(CHAIN), *KEY),
        slots,
        wishart.Record(record, log_scales, log_pivots),
        memory.work(columns, 1, np.float64),
    )
    return record, log_scales, log_pivots


@pytest.mark.parametrize(
    ("width", "columns", "gain"), [(1, 1, 1.0), (50, 4, 1.0), (3, 6, -0.5), (1, 3, 2.0), (9, 9, 1)]
)
def test_factor_layers(width, columns, gain):
    """G = e^log_start (gain² / width)^l Fᵀ F, F = T_l ... T_1 F_0, of trace n and a log-scale."""
    spec = layer_spec(width, columns, norm=codes.NORM_NONE, gain=float(gain))
    start = np.triu(np.random.default_rng(1).standard_normal((2, columns, columns)))
    start[0] *= 2.0**-100
    record, log_scales, log_pivots = run_factors(spec, start.copy(), 3)
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
    record, log_scales, _ = run_factors(spec, np.eye(260)[None].copy(), 1)
    t = bartlett(spec, 1, 0)
    exact = math.exp(0.25) / 400 * t.T @ t
    np.testing.assert_allclose(record[0, 0] * np.exp(log_scales[0, 0]), exact, rtol=0, atol=1e-12)


def test_a_factor_of_zero_stays_zero():
    spec = layer_spec(5, 2, norm=codes.NORM_NONE)
    record, log_scales, log_pivots = run_factors(spec, np.zeros((1, 2, 2)), 2)
    assert not record.any()
    assert np.all(log_scales == -np.inf)
    assert np.all(log_pivots == -np.inf)


# --- moments


def test_update_moments():
    """Welford's update in two parts, of values whose mean is large beside their deviation."""
    values = 1e6 + np.random.default_rng(3).standard_normal((500, 4))
    count, mean, squares = 0, np.zeros(4), np.zeros(4)
    for part in (values[:1], values[1:200], values[200:]):
        count = cpu_layers.update_moments(part, count, mean, squares)
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


def normal_weights(generator, shape):
    return generator.standard_normal(shape)


COPIES = np.random.default_rng(0).standard_normal((20, 3))[:, [0, 1, 0, 2]]
MODULES = (
    cpu_blocks, factor, cpu_layers, moments, orthogonal, cpu_rows, scaling, sharing, sources,
    wishart,
)  # fmt: skip
#: Every source of rows, norm and order, a scale that is split off, and all that stops a chain.
RUNS = {
    "rows": (Chain(600, 5, "tanh"), {}),
    "skip, float32": (Chain(300, 3, "tanh", skip=0.5), {"dtype": "float32"}),
    "weights": (Chain(100, 3, "relu", norm="batch-uncentred"), {"sampler": "weights", "inputs": 2}),
    "signs": (Chain(101, 3, "tanh", weights="rademacher", skip=0.5), {}),
    "uniform, float32": (Chain(40, 2, "tanh", weights="uniform"), {"dtype": "float32"}),
    "given weights": (Chain(600, 2, "tanh", eps=0.1, weights=normal_weights), {}),
    "layer": (Chain(60, 9, "tanh", norm="layer", bias_variance=0.1), {}),
    "groups": (
        Chain(60, 3, "tanh", norm="group(3)", order="activation-norm", skip=0.5),
        {"sampler": "weights"},
    ),
    "copies": (Chain(20, 4, "tanh"), {"initial": COPIES}),
    "fewer rows than samples": (Chain(3, 6, "tanh", norm="batch-uncentred"), {}),
    "scale": (Chain(60, 3, "relu", norm="none", gain=2.0**-40), {}),
    "factors": (Chain(30, 4, "linear", norm="none", gain=3.0), {}),
    "factors, width below batch": (Chain(3, 5, "linear", norm="none"), {}),
    "haar": (haar(8, 4, "leaky_relu", norm="none", gain=50.0), {}),
    "haar, float32": (haar(4, 6, norm="batch-uncentred"), {"dtype": "float32"}),
    "haar, dead rows": (
        haar(1, 2, "relu", norm="batch-uncentred"), {"initial": [[1.0, 2.0]], "chains": 20},
    ),
    "convolution": (Chain.conv(20, 1, shape=(2, 2), kernel=(2, 1)), {"sampler": "weights"}),
    "convolved rows": (Chain.conv(20, 1, shape=(2, 2), kernel=(2, 1)), {"sampler": "conditional"}),
    "rows that float32 does not resolve": (
        Chain(100, 3, "relu", norm="batch-uncentred"), {"dtype": "float32", "initial": "collinear"},
    ),
    "a row without variance": (Chain(20, 2, "abs"), {}),
    "a sample without variance": (
        Chain(8, 2, "relu", norm="group(4)", order="activation-norm"), {},
    ),
    "no finite numbers": (Chain(10, 2, "gelu", norm="none", gain=1e60), {}),
}  # fmt: skip


@pytest.mark.parametrize("name", some(RUNS, *(set(RUNS) - {"haar, float32", "skip, float32"})))
def test_python_and_compiled_kernels_agree(name, monkeypatch):
    chain, options = RUNS[name]
    names = ["scaled_gram", "log_scale"]
    fixed = {"rng": 1, "threads": 1, "observables": names}

    def run():
        try:
            return simulate(chain, 4, **{"chains": 2, **fixed, **options})
        except (ZeroVarianceError, NonFiniteError) as error:
            return str(error)

    compiled = run()
    run_plainly(monkeypatch, *MODULES)
    with np.errstate(over="ignore", invalid="ignore"):
        python = run()
    if isinstance(compiled, str):
        assert python == compiled
        return
    assert python.widened == compiled.widened
    unit = np.finfo(compiled.dtype).eps
    for observable in names:
        size = np.abs(compiled[observable]).max()
        atol = 200 * unit * size
        np.testing.assert_allclose(python[observable], compiled[observable], rtol=0, atol=atol)


@FLOAT64
def test_python_bodies_of_weights_agree_with_their_machine_code(dtype):
    w = np.random.default_rng(3).standard_normal((512, 300)).astype(dtype)
    for law in (codes.GAUSSIAN, codes.UNIFORM, codes.RADEMACHER, codes.GIVEN):
        tile = np.zeros((2, numbers.TILE * numbers.STRIDE), dtype)
        fill = numbers.fill_weights
        for function, out in zip((fill, fill.py_func), tile, strict=True):
            function(law, w, out, 5, 7, 256, 64, draw_of(1, 0, 0))
        np.testing.assert_array_equal(tile[0], tile[1])


@FLOAT64
def test_an_activation_by_its_address_is_the_activation(dtype):
    """Kernels compiled for one activation, and for all, have the same bits."""
    spec, nowhere = layer_spec(128, 4), np.zeros((0, 0), dtype)
    blocks = []
    for sigma in (sigma_of(Activation.named("gelu")), activation_of("gelu", dtype)):
        work = memory.work(4, 1, dtype)
        work.block[:], _ = blocked(128, 4, dtype, 9)
        assert finish(sigma, spec, 0, 128, nowhere, nowhere, work) == -1
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
        finish(sigma, spec, 0, 128, nowhere, nowhere, work)


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
