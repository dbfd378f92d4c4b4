"""Pictures of backward passes: what is drawn is what was simulated."""

import math

import numpy as np
import pytest

import bnmc
from bnmc import plot
from bnmc.errors import ArgumentError, ArgumentTypeError

CHAIN = bnmc.Chain(40, 4, "relu")


@pytest.fixture(scope="module")
def run():
    return bnmc.backpropagate(CHAIN, 9, chains=12, rng=0, observables=())


def test_line_is_the_mean_and_band_the_quantiles(run):
    ax = plot.gradient_norms(run, level=0.8)
    norms = run.log_gradient_norm
    (line,) = ax.lines
    np.testing.assert_array_equal(line.get_xdata(), np.arange(9))
    np.testing.assert_array_equal(line.get_ydata(), norms.mean(axis=0))
    vertices = ax.collections[0].get_paths()[0].vertices
    for layer in range(9):
        heights = vertices[vertices[:, 0] == layer, 1]
        edges = np.quantile(norms[:, layer], [0.1, 0.9])
        np.testing.assert_allclose([heights.min(), heights.max()], edges, rtol=1e-12)
    assert ax.get_title() == "relu, batch norm, width 40, batch 4: mean and 80 % of 12 networks"
    assert ax.get_ylabel()


def test_a_rate_is_a_line_of_half_its_logarithm(run):
    ax = plot.gradient_norms(run, rate=1.5, label="relu")
    mean, predicted = (line.get_ydata() for line in ax.lines)
    assert predicted[4] == mean[4]
    np.testing.assert_allclose(np.diff(predicted), -0.5 * math.log(1.5))
    first, second = (text.get_text() for text in ax.get_legend().get_texts())
    assert first == "relu"
    assert "1.5" in second


def test_one_network_in_given_axes():
    one = bnmc.backpropagate(CHAIN, 5, rng=0)
    ax = plot.figure()[1][0]
    assert plot.gradient_norms(one, ax=ax) is ax
    assert not ax.collections
    assert not ax.get_title()


def test_layers_without_a_gradient_are_left_out():
    dead = bnmc.backpropagate(bnmc.Chain(9, 2, "tanh"), 4, chains=3, rng=0)
    ax = plot.gradient_norms(dead, rate=2.0)
    (line,) = ax.lines
    assert np.isfinite(line.get_ydata()).tolist() == [False, False, False, True]
    ax.figure.canvas.draw()


def test_bad_input(run):
    with pytest.raises(ArgumentTypeError, match="run"):
        plot.gradient_norms(bnmc.simulate(CHAIN, 2, rng=0))
    with pytest.raises(ArgumentError, match="level"):
        plot.gradient_norms(run, level=1.0)
    with pytest.raises(ArgumentError, match="rate"):
        plot.gradient_norms(run, rate=0.0)
