"""The certificate of mixing: it bounds the distance, and its intervals cover."""

import json
import math
from concurrent.futures import Executor, Future

import numpy as np
import pytest
import scipy.stats

import bnmc
from bnmc.errors import ArgumentError, ArgumentTypeError, NotMixing, PartialEstimateError
from bnmc.mixing import coupling, meeting_bound
from bnmc.mixing.coupling import tv_bound

RELU = bnmc.Chain(20, 3, "relu")


class AtOnce(Executor):
    """Runs each task as it is submitted: no threads, which cost more than small tasks do."""

    def submit(self, function, /, *args, **kwargs):
        future = Future()
        future.set_result(function(*args, **kwargs))
        return future


@pytest.fixture
def one_processor(monkeypatch):
    """Few tasks, since a task of a small chain costs more than its pairs."""
    monkeypatch.setattr(coupling, "available_processors", lambda: 1)


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


@pytest.mark.parametrize(
    ("chain", "initial", "numbers"),
    [
        (bnmc.Chain(20, 2, "linear", norm="batch-uncentred"), "near", two_numbers),
        (bnmc.Chain(20, 3, "relu"), "line", shape_of_plane),
    ],
    ids=["uncentred", "centred"],
)
def test_the_bound_is_above_the_distance_and_within_a_factor_of_ten(chain, initial, numbers):
    # The law of these two numbers of G_l is no farther from its limit than that of x_l, and on bins
    # that of the numbers no farther yet. Of N draws each on K bins the estimate is, in expectation,
    # too large by at most sqrt(K/N), and above that by t with probability exp(-N t²) (McDiarmid).
    rng = np.random.default_rng(0)
    x = rng.standard_normal((20, 1)) * np.ones(chain.batch)
    x = x + (0.1 if initial == "near" else 1.0) * np.linspace(-1.0, 1.0, chain.batch)
    x += 0.02 * rng.standard_normal(x.shape)
    count, side, depth = 100_000, 6, 10
    above = math.sqrt(math.log(4 * depth / 1e-6) / count)

    def histogram(gram):
        found, *_ = np.histogram2d(*numbers(gram).T, bins=side, range=[[-1, 1], [-1, 1]])
        return found / count

    limit = histogram(bnmc.simulate(chain, 30, chains=count, rng=1, burn_in=30).gram[:, 0])
    run = bnmc.simulate(chain, depth, chains=count, initial=x, rng=2)
    distance = np.array(
        [0.5 * np.abs(histogram(run.gram[:, at]) - limit).sum() for at in range(depth + 1)]
    )
    least = distance - above - side / math.sqrt(count)
    cert = tv_bound(
        chain, depth, lag=30, replicates=2000, initial=x, rng=3, level=1.0 - 1e-6 / (4 * depth)
    )
    assert (cert.ci[:, 1] >= least).all()
    seen = least >= 0.02
    assert seen.sum() >= 3
    assert (cert.bound[seen] <= 10.0 * (distance[seen] + above)).all()


def test_two_centred_samples_forget_everything_in_one_layer():
    # PGP is a number, which the normalization does not see: layers after the first are i.i.d.
    cert = tv_bound(bnmc.Chain(20, 2, "relu"), 3, replicates=300, lag=2, rng=0)
    np.testing.assert_array_equal(cert.meeting_times, 3)
    np.testing.assert_array_equal(cert.bound, [1.0, 0.0, 0.0, 0.0])
    np.testing.assert_array_equal(cert.survival, [1.0, 0.0, 0.0, 0.0])
    assert cert.rate == 0.0
    assert cert.alpha == 1.0
    # 0 of 300: the exact upper end of the rate and of the survival.
    assert cert.rate_estimate.ci[1] == pytest.approx(1 - 0.025 ** (1 / 300), rel=1e-12)
    assert cert.survival_ci[2, 1] == pytest.approx(1 - 0.025 ** (1 / 300), rel=1e-12)


def test_the_bound_is_the_mean_over_meeting_times_of_the_formula():
    cert = tv_bound(RELU, 25, lag=3, replicates=500, rng=1, level=0.9)
    assert (cert.replicates, cert.lag, cert.level, cert.unmet) == (500, 3, 0.9, 0)
    assert (cert.meeting_times > 3).all()
    assert cert.tries == 500 + cert.refusals
    np.testing.assert_array_equal(cert.layers, np.arange(26))
    for layer in (0, 1, 5, 9, 14, 25):
        excess = [max(0, math.ceil((int(t) - 3 - layer) / 3)) for t in cert.meeting_times]
        assert cert.bound[layer] == pytest.approx(np.mean(excess), rel=1e-13)
        assert cert.stderr[layer] == pytest.approx(scipy.stats.sem(excess), rel=1e-12, abs=1e-15)
        apart = int((cert.meeting_times - 3 > layer).sum())
        assert cert.survival[layer] == pytest.approx(apart / 500, abs=1e-15)
        exact = scipy.stats.binomtest(apart, 500).proportion_ci(0.9, "exact")
        np.testing.assert_allclose(cert.survival_ci[layer], exact, rtol=1e-9, atol=1e-12)
    first = np.ceil((cert.meeting_times - 3) / 3)
    t = scipy.stats.t.ppf(0.95, 499)
    skewness = scipy.stats.skew(first) * (1.0 - 1.0 / 500) ** 1.5
    high = t + skewness * (1.0 + 2.0 * t * t) / (6.0 * math.sqrt(500))
    expected = cert.bound[0] + cert.stderr[0] * np.array([-t, high])
    np.testing.assert_allclose(cert.ci[0], expected, rtol=1e-9)
    assert cert.survival_band == pytest.approx(math.sqrt(math.log(20.0) / 1000.0))
    assert (np.diff(cert.bound) <= 0).all()
    assert (cert.ci[:, 0] <= cert.bound).all()
    assert (cert.bound <= cert.ci[:, 1]).all()


def test_the_rate_is_that_of_the_times_beyond_their_median():
    cert = tv_bound(RELU, 0, lag=1, replicates=2000, rng=2)
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


def test_layers_to_a_tolerance():
    cert = tv_bound(RELU, 60, replicates=500, rng=0)
    layer = cert.layers_to(0.05)
    assert cert.ci[layer, 1] <= 0.05 < cert.ci[layer - 1, 1]
    assert cert.layers_to(1e-9) is None
    with pytest.raises(ArgumentError, match="tolerance"):
        cert.layers_to(0.0)


def test_the_lag_is_chosen_so_that_most_pairs_meet_within_it():
    cert = tv_bound(RELU, 5, replicates=2000, rng=0)
    # The 0.9 quantile of 32 pilot pairs: their share of meetings within it is Beta(29, 4).
    low, high = scipy.stats.beta(28, 5).ppf(1e-6), 1.0
    assert low < np.mean(cert.meeting_times <= 2 * cert.lag) <= high
    again = tv_bound(RELU, 5, lag=cert.lag, replicates=2000, rng=0)
    np.testing.assert_array_equal(cert.meeting_times, again.meeting_times)


def test_the_certificate_is_a_table_a_dictionary_and_a_picture():
    cert = tv_bound(RELU, 20, lag=3, replicates=200, rng=1)
    lines = str(cert).splitlines()
    assert lines[0].endswith("200 pairs, lag 3")
    assert [int(line.split()[0]) for line in lines[3:-1]] == [0, 1, 2, 4, 8, 16, 20]
    assert float(lines[3].split()[1]) == pytest.approx(cert.bound[0], rel=1e-3)
    assert lines[-1].startswith("rate 0.")
    content = json.loads(json.dumps(cert.to_dict()))
    assert content["bound"] == cert.bound.tolist()
    assert content["rate"]["ci"] == list(cert.rate_estimate.ci)
    ax = cert.plot()
    line, one = ax.get_lines()
    np.testing.assert_array_equal(line.get_ydata(), cert.bound[cert.bound > 0])
    assert set(one.get_ydata()) == {1.0}
    assert ax.get_title().endswith("200 pairs")
    assert (ax.get_yscale(), ax.get_xlabel()) == ("log", r"layer $\ell$")
    assert [text.get_text() for text in ax.get_legend().get_texts()] == [
        "mean, in steps of the lag of 3 layers", "95 % intervals",
    ]  # fmt: skip
    assert cert.plot(ax=ax) is ax


def shares(chain, lag, replicates, seeds, depth, one):
    """How often intervals cover what 100 times as many pairs find."""
    truth = tv_bound(chain, depth, lag=lag, replicates=100 * replicates, rng=one)
    covered = {name: [] for name in ("bound", "survival", "band", "rate")}
    for seed in range(seeds):
        cert = tv_bound(
            chain, depth, lag=lag, replicates=replicates, rng=[one, seed], executor=AtOnce()
        )
        covered["bound"].append((cert.ci[:, 0] <= truth.bound) & (truth.bound <= cert.ci[:, 1]))
        exact = cert.survival_ci
        covered["survival"].append(
            (exact[:, 0] <= truth.survival) & (truth.survival <= exact[:, 1])
        )
        covered["band"].append(np.abs(cert.survival - truth.survival).max() <= cert.survival_band)
        low, high = cert.rate_estimate.ci
        covered["rate"].append(low <= truth.rate <= high)
    return {name: np.mean(values, axis=0) for name, values in covered.items()}


@pytest.mark.parametrize(("lag", "replicates"), [(1, 200), (6, 20)], ids=["large", "small"])
@pytest.mark.usefixtures("one_processor")
def test_intervals_cover(lag, replicates):
    # Of 700 seeds: a share has a standard error of 0.8 %. Student's interval of the first layers
    # covers 95 ± 2.5 %; all others are conservative by construction. An error that is stated 20 %
    # too small, a share of 89 %, is missed with probability 0.004.
    found = shares(bnmc.Chain(12, 3, "relu"), lag, replicates, 700, 8, 7)
    assert (found["bound"] >= 0.925).all()
    if replicates > 100:
        assert (found["bound"][:2] <= 0.975).all()
    assert (found["survival"] >= 0.925).all()
    assert found["band"] >= 0.925
    assert found["rate"] >= 0.925


def test_a_chain_that_loses_rank_does_not_mix():
    with pytest.raises(NotMixing, match="lost rank") as raised:
        tv_bound(bnmc.Chain(25, 10, "linear"), 10, rng=0)
    error = raised.value
    # log10 of the least eigenvalue of (9, 25) was measured as -28 at layer 2000: -0.014 a layer.
    assert -0.03 < error.pivot_trend < -0.007
    assert error.partial is None
    assert "10^-0.0" in str(error)
    assert isinstance(error, PartialEstimateError)


def test_a_chain_past_its_stability_limit_does_not_mix():
    # silu at n = 40 (the limit is 26) does not stay at its fixed point: what it goes to has samples
    # that coincide.
    with pytest.raises(NotMixing, match="32 of 32 pairs") as raised:
        tv_bound(bnmc.Chain(400, 40, "silu"), 10, max_layers=300, rng=0)
    assert raised.value.pivot_trend < -0.02
    assert raised.value.partial is None


def test_what_has_been_met_comes_with_the_error():
    with pytest.raises(NotMixing) as raised:
        tv_bound(RELU, 10, lag=4, replicates=400, max_layers=4, rng=0)
    partial = raised.value.partial
    assert isinstance(partial, meeting_bound.TVBound)
    assert 0 < partial.unmet < 400
    assert f"Too small: {partial.unmet} pairs had not met." in str(partial)
    assert (partial.meeting_times == 8).sum() >= partial.unmet
    assert f"{partial.unmet} of 400" in str(raised.value)
    # The contraction of relu at n = 3 is about 0.4 a layer.
    assert raised.value.exponent < -0.3


def test_pairs_that_mostly_do_not_meet_end_the_pilot():
    with pytest.raises(NotMixing, match="of 32 pairs") as raised:
        tv_bound(RELU, 10, max_layers=3, rng=0)
    assert raised.value.partial is None


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"chain": bnmc.Chain(20, 3, "linear", norm="none")}, ArgumentError, "norm"),
        ({"chain": bnmc.Chain(20, 3, "relu", skip=1.0)}, ArgumentError, "autocorrelation"),
        ({"chain": bnmc.Chain(20, 3, "relu", weights="uniform")}, ArgumentError, "weights"),
        ({"chain": "relu"}, ArgumentTypeError, "chain"),
        ({"depth": -1}, ArgumentError, "depth"),
        ({"depth": 2**31}, ArgumentError, "depth"),
        ({"depth": 1.5}, ArgumentTypeError, "depth"),
        ({"replicates": 1}, ArgumentError, "replicates"),
        ({"lag": 0}, ArgumentError, "lag"),
        ({"level": 1.0}, ArgumentError, "level"),
        ({"max_layers": 0}, ArgumentError, "max_layers"),
        ({"initial": "nowhere"}, ArgumentError, "initial"),
        ({"executor": 3}, ArgumentTypeError, "executor"),
        ({"progress": 3}, ArgumentTypeError, "progress"),
    ],
)
def test_bad_input(options, error, said):
    with pytest.raises(error, match=said):
        tv_bound(**({"chain": RELU, "depth": 3, "rng": 0} | options))
