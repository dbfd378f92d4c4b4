"""Closed forms of linear networks, and their simulation."""

import numpy as np
import pytest

import bnmc
from bnmc.bounds.orthogonalizes import stationary_squared_distance
from bnmc.experiments import bridging
from bnmc.experiments.bridging.linear_networks import BATCH, linear_cases, orthogonal_samples


def test_stationary_linear_refuses_what_is_no_size():
    for width, batch in ((0, 5), (10, 1)):
        with pytest.raises(bnmc.errors.ArgumentError):
            bridging.stationary_linear(width, batch)


def test_stationary_linear_is_the_squared_distance_of_the_bounds():
    for width, batch in ((1000, 5), (7, 2), (10**6, 300)):
        expected = float(stationary_squared_distance(width, batch))
        assert bridging.stationary_linear(width, batch) == expected


def test_networks_start_at_the_fixed_point_without_normalization():
    x = orthogonal_samples(np.random.default_rng(0))
    fixed_point = linear_cases()["none"].fixed_point
    np.testing.assert_allclose(x.T @ x / len(x), fixed_point, atol=1e-14)
    assert fixed_point.shape == (BATCH, BATCH)
