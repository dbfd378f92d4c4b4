"""`gain_for_`: gains of the mean field, gradients that they keep, and recommendations."""

import itertools
import math

import numpy as np
import pytest
from scipy import integrate
from torch_models import mlp, nn, one_thread, torch, with_norm  # noqa: F401

import bnmc
from bnmc.errors import ArgumentError
from bnmc.torch import chain_of, gain_for_, gains, measure

pytestmark = pytest.mark.usefixtures("one_thread")


def expectation(function, variance):
    """Return E f(√q z) for a standard normal z, by quadrature."""
    root = math.sqrt(variance)

    def density(z):
        return function(root * z) * math.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)

    return integrate.quad(density, -12.0, 12.0, limit=200)[0]


def test_target_of_erf():
    """The gain solves q = gain² E σ², target = gain² E σ′², with quadrature as the oracle."""

    class Erf(nn.Module):
        def forward(self, x):
            return torch.erf(x)

    model = gain_for_(mlp(4, 30, Erf, norm=False), 1.3)
    gain = chain_of(model).chain.gain
    variance = 1.0
    for _ in range(200):
        variance = gain**2 * expectation(lambda x: math.erf(x) ** 2, variance)
    slope = expectation(lambda x: 4.0 / math.pi * math.exp(-2.0 * x * x), variance)
    assert abs(gain**2 * slope - 1.3) < 1e-5


def test_gradients_of_a_cured_network_stay():
    torch.manual_seed(2)
    model, batch = mlp(25, 64, norm=False), torch.randn(8, 64)
    with torch.no_grad():
        for module in model[::2]:
            module.weight.mul_(6.0)

    def measured():
        return measure(model, batch, labels=[0, 1] * 4, cosines=False)

    scale = measured().scale[0]
    assert scale[-1] > 1e3 * scale[0]
    gain_for_(model)
    cured = measured()
    assert 0.1 < cured.scale[0, -1] / cured.scale[0, 0] < 10.0
    norms = cured.layer_gradient_norm[0, 1:]
    assert norms.max() < 10.0 * norms.min()


def circular(channels, kernel, depth):
    options = {"padding": "same", "padding_mode": "circular"}
    layers = [(nn.Conv2d(channels, channels, kernel, **options), nn.ReLU()) for _ in range(depth)]
    return nn.Sequential(*itertools.chain(*layers))


def test_relu_gets_the_gain_of_he():
    """Also with biases of another law, and circular convolutions."""
    perceptron = mlp(6, 50, norm=False, inputs=20)
    for model, fan_in in ((perceptron, 50), (circular(6, 3, depth=4), 54)):
        nn.init.ones_(model[2].bias)
        assert gain_for_(model) is model
        for layer in (model[2], model[4], model[6]):
            weight = layer.weight.detach().double()
            assert abs(float(weight.square().mean()) - 2.0 / fan_in) < 1e-7
            assert not layer.bias.detach().any()
    assert perceptron[0].bias.detach().any()


@pytest.mark.parametrize("kernel", [(256, 1), (1, 256)])
def test_kernels_have_at_most_256_taps_along_an_axis(kernel):
    """The images of the mean field are as large, and a kernel fits into its image."""
    for size, fits in ((kernel, True), (tuple(taps + (taps > 1) for taps in kernel), False)):
        model = circular(4, size, depth=3)
        if fits:
            mean = gain_for_(model)[2].weight.detach().double().square().mean()
            assert float(mean) == pytest.approx(2.0 / (4 * 256), rel=1e-6)
        else:
            with pytest.raises(ArgumentError, match="at most the shape of the images"):
                gain_for_(model)


def test_a_recommendation_for_batch_normalization(monkeypatch):
    monkeypatch.setattr(gains, "_ACTIVATIONS", ("linear", "relu"))
    monkeypatch.setattr(gains, "_BATCHES", (10, 20))
    with pytest.raises(ArgumentError) as caught:
        gain_for_(mlp(4, 8), 1.0, batch=10)
    assert "backward rate 1.696 at batch 10" in str(caught.value)
    rate = bnmc.MeanField(bnmc.Chain(8, 20, "linear")).fixed_point().backward_rate
    np.testing.assert_allclose(rate, 18 / 17)
    assert f"nearest to 1: linear with batches of 20, backward rate {rate:.4g}" in caught.value.hint
    dropped = with_norm(lambda: nn.BatchNorm1d(8), lambda: nn.Dropout(0.1), width=8, depth=4)
    with pytest.raises(ArgumentError, match="norm 'batch'"):  # dropout is not the first reason
        gain_for_(dropped, 1.0, batch=10)


def test_a_recommendation_for_norms_over_the_features(monkeypatch):
    """The rate of tanh is E σ′² / E σ² for inputs of variance 1."""
    monkeypatch.setattr(gains, "_ACTIVATIONS", ("tanh", "relu"))
    model = with_norm(lambda: nn.LayerNorm(8), nn.Tanh, width=8, depth=4)
    for layer in model[::3]:
        layer.bias = None
    with pytest.raises(ArgumentError) as caught:
        gain_for_(model, 1.0)
    rate = expectation(lambda x: math.cosh(x) ** -4, 1.0) / expectation(
        lambda x: math.tanh(x) ** 2, 1.0
    )
    assert f"norm 'layer', backward rate {rate:.4g} at batch" in str(caught.value)
    assert "nearest to 1: relu" in caught.value.hint


def test_the_recommended_chain_is_the_nearest_in_logarithms(monkeypatch):
    rates = {("tanh", 10): 1.5, ("tanh", 20): 2.6, ("relu", 10): 4.1, ("relu", 20): None}

    def rate_of(chain):
        return rates[chain.activation.name, chain.batch]

    monkeypatch.setattr(gains, "_ACTIVATIONS", ("tanh", "relu"))
    monkeypatch.setattr(gains, "_BATCHES", (10, 20))
    monkeypatch.setattr(gains, "_backward_rate", rate_of)
    chain = bnmc.Chain(8, 4)
    # |log(1.5/2)| = .29 and |log(2.6/2)| = .26; 1.5 is nearer to 1.9 and 4.1 to 3.3.
    for target, expected in (
        (2.0, "tanh with batches of 20"),
        (1.9, "tanh with batches of 10"),
        (3.3, "relu with batches of 10"),
        (1e3, "relu with batches of 10"),
    ):
        assert expected in gains._recommendation(chain, target)
