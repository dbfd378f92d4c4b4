"""`chain_of`, `network_of`: what they read, and what does not fit."""

import dataclasses
import math

import pytest
from torch_models import (  # noqa: F401
    Residual,
    mlp,
    nn,
    one_thread,
    residual,
    resnet,
    torch,
    with_norm,
)

import bnmc
from bnmc.errors import ArgumentError, ArgumentTypeError
from bnmc.torch import chain_of, network_of

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
    outputs = chain_of(mlp(4, 12, nn.GELU)).chain.activation(values.numpy())
    assert abs(outputs - nn.functional.gelu(values).numpy()).max() < 1e-12
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


def changed(model, weight=None, bias=None):
    """Return a model without norms after a change of the hidden weights and biases in place."""
    with torch.no_grad():
        for module in model[2:-1:2]:
            if weight is not None:
                weight(module.weight)
            if bias is not None:
                bias(module.bias)
    return model


def mean_square(model, name):
    """Return the mean square of the hidden weights or biases."""
    tensors = [getattr(module, name).detach().double() for module in model[2:-1:2]]
    return float(torch.stack(tensors).square().mean())


LAWS = {
    "gaussian": lambda weight: weight.normal_(),
    "uniform": lambda weight: weight.uniform_(-0.1, 0.1),
    "rademacher": lambda weight: weight.bernoulli_().sub_(0.5),
    "haar": nn.init.orthogonal_,
}


@pytest.mark.parametrize("law", LAWS)
def test_laws_and_gains(law):
    model = changed(mlp(4, 40, norm=False), LAWS[law], torch.Tensor.zero_)
    chain, unfit = chain_of(model)
    assert (chain.weights, unfit) == (law, ())
    assert abs(chain.gain - math.sqrt(40.0 * mean_square(model, "weight"))) < 1e-5


def test_default_initialization():
    """PyTorch draws weights and biases from the uniform law on ±1/√fan_in."""
    expected = bnmc.Chain(64, 8, "relu", norm="none", weights="pytorch")
    chain, unfit = chain_of(mlp(4, 64, norm=False), batch=8)
    assert (chain, unfit) == (expected, ())
    assert chain.bias_variance == pytest.approx(1.0 / 192.0)
    without = chain_of(mlp(4, 64, norm=False, bias=False), batch=8).chain
    assert without == dataclasses.replace(expected, bias_variance=0.0)


@pytest.mark.parametrize("factor", [0.8, 1.2])
def test_other_uniform_weights(factor):
    chain = chain_of(changed(mlp(4, 64, norm=False), lambda weight: weight.mul_(factor))).chain
    assert chain.weights == "uniform"
    assert chain.gain == pytest.approx(factor / math.sqrt(3.0), rel=0.02)
    assert chain.bias_variance == pytest.approx(1.0 / 192.0, rel=0.3)


@pytest.mark.parametrize(
    ("law", "weight", "bias"),
    [
        # Within the bound of PyTorch's biases, but of another variance.
        ("pytorch", None, lambda bias: bias.mul_(0.5)),
        ("gaussian", lambda weight: weight.normal_(std=0.125), lambda bias: bias.normal_(std=0.3)),
    ],
)
def test_the_variance_of_biases_is_their_mean_square(law, weight, bias):
    """Over all hidden layers, for biases of any law but PyTorch's."""
    model = changed(mlp(4, 64, norm=False), weight, bias)
    chain, unfit = chain_of(model)
    assert (chain.weights, unfit) == (law, ())
    assert chain.bias_variance == pytest.approx(mean_square(model, "bias"))


NORMS = {
    "layer": lambda: nn.LayerNorm(12, eps=1e-6), "rms": lambda: nn.RMSNorm(12, eps=1e-6),
    "group(3)": lambda: nn.GroupNorm(3, 12, eps=1e-6),
    "batch": lambda: nn.BatchNorm1d(12, eps=1e-6),
}  # fmt: skip


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("order", ["norm-activation", "activation-norm"])
def test_norms_and_orders(norm, order):
    layers = [nn.Linear(12, 12)]
    for _ in range(4):
        between = [NORMS[norm](), nn.Tanh()]
        layers += [*(between if order == "norm-activation" else between[::-1]), nn.Linear(12, 12)]
    reading = chain_of(nn.Sequential(*layers, nn.Tanh(), nn.Linear(12, 3)), batch=5)
    chain = bnmc.Chain(12, 5, "tanh", norm=norm, weights="pytorch", eps=1e-6, order=order)
    assert reading.chain == chain
    assert len(reading.unfit) == 1  # the last hidden layer has no norm
    assert "another width, norm, activation or skip" in reading.unfit[0]


def test_eps_of_rms_norm():
    """Without eps PyTorch takes the rounding unit of the input."""
    model = with_norm(lambda: nn.RMSNorm(6), nn.Identity, depth=3)
    assert chain_of(model).chain.eps == torch.finfo(torch.float32).eps
    assert chain_of(model.double()).chain.eps == torch.finfo(torch.float64).eps


RESIDUALS = {
    "pre-activation": (lambda block, x: x + block.inner(torch.relu(block.norm(x))), {}),
    "sum in place": (lambda block, x: block.inner(torch.relu(block.norm(x))).add_(x), {}),
    "activation-norm": (lambda block, x: x + block.inner(block.norm(torch.relu(x))), {}),
    "norm-activation": (lambda block, x: block.norm(x + block.inner(torch.relu(x))), {}),
    "none": (lambda block, x: x + block.inner(torch.relu(x)), {"norm": "none"}),
    "linear": (lambda block, x: block.norm(x + block.inner(x)), {"activation": "linear"}),
    "factors": (
        lambda block, x: 0.5 * x + block.inner(torch.relu(block.norm(x))) * 2.0,
        {"skip": 0.5, "gain": 2.0 / math.sqrt(3.0), "bias_variance": 4.0 / 18.0},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RESIDUALS)
def test_skip_connections(name):
    forward, other = RESIDUALS[name]
    reading = chain_of(residual(forward), batch=7)
    order = name if name in bnmc.chain.chain.ORDERS else "norm-activation"
    if name in ("sum in place", "factors"):
        order = "pre-activation"
    expected = {
        "activation": "relu", "norm": "layer", "skip": 1.0, "weights": "pytorch", "order": order,
        "eps": 0.0 if name == "none" else 1e-5, **other,
    }  # fmt: skip
    assert reading.unfit == ()
    assert reading.chain == bnmc.Chain(6, 7, **expected)
    assert len(reading.layers) == 4


def test_factor_of_gaussian_weights_and_biases():
    """The branch times 2 has twice the gain and four times the variance of the biases."""
    model = residual(lambda block, x: 0.5 * x + 2.0 * block.inner(torch.relu(block.norm(x))))
    with torch.no_grad():
        for block in model[1:-1]:
            block.inner.weight.normal_()
            block.inner.bias.normal_()
    chain, unfit = chain_of(model)
    inner = [block.inner for block in model[1:-1]]
    weights = torch.stack([layer.weight.detach().double() for layer in inner])
    biases = torch.stack([layer.bias.detach().double() for layer in inner])
    assert (chain.weights, chain.skip, unfit) == ("gaussian", 0.5, ())
    assert chain.gain == pytest.approx(2.0 * math.sqrt(6.0 * float(weights.square().mean())))
    assert chain.bias_variance == pytest.approx(4.0 * float(biases.square().mean()))


def circular(kernel=3, image=nn.Conv2d, norm=nn.BatchNorm2d, depth=4, **options):
    options = {"padding": "same", "padding_mode": "circular", **options}
    layers = [image(3, 8, kernel, **options)]
    for _ in range(depth):
        layers += [norm(8), nn.ReLU(), image(8, 8, kernel, **options)]
    return nn.Sequential(*layers, norm(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 30, 2))


@pytest.mark.parametrize(
    ("model", "shape", "kernel"),
    [
        (lambda: circular(), (5, 6), (3, 3)),
        (lambda: circular((3, 5), padding=(1, 2)), (5, 6), (3, 5)),
        (lambda: circular((2, 1)), (5, 6), (2, 1)),
        (lambda: circular(1, padding_mode="zeros"), (5, 6), (1, 1)),
        (lambda: circular(3, nn.Conv1d, nn.BatchNorm1d), (1, 30), (1, 3)),
    ],
)
def test_convolutions_with_circular_padding(model, shape, kernel):
    model = model()
    convolution = bnmc.Convolution(shape, kernel)
    options = {"weights": "pytorch", "eps": 1e-5, "convolution": convolution}
    expected = bnmc.Chain(8, 4 * 30, "relu", **options)
    reading = chain_of(model, batch=4, shape=shape)
    assert (reading.chain, reading.unfit) == (expected, ())
    without, unfit = chain_of(model, batch=4)
    assert without is None
    assert "shape=(height, width)" in unfit[0]


def test_convolution_is_that_of_pytorch():
    """The columns that the taps see are those of PyTorch, for even kernels too."""
    shape, kernel = (3, 4), (2, 3)
    layer = nn.Conv2d(5, 5, kernel, padding="same", padding_mode="circular", bias=False).double()
    images = torch.randn(2, 5, *shape, dtype=torch.float64)
    columns = images.transpose(0, 1).reshape(5, -1)
    table = bnmc.Convolution(shape, kernel).neighbours(24)
    seen = columns.numpy()[:, table].reshape(-1, 24)  # channels and taps
    expected = layer.weight.detach().flatten(1).numpy() @ seen
    assert (
        abs(layer(images).detach().transpose(0, 1).reshape(5, -1).numpy() - expected).max() < 1e-12
    )


class Afar(nn.Module):
    """Each layer adds the input of the layer before."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(6))

    def forward(self, x):
        x, y = self.layers[0](x), x
        for layer in self.layers[1:-1]:
            x, y = y + layer(torch.relu(x)), x
        return self.layers[-1](x)


class Branching(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x


def altered(change, **options):
    """Return a model after a change of its layers."""
    model = mlp(4, 30, **options)
    with torch.no_grad():
        change(model)
    return model


def other_gain(model):
    changed(model, bias=torch.Tensor.zero_)
    model[2].weight.mul_(3.0)


def without_a_bias(model):
    model[2].bias = None


def offset(norm):
    """Move the first entry; the others stay 0."""
    with torch.no_grad():
        norm.bias[0] = 0.1
    return norm


UNFIT = {
    "trained": (lambda: altered(lambda model: model[4].weight.fill_(1.1)), "4: affine parameters"),
    "trained layer norm": (
        lambda: with_norm(lambda: offset(nn.LayerNorm(6))),
        "4: affine parameters",
    ),
    "evaluation": (lambda: mlp(4, 6).eval(), "evaluation mode"),
    "constant bias": (
        lambda: changed(mlp(4, 30, norm=False), bias=lambda bias: bias.fill_(0.1)),
        "a bias has the mean 0.1",
    ),
    "one bias": (
        lambda: altered(without_a_bias, norm=False), "some layers have a bias and some have none"
    ),
    "gain": (lambda: altered(other_gain, norm=False), "the variances of the weights differ"),
    "instance norm": (
        lambda: circular(norm=nn.InstanceNorm2d), "InstanceNorm2d is no norm of a Chain"
    ),
    "groups of images": (
        lambda: circular(norm=lambda d: nn.GroupNorm(2, d)), "takes the positions"
    ),
    "layer norm of images": (
        lambda: with_norm(lambda: nn.LayerNorm((2, 6))), "LayerNorm over (2, 6)"
    ),
    "activation in the branch": (
        lambda: residual(lambda block, x: x + torch.relu(block.inner(x))), "ends after a norm or"
    ),
    "two layers": (
        lambda: residual(lambda block, x: x + block.other(torch.relu(block.inner(block.norm(x))))),
        "another width, norm, activation or skip",
    ),
    "from afar": (Afar, "one weight layer per skip connection"),
    "weights on both sides": (
        lambda: residual(lambda block, x: block.other(x) + block.inner(torch.relu(x))),
        "a branch of its own",
    ),
    "activation on both sides": (
        lambda: residual(lambda block, x: torch.relu(x) + block.inner(torch.relu(x))),
        "a branch of its own",
    ),
    "product": (
        lambda: residual(lambda block, x: x * block.inner(torch.relu(x))), "it joins 2 branches"
    ),
    "multiple": (
        lambda: residual(lambda block, x: block.inner(torch.relu(x) * 2.0)), "multiples fit"
    ),
    "number": (
        lambda: residual(lambda block, x: block.inner(torch.relu(x) + 2.0)), "add: this function"
    ),
    "alpha": (
        lambda: residual(lambda block, x: torch.add(x, block.inner(torch.relu(x)), alpha=2.0)),
        "it joins 2 branches",
    ),
    "dropout": (
        lambda: mlp(4, 6, lambda: nn.Sequential(nn.ReLU(), nn.Dropout(0.5))),
        "Dropout is no part of a Chain; set its p to 0",
    ),
    "slope": (lambda: mlp(4, 6, lambda: nn.LeakyReLU(0.2)), "activations of your own"),
    "convolutions": (resnet, "a convolution with kernels of 3×3 and padding of zeros"),
    "padding of one axis": (lambda: circular((3, 5), padding=(1, 1)), "padding of circular"),
    "stride": (lambda: circular(stride=2, padding=1), "with stride, dilation or groups"),
    "groups": (lambda: circular(groups=1, dilation=2), "with stride, dilation or groups"),
    "shared": (
        lambda: nn.Sequential(*[nn.Linear(6, 6, bias=False), nn.ReLU()] * 4),
        "3 layers share its weights",
    ),
    "two activations": (
        lambda: mlp(4, 6, lambda: nn.Sequential(nn.ReLU(), nn.Tanh())), "several norms or"
    ),
    "kinds": (
        lambda: nn.Sequential(*mlp(4, 6)[:-1], *mlp(1, 6, nn.Tanh)), "12: another width, norm, "
    ),
    "two of another kind": (
        lambda: nn.Sequential(*mlp(4, 6)[:-1], *mlp(2, 6, nn.Tanh)), "2 layers (12, 15): another"
    ),
}  # fmt: skip

#: Models of which no chain can be made.
WITHOUT = {"convolutions", "padding of one axis", "stride", "groups", "instance norm"}
WITHOUT |= {"groups of images"}


@pytest.mark.parametrize("what", UNFIT)
def test_what_does_not_fit(what):
    make, said = UNFIT[what]
    reading = chain_of(make())
    assert any(said in text for text in reading.unfit), reading.unfit
    assert (reading.chain is None) == (what in WITHOUT)
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
    with pytest.raises(ArgumentError, match="shape"):
        chain_of(mlp(4, 6), shape=(3, 0))


def test_dropout_that_does_nothing_fits():
    assert chain_of(mlp(4, 6, lambda: nn.Sequential(nn.ReLU(), nn.Dropout(0.0)))).unfit == ()


def test_layers_with_one_tensor_share_weights():
    model = mlp(5, 6)
    model[6].weight = model[3].weight
    assert "3: 2 layers share its weights" in chain_of(model).unfit[0]


PYTORCH = {"weights": "pytorch", "norm": "none"}


def layers_of(*layers):
    """Return the network of (width, options) with PyTorch's weights after an input, batch 5."""
    (features, start), *others = layers
    stages = [(bnmc.Chain(width, 5, **{**PYTORCH, **options}), 1) for width, options in others]
    return bnmc.Network((bnmc.Chain(features, 5, **{"norm": "none", **start}), 0), *stages)


def before_the_norm(block, x):
    return x + block.inner(torch.relu(block.norm(x)))


RELU, NORMED = {"activation": "relu"}, {"eps": 1e-5}
NETWORKS = {
    "no norm": (
        lambda: nn.Sequential(
            nn.Linear(9, 20), nn.ReLU(), nn.Linear(20, 7), nn.Tanh(), nn.Linear(7, 3)
        ),
        ((9, {}), (20, RELU), (7, {"activation": "tanh"}), (3, {})),
    ),
    "norms before and after": (
        lambda: nn.Sequential(
            nn.Linear(9, 20), nn.BatchNorm1d(20), nn.ReLU(), nn.Linear(20, 8), nn.GELU(),
            nn.LayerNorm(8), nn.Linear(8, 6), nn.RMSNorm(6, eps=1e-5), nn.Linear(6, 6),
            nn.GroupNorm(3, 6), nn.SiLU(), nn.Linear(6, 1),
        ),
        (
            (9, {}), (20, {**RELU, **NORMED, "norm": "batch"}),
            (8, {"activation": "gelu", "norm": "layer", "order": "activation-norm", **NORMED}),
            (6, {"norm": "rms", **NORMED}),
            (6, {"activation": "silu", "norm": "group(3)", **NORMED}), (1, {}),
        ),
    ),
    "norm of the input": (
        lambda: nn.Sequential(
            nn.Flatten(), nn.LayerNorm(9), nn.Tanh(), nn.Linear(9, 4, bias=False), nn.Linear(4, 3)
        ),
        (
            (9, {"norm": "layer", "activation": "tanh", **NORMED}), (4, {"bias_variance": 0.0}),
            (3, {}),
        ),
    ),
    "skip connections before the norm": (
        lambda: nn.Sequential(
            nn.Linear(9, 6), Residual(before_the_norm), Residual(before_the_norm),
            nn.BatchNorm1d(6), nn.Linear(6, 2),
        ),
        (
            (9, {}), (6, {**RELU, **NORMED, "norm": "layer", "order": "pre-activation"}),
            (6, {**RELU, **NORMED, "norm": "layer", "order": "pre-activation", "skip": 1.0}),
            (6, {"norm": "batch", "skip": 1.0, **NORMED}), (2, {}),
        ),
    ),
    "skip connections after the norm": (
        lambda: nn.Sequential(
            nn.Linear(9, 6), nn.LayerNorm(6),
            Residual(lambda block, x: block.norm(x + block.inner(torch.relu(x)))), nn.Linear(6, 2),
        ),
        None,
    ),
    "a skip connection from the input": (
        lambda: nn.Sequential(
            Residual(lambda block, x: 0.5 * x + block.inner(torch.relu(x))), nn.Linear(6, 2)
        ),
        ((6, RELU), (6, {"skip": 0.5}), (2, {})),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NETWORKS)
def test_networks(name):
    make, layers = NETWORKS[name]
    model = make()
    reading = network_of(model, batch=5)
    if layers is None:  # the branch has an activation that the skip connection does not pass
        layers = (
            (9, {}), (6, {**RELU, **NORMED, "norm": "layer"}),
            (6, {"norm": "layer", "skip": 1.0, **NORMED}), (2, {}),
        )  # fmt: skip
    assert reading.unfit == ()
    assert reading.network == layers_of(*layers)
    linear = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    assert reading.layers == tuple(name for name in linear if not name.endswith("other"))
    assert str(reading) == repr(reading.network)


def test_network_of_equal_layers_has_the_chain():
    """Weights of equal layers are read together, so that these are one stage."""
    model = changed(mlp(6, 30, norm=False, inputs=7), LAWS["gaussian"], torch.Tensor.zero_)
    chain, unfit = chain_of(model, batch=8)
    network, others = network_of(model, batch=8)
    assert (unfit, others) == ((), ())
    assert (chain, 5) in network.stages
    with torch.no_grad():
        other_gain(model)
    chains = [chain for chain, _ in network_of(model, batch=8).network.stages[2:7]]
    for layer, chain in zip(range(2, 12, 2), chains, strict=True):
        square = float(model[layer].weight.detach().double().square().mean())
        assert chain.gain == pytest.approx(math.sqrt(30.0 * square))


@pytest.mark.parametrize("shape", [(1, 64), (2, 6), (64, 1), (10, 32)])
def test_default_weights_of_small_layers(shape):
    """One row is orthogonal, and few entries have extremes that tell little."""
    for seed in range(20):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(9, shape[1]), nn.ReLU(), nn.Linear(*shape[::-1]))
        network, unfit = network_of(model)
        assert unfit == ()
        assert [chain.weights for chain, _ in network.stages[1:]] == ["pytorch"] * 2


@pytest.mark.parametrize("shape", [(8, 20), (20, 8)])
def test_orthogonal_weights_between_widths(shape):
    model = nn.Sequential(nn.Linear(*shape[::-1], bias=False))
    nn.init.orthogonal_(model[0].weight)
    chain = network_of(model).network.last
    assert chain.weights == "haar"
    # The entries of W have the variance gain²/fan_in.
    assert chain.gain == pytest.approx(math.sqrt(shape[1] / max(shape)))


NO_NETWORK = {
    "convolutions": (resnet, "a convolution; chain_of reads equal convolutions", True),
    "no weights": (lambda: nn.Sequential(nn.ReLU(), nn.Flatten()), "no linear layer", True),
    "control flow": (
        lambda: nn.Sequential(Branching(), nn.Linear(3, 4)), "cannot be traced", True
    ),
    "samples that are joined": (
        lambda: nn.Sequential(nn.Linear(4, 6), nn.Flatten(0), nn.Linear(12, 2)),
        "2: it has 12 features, and 0 has 6", False,
    ),
    "zero weights": (
        lambda: changed(mlp(4, 6, norm=False), torch.Tensor.zero_), "gain: got 0.0", True
    ),
    "shared": (UNFIT["shared"][0], "layers share its weights", False),
    "a sum before the weights": (
        lambda: nn.Sequential(Sum(), nn.Linear(4, 2)), "before the first weights", False
    ),
    "a norm on a skip path": (
        lambda: residual(lambda block, x: block.norm(block.other(x)) + block.inner(torch.relu(x))),
        "a branch of its own", False,
    ),
    "an activation beside weights": (
        lambda: residual(lambda block, x: block.other(x) + torch.relu(x)),
        "a branch of its own", False,
    ),
    "a sum after the activation": (
        UNFIT["activation in the branch"][0], "ends after a norm or activation", False
    ),
    **{
        name: (*UNFIT[name], False)
        for name in (
            "trained", "evaluation", "constant bias", "two activations", "product", "from afar",
        )
    },
}  # fmt: skip


class Sum(nn.Module):
    def forward(self, x):
        return x + torch.relu(x)


class TwoLayers(nn.Module):
    """x + W₂ σ(N(W₁ σ(N(x)))) / 2; or σ(x + W₂ σ(W₁ x)) if `after` is true."""

    def __init__(self, width, middle, *, after=False):
        super().__init__()
        layers = [nn.Linear(width, middle), nn.Tanh(), nn.Linear(middle, width)]
        if not after:
            layers = [
                nn.LayerNorm(width), nn.ReLU(), nn.Linear(width, middle), nn.LayerNorm(middle),
                nn.Tanh(), nn.Linear(middle, width),
            ]  # fmt: skip
        self.branch, self.after = nn.Sequential(*layers), after

    def forward(self, x):
        if self.after:
            return torch.tanh(x + self.branch(x))
        return x + 0.5 * self.branch(x)


def test_residual_blocks_of_two_layers():
    first = bnmc.Chain(5, 4, "linear", norm="none")
    model = nn.Sequential(
        nn.Linear(5, 6), TwoLayers(6, 9), TwoLayers(6, 7), nn.LayerNorm(6), nn.ReLU(),
        nn.Linear(6, 2),
    )  # fmt: skip
    reading = network_of(model, batch=4)
    assert reading.unfit == ()
    options = {"weights": "pytorch", "eps": 1e-5, "order": "pre-activation"}
    before = bnmc.Chain(6, 4, "relu", norm="layer", **options)

    stages = reading.network.stages
    assert stages[0] == (first, 0)
    assert stages[1] == (before, 1)
    orders = "pre-activation", "norm-activation"  # the skip path of the second block sees h
    for stage, middle, order in zip(stages[2:4], (9, 7), orders, strict=True):
        assert (stage.skip, stage.source, stage.projection) == (1.0, "state", None)
        inner, last = (chain for chain, _ in stage.branch.stages)
        assert (inner.width, inner.activation.name, inner.norm) == (middle, "tanh", "layer")
        assert (last.width, last.order, last.skip) == (6, order, 0.0)
        assert last.gain == pytest.approx(0.5 / 3**0.5)
    assert reading.factors == (1.0, 1.0, 0.5, 1.0, 0.5, 1.0)
    model = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), TwoLayers(6, 9, after=True), nn.Linear(6, 2))
    reading = network_of(model, batch=4)
    assert reading.unfit == ()
    block = reading.network.stages[2]
    assert (block.source, block.branch.last.skip) == ("activations", 0.0)


class Wider(nn.Module):
    """W₂ σ(W₁ a) + P b / 2, where a is what the block takes, and b is a or σ(a); in two orders."""

    def __init__(self, *, first, before=None, bias=True):
        super().__init__()
        self.inner, self.outer = nn.Linear(6, 9), nn.Linear(9, 8)
        self.path, self.first = nn.Linear(6, 8, bias=bias), first
        self.before = before or nn.Identity()

    def forward(self, x):
        after = self.before(x)
        if self.first:
            identity = self.path(x) * 0.5
            return identity + self.outer(torch.tanh(self.inner(after)))
        out = self.outer(torch.tanh(self.inner(after)))
        out += 0.5 * self.path(after)
        return out


def test_linear_layers_on_skip_paths():
    projection = bnmc.Chain(8, 5, "linear", norm="none", weights="pytorch")
    branch = bnmc.Network(
        (bnmc.Chain(9, 5, "tanh", **PYTORCH), 1), (bnmc.Chain(8, 5, "linear", **PYTORCH), 1)
    )
    without_bias = dataclasses.replace(projection, bias_variance=0.0)
    for block, path, source in (
        (Wider(first=True, before=nn.ReLU(), bias=False), without_bias, "state"),
        (Wider(first=False, before=nn.ReLU()), projection, "activations"),
        (Wider(first=True), projection, "activations"),
    ):
        reading = network_of(nn.Sequential(nn.Linear(5, 6), block, nn.Linear(8, 3)), batch=5)
        assert reading.unfit == ()
        activation = "linear" if isinstance(block.before, nn.Identity) else "relu"
        assert reading.network == bnmc.Network(
            (bnmc.Chain(5, 5, "linear", norm="none"), 0),
            (bnmc.Chain(6, 5, activation, **PYTORCH), 1),
            bnmc.Residual(branch, path, skip=0.5, source=source),
            (bnmc.Chain(3, 5, "linear", **PYTORCH), 1),
        )
        assert reading.layers == ("0", "1.inner", "1.outer", "2")


def test_one_layer_beside_a_linear_layer_is_a_block():
    model = residual(lambda block, x: block.other(x) + block.inner(torch.relu(x)), blocks=1)
    reading = network_of(model, batch=5)
    (block,) = reading.network.blocks
    assert (reading.unfit, reading.layers) == ((), ("0", "1.inner", "2"))
    assert (block.branch.depth, block.projection.width, block.source) == (1, 6, "state")
    model[1].other.weight = model[1].inner.weight
    assert any("2 layers share its weights" in text for text in network_of(model).unfit)


def test_an_identity_on_a_skip_path_changes_nothing():
    def models(path):
        return residual(lambda block, x: path(x) + block.inner(torch.relu(block.norm(x))))

    torch.manual_seed(0)
    expected = network_of(models(lambda x: x))
    torch.manual_seed(0)
    model = models(lambda x: x)
    for block in model[1:-1]:
        block.path = nn.Identity()
        block.formula = lambda part, x: part.path(x) + part.inner(torch.relu(part.norm(x)))
    assert network_of(model) == expected
    assert expected.unfit == ()


class Dropping(nn.Module):
    """A hidden layer with a dropout that is a function."""

    def __init__(self, **options):
        super().__init__()
        self.first, self.last, self.options = nn.Linear(5, 6), nn.Linear(6, 2), options

    def forward(self, x):
        return self.last(nn.functional.dropout(torch.tanh(self.first(x)), **self.options))


def test_the_network_of_a_model_with_dropout_is_that_of_evaluation_mode():
    layers = [nn.Linear(5, 6), nn.ReLU(), nn.Dropout(0.3), nn.Linear(6, 6), nn.AlphaDropout(0.1)]
    model = nn.Sequential(*layers, nn.Tanh(), nn.Linear(6, 2))
    reading = network_of(model, batch=4)
    assert (reading.unfit, reading.dropouts) == ((), ("2", "4"))
    assert str(reading).endswith("\nwithout dropout: 2, 4")
    other = network_of(model.eval(), batch=4)
    assert (other.network, other.dropouts) == (reading.network, ())
    assert network_of(Dropping()).dropouts == ("dropout",)
    assert network_of(Dropping(training=False)).dropouts == ()
    assert network_of(Dropping(p=0.0)).dropouts == ()
    assert "no part of a Chain" in chain_of(model.train()).unfit[0]


@pytest.mark.parametrize("what", NO_NETWORK)
def test_what_does_not_fit_a_network(what):
    make, said, without = NO_NETWORK[what]
    reading = network_of(make())
    assert any(said in text for text in reading.unfit), reading.unfit
    assert (reading.network is None) == without
    assert "does not fit" in str(reading)


def test_refusals_of_networks():
    with pytest.raises(ArgumentTypeError, match="model: got 3"):
        network_of(3)
    with pytest.raises(ArgumentError, match="batch: got 1"):
        network_of(mlp(4, 6), batch=1)
