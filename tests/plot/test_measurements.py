"""Pictures of measurements: what is drawn is what was measured."""

import numpy as np
import pytest
from torch_models import mlp, one_thread, torch  # noqa: F401

import bnmc
from bnmc import plot
from bnmc.errors import ArgumentError, ArgumentTypeError

pytestmark = pytest.mark.usefixtures("one_thread")


def test_lines_and_bands():
    model, batch = mlp(5, 8), torch.randn(6, 8)
    found = bnmc.torch.measure(model, batch, labels=[0, 1] * 3, networks=3, cosines=False)
    left, right = plot.measurement(found, rate=1.5).axes
    for line, values in zip(
        left.lines, (found.rank, found.soft_rank, found.rank_bound), strict=True
    ):
        np.testing.assert_array_equal(line.get_xdata(), np.arange(1, 6))
        np.testing.assert_allclose(line.get_ydata(), values.mean(axis=0))
    assert len(left.collections) == 3
    measured, predicted = right.lines
    np.testing.assert_allclose(measured.get_ydata(), found.layer_gradient_norm.mean(axis=0))
    np.testing.assert_allclose(np.diff(np.log(predicted.get_ydata())), -0.5 * np.log(1.5))
    assert right.get_yscale() == "log"
    assert len(found.plot().axes) == 2


def test_one_network_without_a_loss():
    found = bnmc.torch.measure(mlp(3, 8), torch.randn(6, 8))
    (ax,) = found.plot().axes
    assert not ax.collections
    np.testing.assert_array_equal(ax.lines[1].get_ydata(), found.soft_rank[0])


def test_gradients_that_are_zero_are_left_out():
    model = mlp(3, 8, norm=False)
    with torch.no_grad():
        model[-1].weight.zero_()
    found = bnmc.torch.measure(model, torch.randn(6, 8), labels=[0, 1] * 3)
    assert not found.plot().axes[1].lines


def test_bad_input():
    with pytest.raises(ArgumentTypeError, match="found: got 3"):
        plot.measurement(3)
    found = bnmc.torch.measure(mlp(3, 8), torch.randn(6, 8))
    with pytest.raises(ArgumentError, match="rate: got 0"):
        plot.measurement(found, rate=0.0)
