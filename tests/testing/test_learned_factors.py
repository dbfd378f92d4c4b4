"""Steps that treat features alike, and steps with learned factors."""

import numpy as np
import pytest

import bnmc
from bnmc.testing.learned_factors import _permutation, features_differ


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
