"""Pictures of gradients: what is drawn is what was simulated or measured."""

import math
from dataclasses import replace

import numpy as np
import pytest
from torch_models import mlp, one_thread, torch  # noqa: F401

import bnmc
from bnmc import plot
from bnmc.errors import ArgumentError, ArgumentTypeError
from bnmc.torch.prediction import Prediction

pytestmark = pytest.mark.usefixtures("one_thread")
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
    ax = plot.gradient_norms(run, backward_rate=1.5, label="relu")
    mean, predicted = (line.get_ydata() for line in ax.lines)
    assert predicted[4] == mean[4]
    np.testing.assert_allclose(np.diff(predicted), -0.5 * math.log(1.5))
    first, second = (text.get_text() for text in ax.get_legend().get_texts())
    assert first == "relu"
    assert "1.5" in second


def test_one_network_in_given_axes():
    single = bnmc.backpropagate(CHAIN, 5, rng=0)
    ax = plot.figure()[1][0]
    assert plot.gradient_norms(single, ax=ax) is ax
    assert not ax.collections
    assert not ax.get_title()


def test_layers_without_a_gradient_are_left_out():
    dead = bnmc.backpropagate(bnmc.Chain(9, 2, "tanh"), 4, chains=3, rng=0)
    ax = plot.gradient_norms(dead, backward_rate=2.0)
    (line,) = ax.lines
    assert np.isfinite(line.get_ydata()).tolist() == [False, False, False, True]
    ax.figure.canvas.draw()


def test_lines_and_bands():
    model, batch = mlp(5, 8), torch.randn(6, 8)
    measured = bnmc.torch.measure(model, batch, labels=[0, 1] * 3, networks=3, cosines=False)
    left, right = plot.measurement(measured, backward_rate=1.5).axes
    for line, values in zip(
        left.lines, (measured.rank, measured.soft_rank, measured.effective_rank), strict=True
    ):
        np.testing.assert_array_equal(line.get_xdata(), np.arange(1, 6))
        np.testing.assert_allclose(line.get_ydata(), values.mean(axis=0))
    assert len(left.collections) == 3
    # Equal ranks are both seen.
    assert [line.get_linestyle() for line in left.lines] == ["-", "--", "-"]
    line, predicted = right.lines
    np.testing.assert_allclose(line.get_ydata(), measured.layer_gradient_norm.mean(axis=0))
    np.testing.assert_allclose(np.diff(np.log(predicted.get_ydata())), -0.5 * np.log(1.5))
    assert right.get_yscale() == "log"
    alone = measured.plot().axes[1]
    texts = [text.get_text() for text in alone.get_legend().get_texts()]
    assert texts == ["90 % of fresh networks", "measured"]
    ends = alone.collections[0].get_paths()[0].get_extents()
    assert (ends.ymin, ends.ymax) == (measured.gradient_band.min(), measured.gradient_band.max())
    without = replace(measured, prediction=Prediction(None, reasons=("none",))).plot().axes[1]
    assert without.get_legend() is None
    assert alone.get_ylabel() == "norm of the gradient of the weights"
    alone.figure.canvas.draw()
    ticks = [*alone.get_yticklabels(), *alone.get_yticklabels(minor=True)]
    assert ticks
    assert not any("times" in tick.get_text() for tick in ticks)


def test_one_network_without_a_loss():
    measured = bnmc.torch.measure(mlp(3, 8), torch.randn(6, 8))
    (ax,) = measured.plot().axes
    assert not ax.collections
    assert [tick.get_text() for tick in ax.get_xticklabels()] == list(measured.layers)
    np.testing.assert_array_equal(ax.lines[1].get_ydata(), measured.soft_rank[0])


def test_gradients_that_are_zero_are_left_out():
    model = mlp(3, 8, norm=False)
    with torch.no_grad():
        model[-1].weight.zero_()
    measured = bnmc.torch.measure(model, torch.randn(6, 8), labels=[0, 1] * 3)
    assert not measured.plot().axes[1].lines


def measured():
    return bnmc.torch.measure(mlp(3, 8), torch.randn(6, 8))


@pytest.mark.parametrize(
    ("draw", "error", "words"),
    [
        (lambda _: plot.gradient_norms(bnmc.simulate(CHAIN, 2, rng=0)), ArgumentTypeError, "run"),
        (lambda run: plot.gradient_norms(run, level=1.0), ArgumentError, "level"),
        (lambda run: plot.gradient_norms(run, backward_rate=0.0), ArgumentError, "rate"),
        (lambda _: plot.measurement(3), ArgumentTypeError, "result: got 3"),
        (lambda _: plot.measurement(measured(), backward_rate=0.0), ArgumentError, "rate: got 0"),
    ],
)
def test_arguments_that_are_not_allowed(run, draw, error, words):
    with pytest.raises(error, match=words):
        draw(run)
