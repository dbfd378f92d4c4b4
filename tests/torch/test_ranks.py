"""`maximize_rank_`: one step by hand, a deep network, and what it leaves."""

import numpy as np
import pytest
from torch_models import digest_of, mlp, nn, one_thread, torch  # noqa: F401

import bnmc
from bnmc.errors import ArgumentError
from bnmc.torch import maximize_rank_

pytestmark = pytest.mark.usefixtures("one_thread")


def loss_of(rows):
    product = rows @ rows.T
    return product.norm() / product.trace()


@pytest.mark.parametrize("layers", [None, ["2"]])
def test_two_steps_are_those_of_the_formula(layers):
    model = mlp(3, 5, nn.Tanh, norm=False, dtype=torch.float64)
    copy = mlp(3, 5, nn.Tanh, norm=False, dtype=torch.float64)
    copy.load_state_dict(model.state_dict())
    batches = [torch.randn(4, 5, dtype=torch.float64) for _ in range(2)]
    end = 3 if layers else 6
    for batch in batches:
        for _ in range(2):
            parameters = list(copy[:end].parameters())
            gradients = torch.autograd.grad(loss_of(copy[:end](batch)), parameters)
            with torch.no_grad():
                for parameter, gradient in zip(parameters, gradients, strict=True):
                    parameter -= 0.3 * gradient
    assert maximize_rank_(model, batches, steps=2, learning_rate=0.3, layers=layers) is model
    for weight, expected in zip(model.parameters(), copy.parameters(), strict=True):
        np.testing.assert_allclose(weight.detach(), expected.detach(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("layers", [None, ["58"]])
def test_collinear_samples_have_no_gradient(layers):
    """PyTorch's default initialization over 30 layers: no step changes anything but by rounding."""
    model, batch = mlp(30, 16, norm=False), torch.rand(8, 16)
    before = digest_of(model)
    with pytest.raises(ArgumentError, match="collinear samples in the .*put of"):
        maximize_rank_(model, batch, steps=1, layers=layers)
    assert digest_of(model) == before


def test_the_rate_of_the_docstring():
    model, batch = bnmc.torch.gain_for_(mlp(30, 64, norm=False)), torch.randn(32, 64)
    before = bnmc.torch.measure(model, batch).rank_bound[0, -1]
    maximize_rank_(model, batch, steps=100, learning_rate=0.01)
    assert bnmc.torch.measure(model, batch).rank_bound[0, -1] > 2.0 * before
