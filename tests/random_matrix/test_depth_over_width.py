"""Laws of networks that are as deep as wide, against networks with drawn weights."""

import math

import numpy as np
import pytest
from random_matrix_checks import assert_mean
from scipy import stats

import bnmc
from bnmc import random_matrix as rm


def squared_norms(widths, slopes, count, rng):
    """Return ‖a_L‖²/d_L of networks with drawn weights, for an input of mean square 1."""
    q, p = slopes
    a = np.ones((count, 1, 3))
    for d in widths:
        scale = math.sqrt(2.0 / (p**2 + q**2) / a.shape[-1])
        z = scale * a @ rng.standard_normal((count, a.shape[-1], d))
        a = np.where(z > 0.0, p * z, q * z)
    return (a**2).mean(axis=(1, 2))


@pytest.mark.parametrize(
    ("slopes", "widths"),
    [((0, 1), [5, 12, 8]), ((3, 0), [9] * 4), ((1, 1), [4, 7]), ((-2, 2), [6]),
     ((0.5, 1), [40, 60])],
    ids=str,
)  # fmt: skip
def test_norms_of_drawn_networks(slopes, widths):
    """Two z tests a case.  Expansions err by less than 2e-4 here, a tenth of the deviations."""
    squares = squared_norms(widths, slopes, 6000, np.random.default_rng(1))
    law = rm.log_norm(widths, slopes)
    deaths = int((squares == 0.0).sum())
    assert min(stats.binom.cdf(deaths, len(squares), law.death),
               stats.binom.sf(deaths - 1, len(squares), law.death)) > 1e-7  # fmt: skip
    logs = np.log(squares[squares > 0.0])
    assert_mean(logs, law.mean)
    assert_mean((logs - law.mean) ** 2, law.variance)


def test_published_moments():
    law = rm.log_norm([100] * 50)
    assert law.mean == pytest.approx(-1.2710, abs=5e-5)
    assert law.variance == pytest.approx(2.5970, abs=5e-5)
    # Hanin and Nica: 5 Σ 1/d to leading order.
    wide = rm.log_norm([10**6, 10**9])
    assert wide.variance == pytest.approx(5.0 * (1e-6 + 1e-9), rel=1e-5)
    assert wide.mean == pytest.approx(-2.5 * (1e-6 + 1e-9), rel=1e-5)
    np.testing.assert_allclose(rm.log_norm([5], (0, 1e-300)), rm.log_norm([5]))


def test_expansions_err_by_the_third_order():
    """Their errors fall by 8 from one width to the double."""
    narrow, wide = (
        np.subtract(rm.log_norm([d], (1e-9, 1)), rm.log_norm([d]))[:2] for d in (300, 600)
    )
    np.testing.assert_allclose(narrow / wide, 8.0, rtol=0.2)
    deaths = [rm.log_norm([3], slopes).death for slopes in ((1e-9, 1), (0, 1))]
    assert deaths == [0.0, pytest.approx(1 / 8)]


def test_kernel_of_a_pre_activation():
    """(1 + k₂/d)^l, with k₂ = 2 for the identity and 5 for ReLU."""
    for slopes, k2 in (((1, 1), 2.0), ((0, 1), 5.0)):
        assert rm.four_point_vertex(40, 3, slopes) == pytest.approx((1 + k2 / 40) ** 3 - 1)
        squares = squared_norms([40] * 3, slopes, 8000, np.random.default_rng(2))
        assert_mean(squares**2, 1.0 + rm.four_point_vertex(40, 3, slopes))
    assert rm.four_point_vertex(30, 20) == pytest.approx(4 / 9)
    assert rm.four_point_vertex(1, 2**53, (0, 1)) == math.inf


@pytest.mark.slow
def test_smooth_activations_at_criticality():
    """tanh: the vertex grows by ⅔/d a layer; the bounds are 5 standard errors of the variances."""
    width, chain = 1000, bnmc.Chain(1000, 1, "tanh", norm="none")
    run = bnmc.simulate(chain, 300, chains=6000, every=200, burn_in=100, rng=8)
    kernels = run["gram"][:, :, 0, 0]
    assert run.layers.tolist() == [100, 300]
    vertices = kernels.var(axis=0) / kernels.mean(axis=0) ** 2
    growth = rm.four_point_vertex(width, 300) - rm.four_point_vertex(width, 100)
    assert 0.8 < (vertices[1] - vertices[0]) / growth < 1.2


def tangent_kernels(width, depth, count, rng):
    """Return Θ of one input for networks with drawn weights."""
    a, layers = np.ones((count, width)), []
    for _ in range(depth):
        weight = rng.standard_normal((count, width, width))
        z = np.einsum("kij,kj->ki", weight, a) / math.sqrt(width)
        layers.append((a, weight, z > 0.0))
        a = math.sqrt(2.0) * np.maximum(z, 0.0)
    total = (a**2).mean(axis=1)
    back = rng.standard_normal((count, width)) / math.sqrt(width)
    for a, weight, active in reversed(layers):
        back = math.sqrt(2.0) * active * back
        total += (a**2).mean(axis=1) * (back**2).sum(axis=1)
        back = np.einsum("kij,ki->kj", weight, back) / math.sqrt(width)
    return total


def test_tangent_kernels_of_drawn_networks():
    """The formula of Seleznova and Kutyniok at (6, 2), with exponents L, would be 2.52 for 2.42."""
    rng = np.random.default_rng(4)
    for width, depth in ((6, 2), (16, 4)):
        squares = (tangent_kernels(width, depth, 15_000, rng) / (depth + 1.0)) ** 2
        assert_mean(squares, rm.tangent_kernel_dispersion(width, depth))
    assert abs(np.log(rm.tangent_kernel_dispersion(6, 2)) - np.log(2.52)) > 0.03


def test_tangent_kernels_of_deep_networks():
    ratio = 0.7
    limit = math.exp(5 * ratio) * (
        1 / 3 + 2 / 3 * 2 * (6 * ratio - 1 + math.exp(-6 * ratio)) / (6 * ratio) ** 2
    )
    assert rm.tangent_kernel_dispersion(10**6, 700_000) == pytest.approx(limit, rel=1e-4)
    assert rm.tangent_kernel_dispersion(1, 10**6) == math.inf
    assert rm.tangent_kernel_dispersion(2**53, 1) == pytest.approx(1.0, rel=1e-14)


def test_shaped_networks():
    """Correlations of networks of width 50 and depth 50 have the law of the equation."""
    width, count, slopes, rng = 50, 900, (-1.0, 1.0), np.random.default_rng(5)
    left, right = (1.0 + c / math.sqrt(width) for c in slopes)
    a = np.empty((count, 2, width))
    start = np.array([[1.0, 0.2], [0.2, 1.0]])
    a[:] = np.linalg.cholesky(start)[:, [0, 1]] @ (
        np.sqrt(2.0) * np.stack([np.arange(width) % 2, (np.arange(width) + 1) % 2])
    )
    assert np.allclose(a[0] @ a[0].T / width, start)
    for _ in range(width):
        # Given a, the columns of a W / √width are normal with the covariance a aᵀ/width.
        z = np.linalg.cholesky(a @ a.mT / width) @ rng.standard_normal((count, 2, width))
        a = np.where(z > 0.0, right * z, left * z) * math.sqrt(2.0 / (left**2 + right**2))
    drawn_grams = a @ a.mT / width
    ours = rm.shaped_relu(start, 1.0, slopes, paths=count, steps=100, rng=6)

    def observed(grams):
        lengths = np.sqrt(grams[:, 0, 0] * grams[:, 1, 1])
        return np.log(grams[:, 0, 0]), grams[:, 0, 1] / lengths

    for mine, theirs in zip(observed(ours), observed(drawn_grams), strict=True):
        assert stats.ks_2samp(mine, theirs).pvalue > 5e-7
    # Without the drift correlations would be others.
    still = rm.shaped_relu(start, 1.0, (0.0, 0.0), paths=count, rng=7)
    assert stats.ks_2samp(observed(still)[1], observed(drawn_grams)[1]).pvalue < 1e-9


def test_singular_covariances_stay_singular():
    V = rm.shaped_relu(np.ones((3, 3)), 0.5, paths=4, rng=0)
    np.testing.assert_allclose(V, V[:, :1, :1] * np.ones((3, 3)), rtol=1e-7)
    assert (rm.shaped_relu(np.zeros((2, 2)), 0.5) == 0.0).all()
    assert (rm.shaped_relu(np.eye(2), 0.0, paths=3) == np.eye(2)).all()
