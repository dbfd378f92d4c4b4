"""Variables from estimates."""

import numpy as np

import bnmc
import bnmc._support.extras
import bnmc.chain.activations
from bnmc import Estimate
from bnmc.experiments.data import estimated


class TestVariables:
    def test_estimates_become_arrays(self):
        one = Estimate(1.0, 0.1, (0.8, 1.2), 3, "means")
        rate = bnmc.mixing.RateEstimate(0.5, 0.1, (0.4, 0.6), 3, "x")
        found = estimated("a", ("k", "i"), [[one, one], [rate, one]], "thing", "layers")
        assert list(found) == ["a", "a_low", "a_high"]
        np.testing.assert_array_equal(found["a"].values, [[1.0, 1.0], [0.5, 1.0]])
        np.testing.assert_array_equal(found["a_low"].values, [[0.8, 0.8], [0.4, 0.8]])
        assert {v.units for v in found.values()} == {"layers"}
