"""Checks that several estimators share: one message each, at each place."""

import numpy as np
import pytest

import bnmc
from bnmc.chain.requirements import require_stationary_law, require_two_samples
from bnmc.errors import ArgumentError

NONE = bnmc.Chain(20, 3, "relu", norm="none")
ONE = bnmc.Chain(20, 1, "relu", norm="batch-uncentred")
ALLOWED = '"batch" or "batch-uncentred"'
REASON = "without normalization there is no invariant law"
X = np.eye(20)[:, :3]


@pytest.mark.parametrize(
    "call",
    [
        require_stationary_law,
        lambda chain: bnmc.mixing.tv_bound(chain, 3),
        bnmc.mixing.contraction,
        lambda chain: bnmc.mixing.two_inputs(chain, X, X),
        lambda chain: bnmc.invariant.expectation(chain, "trace"),
        bnmc.invariant.check,
        lambda chain: bnmc.invariant.check(chain, samples=np.ones((200, 20, 3))),
    ],
)
def test_without_normalization_there_is_no_stationary_law(call):
    with pytest.raises(ArgumentError) as raised:
        call(NONE)
    assert str(raised.value) == f"norm: got 'none', allowed: {ALLOWED} ({REASON})"


def test_the_table_of_rates_gives_the_reason_in_its_own_way():
    with pytest.raises(ArgumentError) as raised:
        bnmc.mixing.compare(NONE)
    assert str(raised.value) == f"norm: got 'none', allowed: {ALLOWED}: {REASON}"


@pytest.mark.parametrize(
    "call",
    [
        require_two_samples,
        lambda chain: bnmc.mixing.tv_bound(chain, 3),
        bnmc.mixing.compare,
        lambda chain: bnmc.invariant.check(chain, samples=np.ones((200, 20, 1))),
    ],
)
def test_one_sample_is_no_chain(call):
    with pytest.raises(ArgumentError) as raised:
        call(ONE)
    expected = "batch: got 1, allowed: an integer >= 2 (one sample is no chain)"
    assert str(raised.value) == expected


def test_chains_with_a_normalization_pass():
    require_stationary_law(ONE)
    require_stationary_law(bnmc.Chain(20, 3, "relu"))
    require_two_samples(NONE)
