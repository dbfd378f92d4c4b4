"""`bnmc.mixing.autocorrelation` against loops, against processes in closed form, and on chains.

Comparisons allow 5.5 standard errors (4e-8).  `test_rate.py` counts how often intervals cover.
"""

import math
import sys

import numpy as np
import pytest
from scipy import stats
from stationary_processes import ar1, thinned_run

import bnmc
from bnmc.errors import ArgumentError, MissingExtraError, PartialEstimateError
from bnmc.mixing.autocorrelation_time import Autocorrelation, autocorrelation

# ---------------------------------------------------------------- the formula, in loops


def time_in_loops(values):
    """Sokal's time by its definition, and its window."""
    chains, layers = values.shape
    x = values - values.mean()

    def covariance(k):
        pairs = [(c, i) for c in range(chains) for i in range(layers - k)]
        return sum(x[c, i] * x[c, i + k] for c, i in pairs) / len(pairs)

    time, window = 1.0, 0
    while window < 5 * max(time, 1 / time):
        window += 1
        inner = sum(covariance(k) for k in range(1, window))
        time = 1 + (2 * inner + covariance(window)) / covariance(0)
    return time * (1 + (2 * window - time) / values.size), window


@pytest.mark.parametrize("rho", [0.6, 0.0, -0.5])
def test_the_time_is_the_windowed_sum(rho):
    values = 3 + 2 * ar1(np.random.default_rng(4), 50, 60, rho)
    time, window = time_in_loops(values)
    estimate = autocorrelation(values, least_times=1)
    assert estimate.lags.tolist() == list(range(window + 1))
    # the jackknife moves ln τ by its bias of first order, far less than its error
    assert estimate.time.value == pytest.approx(time, rel=0.3 * estimate.time.stderr / time)
    with pytest.raises(PartialEstimateError) as caught:
        autocorrelation(values, least_times=1e4)
    assert caught.value.partial.time.value == pytest.approx(time, rel=1e-12)
    # |τ − 1| / (τ + 1)
    assert caught.value.partial.rate == pytest.approx(abs(time - 1) / (time + 1), rel=1e-10)


def test_what_is_left_out_is_a_stretch():
    """The jackknife, with the sums over pairs written out."""
    values = ar1(np.random.default_rng(5), 60, 120, 0.5)
    estimate = autocorrelation(values, least_times=20)
    window = len(estimate.lags) - 1
    x = values - values.mean()
    weights = [120 / (120 - k) for k in range(1, window)] + [120 / (120 - window) / 2]

    def half_log(chains):
        pairs = sum(
            weight * np.sum(x[chains, : 120 - k] * x[chains, k:])
            for k, weight in enumerate(weights, start=1)
        )
        return math.log(1 + 2 * pairs / np.sum(np.square(x[chains]))) / 2

    left_out = np.array([half_log(np.delete(np.arange(60), c)) for c in range(60)])
    stderr = math.sqrt(59 / 60 * np.square(left_out - left_out.mean()).sum())
    full = half_log(np.arange(60))
    z = 60 * full - 59 * left_out.mean()
    z += math.log(1 + (2 * window - math.exp(2 * full)) / 7200) / 2
    assert estimate.n == 60
    assert estimate.time.value == pytest.approx(math.exp(2 * z), rel=1e-10)
    assert estimate.time.stderr == pytest.approx(2 * stderr * math.exp(2 * z), rel=1e-10)
    assert estimate.rate == pytest.approx(math.tanh(z), rel=1e-10)
    # Student's intervals for ln τ / 2, with 59 degrees of freedom, and for the mean: of 7200 layers
    # τ has a variance as if 7200/(2M + 1) independent ones gave it.
    half = stats.t.isf(0.025, 59) * stderr
    assert estimate.ci == pytest.approx((math.tanh(z - half), math.tanh(z + half)), rel=1e-9)
    assert estimate.time.ci == pytest.approx(
        (math.exp(2 * (z - half)), math.exp(2 * (z + half))), rel=1e-9
    )
    error = values.std() * math.sqrt(estimate.time.value / 7200)
    half = stats.t.isf(0.025, 7200 / (2 * window + 1)) * error
    assert estimate.mean.stderr == pytest.approx(error, rel=1e-9)
    assert estimate.mean.ci == pytest.approx((values.mean() - half, values.mean() + half), rel=1e-9)


def test_units_do_not_matter():
    values = ar1(np.random.default_rng(6), 20, 300, 0.4)
    plain, scaled = autocorrelation(values), autocorrelation(1e6 - 1e-3 * values)
    assert scaled.rate == pytest.approx(plain.rate, rel=1e-6)
    assert scaled.stderr == pytest.approx(plain.stderr, rel=1e-6)
    assert scaled.mean.stderr == pytest.approx(1e-3 * plain.mean.stderr, rel=1e-6)
    assert scaled.mean.value == pytest.approx(1e6 - 1e-3 * plain.mean.value, rel=1e-15)


# ---------------------------------------------------------------- intervals


def test_precision_is_that_of_the_theory():
    """For a Gaussian process Var ln τ = 2 (2M + 1 − τ)/N (Wolff, hep-lat/0306017, eq. 42)."""
    rng = np.random.default_rng(8)
    runs = [autocorrelation(ar1(rng, 50, 1000, 0.5)) for _ in range(40)]
    stated = np.mean([run.time.stderr / run.time.value for run in runs])
    window = np.mean([len(run.lags) - 1 for run in runs])
    # each is known to 1/√98 of itself, the mean of 40 of them to 1.6 %: 5.5 times that
    assert stated == pytest.approx(math.sqrt(2 * (2 * window + 1 - 3) / 50_000), rel=0.088)


def test_a_thinned_run_has_the_rate_per_layer():
    """Every third layer of AR(1) is AR(1) with ρ³; times are in layers."""
    values = ar1(np.random.default_rng(9), 50, 901, 0.8)
    thinned = autocorrelation(thinned_run(values, 3), "orthogonality_gap")
    plain = autocorrelation(values[:, ::3])
    assert thinned.rate == pytest.approx(plain.rate ** (1 / 3), rel=1e-12)
    assert thinned.time.value == pytest.approx(3 * plain.time.value, rel=1e-12)
    assert thinned.lags.tolist() == [3 * lag for lag in plain.lags]
    assert abs(thinned.rate - 0.8) < 5.5 * thinned.stderr
    assert abs(thinned.time.value - 3 * 1.512 / 0.488) < 5.5 * thinned.time.stderr


def test_burn_in_is_left_out():
    values = ar1(np.random.default_rng(10), 30, 400, 0.5)
    values[:, :50] += 30
    expected = autocorrelation(values[:, 50:]).time.value
    assert autocorrelation(values, burn_in=50).time.value == pytest.approx(expected, rel=1e-14)


# ---------------------------------------------------------------- too little data


def test_a_short_run_is_refused_with_what_it_gives():
    values = ar1(np.random.default_rng(11), 50, 400, 0.9)  # 21 integrated times
    with pytest.raises(PartialEstimateError, match="400 recorded layers are shorter than 50 ") as c:
        autocorrelation(values)
    partial = c.value.partial
    assert isinstance(partial, Autocorrelation)
    assert (partial.ci, partial.time.ci) == ((0.0, 1.0), (0.0, math.inf))
    assert abs(partial.time.value - 19) < 5.5 * partial.time.stderr
    # The error of a Gaussian process: Var ln τ = 2 (2M + 1)/N, and the rate is tanh(ln τ / 2).
    z, error = math.atanh(partial.rate), math.sqrt((2 * len(partial.lags) - 1) / 40_000)
    expected = (math.tanh(z + error) - math.tanh(z - error)) / 2
    assert partial.stderr == pytest.approx(expected, rel=1e-9)
    accepted = autocorrelation(values, least_times=15)
    assert accepted.time.value == pytest.approx(partial.time.value, rel=0.02)


def test_too_few_stretches_are_refused():
    """The integrated time is 1 at least as it counts here, and four stretches of 10 fit in 45."""
    values = np.random.default_rng(12).standard_normal((1, 45))
    with pytest.raises(PartialEstimateError, match="too few for an error"):
        autocorrelation(values, least_times=1)


@pytest.mark.parametrize("layers", [40, 41])
def test_what_never_forgets_is_refused(layers):
    rng = np.random.default_rng(13)
    start = np.sign(rng.standard_normal((20, 1)))
    for values in (
        start * (-1.0) ** np.arange(layers),  # period 2
        start + 1e-3 * rng.standard_normal((20, layers)),  # stays where it was
        start * np.linspace(1, 2, layers),  # grows
    ):
        with pytest.raises(PartialEstimateError) as caught:
            autocorrelation(values)
        assert 0 <= caught.value.partial.rate < 1


# ---------------------------------------------------------------- ArviZ


def test_ess_and_mcse_are_those_of_arviz():
    from arviz_stats.base import array_stats

    values = ar1(np.random.default_rng(14), 20, 400, 0.6)
    estimate = autocorrelation(values)
    assert estimate.ess == array_stats.ess(values, method="mean")
    assert estimate.mcse == array_stats.mcse(values, method="mean")
    # two estimators of one number, each known to some 5 %
    assert estimate.ess == pytest.approx(values.size / estimate.time.value, rel=0.3)
    assert estimate.mcse == pytest.approx(estimate.mean.stderr, rel=0.15)


def test_only_arviz_s_numbers_need_arviz(monkeypatch):
    monkeypatch.setitem(sys.modules, "arviz_stats", None)
    monkeypatch.setitem(sys.modules, "arviz_stats.base", None)
    estimate = autocorrelation(ar1(np.random.default_rng(15), 20, 200, 0.3))
    for name in ("ess", "mcse"):
        with pytest.raises(MissingExtraError, match="'stats'"):
            getattr(estimate, name)


# ---------------------------------------------------------------- chains


@pytest.mark.parametrize(
    ("chain", "options", "hint"),
    [
        (bnmc.Chain(20, 2, "tanh"), {}, "reaches its fixed point in one layer"),
        (bnmc.Chain(20, 3, "tanh", norm="batch-uncentred"), {}, 'norm "batch"'),
        (bnmc.Chain(20, 3, "tanh", skip=1.0), {}, "no mean field: skip"),
        (bnmc.Chain(20, 3, "tanh"), {"inputs": 2}, "without inputs="),
    ],
    ids=["pairs", "uncentred", "skip", "inputs"],
)
def test_chains_without_a_default_ask_for_an_observable(chain, options, hint):
    run = bnmc.simulate(chain, 10, rng=0, **options)
    with pytest.raises(ArgumentError, match=f"^observable: got None, .*{hint}"):
        autocorrelation(run)
