"""The cheap try: twenty steps of Adam on one batch, in memory."""

from __future__ import annotations

import math

from bnmc.torch.layers import called
from bnmc.torch.losses import Loss
from bnmc.torch.models import Inputs, torch

_STEPS = 20

_RATES = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1)


def fall_of(model: torch.nn.Module, batch: Inputs, goal: Loss, chance: float) -> float:
    """Return the least loss after twenty steps of Adam at seven rates, over the chance.

    If the chance is not known, it is over the first loss. The model keeps its parameters.
    """
    weights = [part for part in model.parameters() if part.requires_grad]
    saved = [part.detach().clone() for part in weights]
    unit, best = chance, math.inf
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
        best = min(best, value if math.isfinite(value) else math.inf)
        with torch.no_grad():
            for part, start in zip(weights, saved, strict=True):
                part.copy_(start)
    return best / unit
