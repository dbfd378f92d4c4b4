"""Laws of weights as values: what they state is true of the numbers that they draw."""

import numpy as np
import pytest

from bnmc.chain.weights import WEIGHTS, weight_law


@pytest.mark.parametrize("name", WEIGHTS)
def test_entries_have_the_moments_that_the_law_states(name):
    law = weight_law(name)
    entries = law.entries(np.random.default_rng(0), (1000, 1000))
    assert entries.shape == (1000, 1000)
    # Of 10⁶ numbers with kurtosis at most 3, and x⁴ of variance at most 96: 6 standard errors.
    assert abs(entries.mean()) < 6e-3
    assert abs(np.square(entries).mean() - 1.0) < 6e-3 * np.sqrt(2.0)
    assert abs((entries**4).mean() - law.fourth_moment) < 6e-3 * np.sqrt(96.0)
    assert law.is_symmetric


def test_the_law_of_a_sampler_draws_from_it():
    law = weight_law(lambda rng, shape: rng.choice([-1.0, 1.0], shape))
    same = np.random.default_rng(1).choice([-1.0, 1.0], (3, 3))
    np.testing.assert_array_equal(law.entries(np.random.default_rng(1), (3, 3)), same)
    assert not law.is_symmetric
    assert law.fourth_moment is None
