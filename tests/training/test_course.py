"""Training step by step, against PyTorch on the matrices that were decided."""

from typing import ClassVar

import numpy as np
import pytest
from scipy import stats

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


@pytest.mark.parametrize("matrices", ["implicit", "drawn"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"norm": "batch", "activation": "relu", "skip": [0, 1, 1], "order": "pre-activation"},
        {"norm": "layer", "activation": "gelu", "order": "activation-norm", "skip": [0, 1, 1]},
        {"norm": "batch", "skip": [0, 0.5, 0.5]},
    ],
)
def test_observables_of_gradients_are_those_of_autograd(options, matrices, watched):
    network = bnmc.Network.of(
        **{"width": [FEATURES, 20, 20, 20], "batch": SAMPLES, "activation": "tanh",
           "norm": "none", **options}
    )  # fmt: skip
    run = bnmc.train(
        network, INPUTS, TARGETS, loss="squared", steps=2, learning_rate=0.1, rng=1,
        parametrization="mup", reference_width=5, matrices=matrices,
        observables=("kernel", "kernel_on_targets", "gradient_norm", "movement", "size", "gram"),
    )  # fmt: skip
    (model,) = watched
    plain = {name: options[name] for name in ("activation", "norm", "order") if name in options}
    plain["skip"] = np.max(options.get("skip", 0.0))
    weights = [entries.requires_grad_() for entries in model.first_entries()]
    x = torch.tensor(INPUTS.T)
    f = outputs_of(weights, x, **plain)
    jacobian = [torch.autograd.grad(value, weights, retain_graph=True) for value in f.reshape(-1)]
    factors = [matrix.factor for matrix in model.architecture.matrices]
    rows = np.array([
        np.concatenate([factor**0.5 * part.numpy().ravel() for factor, part in
                        zip(factors, parts, strict=True)])
        for parts in jacobian
    ])  # fmt: skip
    kernel = rows @ rows.T
    assert len({*factors}) > 1
    close = {"rtol": 1e-10, "atol": 1e-10 * kernel.max()}
    np.testing.assert_allclose(run["kernel"][0, 0], kernel, **close)
    targets = (kernel @ TARGETS.ravel()).reshape(TARGETS.shape)
    np.testing.assert_allclose(run["kernel_on_targets"][0, 0], targets, **close)
    loss = (f - torch.tensor(TARGETS)).square().sum(1).mean() / 2
    norms = [float(part.norm()) for part in torch.autograd.grad(loss, weights)]
    np.testing.assert_allclose(run["gradient_norm"][0, 0], norms, rtol=1e-10)
    assert (run["movement"][0, 0] == 0.0).all()
    moved = np.sqrt(np.square(run.outputs[0, 2] - run.outputs[0, 0]).mean())
    assert run["movement"][0, 2, -1] == pytest.approx(moved)
    assert run["size"][0, 2, -1] == pytest.approx(np.sqrt(np.square(run.outputs[0, 2]).mean()))
    h = INPUTS.T @ weights[0].detach().numpy().T
    assert run["size"][0, 0, 0] == pytest.approx(np.sqrt(np.square(h).mean()))
    change = np.linalg.norm(run["kernel"][0, 1] - kernel) / np.linalg.norm(kernel)
    assert run.kernel_change[0, :2] == pytest.approx([0.0, change])
    y = (TARGETS - TARGETS.mean(0)).ravel()
    alignment = y @ kernel @ y / np.linalg.norm(kernel) / (y @ y)
    assert run.kernel_alignment[0, 0] == pytest.approx(alignment)
    assert run["gram"].shape == (1, 3, 3, SAMPLES, SAMPLES)


#: Networks whose laws are compared, at widths that the columns exceed and do not exceed.
LAWS = {
    "batch norm with momentum and decay": (
        {"width": [3, 7, 7], "norm": "batch", "activation": "relu"},
        {"momentum": 0.9, "weight_decay": 0.1, "learning_rate": 0.3},
    ),
    "layer norm with minibatches": (
        {"width": [3, 9, 6], "norm": "layer"},
        {"batches": [[0, 1], [2, 3], [0, 2]], "learning_rate": 0.3},
    ),
    "orthogonal residual blocks": (
        {"width": [3, 8, 8, 8], "weights": ["gaussian", "haar", "haar"], "skip": [0, 1, 1]},
        {"learning_rate": 0.2, "parametrization": "mup"},
    ),
    "Muon": ({"width": [3, 8, 8]}, {"optimizer": "muon", "momentum": 0.9, "learning_rate": 0.1}),
}  # fmt: skip

#: Probability that a true equality of all laws is rejected.
FALSE_ALARM = 1e-6


@pytest.mark.parametrize("name", LAWS)
@pytest.mark.parametrize("chains", [100, pytest.param(5000, marks=pytest.mark.slow)])
def test_implicit_and_drawn_networks_have_one_law(name, chains):
    """Kolmogorov-Smirnov tests of losses, an output, gradient norms and a kernel at each step."""
    options, settings = LAWS[name]
    batch = len(settings["batches"][0]) if "batches" in settings else 4
    network = bnmc.Network.of(**{"batch": batch, "activation": "tanh", "norm": "none", **options})
    x = np.random.default_rng(5).standard_normal((3, 4))
    samples = []
    for seed, matrices in enumerate(("implicit", "drawn")):
        run = bnmc.train(
            network, x, [0, 1, 1, 0], steps=3, chains=chains, test=x[:, :2] + 1.0, rng=seed,
            matrices=matrices, reference_width=5, observables=("gradient_norm", "movement"),
            **settings,
        )  # fmt: skip
        columns = [
            run.loss, run.outputs[:, :, 0], run.test_outputs[:, :, 1], run["gradient_norm"],
            run["movement"][:, 1:],
        ]  # fmt: skip
        samples.append(np.hstack([column.reshape(chains, -1) for column in columns]))
    p_values = [stats.ks_2samp(a, b).pvalue for a, b in zip(*(s.T for s in samples), strict=True)]
    assert min(p_values) * len(p_values) * len(LAWS) * 2 > FALSE_ALARM
