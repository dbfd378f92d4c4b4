"""Steps of optimizers with implicit layers: those of entries raise, those of Muon are scaled."""

from __future__ import annotations

import math
import weakref
from functools import cache
from typing import Any

from bnmc.errors import ArgumentTypeError
from bnmc.torch.models import torch

#: All implicit layers of this process.
_LAYERS: weakref.WeakSet[Any] = weakref.WeakSet()

#: Weights before a step of Muon.
_BEFORE: weakref.WeakKeyDictionary[Any, dict[Any, Any]] = weakref.WeakKeyDictionary()


def remember(layer: Any) -> None:
    """Watch the optimizers of a layer from now on."""
    _watch()
    _LAYERS.add(layer)


@cache
def _watch() -> None:
    from torch.optim import optimizer

    optimizer.register_optimizer_step_pre_hook(_before_step)
    optimizer.register_optimizer_step_post_hook(_after_step)


def _before_step(optimizer: Any, *_: Any) -> None:
    """Raise for an optimizer that does not act on a matrix as a whole."""
    if isinstance(optimizer, torch.optim.SGD):
        return
    weights = [weight for weight, _, _ in _implicit_weights(optimizer)]
    # PyTorch has Muon since version 2.9.
    if weights and not isinstance(optimizer, getattr(torch.optim, "Muon", ())):
        hint = "it acts on single entries, and an implicit weight has none"
        raise ArgumentTypeError("optimizer", type(optimizer).__name__, "SGD or Muon", hint)
    if weights:
        _BEFORE[optimizer] = {weight: weight.detach().clone() for weight in weights}


def _after_step(optimizer: Any, *_: Any) -> None:
    """Scale the steps of Muon, which depend on the shape, as if the weight had its entries."""
    before = _BEFORE.pop(optimizer, {})
    with torch.no_grad():
        for weight, shape, group in _implicit_weights(optimizer) if before else ():
            shrunk = (1.0 - group["lr"] * group["weight_decay"]) * before[weight]
            adjusted = group["adjust_lr_fn"]
            factor = _muon_factor(adjusted, *shape) / _muon_factor(adjusted, *weight.shape)
            weight.copy_(shrunk + factor * (weight - shrunk))


def _muon_factor(adjusted: str | None, rows: int, columns: int) -> float:
    """Return the factor of the learning rate of Muon for a shape."""
    if adjusted == "match_rms_adamw":
        return 0.2 * math.sqrt(max(rows, columns))
    return math.sqrt(max(1.0, rows / columns))


def _implicit_weights(optimizer: Any) -> list[tuple[Any, tuple[int, int], Any]]:
    """Return the implicit weights of an optimizer, their true shapes, and their groups."""
    shapes = {id(part.weight): part.matrix.shape for part in _LAYERS if part.matrix is not None}
    return [
        (weight, shapes[id(weight)], group)
        for group in optimizer.param_groups
        for weight in group["params"]
        if id(weight) in shapes
    ]
