"""`chain_of`: what it reads, and what does not fit."""

import math

import pytest
from torch_models import mlp, nn, one_thread, resnet, torch  # noqa: F401

import bnmc
from bnmc.errors import ArgumentError, ArgumentTypeError
from bnmc.torch import chain_of

pytestmark = pytest.mark.usefixtures("one_thread")

ACTIVATIONS = {
    "relu": nn.ReLU(), "leaky_relu": nn.LeakyReLU(), "tanh": nn.Tanh(), "sigmoid": nn.Sigmoid(),
    "elu": nn.ELU(), "celu": nn.CELU(), "selu": nn.SELU(), "gelu": nn.GELU(), "silu": nn.SiLU(),
    "linear": nn.Identity(),
}  # fmt: skip


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(name):
    model = mlp(4, 12, lambda: ACTIVATIONS[name], inputs=7)
    reading = chain_of(model, batch=9)
    chain, unfit = reading
    assert (chain.width, chain.batch, chain.activation.name) == (12, 9, name)
    assert (chain.norm, chain.eps, unfit) == ("batch", 1e-5, ())
    assert reading.layers == ("3", "6", "9")
    assert "3 hidden layers" in str(reading)


def test_gelu_is_the_exact_form():
    """PyTorch's GELU, ELU and SELU have variants; the activation of the chain is this one."""
    values = torch.linspace(-2.0, 2.0, 9).double()
    found = chain_of(mlp(4, 12, nn.GELU)).chain.activation(values.numpy())
    assert abs(found - nn.functional.gelu(values).numpy()).max() < 1e-12
    approximate = chain_of(mlp(4, 12, lambda: nn.GELU(approximate="tanh")))
    assert "GELU is no part of a Chain" in approximate.unfit[0]


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("relu", torch.relu), ("tanh", lambda x: x.tanh()), ("sin", torch.sin), ("erf", torch.erf),
        ("gelu", nn.functional.gelu), ("abs", torch.abs), ("relu", nn.functional.relu_),
        ("leaky_relu", nn.functional.leaky_relu),
    ],
)  # fmt: skip
def test_functions(name, function):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(5, 5, bias=False) for _ in range(4))

        def forward(self, x):
            x = x.view(x.size(0), -1)
            for layer in self.layers[:-1]:
                x = function(layer(x))
            return self.layers[-1](x)

    chain, unfit = chain_of(Model())
    assert (chain.activation.name, chain.norm, unfit) == (name, "none", ())
    # PyTorch draws entries with the variance 1/(3 fan_in).
    assert abs(chain.gain - 1.0 / math.sqrt(3.0)) < 0.15


LAWS = {
    "gaussian": lambda weight: weight.normal_(),
    "uniform": lambda weight: weight.uniform_(-0.1, 0.1),
    "rademacher": lambda weight: weight.bernoulli_().sub_(0.5),
    "haar": nn.init.orthogonal_,
}


@pytest.mark.parametrize("law", LAWS)
def test_laws_and_gains(law):
    model = mlp(4, 40, norm=False)
    with torch.no_grad():
        for module in model[2:-1:2]:
            LAWS[law](module.weight)
            module.bias.zero_()
    chain, unfit = chain_of(model)
    assert (chain.weights, unfit) == (law, ())
    squares = [float(model[index].weight.detach().square().sum()) for index in (2, 4, 6)]
    assert abs(chain.gain - math.sqrt(sum(squares) / 120)) < 1e-5


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 6)

    def forward(self, x):
        return x + torch.relu(self.inner(x))


class Branching(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x


def trained():
    model = mlp(4, 6)
    with torch.no_grad():
        model[4].weight.fill_(1.1)
    return model


def other_gain():
    model = mlp(4, 30, norm=False)
    with torch.no_grad():
        for module in model[::2]:
            module.bias.zero_()
        model[2].weight.mul_(3.0)
    return model


def with_norm(norm):
    layers = [nn.Linear(6, 6), norm, nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(6, 6), norm, nn.ReLU(), nn.Linear(6, 2))


UNFIT = {
    "trained": (trained, "4: affine parameters"),
    "evaluation": (lambda: mlp(4, 6).eval(), "evaluation mode"),
    "bias": (lambda: mlp(4, 6, norm=False), "2: the chain has no bias"),
    "gain": (other_gain, "the variances of the weights differ"),
    "layer norm": (lambda: with_norm(nn.LayerNorm(6)), "LayerNorm is no norm of a Chain"),
    "skip": (
        lambda: nn.Sequential(*[Residual() for _ in range(4)], nn.Linear(6, 2)),
        "it joins 2 branches",
    ),
    "dropout": (
        lambda: mlp(4, 6, lambda: nn.Sequential(nn.ReLU(), nn.Dropout(0.5))), "Dropout is no part"
    ),
    "order": (
        lambda: nn.Sequential(
            *[one for _ in range(4) for one in (nn.Linear(6, 6), nn.ReLU(), nn.BatchNorm1d(6))],
            nn.Linear(6, 2),
        ),
        "the norm follows the activation",
    ),
    "slope": (lambda: mlp(4, 6, lambda: nn.LeakyReLU(0.2)), "LeakyReLU is no part"),
    "convolutions": (resnet, "a convolution with kernels of 3×3"),
    "shared": (
        lambda: nn.Sequential(*[nn.Linear(6, 6, bias=False), nn.ReLU()] * 4),
        "3 layers share its weights",
    ),
    "kinds": (
        lambda: nn.Sequential(*mlp(4, 6)[:-1], *mlp(1, 6, nn.Tanh)), "12: another width, norm or"
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", UNFIT)
def test_what_does_not_fit(what):
    make, said = UNFIT[what]
    reading = chain_of(make())
    assert any(said in one for one in reading.unfit), reading.unfit
    assert reading.chain is not None
    assert "does not fit" in str(reading)


def test_models_without_a_chain():
    for model, said in (
        (nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), "no hidden layer"),
        (nn.Linear(3, 3), "no hidden layer"),
        (nn.Sequential(Branching(), mlp(4, 6)), "cannot be traced"),
    ):
        chain, unfit = chain_of(model)
        assert chain is None
        assert said in unfit[-1]
    with pytest.raises(ArgumentTypeError, match="model: got 3"):
        chain_of(3)
    with pytest.raises(ArgumentError, match="batch: got 1"):
        chain_of(mlp(4, 6), batch=1)


def test_dropout_that_does_nothing_fits():
    model = mlp(4, 6, lambda: nn.Sequential(nn.ReLU(), nn.Dropout(0.0)))
    assert bnmc.torch.chain_of(model).unfit == ()
