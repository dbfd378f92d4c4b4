"""A measurement leaves a model, and all random states, bit for bit as they were."""

import random

import numpy as np
import pytest
from torch_models import bits, digest_of, mlp, nn, one_thread, resnet, torch  # noqa: F401

from bnmc.torch import chain_of, measure
from bnmc.torch.preservation import as_it_was

pytestmark = pytest.mark.usefixtures("one_thread")


class Restless(nn.Module):
    """A module whose forward pass changes nearly everything that it can."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.register_buffer("counter", torch.tensor([-0.0, 1.0]))
        self.seen = ["nothing"]

    def forward(self, x):
        self.last = x
        self.seen = ["this"]
        self.counter = self.counter + 1.0
        self.inner.train(not self.inner.training)
        self.inner.weight.requires_grad_(True)
        noise = torch.rand(()) + random.random() + np.random.random()  # noqa: NPY002
        return nn.functional.dropout(torch.tanh(self.inner(x)), 0.3) * noise


def models():
    frozen = mlp(3, 4)
    frozen[3].requires_grad_(False)
    frozen[4].eval()
    normed = nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4)), nn.ReLU())
    return {
        "BN": mlp(3, 4), "frozen": frozen, "dropout": nn.Sequential(mlp(2, 4), nn.Dropout(0.5)),
        "restless": nn.Sequential(Restless(), nn.ReLU()), "spectral norm": normed,
        "shared": nn.Sequential(*[nn.Linear(4, 4), nn.ReLU()] * 3),
        "compiled convolutions": torch.compile(resnet(), backend="eager"),
    }  # fmt: skip


@pytest.mark.parametrize("name", models())
@pytest.mark.parametrize("networks", [1, 2])
def test_everything_is_as_it_was(name, networks):
    model = models()[name]
    batch = torch.randn(6, 3, 12, 12) if "convolutions" in name else torch.randn(6, 4)
    model(batch).sum().backward()
    before = digest_of(model)
    reset = None
    if networks > 1 and name in ("restless", "spectral norm"):

        def reset(model):
            for parameter in model.parameters():
                nn.init.uniform_(parameter)

    measured = measure(
        model, batch, loss=lambda out: out.square().mean(dim=1), networks=networks, reset=reset
    )
    assert measured.gradient_norm.shape[0] == networks
    assert digest_of(model) == before
    chain_of(model)
    assert digest_of(model) == before


@pytest.mark.parametrize("networks", [1, 2])
def test_graphs_of_the_caller_survive(networks):
    """A graph from before can still go backward, since no version of a tensor has changed."""
    model, batch = mlp(2, 4), torch.randn(6, 4)
    loss = model(batch).square().sum()
    tensors = [*model.parameters(), *model.buffers()]
    expected = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
    before = [tensor._version for tensor in tensors]
    measure(model, batch, labels=[0, 1] * 3, networks=networks)
    assert [tensor._version for tensor in tensors] == before
    loss.backward()
    for parameter, gradient in zip(model.parameters(), expected, strict=True):
        assert torch.equal(parameter.grad, gradient)


def test_an_error_restores_too():
    model, batch = mlp(2, 4), torch.randn(6, 4)
    before = digest_of(model)

    def reset(model):
        nn.init.ones_(model[0].weight)
        model.eval()
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        measure(model, batch, reset=reset)
    assert digest_of(model) == before


def test_a_cure_keeps_parameters_unless_it_fails():
    model = mlp(2, 4)
    before = digest_of(model)

    def failing():
        with as_it_was(model, cure=True):
            nn.init.ones_(model[0].weight)
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        failing()
    assert bits(model[0].weight.detach()) != bits(torch.ones(4, 4))
    with as_it_was(model, cure=True):
        model[0].weight.data.fill_(1.0)
        model(torch.randn(6, 4))
    assert bits(model[0].weight.detach()) == bits(torch.ones(4, 4))
    assert digest_of(model) != before
    assert model[1].num_batches_tracked == 0


def test_negative_zero_and_nan_are_restored_by_their_bits():
    model = nn.Linear(2, 2)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[-0.0, torch.nan], [1.0, 2.0]]))
    before = digest_of(model)
    with as_it_was(model):
        model.weight.data.zero_()
    assert digest_of(model) == before


def test_in_no_grad_and_inference_mode():
    model, batch = mlp(2, 4), torch.randn(6, 4)
    expected = measure(model, batch, labels=[0, 1] * 3)
    for context in (torch.no_grad(), torch.inference_mode()):
        with context:
            measured = measure(model, batch, labels=[0, 1] * 3)
        np.testing.assert_array_equal(measured.gradient_norm, expected.gradient_norm)
