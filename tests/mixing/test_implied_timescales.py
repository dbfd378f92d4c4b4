"""`bnmc.mixing.spectral` against formulas, against processes in closed form, and on chains.

Comparisons allow 5.5 standard errors (4e-8).  `test_rate.py` counts how often intervals cover.
"""

import math

import numpy as np
import pytest
from scipy import linalg, stats
from slow_cases import slow
from stationary_processes import ar1, lowest, singular_values, thinned_run, turning, var1

import bnmc
from bnmc.errors import ArgumentError, ArgumentTypeError, PartialEstimateError
from bnmc.mixing.implied_timescales import Spectrum, _chapman_kolmogorov, _rate, spectral
from bnmc.mixing.rate import RateEstimate

FEWER = 600

SEPARATE = np.diag([0.6, 0.2])
SKEWED = np.array([[0.6, 0.5], [0.0, 0.3]])


# ---------------------------------------------------------------- the formulas


def test_singular_values_and_eigenvalues_by_their_definition():
    x = var1(np.random.default_rng(0), 10, 200, SKEWED) @ [[1.0, 5.0], [0.0, 1e3]] + [3.0, -8.0]
    spectrum = spectral_or_partial(x, [1, 3])
    for row, lag in enumerate((1, 3)):
        expected, eigenvalues = by_definition(x, lag)
        np.testing.assert_allclose(spectrum.singular_values.value[row], expected, rtol=1e-9)
        eigenvalues = eigenvalues[np.argsort(-np.abs(eigenvalues))]
        np.testing.assert_allclose(spectrum.eigenvalues[row], eigenvalues, rtol=1e-9)
        np.testing.assert_allclose(spectrum.timescales[row], -lag / np.log(expected), rtol=1e-9)
    assert spectrum.lags.tolist() == [1, 3]


def by_definition(x, lag):
    """Singular values and eigenvalues of ``C^{-1/2} C(h) C^{-1/2}`` of two features."""
    y = x - x.mean(axis=(0, 1))
    now, later = y[:, :-lag].reshape(-1, 2), y[:, lag:].reshape(-1, 2)
    C = (now.T @ now + later.T @ later) / (2 * len(now))
    lagged = now.T @ later / len(now)
    inverse_root = linalg.inv(linalg.sqrtm(C))
    singular = linalg.svdvals(inverse_root @ lagged @ inverse_root)
    return singular, linalg.eigvals(linalg.solve(C, lagged))


def spectral_or_partial(values, lags):
    """The spectrum, also where no lag passes the test."""
    try:
        return spectral(values, lags)
    except PartialEstimateError as error:
        return error.partial


@pytest.mark.parametrize(
    "A", [SEPARATE, SKEWED, turning(0.6, 0.5)], ids=["reversible", "skewed", "turning"]
)
def test_processes_in_closed_form(A):
    """Reversible or not: VAMP sees the singular values, TICA the eigenvalues."""
    spectrum = spectral_or_partial(var1(np.random.default_rng(1), 100, 1000, A), [1, 2, 4])
    for row, lag in enumerate((1, 2, 4)):
        error = 5.5 * spectrum.singular_values.stderr[row]
        difference = np.abs(spectrum.singular_values.value[row] - singular_values(A, lag))
        assert (difference < error).all()
        assert (error < 0.05).all()
        moduli = np.sort(np.abs(linalg.eigvals(np.linalg.matrix_power(A, lag))))[::-1]
        # an eigenvalue moves by its condition number, below 2 here, times what C(h) does
        assert (np.abs(np.abs(spectrum.eigenvalues[row]) - moduli) < 0.05).all()
        rate = spectrum.rates[row]
        truth = singular_values(A, lag)[0] ** (1 / lag)
        assert abs(rate.rate - truth) < 5.5 * rate.stderr


def test_the_leading_correlation_is_measured_where_nothing_was_learnt():
    """Directions from the first half of the chains, correlation and error from the second."""
    x = var1(np.random.default_rng(2), 60, 100, SEPARATE)
    spectrum = spectral(x, 1)
    y = x - x.mean(axis=(0, 1))
    pairs = [(chain[:-1], chain[1:]) for chain in y]

    def moments(chains):
        lagged = sum(pairs[c][0].T @ pairs[c][1] for c in chains)
        both = sum(pairs[c][0].T @ pairs[c][0] + pairs[c][1].T @ pairs[c][1] for c in chains) / 2
        return lagged, both

    lagged, both = moments(range(30))
    inverse_root = linalg.inv(linalg.sqrtm(both))
    U, _, Vt = linalg.svd(inverse_root @ lagged @ inverse_root)
    u, v = inverse_root @ U[:, 0], inverse_root @ Vt[0]

    def z(chains):
        lagged, both = moments(chains)
        return math.atanh(u @ lagged @ v / math.sqrt((u @ both @ u) * (v @ both @ v)))

    held = list(range(30, 60))
    left_out = np.array([z([c for c in held if c != gone]) for gone in held])
    expected = 30 * z(held) - 29 * left_out.mean()
    stderr = math.sqrt(29 / 30 * np.square(left_out - left_out.mean()).sum())
    assert spectrum.n == 30
    assert spectrum.rate == pytest.approx(math.tanh(expected), rel=1e-9)
    assert spectrum.stderr == pytest.approx(stderr / math.cosh(expected) ** 2, rel=0.01)


def test_null_directions_are_left_out():
    x = var1(np.random.default_rng(5), 20, 200, SEPARATE)
    constant = np.full((20, 200, 1), 7.0)
    redundant = np.concatenate([x, x[:, :, :1] - 2 * x[:, :, 1:], constant, x[:, :, :1]], axis=2)
    plain, other = spectral(x, 1), spectral(redundant, 1)
    assert other.singular_values.value.shape == (1, 2)
    np.testing.assert_allclose(other.singular_values.value, plain.singular_values.value, rtol=1e-9)
    assert other.rate == pytest.approx(plain.rate, rel=1e-9)


# ---------------------------------------------------------------- intervals


def test_the_errors_of_the_test_are_those_of_its_differences():
    """Of 600 runs 20 % exceed that quantile of Student's law, in 1e-6 of cases outside 12 to 28 %.

    An error that is 25 % too small or too large has 33 or 11 %.  The quantile of the test itself is
    compared with its definition below: so few of 600 exceed it that it would tell little here.
    """
    rng = np.random.default_rng(6)
    tests = [spectral_or_partial(ar1(rng, 50, 60, 0.5), 1).chapman_kolmogorov for _ in range(FEWER)]
    t = np.array([(test.measured - test.predicted)[0] / test.stderr[0] for test in tests])
    low, high = stats.binom.ppf([2.5e-7, 1 - 2.5e-7], FEWER, 0.2) / FEWER
    for multiple in range(2):
        assert low <= np.mean(np.abs(t[:, multiple]) > stats.t.isf(0.1, 49)) <= high
    # Bonferroni: at most 1 % are rejected.
    assert np.mean([test.passed[0] for test in tests]) >= lowest(FEWER, 0.99)


# ---------------------------------------------------------------- Chapman and Kolmogorov


def test_noise_on_top_of_a_mode_fails_the_test():
    """``x + white noise`` has ρ(k) = c ρ^k, and no lag at which ρ(2k) = ρ(k)²."""
    rng = np.random.default_rng(7)
    values = ar1(rng, 50, 1000, 0.8) + rng.standard_normal((50, 1000))
    with pytest.raises(PartialEstimateError, match="rejects every lag") as caught:
        spectral(values, [1, 2])
    partial = caught.value.partial
    assert isinstance(partial, Spectrum)
    assert partial.rate == partial.rates[-1].rate
    test = partial.chapman_kolmogorov
    assert not test.passed.any()
    expected = np.array([[0.5 * 0.8**2, 0.5 * 0.8**3], [0.5 * 0.8**4, 0.5 * 0.8**6]])
    predicted = np.array([[0.4**2, 0.4**3], [0.32**2, 0.32**3]])
    # correlations of 50 000 layers whose integrated time is below 5: known to 0.01
    np.testing.assert_allclose(test.measured, expected, atol=0.055)
    np.testing.assert_allclose(test.predicted, predicted, atol=0.055)


def test_the_first_lag_that_passes_is_chosen():
    """``x_l + x_{l+1}`` of white x: correlated at lag 1 and not beyond, so lag 2 is Markov."""
    rng = np.random.default_rng(8)
    x = rng.standard_normal((50, 1001))
    spectrum = spectral(x[:, 1:] + x[:, :-1], [1, 2])
    assert spectrum.chapman_kolmogorov.passed.tolist() == [False, True]
    assert spectrum.method == "spectral, lag 2"
    assert spectrum.rate_estimate == spectrum.rates[1]
    assert spectrum.rates[0].rate == pytest.approx(0.5, abs=5.5 * spectrum.rates[0].stderr)
    assert spectrum.ci[0] == 0.0


# ---------------------------------------------------------------- lags


def test_a_thinned_run_has_the_rate_per_layer():
    values = ar1(np.random.default_rng(9), 50, 601, 0.8)
    run = thinned_run(values, 3)
    thinned = spectral(run, [3, 6], observables="orthogonality_gap")
    plain = spectral(values[:, ::3], [1, 2])
    assert thinned.lags.tolist() == [3, 6]
    assert thinned.rate == pytest.approx(plain.rate ** (1 / 3), rel=1e-12)
    assert thinned.ci == pytest.approx([end ** (1 / 3) for end in plain.ci], rel=1e-12)
    np.testing.assert_allclose(thinned.timescales, 3 * plain.timescales, rtol=1e-12)
    assert abs(thinned.rate - 0.8) < 5.5 * thinned.stderr
    for lags, message in ((4, "multiples of 3"), (201, "multiples of 3 up to 200")):
        with pytest.raises(ArgumentError, match=f"^lags: got {lags}, allowed: {message}"):
            spectral(run, lags, observables="orthogonality_gap")


def test_lags_come_in_order_and_once():
    values = ar1(np.random.default_rng(10), 20, 200, 0.5)
    assert spectral(values, iter([4, 1, 4])).lags.tolist() == [1, 4]
    assert spectral(values, np.int64(2)).lags.tolist() == [2]


# ---------------------------------------------------------------- too little data


@pytest.mark.parametrize("features", [1, 2])
def test_too_few_stretches_are_refused(features):
    values = np.random.default_rng(11).standard_normal((4 * features, 30, features))
    with pytest.raises(PartialEstimateError, match="too few for an error") as caught:
        spectral(values, 3)
    assert isinstance(caught.value.partial, RateEstimate)
    assert caught.value.partial.ci == (0.0, 1.0)


def test_what_never_forgets_is_refused():
    rng = np.random.default_rng(13)
    start = np.sign(rng.standard_normal((40, 1)))
    stays = np.repeat(start, 30, axis=1)
    for values in (stays, stays * (-1.0) ** np.arange(30)):
        with pytest.raises(PartialEstimateError, match="correlation of 1 over the lag") as caught:
            spectral(values, 1)
        assert 0.99 < caught.value.partial.rate < 1


def test_features_that_vary_in_a_part_of_the_run_only_are_refused():
    values = var1(np.random.default_rng(14), 40, 60, SEPARATE)
    values[:20, :, 1] = values[20:, :, 1].mean()
    with pytest.raises(PartialEstimateError, match="constant or dependent in a part"):
        spectral(values, 1)


def test_burn_in_is_left_out():
    values = ar1(np.random.default_rng(15), 30, 300, 0.5)
    values[:, :50] += 30
    assert spectral(values, 1, burn_in=50).rate == spectral(values[:, 50:], 1).rate


# ---------------------------------------------------------------- what is read


@pytest.mark.parametrize(
    ("options", "observables", "message"),
    [
        ({}, [], "^observables: .* at least one name"),
        ({}, "gramm", "^observables: .*'gramm'"),
        ({}, 3, "^observables: got 3, .* function of G"),
        ({"inputs": 2}, None, "^observables: got None, .*without inputs="),
        ({"chain": bnmc.Chain(20, 2, "tanh")}, None, "^observables: got None, .* 3 or more"),
        (
            {"chain": bnmc.Chain(20, 3, "linear", norm="none")}, None,
            '^observables: got None, .*norm "batch"',
        ),
        ({"observables": "soft_rank"}, np.trace, "^run: .* recorded 'gram'"),
        ({"reduce": "chain"}, "gram", "^run: .* not reduced"),
        ({"every": 4}, "gram", "^run: .* equally spaced .*multiple of every"),
        ({"burn_in": 8}, "gram", "^run: .* at least 4 recorded layers .*3 from layer 0"),
    ],
    ids=[
        "none", "misspelt", "number", "inputs", "pairs", "vanilla", "no gram", "reduced", "uneven",
        "few layers",
    ],
)  # fmt: skip
def test_runs_and_observables_that_are_refused(options, observables, message):
    options = {"chain": bnmc.Chain(20, 3, "tanh"), "depth": 10, "chains": 2, "rng": 0} | options
    run = bnmc.simulate(**options)
    with pytest.raises((ArgumentError, ArgumentTypeError), match=message):
        spectral(run, 1, observables=observables)


# ---------------------------------------------------------------- chains


@pytest.mark.parametrize(
    ("activation", "batch"),
    [
        slow("relu", 5),
        slow("tanh", 5),
        ("linear", 4),
        ("relu", 3),
    ],  # linear: both eigenvalues are equal
)
def test_the_default_has_the_rate_of_the_mean_field(activation, batch):
    """Width 2000: the rate differs from that at infinite width by about 1/2000."""
    chain = bnmc.Chain(2000, batch, activation)
    star = bnmc.MeanField(chain).fixed_point()
    run = bnmc.simulate(chain, 180, chains=60, burn_in=40, rng=1)
    spectrum = spectral(run, [1, 2])
    assert abs(spectrum.rate - star.rate) < 5.5 * spectrum.stderr + 0.002
    # its interval tells the rate from its square
    assert spectrum.ci[0] > star.rate**2
    both = np.sort(np.abs(star.eigenvalues))[::-1]
    error = 5.5 * spectrum.singular_values.stderr[0] + 0.002
    assert (np.abs(spectrum.singular_values.value[0] - both) < error).all()


# ---------------------------------------------------------------- quantiles and degrees of freedom


def jackknifed(center, stderr, groups, rng):
    """A statistic of all groups, and of all but each, of this jackknife estimate and error."""
    left_out = rng.standard_normal(groups)
    left_out -= left_out.mean()
    left_out *= stderr / math.sqrt((groups - 1) / groups * np.square(left_out).sum())
    return np.concatenate([[center], center + left_out])


@pytest.mark.parametrize("groups", [5, 12])
def test_the_test_compares_with_students_quantile_for_all_multiples_together(groups):
    """Level 1 % for two differences; the error of m stretches has m − 1 degrees of freedom."""
    quantile = stats.t.isf(0.01 / 2 / 2, groups - 1)
    rng = np.random.default_rng(3)
    for factor, passes in ((0.99, True), (1.01, False), (-0.99, True), (-1.01, False)):
        for multiple in (2, 3):
            # At lag 1 the correlation is 0.5 without error: the error is that at the multiple.
            leading = {1: np.full(groups + 1, 0.5)}
            for k in (2, 3):
                gap = factor * quantile * 1e-3 if k == multiple else 0.0
                leading[k] = jackknifed(0.5**k + gap, 1e-3, groups, rng)
            spectrum = _chapman_kolmogorov(leading, [1])
            np.testing.assert_allclose(spectrum.stderr, [[1e-3, 1e-3]], rtol=1e-9)
            assert spectrum.passed.tolist() == [passes]


@pytest.mark.parametrize("groups", [5, 12])
@pytest.mark.parametrize("level", [0.9, 0.99])
def test_the_interval_is_students_with_one_degree_less_than_stretches(groups, level):
    """Of artanh σ: an interval that is 10 % too wide, or of another degree, is another one."""
    leading = np.tanh(jackknifed(0.6, 0.01, groups, np.random.default_rng(4)))
    spectrum = _rate(leading, leading, 3, level)
    half = stats.t.isf((1 - level) / 2, groups - 1) * 0.01
    expected = np.tanh([0.6 - half, 0.6 + half]) ** (1 / 3)
    np.testing.assert_allclose(spectrum.ci, expected, rtol=1e-9)
    # If all data have more stretches than those held out, their interval may end higher.
    everything = np.tanh(jackknifed(0.65, 0.01, 2 * groups, np.random.default_rng(5)))
    wider = _rate(leading, everything, 3, level)
    half = stats.t.isf((1 - level) / 2, 2 * groups - 1) * 0.01
    assert wider.ci[1] == pytest.approx(math.tanh(0.65 + half) ** (1 / 3), rel=1e-9)
    assert wider.ci[0] == spectrum.ci[0]


def test_a_largest_singular_value_of_one_leaves_the_rate_open_to_one():
    """Rounding may even lead beyond 1; a modulus below 1 is then not known."""
    leading = np.tanh(jackknifed(0.6, 0.01, 5, np.random.default_rng(6)))
    for largest in (1.0, 1.0 + 2.0**-52):
        spectrum = _rate(leading, np.full(11, largest), 3, 0.95)
        assert 1.0 - 2.0**-53 <= spectrum.ci[1] <= 1.0
        assert spectrum.ci[0] == _rate(leading, leading, 3, 0.95).ci[0]


@pytest.mark.parametrize("rho", [0.9, 0.95, -0.9])
def test_stretches_have_ten_correlation_times(rho):
    """These are 10 (1 + σ)/(1 − σ) layers, of σ at the lag; pairs end 3 lags before the run."""
    values = ar1(np.random.default_rng(17), 1, 6000, rho)
    y = values[0] - values.mean()
    sigma = abs(y[:-1] @ y[1:]) / ((y[:-1] @ y[:-1] + y[1:] @ y[1:]) / 2)
    spectrum = spectral_or_partial(values, 1)
    assert spectrum.n == int((6000 - 3) / (10 * (1 + sigma) / (1 - sigma)))
