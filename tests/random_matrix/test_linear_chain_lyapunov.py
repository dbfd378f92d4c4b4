"""Lyapunov exponents against their formulas, and against products of matrices."""

import math

import numpy as np
import pytest
from random_matrix_checks import EPS, assert_mean, sigmas
from scipy import special, stats

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
        bnmc.Chain.vanilla(d, n), depth, chains=4000, initial=np.eye(d, n),
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
    [(3, 3.0), *(pytest.param(*one, marks=pytest.mark.slow) for one in ((2, 1.0), (4, 0.4)))],
)
def test_all_exponents_of_residual_layers(d, gamma):
    """Products of I + γW by QR, and the scalar recursion for the same exponents."""
    rng = np.random.default_rng(d)
    growth = qr_growth(lambda W: np.eye(d) + gamma * W, d, 40, 2000, rng)
    direct = [bnmc.Estimate.from_samples(column) for column in growth.T]
    recursion = [
        rm.lyapunov_residual_estimate(d, gamma, k, samples=40_000, rng=k) for k in range(1, d + 1)
    ]
    for one, other in zip(direct, recursion, strict=True):
        assert one.compatible(other, sigmas(d))
    assert direct[0].compatible(rm.lyapunov_residual(d, gamma), sigmas(1))
    assert recursion[0].stderr <= 1e-17
    assert recursion[0].value == pytest.approx(rm.lyapunov_residual(d, gamma), rel=1e-14, abs=0)


def test_the_sum_of_the_exponents_is_the_mean_log_determinant():
    d, gamma = 5, 0.8
    estimates = [rm.lyapunov_residual_estimate(d, gamma, k, rng=10 + k) for k in range(1, d + 1)]
    W = np.random.default_rng(4).standard_normal((100_000, d, d))
    determinant = bnmc.Estimate.from_samples(np.linalg.slogdet(np.eye(d) + gamma * W)[1])
    total = sum(one.value for one in estimates)
    stderr = math.hypot(determinant.stderr, *(one.stderr for one in estimates))
    assert abs(total - determinant.value) <= sigmas(1) * stderr


@pytest.mark.parametrize("k", [2, 4])
def test_the_stated_error_is_the_spread_of_repetitions(k):
    """Of 60 estimates: their variance over the mean stated one is χ²/59, from both sides."""
    found = [rm.lyapunov_residual_estimate(4, 0.8, k, samples=500, rng=seed) for seed in range(60)]
    ratio = np.var([one.value for one in found], ddof=1) / np.mean([one.stderr**2 for one in found])
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
