"""A measurement leaves a model, and all random states, bit for bit as they were."""

import contextlib
import random
from collections import deque

import numpy as np
import pytest
from torch_models import bits, digest_of, mlp, nn, one_thread, resnet, torch  # noqa: F401

from bnmc.errors import ArgumentError
from bnmc.torch import chain_of, haar_, measure
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


class Hostile(nn.Module):
    """A layer whose forward pass calls a function of the module; it has a buffer and more."""

    def __init__(self, change):
        super().__init__()
        self.inner, self.change = nn.Linear(4, 4), change
        self.register_buffer("state", torch.arange(6.0))
        self.register_buffer("wide", torch.arange(3.0)[:, None].expand(3, 2))
        self.register_buffer("part", torch.arange(8.0)[::2])
        self.loose, self.array = torch.arange(3.0), np.arange(3.0)
        self.items, self.names, self.set = [1, [2.0, 3.0]], {"a": [1]}, {1, 2}
        self.generators = [
            torch.Generator(), random.Random(1), np.random.default_rng(2),
            np.random.RandomState(3),
        ]  # fmt: skip

    def forward(self, x):
        y = self.inner(x)
        self.change(self, y)
        return torch.tanh(y)

    def content(self):
        """Return all that the module has, by its values."""
        torch_one, python, numpy, legacy = self.generators
        tensors = [self.state, self.wide, self.part, self.loose, *self.inner.parameters()]
        return repr([
            *((each.tolist(), each.stride(), each.dtype, each.requires_grad) for each in tensors),
            *(each.grad.tolist() for each in tensors if each.is_leaf and each.grad is not None),
            torch_one.get_state().tolist(), python.getstate(), numpy.bit_generator.state,
            legacy.get_state(), self.array, self.items, self.names, self.set,
            [len(hooks) for key, hooks in sorted(vars(self).items()) if key.endswith("_hooks")],
        ])  # fmt: skip


def draw(module):
    torch_one, python, numpy, legacy = module.generators
    torch.rand(2, generator=torch_one), python.random(), numpy.random(), legacy.rand()


CHANGES = {
    "resized": lambda module, y: module.state.resize_(9),
    "smaller": lambda module, y: module.state.resize_(2, 2).zero_(),
    "freed": lambda module, y: module.state.untyped_storage().resize_(0),
    "other storage": lambda module, y: setattr(module.state, "data", torch.ones(2)),
    "other dtype": lambda module, y: setattr(module.state, "data", module.state.half()),
    "transposed": lambda module, y: module.inner.weight.data.t_().mul_(2.0),
    "expanded": lambda module, y: module.wide[:, 0].fill_(7.0),
    "strided": lambda module, y: module.part.fill_(7.0),
    "with a graph": lambda module, y: module.state.add_(y.sum()),
    "loose tensor": lambda module, y: module.loose.add_(y.sum()),
    "array": lambda module, y: module.array.fill(7.0),
    "items": lambda module, y: module.items[1].append(4.0),
    "names": lambda module, y: (module.names["a"].clear(), module.names.update(b=2)),
    "set": lambda module, y: module.set.add(3),
    "hook": lambda module, y: module.register_forward_hook(lambda *_: None),
    "gradient": lambda module, y: module.inner.weight.grad.fill_(7.0),
    "no gradient": lambda module, y: module.zero_grad(),
    "backward": lambda module, y: y.sum().backward(retain_graph=True),
    "generators": lambda module, y: draw(module),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_what_a_forward_pass_changes_in_place_is_restored(name):
    module, batch = Hostile(lambda module, y: None), torch.randn(6, 4)
    module(batch).sum().backward()
    before = module.content()
    module.change = CHANGES[name]
    measure(module, batch, labels=torch.randn(6, 4))
    assert module.content() == before
    module(batch)
    with contextlib.suppress(RuntimeError):  # a freed tensor has no values
        assert module.content() != before


def test_objects_of_other_classes_are_not_restored():
    """As the docstring says."""
    module = Hostile(lambda module, y: module.queue.append(2))
    module.queue = deque([1])
    measure(module, torch.randn(6, 4))
    assert 2 in module.queue
    assert "other classes" in " ".join(measure.__doc__.split())


def sparse():
    return torch.eye(3).to_sparse()


def quantized():
    return torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8)


@pytest.mark.parametrize("make", [sparse, quantized])
@pytest.mark.filterwarnings("ignore:.*quantize")
def test_tensors_without_plain_bytes_are_refused_before_the_forward_pass(make):
    calls = []
    module = Hostile(lambda module, y: calls.append(y))
    module.register_buffer("odd", make())
    for function in (lambda: measure(module, torch.randn(6, 4)), lambda: haar_(module)):
        with pytest.raises(ArgumentError, match="'odd' is quantized, or no dense tensor"):
            function()
    assert not calls


def test_all_tensors_are_restored_if_one_cannot_be():
    """A view of another tensor cannot leave a graph again."""
    module = Hostile(lambda module, y: (module.part.add_(y.sum()), module.loose.fill_(7.0)))
    before = module.part.tolist(), module.state.tolist(), module.loose.tolist()
    with pytest.raises(RuntimeError, match="detach"):
        measure(module, torch.randn(6, 4), labels=torch.randn(6, 4))
    assert (module.part.tolist(), module.state.tolist(), module.loose.tolist()) == before


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
