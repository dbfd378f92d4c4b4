"""Small PyTorch models, and a digest of everything that a model must keep."""

import hashlib
import itertools
import random

import numpy as np
import pytest

torch = pytest.importorskip("torch.nn") and pytest.importorskip("torch")
nn = torch.nn


@pytest.fixture
def one_thread():
    """Run PyTorch on one thread, from a fixed random state; restore both."""
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)
    torch.set_rng_state(state)


def mlp(
    depth, width, activation=nn.ReLU, *, norm=True, classes=10, inputs=None, dtype=None, bias=True
):
    """Return `depth` layers Linear, BatchNorm1d, activation, and a readout."""
    layers = []
    for layer in range(depth):
        before = inputs if inputs and layer == 0 else width
        layers.append(nn.Linear(before, width, bias=bias, dtype=dtype))
        if norm:
            layers.append(nn.BatchNorm1d(width, dtype=dtype))
        layers.append(activation())
    return nn.Sequential(*layers, nn.Linear(width, classes, dtype=dtype))


def with_norm(norm, activation=nn.ReLU, *, width=6, depth=2, readout=2):
    """Return `depth` layers Linear, norm, activation, and a readout; `norm` makes a module."""
    layers = [(nn.Linear(width, width), norm(), activation()) for _ in range(depth)]
    return nn.Sequential(*itertools.chain(*layers), nn.Linear(width, readout))


class Residual(nn.Module):
    """Two linear layers and a norm; `formula` is the forward pass, and gets the module and x."""

    def __init__(self, formula):
        super().__init__()
        self.inner, self.other = nn.Linear(6, 6), nn.Linear(6, 6)
        self.norm, self.formula = nn.LayerNorm(6), formula

    def forward(self, x):
        return self.formula(self, x)


def residual(formula, blocks=4):
    """Return residual blocks between two linear layers."""
    inner = (Residual(formula) for _ in range(blocks))
    return nn.Sequential(nn.Linear(6, 6), *inner, nn.Linear(6, 2))


class Block(nn.Module):
    """A residual block of two convolutions, as in ResNet."""

    def __init__(self, channels):
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(channels)
        self.second = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.last = nn.BatchNorm2d(channels)

    def forward(self, x):
        inner = self.last(self.second(torch.relu(self.norm(self.first(x)))))
        return torch.relu(x + inner)


def resnet(channels=6, blocks=4):
    """Return a small residual network with max pooling, as torchvision builds it."""
    return nn.Sequential(
        nn.Conv2d(3, channels, 3), nn.BatchNorm2d(channels), nn.ReLU(), nn.MaxPool2d(2),
        *(Block(channels) for _ in range(blocks)),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 5),
    )  # fmt: skip


def outputs_of(model, batch, modules):
    """Return the output of a model, and those of some modules, by hooks of this function's own."""
    outputs = {}
    handles = [
        module.register_forward_hook(lambda _, __, out, name=name: outputs.__setitem__(name, out))
        for name, module in modules.items()
    ]
    output = model(batch)
    for handle in handles:
        handle.remove()
    return output, {name: out.detach().double() for name, out in outputs.items()}


def digest_of(model):
    """Return a digest of tensors, modes, gradients, hooks, attributes and random states."""
    parts = []
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        parts += [name, id(tensor), tensor.requires_grad, bits(tensor.detach())]
        grad = tensor.grad
        parts.append(None if grad is None else (id(grad), bits(grad)))
        parts.append(sorted(tensor.__dict__))
    for name, module in model.named_modules():
        values = module.__dict__
        parts += [name, module.training, sorted(values)]
        parts += [(key, len(values[key])) for key in sorted(values) if key.endswith("_hooks")]
        parts += [(key, values[key]) for key in sorted(values) if not key.startswith("_")]
    legacy = np.random.get_state()  # noqa: NPY002
    parts += [bits(torch.get_rng_state()), legacy[1].tobytes(), legacy[2:], random.getstate()]
    parts += [torch.is_grad_enabled(), torch.get_num_threads()]
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def bits(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
