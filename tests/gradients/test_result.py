"""The result of `backpropagate`: its texts, its table and its picture."""

import json
import math

import numpy as np
import pytest

import bnmc
from bnmc import Chain


@pytest.fixture(scope="module")
def run():
    return bnmc.backpropagate(Chain(50, 5, "relu"), 40, chains=6, rng=0)


def test_repr_has_no_arrays(run):
    assert repr(run) == (
        "<Backpropagation of 6 chains, 40 layers, loss 'gaussian': log_gradient_norm, delta_gram; "
        "Chain(width=50, batch=5, activation='relu')>"
    )


def test_the_table_has_means_errors_and_rates(run):
    result = json.loads(json.dumps(run.to_dict()))
    assert [row["layer"] for row in result["rows"]] == [0, 4, 8, 12, 16, 20, 23, 27, 31, 35, 39]
    values = run.log_gradient_norm[:, 23]
    row = result["rows"][6]
    assert row["mean"] == pytest.approx(values.mean(), rel=1e-14)
    assert row["stderr"] == pytest.approx(values.std(ddof=1) / math.sqrt(6), rel=1e-12)
    assert result["backward_rate"]["value"] == run.backward_rate().value
    star = bnmc.MeanField(run.chain).fixed_point().backward_rate
    assert result["mean_field_backward_rate"] == run.mean_field_backward_rate() == star
    text = str(run)
    assert f"{values.mean():.4g}" in text
    assert str(run.backward_rate()) in text
    assert f"{star:.6g}" in text


def test_what_is_not_known_is_said():
    first = bnmc.backpropagate(Chain(20, 4, "tanh", norm="none"), 5, rng=0)
    assert first.mean_field_backward_rate() is None
    assert first.to_dict()["backward_rate"] is None
    assert {row["stderr"] for row in first.to_dict()["rows"]} == {None}
    assert "no rate: an interval needs at least 2 chains" in str(first)
    assert "infinite width" not in str(first)
    # Of three samples under a centred norm, the mean square of gradients is infinite.
    three = bnmc.backpropagate(Chain(20, 3, "tanh"), 5, chains=2, rng=0)
    assert three.mean_field_backward_rate() is None
    dead = bnmc.backpropagate(Chain(9, 2, "tanh"), 8, chains=3, rng=0)
    assert "zero" in str(dead)
    assert dead.to_dict()["rows"][0] == {"layer": 0, "mean": -math.inf, "stderr": None}


def test_the_picture_has_the_line_of_the_mean_field(run):
    ax = run.plot(level=0.5)
    mean, predicted = (line.get_ydata() for line in ax.lines)
    np.testing.assert_array_equal(mean, run.log_gradient_norm.mean(axis=0))
    slope = -0.5 * math.log(run.mean_field_backward_rate())
    np.testing.assert_allclose(np.diff(predicted), slope, rtol=1e-9)
    without = bnmc.backpropagate(Chain(20, 4, "tanh", norm="none"), 5, chains=2, rng=0)
    assert len(without.plot().lines) == 1
