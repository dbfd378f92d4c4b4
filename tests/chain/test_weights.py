"""Laws of weights as values: what they state is true of the numbers that they draw."""

import numpy as np
import pytest

from bnmc.chain.weights import WEIGHTS, weight_law


@pytest.mark.parametrize("name", WEIGHTS)
def test_entries_have_the_moments_that_the_law_states(name):
    law = weight_law(name)
    # Small matrices, as an orthogonal one is dear.
    rng = np.random.default_rng(0)
    entries = np.stack([law.entries(rng, (20, 20)) for _ in range(2500)])
    assert entries.shape == (2500, 20, 20)
    # Of 10⁶ numbers with kurtosis at most 3, and x⁴ of variance at most 96: 6 standard errors.
    assert abs(entries.mean()) < 6e-3
    assert abs(np.square(entries).mean() - 1.0) < 6e-3 * np.sqrt(2.0)
    # An orthogonal matrix of order d has 3 d / (d + 2).
    fourth = 3.0 * 20 / 22 if law.is_orthogonal else law.fourth_moment
    assert abs((entries**4).mean() - fourth) < 6e-3 * np.sqrt(96.0)
    assert law.is_symmetric


def test_the_law_of_a_sampler_draws_from_it():
    law = weight_law(lambda rng, shape: rng.choice([-1.0, 1.0], shape))
    same = np.random.default_rng(1).choice([-1.0, 1.0], (3, 3))
    np.testing.assert_array_equal(law.entries(np.random.default_rng(1), (3, 3)), same)
    assert not law.is_symmetric
    assert law.fourth_moment is None


@pytest.mark.parametrize(("rows", "order"), [(1, 1), (4, 4), (2, 5)])
def test_haar_entries_are_rows_of_orthogonal_matrices(rows, order):
    law = weight_law("haar")
    drawn = [law.entries(np.random.default_rng(seed), (rows, order)) for seed in range(2000)]
    for one in drawn:
        np.testing.assert_allclose(one @ one.T, order * np.eye(rows), atol=1e-12 * order)
    # Each entry, to third order symmetric, has the mean 0: of 2000 with variance 1, at 6 errors.
    assert np.abs(np.mean(drawn, axis=0)).max() < 6.0 / np.sqrt(2000)
    assert law.samplers == ("conditional", "weights")
