"""Laws of the generated numbers: moments, distribution functions, tails, independence.

Seeds are fixed.  Each test fails for an ideal generator with probability at most
`oracle.FALSE_ALARM` (1e-6), from exact or proven bounds where they exist.

Every run draws 6.6e6 normals of each dtype for the distribution function and 1.0e8 for the tails.
The slow tests draw 1.0e8 and 1.7e9.  Of 6.6e6 normals, a variance that is off by 0.4 % and a
distribution function that is off by 1.2e-3 are seen.
"""

import math

import numpy as np
import pytest
from numba import njit
from oracle import FALSE_ALARM, binomial_range, ks_threshold, normal_threshold
from scipy import special, stats

from bnmc._kernels.compiling import OPTIONS, inline_module
from bnmc._kernels.cpu import memory, numbers
from bnmc._kernels.scalar import codes, normal, philox

for module in (philox, normal):
    inline_module(module)

KEY = np.uint32(2026), np.uint32(11)
DTYPES = pytest.mark.parametrize("dtype", [np.float32, np.float64])
ELEMENTS = 64
MOST_WORD = 0xFFFFFFFF

#: Draws of the slow tests: for the distribution function, and for the tails.  Others take fewer.
DRAWS = ELEMENTS * numbers.BLOCK * 16 * 200
TAIL_DRAWS = 16 * DRAWS
FEWER = DRAWS // 16
#: Cells of equal probability.
CELLS = 1 << 20


def draw_of(layer, chain=0, stream=codes.STREAM_ROWS):
    return codes.Draw(layer, np.uint32(stream | np.uint32(chain)), *KEY)


@njit  # allocates, which kernels do not
def count_cells(values, scale, counts, powers):
    """Count scaled values in cells of equal probability, and add up their powers 1 to 6."""
    cells = counts.size
    sums = np.zeros(6)
    for value in values:
        z = scale * np.float64(value)
        cell = int(0.5 * math.erfc(-z * math.sqrt(0.5)) * cells)
        counts[min(cell, cells - 1)] += 1
        power = 1.0
        for k in range(6):
            power *= z
            sums[k] += power
    powers += sums


@njit(**OPTIONS)
def count_beyond(values, thresholds, counts):
    """Count values above each threshold in counts[0], below its negative in counts[1]."""
    for value in values:
        if abs(value) > thresholds[0]:
            for k in range(thresholds.size):
                counts[0, k] += value > thresholds[k]
                counts[1, k] += -value > thresholds[k]


def stream_of_draws(dtype, draws, fill=numbers.fill_normals):
    """Yield flat arrays of numbers, `draws` in all: layer after layer, 16 blocks of rows each."""
    out = memory.aligned_zeros((ELEMENTS * numbers.STRIDE,), dtype)
    for index in range(draws // (ELEMENTS * numbers.BLOCK)):
        layer, block = divmod(index, 16)
        fill(out, 0, 0, ELEMENTS, block * numbers.BLOCK, numbers.BLOCK, draw_of(layer))
        yield out.reshape(ELEMENTS, numbers.STRIDE)[:, : numbers.BLOCK].reshape(-1)


def cells_and_powers_of(dtype, draws, scale=1.0):
    """Counts in cells and sums of powers of normals times `scale`."""
    counts, powers = np.zeros(CELLS, np.int64), np.zeros(6)
    for values in stream_of_draws(dtype, draws):
        count_cells(values, scale, counts, powers)
    assert counts.sum() == draws
    return counts, powers


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((np.float32, FEWER), id="float32"),
        pytest.param((np.float64, FEWER), id="float64"),
        pytest.param((np.float32, DRAWS), id="float32-more", marks=pytest.mark.slow),
        pytest.param((np.float64, DRAWS), id="float64-more", marks=pytest.mark.slow),
    ],
)
def cells_and_powers(request):
    return cells_and_powers_of(*request.param)


# --- normals


def test_moments(cells_and_powers):
    """Moments 1 to 6 against (k - 1)!!; the variance of z^k is (2k - 1)!! - E(z^k)^2."""
    counts, powers = cells_and_powers
    draws = counts.sum()
    for k in range(1, 7):
        exact = special.factorial2(k - 1) if k % 2 == 0 else 0.0
        error = math.sqrt((special.factorial2(2 * k - 1) - exact**2) / draws)
        assert abs(powers[k - 1] / draws - exact) < normal_threshold(6) * error


def test_kolmogorov_smirnov(cells_and_powers):
    counts, _ = cells_and_powers
    assert ks_of_cells(counts) < ks_threshold(counts.sum())


def ks_of_cells(counts):
    """A bound on the largest distance: exact at the ends of cells, plus a cell's probability."""
    empirical = np.cumsum(counts) / counts.sum()
    return np.abs(empirical - np.arange(1, CELLS + 1) / CELLS).max() + 1 / CELLS


def test_anderson_darling(cells_and_powers):
    assert anderson_darling_of_cells(cells_and_powers[0]) < anderson_darling_threshold()


def anderson_darling_of_cells(counts):
    """N times the integral of (F_N(u) - u)^2 / (u (1 - u)), by the sum over the ends of cells.

    In u = Phi(z) that integrand has the mean 1 everywhere, so what the cells do not resolve is
    about (log CELLS) / CELLS.
    """
    u, draws = np.arange(1, CELLS) / CELLS, counts.sum()
    empirical = np.cumsum(counts)[:-1] / draws
    return draws / CELLS * np.sum((empirical - u) ** 2 / (u * (1 - u)))


def anderson_darling_threshold():
    """A value that the limit law exceeds with less than the false alarm.

    The law is that of S, the sum over j of chi_j^2 / (j (j + 1)), and P(S > x) is below
    exp(-t x) E exp(t S) for each t in (0, 1) (Chernoff).
    """
    terms = 10_000
    j = np.arange(1, terms)
    t = np.linspace(0.01, 0.99, 99)
    log_mean = -0.5 * np.log1p(-2 * t[:, None] / (j * (j + 1.0))).sum(axis=1)
    # The other scales add up to 1 / terms, and log1p(-x) > -1.01 x for all of them.
    log_mean += 1.01 * t / terms
    return np.min((log_mean - math.log(FALSE_ALARM)) / t)


def test_chi_square(cells_and_powers):
    """4096 cells: a float32 is rounded by up to a hundredth of the finer ones."""
    counts, _ = cells_and_powers
    coarse = counts.reshape(4096, -1).sum(axis=1)
    expected = counts.sum() / 4096
    statistic = np.sum((coarse - expected) ** 2) / expected
    law = stats.chi2(4095)
    assert law.ppf(FALSE_ALARM / 2) < statistic < law.isf(FALSE_ALARM / 2)


@DTYPES
@pytest.mark.parametrize(
    ("draws", "furthest"),
    [
        pytest.param(DRAWS, 5.0, id="5 deviations"),
        pytest.param(TAIL_DRAWS, 5.5, id="5.5 deviations", marks=pytest.mark.slow),
    ],
)
def test_tails(dtype, draws, furthest):
    """Counts beyond 3, 4 and more standard deviations on either side are binomial."""
    thresholds = np.array([3.0, 4.0, 4.5, furthest])
    counts = np.zeros((2, 4), np.int64)
    for values in stream_of_draws(dtype, draws):
        count_beyond(values, thresholds, counts)
    for k, threshold in enumerate(thresholds):
        low, high = binomial_range(draws, special.ndtr(-threshold), comparisons=8)
        assert low <= counts[:, k].min()
        assert counts[:, k].max() <= high
    # The furthest threshold says something: there a generator without a tail fails.
    assert low > 0


# What is next to what: by how much element, row, layer, chain, key and stream go on.
ROW_STEPS = {"row": 1, "lane": 16, "half": 32}
PAIRS_ELEMENTS = 6_000


def block_of(dtype, first_element=0, draw=None):
    """Normals of many elements and a block of rows, as (elements, rows) float64."""
    out = memory.aligned_zeros((PAIRS_ELEMENTS * numbers.STRIDE,), dtype)
    numbers.fill_normals(
        out, 0, first_element, PAIRS_ELEMENTS, 0, numbers.BLOCK, draw or draw_of(3, 5)
    )
    return out.reshape(PAIRS_ELEMENTS, numbers.STRIDE)[:, : numbers.BLOCK].astype(np.float64)


@pytest.fixture(scope="module", params=[np.float32, np.float64], ids=["float32", "float64"])
def base(request):
    return request.param, block_of(request.param)


def neighbours(dtype, base, what):
    """Two aligned arrays of at least 1e7 normals whose addresses differ by one step."""
    if what in ROW_STEPS:
        step = ROW_STEPS[what]
        return base[:, :-step], base[:, step:]
    key_0, key_1 = KEY
    other = {
        "element": (1, draw_of(3, 5)),
        "layer": (0, draw_of(4, 5)),
        "chain": (0, draw_of(3, 6)),
        "stream": (0, draw_of(3, 5, codes.STREAM_WEIGHTS)),
        "key": (0, codes.Draw(*draw_of(3, 5)[:2], np.uint32(key_0 + 1), key_1)),
    }[what]
    return base, block_of(dtype, *other)


@pytest.mark.parametrize(
    "what", ["element", "row", "lane", "half", "layer", "chain", "stream", "key"]
)
def test_neighbouring_addresses_are_uncorrelated(base, what):
    """Products of normals, of squares, and of one with the square of the other: all of mean 0.

    Their variances are 1, 4 and 2, and any two products are uncorrelated, even where pairs share
    a number.  Of 3e6 pairs, a correlation of 0.003 is seen.
    """
    a, b = neighbours(*base, what)
    assert a.size >= 2.8e6
    error = math.sqrt(a.size)
    for of_a, of_b, deviation in (
        (a, b, 1.0),
        (a**2 - 1, b**2 - 1, 2.0),
        (a**2 - 1, b, math.sqrt(2)),
        (a, b**2 - 1, math.sqrt(2)),
    ):
        total = np.einsum("ij,ij->", of_a, of_b)
        assert abs(total) < normal_threshold(4) * deviation * error


# --- uniforms and signs


@pytest.mark.parametrize("word", [0, 1, 2**31, MOST_WORD - 1, MOST_WORD])
def test_uniforms_are_inside_the_open_interval_and_their_normals_finite(word):
    word, twice = np.uint32(word), normal.joined(word, word)
    for u, radius, single in (
        (normal.uniform.single(word), normal.radius.single(word), np.float32),
        (normal.uniform.double(twice), normal.radius.double(twice), np.float64),
    ):
        assert type(u) is single
        assert 0.0 < u < 1.0
        assert 0.0 < radius < 10.0
        exact = (int(word) + 0.5) / 2**32
        assert abs(u - exact) <= np.finfo(single).eps + 2.0**-33
    for sine, cosine in (normal.sincos.single(word), normal.sincos.double(twice)):
        assert abs(float(sine) ** 2 + float(cosine) ** 2 - 1) < 3e-7


def test_the_furthest_float32_normal():
    """The least uniform is 2^-33, so |z| <= 6.76; beyond lies 1.4e-11 of the law."""
    assert abs(normal.radius.single(np.uint32(0)) - math.sqrt(66 * math.log(2))) < 1e-6
    assert abs(normal.radius.double(np.uint64(0)) - math.sqrt(130 * math.log(2))) < 1e-14


@pytest.mark.parametrize("bits", [32, 64])
def test_radius_and_angle_are_precise_for_every_kind_of_word(bits):
    """Words by chance, small ones, and ones near the largest, by the formula in 40 digits.

    The uniform is rounded before the logarithm, so its rounding is part of the formula.
    """
    mpmath = pytest.importorskip("mpmath")
    number, word = (np.float32, np.uint32) if bits == 32 else (np.float64, np.uint64)
    radius, sincos = (each[bits // 64] for each in (normal.radius, normal.sincos))
    rng, last = np.random.default_rng(8), 2**bits - 1
    small = [int(2.0**power) for power in rng.uniform(0, bits, 150)]
    words = [0, 1, last, 2 ** (bits - 3), *small, *(last - each for each in small)]
    words += [int(each) for each in rng.integers(0, last, 150, dtype=np.uint64)]
    below = float(np.nextafter(number(2.0**bits), number(0)))
    with mpmath.workdps(40):
        for each in words:
            uniform = min(float(number(word(each)) + number(0.5)), below) / mpmath.mpf(2) ** bits
            turn = (each + mpmath.mpf(0.5)) / 2**bits
            exact = (mpmath.sqrt(-2 * mpmath.log(uniform)), mpmath.sinpi(2 * turn))
            exact += (mpmath.cospi(2 * turn),)
            for got, true in zip((radius(word(each)), *sincos(word(each))), exact, strict=True):
                assert type(got) is number
                assert abs(mpmath.mpf(float(got)) - true) < 3.0 * np.spacing(number(abs(true)))


@DTYPES
def test_uniform_weights(dtype):
    """Range, chi-square over 4096 cells, and moments 1 to 4, of 4.2e6 draws."""
    draws = DRAWS // 25
    counts, sums = np.zeros(4096, np.int64), np.zeros(4)
    for values in stream_of_draws(dtype, draws, numbers.fill_uniforms):
        z = values.astype(np.float64)
        assert np.abs(z).max() < math.sqrt(3)
        cells = ((z / math.sqrt(12) + 0.5) * 4096).astype(np.int64)
        counts += np.bincount(cells, minlength=4096)
        sums += [np.sum(z**k) for k in range(1, 5)]
    expected = draws / 4096
    law = stats.chi2(4095)
    statistic = np.sum((counts - expected) ** 2) / expected
    assert law.ppf(FALSE_ALARM / 4) < statistic < law.isf(FALSE_ALARM / 4)
    for k, total in enumerate(sums, start=1):
        moment = 3 ** (k / 2) / (k + 1) if k % 2 == 0 else 0.0
        error = math.sqrt((3**k / (2 * k + 1) - moment**2) / draws)
        assert abs(total / draws - moment) < normal_threshold(8) * error


@DTYPES
def test_signs(dtype):
    """Each -1 or 1 with equal probability, and neighbours too are equal half of the time."""
    draws, ones, equal = DRAWS // 25, 0, 0
    for values in stream_of_draws(dtype, draws, numbers.fill_signs):
        assert np.all(np.abs(values) == 1)
        ones += np.count_nonzero(values > 0)
        equal += np.count_nonzero(values[::2] == values[1::2])
    for count, trials in ((ones, draws), (equal, draws // 2)):
        low, high = binomial_range(trials, 0.5, comparisons=2)
        assert low <= count <= high


# --- chi variables


@njit(**OPTIONS)
def fill_chi(out, degrees, layer, stream, k0, k1):
    for row in range(out.size):
        out[row] = normal.chi(degrees, row, layer, stream, k0, k1)


def chi_variables(degrees, count, layer=0, chain=0):
    out = np.zeros(count)
    fill_chi(out, degrees, layer, np.uint32(codes.STREAM_CHI | np.uint32(chain)), *KEY)
    return out


@pytest.mark.parametrize("degrees", [1, 2, 3, 10, 1_000_000])
def test_chi_variables_have_their_law(degrees):
    """Kolmogorov-Smirnov, and the mean and variance of squares, k and 2 k.

    Of 1e6 variables, a distribution function that is off by 0.0028 is seen.
    """
    values = chi_variables(degrees, 1_000_000)
    squares = values**2
    cdf = np.sort(special.gammainc(degrees / 2, squares / 2))
    steps = np.arange(values.size + 1) / values.size
    distance = max(np.abs(cdf - steps[1:]).max(), np.abs(cdf - steps[:-1]).max())
    assert distance < ks_threshold(values.size, 3)
    error = math.sqrt(2 * degrees / values.size)
    assert abs(squares.mean() - degrees) < normal_threshold(3) * error
    fourth = 48 * degrees + 12 * degrees**2
    error = math.sqrt((fourth - 4 * degrees**2) / values.size)
    deviations = (squares - degrees) ** 2
    assert abs(deviations.mean() - 2 * degrees) < normal_threshold(3) * error


def test_chi_variables_of_rows_layers_and_chains_are_uncorrelated():
    base = chi_variables(3, 1_000_000)
    others = [np.roll(base, 1), chi_variables(3, 1_000_000, layer=1)]
    others.append(chi_variables(3, 1_000_000, chain=1))
    mean, variance = math.sqrt(8 / math.pi), 3 - 8 / math.pi
    for other in others:
        correlation = np.mean((base - mean) * (other - mean)) / variance
        assert abs(correlation) < normal_threshold(3) / math.sqrt(base.size)


def test_python_and_machine_code_draw_the_same_chi_variables():
    """By rejection: the same attempt is accepted, and rounding is all that differs."""
    stream = np.uint32(codes.STREAM_CHI)
    for degrees in (1, 2, 3, 50):
        python = [normal.chi(degrees, row, 0, stream, *KEY) for row in range(200)]
        np.testing.assert_allclose(chi_variables(degrees, 200), python, rtol=1e-13)


# --- a test of the tests


@pytest.mark.slow
def test_a_variance_that_is_half_a_percent_off_is_noticed():
    counts, powers = cells_and_powers_of(np.float32, DRAWS, scale=math.sqrt(1.005))
    assert ks_of_cells(counts) > ks_threshold(DRAWS)
    assert anderson_darling_of_cells(counts) > anderson_darling_threshold()
    assert powers[1] / DRAWS - 1 > normal_threshold(6) * math.sqrt(2 / DRAWS)
