"""The lemmas of the bridging paper: the formulas as printed, and simulated layers."""

import math

import numpy as np
import pytest
from bridging_checks import SETTINGS, contradicts, fixed_point
from oracle import FALSE_ALARM, normal_threshold
from scipy import stats

import bnmc
from bnmc import gram as gm
from bnmc.bounds import bridging
from bnmc.bounds.gaussian import spectral_deviation


@pytest.mark.parametrize("s", SETTINGS, ids=str)
def test_formulas(s):
    """Each formula is written out from the print, for one setting of the numbers."""
    layer, d, n, a, t, v, g, C = s.values()
    matrix = {"width": d, "batch": n, "inverse_norm": v, "distortion": g}
    square = n**2 * g**2 * v / d
    assert bridging.lemma_5(**matrix, constant=C) == pytest.approx(min(1, C * square), rel=1e-13)
    exponent = (t * d / 2) / (g**2 * v * n**2 * (1 + math.sqrt(t / n)))
    assert bridging.lemma_9(**matrix, t=t) == pytest.approx(
        min(1, n * math.exp(-exponent)), rel=1e-12, abs=1e-300
    )
    assert bridging.lemma_10(t=t, total_variation=0.003) == pytest.approx(min(1, 0.3 / t))
    scale = 3 * n**2 * v * g**2 / d
    eq36 = scale * math.log(d / (3 * n**2 * g**2 * v)) if scale < 1 else 1
    eq47 = scale * (1 + math.log(d / (3 * n * g**2 * v))) if d > 3 * n * g**2 * v else 1
    assert bridging.lemma_11(**matrix) == pytest.approx(eq36, rel=1e-12)
    assert bridging.equation_47(**matrix) == pytest.approx(min(1, eq47), rel=1e-12)
    assert bridging.lemma_12(**matrix, depth=layer, alpha=a, constant=C) == pytest.approx(
        min(1, math.exp(-layer * a) + C * square), rel=1e-13
    )
    largest = n * g**2 * v
    bernstein = (
        2 * n * math.exp(-(t * d / 2) / ((largest - 1) * n + math.sqrt(t / n) * largest * n / 3))
    )
    assert bridging.gram_concentration(**matrix, t=t) == pytest.approx(
        min(1, n * (largest - 1) / (d * t), bernstein), rel=1e-12, abs=1e-300
    )
    assert bridging.one_step_total_variation(**matrix, rows=7) == pytest.approx(
        min(1, 1.5 * math.sqrt(7 * n * (largest - 1) / d)), rel=1e-13
    )


def test_equation_19():
    first, second = np.diag([1.0, 2.0]), np.diag([1.5, 1.0])
    lower, upper = bridging.equation_19(first, second)
    assert (lower, upper) == (pytest.approx(0.5 / 100), pytest.approx(0.5 * 1.5))


def test_vacuous_statements():
    assert bridging.lemma_11(width=75, batch=5, inverse_norm=1, distortion=1) == 1
    assert bridging.equation_47(width=15, batch=5, inverse_norm=1, distortion=1) == 1
    assert bridging.gram_concentration(width=9, batch=1, t=0, inverse_norm=1, distortion=1) == 1
    assert bridging.gram_concentration(width=9, batch=1, t=1, inverse_norm=1, distortion=1) == 0
    assert bridging.lemma_10(t=0, total_variation=0) == 1


@pytest.mark.parametrize(("activation", "n", "width"), [("relu", 5, 300), ("tanh", 3, 2000)])
def test_one_layer_concentrates(activation, n, width):
    """Lemma 9 for the symmetric deviation, and its corrected form, at layer 0."""
    chains = 20_000
    star, gamma = fixed_point(activation, n), bridging.distortion(activation, n)
    G = bnmc.simulate(bnmc.Chain(width, n, activation), 0, chains=chains, rng=3).gram[:, 0]
    squared = spectral_deviation(star.gram, G) ** 2
    plain = gm.relative_deviation(star.gram, G) ** 2
    where = {"width": width, "batch": n, "star": star, "distortion": gamma}
    variance = n * (n * gamma.upper**2 / np.linalg.eigvalsh(star.gram)[0] - 1) / width
    levels = np.geomspace(np.median(squared), 80 * variance, 30)
    counts = (squared[:, None] >= levels).sum(axis=0)
    for statement in (bridging.gram_concentration, bridging.lemma_9):
        bound = statement(**where, t=levels)
        assert not contradicts(counts, chains, bound, 60).any()
        assert bound[-1] < 1e-3  # so the bound is not vacuous at all levels
    # The expectation in the first bound, for both norms.
    for samples in (squared, plain):
        error = samples.std(ddof=1) / math.sqrt(chains)
        assert samples.mean() - normal_threshold(2) * error <= variance
    assert bridging.gram_concentration(**where, t=1.25 * variance) <= 0.8 * (1 + 1e-12)


@pytest.mark.parametrize("width", [10, 100])
@pytest.mark.parametrize("rows", [1, 4])
def test_total_variation_of_a_few_rows(width, rows):
    """For n = 2 and relu, the law of rows of h′ is an explicit mixture.

    φ(h) is (1, −1) or (−1, 1), so G = diag(K, d − K)/d with K binomial (d, ½), and G* = I/2. By
    TV = E max(0, 1 − p′/p) under N(0, G*)^rows, with Hoeffding's bound.
    """
    samples = 100_000
    x = np.random.default_rng(width).standard_normal((samples, rows, 2)) / math.sqrt(2)
    sums = (x**2).sum(axis=1)  # sufficient, (samples, 2)
    k = np.arange(1, width)  # K = 0 and d, of probability 2^{1−d}, have no density
    variances = np.stack([k, width - k], axis=-1) / width
    log_ratio = sums @ (1 - 0.5 / variances).T - rows / 2 * np.log(2 * variances).sum(axis=-1)
    mixture = np.exp(log_ratio) @ stats.binom.pmf(k, width, 0.5)
    estimate = np.maximum(0, 1 - mixture).mean()
    error = math.sqrt(math.log(1 / FALSE_ALARM) / (2 * samples))
    bound = bridging.one_step_total_variation(
        width=width, batch=2, rows=rows, star=fixed_point("relu", 2), distortion=1
    )
    assert estimate - error <= bound + 2.0 ** (1 - width)


def test_the_bound_for_all_rows_is_vacuous():
    width = np.geomspace(10, 1e12, 20)
    for n in (2, 3, 50):
        bound = bridging.one_step_total_variation(
            width=width, batch=n, rows=width, inverse_norm=1, distortion=1
        )
        np.testing.assert_array_equal(bound, 1)


def test_one_layer_is_not_close_in_total_variation():
    """Lemmas 5, 11 and 12, (47): relu, n = 4, d = 10 000, by one event of fixed size.

    Of ``d ‖G*^{−½} hᵀh/d G*^{−½} − I‖_F²``, which has mean n(n+1) for Gaussian rows and nearly
    twice as much for h′. Given G, hᵀh is Wishart.
    """
    n, width, chains, level = 4, 10_000, 6000, 25.0
    star = fixed_point("relu", n)
    rng = np.random.default_rng(9)
    G = bnmc.simulate(bnmc.Chain(width, n, "relu"), 0, chains=chains, rng=8).gram[:, 0]

    def frequency(covariances):
        factor = np.zeros((chains, n, n))
        for i in range(n):
            factor[:, i, i] = np.sqrt(rng.chisquare(width - i, chains))
            factor[:, i, :i] = rng.standard_normal((chains, i))
        root = np.linalg.cholesky(covariances) @ factor
        of_h = root @ np.swapaxes(root, -2, -1) / width
        return (width * spectral_deviation(star.gram, of_h) ** 2 >= level).mean()

    gaussian, after = frequency(np.broadcast_to(star.gram, (chains, n, n))), frequency(G)
    # Hoeffding, for each of the two frequencies.
    distance = after - gaussian - 2 * math.sqrt(math.log(2 / FALSE_ALARM) / (2 * chains))
    where = {"width": width, "batch": n, "star": star, "distortion": 1}
    assert distance > 0.3
    assert bridging.lemma_5(**where) < 0.01
    assert bridging.lemma_11(**where) < bridging.equation_47(**where) < 0.1
    # At every depth, the candidate law has at least half this distance from the stationary law.
    assert bridging.lemma_12(**where, depth=1e6, alpha=0.4) < distance / 2
    # Lemma 10 is not refuted: with the true distance it is vacuous below t = 30, n times the
    # largest observed deviation.
    deviation = gm.relative_deviation(star.gram, G)
    level = deviation.max()
    assert bridging.lemma_10(t=level, total_variation=distance) == 1


def test_equation_19_fails_in_both_directions():
    """In one dimension the distance is known: N(0, 1) and N(0, v)."""

    def distance(variance):
        crossing = math.log(variance) / (1 - 1 / variance)
        law = stats.chi2(1)
        return abs(law.cdf(crossing) - law.cdf(crossing / variance))

    _, upper = bridging.equation_19([[1.0]], [[1.01]])
    assert upper < distance(1.01)
    lower, _ = bridging.equation_19([[1.0]], [[30.0]])
    assert lower > 1 > distance(30)


def test_equal_spectra_are_not_equal_norms():
    """The step "by fact 1" of Lemma 9's proof."""
    C, G = np.diag([1.0, 25.0]), np.array([[1.0, 2.5], [2.5, 25.0]])
    plain = np.linalg.norm(np.linalg.inv(C) @ G - np.eye(2))
    assert plain > 3.5 * spectral_deviation(C, G)
