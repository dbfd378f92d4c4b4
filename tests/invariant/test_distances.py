"""The rows of a check without a test: distances from N(0, G*) against their formulas."""

import math

import numpy as np
import pytest
import scipy.linalg
from numpy_network import standardised
from numpy_steps import row_of, settled, step_of
from oracle import FORMULAS

import bnmc
from bnmc import random_matrix
from bnmc.invariant.claim_check import check


def grams_of(chain, h):
    a = FORMULAS[chain.activation.name](standardised(h, centred=chain.norm == "batch"))
    return np.swapaxes(a, 1, 2) @ a / chain.width


def test_the_distance_from_gaussian_rows_is_the_mean_total_variation():
    """The exact distance of given G, whose mean over 60 samples a draw for each estimates."""
    rng = np.random.default_rng(13)
    chain = bnmc.Chain(50, 3, "relu")
    samples = settled(chain, step_of("relu", rng), 1200, rng)
    report = check(chain, samples=samples, rng=13)
    upper = row_of(report, "distance of h from N(0, G*)ᵈ, at most")
    star = bnmc.MeanField(chain).fixed_point()
    exact = random_matrix.total_variation(grams_of(chain, samples[:60]), star.gram, rows=50)
    error = math.hypot(upper.stderr, exact.std(ddof=1) / math.sqrt(60))
    assert abs(upper.statistic - exact.mean()) < 5 * error
    assert upper.verdict == "reported"
    lower = row_of(report, "distance of h from N(0, G*)ᵈ, at least")
    assert 0.1 < lower.interval[0] < lower.statistic < upper.interval[1]
    epsilon = bnmc.bounds.bridging.lemma_5(width=50, batch=3, star=star.gram, distortion=1.0)
    assert upper.expected == lower.expected == pytest.approx(float(epsilon), rel=1e-9)


def test_gaussian_rows_have_no_distance_from_gaussian_rows():
    """The lower bound is one: h drawn from N(0, G*), whose band has 0 but with probability 1e-6.

    At level 0.95 the band is 2 √(ln 80/(2N)); it would be 2 √(ln 4e6/(2N)) at 1e-6.
    """
    rng = np.random.default_rng(14)
    chain = bnmc.Chain(50, 3, "relu")
    root = scipy.linalg.sqrtm(bnmc.MeanField(chain).fixed_point().gram).real
    report = check(chain, samples=rng.standard_normal((2000, 50, 3)) @ root, rng=14)
    lower = row_of(report, "distance of h from N(0, G*)ᵈ, at least")
    assert lower.statistic < 2 * math.sqrt(math.log(4e6) / (2 * 2000))
    width = lower.interval[1] - lower.statistic
    assert width == pytest.approx(2 * math.sqrt(math.log(80) / (2 * 2000)), rel=1e-12)


def bures(first, second):
    """W₂² of centred Gaussians."""
    root = scipy.linalg.sqrtm(first)
    return np.trace(first + second - 2 * scipy.linalg.sqrtm(root @ second @ root)).real


def test_reported_means_are_those_of_the_formulas():
    rng = np.random.default_rng(15)
    chain = bnmc.Chain(40, 4, "relu")
    samples = settled(chain, step_of("relu", rng), 800, rng)
    report = check(chain, samples=samples, rng=15)
    G, star = grams_of(chain, samples), bnmc.MeanField(chain).fixed_point().gram
    shares = G / np.trace(G, 0, 1, 2)[:, None, None]
    gaps = np.linalg.norm(shares - np.eye(4) / 4, axis=(1, 2))
    row = row_of(report, "orthogonality gap of G, beside that of G*")
    assert row.statistic == pytest.approx(gaps.mean(), rel=1e-9)
    assert row.stderr == pytest.approx(gaps.std(ddof=1) / math.sqrt(800), rel=1e-9)
    assert row.expected == pytest.approx(np.linalg.norm(star / np.trace(star) - np.eye(4) / 4))
    row = row_of(report, "W₂² of a row given G from N(0, G*)")
    assert row.statistic == pytest.approx(np.mean([bures(gram, star) for gram in G]), rel=1e-6)
    P = np.eye(4) - 1 / 4
    bulk = np.array([np.linalg.eigvalsh(P @ gram @ P)[1:] for gram in G])
    ratio = (bulk.var(axis=1) / bulk.mean(axis=1) ** 2).mean() * 40 / 4
    row = row_of(report, "spectrum of G, centred: variance, in units of n/d")
    assert row.statistic == pytest.approx(ratio, rel=1e-9)
    # Of Wishart matrices the variance is (n − 1)(n + 2)/n² of that law's, at any width.
    row = row_of(report, "spectrum, one step: variance, in units of n/d")
    assert abs(row.statistic - 3 * 6 / 16) < 5 * row.stderr < 0.2
    # Neither has the variance that it is measured in.
    assert {row.expected for row in report.rows if row.claim.startswith("spectrum")} == {None}


def test_linear_chains_are_compared_with_their_bounds():
    rng = np.random.default_rng(16)
    for chain, m in [
        (bnmc.Chain(60, 4, "linear"), 3),
        (bnmc.Chain(60, 3, "linear", norm="batch-uncentred"), 3),
    ]:
        step = step_of("linear", rng, centred=chain.norm == "batch")
        samples = settled(chain, step, 300, rng)
        report = check(chain, samples=samples, rng=16)
        spectra = np.linalg.eigvalsh(grams_of(chain, samples))[:, -m:]
        shares = spectra / spectra.sum(axis=1, keepdims=True)
        squared = ((shares - 1 / m) ** 2).sum(axis=1)
        row = row_of(report, "orthogonality gap squared, beside (m−1)(m+2)²/(4m(m+1)d)")
        assert row.statistic == pytest.approx(squared.mean(), rel=1e-9)
        assert row.expected == pytest.approx((m - 1) * (m + 2) ** 2 / (4 * m * (m + 1) * 60))
        row = row_of(report, "W₂² of W H from N(0, I/m), beside 2m E V")
        distance = ((np.sqrt(shares) - 1 / math.sqrt(m)) ** 2).sum(axis=1)
        assert row.statistic == pytest.approx(distance.mean(), rel=1e-9)
        assert row.expected == pytest.approx(2 * m * np.sqrt(squared).mean())
        assert row.statistic <= row.expected
        row = row_of(report, "orthogonality gap, beside 3m/(α√d)")
        assert row.expected == pytest.approx(3 * m / shares.min() / math.sqrt(60))
        assert row.statistic <= row.expected


def test_without_a_fixed_point_no_distance_is_reported():
    rng = np.random.default_rng(18)
    chain = bnmc.Chain(20, 3, "relu", eps=1e-5)
    samples = settled(chain, step_of("relu", rng), 200, rng)
    names = [row.claim for row in check(chain, samples=samples).rows if row.verdict == "reported"]
    assert names == [
        "spectrum, one step: variance, in units of n/d",
        "spectrum of G, centred: variance, in units of n/d",
    ]
