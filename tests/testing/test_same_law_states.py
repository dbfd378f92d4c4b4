"""The states on which a step is tested: columns of W can be read off h′ on one of them."""

import numpy as np
import pytest
from oracle import FALSE_ALARM
from scipy import stats

import bnmc
from bnmc.testing.calls_on_state import CallsOnState
from bnmc.testing.same_law import tried_states


def rows_apart(chain, seed):
    known = dict(tried_states(chain, lambda h: h, np.random.default_rng(seed)))
    return CallsOnState("rows apart", known["rows apart"], 2.0**-52)


@pytest.mark.parametrize(
    ("chain", "columns"),
    [
        (bnmc.Chain(20, 5, "relu"), 3),
        pytest.param(bnmc.Chain(30, 9, "tanh"), 4, marks=pytest.mark.slow),
        pytest.param(bnmc.Chain(20, 3, "linear"), 1, marks=pytest.mark.slow),
        (bnmc.Chain(20, 2, "relu"), 1),
        (bnmc.Chain(20, 3, "relu", norm="batch-uncentred"), 2),
    ],
    ids=repr,
)
def test_weights_are_read_exactly(chain, columns):
    """For every seed, the readings are entries of W times √width, of columns in random places."""
    rng, seen = np.random.default_rng(0), set()
    for seed in range(30):
        state = rows_apart(chain, seed)
        weights = rng.standard_normal((2, chain.width, chain.width)) / np.sqrt(chain.width)
        state.add(weights @ state.layer.a[0])
        read = state.readings.reshape(2, chain.width, columns)
        gaps = [
            [np.abs(read[..., one] - np.sqrt(chain.width) * weights[..., j]).max()
             for j in range(chain.width)]
            for one in range(columns)
        ]  # fmt: skip
        places = np.argmin(gaps, axis=1)
        assert len(set(places)) == columns
        # Rounding of about 1e-16, times the condition of the rows that are apart.
        assert np.min(gaps, axis=1).max() < 1e-9
        seen |= set(places)
    assert len(seen) > 10


def test_a_chain_whose_columns_cannot_be_read():
    """All samples of a centred batch of 2 are on a line: no column is apart, and none is read."""
    state = rows_apart(bnmc.Chain(20, 2, "linear"), 0)
    state.add(np.random.default_rng(0).standard_normal((2, 20, 20)) @ state.layer.a[0])
    assert state.readings.size == 0


@pytest.mark.parametrize("batch", [3, 4, 7])
def test_half_of_the_samples_are_copies(batch):
    """But two differ even in a batch of three: a norm over the batch divides by their spread."""
    chain = bnmc.Chain(6, batch, "relu")
    states = dict(tried_states(chain, lambda h: h, np.random.default_rng(0)))
    samples = states["duplicated samples"].y[0].T
    assert len(np.unique(samples, axis=0)) == (batch + 1) // 2


def test_row_means_have_three_times_the_deviation_of_entries():
    """Of 2000 rows of 4, N(0, 9 + 1/4), by the inequality of Dvoretzky, Kiefer and Wolfowitz."""
    chain = bnmc.Chain(2000, 4, "relu")
    states = tried_states(chain, lambda h: h, np.random.default_rng(0))
    means = next(layer for name, layer in states if name == "row means").y[0].mean(axis=1)
    distance = stats.kstest(means, stats.norm(0.0, np.sqrt(9.25)).cdf).statistic
    assert distance <= np.sqrt(np.log(2.0 / FALSE_ALARM) / (2 * 2000))
