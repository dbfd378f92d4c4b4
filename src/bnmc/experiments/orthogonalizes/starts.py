"""Xavier's weights, and the orthogonal start, of Figs 3, 4 and 7."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from bnmc._support.extras import import_extra
from bnmc.errors import ArgumentError
from bnmc.experiments.training.networks import mlp, xavier_
from bnmc.torch.orthogonalizing import POWERS, orthogonalize_

if TYPE_CHECKING:
    import torch

#: Labels of the starts without batch normalization.
STARTS = ("Xavier", "orthogonal start")


def xavier(features: int, width: int, depth: int, norm: str = "none") -> torch.nn.Module:
    """Return a ReLU network without biases, with Xavier's weights and gain √2."""
    return xavier_(mlp(features, width, depth, norm=norm, bias=False), gain=np.sqrt(2.0))


def orthogonal_start(samples: int, power: float) -> Callable[[Any, Any, np.random.Generator], None]:
    """Return a preparation: orthogonal representations of some images, with small outputs.

    The weights of the hidden layers after the first become those of `bnmc.torch.orthogonalize_`.
    The authors scale each of these layers such that its output has the norm 1 over all `samples`
    and neurons, not the root mean square 1.  For ReLU networks without biases this is one factor of
    all later layers, so it is applied to the second weight layer.

    Parameters
    ----------
    samples : int
        Number of images that are orthogonalized.
    power : {-1, -0.5, 0.5}

    Raises
    ------
    ArgumentError
        If it is another power.
    """
    if power not in POWERS:
        raise ArgumentError("power", power, ", ".join(f"{allowed:g}" for allowed in POWERS))

    def prepare(model: Any, inputs: Any, rng: np.random.Generator) -> None:
        torch: Any = import_extra("torch", "torch")
        some = inputs[:samples]
        orthogonalize_(model, some, power=power, rng=rng)
        kinds = torch.nn.Linear, torch.nn.Conv2d
        _, second, *_ = (module for module in model if isinstance(module, kinds))
        with torch.no_grad():
            sizes: list[int] = []
            hook = second.register_forward_hook(lambda *given: sizes.append(given[2].numel()))
            model(some)
            hook.remove()
            second.weight.div_(np.sqrt(sizes[0]))

    return prepare
