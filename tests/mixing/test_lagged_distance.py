"""The distance of layers that are a lag apart: it needs no assumption, and its table."""

import json

import numpy as np
import pytest

import bnmc
from bnmc.errors import ArgumentError
from bnmc.mixing.lagged_distance import LaggedDistance, shown_layers


def lagged():
    return LaggedDistance(
        layers=np.arange(4),
        bound=np.array([1.0, 0.5, 0.25, 0.0]),
        ci=np.array([[0.9, 1.0], [0.4, 0.6], [0.2, 0.3], [0.0, 0.04]]),
        band=0.1,
        lag=3,
        replicates=100,
        level=0.95,
    )


def test_the_first_layer_below_a_tolerance():
    found = lagged()
    assert found.layers_to(0.3) == 2
    assert found.layers_to(0.29) == 3
    assert found.layers_to(0.01) is None
    with pytest.raises(ArgumentError, match="tolerance"):
        found.layers_to(-1.0)


def test_it_is_a_table_and_a_dictionary():
    lines = str(lagged()).splitlines()
    assert lines[0] == (
        "Upper bound of the total-variation distance between layers l and l + 3; 100 pairs, no "
        "assumption"
    )
    assert [line.split() for line in lines[1:]] == [
        ["layer", "bound", "95", "%", "interval"],
        ["0", "1", "[0.9,", "1]"],
        ["1", "0.5", "[0.4,", "0.6]"],
        ["2", "0.25", "[0.2,", "0.3]"],
        ["3", "<", "0.01", "[0,", "0.04]"],
    ]
    content = json.loads(json.dumps(lagged().to_dict()))
    assert content == {
        "lag": 3, "bound": [1.0, 0.5, 0.25, 0.0], "band": 0.1,
        "ci": [[0.9, 1.0], [0.4, 0.6], [0.2, 0.3], [0.0, 0.04]],
    }  # fmt: skip


def test_tables_show_powers_of_two_and_the_ends():
    assert shown_layers(0) == [0]
    assert shown_layers(1) == [0, 1]
    assert shown_layers(8) == [0, 1, 2, 4, 8]
    assert shown_layers(9) == [0, 1, 2, 4, 8, 9]


def test_a_bound_has_it():
    cert = bnmc.mixing.tv_bound(bnmc.Chain(20, 3, "relu"), 12, lag=2, replicates=100, rng=0)
    found = cert.lagged
    assert (found.lag, found.replicates, found.level) == (2, 100, 0.95)
    for layer in (0, 1, 5, 12):
        apart = np.mean(cert.meeting_times - 2 > layer)
        assert found.bound[layer] == pytest.approx(apart, abs=1e-15)
    np.testing.assert_array_equal(found.ci, cert.survival_ci)
    assert str(cert).startswith(str(found))
