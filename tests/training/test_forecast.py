"""Forecasts of directions and memory, against those that a training takes."""

import numpy as np
import pytest

import bnmc
from bnmc.training import course

X = np.random.default_rng(0).standard_normal((5, 4))
TARGETS = np.random.default_rng(1).standard_normal((4, 2))


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        ({}, {}),
        ({}, {"test": X[:, :3] + 1.0}),
        ({}, {"observables": "gradient_norm"}),
        ({}, {"observables": "kernel", "record": [0, 2]}),
        ({"norm": "batch"}, {"observables": "kernel", "record": [0]}),
        ({}, {"observables": "kernel_on_targets"}),
        ({"weights": ["gaussian", "haar"]}, {}),
        ({"batch": 2}, {"batches": [[0, 1], [1, 2], [3, 0]], "record": [0, 3]}),
    ],
)
def test_directions(options, settings, monkeypatch):
    """As many as forecast, but those that coincide; a norm over the batch makes a few dependent."""
    models = []

    class Watched(course.Model):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            models.append(self)

    monkeypatch.setattr(course, "Model", Watched)
    network = bnmc.Network.of(
        **{"width": [5, 300, 300], "batch": 4, "activation": "tanh", "norm": "none", **options}
    )
    run = bnmc.train(
        network, X, TARGETS, loss="squared", steps=3, learning_rate=0.5, matrices="implicit",
        rng=0, **settings,
    )  # fmt: skip
    matrix = models[0].architecture.matrices[1]
    asked, forecast = run.asked[0, 1], np.array(matrix.directions)
    assert (asked <= forecast).all()
    assert (asked >= 0.55 * forecast).all()
    if not options and not settings:
        assert asked.tolist() == [16, 12]
