"""`bnmc.regularity` against plain networks, exact arithmetic and the laws it must obey.

Comparisons of two simulations allow so many standard errors of the difference that all
comparisons of a test together fail with probability at most 1e-6 where the laws are equal.
"""

import math
from concurrent.futures import ThreadPoolExecutor

import mpmath
import numpy as np
import pytest
from numpy_network import drawn_weights
from oracle import FORMULAS, binomial_range, normal_threshold, normalise, normals
from slow_cases import some

import bnmc
from bnmc import regularity
from bnmc._kernels.cpu import lanes as kernels
from bnmc._kernels.scalar import codes
from bnmc._support import machine
from bnmc._support.progress import reporting
from bnmc._support.workers import Parallel
from bnmc.errors import ArgumentError, PartialEstimateError, ResultTooLargeError
from bnmc.regularity import ensembles, ergodic

QUANTITIES = ("alpha", "rank_bound", "soft_rank", "squared_norm", "cubes", "squares")
TAU = 0.5


def statistics(x):
    """What is averaged, of rows x (..., d, n), from M itself."""
    M = x @ np.swapaxes(x, -1, -2) / x.shape[-1]
    square = M @ M
    return {
        "squared_norm": np.sum(M**2, axis=(-2, -1)),
        "rank_bound": np.trace(M, axis1=-2, axis2=-1) ** 2 / np.sum(M**2, axis=(-2, -1)),
        "soft_rank": np.sum(np.linalg.eigvalsh(M) >= TAU, axis=-1),
        "cubes": np.trace(square @ M, axis1=-2, axis2=-1),
        "squares": np.sum(np.diagonal(square, axis1=-2, axis2=-1) ** 2, axis=-1),
    }


def networks(chain, layers, chains, seed):
    """Per-chain means of the statistics over some layers of networks that draw their weights."""
    generator = np.random.default_rng(seed)
    d, n = chain.width, chain.batch
    activation = FORMULAS[chain.activation.name]
    x = normalise(generator.standard_normal((chains, d, n)), chain.norm, n, chain.eps)
    moments = []
    for layer in range(1, max(layers) + 1):
        h = chain.gain * drawn_weights(chain, generator, chains, d) @ activation(x)
        x = normalise(chain.skip * x + h, chain.norm, n, chain.eps)
        if layer in layers:
            moments.append(statistics(x))
    return {name: np.mean([sums[name] for sums in moments], axis=0) for name in moments[0]}


def mean_and_error(samples, name):
    """Of a quantity, by the delta method for alpha."""
    if name == "alpha":
        A, B = samples["squares"], samples["cubes"]
        alpha = A.mean() / B.mean()
        return alpha, (A - alpha * B).std(ddof=1) / math.sqrt(len(A)) / B.mean()
    values = samples[name]
    return values.mean(), values.std(ddof=1) / math.sqrt(len(values))


def assert_agree(averages, samples):
    limit = normal_threshold(len(QUANTITIES))
    for name in QUANTITIES:
        estimate = getattr(averages, name)
        mean, stderr = mean_and_error(samples, name)
        assert abs(estimate.value - mean) <= limit * math.hypot(estimate.stderr, stderr), name


# ------------------------------------------------------------------- the averages


CHAINS = {
    "paper": bnmc.Chain(8, 8, "linear", norm="batch-uncentred"),
    "centred": bnmc.Chain(6, 3),
    "wide batch": bnmc.Chain(4, 7, "linear", norm="batch-uncentred"),
    "narrow batch": bnmc.Chain(9, 4, "linear", norm="batch-uncentred"),
    "eps": bnmc.Chain(5, 4, norm="batch-uncentred", gain=0.7, eps=0.3),
    "residual": bnmc.Chain.bn_residual(6, 6, gamma=0.5),
    "residual, centred": bnmc.Chain(6, 5, "tanh", skip=-0.8, gain=0.9),
    "tanh": bnmc.Chain(6, 4, "tanh"),
    "uniform": bnmc.Chain(5, 5, norm="batch-uncentred", weights="uniform"),
    "uniform, tanh": bnmc.Chain(5, 4, "tanh", weights="uniform", gain=0.6, eps=0.2),
    "uniform, residual": bnmc.Chain(5, 4, skip=1.0, gain=0.6, weights="uniform"),
}
#: Together these have every part of a chain; the others are slow.
FIRST = ("eps", "residual, centred")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in FIRST else pytest.mark.slow, id=name)
        for name in CHAINS
    ],
)
def test_averages_are_those_of_networks_in_numpy(name):
    """500 chains against 250, over the same layers; one more or less changes nothing there."""
    chain = CHAINS[name]
    every = math.ceil(4 * (1 + (chain.skip / chain.gain) ** 2))
    last = 40 + 40 // (2 * every) * 2 * every
    averages = regularity.averages(
        chain, tau=TAU, rng=1, rtol=10, chains=500, burn_in=40, depth=80, threads=2
    )
    assert averages.layers == (41, last)
    assert {getattr(averages, q).n for q in QUANTITIES} == {500}
    assert_agree(averages, networks(chain, range(40 + every, last + 1, every), 250, seed=2))
    if chain.eps == 0:
        # Rows are normalised: Tr M = d, and r is of the same M.
        d = chain.width
        assert averages.rank_bound.value >= d**2 / averages.squared_norm.value * (1 - 1e-12)
    norm, scaled = averages.squared_norm, averages.scaled_norm
    expected = np.array([norm.value, norm.stderr]) / chain.width**1.5
    np.testing.assert_allclose([scaled.value, scaled.stderr], expected, rtol=1e-6)


# Of networks in NumPy with weights drawn, H iterated in float64, from a Gaussian start of full
# rank: `networks` with 4000, 2000 and 500 chains over every second of layers 150 to 300 (300 to
# 600 at d = 32), seed 1.  Value and standard error of alpha, mean r and E|M|^2/d^1.5.
NUMPY = {
    8: ((0.91193, 0.00008), (2.24372, 0.00107), (1.29638, 0.00064)),
    16: ((0.88405, 0.00010), (3.30630, 0.00178), (1.22885, 0.00068)),
    32: ((0.86254, 0.00013), (4.86405, 0.00298), (1.17262, 0.00073)),
}


@pytest.mark.parametrize("d", some(NUMPY, 8, 16))
def test_reference_values_without_a_skip_connection(d):
    """Full rank or a part of it at the start: at d = 32 the library starts with 26 directions."""
    averages = regularity.averages(
        bnmc.Chain(d, d, "linear", norm="batch-uncentred"), rng=d, rtol=0.003, chains=256
    )
    estimates = (averages.alpha, averages.rank_bound, averages.scaled_norm)
    limit = normal_threshold(3)
    for estimate, (value, stderr) in zip(estimates, NUMPY[d], strict=True):
        assert abs(estimate.value - value) <= limit * math.hypot(estimate.stderr, stderr)
        assert estimate.stderr <= 0.003 * estimate.value
    # Fig. 8: below .9 for d > 10, and Cauchy-Schwarz: E r >= d^2 / E|M|^2.
    assert (averages.alpha.value < 0.9) == (d > 10)
    assert averages.rank_bound.value > math.sqrt(d) / averages.scaled_norm.value


# ------------------------------------------------------------------- errors and targets


#: So slow that two layers that are 8 apart are nearly the same.
SLOW = bnmc.Chain.bn_residual(4, 4, gamma=0.02)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("chain", "repeats", "burn_in"),
    [(bnmc.Chain(4, 4, "linear", norm="batch-uncentred"), 300, 48), (SLOW, 200, 16)],
    ids=["fused", "slow"],
)
def test_intervals_cover_and_standard_errors_are_honest(chain, repeats, burn_in):
    """Over repeated runs, however strongly layers depend on one another.

    The expectation is taken to be the mean of all runs, whose own error is less than a tenth of
    one run's, and lowers the coverage by less than 0.2 %.
    """
    runs = [
        regularity.averages(
            chain, rng=seed, rtol=10, chains=32, burn_in=burn_in, depth=2 * burn_in, threads=1
        )
        for seed in range(repeats)
    ]
    for name in ("alpha", "rank_bound"):
        estimates = [getattr(run, name) for run in runs]
        values = np.array([estimate.value for estimate in estimates])
        mean = values.mean()
        covered = sum(estimate.ci[0] <= mean <= estimate.ci[1] for estimate in estimates)
        low, high = binomial_range(repeats, 0.948, comparisons=4)
        assert low <= covered <= high
        # Mean square of errors over mean square of standard errors: about chi-squared / repeats.
        claimed = np.mean([estimate.stderr**2 for estimate in estimates])
        spread = normal_threshold(4) * math.sqrt(2 / repeats)
        assert abs(values.var(ddof=1) / claimed - 1) <= spread


def test_standard_errors_know_of_autocorrelation():
    """Two measured layers that took each other for independent would claim 1/sqrt(2) of it.

    The ratio is known to 0.033 (standard deviations from 640 and 2000 chains), a sixth of 0.2.
    """
    averages = regularity.averages(SLOW, rng=0, rtol=10, chains=640, burn_in=16, depth=32)
    assert averages.layers == (17, 32)
    _, stderr = mean_and_error(networks(SLOW, [32], 2000, seed=1), "rank_bound")
    independent = stderr * math.sqrt(2000 / (640 * 2))
    assert averages.rank_bound.stderr > 1.2 * independent


def test_a_target_that_is_not_met_hands_over_what_there_is():
    chain = bnmc.Chain(4, 4, "linear", norm="batch-uncentred")
    with pytest.raises(PartialEstimateError, match="alpha has a standard error of .* > ") as caught:
        regularity.constant(chain, rng=0, rtol=1e-6, depth=200, burn_in=48)
    partial = caught.value.partial
    assert isinstance(partial, bnmc.Estimate)
    assert partial.stderr > 1e-6 * partial.value
    assert "layers 97 to 192" in partial.method  # 48, 96, 192 layers: the next try needs 384
    with pytest.raises(PartialEstimateError, match="cubes has a standard error") as caught:
        regularity.averages(chain, rng=0, rtol=1e-6, depth=200, burn_in=48)
    assert caught.value.partial.layers == (97, 192)
    assert caught.value.partial.alpha == partial


def test_a_start_that_is_not_forgotten_is_seen():
    """At gamma = .02 two hundred layers change little, but what they change is a drift."""
    chain = bnmc.Chain.bn_residual(8, 8, gamma=0.02)
    with pytest.raises(PartialEstimateError, match="rank_bound still drifts, by -0.1"):
        regularity.averages(chain, rng=0, rtol=0.01, burn_in=100, depth=200, chains=256)


def test_a_rank_at_the_start_that_may_matter_is_seen():
    """Width 64 starts with 32 of 64 directions; the first dies after some hundred layers."""
    chain = bnmc.Chain(64, 64, "linear", norm="batch-uncentred")
    with pytest.raises(PartialEstimateError, match="the rank of the start has not yet fallen"):
        regularity.constant(chain, rng=0, rtol=10, burn_in=8, depth=16)
    assert regularity.constant(chain, rng=0, rtol=10).value < 0.87


def test_it_goes_on_until_the_target_is_met():
    chain = bnmc.Chain(4, 4, "linear", norm="batch-uncentred")
    short = regularity.constant(chain, rng=0, rtol=0.01)
    long = regularity.constant(chain, rng=0, rtol=0.0002, depth=20_000, burn_in=600)
    assert short.stderr <= 0.01 * short.value
    assert long.stderr <= 0.0002 * long.value
    assert long.compatible(short, sigmas=normal_threshold())


# ------------------------------------------------------------------- the kernels


def lane_normals(order, row, layer, lanes, key):
    """Normals of a row of some chains of group 1, (order, lanes), from their addresses."""
    quad, word = divmod(row, 4)
    places = [(kernels.LANES + lane) // 16 * 64 + word * 16 + lane % 16 for lane in lanes]
    return np.concatenate(
        [
            normals(
                [quad],
                places,
                codes.Draw(layer, np.uint32(kernels.STREAM_LANES | np.uint32(column)), *key),
                np.float64,
            )
            for column in range(order)
        ]
    ).astype(np.float64)


def test_layers_against_exact_arithmetic_and_small_directions_survive():
    """Twelve layers of two chains, 60 digits: every direction to 1e-10 of itself.

    The start is graded, from 1 to 1e-40, and one direction more is lost from the start.
    """
    width, order, batch, layers, first, shrink = 6, 5, 7, 12, 3, 0.25
    lanes, key = (0, 21), (np.uint32(5), np.uint32(9))
    start = np.diag([1.0, 1e-10, 1e-20, 1e-40, 0.0])
    gram = np.repeat(start, kernels.LANES)
    sums = np.empty((layers, 3, kernels.LANES))
    grams = np.empty((layers, gram.size))
    shape = kernels.Shape(width, order, batch, shrink)
    draw = codes.Draw(first, 1, *key)
    kernels.linear_layers(shape, gram, draw, 1, sums, grams, kernels.space_of(shape))
    np.testing.assert_array_equal(grams[-1], gram)
    grams = grams.reshape(layers, order, order, kernels.LANES)
    with mpmath.workdps(60):
        for position, lane in enumerate(lanes):
            G = mpmath.matrix(start.tolist())[:4, :4]
            for step in range(layers):
                L = mpmath.cholesky(G)
                G = mpmath.zeros(4)
                for row in range(width):
                    z = lane_normals(order, row, first + step, lanes, key)[:4, position]
                    h = mpmath.matrix(z.tolist()).T * L
                    scale = batch / (mpmath.fdot(h, h) + shrink)
                    G += scale * (h.T * h) / width
                matrix = grams[step, :, :, lane]
                np.testing.assert_array_equal(matrix, matrix.T)
                assert not matrix[4].any()
                sizes = [mpmath.sqrt(G[i, i]) for i in range(4)]
                error = max(
                    abs(matrix[i, j] - G[i, j]) / (sizes[i] * sizes[j])
                    for i in range(4)
                    for j in range(4)
                )
                # Normals agree to about 1e-15, and each layer adds some roundings, times the
                # condition of the correlations of up to 1e3.
                assert error < 1e-10, step


def test_moments_are_those_of_M():
    rng = np.random.default_rng(4)
    width, order, batch = 7, 3, 5
    x = rng.standard_normal((width, order, kernels.LANES))
    gram, sums = np.empty(order**2 * kernels.LANES), np.empty((3, kernels.LANES))
    kernels.measure(kernels.Shape(width, order, batch, 0.0), x.reshape(-1), gram, sums)
    rows = np.moveaxis(x, -1, 0)
    padded = np.concatenate([rows, np.zeros((kernels.LANES, width, batch - order))], axis=-1)
    expected = statistics(padded)
    for values, name in zip(sums, ("squared_norm", "cubes", "squares"), strict=True):
        np.testing.assert_allclose(values, expected[name], rtol=1e-13)
    of_rows = np.moveaxis(gram.reshape(order, order, -1), -1, 0)
    np.testing.assert_allclose(of_rows, np.swapaxes(rows, 1, 2) @ rows / width, rtol=1e-12)


def test_a_direction_that_stays_comes_back_however_small_it_got():
    """Of four directions at d = 8 the last is below 1e-14 of the trace at times, never for good."""
    with ThreadPoolExecutor(1) as threads:
        pool = Parallel.of(1, threads)
        ensemble = ensembles.FusedEnsemble(
            bnmc.Chain(8, 8, "linear", norm="batch-uncentred"), 64, 1, pool
        )
        assert ensemble.has_forgotten_start  # since it starts with all there are
        shares = []
        for _ in range(1500):
            ensemble.measured(pool, 32, 1, None)
            if {group.order for group in ensemble.groups} == {4}:
                last = [group.gram.reshape(16, -1)[-1] / 8 for group in ensemble.groups]
                shares.append(np.concatenate(last))
    assert np.min(shares[: len(shares) // 2]) < 1e-14
    assert np.max(shares[len(shares) // 2 :], axis=0).min() > 1e-3


# ------------------------------------------------------------------- the same bits


@pytest.mark.parametrize("name", ["paper", "residual", "uniform"])
def test_bits_do_not_depend_on_threads(name):
    def run(threads, seed=7):
        return regularity.averages(
            CHAINS[name], rng=seed, rtol=10, chains=70, burn_in=16, depth=32, threads=threads
        )

    first, same, other = run(1), run(3), run(1, seed=8)
    assert first == same
    assert first.alpha.value != other.alpha.value
    assert first == run(2, seed=np.random.default_rng(7))


def test_progress_is_reported():
    seen = []
    chain = bnmc.Chain(4, 4, "linear", norm="batch-uncentred")
    regularity.constant(chain, rng=0, progress=lambda *now: seen.append(now))
    done = [now[0] for now in seen]
    assert done == sorted(done)
    assert all(done <= total for done, total in seen)
    assert seen[-1] == (96, 96)
    seen.clear()
    regularity.figures([2, 4], rng=0, rtol=0.05, progress=lambda *now: seen.append(now))
    done = [now[0] for now in seen]
    assert done == sorted(done)
    assert seen[-1][0] == seen[-1][1]


@pytest.mark.parametrize(
    ("function", "argument"),
    [
        ("constant", bnmc.Chain(2, 2, "linear", norm="batch-uncentred")),
        ("averages", bnmc.Chain(2, 2, "linear", norm="batch-uncentred")),
        ("figures", [2]),
    ],
)
def test_there_is_no_bar_unless_it_is_asked_for(function, argument, monkeypatch):
    asked = []
    monkeypatch.setattr(
        ergodic, "reporting", lambda *given: asked.append(given[0]) or reporting(*given)
    )
    getattr(regularity, function)(argument, rng=0, rtol=0.1)
    assert asked[0] is False


# ------------------------------------------------------------------- the figures


def test_figures_are_averages_against_the_width():
    figures = regularity.figures(np.array([2, 4, 8]), rng=3, rtol=0.02, tau=0.25)
    np.testing.assert_array_equal(figures.widths, [2, 4, 8])
    assert figures.gamma == math.inf
    for width, average in zip(figures.widths, figures.averages, strict=True):
        assert (average.chain, average.tau) == (
            bnmc.Chain(width, width, "linear", norm="batch-uncentred"),
            0.25,
        )
    for name in (*QUANTITIES, "scaled_norm"):
        estimates = [getattr(average, name) for average in figures.averages]
        values, errors = figures.value(name), figures.stderr(name)
        np.testing.assert_array_equal(values, [estimate.value for estimate in estimates])
        np.testing.assert_array_equal(errors, [estimate.stderr for estimate in estimates])
        assert (errors <= 0.02 * values).all()
    assert (np.diff(figures.value("alpha")) < 0).all()
    with pytest.raises(ArgumentError, match=r"name: got 'rank', allowed: alpha, .*, scaled_norm"):
        figures.value("rank")


def test_figures_of_a_residual_network():
    figures = regularity.figures([3], rng=3, rtol=0.05, gamma=1.0)
    chain = bnmc.Chain.bn_residual(3, 3, gamma=1.0)
    assert figures.averages[0].chain == chain
    assert_agree(figures.averages[0], networks(chain, range(60, 91, 5), 1000, seed=5))


def test_figures_hand_over_what_there_is():
    with pytest.raises(PartialEstimateError, match="width 2: after 1348 layers") as caught:
        regularity.figures([1, 2], rng=0, rtol=1e-3, depth=2000, chains=8)
    np.testing.assert_array_equal(caught.value.partial.widths, [1, 2])
    # Of width 1, M = 1.
    np.testing.assert_array_equal(caught.value.partial.value("alpha")[0], 1.0)
    assert caught.value.partial.stderr("alpha")[0] < 1e-15


# ------------------------------------------------------------------- one layer


def test_second_moment_against_networks_in_numpy():
    """100,000 layers each, from matrices of full and of lower rank."""
    rng = np.random.default_rng(8)
    H = rng.standard_normal((3, 4, 6)) * [1.0, 0.5, 0.1, 2.0, 1.0, 1e-3]
    H[1, :, 3:] = 0
    H[2] = H[2, :, :1] @ H[2, :1] + 1e-4 * H[1]
    expected = regularity.one_step_second_moment(H)
    for matrix, value in zip(H, expected, strict=True):
        moments = []
        for _ in range(10):
            h = rng.standard_normal((10_000, 4, 4)) @ matrix
            moments.append(statistics(h / np.sqrt(np.mean(h**2, axis=-1, keepdims=True))))
        norms = np.concatenate([sums["squared_norm"] for sums in moments])
        error = norms.std() / math.sqrt(norms.size)
        assert abs(norms.mean() - value) <= normal_threshold(3) * error


def test_second_moment_in_closed_form():
    """Of two directions p = s / (s + s'), however far apart; of k equal ones 1/k; of one 1."""
    for ratio in (1.0, 0.3, 1e-3, 1e-8, 1e-15, 1e-150, 0.0):
        p = np.array([1, ratio]) / (1 + ratio)
        H = np.diag([1.0, ratio, 0.0])
        assert regularity.one_step_second_moment(H) == pytest.approx(3 + 6 * p @ p, rel=1e-13)
    for d, k in ((1, 1), (5, 1), (5, 3), (64, 64), (300, 257)):
        value = regularity.one_step_second_moment(np.eye(d)[:, :k])
        assert value == pytest.approx(d + d * (d - 1) / k, rel=1e-13)


def test_second_moment_against_a_quadrature_of_many_digits():
    spectrum = [mpmath.mpf(s) ** 2 for s in ("1", "0.7", "0.1", "1e-4")]

    def share(i):
        def integrand(t):
            product = mpmath.fprod(mpmath.sqrt(1 + 2 * t * s) for s in spectrum)
            return spectrum[i] / (1 + 2 * t * spectrum[i]) / product

        edges = [0, *(mpmath.mpf(10) ** k for k in range(-2, 13)), mpmath.inf]
        return mpmath.quad(integrand, edges)

    with mpmath.workdps(20):
        expected = float(4 + 12 * mpmath.fsum(share(i) ** 2 for i in range(4)))
    H = np.linalg.qr(np.random.default_rng(9).standard_normal((4, 4)))[0] * [1, 0.7, 0.1, 1e-4]
    assert regularity.one_step_second_moment(H) == pytest.approx(expected, rel=1e-12)


def test_second_moment_is_of_direction_alone():
    H = np.random.default_rng(10).standard_normal((2, 3, 5, 4))
    value = regularity.one_step_second_moment(H)
    assert value.shape == (2, 3)
    for scale in (1e-300, 1e300, -3.0):
        np.testing.assert_allclose(regularity.one_step_second_moment(scale * H), value, rtol=1e-13)
    np.testing.assert_array_equal(regularity.one_step_second_moment(H[1, 2]), value[1, 2])
    assert regularity.one_step_second_moment(H.astype(np.float32)).dtype == np.float64


# ------------------------------------------------------------------- bad input


def test_a_chain_beyond_the_memory(monkeypatch):
    monkeypatch.setattr(machine, "available_memory", lambda: 10_000)
    with pytest.raises(ResultTooLargeError, match="chain: the result needs"):
        regularity.constant(bnmc.Chain(4, 4, "linear", norm="batch-uncentred"))


def test_an_ensemble_needs_memory_for_the_rows_of_all_chains(monkeypatch):
    """Each thread also has the rows of a group of chains, and their Gram matrices, twice."""
    chain, chains = bnmc.Chain.bn_residual(8, 3, gamma=1.0), 1000
    of_group = 2 * kernels.LANES * (8 + 3) * 3
    needed = 8 * (chains * 8 * 3 + 2 * of_group)

    class StartedError(Exception):
        pass

    def started(*_, **__):
        raise StartedError

    monkeypatch.setattr(ensembles, "simulate", started)
    for available, expected in ((needed, StartedError), (needed - 1, ResultTooLargeError)):
        monkeypatch.setattr(machine, "available_memory", lambda free=available: free)
        with pytest.raises(expected):
            ensembles.SimulatedEnsemble(chain, chains, 0, Parallel.of(2))


# ------------------------------------------------------------------- the limits


def test_a_direction_that_rounding_removed_stays_away():
    """Three samples in a plane: the last pivot is rounding, above zero in some lanes."""
    width, order = 6, 3
    angles = np.random.default_rng(6).uniform([0.0, 1.0, 2.0], [0.5, 1.5, 2.5], (kernels.LANES, 3))
    start = np.cos(angles[:, :, None] - angles[:, None])
    assert (np.linalg.det(start) > 0).any()
    gram = np.moveaxis(start, 0, -1).flatten()
    for layer in range(3):
        shape = kernels.Shape(width, order, order, 0.0)
        draw = codes.Draw(layer, 0, np.uint32(1), np.uint32(2))
        sums, grams = np.empty((1, 3, kernels.LANES)), np.empty((0, gram.size))
        kernels.linear_layers(shape, gram, draw, 1, sums, grams, kernels.space_of(shape))
        matrices = gram.reshape(order, order, kernels.LANES)
        assert not matrices[2].any()
        assert (np.einsum("iil->il", matrices)[:2] > 0).all()
        # Rows have mean square 1 over the samples: the trace of G is their number.
        np.testing.assert_allclose(np.einsum("iil->l", matrices), order, rtol=1e-12)


def judged_halves(first, second, rtol):
    """What `ErgodicRun` says of averages of α of each chain, in the two halves of a try."""
    run = ergodic.ErgodicRun(
        bnmc.Chain(4, 4, "linear", norm="batch-uncentred"), 0, rtol, len(first), 1000, 48,
        Parallel.of(1), None,
    )  # fmt: skip
    run.layers = (49, 96)
    halves = [
        {"squares": np.asarray(half), "cubes": np.ones(len(half))} for half in (first, second)
    ]
    return run._judge(halves, ("alpha",))


@pytest.mark.parametrize("noise", [1e-2, 1e-7], ids=["error decides", "target decides"])
def test_a_drift_is_a_third_of_the_target_and_three_standard_errors(noise):
    """α is 1, so the target is rtol; halves of 8 chains differ by the drift, and by known noise."""
    chains, rtol = 8, 0.01
    pattern = np.resize([1.0, -1.0], chains)
    # The difference of the halves is drift + 2 noise pattern: its standard error is Student's.
    stderr = 2 * noise / math.sqrt(chains - 1)
    limit = max(rtol / 3, 3 * stderr)
    assert (limit > rtol / 3) == (noise == 1e-2)
    for factor, drifts in ((0.99, False), (1.01, True), (-0.99, False), (-1.01, True)):
        drift = factor * limit
        first = 1 - drift / 2 - noise * pattern
        _, reason = judged_halves(first, first + drift + 2 * noise * pattern, rtol)
        assert ("still drifts" in reason) == drifts


def test_a_burn_in_is_at_least_two_layers_and_at_most_half_the_depth():
    chain, others = bnmc.Chain(4, 4, "linear", norm="batch-uncentred"), (Parallel.of(1), None)
    for depth, burn_in in ((4, 2), (20, 2), (20, 10), (21, 10)):
        run = ergodic.ErgodicRun(chain, 0, 0.01, 2, depth, burn_in, *others)
        assert (run.burn_in, run.every) == (burn_in, min(run.every, burn_in // 2))
    for depth, burn_in in ((20, 1), (20, 11), (21, 11)):
        with pytest.raises(ArgumentError, match=f"burn_in: got {burn_in}"):
            ergodic.ErgodicRun(chain, 0, 0.01, 2, depth, burn_in, *others)


def test_a_standard_error_is_compared_with_the_target():
    pattern = np.resize([1.0, -1.0], 8)
    for factor, lacks in ((0.99, False), (1.01, True)):
        # Eight chains 1 ± s have the standard deviation s √(8/7), so the standard error s/√7.
        values = 1 + factor * 0.01 * math.sqrt(7) * pattern
        estimates, reason = judged_halves(values, values, 0.01)
        assert estimates["alpha"].stderr == pytest.approx(factor * 0.01, rel=1e-9)
        assert ("standard error" in reason) == lacks
