"""Outcomes of training, beside a training that is written out in NumPy."""

import math

import numpy as np
import pytest
from torch_models import nn, one_thread, torch  # noqa: F401

from bnmc.experiments.outlooks import outcomes
from bnmc.experiments.outlooks.modules import Entry, stack
from bnmc.experiments.outlooks.outcomes import Outcome, outcome_of
from bnmc.experiments.outlooks.tasks import TASKS
from bnmc.torch import measure

pytestmark = pytest.mark.usefixtures("one_thread")


def zero_layer():
    layer = nn.Linear(64, 10)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


def needed(rate, steps, seed):
    """Return the step at which the mean loss of three batches is below half of ln 10, or inf.

    Softmax regression on the patterns from zero weights, by SGD.
    """
    torch.manual_seed(seed + 1)
    inputs, labels = TASKS["patterns"].samples(1024)
    weights, losses = np.zeros((65, 10)), []
    for step in range(1, steps + 1):
        chosen = torch.randint(0, 1024, (64,)).numpy()
        rows = np.column_stack([inputs[chosen], np.ones(64)])
        powers = np.exp(rows @ weights)
        shares = powers / powers.sum(axis=1, keepdims=True)
        losses.append(-np.log(shares[range(64), labels[chosen]]).mean())
        if step >= 3 and np.mean(losses[-3:]) <= 0.5 * math.log(10):
            return step
        weights -= rate / 64 * rows.T @ (shares - np.eye(10)[labels[chosen]])
    return math.inf


def test_the_outcome_is_that_of_a_plain_training():
    step = needed(0.1, 30, 5)
    assert 3 < step < 30
    for rates in ((0.1,), (1e-4, 0.1, 0.3)):  # the first rate at which the model trains
        assert outcome_of(Entry(zero_layer), "SGD", rates, 30, 5) == Outcome("trains", step)


def test_a_model_that_needs_more_steps_is_late_and_one_without_gradients_never_trains():
    late = outcome_of(Entry(zero_layer), "SGD", (1e-4, 0.01), 30, 5)
    assert late.answer == "late"
    assert 30 < late.steps < needed(0.01, 90, 5) + 9  # where it goes on, the mean begins anew
    assert outcome_of(Entry(zero_layer), "SGD", (1e-5,), 30, 5) == Outcome("no", math.inf)
    dead = Entry(
        lambda: nn.Sequential(nn.Linear(20, 8), nn.Threshold(99.0, 0.0), nn.Linear(8, 4)),
        task="teacher",
    )
    assert outcome_of(dead, "Adam", (1e-3,), 10, 0).answer == "no"


def test_a_training_that_diverges_is_no_outcome():
    huge = Entry(lambda: nn.Sequential(nn.Linear(20, 64), nn.Linear(64, 4)), task="teacher")
    assert outcome_of(huge, "SGD", (1e3,), 30, 0) == Outcome("no", math.inf)


def test_the_measured_weights_are_those_that_are_trained(monkeypatch):
    models = []

    def spy(model, *arguments, **options):
        models.append({name: part.detach().clone() for name, part in model.named_parameters()})
        return measure(model, *arguments, **options)

    def after(model):
        models.append({name: part.detach().clone() for name, part in model.named_parameters()})
        return model

    monkeypatch.setattr(outcomes, "measure", spy)
    entry = Entry(zero_layer, before="patterns", after=after)
    state = torch.get_rng_state()
    outcome_of(entry, "SGD", (0.1,), 3, 7)
    assert outcomes.outlooks_of(entry, 7) == ("trains", "trains", "trains")
    assert torch.get_default_dtype() == torch.float32
    assert torch.equal(torch.get_rng_state(), state)
    trained, again, measured, _ = models  # the last ones are those after the try
    for name, part in trained.items():
        assert part.any()
        assert torch.equal(part, again[name])
        assert torch.equal(part, measured[name])


def test_the_try_is_that_of_measure():
    """Here it decides: the fact alone says late."""
    samples, labels = TASKS["patterns"].samples(64)
    torch.manual_seed(0)
    model, inputs = stack(20, width=16), torch.tensor(samples).float()
    answers = outcomes.answers_of(model, inputs, torch.tensor(labels))
    outlook = measure(model, inputs, labels=labels, cosines=False, tries=True).outlook
    assert answers == (outlook.sgd, "late", outlook.adam) == ("no", "late", "no")
