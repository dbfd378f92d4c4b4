"""Closed forms of linear networks, and their simulation."""

import pytest

import bnmc
from bnmc.experiments import bridging


def test_stationary_linear_refuses_what_is_no_size():
    for width, batch in ((0, 5), (10, 1)):
        with pytest.raises(bnmc.errors.ArgumentError):
            bridging.stationary_linear(width, batch)
