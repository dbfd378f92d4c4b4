"""Training step by step, against PyTorch on the matrices that were decided."""

from typing import ClassVar

import numpy as np
import pytest

import bnmc
from bnmc.training import course

torch = pytest.importorskip("torch")

SAMPLES, FEATURES = 6, 4
INPUTS = np.random.default_rng(1).standard_normal((FEATURES, SAMPLES))
TESTS = np.random.default_rng(2).standard_normal((FEATURES, 3))
CLASSES = [0, 1, 2, 0, 1, 2]
TARGETS = np.random.default_rng(3).standard_normal((SAMPLES, 2))
BATCHES = [[0, 1, 2], [3, 4, 5], [1, 2, 5], [0, 3, 4], [0, 1, 4]]
STEPS = 5


class Watched(course.Model):
    """A model that is remembered, with its values at the start."""

    models: ClassVar = []

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.first_values = [value.copy() for value in self.values]
        self.models.append(self)

    def first_entries(self):
        """Return the matrices at the start; decides what is open."""
        entries = []
        for weights, value in zip(self.weights, self.first_values, strict=True):
            if hasattr(weights, "matrix"):
                identity = np.eye(weights.matrix.shape[1])
                value = weights.times(weights.locate(identity, 0), 0, value).T
            entries.append(torch.tensor(value))
        return entries


@pytest.fixture
def watched(monkeypatch):
    monkeypatch.setattr(course, "Model", Watched)
    Watched.models = []
    return Watched.models


ACTIVATIONS = {
    "relu": torch.relu,
    "tanh": torch.tanh,
    "gelu": torch.nn.functional.gelu,
    "linear": lambda x: x,
}


def normalized(h, norm):
    if norm == "none":
        return h
    axis = 0 if norm in ("batch", "batch-uncentred") else 1
    if norm in ("batch", "layer"):
        h = h - h.mean(axis, keepdim=True)
    return h / h.square().mean(axis, keepdim=True).sqrt()


def outputs_of(weights, x, *, activation="tanh", norm="none", skip=0.0, order="norm-activation"):
    """Return the outputs of rows x, whose first matrix leads to layer 1, by the formulas."""
    sigma = ACTIVATIONS[activation]
    x_before, a = x, x
    for number, w in enumerate(weights[:-1]):
        h = a @ w.T
        if number and skip:
            h = h + skip * x_before
        if order == "activation-norm":
            x_before, a = h, normalized(sigma(h), norm)
        else:
            n = normalized(h, norm)
            x_before, a = (n if order == "norm-activation" else h), sigma(n)
    return a @ weights[-1].T


def descended(first, options, settings):
    """Return losses of the steps and test outputs before each step and at the end, by autograd."""
    weights = [torch.nn.Parameter(w.clone()) for w in first]
    factors, optimizer = settings["factors"], settings.get("optimizer", "sgd")
    rate, decay = settings["learning_rate"], settings.get("weight_decay", 0.0)
    momentum = settings.get("momentum", 0.0)
    # PyTorch multiplies decay by the rate of a group; ours is not multiplied by the factor.
    groups = [
        {"params": [w], "lr": rate * factor, "weight_decay": decay / factor}
        for w, factor in zip(weights, factors, strict=True)
    ]
    sgd = torch.optim.SGD(groups, momentum=momentum)
    velocities = [torch.zeros_like(w) for w in weights]
    x, tests = torch.tensor(INPUTS.T), torch.tensor(TESTS.T)
    losses, results = [], []
    for step in range(STEPS + 1):
        results.append(outputs_of(weights, tests, **options).detach().numpy())
        if step == STEPS:
            return np.array(losses), np.array(results)
        rows = torch.tensor(settings["batches"][step] if "batches" in settings else range(SAMPLES))
        f = outputs_of(weights, x[rows], **options)
        if settings["loss"] == "cross-entropy":
            loss = torch.nn.functional.cross_entropy(f, torch.tensor(CLASSES)[rows])
        else:
            loss = (f - torch.tensor(TARGETS)[rows]).square().sum(1).mean() / 2
        losses.append(float(loss.detach()))
        sgd.zero_grad()
        loss.backward()
        with torch.no_grad():
            for number in range(1, len(weights) - 1):
                if optimizer == "muon":
                    w, v = weights[number], velocities[number]
                    v.mul_(momentum).add_(w.grad)
                    u = w.grad + momentum * v
                    u = u / max(float(u.norm()), 1e-7)
                    for _ in range(5):
                        square = u @ u.T
                        u = 3.4445 * u + (-4.7750 * square + 2.0315 * square @ square) @ u
                    w.mul_(1 - rate * decay).sub_(rate * factors[number] * u)
                    w.grad = None
        sgd.step()
    raise AssertionError


HAAR = {"weights": ["gaussian", "haar", "haar"]}
CASES = [
    ({}, {}),
    ({"activation": "relu", "gain": 2**0.5}, {"momentum": 0.9, "weight_decay": 0.05}),
    ({"norm": "batch"}, {}),
    ({"norm": "batch", "activation": "relu"}, {"momentum": 0.9, "weight_decay": 0.05}),
    ({"norm": "batch-uncentred", "activation": "relu"}, {"loss": "squared"}),
    ({"norm": "layer", "activation": "gelu"}, {"batches": BATCHES, "momentum": 0.5}),
    ({"norm": "layer", "order": "activation-norm"}, {}),
    ({"norm": "rms"}, {"batches": BATCHES}),
    ({"norm": "batch"}, {"batches": BATCHES}),
    ({"norm": "batch", "skip": [0, 1, 1], "order": "pre-activation"}, {}),
    ({"norm": "batch", "skip": [0, 0.5, 0.5]}, {"weight_decay": 0.1}),
    (HAAR, {}),
    ({**HAAR, "norm": "batch", "gain": 1.5}, {"momentum": 0.5}),
    ({}, {"start": "maximized"}),
    ({"activation": "relu"}, {"start": "maximized", "momentum": 0.9}),
    ({}, {"optimizer": "muon", "momentum": 0.9, "weight_decay": 0.1, "learning_rate": 0.02}),
    ({"norm": "batch"}, {"optimizer": "muon", "momentum": 0.5, "learning_rate": 0.02}),
    *(
        ({}, {"parametrization": name, "weight_decay": 0.1, "loss": "squared"})
        for name in ("standard/n", "ntk", "mean-field", "mup", "symmetric")
    ),
    ({}, {"parametrization": bnmc.infinite_width.Scaling(-1, (0.5, 1), q_hidden=1)}),
    ({"width": [FEATURES, 13, 21, 8]}, {"momentum": 0.9, "parametrization": "mup"}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("options", "settings", "width", "matrices"),
    [
        *((*case, width, "implicit") for case in CASES for width in (40, 9)),
        *((*case, 9, "drawn") for case in CASES[1::4]),
    ],
)
def test_each_step_is_that_of_pytorch(options, settings, width, matrices, watched):
    """Columns exceed the width 9 from the second step on."""
    batch = 3 if "batches" in settings else SAMPLES
    options = {"activation": "tanh", "norm": "none", "width": [FEATURES, *3 * [width]], **options}
    network = bnmc.Network.of(batch=batch, **options)
    settings = {"learning_rate": 0.2, "loss": "cross-entropy", **settings}
    labels = CLASSES if settings["loss"] == "cross-entropy" else TARGETS
    run = bnmc.train(
        network, INPUTS, labels, steps=STEPS, test=TESTS, reference_width=8, matrices=matrices,
        rng=7, **settings,
    )  # fmt: skip
    (model,) = watched
    settings["factors"] = [matrix.factor for matrix in model.architecture.matrices]
    skip = np.max(options.get("skip", 0.0))
    plain = {name: options[name] for name in ("activation", "norm", "order") if name in options}
    first = model.first_entries()
    losses, tests = descended(first, {**plain, "skip": skip}, settings)
    assert np.abs(run.batch_loss[0] - losses).max() <= 1e-9
    assert np.abs(run.test_outputs[0] - tests).max() <= 1e-9
    last = [weights.times(weights.locate(np.eye(len(w.T)), 0), 0, weights.value).T
            for weights, w in zip(model.weights, first, strict=True)]  # fmt: skip
    predicted = outputs_of(
        [torch.tensor(w) for w in last], torch.tensor(TESTS.T), **plain, skip=skip
    )
    assert np.abs(predicted.numpy() - tests[-1]).max() <= 1e-9
