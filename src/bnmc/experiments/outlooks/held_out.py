"""Models that no rule and no threshold had seen: larger ones, other data, half precision, trained.

Their outlooks by hand were written before any of them was trained or measured.  Importing this file
imports PyTorch.
"""

from __future__ import annotations

import math
from typing import Any

from bnmc.experiments.outlooks.modules import (
    Entry,
    Formula,
    Sum,
    branch,
    changed,
    convolution,
    encoder,
    gaussian,
    nn,
    repeat,
    scaled,
    stack,
)
from bnmc.torch.models import torch

_HE = math.sqrt(2.0)


def _images(*layers: Any, channels: int) -> Any:
    """Return convolutions of images, and a readout of their mean over the positions."""
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 8))


def _resnet() -> Any:
    def block(channels: int) -> Any:
        layers = convolution(channels, channels)[:2]
        return Sum(nn.Sequential(*convolution(channels, channels), *layers), nn.ReLU())

    layers = [*convolution(3, 16, 2), *repeat(2, lambda: block(16)), *convolution(16, 32, 2)]
    return _images(*layers, *repeat(2, lambda: block(32)), channels=32)


def _plain_convolutions(depth: int, *, norm: bool, gain: float | None = None) -> Any:
    layers = [*convolution(3, 16, 2, norm=norm), *convolution(16, 16, 2, norm=norm)]
    for _ in range(depth - 2):
        layers += convolution(16, 16, norm=norm)
    model = _images(*layers, channels=16)
    return model if gain is None else gaussian(model, gain)


def _vision_transformer(*, first: bool = True, layers: int = 3) -> Any:
    def forward(self: Any, x: Any) -> Any:
        tokens = self.patches(x).flatten(2).transpose(1, 2) + self.places.weight
        return self.head(self.blocks(tokens).mean(1))

    return Formula(
        forward, patches=nn.Conv2d(3, 32, 4, 4), places=nn.Embedding(16, 32),
        blocks=encoder(layers, 32, first=first, activation="gelu"), head=nn.Linear(32, 8),
    )  # fmt: skip


def _mixer() -> Any:
    """Four blocks that mix eight rows of a digit, then their 32 features."""

    def block() -> Any:
        return Formula(
            lambda self, x: (lambda y: y + self.features(y))(
                x + self.rows(x.transpose(1, 2)).transpose(1, 2)
            ),
            rows=branch(width=8, inner=16), features=branch(nn.LayerNorm(32), width=32),
        )  # fmt: skip

    return nn.Sequential(
        nn.Unflatten(1, (8, 8)), nn.Linear(8, 32), *repeat(4, block), nn.Flatten(),
        nn.Linear(256, 10),
    )  # fmt: skip


def _recurrent(kind: Any, kinds: int) -> Any:
    return Formula(
        lambda self, x: self.head(self.cells(self.embed(x))[0][:, -1]),
        embed=nn.Embedding(kinds, 32), cells=kind(32, 48, batch_first=True),
        head=nn.Linear(48, kinds),
    )  # fmt: skip


def _language_model(layers: int, deviation: float) -> Any:
    model = Formula(
        lambda self, x: self.head(self.norm(self.blocks(self.embed(x)).mean(1))),
        embed=nn.Embedding(12, 48), blocks=encoder(layers, 48), norm=nn.LayerNorm(48),
        head=nn.Linear(48, 12),
    )  # fmt: skip
    nn.init.normal_(model.embed.weight, 0.0, deviation)
    return model


def _dilated() -> Any:
    layers = [
        part
        for k in range(6)
        for part in (nn.Conv1d(24 if k else 2, 24, 3, padding=2**k, dilation=2**k), nn.GELU())
    ]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(24, 6))


class _Sine(nn.Module):  # type: ignore[misc]
    def forward(self, x: Any) -> Any:
        return torch.sin(3.0 * x)


def _highway(bias: float) -> Any:
    def block() -> Any:
        gate = nn.Linear(64, 64)
        nn.init.constant_(gate.bias, bias)
        return Formula(
            lambda self, x: x + torch.sigmoid(self.gate(x)) * (torch.relu(self.inner(x)) - x),
            gate=gate, inner=nn.Linear(64, 64),
        )  # fmt: skip

    return nn.Sequential(*repeat(30, block), nn.Linear(64, 10))


def _experts() -> Any:
    """Four experts, weighted by a softmax."""
    return Formula(
        lambda self, x: sum(
            weight[:, None] * expert(x)
            for weight, expert in zip(self.gate(x).softmax(1).unbind(1), self.experts, strict=True)
        ),
        gate=nn.Linear(64, 4), experts=nn.ModuleList(repeat(4, lambda: stack(2))),
    )  # fmt: skip


def _unet() -> Any:
    def forward(self: Any, x: Any) -> Any:
        top = self.down(x)
        low = self.low(nn.functional.max_pool2d(top, 2))
        return self.last(torch.cat([top, nn.functional.interpolate(low, scale_factor=2)], 1))

    return Formula(
        forward, down=nn.Sequential(*convolution(1, 16)), low=nn.Sequential(*convolution(16, 16)),
        last=nn.Sequential(*convolution(32, 16), nn.Conv2d(16, 1, 1)),
    )  # fmt: skip


def _decoder() -> Any:
    return nn.Sequential(
        nn.Linear(16, 128), nn.Unflatten(1, (32, 2, 2)),
        nn.ConvTranspose2d(32, 24, 4, 2, 1), nn.BatchNorm2d(24), nn.ReLU(),
        nn.ConvTranspose2d(24, 16, 4, 2, 1), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 1, 3, padding=1),
    )  # fmt: skip


def _autoencoder(code: int) -> Any:
    return nn.Sequential(
        nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, code), nn.Linear(code, 64), nn.ReLU(),
        nn.Linear(64, 64),
    )  # fmt: skip


def _new_head(model: Any) -> Any:
    """Replace the head, and freeze the layers below."""
    model.requires_grad_(False)
    model[-1] = nn.Linear(model[-1].in_features, 2)
    return model


def _again(model: Any) -> Any:
    """Reset the layers but the first two."""
    for module in list(model)[4:]:
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
    return model


def _dropped() -> Any:
    return nn.Sequential(nn.ReLU(), nn.Dropout(0.95))


#: By name, with the outlook by hand of SGD and of Adam; some of each kind come first.
HELD_OUT = {
    "regression, tanh": Entry(lambda: stack(3, nn.Tanh, inputs=20, outputs=4), task="teacher"),
    "logits times 200": Entry(
        lambda: changed(stack(3, gain=_HE), lambda model: model[-1].weight.mul_(200.0)),
        "no",
        "late",
        "digits",
    ),
    "autoencoder": Entry(lambda: _autoencoder(16), task="copied"),
    "wide digits": Entry(lambda: stack(2, width=512), task="digits", precision="float32"),
    "wide and deep, default": Entry(
        lambda: stack(24, width=128), "no", "late", "digits", "float32"
    ),
    "residual convolutions": Entry(_resnet, task="gratings", precision="float32"),
    "pretrained, other task": Entry(
        lambda: stack(3, width=128), task="even", before="digits", after=_new_head
    ),
    "float16, huge states": Entry(lambda: stack(12, gain=8.0), "no", "no", "digits", "float16"),
    "wide and deep, He": Entry(
        lambda: stack(30, gain=_HE, width=256), task="digits", precision="float32"
    ),
    "wide, leaky": Entry(
        lambda: stack(10, lambda: nn.LeakyReLU(0.2), 1.387, width=256),
        task="digits",
        precision="float32",
    ),
    "selu": Entry(lambda: stack(16, nn.SELU, 1.0, width=128), task="digits"),
    "sigmoid, eight layers": Entry(lambda: stack(8, nn.Sigmoid, width=128), "no", "late", "digits"),
    "raw bytes": Entry(lambda: stack(3, width=128), "late", "trains", "bytes"),
    "raw bytes, He, deep": Entry(lambda: stack(12, gain=_HE, width=128), "no", "late", "bytes"),
    "layer norm, 40 layers": Entry(
        lambda: stack(40, norm=nn.LayerNorm), "undecided", "trains", "digits"
    ),
    "batch norm, 30 wide layers": Entry(
        lambda: stack(30, norm=nn.BatchNorm1d, width=128), "undecided", "trains", "digits"
    ),
    "batch norm, batch of eight": Entry(
        lambda: stack(8, norm=nn.BatchNorm1d), "late", "late", "digits, eight"
    ),
    "dropout .95": Entry(lambda: stack(5, _dropped), "no", "late", "digits"),
    "mixer": Entry(_mixer, task="digits"),
    "highway, 30 layers": Entry(lambda: _highway(-2.0), task="digits"),
    "experts": Entry(_experts, task="digits"),
    "bfloat16, tanh": Entry(lambda: stack(12, nn.Tanh, 1.1), task="digits", precision="bfloat16"),
    "bfloat16, residual": Entry(
        lambda: nn.Sequential(*repeat(8, lambda: Sum(branch(nn.LayerNorm(64)))), *stack(0)),
        task="digits",
        precision="bfloat16",
    ),
    "bfloat16, sigmoid": Entry(lambda: stack(10, nn.Sigmoid), "no", "late", "digits", "bfloat16"),
    "pretrained, goes on": Entry(lambda: stack(5), task="digits", before="digits"),
    "pretrained, shrunk": Entry(
        lambda: stack(5),
        "no",
        "late",
        "digits",
        before="digits",
        after=lambda model: changed(model, scaled(0.05)),
    ),
    "pretrained, upper layers anew": Entry(
        lambda: stack(4), task="digits", before="digits", after=_again
    ),
    "pretrained, cut off": Entry(
        lambda: stack(5),
        "no",
        "no",
        "digits",
        before="digits",
        after=lambda model: changed(model, lambda it: it[4].bias.sub_(50.0)),
    ),
    "plain convolutions, 12": Entry(
        lambda: _plain_convolutions(12, norm=False), "no", "late", "gratings", "float32"
    ),
    "plain convolutions, He": Entry(
        lambda: _plain_convolutions(12, norm=False, gain=_HE),
        "undecided",
        "trains",
        "gratings",
        "float32",
    ),
    "norm convolutions, 12": Entry(
        lambda: _plain_convolutions(12, norm=True), task="gratings", precision="float32"
    ),
    "vision transformer": Entry(_vision_transformer, task="gratings", precision="float32"),
    "vision transformer, post-norm": Entry(
        lambda: _vision_transformer(first=False, layers=8), "late", "trains", "gratings", "float32"
    ),
    "GRU": Entry(lambda: _recurrent(nn.GRU, 12), "late", "trains", "majorities", "float32"),
    "LSTM, 60 steps": Entry(
        lambda: _recurrent(nn.LSTM, 8), "no", "late", "first tokens", "float32"
    ),
    "language model": Entry(
        lambda: _language_model(3, 1.0), task="majorities", precision="float32"
    ),
    "language model, deviation .02": Entry(
        lambda: _language_model(3, 0.02), task="majorities", precision="float32"
    ),
    "dilated signals": Entry(_dilated, "late", "trains", "waves", "float32"),
    "regression, sine": Entry(
        lambda: stack(3, _Sine, inputs=20, outputs=4), "undecided", "trains", "teacher"
    ),
    "regression, large targets": Entry(
        lambda: stack(3, inputs=20, outputs=4), "trains", "late", "teacher, large"
    ),
    "U-Net": Entry(_unet, task="denoised", precision="float32"),
    "decoder": Entry(_decoder, task="coded", precision="float32"),
    "autoencoder, code of one": Entry(lambda: _autoencoder(1), "no", "no", "copied"),
}
