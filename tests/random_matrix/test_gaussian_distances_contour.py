"""Total variation of centred Gaussians against closed forms, quadrature, and Monte Carlo."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_matrix_checks import EPS, assert_mean, covariance, one_dimensional_tv, seeds
from scipy import integrate, linalg

from bnmc import random_matrix as rm
from bnmc.errors import PartialEstimateError
from bnmc.random_matrix import gaussian_distances as contour


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


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (2, 3),
        (0.5, 2),
        (0.5, 2.1),
        (0.1, 30),
        (1.5, 1),
        (1.01, 0.98),
        (1e-3, 1e3),
        (4, 4),
        (50, 0.9),
    ],
)
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
        value = contour._distance(half_logs, rows, 1e-12)
        with monkeypatch.context() as patch:
            patch.setattr(contour, "_ANGLES", (0.1, 0.0))
            assert contour._distance(-half_logs, rows, 1e-12) == pytest.approx(
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
    exact = contour._distance(half_logs, rows, 1e-12)
    assert_mean(np.maximum(0, -np.expm1(-np.maximum(log_ratio, 0))), exact)
    peak = contour._log_affinity(half_logs, rows, np.arange(0, 20, 0.1), 0.3)
    assert peak.real.max() > 11
    # On the real axis |M| <= 1, so the sum does not cancel.
    monkeypatch.setattr(contour, "_ANGLES", (0.0,))
    real = contour._distance(half_logs, rows, 1e-12)
    assert exact == pytest.approx(real, rel=1e-13, abs=0)


def test_total_variation_without_convergence(monkeypatch):
    half_logs = np.r_[-5.0, np.full(200, 5.0 / 200)]
    value = contour._distance(half_logs, 1.0, 1e-12)
    monkeypatch.setattr(contour, "_HALVINGS", 1)
    with pytest.raises(PartialEstimateError, match="^halving the step .* > atol$") as caught:
        rm.total_variation(np.diag(np.exp(2 * half_logs)), np.eye(201), atol=1e-15)
    assert caught.value.partial == pytest.approx(value, abs=0.1)
