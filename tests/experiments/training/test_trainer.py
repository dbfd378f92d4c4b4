"""The trainer beside gradient descent in NumPy, and beside `bnmc.torch.measure`."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import bnmc.torch  # noqa: E402
from bnmc.errors import NonFiniteError  # noqa: E402
from bnmc.experiments.training.images import images  # noqa: E402
from bnmc.experiments.training.networks import mlp, seeded  # noqa: E402
from bnmc.experiments.training.trainer import Plan, square_loss, train  # noqa: E402

BATCH = 16


@pytest.fixture(scope="module")
def data():
    some = images(None, 64, BATCH)
    return torch.from_numpy(some.pixels), torch.from_numpy(some.labels)


def trained(data, plan, rate=0.1, seed=0, **network):
    with seeded(seed):
        model = mlp(64, 12, 2, **network)
        return model, train(model, *data, plan, rate, np.random.default_rng(seed))


def softmax(z):
    e = np.exp(z - z.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


class Plain:
    """A network with two hidden ReLU layers and its gradients, in NumPy."""

    def __init__(self, model):
        layers = [layer for layer in model if isinstance(layer, torch.nn.Linear)]
        self.W = [layer.weight.detach().numpy().copy() for layer in layers]
        self.b = [layer.bias.detach().numpy().copy() for layer in layers]

    def forward(self, x):
        outputs = [x]
        for W, b in zip(self.W[:-1], self.b[:-1], strict=True):
            outputs.append(np.maximum(outputs[-1] @ W.T + b, 0))
        return outputs, softmax(outputs[-1] @ self.W[-1].T + self.b[-1])

    def loss(self, x, y):
        return -np.log(self.forward(x)[1][np.arange(len(y)), y]).mean()

    def gradients(self, x, y):
        outputs, p = self.forward(x)
        error = (p - np.eye(10)[y]) / len(y)
        gradients = []
        for layer in (2, 1, 0):
            gradients.insert(0, (error.T @ outputs[layer], error.sum(axis=0)))
            error = (error @ self.W[layer]) * (outputs[layer] > 0)
        return gradients

    def step(self, x, y, rate):
        for W, b, (dW, db) in zip(self.W, self.b, self.gradients(x, y), strict=True):
            W -= rate * dW
            b -= rate * db


def test_training_is_gradient_descent(data):
    x, y = data[0].numpy().reshape(64, 64), data[1].numpy()
    with seeded(0):
        plain = Plain(mlp(64, 12, 2))
    first = np.linalg.norm(plain.gradients(x[:BATCH], y[:BATCH])[0][0])
    rng = np.random.default_rng(0)
    losses, accuracies = [plain.loss(x, y)], [(plain.forward(x)[1].argmax(axis=1) == y).mean()]
    for _ in range(3):
        order = rng.permutation(64)
        for begin in range(0, 64, BATCH):
            plain.step(x[order[begin:][:BATCH]], y[order[begin:][:BATCH]], 0.5)
        losses.append(plain.loss(x, y))
        accuracies.append((plain.forward(x)[1].argmax(axis=1) == y).mean())
    model, records = trained(data, Plan(3, BATCH), 0.5)
    np.testing.assert_allclose(records["loss"], losses, rtol=1e-12)
    np.testing.assert_allclose(records["accuracy"], accuracies, rtol=1e-12)
    np.testing.assert_allclose(records["gradient_norm"][0], first, rtol=1e-12)
    np.testing.assert_allclose(model[1].weight.detach().numpy(), plain.W[0], rtol=1e-11)


def test_equal_seeds_give_equal_bits(data):
    plan = Plan(2, BATCH)
    first, same, other = (trained(data, plan, seed=seed, norm="batch")[1] for seed in (1, 1, 2))
    assert all(first[name].tobytes() == same[name].tobytes() for name in first)
    assert not np.array_equal(first["loss"], other["loss"])


def test_records_are_what_measure_finds(data):
    plan = Plan(3, BATCH, every=2)
    assert plan.records == [0, 2, 3]
    assert Plan(0, BATCH).records == [0]
    model, records = trained(data, plan, norm="batch")
    measured = bnmc.torch.measure(model, data[0][:BATCH], labels=data[1][:BATCH])
    for name in ("rank_bound", "orthogonality_gap", "mean_correlation"):
        assert records[name].shape == (3,)
        np.testing.assert_allclose(records[name][-1], getattr(measured, name)[0, -1], rtol=1e-12)
    norms = dict(zip(measured.parameters, measured.gradient_norm[0], strict=True))
    np.testing.assert_allclose(records["gradient_norm"][-1], norms["1.weight"], rtol=1e-12)


def test_the_rank_has_the_threshold_of_float32(data):
    """A factor δ on the last 15 of 16 singular values keeps the rank iff δ is above it."""
    threshold = 16 * 2.0**-23
    for factor, expected in ((2.0, 16), (0.5, 1)):
        left, _ = np.linalg.qr(np.random.default_rng(0).standard_normal((BATCH, BATCH)))
        left *= np.sign(left[0])  # any signs
        values = np.r_[1.0, np.full(15, factor * threshold)]
        inputs = torch.from_numpy((left * values) @ left.T)
        linear = torch.nn.Linear(16, 16, bias=False, dtype=torch.float64)
        with torch.no_grad():
            linear.weight.copy_(torch.eye(16))
        model = torch.nn.Sequential(linear, torch.nn.Linear(16, 10, dtype=torch.float64))
        rng = np.random.default_rng(0)
        records = train(model, inputs, data[1][:BATCH], Plan(0, BATCH), 0.1, rng)
        assert records["rank"].tolist() == [expected]


def test_training_that_diverges_ends_in_nan(data):
    told = []
    with seeded(0):
        model = mlp(64, 12, 2)
        records = train(
            model, data[0] * 1e3, data[1], Plan(3, BATCH), 1e300, np.random.default_rng(0),
            lambda done, total: told.append((done, total)),
        )  # fmt: skip
        assert np.isfinite(records["loss"][0])
        assert np.isnan(records["loss"][1:]).all()
        assert np.isnan(records["rank"][1:]).all()
        assert told == [(1, 3), (2, 3), (3, 3)]
        with torch.no_grad():
            model[1].weight.fill_(float("nan"))
        with pytest.raises(NonFiniteError, match="loss before training"):
            train(model, *data, Plan(1, BATCH), 0.1, np.random.default_rng(0))


def test_test_images_are_evaluated_and_not_trained_on():
    data = images(None, 192, 32)
    inputs, labels = torch.from_numpy(data.pixels), torch.from_numpy(data.labels)
    plan = Plan(2, 32)
    records = []
    for test in (None, (inputs[128:], labels[128:])):
        with seeded(0):
            model = mlp(64, 16, 2)
            records.append(
                train(
                    model, inputs[:128], labels[:128], plan, 0.1, np.random.default_rng(0), None,
                    test,
                )
            )  # fmt: skip
    plain, tested = records
    assert plain.keys() == tested.keys() - {"test_loss", "test_accuracy"}
    assert all((plain[name] == tested[name]).all() for name in plain)
    with torch.no_grad():
        output = model(inputs[128:])
    loss = torch.nn.functional.cross_entropy(output, labels[128:])
    assert tested["test_loss"][-1] == pytest.approx(float(loss), rel=1e-12)
    right = (output.argmax(dim=1) == labels[128:]).double().mean()
    assert tested["test_accuracy"][-1] == pytest.approx(float(right), rel=1e-12)


def test_steps_and_records_are_of_the_criterion(data):
    """One step on all images goes down the gradient of the mean square of outputs less targets."""
    inputs, labels = data
    targets = torch.from_numpy(np.eye(10)[labels.numpy()] - 0.1)
    with seeded(5):
        model = mlp(64, 12, 1)
        before = [weight.detach().clone() for weight in model.parameters()]
        loss = ((model(inputs) - targets) ** 2).sum() / len(labels)
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        plan = Plan(1, len(labels), criterion=square_loss)
        records = train(model, inputs, labels, plan, 0.01, np.random.default_rng(0))
    assert records["loss"][0] == pytest.approx(float(loss.detach()))
    for weight, old, gradient in zip(model.parameters(), before, gradients, strict=True):
        assert torch.allclose(weight, old - 0.01 * gradient, rtol=1e-10, atol=1e-14)
    assert records["gradient_norm"][0] == pytest.approx(float(gradients[0].norm()))
