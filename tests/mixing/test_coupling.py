"""Runs of coupled pairs: the pilot and the lag that it chooses."""

import numpy as np
import pytest
import scipy.stats

import bnmc
from bnmc.chain.start import prepare
from bnmc.errors import NotMixing, ZeroVarianceError
from bnmc.mean_field import block_symmetric
from bnmc.mixing import coupling
from bnmc.mixing.meeting_bound import tv_bound
from bnmc.mixing.starts import other_starts

RELU = bnmc.Chain(20, 3, "relu")


def outlier(width, batch, rng):
    """A batch near the attractor of abs at which the first sample stands out."""
    (point, *_) = block_symmetric("abs", batch)
    values, vectors = np.linalg.eigh(point.gram)
    root = (vectors * np.sqrt(values.clip(0.0))) @ vectors.T
    return point, rng.standard_normal((width, batch)) @ root


def test_the_lag_is_chosen_so_that_most_pairs_meet_within_it():
    cert = tv_bound(RELU, 5, replicates=2000, rng=0)
    # The 0.9 quantile of 32 pilot pairs: their share of meetings within it is Beta(29, 4).
    low, high = scipy.stats.beta(28, 5).ppf(1e-6), 1.0
    assert low < np.mean(cert.meeting_times <= 2 * cert.lag) <= high
    again = tv_bound(RELU, 5, lag=cert.lag, replicates=2000, rng=0)
    np.testing.assert_array_equal(cert.meeting_times, again.meeting_times)


def test_pairs_that_mostly_do_not_meet_end_the_pilot():
    with pytest.raises(NotMixing, match="of 32 pairs") as raised:
        tv_bound(RELU, 10, max_layers=3, rng=0)
    assert raised.value.partial is None


def test_wells_are_found_from_other_starts():
    # abs, batch 24: the batch stays near an attractor at which G_00 is 7.50, and in another order at
    # one at which G_00 is 0.72. Pairs that start alike meet within 60 layers.
    point, x = outlier(1000, 24, np.random.default_rng(0))
    chain = bnmc.Chain(1000, 24, "abs")
    for start, expected in ((x, point.diagonal[0]), (x[:, ::-1], point.diagonal[1])):
        run = bnmc.simulate(chain, 60, chains=4, initial=start, rng=1, burn_in=60)
        assert abs(run.gram[:, -1, 0, 0].mean() / expected - 1.0) < 0.1
        with pytest.raises(NotMixing, match="depends on the start: with chains from") as raised:
            tv_bound(chain, 60, replicates=40, initial=start, max_layers=100, rng=2)
        partial = raised.value.partial
        assert partial.layers_to(0.5) is not None
        assert partial.crossed_starts == ()
        with pytest.raises(NotMixing, match="depends on the start"):
            bnmc.invariant.expectation(
                chain, lambda G: G[0, 0], replicates=40, initial=start, max_layers=100, rng=2
            )


@pytest.mark.parametrize("order", ["reverse", "shifted"])
def test_another_order_of_a_batch_is_another_start(order, monkeypatch):
    # With the orders alone: the well of a batch is not that of its permutation.
    _, x = outlier(1000, 24, np.random.default_rng(0))

    def only_orders(chain, start):
        found = other_starts(chain, start)
        return {name: found[name] for name in found if order in name}

    monkeypatch.setattr(coupling, "other_starts", only_orders)
    with pytest.raises(NotMixing, match="the batch"):
        tv_bound(bnmc.Chain(1000, 24, "abs"), 60, replicates=40, initial=x, max_layers=100, rng=2)


def test_an_alternating_chain_does_not_meet_itself_one_layer_behind(monkeypatch):
    # Meetings of a chain with period 2 and an even lag: pairs with lag 1 never meet.
    run = coupling.CoupledPairs.run

    def alternating(self, lag, first, last, behind=None):
        meetings = run(self, lag, first, last, behind)
        if lag % 2:
            meetings.layers[:] = -1
        return meetings

    monkeypatch.setattr(coupling.CoupledPairs, "run", alternating)
    with pytest.raises(NotMixing, match="the same start, one layer behind"):
        tv_bound(RELU, 10, lag=4, replicates=40, rng=0)


def test_other_starts_meet_and_their_times_are_kept():
    cert = tv_bound(RELU, 10, lag=4, replicates=100, rng=0)
    names = [crossed.name for crossed in cert.crossed_starts]
    assert names == list(other_starts(RELU, prepare(RELU, "gaussian", 1, None)))
    for crossed in cert.crossed_starts:
        assert crossed.waiting_times.shape == (32,)
        assert 1 <= crossed.waiting_times.min() <= crossed.waiting_times.max() < 60
    # Different starts use different random numbers.
    times = [tuple(crossed.waiting_times) for crossed in cert.crossed_starts]
    assert len(set(times)) == len(times)


def test_a_chain_from_another_start_that_stops_is_a_finding(monkeypatch):
    run = coupling.CoupledPairs.run

    def stopping(self, lag, first, last, behind=None):
        if behind is not None:
            raise ZeroVarianceError(first, 3, 5)
        return run(self, lag, first, last, behind)

    monkeypatch.setattr(coupling.CoupledPairs, "run", stopping)
    with pytest.raises(NotMixing, match="a chain stopped: .*layer 3") as raised:
        tv_bound(RELU, 10, lag=4, replicates=40, rng=0)
    assert raised.value.partial.replicates == 40
    assert np.isnan(raised.value.exponent)


def test_states_for_absorbing_events_are_those_of_the_chain(monkeypatch):
    seen = []
    monkeypatch.setattr(coupling, "absorbing_events", lambda chain, grams: seen.append(grams) or ())
    tv_bound(RELU, 10, lag=4, replicates=300, rng=0)
    (grams,) = seen
    assert grams.shape == (coupling.STATES, 3, 3)
    # Their mean diagonal is that of a run: of 256 means of 3 entries, 5.5 standard errors.
    run = bnmc.simulate(RELU, 30, chains=20_000, rng=5, burn_in=30).gram[:, -1]
    mine, theirs = (np.trace(g, axis1=1, axis2=2) for g in (grams, run))
    error = np.hypot(mine.std() / 16.0, theirs.std() / 141.0)
    assert abs(mine.mean() - theirs.mean()) < 5.5 * error
