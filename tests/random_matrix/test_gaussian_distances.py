"""Distances of centred Gaussians against formulas, closed forms, quadrature and Monte Carlo."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_matrix_checks import EPS, assert_mean, covariance, one_dimensional_tv, seeds
from scipy import integrate, linalg

import bnmc
from bnmc import random_matrix as rm
from bnmc.errors import PartialEstimateError
from bnmc.random_matrix import gaussian_distances


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
    zero = np.zeros((5, 5))
    assert rm.wasserstein(S1, zero) == pytest.approx(math.sqrt(14), rel=1e-14, abs=0)
    assert rm.wasserstein(zero, zero) == 0
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


@pytest.mark.parametrize("d", [1, 2, 3, 10, 100, 10_000, 1_000_000])
def test_total_variation_in_one_dimension(d):
    for ratio in (1e-30, 1e-8, 0.01, 0.5, 0.99, 1 + 1e-6, 1.001, 1.5, 7.0, 1e4, 1e12, 1e25):
        exact = one_dimensional_tv(ratio, d)
        # SciPy's chi-square probabilities of d = 1e6 have errors of about 1e-13
        assert rm.total_variation([[1.0]], [[ratio]], rows=d) == pytest.approx(exact, abs=3e-13)
        assert rm.total_variation([[ratio]], [[1.0]], rows=d) == pytest.approx(exact, abs=3e-13)


def test_small_total_variations_keep_their_digits():
    """To first order TV = δ/√(2πe) for N(0, 1 + δ), one row: half the mean of |x² − 1| δ/2."""
    for delta in 2.0 ** -np.arange(20, 51, 6):
        exact = delta / math.sqrt(2 * math.pi * math.e)
        assert rm.total_variation([[1.0]], [[1 + delta]]) == pytest.approx(
            exact, rel=delta + 1e-13, abs=0
        )


def plane_tv(first, second):
    """∫ (p₁ − p₂)₊ for N(0, I) and N(0, diag(first, second)), and the error of the quadrature.

    Over the radius in closed form, over the angle by quadrature in y = ln tan(angle).
    """
    log_det = math.log(first * second)

    def beyond(square, g):
        """∫ (p₁ − p₂) r dr beyond r² = square."""
        return math.exp(-square / 2) - math.exp(-square * g / 2 - log_det / 2) / g

    def integrand(y):
        cosine, sine = 1 / (1 + math.exp(2 * y)), 1 / (1 + math.exp(-2 * y))  # squared
        g = cosine / first + sine / second
        # p₁ > p₂ where r²(g − 1) > −log_det
        if g > 1:
            value = beyond(max(0.0, -log_det / (g - 1)), g)
        elif log_det > 0:
            value = beyond(0.0, g) - (beyond(log_det / (1 - g), g) if g < 1 else 0.0)
        else:
            value = 0.0
        return value * math.sqrt(cosine * sine) * 2 / math.pi

    # a kink at g = 1, where tan² = (1 − 1/first) / (1/second − 1)
    ratio = (1 - 1 / first) / (1 / second - 1) if second != 1 else 0
    kink = [math.log(ratio) / 2] if ratio > 0 else []
    ends = sorted([*range(-42, 43, 6), *kink])
    pieces = [
        integrate.quad(integrand, *pair, epsabs=1e-14, epsrel=1e-13, limit=200)
        for pair in itertools.pairwise(ends)
    ]
    return sum(value for value, _ in pieces), sum(error for _, error in pieces)


PLANES = [(2, 3), (0.5, 2), (0.5, 2.1), (0.1, 30), (1.5, 1), (1.01, 0.98), (4, 4), (50, 0.9)]


@pytest.mark.parametrize(("first", "second"), [*PLANES, (1e-3, 1e3)])
def test_total_variation_in_the_plane(first, second):
    exact, error = plane_tv(first, second)
    turn = np.array([[0.6, -0.8], [0.8, 0.6]])
    S = turn @ np.diag([first, second]) @ turn.T
    # S is rounded: its eigenvalues by ε times the largest, TV by that over the smallest
    tolerance = error + 1e-14 + 8 * EPS * max(first, second) / min(first, second)
    assert rm.total_variation(np.eye(2), S) == pytest.approx(exact, abs=tolerance)


def test_total_variation_of_matrices_that_are_small_where_the_other_is_large():
    """λ = 1e12 and 1e-12: the small one is below the rounding error of the large one.

    Each matrix has its own small eigenvalue, 1e-12, rounded by 1e-16, that is by 1e-4 of itself;
    1 − TV ~ 1e-6 changes by as much.
    """
    exact, error = plane_tv(1e12, 1e-12)
    turn = np.array([[0.6, -0.8], [0.8, 0.6]])
    S1, S2 = turn * [1, 1e-12] @ turn.T, turn * [1e-12, 1] @ turn.T
    assert 1 - exact > 1e-7
    assert rm.total_variation(S1, S2) == pytest.approx(exact, rel=0, abs=error + 4e-4 * (1 - exact))


@pytest.mark.parametrize(
    ("n", "rows", "scale"), [(2, 1, 1), (4, 3, 0.5), (6, 40, 0.05), (20, 5, 0.1)]
)
def test_total_variation_by_monte_carlo(n, rows, scale):
    """E₁ (1 − p₂/p₁)₊, by sampling all rows."""
    rng = np.random.default_rng(n)
    S1 = covariance(rng, n)
    noise = rng.standard_normal((n, n))
    root = linalg.sqrtm(S1)
    S2 = root @ linalg.expm(scale * (noise + noise.T)) @ root
    S2 = (S2 + S2.T) / 2
    samples = []
    for _ in range(20):
        x = rng.standard_normal((5000, rows, n)) @ linalg.cholesky(S1)
        inner = x.swapaxes(1, 2) @ x
        log_ratio = -0.5 * np.einsum("kij,ji->k", inner, linalg.inv(S2) - linalg.inv(S1))
        log_ratio -= 0.5 * rows * (np.linalg.slogdet(S2)[1] - np.linalg.slogdet(S1)[1])
        samples.append(np.maximum(0, -np.expm1(np.minimum(log_ratio, 0))))
    exact = rm.total_variation(S1, S2, rows=rows)
    assert 0.05 < exact < 0.99
    assert_mean(np.concatenate(samples), exact)


@pytest.mark.slow
@given(seeds, st.integers(1, 8), st.sampled_from([1, 2, 5, 40, 1000]), st.floats(-4, 0.5))
def test_total_variation_obeys_its_inequalities(seed, n, rows, exponent):
    """Symmetry, invariance, and the bounds by Hellinger, Pinsker and Devroye, Mehrabian, Reddad."""
    rng = np.random.default_rng(seed)
    noise = rng.standard_normal((n, n))
    S2 = linalg.expm(10.0**exponent * (noise + noise.T) / math.sqrt(2 * n))
    S2 = (S2 + S2.T) / 2
    eigenvalues = np.linalg.eigvalsh(S2)
    tv = rm.total_variation(np.eye(n), S2, rows=rows)
    # the eigenvalues are rounded by ε times the largest: √rows of that, by the upper bound
    slack = 64 * n * EPS * (eigenvalues[-1] / eigenvalues[0]) * math.sqrt(rows) + 1e-14
    assert 0 <= tv <= 1
    assert rm.total_variation(S2, np.eye(n), rows=rows) == pytest.approx(tv, abs=slack)
    affinity = np.prod(2 / (eigenvalues**0.5 + eigenvalues**-0.5)) ** (rows / 2)
    assert 1 - affinity - slack <= tv <= math.sqrt(1 - min(affinity, 1) ** 2) + slack + 1e-7
    assert tv <= math.sqrt(rm.kl(np.eye(n), S2, rows=rows) / 2) + slack
    deviation = math.sqrt(rows * np.sum((eigenvalues - 1) ** 2))
    assert min(1, deviation) / 100 - slack <= tv <= 1.5 * min(1, deviation) + slack
    A = np.linalg.qr(rng.standard_normal((n, n)))[0] * np.geomspace(1, 8, n)
    S3, S4 = A @ A.T, A @ S2 @ A.T
    moved = rm.total_variation((S3 + S3.T) / 2, (S4 + S4.T) / 2, rows=rows)
    assert moved == pytest.approx(tv, abs=64 * slack)


def test_total_variation_on_every_contour(monkeypatch):
    """The integral does not depend on the angle: random spectra, 1 to 10⁶ rows."""
    rng = np.random.default_rng(2)
    for _ in range(60):
        n, rows = int(rng.choice([1, 2, 5, 30])), 10 ** rng.uniform(0, 6)
        half_logs = rng.standard_normal(n) * 10 ** rng.uniform(-3, 0, n)
        half_logs *= 10 ** rng.uniform(-3, 0.6) / math.sqrt(rows * np.sum(half_logs**2))
        value = gaussian_distances._distance(half_logs, rows, 1e-12)
        with monkeypatch.context() as patch:
            patch.setattr(gaussian_distances, "_ANGLES", (0.1, 0.0))
            assert gaussian_distances._distance(-half_logs, rows, 1e-12) == pytest.approx(
                value, rel=1e-13, abs=0
            )


def test_total_variation_if_the_tilted_integrand_is_large(monkeypatch):
    """One large negative and 300 small positive logarithms: |M| reaches e¹² off the real axis.

    By Monte Carlo it is E₁ (1 − p₂/p₁)₊, with the sum of 300 chi-squares drawn as one.
    """
    m, rows = 300, 3
    log_ratios = np.array([-2, 2.1 / m])
    rng = np.random.default_rng(9)
    chi = np.stack([rng.chisquare(rows, 200_000), rng.chisquare(rows * m, 200_000)])
    log_ratio = 0.5 * (np.exp(-log_ratios) - 1) @ chi + 0.5 * rows * (-2 + 2.1)
    half_logs = log_ratios.repeat([1, m]) / 2
    exact = gaussian_distances._distance(half_logs, rows, 1e-12)
    assert_mean(np.maximum(0, -np.expm1(-np.maximum(log_ratio, 0))), exact)
    peak = gaussian_distances._log_affinity(half_logs, rows, np.arange(0, 20, 0.1), 0.3)
    assert peak.real.max() > 11
    # On the real axis |M| <= 1, so the sum does not cancel.
    monkeypatch.setattr(gaussian_distances, "_ANGLES", (0.0,))
    real = gaussian_distances._distance(half_logs, rows, 1e-12)
    assert exact == pytest.approx(real, rel=1e-13, abs=0)


def test_total_variation_without_convergence(monkeypatch):
    half_logs = np.r_[-5.0, np.full(200, 5.0 / 200)]
    value = gaussian_distances._distance(half_logs, 1.0, 1e-12)
    monkeypatch.setattr(gaussian_distances, "_HALVINGS", 1)
    with pytest.raises(PartialEstimateError, match="^halving the step .* > atol$") as caught:
        rm.total_variation(np.diag(np.exp(2 * half_logs)), np.eye(201), atol=1e-15)
    assert caught.value.partial == pytest.approx(value, abs=0.1)


PAIRS = [rm.kl, rm.wasserstein, rm.total_variation]


def test_rows_are_copies():
    """`rows` rows are one row of covariance I ⊗ S."""
    rng = np.random.default_rng(0)
    S1, S2 = covariance(rng, 3), covariance(rng, 3)
    for function in PAIRS:
        copied = function(np.kron(np.eye(4), S1), np.kron(np.eye(4), S2))
        assert function(S1, S2, rows=4) == pytest.approx(copied, rel=1e-12, abs=0)


def test_singular_matrices():
    """Different ranges: TV 1 and KL infinite. A common range: the laws restricted to it."""
    rng = np.random.default_rng(1)
    basis = np.linalg.qr(rng.standard_normal((5, 5)))[0][:, :3]
    S1, S2 = covariance(rng, 3), covariance(rng, 3)
    lifted1, lifted2 = basis @ S1 @ basis.T, basis @ S2 @ basis.T
    for function in PAIRS:
        assert function(lifted1, lifted2) == pytest.approx(function(S1, S2), rel=1e-11, abs=0)
        assert function(lifted1, lifted1) <= 1e-13
        assert function(np.zeros((2, 2)), np.zeros((2, 2))) == 0
    smaller = basis[:, :2] @ basis[:, :2].T
    elsewhere = np.linalg.qr(rng.standard_normal((5, 3)))[0]
    others = [smaller, elsewhere @ elsewhere.T, np.eye(5), np.zeros((5, 5))]
    for other in others:
        for pair in ((lifted1, other), (other, lifted1)):
            assert rm.kl(*pair) == math.inf
            assert rm.total_variation(*pair) == 1
    # the Gram matrices of centred samples are singular, to rounding
    x = rng.standard_normal((2, 50, 6))
    G, H = bnmc.gram.centre(bnmc.gram.gram(x))
    helmert = linalg.helmert(6)
    for function in PAIRS:
        regular = function(helmert @ G @ helmert.T, helmert @ H @ helmert.T)
        assert function(G, H) == pytest.approx(regular, rel=1e-11, abs=0)


@pytest.mark.parametrize("function", PAIRS)
def test_stacks_of_pairs(function):
    rng = np.random.default_rng(6)
    stack = np.stack([[covariance(rng, 3) for _ in range(3)] for _ in range(2)])
    stack[1, 2] = covariance(rng, 3, rank=2)
    other = covariance(rng, 3)
    alone = np.array([[function(S, other) for S in line] for line in stack])
    np.testing.assert_allclose(function(stack, other), alone, rtol=1e-12)
    assert function(other, stack[:, :1], rows=[1, 2, 3]).shape == (2, 3)
    assert function(stack[:0], other).shape == (0, 3)
    assert function(other, other.astype(np.float32)).shape == ()


def test_single_precision_is_judged_by_its_own_rounding():
    """An eigenvalue of 1e-8 beside 1 is zero to the rounding of float32, not to that of float64."""
    G, H = np.diag(np.float32([1, 1e-8])), np.diag(np.float32([2, 4e-8]))
    assert rm.kl(G, H) == pytest.approx(rm.kl([[1.0]], [[2.0]]), rel=1e-14, abs=0)
    assert rm.wasserstein(G, H) == pytest.approx(math.sqrt(2) - 1, rel=1e-14, abs=0)
    assert rm.total_variation(G, H) == pytest.approx(one_dimensional_tv(2.0, 1), abs=1e-14)
    for function in PAIRS:
        assert function(G, H.astype(float)) == function(G, H)
        assert function(G.astype(float), H.astype(float)) > function(G, H) + 1e-9


def test_extreme_magnitudes():
    assert rm.total_variation([[1e-150]], [[1e49]]) == 1
    assert rm.total_variation([[1e150]], [[1e150]]) == 0
    assert rm.total_variation([[1, 1e-200], [1e-200, 1]], np.eye(2)) <= 1e-100
