"""Statistics of meeting times: their formulas, and the coverage of their intervals."""

import math
from concurrent.futures import Executor, Future

import numpy as np
import pytest
import scipy.stats

import bnmc
from bnmc.errors import NotMixing, PartialEstimateError
from bnmc.mixing import coupling
from bnmc.mixing.meeting_bound import tv_bound

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
