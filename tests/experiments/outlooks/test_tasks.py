"""The data: the same in each call, of known classes, with the loss of the best constant."""

import numpy as np
import pytest
from scipy import optimize

from bnmc.experiments.outlooks.tasks import TASKS, chance_of


@pytest.mark.parametrize("name", TASKS)
def test_a_task(name):
    inputs, labels = TASKS[name].samples(240)
    again = TASKS[name].samples(240)
    assert np.array_equal(inputs, again[0])
    assert np.array_equal(labels, again[1])
    assert len(inputs) == len(labels) == 240
    if labels.dtype.kind == "i":
        # Each class is expected at least 20 times: it is missing with probability below 1e-8.
        assert np.bincount(labels).min() > 0
    else:
        assert labels.dtype == np.float64
    assert chance_of(labels) > 0.0


def test_the_chance_of_targets_is_the_loss_of_the_best_constant():
    targets = np.random.default_rng(0).standard_normal((50, 1, 2, 2)) + 3.0
    rows = targets.reshape(50, 4)
    best = optimize.minimize(lambda c: 0.5 * np.square(rows - c).sum(axis=1).mean(), np.zeros(4))
    assert abs(chance_of(targets) - best.fun) < 1e-6


def test_labels_are_in_the_inputs():
    tokens, labels = TASKS["first tokens"].samples(100)
    assert np.array_equal(tokens[:, 0], labels)
    tokens, labels = TASKS["majorities"].samples(400)
    counts = (tokens[..., None] == np.arange(12)).sum(axis=1)
    assert np.mean(counts.argmax(axis=1) == labels) > 0.9  # 10.8 of 24 tokens, on average
    pixels, targets = TASKS["copied"].samples(100)
    assert np.array_equal(pixels, targets)
