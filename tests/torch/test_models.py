"""Wrapped models, half precision, devices and refusals: for the chain, measurements and cures."""

import numpy as np
import pytest
from slow_cases import pairs
from torch_models import digest_of, mlp, nn, one_thread, residual, torch  # noqa: F401

from bnmc.errors import ArgumentError, ArgumentTypeError, NonFiniteError, UnknownNameError
from bnmc.torch import (
    break_,
    chain_of,
    gain_for_,
    haar_,
    maximize_rank_,
    measure,
    network_of,
    orthogonalize_,
)

pytestmark = pytest.mark.usefixtures("one_thread")

WRAPPERS = {
    "DataParallel": nn.DataParallel,
    "compiled": lambda model: torch.compile(model, backend="eager"),
    "both": lambda model: nn.DataParallel(torch.compile(model, backend="eager")),
}
X = torch.linspace(-1.0, 1.0, 40).reshape(5, 8).sin()
CURES = {
    "haar_": lambda model, _: haar_(model, rng=0),
    "break_": lambda model, _: break_(model, rng=0),
    "gain_for_": lambda model, _: gain_for_(model),
    "orthogonalize_": lambda model, x: orthogonalize_(model, x, rng=0),
    "maximize_rank_": lambda model, x: maximize_rank_(model, x, steps=1, learning_rate=0.1),
}


def copies():
    """Return two models with equal parameters."""
    models = mlp(3, 8, norm=False), mlp(3, 8, norm=False)
    models[1].load_state_dict(models[0].state_dict())
    return models


@pytest.mark.parametrize(("name", "wrapper"), pairs(CURES, WRAPPERS, every=3))
def test_cures_change_the_model_inside(name, wrapper):
    """The wrapped model is returned, and its parameters are those of a cured plain model."""
    plain, inner = copies()
    wrapped = WRAPPERS[wrapper](inner)
    assert CURES[name](wrapped, X) is wrapped
    CURES[name](plain, X)
    for expected, weight in zip(plain.parameters(), inner.parameters(), strict=True):
        assert torch.equal(expected, weight)
    assert chain_of(wrapped, batch=5) == chain_of(plain, batch=5)
    np.testing.assert_array_equal(measure(wrapped, X).gram, measure(plain, X).gram)


@pytest.mark.parametrize("name", CURES)
def test_all_but_the_parameters_is_as_it_was(name):
    """Of gradients, modes, buffers, hooks and random states nothing changes."""
    model = mlp(3, 8, norm=name != "gain_for_")
    if name != "gain_for_":
        model[1].eval()
    model(X).sum().backward()
    weights = [parameter.detach().clone() for parameter in model.parameters()]
    before = digest_of(model)
    CURES[name](model, X)
    assert digest_of(model) != before
    with torch.no_grad():
        for parameter, weight in zip(model.parameters(), weights, strict=True):
            parameter.copy_(weight)
    assert digest_of(model) == before


def made_in_inference_mode():
    with torch.inference_mode():
        return mlp(3, 8)


@pytest.mark.parametrize(("make", "said"), [
    (lambda: mlp(3, 8).to("meta"), "'0.weight' is on the device 'meta', without values"),
    (made_in_inference_mode, "'0.weight' was made in torch.inference_mode()"),
    (lambda: nn.Sequential(nn.Linear(8, 8), nn.LazyLinear(8)), "'1.weight' has no shape yet"),
    (lambda: nn.Sequential(nn.Linear(8, 8), nn.LazyBatchNorm1d(affine=False), nn.Linear(8, 8)),
     "'1.running_mean' has no shape yet"),
], ids=["meta", "inference", "lazy", "lazy buffer"])  # fmt: skip
def test_models_without_usable_parameters(make, said):
    """All functions raise an error that names the tensor and what to do."""
    for function in (lambda model, x: measure(model, x), lambda model, _: chain_of(model),
                     *CURES.values()):  # fmt: skip
        with pytest.raises(ArgumentError) as caught:
            function(make(), X)
        assert said in str(caught.value)


def plain(*arguments):
    return mlp(*arguments, norm=False)


def twice():
    shared = nn.Linear(8, 8)
    return nn.Sequential(nn.Linear(8, 8), shared, nn.ReLU(), shared, nn.Linear(8, 2))


def filled(part, value):
    """Return a model whose first layer has constant weights or biases, and no others later."""
    model = plain(3, 8)
    with torch.no_grad():
        model[2].bias.zero_()
        getattr(model[0], part).fill_(value)
    return model


def grouped():
    return nn.Sequential(*(nn.Conv2d(4, 4, 1, groups=2) for _ in range(3)))


def maximize(model, batches=(X,), **options):
    return maximize_rank_(model, batches, **options)


IMAGES = torch.ones(6, 4, 3, 3)
REFUSED = [
    (haar_, plain(2, 8), (), {"gain": 0.0}, ArgumentError, "gain: got 0"),
    (haar_, nn.ReLU(), (), {}, ArgumentError, "linear layers"),
    (break_, plain(2, 8), (), {"how": "abs"}, UnknownNameError, "how: got 'abs'"),
    (gain_for_, plain(4, 8), (1.5,), {}, ArgumentError, "allowed: a factor between 1 and 1"),
    (gain_for_, plain(4, 8, nn.GELU), (), {}, ArgumentError, "whose scale a gain keeps"),
    (gain_for_, plain(1, 8), (), {}, ArgumentError, "no hidden layer"),
    (gain_for_, plain(4, 8), (0.0,), {}, ArgumentError, "target: got 0"),
    (gain_for_, residual(lambda block, x: x + block.inner(torch.relu(x))), (), {}, ArgumentError,
     "a model without skip connections"),
    (gain_for_, plain(4, 8, lambda: nn.LeakyReLU(0.3)), (), {}, ArgumentError,
     "LeakyReLU is no part"),
    (orthogonalize_, twice(), (X,), {}, ArgumentError, "called 2 times"),
    (orthogonalize_, filled("bias", -100.0), (X,), {}, ArgumentError, "reaches all layers"),
    (orthogonalize_, filled("weight", 3e38), (X,), {}, NonFiniteError, "input of '2'"),
    (orthogonalize_, grouped(), (IMAGES,), {}, ArgumentError, "groups"),
    (orthogonalize_, mlp(1, 8), (X,), {}, ArgumentError, "hidden"),
    (orthogonalize_, mlp(3, 8), (X,), {"power": 1.0}, ArgumentError, "power: got 1"),
    (orthogonalize_, mlp(3, 8), (X,), {"shrinkage": 1.5}, ArgumentError, "shrinkage: got 1.5"),
    (orthogonalize_, mlp(3, 8), (X[:0],), {}, ArgumentError, "at least 2 samples"),
    (orthogonalize_, nn.ReLU(), (X,), {}, ArgumentError, "linear layers"),
    (maximize, mlp(2, 8), (), {"steps": 0}, ArgumentError, "steps: got 0"),
    (maximize, mlp(2, 8), (), {"learning_rate": 0.0}, ArgumentError, "learning_rate: got 0"),
    (maximize, mlp(2, 8), (), {"layers": ["1"]}, ArgumentError, "layers: got '1'"),
    (maximize, mlp(2, 8), (), {"layers": []}, ArgumentError, "layers"),
    (maximize, mlp(2, 8), (), {"batches": []}, ArgumentError, "batches"),
    (maximize, mlp(2, 8), (), {"batches": [X[:0]]}, ArgumentError, "at least 2 samples"),
    (maximize, mlp(2, 8), (), {"batches": 3}, ArgumentTypeError, "batches: got 3"),
    (maximize, mlp(0, 8), (), {}, ArgumentError, "a readout"),
    (maximize, mlp(2, 8), (), {"steps": 9, "learning_rate": 1e38}, NonFiniteError, "rank loss"),
]  # fmt: skip


@pytest.mark.parametrize(("cure", "model", "arguments", "options", "kind", "said"), REFUSED)
def test_refusals_leave_the_model_as_it_was(cure, model, arguments, options, kind, said):
    before = digest_of(model)
    with pytest.raises(kind) as caught:
        cure(model, *arguments, **options)
    assert type(caught.value) is kind
    assert said in str(caught.value)
    assert digest_of(model) == before


HALF = [torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("name", [name for name in CURES if name != "orthogonalize_"])
def test_cures_in_half_precision(name, dtype):
    """Weights differ from those of float32 by the rounding of parameters and activations."""
    plain, half = copies()
    half.to(dtype)
    plain.load_state_dict(half.state_dict())
    CURES[name](half, X.to(dtype))
    CURES[name](plain, X.to(dtype).float())
    for expected, weight in zip(plain.parameters(), half.parameters(), strict=True):
        assert weight.dtype == dtype
        norm = max(expected.detach().norm(), 1e-3)
        distance = (expected - weight.float()).detach().norm() / norm
        assert distance < 0.05


@pytest.mark.parametrize("dtype", HALF)
def test_orthogonal_samples_in_half_precision(dtype):
    """The gap of the hidden linear layers falls to the rounding of the weights."""
    model, batch = copies()[0].to(dtype), torch.randn(5, 8).to(dtype)
    before = measure(model, batch, layers=["2", "4"]).orthogonality_gap
    orthogonalize_(model, batch, shrinkage=0.0, rng=0)
    after = measure(model, batch, layers=["2", "4"]).orthogonality_gap
    assert (after < 0.1 * before).all()
    assert all(weight.dtype == dtype for weight in model.parameters())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_models_on_a_gpu():
    """A batch goes to the device of the model; numbers are those of the CPU up to rounding."""
    model = mlp(3, 8)
    expected = measure(model, X, labels=[0, 1, 2, 0, 1])
    measured = measure(model.cuda(), X, labels=[0, 1, 2, 0, 1])
    np.testing.assert_allclose(measured.gram, expected.gram, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(measured.gradient_norm, expected.gradient_norm, rtol=1e-2, atol=1e-5)
    assert network_of(model, batch=5) == expected.reading
    for name, cure in CURES.items():
        cured = cure(mlp(3, 8, norm=False).cuda(), X)
        assert all(p.is_cuda and torch.isfinite(p).all() for p in cured.parameters()), name
