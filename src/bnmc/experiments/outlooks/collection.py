"""The project's collection: small models of many kinds, on which the rules were tried.

Importing this file imports PyTorch.
"""

from __future__ import annotations

from typing import Any

from bnmc.experiments.outlooks.modules import (
    Entry,
    Joined,
    Rezero,
    Sum,
    branch,
    changed,
    convolution,
    encoder,
    nn,
    repeat,
    scaled,
    stack,
    with_norms,
)
from bnmc.torch.initializing import haar_
from bnmc.torch.models import torch

#: The gain of He et al.
_HE = 2.0**0.5


class _Recurrent(nn.Module):  # type: ignore[misc]
    """One orthogonal layer that is called 30 times."""

    def __init__(self, gain: float) -> None:
        super().__init__()
        self.first, self.again, self.last = nn.Linear(64, 48), nn.Linear(48, 48), nn.Linear(48, 10)
        haar_(self.again, gain=gain, rng=0)

    def forward(self, x: Any) -> Any:
        h = torch.tanh(self.first(x))
        for _ in range(30):
            h = torch.tanh(self.again(h))
        return self.last(h)


def _equal(model: Any) -> None:
    for parameter in model.parameters():
        parameter.fill_(0.02)


def _normal(model: Any) -> None:
    for parameter in model.parameters():
        parameter.normal_()


def _transformer() -> Any:
    return nn.Sequential(
        nn.Unflatten(1, (8, 8)), nn.Linear(8, 32), encoder(2, 32), nn.Flatten(), nn.Linear(256, 10)
    )


def _joined() -> Any:
    widths = range(64, 128, 16)
    return nn.Sequential(
        *(Joined(nn.Sequential(nn.Linear(width, 16), nn.ReLU())) for width in widths),
        nn.Linear(128, 10),
    )


def _convolutions() -> Any:
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)), *convolution(1, 16), *convolution(16, 16, 2), nn.Flatten(),
        nn.Linear(256, 10),
    )  # fmt: skip


def _silu() -> Any:
    return nn.Sequential(nn.GroupNorm(8, 64), nn.SiLU())


#: By name; some of each kind come first.
COLLECTION = {
    "default": Entry(lambda: stack(3)),
    "softmax": Entry(lambda: nn.Sequential(*stack(5, gain=_HE), nn.Softmax(-1)), "no", "no"),
    "deep default": Entry(lambda: stack(20), "no", "late"),
    "dead": Entry(lambda: changed(stack(5), lambda model: model[4].bias.fill_(-99.0)), "no", "no"),
    "batch norm": Entry(lambda: stack(5, norm=nn.BatchNorm1d)),
    "He": Entry(lambda: stack(5, gain=_HE)),
    "deep without bias": Entry(lambda: stack(40, bias=False), "no", "late"),
    "deep batch norm": Entry(lambda: stack(60, norm=nn.BatchNorm1d), "no", "undecided"),
    "normal weights": Entry(lambda: changed(stack(5), _normal), "no", "late"),
    "zero head": Entry(lambda: changed(stack(5, gain=_HE), lambda model: scaled(0.0)(model[-1]))),
    "ReZero": Entry(
        lambda: nn.Sequential(nn.Linear(64, 64), *repeat(20, Rezero), nn.Linear(64, 10))
    ),
    "all zero": Entry(lambda: changed(stack(3), scaled(0.0)), "no", "no"),
    "equal weights": Entry(lambda: changed(stack(3), _equal), "no", "no"),
    "shifted": Entry(lambda: stack(3), "no", "late", "shifted"),
    "small batch": Entry(lambda: stack(3, norm=nn.BatchNorm1d), task="patterns, four"),
    "bfloat16": Entry(lambda: stack(3), precision="bfloat16"),
    "bfloat16, deep": Entry(lambda: stack(20), "no", "late", precision="bfloat16"),
    "pyramid": Entry(lambda: nn.Sequential(*with_norms(64, 48, 32, 16), nn.Linear(16, 10))),
    "residual, norm before": Entry(
        lambda: nn.Sequential(*repeat(15, lambda: Sum(branch(nn.LayerNorm(64)))), *stack(0))
    ),
    "residual, norm after": Entry(
        lambda: nn.Sequential(*repeat(15, lambda: Sum(branch(), nn.LayerNorm(64))), *stack(0))
    ),
    "tanh, gain 1": Entry(lambda: stack(20, nn.Tanh, 1.0)),
    "tanh, gain 4": Entry(lambda: stack(20, nn.Tanh, 4.0), "undecided", "undecided"),
    "sigmoid": Entry(lambda: stack(20, nn.Sigmoid), "no", "late"),
    "relu, gain .7": Entry(lambda: stack(20, nn.ReLU, 0.7), "no", "late"),
    "recurrent, gain 1": Entry(lambda: _Recurrent(1.0)),
    "recurrent, gain .5": Entry(lambda: _Recurrent(0.5), "no", "late"),
    "transformer": Entry(_transformer),
    "convolutions": Entry(_convolutions),
    "joined": Entry(_joined),
    "dropout": Entry(lambda: stack(3, lambda: nn.Sequential(nn.ReLU(), nn.Dropout(0.2)))),
    "group norm": Entry(lambda: stack(3, _silu)),
}
