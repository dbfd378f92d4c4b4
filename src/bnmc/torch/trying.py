"""What is tried in memory: twenty steps of Adam on one batch, and cures of the weights."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from bnmc.errors import BnmcError
from bnmc.torch.facts import Facts
from bnmc.torch.gains import gain_for_
from bnmc.torch.initializing import haar_
from bnmc.torch.layers import called, weight_matrices
from bnmc.torch.losses import Loss
from bnmc.torch.models import Inputs, torch
from bnmc.torch.orthogonalizing import orthogonalize_
from bnmc.torch.preservation import as_it_was

_STEPS = 20

_RATES = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1)

#: Passes forward of `steps_tried`; nearly all are followed by one backward.
PASSES = len(_RATES) * (_STEPS + 1)


def seconds_of_a_pass(model: torch.nn.Module, batch: Inputs, goal: Loss | None) -> float:
    """Return the seconds of a pass forward, and backward if there is a loss.

    The model stays as it is. The first pass also starts PyTorch's threads, so it does not count.
    """
    seconds = math.nan
    with as_it_was(model):
        for _ in range(2):
            begun = time.perf_counter()
            output = called(model, batch)
            if goal is not None:
                goal(output).mean().backward()
            if torch.cuda.is_initialized():
                torch.cuda.synchronize()
            seconds = time.perf_counter() - begun
    return seconds


def steps_tried(
    model: torch.nn.Module, batch: Inputs, goal: Loss, first: Facts, facts_of: Callable[[], Facts]
) -> tuple[float, Facts]:
    """Return the least loss after twenty steps of Adam at seven rates, and the facts there.

    The loss is over the chance, or over the first loss if the chance is not known. `first` has the
    facts of the model, and `facts_of` measures it. The model keeps its parameters.
    """
    weights = [part for part in model.parameters() if part.requires_grad]
    start = [part.detach().clone() for part in weights]
    unit, best, end = first.chance, math.inf, start
    for rate in _RATES:
        optimizer = torch.optim.Adam(weights, rate)
        for step in range(_STEPS + 1):
            loss = goal.mean(called(model, batch))
            value = float(loss.detach())
            if math.isnan(unit):
                unit = value
            if not math.isfinite(value) or step == _STEPS:
                break
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if value < best:
            best, end = value, [part.detach().clone() for part in weights]
        _set(weights, start)
    after = first
    _set(weights, end)
    with suppress(BnmcError):
        after = facts_of()
    _set(weights, start)
    return best / unit, after


def _set(weights: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> None:
    """Copy values into parameters."""
    with torch.no_grad():
        for part, value in zip(weights, values, strict=True):
            part.copy_(value)


def facts_of_cures(
    model: torch.nn.Module, batch: Inputs, facts_of: Callable[[slice], Facts]
) -> dict[str, Facts]:
    """Return the facts of a model after each cure that applies to it, by the name of the cure.

    `facts_of` measures the model on a part of the batch. `orthogonalize_` sees the first half of
    the batch, and is measured on the second one. The model stays as it is.
    """
    half = batch.samples // 2
    seen = batch.tensors[0][:half]
    cures: dict[str, tuple[Callable[[], Any], slice]] = {
        "gain_for_": (lambda: gain_for_(model), slice(None)),
        "haar_": (lambda: haar_(model, rng=0), slice(None)),
        "the last layer times .1": (lambda: _scale_head(model, 0.1), slice(None)),
    }
    if len(batch.tensors) == 1 and batch.forward is None and half >= 2:
        cures["orthogonalize_"] = lambda: orthogonalize_(model, seen, rng=0), slice(half, None)
    facts = {}
    for name, (cure, part) in cures.items():
        with as_it_was(model):
            try:
                cure()
                facts[name] = facts_of(part)
            except BnmcError:  # this cure is for other models
                continue
    return facts


def _scale_head(model: torch.nn.Module, factor: float) -> None:
    """Scale the last weight layer of a model, with its bias."""
    last = list(weight_matrices(model).values())[-1]
    with torch.no_grad():
        for part in last.parameters(recurse=False):
            part.mul_(factor)
