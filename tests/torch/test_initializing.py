"""`haar_` and `break_`: the matrices, and random states."""

import math

import numpy as np
import pytest
from torch_models import mlp, nn, one_thread, torch  # noqa: F401

from bnmc.torch import break_, haar_

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize(
    "layer", [nn.Linear(6, 6), nn.Linear(8, 3), nn.Linear(3, 8), nn.Conv2d(2, 5, 3)]
)
def test_weights_are_orthogonal(layer):
    assert haar_(layer, gain=1.5, rng=0) is layer
    weight = layer.weight.detach().flatten(1).double().numpy()
    rows, columns = weight.shape
    product = weight @ weight.T if rows <= columns else weight.T @ weight
    factor = 1.5**2 * max(rows, columns) / columns
    np.testing.assert_allclose(product, factor * np.eye(min(rows, columns)), atol=1e-5)
    np.testing.assert_allclose((weight**2).mean(), 1.5**2 / columns, rtol=1e-5)
    assert not layer.bias.detach().any()


def test_haar_measure():
    """The first entry of 400 matrices of order 3 is uniform on [-1, 1] (Archimedes).

    By the inequality of Dvoretzky, Kiefer and Wolfowitz with Massart's constant, the largest
    difference of the distribution functions exceeds 0.135 with probability at most 1e-6.
    """
    generator, layer = np.random.default_rng(1), nn.Linear(3, 3)
    entries = [float(haar_(layer, rng=generator).weight[0, 0].detach()) for _ in range(400)]
    ordered, uniform = np.sort(entries), np.arange(401) / 400
    level = (ordered + 1.0) / 2.0
    distance = max(np.abs(uniform[1:] - level).max(), np.abs(level - uniform[:-1]).max())
    assert 2.0 * math.exp(-2.0 * 400 * 0.135**2) <= 1e-6
    assert distance < 0.135


def test_ways_to_break():
    model = mlp(2, 30)
    weights = [parameter.detach().clone() for parameter in model.parameters()]
    assert break_(model) is model
    for parameter, weight in zip(model.parameters(), weights, strict=True):
        assert torch.equal(parameter.detach(), 2.0 * weight.abs())
    break_(model, how="small", rng=0)
    for parameter in model.parameters():
        assert 0.0 <= parameter.min() < parameter.max() < 0.1
    with torch.no_grad():
        for parameter, weight in zip(model.parameters(), weights, strict=True):
            parameter.copy_(weight)
    break_(model, how="uniform", rng=0)
    for parameter, weight in zip(model.parameters(), weights, strict=True):
        if weight.ndim > 1:
            deviation = float(weight.double().std())
            assert 0.0 <= parameter.min() < parameter.max() <= math.sqrt(12.0) * deviation
            # 900 uniform numbers: the relative standard error of their variance is 0.03.
            assert abs(float(parameter.detach().double().std()) / deviation - 1.0) < 0.1
        else:
            assert torch.equal(parameter.detach(), weight)
