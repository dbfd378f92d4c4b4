"""What the models are built of.  Importing this file imports PyTorch."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from bnmc.torch.models import torch

nn: Any = torch.nn


class Entry(NamedTuple):
    """A model, and what a person said of it before it was trained or measured.

    Attributes
    ----------
    make : callable
        Returns a new model; draws from PyTorch's random state.
    sgd, adam : {"trains", "late", "no", "undecided"}
        The outlook by hand.
    task : str
        Name in `TASKS`.
    precision : {"float64", "float32", "bfloat16", "float16"}
        Of the parameters and of inputs that are no integers.
    before : str
        Name of a task on which the model is trained by 300 steps of Adam before `after` acts.
    after : callable
        Returns the model that is trained and measured.
    """

    make: Callable[[], Any]
    sgd: str = "trains"
    adam: str = "trains"
    task: str = "patterns"
    precision: str = "float64"
    before: str = ""
    after: Callable[[Any], Any] = lambda model: model


class Formula(nn.Module):  # type: ignore[misc]
    """Modules, and a function of them that is the forward pass."""

    def __init__(self, function: Callable[..., Any], **modules: Any) -> None:
        super().__init__()
        self.function = function
        for name, module in modules.items():
            self.add_module(name, module)

    def forward(self, *inputs: Any) -> Any:
        """Return the function of this module and the inputs."""
        return self.function(self, *inputs)


class Rezero(nn.Module):  # type: ignore[misc]
    """x + α relu(W x + b), with α = 0."""

    def __init__(self) -> None:
        super().__init__()
        self.branch, self.factor = nn.Linear(64, 64), nn.Parameter(torch.zeros(1))

    def forward(self, x: Any) -> Any:
        """Return the formula above."""
        return x + self.factor * torch.relu(self.branch(x))


class Sum(nn.Module):  # type: ignore[misc]
    """after(x + branch(x))."""

    def __init__(self, branch: Any, after: Any = None) -> None:
        super().__init__()
        self.branch, self.after = branch, after or nn.Identity()

    def forward(self, x: Any) -> Any:
        """Return the formula above."""
        return self.after(x + self.branch(x))


class Joined(nn.Module):  # type: ignore[misc]
    """The features x, and those of a branch beside them."""

    def __init__(self, branch: Any) -> None:
        super().__init__()
        self.branch = branch

    def forward(self, x: Any) -> Any:
        """Return the formula above."""
        return torch.cat([x, self.branch(x)], dim=1)


def stack(
    depth: int,
    activation: Callable[[], Any] = nn.ReLU,
    gain: float | None = None,
    *,
    width: int = 64,
    inputs: int = 64,
    outputs: int = 10,
    norm: Callable[[int], Any] | None = None,
    bias: bool = True,
) -> Any:
    """Return hidden layers and a readout; a gain is that of Gaussian weights without biases."""
    layers: list[Any] = []
    for layer in range(depth):
        layers.append(nn.Linear(width if layer else inputs, width, bias=bias))
        layers += [*([norm(width)] if norm else []), activation()]
    model = nn.Sequential(*layers, nn.Linear(width if depth else inputs, outputs))
    return model if gain is None else gaussian(model, gain)


def gaussian(model: Any, gain: float) -> Any:
    """Draw all weights with variance gain² over the number of inputs; set biases to 0."""
    for module in model.modules():
        if isinstance(module, (nn.Linear, nn.Conv1d, nn.Conv2d)):
            nn.init.normal_(module.weight, 0.0, gain / math.sqrt(module.weight[0].numel()))
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    return model


def with_norms(*widths: int) -> list[Any]:
    """Return layers of some widths: linear, batch norm, ReLU."""
    pairs = itertools.pairwise(widths)
    return [part for i, o in pairs for part in (nn.Linear(i, o), nn.BatchNorm1d(o), nn.ReLU())]


def branch(*first: Any, width: int = 64, inner: int = 64) -> Any:
    """Return a residual branch: some modules, then two linear layers with ReLU between them."""
    return nn.Sequential(*first, nn.Linear(width, inner), nn.ReLU(), nn.Linear(inner, width))


def convolution(before: int, channels: int, stride: int = 1, *, norm: bool = True) -> list[Any]:
    """Return a 3 × 3 convolution, batch norm unless `norm` is False, and ReLU."""
    layer = nn.Conv2d(before, channels, 3, padding=1, stride=stride)
    return [layer, *([nn.BatchNorm2d(channels)] if norm else []), nn.ReLU()]


def encoder(
    layers: int, width: int, *, heads: int = 4, first: bool = True, activation: str = "relu"
) -> Any:
    """Return transformer blocks with the norm before (`first`) or after each branch."""
    layer = nn.TransformerEncoderLayer(
        width, heads, 2 * width, dropout=0.0, batch_first=True, norm_first=first,
        activation=activation,
    )  # fmt: skip
    # PyTorch copies one layer, so that all would have equal weights.
    blocks = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
    for module in blocks.modules():
        for reset in ("_reset_parameters", "reset_parameters"):
            if hasattr(module, reset):
                getattr(module, reset)()
    return blocks


def changed(model: Any, change: Callable[[Any], object]) -> Any:
    """Change a model in place, without gradients, and return it."""
    with torch.no_grad():
        change(model)
    return model


def scaled(factor: float) -> Callable[[Any], None]:
    """Return a change that multiplies the parameters of a module."""

    def scale(model: Any) -> None:
        for parameter in model.parameters():
            parameter.mul_(factor)

    return scale


def repeat(count: int, make: Callable[[], Any]) -> Iterator[Any]:
    """Yield so many modules."""
    return (make() for _ in range(count))
