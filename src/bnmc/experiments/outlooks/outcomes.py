"""`outcome_of`: a model trained with SGD or Adam at several rates, and whether it trains."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from bnmc.experiments.outlooks.modules import Entry, nn
from bnmc.experiments.outlooks.tasks import TASKS, chance_of
from bnmc.experiments.training.networks import seeded
from bnmc.torch.losses import as_loss
from bnmc.torch.measuring import measure
from bnmc.torch.models import as_inputs, torch
from bnmc.torch.outlook import outlook_of
from bnmc.torch.trying import steps_tried

#: Samples of a task, of which each step draws a batch.
_POOL = 1024

#: A model trains if its loss falls below this part of that of the best constant output.
_TRAINS = 0.5

#: Training by which a model is pretrained: steps of Adam, and their rate.
_BEFORE = 300, 3e-3


class Outcome(NamedTuple):
    """What training gives.

    Attributes
    ----------
    answer : {"trains", "late", "no"}
        Whether the model trains: in the steps, in twice as many more, or not.
    steps : float
        Steps after which it does, at the first rate at which it trains; infinite if it does not.
    """

    answer: str
    steps: float


class _Data(NamedTuple):
    """The samples of a task as tensors, the size of a batch, and the loss of the best constant."""

    inputs: Any
    labels: Any
    batch: int
    chance: float

    def loss(self, model: Any, chosen: Any) -> Any:
        """Return the mean loss of some samples."""
        outputs, labels = model(self.inputs[chosen]).double(), self.labels[chosen]
        if labels.is_floating_point():
            return 0.5 * (outputs - labels).square().flatten(1).sum(1).mean()
        return nn.functional.cross_entropy(outputs, labels)

    def drawn_batch(self) -> Any:
        """Return the numbers of the samples of a batch."""
        return torch.randint(0, _POOL, (self.batch,))


def _data_of(task: str, precision: str) -> _Data:
    numbers, labels = TASKS[task].samples(_POOL)
    inputs = torch.as_tensor(numbers)
    if inputs.is_floating_point():
        inputs = inputs.to(getattr(torch, precision))
    return _Data(inputs, torch.as_tensor(labels), TASKS[task].batch, chance_of(labels))


@contextmanager
def _as_seeded(seed: int) -> Iterator[None]:
    """Run PyTorch in float64, on one thread, from a seed; restore all three."""
    dtype = torch.get_default_dtype()
    with seeded(seed):
        torch.set_default_dtype(torch.float64)
        try:
            yield
        finally:
            torch.set_default_dtype(dtype)


def _model_of(entry: Entry) -> Any:
    """Return a model from PyTorch's random state, pretrained where its entry says so."""
    model = entry.make()
    if entry.before:
        steps, rate = _BEFORE
        data = _data_of(entry.before, "float64")._replace(chance=0.0)
        _trained(model, data, torch.optim.Adam(model.parameters(), rate), steps)
    return entry.after(model).to(getattr(torch, entry.precision))


def outcome_of(
    entry: Entry, optimizer: str, rates: Sequence[float], steps: int, seed: int
) -> Outcome:
    """Train a model at some rates in turn, up to the first at which it trains.

    Parameters
    ----------
    entry : Entry
    optimizer : {"SGD", "Adam"}
        SGD without momentum, or Adam.
    rates : sequence of float
        All rates see the same weights and batches.
    steps : int
        If the model does not train in them at any rate, it goes on at the best one, for twice as
        many.
    seed : int

    Returns
    -------
    Outcome
    """
    with _as_seeded(seed):
        data, start = _data_of(entry.task, entry.precision), _model_of(entry)
        best: tuple[float, Any, Any] = (math.inf, None, None)
        for rate in rates:
            model = copy.deepcopy(start)
            weights = [part for part in model.parameters() if part.requires_grad]
            kind = getattr(torch.optim, optimizer)(weights, rate)
            torch.manual_seed(seed + 1)
            needed, loss = _trained(model, data, kind, steps)
            if needed < math.inf:
                return Outcome("trains", needed)
            if loss < best[0]:
                best = loss, model, kind
        _, model, kind = best
        needed = math.inf if model is None else _trained(model, data, kind, 2 * steps)[0]
        return Outcome("late" if needed < math.inf else "no", steps + needed)


def _trained(model: Any, data: _Data, optimizer: Any, steps: int) -> tuple[float, float]:
    """Train until the mean loss of a tenth of the steps is that of a model that trains.

    Returns
    -------
    (float, float)
        Steps until then, infinite if they are more than `steps`, and the mean loss of the last
        tenth, infinite if a loss is not finite.
    """
    losses: list[float] = []
    tenth = max(steps // 10, 1)
    for step in range(1, steps + 1):
        loss = data.loss(model, data.drawn_batch())
        losses.append(loss.item())
        if not math.isfinite(losses[-1]):
            return math.inf, math.inf
        if step >= tenth and np.mean(losses[-tenth:]) <= _TRAINS * data.chance:
            return float(step), float(np.mean(losses[-tenth:]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return math.inf, float(np.mean(losses[-tenth:]))


def outlooks_of(entry: Entry, seed: int) -> tuple[str, str, str]:
    """Return `answers_of` an entry, with the weights of `outcome_of`."""
    with _as_seeded(seed):
        data, model = _data_of(entry.task, entry.precision), _model_of(entry)
        inputs, labels = data.inputs[: data.batch], data.labels[: data.batch]
        if labels.is_floating_point():
            labels = labels.to(inputs.dtype)
        return answers_of(model, inputs, labels)


def answers_of(model: Any, inputs: Any, labels: Any) -> tuple[str, str, str]:
    """Return the outlooks of SGD, of Adam, and of Adam with tries."""
    measure_it = partial(measure, model, inputs, labels=labels, cosines=False)
    measured = measure_it()
    # With ``tries=True``, `measure` would try cures, too, which takes most of the time.
    goal: Any = as_loss(None, labels, len(inputs), inputs.device)
    fall, after = steps_tried(
        model, as_inputs(model, inputs), goal, measured.facts, lambda: measure_it().facts
    )
    tried = outlook_of(measured.draws, fall, after)
    return measured.outlook.sgd, measured.outlook.adam, tried.adam
