"""The largest rate of a PyTorch model: explicit Gauss-Newton matrices, and models that stay."""

import copy
import math

import numpy as np
import pytest

from bnmc import errors

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from bnmc.torch import measure  # noqa: E402
from bnmc.torch.learning_rate import rate_of_model  # noqa: E402


class Attention(nn.Module):
    """A block whose outputs have an axis of positions."""

    def __init__(self):
        super().__init__()
        self.attend = nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        attended, _ = self.attend(x, x, x, need_weights=False)
        return self.head(torch.nn.functional.gelu(attended) + x)


def perceptron(*norm):
    return nn.Sequential(nn.Linear(5, 12), *norm, nn.Tanh(), nn.Linear(12, 3))


MODELS = {
    "plain": lambda: (perceptron(), (6, 5)),
    "batch norm": lambda: (perceptron(nn.BatchNorm1d(12)), (6, 5)),
    "evaluation": lambda: (perceptron(nn.BatchNorm1d(12), nn.Dropout(0.5)).eval(), (6, 5)),
    "layer norm, ReLU": lambda: (
        nn.Sequential(nn.Linear(5, 12), nn.LayerNorm(12), nn.ReLU(), nn.Linear(12, 3)), (6, 5)
    ),
    "convolution": lambda: (
        nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3)), (4, 2, 4, 4)
    ),
    "attention": lambda: (Attention(), (4, 3, 8)),
}  # fmt: skip


def explicit(model, x, loss):
    """Return 2/λ from the Jacobian of a copy of the model in float64."""
    weights = dict(model.named_parameters())
    names = list(weights)
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}

    def outputs(*values):
        state = dict(zip(names, values, strict=True)) | {
            name: buffer.clone() for name, buffer in buffers.items()
        }
        return torch.func.functional_call(model, state, (x,))

    values = tuple(weight.detach() for weight in weights.values())
    parts = torch.autograd.functional.jacobian(outputs, values)
    f = outputs(*values).detach()
    jacobian = torch.cat([part.reshape(f.numel(), -1) for part in parts], dim=1).numpy()
    kernel = jacobian @ jacobian.T
    rows = len(x)
    if loss == "cross-entropy":
        p = torch.softmax(f.reshape(-1, f.shape[-1]), 1).numpy()
        rows = len(p)
        hessian = np.zeros_like(kernel)
        for row, of_row in enumerate(p):
            at = slice(row * len(of_row), (row + 1) * len(of_row))
            hessian[at, at] = np.diag(of_row) - np.outer(of_row, of_row)
        kernel = hessian @ kernel
    return 2.0 * rows / np.linalg.eigvals(kernel).real.max()


@pytest.mark.parametrize("loss", ["squared", "cross-entropy"])
@pytest.mark.parametrize("name", MODELS)
def test_the_rate_is_that_of_the_gauss_newton_matrix(name, loss):
    torch.manual_seed(0)
    model, shape = MODELS[name]()
    model, x = model.double(), torch.randn(*shape, dtype=torch.float64)
    twin = copy.deepcopy(model)
    assert rate_of_model(model, x, loss=loss, rtol=1e-9) == pytest.approx(
        explicit(twin, x, loss), rel=1e-6
    )


def test_nothing_changes():
    torch.manual_seed(1)
    model = perceptron(nn.BatchNorm1d(12), nn.Dropout(0.5))
    before, random = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    rates = {rate_of_model(model, torch.ones(6, 5) + torch.eye(6, 5)) for _ in range(2)}
    assert len(rates) == 1
    assert torch.equal(random, torch.get_rng_state())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(weight.grad is None for weight in model.parameters())


def test_gradient_descent_of_a_linear_model_is_stable_below_the_rate():
    """A linear model is its own linearization."""
    torch.manual_seed(2)
    x, y = torch.randn(8, 4).double(), torch.randn(8, 1).double()
    model = nn.Linear(4, 1).double()
    rate = rate_of_model(model, x, rtol=1e-9)
    ends = []
    for factor in (0.98, 1.02):
        trained = copy.deepcopy(model)
        descent = torch.optim.SGD(trained.parameters(), lr=factor * rate)
        for _ in range(600):
            descent.zero_grad()
            (0.5 * (trained(x) - y).square().sum(1).mean()).backward()
            descent.step()
        ends.append(float((trained(x) - y).detach().square().mean()))
    assert ends[0] < 2.0
    assert ends[1] > 1e3


class Constant(nn.Module):
    def __init__(self, output):
        super().__init__()
        self.weight, self.output = nn.Parameter(torch.ones(2)), output

    def forward(self, x):
        return self.output


def test_models_without_a_rate():
    x = torch.ones(3, 2)
    assert rate_of_model(Constant(torch.ones(3, 1)), x) == math.inf
    for output, error in (
        ("text", errors.ArgumentTypeError),
        (torch.full((3, 1), math.nan), errors.ArgumentError),
    ):
        with pytest.raises(error, match="^model"):
            rate_of_model(Constant(output), x)
    frozen = nn.Linear(2, 1).requires_grad_(False)
    with pytest.raises(errors.ArgumentError, match="requires_grad"):
        rate_of_model(frozen, x)
    with pytest.raises(errors.UnknownNameError, match="^loss"):
        rate_of_model(nn.Linear(2, 1), x, loss="hinge")
    with pytest.raises(errors.ArgumentError, match="^rtol"):
        rate_of_model(nn.Linear(2, 1), x, rtol=2.0)


def test_measurements_have_the_rate_of_each_network():
    torch.manual_seed(3)
    model, x = perceptron(nn.BatchNorm1d(12)), torch.randn(6, 5)
    labels = torch.arange(6) % 3
    measured = measure(model, x, labels=labels, largest_rate=True)
    (rate,) = measured.largest_rate
    assert rate == pytest.approx(rate_of_model(model, x, loss="cross-entropy"), rel=1e-6)
    several = measure(model, x, labels=labels, networks=3, largest_rate=True)
    assert several.largest_rate.shape == (3,)
    without = measure(model, x, labels=labels)
    assert without.largest_rate is None
    for each, smallest in ((measured, rate), (several, min(several.largest_rate))):
        said = f"learning rate of gradient descent is {smallest:.3g}, in the linearized model."
        assert each.verdict.endswith(said)
    assert measured.verdict.startswith(f"{without.verdict} The largest stable")
    with pytest.raises(errors.ArgumentError, match="^largest_rate"):
        measure(model, x, largest_rate=True)
