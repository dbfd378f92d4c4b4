"""Public reports of models that do not train, each rebuilt in a few lines.

The outlooks were written down before any of these models was measured or trained; the words that a
verdict must contain were adapted to its wording afterwards.  `docs/verdict.rst` has the table, with
the sources; `torch/test_outlook.py` compares them.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from torch_models import nn, torch

from bnmc.experiments.outlooks.collection import COLLECTION
from bnmc.experiments.outlooks.modules import Formula, convolution, encoder, stack
from bnmc.experiments.outlooks.tasks import TASKS, Task


class Report(NamedTuple):
    """A model, and what a person expected of the verdict and of training, beforehand.

    words: of a fault or a mention
    """

    make: Callable[[], Any]
    sgd: str
    adam: str
    words: str
    task: Task = TASKS["digits"]


def absolute(count):
    """Return numbers of mean 0 and variance 1, and their absolute values."""
    numbers = np.random.default_rng(0).uniform(-math.sqrt(3.0), math.sqrt(3.0), (count, 1))
    return numbers, np.abs(numbers)


def plain_convolutions():
    """Return 20 convolutions with PyTorch's initialization."""
    layers = [nn.Unflatten(1, (1, 8, 8)), *convolution(1, 16, norm=False)]
    for _ in range(19):
        layers += convolution(16, 16, norm=False)
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(16 * 64, 10))


def transformer(layers, *, first=False, width=32, head=1.0):
    """Return a classifier of sequences of 12 tokens, with Xavier's initialization."""
    model = Formula(
        lambda self, x: self.head(self.norm(self.blocks(self.embed(x)).mean(1))),
        embed=nn.Embedding(12, width), blocks=encoder(layers, width, first=first),
        norm=nn.LayerNorm(width), head=nn.Linear(width, 12),
    )  # fmt: skip
    for weight in model.blocks.parameters():
        if weight.ndim > 1:
            nn.init.xavier_uniform_(weight)
    return model


def normal_head():
    """Return a transformer whose readout has weights of variance 1."""
    model = transformer(2, first=True, width=64)
    nn.init.normal_(model.head.weight)
    return model


class Tied(nn.Module):
    """Embeddings of variance 1, times √width, that are the readout, too."""

    def __init__(self, width=96):
        super().__init__()
        self.embed, self.scale = nn.Embedding(12, width), math.sqrt(width)
        self.blocks = encoder(2, width)

    def forward(self, x):
        return self.blocks(self.scale * self.embed(x))[:, -1] @ self.embed.weight.T


def raw_images():
    """Return convolutions with Glorot's initialization."""
    model = nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)), *convolution(1, 32, norm=False),
        *convolution(32, 32, norm=False), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(512, 10),
    )  # fmt: skip
    for weight in model.parameters():
        (nn.init.xavier_uniform_ if weight.ndim > 1 else nn.init.zeros_)(weight)
    return model


def unet():
    """Return a U-Net of two levels; the lowest one has 2 × 2 positions."""

    def forward(self, x):
        top = self.top(x)
        middle = self.middle(self.pool(top))
        low = self.grow(self.low(self.pool(middle)))
        middle = self.grow(self.up(torch.cat([middle, low], 1)))
        return self.last(torch.cat([top, middle], 1))

    return Formula(
        forward, pool=nn.MaxPool2d(2), grow=nn.Upsample(scale_factor=2),
        top=nn.Sequential(*convolution(1, 16)), middle=nn.Sequential(*convolution(16, 32)),
        low=nn.Sequential(*convolution(32, 32)), up=nn.Sequential(*convolution(64, 32)),
        last=nn.Sequential(*convolution(48, 16), nn.Conv2d(16, 1, 1)),
    )  # fmt: skip


#: Words of the verdict if a loss above chance is no fault.
HIGH = "of chance, which asks SGD for a lower rate"

#: By the name on the page.
REPORTS = {
    "batch norm, 60 layers": Report(
        COLLECTION["deep batch norm"].make, "no", "undecided", "activations grow"
    ),
    "default, 20 layers": Report(COLLECTION["deep default"].make, "no", "late", "fall to"),
    "default, 20 convolutions": Report(plain_convolutions, "no", "late", "fall to"),
    "post-norm, 4 layers": Report(
        lambda: transformer(4), "trains", "trains", "Nothing found", TASKS["majorities"]
    ),
    "post-norm, 24 layers": Report(
        lambda: transformer(24), "no", "late", "fall to", TASKS["majorities"]
    ),
    "raw bytes": Report(raw_images, "trains", "trains", HIGH, TASKS["bytes"]),
    "readout N(0, 1)": Report(
        normal_head, "trains", "trains", HIGH, TASKS["majorities"]
    ),
    "tied N(0, 1)": Report(Tied, "no", "late", "of chance (2.48)", TASKS["majorities"]),
    "30 layers of width 2": Report(
        lambda: stack(30, gain=math.sqrt(2.0), width=2, inputs=1, outputs=1),
        "no", "no", "all units of a layer are zero", Task(absolute),
    ),
    "U-Net, batch 2": Report(
        unet, "trains", "trains", "8 numbers", TASKS["denoised"]._replace(batch=2)
    ),
}  # fmt: skip


#: These take longer; two of them are in `test_outlook.py`, too.
LARGE = ["batch norm, 60 layers", "default, 20 layers", "post-norm, 24 layers", "tied N(0, 1)"]

#: The verdict is another one than that which was expected: `docs/verdict.rst` has both.
WRONG = ["post-norm, 24 layers"]


def data_of(report, count):
    """Return inputs and labels as tensors; numbers are in float32."""
    inputs, labels = (torch.as_tensor(part) for part in report.task.samples(count))
    return (part.float() if part.is_floating_point() else part for part in (inputs, labels))


MARGIN = 0.5


def triplets(outputs, labels):
    """Return the loss of each sample with its farthest equal and its nearest other one."""
    squares = outputs.square().sum(1)
    distances = (squares[:, None] + squares - 2.0 * outputs @ outputs.T).clamp(min=0.0)
    equal = labels[:, None] == labels
    nearest = distances.masked_fill(equal, math.inf).amin(1)
    return torch.relu((distances * equal).amax(1) - nearest + MARGIN)


def embeddings_after(rate, steps):
    """Return embeddings of digits after steps of Adam, and a batch with its labels."""
    inputs, labels = data_of(REPORTS["default, 20 layers"], 1024)
    torch.manual_seed(0)
    model = stack(3, outputs=8)
    optimizer = torch.optim.Adam(model.parameters(), rate)
    for _ in range(steps):
        chosen = torch.randint(0, 1024, (64,))
        optimizer.zero_grad()
        triplets(model(inputs[chosen]), labels[chosen]).mean().backward()
        optimizer.step()
    return model, inputs[:64], labels[:64]
