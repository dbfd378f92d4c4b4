"""Training step by step, against PyTorch on the matrices that were decided."""

import functools
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


def descended(first, forward, settings):
    """Return losses of the steps and test outputs before each step and at the end, by autograd.

    `forward` returns the outputs for a list of matrices and rows of inputs.
    """
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
        results.append(forward(weights, tests).detach().numpy())
        if step == STEPS:
            return np.array(losses), np.array(results)
        rows = torch.tensor(settings["batches"][step] if "batches" in settings else range(SAMPLES))
        f = forward(weights, x[rows])
        if settings["loss"] == "cross-entropy":
            loss = torch.nn.functional.cross_entropy(f, torch.tensor(CLASSES)[rows])
        else:
            loss = (f - torch.tensor(TARGETS)[rows]).square().sum(1).mean() / 2
        losses.append(float(loss.detach()))
        sgd.zero_grad()
        loss.backward()
        with torch.no_grad():
            for number in settings.get("hidden", range(1, len(weights) - 1)):
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


def residual(norm):
    """Return blocks of the order "pre-activation", with biases and a projection, and outputs."""
    sigma = functools.partial(normalized, norm=norm)

    def network(width, batch):
        options = {"order": "pre-activation", "norm": norm, "bias_variance": 0.3}
        chain = bnmc.Chain(width, batch, "tanh", **options, gain=1.2)
        last = bnmc.Chain(width + 3, batch, "tanh", **options)
        path = bnmc.Chain(width + 3, batch, norm="none", gain=0.8, bias_variance=0.2)
        return bnmc.Network(
            (bnmc.Chain(FEATURES, batch, norm="none"), 0), (chain, 1),
            bnmc.Residual(chain.repeat(2)),
            bnmc.Residual(last.repeat(2), path, skip=0.7, source="activations"),
        )  # fmt: skip

    def forward(weights, x):
        w1, w2, w3, w4, w5, readout, path, *biases = weights
        b1, b2, b3, b4, b5, b = (each.T for each in biases)
        h1 = x @ w1.T + b1
        h2 = torch.tanh(sigma(h1)) @ w2.T + b2
        h3 = h1 + torch.tanh(sigma(h2)) @ w3.T + b3
        a3 = torch.tanh(sigma(h3))
        h4 = a3 @ w4.T + b4
        h5 = 0.7 * (a3 @ path.T + b) + torch.tanh(sigma(h4)) @ w5.T + b5
        return torch.tanh(sigma(h5)) @ readout.T

    return network, forward, [1, 2, 3, 4, 6]


def nested():
    """Return a block inside of another one, x = N(x + W a), with orthogonal matrices."""

    def network(width, batch):
        plain = bnmc.Chain(width, batch, "tanh", norm="none", weights="haar", bias_variance=0.1)
        last = bnmc.Chain(width, batch, "linear", norm="layer", weights="haar", gain=0.6)
        inner = bnmc.Residual(bnmc.Network((plain, 1), (last, 1)), skip=0.5)
        outer = bnmc.Residual(bnmc.Network((plain, 0), inner, (last, 1)))
        return bnmc.Network((bnmc.Chain(FEATURES, batch, norm="none"), 0), (plain, 1), outer)

    def forward(weights, x):
        w1, w2, w3, w4, readout, b1, b2 = weights
        h1 = x @ w1.T + b1.T
        h2 = torch.tanh(h1) @ w2.T + b2.T
        x3 = normalized(0.5 * h1 + torch.tanh(h2) @ w3.T, "layer")
        return normalized(h1 + x3 @ w4.T, "layer") @ readout.T

    return network, forward, [1, 2, 3]


def from_inputs():
    """Return a block whose projection multiplies the inputs."""

    def network(width, batch):
        chain = bnmc.Chain(width, batch, "relu", norm="batch", gain=2.0)
        last = bnmc.Chain(width - 1, batch, "relu", norm="none")
        path = bnmc.Chain(width - 1, batch, norm="none", weights="haar")
        block = bnmc.Residual(bnmc.Network((chain, 1), (last, 1)), path, skip=-1.5)
        return bnmc.Network((bnmc.Chain(FEATURES, batch, norm="none"), 0), block, (chain, 1))

    def forward(weights, x):
        w1, w2, w3, readout, path = weights
        h2 = torch.relu(normalized(x @ w1.T, "batch")) @ w2.T - 1.5 * x @ path.T
        return torch.relu(normalized(torch.relu(h2) @ w3.T, "batch")) @ readout.T

    return network, forward, [1, 2]


def perceptron(options):
    """Return networks without blocks and biases, and their outputs."""
    options = {"activation": "tanh", "norm": "none", **options}

    def network(width, batch):
        widths = {"width": [FEATURES, *3 * [width]]}
        return bnmc.Network.of(batch=batch, **(widths | options))

    plain = {name: options[name] for name in ("activation", "norm", "order") if name in options}
    skip = np.max(options.get("skip", 0.0))
    return network, functools.partial(outputs_of, **plain, skip=skip), [1, 2]


#: Networks with blocks, and settings of their training.
BLOCKS = [
    (residual("batch"), {"momentum": 0.9, "weight_decay": 0.05}),
    (residual("layer"), {"batches": BATCHES, "parametrization": "mup", "loss": "squared"}),
    (residual("none"), {"optimizer": "muon", "momentum": 0.5, "learning_rate": 0.02}),
    (nested(), {"momentum": 0.5, "parametrization": "ntk"}),
    (from_inputs(), {"optimizer": "muon", "learning_rate": 0.02, "parametrization": "mean-field"}),
]


@pytest.mark.parametrize(
    ("case", "settings", "width", "matrices"),
    [
        *((perceptron(case), settings, width, "implicit")
          for case, settings in CASES for width in (40, 9)),
        *((perceptron(case), settings, 9, "drawn") for case, settings in CASES[1::4]),
        *((*case, 9, "implicit") for case in BLOCKS),
        *((*case, 40, "implicit") for case in BLOCKS[::4]),
        *((*case, 9, "drawn") for case in BLOCKS[1::2]),
    ],
)  # fmt: skip
def test_each_step_is_that_of_pytorch(case, settings, width, matrices, watched):
    """Columns exceed the width 9 from the second step on."""
    batch = 3 if "batches" in settings else SAMPLES
    of_width, forward, hidden = case
    network = of_width(width, batch)
    settings = {"learning_rate": 0.2, "loss": "cross-entropy", **settings}
    labels = CLASSES if settings["loss"] == "cross-entropy" else TARGETS
    run = bnmc.train(
        network, INPUTS, labels, steps=STEPS, test=TESTS, reference_width=8, matrices=matrices,
        rng=7, **settings,
    )  # fmt: skip
    (model,) = watched
    factors = [matrix.factor for matrix in model.architecture.matrices]
    kinds = [run.matrices[number] for number in range(len(factors))]
    assert [number for number, kind in enumerate(kinds) if kind == "implicit"] == (
        hidden if matrices == "implicit" else []
    )
    first = model.first_entries()
    losses, tests = descended(first, forward, {**settings, "factors": factors, "hidden": hidden})
    assert np.abs(run.batch_loss[0] - losses).max() <= 1e-9
    assert np.abs(run.test_outputs[0] - tests).max() <= 1e-9
    last = [weights.times(weights.locate(np.eye(len(w.T)), 0), 0, weights.value).T
            for weights, w in zip(model.weights, first, strict=True)]  # fmt: skip
    predicted = forward([torch.tensor(w) for w in last], torch.tensor(TESTS.T))
    assert np.abs(predicted.numpy() - tests[-1]).max() <= 1e-9


def test_starts_and_rates_of_biases(watched):
    """Biases are weights of an input that is 1: the powers of the first matrix, of their rows."""
    network = residual("none")[0](4000, SAMPLES)
    run = bnmc.train(
        network, INPUTS, CLASSES, steps=0, learning_rate=1.0, parametrization="mup", rng=0,
        reference_width=8,
    )  # fmt: skip
    (model,) = watched
    assert run.parameters == (
        "layer 1", "layer 2", "layer 3", "layer 4", "layer 5", "readout", "projection to layer 5",
        "bias of layer 1", "bias of layer 2", "bias of layer 3", "bias of layer 4",
        "bias of layer 5", "bias of projection to layer 5",
    )  # fmt: skip
    # 4000 entries: six standard errors.
    for number, matrix in enumerate(model.architecture.matrices[7:], 7):
        assert matrix.factor == len(model.values[number]) / 8
        variance = 0.2 if number == 12 else 0.3
        assert model.values[number].var() == pytest.approx(variance, rel=6 * (2 / 4000) ** 0.5)
    path, readout = model.architecture.matrices[6], model.architecture.matrices[5]
    assert path.deviation == pytest.approx(0.8 / 4000**0.5)
    assert (path.factor, readout.factor) == (1.0, 8 / 4003)


@pytest.mark.parametrize("matrices", ["implicit", "drawn"])
@pytest.mark.parametrize(
    "case",
    [
        perceptron({}),
        perceptron({"norm": "batch", "activation": "relu", "skip": [0, 1, 1],
                    "order": "pre-activation"}),
        perceptron({"norm": "layer", "activation": "gelu", "order": "activation-norm",
                    "skip": [0, 1, 1]}),
        perceptron({"norm": "batch", "skip": [0, 0.5, 0.5]}),
        residual("batch"),
        nested(),
    ],
)  # fmt: skip
def test_observables_of_gradients_are_those_of_autograd(case, matrices, watched):
    of_width, forward, _ = case
    network = of_width(20, SAMPLES)
    run = bnmc.train(
        network, INPUTS, TARGETS, loss="squared", steps=2, learning_rate=0.1, rng=1,
        parametrization="mup", reference_width=5, matrices=matrices,
        observables=("kernel", "kernel_on_targets", "gradient_norm", "movement", "size", "gram"),
    )  # fmt: skip
    (model,) = watched
    weights = [entries.requires_grad_() for entries in model.first_entries()]
    x = torch.tensor(INPUTS.T)
    f = forward(weights, x)
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
    np.testing.assert_allclose(run["gradient_norm"][0, 0], norms, rtol=1e-10, atol=1e-14)
    assert (run["movement"][0, 0] == 0.0).all()
    moved = np.sqrt(np.square(run.outputs[0, 2] - run.outputs[0, 0]).mean())
    assert run["movement"][0, 2, -1] == pytest.approx(moved)
    assert run["size"][0, 2, -1] == pytest.approx(np.sqrt(np.square(run.outputs[0, 2]).mean()))
    h = INPUTS.T @ weights[0].detach().numpy().T
    if "bias of layer 1" in run.parameters:
        h = h + weights[run.parameters.index("bias of layer 1")].detach().numpy().T
    assert run["size"][0, 0, 0] == pytest.approx(np.sqrt(np.square(h).mean()))
    change = np.linalg.norm(run["kernel"][0, 1] - kernel) / np.linalg.norm(kernel)
    assert run.kernel_change[0, :2] == pytest.approx([0.0, change])
    y = (TARGETS - TARGETS.mean(0)).ravel()
    alignment = y @ kernel @ y / np.linalg.norm(kernel) / (y @ y)
    assert run.kernel_alignment[0, 0] == pytest.approx(alignment)
    assert run["gram"].shape == (1, 3, network.depth, SAMPLES, SAMPLES)
    assert run["size"].shape == (1, 3, network.depth + 1)


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
    "blocks with biases": (None, {"learning_rate": 0.1}),
}  # fmt: skip

#: Probability that a true equality of all laws is rejected.
FALSE_ALARM = 1e-6


# `test_each_step_is_that_of_pytorch` has steps of implicit networks, to rounding.
@pytest.mark.slow
@pytest.mark.parametrize("chains", [5000])
@pytest.mark.parametrize("name", LAWS)
def test_implicit_and_drawn_networks_have_one_law(name, chains):
    """Kolmogorov-Smirnov tests of losses, an output, gradient norms and a kernel at each step."""
    options, settings = LAWS[name]
    batch = len(settings["batches"][0]) if "batches" in settings else 4
    network = residual("layer")[0](7, batch)
    if options is not None:
        options = {"batch": batch, "activation": "tanh", "norm": "none", **options}
        network = bnmc.Network.of(**options)
    features = network.widths[0]
    x = np.random.default_rng(5).standard_normal((features, 4))
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


@pytest.mark.slow
def test_kernels_change_by_one_amount_under_mup_and_less_under_ntk():
    """Change of the tangent kernel after 5 steps; two means differ by at most 5 standard errors.

    A slope of two means has an error of .013 under NTK.
    """
    x, targets = np.random.default_rng(1).standard_normal((10, 4)), np.array([1, -1, 1, -1.0])

    def changes(parametrization, width, chains):
        network = bnmc.Network.of(width=[10] + 3 * [width], batch=4, activation="tanh", norm="none")
        run = bnmc.train(
            network, x, targets[:, None], loss="squared", steps=5, learning_rate=0.02,
            chains=chains, parametrization=parametrization, reference_width=100,
            observables="kernel", record=[0, 5], rng=0,
        )  # fmt: skip
        change = run.kernel_change[:, 1]
        return change.mean(), change.std(ddof=1) / chains**0.5

    (wide, error), (wider, its_error) = changes("mup", 10**4, 100), changes("mup", 10**5, 8)
    both = np.hypot(error, its_error)
    assert both < 0.0003
    assert abs(wide - wider) < 5 * both
    assert wider == pytest.approx(0.0442, abs=0.001)
    (narrow, _), (wide, _) = changes("ntk", 300, 200), changes("ntk", 10**5, 12)
    assert abs(np.log(wide / narrow) / np.log(10**5 / 300) + 1.0) < 0.065
