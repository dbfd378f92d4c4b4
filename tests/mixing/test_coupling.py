"""Runs of coupled pairs: the pilot and the lag that it chooses."""

import numpy as np
import pytest
import scipy.stats

import bnmc
from bnmc.errors import NotMixing
from bnmc.mixing.meeting_bound import tv_bound

RELU = bnmc.Chain(20, 3, "relu")


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
