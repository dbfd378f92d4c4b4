"""`bnmc.mixing.relaxation` against a general least-squares fit, on processes, and on chains.

Comparisons allow 5.5 standard errors (4e-8).  `test_rate.py` counts how often intervals cover.
"""

import math
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import optimize, stats
from stationary_processes import ar1, thinned_run

import bnmc
from bnmc.errors import ArgumentError, ArgumentTypeError, PartialEstimateError
from bnmc.estimate import Estimate
from bnmc.mixing.relaxation_curve import (
    Relaxation,
    _end,
    end_of_interval,
    fit_exponential,
    relaxation,
)


def given(value, stderr=0.0):
    return Estimate(value, stderr, (value - 2 * stderr, value + 2 * stderr), 9, "given")


# ---------------------------------------------------------------- the fit


@pytest.mark.parametrize("limit", [2.0, None])
@pytest.mark.parametrize("rho", [0.8, -0.6])
def test_the_fit_is_the_weighted_least_squares_fit(limit, rho):
    """By SciPy, with the working covariance written out."""
    values = 2 + ar1(np.random.default_rng(0), 30, 25, rho, 40)
    fitted = relaxation(values, limit, window=(3, 20))
    y = values[:, 3:21]
    noise = y - y.mean(axis=0)
    r = np.sum(noise[:, 1:] * noise[:, :-1]) / math.sqrt(
        np.sum(noise[:, 1:] ** 2) * np.sum(noise[:, :-1] ** 2)
    )
    lags = np.abs(np.subtract.outer(np.arange(18), np.arange(18)))
    W = np.linalg.inv(np.linalg.cholesky(r**lags))

    def model(p):
        rest = p[2] if limit is None else limit
        return rest + p[0] * p[1] ** np.arange(18)

    def residual(p):
        return W @ (y.mean(axis=0) - model(p))

    start = [40 * rho**3, rho] + ([2.0] if limit is None else [])
    fit = optimize.least_squares(residual, start, xtol=1e-15, ftol=1e-15, gtol=1e-15)
    # the sandwich: parameters move with each chain by -(JᵀJ)⁻¹Jᵀ W (y_c − ȳ)
    moves = np.linalg.pinv(-fit.jac) @ W @ noise.T
    stderr = moves.std(axis=1, ddof=1) / math.sqrt(30)
    assert fitted.window == (3, 20)
    assert fitted.rate == pytest.approx(abs(fit.x[1]), rel=1e-6)
    assert fitted.amplitude.value == pytest.approx(fit.x[0], rel=1e-6)
    assert fitted.amplitude.stderr == pytest.approx(stderr[0], rel=1e-4)
    assert fitted.stderr == pytest.approx(stderr[1], rel=2e-2)  # symmetric in artanh
    if limit is None:
        assert fitted.limit.value == pytest.approx(fit.x[2], rel=1e-6)
        assert fitted.limit.stderr == pytest.approx(stderr[2], rel=1e-4)
    else:
        assert fitted.limit.value == 2.0
    np.testing.assert_allclose(fitted.deviation.value, values.mean(axis=0) - fitted.limit.value)
    np.testing.assert_allclose(fitted.deviation.stderr, values.std(axis=0, ddof=1) / math.sqrt(30))
    assert fitted.n == 30


def test_units_and_sign_do_not_matter():
    values = ar1(np.random.default_rng(1), 50, 40, 0.7, 40)
    plain, scaled = relaxation(values, 0.0), relaxation(5 - 1e6 * values, 5.0)
    assert scaled.rate == pytest.approx(plain.rate, rel=1e-9)
    assert scaled.ci == pytest.approx(plain.ci, rel=1e-7)
    assert scaled.amplitude.value == pytest.approx(-1e6 * plain.amplitude.value, rel=1e-9)


def test_the_error_of_the_limit_is_passed_on():
    """As the rate moves when the limit does, and added in squares."""
    values = ar1(np.random.default_rng(2), 50, 30, 0.8, 40)
    values += 40 * 0.8 ** np.arange(30) - values.mean(axis=0)  # no residual bends the fit
    window = (4, 20)
    exact, shifted = (relaxation(values, star, window=window) for star in (0.0, 1e-4))
    uncertain = relaxation(values, given(0.0, 0.3), window=window)
    slope = (math.atanh(shifted.rate) - math.atanh(exact.rate)) / 1e-4
    derivative = 1 - exact.rate**2
    expected = math.hypot(exact.stderr, 0.3 * slope * derivative)
    assert uncertain.rate == pytest.approx(exact.rate, rel=1e-12)
    assert expected > 1.2 * exact.stderr
    # the error is of first order, and the rate moves by less than 1 % of itself
    assert uncertain.stderr == pytest.approx(expected, rel=1e-3)


def test_a_thinned_run_has_the_rate_per_layer():
    values = ar1(np.random.default_rng(3), 50, 61, 0.8, 60)
    thinned = relaxation(thinned_run(values, 2), 0.0, "orthogonality_gap")
    plain = relaxation(values[:, ::2], 0.0)
    assert thinned.rate == pytest.approx(math.sqrt(plain.rate), rel=1e-12)
    assert thinned.window == tuple(2 * layer for layer in plain.window)
    assert thinned.layers.tolist() == list(range(0, 61, 2))
    assert abs(thinned.rate - 0.8) < 5.5 * thinned.stderr


# ---------------------------------------------------------------- no decay


def test_stationary_chains_are_refused():
    rng = np.random.default_rng(4)
    values = ar1(rng, 50, 60, 0.8, 0.0)[:, 20:]
    for star in (0.0, None):
        with pytest.raises(PartialEstimateError, match="stands out from the noise") as caught:
            relaxation(values, star)
        partial = caught.value.partial
        assert isinstance(partial, Estimate)
        against = values[:, -1] if star is None else 0.0
        assert partial.value == pytest.approx(np.mean(values[:, 0] - against), abs=1e-14)


def test_a_signal_that_drowns_before_it_is_trusted_comes_along():
    values = ar1(np.random.default_rng(5), 50, 40, 0.8, 2.0)  # 14 standard errors
    with pytest.raises(PartialEstimateError) as caught:
        relaxation(values, 0.0)
    partial = caught.value.partial
    assert isinstance(partial, Relaxation)
    assert partial.window[0] == 0
    assert abs(partial.rate - 0.8) < 5.5 * partial.stderr


@pytest.mark.parametrize("star", [0.0, None])
def test_growth_is_no_decay(star):
    noise = np.random.default_rng(6).standard_normal((20, 15))
    values = 3.0 * 1.3 ** np.arange(15) + noise
    with pytest.raises(PartialEstimateError):
        relaxation(values, star)
    with pytest.raises(PartialEstimateError):
        relaxation(values, star, window=(0, 14))


def test_a_limit_out_of_reach_is_not_fitted():
    values = ar1(np.random.default_rng(7), 50, 12, 0.98, 40)
    with pytest.raises(PartialEstimateError):
        relaxation(values)


def test_no_deviation_at_all_is_refused():
    half = np.random.default_rng(8).standard_normal((10, 12))
    mirrored = np.concatenate([half, -half])  # means are exactly zero
    for window in (None, (0, 11)):
        with pytest.raises(PartialEstimateError):
            relaxation(mirrored, 0.0, window=window)


# ---------------------------------------------------------------- arguments


@pytest.fixture(scope="module")
def run():
    """Relaxation of a wide chain from one batch that permutations change."""
    chain = bnmc.Chain(2000, 5, "relu")
    x = np.random.default_rng(9).standard_normal((2000, 5))
    x[:, 0] += 2 * x[:, 1]
    return bnmc.simulate(chain, 30, chains=200, initial=x, rng=0)


def test_limits_that_are_refused(run):
    star = bnmc.MeanField(run.chain).fixed_point()
    other = bnmc.MeanField(bnmc.Chain(100, 4, "relu")).fixed_point()
    for limit, observable, message in (
        (other, None, "^star: .* one batch of 4"),
        (other, np.trace, "^star: .* one batch of 4"),
        (star, "gram", "^star: .* a number, an Estimate or None .*only a function of G"),
        (star.gram[0], np.trace, "^star: got "),
        (np.nan, np.trace, "^star: got nan"),
        (None, None, "^observable: got None, .*the default is for a FixedPoint"),
        (star.gram, None, "^observable: got None"),
        (star, lambda G: np.nan, "^observable.*: got nan"),
    ):
        with pytest.raises(ArgumentError, match=message):
            relaxation(run, limit, observable)
    with pytest.raises(ArgumentError, match="^star: .*only a function of G of a Trajectory"):
        relaxation(run.gram[:, :, 0, 0], star)
    with pytest.raises(ArgumentTypeError, match="^star: got 'mean'"):
        relaxation(run, "mean", np.trace)


# ---------------------------------------------------------------- chains


def test_a_function_of_G_relaxes_to_its_value_at_the_fixed_point(run):
    star = bnmc.MeanField(run.chain).fixed_point()

    def difference(G):
        return G[0, 0] - G[1, 1] - (G[0].sum() - G[1].sum()) * 2 / 5

    fits = [
        relaxation(run, limit, difference, window=(2, 16))
        for limit in (star, star.gram, 0.0, given(0.0))
    ]
    assert all(fit.rate == pytest.approx(fits[0].rate, rel=1e-9) for fit in fits)
    assert abs(fits[0].rate - star.rate) < 5.5 * fits[0].stderr + 0.005
    assert fits[0].limit.value == pytest.approx(0.0, abs=1e-15)


def test_what_permutations_leave_alone_relaxes_by_squares():
    """The squared gap of a linear chain from normal input: a second moment, (9/11)² at n = 10."""
    chain = bnmc.Chain(1000, 10, "linear")
    run = bnmc.simulate(chain, 40, chains=1000, observables="orthogonality_gap", rng=0)
    fitted = relaxation(np.square(run.orthogonality_gap))
    assert abs(fitted.rate - (9 / 11) ** 2) < 5.5 * fitted.stderr + 0.005
    assert fitted.stderr < 0.05


# ---------------------------------------------------------------- the error of the limit


def test_the_window_ends_where_the_limit_hides_the_signal():
    """At 2 standard errors of the deviation, which has those of the mean and of the limit."""
    layers, pattern = 20, np.resize([1.0, -1.0], 50)
    signal = 10.0 * 0.7 ** np.arange(layers)
    for error in (0.0, 0.3):
        for noise in (0.1, 1.0):
            values = signal + noise * pattern[:, None]
            # Chains ± noise: a standard error of noise/√49, from Student's formula.
            total = math.hypot(noise / 7.0, error)
            shown = np.flatnonzero(signal < 2.0 * total)[0]
            assert _end(values, given(0.0, error), 0) == shown
            assert _end(values, given(0.0, error), 3) == shown
            assert _end(values, None, 0) == layers


@pytest.mark.parametrize("chains", [6, 40])
@pytest.mark.parametrize("limit", [0.0, None])
def test_intervals_have_one_degree_of_freedom_less_than_chains(chains, limit):
    """The score at the ends is Student's quantile, and amplitude and limit have his intervals."""
    values = ar1(np.random.default_rng(12), chains, 25, 0.7, 60)
    for level in (0.9, 0.99):
        fitted = relaxation(values, limit, window=(2, 20), level=level)
        quantile = stats.t.isf((1 - level) / 2, chains - 1)
        fit = fit_exponential(values, None if limit is None else given(limit), 2, 21)
        for end in fitted.ci:
            assert abs(fit.data.score(end)) == pytest.approx(quantile, rel=1e-4)
        estimates = [fitted.amplitude] + [fitted.limit] * (limit is None)
        for estimate in estimates:
            low, high = estimate.ci
            assert high - low == pytest.approx(2 * quantile * estimate.stderr, rel=1e-9)
            assert high + low == pytest.approx(2 * estimate.value, rel=1e-9)


# --- Ends of the intervals of a fitted rate


def curve(size):
    """A score of modulus |artanh ρ| / size."""
    return SimpleNamespace(score=lambda rho: math.atanh(rho) / size)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("half", [0.1, 1.0, 2.5])
@pytest.mark.parametrize("end", [4.05, 5.8, 6.9])
def test_an_end_is_where_the_score_is_the_quantile(sign, half, end):
    """Also if the next step from the last one before it leads beyond 7."""
    result = end_of_interval(curve(2.0), sign * 4.0, sign * half, end / 2.0)
    assert result == pytest.approx(sign * end, abs=1e-5)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("z", [4.0, 7.2])
def test_an_end_beyond_a_modulus_of_7_is_infinite(sign, z):
    assert end_of_interval(curve(2.0), sign * z, sign * 1.0, 7.5) == sign * math.inf
    assert end_of_interval(curve(2.0), sign * 4.0, sign * 1.0, 3.75) == sign * math.inf


def test_an_interval_without_an_end_is_infinite():
    """Here −7 is z + half only up to rounding, at which the search for an end did not stop."""
    flat = SimpleNamespace(score=lambda rho: 0.0)
    assert end_of_interval(flat, 1.6520126389287002, -4.9131079901566475, 2.093) == -math.inf
