"""The certificate of mixing: it bounds the distance, and its intervals cover."""

import dataclasses
import json
import math

import numpy as np
import pytest
import scipy.stats
from slow_cases import pairs, slow
from stationary_processes import AtOnce

import bnmc
from bnmc._support import workers
from bnmc._support.workers import Parallel
from bnmc.errors import ArgumentError, NotMixing, PartialEstimateError
from bnmc.estimate.estimate import bounded_mean_interval, mean_interval
from bnmc.mixing import coupling, meeting_bound
from bnmc.mixing.meeting_bound import (
    LaggedDistance,
    capped_intervals,
    shown_layers,
    survival,
    tail_rate,
    tv_bound,
)

RELU = bnmc.Chain(20, 3, "relu")


def two_numbers(gram):
    """What a linear chain of n = 2 uncentred samples sees of G, of trace 2, in [-1, 1]²."""
    return np.stack([gram[:, 0, 0] - gram[:, 1, 1], gram[:, 0, 1] + gram[:, 1, 0]], axis=1) / 2.0


def shape_of_plane(gram):
    """What a chain of n = 3 centred samples sees of G: PGP without its scale, in [-1, 1]²."""
    basis = np.array([[1.0, -1.0, 0.0], [1.0, 1.0, -2.0]])
    basis /= np.linalg.norm(basis, axis=1)[:, None]
    plane = basis @ gram @ basis.T
    numbers = [plane[:, 0, 0] - plane[:, 1, 1], 2.0 * plane[:, 0, 1]]
    return np.stack(numbers, axis=1) / np.trace(plane, axis1=1, axis2=2)[:, None]


@pytest.mark.untraced
@pytest.mark.parametrize(
    ("chain", "initial", "numbers"),
    [
        (bnmc.Chain(20, 2, "linear", norm="batch-uncentred"), "near", two_numbers),
        pytest.param(bnmc.Chain(20, 3, "relu"), "line", shape_of_plane, marks=pytest.mark.slow),
    ],
    ids=["uncentred", "centred"],
)
def test_the_bound_is_above_the_distance_and_within_a_factor_of_ten(chain, initial, numbers):
    # The law of these two numbers of G_l is no farther from its limit than that of x_l, and on bins
    # that of the numbers no farther yet. Of N draws each on K bins the estimate is, in expectation,
    # too large by at most sqrt(K/N), and above that by t with probability exp(-N t²) (McDiarmid).
    # With N = 40 000 an upper end that is 0.06 below the distance shows.
    rng = np.random.default_rng(0)
    x = rng.standard_normal((20, 1)) * np.ones(chain.batch)
    x = x + (0.1 if initial == "near" else 1.0) * np.linspace(-1.0, 1.0, chain.batch)
    x += 0.02 * rng.standard_normal(x.shape)
    count, side, depth = 40_000, 6, 10
    above = math.sqrt(math.log(4 * depth / 1e-6) / count)

    def histogram(gram):
        result, *_ = np.histogram2d(*numbers(gram).T, bins=side, range=[[-1, 1], [-1, 1]])
        return result / count

    limit = histogram(bnmc.simulate(chain, 30, chains=count, rng=1, burn_in=30).gram[:, 0])
    run = bnmc.simulate(chain, depth, chains=count, initial=x, rng=2)
    distance = np.array(
        [0.5 * np.abs(histogram(run.gram[:, at]) - limit).sum() for at in range(depth + 1)]
    )
    least = distance - above - side / math.sqrt(count)
    cert = tv_bound(
        chain, depth, lag=30, chains=2000, initial=x, rng=3, level=1.0 - 1e-6 / (4 * depth)
    )
    assert (cert.ci[:, 1] >= least).all()
    seen = least >= 0.02
    assert seen.sum() >= 3
    assert (cert.bound[seen] <= 10.0 * (distance[seen] + above)).all()


def test_layers_to_a_tolerance():
    cert = tv_bound(RELU, 60, chains=500, rng=0)
    # So the level holds for the returned layer, although the data chose it.
    assert (np.diff(cert.bound) <= 0.0).all()
    assert (np.diff(cert.ci[:, 1]) <= 0.0).all()
    layer = cert.layers_to(0.05)
    assert cert.ci[layer, 1] <= 0.05 < cert.ci[layer - 1, 1]
    assert cert.layers_to(1e-9) is None
    with pytest.raises(ArgumentError, match="atol"):
        cert.layers_to(0.0)


def test_the_certificate_is_a_table_a_dictionary_and_a_picture():
    cert = tv_bound(RELU, 20, lag=3, chains=200, rng=1)
    assert str(cert) == cert.text(0.05)
    atol = float(cert.ci[6, 1])
    layer, (first, *lines) = cert.layers_to(atol), cert.text(atol).splitlines()
    assert first.startswith(f"Distance from the quasi-stationary law at most {atol:g} ")
    assert first.endswith(f" from layer {layer} on (95 %)")
    failed = " ".join(cert.text(1e-9).splitlines()[:2])
    assert failed.startswith("No layer up to 20 has a certified distance <= 1e-09 (95 %): at layer")
    assert f"20 it is at most {cert.ci[-1, 1]:.2g}; take more chains or depth" in failed
    assert lines[:9] == str(cert.lagged).splitlines()
    assert lines[9] == ""
    assert lines[10] == "Upper bound of the total-variation distance from the quasi-stationary law"
    assert lines[11].startswith("(Waits count up to the horizon of 6 layers: ")
    assert max(map(len, lines)) <= 100
    # Of the layers with a bound of 1 or more, the last one is shown.  The first line has another.
    assert layer == 6
    shown = sorted({1, 2, 4, 8, 16, 20, layer})
    rows = [line.split() for line in lines[13 : 13 + len(shown)]]
    assert [int(row[0]) for row in rows] == shown
    assert cert.bound[1] > 1.0 > cert.bound[2]
    assert rows[0][1] == f"{cert.bound[1]:.4g}"
    assert float(rows[1][1]) == pytest.approx(cert.bound[2], rel=1e-3)
    # The rate of the coupling bounds no rate of the chain, and is not printed.
    assert lines[20] == ""
    assert " ".join(lines[21:]).split() == " ".join(cert.assumes).split()
    # The last one is that two samples may die in one layer, with probability 3 · 3⁻²⁰.
    assert len(cert.assumes) == 3
    content = json.loads(json.dumps(cert.to_dict()))
    assert content["bound"] == cert.bound.tolist()
    assert content["rate"]["ci"] == list(cert.rate_estimate.ci)
    assert content["assumes"] == list(cert.assumes)
    assert (content["law"], content["horizon"]) == ("quasi-stationary", 6)
    near_a_line = content["crossed_starts"]["samples near a line"]
    assert (len(near_a_line["waiting_times"]), near_a_line["absorbed"]) == (32, 0)
    assert content["lagged"] == cert.lagged.to_dict()
    ax = cert.plot()
    line, result = ax.get_lines()
    np.testing.assert_array_equal(line.get_ydata(), cert.bound[cert.bound > 0])
    assert set(result.get_ydata()) == {1.0}
    assert ax.get_title().endswith("200 pairs")
    assert (ax.get_yscale(), ax.get_xlabel()) == ("log", r"layer $\ell$")
    assert [text.get_text() for text in ax.get_legend().get_texts()] == [
        "mean, in steps of the lag of 3 layers", "95 % intervals",
    ]  # fmt: skip
    assert cert.plot(ax=ax) is ax


def test_a_picture_shows_the_lower_ends_that_are_positive():
    """Those at 0 lie below its range, which then ends at a tenth of the share of one pair."""
    cert = tv_bound(RELU, 20, lag=3, chains=200, rng=1)
    assert cert.ci[-1, 0] == 0.0
    assert cert.plot().get_ylim()[0] == pytest.approx(0.1 / 200)
    above = dataclasses.replace(cert, ci=np.maximum(cert.ci, 0.01))
    assert above.plot().get_ylim()[0] == pytest.approx(0.5 * 0.01)


def test_a_horizon_caps_the_mean_and_adds_to_the_interval():
    certs = [
        tv_bound(RELU, 40, lag=4, chains=300, horizon=horizon, rng=1) for horizon in (4, 11, 20)
    ]
    waited = certs[0].meeting_times - 4
    for lags, cert in zip((1, 3, 5), certs, strict=True):
        assert cert.horizon == 4 * lags
        # A later layer is not farther from the stationary law, so no later interval ends higher.
        assert np.all(np.diff(cert.ci[:, 1]) <= 0.0)
        assert np.all(np.diff(cert.lagged.ci[:, 1]) <= 0.0)
        capped = np.clip(np.ceil((waited - 3) / 4), 0, lags).mean()
        np.testing.assert_allclose(
            cert.ci[3], lags * bounded_mean_interval(capped / lags, 300, 0.95), rtol=1e-9
        )
        # No pair of 300 is apart in deep layers: Hoeffding's bound for each lag of the horizon.
        assert cert.ci[40, 1] == pytest.approx(lags * (1.0 - 40.0 ** (-1.0 / 300.0)), rel=1e-9)
        for other in certs:
            np.testing.assert_allclose(cert.over(other.horizon), other.ci[:, 1], rtol=1e-12)
    assert certs[0].over(8.5)[40] == certs[1].ci[40, 1]


def test_what_the_caller_excludes_extends_the_horizon():
    tanh = bnmc.Chain(20, 3, "tanh")
    options = {"lag": 4, "horizon": 62, "chains": 300, "rng": 1}
    stated = tv_bound(tanh, 40, tail_probability=1e-6, **options)
    assert (stated.law, stated.horizon) == ("quasi-stationary", 64)
    # 10⁴ layers are 2500 lags, of which the horizon has 16.
    expected = stated.ci[:, 1] + 2484 * 1e-6
    np.testing.assert_allclose(stated.over(10_000), expected, rtol=1e-12)
    with pytest.raises(ArgumentError, match="layers"):
        stated.over(math.inf)
    excluded = tv_bound(tanh, 40, tail_probability=0.0, **options)
    assert excluded.law == "stationary"
    np.testing.assert_array_equal(excluded.over(math.inf), excluded.ci[:, 1])
    assert "from the stationary law" in str(excluded)
    with pytest.raises(ArgumentError, match="layers"):
        excluded.over(0.0)


def test_what_the_caller_excludes_must_fit_the_pairs():
    # At lag 4 some of 300 pairs wait longer than 8 layers.
    tanh = bnmc.Chain(20, 3, "tanh")
    options = {"lag": 4, "horizon": 8, "chains": 300, "rng": 1}
    waited = tv_bound(tanh, 40, **options).meeting_times - 4
    longer = int((waited > 8).sum())
    assert 0 < longer < 100
    least = scipy.stats.binomtest(longer, 300).proportion_ci(0.95, "exact").low
    with pytest.raises(ArgumentError, match=f"{longer} of 300 pairs waited longer than 8 layers"):
        tv_bound(tanh, 40, tail_probability=0.999 * least, **options)
    assert tv_bound(tanh, 40, tail_probability=1.001 * least, **options).law != "stationary"


def test_a_long_horizon_needs_neither_memory_nor_time():
    cert = tv_bound(RELU, 40, lag=1, chains=100, horizon=10**8, rng=0)
    assert cert.horizon == 10**8
    # With no pair apart in deep layers: Hoeffding's bound times the number of lags.
    assert cert.ci[40, 1] == pytest.approx(1e8 * (1.0 - 40.0 ** (-0.01)), rel=1e-9)
    assert cert.over(1e300)[40] == pytest.approx(1e300 * (1.0 - 40.0 ** (-0.01)), rel=1e-9)


def test_layers_where_slow_pairs_dominate_the_bound_are_not_certified():
    cert = tv_bound(RELU, 40, lag=2, chains=500, rng=0)
    slow = dataclasses.replace(cert, value=cert.bound + 0.1)
    assert cert.layers_to(0.05) is not None
    assert slow.layers_to(0.05) is None
    assert slow.layers_to(0.2) >= cert.layers_to(0.2)


def test_a_chain_that_dies_rarely_is_certified_for_a_horizon_only():
    # A sample whose 16 activations are all 0 stays dead: 2 · 2⁻¹⁶ a layer, and by layer 40,000 of
    # two networks in three.
    chain = bnmc.Chain(16, 2, "relu", norm="batch-uncentred")
    cert = tv_bound(chain, 60, chains=400, horizon=200, tail_probability=0.0, rng=0)
    dead = next(event for event in cert.absorbing_events if event.name == "dead sample")
    assert dead.probability == 2.0**-15
    assert cert.law == "quasi-stationary"
    assert cert.absorbed(10_000) >= 0.305
    assert cert.absorbed(0) == 0.0
    assert "Absorbing states: All activations of a sample are 0" in str(cert)
    with pytest.raises(ArgumentError, match="layers"):
        cert.over(math.inf)
    assert cert.to_dict()["absorbing_events"][0]["name"] in str([*cert.absorbing_events])


def test_what_has_been_met_comes_with_the_error():
    with pytest.raises(NotMixing) as raised:
        tv_bound(RELU, 10, lag=4, chains=400, max_layers=4, horizon=8, tail_probability=0.0, rng=0)
    partial = raised.value.partial
    assert partial.law == "quasi-stationary"  # whatever the caller excludes
    assert isinstance(partial, meeting_bound.TVBound)
    assert 0 < partial.unmet < 400
    assert f"Too small: {partial.unmet} pairs had not met." in str(partial)
    assert (partial.meeting_times == 8).sum() >= partial.unmet
    assert f"{partial.unmet} of 400" in str(raised.value)
    # The contraction of relu at n = 3 is about 0.4 a layer.
    assert raised.value.exponent < -0.3


def lagged():
    return LaggedDistance(
        value=np.array([1.0, 0.5, 0.25, 0.0]),
        stderr=np.array([0.0, 0.05, 0.04, 0.0]),
        ci=np.array([[0.9, 1.0], [0.4, 0.6], [0.2, 0.3], [0.0, 0.04]]),
        method="coupled pairs",
        layers=np.arange(4),
        band=0.1,
        lag=3,
        n=100,
    )


def test_the_first_layer_below_a_tolerance():
    distance = lagged()
    assert distance.layers_to(0.3) == 2
    assert distance.layers_to(0.29) == 3
    assert distance.layers_to(0.01) is None
    with pytest.raises(ArgumentError, match="atol"):
        distance.layers_to(-1.0)


def test_it_is_a_table_and_a_dictionary():
    lines = str(lagged()).splitlines()
    assert lines[0] == (
        "Upper bound of the total-variation distance between layers l and l + 3; 100 pairs, no "
        "assumption"
    )
    assert [line.split() for line in lines[1:]] == [
        ["layer", "mean", "of", "pairs", "95", "%:", "certified", "is", "the", "upper", "end"],
        ["0", "1", "[0.9,", "1]"],
        ["1", "0.5", "[0.4,", "0.6]"],
        ["2", "0.25", "[0.2,", "0.3]"],
        ["3", "<", "0.01", "[0,", "0.04]"],
    ]
    content = json.loads(json.dumps(lagged().to_dict()))
    assert content == {
        "layers": [0, 1, 2, 3], "lag": 3, "bound": [1.0, 0.5, 0.25, 0.0], "band": 0.1,
        "chains": 100, "level": 0.95, "stderr": [0.0, 0.05, 0.04, 0.0], "method": "coupled pairs",
        "ci": [[0.9, 1.0], [0.4, 0.6], [0.2, 0.3], [0.0, 0.04]],
    }  # fmt: skip


def test_tables_show_powers_of_two_and_the_ends():
    assert shown_layers(0) == [0]
    assert shown_layers(1) == [0, 1]
    assert shown_layers(8) == [0, 1, 2, 4, 8]
    assert shown_layers(9) == [0, 1, 2, 4, 8, 9]


# --- Statistics of meeting times: their formulas, and the coverage of their intervals


@pytest.fixture
def one_processor(monkeypatch):
    """Few tasks, since a task of a small chain costs more than its pairs."""
    monkeypatch.setattr(workers, "available_processors", lambda: 1)


def test_two_centred_samples_forget_everything_in_one_layer():
    # PGP is a number, which the normalization does not see: layers after the first are i.i.d.
    cert = tv_bound(bnmc.Chain(20, 2, "relu"), 3, chains=300, lag=2, rng=0)
    np.testing.assert_array_equal(cert.meeting_times, 3)
    np.testing.assert_array_equal(cert.bound, [1.0, 0.0, 0.0, 0.0])
    np.testing.assert_array_equal(cert.lagged.bound, [1.0, 0.0, 0.0, 0.0])
    assert cert.rate == 0.0
    assert cert.alpha == 1.0
    # 0 of 300: the exact upper end of the rate and of the survival.
    assert cert.rate_estimate.ci[1] == pytest.approx(1 - 0.025 ** (1 / 300), rel=1e-12)
    assert cert.lagged.ci[2, 1] == pytest.approx(1 - 0.025 ** (1 / 300), rel=1e-12)


def test_the_bound_is_the_mean_over_meeting_times_of_the_formula():
    cert = tv_bound(RELU, 25, lag=3, chains=500, rng=1, level=0.9)
    assert (cert.chains, cert.lag, cert.level, cert.unmet) == (500, 3, 0.9, 0)
    assert (cert.meeting_times > 3).all()
    assert cert.tries == 500 + cert.refusals
    np.testing.assert_array_equal(cert.layers, np.arange(26))
    for layer in (0, 1, 5, 9, 14, 25):
        excess = [max(0, math.ceil((int(t) - 3 - layer) / 3)) for t in cert.meeting_times]
        assert cert.bound[layer] == pytest.approx(np.mean(excess), rel=1e-13)
        assert cert.stderr[layer] == pytest.approx(scipy.stats.sem(excess), rel=1e-12, abs=1e-15)
        apart = int((cert.meeting_times - 3 > layer).sum())
        assert cert.lagged.bound[layer] == pytest.approx(apart / 500, abs=1e-15)
        spread = math.sqrt(apart * (500 - apart) / 500) / 500
        assert cert.lagged.stderr[layer] == pytest.approx(spread, rel=1e-12)
        exact = scipy.stats.binomtest(apart, 500).proportion_ci(0.9, "exact")
        np.testing.assert_allclose(cert.lagged.ci[layer], exact, rtol=1e-9, atol=1e-12)
        capped = np.minimum(excess, 2).mean()
        expected = 2.0 * bounded_mean_interval(capped / 2.0, 500, 0.9)
        np.testing.assert_allclose(cert.ci[layer], expected, rtol=1e-9, atol=1e-15)
    lagged = cert.lagged
    assert lagged.band == pytest.approx(math.sqrt(math.log(20.0) / 1000.0))
    assert (lagged.lag, lagged.chains, lagged.level) == (3, 500, 0.9)
    for bounds, assumes in ((cert, cert.assumes), (lagged, ())):
        at_five = bounds[5]
        assert isinstance(at_five, bnmc.Estimate)
        assert (at_five.value, at_five.stderr) == (bounds.bound[5], bounds.stderr[5])
        assert (*at_five.ci, at_five.n, at_five.level, at_five.assumes) == (
            *bounds.ci[5],
            500,
            0.9,
            assumes,
        )
    assert (np.diff(cert.bound) <= 0).all()
    assert (np.diff(cert.ci, axis=0) <= 0).all()


def test_the_rate_is_that_of_the_times_beyond_their_median():
    cert = tv_bound(RELU, 0, lag=1, chains=2000, rng=2)
    times = np.sort(cert.meeting_times)
    beyond = times[times > times[999]] - times[999]
    estimate = cert.rate_estimate
    assert cert.rate == pytest.approx(1.0 - 1.0 / beyond.mean(), rel=1e-13)
    assert estimate.n == beyond.size
    # Of this many deaths in Σe layers: the negative binomial law's tails at the ends are at most
    # 2.5 %, as the interval is no shorter than the exact one.
    failures = beyond.sum() - beyond.size
    low, high = (scipy.stats.nbinom(beyond.size, 1.0 - rate) for rate in estimate.ci)
    assert low.sf(failures - 1) <= 0.025 * (1 + 1e-9)
    assert high.cdf(failures) <= 0.025 * (1 + 1e-9)


def shares(chain, lag, replicates, seeds, depth, result):
    """How often intervals cover what 100 times as many pairs find."""
    truth = tv_bound(chain, depth, lag=lag, chains=100 * replicates, rng=result)
    waited = truth.meeting_times - lag
    capped = [np.clip(np.ceil((waited - layer) / lag), 0, 2).mean() for layer in range(depth + 1)]
    covered = {name: [] for name in ("bound", "survival", "band", "rate")}
    for part in _parts(chain, lag, replicates, seeds, [result, 0]):
        # The bound without pairs from other starts, which its intervals do not use.
        cert = meeting_bound.summary(part, lag, depth, 2, 4000, 0.95, 0)
        covered["bound"].append((cert.ci[:, 0] <= capped) & (capped <= cert.ci[:, 1]))
        exact, share = cert.lagged.ci, truth.lagged.bound
        covered["survival"].append((exact[:, 0] <= share) & (share <= exact[:, 1]))
        covered["band"].append(np.abs(cert.lagged.bound - share).max() <= cert.lagged.band)
        low, high = cert.rate_estimate.ci
        covered["rate"].append(low <= truth.rate <= high)
    return {name: np.mean(values, axis=0) for name, values in covered.items()}


def _parts(chain, lag, replicates, count, seed):
    """Yield the meetings of independent parts of one run: many small runs cost more."""
    pairs = coupling.CoupledPairs(chain, "gaussian", seed, 4000, Parallel.of(executor=AtOnce()))
    whole = pairs.run(lag, 0, count * replicates)
    for first in range(0, count * replicates, replicates):
        part = slice(first, first + replicates)
        names = ("layers", "tries", "refusals", "degenerate")
        yield dataclasses.replace(whole, **{name: getattr(whole, name)[part] for name in names})


@pytest.mark.untraced
@pytest.mark.parametrize(
    ("lag", "replicates"),
    [pytest.param(1, 200, marks=pytest.mark.slow, id="large"), pytest.param(6, 20, id="small")],
)
@pytest.mark.usefixtures("one_processor")
def test_intervals_cover(lag, replicates):
    # Of 700 seeds: a share has a standard error of 0.8 %, and all intervals are conservative by
    # construction. An error that is stated 20 % too small, a share of 89 %, is missed with
    # probability 0.004.
    result = shares(bnmc.Chain(12, 3, "relu"), lag, replicates, 700, 8, 7)
    assert (result["bound"] >= 0.925).all()
    assert (result["survival"] >= 0.925).all()
    assert result["band"] >= 0.925
    assert result["rate"] >= 0.925


LAWS = {
    "geometric": (200, [(1.0, 5.0)]),
    "1 % slow": (200, [(0.99, 5.0), (0.01, 200.0)]),
    "0.1 % very slow": (200, [(0.999, 5.0), (0.001, 1000.0)]),
    "1e-4, 1e4": (1000, [(0.9999, 5.0), (0.0001, 1e4)]),
    "half slow": (50, [(0.5, 3.0), (0.5, 60.0)]),
}


@pytest.mark.untraced
@pytest.mark.parametrize(("name", "lags"), pairs(LAWS, [1, 2, 30], every=3))
def test_intervals_cover_for_light_and_heavy_tails(name, lags):
    # Mixtures of geometric laws, whose survival function and so E min(J_l, k) = Σ P(W > l + jL),
    # j < k, are known. Of 2000 seeds, each end may miss 2.5 %: a share whose probability is at most
    # that exceeds the quantile of the binomial law with probability 2e-8, in 12 comparisons.
    replicates, parts = LAWS[name]
    rng = np.random.default_rng([len(name), lags])
    lag, seeds = 10, 2000
    layers = np.array([0, 5, 10, 20, 30, 60])
    weights, means = np.array(parts).T
    times = layers[:, None] + lag * np.arange(lags)
    truth = sum(weight * (1.0 - 1.0 / mean) ** times for weight, mean in parts).sum(axis=1)
    waited = rng.geometric(1.0 / means[rng.choice(len(means), (seeds, replicates), p=weights)])
    excess = np.ceil((waited[..., None] - layers) / lag).clip(0, lags).mean(axis=1)
    intervals = lags * bounded_mean_interval(excess / lags, replicates, 0.95)
    for result in range(3):
        outcome = capped_intervals(waited[result], lag, 60, lags, 0.95)[layers]
        np.testing.assert_allclose(outcome, intervals[result], rtol=1e-9, atol=1e-15)
    missed = [(truth < intervals[..., 0]).sum(axis=0), (truth > intervals[..., 1]).sum(axis=0)]
    assert np.max(missed) <= scipy.stats.binom(seeds, 0.025).isf(2e-8)


@pytest.mark.parametrize("name", LAWS)
def test_shares_cover_for_light_and_heavy_tails(name):
    # As above, for P(W > l): exact intervals, and the band for all layers.  Of 1000 seeds, an end
    # that misses 8 % shows.
    replicates, parts = LAWS[name]
    rng = np.random.default_rng(len(name))
    depth, seeds = 60, 1000
    layers = np.arange(depth + 1)
    weights, means = np.array(parts).T
    truth = sum(weight * (1.0 - 1.0 / mean) ** layers for weight, mean in parts)
    missed, outside = np.zeros((2, depth + 1)), 0
    for _ in range(seeds):
        waited = rng.geometric(1.0 / means[rng.choice(len(means), replicates, p=weights)])
        share, ci, band = survival(waited, depth, 0.95)
        missed += [truth < ci[:, 0], truth > ci[:, 1]]
        outside += np.abs(share - truth).max() > band
    assert missed.max() <= scipy.stats.binom(seeds, 0.025).isf(1e-9)
    assert outside <= scipy.stats.binom(seeds, 0.05).isf(1e-8)


def test_a_chain_that_loses_rank_does_not_mix():
    with pytest.raises(NotMixing, match="lost rank") as raised:
        tv_bound(bnmc.Chain(25, 10, "linear"), 10, rng=0)
    error = raised.value
    # log10 of the least eigenvalue of (9, 25) was measured as -28 at layer 2000: -0.014 a layer.
    assert -0.03 < error.pivot_trend < -0.007
    assert error.partial is None
    assert "unstable" not in str(error)
    assert "10^-0.0" in str(error)
    assert isinstance(error, PartialEstimateError)


@pytest.mark.parametrize(("most", "observed"), [slow(400, "lost rank"), (30, "had not met")])
def test_an_unstable_fixed_point_is_named_before_what_the_pairs_did(most, observed):
    chain = bnmc.Chain(200, 64, "gelu")
    rate = bnmc.MeanField(chain).fixed_point().rate
    message = rf"^the fixed point is unstable \(rate {rate:.4g} .* in this run, 32 .* {observed}"
    with pytest.raises(NotMixing, match=message):
        tv_bound(chain, 10, max_layers=most, rng=0)


@pytest.mark.parametrize("level", [0.9, 0.99])
def test_the_interval_of_the_rate_is_the_wider_of_two_from_both_sides(level):
    """Exact for a geometric law, or of the mean of the times beyond the median if that is wider."""
    tail = (1 - level) / 2
    # Times beyond the median 5 that vary less than a geometric law: 1 to 3 layers.
    even = np.concatenate([np.full(101, 5), np.resize([6, 7, 8], 100)])
    estimate = tail_rate(even, level)
    failures = int((even[101:] - 5).sum()) - 100
    low, high = (scipy.stats.nbinom(100, 1.0 - rate) for rate in estimate.ci)
    assert low.sf(failures - 1) == pytest.approx(tail, rel=1e-6)
    assert high.cdf(failures) == pytest.approx(tail, rel=1e-6)
    # And some that vary much more: the interval of their mean, 1/(1 − rate).
    beyond = np.resize([1, 1, 1, 1, 60], 100)
    estimate = tail_rate(np.concatenate([np.full(101, 5), 5 + beyond]), level)
    ends = mean_interval(beyond, 1 - tail)
    assert estimate.ci == pytest.approx([1 - 1 / end for end in ends], rel=1e-9)
    stderr = scipy.stats.sem(beyond) / beyond.mean() ** 2
    assert estimate.stderr == pytest.approx(stderr, rel=1e-9)
