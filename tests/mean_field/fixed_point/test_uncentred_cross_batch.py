"""The block between two batches under a norm that does not centre, against simulated rows."""

import math

import numpy as np
import pytest
from oracle import FALSE_ALARM
from scipy import stats

import bnmc


@pytest.mark.parametrize("activation", ["relu", "sigmoid"])
def test_a_layer_keeps_the_block(activation):
    """400,000 pairs of rows of covariances G in a batch, κ between batches: E σσ′ is κ."""
    n, count = 4, 400_000
    chain = bnmc.Chain(10, n, activation, norm="batch-uncentred")
    fixed = bnmc.MeanField(chain).fixed_point()
    whole = np.full((2 * n, 2 * n), fixed.cross_batch)
    for one in (slice(0, n), slice(n, None)):
        whole[one, one] = fixed.gram
    rows = np.random.default_rng(5).standard_normal((count, 2 * n)) @ np.linalg.cholesky(whole).T
    first, second = (
        chain.activation(h / np.sqrt(np.square(h).mean(axis=1, keepdims=True)))
        for h in (rows[:, :n], rows[:, n:])
    )
    samples = first.mean(axis=1) * second.mean(axis=1)
    error = samples.std() / math.sqrt(count)
    assert abs(samples.mean() - fixed.cross_batch) < stats.norm.isf(FALSE_ALARM / 2) * error
    # A block that is wrong by a fifth is seen: X′(ρ)/κ_max is the part of it that a layer keeps.
    assert 0.2 * fixed.cross_batch * (1.0 - fixed.cross_batch_rate) > 10 * error
