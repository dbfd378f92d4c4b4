"""Draws measured.png: run it from the root of the repository, with `plot` and `torch`."""

from functools import cache

import torch
from saving import save
from torch import nn

import bnmc


@cache
def measured():
    torch.manual_seed(0)
    layers = []
    for _ in range(30):
        layers += [nn.Linear(128, 128), nn.BatchNorm1d(128), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(128, 10))
    return bnmc.torch.measure(model, torch.randn(32, 128), labels=torch.arange(32) % 10, networks=8)


def numbers():
    names = ("rank", "soft_rank", "effective_rank", "layer_gradient_norm")
    return {name: getattr(measured(), name) for name in names}


def draw(values):
    figure = measured().plot()
    figure.set_size_inches(6.4, 3.4)
    return figure


if __name__ == "__main__":
    save(__file__, numbers, draw)
