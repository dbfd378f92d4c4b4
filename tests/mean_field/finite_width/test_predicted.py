"""Predicted fluctuations against closed forms and simulation, and what raises."""

from dataclasses import replace

import numpy as np
import pytest
from slow_cases import some

import bnmc
from bnmc.chain import Chain
from bnmc.errors import ArgumentError, ArgumentTypeError, NotMixing, PartialEstimateError
from bnmc.mean_field import FixedPoint, Fluctuations, MeanField


def fluctuations(activation, batch, **options) -> Fluctuations:
    return MeanField(Chain(width=100, batch=batch, activation=activation, **options)).fluctuations()


@pytest.mark.parametrize("n", [2, 3, 4, 5, 10, 100, 1000])
def test_linear_centred(n):
    m = n - 1
    law = fluctuations("linear", n)
    expected = n**2 * (m - 1) * (m + 2) ** 2 / (4 * m * (m + 1))
    found = law.mean_square(1)
    assert found.value == pytest.approx(expected, rel=1e-9, abs=1e-12)
    assert found.stderr <= 1e-5 * found.value + 1e-12


@pytest.mark.parametrize("n", [2, 3, 5, 50])
def test_linear_uncentred(n):
    law = fluctuations("linear", n, norm="batch-uncentred")
    # G has trace n, so that G/Tr G − I/n is (G − G*)/n.
    expected = (n - 1) * (n + 2) ** 2 / (4 * n * (n + 1))
    assert law.mean_square(1).value / n**2 == pytest.approx(expected, rel=1e-10)
    # All G have the same trace.
    assert law.mean_distance(300).value == pytest.approx(n * law.gap(300).value, rel=1e-10)
    # The mean norm is at most the root mean square, and of many components nearly equal.
    ratio = law.gap(300).value / np.sqrt(expected / 300)
    assert (0.99 if n == 50 else 0.7) < ratio < 1


def test_two_samples_are_independent_layers():
    """For relu and n = 2 the rows are ±(1, −1): σσᵀ has one entry, 1, at random."""
    law = fluctuations("relu", 2)
    assert law.mean_square(8).value == pytest.approx(0.5 / 8)
    covariance = law.covariance(8)
    assert covariance.ii_ii == pytest.approx(0.25 / 8)
    assert covariance.ii_jj == pytest.approx(-0.25 / 8)
    assert covariance.ij_ij == pytest.approx(0, abs=1e-15)
    assert law.least_width == 1
    assert law.autocorrelation([[1, 0], [0, 0]], [0, 1]).tolist() == [1.0, 0.0]


def test_width_for():
    law = fluctuations("relu", 10)
    width = law.width_for(0.1)
    assert law.mean_square(width).value <= 0.01 < law.mean_square(width - 1).value
    assert law.width_for(1e9) == 1


SIMULATED = [
    ("relu", 5, "batch"),
    ("tanh", 10, "batch"),
    ("tanh", 5, "batch-uncentred"),
    ("gelu", 3, "batch-uncentred"),
    ("relu", 10, "batch-uncentred"),
    ("sigmoid", 5, "batch-uncentred"),
]


@pytest.mark.parametrize("case", some(SIMULATED, SIMULATED[0]))
def test_simulation(case):
    """Measured over predicted mean square, gap and bulk at width 3000, 64 chains of 160 layers.

    Each chain gives one mean, so the 64 means are independent. 7 standard errors (Student's law
    with 63 degrees of freedom) have a false alarm of 2e-9 per number. Terms of second order get
    `least_width`/width/10: at that width the criterion allows about 10 %.  For means that are not
    zero, test_sectors.py compares with brute force each time.
    """
    activation, n, norm = case
    chain = Chain(width=3000, batch=n, activation=activation, norm=norm)
    law = MeanField(chain).fluctuations()
    run = bnmc.simulate(chain, depth=200, burn_in=41, chains=64, rng=7)
    deviation = run.gram - law.fixed_point.gram
    square = (deviation**2).sum(axis=(-2, -1)).mean(axis=1)
    distance = np.sqrt((deviation**2).sum(axis=(-2, -1))).mean(axis=1)
    gap = bnmc.gram.orthogonality_gap(run.gram).mean(axis=1)
    allowed = law.least_width / chain.width / 10
    assert allowed < 0.015
    predicted = [of(3000).value for of in (law.mean_square, law.mean_distance, law.gap)]
    for means, expected in zip((square, distance, gap), predicted, strict=True):
        error = means.std(ddof=1) / np.sqrt(len(means))
        assert abs(means.mean() - expected) < 7 * error + allowed * expected


def test_what_raises():
    with pytest.raises(NotMixing, match="unstable") as caught:
        fluctuations("silu", 40)
    assert isinstance(caught.value.partial, FixedPoint)
    assert caught.value.exponent > 0
    with pytest.raises(ArgumentError, match="weights"):
        fluctuations("tanh", 5, weights="haar")
    with pytest.raises(PartialEstimateError, match="mean square is known") as caught:
        MeanField(Chain(width=9, batch=4, activation="relu")).fluctuations(rtol=1e-10)
    assert isinstance(caught.value.partial, Fluctuations)
    with pytest.raises(ArgumentError, match="rtol"):
        MeanField(Chain(width=9, batch=4)).fluctuations(rtol=0)


def test_bad_arguments_of_predictions():
    law = fluctuations("tanh", 4)
    for call in (law.mean_square, law.mean_distance, law.covariance, law.gap, law.spectrum):
        with pytest.raises(ArgumentError, match="width"):
            call(0)
    with pytest.raises(ArgumentError, match="distance"):
        law.width_for(0.0)
    for lags, error in (([-1], ArgumentError), ([0.5], ArgumentTypeError)):
        with pytest.raises(error, match="lags"):
            law.autocorrelation(np.eye(4), lags)
    with pytest.raises(ArgumentError, match="first order"):
        law.autocorrelation(lambda G: np.sum((G - law.fixed_point.gram) ** 2), [1])


def test_errors_are_differences_of_two_quadratures_and_that_of_the_fixed_point():
    """If one quadrature is given twice, the error of the fixed point is left; a root halves it.

    If the other one has four times the variances, mean squares differ by three times the value and
    mean norms by the value.
    """
    law = fluctuations("relu", 4)
    same = replace(law, coarse=law.sectors)
    square, distance = same.mean_square(10), same.mean_distance(10)
    alone = square.stderr / square.value
    assert 0.0 < alone < 1e-3
    assert distance.stderr / distance.value == pytest.approx(0.5 * alone, rel=1e-12)
    larger = tuple(replace(sector, variance=4.0 * sector.variance) for sector in law.sectors)
    apart = replace(law, coarse=larger)
    square, distance = apart.mean_square(10), apart.mean_distance(10)
    assert square.stderr / square.value == pytest.approx(3.0 + alone, rel=1e-12)
    assert distance.stderr / distance.value == pytest.approx(1.0 + 0.5 * alone, rel=1e-9)


def test_prediction_prints_and_converts():
    found = fluctuations("tanh", 4).mean_square(10)
    assert float(found) == found.value
    assert str(found) == f"{found.value:.6g}"


# The correlations are compared with brute force in `test_sectors.py`.
@pytest.mark.slow
def test_autocorrelation_time_of_a_long_run():
    """The integrated time 1 + 2 Σ ρ_k of an entry, against `mixing.autocorrelation`.

    Its interval of level 1 − 1e-6 contains the true time of width 2000; the predicted one differs
    by `least_width`/width/10, less than 1 %.
    """
    chain = Chain(width=2000, batch=5, activation="relu")
    law = MeanField(chain).fluctuations()
    weights = np.zeros((5, 5))
    weights[0, 0] = 1.0
    lags = law.autocorrelation(weights, np.arange(100))
    expected = 2.0 * lags.sum() - 1.0
    assert 1.1 < expected < (1 + law.fixed_point.rate) / (1 - law.fixed_point.rate)
    run = bnmc.simulate(chain, depth=1240, burn_in=41, chains=16, rng=8)
    found = bnmc.mixing.autocorrelation(run, lambda G: G[..., 0, 0], level=1 - 1e-6)
    low, high = found.time.ci
    assert 0.99 * low < expected < 1.01 * high
    assert high / low < 2


@pytest.mark.slow
def test_two_samples_under_selu():
    """The rate between two batches is known to 2e-5 only, but no part of the law of G."""
    law = fluctuations("selu", 2, norm="batch-uncentred")
    found = law.mean_square(1)
    assert law.point_error < 1e-8 < law.fixed_point.error
    assert found.stderr < 1e-5 * found.value
