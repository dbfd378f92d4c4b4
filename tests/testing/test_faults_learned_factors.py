"""Steps that treat features alike, and steps with learned factors."""

import numpy as np
import pytest
from scipy import stats

import bnmc
from bnmc.testing.faults import _covariances_differ, _permutation, features_differ


def step_of(chain, factors=1.0, shifts=0.0):
    """A layer in NumPy whose norm ends with factors and shifts of the features."""
    rng = np.random.default_rng(3)

    def step(h):
        a = np.maximum(factors * chain.normalization(h, 1e-5) + shifts, 0.0)
        return rng.standard_normal((len(h), len(h))) @ a / np.sqrt(len(h))

    return step


@pytest.mark.parametrize("norm", ["layer", "group(4)", "batch"])
def test_learned_factors_show_and_nothing_else(norm):
    """Twice the quantile of 1e-6 is exceeded by right steps with a far smaller probability."""
    chain = bnmc.Chain(24, 3, "relu", norm=norm)
    learned = np.random.default_rng(1).uniform(0.5, 1.5, (24, 1))
    for step, expected in (
        (step_of(chain, 0.5), False),
        (step_of(chain, learned), True),
        (step_of(chain, 1.0, learned - 1.0), True),
    ):
        assert features_differ(chain, step, np.random.default_rng(2)) == expected


def test_small_factors_of_a_wide_layer_show():
    """A sample with one large entry shows the factor of its feature, whatever the width."""
    chain = bnmc.Chain(200, 4, "relu", norm="rms")
    learned = np.random.default_rng(1).uniform(0.9, 1.1, (200, 1))
    assert features_differ(chain, step_of(chain, learned), np.random.default_rng(2))


def test_permutations_keep_groups():
    order = _permutation(bnmc.Chain(24, 3, norm="group(4)"), np.random.default_rng(0))
    assert sorted(order) == list(range(24))
    assert all(len(set(part // 6)) == 1 for part in order.reshape(4, 6))
    assert len(set(np.diff(order))) > 1


@pytest.mark.parametrize("rank", [1, 2, 5])
@pytest.mark.parametrize(("share", "differ"), [(0.99, False), (1.01, True)])
def test_covariances_differ_beyond_twice_the_quantile_of_their_entries(rank, share, differ):
    """Two covariances of k samples differ in the k(k + 1)/2 entries of a triangle.

    With (1 + t) I and (1 − t) I twice the logarithm of the likelihood ratio of N rows each is
    −N k log(1 − t²).  A last sample of zeros adds nothing.
    """
    calls = 41
    rows = (calls - 1) * rank
    entries = np.triu_indices(rank)[0].size
    statistic = share * 2.0 * stats.chi2.isf(1e-6, entries)
    t = np.sqrt(-np.expm1(-statistic / (rows * rank)))
    samples = np.zeros((calls, rank, rank + 1))
    samples[:, range(rank), range(rank)] = np.sqrt(rows / calls)
    pair = [np.sqrt(1.0 + sign * t) * samples for sign in (1, -1)]
    for one, sign in zip(pair, (1, -1), strict=True):
        covariance = np.einsum("cri,crj->ij", one, one)[:rank, :rank] / rows
        np.testing.assert_allclose(covariance, (1 + sign * t) * np.eye(rank), atol=1e-12)
    assert _covariances_differ(*pair) == differ
