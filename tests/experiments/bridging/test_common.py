"""The closed form of linear networks."""

import pytest

import bnmc
from bnmc.bounds.orthogonalizes import stationary_squared_distance
from bnmc.experiments import bridging


def test_stationary_linear_refuses_what_is_no_size():
    for width, batch in ((0, 5), (10, 1)):
        with pytest.raises(bnmc.errors.ArgumentError):
            bridging.stationary_linear(width, batch)


def test_stationary_linear_is_the_squared_distance_of_the_bounds():
    for width, batch in ((1000, 5), (7, 2), (10**6, 300)):
        expected = float(stationary_squared_distance(width, batch))
        assert bridging.stationary_linear(width, batch) == expected
