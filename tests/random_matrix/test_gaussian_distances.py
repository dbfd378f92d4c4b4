"""Divergence and Wasserstein distance of centred Gaussians against their formulas."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_matrix_checks import EPS, covariance, seeds
from scipy import linalg

from bnmc import random_matrix as rm


@pytest.mark.parametrize("n", [1, 2, 6])
def test_kl_is_the_formula(n):
    rng = np.random.default_rng(n)
    S1, S2 = covariance(rng, n), covariance(rng, n)
    quotient = linalg.solve(S2, S1)
    logdet = np.linalg.slogdet(S2)[1] - np.linalg.slogdet(S1)[1]
    exact = 0.5 * (np.trace(quotient) - n + logdet)
    condition = np.linalg.cond(S1) + np.linalg.cond(S2)
    assert rm.kl(S1, S2) == pytest.approx(exact, abs=16 * n * EPS * condition)
    np.testing.assert_allclose(
        rm.kl(S1, S2, rows=[1, 2.5, 1e6]), rm.kl(S1, S2) * np.array([1, 2.5, 1e6]), rtol=2 * EPS
    )


def test_kl_of_close_and_of_distant_matrices():
    """½(λ − 1 − ln λ): λ²-like for λ near 1, where the formula cancels; asymmetric."""
    delta = 2.0 ** -np.arange(3, 52, 4)
    # series of δ − ln(1 + δ); the first omitted term is δ^60
    terms = np.arange(2, 60)[:, None]
    exact = 0.5 * np.sum((-delta) ** terms / terms, axis=0)
    for scale in (1, 3):  # 3 (1 + δ) is exact, and √3 is not
        close = rm.kl(scale * (1 + delta[:, None, None]), [[scale]])
        np.testing.assert_allclose(close, exact, rtol=1e-14)
    for scale in (1e-150, 1e-20, 1e-3, 1e3, 1e20, 1e150):
        exact = 0.5 * (scale - 1 - math.log(scale))
        rtol = 4 * EPS * abs(math.log(scale))  # λ is kept as its logarithm
        assert rm.kl([[scale]], [[1.0]]) == pytest.approx(exact, rel=rtol, abs=0)
        assert rm.kl(np.eye(2), np.eye(2) / scale) == pytest.approx(2 * exact, rel=rtol, abs=0)


@pytest.mark.parametrize("n", [1, 2, 6])
def test_wasserstein_is_the_formula(n):
    rng = np.random.default_rng(10 + n)
    S1, S2 = covariance(rng, n), covariance(rng, n)
    root = linalg.sqrtm(S1)
    exact = np.trace(S1) + np.trace(S2) - 2 * np.trace(linalg.sqrtm(root @ S2 @ root)).real
    condition = np.linalg.cond(S1)
    tolerance = 16 * n * EPS * condition * np.trace(S1 + S2)
    assert rm.wasserstein(S1, S2) ** 2 == pytest.approx(exact, abs=tolerance)
    assert rm.wasserstein(S1, S2, rows=9) == pytest.approx(
        3 * rm.wasserstein(S1, S2), rel=1e-15, abs=0
    )


def test_wasserstein_of_commuting_singular_and_close_matrices():
    rng = np.random.default_rng(3)
    Q = np.linalg.qr(rng.standard_normal((5, 5)))[0]
    first, second = np.array([4.0, 1, 0, 0, 9]), np.array([1.0, 0, 0, 4, 9])
    S1, S2 = Q * first @ Q.T, Q * second @ Q.T
    exact = np.linalg.norm(np.sqrt(first) - np.sqrt(second))
    assert rm.wasserstein(S1, S2) == pytest.approx(exact, abs=1e-13)
    assert rm.wasserstein(S1, S1) <= 1e-14
    assert rm.wasserstein(S1, np.zeros((5, 5))) == pytest.approx(
        math.sqrt(14 + 0), rel=1e-14, abs=0
    )
    assert rm.wasserstein(np.zeros((5, 5)), np.zeros((5, 5))) == 0
    # the square is 1e-26 of the traces, and would be lost in their difference
    S = covariance(rng, 5)
    exact = (math.sqrt(1 + 1e-13) - 1) * math.sqrt(np.trace(S))
    assert rm.wasserstein(S, (1 + 1e-13) * S) == pytest.approx(exact, abs=1e-15 * 5)
    for scale in (1e-300, 1e300):
        assert rm.wasserstein(scale * S1, scale * S2) == pytest.approx(
            math.sqrt(scale) * rm.wasserstein(S1, S2), rel=1e-13, abs=0
        )


@given(seeds, st.integers(1, 6), st.data())
def test_wasserstein_is_a_metric(seed, n, data):
    rng = np.random.default_rng(seed)
    ranks = data.draw(st.lists(st.integers(1, 2 * n), min_size=3, max_size=3))
    S, T, U = (covariance(rng, n, rank=rank) for rank in ranks)
    slack = 64 * EPS * math.sqrt(np.trace(S + T + U))
    # an eigenvalue within n ε of 0 may be dropped, which moves a distance by its root
    slack += 4 * n * math.sqrt(EPS * np.trace(S + T + U))
    assert rm.wasserstein(S, T) == pytest.approx(rm.wasserstein(T, S), abs=slack)
    assert rm.wasserstein(S, U) <= rm.wasserstein(S, T) + rm.wasserstein(T, U) + slack
    assert rm.wasserstein(S, S) <= slack
