"""Implicit models, and dense ones with the weights that their answers decided."""

import copy

from torch_models import nn, torch

from bnmc.torch import implicit_
from bnmc.torch.implicit_rows import GaussianRows

LAYERS = (nn.Linear, nn.Embedding, nn.Conv1d, nn.Conv2d)


class Mlp(nn.Module):
    """Three linear layers; the middle one may be called several times."""

    def __init__(self, width=20, calls=1):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(6, width), nn.Linear(width, width), nn.Linear(width, 3)
        self.calls = calls

    def forward(self, x):
        x = torch.tanh(self.a(x))
        for _ in range(self.calls):
            x = torch.tanh(self.b(x))
        return self.c(x)


class Gated(nn.Module):
    """Two layers with one input, as in gated networks, and a third."""

    def __init__(self):
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(6, 20), nn.Linear(6, 20)
        self.down_proj = nn.Linear(20, 3)

    def forward(self, x):
        return self.down_proj(torch.tanh(self.gate_proj(x)) * self.up_proj(x))


class Words(nn.Module):
    """An embedding of its own, of which some indices repeat, and a head."""

    def __init__(self, padding=None):
        super().__init__()
        self.e, self.h = nn.Embedding(15, 9, padding_idx=padding), nn.Linear(9, 15)

    def forward(self, tokens):
        return self.h(torch.tanh(self.e(tokens)))


class Tied(nn.Module):
    """An embedding and a head of one weight."""

    def __init__(self, padding=None):
        super().__init__()
        self.e, self.b = nn.Embedding(15, 9, padding_idx=padding), nn.Linear(9, 9)
        self.h = nn.Linear(9, 15, bias=False)
        self.h.weight = self.e.weight

    def forward(self, tokens):
        return self.h(torch.tanh(self.b(self.e(tokens))))


def implicit(model, rng=5, **options):
    """Make all layers of a model implicit, however small."""
    names = [name for name, module in model.named_modules() if isinstance(module, LAYERS)]
    return implicit_(model, rng=rng, layers=names, **options)


def weights_of(model):
    """Return the weights of the layers of a model, dense or implicit, by name."""
    return {
        name: layer
        for name, layer in model.named_modules()
        if getattr(layer, "weight", None) is not None
    }


def compare(make, script, **options):
    """Return the largest relative difference of a script's numbers from those of a dense twin.

    The twin has the weights that the answers to the script decided.
    """
    torch.manual_seed(1)
    model = implicit(make(), **options)
    start = copy.deepcopy(model.state_dict())
    matrices = {name: layer.matrix for name, layer in weights_of(model).items()}
    numbers = script(model)
    twin = make()
    for name, layer in weights_of(twin).items():
        layer.weight.data = entries_of(matrices[name]).reshape(layer.weight.shape)
        if getattr(layer, "bias", None) is not None:
            layer.bias.data = start[f"{name}.bias"]
    others = script(twin)
    assert len(numbers) == len(others)
    return max(
        float(((ours - theirs).abs().max() / (1.0 + theirs.abs().max())).detach())
        for ours, theirs in zip(numbers, others, strict=True)
    )


def dense(layer, tensor):
    """Return a tensor like the weight of a layer, such as its gradient, as entries."""
    return layer.dense(tensor) if hasattr(layer, "dense") else tensor


def entries_of(matrix):
    """Return all entries of the random part of a weight, as its answers decided them."""
    if isinstance(matrix, GaussianRows):
        start = torch.zeros(max(len(matrix.indices), 1), matrix.shape[1] + 1)
        start[0, -1] = 1.0
        return matrix.entries()(start)
    return torch.as_tensor(copy.deepcopy(matrix).dense())
