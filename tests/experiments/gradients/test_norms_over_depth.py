"""Gradient norms over depth beside the backward rate of the mean field."""

import functools
import math

import numpy as np
import pytest
from experiment_checks import drawn, reach, require_sound
from figure_sizes import FIGURES, run

import bnmc
from bnmc.estimate.estimate import Estimate
from bnmc.experiments.gradients import norms_over_depth

NAMES = FIGURES["gradients-explosion"].sizes["activations"]


class TestExplosion:
    # It alone compiles the backward pass of orthogonal weights for float32; that for float64 is
    # tested each time.
    @pytest.fixture(params=[False, pytest.param(True, marks=pytest.mark.slow)])
    def found(self, request, small):
        return _of_both_laws() if request.param else small("gradients-explosion")

    def test_rates_are_those_of_the_mean_field_but_for_the_width(self, found):
        data = found.data
        assert found.table.columns[0] == "activation"
        for index, name in enumerate(NAMES):
            star = bnmc.MeanField(bnmc.Chain(300, 10, name)).fixed_point()
            assert float(data["mean_field"][index]) == star.backward_rate
            for place, weights in enumerate(data["weights"].values):
                row = found.table.rows[index + place * len(NAMES)]
                assert row[:2] == (name, weights)
                assert isinstance(row[2], Estimate)
                # The effect of the width has the relative size batch / width.
                allowed = reach(row[2]) + star.backward_rate * 10 / 300
                assert abs(row[2].value - star.backward_rate) < allowed
                assert row[4] == pytest.approx(100 * (row[2].value / star.backward_rate - 1))

    def test_curves_begin_at_the_last_layer(self, found):
        data = found.data
        np.testing.assert_array_equal(data["log_norm"][0, :, -1], 0.0)
        assert data["layer"].values[[0, -1]].tolist() == [0, 79]
        for of_weights in data["log_norm"]:
            slopes = of_weights[:, 20] - of_weights[:, 60]
            np.testing.assert_allclose(slopes, 20 * np.log(data["mean_field"]), rtol=0.2)

    def test_picture(self, found):
        left, right = require_sound(found, "gradients-explosion", approved=False).axes
        for of_weights in found.data["log_norm"]:
            assert drawn(left, of_weights[1])
        assert drawn(right, found.data["mean_field"])
        slope = 0.5 * math.log(float(found.data["mean_field"][0]))
        assert drawn(left, slope * (79 - found.data["layer"].values))


@functools.cache
def _of_both_laws():
    return run("gradients-explosion", weights=("gaussian", "haar"), threads=2)


def test_a_growth_is_that_of_the_squares():
    logs = np.array([[3.0, 2.0, 1.0], [3.2, 2.0, 1.0]])
    found = norms_over_depth._growth(logs, 0, 2)
    assert found.value == pytest.approx(math.exp(2.1))
    assert found.n == 2
