"""The law of weights that is read from layers."""

import math

import pytest

torch = pytest.importorskip("torch")

from bnmc.torch.weights import weights_of  # noqa: E402


def test_weights_of_pytorch_are_within_their_bound_in_all_layers():
    """By default they are uniform on ± 1/√fan_in."""
    torch.manual_seed(1)
    layers = [torch.nn.Linear(30, 30, bias=False) for _ in range(3)]
    weights = weights_of(layers)
    assert (weights.law, weights.gain) == ("pytorch", 1.0 / math.sqrt(3.0))
    with torch.no_grad():
        layers[1].weight[2, 3] = 1.02 / math.sqrt(30.0)
    assert weights_of(layers).law == "uniform"


def test_layers_without_biases_have_biases_of_variance_0():
    torch.manual_seed(2)
    layers = [torch.nn.Linear(30, 30, bias=number < 2) for number in range(5)]
    weights = weights_of(layers)
    squares = [float(layer.bias.detach().double().square().mean()) for layer in layers[:2]]
    assert weights.bias_variance == pytest.approx(sum(squares) / 5, rel=1e-12)
    (trouble,) = weights.bias_troubles
    assert trouble.startswith("some layers have a bias and some have none")
