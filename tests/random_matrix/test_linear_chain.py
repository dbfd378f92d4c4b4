"""Lyapunov exponents, Wishart moments and the linear chain, against formulas and simulation."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from random_matrix_checks import EPS, assert_mean, covariance, sigmas
from scipy import linalg, special, stats

import bnmc
from bnmc import random_matrix as rm


def qr_growth(step, d, depth, chains, rng):
    """Mean of ln |R_kk| per layer of a product of `step` matrices, one row for each chain."""
    frame = np.broadcast_to(np.eye(d), (chains, d, d))
    total = np.zeros((chains, d))
    for _ in range(depth):
        frame, R = np.linalg.qr(step(rng.standard_normal((chains, d, d))) @ frame)
        total += np.log(np.abs(np.diagonal(R, axis1=1, axis2=2)))
    return total / depth


def test_ginibre_exponents_are_the_formula():
    for d in (1, 2, 31, 32, 33, 400):
        k = np.arange(1, d + 1)
        exact = 0.5 * (special.digamma((d - k + 1) / 2) + np.log(2 / d))
        # The formula itself cancels, and each of its terms is rounded.
        np.testing.assert_allclose(
            rm.lyapunov_ginibre(d), exact, rtol=0, atol=4 * EPS * math.log(2 * d)
        )
        np.testing.assert_array_equal(
            rm.lyapunov_ginibre(d, [[1], [d]]).ravel(), rm.lyapunov_ginibre(d)[[0, -1]]
        )
    # The expansion is −1/(2d) − 1/(6d²). The formula has lost all digits here.
    assert rm.lyapunov_ginibre(10**15, 1) == pytest.approx(-5e-16, rel=1e-14, abs=0)
    assert rm.lyapunov_ginibre(2**53, 2**53) == pytest.approx(
        0.5 * (special.digamma(0.5) + math.log(2**-52)), rel=1e-14, abs=0
    )


def test_ginibre_exponents_of_a_product():
    growth = qr_growth(lambda W: W / 2, 4, 50, 2000, np.random.default_rng(0))
    assert_mean(growth, rm.lyapunov_ginibre(4))


def test_ginibre_exponents_of_the_vanilla_chain():
    """The chain has the first n exponents. A pivot of G grows by the square."""
    d, n, depth = 6, 3, 60
    run = bnmc.simulate(
        bnmc.Chain(d, n, "linear", norm="none"), depth, chains=4000, initial=np.eye(d, n),
        observables="log_pivots", rng=3, threads=1,
    )  # fmt: skip
    pivots = run["log_pivots"]
    growth = (pivots[:, -1] - pivots[:, 0]) / (2 * depth)
    assert_mean(growth, rm.lyapunov_ginibre(d, np.arange(1, n + 1)))


# (d, γ, λ₁).  mpmath, mp.dps = 50, mu = 1/(2*mpf(g)**2): (log(2*g**2) + S)/2, S the sum of
# exp(-mu)*mu**j/factorial(j)*digamma(d/2 + j) over all j within 80*sqrt(mu) + 300 of mu.
LARGEST = [
    (1, 0.5, -0.172795319486056972),
    (2, 0.25, 0.0000188328114219624509),
    (3, 1.0, 0.516282640572382053),
    (5, 2.0**-12, 8.94069644985505725e-8),
    (10, 2.0**-10, 3.81468635171633426e-6),
    (10, 2.0**20, 14.9625760356948246),
    (1000, 2.0**-6, 0.109045482412548801),
    (10**6, 2.0**-7, 2.0638501304453006),
]


@pytest.mark.parametrize(("d", "gamma", "exact"), LARGEST)
def test_largest_exponent_of_residual_layers(d, gamma, exact):
    assert rm.lyapunov_residual(d, gamma) == pytest.approx(exact, rel=5e-15, abs=0)


@pytest.mark.parametrize("d", [1, 2, 7, 60])
@pytest.mark.parametrize("gamma", [0.1, 0.7, 5.0])
def test_largest_exponent_is_the_poisson_sum(d, gamma):
    mu = 1 / (2 * gamma**2)
    j = np.arange(int(mu + 12 * math.sqrt(mu) + 60))
    total = np.sum(stats.poisson.pmf(j, mu) * special.digamma(d / 2 + j))
    exact = 0.5 * (math.log(2 * gamma**2) + total)
    assert rm.lyapunov_residual(d, gamma) == pytest.approx(exact, abs=1e-12)


def test_largest_exponent_at_both_ends():
    """For small γ a series, the integral term by term; for large γ ln γ and a chi; 0 for γ = 0.

    With b = d/2 − 1 it is b γ² − b(b−1) γ⁴ + 4b(b−1)(b−2) γ⁶/3 less about 2b⁴γ⁸.
    """
    gammas = 10.0 ** np.array([-4, -5, -6, -8, -50, -99, -101, -140])
    for d in (1, 3, 10, 10**6):
        b = d / 2 - 1
        series = 1 - (b - 1) * gammas**2 + 4 / 3 * (b - 1) * (b - 2) * gammas**4
        rtol = 1e-14 + (d * gammas**2) ** 3
        values = rm.lyapunov_residual(d, gammas)
        assert np.all(np.abs(values - b * gammas**2 * series) <= rtol * abs(b) * gammas**2)
        large = math.log(1e9) + 0.5 * (special.digamma(d / 2) + math.log(2))
        assert rm.lyapunov_residual(d, 1e9) == pytest.approx(large, rel=1e-14, abs=0)
    assert rm.lyapunov_residual(5, 0) == 0
    assert rm.lyapunov_residual(2**53, [[1e-150], [1e150]]).shape == (2, 1)
    assert np.isfinite(rm.lyapunov_residual(2**53, [1e-150, 1e-20, 1, 1e20, 1e150])).all()


@pytest.mark.parametrize(
    ("d", "gamma"),
    [(3, 3.0), *(pytest.param(*case, marks=pytest.mark.slow) for case in ((2, 1.0), (4, 0.4)))],
)
def test_all_exponents_of_residual_layers(d, gamma):
    """Products of I + γW by QR, and the scalar recursion for the same exponents."""
    rng = np.random.default_rng(d)
    growth = qr_growth(lambda W: np.eye(d) + gamma * W, d, 40, 2000, rng)
    direct = [bnmc.Estimate.from_samples(column) for column in growth.T]
    recursion = [
        rm.lyapunov_residual_estimate(d, gamma, k, samples=40_000, rng=k) for k in range(1, d + 1)
    ]
    for estimate, other in zip(direct, recursion, strict=True):
        assert estimate.compatible(other, sigmas(d))
    assert direct[0].compatible(rm.lyapunov_residual(d, gamma), sigmas(1))
    assert recursion[0].stderr <= 1e-17
    assert recursion[0].value == pytest.approx(rm.lyapunov_residual(d, gamma), rel=1e-14, abs=0)


def test_the_sum_of_the_exponents_is_the_mean_log_determinant():
    d, gamma = 5, 0.8
    estimates = [rm.lyapunov_residual_estimate(d, gamma, k, rng=10 + k) for k in range(1, d + 1)]
    W = np.random.default_rng(4).standard_normal((100_000, d, d))
    determinant = bnmc.Estimate.from_samples(np.linalg.slogdet(np.eye(d) + gamma * W)[1])
    total = sum(estimate.value for estimate in estimates)
    stderr = math.hypot(determinant.stderr, *(estimate.stderr for estimate in estimates))
    assert abs(total - determinant.value) <= sigmas(1) * stderr


@pytest.mark.parametrize("k", [2, 4])
def test_the_stated_error_is_the_spread_of_repetitions(k):
    """Of 60 estimates: their variance over the mean stated one is χ²/59, from both sides."""
    estimates = [
        rm.lyapunov_residual_estimate(4, 0.8, k, samples=500, rng=seed) for seed in range(60)
    ]
    values, errors = zip(
        *((estimate.value, estimate.stderr) for estimate in estimates), strict=True
    )
    ratio = np.var(values, ddof=1) / np.mean(np.square(errors))
    # Stated variances of 500 samples deviate by about 10 %, and their mean by far less.
    low, high = stats.chi2.ppf([2.5e-7, 1 - 2.5e-7], 59) / 59
    assert low < ratio < high


@pytest.mark.slow
def test_small_steps_are_brownian():
    """λ_k → (d − 2k) γ²/2 as γ → 0: the noise of the estimate shrinks with γ² as well."""
    d, gamma = 6, 1e-7
    for k in range(1, d + 1):
        estimate = rm.lyapunov_residual_estimate(d, gamma, k, rng=k)
        assert estimate.stderr < 0.05 * gamma**2
        error = abs(estimate.value - (d - 2 * k) / 2 * gamma**2)
        assert error <= sigmas(d) * estimate.stderr + d**2 * gamma**4
        smallest = rm.lyapunov_residual_estimate(d, 1e-70, k, rng=k)
        # the same draws; γ² R_j is 1 + O(γ)
        limit = 10 * d * gamma
        assert smallest.value * 1e140 == pytest.approx(estimate.value / gamma**2, abs=limit)


def expectation_of_product(S, factors):
    """E of a product of entries of Z, rows i.i.d. N(0, S), by Isserlis: the sum over pairings."""
    if not factors:
        return 1.0
    (row, column), rest = factors[0], factors[1:]
    return sum(
        S[column, other_column] * expectation_of_product(S, rest[:i] + rest[i + 1 :])
        for i, (other_row, other_column) in enumerate(rest)
        if other_row == row
    )


def wishart_expectation(S, d, pairs):
    """E of Π G_ab over the pairs (a, b), G = ZᵀZ/d, each G a sum over rows."""
    rows = itertools.product(range(d), repeat=len(pairs))
    total = sum(
        expectation_of_product(
            S, [f for r, (a, b) in zip(choice, pairs, strict=True) for f in ((r, a), (r, b))]
        )
        for choice in rows
    )
    return total / d ** len(pairs)


@pytest.mark.parametrize("d", [1, 2, 3])
def test_wishart_moments_by_pairings(d):
    n = 2
    S = covariance(np.random.default_rng(d), n)
    moments = rm.WishartMoments(S, d)

    def expectation(*pairs):
        return wishart_expectation(S, d, pairs)

    square, squared_trace, cube = np.zeros((n, n)), 0.0, 0.0
    for a, b in np.ndindex(n, n):
        squared_trace += expectation((a, a), (b, b))
        square[a, b] = sum(expectation((a, c), (c, b)) for c in range(n))
        cube += sum(expectation((a, b), (b, c), (c, a)) for c in range(n))
    np.testing.assert_allclose(moments.square, square, rtol=1e-13)
    assert moments.trace_of_square == pytest.approx(np.trace(square), rel=1e-13, abs=0)
    assert moments.squared_trace == pytest.approx(squared_trace, rel=1e-13, abs=0)
    assert moments.trace_of_cube == pytest.approx(cube, rel=1e-13, abs=0)
    deviation = np.trace(square) - np.trace(S @ S)  # E‖G − S‖² = E‖G‖² − ‖S‖²
    assert moments.deviation == pytest.approx(deviation, rel=1e-12, abs=0)


def test_wishart_moments_by_simulation():
    rng = np.random.default_rng(7)
    n, d = 3, 9
    S = covariance(rng, n)
    Z = rng.standard_normal((100_000, d, n)) @ linalg.cholesky(S)
    G = np.swapaxes(Z, 1, 2) @ Z / d
    moments = rm.WishartMoments(S, d)
    assert_mean(G @ G, moments.square)
    assert_mean(np.linalg.inv(G), moments.inverse)
    assert_mean(np.linalg.norm(G - S, axis=(1, 2)) ** 2, moments.deviation)
    assert_mean(np.trace(G @ G @ G, axis1=1, axis2=2), moments.trace_of_cube)
    assert_mean(np.trace(G, axis1=1, axis2=2) ** 2, moments.squared_trace)


def test_wishart_moments_of_stacks_and_of_one_sample():
    stack = np.stack([covariance(np.random.default_rng(seed), 3) for seed in range(4)])
    names = ["square", "trace_of_square", "squared_trace", "deviation", "trace_of_cube", "inverse"]
    for name in names:
        together = getattr(rm.WishartMoments(stack.reshape(2, 2, 3, 3), 12), name)
        alone = [getattr(rm.WishartMoments(S, 12), name) for S in stack]
        np.testing.assert_allclose(together.reshape(np.shape(alone)), alone, rtol=1e-12, atol=1e-14)
    # χ²_d / d has moments 1, 1 + 2/d, (1 + 2/d)(1 + 4/d), and d/(d − 2) for the inverse
    chi = rm.WishartMoments([[1.0]], 10)
    moments = [chi.trace_of_square, chi.squared_trace, chi.trace_of_cube, chi.inverse[0, 0]]
    assert moments == pytest.approx([1.2, 1.2, 1.2 * 1.4, 10 / 8])


def exact_deviation(d, n, depth):
    """The recursion of E Tr G² and E (Tr G)² from G = I, in fractions."""
    square, trace = Fraction(n), Fraction(n * n)
    for _ in range(depth):
        square, trace = square + (square + trace) / d, trace + 2 * square / d
    return float(square - n)


@pytest.mark.parametrize(("d", "n"), [(1, 1), (1, 4), (2, 3), (50, 10), (7, 30)])
def test_vanilla_deviation_is_the_recursion(d, n):
    depths = np.array([0, 1, 2, 5, 40])
    exact = [exact_deviation(d, n, depth) for depth in depths.tolist()]
    np.testing.assert_allclose(rm.vanilla_deviation(d, n, depths), exact, rtol=1e-13)
    assert rm.vanilla_deviation(d, n, 1) == pytest.approx(
        float(rm.WishartMoments(np.eye(n), d).deviation), rel=1e-14, abs=0
    )


def test_linear_covariance():
    """One layer, the identity at any depth, the recursion, and a simulation."""
    S = np.array([[2.0, 0.5], [0.5, 1.0]])
    first = rm.linear_covariance(S, 7, 1)
    expected = np.einsum("ik,jm->ijkm", S, S) + np.einsum("im,jk->ijkm", S, S)
    np.testing.assert_allclose(first, expected / 7, rtol=1e-14)
    for d, n, depth in ((1, 3, 2), (5, 2, 30), (100, 4, 7)):
        total = np.einsum("ijij", rm.linear_covariance(np.eye(n), d, depth))
        assert total == pytest.approx(float(rm.vanilla_deviation(d, n, depth)), rel=1e-13)
    assert not rm.linear_covariance(S, 7, 0).any()
    # 20 000 chains of 3 layers of width 200; the standard error of a covariance is at most 1.5 %
    # of the largest variance, and 8 of them exclude chance.
    rng, chains, width = np.random.default_rng(9), 20_000, 200
    G = np.repeat(S[None], chains, axis=0)
    for _ in range(3):
        rows = rng.standard_normal((chains, width, 2)) @ np.linalg.cholesky(G).swapaxes(1, 2)
        G = rows.swapaxes(1, 2) @ rows / width
    simulated = np.cov(G.reshape(chains, 4).T).reshape(2, 2, 2, 2)
    exact = rm.linear_covariance(S, width, 3)
    np.testing.assert_allclose(simulated, exact, rtol=0, atol=8 * 0.015 * exact.max())
    far = rm.linear_covariance(np.diag([1.0, 0.0]), 1, 10**6)
    assert far[0, 0, 0, 0] == np.inf
    assert np.count_nonzero(far) == 1


# mpmath, mp.dps = 80: n*(n+2)/3*(1+2/d)**l - n*(n-1)/3*(1-1/d)**l - n
@pytest.mark.parametrize(
    ("d", "n", "depth", "exact"),
    [
        (10**15, 10, 1, 1.1e-13),
        (10**15, 10, 10**9, 0.000110000065000058268),
        (10**6, 3, 10**8, 3.61226435990425171e87),
        (1000, 10, 350_000, 2.01648929476934006e305),
        (7, 4, 3, 10.4839650145772595),
    ],
)
def test_vanilla_deviation_of_wide_and_deep_chains(d, n, depth, exact):
    """An exponent x = 2l/d carries its rounding, ε x, over to the result."""
    rtol = 8 * EPS * max(1, 2 * depth / d)
    assert rm.vanilla_deviation(d, n, depth) == pytest.approx(exact, rel=rtol, abs=0)


def test_vanilla_deviation_beyond_float64_is_infinite():
    assert rm.vanilla_deviation(10, 10, [0, 2**53]).tolist() == [0, math.inf]
