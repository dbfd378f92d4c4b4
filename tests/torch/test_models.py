"""Wrapped models, half precision and devices: for the chain, for measurements and for cures."""

import numpy as np
import pytest
from torch_models import mlp, nn, one_thread, torch  # noqa: F401

import bnmc
from bnmc.errors import ArgumentError
from bnmc.torch import break_, chain_of, gain_for_, haar_, maximize_rank_, orthogonalize_

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


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("name", CURES)
def test_cures_change_the_model_inside(name, wrapper):
    """The wrapped model is returned, and its parameters are those of a cured plain model."""
    plain, inner = copies()
    wrapped = WRAPPERS[wrapper](inner)
    assert CURES[name](wrapped, X) is wrapped
    CURES[name](plain, X)
    for one, other in zip(plain.parameters(), inner.parameters(), strict=True):
        assert torch.equal(one, other)
    assert chain_of(wrapped, batch=5) == chain_of(plain, batch=5)


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
    measure = bnmc.torch.measure
    for function in (lambda model, x: measure(model, x), lambda model, _: chain_of(model),
                     *CURES.values()):  # fmt: skip
        with pytest.raises(ArgumentError) as caught:
            function(make(), X)
        assert said in str(caught.value)


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
    for one, other in zip(plain.parameters(), half.parameters(), strict=True):
        assert other.dtype == dtype
        distance = (one - other.float()).detach().norm() / max(one.detach().norm(), 1e-3)
        assert distance < 0.05


@pytest.mark.parametrize("dtype", HALF)
def test_orthogonal_samples_in_half_precision(dtype):
    """The gap of the hidden linear layers falls to the rounding of the weights."""
    model, batch = copies()[0].to(dtype), torch.randn(5, 8).to(dtype)
    before = bnmc.torch.measure(model, batch, layers=["2", "4"]).orthogonality_gap
    orthogonalize_(model, batch, rng=0)
    after = bnmc.torch.measure(model, batch, layers=["2", "4"]).orthogonality_gap
    assert (after < 0.1 * before).all()
    assert all(one.dtype == dtype for one in model.parameters())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_models_on_a_gpu():
    """A batch goes to the device of the model; numbers are those of the CPU up to rounding."""
    model = mlp(3, 8)
    expected = bnmc.torch.measure(model, X, labels=[0, 1, 2, 0, 1])
    found = bnmc.torch.measure(model.cuda(), X, labels=[0, 1, 2, 0, 1])
    np.testing.assert_allclose(found.gram, expected.gram, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(found.gradient_norm, expected.gradient_norm, rtol=1e-2, atol=1e-5)
    assert chain_of(model, batch=5) == expected.reading
    for name, cure in CURES.items():
        cured = cure(mlp(3, 8, norm=False).cuda(), X)
        assert all(one.is_cuda and torch.isfinite(one).all() for one in cured.parameters()), name
